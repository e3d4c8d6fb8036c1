"""The input of rules: a run's calls, counters and texts, read once from its journal."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from sys import intern
from typing import Any

from harness.analysis.finding import Observation, said_ns
from harness.analysis.speed_limits import MACHINE, SpeedLimit, company_of, speed_limits_of
from harness.analysis.time_budget import TimeShare, TimeSpent, times_in
from harness.inference.providers import Aim, provider_named
from harness.trace import events
from harness.trace.calls import PHASES, Call, answered_by_model, calls_of
from harness.trace.intervals import depths, length_ns, most_at_once, parts_within, union
from harness.trace.journal_reader import Item, Journal
from harness.trace.node_records import CriticalPath, critical_path
from harness.trace.records import CounterSet, Instant, Interval, SpanRecord

# A fault that cost less time is no finding: a fifth of a second goes unnoticed.
LEAST_LOST_NS = 200_000_000

# A fault that cost a smaller share of the run is no finding either.
LEAST_LOST_SHARE = 0.05

# Only the texts of the first calls are compared: a fault that repeats shows in so many.
TEXTS_OF_CALLS = 200

# A fault that happened once may be chance.
SEVERAL = 2

# The median of fewer calls tells little.
LEAST_COMPARED = 3

# A part with this share of the whole, or more, is most of it.
MOSTLY = 0.5

# A call was alone if on average at most so many calls were under way, the call included.
ALONE = 1.1

# The target for the first token in interactive use. A gap or a delay of this length is a finding.
LONG_NS = 500_000_000

# One throughput is higher than another if it is so many times the other; less is noise.
GAIN = 1.1

# No model writes faster: if one seems to, something held its reply back.
QUICKEST_TOKENS_PER_S = 5_000

# Shorter replies have no pace worth the name.
LEAST_OF_PACE = 16

# A Python process that takes so much of a core cannot compute more.
CORE_FULL = 0.85

# The process is slow if lags take this share of the critical path, or more.
MUCH_LAG = 0.25

_SERVER_TRACK = "server "
_OWN_TRACKS = {"process harness", "machine"}


class Server(events.EndpointEvent, name=events.EndpointEvent.NAME):
    """An endpoint, as the start of the run describes it: without settings at their defaults."""

    slots: int = 4
    context_tokens: int = 4096
    """The context of one call, for a model from a file."""
    device: Any = MACHINE
    """The device of its model, or a list of several: the machine, or a GPU."""
    max_parallel: int | None = None
    drop: tuple[str, ...] = ()
    fallback: tuple[str, ...] = ()

    @property
    def places(self) -> int:
        """Sequences that the server computes at once: one if its backend has no setting for it."""
        return self.slots if provider_named(self.backend).side_by_side else 1

    @property
    def is_in_process(self) -> bool:
        """Whether the run started it, so that it computes on this machine's cores."""
        return provider_named(self.backend).loading is not None

    def remedies(self, aim: Aim) -> tuple[str, ...]:
        """Changes at the server that serve the aim; empty if it offers none."""
        changes = provider_named(self.backend).remedies.get(aim, ())
        # Fewer threads are only advised if the setting names several.
        useful = (c for c in changes if (self.threads or 1) > 1 or "{threads}" not in c)
        return tuple(map(self.filled, useful))

    def filled(self, change: str) -> str:
        """A change's text, with what it names of the endpoint filled in."""
        return change.format(
            tag=self.model,
            model=self.model_id or self.model,
            slots=self.places,
            context_tokens=self.context_tokens,
            threads=f"now {self.threads}",
            file=f"to {self.file}" if self.file else "to its GGUF file",
        )


