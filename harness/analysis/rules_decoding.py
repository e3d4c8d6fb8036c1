"""Rules about replies: how fast they came, and what slowed them down."""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from harness.analysis.facts import (
    ALONE,
    LEAST_COMPARED,
    LEAST_OF_PACE,
    LONG_NS,
    MOSTLY,
    SEVERAL,
    Observed,
    per_model,
    queues_in_server,
    ttft,
)
from harness.analysis.finding import Expected, Observation, counted, ns_text, span_ids
from harness.analysis.rules import FEWER_CALLS, LESS_TO_COMPUTE, SMALLER_MODEL, Remedy, rule
from harness.analysis.speed_limits import SpeedLimit, concurrency_of
from harness.analysis.time_budget import times_in
from harness.inference.providers import Aim
from harness.trace.calls import Call
from harness.trace.intervals import length_ns, most_at_once

# Readers see each token come when they are so far apart.
TYPEWRITER_NS = 100_000_000

TARGET_ITL_NS = 50_000_000
"""The longest acceptable time between tokens."""

SLOW_FACTOR = 2.0
"""From so many times that on, a call is slow whatever the company."""

STALL_FACTOR = 20
"""And for so many times as long as the run's tokens are apart in the median."""

LEAST_TREND = 6
"""Calls that show a change over the run."""

CHANGED = 1.8
"""How many times as much the second half of them has, in the median, as the first."""

SAME = 1.3
"""Up to so many times as much, company and prompts are as they were."""

LARGER_PAIRS = 0.85
"""A measure has grown if the later call has more in this share of all pairs of calls."""

# Time to the first token of replies that came in one piece.
LEAST_KEPT_BACK_NS = 300_000_000


@rule(
    "reply-gap",
    "The server, or something between it and this process, stops in the middle of replies: it "
    "makes room in its memory, reads another prompt, or does something else.",
    "L4b",
    "see the server's log for that moment",
    Aim.SPREAD_PREFILL,
    Aim.MORE_KV_ROOM,
    explains=("decode",),
    explained_by=("preemptions", "client-lag"),
)
@per_model
def reply_gap(observed: Observed, model: str, calls: Sequence[Call]) -> Observation | None:
    """Replies stood still in their middle for far longer than tokens are apart in this run."""
    timed = [call for call in calls if call.itl_max_ns and call.itl_mean_ns]
    # The mean of a short reply is mostly its gap; the 95th percentile leaves that out.
    paces_ns = (min(c.itl_mean_ns or 0, c.itl_p95_ns or c.itl_mean_ns or 0) for c in timed)
    usual_ns = statistics.median([*paces_ns] or [0])
    least_ns = max(LONG_NS, STALL_FACTOR * usual_ns)
    stalled = [call for call in timed if (call.itl_max_ns or 0) >= least_ns]
    stalls_ns = [call.itl_max_ns or 0 for call in stalled]
    company = concurrency_of(calls) if stalled else {}
    lost_ns = sum(
        # Replies that stand still together lose one time, of which each gets its part.
        stall_ns / max(1.0, company.get(call.id, 1.0))
        for call, stall_ns in zip(stalled, stalls_ns, strict=True)
    )
    if not stalled or not observed.matters(lost_ns):
        return None
    return Observation(
        seen=f"{len(stalled)} of {len(timed)} replies of '{model}' stood still midway, for "
        f"{ns_text(statistics.median(stalls_ns))} in the median and {ns_text(max(stalls_ns))} at "
        f"most ({observed.share(lost_ns)}); tokens of this run are {ns_text(usual_ns)} apart.",
        spans=span_ids(stalled),
        lost_ns=lost_ns,
    )


_TRENDS: Mapping[str, tuple[str, Callable[[Call], Any], str]] = {
    "slower": (
        "Tokens of '{model}'{where} came further apart",
        attrgetter("itl_mean_ns"),
        "decode",
    ),
    "longer": ("Replies of '{model}'{where} grew", attrgetter("output_tokens"), "decode"),
    "later": ("First tokens of '{model}'{where} came later", attrgetter("ttft_ns"), "prefill"),
}
"""By case: what is said, what is compared, and the phase that takes longer for it."""


