"""Calls of nodes in other processes: packed here, performed there, recorded here.

`OnWorkers` is the base of executors that send the calls with `on=` to workers, and make all others
here. Only functions, their arguments and results leave this process, the driver. When a node calls
a method of its run, the worker asks the driver to do it, so models, limits, memory and the journal
stay here. Limits hold as they do in one process, and a lost worker loses only its own calls.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
import socket
import sys
import time
import traceback
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache, partial
from importlib import import_module
from itertools import count
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Any, NamedTuple, Protocol

from harness.errors import ConfigurationInvalid, InvalidInput, PipelineInvalid, WorkerLost
from harness.graph.executor import InProcess, Work
from harness.graph.fingerprint import is_own_module, variables_of
from harness.graph.policies import Resources
from harness.trace import ContentPolicy, Record, Span, Tracer, describe, events
from harness.trace.clock import boot_id
from harness.trace.records import CounterSet, SpanEnded, SpanStarted, joined

# The methods of its run that a node may call in a worker.
_IN_DRIVER = {"ask", "chat", "embed", "evaluate", "novelty", "recall", "remember", "wiggum"}
_BEAT_S = 0.1  # signs of life are sent no more often


class PackedCall(NamedTuple):
    """A call on its way to a worker."""

    number: int
    label: str
    function: bytes
    arguments: Mapping[str, bytes]
    asks: bool  # whether the function takes the run, and so may ask the driver
    run_id: str
    content: ContentPolicy
    pickler: str  # see `OnWorkers.pickler`


class PerformedCall(NamedTuple):
    """How a call ended on its worker."""

    value: bytes  # the pickled result, or the pickled error
    traceback: str | None  # of the error; None if the call returned
    records: list[Record]  # the first and the last are of a span around the call
    boot_id: str | None  # of the worker's machine
    workers_lost: int = 0  # before this one, if the engine itself made the call again


class WorkerQuestion(NamedTuple):
    """A question of a worker to the run."""

    data: bytes  # the pickled name, arguments and options of a method of the run
    answer: Callable[[bytes], object]  # called once, with the pickled answer


Questions = asyncio.Queue[WorkerQuestion | None]
"""The questions of a call's worker; None is a sign of life."""

AnyRun = Any  # a session's `Run`, which this layer does not know


class Board(Protocol):
    """In a worker: the way to the driver.

    It may have a method `loop`, which makes the event loop of an async function.
    """

    def beat(self, call: int) -> object:
        """Passes on a sign of life."""

    async def ask(self, call: int, question: bytes) -> bytes:
        """Passes on a question, and waits for its answer."""


# --- in the driver -------------------------------------------------------------------------------


