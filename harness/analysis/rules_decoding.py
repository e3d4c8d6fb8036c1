"""Rules about replies: how fast they came, and what slowed them down."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from harness.analysis.facts import Observed, decoding, per_model
from harness.analysis.finding import Evidence, Expected, Found, counted, said_ns
from harness.analysis.speed_limits import SpeedLimit
from harness.inference.providers import Aim
from harness.trace.calls import Call
from harness.trace.intervals import common, depths, length_ns, mean_depths

FULL_KV = 0.85
"""Where the share of the KV cache in use should raise an alert."""

LEAST_COMPARED = 6
"""Calls needed to tell slow company from slow calls."""

SLOWED_FACTOR = 1.5
"""How much longer between tokens, in company, than with half as much of it or less."""

TYPEWRITER_NS = 100_000_000
"""Readers see each token come when they are so far apart."""

TARGET_ITL_NS = 50_000_000
"""The longest acceptable time between tokens."""

SLOW_FACTOR = 2.0
"""From so many times that on, a call is slow whatever the company."""

LEAST_SLOW = 3
"""Calls as slow; one may have met a busy moment."""

LEAST_STALL_NS = 500_000_000
"""A pause of this length in a reply is worth a finding."""

STALL_FACTOR = 10
"""And for so many times as long as 95 of 100 of its tokens take."""

LEAST_ALONE = 3
"""Calls without company that a server's own speed is read from."""

LEAST_OUTPUT_TOKENS = 16
"""Shorter replies have no speed."""

ALONE = 1.1
"""Calls being answered at once, on average, up to which a call was alone."""

LEAST_DRAFTED = 200
"""Tokens that a draft's worth is read from."""

LITTLE_ACCEPTED = 1 / 3
"""With a smaller share than this, a step that drafts three tokens (llama-server's default) is
answered with less than one token more, and has to draft and check all three."""

LEAST_PREEMPTIONS = 2
"""One may be a burst's; and at least one for every twenty calls."""


@per_model
def kv_pressure(observed: Observed, model: str, calls: Sequence[Call]) -> Found | None:
    """Tokens came further apart the more calls there were, while the KV cache was nearly full."""
    full = observed.while_counter(model, "KV cache", lambda share: share > FULL_KV)
    under_pressure = common(full, decoding(calls))
    if not under_pressure:
        return None
    company = _company(calls)
    timed = sorted(
        (call for call in calls if call.id in company and call.itl_mean_ns),
        key=lambda call: company[call.id],
    )
    if len(timed) < LEAST_COMPARED:
        return None
    half = len(timed) // 2
    fewer, more = timed[:half], timed[half:]
    itl_fewer, itl_more = (statistics.median(map(_itl_ns, some)) for some in (fewer, more))
    with_fewer, with_more = (
        statistics.median(company[call.id] for call in some) for some in (fewer, more)
    )
    lost_ns = length_ns(under_pressure) * (1 - itl_fewer / itl_more)
    if (
        with_more < 1.5 * with_fewer
        or itl_more < SLOWED_FACTOR * itl_fewer
        or not observed.matters(lost_ns)
    ):
        return None
    highest = observed.highest(model, "KV cache") or 0.0
    return Found(
        seen=f"The KV cache of '{model}' was {highest:.0%} full, and tokens came "
        f"{said_ns(itl_more)} apart with {with_more:.0f} replies under way, {said_ns(itl_fewer)} "
        f"apart with {with_fewer:.0f} ({observed.said(lost_ns)}).",
        evidence=Evidence.of(
            reversed(more),
            kv_cache_max_share=highest,
            itl_many_ms=itl_more / 1e6,
            itl_few_ms=itl_fewer / 1e6,
            replies_many=with_more,
            replies_few=with_fewer,
        ),
        wanted=(Aim.MORE_KV_ROOM, ""),
        # The same tokens in elements of half the size.
        expected=Expected("use of a 16-bit KV cache", 100 * highest, 50 * highest, "%"),
        lost_ns=lost_ns,
    )


