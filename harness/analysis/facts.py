"""The input of rules: a run's calls, counters and texts, read once from its journal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from sys import intern
from typing import Any, TypeVar

from harness.analysis.finding import Found, said_ns
from harness.analysis.speed_limits import SpeedLimit, speed_limits_of
from harness.analysis.time_budget import TimeShare, TimeSpent
from harness.analysis.what_if import Schedule
from harness.hardware.footprint import padded_tokens
from harness.inference.providers import PROVIDERS, Aim, Provider
from harness.inference.providers.serving import Serving
from harness.trace.calls import PHASES, Call, Interval, calls_of
from harness.trace.intervals import depths, length_ns, parts_within, union
from harness.trace.journal_reader import Item, Journal
from harness.trace.node_records import CriticalPath, critical_path
from harness.trace.records import (
    Attributes,
    CounterSet,
    Instant,
    RunEnded,
    SpanRecord,
    title,
)

T = TypeVar("T")

LEAST_LOST_NS = 200_000_000
"""A fault that cost less of the run is ignored: a fifth of a second goes unnoticed."""

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
    backend: str = "openai"
    slots: int = 4
    context_tokens: int = 4096
    """Of one call, for a model from a file."""
    threads: int | None = None
    """Of an embedded model; None for all cores but one, and all to read prompts with."""
    file: str | None = None
    """Name of the GGUF file of a model."""
    device: str = MACHINE
    """The device of its model: the machine, or a GPU; empty for several."""
    max_parallel: int | None = None
    drop: tuple[str, ...] = ()
    fallback: tuple[str, ...] = ()

    @property
    def is_in_process(self) -> bool:
        """Whether it computes on this machine's own cores, started by the run."""
        return provider_named(self.backend).loading is not None

    def remedies(self, aim: Aim) -> tuple[str, ...]:
        """What can be changed at the server; empty if it offers no such thing."""
        changes = provider_named(self.backend).remedies.get(aim, ())
        # Threads that are not set are as many as there should be.
        useful = (c for c in changes if self.threads is not None or "{threads}" not in c)
        return tuple(map(self.filled, useful))

    def restart(self, name: str, value: int, *, at_once: float | None, longest: int) -> str | None:
        """What its provider starts it with for this value of a field of `Serving`; None for none.

        `at_once` and `longest` are what the run shows of a server whose settings it does not know.
        """
        provider = provider_named(self.backend)
        if provider.launch is None:
            return None
        if self.is_in_process:
            at_once, longest = self.slots, self.context_tokens
        serving = Serving(model=self.tag, context_tokens=longest)
        values: list[dict[str, Any]] = [{name: value}, {name: 2 * value}]
        to_be, other = (provider.launch(replace(serving, **one)) for one in values)
        where, settings = f"restart {provider.title} with ", to_be.command
        if not settings:
            where = self.filled("under [endpoints.{tag}] in harness.toml, with path ({file}): ")
            settings = to_be.endpoint
        # Some servers have a setting that grows with another.
        changed = [one.text for one in settings if one not in {*other.command, *other.endpoint}]
        if not changed:
            return None
        notes = [f"now {at_once:.0f}"] if name == "sequences" and at_once else []
        if not self.is_in_process and (name == "context_tokens" or len(changed) > 1):
            notes.append(f"for calls of {value if name == 'context_tokens' else longest} tokens")
        return where + " ".join(changed) + (f" ({'; '.join(notes)})" if notes else "")

    def filled(self, change: str) -> str:
        """A change's text, with what it names of the endpoint filled in."""
        return change.format(
            tag=self.tag,
            slots=self.slots,
            context_tokens=self.context_tokens,
            threads=f"now {self.threads}",
            file=f"to {self.file}" if self.file else "to its GGUF file",
        )


def provider_named(backend: str) -> Provider:
    """The provider of a journal's endpoint; of an unknown one, a server without particulars."""
    found = (provider for name, provider in PROVIDERS.items() if name == backend)
    return next(found, Provider(title=backend))


