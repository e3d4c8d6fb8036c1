"""The cost of a threshold in revise loops: rounds, tokens and seconds for each accepted draft.

Computed from recorded loops: with another threshold, each would have stopped at its first round
that reaches it. What happens after the round where a loop passed is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.rubric import Rubric, at_any_threshold
from harness.trace import Journal, run_list
from harness.wiggum import LOOP_RECORDS, RecordedLoop, recorded_loops


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopCosts:
    """The rounds of a loop that came to its end."""

    rounds: tuple[tuple[float, int, float], ...]
    """Composite, tokens and seconds of each; minus infinity for a round that fails everywhere."""
    passed: bool
    """Whether it stopped since a draft passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdCosts:
    """The cost of loops at a threshold."""

    threshold: float
    accepted: int
    """Loops whose draft reaches it."""
    loops: int
    unknown: int
    """Loops that stopped below it, since a draft passed."""
    rounds: float | None
    """For each accepted draft, those of loops without one included; None if that is not known."""
    tokens: float | None
    seconds: float | None


def loops_by(rubric: Rubric, runs: Iterable[str], *, traces: Path) -> list[LoopCosts]:
    """The loops of runs by this rubric, whatever its threshold was.

    `runs` are ids, files of runs, or folders with runs; runs with ids are in `traces`.

    Raises:
        InvalidInput: There is no such run.
        JournalInvalid: A journal is damaged.
    """
    thresholds = at_any_threshold(rubric) | {rubric.sha256: rubric.pass_at}
    paths: dict[Path, None] = {}
    for run in runs:
        if Path(run).is_dir():
            paths |= dict.fromkeys(run_list.journals_in(Path(run)))
        else:
            paths[run_list.find_journal(run, lambda: traces)] = None
    return [
        _costs(loop, thresholds)
        for path in paths
        for loop in recorded_loops(one for one in Journal(path).items() if _is_of_loops(one))
        if loop.has_ended and loop.rounds and loop.rubric_sha256 in thresholds
    ]


def _is_of_loops(record: object) -> bool:
    return getattr(record, "name", None) in LOOP_RECORDS


def _costs(loop: RecordedLoop, thresholds: Mapping[str, float]) -> LoopCosts:
    pass_at = thresholds[loop.rubric_sha256]
    rounds = tuple(_round(one, pass_at) for one in loop.rounds)
    return LoopCosts(rounds=rounds, passed=loop.stop_reason == "passed")


def _round(one: Mapping[str, Any], pass_at: float) -> tuple[float, int, float]:
    composite = float(one["composite"])
    # Above the threshold that there was, only a floor, a gate or a cut reply fails a draft.
    blocked = not one["passed"] and composite >= pass_at
    tokens = int(one["input_tokens"]) + int(one["output_tokens"])
    return float("-inf") if blocked else composite, tokens, float(one["seconds"])


def costs_at(threshold: float, loops: Sequence[LoopCosts]) -> ThresholdCosts:
    """Computes the cost of the loops at a threshold."""
    accepted, unknown, rounds, tokens, seconds = 0, 0, 0, 0, 0.0
    for loop in loops:
        reached = [number for number, one in enumerate(loop.rounds, 1) if one[0] >= threshold]
        accepted += bool(reached)
        unknown += loop.passed and not reached
        taken = loop.rounds[: reached[0]] if reached else loop.rounds
        rounds += len(taken)
        tokens += sum(one[1] for one in taken)
        seconds += sum(one[2] for one in taken)
    known = accepted and not unknown
    return ThresholdCosts(
        threshold=threshold,
        accepted=accepted,
        loops=len(loops),
        unknown=unknown,
        rounds=rounds / accepted if known else None,
        tokens=tokens / accepted if known else None,
        seconds=seconds / accepted if known else None,
    )
