"""The input of rules: a run's calls, counters and texts, read once from its journal."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from sys import intern
from typing import Any

from harness.analysis.finding import Observation, Observations, ns_text
from harness.analysis.speed_limits import (
    LEAST_OUTPUT_TOKENS,
    MACHINE,
    concurrency_of,
    speed_limits_of,
)
from harness.analysis.time_budget import time_shares, times_in
from harness.inference.providers import Aim, provider_named
from harness.trace import events
from harness.trace.calls import PHASES, Call, answered_by_model, calls_of
from harness.trace.intervals import depths, length_ns, parts_within, union
from harness.trace.journal_reader import Item, Journal
from harness.trace.node_records import RecordedNodes, critical_path
from harness.trace.records import CounterSet, Instant, Interval, NodeOutput, SpanRecord

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
# A Python process that takes so much of a core cannot compute more.
CORE_FULL = 0.85
# The process is slow if lags take this share of the critical path, or more.
MUCH_LAG = 0.25
_SERVER_TRACK = "server "
_BARE_KEY = re.compile("[A-Za-z0-9_-]+")
_OWN_TRACKS = {"process harness", "machine"}


class Server(events.EndpointEvent, name=events.EndpointEvent.NAME):
    """An endpoint, as the start of the run describes it: without settings at their defaults."""

    slots: int = 4
    context_tokens: int = 4096  # the context of one call, for a model from a file
    device: Any = MACHINE  # the device of its model, or a list of several: the machine, or a GPU
    max_parallel: int | None = None
    fallback: tuple[str, ...] = ()

    @property
    def places(self) -> int:
        """Sequences that the server computes at once: one if its backend has no setting for it."""
        return self.slots if provider_named(self.backend).side_by_side else 1

    @property
    def is_in_process(self) -> bool:
        """Whether the run started it, so that it computes on this machine's cores."""
        return provider_named(self.backend).loading is not None

    def remedies(self, aim: Aim, target: int = 0) -> tuple[str, ...]:
        """Changes at the server that serve the aim, as far as `target`; empty if it offers none."""
        changes = provider_named(self.backend).remedies.get(aim, ())
        # Fewer threads are only advised if the setting names several.
        has_threads = self.threads is not None and self.threads > 1
        useful = [change for change in changes if has_threads or "{threads}" not in change]
        return tuple(self.filled(change, target) for change in useful)

    def filled(self, change: str, target: int = 0) -> str:
        """The text of a change, with the endpoint's values in place of `{tag}` and the like."""
        return change.format(
            # In TOML, a key such as `qwen2.5-7b` needs quotes.
            tag=self.model if _BARE_KEY.fullmatch(self.model) else f'"{self.model}"',
            model=self.model_id or self.model,
            slots=self.places,
            context_tokens=self.context_tokens,
            threads=f"now {self.threads}",
            file=f"to {self.file}" if self.file else "to its GGUF file",
            more_slots=target or 2 * self.places,
            longer_context=target or 2 * self.context_tokens,
        )