@dataclass(frozen=True, slots=True, kw_only=True)
class Load(Interval):
    """A model came into memory."""

    id: int
    model: str
    need_bytes: int | None
    is_prefetch: bool = False
    """Whether it was loaded ahead of the first call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry(Interval):
    """A pause between two attempts; the reason is the class of the error before it."""

    model: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag(Interval):
    """The event loop stood still."""

    id: int
    at: str | None
    """Where it was, as `file.py:12`; None of a short one, or if the process did not run at all."""
    function: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """A call that another endpoint was asked to answer."""

    time_ns: int
    failed: str
    """The endpoint that could not answer: the intended one, or one that was asked in its place."""
    to: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed(Interval):
    """A span of which only the time matters."""

    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Round(Interval):
    """A round of a revise loop: writing the draft, and judging it."""

    id: int
    """Of the loop's span."""
    composite: float


@dataclass(slots=True, kw_only=True)
class Observed:
    """A run. All lists are in the order of time."""

    run: Interval
    ended: RunEnded | None
    """None if it was killed, or is still going."""
    calls: list[Call] = field(default_factory=list)
    """Those answered from the cache included; those refused by a limit are not."""
    resumed_ns: int | None = None
    """When the last part of the run began; None if it was never resumed."""
    loads: list[Load] = field(default_factory=list)
    """Successful loads only."""
    unloads: list[Interval] = field(default_factory=list)
    retries: list[Retry] = field(default_factory=list)
    fallbacks: list[Fallback] = field(default_factory=list)
    embeddings: list[Interval] = field(default_factory=list)
    lags: list[Lag] = field(default_factory=list)
    servers: dict[str, Server] = field(default_factory=dict)
    limits: tuple[SpeedLimit, ...] = ()
    """The speed of models against the machine's limits, as far as known."""
    reserves: dict[str, int] = field(default_factory=dict)
    """Bytes that the budget keeps free of each device's capacity."""
    counters: dict[tuple[str, str], list[CounterSet]] = field(default_factory=dict)
    """Of servers, by tag and name."""
    nodes: dict[int, Interval] = field(default_factory=dict)
    """Calls of nodes, by their spans."""
    node_names: dict[int, str] = field(default_factory=dict)
    node_labels: dict[int, str] = field(default_factory=dict)
    """With the item: `sections[3]`."""
    place_waits: dict[int, Interval] = field(default_factory=dict)
    """Of node calls that waited for one of the pipeline's places, by their spans: until each
    began."""
    max_parallel: int | None = None
    """How many calls of nodes the pipeline runs at once; None for any number."""
    schedule: Schedule = field(init=False)
    """Of the pipeline's own nodes."""
    path: CriticalPath = field(init=False)
    time: TimeSpent = field(default_factory=TimeSpent)
    shares: tuple[TimeShare, ...] = ()
    """Causes of time on the critical path, largest first."""
    failed_nodes: list[int] = field(default_factory=list)
    timed_out: list[int] = field(default_factory=list)
    """Calls of nodes that their timeouts ended, by their spans."""
    candidates: dict[int, list[float]] = field(default_factory=dict)
    """The checks' scores of candidates, by the span in which one was chosen."""
    candidate_spans: list[Timed] = field(default_factory=list)
    """In which candidates were written."""
    rounds: dict[int, list[Round]] = field(default_factory=dict)
    """Of each revise loop, by its span."""
    parents: dict[int, int | None] = field(default_factory=dict)
    """The span around each span; phases left out."""
    sources: dict[int, list[int]] = field(default_factory=dict)
    """By span, the spans that it had to wait for."""
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

    def longest_call(self, model: str) -> int:
        """Tokens of its longest prompt and reply together, in whole blocks of 256."""
        calls = self.by_model().get(model, ())
        longest = ((c.count("input_tokens") or 0) + (c.count("output_tokens") or 0) for c in calls)
        return padded_tokens(max(longest, default=0))

    def outlived(self, time_ns: int) -> bool:
        """Whether the run was resumed later, which repeated all that had failed or was cut off."""
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

    @property
    def more_places(self) -> str:
        """The pipeline's limit with which nothing would have waited; empty if waits were short."""
        waits = self.place_waits.values()
        if self.max_parallel is None or not self.matters(length_ns(waits)):
            return ""
        enough = self.max_parallel + max(depth for _, depth in depths(waits))
        return f"max_parallel={enough} in Pipeline(…), or None for no limit"

    def said(self, lost_ns: float) -> str:
        """A part of the run for people: `4.3 s, 41 % of the run`."""
        share = lost_ns / max(1, self.run.duration_ns)
        return f"{said_ns(lost_ns)}, {share:.0%} of the run"


