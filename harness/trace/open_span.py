"""What was still under way when a run's record stopped."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSpan:
    """A span without an end: the run was killed, is still going, or a thread outlived it."""

    name: str
    """The span's fixed phrase."""
    title: str
    """As in the timeline."""
    start_ns: int
    """When it began, from the run's start."""
    open_ns: int
    """How long it had taken by the last record."""
