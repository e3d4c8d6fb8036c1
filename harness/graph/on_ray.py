"""Nodes on Ray: calls that ask for `Resources` are tasks of a cluster, all others run here.

Only functions, their arguments and results leave this process, the driver. What a node asks of its
run, the worker asks of the driver: models, limits, memory and the journal stay here. So limits hold
as they do in one process, and a lost worker loses only the calls under way there.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import ExitStack, asynccontextmanager, nullcontext, suppress
from functools import lru_cache, partial
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from harness.errors import ConfigurationInvalid, InvalidInput, PipelineInvalid, WorkerLost
from harness.graph.executor import Executor, InProcess, Work
from harness.graph.fingerprint import is_own_module
from harness.graph.policies import Resources
from harness.log import log_warning
from harness.trace import ContentPolicy, Record, Span, Tracer, describe, events
from harness.trace.clock import boot_id
from harness.trace.records import CounterSet, SpanEnded, SpanStarted, joined

LOCAL = "local"
"""The address of a cluster that is started here, for one run."""

_IN_DRIVER = {"ask", "chat", "embed", "evaluate", "novelty", "recall", "remember", "wiggum"}
"""What a node may ask of its run in a worker."""
_TRIES = 3
"""Workers that a call may lose before it fails."""
_END_S = 0.5
"""How long a cancelled call may take to end before its process is killed."""
_CONNECT_S, _REACH_S = 60.0, 5.0
"""How long a cluster may take to start or to be joined, and its address to answer at all."""
_HEAD_S = 10
"""How long the head of a cluster of our own may be away until Ray ends this process: it is started
again by no one. Other clusters may have one that is, and keep Ray's own 60 s."""
_BEAT_S = 0.1
"""Signs of life are sent no more often."""


# --- in the driver -------------------------------------------------------------------------------


@asynccontextmanager
async def on_ray(
    address: str, *, tracer: Tracer, content: ContentPolicy, give_again: Callable[[str], None]
) -> AsyncIterator[Executor]:
    """Makes calls on the workers of a cluster; on that of this process, if it has one already.

    Args:
        address: `HOST:PORT`, or `LOCAL`.
        tracer: The run's.
        content: What workers record of texts.
        give_again: Told the label of a call that is made from its beginning.

    Raises:
        ConfigurationInvalid: Ray is not installed, there is no cluster at the address, or this
            process has been connected to another.
    """
    try:
        import ray  # noqa: PLC0415 - an optional library
    except ImportError as error:
        raise ConfigurationInvalid(
            f"Ray cannot be imported ({error}); pip install 'wiggum-harness[ray]'",
            code="ray.not-installed",
        ) from error
    made, connected = _OnRay(ray, tracer, content, give_again), Future[None]()
    try:
        with nullcontext() if ray.is_initialized() else tracer.span(events.RayStart(address)):
            terminates = signal.getsignal(signal.SIGTERM)
            await asyncio.to_thread(_CONNECTION.join, ray, address, made, connected)
            with suppress(ValueError):  # not in the main thread, where handlers are set
                signal.signal(signal.SIGTERM, terminates)  # Ray has put its own in this place
        yield made
    finally:
        made.close()
        connected.cancel()  # else, after Ctrl-C, the end of the thread that joins is waited for
        # In a thread: a `join` that was cancelled goes on in its own, and this waits for its end.
        asyncio.get_running_loop().run_in_executor(None, _CONNECTION.leave, ray, made)


