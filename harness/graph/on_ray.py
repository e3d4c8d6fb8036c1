"""Nodes on Ray: calls that ask for `Resources` are tasks of a cluster, all others run here."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import partial
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

_END_S = 0.5
"""How long a cancelled call may take to end before its process is killed."""
_CONNECT_S, _REACH_S = 60.0, 5.0
"""How long a cluster may take to start or to be joined, and its address to answer at all."""
_HEAD_S = 10
"""How long the head of a cluster of our own may be away until Ray ends this process: it is started
again by no one. Other clusters may have one that is, and keep Ray's own 60 s."""


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
    cluster is started here, for one process.

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
    """Ray has one for a process, which runs share, side by side and one after the other.

    It ends with the process. Ended after each run, as it once was, it left the next run's actors to
    die before they began (Ray 2.60; why is not known).
    """

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
        self._tasks: dict[Resources, Any] = {}  # each one is sent to the cluster
        self._switchboard: Any = None
        self._hearing: asyncio.Task[None] | None = None

    def close(self) -> None:
        if self._hearing is not None:
            self._hearing.cancel()
        if self._switchboard is not None:
            self._ray.kill(self._switchboard)

    async def send(self, call: PackedCall, on: Resources) -> PerformedCall:
        board = _RayBoard(self._opened_switchboard()) if call.asks else None
        ref = self._task_for(on).remote(call, board)
        ended = asyncio.wrap_future(ref.future())
        try:
            # By `wait`: cancelling an `await` would cancel `ended` before the worker is told.
            await asyncio.wait({ended})
        except asyncio.CancelledError:
            # Retrieves its error, or asyncio would complain that nothing did.
            ended.add_done_callback(lambda future: future.cancelled() or future.exception())
            # As Ctrl-C first, so that the node can clean up.
            self._ray.cancel(ref)
            await asyncio.wait({ended}, timeout=_END_S)
            if not ended.done():
                self._ray.cancel(ref, force=True)
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
            raise WorkerLost(f"its worker was lost ({type(error).__name__})") from error
        return performed

    def _task_for(self, on: Resources) -> Any:  # noqa: ANN401 - a function of Ray's
        if on not in self._tasks:
            self._warn_if_too_much(on)
            self._tasks[on] = self._ray.remote(
                num_cpus=on.cpus,
                num_gpus=on.gpus,
                memory=on.memory_bytes or None,
                max_retries=0,  # `OnWorkers` decides whether a lost call is made again
            )(perform)
        return self._tasks[on]

    def _warn_if_too_much(self, on: Resources) -> None:
        # Ray would wait without a word for a machine that has all of it.
        needed = {"CPU": on.cpus, "GPU": on.gpus, "memory": on.memory_bytes}
        machines = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if not any(all(has.get(k, 0) >= n for k, n in needed.items()) for has in machines):
            log_warning(
                "no machine of the cluster has what a node asks for; it waits until one joins",
                code="ray.no-such-worker",
                cpus=on.cpus,
                gpus=on.gpus,
                memory=on.memory,
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


# --- in a worker, and between ---------------------------------------------------------------------


class _RayBoard:
    """A `Board` by way of the switchboard."""

    def __init__(self, switchboard: Any) -> None:  # noqa: ANN401 - a handle of Ray's
        self._switchboard = switchboard

    def beat(self, call: int) -> object:
        return self._switchboard.beat.remote(call)

    async def ask(self, call: int, question: bytes) -> bytes:
        answer: bytes = await self._switchboard.ask.remote(call, question)
        return answer


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
