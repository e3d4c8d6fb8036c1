"""Where a node's function runs. The runner knows this protocol, and nothing of what is behind it.

What goes to an executor and what comes back are values: a call may be made in another process, or
on another machine, and the run would not notice.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any, NamedTuple, Protocol


class Work(NamedTuple):
    """One call of a node's function."""

    label: str
    """Whose: `findings[2]`."""
    function: Callable[..., Any]
    """Plain or async; for `stream`, an async generator function."""
    arguments: Mapping[str, Any]
    """By name, the run's handle (`run`) among them if the function asks for it."""


class Executor(Protocol):
    """Makes calls."""

    async def call(self, work: Work) -> object:
        """What the function returns; raises what it raises. A cancelled call ends soon."""
        ...

    def stream(self, work: Work) -> AsyncGenerator[object, None]:
        """What an async generator function yields; when this is closed, so is that."""
        ...


class InProcess:
    """Async functions run on the event loop, plain ones each in a thread of its own.

    A thread cannot be cancelled: what it returns after that is dropped. Such threads do not keep
    the interpreter from ending.
    """

    async def call(self, work: Work) -> object:
        """See `Executor.call`."""
        if _is_async(work.function):
            return await work.function(**work.arguments)
        value = await _in_thread(work)
        # A decorator may hide that the function under it is async.
        return await value if inspect.isawaitable(value) else value

    async def stream(self, work: Work) -> AsyncGenerator[object, None]:
        """See `Executor.stream`."""
        async with aclosing(work.function(**work.arguments)) as items:
            async for item in items:
                yield item


def _is_async(function: Callable[..., Any]) -> bool:
    """As `inspect.iscoroutinefunction`, which is slow, and this is asked for every call."""
    code = getattr(function, "__code__", None)
    is_plainly = code is not None and code.co_flags & inspect.CO_COROUTINE
    return bool(is_plainly) or inspect.iscoroutinefunction(function)


async def _in_thread(work: Work) -> Any:  # noqa: ANN401 - whatever the function returns
    """Calls a plain function in a new thread.

    Not `asyncio.to_thread`: the event loop waits at its end for that one's threads, however long
    they hang.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: object, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(value)

    def run() -> None:
        value, failure = None, None
        try:
            value = context.run(work.function, **work.arguments)
        except BaseException as error:  # noqa: BLE001 - handed to whoever awaits it
            # A future takes no StopIteration; from a coroutine it would be this error as well.
            failure = RuntimeError(str(error)) if isinstance(error, StopIteration) else error
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, value, failure)

    threading.Thread(target=run, name=f"node {work.label}", daemon=True).start()
    return await done
