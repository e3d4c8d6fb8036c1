"""A GGUF file, served by the llama-server of the `xllamacpp` wheel in a process of its own.

Loading starts `embedded_child.py`; unloading ends it. In between, calls go over HTTP as to any
llama-server, on a loopback port that the system chooses. Every request carries an API key that only
the two processes know: without it, other users of the machine and web pages could call the model.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, cast

import orjson

from harness.errors import EndpointUnreachable, LoadFailed, ServerError, StreamCut
from harness.hardware import Loading
from harness.hardware.capacity import core_count
from harness.inference.backend import Backend
from harness.inference.completion import Completion, Embeddings
from harness.inference.endpoint import Endpoint
from harness.inference.providers import llamacpp
from harness.inference.providers.counters import MetricsSource
from harness.inference.providers.http import Access
from harness.inference.providers.model_files import (
    Engine,
    check_file,
    engine_host,
    gpu_fields,
    load_error,
)
from harness.inference.providers.openai_wire import OpenAIWire
from harness.inference.providers.provider import ALWAYS, NEVER, Fields, Provider, remedies
from harness.inference.providers.server_host import NO_ROOM
from harness.inference.request import ChatRequest, EmbedRequest
from harness.trace import Clock, monotonic

_SCRIPT: Final = Path(__file__).with_name("embedded_child.py")
_LOG_BYTES: Final = 16 << 10
# A connection breaks a moment before the process that held it is known to have ended.
_DYING_S: Final = 1.0
_ERROR_LINE: Final = re.compile(rb"^[\d.]+ E +(?:\w+ +)?(.*)$", re.MULTILINE)
_EMBED_TOKENS = 512  # llama.cpp's micro-batch; a text to embed has to fit into one
# The micro-batch of a model that chats. Until one is computed, other slots wait and nothing can be
# cancelled. On a CPU, prompts are read as fast with 128 as with llama.cpp's own 2048.
_CHAT_TOKENS = 128
_ALL_LAYERS = -2  # for llama.cpp; -1 is as many as fit


class EmbeddedLlamaCpp(Engine):
    """One GGUF model, resident between `load` and `unload`."""

    def __init__(self, endpoint: Endpoint, *, clock: Clock = monotonic) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._child: _Child | None = None
        self._wire: OpenAIWire | None = None
        self.api_key = secrets.token_urlsafe(32)  # the bearer token that the engine's server wants

    @property
    def is_loaded(self) -> bool:
        """See `Engine`."""
        return self.address is not None

    @property
    def address(self) -> str | None:
        """Where the engine's server answers; None while there is none."""
        return self._child.url if self._child and self._child.is_alive else None

    @property
    def process_id(self) -> int | None:
        """The process id of the engine; None while there is no engine."""
        return self._child.process_id if self._child and self._child.is_alive else None

    async def _load(self) -> None:
        check_file(self._endpoint)
        fields = {**_params(self._endpoint), **_SERVER}
        child = await _Child.start()
        try:
            url = await self._serve(child, {**fields, "api_keys": [self.api_key]})
        except BaseException:
            await child.end()
            raise
        child.url = url
        server = self._endpoint.model_copy(
            update={"backend": "llamacpp", "path": None, "url": f"{url}/v1"}
        )
        access = Access(api_key=self.api_key, clock=self._clock)
        self._child = child
        self._wire = OpenAIWire(server, _WIRE, access)

    async def unload(self) -> None:
        """See `Engine`."""
        child, wire = self._child, self._wire
        self._child = self._wire = None
        try:
            if wire is not None:
                await wire.aclose()
        finally:
            if child is not None:
                await child.end()

    async def chat(self, request: ChatRequest) -> Completion:
        """One reply, whole; see `Backend.chat`."""
        async with self._alive() as wire:
            return await wire.chat(request)

    async def embed(self, request: EmbedRequest) -> Embeddings:
        """One vector per text; see `Backend.embed`. Needs an endpoint with `embeddings`."""
        async with self._alive() as wire:
            return await wire.embed(request)

    async def _serve(self, child: _Child, fields: Fields) -> str:
        """Has the child load the model; returns the address of its server, or raises."""
        if (answer := await child.ask(fields)) is None:
            end = child.end_in_words()
            if "libgomp.so" in end:  # which images such as python:3.12-slim lack
                end += "; install the OpenMP runtime: apt install libgomp1, or dnf install libgomp"
            raise LoadFailed(
                f"the engine ended while it loaded the model: {end}", code="model.engine-died"
            )
        if url := answer.get("url"):
            return cast("str", url)
        # The child could not load it.
        gpus = cast("int", answer["gpus"])
        if cast("int", fields.get("main_gpu", -1)) >= gpus:
            raise LoadFailed(
                f"its device is '{', '.join(self._endpoint.shares)}', and llama.cpp sees these "
                f"GPUs: {gpus or 'none'}; install the xllamacpp that is built for yours, or set "
                "device to 'machine'"
            )
        reason = child.first_error() or str(answer["error"])
        lacks_memory = NO_ROOM.search(reason) is not None
        loading = _loading(self._endpoint)
        raise load_error(self._endpoint, loading, why=reason, lacks_memory=lacks_memory)

    @asynccontextmanager
    async def _alive(self) -> AsyncIterator[OpenAIWire]:
        """Around a call: the wire of the loaded model; says in an error if the engine has ended."""
        child, wire = self._child, self._wire
        if child is None or wire is None:
            raise ServerError("the model is not loaded; load it first")
        try:
            yield wire
        except (StreamCut, EndpointUnreachable) as error:
            # A connection may break although the engine lives.
            if self._child is not child or not await child.has_died():
                raise
            raise StreamCut(
                f"the engine ended during the call: {child.end_in_words()}; the next call loads it "
                "again",
                code="model.engine-died",
            ) from error


