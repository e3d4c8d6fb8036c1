"""The words of a journal: a record for each event, as it is written and as it is read.

`tracer.span(ToolEvent(…))` and `tracer.instant(RetryEvent(…))` write one, `RetryEvent.of(instant)`
reads it back, and `Events` picks those of some kinds from a journal. `event_forms` says how a
record's fields become attributes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from operator import attrgetter
from typing import Any, Literal, NamedTuple, TypeVar

from harness.trace.event_forms import NAMES, UNSAID, Event, InstantEvent, SpanEvent, Text, words_of
from harness.trace.records import Attributes, Instant, Interval, SpanRecord

E = TypeVar("E", bound=Event)

PlaceOf = Literal["endpoint", "slots", "cache", "memory"]
"""What a call in a queue waits for: a place under the endpoint's limit, one of the server's slots,
room in the model's KV cache (in journals of earlier versions), or room in memory for the model. All
but the last are turns."""

Happening = str | Event | tuple[Any, ...]
"""An event as a tracer takes it; or its name, with attributes beside it."""

Sha256 = Text | str | None
"""The digest of a text: a `Text` where it is written, a str or None where it is read."""

# The form of a question that only some texts answer begins so.
_ONE_OF = "one of "
# How a reason for waiting begins in journals of earlier versions, which have no `place_of`.
_PLACES_BY_REASON: Mapping[str, PlaceOf] = {
    "max_parallel": "endpoint", "slots": "slots", "KV cache": "cache"
}  # fmt: skip


def name_of(event: type) -> str:
    """The event's name in a journal."""
    return str(getattr(event, "NAME", "")) or words_of(event)


# --- runs and nodes -------------------------------------------------------------------------------


class RunSpanEvent(SpanEvent, name="run"):
    label: str | None
    max_parallel: int | None
    tenant: str | None = None  # for whom a session made it


class PipelineEvent(InstantEvent):
    pipeline: str
    content: Literal["full", "hash", "none"]
    target: str | None
    config: str | None
    roles: Mapping[str, str]
    memory: str | None
    seed: int | None
    engine: str | None
    inputs: tuple[str, ...]
    limits: Mapping[str, Any]
    is_batch: bool = False  # whether its nodes are the rows of a table
    # The file by which its batch goes on; empty without one, None in records of earlier versions.
    batch_state: str | None = None
    row_ids: tuple[str, ...] = ()  # of its batch, by number; "" for a row that has none, or is gone
    result: str | None = None  # the node named as its result; None for the last one
    tenant: str | None = None  # as in the run's span, which a killed run may not have written


class InputEvent(InstantEvent):
    input: str
    value_sha256: Sha256 = UNSAID
    digest: str | None = UNSAID
    unset: Sequence[Sequence[str]] | None = None  # as in `NodeOutput`


class Outcome(InstantEvent):
    status: str
    failed: tuple[str, ...]
    failures: int
    skips: int
    reused: int
    made_again: int
    questions: tuple[str, ...]


class Salvaged(InstantEvent):
    detail: str


class NodeAttempt(SpanEvent, name="node"):
    track: str | None
    label: str
    node: str = ""
    item: int | None
    # The wait for a place among those of its node; below, among those of the pipeline.
    concurrency_wait_ns: int | None = None
    place_wait_ns: int | None = None
    attempt: int | None = None
    needs: tuple[str, ...] = ()  # labels of calls of earlier parts, which have no flows here
    traceback: str | None = None
    code: str | None = None  # of one that failed: its digest; None in earlier versions' records
    variation: int = 0  # of one that failed: how often replies had failed the node before
    reason: str | None = None  # the class of the error that is the reason of a group's

    @property
    def waited_ns(self) -> int:
        """How long it waited for a place."""
        return (self.concurrency_wait_ns or 0) + (self.place_wait_ns or 0)


class ItemsEvent(InstantEvent):
    node: str
    total: int


class RefusedRows(ItemsEvent):
    """Rows of a batch that do not fit its pipeline: they fail, and no call is begun for them."""


class Reuse(InstantEvent):
    node: str
    item: int | None


class Skip(InstantEvent):
    node: str
    item: int | None
    detail: str | None
    because_of: str | None  # the node without whose output it was left out
    decided_by: tuple[str, ...] = ()  # nodes and inputs that its `when=` was given


class CodeEvent(InstantEvent):
    code: str
    parts: Mapping[str, str]