@per_model
def stalled_replies(observed: Observed, model: str, calls: Sequence[Call]) -> Found | None:
    """Replies stood still in their middle, in most calls, for far longer than a token takes."""
    timed = [call for call in calls if call.itl_max_ns and call.itl_mean_ns]
    stalled = [
        call
        for call in timed
        if (call.itl_max_ns or 0) >= max(LEAST_STALL_NS, STALL_FACTOR * (call.itl_p95_ns or 0))
    ]
    stalls_ns = [call.itl_max_ns or 0 for call in stalled]
    company = _company(calls)
    lost_ns = sum(
        stall_ns / max(1.0, company.get(call.id, 1.0))
        for call, stall_ns in zip(stalled, stalls_ns, strict=True)
    )
    if len(stalled) < 2 or 2 * len(stalled) <= len(timed) or not observed.matters(lost_ns):
        return None
    return Found(
        seen=f"{len(stalled)} of {len(timed)} replies of '{model}' stood still midway, for "
        f"{said_ns(statistics.median(stalls_ns))} in the median and {said_ns(max(stalls_ns))} at "
        f"most ({observed.said(lost_ns)}); their other tokens came without such waits.",
        evidence=Evidence.of(
            stalled, stalled_replies=len(stalled), longest_stall_s=max(stalls_ns) / 1e9
        ),
        lost_ns=lost_ns,
    )


@per_model
def bandwidth_bound(observed: Observed, model: str, calls: Sequence[Call]) -> Found | None:
    """Tokens came far apart even where a call had the server to itself; by memory, if at all."""
    limit = _limit(observed, model)
    if limit is not None and limit.bound != "bandwidth":
        return None
    return _slow_alone(observed, model, calls, limit)


@per_model
def compute_bound(observed: Observed, model: str, calls: Sequence[Call]) -> Found | None:
    """The same, of a model that writes about as quickly as the processor computes."""
    limit = _limit(observed, model)
    if limit is None or limit.bound != "compute":
        return None
    return _slow_alone(observed, model, calls, limit)


def _limit(observed: Observed, model: str) -> SpeedLimit | None:
    known = (limit for limit in observed.limits if limit.bound != "unknown")
    return next((limit for limit in known if limit.model == model), None)


