"""The words of a journal: a record for each event, as it is written and as it is read.

`tracer.span(ToolEvent(…))` and `tracer.instant(RetryEvent(…))` write one, `RetryEvent.of(instant)`
reads it back, and `Events` picks those of some kinds from a journal. An event's name is its
class's, in small words and without `Event`; its fields are its attributes, in order. What has its
default is not written; what a span learns later has the default None, and is added by `Span.set`.
What is missing or of another type, as in a damaged journal, reads as the default, else as None or
empty; a text as `str` shows it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from operator import attrgetter
from sys import intern
from types import NoneType, UnionType
from typing import (
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Self,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from harness.trace.records import (
    Attributes,
    Instant,
    Interval,
    SpanRecord,
    SpanStarted,
    SpanStatus,
    describe,
    error_class,
)

E = TypeVar("E", bound="Event")

PlaceOf = Literal["endpoint", "slots", "cache", "memory"]
"""What a call in a queue waits for: a place under the endpoint's limit, one of the server's slots,
room in the model's KV cache (in journals of earlier versions), or room in memory for the model. All
but the last are turns."""


class Text:
    """A text that an attribute refers to by hash; read, or made, only with the record."""

    __slots__ = ("_source",)

    def __init__(self, source: str | Callable[[], str]) -> None:
        self._source = source

    def read(self) -> str:
        """The text, or the error of its maker: tracing never raises into the run."""
        try:
            return self._source if isinstance(self._source, str) else self._source()
        except Exception as error:  # noqa: BLE001 - whatever its maker raises
            return f"<{describe(error)}>"


Sha256 = Text | str | None
"""The digest of a text: a `Text` where it is written, a str or None where it is read."""

# The default of what one writer leaves out, and another writes even if it is None.
_UNSAID: Any = object()

_NONE: Attributes = {}

_KEPT: set[str] = set()  # the names of events that `Events` keeps

# Characters. Hashes are longer, and differ in every call.
_LONGEST_WORD = 40

_ONE_OF = "one of "  # so does the form of a question begin that only some texts answer

# Journals of earlier versions have reasons in words alone; so do these begin.
_PLACES_BY_REASON: Mapping[str, PlaceOf] = {
    "max_parallel": "endpoint", "slots": "slots", "KV cache": "cache"
}  # fmt: skip


def name_of(event: type) -> str:
    """The event's name in a journal."""
    return str(getattr(event, "NAME", "")) or _words(event)


def _words(cls: type) -> str:
    # Some have this ending because another class has the rest of the name.
    name = cls.__name__.removesuffix("Event")
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
class Event:
    """What happened, in the words of the journal."""

    NAME: ClassVar[str]
    RECORDS: ClassVar[tuple[type, ...]] = ()
    attributes: Attributes = _NONE  # as they were read, with those that have no field

    def __init_subclass__(cls, *, name: str = "") -> None:
        cls.NAME = name or _words(cls)
        # Not those of calls, of which there may be millions: `calls_of` keeps them.
        _KEPT.update({cls.NAME} - {"chat", "queue"})
        dataclass(frozen=True, kw_only=True)(cls)

    @classmethod
    def of(cls, record: object) -> Self | None:
        """What a span or an instant says; None if it is of another event."""
        is_one = isinstance(record, cls.RECORDS) and cast("Instant", record).name == cls.NAME
        return cls.read(cast("Instant", record)) if is_one else None

    @classmethod
    def read(cls, record: SpanRecord | SpanStarted | Instant, **known: object) -> Self:
        """The same of a record of any name, with what else is known of the event."""
        event, (_, empty, types) = object.__new__(cls), _form(cast("Any", cls))
        # 1. The record's own fields. 2. Its attributes, so far as they have a field of their type.
        values = record._asdict() | known
        for name, value in record.attributes.items():
            if name not in types or name in known:
                continue
            if isinstance(value, types[name]):
                values[name] = value if type(value) is not list else tuple(value)
            elif types[name] == (str,) and empty[name] is not None:
                values[name] = str(value)
        event.learn(**values)
        return event

    def learn(self, **values: object) -> None:
        """Sets fields, while the event is being read; what is not set is read off the class."""
        _, empty, _ = _form(cast("Any", type(self)))
        for name, value in values.items():
            # One by one, since objects whose dictionary nobody asks for share its keys: with a
            # third of the memory. A short text, such as a model's tag, is one for all.
            if name in empty and value is not empty[name]:
                if isinstance(value, str) and len(value) <= _LONGEST_WORD:
                    value = intern(value)  # noqa: PLW2901 - the same text
                object.__setattr__(self, name, value)


Happening = str | Event | tuple[Any, ...]
"""An event as a tracer takes it; or its name, with attributes beside it."""


