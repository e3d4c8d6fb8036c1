"""Removes runs, and packs the journals of runs that ended.

A run's files are those named by its id and a dot.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import orjson

from harness.errors import InvalidInput, JournalInvalid
from harness.files import path_in_locale, whole_file, writing
from harness.trace.events import PipelineEvent
from harness.trace.journal_line import decode, dump_json, line_start
from harness.trace.journal_reader import (
    JOURNAL_SUFFIX,
    beginning_of,
    is_packed,
    open_journal,
    part_of,
    part_path,
)
from harness.trace.records import Instant
from harness.trace.run_list import AUDIT_LOG, PRUNED, AuditLine, append_line
from harness.trace.run_trace import TIMELINES, RunLock

Keep = Literal["failed", "unfinished"]
"""Runs to keep by how they ended: badly, or so that they can be resumed."""

KeptBecause = Literal["going", "batch", "cannot be read", "failed", "unfinished"]
"""Why a run stays: it is going, or has just ended; a batch goes on from it; its journal, or the
record that says so, is damaged; or as `Keep`."""

ENDS: dict[Keep, frozenset[str]] = {
    "failed": frozenset({"FAIL", "ERROR", "KILLED"}),
    "unfinished": frozenset({"STOPPED", "WAITING", "INTERRUPTED", "KILLED"}),
}

_ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{12}")
# A run that ended so lately may get its line in the audit log yet.
_JUST_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A run's files; without its journal, what is left of one."""

    journal: Path
    final: str | None  # as `AuditLine`; None if the audit log lacks it
    paths: tuple[Path, ...]
    size_bytes: int
    changed_s: float  # when its journal changed last, in Unix time
    kept: KeptBecause | None = None  # why it stays, whatever its age and size; None if it may go
    batch_state: str | None = None  # the file for whose sake it stays
    is_readable: bool = True  # whether its journal begins as one; if not, only its age removes it

    @property
    def run_id(self) -> str:
        """Its name."""
        return self.journal.stem

    @property
    def journals(self) -> list[Path]:
        """Its journal, and those of further parts."""
        parts = {path: part_of(path, self.journal) or 0 for path in self.paths}
        files = [path for path, part in parts.items() if part or path == self.journal]
        return sorted(files, key=parts.__getitem__)


def stored_runs(
    directory: Path, listed: Iterable[AuditLine], *, keep: Collection[Keep]
) -> Iterator[StoredRun]:
    """The runs of a directory that have their names from harness; `listed` by `list_runs`."""
    finals = {line.run_id: line.final for line in listed}
    for run_id, paths in _files_by_run(directory).items():
        journal = directory / f"{run_id}{JOURNAL_SUFFIX}"
        # Files that are left of a run whose journal is gone are a run, too.
        is_left = journal not in paths
        try:
            stats = [path.lstat() for path in paths]
            started = None if is_left else beginning_of(journal)
        except OSError:
            continue  # just removed
        except JournalInvalid as error:
            if error.code != JournalInvalid.code:
                continue  # of a later version
            started = None
        named = started.run_id if started is not None else _ID.fullmatch(run_id) and run_id
        if named != run_id:
            continue
        changed = (
            s.st_mtime
            for p, s in zip(paths, stats, strict=True)
            if is_left or p == journal or part_of(p, journal)
        )
        run = StoredRun(
            journal=journal,
            final=finals.get(run_id),
            paths=tuple(paths),
            size_bytes=sum(stat.st_size for stat in stats),
            changed_s=max(changed),
            is_readable=is_left or started is not None,
        )
        kept, state = (None, None) if is_left else _why_kept(run, keep)
        yield replace(run, kept=kept, batch_state=state)


def runs_to_remove(
    runs: Sequence[StoredRun], *, older_s: float | None, size_bytes: int | None, now_s: float
) -> tuple[list[StoredRun], list[StoredRun]]:
    """Runs that changed longer ago than `older_s`, then the oldest until the rest has the size.

    Returns:
        Those that go, and those that are kept in their place.
    """
    total = sum(run.size_bytes for run in runs)
    removed: list[StoredRun] = []
    kept: list[StoredRun] = []
    for run in sorted(runs, key=lambda run: run.changed_s):
        is_old = older_s is not None and now_s - run.changed_s > older_s
        if is_old or (size_bytes is not None and total > size_bytes):
            reason = run.kept or (None if is_old or run.is_readable else "cannot be read")
            (removed if reason is None else kept).append(replace(run, kept=reason))
            total -= run.size_bytes if reason is None else 0
    return removed, kept


