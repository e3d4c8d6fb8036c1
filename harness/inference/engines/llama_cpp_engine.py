"""A model that the `llama-cpp-python` package has loaded, and the thread it computes in."""

from __future__ import annotations

import asyncio
import codecs
import ctypes
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from harness.errors import (
    ConfigurationInvalid,
    ContextOverflow,
    LoadFailed,
    ModelFileInvalid,
    ServerError,
    StreamCut,
)
from harness.hardware import read_gguf_header
from harness.inference.completion import FinishReason, TokenLogprob, Usage
from harness.inference.endpoint import Endpoint
from harness.inference.engines.load_errors import why_not_loaded
from harness.inference.engines.loading import loading_of, warn_of_context
from harness.inference.engines.placement import gpu_of, type_number
from harness.inference.engines.seen_devices import seen_devices
from harness.inference.engines.stop_texts import StopTexts
from harness.inference.reply_in_progress import ServerTimings
from harness.inference.request import ChatRequest, JsonSchema, Message
from harness.inference.wire.errors import shorten

T = TypeVar("T")

_LOADING = threading.Lock()
"""Two loads at once would each put back what the other has made of stdout, and it stays lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What one token adds to a reply."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What is known of a reply once it is whole."""

    finish_reason: FinishReason
    usage: Usage
    timings: ServerTimings


