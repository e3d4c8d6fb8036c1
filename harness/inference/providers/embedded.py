"""llama.cpp inside this process, by way of the `xllamacpp` wheel.

Loading a model starts llama.cpp's own server on a loopback port of the system's choosing; calls
then take the same wire as to any other server.

The wheel keeps the interpreter's lock from the beginning of a load to its end, and so nothing else
in the process moves meanwhile, in whatever thread: a load can neither be cancelled nor be limited
in time, and `load_timeout_s` is not kept. A server in a process of its own (llama-server, backend
`llamacpp`) has no such pause.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from harness.errors import LoadFailed, ModelFileInvalid, ServerError
from harness.hardware import CacheType, GgufHeader, Loading, read_gguf_header
from harness.inference.backend import Backend
from harness.inference.completion import Completion, Embeddings
from harness.inference.endpoint import Endpoint
from harness.inference.providers import llamacpp
from harness.inference.providers.counters import MetricsSource
from harness.inference.providers.model_files import (
    EngineHost,
    gpu_of,
    seen_devices,
    warn_of_context,
    why_not_loaded,
)
from harness.inference.providers.openai_wire import OpenAIWire
from harness.inference.providers.provider import (
    ALWAYS,
    Access,
    Aim,
    Provider,
    remedies,
)
from harness.inference.request import ChatRequest, CountRequest, EmbedRequest
from harness.inference.to_its_end import to_its_end
from harness.trace import Clock, monotonic

_UNDER_WAY = re.compile(r"^llamacpp:requests_(processing|deferred) [1-9]", re.MULTILINE)

_POLL_S = 0.05
"""Between two looks whether the engine is still at work."""
_PATIENT_POLL_S = 1.1
"""The same where replies are not streamed. There the engine looks whether a client has gone once it
has had nothing to tell anyone for a second: to ask more often is to be told something."""
_CONNECT_TIMEOUT_S = 0.5
_EMBED_TOKENS = 512
"""llama.cpp's micro-batch; a text to embed has to fit into one."""
_CHAT_TOKENS = 128
"""The micro-batch of a model that chats. Until one is computed, other slots wait and nothing can be
cancelled. On a CPU, prompts are read as fast with 128 as with llama.cpp's own 2048."""
_ALL_LAYERS = -2
"""For llama.cpp; -1 is as many as fit."""


class EmbeddedLlamaCpp:
    """One GGUF model, resident between `load` and `unload`.

    Args:
        endpoint: The file, its context and slots; `path` must be set.
        clock: The caller's clock.
    """

    def __init__(self, endpoint: Endpoint, *, clock: Clock = monotonic) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._server: Any = None
        self._wire: OpenAIWire | None = None
        self._address_in_use = threading.Lock()

    @property
    def is_loaded(self) -> bool:
        """Whether calls can begin: it was loaded, and its engine still listens.

        To see that, a connection is made to it and closed again, which takes a millisecond.
        """
        server = self._server
        if self._wire is None or server is None:
            return False
        address = httpx.URL(server.listening_address)
        try:
            socket.create_connection(
                (address.host, address.port), timeout=_CONNECT_TIMEOUT_S
            ).close()
        except OSError:
            return False
        return True

    @contextmanager
    def address(self) -> Iterator[str | None]:
        """Where the loaded engine can be asked how it is; None while nothing is loaded.

        Unloading waits for the end of the block, so nothing slow belongs in it. One block at a
        time: a second gets None.
        """
        # A request that reaches the engine as it ends is never answered, and the engine waits for
        # the client to go, with the interpreter's lock held: for ever, if the client is in here.
        free = self._address_in_use.acquire(blocking=False)
        try:
            loaded = free and self._wire is not None
            yield self._server.listening_address if loaded else None
        finally:
            if free:
                self._address_in_use.release()

    async def load(self) -> None:
        """Makes the model resident; takes from tenths of a second to minutes.

        Raises:
            ModelFileInvalid: The file is missing or llama.cpp refuses it.
            LoadFailed: There is no memory for it, or no such GPU as the endpoint's device.
        """
        path = self._endpoint.path
        assert path is not None
        if not path.is_file():
            raise ModelFileInvalid(
                f"there is no such file; set path of endpoint '{self._endpoint.tag}' to a GGUF",
                path=path,
            )
        try:
            await to_its_end(self._start)
        except (RuntimeError, ValueError, MemoryError) as error:
            raise why_not_loaded(self._endpoint, seen_devices(), _loading) from error
        except asyncio.CancelledError:
            await self.unload()
            raise
        served = self._endpoint.model_copy(
            update={
                "backend": "llamacpp",
                "path": None,
                "url": f"{self._server.listening_address}/v1",
            }
        )
        self._wire = OpenAIWire(served, llamacpp.PROVIDER, clock=self._clock)

    async def unload(self) -> None:
        """Gives the memory back; a call that is under way is cut off."""
        wire, self._wire = self._wire, None
        try:
            if wire is not None:
                await wire.aclose()
        finally:
            await to_its_end(self._stop)

    async def chat(self, request: ChatRequest) -> Completion:
        """One reply, whole; see `Backend.chat`."""
        return await self._loaded().chat(request)

    async def embed(self, request: EmbedRequest) -> Embeddings:
        """One vector per text; see `Backend.embed`. Needs an endpoint with `embeddings`."""
        return await self._loaded().embed(request)

    async def count_tokens(self, request: CountRequest) -> int:
        """How many tokens a prompt is; see `Backend.count_tokens`."""
        return await self._loaded().count_tokens(request)

    async def aclose(self) -> None:
        """Unloads the model."""
        await self.unload()

    def _loaded(self) -> OpenAIWire:
        if self._wire is None:
            raise ServerError("the model is not loaded; load it first", endpoint=self._endpoint.tag)
        return self._wire

    def _start(self) -> None:
        self._server = _start_server(self._endpoint)

    def _stop(self) -> None:
        with self._address_in_use:
            server, self._server = self._server, None
        # Tearing the engine down waits for what it is computing, with the interpreter's lock held.
        # Its calls are over, but it may be some way into a long prompt: wait here, without it.
        while server is not None and _UNDER_WAY.search(server.handle_metrics()):
            time.sleep(_POLL_S if self._endpoint.stream else _PATIENT_POLL_S)
        # `server` was the last reference: the engine ends with this function.


