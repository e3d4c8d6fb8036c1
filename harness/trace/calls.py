"""The model calls of a run, as reports and diagnoses look at them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from harness.trace.records import Attributes, SpanRecord

PHASES = ("queue", "load", "prefill", "decode")
"""The phases of a call, in the order they happen."""

_FOR_A_TURN = ("max_concurrency", "slots", "KV cache")
"""How the reason begins of a wait that the endpoint's own limit imposed, or the model's size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A stretch of the run's clock."""

    start_ns: int
    """When it began."""
    end_ns: int
    """When it ended."""

    @property
    def duration_ns(self) -> int:
        """Its length."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Interval):
    """One attempt to call a model: a `chat` span with the phases inside it."""

    id: int
    """The span's."""
    model: str
    """The endpoint's tag."""
    role: str | None
    """What the model was used as."""
    node: str | None
    """The pipeline node that called."""
    status: str
    """How the span ended."""
    error: str | None
    """What ended it, if an error did."""
    attributes: Attributes
    """Of the span: `input_tokens`, `finish_reason`, `prompt_sha256` and so on."""
    phases: Mapping[str, tuple[Interval, ...]] = field(default_factory=dict)
    """Where its time went, by phase, as far as it is known."""
    turns: tuple[Interval, ...] = ()
    """Of its queue, the waits for a turn among calls to the same model."""

    def count(self, name: str) -> int | None:
        """A whole number among the attributes, such as `output_tokens`; None if it is not known."""
        value = self.attributes.get(name)
        return value if isinstance(value, int) and value >= 0 else None

    def phase_ns(self, name: str) -> int:
        """How long a phase took in all; 0 when there was none."""
        return sum(interval.duration_ns for interval in self.phases.get(name, ()))

    @property
    def from_cache(self) -> bool:
        """Whether an earlier call's reply answered it: no model was asked, so none has figures."""
        return self.attributes.get("from_cache") is True

    @property
    def was_sent(self) -> bool:
        """Whether it came as far: not where its endpoint was out of reach, or a limit reached."""
        return not (self.error or "").startswith(("CircuitOpen", "RunLimitReached"))

    @property
    def dropped(self) -> tuple[str, ...]:
        """Fields that it was sent without, since the model or its server refuses them."""
        names = self.attributes.get("dropped")
        return tuple(map(str, names)) if isinstance(names, list | tuple) else ()

    @property
    def ttft_ns(self) -> int | None:
        """From sending the request to the first token; the waits before sending are not in it."""
        return self.count("ttft_ns")


def calls_of(spans: Iterable[SpanRecord]) -> list[Call]:
    """Every call, in the order they began. Takes about a kilobyte for each.

    Args:
        spans: All of a run's, as `Journal.spans` gives them.
    """
    nodes: dict[int, str] = {}
    chats: list[SpanRecord] = []
    phases: dict[int, dict[str, list[Interval]]] = {}
    turns: dict[int, list[Interval]] = {}
    for span in spans:
        if span.name in PHASES:
            if span.parent in phases:
                interval = Interval(start_ns=span.start_ns, end_ns=span.end_ns)
                phases[span.parent].setdefault(span.name, []).append(interval)
                if str(span.attributes.get("reason")).startswith(_FOR_A_TURN):
                    turns.setdefault(span.parent, []).append(interval)
            continue
        node = span.attributes.get("node") or (span.parent and nodes.get(span.parent))
        if node:
            nodes[span.id] = str(node)
        if span.name == "chat":
            chats.append(span)
            phases[span.id] = {}
    return [
        Call(
            id=span.id,
            start_ns=span.start_ns,
            end_ns=span.end_ns,
            model=str(span.attributes.get("model")),
            role=_text_or_none(span.attributes.get("role")),
            node=nodes.get(span.id),
            status=span.status,
            error=span.error,
            attributes=span.attributes,
            phases={name: tuple(parts) for name, parts in phases[span.id].items()},
            turns=tuple(turns.get(span.id, ())),
        )
        for span in chats
    ]


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None