class OnWorkers(InProcess):
    """Makes calls with `on=` on workers, all others here; for its arguments see `OpenExecutor`."""

    # The module of cloudpickle, here and in workers: it pickles functions and classes that cannot
    # be imported there.
    pickler: str = "cloudpickle"
    # Errors in a worker that mean that it cannot reach the driver: the call may be sent again.
    lost: tuple[type[BaseException], ...] = ()

    def __init__(
        self, *, tracer: Tracer, content: ContentPolicy, give_again: Callable[[str], None]
    ) -> None:
        super().__init__()
        self.tracer = tracer
        self._content = content
        self._give_again = give_again
        self._numbers = count()
        self._functions: dict[Callable[..., Any], bytes] = {}  # pickled
        # `boot_id` of a machine → the least and the most that its clock is behind.
        self._clocks: dict[str | None, tuple[int, int]] = {}
        self._questions: dict[int, Questions] = {}  # number of a call → its questions

    @abstractmethod
    async def send(self, call: PackedCall, on: Resources) -> PerformedCall:
        """Has a worker with these resources run `perform(call, board)`, and returns its result.

        What comes over the board goes to `hear`. Cancelled, it ends the call on the worker too.
        Raises `WorkerLost` if the call may be sent again, `ConfigurationInvalid` if no worker can
        make such a call.
        """

    def hear(self, call: int, question: WorkerQuestion | None) -> None:
        """Takes a question of a worker, or its sign of life."""
        if call in self._questions:
            self._questions[call].put_nowait(question)

    async def call(self, work: Work) -> object:
        """See `Executor.call`."""
        if work.on is None:
            return await super().call(work)
        lost_workers = 0
        while True:
            try:
                return await self._call(work, work.on)
            except WorkerLost as error:
                lost_workers += error.workers
                is_last = lost_workers > work.on.max_retries
                # The call is made again after each lost worker but the last.
                self._record_retries(work, error.workers - is_last, str(error))
                if is_last:
                    raise
            except ConfigurationInvalid as error:
                # An error without a place gets that of the node.
                if error.path is not None:
                    raise
                raise ConfigurationInvalid(
                    f"node '{work.label}': {error.statement}", code=error.code, **_place_of(work)
                ) from error
            self._give_again(work.label)
            if work.handle is not None:
                work.handle.begin_again()

    def _record_retries(self, work: Work, times: int, detail: str) -> None:
        excerpt, reason = self.tracer.excerpt(detail), WorkerLost.__name__
        retry = events.RetryEvent(node=work.label, reason=reason, detail=excerpt, delay_s=0)
        for _ in range(times):
            self.tracer.instant(retry)

    async def _call(self, work: Work, on: Resources) -> object:
        arguments = dict(work.arguments)
        run: AnyRun = arguments.pop("run", None)
        if work.function not in self._functions:
            # Pickled once, since a mapped node sends it with every item.
            self._functions[work.function] = self._packed(work, work.function)
        call = PackedCall(
            # A new number for each try, so that `hear` finds no queue for what a lost worker asks.
            number=next(self._numbers),
            label=work.label,
            function=self._functions[work.function],
            arguments={
                name: self._packed(work, value, argument=name) for name, value in arguments.items()
            },
            asks=run is not None,
            run_id=self.tracer.run_id,
            content=self._content,
            pickler=self.pickler,
        )
        sent_ns = self.tracer.now_ns()
        if run is None:
            performed = await self.send(call, on)
        else:
            performed = await self._send_and_serve(call, on, work, run)
        self._record_retries(work, performed.workers_lost, "its worker was lost")
        self._record(performed, sent_ns)
        return _result_of(performed, self.lost)

    async def _send_and_serve(
        self, call: PackedCall, on: Resources, work: Work, run: AnyRun
    ) -> PerformedCall:
        questions = self._questions[call.number] = asyncio.Queue()
        # Not raised inside the group, which would hide it in a group of errors.
        failure: Exception | None = None
        try:
            async with asyncio.TaskGroup() as group:
                server = group.create_task(_serve(work, run, questions, self.pickler))
                try:
                    performed = await self.send(call, on)
                except (WorkerLost, ConfigurationInvalid) as error:
                    failure = error
                # `_serve` would wait for further questions for ever.
                server.cancel()
        finally:
            del self._questions[call.number]
        if failure is not None:
            raise failure
        return performed

    def _packed(self, work: Work, value: object, *, argument: str = "") -> bytes:
        """Pickles a call's function, or its argument of this name."""
        try:
            return _pickled(value, self.pickler)
        except Exception as error:
            path = [f"argument '{argument}'"] if argument else None
            path = path or _path_to_culprit(self.pickler, work.function) or ["its function"]
            raise PipelineInvalid(
                f"node '{work.label}' cannot be sent to a worker: {' → '.join(path)} cannot "
                f"be pickled ({error}); make it inside the node, or leave out on=",
                code="worker.not-picklable",
                **_place_of(work),
            ) from error

    def _record(self, performed: PerformedCall, sent_ns: int) -> None:
        """Puts a worker's records into the journal, with times of this process's clock."""
        tracer = self.tracer
        first, *further = performed.records
        last = performed.records[-1]
        assert isinstance(first, SpanStarted)
        assert isinstance(last, SpanEnded)
        # How much the worker's clock is behind, at least and at most. Since the boot of a machine,
        # all its processes share a clock.
        low_ns, high_ns = 0, 0
        if performed.boot_id is None or performed.boot_id != boot_id():
            # The call was sent before it began there, and came back after it had ended there.
            bounds = sent_ns - first.time_ns, tracer.now_ns() - last.time_ns
            low_ns, high_ns = clock_bounds(self._clocks.get(performed.boot_id), bounds)
            self._clocks[performed.boot_id] = low_ns, high_ns
        shift_ns = (low_ns + high_ns) // 2
        times = {
            "wait_ns": first.time_ns + shift_ns - sent_ns,
            "clock_error_ns": high_ns - shift_ns,
        }
        first = first._replace(attributes={**first.attributes, **times})
        shifted = [*_shifted([first, *further], shift_ns, tracer.current_id, tracer.new_id)]
        tracer.later(lambda: shifted)


