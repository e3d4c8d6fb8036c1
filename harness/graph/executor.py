"""Where a node's function runs, and how long it may take.

The rest of the graph knows only the protocol `Executor`. Its arguments and results are values, so
a call can be made in another process or on another machine. `timed` ends an attempt at its time
limits, using the signs of life in its `Pulse`; `leave_behind` abandons a call that ignores its
cancellation.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import math
import threading
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress
from typing import Any, Literal, NamedTuple, Protocol

from harness.errors import NodeTimedOut
from harness.graph.policies import Resources, Timeout
from harness.log import log_debug, log_warning
from harness.plugins import plugin_names
from harness.trace import ContentPolicy, Tracer, describe

GRACE_S = 1.0  # seconds that a cancelled call may take to end before it is abandoned

LOCAL = "local"  # the address of workers that are started here, for one run


class Work(NamedTuple):
    """One call of a node's function."""

    label: str
    function: Callable[..., Any]  # plain or async
    arguments: Mapping[str, Any]  # by name, with `run` if the function asks for it
    on: Resources | None = None
    handle: Handle | None = None  # the call's `run` works through it


class Handle(Protocol):
    """A call, as its executor sees it."""

    pulse: Pulse

    def begin_again(self) -> None:
        """Prepares for making the call once more, since what it did is lost."""


class Executor(Protocol):
    """Makes calls."""

    async def call(self, work: Work) -> object:
        """Calls the function; returns what it returns, and raises what it raises.

        If this is cancelled, it must end soon.
        """


class OpenExecutor(Protocol):
    """Opens an executor for one run: an object of the entry points `harness.executors`."""

    def __call__(
        self,
        address: str | None,
        *,
        tracer: Tracer,
        content: ContentPolicy,
        give_again: Callable[[str], None],
    ) -> AbstractAsyncContextManager[Executor]:
        """Opens an executor whose calls the run's tracer records.

        `address` is that of its workers: `[execution] address`, `LOCAL`, or None if not given.
        `content` is what workers record of texts. Before a call is repeated, since its worker was
        lost, `give_again` gets its label: the repeated call finds the replies that it had.
        """


class InProcess:
    """Async functions run on the event loop, each plain one in a thread of its own."""

    def __init__(self) -> None:
        self._has_warned = False

    async def call(self, work: Work) -> object:
        """See `Executor.call`."""
        if work.on is not None and not self._has_warned:
            self._has_warned = True
            names = ", ".join(plugin_names("executors"))
            log_warning(
                "no workers are configured, so a node that asks for one runs in this process; give "
                f"--on NAME, or engine under [execution] ({names})",
                code="run.no-workers",
                node=work.label,
            )
        if inspect.iscoroutinefunction(work.function):
            return await work.function(**work.arguments)
        value = await _call_in_thread(work)
        # A decorator may hide that the function under it is async.
        return await value if inspect.isawaitable(value) else value


class OnDemand(InProcess):
    """Opens an executor when the first call asks for a worker; makes all other calls here."""

    def __init__(self, workers: AbstractAsyncContextManager[Executor]) -> None:
        super().__init__()
        self._workers = workers
        self._opening: asyncio.Task[Executor] | None = None

    async def opened(self) -> Executor:
        """Opens the executor once: all calls wait for that opening, and raise what it raises."""
        if self._opening is None:
            # A task of its own, since the call that asks first may be cancelled. `aclose` leaves
            # the context manager again.
            self._opening = asyncio.ensure_future(self._workers.__aenter__())
        return await asyncio.shield(self._opening)

    async def aclose(self) -> None:
        """Closes the executor, or cancels its opening."""
        if self._opening is None:
            return
        self._opening.cancel()
        await asyncio.wait({self._opening})
        if not self._opening.cancelled() and self._opening.exception() is None:
            await self._workers.__aexit__(None, None, None)

    async def call(self, work: Work) -> object:
        """See `Executor.call`."""
        if work.on is None:
            return await super().call(work)
        return await (await self.opened()).call(work)