@dataclass(kw_only=True)
class Observed:
    """What a run's journal shows. All lists are in the order of time."""

    journal: Journal
    run: Interval
    seen: events.Events = field(default_factory=events.Events)
    every_call: list[Call] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    """All calls, also those answered from the cache, but for those that a limit refused."""
    unfinished: list[SpanRecord] = field(default_factory=list)
    loads: list[events.LoadEvent] = field(default_factory=list)
    """Successful loads only."""
    retries: list[events.RetryEvent] = field(default_factory=list)
    """Retries of calls, not of nodes."""
    servers: dict[str, Server] = field(default_factory=dict)
    limits: tuple[SpeedLimit, ...] = ()
    counters: dict[tuple[str, str], list[CounterSet]] = field(default_factory=dict)
    """Counters of servers, by the server's tag and the counter's name."""
    nodes: dict[int, events.NodeAttempt] = field(default_factory=dict)
    """Calls of nodes, by span id."""
    place_waits: dict[int, Interval] = field(default_factory=dict)
    """Waits of these calls for a place of the pipeline, or of their node, by span id."""
    max_parallel: int | None = None
    """How many calls of nodes the pipeline runs at once; None for any number."""
    path: CriticalPath = field(init=False)
    time: TimeSpent = field(default_factory=TimeSpent)
    shares: tuple[TimeShare, ...] = ()
    parents: dict[int, int | None] = field(default_factory=dict)
    """Span id → the id of the span around it. Phases are left out."""
    sources: dict[int, list[int]] = field(default_factory=dict)
    """Span id → the ids of the spans that it had to wait for."""

    @cached_property
    def texts(self) -> Mapping[object, str]:
        """Recorded prompts and replies of the first calls, by their hashes."""
        calls = self.calls[:TEXTS_OF_CALLS]
        hashes = {sha256 for call in calls for sha256 in (call.prompt_sha256, call.reply_sha256)}
        return self.journal.texts(hashes - {None})

    @cached_property
    def by_model(self) -> dict[str, list[Call]]:
        """The calls that models answered, by the tags of their endpoints."""
        return answered_by_model(self.calls)

    def server(self, tag: str) -> Server:
        """The endpoint `tag`; if the run does not describe it, only the tag is known."""
        return self.servers.get(tag) or Server(model=tag)

    def prompt(self, call: Call) -> str | None:
        """The call's prompt, if it was recorded."""
        return self.texts.get(call.prompt_sha256)

    def reply(self, call: Call) -> str | None:
        """The call's reply, if it was recorded."""
        return self.texts.get(call.reply_sha256)

    def hidden_tokens(self, call: Call) -> int:
        """At least how many tokens the model wrote before its answer; 0 if unknown."""
        reply = self.reply(call)
        if call.reasoning_tokens is not None or not reply:
            return call.reasoning_tokens or 0
        # A token has a byte or more: tokens beyond the bytes of the reply were not shown. A few of
        # them may be marks of its end.
        tokens = call.output_tokens or 0
        hidden = tokens - len(reply.encode())
        return hidden if hidden > tokens / 2 else 0

    def came_at_once(self, call: Call) -> bool:
        """Whether a reply was held back: its tokens came faster than any model writes."""
        tokens = (call.output_tokens or 0) - self.hidden_tokens(call)
        quickest_ns = tokens / QUICKEST_TOKENS_PER_S * 1e9
        return tokens >= LEAST_OF_PACE and call.phase_ns("decode") < quickest_ns

    def highest(self, tag: str, name: str) -> float | None:
        """The highest value of a server's counter; None if the run has none."""
        return max((c.value for c in self.counters.get((tag, name), ())), default=None)

    def held(self, tag: str, name: str) -> list[tuple[Interval, float]]:
        """The values of a server's counter, each with its time: until the next value."""
        values = self.counters.get((tag, name), ())
        # Without values there is still one end, which `zip` leaves out.
        ends_ns = [*(later.time_ns for later in values[1:]), self.run.end_ns]
        return [
            (Interval(start_ns=counter.time_ns, end_ns=end_ns), counter.value)
            for counter, end_ns in zip(values, ends_ns, strict=False)
        ]

    def matters(self, lost_ns: float) -> bool:
        """Whether so much time is worth a finding."""
        return lost_ns >= max(LEAST_LOST_NS, LEAST_LOST_SHARE * self.run.duration_ns)

    @property
    def node_of_places(self) -> str | None:
        """The node for whose own places most calls waited; None if it was for the pipeline's."""
        spans = [span for span in self.place_waits if self.nodes[span].concurrency_wait_ns]
        return self.nodes[spans[0]].node if 2 * len(spans) > len(self.place_waits) else None

    @property
    def more_places(self) -> str:
        """A larger limit to advise, at most twice as large; empty if waits were short."""
        waits = self.place_waits.values()
        if node := self.node_of_places:
            of_map = "max_parallel of run.map, or " if "/" in node else ""
            return f"a larger {of_map}Concurrency(n) of '{node}'"
        if self.max_parallel is None or not self.matters(length_ns(waits)):
            return ""
        # Enough for all that ever waited at once.
        enough = self.max_parallel + most_at_once(waits)
        doubled = min(enough, 2 * self.max_parallel)
        is_batch = any(pipeline.is_batch for pipeline in self.seen[events.PipelineEvent])
        return f"--max-parallel {doubled}" if is_batch else f"max_parallel={doubled} in Pipeline(…)"

    @cached_property
    def cores(self) -> tuple[float, float]:
        """The part of a core that this process took, and the share of all cores in use."""
        # Measured while the event loop stood still or, if it never did, while calls ran.
        within = union(self.seen[events.ClientLag]) or union(self.calls)
        return (
            self._mean_while("process harness", "CPU", within),
            self._mean_while("machine", "cores in use", within),
        )

    @property
    def is_core_full(self) -> bool:
        """Whether this process took all of a core, which is all that a Python process can use."""
        # If other programs keep the cores busy, it gets only a part of one.
        full = CORE_FULL / 2 if self.cores[1] >= CORE_FULL else CORE_FULL
        return self.is_late and self.cores[0] >= full

    @property
    def is_late(self) -> bool:
        """Whether this process could not have handled more calls at once in time."""
        return sum(share.share for share in self.shares if share.kind == "client lag") >= MUCH_LAG

    @property
    def is_starved(self) -> bool:
        """Whether other programs kept all cores busy."""
        return self.cores[1] >= CORE_FULL and self.cores[0] < CORE_FULL / 2

    def _mean_while(self, tag: str, name: str, within: Sequence[Interval]) -> float:
        held = self.held(tag, name)
        lengths = [length_ns(parts) for parts in parts_within([time for time, _ in held], within)]
        whole = sum(value * length for (_, value), length in zip(held, lengths, strict=True))
        return whole / max(1, sum(lengths))

    def said(self, lost_ns: float) -> str:
        """A part of the run for people: `4.3 s, 41 % of the run`."""
        share = lost_ns / max(1, self.run.duration_ns)
        return f"{said_ns(lost_ns)}, {share:.0%} of the run"