def _place_of(work: Work) -> dict[str, Any]:
    """The arguments `path` and `line` of an error about a node's function."""
    code = inspect.unwrap(work.function).__code__
    return {"path": Path(code.co_filename), "line": code.co_firstlineno}


# Functions and not methods, since a subclass of `OnWorkers` is another author's executor, which may
# have methods of these names.


def _result_of(performed: PerformedCall, lost_errors: tuple[type[BaseException], ...]) -> object:
    """What the function returned; raises its error, or `WorkerLost` for one of `lost_errors`."""
    value = pickle.loads(performed.value)  # noqa: S301 - from a worker
    if performed.traceback is None:
        return value
    error = value
    if isinstance(error, lost_errors):
        raise WorkerLost(f"the way to its worker was lost ({error})") from error
    # Pickling has removed the error's own traceback.
    error.add_note(f"In a worker:\n{performed.traceback}")
    raise error


async def _serve(work: Work, run: AnyRun, questions: Questions, pickler: str) -> None:
    """Does what a worker asks for, side by side, in the context of its node."""
    with ExitStack() as queueing:
        if work.handle is not None:
            # Until the worker's first message, the call waits in the cluster's queue, which does
            # not count as idleness.
            queueing.enter_context(work.handle.pulse.doing("rest"))
        async with asyncio.TaskGroup() as group:
            while True:
                question = await questions.get()
                queueing.close()
                run.beat()
                if question is not None:
                    group.create_task(_answer(run, question, pickler))


async def _answer(run: AnyRun, question: WorkerQuestion, pickler: str) -> None:
    """Calls the method of the run that a worker asks for; answers with (value, error)."""
    try:
        name, arguments, options = pickle.loads(question.data)  # noqa: S301 - from a worker
        value = await getattr(run, name)(*arguments, **options)
        answer = _pickled((value, None), pickler)
    except Exception as error:  # noqa: BLE001 - raised again in the worker
        answer = _pickled((None, _picklable(error, pickler)), pickler)
    question.answer(answer)


def clock_bounds(before: tuple[int, int] | None, bounds: tuple[int, int]) -> tuple[int, int]:
    """Narrows the least and the most that a machine's clock is behind by those of a further call.

    Starts again from `bounds` if the two contradict each other, since then a clock has drifted.
    """
    if before is None:
        return bounds
    low = max(before[0], bounds[0])
    high = min(before[1], bounds[1])
    return (low, high) if low <= high else bounds


def _shifted(
    records: list[Record], shift_ns: int, parent: int | None, new_id: Callable[[], int]
) -> Iterator[Record]:
    """A worker's spans and counters as records of the driver: later by `shift_ns`, in `parent`.

    Ends of spans are joined with their beginnings. A run in a worker makes no other records.
    """
    ends = {record.id: record for record in records if isinstance(record, SpanEnded)}
    # Number of a span in the worker → its number here.
    ids: dict[int | None, int | None] = {None: parent}
    for record in records:
        if isinstance(record, SpanStarted):
            number = ids[record.id] = new_id()
            # A thread of the node may go on, with its span open.
            end = ends.get(record.id) or SpanEnded(record.id, record.time_ns, "unfinished")
            span = joined(record, end)
            yield span._replace(
                id=number,
                parent=ids[record.parent],
                start_ns=span.start_ns + shift_ns,
                end_ns=span.end_ns + shift_ns,
            )
        elif isinstance(record, CounterSet):
            yield record._replace(time_ns=record.time_ns + shift_ns, span=ids[record.span])


def _path_to_culprit(pickler: str, *functions: Callable[..., Any]) -> list[str]:
    """The variables that lead from the last of the functions to a value that cannot be pickled."""
    for name, value in variables_of(functions[-1]).items():
        if any(value is function for function in functions):
            continue  # it calls itself
        try:
            _pickled(value, pickler)
        except Exception:  # noqa: BLE001 - whatever its class raises
            is_function = inspect.isfunction(value)
            return [name, *(_path_to_culprit(pickler, *functions, value) if is_function else ())]
    return []