def remove_run(run: StoredRun) -> bool:
    """Removes all of a run; False if it goes on meanwhile, or has ended since it was read.

    Raises:
        InvalidInput: The files cannot be removed.
    """
    if run.journal not in run.paths:
        if run.journal.exists():
            return False
        with writing(run.journal):
            _unlink(run.paths)
        return True
    with _held(run) as is_held:
        if is_held:
            # Drawn after the run's last record, and so perhaps after its files were listed.
            drawn = [run.journal.with_suffix(ending) for ending, _ in TIMELINES.values()]
            with writing(run.journal):
                # The journal first: without it the run is gone, as a whole. What a kill leaves of
                # the others is a run without a journal, and goes as such.
                _unlink([run.journal, *run.paths, *drawn])
        return is_held


def can_pack(run: StoredRun) -> bool:
    """Whether a run ended, and one of its journals is not packed."""
    is_ended = run.is_readable and run.final not in {"GOING", "KILLED"}
    try:
        return is_ended and any(not is_packed(path) for path in run.journals)
    except OSError:
        return False  # just removed


def pack_run(run: StoredRun) -> int | None:
    """Packs a run's journals with gzip, each as a whole; its bytes then. None if it goes on.

    Raises:
        InvalidInput: A journal cannot be written.
    """
    with _held(run) as is_held:
        if not is_held:
            return None
        for path in run.paths:
            if path.match(f".*{JOURNAL_SUFFIX}.*.partial"):
                path.unlink(missing_ok=True)  # of a kill
        # A further part gets a file of its own, so that a packed run is resumed like any other.
        for path in run.journals:
            if is_packed(path):
                continue
            stat = path.stat()
            with writing(path), path.open("rb") as plain, whole_file(path) as file:
                with gzip.GzipFile("", "wb", 6, file) as packed:
                    shutil.copyfileobj(plain, packed, 1 << 20)
                file.flush()
                os.fsync(file.fileno())
                # The times stay, since a run's age is counted from them.
                os.utime(file.fileno(), ns=(stat.st_atime_ns, stat.st_mtime_ns))
        return sum(path.lstat().st_size for path in run.paths if path.exists())


def note_pruned(directory: Path, lines: Iterable[AuditLine]) -> None:
    """Takes runs out of the list; the audit log keeps what it says of them."""
    for line in lines:
        entry = {"run_id": line.run_id, "timestamp": line.timestamp, "final": PRUNED}
        append_line(directory / AUDIT_LOG, dump_json(entry) + b"\n")


def _files_by_run(directory: Path) -> dict[str, list[Path]]:
    files: defaultdict[str, list[Path]] = defaultdict(list)
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        run_id, dot, _ = path.name.removeprefix(".").partition(".")
        if dot and not (path.is_dir() and not path.is_symlink()):
            files[run_id].append(path)
    return files


def _why_kept(run: StoredRun, keep: Collection[Keep]) -> tuple[KeptBecause | None, str | None]:
    """Why a run stays, and the file for whose sake it does."""
    if run.final == "GOING" or (run.final is None and time.time() - run.changed_s < _JUST_S):
        return "going", None
    try:
        state = _batch_state(run)
    except (OSError, ValueError):
        if run.is_readable:
            return "cannot be read", None
        state = ""
    if _is_needed(state, run.run_id):
        return "batch", state
    final = run.final or "KILLED"  # for all that is known
    ending = next((name for name in keep if final in ENDS[name]), None)
    return (ending if run.is_readable or ending is None else "cannot be read"), None


def _batch_state(run: StoredRun) -> str | None:
    """The file that names the run for its batch; empty if it needs none, None if unknown."""
    for path in reversed(run.journals):
        with open_journal(path) as file:
            for line in file:
                if line.startswith(line_start(Instant)) and line.endswith(b"\n"):
                    begun = PipelineEvent.of(decode(line))
                    if begun is not None:
                        return begun.batch_state if begun.is_batch else ""
    return ""


def _is_needed(state: str | None, run_id: str) -> bool:
    if not state:
        return state is None
    path = Path(path_in_locale(state))
    try:
        return bool(orjson.loads(path.read_bytes())["run"] == run_id)
    except FileNotFoundError:
        return not path.parent.is_dir()  # it may be on another machine
    except (OSError, ValueError, KeyError, TypeError):
        return True


@contextmanager
def _held(run: StoredRun) -> Iterator[bool]:
    """Holds a run; False if it is going, gone, has another end than was read, or has no lock."""
    try:
        lock = RunLock(run.journal)
    except (InvalidInput, OSError):
        yield False
        return
    try:
        last = part_of(run.journals[-1], run.journal) or 0
        changed_s = max((p.lstat().st_mtime for p in run.journals if p.exists()), default=0.0)
        is_same = changed_s == run.changed_s and not part_path(run.journal, last + 1).exists()
        yield lock.is_certain and is_same
    finally:
        lock.release()


def _unlink(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