def per_model(
    rule: Callable[[Observed, str, Sequence[Call]], Observation | None],
) -> Callable[[Observed], Observation | None]:
    """Makes a rule about one model's calls a rule about the run, which reports the worst model."""

    def worst_model(observed: Observed) -> Observation | None:
        cases = [
            replace(case, model=model)
            for model, calls in observed.by_model.items()
            if (case := rule(observed, model, calls)) is not None
        ]
        # The worst has lost the most time or, if none was lost, has the most spans that show it.
        return max(cases, key=lambda f: (f.lost_ns or 0, len(f.spans)), default=None)

    return worst_model


def observe(journal: Journal) -> Observed:
    """Reads what rules need. Takes some two kilobytes for each call."""
    observed = Observed(
        journal=journal, run=Interval(start_ns=journal.started.time_ns, end_ns=journal.last_ns)
    )
    seen = observed.seen
    # The journal is read once: each reader in the chain keeps what it needs, and passes all on.
    spans = seen.noted(_noted(observed, journal.items(SpanRecord, Instant, CounterSet)))
    observed.every_call = calls_of(spans)
    observed.calls = [call for call in observed.every_call if not call.was_refused]
    observed.servers = {server.model: server for server in seen[Server]}
    tags = {call.id: call.model for call in observed.every_call}
    for load in seen[events.LoadEvent]:
        # A call's share of a load is no load of its own.
        if load.status == "ok" and load.waits_for is None:
            # A load that a server reports with its reply has no model: the call around it has.
            tag = load.model or tags.get(load.parent or 0, "")
            named = load if load.model else events.LoadEvent.read(load.record, model=tag)
            observed.loads.append(named)
    observed.retries = [retry for retry in seen[events.RetryEvent] if retry.model is not None]
    observed.nodes = {node.id: node for node in seen[events.NodeAttempt]}
    observed.place_waits = {
        node.id: Interval(start_ns=node.start_ns - node.waited_ns, end_ns=node.start_ns)
        for node in seen[events.NodeAttempt]
        if node.waited_ns > 0
    }
    for run in seen[events.RunSpanEvent]:
        observed.max_parallel = run.max_parallel
    for flow in journal.flows:
        if flow.name != "call":  # which leads from a span into itself
            observed.sources.setdefault(flow.target, []).append(flow.source)
    observed.limits = speed_limits_of(observed.calls, seen)
    observed.path = critical_path(seen[events.NodeAttempt], journal.flows, run=observed.run)
    observed.shares = observed.time.shares(observed.path, observed.every_call, run=observed.run)
    return observed