class QuestionEvent(InstantEvent):
    key: str
    text: str | None
    form: str  # the kind of answer, in words
    schema: Mapping[str, Any] | None = None  # of an answer in JSON
    about: str | None = None  # digest of the inputs of the call that asks

    @staticmethod
    def form_of(choices: Iterable[str]) -> str:
        """The form of a question that only these choices answer."""
        return _ONE_OF + ", ".join(choices)

    @staticmethod
    def choices_of(form: str) -> str | None:
        """The choices, joined by commas, which they may contain too; None for another form."""
        return form.removeprefix(_ONE_OF) if form.startswith(_ONE_OF) else None


class AnswerEvent(InstantEvent):
    key: str
    text: str | None
    answer: Any
    about: str | None = None  # as in `QuestionEvent`


class Warned(InstantEvent, name="warning"):
    message: str
    code: str | None = None
    more: Attributes = field(default_factory=dict)


# --- calls of models ------------------------------------------------------------------------------


class Request(SpanEvent):
    """A request to a model; what it used is known at its end."""

    track: str | None = None
    model: str
    role: str | None = UNSAID
    model_id: str | None = None
    cost_usd: float | None = None
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    # Of one that failed after it was sent: a high estimate of the tokens of its prompt.
    prompt_estimate: int | None = None
    from_cache: bool = False  # whether an earlier call's reply answered it: no model was asked
    was_connected: bool = True  # whether its server was reached, as far as is known
    took_no_tokens: bool = False  # whether its server refused it before any work
    refused_requests: int = 0  # of the same call, before the last, which is sent in another way
    error_code: str | None = None  # such as `call.unreachable`; None in older journals

    @property
    def charged_input_tokens(self) -> int | None:
        """The tokens of its prompt by the server's count, or else by the estimate."""
        return self.prompt_estimate if self.input_tokens is None else self.input_tokens

    @property
    def was_refused(self) -> bool:
        """Whether a limit of the run or a loop had been reached, so that it was not made."""
        return self.error_class in {"RunLimitReached", "LimitReached"}

    @property
    def was_sent(self) -> bool:
        """Whether a server can have read it: no limit refused it, and its connection was made."""
        unreached = self.error_class == "EndpointUnreachable" or not self.was_connected
        return not (unreached or self.was_refused)

    @property
    def was_free(self) -> bool:
        """Whether its server refused it before it did any work."""
        # A chat that ends well was refused in another form first; a probe learns from a refusal.
        return self.took_no_tokens and (self.status == "error" or isinstance(self, OtherRequest))


class ReplyAgain(InstantEvent):
    """A reply of an earlier part of the run, which a call got without asking; what it took then."""

    model: str
    cost_usd: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


class OtherRequest(Request):
    """A request that is no chat call."""


class Embed(OtherRequest):
    texts: int


class Rerank(Embed):
    """Scores texts by how well they answer a question."""


class SchemaProbe(OtherRequest):
    """Whether a server enforces schemas; like a `ToolProbe`, in the call that it precedes."""


class ToolProbe(OtherRequest):
    """Whether a template shows tools to the model."""


class Chat(Request):
    """One attempt to call a model."""

    label: str
    temperature: float | None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    reasoning_effort: str | None = None
    extra_body: Mapping[str, Any] | None = None  # fields of the request that harness does not know
    seed: int | None
    max_output_tokens: int | None
    structured: bool
    asks_again: bool = False  # whether it follows a reply that could not be used
    tools_offered: int | None = None
    prompt_chars: int
    prompt_sha256: Sha256
    # Known at its end.
    replica: str | None = None
    cache_saved_usd: float | None = None
    schema: str | None = None
    dropped: tuple[str, ...] = ()  # fields that the model or its server refuses, left out
    reasoning_tokens: int | None = None
    # Reasoning that no piece of the stream brought: its time is in prefill, not in decode.
    unstreamed_tokens: int | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    prompt_kv_bytes: int | None = None
    connecting_ns: int | None = None
    finish_reason: str | None = None
    reply_sha256: Sha256 = None
    ttft_ns: int | None = None  # from sending the request to the first token
    itl_mean_ns: int | None = None
    itl_p95_ns: int | None = None
    itl_p99_ns: int | None = None
    itl_max_ns: int | None = None


REQUESTS: Mapping[str, type[Request]] = {
    kind.NAME: kind for kind in (Chat, Embed, Rerank, SchemaProbe, ToolProbe)
}
"""The kinds of requests to models, by the names of their spans."""


def request_of(span: SpanRecord) -> Request | None:
    """A request to a model, of whichever kind; None for any other span."""
    return REQUESTS[span.name].read(span) if span.name in REQUESTS else None


