"""The audit log: `runs.jsonl`, one line for every run that ended, whatever its end.

Field names are those of the Agentic Harness Engineering series, so that its readers open the file;
`schema_version` says which fields are ours. Names that end in `_s` are seconds.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from harness.trace.lenient_json import dump_json

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopEntry:
    """How one revise loop of the run went."""

    rubric: str
    """The rubric's id."""
    rubric_sha256: str
    """Digest of the rubric's file, since thresholds change."""
    stop_reason: str
    """Why the loop ended."""
    best_round: int | None
    """The round whose draft was returned, counted from 1."""
    scores: tuple[float, ...]
    """The composite of each evaluated round."""
    dimensions: tuple[dict[str, float], ...]
    """The score of each dimension, round by round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One run, in one line."""

    run_id: str
    """Names the journal beside this file."""
    timestamp: str
    """When it began: ISO 8601, UTC."""
    pipeline: str
    """What was run."""
    task: str
    """The run's `task` input, if it has one."""
    producer_model: str | None
    """Tag of the producer's endpoint."""
    evaluator_model: str | None
    """Tag of the evaluator's endpoint; None when every dimension was checked by code."""
    run_duration_s: float
    """From start to end."""
    input_tokens: int
    """Prompt tokens of all calls."""
    output_tokens: int
    """Completion tokens of all calls."""
    loops: tuple[LoopEntry, ...]
    """Every revise loop, in the order they ended."""
    final: Literal["PASS", "FAIL", "ERROR"]
    """PASS: every loop passed, or there was none. ERROR: the run did not finish."""
    error: str | None = None
    """What ended it, when `final` is ERROR."""

    def as_line(self) -> bytes:
        """The entry as one line of JSON, with the series' fields for the last loop."""
        last = self.loops[-1] if self.loops else None
        series = {
            "schema_version": SCHEMA_VERSION,
            "wiggum_rounds": len(last.scores) if last else 0,
            "wiggum_scores": last.scores if last else (),
            "wiggum_dims": last.dimensions if last else (),
        }
        return dump_json({**series, **asdict(self)}) + b"\n"


def append_line(path: Path, line: bytes) -> None:
    """Adds a run to the log. One write, so that runs that end together do not mix.

    Args:
        path: The log.
        line: Of `AuditEntry.as_line`, cleaned of secrets.

    Raises:
        OSError: The file cannot be written.
    """
    with path.open("ab", buffering=0) as file:
        file.write(line)
