"""An event loop whose clock stands still while there is work, and jumps when all of it waits.

For tests of what happens when, to the tick and without sleeping. It knows timers, and threads that
end when their work does: no time passes while one lives that was started since the loop was made.
(Those of `asyncio.to_thread` live on, and so are refused.) Nobody can say how long a socket or a
pipe takes: to wait for one while a timer is set is refused too.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE_S = 30.0
"""How long, of real time, nothing at all may happen."""
_GLANCE_S = 0.001
"""How long to wait for a thread before looking whether it has ended without a word."""


def run(main: Coroutine[Any, Any, T], *, patience_s: float = PATIENCE_S) -> T:
    """As `asyncio.run`, in virtual time, which begins at 0.

    Raises:
        RuntimeError: Nothing happens any more, or the loop waits for a socket or a pipe.
    """
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(patience_s=patience_s)) as runner:
        return runner.run(main)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """See the module.

    Args:
        patience_s: See `PATIENCE_S`.
    """

    def __init__(self, *, patience_s: float = PATIENCE_S) -> None:
        self._now_s = 0.0
        self._older = set(threading.enumerate())
        self.patience_s = patience_s
        super().__init__(_Jumping(self))

    def time(self) -> float:
        return self._now_s

    def jump(self, seconds: float) -> None:
        self._now_s += seconds

    @property
    def has_threads(self) -> bool:
        return not self._older.issuperset(threading.enumerate())


class _Jumping(selectors.DefaultSelector):
    """Where the loop goes to sleep, for as long as until its next timer."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        give_up_at = time.monotonic() + self._loop.patience_s
        while timeout is None or self._loop.has_threads:
            ready = super().select(_GLANCE_S)
            if ready:
                return ready
            if time.monotonic() > give_up_at:
                raise RuntimeError(f"nothing has happened for {self._loop.patience_s:g} s")
        if len(self.get_map()) > 1:  # the first is how threads wake the loop up
            raise RuntimeError("the loop waits for a socket or a pipe, which know no virtual time")
        self._loop.jump(timeout)
        return []
