"""A call of a node's function in a worker, a process of Ray's, perhaps on another machine.

The worker has the function and its arguments, and neither a session nor a key. What a node asks of
its `run`, `_Run` asks of the driver, the process that runs the pipeline, over a `Switchboard`.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
import socket
import time
import traceback
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import count
from typing import Any, NamedTuple

from harness.errors import InvalidInput
from harness.trace import ContentPolicy, Record, Span, Tracer, describe, monotonic
from harness.trace.clock import boot_id

IN_DRIVER = frozenset(
    {"ask", "chat", "embed", "evaluate", "novelty", "recall", "remember", "wiggum"}
)
"""What a node may ask of its run in a worker."""

_BEAT_S = 0.1
"""Signs of life are sent no more often."""


class Made(NamedTuple):
    """What became of a call."""

    value: bytes
    """What was returned, or raised."""
    traceback: str | None
    """None if it returned."""
    records: list[Record]
    begun_ns: int
    """By the worker's clock."""
    ended_ns: int
    boot_id: str | None
    host: str
    process_id: int


def perform(
    function: bytes,
    arguments: bytes,
    run: tuple[int, str, ContentPolicy] | None = None,
    board: Any = None,  # noqa: ANN401 - a handle of Ray's
) -> Made:
    """Makes a call.

    Args:
        function: As `pickled` has it.
        arguments: By name, as `pickled` has them, without the run.
        run: The number by which the driver knows the call, and the run's id and policy; None if
            the function takes no run.
        board: The way to the driver.
    """
    begun_ns, said = monotonic(), None
    records: list[Record] = []
    try:
        given = pickle.loads(arguments)  # noqa: S301 - from the driver
        if run is not None:
            number, run_id, content = run
            given["run"] = _Run(run_id, Tracer(records.append, content=content), number, board)
        value = _function(function)(**given)
        if inspect.isawaitable(value):
            value = asyncio.run(_awaited(value))
        data = pickled(value)
    except KeyboardInterrupt:
        raise  # so does Ray cancel
    except BaseException as error:  # noqa: BLE001 - raised again in the driver
        data = pickled(picklable(error))
        said = "".join(traceback.format_exception(error))
    ended_ns, host = monotonic(), socket.gethostname()
    return Made(data, said, records, begun_ns, ended_ns, boot_id(), host, os.getpid())


def pickled(value: object) -> bytes:
    """The value by Ray's pickle, which knows functions and classes that cannot be imported."""
    from ray import cloudpickle  # noqa: PLC0415 - an optional library

    data: bytes = cloudpickle.dumps(value)
    return data


def picklable(error: BaseException) -> BaseException:
    """The error, or one that says the same: some cannot be made again of what they keep."""
    try:
        pickle.loads(pickled(error))  # noqa: S301 - its own
    except Exception:  # noqa: BLE001 - whatever its class raises
        return RuntimeError(describe(error))
    return error


@lru_cache(maxsize=256)
def _function(data: bytes) -> Callable[..., Any]:
    function: Callable[..., Any] = pickle.loads(data)  # noqa: S301 - from the driver
    return function


async def _awaited(value: Any) -> Any:  # noqa: ANN401 - whatever the node returns
    return await value


class _Run:
    """The run as a node has it in a worker."""

    def __init__(self, run_id: str, tracer: Tracer, number: int, board: Any) -> None:  # noqa: ANN401
        self.id = run_id
        self.span: Callable[..., Span] = tracer.span
        self.counter = tracer.counter
        self._number = number
        self._board = board
        self._beaten_s = time.monotonic()
        board.tell.remote(number)

    def beat(self) -> None:
        now_s = time.monotonic()
        if now_s - self._beaten_s > _BEAT_S:
            self._beaten_s = now_s
            self._board.tell.remote(self._number)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in IN_DRIVER:
            return partial(self._asked, name)
        raise InvalidInput(
            f"run.{name} is not there in a worker; leave out on= of the node, or move what uses it "
            "to a node without",
            code="run.not-in-a-worker",
        )

    async def _asked(self, name: str, *given: object, **named: object) -> object:
        asked = pickled((name, given, named))
        value, error = pickle.loads(await self._board.ask.remote(self._number, asked))  # noqa: S301
        if error is not None:
            raise error
        return value


Asked = tuple[int, bytes]
"""A number for the answer, and what is asked; 0 for a sign of life."""


class Switchboard:
    """Takes what workers ask, and gives them the driver's answers: an actor of Ray's.

    It is there because a driver can call an actor, and a worker cannot call a driver.
    """

    def __init__(self) -> None:
        self._numbers = count(1)
        self._asked: list[tuple[int, Asked]] = []
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._news = asyncio.Event()

    async def tell(self, call: int, asked: Asked = (0, b"")) -> None:
        """A sign of life of a call, or a question."""
        self._asked.append((call, asked))
        self._news.set()

    async def ask(self, call: int, asked: bytes) -> bytes:
        """The driver's answer."""
        number = next(self._numbers)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        await self.tell(call, (number, asked))
        return await answer

    async def take(self) -> list[tuple[int, Asked]]:
        """For the driver: what was asked since, by call, as soon as there is anything."""
        await self._news.wait()
        self._news.clear()
        asked, self._asked = self._asked, []
        return asked

    async def answer(self, number: int, data: bytes) -> None:
        """From the driver."""
        self._waiting.pop(number).set_result(data)