class _Connection:
    """Ray has one for a process, which runs share, side by side and one after the other.

    It ends with the process. Ended after each run, as it once was, it left the next run's actors to
    die before they began (Ray 2.60; why is not known).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs = set[object]()
        self._address: str | None = None
        self._by_value: set[ModuleType] = set()

    def join(self, ray: Any, address: str, run: object, connected: Future[None]) -> None:  # noqa: ANN401
        """Connects the process, if it is not; until then, `connected` can be cancelled."""
        with self._lock:
            if ray.is_initialized() and self._address not in {None, address}:
                raise ConfigurationInvalid(
                    f"an earlier run has connected this process to Ray at '{self._address}', and "
                    f"it cannot be connected to '{address}' too; run that in another process",
                    code="ray.other-address",
                )
            if not ray.is_initialized():
                # Ray's processes end with the thread that started them.
                threading.Thread(target=_stay, args=(ray, address, connected), daemon=True).start()
                try:
                    connected.result(timeout=_CONNECT_S)
                except TimeoutError:
                    raise _no_cluster(address, f"no answer in {_CONNECT_S:g} s") from None
                self._address = address
            self._runs.add(run)
            # A worker could not import the user's own files.
            own = {one for one in tuple(sys.modules.values()) if is_own_module(one)}
            for module in own - self._by_value:
                with suppress(ValueError):  # it is no longer among the modules
                    ray.cloudpickle.register_pickle_by_value(module)
                    self._by_value.add(module)

    def leave(self, ray: Any, run: object) -> None:  # noqa: ANN401 - the library
        with self._lock:
            self._runs.discard(run)
            if self._runs:
                return
            for module in self._by_value:
                with suppress(ValueError):
                    ray.cloudpickle.unregister_pickle_by_value(module)
            self._by_value.clear()


_CONNECTION = _Connection()


def _stay(ray: Any, address: str, connected: Future[None]) -> None:  # noqa: ANN401 - the library
    with suppress(InvalidStateError):  # nobody waits any more
        try:
            _connect(ray, address)
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            connected.set_exception(error)
            return
        connected.set_result(None)
    threading.Event().wait()


def _connect(ray: Any, address: str) -> None:  # noqa: ANN401 - the library
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to its makers
    own: dict[str, Any] = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    own["_system_config"] = {"gcs_rpc_server_reconnect_timeout_s": _HEAD_S}
    try:
        host, _, port = address.rpartition(":")
        if host and port.isdecimal():
            # Ray would wait for minutes, and no signal would end it.
            socket.create_connection((host, int(port)), timeout=_REACH_S).close()
        ray.init(address=address, logging_level=logging.ERROR, **(own if address == LOCAL else {}))
    except Exception as error:
        raise _no_cluster(address, error) from error


def _no_cluster(address: str, error: object) -> ConfigurationInvalid:
    return ConfigurationInvalid(
        f"there is no Ray cluster at '{address}' ({error}); start one with ray start --head, "
        'or give address = "local" for one on this machine',
        code="ray.unreachable",
    )


class _OnRay(InProcess):
    def __init__(
        self,
        ray: Any,  # noqa: ANN401
        tracer: Tracer,
        content: ContentPolicy,
        give_again: Callable[[str], None],
    ) -> None:
        super().__init__()
        self._ray = ray
        self._tasks: dict[Resources, Any] = {}  # each one is sent to the cluster
        self._tracer = tracer
        self._content = content
        self._give_again = give_again
        self._numbers = count()
        self._functions: dict[Callable[..., Any], bytes] = {}
        self._clocks: dict[str | None, tuple[int, int]] = {}
        self._lines: dict[int, asyncio.Queue[_Asked]] = {}
        self._board: Any = None
        self._hearing: asyncio.Task[None] | None = None

    def close(self) -> None:
        if self._hearing is not None:
            self._hearing.cancel()
        if self._board is not None:
            self._ray.kill(self._board)

    async def call(self, work: Work) -> object:
        """See `Executor.call`."""
        if work.on is None:
            return await super().call(work)
        for tries in count(1):
            try:
                return await self._call(work, work.on)
            except WorkerLost as error:
                if tries == _TRIES:
                    raise
                reason, detail = type(error).__name__, self._tracer.excerpt(str(error))
            retry = events.Retry(node=work.label, reason=reason, detail=detail, delay_s=0)
            self._tracer.instant(retry)
            self._give_again(work.label)
            if work.handle is not None:
                work.handle.begin_again()
        raise AssertionError

    async def _call(self, work: Work, on: Resources) -> object:
        arguments = dict(work.arguments)
        run: Any = arguments.pop("run", None)
        if work.function not in self._functions:
            self._functions[work.function] = _packed(work, "", work.function)
        function = self._functions[work.function]
        packed = {name: _packed(work, name, value) for name, value in arguments.items()}
        number, sent_ns = next(self._numbers), self._tracer.now_ns()
        known = number, self._tracer.run_id, self._content
        send = partial(self._task_for(on).remote, work.label, function, packed, known)
        if run is None:
            made = await self._ended(send(None))
        else:
            board, line = self._opened_board(), asyncio.Queue[_Asked]()
            self._lines[number] = line
            try:
                async with asyncio.TaskGroup() as group:
                    serving = group.create_task(self._serve(work, run, board, line))
                    made = await self._ended(send(board))
                    serving.cancel()
            finally:
                del self._lines[number]
        if isinstance(made, Exception):
            raise made
        self._record(made, sent_ns)
        value = pickle.loads(made.value)  # noqa: S301 - from a worker
        if made.traceback is None:
            return value
        if isinstance(value, self._ray.exceptions.RayError):
            raise WorkerLost(f"the way to its worker was lost ({value})") from value
        value.add_note(f"In a worker:\n{made.traceback}")
        raise value

    def _task_for(self, on: Resources) -> Any:  # noqa: ANN401 - a function of Ray's
        if on not in self._tasks:
            self._warn_if_too_much(on)
            self._tasks[on] = self._ray.remote(
                num_cpus=on.cpus,
                num_gpus=on.gpus,
                memory=on.memory_bytes or None,
                max_retries=0,  # whether a lost call is made again is decided above
            )(_perform)
        return self._tasks[on]

    def _warn_if_too_much(self, on: Resources) -> None:
        """Ray would wait without a word for a machine that has all of it."""
        wanted = {"CPU": on.cpus, "GPU": on.gpus, "memory": on.memory_bytes}
        machines = [one["Resources"] for one in self._ray.nodes() if one["Alive"]]
        if not any(all(has.get(k, 0) >= n for k, n in wanted.items()) for has in machines):
            log_warning(
                "no machine of the cluster has what a node asks for; it waits until one joins",
                code="ray.no-such-worker",
                cpus=on.cpus,
                gpus=on.gpus,
                memory=on.memory,
            )

    async def _ended(self, ref: Any) -> _Made | Exception:  # noqa: ANN401 - a reference of Ray's
        """What became of a task; one that is not waited for any more is ended."""
        ended = asyncio.wrap_future(ref.future())
        try:
            await asyncio.wait({ended})
        except asyncio.CancelledError:
            ended.add_done_callback(lambda one: one.cancelled() or one.exception())
            self._ray.cancel(ref)
            await asyncio.wait({ended}, timeout=_END_S)
            if not ended.done():
                self._ray.cancel(ref, force=True)
            raise
        errors = self._ray.exceptions
        try:
            made: _Made = ended.result()
        except (errors.RayTaskError, errors.RuntimeEnvSetupError) as error:
            # Not the node's, which `_perform` returns.
            return ConfigurationInvalid(
                f"the cluster's workers cannot make calls ({error}); install the same version of "
                "harness there, and what the nodes import",
                code="ray.worker-unfit",
            )
        except errors.RayError as error:
            return WorkerLost(f"its worker was lost ({type(error).__name__})")
        return made

    def _opened_board(self) -> Any:  # noqa: ANN401 - a handle of Ray's
        if self._board is None:
            ray = self._ray
            here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
                ray.get_runtime_context().get_node_id(), soft=False
            )
            self._board = (
                ray.remote(_Switchboard)
                .options(num_cpus=0, max_concurrency=100_000, scheduling_strategy=here)
                .remote()
            )
            # Not in a task group: it serves the calls of all nodes, until the run ends.
            self._hearing = asyncio.get_running_loop().create_task(self._hear(self._board))
        return self._board

    async def _hear(self, board: Any) -> None:  # noqa: ANN401 - as above
        with suppress(self._ray.exceptions.RayError):
            while True:
                for call, asked in await board.take.remote():
                    if call in self._lines:
                        self._lines[call].put_nowait(asked)
        self._board = None  # it has died: the workers' calls fail, and are made again on another

    async def _serve(
        self,
        work: Work,
        run: Any,  # noqa: ANN401 - a run
        board: Any,  # noqa: ANN401 - as above
        line: asyncio.Queue[_Asked],
    ) -> None:
        """Does what a worker asks for, side by side, in the context of its node."""
        with ExitStack() as queueing:
            if work.handle is not None:
                queueing.enter_context(work.handle.pulse.doing("rest"))
            async with asyncio.TaskGroup() as group:
                while True:
                    number, asked = await line.get()
                    queueing.close()
                    run.beat()
                    if number:
                        group.create_task(_answer(run, board, number, asked))

    def _record(self, made: _Made, sent_ns: int) -> None:
        """Takes a worker's records into the journal, by this process's clock."""
        tracer, first, last = self._tracer, made.records[0], made.records[-1]
        assert isinstance(first, SpanStarted)
        assert isinstance(last, SpanEnded)
        low, high = 0, 0
        if made.boot_id is None or made.boot_id != boot_id():
            # It was sent before it began there, and came after it had ended there.
            bounds = sent_ns - first.time_ns, tracer.now_ns() - last.time_ns
            low, high = clock_bounds(self._clocks.get(made.boot_id), bounds)
            self._clocks[made.boot_id] = low, high
        shift_ns = (low + high) // 2
        told = {"wait_ns": first.time_ns + shift_ns - sent_ns, "clock_error_ns": high - shift_ns}
        records = [first._replace(attributes={**first.attributes, **told}), *made.records[1:]]
        moved = [*_moved(records, shift_ns, tracer.current_id, tracer.new_id)]
        tracer.later(lambda: moved)


async def _answer(run: Any, board: Any, number: int, asked: bytes) -> None:  # noqa: ANN401
    """Answers on the board where it was asked: another one counts its questions from 1 again."""
    try:
        name, given, named = pickle.loads(asked)  # noqa: S301 - from a worker
        said = _pickled((await getattr(run, name)(*given, **named), None))
    except Exception as error:  # noqa: BLE001 - raised again in the worker
        said = _pickled((None, _picklable(error)))
    board.answer.remote(number, said)


def clock_bounds(before: tuple[int, int] | None, now: tuple[int, int]) -> tuple[int, int]:
    """The least and the most that a machine's clock is behind: each call may narrow it."""
    low, high = now if before is None else (max(before[0], now[0]), min(before[1], now[1]))
    return (low, high) if low <= high else now  # the clocks have drifted apart


