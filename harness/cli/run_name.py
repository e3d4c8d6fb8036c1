"""Which run is meant: a name as people give it, and the journal it stands for."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from harness.trace import run_name

LATEST = run_name.LATEST


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
    return run_name.find_journal(run, partial(traces_directory, traces))