def per_model(
    rule: Callable[[Observed, str, Sequence[Call]], Found | None],
) -> Callable[[Observed], Found | None]:
    """A rule over the calls that one model answered, as a rule over the run.

    It finds the model that lost most by the fault or, where no time is lost, has most cases, which
    the rule's first figure counts. Other models may have the same fault.
    """

    def worst_model(observed: Observed) -> Found | None:
        found = [
            replace(one, model=model)
            for model, calls in observed.by_model().items()
            if (one := rule(observed, model, calls)) is not None
        ]
        return max(found, key=_weight, default=None)

    return worst_model


def _weight(finding: Found) -> tuple[float, float]:
    return finding.lost_ns or 0, next(iter(finding.evidence.figures.values()), 0)


def observe(journal: Journal) -> Observed:
    """Reads what rules need. Takes some two kilobytes for each call."""
    observed = Observed(
        run=Interval(start_ns=journal.started.time_ns, end_ns=journal.last_ns),
        ended=journal.ended,
        resumed_ns=journal.resumed_ns,
    )
    nodes: list[SpanRecord] = []
    instants: dict[str, list[Instant]] = {name: [] for name in ("endpoint", "weights", "machine")}
    spans = _noted(observed, journal.items(SpanRecord, Instant, CounterSet), nodes, instants)
    observed.calls = [call for call in calls_of(spans) if not call.was_refused]
    for flow in journal.flows:
        if flow.name != "call":  # which leads from a span into itself
            observed.sources.setdefault(flow.target, []).append(flow.source)
    observed.schedule = Schedule(
        nodes, journal.flows, run=observed.run, max_parallel=observed.max_parallel
    )
    observed.limits = speed_limits_of(observed.calls, instants)
    observed.path = critical_path(nodes, journal.flows, run=observed.run)
    observed.shares = observed.time.shares(observed.path, observed.calls, run=observed.run)
    said = (call.attributes for call in observed.calls[:TEXTS_OF_CALLS])
    hashes = (one.get(name) for one in said for name in ("prompt_sha256", "reply_sha256"))
    # Of a damaged journal it may be anything.
    observed.texts = journal.texts({one for one in hashes if isinstance(one, str)})
    return observed


def _noted(
    observed: Observed,
    items: Iterator[Item],
    nodes: list[SpanRecord],
    instants: Mapping[str, list[Instant]],
) -> Iterator[SpanRecord]:
    """The spans; what is no call is noted in passing."""
    for item in items:
        if type(item) is SpanRecord:
            observed.time.note(item)
            _note_span(observed, item)
            if item.name == "node":
                nodes.append(item)
            yield item
        elif type(item) is Instant:
            observed.time.note(item)
            if item.name in instants:
                instants[item.name].append(item)
            _note_instant(observed, item)
        elif type(item) is CounterSet and item.track and item.track.startswith(_SERVER_TRACK):
            # The same few words in thousands of counters.
            name, unit, track = map(intern, (item.name, item.unit, item.track))
            counter = item._replace(name=name, unit=unit, track=track)
            key = (track.removeprefix(_SERVER_TRACK), name)
            observed.counters.setdefault(key, []).append(counter)


def _note_instant(observed: Observed, instant: Instant) -> None:
    said = instant.attributes
    match instant.name:
        case "endpoint":
            server = _server(said)
            observed.servers[server.tag] = server
        case "budget":
            device = str(said.get("device", MACHINE))
            observed.reserves[device] = _whole(said.get("reserve_bytes"), default=0)
        case "retry" if "model" in said:
            observed.retries.append(_retry(instant))
        case "fallback":
            observed.fallbacks.append(_fallback(observed, instant))
        case "candidate" if instant.span is not None:
            if isinstance(checked := said.get("checked"), int | float):
                observed.candidates.setdefault(instant.span, []).append(checked)
        case "round" if instant.span is not None:
            composite, seconds = said.get("composite"), said.get("seconds")
            if isinstance(composite, int | float) and isinstance(seconds, int | float):
                observed.rounds.setdefault(instant.span, []).append(
                    Round(
                        id=instant.span,
                        start_ns=instant.time_ns - round(seconds * 1e9),
                        end_ns=instant.time_ns,
                        composite=composite,
                    )
                )