def _start_server(endpoint: Endpoint) -> Any:  # noqa: ANN401 - xllamacpp is not typed
    # Here rather than at the top: the engine is 34 MB and needed only once a model loads.
    import xllamacpp  # noqa: PLC0415

    assert endpoint.path is not None
    header = read_gguf_header(endpoint.path)
    warn_of_context(endpoint, header)
    loading = _loading(endpoint, header)
    params = xllamacpp.CommonParams()
    params.model.path = str(endpoint.path)
    # Else replies would name the model by its path on this machine.
    params.model_alias = [endpoint.model_id]
    # llama.cpp divides the context between the slots; an endpoint states it per call.
    params.n_ctx = loading.context_tokens * loading.slots
    params.n_parallel = loading.slots
    # Flash attention, which quantized values need, llama.cpp switches on by itself.
    params.cache_type_k = _ggml_type(xllamacpp, loading.cache_type_k)
    params.cache_type_v = _ggml_type(xllamacpp, loading.cache_type_v)
    _place(xllamacpp, params, endpoint)
    threads = endpoint.threads or max(1, (os.cpu_count() or 2) - 1)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.n_batch = loading.micro_batch_tokens
    # Prompts that lost their slot would be kept beside the model, up to 8 GiB that are not counted;
    # and up to 32 copies of each slot's sliding windows and states. Without them, a prompt that
    # departs from the one before it further back than its window is read again.
    params.cache_ram_mib = 0
    params.n_ctx_checkpoints = 0
    params.endpoint_metrics = True
    params.embedding = endpoint.embeddings
    params.verbosity = -1
    server = _running(params)
    if endpoint.embeddings and "error" in server.handle_embeddings({"input": ["pool"]}):
        # The model was not trained to embed, and does not say how its tokens become one vector.
        del server
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
        server = _running(params)
    return server


def _place(library: Any, params: Any, endpoint: Endpoint) -> None:  # noqa: ANN401 - as above
    """Has the layers computed where the endpoint wants them; else llama.cpp places them itself."""
    if endpoint.gpu_layers is not None:
        params.n_gpu_layers = endpoint.gpu_layers
    number = gpu_of(endpoint)
    if number is None:
        return
    gpus = len(seen_devices().free_gpu_bytes)
    if number >= gpus:
        raise LoadFailed(
            f"its device is '{endpoint.device}', and of GPUs llama.cpp sees {gpus or 'none'}; "
            "install the xllamacpp that is built for yours, or set device to 'machine'",
            endpoint=endpoint.tag,
        )
    params.split_mode = library.llama_split_mode.LLAMA_SPLIT_MODE_NONE
    params.main_gpu = number
    if endpoint.gpu_layers is None:
        params.n_gpu_layers = _ALL_LAYERS