async def _call_in_thread(work: Work) -> Any:  # noqa: ANN401 - whatever the function returns
    result = Future[Any]()
    context = contextvars.copy_context()

    def run() -> None:
        # A thread cannot be cancelled. If the call was, `result` takes no value any more, and what
        # the thread returns later is dropped.
        with suppress(InvalidStateError):
            try:
                result.set_result(context.run(work.function, **work.arguments))
            except (StopIteration, GeneratorExit) as error:
                # A future takes no StopIteration, and GeneratorExit closes all who await it.
                result.set_exception(as_runtime_error(error))
            except BaseException as error:  # noqa: BLE001 - handed to the awaiting task
                result.set_exception(error)

    # Not by `asyncio.to_thread`: at its end, the event loop would wait for such threads, however
    # long they hang.
    threading.Thread(target=run, name=f"node {work.label}", daemon=True).start()
    return await asyncio.wrap_future(result)


def as_runtime_error(error: BaseException) -> RuntimeError:
    """An error in the place of one that has a meaning to Python, such as StopIteration."""
    stand_in = RuntimeError(f"it raised {describe(error)}").with_traceback(error.__traceback__)
    stand_in.__cause__ = error
    return stand_in


_POLL_S = 0.1  # how often it is looked whether a person has answered


async def timed(
    attempt: Coroutine[Any, Any, object], limits: Timeout, *, pulse: Pulse, label: str
) -> object:
    """Awaits an attempt, and returns its result.

    At a limit it ends the attempt, or abandons it, and raises `NodeTimedOut`.
    """
    # A task of its own, since only a task can be left behind.
    task = asyncio.get_running_loop().create_task(_result_or_exit(attempt))
    try:
        limit = await _wait_until_limit(limits, task, pulse)
    except asyncio.CancelledError:
        await end([task], label=label)
        raise
    except LeftBehind:
        leave_behind(task, label=label)
        raise
    if limit is None:
        result = task.result()
        if isinstance(result, SystemExit):
            raise result
        return result
    await end([task], label=label)
    if limit == "total_s":
        raise NodeTimedOut(f"took longer than total_s = {limits.total_s:g} s", limit="total_s")
    raise NodeTimedOut(f"showed no sign of life for idle_s = {limits.idle_s:g} s", limit="idle_s")


async def _result_or_exit(attempt: Coroutine[Any, Any, object]) -> object:
    # SystemExit is returned: raised by a task, it would break off the loop and all other calls.
    try:
        return await attempt
    except SystemExit as error:
        return error


async def _wait_until_limit(
    limits: Timeout, task: asyncio.Task[object], pulse: Pulse
) -> Literal["total_s", "idle_s"] | None:
    """Waits for an attempt; returns the limit that it reaches, or None when it has ended."""
    now_s = asyncio.get_running_loop().time
    pulse.beat()
    # `asked_s` is added to this again below, with the waits for a person in earlier attempts.
    start_s = now_s() - pulse.asked_s
    is_over = False
    while True:
        total_left_s = start_s + pulse.asked_s + (limits.total_s or math.inf) - now_s()
        idle_left_s = pulse.alive_s + (limits.idle_s or math.inf) - now_s()
        remaining_s = min(total_left_s, idle_left_s)
        if is_over and remaining_s <= 0:
            return "total_s" if total_left_s <= idle_left_s else "idle_s"
        # Another call may have held up the event loop: the attempt gets a turn, as a last chance
        # to end or to show a sign of life.
        is_over = remaining_s <= 0
        if pulse.is_asking:
            # While a person thinks, the limit moves on with the clock. Near the limit, waiting for
            # the little that remains would turn this loop without a pause.
            remaining_s = max(remaining_s, _POLL_S)
        await asyncio.wait({task}, timeout=None if remaining_s == math.inf else remaining_s)
        if task.done():
            return None


