"""The figures of model calls that belong together: of one model, one node or one role."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from harness.trace.calls import Call
from harness.trace.report.percentiles import Percentiles, percentiles_of


@dataclass(frozen=True, slots=True, kw_only=True)
class CallGroup:
    """Some of a run's calls.

    Latencies, tokens and the decoding speed are of the calls that a model answered well; the times
    in `…_ns` are of all attempts, added up, so that calls side by side count each.
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
    from_cache: int
    """Calls that an earlier call's reply answered: no model was asked."""
    uncounted: int
    """Calls that a model answered and whose server counted no tokens: theirs are in no figure."""
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
    """Completion tokens, reasoning included."""
    reasoning_tokens: int | None
    """Of them, those of reasoning; None when no server said."""
    draft_tokens: int | None
    """Tokens that a draft model proposed (speculative decoding); None when no server said."""
    accepted_tokens: int | None
    """Of them, those that the model agreed to."""
    accepted_share: float | None
    """The same as a share, from 0 to 1; None where nothing was proposed."""
    advisory_schemas: int
    """Calls whose schema the model was only told of, in words."""
    ignored_schemas: int
    """Calls whose schema the server took no notice of."""
    dropped: tuple[str, ...]
    """Fields that some calls were sent without, since the model or its server refuses them."""
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
    done = [call for call in calls if call.status == "ok" and not call.from_cache]
    statuses = [call.status for call in calls]
    asked_with_cache = sum(
        call.count("input_tokens") or 0 for call in done if call.count("cached_tokens") is not None
    )
    cached, drafted = _sum(done, "cached_tokens"), _sum(done, "draft_tokens")
    accepted = _sum(done, "accepted_tokens")
    schemas = [call.attributes.get("schema") for call in done]
    return CallGroup(
        name=name,
        calls=len(calls),
        failed=statuses.count("error"),
        cancelled=statuses.count("cancelled"),
        unfinished=statuses.count("unfinished"),
        from_cache=sum(call.from_cache for call in calls),
        uncounted=sum(call.count("output_tokens") is None for call in done),
        ttft=percentiles_of(call.ttft_ns for call in done),
        itl_mean=percentiles_of(call.count("itl_mean_ns") for call in done),
        itl_p95=percentiles_of(call.count("itl_p95_ns") for call in done),
        duration=percentiles_of(call.duration_ns for call in done),
        input_tokens=sum(call.count("input_tokens") or 0 for call in done),
        cached_tokens=cached,
        cached_share=_share(cached, asked_with_cache),
        output_tokens=sum(call.count("output_tokens") or 0 for call in done),
        reasoning_tokens=_sum(done, "reasoning_tokens"),
        draft_tokens=drafted,
        accepted_tokens=accepted,
        accepted_share=_share(accepted, drafted),
        advisory_schemas=schemas.count("advisory"),
        ignored_schemas=schemas.count("ignored"),
        dropped=tuple(dict.fromkeys(name for call in done for name in call.dropped)),
        decode_tokens_per_s=_decode_rate(done),
        total_ns=sum(call.duration_ns for call in calls),
        queue_ns=sum(call.phase_ns("queue") for call in calls),
        load_ns=sum(call.phase_ns("load") for call in calls),
        prefill_ns=sum(call.phase_ns("prefill") for call in calls),
        decode_ns=sum(call.phase_ns("decode") for call in calls),
    )


def _decode_rate(done: Sequence[Call]) -> float | None:
    timed = [
        call
        for call in done
        if call.phase_ns("decode") > 0 and call.count("output_tokens") is not None
    ]
    seconds = sum(call.phase_ns("decode") for call in timed) / 1e9
    # A decode phase lasts from the first token to the last, so the first is not of it.
    tokens = sum(max(0, (call.count("output_tokens") or 0) - 1) for call in timed)
    return tokens / seconds if timed else None


def _sum(calls: Sequence[Call], count: str) -> int | None:
    """Of the calls whose server said; None when none did."""
    known = [tokens for call in calls if (tokens := call.count(count)) is not None]
    return sum(known) if known else None


def _share(part: int | None, whole: int | None) -> float | None:
    return part / whole if part is not None and whole else None
