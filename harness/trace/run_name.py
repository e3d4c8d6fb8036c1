"""Which run is meant: a name as people give it, and the journal it stands for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harness.errors import InvalidInput, did_you_mean
from harness.trace.audit_log import AUDIT_LOG
from harness.trace.journal_line import decode
from harness.trace.journal_reader import JOURNAL_SUFFIX, journal_of, part_of
from harness.trace.records import RunStarted
from harness.trace.run_trace import TIMELINES

LATEST = "latest"


def find_journal(run: str | Path, directory: Callable[[], Path]) -> Path:
    """The journal of a run.

    Args:
        run: `latest`; a run's id, or any part of it; or a file of the run.
        directory: Tells where runs land; not asked for a file.

    Raises:
        InvalidInput: There is no such run, or more than one could be meant.
    """
    path = Path(run)
    # Neither a dot nor a slash is part of an id.
    if isinstance(run, Path) or path.suffix or len(path.parts) != 1 or run != path.name:
        return _journal_beside(path)
    return _journal_named(run, directory())


def _journal_named(run: str, directory: Path) -> Path:
    files = sorted(filter(Path.is_file, directory.glob(f"*{JOURNAL_SUFFIX}")))
    journals = {found.stem: found for found in files if _is_run(found)}
    if run == LATEST:
        # Ids begin with the time, but a directory may hold journals of other names, and a run that
        # began long ago may have been resumed since.
        changed_ns: dict[Path, int] = {}
        for file in files:
            journal = journal_of(file)
            if file == journal or part_of(file, journal) is not None:
                changed_ns[journal] = max(changed_ns.get(journal, 0), file.stat().st_mtime_ns)
        by_age = sorted(journals.values(), key=lambda one: (changed_ns[one], one.name))
        journals = {one.stem: one for one in reversed(by_age) if _begins_a_run(one)}
    if not journals:
        raise InvalidInput(
            f"there are no runs in '{directory}'; name a journal's file, or run something first: "
            "harness run …",
            code="run.none-yet",
        )
    if run == LATEST:
        return next(iter(journals.values()))
    meant = [run] if run in journals else [name for name in journals if run in name]
    if len(meant) > 1:
        raise InvalidInput(
            f"'{run}' could be any of {', '.join(meant[:5])}; give more of the id",
            code="run.ambiguous",
        )
    if not meant:
        raise InvalidInput(
            f"there is no run '{run}' in '{directory}'; {_near(run, journals)}",
            code="run.not-found",
        )
    return journals[meant[0]]


def _journal_beside(path: Path) -> Path:
    """The journal of the run that a file is of."""
    endings = [ending for ending, _ in TIMELINES.values()]
    if path.is_dir():
        raise InvalidInput(
            f"a directory; name a run in it: latest --traces {path}, or one of its files",
            code="run.is-directory",
            path=path,
        )
    if not path.exists():
        raise InvalidInput("there is no such file", code="run.file-missing", path=path)
    if path.suffix not in {JOURNAL_SUFFIX, *endings}:
        raise InvalidInput(
            f"not a file of a run; give its journal ({JOURNAL_SUFFIX}) or a timeline "
            f"({', '.join(endings)})",
            code="run.not-its-file",
            path=path,
        )
    journal = journal_of(path.with_suffix(JOURNAL_SUFFIX))
    if not journal.is_file():
        raise InvalidInput(
            f"the run's journal, {journal.name}, is not beside it",
            code="run.journal-missing",
            path=path,
        )
    return journal


def _near(run: str, journals: dict[str, Path]) -> str:
    latest = list(journals)[-3:]
    return did_you_mean(run, latest) + " (the latest; see harness runs)"


def _is_run(path: Path) -> bool:
    # The audit log lies there too, and further files of a run: its parts, and of processes that
    # joined it.
    return path.name != AUDIT_LOG and "." not in path.stem


def _begins_a_run(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return isinstance(decode(file.readline()), RunStarted)
    except (OSError, ValueError):
        return False
