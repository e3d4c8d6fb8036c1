"""Which run is meant: a name as people give it, and the journal it stands for."""

from __future__ import annotations

import re
from pathlib import Path

from harness.errors import InvalidInput, did_you_mean
from harness.trace import AUDIT_LOG, TIMELINES, RunStarted
from harness.trace.journal_line import decode

LATEST = "latest"

_JOURNAL = ".jsonl"
_JOINED = re.compile(r"(.+)\.\d+-[0-9a-f]+")
"""The stem of a file of a process that joined a run: the run's, its process id, and chance."""


def traces_directory(given: Path | None) -> Path:
    """Where runs land: as given, else as `harness.toml` says.

    Raises:
        ConfigurationInvalid: It cannot be read.
    """
    if given is not None:
        return given
    # Here rather than at the top: it imports all of the engine, which help does not need.
    from harness.session import load_settings  # noqa: PLC0415

    return load_settings(environment={}).traces


def find_journal(run: str, traces: Path | None) -> Path:
    """The journal of a run.

    Args:
        run: `latest`; a run's id, or any part of it; or a file of the run.
        traces: Where runs land; as `harness.toml` says, if None. Not looked at for a file.

    Raises:
        InvalidInput: There is no such run, or more than one could be meant.
        ConfigurationInvalid: `harness.toml` cannot be read.
    """
    path = Path(run)
    # Neither a dot nor a slash is part of an id.
    if path.suffix or len(path.parts) != 1 or run != path.name:
        return _journal_beside(path)
    directory = traces_directory(traces)
    journals = {found.stem: found for found in sorted(directory.glob("*.jsonl")) if _is_run(found)}
    if run == LATEST:
        # Ids begin with the time, but a directory may hold journals of other names.
        by_age = sorted(journals.values(), key=lambda one: (one.stat().st_mtime_ns, one.name))
        journals = {one.stem: one for one in reversed(by_age) if _begins_a_run(one)}
    if not journals:
        raise InvalidInput(
            f"there are no runs in '{directory}'; name a journal's file, or run something first: "
            "harness run …"
        )
    if run == LATEST:
        return next(iter(journals.values()))
    meant = [run] if run in journals else [name for name in journals if run in name]
    if len(meant) > 1:
        raise InvalidInput(f"'{run}' could be any of {', '.join(meant[:5])}; give more of the id")
    if not meant:
        raise InvalidInput(f"there is no run '{run}' in '{directory}'; {_near(run, journals)}")
    return journals[meant[0]]


def _journal_beside(path: Path) -> Path:
    """The journal of the run that a file is of."""
    endings = [ending for ending, _ in TIMELINES.values()]
    if path.is_dir():
        raise InvalidInput(
            f"a directory; name a run in it: latest --traces {path}, or one of its files", path=path
        )
    if not path.exists():
        raise InvalidInput("there is no such file", path=path)
    if path.suffix not in {_JOURNAL, *endings}:
        raise InvalidInput(
            f"not a file of a run; give its journal ({_JOURNAL}) or a timeline "
            f"({', '.join(endings)})",
            path=path,
        )
    joined = _JOINED.fullmatch(path.stem) if path.suffix == _JOURNAL else None
    journal = path.with_name((joined[1] if joined else path.stem) + _JOURNAL)
    if not journal.is_file():
        raise InvalidInput(f"the run's journal, {journal.name}, is not beside it", path=path)
    return journal


def _near(run: str, journals: dict[str, Path]) -> str:
    latest = list(journals)[-3:]
    return did_you_mean(run, latest) + " (the latest; see harness runs)"


def _is_run(path: Path) -> bool:
    # The audit log lies there too, and the files of processes that joined a run.
    return path.name != AUDIT_LOG and "." not in path.stem


def _begins_a_run(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return isinstance(decode(file.readline()), RunStarted)
    except (OSError, ValueError):
        return False
