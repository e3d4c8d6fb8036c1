"""The slow work of a memory store, in a thread of its own."""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable
from contextvars import copy_context
from threading import Event, Lock, Thread

from harness.errors import message_of
from harness.log import log_warning

# How long closing, and the interpreter's end, wait for the thread.
_CLOSING_WAIT_S = 5.0

# After a failure, such as an unreachable embedder, until the next attempt.
_PAUSE_S = 30.0


class Upkeep:
    """Runs the slow work of a store in a thread of its own, while searches go on.

    `work` returns when nothing is left to do, or soon after the event is set.
    """

    def __init__(self, work: Callable[[Event], None]) -> None:
        self._work = work
        self._stop = Event()
        self._starting = Lock()
        self._thread: Thread | None = None
        self._earliest_start_s = 0.0  # by the monotonic clock

    def start(self) -> bool:
        """Starts the work, unless it failed a moment ago; returns whether it is under way."""
        with self._starting:
            if self._stop.is_set():
                return False
            if self._thread is not None and self._thread.is_alive():
                return True
            if time.monotonic() < self._earliest_start_s:
                return False
            # A daemon, so that the interpreter's end does not wait for it: embedding everything
            # may take minutes, and can go on another time.
            self._thread = Thread(
                target=copy_context().run, args=(self._run,), name="memory upkeep", daemon=True
            )
            # At the interpreter's end a daemon is cut off wherever it is; this lets the batch that
            # is under way end before.
            atexit.register(self.close)
            self._thread.start()
            return True

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits for the end of the work under way; False if it takes longer than `timeout_s`."""
        thread = self._thread
        if thread is None:
            return True
        thread.join(timeout_s)
        return not thread.is_alive()

    def close(self) -> None:
        """Stops the work as soon as possible; no finished work is lost."""
        with self._starting:
            self._stop.set()
        self.wait(_CLOSING_WAIT_S)

    def _run(self) -> None:
        try:
            self._work(self._stop)
        except Exception as error:  # noqa: BLE001 - an embedder may raise any
            # An error after closing is a consequence of closing.
            if not self._stop.is_set():
                self._earliest_start_s = time.monotonic() + _PAUSE_S
                log_warning(
                    "the memory store's upkeep stopped",
                    code="memory.upkeep-stopped",
                    error=type(error).__name__,
                    reason=message_of(error),
                )
        finally:
            # Otherwise `atexit` would keep the store in memory until the interpreter's end.
            atexit.unregister(self.close)