class Queue(SpanEvent):
    """A wait for a place."""

    source: str
    place_of: PlaceOf | None
    reason: str


def place_of(phase: Attributes) -> object:
    """The `PlaceOf` of a wait, from a phase's attributes; None if it is no wait for a place."""
    reason = phase.get("reason")
    if "place_of" in phase or reason is None:
        return phase.get("place_of")
    # A journal of an earlier version.
    for start, place in _PLACES_BY_REASON.items():
        if str(reason).startswith(start):
            return place
    return "memory"


class RetryEvent(InstantEvent):
    """A pause before another attempt."""

    node: str | None = None
    model: str | None = None
    reason: str  # the class of the error before it
    detail: str | None
    attempt: int | None = None
    delay_s: float

    @property
    def pause(self) -> Interval:
        """The time until the next attempt."""
        return Interval(start_ns=self.time_ns, end_ns=self.time_ns + round(self.delay_s * 1e9))


class Fallback(InstantEvent):
    """Another endpoint is asked to answer."""

    model: str
    reason: str
    detail: str | None
    to: str


class EndpointEvent(InstantEvent):
    """A field that is left at its default is not there."""

    model: str
    backend: str = "openai"
    model_id: str | None = None
    url: str | None = None
    file: str | None = None  # name of the GGUF file of a model
    # For an embedded model; None for all cores but one, and all cores to read prompts.
    threads: int | None = None
    usd_per_hour: float | None = None
    usd_per_million_input_tokens: float | None = None
    usd_per_million_output_tokens: float | None = None
    more: Attributes = field(default_factory=dict)


class WeightsEvent(InstantEvent):
    model: str
    device: Any
    active_bytes: int | None
    token_bytes: int


class MachineEvent(InstantEvent):
    device: str | None
    memory_bytes_per_s: float
    cores: int | None = None
    source: str


class Budget(InstantEvent):
    device: str | None
    capacity_bytes: int | None
    reserve_bytes: int


class LoadEvent(SpanEvent):
    """A model comes into memory."""

    track: str | None = None
    model: str = ""
    need_bytes: int | None = None
    reason: str | None = None
    prefetch: bool | None = None  # whether it is loaded ahead of the first call
    source: str
    waits_for: int | None = None  # for a call's share of a load: the load's own span


class UnloadEvent(SpanEvent):
    track: str | None
    model: str
    reason: str


class Evict(InstantEvent):
    model: str
    reason: str
    room_for: str | None = UNSAID  # the model that it makes room for

    @property
    def makes_room(self) -> bool:
        """Whether it left memory for another model."""
        if "room_for" in self.attributes or "model" not in self.attributes:
            return self.room_for is not None
        # A journal of an earlier version has no `room_for`.
        return self.reason.startswith("room for ")


# --- loops ----------------------------------------------------------------------------------------


class LoopEvent(SpanEvent, name="wiggum"):
    rubric: str
    rubric_sha256: str
    prompts_sha256: str | None
    task_sha256: Sha256
    prompt_sha256: Sha256
    key: str | None
    stop_reason: str | None = None
    best_round: int | None = None
    passed: bool | None = None
    composites: tuple[float, ...] | None = None


class Evaluate(SpanEvent):
    label: str | None = None
    round: int | None = None
    draft_sha256: Sha256
    composite: float | None = None
    passed: bool | None = None
    scores: Mapping[str, float] | None = None
    findings: tuple[str, ...] = ()


class RoundEvent(InstantEvent):
    round: int
    base_round: int | None
    composite: float
    passed: bool
    cut: bool
    changed_chars: int
    calls: int
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    seconds: float
    draft_chars: int
    draft_sha256: Sha256
    round_sha256: Sha256

    @property
    def id(self) -> int:
        """The id of the loop's span."""
        return self.span or 0

    @property
    def duration_ns(self) -> int:
        """How long writing the draft and judging it took."""
        return round(self.seconds * 1e9)


class StopEvent(InstantEvent):
    reason: str
    detail: str | None
    best_round: int | None


class CandidateFate(InstantEvent, name="candidate"):
    round: int
    section: str | None
    number: int
    seed: int | None
    outcome: str
    checked: float | None
    text_sha256: Sha256
    detail: str | None


# --- memory, tools, the process -------------------------------------------------------------------


class Remember(SpanEvent):
    source: str | None
    title: str | None
    quality: float | None
    metadata: Attributes | None
    created: str | None
    chars: int
    document_sha256: Sha256
    digest: str | None


class Recall(SpanEvent):
    query: str | None
    limit: int
    mode: str
    where: Attributes | None


