"""Synchronous entry points: run a coroutine to its end in an event loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future, wait
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import wraps
from threading import Thread
from typing import Any, Generic, ParamSpec, TypeVar

from harness.errors import InvalidInput

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")

# Seconds that cancelled tasks may take to end after the main coroutine.
_GRACE_S = 1.0


def refuse_running_loop(instead: str) -> None:
    """Refuses a synchronous call in a running event loop; `instead` is what to write there."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise InvalidInput(
        f"an event loop is running here already, as in a notebook; write {instead} instead",
        code="pipeline.event-loop-running",
    )


def in_own_loop(function: Callable[P, Coroutine[Any, Any, T]], *, instead: str) -> Callable[P, T]:
    """A synchronous form of an async function; for `instead`, see `refuse_running_loop`."""

    @wraps(function, assigned=("__doc__", "__module__"))
    def run(*args: P.args, **options: P.kwargs) -> T:
        refuse_running_loop(instead)
        return run_to_its_end(function(*args, **options))

    return run


def run_to_its_end(main: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine like `asyncio.run`; Ctrl-C cancels it."""
    runner = asyncio.Runner()
    task: asyncio.Task[T] | None = None

    async def watched() -> T:
        nonlocal task
        task = asyncio.current_task()
        return await main

    try:
        return runner.run(watched())
    except KeyboardInterrupt:
        # A process that was started with Ctrl-C ignored, as in the background of a shell, gets no
        # handler from the runner. Ctrl-C then interrupts the loop, and leaves the task uncancelled.
        if task is not None and not task.done() and not task.cancelling():
            task.cancel()
            with suppress(asyncio.CancelledError):
                runner.get_loop().run_until_complete(task)
        raise
    finally:
        # Unlike in `asyncio.run`, a task that ignores its cancellation does not delay the return:
        # the run has already warned of such a node and abandoned it.
        _close(runner)


@contextmanager
def in_background(opening: AbstractAsyncContextManager[T]) -> Iterator[Background[T]]:
    """Opens a context in an event loop of a thread of its own, for code without a loop."""
    begun = Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]()
    opened = Future[T]()
    closed = Future[None]()

    async def serve() -> None:
        over = asyncio.Event()
        begun.set_result((asyncio.get_running_loop(), over))
        async with opening as served:
            opened.set_result(served)
            await over.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            if not begun.done():  # no loop could be made
                begun.set_exception(error)
            (closed if opened.done() else opened).set_exception(error)
        else:
            closed.set_result(None)

    # With a copy of the context, the thread's work belongs to the caller's span, and its warnings
    # to the caller's run.
    thread = Thread(target=copy_context().run, args=(run,), name="harness loop", daemon=True)
    thread.start()
    loop, over = begun.result()
    try:
        yield Background(served=opened.result(), loop=loop, thread=thread)
    finally:
        with suppress(RuntimeError):  # it has ended by itself
            loop.call_soon_threadsafe(over.set)
        thread.join()
    closed.result()


@dataclass(frozen=True, slots=True, kw_only=True)
class Background(Generic[T]):
    """An object that is open in the event loop of another thread."""

    served: T
    loop: asyncio.AbstractEventLoop
    thread: Thread

    def result_of(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Runs a coroutine in the other thread, and waits for its result; Ctrl-C cancels it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            while not wait([future], timeout=1.0).done:
                # A coroutine that came after the loop's last turn never begins.
                if not self.thread.is_alive():
                    raise CancelledError
            return future.result()
        except BaseException:
            future.cancel()
            raise


def _close(runner: asyncio.Runner) -> None:
    """Closes a runner, but waits for its tasks only `_GRACE_S`."""
    loop = runner.get_loop()
    pending = asyncio.all_tasks(loop)
    for task in pending:
        task.cancel()
    if pending:
        _, pending = loop.run_until_complete(asyncio.wait(pending, timeout=_GRACE_S))
    if not pending:
        runner.close()
        return
    # `runner.close` would wait for these tasks for ever. Destroying pending tasks is intended here,
    # so the loop's complaint about it is dropped.
    loop.set_exception_handler(lambda _loop, _context: None)
    asyncio.set_event_loop(None)
    loop.close()