class _Child(asyncio.SubprocessProtocol):
    """The engine's process; its log is kept as far as an error message may need it."""

    url: str | None = None  # of its server, once it listens

    def __init__(self) -> None:
        self._answer = b""
        self._answered = asyncio.Event()
        self._log = b""
        self._ended = asyncio.Event()

    @classmethod
    async def start(cls) -> _Child:
        # `-P`, since the script's folder has modules called `http` and `openai`. A process group of
        # its own, since Ctrl-C is for the parent, which then ends its calls in order.
        _, child = await asyncio.get_running_loop().subprocess_exec(
            cls, sys.executable, "-P", str(_SCRIPT), process_group=0
        )
        return child

    @property
    def is_alive(self) -> bool:
        return self._transport.get_returncode() is None

    @property
    def process_id(self) -> int | None:
        return self._transport.get_pid()

    async def ask(self, fields: Fields) -> dict[str, object] | None:
        """Sends its first line, and returns its answer; None if it ends without one."""
        stdin = cast("asyncio.WriteTransport", self._transport.get_pipe_transport(0))
        stdin.write(orjson.dumps(fields) + b"\n")
        await self._answered.wait()
        if not self._answer.endswith(b"\n"):
            return None
        answer: dict[str, object] = orjson.loads(self._answer)
        if "error" in answer:
            await self._ended.wait()  # the log is complete then
        return answer

    async def end(self) -> None:
        """Kills it, and returns when its memory is free."""
        # There is no need to ask it to end, since it has nothing to save.
        self._transport.close()
        await self._ended.wait()

    async def has_died(self) -> bool:
        """Whether it has ended, or ends within a moment."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_DYING_S):
                await self._ended.wait()
        return self._ended.is_set()

    def end_in_words(self) -> str:
        """Its exit status or signal, and the last line of its log."""
        status = self._transport.get_returncode() or 0
        how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        last_line = self._log.decode(errors="replace").strip().rpartition("\n")[2]
        return f"{how}, {last_line[:200]}" if last_line else how

    def first_error(self) -> str:
        """The first error in its log, or nothing."""
        line = _ERROR_LINE.search(self._log)
        return line[1].decode(errors="replace") if line else ""

    # --- called by the event loop ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self._log = (self._log + data)[-_LOG_BYTES:]
            return
        self._answer += data
        if data.endswith(b"\n"):
            self._answered.set()

    def connection_lost(self, _error: Exception | None) -> None:
        self._answered.set()
        self._ended.set()


_SERVER: Fields = {
    "hostnames": ["127.0.0.1"],
    # No web page may read its answers.
    "cors_origins": "",
    "cors_methods": "",
    "cors_headers": "",
    "cors_credentials": False,
    "ui": False,
    "endpoint_metrics": True,
    "verbosity": 2,  # warnings and errors
    # Otherwise llama-server would keep prompts that lost their slot, up to 8 GiB that nothing
    # counts, and up to 32 copies of each slot's sliding windows and states. Without these copies, a
    # prompt that differs from the one before it further back than its window is read again.
    "cache_ram_mib": 0,
    "cache_idle_slots": False,
    "n_ctx_checkpoints": 0,
}


def _params(endpoint: Endpoint) -> Fields:
    loading = _loading(endpoint)
    # One core is left to other processes while tokens are written. Measured on two cores with the
    # demo's model: it writes 66 tokens/s with one thread and 98 with two while nothing else runs,
    # but 73 and 1 to 46 beside one busy process. Prompts are read with all cores: 250 tokens/s
    # against 140 with one, and 110 against 120 beside one busy process.
    cores = core_count()
    return {
        "model.path": str(endpoint.path),
        # Otherwise replies would name the model by its path on this machine.
        "model_alias": [endpoint.model_id],
        # llama.cpp divides the context between the slots; an endpoint states it per call.
        "n_ctx": loading.context_tokens * loading.slots,
        "n_parallel": loading.slots,
        # Quantized values need flash attention, which llama.cpp switches on by itself.
        "cache_type_k": f"GGML_TYPE_{loading.cache_type_k.upper()}",
        "cache_type_v": f"GGML_TYPE_{loading.cache_type_v.upper()}",
        "cpuparams.n_threads": endpoint.threads or max(1, cores - 1),
        "cpuparams_batch.n_threads": endpoint.threads or cores,
        "n_batch": loading.micro_batch_tokens,
        "embedding": endpoint.embeddings,
        **({"cache_prompt": False} if endpoint.repeatable else {}),
        **_placement(endpoint),
    }


def _placement(endpoint: Endpoint) -> Fields:
    """Which layers GPUs compute, and which GPUs; llama.cpp places the others itself."""
    gpus = gpu_fields(endpoint)
    if endpoint.gpu_layers is not None:
        return {**gpus, "n_gpu_layers": endpoint.gpu_layers}
    return {**gpus, "n_gpu_layers": _ALL_LAYERS} if gpus else {}


def _loading(endpoint: Endpoint) -> Loading:
    tokens = _EMBED_TOKENS if endpoint.embeddings else _CHAT_TOKENS
    return Loading(
        context_tokens=endpoint.context_tokens,
        slots=endpoint.slots,
        cache_type_k=endpoint.cache_type_k,
        cache_type_v=endpoint.cache_type_v,
        micro_batch_tokens=tokens,
        computed_logits=tokens if endpoint.embeddings else None,
    )


def _source(endpoint: Endpoint, backend: Backend) -> MetricsSource | None:
    """The counters of an engine that harness starts; None for any other backend."""
    if not isinstance(backend, EmbeddedLlamaCpp):
        return None
    return MetricsSource(
        # The port is new at each load, so `address` is asked each time.
        endpoint.model_copy(update={"url": "http://127.0.0.1"}),
        llamacpp.COUNTERS,
        api_key=backend.api_key,
        address=lambda: backend.address,
    )


_WIRE = replace(llamacpp.PROVIDER, title="llama.cpp, as harness starts it,", images=NEVER)
PROVIDER = Provider(
    title="llama.cpp, started by harness",
    remedies=(
        remedies(
            "under [endpoints.{tag}] in harness.toml: ",
            let_both_stay="a lower context_tokens ({context_tokens}) or slots ({slots})",
            answer_more_at_once="slots = {more_slots} (now {slots}, {context_tokens} tokens each)",
            read_prompts_faster="no threads ({threads}): left out, all cores read prompts",
            keep_prefixes="slots = {more_slots} (now {slots}): each keeps its last prompt's prefix",
            more_kv_room=(
                'cache_type_k and cache_type_v = "q8_0", which halve the cache',
                "a lower context_tokens ({context_tokens}) or slots ({slots})",
            ),
            compute_faster="threads one less than there are cores ({threads}), for they wait "
            "spinning, and with a core too few are ten times slower",
            fit_at_start="a lower context_tokens ({context_tokens}) or slots ({slots})",
            fit_later="a lower context_tokens ({context_tokens})",
            longer_context="context_tokens = {longer_context} (now {context_tokens})",
            write_faster="the path of a smaller quantization (Q4_K_M for a producer)",
        )
        | remedies(
            "under [endpoints.{tag}] in harness.toml, in place of path: ",
            keep_loaded='backend = "llamacpp", and the url of a llama-server: it outlives the run',
        )
    ),
    telemetry_name="llamacpp",
    connect=lambda endpoint, access: EmbeddedLlamaCpp(endpoint, clock=access.clock),
    host=engine_host,
    loading=_loading,
    images=NEVER,
    cached_tokens=ALWAYS,
    timings=ALWAYS,
    side_by_side=True,
    source=_source,
    process=lambda backend: getattr(backend, "process_id", None),
    slots=lambda endpoint: endpoint.slots,
)