async def end(tasks: Collection[asyncio.Task[Any]], *, label: str) -> None:
    """Cancels tasks of a call, and abandons those that go on after a grace period."""
    for task in tasks:
        task.cancel()
    try:
        if tasks:
            await asyncio.wait(tasks, timeout=GRACE_S)
    finally:
        for task in tasks:
            leave_behind(task, label=label)


Doing = Literal["rest", "call", "sent", "ask"]
"""An activity of a call. `rest`: it may wait without signs of life. `call`: it calls a model, and
waits in a local queue until a request reaches a server: `sent`. `ask`: it waits for a person, which
does not count as its own time."""


class Pulse:
    """The signs of life of one call of a node, which count for the calls around it too."""

    def __init__(self, around: Pulse | None = None) -> None:
        self._around = around
        # Taken here, since a plain function beats from its thread, where no loop is running.
        self._now_s = asyncio.get_running_loop().time
        self._beat_s = self._now_s()
        self._activities = Counter[Doing]()  # how often each is under way now
        self._asking_since_s = 0.0
        self._asked_before_s = 0.0  # the length of all waits for a person that are over

    def beat(self) -> None:
        """A sign of life."""
        self._beat_s = self._now_s()
        if self._around is not None:
            self._around.beat()

    @contextmanager
    def doing(self, what: Doing) -> Iterator[None]:
        """Marks this activity of the call inside the block."""
        if what == "ask" and not self._activities["ask"]:
            self._asking_since_s = self._now_s()
        self._activities[what] += 1
        self._beat_s = self._now_s()
        try:
            # The calls around it wait for it, so their limits hold still as well.
            with nullcontext() if self._around is None else self._around.doing(what):
                yield
        finally:
            self._activities[what] -= 1
            self._beat_s = self._now_s()
            if what == "ask" and not self._activities["ask"]:
                self._asked_before_s += self._beat_s - self._asking_since_s

    @property
    def alive_s(self) -> float:
        """The last certain sign of life, by the loop's clock."""
        now = self._activities
        waits = now["ask"] or now["rest"] or (now["call"] and not now["sent"])
        return self._now_s() if waits else self._beat_s

    @property
    def is_asking(self) -> bool:
        """Whether it waits for a person."""
        return self._activities["ask"] > 0

    @property
    def asked_s(self) -> float:
        """How long it has waited for a person, in seconds."""
        if not self.is_asking:
            return self._asked_before_s
        return self._asked_before_s + (self._now_s() - self._asking_since_s)


class LeftBehind(BaseException):
    """Raised inside a call that ignores its cancellation."""


# The event loop refers to its tasks only weakly.
_LEFT_BEHIND: set[asyncio.Task[Any]] = set()


def leave_behind(task: asyncio.Task[Any], *, label: str) -> None:
    """Abandons the task of a cancelled call, with a warning if it has not ended."""
    task.add_done_callback(forget)
    if task.done():
        return
    log_warning(
        "a node did not stop when it was cancelled, and is left running",
        code="run.node-left-behind",
        node=label,
    )
    _LEFT_BEHIND.add(task)
    task.add_done_callback(_LEFT_BEHIND.discard)
    coroutine = task.get_coro()
    assert coroutine is not None  # an eager task has none once it is over
    try:
        # Raised where the call waits, so that its spans end; a call that ignores even that goes on.
        # Not close(): what it raises does not get through to an async generator.
        coroutine.throw(LeftBehind("it went on although it was cancelled"))
    except (LeftBehind, StopIteration):
        pass
    except Exception as error:  # noqa: BLE001 - it may raise anything
        log_debug("a node that was left behind ended", node=label, error=describe(error))
    task.cancel()  # wakes the task, which finds its coroutine ended


def forget(task: asyncio.Task[Any]) -> None:
    """Retrieves the exception of a task that is done: asyncio complains of others."""
    if not task.cancelled():
        task.exception()


def this_task() -> asyncio.Task[Any]:
    """The task that this code runs in."""
    task = asyncio.current_task()
    assert task is not None
    return task
