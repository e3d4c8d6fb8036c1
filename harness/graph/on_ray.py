"""Nodes on Ray: calls that ask for `Resources` are tasks of a cluster, all others run here."""

from __future__ import annotations

import asyncio
import logging
import os
import selectors
import signal
import socket
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import partial
from hashlib import blake2b
from itertools import count
from typing import Any

from harness.errors import ConfigurationInvalid, WorkerLost
from harness.graph.executor import LOCAL, Executor
from harness.graph.policies import Resources
from harness.graph.worker_calls import (
    OnWorkers,
    PackedCall,
    PerformedCall,
    WorkerQuestion,
    own_modules_by_value,
    perform,
)
from harness.log import log_warning
from harness.trace import ContentPolicy, Tracer, events

# How long a cancelled call may take to end before its process is killed.
_END_S = 0.5
# How long a cluster may take to start or to be joined, and its address to answer at all.
_CONNECT_S, _REACH_S = 60.0, 5.0
# How long the head of a cluster of our own may be away until Ray ends this process: it is started
# again by no one. Other clusters may have one that is, and keep Ray's own 60 s.
_HEAD_S = 10
# Inputs from this size on are put into the object store, where Ray would put each call's own copy;
# so many of them are remembered, so that the next call with the same one takes that.
_LARGE_BYTES, _LARGE_INPUTS = 100_000, 16
# How long a node waits for the driver until it gives its CPU back, and until it looks for other
# work that has come meanwhile.
_LEND_AFTER_S, _LEND_S = 0.02, 0.2


# --- in the driver -------------------------------------------------------------------------------


@asynccontextmanager
async def on_ray(
    address: str | None,
    *,
    tracer: Tracer,
    content: ContentPolicy,
    give_again: Callable[[str], None],
) -> AsyncIterator[Executor]:
    """Makes calls on the workers of a cluster; on that of this process, if it has one already.

    See `harness.graph.executor.OpenExecutor`. Without an address, `RAY_ADDRESS` counts, or else a
    cluster is started here, for one process. Raises `ConfigurationInvalid` if Ray is not installed,
    there is no cluster at the address, or this process has been connected to another.
    """
    try:
        import ray  # noqa: PLC0415 - an optional library
    except ImportError as error:
        raise ConfigurationInvalid(
            f"Ray cannot be imported ({error}); pip install 'wiggum-harness[ray]'",
            code="ray.not-installed",
        ) from error
    address = address or os.environ.get("RAY_ADDRESS") or LOCAL
    executor = _OnRay(ray, tracer=tracer, content=content, give_again=give_again)
    connected = Future[None]()
    try:
        with nullcontext() if ray.is_initialized() else tracer.span(events.RayStart(address)):
            terminates = signal.getsignal(signal.SIGTERM)
            await asyncio.to_thread(_CONNECTION.join, ray, address, connected)
            with suppress(ValueError):  # not in the main thread, where handlers are set
                signal.signal(signal.SIGTERM, terminates)  # Ray has put its own in this place
        with own_modules_by_value(executor.pickler):
            yield executor
    finally:
        executor.close()
        connected.cancel()  # else, after Ctrl-C, the end of the thread that joins is waited for


