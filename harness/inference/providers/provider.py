"""`Provider`: one value with all the particulars of a server, filled in by its file."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Literal, Protocol

from harness.errors import NotOffered
from harness.hardware import Footprint, Loading
from harness.inference.backend import Backend
from harness.inference.endpoint import Endpoint
from harness.inference.model_identity import ModelMetadata
from harness.inference.providers.counters import Counters, MetricsSource
from harness.inference.providers.http import Access
from harness.inference.providers.server_host import ServerFacts, ServerPages
from harness.inference.providers.wire_reply import WireReply
from harness.inference.reply_in_progress import ServerTimings
from harness.inference.request import ChatRequest, Effort, JsonSchema

Fields = Mapping[str, object]  # part of a request's JSON

# The nearest of the three efforts that gpt-oss was trained on, for every other effort.
LEVELS: Mapping[str, str] = {"minimal": "low", "xhigh": "high", "max": "high"}


def by_template(effort: Effort) -> Fields:
    """Fields for servers that let the model's chat template switch thinking on and off."""
    on = effort != "none"
    level = {"reasoning_effort": LEVELS.get(effort, effort)} if on else {}
    # Qwen and GLM read `enable_thinking`, DeepSeek and Granite `thinking`, gpt-oss the effort.
    return {**level, "chat_template_kwargs": {"enable_thinking": on, "thinking": on, **level}}


Switch = str | None
"""How to make a server do or report something: its flag or setting, `ALWAYS` or `NEVER`."""
ALWAYS: Final = ""
NEVER: Final = None


class Aim(StrEnum):
    """The purpose of a change to a server's settings."""

    KEEP_LOADED = "keep it loaded"
    LET_BOTH_STAY = "let both stay"
    ANSWER_MORE_AT_ONCE = "answer more at once"
    BOUND_QUEUE = "bound the queue"
    READ_PROMPTS_FASTER = "read prompts faster"
    KEEP_PREFIXES = "keep prefixes"
    MORE_KV_ROOM = "more room for KV"
    WRITE_FASTER = "write faster"
    COMPUTE_FASTER = "compute faster"
    FIT_AT_START = "fit at start"
    FIT_LATER = "fit later"
    LONGER_CONTEXT = "longer context"
    SPREAD_PREFILL = "spread prefill"
    ENFORCE_SCHEMAS = "enforce schemas"


Remedies = Mapping[Aim, tuple[str, ...]]
"""Changes to a server's start or to its endpoint, as of its version that the provider's file names.

`{tag}`, `{model}`, `{file}`, `{slots}`, `{context_tokens}` and `{threads}` stand for the endpoint's
own, `{more_slots}` and `{longer_context}` for what the run needs.
"""


def remedies(where: str, **changes: str | tuple[str, ...]) -> dict[Aim, tuple[str, ...]]:
    """Makes `Remedies` of changes by their aims' names in lower case.

    `where` goes before each: `start vLLM with `.
    """
    by_aim: dict[Aim, tuple[str, ...]] = {}
    for name, texts in changes.items():
        alternatives = (texts,) if isinstance(texts, str) else texts
        by_aim[Aim[name.upper()]] = tuple(where + text for text in alternatives)
    return by_aim


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextReport:
    """Where a server reports the length of its context."""

    path: str  # below the server's root
    # The way through the JSON to the number; in a list, as in `/v1/models`, by the model's entry.
    keys: tuple[str, ...]
    # Key on the same page of the number of calls that it answers side by side.
    slots: str | None = None


