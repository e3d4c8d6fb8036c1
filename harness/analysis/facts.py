"""What rules look at: a run's calls, counters and texts, read once from its journal."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeVar

from harness.analysis.finding import Finding, said_ns
from harness.trace.calls import Call, Interval, calls_of
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
    calls = tuple(
        call for call in calls_of(reading.spans_among(journal.items())) if not call.was_refused
    )
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


def first_token_ns(call: Call) -> int | None:
    """When the first token came; None where the phases do not tell."""
    if decode := call.phases.get("decode"):
        return decode[0].start_ns
    if prefill := call.phases.get("prefill"):
        return prefill[-1].end_ns  # a reply of one token is not decoded
    return None


def ttft(call: Call) -> Interval | None:
    """From sending the call to its first token; None where that is not known."""
    end_ns = first_token_ns(call)
    if end_ns is None or call.ttft_ns is None:
        return None
    return Interval(start_ns=end_ns - call.ttft_ns, end_ns=end_ns)


def waits_before_sending(call: Call) -> list[Interval]:
    """What it queued for in this process: its turn, and room in memory for its model."""
    sent = ttft(call)
    return [q for q in _queues(call) if sent is None or q.start_ns < sent.start_ns]


def busy_ns(call: Call) -> int:
    """How long the model's server had it: without loading, and without waiting to be sent."""
    waits = union([*waits_before_sending(call), *call.phases.get("load", ())])
    return call.duration_ns - sum(wait.duration_ns for wait in waits)


def decoding(calls: Sequence[Call]) -> list[Interval]:
    """When each was being answered."""
    return [interval for call in calls for interval in call.phases.get("decode", ())]


def queues_in_server(observed: Observed, calls: Sequence[Call]) -> dict[int, Interval]:
    """What calls waited in their server before it took them up, by their spans.

    Llama.cpp and vLLM report it. Of another server it is inferred: a call queued if most of the
    time to its first token passed while the server's `waiting` counter was above 0 or, without
    that, while it was answering as many other calls as it ever did, one of which had to end first.

    Args:
        observed: The run.
        calls: All to one server.
    """
    sent = {call.id: one for call in calls if (one := ttft(call)) is not None}
    queues = {
        call.id: queue
        for call in calls
        for queue in _queues(call)
        if call.id in sent and queue.start_ns >= sent[call.id].start_ns
    }
    if queues or not sent:
        return queues
    model = calls[0].model
    if observed.highest(model, "waiting") is None:
        full = _full_house(calls)
    else:
        full = observed.while_counter(model, "waiting", lambda waiting: waiting > 0)
    waits = zip(sent.items(), parts_within(sent.values(), full), strict=True)
    return {
        number: Interval(start_ns=one.start_ns, end_ns=parts[-1].end_ns)
        for (number, one), parts in waits
        if length_ns(parts) > one.duration_ns / 2
    }


def tells_of_queues(observed: Observed, calls: Sequence[Call]) -> bool:
    """Whether a queue at the server of these calls would be known, and not just be inferred."""
    if observed.highest(calls[0].model, "waiting") is not None:
        return True
    return any(queue not in waits_before_sending(c) for c in calls for queue in _queues(c))


def _queues(call: Call) -> Sequence[Interval]:
    return call.phases.get("queue", ())


def _full_house(calls: Sequence[Call]) -> list[Interval]:
    """While as many calls were being answered as ever were at once."""
    levels = depths(decoding(calls))
    seats = max((depth for _, depth in levels), default=0)
    return [stretch for stretch, depth in levels if depth == seats]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time as disjoint stretches, in order; empty ones are left out."""
    joined: list[Interval] = []
    for one in sorted(intervals, key=lambda i: i.start_ns):
        if one.duration_ns <= 0:
            continue
        if joined and one.start_ns <= joined[-1].end_ns:
            start_ns, end_ns = joined[-1].start_ns, max(joined[-1].end_ns, one.end_ns)
            joined[-1] = Interval(start_ns=start_ns, end_ns=end_ns)
        else:
            joined.append(Interval(start_ns=one.start_ns, end_ns=one.end_ns))
    return joined


def length_ns(intervals: Iterable[Interval]) -> int:
    """How long at least one of them lasted."""
    return sum(one.duration_ns for one in union(intervals))


def common(some: Iterable[Interval], others: Iterable[Interval]) -> list[Interval]:
    """Where one of the first overlaps with one of the second."""
    mine, theirs = union(some), union(others)
    shared: list[Interval] = []
    i = j = 0
    while i < len(mine) and j < len(theirs):
        start_ns = max(mine[i].start_ns, theirs[j].start_ns)
        end_ns = min(mine[i].end_ns, theirs[j].end_ns)
        if start_ns < end_ns:
            shared.append(Interval(start_ns=start_ns, end_ns=end_ns))
        if mine[i].end_ns < theirs[j].end_ns:
            i += 1
        else:
            j += 1
    return shared


def parts_within(
    windows: Iterable[Interval], stretches: Iterable[Interval]
) -> list[list[Interval]]:
    """For each window, what of the stretches lies in it."""
    joined = union(stretches)
    starts = [one.start_ns for one in joined]
    parts = []
    for window in windows:
        inside: list[Interval] = []
        at = max(0, bisect_right(starts, window.start_ns) - 1)
        while at < len(joined) and joined[at].start_ns < window.end_ns:
            start_ns = max(window.start_ns, joined[at].start_ns)
            end_ns = min(window.end_ns, joined[at].end_ns)
            if start_ns < end_ns:
                inside.append(Interval(start_ns=start_ns, end_ns=end_ns))
            at += 1
        parts.append(inside)
    return parts


def without(some: Iterable[Interval], others: Iterable[Interval]) -> list[Interval]:
    """The first less the second."""
    mine = union(some)
    if not mine:
        return []
    return common(mine, _gaps(union(others), mine[0].start_ns, mine[-1].end_ns))


def depths(intervals: Iterable[Interval]) -> list[tuple[Interval, int]]:
    """Stretches in order, each with how many of the intervals lie over it; 1 at least."""
    edges = sorted(
        (time_ns, step)
        for one in intervals
        if one.duration_ns > 0
        for time_ns, step in ((one.start_ns, +1), (one.end_ns, -1))
    )
    stretches = []
    depth, since_ns = 0, 0
    for time_ns, step in edges:
        if depth and time_ns > since_ns:
            stretches.append((Interval(start_ns=since_ns, end_ns=time_ns), depth))
        depth, since_ns = depth + step, time_ns
    return stretches


def mean_depths(intervals: Sequence[Interval]) -> list[float]:
    """For each interval, how many of them lie over it on average, itself included: 1 at least."""
    levels = depths(intervals)
    starts = [stretch.start_ns for stretch, _ in levels]
    areas = [0, *accumulate(stretch.duration_ns * depth for stretch, depth in levels)]

    def area_until(time_ns: int) -> int:
        at = bisect_right(starts, time_ns) - 1
        stretch, depth = levels[at]
        return areas[at] + depth * (min(time_ns, stretch.end_ns) - stretch.start_ns)

    return [
        (area_until(one.end_ns) - area_until(one.start_ns)) / one.duration_ns
        if one.duration_ns > 0
        else 1.0
        for one in intervals
    ]


def _gaps(taken: Sequence[Interval], start_ns: int, end_ns: int) -> list[Interval]:
    edges = [start_ns, *(edge for one in taken for edge in (one.start_ns, one.end_ns)), end_ns]
    pairs = zip(edges[::2], edges[1::2], strict=True)
    return [Interval(start_ns=a, end_ns=b) for a, b in pairs if a < b]
