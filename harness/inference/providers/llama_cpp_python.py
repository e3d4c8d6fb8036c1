"""llama.cpp inside this process, through the `llama-cpp-python` package.

That package is compiled where it is installed, for that machine's hardware; the wheel behind
`embedded` comes ready-made. It computes one sequence, so calls wait for each other. Its state after
one call is the prefix cache of the next.

Not all of a schema is enforced: the converter to grammars ignores the bounds of numbers. The
package silences llama.cpp while a file loads, so everything that this process then writes to stdout
and stderr is lost. A load cannot be interrupted: if it takes longer than `load_timeout_s`, it fails
when it has ended.
"""

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
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from harness.errors import ConfigurationInvalid, LoadFailed, NotOffered, ServerError, StreamCut
from harness.hardware import Loading
from harness.hardware.capacity import core_count
from harness.hardware.quantization import TENSOR_FORMATS
from harness.inference.completion import Completion, Embeddings, FinishReason, Phase, Usage
from harness.inference.endpoint import Endpoint
from harness.inference.providers.error_replies import context_overflow
from harness.inference.providers.model_files import (
    Engine,
    check_file,
    engine_host,
    gpu_fields,
    load_error,
)
from harness.inference.providers.provider import NEVER, Provider, check_offers, remedies
from harness.inference.reply_in_progress import ReplyInProgress, ServerTimings, StopTexts
from harness.inference.request import ChatRequest, EmbedRequest, JsonSchema, Message
from harness.inference.time_limits import time_limits
from harness.threads import to_its_end
from harness.trace import Clock, monotonic

# Fields of a request for which it has no place.
_NOT_TAKEN = ("reasoning_effort", "extra_body")


class LlamaCppPython(Engine):
    """One GGUF model, resident between `load` and `unload`."""

    def __init__(self, endpoint: Endpoint, *, clock: Clock = monotonic) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._engine: LlamaCppEngine | None = None
        self._turn = asyncio.Lock()

    @property
    def is_loaded(self) -> bool:
        """See `Engine`."""
        return self._engine is not None

    async def _load(self) -> None:
        try:
            await to_its_end(self._start)
        except asyncio.CancelledError:
            await self.unload()
            raise

    async def unload(self) -> None:
        """See `Engine`."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await to_its_end(engine.close)

    async def chat(self, request: ChatRequest) -> Completion:
        """One reply, whole; see `Backend.chat`."""
        check_offers(request, PROVIDER)
        dropped = tuple(name for name in _NOT_TAKEN if getattr(request, name))
        start_ns = self._clock()
        async with time_limits(self._endpoint, timeout_s=request.timeout_s) as arrived, self._turn:
            engine = self._engine
            if engine is None:
                raise ServerError("the model is not loaded; load it first")
            progress = ReplyInProgress(request, clock=self._clock, arrived=arrived)
            # Pieces of the text, and then the ending.
            steps = engine.reply(request)
            while isinstance(step := await engine.compute(partial(next, steps)), str):
                progress.add(step)
            progress.end()
            completion = progress.completion(
                finish_reason=step.finish_reason,
                usage=step.usage,
                model_id=self._endpoint.model_id,
                reported=step.timings,
            )
        # The wait for its turn counts as a queue, as it would at a server.
        queue = Phase(name="queue", start_ns=start_ns, end_ns=completion.sent_ns, source="measured")
        return replace(
            completion,
            sent_ns=start_ns,
            phases=(queue, *completion.phases),
            dropped=dropped,
            structured=None if request.reply_schema is None else "enforced",
        )

    async def embed(self, request: EmbedRequest) -> Embeddings:
        """Not offered; see `Backend.embed`."""
        raise NotOffered(
            "llama-cpp-python only chats here; to embed, load the file with backend = 'embedded'",
            endpoint=request.model,
        )

    def _start(self) -> None:
        self._engine = LlamaCppEngine(self._endpoint)


T = TypeVar("T")

# Type of a cache → its number in ggml's `ggml_type`.
TYPE_NUMBERS = {block.name.lower(): number for number, block in TENSOR_FORMATS.items()}
_ALL_LAYERS = -1  # for llama-cpp-python
_MICRO_BATCH_TOKENS = 512  # llama.cpp's default
# The package replaces stdout during a load. Of two loads at once, the later one would restore the
# stdout that the earlier one had replaced, and so lose it for good.
_LOADING = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The figures of a reply that are known once it has ended."""

    finish_reason: FinishReason
    usage: Usage
    timings: ServerTimings