class _RayConnection:
    """The one that Ray has for a process; runs share it, side by side and one after the other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._address: str | None = None

    def join(self, ray: Any, address: str, connected: Future[None]) -> None:  # noqa: ANN401
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


# Never ended: after a run's end it left the next run's actors to die before they began (Ray 2.60;
# why is not known).
_CONNECTION = _RayConnection()


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
    options: dict[str, Any] = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    options["_system_config"] = {"gcs_rpc_server_reconnect_timeout_s": _HEAD_S}
    try:
        host, _, port = address.rpartition(":")
        if host and port.isdecimal():
            # Ray would wait for minutes, and no signal would end it.
            socket.create_connection((host, int(port)), timeout=_REACH_S).close()
        ray.init(
            address=address, logging_level=logging.ERROR, **(options if address == LOCAL else {})
        )
    except Exception as error:
        raise _no_cluster(address, error) from error


def _no_cluster(address: str, error: object) -> ConfigurationInvalid:
    return ConfigurationInvalid(
        f"there is no Ray cluster at '{address}' ({error}); start one with ray start --head, "
        'or give address = "local" for one on this machine',
        code="ray.unreachable",
    )


class _OnRay(OnWorkers):
    pickler = "ray.cloudpickle"

    def __init__(
        self,
        ray: Any,  # noqa: ANN401 - the library
        *,
        tracer: Tracer,
        content: ContentPolicy,
        give_again: Callable[[str], None],
    ) -> None:
        super().__init__(tracer=tracer, content=content, give_again=give_again)
        self.lost = (ray.exceptions.RayError,)
        self._ray = ray
        # Ray's form of `_perform`, by what it asks for: each one is sent to the cluster.
        self._functions_at: dict[tuple[Resources, bool], Any] = {}
        self._stored: OrderedDict[bytes, Any] = OrderedDict()
        self._switchboard: Any = None
        self._hearing: asyncio.Task[None] | None = None

    def close(self) -> None:
        if self._hearing is not None:
            self._hearing.cancel()
        if self._switchboard is not None:
            self._ray.kill(self._switchboard)

    async def send(self, call: PackedCall, on: Resources) -> PerformedCall:
        task = self._submitted(call, on)
        ended = asyncio.wrap_future(task.future())
        try:
            # By `wait`: cancelling an `await` would cancel `ended` before the worker is told.
            await asyncio.wait({ended})
        except asyncio.CancelledError:
            # Retrieves its error, or asyncio would complain that nothing did.
            ended.add_done_callback(lambda future: future.cancelled() or future.exception())
            # As Ctrl-C first, so that the node can clean up.
            self._ray.cancel(task)
            await asyncio.wait({ended}, timeout=_END_S)
            if not ended.done():
                self._ray.cancel(task, force=True)
            raise
        errors = self._ray.exceptions
        try:
            performed: PerformedCall = ended.result()
        except (errors.RayTaskError, errors.RuntimeEnvSetupError) as error:
            # Not the node's, which `perform` returns.
            raise ConfigurationInvalid(
                f"the cluster's workers cannot make calls ({error}); install the same version of "
                "harness there, and what the nodes import",
                code="ray.worker-unfit",
            ) from error
        except errors.RayError as error:
            lost = WorkerLost(f"its worker was lost ({type(error).__name__})")
            deaths = (errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError)
            if not call.asks and isinstance(error, deaths):
                lost.workers = on.max_retries + 1
            raise lost from error
        return performed

    def _submitted(self, call: PackedCall, on: Resources) -> Any:  # noqa: ANN401 - a reference of Ray's
        """The call as a task of the cluster's."""
        board = _RayBoard(self._opened_switchboard()) if call.asks else None
        inputs = call.arguments.items()
        small = {name: data for name, data in inputs if len(data) < _LARGE_BYTES}
        large = {name: self._put(data) for name, data in inputs if name not in small}
        try:
            function = self._function_for(on, call)
            return function.remote(call._replace(arguments=small), board, **large)
        except (TypeError, ValueError) as error:
            raise ConfigurationInvalid(
                f"Ray refuses what its on=Resources(...) asks for ({error}); change that",
                code="ray.resources-refused",
            ) from error

    def _put(self, data: bytes) -> Any:  # noqa: ANN401 - a reference of Ray's
        """An input in the object store: of equal ones, one."""
        digest = blake2b(data, digest_size=16).digest()
        if digest not in self._stored:
            self._stored[digest] = self._ray.put(data)
            if len(self._stored) > _LARGE_INPUTS:
                self._stored.popitem(last=False)  # calls under way keep it
        self._stored.move_to_end(digest)
        return self._stored[digest]

    def _function_for(self, on: Resources, call: PackedCall) -> Any:  # noqa: ANN401 - Ray's
        if (on, call.asks) not in self._functions_at:
            self._warn_if_too_much(on)
            options = task_options(on, asks=call.asks)
            self._functions_at[on, call.asks] = self._ray.remote(**options)(_perform)
        return self._functions_at[on, call.asks]

    def _warn_if_too_much(self, on: Resources) -> None:
        # Ray would wait without a word for a machine that has all of it.
        needed = {"CPU": on.cpus, "GPU": on.gpus, "memory": on.memory_bytes, **on.custom}
        if on.accelerator_type is not None:
            needed[f"accelerator_type:{on.accelerator_type}"] = 0.001
        machines = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if not any(all(has.get(k, 0) >= n for k, n in needed.items()) for has in machines):
            log_warning(
                "no machine of the cluster has what a node asks for; it waits until one joins",
                code="ray.no-such-worker",
                **{name: amount for name, amount in needed.items() if amount},
            )

    def _opened_switchboard(self) -> Any:  # noqa: ANN401 - a handle of Ray's
        if self._switchboard is None:
            ray = self._ray
            # On the driver's machine: the loss of another may cost only the calls there.
            strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
                ray.get_runtime_context().get_node_id(), soft=False
            )
            self._switchboard = (
                ray.remote(_Switchboard)
                # Each open question takes one of an actor's places, of which Ray gives 1,000: with
                # that many open, `answer` could not be called any more.
                .options(num_cpus=0, max_concurrency=100_000, scheduling_strategy=strategy)
                .remote()
            )
            # Not in a task group: it serves the calls of all nodes, until the run ends.
            hearing = self._hear_all(self._switchboard)
            self._hearing = asyncio.get_running_loop().create_task(hearing)
        return self._switchboard

    async def _hear_all(self, switchboard: Any) -> None:  # noqa: ANN401 - as above
        with suppress(self._ray.exceptions.RayError):
            while True:
                for call, number, data in await switchboard.take.remote():
                    # Answered where it was asked: another one counts its questions from 1 again.
                    answer = partial(switchboard.answer.remote, number)
                    self.hear(call, None if data is None else WorkerQuestion(data, answer))
        self._switchboard = None  # it has died: the workers' calls fail, and are sent again