class Observed:
    """What a run's journal shows. Lists are in the order of time. Two kilobytes for each call.

    `nodes`, if given, collects the calls of nodes in the same reading of the journal.
    """

    def __init__(self, journal: Journal, *, nodes: RecordedNodes | None = None) -> None:
        self.journal = journal
        self.run = run = Interval(start_ns=journal.started.time_ns, end_ns=journal.last_ns)
        # (tag of the server, else `machine` or `process harness`; name of the counter) → values.
        self.counters: dict[tuple[str, str], list[CounterSet]] = {}
        # Span id → the id of the span around it. Phases are left out.
        self.parents: dict[int, int | None] = {}
        self.unfinished: list[SpanRecord] = []
        self.recorded = recorded = events.Events()
        # The journal is read once: each reader in the chain keeps what it needs, and passes all on.
        items = journal.items(SpanRecord, Instant, CounterSet)
        if nodes is not None:
            items = nodes.noted(journal.items(SpanRecord, Instant, CounterSet, NodeOutput))
        spans = recorded.noted(self._noted(items))
        self.every_call = calls_of(spans)
        # Calls that no limit refused; those answered from the cache are among them.
        self.calls = [call for call in self.every_call if not call.was_refused]
        # A call that was left behind after its cancellation did not fail.
        errors = (call for call in self.calls if call.status == "error")
        self.failed = [call for call in errors if call.error_class != "LeftBehind"]
        # Tag → the endpoint.
        self.servers = {server.model: server for server in recorded[Server]}
        self.every_load = [*self._loads()]
        self.loads = [load for load in self.every_load if load.status == "ok"]
        # Retries of calls, not of nodes.
        self.retries = [retry for retry in recorded[events.RetryEvent] if retry.model is not None]
        # Span id → the call of a node.
        self.nodes = {node.id: node for node in recorded[events.NodeAttempt]}
        # The same → its wait for one of the pipeline's `max_parallel` places, or its node's own.
        self.place_waits = {
            node.id: Interval(start_ns=node.start_ns - node.waited_ns, end_ns=node.start_ns)
            for node in recorded[events.NodeAttempt]
            if node.waited_ns > 0
        }
        # How many calls of nodes the pipeline runs at once; None for any number.
        run_spans = recorded[events.RunSpanEvent]
        self.max_parallel = run_spans[-1].max_parallel if run_spans else None
        # Span id → the ids of the spans that it had to wait for.
        self.sources: dict[int, list[int]] = {}
        for flow in journal.flows:
            # A flow named `call` leads from a span into the same span.
            if flow.name != "call":
                self.sources.setdefault(flow.target, []).append(flow.source)
        self.limits = speed_limits_of(self.calls, recorded)
        attempts, resumed_ns = recorded[events.NodeAttempt], journal.resumed_ns
        self.path = critical_path(attempts, journal.flows, run=run, resumed_ns=resumed_ns)
        # Causes of time on the critical path, largest first.
        self.shares = time_shares(self.path, self.every_call, recorded, run=run)

    def _noted(self, items: Iterator[Item]) -> Iterator[Item]:
        """Passes all items on, and keeps counters, parents and unfinished spans."""
        for item in items:
            if type(item) is CounterSet:
                if (item.track or "").startswith((_SERVER_TRACK, *_OWN_TRACKS)):
                    # Interned, since thousands of counters have the same few words.
                    name, unit, track = map(intern, (item.name, item.unit, item.track or ""))
                    key = (intern(track.removeprefix(_SERVER_TRACK)), name)
                    counter = item._replace(name=name, unit=unit, track=track)
                    self.counters.setdefault(key, []).append(counter)
            elif type(item) is SpanRecord:
                if item.name not in PHASES:
                    self.parents[item.id] = item.parent
                if item.status == "unfinished":
                    self.unfinished.append(item)
            yield item

    def _loads(self) -> Iterator[events.LoadEvent]:
        tags = {call.id: call.model for call in self.every_call}
        for load in self.recorded[events.LoadEvent]:
            # A span with `waits_for` is a call's wait for a load that has a span of its own.
            if load.waits_for is None:
                # A load without a model came with a reply: the call around it has the model.
                tag = load.model or tags.get(load.parent or 0, "")
                yield load.with_fields(model=tag)

    @cached_property
    def texts(self) -> Mapping[object, str]:
        """SHA-256 → the recorded prompt or reply, for the first calls."""
        calls = self.calls[:TEXTS_OF_CALLS]
        hashes = {sha256 for call in calls for sha256 in (call.prompt_sha256, call.reply_sha256)}
        return self.journal.texts(hashes - {None})

    @cached_property
    def by_model(self) -> dict[str, list[Call]]:
        """Tag of the endpoint → the calls that its model answered."""
        return answered_by_model(self.calls)

    @cached_property
    def queued_parts(self) -> dict[int, list[Interval]]:
        """Span id of a call → when, before its first token, its server counted waiting calls."""
        parts: dict[int, list[Interval]] = {}
        # Once for all calls: rules ask for one at a time, which would read all values each time.
        for model, calls in self.by_model.items():
            full = [time for time, waiting in self.counter_levels(model, "waiting") if waiting > 0]
            waits = {call.id: wait for call in calls if (wait := ttft(call)) is not None}
            parts |= zip(waits, parts_within(waits.values(), full), strict=True)
        return parts

    def server(self, tag: str) -> Server:
        """The endpoint `tag`; with default settings if the run does not describe it."""
        return self.servers.get(tag) or Server(model=tag)

    def around(self, inside: int) -> Iterator[int]:
        """The spans around the span `inside`, the innermost first."""
        span = self.parents.get(inside)
        while span is not None:
            yield span
            span = self.parents.get(span)

    def node_around(self, inside: int) -> int | None:
        """The innermost call of a node around the span `inside`; None outside of nodes."""
        return next((span for span in self.around(inside) if span in self.nodes), None)

    @cached_property
    def with_answers(self) -> set[int]:
        """The spans in which a person answered, and the spans around them."""
        answers = [answer.span or 0 for answer in self.recorded[events.AnswerEvent]]
        return {outer for span in answers for outer in (span, *self.around(span))}

    def prompt(self, call: Call) -> str | None:
        """The call's prompt, if it was recorded."""
        return self.texts.get(call.prompt_sha256)

    def reply(self, call: Call) -> str | None:
        """The call's reply, if it was recorded."""
        return self.texts.get(call.reply_sha256)

    def hidden_tokens(self, call: Call) -> int:
        """At least how many tokens the model wrote before its answer; 0 if unknown."""
        if call.reasoning_tokens is not None:
            return call.reasoning_tokens
        reply = self.reply(call)
        if not reply:
            return 0
        # A token has at least one byte, so tokens beyond the reply's bytes are not in the reply.
        tokens = call.output_tokens or 0
        hidden = tokens - len(reply.encode())
        # A few tokens more than bytes may be the marks of the reply's end.
        return hidden if hidden > tokens / 2 else 0

    def was_held_back(self, call: Call) -> bool:
        """Whether a reply came faster than any model writes, so that something held it back."""
        tokens = (call.output_tokens or 0) - self.hidden_tokens(call)
        quickest_ns = tokens / QUICKEST_TOKENS_PER_S * 1e9
        return tokens >= LEAST_OUTPUT_TOKENS and call.phase_ns("decode") < quickest_ns

    def highest(self, tag: str, name: str) -> float | None:
        """The highest value of a server's counter; None if the run has no such counter."""
        return max((c.value for c in self.counters.get((tag, name), ())), default=None)

    def counter_levels(self, tag: str, name: str) -> list[tuple[Interval, float]]:
        """The values of a server's counter, each with the time until the next value."""
        values = self.counters.get((tag, name), [])
        if not values:
            return []
        ends_ns = [*(counter.time_ns for counter in values[1:]), self.run.end_ns]
        return [
            (Interval(start_ns=counter.time_ns, end_ns=end_ns), counter.value)
            for counter, end_ns in zip(values, ends_ns, strict=True)
        ]

    def matters(self, lost_ns: float) -> bool:
        """Whether so much time is worth a finding."""
        return lost_ns >= max(LEAST_LOST_NS, LEAST_LOST_SHARE * self.run.duration_ns)

    def is_costly(self, observation: Observation) -> bool:
        """Whether an observation is worth a finding."""
        if observation.severity == "error" or observation.whatever_it_cost:
            return True
        return observation.lost_ns is None or self.matters(observation.lost_ns)

    def share(self, lost_ns: float) -> str:
        """A part of the run for people: `4.3 s, 41% of the run`."""
        share = lost_ns / max(1, self.run.duration_ns)
        return f"{ns_text(lost_ns)}, {share:.0%} of the run"

    @property
    def node_with_own_limit(self) -> str | None:
        """The node whose own limit most of `place_waits` are due to; None for the pipeline's."""
        spans = [span for span in self.place_waits if self.nodes[span].concurrency_wait_ns]
        return self.nodes[spans[0]].node if 2 * len(spans) > len(self.place_waits) else None

    @property
    def larger_limit(self) -> str:
        """What would let the calls in `place_waits` begin sooner; empty if they cost little."""
        if not self.matters(length_ns(self.place_waits.values())):
            return ""
        if node := self.node_with_own_limit:
            of_map = "max_parallel of run.map, or " if "/" in node else ""
            return f"a larger {of_map}Concurrency(n) of '{node}'"
        is_batch = any(pipeline.is_batch for pipeline in self.recorded[events.PipelineEvent])
        setting = "--max-parallel" if is_batch else "max_parallel in Pipeline(…)"
        return f"a larger {setting} (now {self.max_parallel})"

    @cached_property
    def process_cores(self) -> float:
        """The part of a core that this process took."""
        return self._mean_under_load("process harness", "CPU")

    @cached_property
    def machine_load(self) -> float:
        """The share of the machine's cores in use, from 0 to 1."""
        return self._mean_under_load("machine", "cores in use")

    def _mean_under_load(self, track: str, name: str) -> float:
        """A counter's mean while the event loop stood still or, if it never did, in calls."""
        busy = union(self.recorded[events.ClientLag]) or union(self.calls)
        levels = self.counter_levels(track, name)
        total, total_ns = 0.0, 0
        for (_, value), parts in zip(
            levels, parts_within([time for time, _ in levels], busy), strict=True
        ):
            total += value * length_ns(parts)
            total_ns += length_ns(parts)
        return total / max(1, total_ns)

    @property
    def is_core_full(self) -> bool:
        """Whether this process was slow, and took all that a Python process can use: one core."""
        # If other programs keep the cores busy, it gets only a part of one.
        full = CORE_FULL / 2 if self.machine_load >= CORE_FULL else CORE_FULL
        return self.is_process_slow and self.process_cores >= full

    @property
    def is_process_slow(self) -> bool:
        """Whether this process could not have handled more calls at once in time."""
        return any(s.kind == "client lag" and s.share >= MUCH_LAG for s in self.shares)

    @property
    def is_starved(self) -> bool:
        """Whether other programs kept all cores busy."""
        return self.machine_load >= CORE_FULL and self.process_cores < CORE_FULL / 2


