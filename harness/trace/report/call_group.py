"""The figures of model calls that belong together: of one model, one node or one role."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from harness.trace.calls import Call
from harness.trace.report.percentiles import Percentiles, percentiles_of


@dataclass(frozen=True, slots=True, kw_only=True)
class CallGroup:
    """Some of a run's calls.

    Latencies, tokens and the decoding speed are of the calls that ended well; the times in `…_ns`
    are of all attempts, added up, so that calls side by side count each.
    """

    name: str | None
    """The model's tag, the node or the role; None for calls that have none."""
    calls: int
    """Attempts in all."""
    failed: int
    """Attempts that ended in an error."""
    cancelled: int
    """Attempts that were stopped from outside."""
    unfinished: int
    """Attempts that were under way when the run was killed."""
    ttft: Percentiles | None
    """Time to first token, from sending the request: a wait for a place or for the model to load
    is not in it where it came before that."""
    itl_mean: Percentiles | None
    """Inter-token latency: percentiles of the calls' means. Replies in one piece have none."""
    itl_p95: Percentiles | None
    """Percentiles of the calls' own 95th percentiles of it."""
    duration: Percentiles | None
    """Whole calls, with every wait."""
    input_tokens: int
    """Prompt tokens, cached ones included."""
    cached_tokens: int | None
    """Prompt tokens that a prefix cache saved; None when no server said."""
    cached_share: float | None
    """Of the prompt tokens of those calls whose server said; from 0 to 1."""
    output_tokens: int
    """Completion tokens."""
    decode_tokens_per_s: float | None
    """Tokens after the first over the time they took: loading, queueing and prefill left out."""
    total_ns: int
    """Time in calls."""
    queue_ns: int
    """Of it, waiting for a place, as far as it is known: what a server does not report hides in
    prefill."""
    load_ns: int
    """Waiting for the model to load, as far as it is known."""
    prefill_ns: int
    """Reading prompts; known of calls that ended well."""
    decode_ns: int
    """Writing replies; known of calls that ended well."""


def group_calls(calls: Iterable[Call], by: Callable[[Call], str | None]) -> tuple[CallGroup, ...]:
    """One group for each name that `by` gives, in the order of their first calls."""
    groups: dict[str | None, list[Call]] = {}
    for call in calls:
        groups.setdefault(by(call), []).append(call)
    return tuple(call_group(members, name=name) for name, members in groups.items())


def call_group(calls: Sequence[Call], *, name: str | None = None) -> CallGroup:
    """The figures of these calls."""
    done = [call for call in calls if call.status == "ok"]
    statuses = [call.status for call in calls]
    cached = [tokens for call in done if (tokens := call.count("cached_tokens")) is not None]
    asked_with_cache = sum(
        call.count("input_tokens") or 0 for call in done if call.count("cached_tokens") is not None
    )
    return CallGroup(
        name=name,
        calls=len(calls),
        failed=statuses.count("error"),
        cancelled=statuses.count("cancelled"),
        unfinished=statuses.count("unfinished"),
        ttft=percentiles_of(call.ttft_ns for call in done),
        itl_mean=percentiles_of(call.count("itl_mean_ns") for call in done),
        itl_p95=percentiles_of(call.count("itl_p95_ns") for call in done),
        duration=percentiles_of(call.duration_ns for call in done),
        input_tokens=sum(call.count("input_tokens") or 0 for call in done),
        cached_tokens=sum(cached) if cached else None,
        cached_share=sum(cached) / asked_with_cache if asked_with_cache else None,
        output_tokens=sum(call.count("output_tokens") or 0 for call in done),
        decode_tokens_per_s=_decode_rate(done),
        total_ns=sum(call.duration_ns for call in calls),
        queue_ns=sum(call.phase_ns("queue") for call in calls),
        load_ns=sum(call.phase_ns("load") for call in calls),
        prefill_ns=sum(call.phase_ns("prefill") for call in calls),
        decode_ns=sum(call.phase_ns("decode") for call in calls),
    )


def _decode_rate(done: Sequence[Call]) -> float | None:
    timed = [call for call in done if call.phase_ns("decode") > 0]
    seconds = sum(call.phase_ns("decode") for call in timed) / 1e9
    # A decode phase lasts from the first token to the last, so the first is not of it.
    tokens = sum(max(0, (call.count("output_tokens") or 0) - 1) for call in timed)
    return tokens / seconds if timed else None
