"""The findings of rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from harness.analysis.speed_limits import SpeedLimit
from harness.analysis.time_budget import TimeShare
from harness.errors import Notice
from harness.trace.event_forms import SpanEvent
from harness.trace.records import RunState

Severity = Literal["error", "warning", "hint"]
"""`error`: something did not work. `warning`: time was lost. `hint`: time may have been lost, and
the journal cannot prove it."""

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "hint")  # worst first

Layer = Literal["L0", "L1", "L2", "L3", "L4a", "L4b", "L5", "L6"]
"""A part of the stack, from the silicon up."""

LAYERS: Mapping[Layer, str] = {
    "L0": "silicon",
    "L1": "drivers",
    "L2": "packaging",
    "L3": "backend",
    "L4a": "routing",
    "L4b": "batching and KV cache",
    "L5": "gateway",
    "L6": "client",
}

_MOST_NAMES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What a rule returns; `Rule.finding` makes a `RunFinding` of it, where more is said."""

    seen: str
    spans: tuple[int, ...] = ()
    severity: Severity = "warning"
    model: str | None = None
    server: str | None = None  # tag of the endpoint whose server to change, if no model is named
    lost_ns: float | None = None  # None if unknown
    whatever_it_cost: bool = False  # whether it is a finding even if it cost hardly any time
    case: str = ""  # key of the rule's `cases`; empty for the rule's usual advice
    first_moves: tuple[str, ...] = ()  # computed from this run; they come before the rule's moves
    target: int = 0  # the calls at once, or else tokens of context, to make room for; 0 if unknown


Observations = Iterator[Observation]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinding:
    """One thing that was wrong."""

    rule: str  # the stable code of the rule that found it: `cold-start`
    severity: Severity
    model: str | None
    seen: str
    spans: tuple[int, ...]  # ids of spans that show it, at most 20
    meaning: str
    layer: Layer
    move: tuple[str, ...]  # what to change, the most likely to help first
    lost_ns: int | None = None  # the run's time that it cost at most; None if unknown


def span_ids(spans: Iterable[SpanEvent]) -> tuple[int, ...]:
    """The ids of the spans of calls, nodes or other events."""
    return tuple(span.id for span in spans)


def counted(count: float, noun: str, plural: str = "") -> str:
    """A number of things for people: `1 call`, `3 calls`."""
    return f"{count:,.0f} {noun if count == 1 else plural or f'{noun}s'}"


def quoted(names: Iterable[str]) -> str:
    """Names for people, each once: `'a' and 'b'`, `'a', 'b', 'c' and 2 more`; empty for none."""
    distinct = [f"'{name}'" for name in dict.fromkeys(names)]
    left_out = len(distinct) - _MOST_NAMES
    if left_out > 0:
        return f"{', '.join(distinct[:_MOST_NAMES])} and {left_out} more"
    *before, last = distinct or [""]
    return f"{', '.join(before)} and {last}" if before else last


def ns_text(duration_ns: float) -> str:
    """A duration for people: `210 ms`, `4.3 s`."""
    return f"{duration_ns / 1e9:.1f} s" if duration_ns >= 1e9 else f"{duration_ns / 1e6:.0f} ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The findings of a run, and what else it shows."""

    run_id: str
    status: RunState  # how it ended; `unfinished` when it was killed, or is not over
    duration_ns: int  # from its first record to its last, without the pauses before it was resumed
    time: tuple[TimeShare, ...] = ()  # causes of time on the critical path, largest first
    # The speed of models against the machine's limits, as far as known.
    speed_limits: tuple[SpeedLimit, ...] = ()
    findings: tuple[RunFinding, ...] = ()  # worst first: errors, then what took the most time
    checked: tuple[str, ...] = ()  # the codes of all rules
    unexplained: TimeShare | None = None  # the largest of `time` without a finding
    # In a sentence each: facts that may be intended, and what no rule could examine.
    remarks: tuple[Notice, ...] = ()