def _ggml_type(library: Any, cache_type: CacheType) -> Any:  # noqa: ANN401 - as above
    return library.ggml_type[f"GGML_TYPE_{cache_type.upper()}"]


def _running(params: Any) -> Any:  # noqa: ANN401 - as above
    import xllamacpp  # noqa: PLC0415 - as above

    server = xllamacpp.Server(params)
    # The engine's loop starts in a thread of its own, after the constructor has returned. Told to
    # stop before that, it forgets it and runs on, and the destructor waits for ever. The loop
    # itself answers this, so afterwards it runs.
    server.handle_metrics()
    return server


def _loading(endpoint: Endpoint, _header: GgufHeader) -> Loading:
    tokens = _EMBED_TOKENS if endpoint.embeddings else _CHAT_TOKENS
    return Loading(
        context_tokens=endpoint.context_tokens,
        slots=endpoint.slots,
        cache_type_k=endpoint.cache_type_k,
        cache_type_v=endpoint.cache_type_v,
        micro_batch_tokens=tokens,
        computed_logits=tokens if endpoint.embeddings else None,
    )


def _connect(endpoint: Endpoint, access: Access) -> EmbeddedLlamaCpp:
    return EmbeddedLlamaCpp(endpoint, clock=access.clock)


def _source(endpoint: Endpoint, backend: Backend) -> MetricsSource | None:
    if not isinstance(backend, EmbeddedLlamaCpp):
        return None
    # Only this llama-server is asked for its slots: another wakes for that question from its
    # sleep, and does not tell whether its slots share one context.
    counters = llamacpp.COUNTERS
    return MetricsSource(
        backend.address,
        {counters.path: counters.read, "/slots": llamacpp.slot_readings},
        tag=endpoint.tag,
        pause_s=counters.pause_s,
    )


def _host(_endpoint: Endpoint, _access: Access, backend: Backend) -> EngineHost:
    assert isinstance(backend, EmbeddedLlamaCpp)
    return EngineHost(backend)


REMEDIES = (
    remedies(
        "under [endpoints.{tag}] in harness.toml, which needs path too ({file}): ",
        {
            Aim.LET_BOTH_STAY: "a lower context_tokens ({context_tokens}) or slots ({slots})",
            Aim.ANSWER_MORE_AT_ONCE: "more slots ({slots}); each takes room for {context_tokens} "
            "tokens",
            Aim.READ_PROMPTS_FASTER: "more threads ({threads}), to one less than there are cores "
            "at most",
            Aim.KEEP_PREFIXES: "more slots ({slots}): each keeps the prefix of its last prompt",
            Aim.MORE_KV_ROOM: "a lower context_tokens ({context_tokens}) or slots ({slots})",
            Aim.COMPUTE_FASTER: "threads one less than there are cores ({threads}), for they wait "
            "spinning, and with a core too few are ten times slower",
            Aim.FIT_AT_START: "a lower context_tokens ({context_tokens}) or slots ({slots})",
            Aim.FIT_LATER: "a lower context_tokens ({context_tokens})",
            Aim.LONGER_CONTEXT: "a higher context_tokens ({context_tokens})",
        },
    )
    | remedies(
        "under [endpoints.{tag}] in harness.toml: ",
        {
            Aim.WRITE_FASTER: "the path of a smaller quantization (Q4_K_M for a producer)",
        },
    )
    | remedies(
        "under [endpoints.{tag}] in harness.toml, in place of path: ",
        {
            Aim.KEEP_LOADED: 'backend = "llamacpp", and the url of a llama-server: it outlives the '
            "run",
        },
    )
)
"""A built-in model's table has no `path`, and needs one for most changes."""

PROVIDER = Provider(
    title="llama.cpp in this process",
    remedies=REMEDIES,
    telemetry_name="llamacpp",
    connect=_connect,
    host=_host,
    loading=_loading,
    cached_tokens=ALWAYS,
    timings=ALWAYS,
    side_by_side="slots",
    source=_source,
    slots=lambda endpoint: endpoint.slots,
)