class LlamaCppEngine:
    """A loaded model. Whatever computes belongs in its thread, by way of `compute`.

    Raises:
        ModelFileInvalid: The file is missing or llama.cpp refuses it.
        LoadFailed: There is no memory for it, or no GPU.
        ConfigurationInvalid: The package is not installed.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._library = _import_llama_cpp(endpoint)
        self._llama = _load(self._library, endpoint)
        # llama.cpp asks between any two operations, hundreds of times a token, whether to stop, and
        # its threads wait for the answer. A function of Python's would need the interpreter's lock
        # for it, and a prompt take twice as long whenever other threads compute; the length of a
        # text, 0 or 1, is told without.
        self._stop = ctypes.create_string_buffer(2)
        libc = ctypes.CDLL("msvcrt" if os.name == "nt" else None)
        self._library.llama_set_abort_callback(
            self._llama.ctx,
            ctypes.cast(libc.strlen, self._library.ggml_abort_callback),
            ctypes.cast(self._stop, ctypes.c_void_p),
        )
        self._vocabulary = self._library.llama_model_get_vocab(self._llama.model)
        formats = self._library.llama_chat_format
        self._format = formats.Jinja2ChatFormatter(
            # As llama-server does for a file without a template.
            self._llama.metadata.get("tokenizer.chat_template", formats.CHATML_CHAT_TEMPLATE),
            eos_token=self._spelled(self._llama.token_eos()),
            bos_token=self._spelled(self._llama.token_bos()),
        )
        # One and the same for all: the threads that llama.cpp computes with belong to it.
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._closing = False

    async def compute(self, function: Callable[[], T]) -> T:
        """Runs it in the engine's thread; a cancellation stops it, and waits until it has stopped.

        Raises:
            StreamCut: The engine was closed meanwhile.
            ServerError: llama.cpp failed.
        """
        cancelled = None
        self._stop.value = b""
        try:
            running = asyncio.get_running_loop().run_in_executor(self._thread, function)
            while not running.done():
                try:
                    await asyncio.wait([running])
                except asyncio.CancelledError as error:
                    cancelled = error
                    self._stop.value = b"!"
            if cancelled is not None:
                running.exception()  # that it was stopped
                raise cancelled
            return running.result()
        except RuntimeError as error:
            tag = self._endpoint.tag
            if self._closing:
                raise StreamCut(
                    "the reply was cut off: the model was unloaded", endpoint=tag
                ) from error
            raise ServerError(f"llama.cpp failed: {error}", endpoint=tag) from error

    def close(self) -> None:
        """Frees the model, once what is under way has been stopped."""
        self._closing = True
        # In this order: whoever takes the stop back by computing something is turned away.
        self._thread.shutdown(wait=False)
        self._stop.value = b"!"
        self._thread.shutdown(wait=True)
        self._llama.close()

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """A conversation as the model reads it, in tokens."""
        said = [{"role": message.role, "content": message.content} for message in messages]
        try:
            text = self._format(messages=said).prompt
        except Exception as error:  # a template may raise anything
            raise ServerError(
                f"the model's chat template refuses the conversation: {error}",
                endpoint=self._endpoint.tag,
                status=400,
            ) from error
        tokens: list[int] = self._llama.tokenize(text.encode(), add_bos=True, special=True)
        # A template may begin with the token that the tokenizer puts there anyway.
        twice = tokens[:2] == [self._llama.token_bos()] * 2
        return tokens[1:] if twice else tokens

    def reply(self, request: ChatRequest) -> Iterator[Piece | Ending]:
        """A reply, token by token, and its ending.

        Raises:
            ContextOverflow: The prompt leaves no room for a token.
        """
        prompt = self.prompt(request.conversation)
        context_tokens = self._endpoint.context_tokens
        room = context_tokens - len(prompt)
        if room < 1:
            raise self._overflow("prompt", len(prompt), context_tokens=context_tokens)
        room = min(room, request.max_output_tokens or room)
        grammar = None if request.reply_schema is None else self._grammar(request.reply_schema)
        self._start_counting()
        seed = self._library.LLAMA_DEFAULT_SEED if request.seed is None else request.seed
        self._llama.set_seed(seed)
        # A token may end inside a character, and so may a reply that is cut: that half is dropped.
        utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        stops = StopTexts(request.stop)
        finish_reason: FinishReason = "length"
        read = written = prefill_ns = 0
        try:
            for token in self._llama.generate(
                prompt,
                temp=request.temperature,
                **request.cutoffs,
                frequency_penalty=request.frequency_penalty,
                grammar=grammar,
            ):
                if written == 0:
                    read, prefill_ns = self._computed()
                written += 1
                if self._library.llama_vocab_is_eog(self._vocabulary, token):
                    finish_reason = "stop"
                    break
                yield Piece(
                    text=stops.feed(utf8.decode(self._bytes(token))),
                    logprobs=self._logprobs(token, request.top_logprobs),
                )
                if stops.found:
                    finish_reason = "stop"
                    break
                if written >= room:
                    break
        except RuntimeError:
            # What it has in its context now is neither the old prompt nor the new one.
            self._llama.reset()
            raise
        yield Piece(text=stops.rest())
        _, total_ns = self._computed()
        yield Ending(
            finish_reason=finish_reason,
            usage=Usage(
                input_tokens=len(prompt), output_tokens=written, cached_tokens=len(prompt) - read
            ),
            timings=ServerTimings(prefill_ns=prefill_ns, decode_ns=total_ns - prefill_ns),
        )

    def embed(self, texts: Sequence[str]) -> tuple[NDArray[np.float32], int]:
        """Their vectors, and how many tokens they were."""
        lengths = [len(self._llama.tokenize(text.encode())) for text in texts]
        # A model reads no more in one go than it was trained for, whatever its context.
        room = min(self._endpoint.context_tokens, self._llama.n_batch)
        if max(lengths) > room:
            raise self._overflow("text", max(lengths), context_tokens=room)
        if min(lengths) == 0:
            # The package would write to memory that is not its own.
            raise ServerError(
                "an empty text has no vector; leave it out",
                endpoint=self._endpoint.tag,
                status=400,
            )
        # One at a time: of several together, the package mixes up those of models without pooling.
        rows = [np.array(self._llama.embed(text, truncate=False), np.float32) for text in texts]
        vectors = np.stack([row.mean(axis=0) if row.ndim == 2 else row for row in rows])
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True), sum(lengths)

    def _grammar(self, schema: JsonSchema) -> Any:  # noqa: ANN401 - the package's own type
        try:
            text = self._library.llama_grammar.json_schema_to_gbnf(json.dumps(schema))
        except Exception as error:  # it asserts, and looks up what is not there
            raise self._not_a_grammar(str(error)) from error
        # llama.cpp gives nothing for a grammar that it cannot parse; the package does not look, and
        # the process crashes.
        sampler = self._library.llama_sampler_init_grammar(self._vocabulary, text.encode(), b"root")
        if not sampler:
            raise self._not_a_grammar("is there a quote or a backslash in a constant?")
        self._library.llama_sampler_free(sampler)
        return self._library.LlamaGrammar.from_string(text)

    def _not_a_grammar(self, why: str) -> ServerError:
        return ServerError(
            f"llama-cpp-python cannot make a grammar of the reply's schema ({why}); simplify it",
            endpoint=self._endpoint.tag,
            status=400,
        )

    def _overflow(self, what: str, tokens: int, *, context_tokens: int) -> ContextOverflow:
        return ContextOverflow(
            f"the {what} has {tokens} tokens, the context {context_tokens}. "
            + shorten(self._endpoint.tag),
            endpoint=self._endpoint.tag,
            prompt_tokens=tokens,
            context_tokens=context_tokens,
        )

    def _start_counting(self) -> None:
        # Else a computation that was stopped would be counted with the next.
        self._library.llama_synchronize(self._llama.ctx)
        self._library.llama_perf_context_reset(self._llama.ctx)

    def _computed(self) -> tuple[int, int]:
        """How many tokens have been computed in this call, and for how many nanoseconds."""
        said = self._library.llama_perf_context(self._llama.ctx)
        # Tokens that were computed alone are counted apart. None at all is said to be one.
        tokens = (said.n_p_eval if said.t_p_eval_ms else 0) + (said.n_eval if said.t_eval_ms else 0)
        return tokens, round((said.t_p_eval_ms + said.t_eval_ms) * 1_000_000)

    def _logprobs(self, token: int, top: int | None) -> tuple[TokenLogprob, ...]:
        """What the model thought of a token that has just been drawn; nothing if not asked."""
        if top is None:
            return ()
        logits = np.ctypeslib.as_array(
            self._library.llama_get_logits_ith(self._llama.ctx, -1), shape=(self._llama.n_vocab(),)
        ).astype(np.float64)
        logprobs = logits - np.logaddexp.reduce(logits)
        likeliest = sorted(np.argpartition(-logprobs, top)[:top], key=lambda one: -logprobs[one])
        return (
            TokenLogprob(
                token=self._text(token),
                logprob=float(logprobs[token]),
                top=tuple((self._text(int(one)), float(logprobs[one])) for one in likeliest),
            ),
        )

    def _text(self, token: int) -> str:
        return self._bytes(token).decode(errors="replace")

    def _bytes(self, token: int) -> bytes:
        # The package's own way to do this loses tokens of more than 32 bytes.
        buffer = ctypes.create_string_buffer(1024)
        length = self._library.llama_token_to_piece(
            self._vocabulary,
            token,
            buffer,
            len(buffer),
            0,
            False,  # noqa: FBT003 - C has no names
        )
        return buffer.raw[:length]

    def _spelled(self, token: int) -> str:
        """A special token as templates write it; empty where the model has none."""
        if token < 0:
            return ""
        spelling: bytes = self._library.llama_vocab_get_text(self._vocabulary, token)
        return spelling.decode()


def _import_llama_cpp(endpoint: Endpoint) -> Any:  # noqa: ANN401 - llama_cpp is not typed
    # Here rather than at the top: it is optional, and loads a library of its own.
    try:
        import llama_cpp  # noqa: PLC0415
    except (ImportError, OSError, RuntimeError) as error:
        raise ConfigurationInvalid(
            f"endpoint '{endpoint.tag}' needs llama-cpp-python, which cannot be imported "
            f"({error}); pip install 'wiggum-harness[llama-cpp]'",
            code="endpoint.package-missing",
        ) from error
    return llama_cpp


def _load(library: Any, endpoint: Endpoint) -> Any:  # noqa: ANN401 - llama_cpp is not typed
    path = endpoint.path
    assert path is not None
    if not path.is_file():
        raise ModelFileInvalid(
            f"there is no such file; set path of endpoint '{endpoint.tag}' to a GGUF", path=path
        )
    header = read_gguf_header(path)
    warn_of_context(endpoint, header)
    loading = loading_of(endpoint, header)
    placement = _placement(library, endpoint)
    threads = endpoint.threads or max(1, (os.cpu_count() or 2) - 1)
    try:
        with _LOADING:
            llama = library.Llama(
                str(path),
                n_ctx=loading.context_tokens,
                n_batch=loading.micro_batch_tokens,
                n_ubatch=loading.micro_batch_tokens,
                n_threads=threads,
                n_threads_batch=threads,
                type_k=type_number(loading.cache_type_k),
                type_v=type_number(loading.cache_type_v),
                # Quantised values cannot be read without; and what all heads make of a long context
                # would be in memory at once.
                flash_attn=True,
                **placement,
                embedding=endpoint.embeddings,
                verbose=False,
            )
    except Exception as error:  # its parts raise what they like
        raise why_not_loaded(endpoint, seen_devices(), said=str(error)) from error
    # It prints warnings for errors, such as that a computation was stopped.
    logging.getLogger("llama-cpp-python").setLevel(logging.CRITICAL)
    return llama


def _placement(library: Any, endpoint: Endpoint) -> dict[str, Any]:  # noqa: ANN401 - as above
    """Which layers a GPU computes, and which GPU; without one they are the processor's."""
    layers = {"n_gpu_layers": -1 if endpoint.gpu_layers is None else endpoint.gpu_layers}
    number = gpu_of(endpoint)
    if number is None:
        return layers
    if not library.llama_supports_gpu_offload():
        raise LoadFailed(
            f"its device is '{endpoint.device}', and llama-cpp-python was built without support "
            "for GPUs; build it with (CMAKE_ARGS=-DGGML_CUDA=on for NVIDIA's), or set device to "
            "'machine'",
            endpoint=endpoint.tag,
        )
    return {**layers, "main_gpu": number, "split_mode": library.LLAMA_SPLIT_MODE_NONE}
