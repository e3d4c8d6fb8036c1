"""Rules about replies: how fast they came, and what slowed them down."""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from harness.analysis.finding import Observation, Observations, counted, ns_text, span_ids
from harness.analysis.observed import (
    ALONE,
    LEAST_COMPARED,
    LONG_NS,
    MOSTLY,
    SEVERAL,
    Observed,
    per_model,
    queues_in_server,
    ttft,
)
from harness.analysis.rules import FEWER_CALLS, LESS_TO_COMPUTE, SMALLER_MODEL, Remedy, rule
from harness.analysis.speed_limits import LEAST_OUTPUT_TOKENS, concurrency_of
from harness.analysis.time_budget import times_in
from harness.inference.providers import Aim
from harness.trace.calls import Call, grouped
from harness.trace.intervals import length_ns, most_at_once

# Readers see each token come if tokens are at least so far apart.
TYPEWRITER_NS = 100_000_000
# The longest acceptable time between tokens.
TARGET_ITL_NS = 50_000_000
# From so many times `TYPEWRITER_NS` on, a call is slow however many run beside it.
SLOW_FACTOR = 2.0
# A reply stands still if a gap is at least so many times the run's median time between tokens.
STALL_FACTOR = 20
# Fewer calls show no change over the run.
LEAST_TREND = 6
# A measure has changed if the median of the later half is at least so many times the first half's,
CHANGED = 1.8
# and if the later call has more in at least this share of all pairs of an early and a later call.
LARGER_PAIRS = 0.85
# Up to so many times the first half's median, concurrency and prompts are the same as before.
SAME = 1.3
# A reply in one piece was held back if it came at least so long after the call was sent.
LEAST_HELD_BACK_NS = 300_000_000


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
def reply_gap(observed: Observed, model: str, calls: Sequence[Call]) -> Observations:
    """Replies stood still in their middle for far longer than tokens are apart in this run."""
    timed = [call for call in calls if call.itl_max_ns and call.itl_mean_ns]
    if not timed:
        return
    usual_ns = statistics.median(map(_usual_itl_ns, timed))
    least_ns = max(LONG_NS, STALL_FACTOR * usual_ns)
    stalled = [call for call in timed if (call.itl_max_ns or 0) >= least_ns]
    if not stalled:
        return
    stalls_ns = [call.itl_max_ns or 0 for call in stalled]
    replies_at_once = concurrency_of(calls)
    lost_ns = sum(
        # Replies that stand still together lose the same time, so each counts a part of it.
        stall_ns / max(1.0, replies_at_once.get(call.id, 1.0))
        for call, stall_ns in zip(stalled, stalls_ns, strict=True)
    )
    yield Observation(
        seen=f"{len(stalled)} of {len(timed)} replies of '{model}' stood still midway, for "
        f"{ns_text(statistics.median(stalls_ns))} in the median and {ns_text(max(stalls_ns))} at "
        f"most ({observed.share(lost_ns)}); tokens of this run are {ns_text(usual_ns)} apart.",
        spans=span_ids(stalled),
        lost_ns=lost_ns,
    )


def _usual_itl_ns(call: Call) -> int:
    """The usual time between two tokens of a reply, without its longest gap."""
    mean_ns = call.itl_mean_ns or 0
    # The mean of a short reply is mostly its longest gap; the 95th percentile leaves that out.
    return min(mean_ns, call.itl_p95_ns or mean_ns)


class _Trend(NamedTuple):
    """A measure of calls that may grow while the run goes on."""

    text: str
    measure: Callable[[Call], Any]
    phase: str  # the phase that takes longer for it


# Case of the rule → the trend.
_TRENDS: Mapping[str, _Trend] = {
    "slower": _Trend(
        "Tokens of '{model}'{where} came further apart", attrgetter("itl_mean_ns"), "decode"
    ),
    "longer": _Trend("Replies of '{model}'{where} grew", attrgetter("output_tokens"), "decode"),
    "later": _Trend(
        "First tokens of '{model}'{where} came later", attrgetter("ttft_ns"), "prefill"
    ),
}


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
            "limit them: max_output_tokens, or a length in the prompt",
            "see whether prompts carry the earlier replies along",
        )
    },
    explains=("decode", "prefill"),
    explained_by=("queueing", "drifting-prefix", "straggler", "client-lag"),
)
@per_model
def changes_over_run(observed: Observed, _model: str, calls: Sequence[Call]) -> Observations:
    """Later calls of one kind were slower or longer than earlier ones, with as many beside them."""
    queued = queues_in_server(observed, calls)
    replies_at_once = concurrency_of(calls)
    # The rule `queueing` reports the calls that queued.
    timed = (call for call in calls if call.id not in queued and call.id in replies_at_once)
    # By node and role, since the prompts of each kind have a length of their own.
    kinds = grouped(timed, by=lambda call: ((call.node or "").split("[")[0], call.role))
    for kind in kinds.values():
        for case in _TRENDS:
            yield from _trend(observed, kind, case, replies_at_once)


