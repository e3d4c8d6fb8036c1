"""The runs in a directory: their audit log, and finding a run by name.

The audit log, `runs.jsonl`, has a line for every run that ended. A run that was resumed ended more
than once: each end adds a line under the same id, about the whole run so far, and the last counts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from harness.errors import InvalidInput, JournalInvalid, did_you_mean
from harness.files import private
from harness.log import log_warning
from harness.trace.journal_line import decode, line_start
from harness.trace.journal_reader import (
    JOURNAL_SUFFIX,
    Journal,
    JournalFile,
    is_packed,
    journal_of,
    open_journal,
    part_of,
)
from harness.trace.records import RunEnded, RunStarted
from harness.trace.run_trace import ID_TIME, TIMELINES, is_going

AUDIT_LOG = "runs.jsonl"  # the file's name, beside the journals
LATEST = "latest"
PRUNED = "PRUNED"
"""The end in a line that takes a run out of the list; the audit log keeps the lines before it."""

_TAIL_BYTES = 4096
_ID = re.compile(r"\d{8}T\d{6}Z-")


class AuditLine(BaseModel):
    """A line of an audit log. Further fields are kept."""

    model_config = ConfigDict(frozen=True, extra="allow")

    run_id: str | None = None
    timestamp: str | None = None  # when it began: ISO 8601, UTC
    pipeline: str | None = None
    task: str = ""
    producer_model: str | None = None
    evaluator_model: str | None = None
    run_duration_s: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    wiggum_scores: tuple[float, ...] = ()  # the composite of each round of the last revise loop
    loops: tuple[object, ...] = ()  # all of its revise loops, in the order of their ends
    evaluation: dict[str, float] = {}  # name of each score of an evaluation → its mean
    tenant: str | None = None  # the tenant that a session made the run for
    stop_reason: str | None = None  # why the last loop ended
    final: str | None = None  # how the run ended; KILLED or GOING without a line in the log
    error: str | None = None
    is_gone: bool = False  # whether the run has a line in the log, and its journal is gone


def list_runs(directory: Path, *, latest: int | None = None) -> list[AuditLine]:
    """The runs in a directory, oldest first: ended, killed or going; only the `latest` last ones.

    Raises:
        InvalidInput: The audit log cannot be read.
    """
    ended: dict[object, AuditLine] = {}  # the latest run first
    pruned: set[str | None] = set()
    # The latest line comes first, and is the one that counts for a run.
    for number, line in enumerate(read_audit_log(directory / AUDIT_LOG)):
        if line.final == PRUNED:
            pruned.add(line.run_id)
        elif line.run_id not in pruned:
            # A line without an id is a run of its own.
            ended.setdefault(number if line.run_id is None else line.run_id, line)
        # Lines are parsed only until the last runs are known.
        if len(ended) == latest:
            break
    lines = [
        line.model_copy(update={"is_gone": True}) if _is_gone(line, directory) else line
        for line in reversed(ended.values())
    ]
    since = _id_time(min(line.timestamp or "" for line in lines)) if len(ended) == latest else ""
    lines = _with_unended(lines, directory, since=since)
    return lines if latest is None else lines[-latest:]


def _is_gone(line: AuditLine, directory: Path) -> bool:
    return line.run_id is not None and not (directory / f"{line.run_id}{JOURNAL_SUFFIX}").is_file()


def append_line(path: Path, line: bytes) -> None:
    """Adds a line to the audit log, whole."""
    # In one write, so that lines of parallel runs do not mix.
    with open(path, "a+b", buffering=0, opener=private) as file:
        # A full disk may have cut off the line before.
        if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
            line = b"\n" + line
        while line:
            line = line[file.write(line) :]


def read_audit_log(path: Path) -> Iterator[AuditLine]:
    """The lines of an audit log, the latest first; none if there is no such file yet.

    Raises:
        InvalidInput: The file cannot be read.
    """
    try:
        # The bytes after the last newline are a line that was cut off.
        *lines, _ = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return
    except OSError as error:
        raise InvalidInput(
            f"cannot be read ({error.strerror})", code="audit.unreadable", path=path
        ) from error
    # Parsed from the end, one by one, since most readers need only the last runs.
    for number, line in reversed([*enumerate(lines, start=1)]):
        try:
            if line.strip():
                yield AuditLine.model_validate_json(line)
        except ValidationError:
            # A line that describes no run must not hide all others.
            log_warning(
                "skipped a line that describes no run",
                code="audit.line-skipped",
                path=str(path),
                line=number,
            )


def _id_time(timestamp: str) -> str:
    """The time with which the id of a run begins; empty, which sorts first, if it is unknown."""
    try:
        return f"{datetime.fromisoformat(timestamp).astimezone(UTC):{ID_TIME}}"
    except ValueError:
        return ""


def _with_unended(lines: list[AuditLine], directory: Path, *, since: str) -> list[AuditLine]:
    """Adds a line for each run that was killed or is still going, by the time of its start.

    Runs whose ids begin before `since` are left out.
    """
    parts: dict[Path, list[Path]] = {}  # journal of a run → its files
    for name in sorted(os.listdir(directory)) if directory.is_dir() else ():  # noqa: PTH208 - names
        # An id begins with its time. A run with another name may be of any time.
        is_before = _ID.match(name) is not None and name < since
        if name.endswith(JOURNAL_SUFFIX) and not is_before:
            file = directory / name
            parts.setdefault(journal_of(file), []).append(file)
    for path, files in parts.items():
        try:
            last = max(files, key=lambda file: part_of(file, path) or 0)
            # Parts without their journal are no run. Most runs ended, so few are read whole.
            if path not in files or not _is_run(path) or _has_end(last):
                continue
            # To find further parts, `Journal` would read the names in the directory for each run.
            journal = Journal(path) if len(files) > 1 else JournalFile(path)
            if journal.ended is not None:
                continue
            line = AuditLine(
                run_id=journal.started.run_id,
                timestamp=datetime.fromtimestamp(journal.started.wall_ns / 1e9, tz=UTC).isoformat(),
                pipeline=journal.started.name,
                run_duration_s=(journal.last_ns - journal.started.time_ns) / 1e9,
                final="GOING" if is_going(path) else "KILLED",
            )
        except (JournalInvalid, OSError):
            continue  # It is no run, or every command on it says what is wrong with it.
        # The last part of the run has no end, so the line of an earlier part does not count.
        lines = [ended for ended in lines if ended.run_id != line.run_id]
        start = line.timestamp or ""
        lines.insert(sum((ended.timestamp or "") <= start for ended in lines), line)
    return lines


def _has_end(path: Path) -> bool:
    """Guesses whether a file's run ended without being killed; nearly always right."""
    # Only runs that ended are packed.
    if is_packed(path):
        return True
    with path.open("rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - _TAIL_BYTES, 0))
        return line_start(RunEnded) in file.read()


def find_journal(run: str | Path, directory: Callable[[], Path]) -> Path:
    """The journal of a run.

    `run` is `latest`, an id, any part of one, or a file of the run. `directory` is the directory of
    runs, and is not needed for a file.

    Raises:
        InvalidInput: There is no such run, or more than one could be meant.
    """
    path = Path(run)
    # Neither a dot nor a slash is part of an id.
    if isinstance(run, Path) or path.suffix or len(path.parts) != 1 or run != path.name:
        return _journal_beside(path)
    return _journal_named(run, directory())


def journals_in(directory: Path) -> list[Path]:
    """The journals of all runs in a directory, by name: oldest first, if they have their own.

    Raises:
        InvalidInput: There is none.
    """
    _journal_named(LATEST, directory)
    files = sorted(directory.glob(f"*{JOURNAL_SUFFIX}"))
    return [path for path in files if _is_run(path) and begins_a_run(path)]


def _journal_named(run: str, directory: Path) -> Path:
    files = sorted(filter(Path.is_file, directory.glob(f"*{JOURNAL_SUFFIX}")))
    journals = {path.stem: path for path in files if _is_run(path)}
    if run == LATEST:
        # Ids begin with the time, but a directory may hold journals of other names, and a run that
        # began long ago may have been resumed since.
        changed_ns: dict[Path, int] = {}
        for file in files:
            journal = journal_of(file)
            changed_ns[journal] = max(changed_ns.get(journal, 0), file.stat().st_mtime_ns)
        by_age = sorted(journals.values(), key=lambda path: (changed_ns[path], path.name))
        journals = {path.stem: path for path in reversed(by_age) if begins_a_run(path)}
        run = next(iter(journals), run)
    if not journals:
        raise InvalidInput(
            f"there are no runs in '{directory}'; name a journal's file, or run something first: "
            "harness run …",
            code="run.none-yet",
        )
    matches = [run] if run in journals else [name for name in journals if run in name]
    if len(matches) > 1:
        raise InvalidInput(
            f"'{run}' could be any of {', '.join(matches[:5])}; give more of the id",
            code="run.ambiguous",
        )
    if not matches:
        raise InvalidInput(
            f"there is no run '{run}' in '{directory}'; "
            f"{did_you_mean(run, [*journals][-3:])} (the latest; see harness runs)",
            code="run.not-found",
        )
    return journals[matches[0]]


def _journal_beside(path: Path) -> Path:
    """The journal of the run that a file is of."""
    endings = [ending for ending, _ in TIMELINES.values()]
    if path.suffix not in {JOURNAL_SUFFIX, *endings}:
        raise InvalidInput(
            f"not a file of a run; give its journal ({JOURNAL_SUFFIX}), a timeline "
            f"({', '.join(endings)}), or of a folder of runs its latest: latest --traces {path}",
            code="run.not-its-file",
            path=path,
        )
    journal = journal_of(path.with_suffix(JOURNAL_SUFFIX))
    if not journal.is_file():
        raise InvalidInput(
            f"there is no journal {journal.name}", code="run.file-missing", path=path
        )
    return journal


def _is_run(path: Path) -> bool:
    # In the folder there are also the audit log, and further parts of runs.
    return path.name != AUDIT_LOG and "." not in path.stem


def begins_a_run(path: Path) -> bool:
    """Whether there is such a file, and it is a run's."""
    try:
        with open_journal(path) as file:
            return isinstance(decode(file.readline()), RunStarted)
    except (OSError, ValueError):
        return False