def task_options(on: Resources, *, asks: bool) -> dict[str, Any]:
    """The options of a node's calls for Ray; `asks` says whether they may ask the driver."""
    return {
        "num_cpus": on.cpus,
        "num_gpus": on.gpus,
        "memory": on.memory_bytes or None,
        "resources": dict(on.custom) or None,
        "accelerator_type": on.accelerator_type,
        "runtime_env": None if on.runtime_env is None else dict(on.runtime_env),
        "scheduling_strategy": "SPREAD" if on.placement == "spread" else "DEFAULT",
        # The driver has to answer again what it answered to a lost call, so it has to know.
        "max_retries": 0 if asks else on.max_retries,
    }


# --- in a worker, and between ---------------------------------------------------------------------


def _perform(call: PackedCall, board: _RayBoard | None, /, **large: bytes) -> PerformedCall:
    performed = perform(call._replace(arguments={**call.arguments, **large}), board)
    with suppress(ImportError, AttributeError):  # Ray tells it nowhere else
        from ray._private.worker import global_worker  # noqa: PLC0415 - an optional library

        tries = global_worker.core_worker.get_current_task_attempt_number()
        performed = performed._replace(workers_lost=tries)
    return performed


class _RayBoard:
    """A `Board` by way of the switchboard."""

    def __init__(self, switchboard: Any) -> None:  # noqa: ANN401 - a handle of Ray's
        self._switchboard = switchboard
        self._open: set[Any] = set()

    def beat(self, call: int) -> object:
        return self._switchboard.beat.remote(call)

    async def ask(self, call: int, question: bytes) -> bytes:
        ref = self._switchboard.ask.remote(call, question)
        self._open.add(ref)
        try:
            answer: bytes = await ref
        finally:
            self._open.discard(ref)
        return answer

    def loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.SelectorEventLoop(_LendingSelector(self._open))


class _LendingSelector(selectors.DefaultSelector):
    """Waits as others do; while it waits for nothing but the driver, Ray may lend the CPU."""

    def __init__(self, open_questions: set[Any]) -> None:
        super().__init__()
        self._open = open_questions
        self._threads = threading.active_count()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # Its own pipe is the one file that an event loop always waits for.
        is_only = len(self.get_map()) == 1 and threading.active_count() <= self._threads
        if not (self._open and is_only) or (timeout is not None and timeout <= _LEND_AFTER_S):
            return super().select(timeout)
        if ready := super().select(_LEND_AFTER_S):
            return ready
        import ray  # noqa: PLC0415 - an optional library

        left_s = _LEND_S if timeout is None else min(timeout - _LEND_AFTER_S, _LEND_S)
        is_answered: list[Any] = []
        # By Ray's own call: it lends the CPU in those that block the main thread, and in no others.
        # The loop's own handler of Ctrl-C has run before, and cancelled the call.
        with suppress(KeyboardInterrupt):
            is_answered, _ = ray.wait([*self._open], num_returns=1, timeout=left_s)
        # The answer itself comes through the pipe, a moment later.
        return super().select(_LEND_AFTER_S if is_answered else 0)


class _Switchboard:
    """An actor that takes questions of workers, which cannot call a driver as it can call them."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._news: list[tuple[int, int, bytes | None]] = []
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._has_news = asyncio.Event()

    async def beat(self, call: int) -> None:
        self._add(call, 0, None)

    async def ask(self, call: int, question: bytes) -> bytes:
        number = next(self._numbers)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self._add(call, number, question)
        return await answer

    def _add(self, call: int, number: int, question: bytes | None) -> None:
        self._news.append((call, number, question))
        self._has_news.set()

    async def take(self) -> list[tuple[int, int, bytes | None]]:
        """For the driver: call, number and question of all that came, as soon as anything has."""
        await self._has_news.wait()
        self._has_news.clear()
        news, self._news = self._news, []
        return news

    async def answer(self, number: int, data: bytes) -> None:
        self._waiting.pop(number).set_result(data)
