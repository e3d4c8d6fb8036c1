"""What models were asked beside chats: to embed, to count tokens, whether they keep to schemas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from harness.trace.calls import Call
from harness.trace.records import SpanRecord

ASIDE = ("embed", "count tokens", "schema probe")
"""The spans of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aside:
    """One such kind of request to one model."""

    name: str
    """Which: `embed`, `count tokens` or `schema probe`."""
    model: str
    """The endpoint's tag."""
    requests: int
    """Attempts in all."""
    failed: int
    """Attempts that ended in an error."""
    total_ns: int
    """Time in them, added up; a probe's is also in the call that it preceded."""
    input_tokens: int | None
    """Prompts, or what was embedded; None where nobody counted any."""
    output_tokens: int | None
    """Replies to probes, likewise."""


def asides_of(spans: Iterable[SpanRecord]) -> tuple[Aside, ...]:
    """One for each kind and model, in the order of their first requests.

    Args:
        spans: Those of `ASIDE`.
    """
    groups: dict[tuple[str, str], list[SpanRecord]] = {}
    for span in spans:
        groups.setdefault((span.name, str(span.attributes.get("model"))), []).append(span)
    return tuple(_aside(name, model, group) for (name, model), group in groups.items())


def _aside(name: str, model: str, spans: list[SpanRecord]) -> Aside:
    return Aside(
        name=name,
        model=model,
        requests=len(spans),
        failed=sum(span.status == "error" for span in spans),
        total_ns=sum(span.duration_ns for span in spans),
        input_tokens=_sum(spans, "input_tokens"),
        output_tokens=_sum(spans, "output_tokens"),
    )


def priced_asides(spans: Iterable[SpanRecord]) -> Iterator[Call]:
    """Those that providers charge for, as if they were calls: tokens are counted for nothing."""
    for span in spans:
        if span.name != "count tokens":
            none_written = {"output_tokens": 0} if span.name == "embed" else {}
            yield Call(
                id=span.id,
                start_ns=span.start_ns,
                end_ns=span.end_ns,
                model=str(span.attributes.get("model")),
                role=None,
                node=None,
                status=span.status,
                error=span.error,
                attributes={**none_written, **span.attributes},
            )


def _sum(spans: Iterable[SpanRecord], count: str) -> int | None:
    counts = (span.attributes.get(count) for span in spans)
    known = [tokens for tokens in counts if isinstance(tokens, int)]
    return sum(known) if known else None