@rule(
    "changes-over-run",
    "The server got slower while the run went on: it is hot, shares its device with something new, "
    "or holds ever more.",
    "L3",
    "see what else the server and its device did in the later half, and its log",
    "run the first calls again: if they are as slow now, the server is what changed",
    cases={
        "longer": Remedy(
            "Replies got longer from call to call. Each token takes its time, and what grows is "
            "often what is sent back.",
            "L6",
            (
                "limit them: max_output_tokens, or a length in the prompt",
                "see whether prompts carry the earlier replies along",
            ),
        )
    },
    explains=("decode", "prefill"),
    explained_by=("queueing", "drifting-prefix", "straggler", "client-lag"),
)
@per_model
def changes_over_run(observed: Observed, _model: str, calls: Sequence[Call]) -> Observation | None:
    """Later calls of one kind were slower, or longer, than earlier ones, in the same company."""
    kinds: dict[tuple[str | None, str | None], list[Call]] = {}
    queued, company = queues_in_server(observed, calls), concurrency_of(calls)
    for call in calls:
        # `queueing` tells of those that queued.
        if call.id not in queued and call.id in company:
            # By node and role, since prompts of other kinds are of other lengths.
            kinds.setdefault((call.node and call.node.split("[")[0], call.role), []).append(call)
    trends = (_trend(its, case, company) for its in kinds.values() for case in _TRENDS)
    worth_telling = [trend for trend in trends if trend and observed.matters(trend.lost_ns or 0)]
    worst = max(worth_telling, key=lambda trend: trend.lost_ns or 0, default=None)
    return worst and replace(worst, seen=f"{worst.seen} ({observed.share(worst.lost_ns or 0)}).")