def _trend(
    observed: Observed, calls: Sequence[Call], case: str, replies_at_once: Mapping[int, float]
) -> Observations:
    """The growth of the case's measure from the first half of the calls to the later one."""
    text, measure, phase = _TRENDS[case]
    measured = [call for call in calls if measure(call)]
    half = len(measured) // 2
    first, later = measured[:half], measured[half:]
    if len(measured) < LEAST_TREND or _grew(first, later, lambda call: replies_at_once[call.id]):
        return
    # If all calls were sent together, the later ones only wait for the others.
    sent_ns = statistics.median((ttft(call) or call).start_ns for call in later)
    if statistics.median(call.end_ns for call in first) > sent_ns:
        return
    if case == "later" and _grew(first, later, lambda call: call.input_tokens or 0):
        return
    before = statistics.median(map(measure, first))
    after = statistics.median(map(measure, later))
    ascending = sorted(map(measure, first))
    # The Mann-Whitney U test's count of pairs: unlike a median, a few long calls do not move it.
    larger = sum(bisect_left(ascending, measure(call)) for call in later)
    if after < CHANGED * before or larger < LARGER_PAIRS * len(first) * len(later):
        return
    lost_ns = length_ns(times_in(phase, later)) * (1 - before / after)
    unit = "{:.0f} tokens".format if case == "longer" else ns_text
    where = f" in '{measured[0].node}'" if measured[0].node else ""
    yield Observation(
        case=case,
        # A longer reply may be what the task needs.
        severity="hint" if case == "longer" else "warning",
        seen=f"{text.format(model=measured[0].model, where=where)} as the run went on: "
        f"{unit(after)} in the later half of {len(measured)} calls, {unit(before)} in the first "
        f"({observed.share(lost_ns)}).",
        spans=span_ids(later),
        lost_ns=lost_ns,
    )


