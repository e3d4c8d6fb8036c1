"""The audit log: `runs.jsonl`, a line for every run that ended, whatever its end.

A run that was resumed ended more than once: each time adds a line under the same id, about the
whole run up to then, and the last one counts.

Field names are those of the Agentic Harness Engineering series, so that its readers open our file
and ours opens theirs; what a run of ours never has (tool calls, searches) is there and empty.
`schema_version` says which fields are ours. Names that end in `_s` are seconds, in `_ms`
milliseconds, as there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from harness.errors import InvalidInput, JournalInvalid, Notice
from harness.files import private
from harness.log import log_warning
from harness.trace.journal_line import dump_json, line_start
from harness.trace.journal_reader import JOURNAL_SUFFIX, Journal, journal_of, part_of, paths_beside
from harness.trace.records import RunEnded
from harness.trace.run_trace import is_going

_TAIL_BYTES = 4096

SCHEMA_VERSION = 1

AUDIT_LOG = "runs.jsonl"
"""The file's name, beside the journals."""

RunVerdict = Literal["PASS", "FAIL", "DONE", "SKIPPED", "ERROR", "WAITING", "STOPPED"]
"""PASS: every loop passed. DONE: it finished, and nothing was judged. SKIPPED: it finished, and the
node that gives its result was skipped. ERROR: the run did not finish.

The series has no more than PASS, FAIL and ERROR, and whoever counts its runs takes ERROR for a
fault. A run that waits for an answer, or that a limit stopped, has none, and may be resumed.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageUse:
    """The calls of one role; field names are the series'."""

    input: int
    """Prompt tokens."""
    output: int
    """Completion tokens."""
    calls: int
    """Attempts."""
    total_ms: float
    """From request to reply, loading and queueing included."""
    prompt_ms: float
    """Reading prompts."""
    eval_ms: float
    """Writing replies."""
    tok_s: float | None
    """Tokens after the first over the time they took."""
    thinking_chars: int = 0
    """Reasoning is not counted apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundEntry:
    """One evaluation of a loop; field names are the series'."""

    round: int
    """Counted from 1."""
    score: float
    """The composite."""
    dims: dict[str, float]
    """The score of each dimension."""
    issues: tuple[str, ...]
    """What kept dimensions from more; empty where the run records no texts."""
    content_sha256: str | None
    """The draft, by its hash in the journal; None where the run records no hashes."""
    compressed: bool
    """Whether the evaluator saw a shortened draft: such scores do not compare with others."""
    prompt_sha256: str | None = None
    """What the evaluator was told except task, sources and draft, by its hash: scores that were
    asked for in other words do not compare. None when code alone decided."""
    judgements: int = 0
    """How many judgements the scores come of; 0 when code alone decided."""
    abstentions: int = 0
    """How many more were asked for and could not be read."""
    spread: float | None = None
    """Standard deviation of the judgements' composites; None when there were not several."""
    changed_chars: int = 0
    """How much of the draft is different from the one that it was made from."""


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
    rounds: tuple[RoundEntry, ...]
    """Each evaluation, in order."""
    calls: int = 0
    """What it asked models, producer and evaluators together."""
    input_tokens: int = 0
    """Their prompts' tokens."""
    output_tokens: int = 0
    """Their replies' tokens."""
    cost_usd: float | None = None
    """What that cost, in dollars, as far as prices are known; None when none is."""


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
    evaluator_seed: str | None = None
    """What the evaluator was drawn from a pool by; None when it was named, or where the run records
    no texts."""
    separation: str | None = None
    """What the evaluator's model is to the producer's: `different`, `unknown`, or `family`, where
    the settings allow relatives. None when there is no evaluator."""
    warnings: tuple[Notice, ...] = ()
    """What is to be kept in mind about the run's scores."""
    run_duration_s: float
    """From start to end."""
    stages: dict[str, StageUse] = field(default_factory=dict)
    """The calls, by role."""
    subtask_count: int
    """Node calls."""
    memory_context_titles: tuple[str, ...] = ()
    """What was recalled."""
    loops: tuple[LoopEntry, ...]
    """Every revise loop, in the order they ended."""
    final: RunVerdict
    """How it ended; see there."""
    error: str | None = None
    """What ended it, when it did not finish."""

    def as_line(self) -> bytes:
        """The entry as one line of JSON, with the series' fields."""
        own = asdict(self)
        del own["stages"]
        return (
            dump_json({**_NOT_OURS, **_totals(self.stages), **_of_loop(self.loops), **own}) + b"\n"
        )


# Fields of the series that say something our runs do not have, or do not know.
_NOT_OURS: dict[str, object] = {
    "schema_version": SCHEMA_VERSION,
    "session_id": None,
    "project_id": None,
    "parent_run_id": None,
    "experiment_id": None,
    "treatment_level": None,
    "task_id": None,
    "task_type": None,
    "tool_calls": (),
    "plan": None,
    "novelty_scores": (),
    "search_rounds": 0,
    "total_search_chars": 0,
    "quality_floor_hit": False,
    "injection_stripped": False,
    "orchestrated": True,
    "output_path": None,
}


def _totals(stages: dict[str, StageUse]) -> dict[str, object]:
    uses = stages.values()
    eval_ms = sum(use.eval_ms for use in uses)
    rates = [(use.tok_s, use.eval_ms) for use in uses if use.tok_s is not None]
    return {
        "input_tokens": sum(use.input for use in uses),
        "output_tokens": sum(use.output for use in uses),
        "total_tokens": sum(use.input + use.output for use in uses),
        "total_eval_ms": eval_ms,
        "total_prompt_ms": sum(use.prompt_ms for use in uses),
        # Each stage's rate weighed by how long it decoded: tokens over time, loading left out.
        "generation_tok_s": sum(rate * ms for rate, ms in rates) / sum(ms for _, ms in rates)
        if rates
        else None,
        "total_thinking_chars": 0,
        "tokens_by_stage": {role: asdict(use) for role, use in stages.items()},
    }


