"""What a run cost, model by model, derived from its spans.

The spans read here are those that model calls leave: `chat` with its token counts, and the phases
inside it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.trace.records import SpanRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSummary:
    """All calls to one model in one run."""

    model: str
    """The endpoint's tag."""
    calls: int
    """Attempts, failed ones included."""
    failed: int
    """Attempts that ended in an error."""
    input_tokens: int
    """Prompt tokens, cached ones included."""
    cached_tokens: int | None
    """Prompt tokens that a prefix cache saved; None when the server never said."""
    output_tokens: int
    """Completion tokens."""
    ttft_median_ns: int | None
    """Median time from sending a request to its first token."""
    decode_tokens_per_s: float | None
    """Tokens after the first over the time they took: loading, queueing and prefill left out."""


def summarise_models(spans: Iterable[SpanRecord]) -> tuple[ModelSummary, ...]:
    """One summary per model, in the order a run first called them.

    Args:
        spans: All of the run's.
    """
    calls: dict[str, list[SpanRecord]] = {}
    decode_ns: dict[int, int] = {}
    for span in spans:
        if span.name == "chat":
            calls.setdefault(str(span.attributes["model"]), []).append(span)
        elif span.name == "decode" and span.parent is not None:
            decode_ns[span.parent] = span.duration_ns
    return tuple(_summarise(model, spans, decode_ns) for model, spans in calls.items())


def _summarise(model: str, calls: Sequence[SpanRecord], decode_ns: dict[int, int]) -> ModelSummary:
    done = [span for span in calls if span.status == "ok"]
    cached = [_whole(span, "cached_tokens") for span in done]
    waits = [ns for span in done if (ns := _whole(span, "ttft_ns")) is not None]
    timed = [span for span in done if span.id in decode_ns]
    seconds = sum(decode_ns[span.id] for span in timed) / 1e9
    # A decode phase lasts from the first token to the last, so the first is not of it.
    decoded = sum(max(0, (_whole(span, "output_tokens") or 0) - 1) for span in timed)
    return ModelSummary(
        model=model,
        calls=len(calls),
        failed=sum(span.status == "error" for span in calls),
        input_tokens=sum(_whole(span, "input_tokens") or 0 for span in done),
        cached_tokens=None
        if all(count is None for count in cached)
        else sum(count or 0 for count in cached),
        output_tokens=sum(_whole(span, "output_tokens") or 0 for span in done),
        ttft_median_ns=round(statistics.median(waits)) if waits else None,
        decode_tokens_per_s=decoded / seconds if seconds > 0 else None,
    )


def _whole(span: SpanRecord, attribute: str) -> int | None:
    value = span.attributes.get(attribute)
    return value if isinstance(value, int) else None