def per_model(
    rule: Callable[[Observed, str, Sequence[Call]], Observations],
) -> Callable[[Observed], Observations]:
    """Makes a rule about one model's calls a rule about the run."""

    def of_all_models(observed: Observed) -> Observations:
        for model, calls in observed.by_model.items():
            for observation in rule(observed, model, calls):
                yield replace(observation, model=model)

    return of_all_models


def first_token_ns(call: Call) -> int | None:
    """When the first token came; None if the phases do not show it."""
    if decode := call.phases.get("decode"):
        return decode[0].start_ns
    if prefill := call.phases.get("prefill"):
        # A reply of one token has no decode phase.
        return prefill[-1].end_ns
    return None


def ttft(call: Call) -> Interval | None:
    """The time from sending the call to its first token; None if unknown."""
    end_ns = first_token_ns(call)
    if end_ns is None or call.ttft_ns is None:
        return None
    return Interval(start_ns=end_ns - call.ttft_ns, end_ns=end_ns)


def times_sent(calls: Sequence[Call]) -> list[Interval]:
    """From the sending of each call to its end, as far as that is known."""
    waits = ((call, ttft(call)) for call in calls)
    return [Interval(start_ns=wait.start_ns, end_ns=call.end_ns) for call, wait in waits if wait]


def waits_before_sending(call: Call) -> list[Interval]:
    """The call's waits in this process: for its turn, and for room in memory for its model."""
    to_first_token = ttft(call)
    queues = call.phases.get("queue", ())
    if to_first_token is None:
        return [*queues]
    return [queue for queue in queues if queue.start_ns < to_first_token.start_ns]