class Host(Protocol):
    """Loads and unloads one model, at its server or in an engine that harness runs.

    The caller limits the time of all three. No two of them run at once on one host, but each may
    run while calls are answered. All raise `InferenceError` if the server cannot be reached.
    """

    async def load(self) -> None:
        """Makes the model resident; returns when calls can begin.

        If it raises or is cancelled, it undoes the load in some seconds: nothing stays in memory
        that was not there before. Raises `ModelFileInvalid`, `ModelNotFound` or `LoadFailed`.
        """
        ...

    async def unload(self) -> None:
        """Gives its memory back, and returns when it is back; raises `LoadFailed` if it stays."""
        ...

    async def report(self) -> HostReport:
        """Whether it is loaded now."""
        ...

    async def aclose(self) -> None:
        """Closes its connections; the model stays as it is."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """A host's report on its model."""

    resident: bool  # whether the model is in memory, so that a call loads nothing
    # Its memory on all devices together, and on GPUs; None where the host does not report it.
    total_bytes: int | None = None
    gpu_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """One kind of server or engine: its differences from a plain one of OpenAI's protocol."""

    title: str
    telemetry_name: str = ""
    """Its name in OpenTelemetry, if not its backend's."""
    remedies: Remedies = field(default_factory=dict)

    # Ways to it.
    connect: Callable[[Endpoint, Access], Backend] | None = None
    """None for the OpenAI wire, steered by the fields below."""
    host: Callable[[Endpoint, Access, Backend], Host] | None = None
    """Loads and unloads its models; None if that is impossible."""
    facts: Callable[[ServerPages], Awaitable[ServerFacts]] | None = None
    """Asks it about itself; None for the pages of the OpenAI wire and those named below."""
    served: Callable[[ServerPages], Awaitable[ModelMetadata | None]] | None = None
    """Asks which model it really serves; None if it does not report that."""
    footprint: Callable[[Endpoint, Host], Awaitable[Footprint | None]] | None = None
    """Asks for a model's size in memory; None if it does not report that."""
    loading: Callable[[Endpoint], Loading] | None = None
    """How it loads a file; None for a server."""

    finds_keys: bool = False
    """Whether its client picks addresses and keys itself, as for managed APIs: it has no pages."""

    # The form of a request to it on the OpenAI wire.
    schema: Callable[[JsonSchema], Fields] | None = None
    """The fields that carry a reply's schema; None if it has no place for one."""
    strict_schemas: bool = False
    """Whether it refuses schemas that do not follow the rules of OpenAI's strict mode."""
    enforces: Switch = ALWAYS
    """How to make it enforce schemas."""
    thinking: Callable[[Endpoint, Effort], Fields] | None = lambda _, effort: by_template(effort)
    """The fields that say how much a model thinks; None if it has no place for them."""
    room_tokens: int | None = None
    """Sent with a call that states no limit; None if the server then uses its whole context."""
    continues: Fields | None = None
    """Fields that make it continue an assistant's last message; None if it cannot."""
    refuses: frozenset[str] = frozenset()
    """Fields of ours that it answers with an error, or accepts and ignores."""
    progress: Fields = field(default_factory=dict)
    """Fields that make it report how far it has read a prompt. A server that reports between two
    batches also notices there that its client has gone."""
    embeds: Switch = NEVER
    embeds_one_by_one: bool = False
    tools: Switch = ALWAYS
    """How to make it support tools itself; otherwise tools are offered as a type of the reply."""
    refuses_tools: bool = False
    """Whether it refuses tools if its model does not support them; another is tested once."""
    requires_calls: bool = True
    """Whether it can make the model call a tool."""
    images: Switch = ALWAYS
    """How to make it pass images to a model that takes them."""

    # What its replies report.
    counts_usage: bool = True
    """Whether a streamed reply without its usage is incomplete."""
    times: Callable[[WireReply], ServerTimings | None] | None = None
    """Reads the times of a call from its reply."""
    timings: Switch = NEVER
    """How to make it report these times."""
    cached_tokens: Switch = NEVER
    """How to make it report the cached part of prompts."""

    # What it says of itself.
    context: ContextReport | None = None
    counters: Counters | None = None
    source: Callable[[Endpoint, Backend], MetricsSource | None] | None = None
    """Where its counters are read if its address is not the endpoint's."""
    process: Callable[[Backend], int | None] | None = None
    """The id of the engine's process, if harness starts it; None while it does not run."""
    side_by_side: bool = False
    """Whether it has a setting for the number of calls that it answers at once."""

    # How the budget treats its models.
    holds_one_model: bool = False
    slots: Callable[[Endpoint], int | None] = lambda endpoint: endpoint.max_parallel
    """How many calls a model answers at once, by the endpoint's settings."""


def check_offers(request: ChatRequest, provider: Provider) -> None:
    """Raises `NotOffered` for tools and images where the provider has no place for them."""
    if request.tools and provider.tools is NEVER:
        raise NotOffered(
            f"{provider.title} does not support tools; remove tools from the endpoint, and "
            "harness offers them as a typed reply"
        )
    if request.images and provider.images is NEVER:
        raise NotOffered(
            f"{provider.title} takes no images; ask an endpoint of another backend, such as a "
            "llama-server that was started with --mmproj"
        )


def times_in(
    part: Literal["timings", "metrics", "usage"], unit: Literal["ms", "s"] = "ms", **names: str
) -> Callable[[WireReply], ServerTimings | None]:
    """Makes `Provider.times` of the fields of a reply's part, by phase: `prefill="prompt_ms"`."""
    ns_per_unit = 1_000_000 if unit == "ms" else 1_000_000_000

    def times(reply: WireReply) -> ServerTimings | None:
        fields: Mapping[str, Any] = getattr(reply, part) or {}
        durations_ns: dict[str, int] = {}
        for phase, name in names.items():
            # A time is a number or a text; anything else is none.
            with suppress(KeyError, TypeError, ValueError, OverflowError):
                durations_ns[f"{phase}_ns"] = round(float(fields[name]) * ns_per_unit)
        return ServerTimings(**durations_ns) if durations_ns else None

    return times