def _moved(
    records: list[Record], shift_ns: int, around: int | None, new_id: Callable[[], int]
) -> Iterator[Record]:
    ends = {one.id: one for one in records if isinstance(one, SpanEnded)}
    ids: dict[int | None, int | None] = {None: around}
    for one in records:
        if isinstance(one, SpanStarted):
            number = ids[one.id] = new_id()
            span = joined(one, ends.get(one.id) or SpanEnded(0, one.time_ns, "unfinished"))
            start_ns, end_ns = span.start_ns + shift_ns, span.end_ns + shift_ns
            yield span._replace(id=number, parent=ids[one.parent], start_ns=start_ns, end_ns=end_ns)
        elif isinstance(one, CounterSet):
            yield one._replace(time_ns=one.time_ns + shift_ns, span=ids[one.span])


def _packed(work: Work, name: str, value: object) -> bytes:
    """The function of a call, or the argument of this name."""
    try:
        return _pickled(value)
    except Exception as error:
        what = f"argument '{name}'" if name else " → ".join(_culprit(work.function))
        code = inspect.unwrap(work.function).__code__
        raise PipelineInvalid(
            f"node '{work.label}' cannot be sent to a worker: {what or 'its function'} cannot be "
            f"pickled ({error}); make it inside the node, or leave out on=",
            code="ray.not-picklable",
            path=Path(code.co_filename),
            line=code.co_firstlineno,
        ) from error


