"""Going on with a run: which file its next part writes, and what that begins with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.errors import InvalidInput
from harness.trace.journal_reader import Journal
from harness.trace.records import Instant, RunStarted
from harness.trace.run_files import journal_of, next_part, part_path


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """A part of a run that is about to begin."""

    path: Path
    """Its file, which does not exist yet."""
    started: RunStarted
    """Its first record."""
    resumed: Instant
    """Its second: which part it is, and how long nothing had run before it."""
    earlier: tuple[Path, ...]
    """The files of the run so far."""


def resume_run(path: Path, started: RunStarted) -> Resumption:
    """What the next part of a run is.

    Args:
        path: The run's journal.
        started: What a new run would begin with, now.

    Raises:
        InvalidInput: It is not a run's journal, but a further file of one.
        JournalInvalid: It cannot be read.
        OSError: The same.
    """
    journal = Journal(path)
    if journal.started.joined_ns is not None:
        raise InvalidInput(
            f"only a part of a run; resume the run: {journal_of(path).name}",
            code="run.only-a-part",
            path=path,
        )
    part = next_part(path)
    # By wall clocks, which somebody may have set in the meantime.
    away_ns = max(0, started.wall_ns - journal.last_wall_ns)
    return Resumption(
        path=part_path(path, part),
        started=started._replace(
            run_id=journal.started.run_id, joined_ns=journal.last_ns, part=part
        ),
        resumed=Instant(None, "resumed", started.time_ns, {"part": part, "away_s": away_ns / 1e9}),
        earlier=journal.paths,
    )
