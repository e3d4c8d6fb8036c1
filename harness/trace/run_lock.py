"""Who has a run: while it goes on, nobody else may resume it."""

from __future__ import annotations

import fcntl
import os
from functools import cache
from pathlib import Path
from weakref import WeakSet

from harness.errors import InvalidInput
from harness.log import log_warning

_held: WeakSet[RunLock] = WeakSet()


class RunLock:
    """Holds a run until it is released, or its process has ended in whatever way.

    It is a lock on the journal's file (`man 2 flock`) that keeps nobody from reading or writing.
    Where files cannot be locked, as in some network directories, the run goes on without.

    Args:
        journal: The run's journal.

    Raises:
        InvalidInput: Another process, or another part of this one, has the run.
        OSError: The journal cannot be opened.
    """

    def __init__(self, journal: Path) -> None:
        # For writing, although nothing is written: over NFS, no other file can be locked.
        self._descriptor: int | None = os.open(journal, os.O_RDWR)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.release()
            raise InvalidInput(
                "the run is still going, in another process; resume it when that has ended",
                code="run.still-going",
                path=journal,
            ) from error
        except OSError as error:
            log_warning(
                "the run cannot be kept from being resumed while it goes on",
                code="trace.lock-refused",
                path=str(journal),
                error=str(error),
            )
        _held.add(self)
        _let_go_in_children()

    def release(self) -> None:
        """Lets the run go."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def is_going(journal: Path) -> bool:
    """Whether somebody has the run."""
    try:
        RunLock(journal).release()
    except InvalidInput:
        return True
    return False


@cache
def _let_go_in_children() -> None:
    """A forked child has the lock too, and might outlive a process that was killed."""
    os.register_at_fork(after_in_child=_release_all)


def _release_all() -> None:
    for lock in _held:
        lock.release()