def busy_ns(call: Call) -> int:
    """How long the model's server had the call, without loading and waits before sending."""
    waits = union([*waits_before_sending(call), *call.phases.get("load", ())])
    return call.duration_ns - sum(wait.duration_ns for wait in waits)


def batching_helps(observed: Observed, calls: Sequence[Call]) -> bool | None:
    """Whether a server wrote more tokens a second when more replies were under way.

    Compares the calls beside many replies with the calls beside at most half as many; None if
    either are too few.
    """
    replies_at_once = concurrency_of(calls)
    timed = [
        call
        for call in calls
        if call.id in replies_at_once and call.itl_mean_ns and not observed.was_held_back(call)
    ]
    half = max((replies_at_once[call.id] for call in timed), default=0.0) / 2
    # Tokens per nanosecond of all replies together.
    rates_of_few: list[float] = []
    rates_of_many: list[float] = []
    for call in timed:
        replies = replies_at_once[call.id]
        # In the time between two tokens of one reply, each reply under way gets a token.
        rate = replies / (call.itl_mean_ns or 1)
        (rates_of_many if replies > half else rates_of_few).append(rate)
    if min(len(rates_of_few), len(rates_of_many)) < LEAST_COMPARED:
        return None
    return statistics.median(rates_of_many) > GAIN * statistics.median(rates_of_few)


def queues_in_server(observed: Observed, calls: Sequence[Call]) -> dict[int, Interval]:
    """Span id of a call → its wait in the server, before the server began with it.

    `calls` are all to one server.
    """
    # Span id → the time from sending the call to its first token.
    first_token_waits = {call.id: wait for call in calls if (wait := ttft(call)) is not None}
    # 1. The queue that the server reports, as llama.cpp and vLLM do. A queue that began before the
    #    call was sent is one of this process.
    reported = {
        call.id: queue
        for call in calls
        for queue in call.phases.get("queue", ())
        if call.id in first_token_waits and queue.start_ns >= first_token_waits[call.id].start_ns
    }
    if reported or not first_token_waits:
        return reported
    # 2. The inferred queue: a call queued if the server was full for most of the time to its first
    #    token. The server is full while its counter of waiting calls is above 0 or, without such a
    #    counter, while it answers as many calls as it ever did at once.
    parts = observed.queued_parts
    if (calls[0].model, "waiting") not in observed.counters:
        levels = depths(times_in("decode", calls))
        deepest = max((depth for _, depth in levels), default=0)
        full = [stretch for stretch, depth in levels if depth == deepest]
        waits = first_token_waits.values()
        parts = dict(zip(first_token_waits, parts_within(waits, full), strict=True))
    return {
        span: Interval(start_ns=wait.start_ns, end_ns=parts[span][-1].end_ns)
        for span, wait in first_token_waits.items()
        if length_ns(parts[span]) > wait.duration_ns / 2
    }


def reports_queue(observed: Observed, calls: Sequence[Call]) -> bool:
    """Whether the server of these calls reports its queue, so that none has to be inferred."""
    if observed.highest(calls[0].model, "waiting") is not None:
        return True
    # A queue that is no wait before sending is one that the server reported.
    return any(len(waits_before_sending(c)) < len(c.phases.get("queue", ())) for c in calls)
