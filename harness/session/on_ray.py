"""Nodes on Ray: calls that ask for `Resources` are tasks of a cluster, all others run here.

Only functions, their arguments and results leave this process, the driver. Models, limits, memory
and the journal stay: a worker asks for them over the `Switchboard`. So limits hold as they do in
one process, and a killed worker loses nothing but the calls under way there. Only this module and
`harness.graph.worker` know Ray.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import pickle
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from harness.errors import ConfigurationInvalid, PipelineInvalid, WorkerLost
from harness.graph import Executor, InProcess, Resources, Work
from harness.graph.fingerprint import is_own_module
from harness.graph.worker import IN_DRIVER, Asked, Made, Switchboard, perform, picklable, pickled
from harness.inference import to_its_end
from harness.session.session import Session
from harness.session.settings import LOCAL, Settings
from harness.session.trust import refusal_to_run
from harness.trace import Record
from harness.trace.clock import boot_id
from harness.trace.records import CounterSet, SpanEnded, SpanStarted, joined

_TRIES = 3
"""Workers that a call may lose before it fails."""
_END_S = 0.5
"""How long a cancelled call may take to end before its process is killed."""


@asynccontextmanager
async def open_executor(
    settings: Settings, session: Session, *, environment: Mapping[str, str]
) -> AsyncIterator[Executor]:
    """What makes the calls of a run's nodes.

    Args:
        settings: Say whether there is a cluster, and where.
        session: The run's.
        environment: Says where the cluster is, unless the settings do, and what the user allows.

    Raises:
        ConfigurationInvalid: Ray is not installed, there is no cluster at the address, or the
            settings of a folder name one whose code the user has not allowed to run.
    """
    given = settings.execution
    if given.engine == "process":
        yield InProcess()
        return
    if given.written_in is not None and given.address not in {None, LOCAL}:
        # Code goes there, and what comes back is unpickled, which may run any code here.
        refusal = refusal_to_run(given.written_in, environment=environment)
        if refusal is not None:
            raise ConfigurationInvalid(
                f"by [execution] address, code would be sent to {given.address}, and of the "
                f"folder {refusal.message}",
                code="trust.cluster-not-allowed",
            )
    try:
        import ray  # noqa: PLC0415 - an optional library
    except ImportError as error:
        raise ConfigurationInvalid(
            f"Ray cannot be imported ({error}); pip install 'wiggum-harness[ray]'",
            code="ray.not-installed",
        ) from error
    is_ours = not ray.is_initialized()
    if is_ours:
        address = given.address or environment.get("RAY_ADDRESS") or LOCAL
        with session.trace.span("ray start", address=address):
            terminates = signal.getsignal(signal.SIGTERM)
            await asyncio.to_thread(_connect, ray, address)
            with suppress(ValueError):  # not in the main thread: the handler is nobody's here
                signal.signal(signal.SIGTERM, terminates)  # Ray has put its own in this place
    made = _OnRay(ray, session, settings)
    try:
        yield made
    finally:
        made.close()
        if is_ours:
            await to_its_end(ray.shutdown)


def _connect(ray: Any, address: str) -> None:  # noqa: ANN401 - the library
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to its makers
    own = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"} if address == LOCAL else {}
    try:
        ray.init(address=address, logging_level=logging.ERROR, **own)
    except Exception as error:
        raise ConfigurationInvalid(
            f"there is no Ray cluster at '{address}' ({error}); start one with ray start --head, "
            'or give address = "local" for one on this machine',
            code="ray.unreachable",
        ) from error


class _OnRay(InProcess):
    """Calls of nodes that ask for resources are tasks of Ray; others are made here."""

    def __init__(self, ray: Any, session: Session, settings: Settings) -> None:  # noqa: ANN401
        super().__init__()
        self._ray = ray
        self._session = session
        self._content = settings.trace.content
        self._numbers = count()
        self._functions: dict[Callable[..., Any], bytes] = {}
        self._clocks: dict[str | None, tuple[int, int]] = {}
        self._lines: dict[int, asyncio.Queue[Asked]] = {}
        self._board: Any = None
        self._hearing: asyncio.Task[None] | None = None
        # A worker could not import the user's own files.
        self._by_value = [one for one in tuple(sys.modules.values()) if is_own_module(one)]
        for module in self._by_value:
            with suppress(ValueError):  # it is no longer among the modules
                ray.cloudpickle.register_pickle_by_value(module)

    def close(self) -> None:
        """Ends what listens to workers."""
        if self._hearing is not None:
            self._hearing.cancel()
        if self._board is not None:
            self._ray.kill(self._board)
        for module in self._by_value:
            with suppress(ValueError):
                self._ray.cloudpickle.unregister_pickle_by_value(module)

    async def call(self, work: Work) -> object:
        """See `Executor.call`."""
        if work.on is None:
            return await super().call(work)
        trace = self._session.trace
        for tries in count(1):
            try:
                return await self._call(work, work.on)
            except WorkerLost as error:
                if tries == _TRIES:
                    raise
                trace.instant(
                    "retry",
                    node=work.label,
                    reason=type(error).__name__,
                    detail=trace.excerpt(str(error)),
                    delay_s=0,
                )
            self._session.replies.give_again(work.label)
            if work.handle is not None:
                work.handle.begin_again()
        raise AssertionError

    async def _call(self, work: Work, on: Resources) -> object:
        arguments = dict(work.arguments)
        run: Any = arguments.pop("run", None)
        given = self._function_of(work), _arguments_of(work, arguments)
        resources = {"num_cpus": on.cpus, "num_gpus": on.gpus, "memory": on.memory_bytes or None}
        # Whether a lost call is made again is decided above.
        task = self._ray.remote(perform).options(**resources, max_retries=0, name=work.label)
        sent_ns = self._session.trace.now_ns()
        if run is None:
            made = await self._ended(task.remote(*given))
        else:
            number, board = next(self._numbers), self._opened_board()
            line = self._lines[number] = asyncio.Queue[Asked]()
            try:
                async with asyncio.TaskGroup() as group:
                    serving = group.create_task(self._serve(work, run, line))
                    known = number, run.id, self._content
                    made = await self._ended(task.remote(*given, known, board))
                    serving.cancel()
            finally:
                del self._lines[number]
        if isinstance(made, Exception):
            raise made
        self._record(work.label, made, sent_ns)
        value = pickle.loads(made.value)  # noqa: S301 - from a worker
        if made.traceback is None:
            return value
        if isinstance(value, self._ray.exceptions.RayError):
            raise WorkerLost(f"the way to its worker was lost ({value})") from value
        value.add_note(f"In a worker on {made.host}:\n{made.traceback}")
        raise value

    async def _ended(self, ref: Any) -> Made | Exception:  # noqa: ANN401 - a reference of Ray's
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
            made: Made = ended.result()
        except (errors.RayTaskError, errors.RuntimeEnvSetupError) as error:
            # Not the node's, which `perform` returns.
            return ConfigurationInvalid(
                f"the cluster's workers cannot make calls ({error}); install the same version of "
                "harness there, and what the nodes import",
                code="ray.worker-unfit",
            )
        except errors.RayError as error:
            return WorkerLost(f"its worker was lost ({type(error).__name__})")
        return made

    # --- what workers ask ------------------------------------------------------------------------

    def _opened_board(self) -> Any:  # noqa: ANN401 - a handle of Ray's
        if self._board is None:
            ray = self._ray
            here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
                ray.get_runtime_context().get_node_id(), soft=False
            )
            self._board = (
                ray.remote(Switchboard)
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

    async def _serve(self, work: Work, run: Any, line: asyncio.Queue[Asked]) -> None:  # noqa: ANN401
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
                        group.create_task(self._answer(run, number, asked))

    async def _answer(self, run: Any, number: int, asked: bytes) -> None:  # noqa: ANN401
        try:
            name, given, named = pickle.loads(asked)  # noqa: S301 - from a worker
            assert name in IN_DRIVER
            said = pickled((await getattr(run, name)(*given, **named), None))
        except Exception as error:  # noqa: BLE001 - raised again in the worker
            said = pickled((None, picklable(error)))
        if self._board is not None:
            self._board.answer.remote(number, said)

    # --- what goes there, and what comes back ----------------------------------------------------

    def _function_of(self, work: Work) -> bytes:
        if work.function not in self._functions:
            try:
                self._functions[work.function] = pickled(work.function)
            except Exception as error:
                held = " → ".join(_culprit(work.function)) or "what it refers to"
                raise _not_picklable(work, held, error) from error
        return self._functions[work.function]

    def _record(self, label: str, made: Made, sent_ns: int) -> None:
        """Takes the worker's spans into the journal, by this process's clock."""
        trace, shift_ns, error_ns = self._session.trace, 0, 0
        if made.boot_id is None or made.boot_id != boot_id():
            # It was sent before it began there, and came after it had ended there.
            bounds = sent_ns - made.begun_ns, trace.now_ns() - made.ended_ns
            low, high = clock_bounds(self._clocks.get(made.boot_id), bounds)
            self._clocks[made.boot_id] = low, high
            shift_ns, error_ns = (low + high) // 2, (high - low + 1) // 2
        attributes = {
            "label": label,
            "track": f"worker {made.host}",
            "process": made.process_id,
            "wait_ns": made.begun_ns + shift_ns - sent_ns,
            "clock_error_ns": error_ns,
        }
        whole = SpanStarted(0, None, "worker", made.begun_ns, attributes)
        end = SpanEnded(0, made.ended_ns, "error" if made.traceback else "ok")
        moved = _moved([whole, *made.records, end], shift_ns, trace.current_id, trace.new_id)
        trace.later([*moved].copy)


def clock_bounds(before: tuple[int, int] | None, now: tuple[int, int]) -> tuple[int, int]:
    """The least and the most that a machine's clock is behind: each call may narrow it."""
    low, high = now if before is None else (max(before[0], now[0]), min(before[1], now[1]))
    return (low, high) if low <= high else now  # the clocks have drifted apart