class ToolEvent(SpanEvent):
    label: str
    tool: str
    arguments_sha256: Sha256


class ClientLag(SpanEvent):
    """The event loop stood still."""

    track: str
    longest_ns: int
    # Where it stood, as `file.py:12`; None for a short one, or if the process did not run.
    at: str | None = None
    function: str | None = None


# --- what only people read ------------------------------------------------------------------------

Adopt = NamedTuple("Adopt", [("model", str), ("reason", str)])
Agent = NamedTuple("Agent", [("label", str), ("role", str)])
AgentStep = NamedTuple("AgentStep", [("label", str), ("step", int)])
AskServers = NamedTuple("AskServers", [("models", list[str])])
AskSlots = NamedTuple("AskSlots", [])
CandidateEvent = NamedTuple(
    "CandidateEvent", [("label", str), ("number", int), ("seed", int | None)]
)
Draft = NamedTuple("Draft", [])
EvaluatorDrawn = NamedTuple("EvaluatorDrawn", [
    ("evaluator", str), ("seed", str | None), ("pool", Sequence[str]),
    ("excluded", Mapping[str, str]),
])  # fmt: skip
EvaluatorNoise = NamedTuple("EvaluatorNoise", [
    ("rubric", str), ("evaluator", str), ("deviation", float), ("drafts", int), ("judgements", int),
])  # fmt: skip
EvaluatorPanel = NamedTuple("EvaluatorPanel", [
    ("evaluators", Sequence[str]), ("combine", str), ("excluded", Mapping[str, str]),
])  # fmt: skip
Hold = NamedTuple("Hold", [("source", str), ("reason", str | None)])
McpStart = NamedTuple("McpStart", [("label", str), ("server", str)])
Measure = NamedTuple("Measure", [("sequences", int)])
Novelty = NamedTuple("Novelty", [("texts", int)])
OpenMemory = NamedTuple("OpenMemory", [("kept", bool)])
RayStart = NamedTuple("RayStart", [("address", str | None)])
Refused = NamedTuple("Refused", [("id", str), ("title", str | None), ("detail", str | None)])
Revise = NamedTuple("Revise", [
    ("label", str), ("round", int), ("base_round", int), ("focus", list[str]),
])  # fmt: skip
Separation = NamedTuple("Separation", [("relation", str), ("producer", Any), ("evaluator", Any)])
WaitForRoom = NamedTuple("WaitForRoom", [])
Worker = NamedTuple("Worker", [("label", str), ("track", str), ("process", int)])


# --- reading --------------------------------------------------------------------------------------

# Spans of calls are left out, since there may be millions: `calls_of` keeps them.
_KEPT = NAMES - {Chat.NAME, Queue.NAME} | {
    *map(name_of, (AskSlots, Hold, McpStart, Novelty, OpenMemory, WaitForRoom))
}


class Events:
    """The events among the items of a journal: `events[RetryEvent]` has all retries in order."""

    def __init__(self, items: Iterable[object] = ()) -> None:
        self._records: dict[tuple[type, str], list[Any]] = {}
        self._read: dict[type[Event], list[Any]] = {}
        for _ in self.noted(items):
            pass

    def noted(self, items: Iterable[object]) -> Iterator[SpanRecord]:
        """The spans among the items. Keeps the records of all events that pass."""
        for item in items:
            if isinstance(item, SpanRecord | Instant):
                if item.name in _KEPT:
                    self._records.setdefault((type(item), item.name), []).append(item)
                if type(item) is SpanRecord:
                    yield item

    def times_of(self, event: type) -> list[Interval]:
        """When the spans of one event lasted, without those of its subclasses."""
        spans = self._records.get((SpanRecord, name_of(event)), ())
        return [Interval(start_ns=span.start_ns, end_ns=span.end_ns) for span in spans]

    def __getitem__(self, kind: type[E]) -> list[E]:
        """All events of a kind, with those of its subclasses."""
        if kind not in self._read:
            kinds = {event.NAME: event for event in _family(kind)}
            read_events = [
                event.read(record)
                for name, event in kinds.items()
                for record in self._records.get((kind.RECORDS[0], name), ())
            ]
            if len(kinds) > 1 and issubclass(kind, SpanEvent):
                # Several kinds were read one after the other. Ids count in the order of starts.
                read_events.sort(key=attrgetter("id"))
            self._read[kind] = read_events
        return self._read[kind]


def _family(kind: type[E]) -> Iterator[type[E]]:
    for subclass in kind.__subclasses__():
        yield from _family(subclass)
    yield kind
