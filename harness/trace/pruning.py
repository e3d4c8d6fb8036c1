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
    journals_among,
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
"""Why a run stays. `going`: it is going, or has just ended. `batch`: a batch goes on from it.
`cannot be read`: its journal does not say whether a batch needs it. Others: `Keep`."""

ENDS: dict[Keep, frozenset[str]] = {
    "failed": frozenset({"FAIL", "ERROR", "KILLED"}),
    "unfinished": frozenset({"STOPPED", "WAITING", "INTERRUPTED", "KILLED"}),
}

_ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{12}")
# For so long after its end, a run may still get its line in the audit log.
_JUST_ENDED_S = 60.0


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

    @property
    def run_id(self) -> str:
        """Its name."""
        return self.journal.stem

    @property
    def journals(self) -> list[Path]:
        """Its journal, and those of further parts."""
        return journals_among(self.paths, self.journal)


def stored_runs(
    directory: Path, listed: Iterable[AuditLine], *, keep: Collection[Keep]
) -> Iterator[StoredRun]:
    """The runs of a directory that have their names from harness; `listed` by `list_runs`."""
    finals = {line.run_id: line.final for line in listed}
    for run_id, paths in _files_by_run(directory).items():
        # A file without a name as runs have it is a user's.
        if not _ID.fullmatch(run_id):
            continue
        try:
            stats = {path: path.lstat() for path in paths}
        except OSError:
            continue  # It was just removed.
        journal = directory / f"{run_id}{JOURNAL_SUFFIX}"
        dated_paths = journals_among(paths, journal) or paths
        run = StoredRun(
            journal=journal,
            final=finals.get(run_id),
            paths=tuple(paths),
            size_bytes=sum(stat.st_size for stat in stats.values()),
            changed_s=max(stats[path].st_mtime for path in dated_paths),
        )
        kept, state = _why_kept(run, keep)
        yield replace(run, kept=kept, batch_state=state)


def runs_to_remove(
    runs: Sequence[StoredRun], *, older_s: float | None, size_bytes: int | None, now_s: float
) -> tuple[list[StoredRun], list[StoredRun]]:
    """Chooses runs that changed longer ago than `older_s`; then the oldest, down to `size_bytes`.

    Returns:
        The runs to remove; and the runs that would go, but have a reason to stay.
    """
    total_bytes = sum(run.size_bytes for run in runs)
    removed: list[StoredRun] = []
    kept: list[StoredRun] = []
    for run in sorted(runs, key=lambda run: run.changed_s):
        is_old = older_s is not None and now_s - run.changed_s > older_s
        if not is_old and (size_bytes is None or total_bytes <= size_bytes):
            continue
        if run.kept is None:
            removed.append(run)
            total_bytes -= run.size_bytes
        else:
            kept.append(run)
    return removed, kept


def remove_run(run: StoredRun) -> bool:
    """Removes all of a run; False if it goes on meanwhile, or has ended since it was read.

    Raises:
        InvalidInput: The files cannot be removed.
    """
    # What is left of a removal that was killed has no journal.
    if run.journal not in run.paths:
        if run.journal.exists():  # since the run was read
            return False
        with writing(run.journal):
            _unlink(run.paths)
        return True
    with _locked(run) as is_unchanged:
        if is_unchanged:
            # Timelines are drawn after the run's last record, perhaps after its files were listed.
            timelines = [run.journal.with_suffix(ending) for ending, _ in TIMELINES.values()]
            with writing(run.journal):
                # The journal first: if the process is killed in between, the remaining files count
                # as a run without a journal, and are removed next time.
                _unlink([run.journal, *run.paths, *timelines])
        return is_unchanged


def can_pack(run: StoredRun) -> bool:
    """Whether a run ended, and one of its journals is not packed."""
    is_ended = run.kept != "cannot be read" and run.final not in {"GOING", "KILLED"}
    try:
        return is_ended and any(not is_packed(path) for path in run.journals)
    except OSError:
        return False  # It was just removed.


def pack_run(run: StoredRun) -> int | None:
    """Packs a run's journals with gzip; returns the bytes of its files then, or None if it goes on.

    Raises:
        InvalidInput: A journal cannot be written.
    """
    with _locked(run) as is_unchanged:
        if not is_unchanged:
            return None
        for path in run.paths:
            # A process that was killed while it packed leaves such a file.
            if path.match(f".*{JOURNAL_SUFFIX}.*.partial"):
                path.unlink(missing_ok=True)
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
    """Why a run stays, and the file of the batch that needs it; None for each if it may go."""
    # What a kill has left of a run.
    if run.journal not in run.paths:
        return None, None
    if run.final == "GOING" or (run.final is None and time.time() - run.changed_s < _JUST_ENDED_S):
        return "going", None
    try:
        state = _batch_state(run)
    except (JournalInvalid, OSError, ValueError):
        return "cannot be read", None
    if _is_needed(state, run.run_id):
        return "batch", state
    # A run without a line in the audit log was probably killed.
    return next((name for name in keep if (run.final or "KILLED") in ENDS[name]), None), None


def _batch_state(run: StoredRun) -> str | None:
    """The file that names the run for its batch; empty if it needs none, None if unknown."""
    beginning_of(run.journal)
    for path in reversed(run.journals):
        with open_journal(path) as file:
            for line in file:
                if line.startswith(line_start(Instant)) and line.endswith(b"\n"):
                    begun = PipelineEvent.of(decode(line))
                    if begun is not None:
                        return begun.batch_state if begun.is_batch else ""
    return ""


def _is_needed(state: str | None, run_id: str) -> bool:
    """Whether a batch goes on from the run, or may; `state` as `_batch_state` returns it."""
    if not state:
        return state is None
    path = Path(path_in_locale(state))
    try:
        return bool(orjson.loads(path.read_bytes())["run"] == run_id)
    except FileNotFoundError:
        # Without its folder, it may be on another machine.
        return not path.parent.is_dir()
    except (OSError, ValueError, KeyError, TypeError):
        return True


@contextmanager
def _locked(run: StoredRun) -> Iterator[bool]:
    """Locks a run; gives False if it cannot be locked, is going or gone, or has changed since."""
    try:
        lock = RunLock(run.journal)
    except (InvalidInput, OSError):
        yield False
        return
    try:
        journals = run.journals
        # To look for its files would take as long as the directory has files, for each run.
        last = max(part_of(path, run.journal) or 0 for path in journals)
        times_s = [path.lstat().st_mtime for path in journals if path.exists()]
        is_whole = len(times_s) == len(journals) and not part_path(run.journal, last + 1).exists()
        yield lock.is_certain and is_whole and max(times_s) == run.changed_s
    finally:
        lock.release()


def _unlink(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