def _culprit(function: Callable[..., Any]) -> list[str]:
    """The way from a function to what cannot be pickled: names of globals and of its closure."""
    held = inspect.getclosurevars(inspect.unwrap(function))
    for kind, values in (("the closure's", held.nonlocals), ("the global", held.globals)):
        for name, value in values.items():
            try:
                _pickled(value)
            except Exception:  # noqa: BLE001 - whatever its class raises
                deeper = _culprit(value) if inspect.isfunction(value) else []
                return [f"{kind} '{name}'", *deeper]
    return []


# --- in a worker ---------------------------------------------------------------------------------


class _Made(NamedTuple):
    """What became of a call."""

    value: bytes
    """What was returned, or raised."""
    traceback: str | None
    """None if it returned."""
    records: list[Record]
    """The first and the last are of a span around the call."""
    boot_id: str | None


def _perform(
    label: str,
    function: bytes,
    arguments: Mapping[str, bytes],
    known: tuple[int, str, ContentPolicy],
    board: Any,  # noqa: ANN401 - a handle of Ray's
) -> _Made:
    number, run_id, content = known
    records: list[Record] = []
    tracer, track = Tracer(records.append, content=content), f"worker {socket.gethostname()}"
    said = None
    try:
        with tracer.span(events.Worker(label, track, os.getpid())):
            given = {name: pickle.loads(value) for name, value in arguments.items()}  # noqa: S301
            if board is not None:
                given["run"] = _Run(run_id, tracer, number, board)
            value = _function(function)(**given)
            if inspect.iscoroutine(value):
                value = asyncio.run(value)
            data = _pickled(value)
    except KeyboardInterrupt:
        raise  # so does Ray cancel
    except BaseException as error:  # noqa: BLE001 - raised again in the driver
        data, said = _pickled(_picklable(error)), "".join(traceback.format_exception(error))
    return _Made(data, said, records, boot_id())


