"""The slow work of a store, in a thread of its own, while searches go on."""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable
from contextvars import copy_context
from threading import Event, Lock, Thread

from harness.errors import message_of
from harness.log import log_warning

_LAST_WORDS_S = 5.0
"""How long closing, and the interpreter's end, wait for the thread."""

_PAUSE_S = 30.0
"""After what failed, such as an embedder that cannot be reached, until it is tried again."""


class Upkeep:
    """Does what is to be done, whenever there is something, one thing at a time.

    Args:
        work: Does all that is to be done, or what can be until the event is set. What it raises
            ends it for a while, and is a warning: searches go on without it.
    """

    def __init__(self, work: Callable[[Event], None]) -> None:
        self._work = work
        self._stop = Event()
        self._starting = Lock()
        self._thread: Thread | None = None
        self._not_before = 0.0

    def start(self) -> None:
        """Sees to it that the work is going on, unless it failed a moment ago."""
        with self._starting:
            if self._stop.is_set() or (self._thread is not None and self._thread.is_alive()):
                return
            if time.monotonic() < self._not_before:
                return
            # No thread that the interpreter's end would wait for: to embed everything anew may
            # take minutes, and can go on another time.
            self._thread = Thread(
                target=copy_context().run, args=(self._run,), name="memory upkeep", daemon=True
            )
            atexit.register(self.close)
            self._thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits for the end of what is going on; False when it takes longer than that."""
        thread = self._thread
        if thread is None:
            return True
        thread.join(timeout_s)
        return not thread.is_alive()

    def close(self) -> None:
        """Stops it as soon as it can be; nothing that was finished is lost."""
        with self._starting:
            self._stop.set()
        self.wait(_LAST_WORDS_S)

    def _run(self) -> None:
        try:
            self._work(self._stop)
        except Exception as error:  # noqa: BLE001 - an embedder's may be any
            # What is closed under work that would not end is no fault of that work.
            if not self._stop.is_set():
                self._not_before = time.monotonic() + _PAUSE_S
                log_warning(
                    "the memory store's upkeep stopped",
                    code="memory.upkeep-stopped",
                    error=type(error).__name__,
                    reason=message_of(error),
                )
        finally:
            # Or else it would keep the store in memory to the end.
            atexit.unregister(self.close)