def _trend(calls: Sequence[Call], case: str, company: Mapping[int, float]) -> Observation | None:
    phrase, measure, phase = _TRENDS[case]
    measured = [call for call in calls if measure(call)]
    first, later = measured[: len(measured) // 2], measured[len(measured) // 2 :]
    if len(measured) < LEAST_TREND or _grew(first, later, lambda call: company[call.id]):
        return None
    # If all calls were sent together, the later ones only wait for the others.
    sent_ns = statistics.median((ttft(call) or call).start_ns for call in later)
    if statistics.median(call.end_ns for call in first) > sent_ns:
        return None
    if case == "later" and _grew(first, later, lambda call: call.input_tokens or 0):
        return None
    before, after = (statistics.median(map(measure, part)) for part in (first, later))
    ascending = sorted(map(measure, first))
    # Pairs in which the later call has more, as the Mann-Whitney U test counts them: a few
    # long calls move a median, and not this.
    larger = sum(bisect_left(ascending, measure(call)) for call in later)
    if after < CHANGED * before or larger < LARGER_PAIRS * len(first) * len(later):
        return None
    lost_ns = sum(
        call.phase_ns(phase) * max(0.0, 1 - before / measure(call)) / max(1.0, company[call.id])
        for call in later
    )
    unit = "{:.0f} tokens".format if case == "longer" else ns_text
    model, where = measured[0].model, f" in '{measured[0].node}'" if measured[0].node else ""
    return Observation(
        case=case,
        severity="hint" if case == "longer" else "warning",  # a reply may have to be longer
        seen=f"{phrase.format(model=model, where=where)} as the run went on: {unit(after)} in the "
        f"later half of {len(measured)} calls, {unit(before)} in the first",
        spans=span_ids(later),
        lost_ns=lost_ns,
    )


def _grew(first: Sequence[Call], later: Sequence[Call], of: Callable[[Call], float]) -> bool:
    return statistics.median(map(of, later)) > SAME * statistics.median(map(of, first))


@rule(
    "hidden-reasoning",
    "The model thinks before it answers, and what it thinks is not in the reply: it costs tokens, "
    "and time to the first visible one.",
    "L6",
    "ask for less of it: reasoning_effort of the call, or the model's switch in extra_body",
    "take a model that does not reason, where the work does not need it",
    explains=("decode", "prefill"),
)
@per_model
def hidden_reasoning(observed: Observed, model: str, calls: Sequence[Call]) -> Observation | None:
    """Most tokens that a model wrote were reasoning."""
    thinking = [call for call in calls if observed.hidden_tokens(call) and call.output_tokens]
    tokens = sum(call.output_tokens or 0 for call in calls)
    hidden = sum(map(observed.hidden_tokens, thinking))
    taken_ns = length_ns([*times_in("prefill", thinking), *times_in("decode", thinking)])
    share = hidden / max(1, tokens)
    if share < MOSTLY or not observed.matters(taken_ns * share):
        return None
    is_counted = any(call.reasoning_tokens for call in thinking)
    least = "" if is_counted else "At least "
    return Observation(
        severity="hint",
        seen=f"{least}{hidden:,} of {tokens:,} tokens of '{model}' were reasoning ({share:.0%}), "
        f"about {observed.share(taken_ns * share)}."
        + ("" if is_counted else " Not counted apart: replies have fewer bytes than tokens."),
        spans=span_ids(thinking),
        lost_ns=taken_ns * share,
    )


@rule(
    "not-streamed",
    "Replies came in one piece at their end: something between the server and this process keeps "
    "them back, such as a proxy that buffers. Reading prompts and writing replies cannot be told "
    "apart, and nothing can be shown early.",
    "L5",
    "turn the proxy's buffering off: in nginx proxy_buffering off, or the header "
    "X-Accel-Buffering: no",
    "point url under [endpoints.{tag}] at the server itself, and compare",
    explains=("prefill",),
)
@per_model
def not_streamed(observed: Observed, model: str, calls: Sequence[Call]) -> Observation | None:
    """Streams whose tokens all came together, long after the call was sent."""
    long = [call for call in calls if (call.output_tokens or 0) >= LEAST_OF_PACE]
    at_once = [
        call
        for call in long
        if call.phase_ns("prefill") >= LEAST_KEPT_BACK_NS
        # This process may have stood still while it read a reply that was all there.
        and (
            observed.was_held_back(call)
            or (
                "decode" in call.unreliable
                and call.phase_ns("prefill") > 10 * call.phase_ns("decode")
            )
        )
    ]
    waited_ns = length_ns(times_in("prefill", at_once))
    if len(at_once) < max(2, 0.9 * len(long)) or not observed.matters(waited_ns):
        return None
    tokens = statistics.median(call.output_tokens or 0 for call in at_once)
    return Observation(
        seen=f"{len(at_once)} of {len(long)} replies of '{model}', {tokens:.0f} tokens in the "
        f"median, came whole {ns_text(statistics.median(c.phase_ns('prefill') for c in at_once))} "
        "after they were asked for, with no time from the first token to the last.",
        spans=span_ids(at_once),
    )


@rule(
    "slow-decode",
    "Slow decoding: the machine cannot compute or read memory fast enough for that many replies at "
    "once, or its threads get in each other's way.",
    "L3",
    Aim.COMPUTE_FASTER,
    Aim.WRITE_FASTER,
    SMALLER_MODEL,
    cases={
        "bandwidth": Remedy(
            "Memory bandwidth: each token reads all the weights once, and memory delivers them no "
            "faster, unless other programs used the machine at the same time.",
            "L0",
            (
                Aim.WRITE_FASTER,
                SMALLER_MODEL,
                "decode several calls at once: one reading of the weights then serves all of them",
            ),
        ),
        "compute": Remedy(
            "Compute: the processor is fully used for each token, and memory could deliver more.",
            "L0",
            (
                Aim.COMPUTE_FASTER,
                LESS_TO_COMPUTE,
                "several calls at once gain little here: they share what is computed",
            ),
        ),
    },
    explains=("decode",),
    explained_by=("preemptions",),
)
@per_model
def slow_decode(observed: Observed, model: str, calls: Sequence[Call]) -> Observation | None:
    """Tokens came far apart: of calls that ran alone, or of most calls whatever their company."""
    if sum((call.itl_mean_ns or 0) >= TYPEWRITER_NS for call in calls) < LEAST_COMPARED:
        return None
    # Other models of the run share the machine, for all that is known.
    company = concurrency_of([call for call in observed.calls if call.status == "ok"])
    timed = [
        call
        for call in calls
        if call.id in company and call.itl_mean_ns and (call.output_tokens or 0) >= LEAST_OF_PACE
    ]
    alone = [call for call in timed if company[call.id] <= ALONE]
    slow = [c for c in timed if (c.itl_mean_ns or 0) >= SLOW_FACTOR * TYPEWRITER_NS]
    limits = (cap for cap in observed.limits if cap.model == model and cap.bound != "unknown")
    limit: SpeedLimit | None = next(limits, None)
    # Alone and far from both limits, it is not the machine that is slow.
    is_alone = _is_slow(alone) and (limit is None or limit.bound != "neither")
    if not is_alone and 2 * len(slow) <= len(timed):
        return None
    examples = alone if is_alone else slow
    if not _is_slow(examples):
        return None
    itl_ns = statistics.median(call.itl_mean_ns or 0 for call in examples)
    at_once = statistics.median(company[call.id] for call in examples)
    lost_ns = length_ns(times_in("decode", examples)) * (1 - TARGET_ITL_NS / itl_ns)
    if not observed.matters(lost_ns):
        return None
    expected = None
    if is_alone and limit is not None and limit.bound == "bandwidth":
        half = limit.with_weights(limit.weight_bytes // 2)
        expected = Expected("speed of a reply", limit.tokens_per_s, half, "tokens/s")
    fewer = (FEWER_CALLS,) if at_once > ALONE else ()
    return Observation(
        case=(limit.bound if limit else "bandwidth") if is_alone else "",
        seen=f"Tokens of '{model}' came {ns_text(itl_ns)} apart in {len(examples)} of {len(timed)} "
        f"calls, with {counted(round(at_once), 'call')} being answered at a time; "
        f"{ns_text(TARGET_ITL_NS)} would have saved {observed.share(lost_ns)}.",
        spans=span_ids(examples),
        first_moves=fewer if expected is None else ("use weights of half the size",),
        expected=expected,
        lost_ns=lost_ns,
    )


def _is_slow(calls: Sequence[Call]) -> bool:
    """Whether there are enough, and readers would see each token come."""
    paces_ns = [call.itl_mean_ns or 0 for call in calls]
    return len(paces_ns) >= LEAST_COMPARED and statistics.median(paces_ns) >= TYPEWRITER_NS


@rule(
    "preemptions",
    "The KV cache was full while replies were growing in it.",
    "L4b",
    Aim.MORE_KV_ROOM,
    explains=("decode",),
)
@per_model
def preemptions(observed: Observed, model: str, calls: Sequence[Call]) -> Observation | None:
    """The server threw out replies that were under way, to compute them again later."""
    values = [counter.value for counter in observed.counters.get((model, "preempted"), ())]
    # The server counts from its own start.
    count = values[-1] - values[0] if values else 0.0
    if count < max(SEVERAL, len(calls) / 20):
        return None
    seats = most_at_once(times_in("decode", calls))
    fewer = f"{FEWER_CALLS}: lower max_parallel under [endpoints.{model}] until none is preempted"
    return Observation(
        seen=f"'{model}' preempted {count:.0f} replies in {len(calls)} calls: each was thrown out "
        "of the KV cache unfinished and computed again. The server does not report how much time "
        "that took.",
        first_moves=(fewer,) if seats > 1 else (),
    )
