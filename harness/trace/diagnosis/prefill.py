"""Rules about prompts: how long they took to read, and how much of them was read again."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from harness.trace.calls import Call
from harness.trace.diagnosis.finding import Evidence, Finding, said_ns
from harness.trace.diagnosis.intervals import length_ns, mean_depths
from harness.trace.diagnosis.moves import moves
from harness.trace.diagnosis.observed import Observed, worst_model
from harness.trace.diagnosis.timing import queues_in_server, tells_of_queues

HIGH_TTFT_NS = 500_000_000
"""The target for interactive use; it is set for the 95th percentile, so a median above it is
high."""

LONG_PROMPT_TOKENS = 256
"""Shorter prompts gain nothing from a prefix cache worth telling."""

LEAST_CALLS = 3
"""So many calls show that something repeats."""

LITTLE_QUEUE = 0.2
"""More queue than this share of the time to the first token, and the prompt is not what is slow."""

ALONE = 1.1
"""Calls under way at once, on average, up to which a call was alone."""

MOSTLY = 0.5
"""More than half."""


def prefill_bound(observed: Observed) -> Finding | None:
    """Long prompts, read one after another without much queue, and slowly.

    Where most of each was the same as in the last one, `drifting-prefix`, `uncached-prefix` or
    `resent-history` say why it was read again.
    """
    return worst_model(observed, _prefill_bound_of)


def _prefill_bound_of(observed: Observed, model: str, calls: Sequence[Call]) -> Finding | None:
    timed = [call for call in calls if call.ttft_ns and call.count("input_tokens")]
    if timed and not tells_of_queues(observed, calls):
        # A queue may hide in the time to the first token, but not of a call without company.
        company = mean_depths(timed)
        timed = [call for call, depth in zip(timed, company, strict=True) if depth <= ALONE]
    if len(timed) < LEAST_CALLS:
        return None
    ttft_ns = statistics.median(call.ttft_ns or 0 for call in timed)
    tokens = statistics.median(map(_computed_tokens, timed))
    queues = queues_in_server(observed, timed)
    queue_share = sum(q.duration_ns for q in queues.values()) / sum(
        call.ttft_ns or 0 for call in timed
    )
    prefill_ns, decode_ns = (
        sum(call.phase_ns(name) for call in timed) for name in ("prefill", "decode")
    )
    lost_ns = length_ns(part for call in timed for part in call.phases.get("prefill", ()))
    if (
        ttft_ns < HIGH_TTFT_NS
        or tokens < LONG_PROMPT_TOKENS
        or queue_share > LITTLE_QUEUE
        or prefill_ns < MOSTLY * (prefill_ns + decode_ns)
        or not observed.matters(lost_ns)
    ):
        return None
    slowest = sorted(timed, key=lambda call: call.ttft_ns or 0, reverse=True)
    server = observed.server(model)
    queued = [
        call
        for call in timed
        if call.id in queues and queues[call.id].duration_ns > MOSTLY * (call.ttft_ns or 0)
    ]
    rate = sum(map(_computed_tokens, timed)) / (prefill_ns / 1e9)
    return Finding(
        rule="prefill-bound",
        severity="warning",
        model=model,
        seen=f"Calls to '{model}' wait {said_ns(ttft_ns)} in the median for their first token, "
        + (
            f"{len(queued)} of {len(timed)} mostly in a queue"
            if queued
            else "with hardly any queue"
        )
        + f": it reads prompts of {tokens:.0f} tokens at {rate:.0f} tokens/s "
        f"({observed.said(lost_ns)}).",
        evidence=Evidence.of(
            slowest,
            calls=len(timed),
            ttft_median_s=ttft_ns / 1e9,
            computed_tokens_median=tokens,
            prefill_tokens_per_s=rate,
            queue_share=queue_share,
        ),
        meaning="Prefill bound: the time goes into reading long prompts, not into waiting or "
        "writing.",
        layer="L4b",
        move=(
            "shorten the prompts: fewer or shorter passages, only sources that bear on the task",
            "put what is the same in every prompt first, so that a prefix cache serves it",
            *moves("read prompts faster", server),
        ),
        lost_ns=lost_ns,
    )


def _computed_tokens(call: Call) -> int:
    return _input_tokens(call) - (call.count("cached_tokens") or 0)


def _input_tokens(call: Call) -> int:
    return call.count("input_tokens") or 0