def _note_span(observed: Observed, span: SpanRecord) -> None:
    interval = Interval(start_ns=span.start_ns, end_ns=span.end_ns)
    match span.name:
        case "load" if span.status == "ok" and "waits_for" not in span.attributes:
            observed.loads.append(
                Load(
                    id=span.id,
                    start_ns=span.start_ns,
                    end_ns=span.end_ns,
                    model=str(span.attributes.get("model")),
                    need_bytes=_whole(span.attributes.get("need_bytes"), default=None),
                    is_prefetch=span.attributes.get("prefetch") is True,
                )
            )
        case name if name in PHASES:
            pass
        case "unload":
            observed.unloads.append(interval)
        case "embed":
            observed.embeddings.append(interval)
        case "candidate":
            observed.candidate_spans.append(
                Timed(id=span.id, start_ns=span.start_ns, end_ns=span.end_ns)
            )
            observed.parents[span.id] = span.parent
        case "client lag":
            observed.lags.append(
                Lag(
                    id=span.id,
                    start_ns=span.start_ns,
                    end_ns=span.end_ns,
                    at=_text_or_none(span.attributes.get("at")),
                    function=_text_or_none(span.attributes.get("function")),
                )
            )
        case "node":
            observed.nodes[span.id] = interval
            wait_ns = span.attributes.get("place_wait_ns")
            if isinstance(wait_ns, int) and wait_ns > 0:
                observed.place_waits[span.id] = Interval(
                    start_ns=span.start_ns - wait_ns, end_ns=span.start_ns
                )
            observed.node_names[span.id] = str(span.attributes.get("node"))
            observed.node_labels[span.id] = title(span)
            observed.parents[span.id] = span.parent
            if span.status == "error":
                observed.failed_nodes.append(span.id)
                if (span.error or "").startswith("NodeTimedOut"):
                    observed.timed_out.append(span.id)
        case _:
            observed.parents[span.id] = span.parent
            if span.name == "run":
                observed.max_parallel = _whole(span.attributes.get("max_parallel"), default=None)


def _retry(instant: Instant) -> Retry:
    delay_s = instant.attributes.get("delay_s")
    delay_ns = round(delay_s * 1e9) if isinstance(delay_s, int | float) else 0
    return Retry(
        start_ns=instant.time_ns,
        end_ns=instant.time_ns + delay_ns,
        model=str(instant.attributes.get("model")),
        reason=str(instant.attributes.get("reason")),
    )


def _fallback(observed: Observed, instant: Instant) -> Fallback:
    meant, to = (str(instant.attributes.get(name)) for name in ("model", "to"))
    others = observed.server(meant).fallback
    in_order = (meant, *others)
    return Fallback(
        time_ns=instant.time_ns,
        failed=in_order[in_order.index(to) - 1] if to in others else meant,
        to=to,
        reason=str(instant.attributes.get("reason")),
    )


def _server(said: Attributes) -> Server:
    backend = str(said.get("backend", "openai"))
    return Server(
        tag=str(said.get("model")),
        backend=backend,
        # A backend that has no setting for it computes one sequence at a time.
        slots=_whole(said.get("slots"), default=4) if provider_named(backend).side_by_side else 1,
        context_tokens=_whole(said.get("context_tokens"), default=4096),
        threads=_whole(said.get("threads"), default=None),
        file=_text_or_none(said.get("file")),
        device=_text_or_none(said.get("device", MACHINE)) or "",
        max_parallel=_whole(said.get("max_parallel"), default=None),
        drop=_texts_in(said.get("drop")),
        fallback=_texts_in(said.get("fallback")),
    )


def _texts_in(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _whole(value: object, *, default: T) -> int | T:
    return value if isinstance(value, int) else default


def first_token_ns(call: Call) -> int | None:
    """When the first token came; None if the phases do not show it."""
    if decode := call.phases.get("decode"):
        return decode[0].start_ns
    if prefill := call.phases.get("prefill"):
        return prefill[-1].end_ns  # a reply of one token is not decoded
    return None


def ttft(call: Call) -> Interval | None:
    """From sending the call to its first token; None if unknown."""
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
    `calls` are all to one server.
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
