"""How many rounds the revise loops of a pipeline usually take, by what its last runs took."""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ValidationError

_RUNS: Final = 20
"""The latest that count."""
_TAIL_BYTES: Final = 512 * 1024
"""Of the log, that are read: hundreds of runs, in some milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsualRounds:
    """What loops took in the middle."""

    any_rubric: int | None = None
    """Of all loops; None when there were none."""
    by_rubric: Mapping[str, int] = field(default_factory=dict)
    """Of those with one rubric, by its id."""

    def of(self, rubric: str | None) -> int | None:
        """Of loops with this rubric, or of any where there were none with it.

        Args:
            rubric: Its id; None where that is not known.
        """
        return self.any_rubric if rubric is None else self.by_rubric.get(rubric, self.any_rubric)


NOTHING_USUAL: Final = UsualRounds()
"""Of a pipeline that was never run."""


def usual_rounds(log: Path, pipeline: str) -> UsualRounds:
    """The median of the loops in the last 20 finished runs; of two in the middle, the higher.

    What cannot be read is left out: without it a run has a poorer forecast, and no fault.

    Args:
        log: The audit log.
        pipeline: Its name.
    """
    took: defaultdict[str, list[int]] = defaultdict(list)
    for run in _last_runs(log, pipeline):
        for loop in run.loops:
            if not loop.rounds:  # they could not be had when it was written down
                continue
            took[loop.rubric].append(len(loop.rounds))
    every = [rounds for of_one in took.values() for rounds in of_one]
    return UsualRounds(
        any_rubric=statistics.median_high(every) if every else None,
        by_rubric={rubric: statistics.median_high(rounds) for rubric, rounds in took.items()},
    )


class _Loop(BaseModel):
    rubric: str
    rounds: tuple[object, ...]


class _Run(BaseModel):
    run_id: str
    pipeline: str
    final: str
    loops: tuple[_Loop, ...]

    @property
    def is_finished(self) -> bool:
        return self.final in {"PASS", "FAIL"}


def _last_runs(log: Path, pipeline: str) -> Iterator[_Run]:
    """The latest first; of a run that was resumed, its last line."""
    seen: set[str] = set()
    found = 0
    for line in reversed(_tail(log)):
        try:
            run = _Run.model_validate_json(line)
        except ValidationError:
            continue
        if run.pipeline != pipeline or run.run_id in seen:
            continue
        seen.add(run.run_id)
        if run.is_finished and run.loops:
            yield run
            found += 1
            if found == _RUNS:
                return


def _tail(log: Path) -> list[bytes]:
    """The log's last whole lines."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - _TAIL_BYTES, 0))
            lines = file.read().split(b"\n")
    except OSError:
        return []
    # The last one has no end, or is empty; the first may have no beginning.
    return lines[1 if size > _TAIL_BYTES else 0 : -1]