class LlamaCppEngine:
    """A loaded model. Its methods that compute must be called by way of `compute`."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._library = _import_llama_cpp(endpoint)
        self._llama = _load(self._library, endpoint)
        # llama.cpp calls back hundreds of times a token to ask whether to stop, and its threads
        # wait for the answer. A Python function would need the interpreter's lock for it: with
        # other threads busy, a prompt takes twice as long. C's `strlen` needs no lock: the length
        # of this text, 0 or 1, is the answer.
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
        # One thread for all calls, since the threads that llama.cpp computes with belong to it.
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._closing = False

    async def compute(self, function: Callable[[], T]) -> T:
        """Runs a function in the engine's thread; if cancelled, stops it and waits for its end.

        Raises `StreamCut` if the engine was closed meanwhile, `ServerError` if llama.cpp failed.
        """
        self._stop.value = b""
        try:
            return await to_its_end(function, thread=self._thread, stop=self._stop_computation)
        except RuntimeError as error:
            if self._closing:
                raise StreamCut("the reply was cut off: the model was unloaded") from error
            raise ServerError(f"llama.cpp failed: {error}") from error

    def close(self) -> None:
        """Stops the computation that is under way, and frees the model."""
        self._closing = True
        # New computations are refused before the stop, since `compute` would take the stop back.
        self._thread.shutdown(wait=False)
        self._stop_computation()
        self._thread.shutdown(wait=True)
        self._llama.close()

    def _stop_computation(self) -> None:
        self._stop.value = b"!"

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """A conversation as the model reads it, in tokens."""
        turns = [{"role": message.role, "content": message.content} for message in messages]
        try:
            text = self._format(messages=turns).prompt
        except Exception as error:  # a template may raise anything
            raise ServerError(
                f"the model's chat template refuses the conversation: {error}", status=400
            ) from error
        tokens: list[int] = self._llama.tokenize(text.encode(), add_bos=True, special=True)
        # A template may begin with the token that the tokenizer puts there anyway.
        begins_twice = tokens[:2] == [self._llama.token_bos()] * 2
        return tokens[1:] if begins_twice else tokens

    def reply(self, request: ChatRequest) -> Iterator[str | Ending]:
        """A reply, token by token, and then its ending; raises `ContextOverflow`."""
        prompt = self.prompt(request.conversation)
        context_tokens = self._endpoint.context_tokens
        room_tokens = context_tokens - len(prompt)
        if room_tokens < 1:
            raise context_overflow(
                f"the prompt has {len(prompt)} tokens, the context {context_tokens}",
                endpoint=self._endpoint.tag,
                prompt_tokens=len(prompt),
                context_tokens=context_tokens,
            )
        limit_tokens = min(room_tokens, request.max_output_tokens or room_tokens)
        grammar = None if request.reply_schema is None else self._grammar(request.reply_schema)
        # Otherwise a computation that was stopped would be counted with the next.
        self._library.llama_synchronize(self._llama.ctx)
        self._library.llama_perf_context_reset(self._llama.ctx)
        seed = self._library.LLAMA_DEFAULT_SEED if request.seed is None else request.seed
        self._llama.set_seed(seed)
        # A token may end inside a character. If the reply ends there too, that half is dropped.
        utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        stops = StopTexts(request.stop)
        finish_reason: FinishReason = "length"
        computed_tokens = output_tokens = prefill_ns = 0
        try:
            for token in self._llama.generate(
                prompt,
                temp=request.temperature,
                **request.sampling,
                frequency_penalty=request.frequency_penalty,
                grammar=grammar,
            ):
                if output_tokens == 0:
                    computed_tokens, prefill_ns = self._computed()
                output_tokens += 1
                if self._library.llama_vocab_is_eog(self._vocabulary, token):
                    finish_reason = "stop"
                    break
                yield stops.feed(utf8.decode(self._bytes(token)))
                if stops.has_ended:
                    finish_reason = "stop"
                    break
                if output_tokens >= limit_tokens:
                    break
        except RuntimeError:
            # The context now has neither the old prompt nor the new one.
            self._llama.reset()
            raise
        yield stops.held_back
        _, total_ns = self._computed()
        yield Ending(
            finish_reason=finish_reason,
            usage=Usage(
                input_tokens=len(prompt),
                output_tokens=output_tokens,
                cached_tokens=len(prompt) - computed_tokens,
            ),
            timings=ServerTimings(prefill_ns=prefill_ns, decode_ns=total_ns - prefill_ns),
        )

    def _grammar(self, schema: JsonSchema) -> Any:  # noqa: ANN401 - the package's own type
        try:
            text = self._library.llama_grammar.json_schema_to_gbnf(json.dumps(schema))
        except Exception as error:  # AssertionError and KeyError, among others
            raise self._not_a_grammar(str(error)) from error
        # llama.cpp returns null for a grammar that it cannot parse; the package would crash on it.
        sampler = self._library.llama_sampler_init_grammar(self._vocabulary, text.encode(), b"root")
        if not sampler:
            raise self._not_a_grammar("is there a quote or a backslash in a constant?")
        self._library.llama_sampler_free(sampler)
        return self._library.LlamaGrammar.from_string(text)

    def _not_a_grammar(self, reason: str) -> ServerError:
        return ServerError(
            f"llama-cpp-python cannot make a grammar of the reply's schema ({reason}); simplify it",
            status=400,
        )

    def _computed(self) -> tuple[int, int]:
        """How many tokens have been computed in this call, and for how many nanoseconds."""
        perf = self._library.llama_perf_context(self._llama.ctx)
        # llama.cpp counts prompt and single tokens apart; for none it reports 1, with a time of 0.
        prompt_tokens = perf.n_p_eval if perf.t_p_eval_ms else 0
        single_tokens = perf.n_eval if perf.t_eval_ms else 0
        time_ms = perf.t_p_eval_ms + perf.t_eval_ms
        return prompt_tokens + single_tokens, round(time_ms * 1_000_000)

    def _bytes(self, token: int) -> bytes:
        """The text of a token, which may begin or end inside a character."""
        # The package's own method loses tokens of more than 32 bytes.
        buffer = ctypes.create_string_buffer(1024)
        skipped_blanks, shows_special = 0, False
        length = self._library.llama_token_to_piece(
            self._vocabulary, token, buffer, len(buffer), skipped_blanks, shows_special
        )
        return buffer.raw[:length]

    def _spelled(self, token: int) -> str:
        """A special token as templates write it; empty if the model has no such token."""
        if token < 0:
            return ""
        spelling: bytes = self._library.llama_vocab_get_text(self._vocabulary, token)
        return spelling.decode()


def _loading(endpoint: Endpoint) -> Loading:
    """How the package loads a model, for its footprint."""
    return Loading(
        context_tokens=endpoint.context_tokens,
        cache_type_k=endpoint.cache_type_k,
        cache_type_v=endpoint.cache_type_v,
        micro_batch_tokens=_MICRO_BATCH_TOKENS,
        whole_windows=True,  # llama.cpp's own default; llama-server turns it off
        computed_logits=_MICRO_BATCH_TOKENS,  # it makes room for those of a whole micro-batch
    )


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
    check_file(endpoint)
    loading = _loading(endpoint)
    placement = _placement(library, endpoint)
    threads = endpoint.threads or max(1, core_count() - 1)
    try:
        with _LOADING:
            llama = library.Llama(
                str(endpoint.path),
                n_ctx=loading.context_tokens,
                n_batch=loading.micro_batch_tokens,
                n_ubatch=loading.micro_batch_tokens,
                n_threads=threads,
                n_threads_batch=threads,
                type_k=TYPE_NUMBERS[loading.cache_type_k],
                type_v=TYPE_NUMBERS[loading.cache_type_v],
                # llama.cpp cannot read quantized values without flash attention, and would have the
                # scores of all heads over a long context in memory at once.
                flash_attn=True,
                **placement,
                verbose=False,
            )
    except Exception as error:  # the package's parts raise errors of many classes
        # The package gives no reason. If it got as far as the context, that had no room.
        lacks_memory = "llama_context" in str(error)
        raise load_error(endpoint, loading, why=str(error), lacks_memory=lacks_memory) from error
    # It would log warnings of what is raised as an error anyway, such as a stopped computation.
    logging.getLogger("llama-cpp-python").setLevel(logging.CRITICAL)
    return llama


def _placement(library: Any, endpoint: Endpoint) -> dict[str, Any]:  # noqa: ANN401 - as above
    """Which GPUs compute which layers: those of the endpoint, or what the build has itself."""
    gpus = gpu_fields(endpoint)
    if gpus and not library.llama_supports_gpu_offload():
        raise LoadFailed(
            f"its device is '{', '.join(endpoint.shares)}', and llama-cpp-python was built without "
            "support for GPUs; build it with (CMAKE_ARGS=-DGGML_CUDA=on for NVIDIA's), or set "
            "device to 'machine'"
        )
    if gpus:
        gpus["split_mode"] = getattr(library, gpus["split_mode"])
    layers = _ALL_LAYERS if endpoint.gpu_layers is None else endpoint.gpu_layers
    return {**gpus, "n_gpu_layers": layers}


PROVIDER = Provider(
    title="llama-cpp-python",
    remedies=remedies(
        "under [endpoints.{tag}] in harness.toml: ",
        keep_loaded='backend = "llamacpp", and the url of a llama-server in place of path',
        let_both_stay="a lower context_tokens ({context_tokens})",
        answer_more_at_once='backend = "embedded", which answers several calls side by side',
        read_prompts_faster="more threads ({threads}), to one less than there are cores at most",
        fit_at_start="a lower context_tokens ({context_tokens})",
        fit_later="a lower context_tokens ({context_tokens})",
        longer_context="context_tokens = {longer_context} (now {context_tokens})",
    ),
    telemetry_name="llamacpp",
    connect=lambda endpoint, access: LlamaCppPython(endpoint, clock=access.clock),
    host=engine_host,
    tools=NEVER,
    images=NEVER,
    loading=_loading,
    slots=lambda _endpoint: 1,
)