class SpanEvent(Event, Interval):
    """One that takes time; the times are of the run's clock, and set where it was read."""

    RECORDS = (SpanRecord, SpanStarted)
    id: int = field(init=False, default=0)
    parent: int | None = field(init=False, default=None)
    start_ns: int = field(init=False, default=0)
    end_ns: int = field(init=False, default=0)
    status: SpanStatus = field(init=False, default="ok")
    error: str | None = field(init=False, default=None)

    @property
    def caption(self) -> str:
        """The display name: its label, or else its name."""
        return str(self.attributes.get("label") or self.NAME)

    @property
    def error_class(self) -> str:
        """The class of the error that ended it; empty without one."""
        return error_class(self.error)

    @property
    def record(self) -> SpanRecord:
        """The span that it was read from."""
        times = self.start_ns, self.end_ns
        return SpanRecord(
            self.id, self.parent, self.NAME, *times, self.status, self.error, self.attributes
        )


class InstantEvent(Event):
    """One at a moment; of the span that it happened in."""

    RECORDS = (Instant,)
    span: int | None = field(init=False, default=None)
    time_ns: int = field(init=False, default=0)


_JSON: Mapping[object, tuple[type, ...]] = {
    Any: (object,), Literal: (str,), Mapping: (dict,), Text: (), float: (int, float),
    tuple: (list, tuple),
}  # fmt: skip


def _types(hint: object) -> tuple[type, ...]:
    """The types that JSON has for an annotation."""
    origin = get_origin(hint) or hint
    if origin in {Union, UnionType}:
        return tuple(kind for part in get_args(hint) for kind in _types(part))
    return _JSON.get(origin, (cast("type", origin),))


class _Form(NamedTuple):
    """The fields of an event, by their names."""

    defaults: dict[str, object]  # not written
    empty: dict[str, object]  # what they read as without a value
    types: dict[str, tuple[type, ...]]  # that are read


@cache
def _form(cls: type[Event]) -> _Form:
    form, hints = _Form({}, {"attributes": _NONE}, {}), get_type_hints(cls)
    for part in fields(cast("Any", cls)):
        types = _types(hints[part.name])
        if part.init:
            form.defaults[part.name], form.types[part.name] = part.default, types
        if part.default is not MISSING:
            form.empty[part.name] = None if part.default is _UNSAID else part.default
        elif NoneType in types or object in types:
            form.empty[part.name] = None
        else:
            form.empty[part.name] = () if list in types else "None" if str in types else types[0]()
        setattr(cls, part.name, form.empty[part.name])  # once for all: there may be 100,000
    return form


def written(event: Event | tuple[Any, ...]) -> tuple[str, dict[str, object]]:
    """The name and the attributes of an event."""
    if not isinstance(event, Event):
        return _words(type(event)), cast("Any", event)._asdict()
    values = {
        name: value
        for name, default in _form(cast("Any", type(event))).defaults.items()
        if (value := getattr(event, name)) is not default
    }
    # `pop` comes before the joining, so `more` is gone from the left side as well.
    return event.NAME, values | values.pop("more") if "more" in values else values


def without_fields(kind: type[Event], attributes: Attributes) -> Attributes:
    """The attributes that have no field of this kind of event."""
    types = _form(cast("Any", kind)).types
    return {name: value for name, value in attributes.items() if name not in types} or _NONE


def said_by(event: Event) -> dict[str, object]:
    """What an event says, by the names of attributes: whatever is not as without a value."""
    form = _form(cast("Any", type(event)))
    values = {name: getattr(event, name) for name in form.types}
    values = {name: value for name, value in values.items() if value is not form.empty[name]}
    return values | {**event.attributes}


class Events:
    """The events among the items of a journal, by their kinds, in the order of the journal."""

    def __init__(self, items: Iterable[object] = ()) -> None:
        self._records: dict[tuple[type, str], list[Any]] = {}
        self._read: dict[type[Event], list[Any]] = {}
        for _ in self.noted(items):
            pass

    def noted(self, items: Iterable[object]) -> Iterator[SpanRecord]:
        """The spans among the items; the events are kept in passing."""
        for item in items:
            if isinstance(item, SpanRecord | Instant):
                if item.name in _KEPT:
                    self._records.setdefault((type(item), item.name), []).append(item)
                if type(item) is SpanRecord:
                    yield item

    def __getitem__(self, kind: type[E]) -> list[E]:
        """Of a kind with kinds of its own, those too."""
        if kind not in self._read:
            kinds = {event.NAME: event for event in (*kind.__subclasses__(), kind)}
            read_events = [
                event.read(record)
                for name, event in kinds.items()
                for record in self._records.get((kind.RECORDS[0], name), ())
            ]
            # Read kind by kind; their ids put them back in the order in which they began.
            by_id = len(kinds) > 1 and issubclass(kind, SpanEvent)
            self._read[kind] = sorted(read_events, key=attrgetter("id")) if by_id else read_events
        return self._read[kind]


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
    # The file that names the run for as long as its batch goes on from it; empty without one, None
    # in records of earlier versions.
    batch_state: str | None = None
    # The node that was named as its result; None if that is simply the last one.
    result: str | None = None