def _noted(observed: Observed, items: Iterator[Item]) -> Iterator[Item]:
    """Passes all items on, and notes their times, counters and parents."""
    for item in items:
        if type(item) is CounterSet:
            if (item.track or "").startswith((_SERVER_TRACK, *_OWN_TRACKS)):
                # Interned, since thousands of counters have the same few words.
                name, unit, track = map(intern, (item.name, item.unit, item.track or ""))
                key = (intern(track.removeprefix(_SERVER_TRACK)), name)
                counter = item._replace(name=name, unit=unit, track=track)
                observed.counters.setdefault(key, []).append(counter)
        elif type(item) is SpanRecord or type(item) is Instant:
            observed.time.note(item)
            if type(item) is SpanRecord and item.name not in PHASES:
                observed.parents[item.id] = item.parent
            if type(item) is SpanRecord and item.status == "unfinished":
                observed.unfinished.append(item)
        yield item


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
    """The call's waits in this process: for its turn, and for room in memory for its model."""
    sent = ttft(call)
    return [q for q in call.phases.get("queue", ()) if sent is None or q.start_ns < sent.start_ns]


def busy_ns(call: Call) -> int:
    """How long the model's server had the call, without loading and waits before sending."""
    waits = union([*waits_before_sending(call), *call.phases.get("load", ())])
    return call.duration_ns - sum(wait.duration_ns for wait in waits)


def gains_by_company(observed: Observed, calls: Sequence[Call]) -> bool | None:
    """Whether a server wrote more tokens a second when more replies were under way.

    Compares calls with many replies beside them with calls with at most half as many; None if there
    are too few of either.
    """
    company = company_of(calls)
    timed = [c for c in calls if c.id in company and c.itl_mean_ns and not observed.came_at_once(c)]
    half = max((company[call.id] for call in timed), default=0.0) / 2
    quiet: list[float] = []
    busy: list[float] = []
    for call in timed:
        replies = company[call.id]
        # Tokens of all replies together: in one ITL, each reply under way gets a token.
        (busy if replies > half else quiet).append(replies / (call.itl_mean_ns or 1))
    if min(len(quiet), len(busy)) < LEAST_COMPARED:
        return None
    return statistics.median(busy) > GAIN * statistics.median(quiet)


def queues_in_server(observed: Observed, calls: Sequence[Call]) -> dict[int, Interval]:
    """The waits of calls in their server, before it began with them, by span id.

    `calls` are all to one server.
    """
    sent = {call.id: wait for call in calls if (wait := ttft(call)) is not None}
    queues = {
        call.id: queue
        for call in calls
        for queue in call.phases.get("queue", ())
        if call.id in sent and queue.start_ns >= sent[call.id].start_ns
    }
    # 1. The queue that the server reports, as llama.cpp and vLLM do.
    if queues or not sent:
        return queues
    model = calls[0].model
    # 2. The inferred queue: a call queued if most of the time to its first token passed while the
    #    server's counter was above 0 or, without one, while the server answered as many other calls
    #    as it ever did, so that one had to end first.
    if observed.highest(model, "waiting") is None:
        levels = depths(times_in("decode", calls))
        seats = max((depth for _, depth in levels), default=0)
        full = [stretch for stretch, depth in levels if depth == seats]
    else:
        full = [time for time, waiting in observed.held(model, "waiting") if waiting > 0]
    waits = zip(sent.items(), parts_within(sent.values(), full), strict=True)
    return {
        number: Interval(start_ns=wait.start_ns, end_ns=parts[-1].end_ns)
        for (number, wait), parts in waits
        if length_ns(parts) > wait.duration_ns / 2
    }


def tells_of_queues(observed: Observed, calls: Sequence[Call]) -> bool:
    """Whether the server of these calls reports its queue, so that none has to be inferred."""
    if observed.highest(calls[0].model, "waiting") is not None:
        return True
    return any(len(waits_before_sending(c)) < len(c.phases.get("queue", ())) for c in calls)
