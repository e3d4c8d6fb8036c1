"""What rules look at: a run's calls, counters and texts, read once from its journal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from harness.trace.calls import Call, Interval, calls_of
from harness.trace.diagnosis.finding import Finding, said_ns
from harness.trace.journal_file import Item
from harness.trace.journal_reader import Journal
from harness.trace.records import (
    Attributes,
    Content,
    CounterSet,
    Flow,
    Instant,
    RunEnded,
    SpanRecord,
)

T = TypeVar("T")

LEAST_LOST_NS = 200_000_000
"""A fault that took less of the run is none: nobody notices a fifth of a second."""

LEAST_LOST_SHARE = 0.05
"""Nor one that took a smaller share of it."""

TEXTS_OF_CALLS = 200
"""Of so many calls, from the first, the texts are compared: a fault that repeats shows in them."""

MACHINE = "machine"
"""The device of models that are in the machine's own memory."""

_SERVER_TRACK = "server "


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """An endpoint, as the run's head describes it; a setting left at its default is not there."""

    tag: str
    """The name that calls have for it."""
    backend: str = "openai"
    """Its kind: `embedded`, `vllm`, `litellm` and so on; see `inference.Endpoint`."""
    slots: int = 4
    """Calls that a model in this process answers side by side."""
    context_tokens: int = 4096
    """Context of one call, for a model in this process."""
    threads: int | None = None
    """Processor threads of an embedded model; None where they are all cores but one."""
    file: str | None = None
    """Name of the GGUF file of a model in this process."""
    device: str = MACHINE
    """Whose memory its model takes: the machine's own, or a GPU's."""
    max_concurrency: int | None = None
    """Calls that the harness lets through to it at one time; None for any number."""
    drop: tuple[str, ...] = ()
    """Fields that its settings say never to send."""
    fallback: tuple[str, ...] = ()
    """Who is asked instead, in order."""

    @property
    def is_in_process(self) -> bool:
        """Whether it computes in this process, on the processor's cores."""
        return self.backend in {"embedded", "llama-cpp-python"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Load(Interval):
    """A model came into memory."""

    id: int
    """The span's."""
    model: str
    """Tag of its endpoint."""
    need_bytes: int | None
    """What it takes there."""
    is_prefetch: bool = False
    """Whether it was loaded ahead of the first call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry(Interval):
    """A pause between two attempts."""

    model: str
    """Who was called."""
    reason: str
    """Class of the error before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """A call that another endpoint was asked to answer."""

    time_ns: int
    """When."""
    failed: str
    """Who could not: the one that was meant, or one that was asked instead before."""
    to: str
    """Who was asked next."""
    reason: str
    """Class of the error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A run."""

    run: Interval
    """All of it."""
    ended: RunEnded | None
    """How it ended; None when it was killed, or is not over."""
    calls: tuple[Call, ...]
    """In the order they began, those that the cache of calls answered included."""
    resumed_ns: int | None = None
    """When the last part of the run began; None if it was never resumed."""
    loads: tuple[Load, ...] = ()
    """Loads that succeeded, in order."""
    unloads: tuple[Interval, ...] = ()
    """Models leaving memory."""
    retries: tuple[Retry, ...] = ()
    """In order."""
    fallbacks: tuple[Fallback, ...] = ()
    """In order."""
    embeddings: tuple[Interval, ...] = ()
    """When texts were being embedded."""
    servers: Mapping[str, Server] = field(default_factory=dict)
    """Endpoints, by tag."""
    reserves: Mapping[str, int] = field(default_factory=dict)
    """Bytes that the budget keeps free of each device's capacity."""
    counters: Mapping[tuple[str, str], tuple[CounterSet, ...]] = field(default_factory=dict)
    """What servers said of themselves, by tag and name, each in order."""
    nodes: Mapping[int, Interval] = field(default_factory=dict)
    """Calls of nodes, by their spans."""
    node_names: Mapping[int, str] = field(default_factory=dict)
    """What each of these nodes is called."""
    failed_nodes: tuple[int, ...] = ()
    """Those of them that an error ended, in the order they began."""
    parents: Mapping[int, int | None] = field(default_factory=dict)
    """The span around each span; phases left out."""
    sources: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """By span, those that led to it: what it had to wait for."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Prompts and replies by their hashes, of the first calls, where they were recorded."""

    def by_model(self) -> dict[str, list[Call]]:
        """The calls that a model answered, by their endpoints' tags."""
        calls: dict[str, list[Call]] = {}
        for call in self.calls:
            if call.status == "ok" and not call.from_cache:
                calls.setdefault(call.model, []).append(call)
        return calls

    def server(self, tag: str) -> Server:
        """An endpoint; of one that the run does not describe, the tag alone is known."""
        return self.servers.get(tag) or Server(tag=tag)

    def outlived(self, time_ns: int) -> bool:
        """Whether the run was resumed later: what failed or was cut off by then was done again."""
        return self.resumed_ns is not None and time_ns <= self.resumed_ns

    def text(self, call: Call, attribute: str) -> str | None:
        """The call's `prompt_sha256` or `reply_sha256` as a text, if it was recorded."""
        return self.texts.get(str(call.attributes.get(attribute)))

    def highest(self, tag: str, name: str) -> float | None:
        """The highest value of a server's counter; None if the run has none."""
        return max((c.value for c in self.counters.get((tag, name), ())), default=None)

    def while_counter(self, tag: str, name: str, holds: Callable[[float], bool]) -> list[Interval]:
        """When a server's counter had such a value: each holds until the next."""
        values = self.counters.get((tag, name), ())
        ends_ns = [*(later.time_ns for later in values[1:]), self.run.end_ns]
        return [
            Interval(start_ns=one.time_ns, end_ns=end_ns)
            for one, end_ns in zip(values, ends_ns, strict=False)
            if holds(one.value)
        ]

    def matters(self, lost_ns: float) -> bool:
        """Whether so much time is worth a finding."""
        return lost_ns >= max(LEAST_LOST_NS, LEAST_LOST_SHARE * self.run.duration_ns)

    def said(self, lost_ns: float) -> str:
        """A part of the run for people: `4.3 s, 41 % of the run`."""
        share = lost_ns / max(1, self.run.duration_ns)
        return f"{said_ns(lost_ns)}, {share:.0%} of the run"


def worst_model(
    observed: Observed, rule: Callable[[Observed, str, Sequence[Call]], Finding | None]
) -> Finding | None:
    """What a rule finds of the model that lost most by it; the others may have the same fault."""
    found = [rule(observed, model, calls) for model, calls in observed.by_model().items()]
    return max(filter(None, found), key=lambda finding: finding.lost_ns or 0, default=None)


def observe(journal: Journal) -> Observed:
    """Reads what rules need. Takes about a kilobyte for each call."""
    reading = _Reading()
    calls = tuple(calls_of(reading.spans_among(journal.items())))
    return Observed(
        run=Interval(start_ns=journal.started.time_ns, end_ns=journal.last_ns),
        ended=journal.ended,
        calls=calls,
        resumed_ns=journal.resumed_ns,
        loads=tuple(reading.loads),
        unloads=tuple(reading.unloads),
        retries=tuple(reading.retries),
        fallbacks=tuple(reading.fallbacks),
        embeddings=tuple(reading.embeddings),
        servers=reading.servers,
        reserves=reading.reserves,
        counters={key: tuple(values) for key, values in reading.counters.items()},
        nodes=reading.nodes,
        node_names=reading.node_names,
        failed_nodes=tuple(reading.failed_nodes),
        parents=reading.parents,
        sources=_sources(journal.flows),
        texts=_texts(journal, calls[:TEXTS_OF_CALLS]),
    )


class _Reading:
    """Takes down what is beside calls, while `calls_of` reads the spans."""

    def __init__(self) -> None:
        self.loads: list[Load] = []
        self.unloads: list[Interval] = []
        self.retries: list[Retry] = []
        self.fallbacks: list[Fallback] = []
        self.embeddings: list[Interval] = []
        self.servers: dict[str, Server] = {}
        self.reserves: dict[str, int] = {}
        self.counters: dict[tuple[str, str], list[CounterSet]] = {}
        self.nodes: dict[int, Interval] = {}
        self.node_names: dict[int, str] = {}
        self.failed_nodes: list[int] = []
        self.parents: dict[int, int | None] = {}

    def spans_among(self, items: Iterator[Item]) -> Iterator[SpanRecord]:
        for item in items:
            match item:
                case SpanRecord():
                    self._note_span(item)
                    yield item
                case CounterSet(track=str(track)) if track.startswith(_SERVER_TRACK):
                    key = (track.removeprefix(_SERVER_TRACK), item.name)
                    self.counters.setdefault(key, []).append(item)
                case Instant(name="endpoint"):
                    server = _server(item.attributes)
                    self.servers[server.tag] = server
                case Instant(name="budget"):
                    device = str(item.attributes.get("device", MACHINE))
                    said = item.attributes.get("reserve_bytes")
                    self.reserves[device] = _whole(said, default=0)
                case Instant(name="retry") if "model" in item.attributes:
                    self._note_retry(item)
                case Instant(name="fallback"):
                    self._note_fallback(item)

    def _note_span(self, span: SpanRecord) -> None:
        match span.name:
            case "load" if span.status == "ok" and "waits_for" not in span.attributes:
                self.loads.append(
                    Load(
                        id=span.id,
                        start_ns=span.start_ns,
                        end_ns=span.end_ns,
                        model=str(span.attributes.get("model")),
                        need_bytes=_whole(span.attributes.get("need_bytes"), default=None),
                        is_prefetch=span.attributes.get("prefetch") is True,
                    )
                )
            case "load" | "queue" | "prefill" | "decode":
                pass
            case "unload":
                self.unloads.append(Interval(start_ns=span.start_ns, end_ns=span.end_ns))
            case "node":
                self.nodes[span.id] = Interval(start_ns=span.start_ns, end_ns=span.end_ns)
                self.parents[span.id] = span.parent
                self.node_names[span.id] = str(span.attributes.get("node"))
                if span.status == "error":
                    self.failed_nodes.append(span.id)
            case "embed":
                self.embeddings.append(Interval(start_ns=span.start_ns, end_ns=span.end_ns))
            case _:
                self.parents[span.id] = span.parent

    def _note_retry(self, instant: Instant) -> None:
        delay_s = instant.attributes.get("delay_s")
        delay_ns = round(delay_s * 1e9) if isinstance(delay_s, int | float) else 0
        self.retries.append(
            Retry(
                start_ns=instant.time_ns,
                end_ns=instant.time_ns + delay_ns,
                model=str(instant.attributes.get("model")),
                reason=str(instant.attributes.get("reason")),
            )
        )

    def _note_fallback(self, instant: Instant) -> None:
        meant, to = (str(instant.attributes.get(name)) for name in ("model", "to"))
        others = self.servers[meant].fallback if meant in self.servers else ()
        in_order = (meant, *others)
        self.fallbacks.append(
            Fallback(
                time_ns=instant.time_ns,
                failed=in_order[in_order.index(to) - 1] if to in others else meant,
                to=to,
                reason=str(instant.attributes.get("reason")),
            )
        )


def _server(said: Attributes) -> Server:
    backend = str(said.get("backend", "openai"))
    return Server(
        tag=str(said.get("model")),
        backend=backend,
        # llama-cpp-python computes one sequence at a time, whatever its settings say.
        slots=1 if backend == "llama-cpp-python" else _whole(said.get("slots"), default=4),
        context_tokens=_whole(said.get("context_tokens"), default=4096),
        threads=_whole(said.get("threads"), default=None),
        file=file if isinstance(file := said.get("file"), str) else None,
        device=str(said.get("device", MACHINE)),
        max_concurrency=_whole(said.get("max_concurrency"), default=None),
        drop=_texts_in(said.get("drop")),
        fallback=_texts_in(said.get("fallback")),
    )


def _texts_in(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()


def _whole(value: object, *, default: T) -> int | T:
    return value if isinstance(value, int) else default


def _sources(flows: Sequence[Flow]) -> dict[int, tuple[int, ...]]:
    """By span, those that led to it. A `call` leads from a span into itself, which says nothing."""
    sources: dict[int, list[int]] = {}
    for flow in flows:
        if flow.name != "call":
            sources.setdefault(flow.target, []).append(flow.source)
    return {target: tuple(spans) for target, spans in sources.items()}


def _texts(journal: Journal, calls: Sequence[Call]) -> dict[str, str]:
    wanted = {
        str(call.attributes.get(name))  # of a damaged journal it may be anything
        for call in calls
        for name in ("prompt_sha256", "reply_sha256")
    }
    contents = (item for item in journal.items() if isinstance(item, Content))
    return {content.sha256: content.text for content in contents if content.sha256 in wanted}