def _grew(first: Sequence[Call], later: Sequence[Call], measure: Callable[[Call], float]) -> bool:
    return statistics.median(map(measure, later)) > SAME * statistics.median(map(measure, first))


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
def hidden_reasoning(observed: Observed, model: str, calls: Sequence[Call]) -> Observations:
    """Most tokens that a model wrote were reasoning."""
    thinking = [call for call in calls if observed.hidden_tokens(call) and call.output_tokens]
    tokens = sum(call.output_tokens or 0 for call in calls)
    hidden = sum(map(observed.hidden_tokens, thinking))
    share = hidden / max(1, tokens)
    if share < MOSTLY:
        return
    lost_ns = length_ns(times_in("prefill", thinking) + times_in("decode", thinking)) * share
    least = doubt = ""
    if not any(call.reasoning_tokens for call in thinking):
        least = "At least "
        doubt = " Not counted apart: replies have fewer bytes than tokens."
    yield Observation(
        severity="hint",
        seen=f"{least}{hidden:,} of {tokens:,} tokens of '{model}' were reasoning ({share:.0%}), "
        f"about {observed.share(lost_ns)}.{doubt}",
        spans=span_ids(thinking),
        lost_ns=lost_ns,
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
def not_streamed(observed: Observed, model: str, calls: Sequence[Call]) -> Observations:
    """Streams whose tokens all came together, long after the call was sent."""
    long = [call for call in calls if (call.output_tokens or 0) >= LEAST_OUTPUT_TOKENS]
    held_back = [call for call in long if _came_whole(observed, call)]
    waited_ns = length_ns(times_in("prefill", held_back))
    if len(held_back) < max(2, 0.9 * len(long)) or not observed.matters(waited_ns):
        return
    tokens = statistics.median(call.output_tokens or 0 for call in held_back)
    wait_ns = statistics.median(call.phase_ns("prefill") for call in held_back)
    yield Observation(
        seen=f"{len(held_back)} of {len(long)} replies of '{model}', {tokens:.0f} tokens in the "
        f"median, came whole {ns_text(wait_ns)} after they were asked for, with no time from the "
        "first token to the last.",
        spans=span_ids(held_back),
    )


def _came_whole(observed: Observed, call: Call) -> bool:
    prefill_ns = call.phase_ns("prefill")
    if prefill_ns < LEAST_HELD_BACK_NS:
        return False
    # This process may have stood still while it read a reply that was all there.
    was_read_late = "decode" in call.unreliable and prefill_ns > 10 * call.phase_ns("decode")
    return was_read_late or observed.was_held_back(call)


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
            Aim.WRITE_FASTER,
            SMALLER_MODEL,
            "decode several calls at once: one reading of the weights then serves all of them",
        ),
        "compute": Remedy(
            "Compute: the processor is fully used for each token, and memory could deliver more.",
            "L0",
            Aim.COMPUTE_FASTER,
            LESS_TO_COMPUTE,
            "several calls at once gain little here: they share what is computed",
        ),
    },
    explains=("decode",),
    explained_by=("preemptions",),
)
@per_model
def slow_decode(observed: Observed, model: str, calls: Sequence[Call]) -> Observations:
    """Tokens came far apart: of calls that ran alone, or of most calls."""
    if sum((call.itl_mean_ns or 0) >= TYPEWRITER_NS for call in calls) < LEAST_COMPARED:
        return
    # Replies of all models count, since they may share the machine.
    replies_at_once = concurrency_of([call for call in observed.calls if call.status == "ok"])
    timed = [
        call
        for call in calls
        if call.id in replies_at_once
        and call.itl_mean_ns
        and (call.output_tokens or 0) >= LEAST_OUTPUT_TOKENS
    ]
    limits = [cap for cap in observed.limits if cap.model == model and cap.bound != "unknown"]
    limit = limits[0] if limits else None
    case = ""
    # 1. Calls that ran alone show the machine's limits.
    examples = [call for call in timed if replies_at_once[call.id] <= ALONE]
    # A call alone that is far from both limits is slow for another reason than the machine.
    if _are_slow(examples) and (limit is None or limit.bound != "neither"):
        case = limit.bound if limit else "bandwidth"
    # 2. Else most calls are so slow that the calls beside them are no excuse.
    else:
        examples = [c for c in timed if (c.itl_mean_ns or 0) >= SLOW_FACTOR * TYPEWRITER_NS]
        if 2 * len(examples) <= len(timed) or not _are_slow(examples):
            return
    itl_ns = statistics.median(call.itl_mean_ns or 0 for call in examples)
    at_once = statistics.median(replies_at_once[call.id] for call in examples)
    lost_ns = length_ns(times_in("decode", examples)) * (1 - TARGET_ITL_NS / itl_ns)
    yield Observation(
        case=case,
        seen=f"Tokens of '{model}' came {ns_text(itl_ns)} apart in {len(examples)} of {len(timed)} "
        f"calls, with {counted(round(at_once), 'call')} being answered at a time; "
        f"{ns_text(TARGET_ITL_NS)} would have saved {observed.share(lost_ns)}.",
        spans=span_ids(examples),
        first_moves=(FEWER_CALLS,) if at_once > ALONE else (),
        lost_ns=lost_ns,
    )


def _are_slow(calls: Sequence[Call]) -> bool:
    """Whether there are enough calls, and readers would see each of their tokens come."""
    itl_ns = [call.itl_mean_ns or 0 for call in calls]
    return len(itl_ns) >= LEAST_COMPARED and statistics.median(itl_ns) >= TYPEWRITER_NS


@rule(
    "preemptions",
    "The KV cache was full while replies were growing in it.",
    "L4b",
    Aim.MORE_KV_ROOM,
    explains=("decode",),
)
@per_model
def preemptions(observed: Observed, model: str, calls: Sequence[Call]) -> Observations:
    """The server threw out replies that were under way, to compute them again later."""
    values = [counter.value for counter in observed.counters.get((model, "preempted"), ())]
    # The server counts from its own start, not from the run's.
    count = values[-1] - values[0] if values else 0.0
    if count < max(SEVERAL, len(calls) / 20):
        return
    fewer = f"{FEWER_CALLS}: lower max_parallel under [endpoints.{{tag}}] until none is preempted"
    has_several = most_at_once(times_in("decode", calls)) > 1
    yield Observation(
        seen=f"'{model}' preempted {count:.0f} replies in {len(calls)} calls: each was thrown out "
        "of the KV cache unfinished and computed again. The server does not report how much time "
        "that took.",
        first_moves=(observed.server(model).filled(fewer),) if has_several else (),
    )