def _moved(
    records: Sequence[Record], shift_ns: int, around: int | None, new_id: Callable[[], int]
) -> Iterator[Record]:
    """A worker's records as the driver's: the first is a span around all others."""
    ends = {one.id: one for one in records if isinstance(one, SpanEnded)}
    ids: dict[int, int] = {}
    for one in records:
        if isinstance(one, SpanStarted):
            parent = ids.get(one.parent or 0, around)
            ids[one.id] = new_id()
            span = joined(one, ends.get(one.id) or ends[0]._replace(status="unfinished"))
            start_ns, end_ns = span.start_ns + shift_ns, span.end_ns + shift_ns
            yield span._replace(id=ids[one.id], parent=parent, start_ns=start_ns, end_ns=end_ns)
        elif isinstance(one, CounterSet):
            yield one._replace(time_ns=one.time_ns + shift_ns, span=ids.get(one.span or 0))


def _arguments_of(work: Work, arguments: Mapping[str, object]) -> bytes:
    try:
        return pickled(arguments)
    except Exception as error:
        held = (f"argument '{one}'" for one, value in arguments.items() if not _is_picklable(value))
        raise _not_picklable(work, next(held, "an argument"), error) from error


def _not_picklable(work: Work, what: str, error: Exception) -> PipelineInvalid:
    code = inspect.unwrap(work.function).__code__
    return PipelineInvalid(
        f"node '{work.label}' cannot be sent to a worker: {what} cannot be pickled ({error}); make "
        "it inside the node, or leave out on=",
        code="ray.not-picklable",
        path=Path(code.co_filename),
        line=code.co_firstlineno,
    )


def _culprit(function: Callable[..., Any]) -> list[str]:
    """The way from a function to what cannot be pickled: names of globals and of its closure."""
    held = inspect.getclosurevars(inspect.unwrap(function))
    for kind, values in (("the closure's", held.nonlocals), ("the global", held.globals)):
        for name, value in values.items():
            if value is not function and not _is_picklable(value):
                deeper = _culprit(value) if inspect.isfunction(value) else []
                return [f"{kind} '{name}'", *deeper]
    return []


def _is_picklable(value: object) -> bool:
    try:
        pickled(value)
    except Exception:  # noqa: BLE001 - whatever its class raises
        return False
    return True
