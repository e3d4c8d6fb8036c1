"""What an exporter is: an object of the entry points `harness.exporters`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from harness.trace.journal_reader import Journal


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportTarget:
    """Where an export goes, as the options of `harness trace export` say."""

    output: Path | None = None
    """The file to write."""
    endpoint: str | None = None
    """The address to send to."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """HTTP headers for it, such as a key."""
    content: bool = False
    """Whether prompts, replies and drafts may go out; without it, an exporter leaves them out."""


class Exporter(Protocol):
    """Writes a run in a format, or sends it somewhere."""

    def __call__(self, journal: Journal, target: ExportTarget) -> str:
        """Exports a run; it may still be going.

        Returns:
            What was done, for the user: the file's name, or how much was sent where.

        Raises:
            InvalidInput: Something in the target is missing, or not for this exporter.
            ExportFailed: The address did not take it.
            OSError: The file could not be written; its path and reason are told.
        """
        ...