def _slow_alone(
    observed: Observed, model: str, calls: Sequence[Call], limit: SpeedLimit | None
) -> Found | None:
    # Other models of the run share the machine, for all that is known.
    company = _company([call for call in observed.calls if call.status == "ok"])
    alone = [
        call
        for call in calls
        if company.get(call.id, ALONE + 1) <= ALONE
        and call.itl_mean_ns
        and (call.output_tokens or 0) >= LEAST_OUTPUT_TOKENS
    ]
    if len(alone) < LEAST_ALONE:
        return None
    itl_ns = statistics.median(map(_itl_ns, alone))
    lost_ns = sum(call.phase_ns("decode") for call in alone) * (1 - TARGET_ITL_NS / itl_ns)
    if itl_ns < TYPEWRITER_NS or not observed.matters(lost_ns):
        return None
    shares = {}
    known = ""
    expected = None
    if limit is not None and limit.bound == "bandwidth":
        half = limit.with_weights(limit.weight_bytes // 2)
        expected = Expected("speed of a reply", limit.tokens_per_s, half, "tokens/s")
    if limit is not None:
        shares["memory_share"] = limit.memory_share
        known = f" It wrote at {limit.memory_share:.0%} of what memory allows"
        if limit.compute_share is not None:
            shares["compute_share"] = limit.compute_share
            known += f", and at {limit.compute_share:.0%} of what the processor does"
        known += "."
    return Found(
        seen=f"Tokens of '{model}' came {said_ns(itl_ns)} apart in {len(alone)} calls that ran "
        f"alone; {said_ns(TARGET_ITL_NS)} would have saved {observed.said(lost_ns)}." + known,
        evidence=Evidence.of(alone, calls_alone=len(alone), itl_median_ms=itl_ns / 1e6, **shares),
        first=() if expected is None else ("use weights of half the size",),
        expected=expected,
        lost_ns=lost_ns,
    )


@per_model
def slow_decode(observed: Observed, model: str, calls: Sequence[Call]) -> Found | None:
    """Tokens came very far apart in most calls, whatever else was under way."""
    timed = [
        call
        for call in calls
        if call.phase_ns("decode")
        and call.itl_mean_ns
        and (call.output_tokens or 0) >= LEAST_OUTPUT_TOKENS
    ]
    slow = [call for call in timed if _itl_ns(call) >= SLOW_FACTOR * TYPEWRITER_NS]
    if len(slow) < LEAST_SLOW or 2 * len(slow) <= len(timed):
        return None
    itl_ns = statistics.median(map(_itl_ns, slow))
    lost_ns = length_ns(decoding(slow)) * (1 - TARGET_ITL_NS / itl_ns)
    if not observed.matters(lost_ns):
        return None
    company = _company([call for call in observed.calls if call.status == "ok"])
    at_once = statistics.median(company[call.id] for call in slow)
    return Found(
        seen=f"Tokens of '{model}' came {said_ns(itl_ns)} apart in {len(slow)} of {len(timed)} "
        f"calls, with {counted(round(at_once), 'call')} being answered at a time; "
        f"{said_ns(TARGET_ITL_NS)} would have saved {observed.said(lost_ns)}.",
        evidence=Evidence.of(
            slow,
            slow_calls=len(slow),
            calls=len(timed),
            itl_median_ms=itl_ns / 1e6,
            answered_at_once=at_once,
        ),
        first=("make fewer calls at once",) if at_once > ALONE else (),
        lost_ns=lost_ns,
    )


@per_model
def preemptions(observed: Observed, model: str, calls: Sequence[Call]) -> Found | None:
    """The server threw out replies that were under way, to compute them again later."""
    values = [counter.value for counter in observed.counters.get((model, "preempted"), ())]
    count = values[-1] - values[0] if values else 0.0
    if count < max(LEAST_PREEMPTIONS, len(calls) / 20):
        return None
    seats = max((depth for _, depth in depths(decoding(calls))), default=0)
    return Found(
        seen=f"'{model}' preempted {count:.0f} replies in {len(calls)} calls: each was thrown out "
        "of the KV cache unfinished and computed again. The server does not report how much time "
        "that took.",
        evidence=Evidence(figures={"preemptions": count, "calls": len(calls)}),
        wanted=(Aim.MORE_KV_ROOM, ""),
        expected=Expected("room in a 16-bit KV cache for", seats, 2 * seats, "calls"),
    )


@per_model
def rejected_drafts(observed: Observed, model: str, calls: Sequence[Call]) -> Found | None:
    """A draft model's tokens were mostly thrown away, by the replies or the server's counters."""
    told = [call for call in calls if call.draft_tokens and call.accepted_tokens is not None]
    drafted: float = sum(call.draft_tokens or 0 for call in told)
    accepted: float = sum(call.accepted_tokens or 0 for call in told)
    where = f"in {counted(len(told), 'call')}"
    if not told:
        drafted, accepted = (
            max((one.value for one in observed.counters.get((model, name), ())), default=0)
            for name in ("drafted", "accepted drafts")
        )
        where = "as its server counts"
    if drafted >= LEAST_DRAFTED:
        share, of = accepted / drafted, f"{accepted:.0f} of {drafted:.0f} drafted tokens "
        figures = {"draft_tokens": drafted, "accepted_tokens": accepted}
    else:
        said = [one.value for one in observed.counters.get((model, "drafts accepted"), ())]
        # Before its first draft a server says 0.
        share, of = statistics.fmean(filter(None, said)) if any(said) else 1.0, "drafted tokens "
        figures = {}
    if share >= LITTLE_ACCEPTED:
        return None
    return Found(
        severity="hint",
        seen=f"'{model}' accepted {of}({share:.0%}), {where}.",
        evidence=Evidence.of(told, accepted_share=share, **figures),
    )


def _company(calls: Sequence[Call]) -> Mapping[int, float]:
    """How many replies were under way, on average, while each call was being answered.

    By the call's span; itself included.
    """
    answered = [call for call in calls if call.phase_ns("decode") > 0]
    depths = mean_depths([call.phases["decode"][0] for call in answered])
    return {call.id: depth for call, depth in zip(answered, depths, strict=True)}


def _itl_ns(call: Call) -> int:
    return call.itl_mean_ns or 0
