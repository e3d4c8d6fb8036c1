"""Hosts: what can bring one model into memory, and take it out again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """What a host says about its model."""

    resident: bool
    """Whether it is in memory, so that a call to it loads nothing."""
    total_bytes: int | None = None
    """What it takes, on all devices together; None where the host does not tell."""
    gpu_bytes: int | None = None
    """How much of that is on GPUs; None where the host does not tell."""


class Host(Protocol):
    """One model, and the server or the engine that it is loaded by.

    A load or an unload ends within the endpoint's `load_timeout_s` and the seconds that clearing
    up may take; one of an engine in this process ends when it ends. How long to wait for a report
    is for its caller to say. None of the three is called while another of the same host is under
    way; any may be while calls are answered.
    """

    async def load(self) -> None:
        """Makes the model resident; returns when calls can begin.

        When it raises or is cancelled, nothing stays in memory that was not there before.

        Raises:
            ModelFileInvalid: Its file cannot be loaded.
            LoadFailed: The server cannot load it, or not in time.
            InferenceError: The server cannot be asked.
        """
        ...

    async def unload(self) -> None:
        """Gives its memory back, and returns when it is back; never loads anything.

        One that is not in memory, whatever the reason, is none the worse.

        Raises:
            LoadFailed: The server keeps it.
            InferenceError: The server cannot be asked.
        """
        ...

    async def report(self) -> HostReport | None:
        """How things are now, by the host's own word; None where it has none.

        Raises:
            InferenceError: The server cannot be asked.
        """
        ...

    async def aclose(self) -> None:
        """Closes its connections; the model stays where it is."""
        ...