@contextmanager
def own_modules_by_value(pickler: str) -> Iterator[None]:
    """Pickles the user's own modules, as imported before the block, by value inside the block."""
    # A worker could not import these modules. Runs side by side share the registration.
    cloudpickle = import_module(pickler)
    with _LOCK:
        _RUNS[pickler] += 1
        modules = {module for module in tuple(sys.modules.values()) if is_own_module(module)}
        for module in modules - _BY_VALUE[pickler]:
            with suppress(ValueError):  # it is no longer among the modules
                cloudpickle.register_pickle_by_value(module)
                _BY_VALUE[pickler].add(module)
    try:
        yield
    finally:
        with _LOCK:
            _RUNS[pickler] -= 1
            if not _RUNS[pickler]:
                for module in _BY_VALUE.pop(pickler):
                    with suppress(ValueError):
                        cloudpickle.unregister_pickle_by_value(module)


_LOCK = Lock()
# Module of cloudpickle → the number of runs under way, and the modules registered with it.
_RUNS: Counter[str] = Counter()
_BY_VALUE: dict[str, set[ModuleType]] = defaultdict(set)


# --- in a worker ---------------------------------------------------------------------------------


def perform(call: PackedCall, board: Board | None) -> PerformedCall:
    """Makes a call, in a worker; `board` may be None for a call that does not ask the driver."""
    records: list[Record] = []
    tracer = Tracer(records.append, content=call.content)
    track = f"worker {socket.gethostname()}"
    traceback_text = None
    try:
        with tracer.span(events.Worker(call.label, track, os.getpid())):
            arguments = {
                name: pickle.loads(value)  # noqa: S301 - from the driver
                for name, value in call.arguments.items()
            }
            if call.asks:
                assert board is not None
                arguments["run"] = _RunInWorker(call, tracer, board)
            value = _function(call.function)(**arguments)
            if inspect.iscoroutine(value):
                with asyncio.Runner(loop_factory=getattr(board, "loop", None)) as runner:
                    value = runner.run(value)
            data = _pickled(value, call.pickler)
    except KeyboardInterrupt:
        raise  # engines cancel a call by it
    except BaseException as error:  # noqa: BLE001 - raised again in the driver
        data = _pickled(_picklable(error, call.pickler), call.pickler)
        traceback_text = "".join(traceback.format_exception(error))
    return PerformedCall(data, traceback_text, records, boot_id())


def _pickled(value: object, pickler: str) -> bytes:
    data: bytes = import_module(pickler).dumps(value)
    return data


def _picklable(error: BaseException, pickler: str) -> BaseException:
    """The error, or a `RuntimeError` with its message if it cannot be pickled and loaded again."""
    try:
        # Some errors cannot be made again from their arguments.
        pickle.loads(_pickled(error, pickler))  # noqa: S301 - its own
    except Exception:  # noqa: BLE001 - whatever its class raises
        return RuntimeError(describe(error))
    return error


@lru_cache(maxsize=256)
def _function(data: bytes) -> Callable[..., Any]:
    function: Callable[..., Any] = pickle.loads(data)  # noqa: S301 - from the driver
    return function


class _RunInWorker:
    """The run as a node has it in a worker."""

    def __init__(self, call: PackedCall, tracer: Tracer, board: Board) -> None:
        self.id = call.run_id
        self.span: Callable[..., Span] = tracer.span
        self.counter = tracer.counter
        self._number = call.number
        self._pickler = call.pickler
        self._board = board
        self._last_beat_s = 0.0
        self.beat()

    def beat(self) -> None:
        now_s = time.monotonic()
        if now_s - self._last_beat_s > _BEAT_S:
            self._last_beat_s = now_s
            self._board.beat(self._number)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in _IN_DRIVER:
            return partial(self._ask, name)
        raise InvalidInput(
            f"run.{name} does not work in a worker; leave out the node's on=, or use it in a node "
            "without on=",
            code="run.not-in-a-worker",
        )

    async def _ask(self, name: str, *arguments: object, **options: object) -> object:
        question = _pickled((name, arguments, options), self._pickler)
        answer = await self._board.ask(self._number, question)
        value, error = pickle.loads(answer)  # noqa: S301 - from the driver
        if error is not None:
            raise error
        return value