def _of_loop(loops: tuple[LoopEntry, ...]) -> dict[str, object]:
    """The series knows one loop a run: the last."""
    rounds = loops[-1].rounds if loops else ()
    scores = [one.score for one in rounds]
    # By its number: of a draft that a gate stopped, the score may be higher and the draft worse.
    best = next((one for one in rounds if one.round == loops[-1].best_round), None)
    return {
        "wiggum_rounds": len(rounds),
        "wiggum_scores": scores,
        "wiggum_dims": [one.dims for one in rounds],
        "wiggum_eval_log": [asdict(one) for one in rounds],
        "first_score": scores[0] if scores else None,
        "best_score": best.score if best else None,
        "last_score": scores[-1] if scores else None,
        "best_round": loops[-1].best_round if loops else None,
        "stop_reason": loops[-1].stop_reason if loops else None,
        "rubric_id": loops[-1].rubric if loops else None,
        "rubric_sha256": loops[-1].rubric_sha256 if loops else None,
        "prompt_sha256": best.prompt_sha256 if best else None,
    }


def append_line(path: Path, line: bytes) -> None:
    """Adds a run to the log. One write, so that runs that end together do not mix.

    Args:
        path: The log.
        line: Of `AuditEntry.as_line`, cleaned of secrets.

    Raises:
        OSError: The file cannot be written.
    """
    with open(path, "a+b", buffering=0, opener=private) as file:
        if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
            line = b"\n" + line  # after a line that a full disk cut off
        while line:
            line = line[file.write(line) :]


class AuditLine(BaseModel):
    """A line of an audit log as read back: ours, or one of the series', which lack some fields."""

    model_config = ConfigDict(frozen=True, extra="allow", use_attribute_docstrings=True)

    run_id: str | None = None
    """Names the journal beside the log."""
    timestamp: str | None = None
    """When it began."""
    pipeline: str | None = None
    """What was run."""
    task: str = ""
    """What for."""
    producer_model: str | None = None
    """Who wrote."""
    evaluator_model: str | None = None
    """Who judged."""
    run_duration_s: float | None = None
    """From start to end."""
    input_tokens: int | None = None
    """Prompt tokens of all calls."""
    output_tokens: int | None = None
    """Completion tokens of all calls."""
    wiggum_scores: tuple[float, ...] = ()
    """The composite of each round of the last loop."""
    stop_reason: str | None = None
    """Why that loop ended."""
    final: str | None = None
    """See `RunVerdict`; KILLED or GOING of a run that has no line."""
    error: str | None = None
    """What ended it."""

    @field_validator("task", mode="before")
    @classmethod
    def _no_task(cls, value: object) -> object:
        return value or ""

    @field_validator("wiggum_scores", mode="before")
    @classmethod
    def _no_scores(cls, value: object) -> object:
        return value or ()


def read_audit_log(path: Path) -> Iterator[AuditLine]:
    """The lines of an audit log, oldest first; none if there is no such file yet.

    What is not a run is left out, with a warning: one damaged line must not hide all others.

    Raises:
        InvalidInput: The file cannot be read.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip() or not line.endswith(b"\n"):
                    continue
                try:
                    yield AuditLine.model_validate_json(line)
                except ValidationError:
                    log_warning(
                        "not a run, and left out",
                        code="audit.line-skipped",
                        path=str(path),
                        line=number,
                    )
    except FileNotFoundError:
        return
    except OSError as error:
        raise InvalidInput(
            f"cannot be read ({error.strerror})", code="audit.unreadable", path=path
        ) from error


def with_unended(lines: Iterable[AuditLine], directory: Path) -> list[AuditLine]:
    """The lines and, by when they began, one for each run that was killed or still goes on.

    Args:
        lines: Of the log in that directory.
        directory: Where runs land.
    """
    listed = list(lines)
    for path in sorted(directory.glob(f"*{JOURNAL_SUFFIX}")):
        beside = [one for one in paths_beside(path) if part_of(one, path)]
        try:
            if journal_of(path) != path or _has_end([path, *beside][-1]):
                continue
            journal = Journal(path)
            if journal.ended is not None:
                continue
        except (JournalInvalid, OSError):
            continue  # no run's, or `trace check` has more to say of it
        began = datetime.fromtimestamp(journal.started.wall_ns / 1e9, tz=UTC).isoformat()
        line = AuditLine(
            run_id=journal.started.run_id,
            timestamp=began,
            pipeline=journal.started.name,
            run_duration_s=journal.duration_ns / 1e9,
            final="GOING" if is_going(path) else "KILLED",
        )
        listed = [one for one in listed if one.run_id != line.run_id]
        place = sum(1 for one in listed if (one.timestamp or "") <= began)
        listed.insert(place, line)
    return listed


def _has_end(path: Path) -> bool:
    """Whether a journal's file ends as those of runs do that were not killed, nearly surely."""
    with path.open("rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - _TAIL_BYTES, 0))
        return line_start(RunEnded) in file.read()


def latest_lines(lines: Iterable[AuditLine]) -> list[AuditLine]:
    """Of a run that was resumed its last line only, where that stands.

    Args:
        lines: Oldest first; those without an id are each of a run of its own.
    """
    latest: dict[object, AuditLine] = {}
    for number, line in enumerate(lines):
        key = number if line.run_id is None else line.run_id
        latest.pop(key, None)
        latest[key] = line
    return list(latest.values())
