"""Which run is meant: a name as people give it, and the journal it stands for."""

from __future__ import annotations

from pathlib import Path

from harness.errors import InvalidInput, did_you_mean
from harness.trace import AUDIT_LOG

LATEST = "latest"


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


def find_journal(run: str, directory: Path) -> Path:
    """The journal of a run.

    Args:
        run: `latest`; a run's id, or the beginning or the end of it; or a file of the run.
        directory: Where runs land.

    Raises:
        InvalidInput: There is no such run, or more than one could be meant.
    """
    path = Path(run)
    if path.suffix and path.exists():
        journal = path.with_suffix(".jsonl")
        if not journal.is_file():
            raise InvalidInput(f"the run's journal, {journal.name}, is not beside it", path=path)
        return journal
    journals = {found.stem: found for found in sorted(directory.glob("*.jsonl")) if _is_run(found)}
    if not journals:
        raise InvalidInput(
            f"there are no runs in '{directory}'; name a journal's file, or run something first: "
            "harness run …"
        )
    if run == LATEST:
        # Ids begin with the time, but a directory may hold journals of other names.
        return max(journals.values(), key=lambda found: (found.stat().st_mtime_ns, found.name))
    meant = [name for name in journals if name.startswith(run) or name.endswith(run)]
    if len(meant) > 1 and run not in meant:
        raise InvalidInput(f"'{run}' could be any of {', '.join(meant[:5])}; give more of the id")
    if not meant:
        raise InvalidInput(f"there is no run '{run}' in '{directory}'; {_near(run, journals)}")
    return journals[run if run in meant else meant[0]]


def _near(run: str, journals: dict[str, Path]) -> str:
    latest = list(journals)[-3:]
    return did_you_mean(run, latest) + " (the latest; see harness runs)"


def _is_run(path: Path) -> bool:
    # The audit log lies there too, and the files of processes that joined a run.
    return path.name != AUDIT_LOG and "." not in path.stem
