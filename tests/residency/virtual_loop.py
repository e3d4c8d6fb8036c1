"""An event loop in which no time passes but by the clock, which goes from timer to timer."""

import asyncio
import functools
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar

T = TypeVar("T")
MOST_STEPS = 200_000
"""Of the loop, before it is taken for endless."""


class Stuck(AssertionError):
    """Nothing will ever happen again, and somebody waits."""


class Endless(AssertionError):
    """It does not come to an end."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """Jumps to the next timer as soon as there is nothing to do.

    What would run in a thread runs in the loop, after `thread_s`.
    """

    def __init__(self) -> None:
        self.thread_s: Callable[[], float] = lambda: 0.0
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._jumping.now_s

    def run_in_executor(  # type: ignore[override]
        self,
        executor: Executor | None,  # noqa: ARG002 - no thread is wanted
        func: Callable[..., T],
        *args: Any,
    ) -> Awaitable[T]:
        future: asyncio.Future[T] = self.create_future()

        def run() -> None:
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001 - whoever waits is told
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_later(self.thread_s(), run)
        return future


class _Jumping(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self._steps_left = MOST_STEPS

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise Stuck("everybody waits for somebody else")
        self._steps_left -= 1
        if self._steps_left < 0:
            self._steps_left = MOST_STEPS  # to clear up
            raise Endless(f"it goes on and on, {self.now_s:.3f} s after it began")
        self.now_s += max(timeout, 0.0)
        return super().select(0)


def run_virtually(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs it in a `VirtualLoop` of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


def virtually(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Makes a test of a coroutine, which has such a loop for itself."""

    @functools.wraps(test)
    def run(*args: Any, **how: Any) -> None:
        run_virtually(lambda: test(*args, **how))

    return run