class InputEvent(InstantEvent):
    input: str
    value_sha256: Sha256 = _UNSAID
    digest: str | None = _UNSAID


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
    # For a place among those of its node, and below among those of the pipeline.
    concurrency_wait_ns: int | None = None
    place_wait_ns: int | None = None
    attempt: int | None = None
    # Labels of calls that an earlier part of the run made, which have no flows here.
    needs: tuple[str, ...] = ()
    traceback: str | None = None

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

    @staticmethod
    def form_of(choices: Iterable[str]) -> str:
        """Of a question that only these answer."""
        return _ONE_OF + ", ".join(choices)

    @staticmethod
    def choices_of(form: str) -> str | None:
        """They, with commas between them, which may be in them too; None for another form."""
        return form.removeprefix(_ONE_OF) if form.startswith(_ONE_OF) else None


class AnswerEvent(InstantEvent):
    key: str
    text: str | None
    answer: Any


class Warned(InstantEvent, name="warning"):
    message: str
    code: str | None = None
    more: Attributes = field(default_factory=dict)


# --- calls of models ------------------------------------------------------------------------------


class Request(SpanEvent):
    """A request to a model; what it used is known at its end."""

    track: str | None = None
    model: str
    role: str | None = _UNSAID
    model_id: str | None = None
    cost_usd: float | None = None
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    # Whether an earlier call's reply answered it; then there are no figures of a model.
    from_cache: bool = False
    was_connected: bool = True  # whether its server was reached, as far as is known
    # Whether its server refused a request of it before it did any work.
    took_no_tokens: bool = False
    # Of the error that ended it, such as `call.unreachable`; None in older journals.
    error_code: str | None = None

    @property
    def was_refused(self) -> bool:
        """Whether a limit of the run had been reached, so that it was not made."""
        return self.error_class == "RunLimitReached"

    @property
    def was_sent(self) -> bool:
        """Whether a server can have read it: no limit refused it, and its connection was made."""
        unreached = self.error_class == "EndpointUnreachable" or not self.was_connected
        return not (unreached or self.was_refused)

    @property
    def was_free(self) -> bool:
        """Whether its server refused it before it did any work."""
        # A call that ends well may have had its probe refused.
        return self.took_no_tokens and self.status == "error"


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
    """Lies in the call that it precedes, as the next one does."""


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
    # Fields left out of the request, since the model or its server refuses them.
    dropped: tuple[str, ...] = ()
    reasoning_tokens: int | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    prompt_kv_bytes: int | None = None
    connecting_ns: int | None = None
    finish_reason: str | None = None
    reply_sha256: Sha256 = None
    # From sending the request to the first token; the waits before sending are not in it.
    ttft_ns: int | None = None
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
    """What a wait was for; None for a phase that is no wait for a place."""
    reason = phase.get("reason")
    if "place_of" in phase or reason is None:
        return phase.get("place_of")
    # Journals of earlier versions; whatever else they waited for was memory.
    places = (place for start, place in _PLACES_BY_REASON.items() if str(reason).startswith(start))
    return next(places, "memory")


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
        """Until the next attempt."""
        return Interval(start_ns=self.time_ns, end_ns=self.time_ns + round(self.delay_s * 1e9))


class Fallback(InstantEvent):
    """Another endpoint is asked to answer."""

    model: str
    reason: str
    detail: str | None
    to: str


class EndpointEvent(InstantEvent):
    """What is left at its default is not there."""

    model: str
    backend: str = "openai"
    model_id: str | None = None
    url: str | None = None
    file: str | None = None  # name of the GGUF file of a model
    # Of an embedded model; None for all cores but one, and all to read prompts with.
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
    room_for: str | None = _UNSAID  # the model that it makes room for

    @property
    def makes_room(self) -> bool:
        """Whether it left memory for another; journals of earlier versions say it in words."""
        if "room_for" in self.attributes or "model" not in self.attributes:
            return self.room_for is not None
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
        """Of the loop's span."""
        return self.span or 0

    @property
    def duration_ns(self) -> int:
        """Of writing the draft and judging it."""
        return round(self.seconds * 1e9)


class StopEvent(InstantEvent):
    reason: str
    detail: str | None
    best_round: int | None


class CandidateEvent(SpanEvent):
    label: str
    number: int
    seed: int | None


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
    # Where it was, as `file.py:12`; None of a short one, or if the process did not run at all.
    at: str | None = None
    function: str | None = None


# --- what only people read ------------------------------------------------------------------------

Adopt = NamedTuple("Adopt", [("model", str), ("reason", str)])
Agent = NamedTuple("Agent", [("label", str), ("role", str)])
AgentStep = NamedTuple("AgentStep", [("label", str), ("step", int)])
AskServers = NamedTuple("AskServers", [("models", list[str])])
AskSlots = NamedTuple("AskSlots", [])
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