def _pickled(value: object) -> bytes:
    """By Ray's pickle, which knows functions and classes that cannot be imported."""
    from ray import cloudpickle  # noqa: PLC0415 - an optional library

    data: bytes = cloudpickle.dumps(value)
    return data


def _picklable(error: BaseException) -> BaseException:
    """The error, or one that says the same: some cannot be made again of what they keep."""
    try:
        pickle.loads(_pickled(error))  # noqa: S301 - its own
    except Exception:  # noqa: BLE001 - whatever its class raises
        return RuntimeError(describe(error))
    return error


@lru_cache(maxsize=256)
def _function(data: bytes) -> Callable[..., Any]:
    function: Callable[..., Any] = pickle.loads(data)  # noqa: S301 - from the driver
    return function


class _Run:
    """The run as a node has it in a worker."""

    def __init__(self, run_id: str, tracer: Tracer, number: int, board: Any) -> None:  # noqa: ANN401
        self.id = run_id
        self.span: Callable[..., Span] = tracer.span
        self.counter = tracer.counter
        self._number = number
        self._board = board
        self._beaten_s = 0.0
        self.beat()

    def beat(self) -> None:
        now_s = time.monotonic()
        if now_s - self._beaten_s > _BEAT_S:
            self._beaten_s = now_s
            self._board.tell.remote(self._number)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in _IN_DRIVER:
            return partial(self._asked, name)
        raise InvalidInput(
            f"run.{name} does not work in a worker; leave out the node's on=, or use it in a node "
            "without on=",
            code="run.not-in-a-worker",
        )

    async def _asked(self, name: str, *given: object, **named: object) -> object:
        asked = _pickled((name, given, named))
        value, error = pickle.loads(await self._board.ask.remote(self._number, asked))  # noqa: S301
        if error is not None:
            raise error
        return value


_Asked = tuple[int, bytes]
"""A number for the answer, and the question; 0 for a sign of life."""


class _Switchboard:
    """An actor that takes questions of workers, which cannot call a driver as it can call them."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._asked: list[tuple[int, _Asked]] = []
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._news = asyncio.Event()

    async def tell(self, call: int, asked: _Asked = (0, b"")) -> None:
        self._asked.append((call, asked))
        self._news.set()

    async def ask(self, call: int, asked: bytes) -> bytes:
        number = next(self._numbers)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        await self.tell(call, (number, asked))
        return await answer

    async def take(self) -> list[tuple[int, _Asked]]:
        """For the driver: what was asked since, by call, as soon as there is anything."""
        await self._news.wait()
        self._news.clear()
        asked, self._asked = self._asked, []
        return asked

    async def answer(self, number: int, data: bytes) -> None:
        self._waiting.pop(number).set_result(data)
