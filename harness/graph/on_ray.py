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
# How long the head of a cluster that was started here may be away until Ray ends this process:
# nothing starts that head again. For other clusters, Ray's own 60 s apply.
_HEAD_S = 10
# Inputs from this size on are put into the object store once: as a call's argument, Ray would put
# a copy there for each call. The last few are remembered for further calls.
_LARGE_BYTES, _MOST_STORED = 100_000, 16
# How long a node waits for the driver until it lends its CPU to other tasks, and how long it lends
# the CPU until it looks whether its own event loop has other work.
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
    """Makes calls on the workers of a cluster; see `harness.graph.executor.OpenExecutor`.

    A process that is connected to a cluster already uses that. Without an address, `RAY_ADDRESS`
    counts, or else a cluster is started here, for this process. Raises `ConfigurationInvalid` if
    Ray is not installed, there is no cluster at the address, or this process has been connected to
    another.
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
            sigterm_handler = signal.getsignal(signal.SIGTERM)
            await asyncio.to_thread(_CONNECTION.join, ray, address, connected)
            # Ray has set its own handler. Outside the main thread none can be set back.
            with suppress(ValueError):
                signal.signal(signal.SIGTERM, sigterm_handler)
        with own_modules_by_value(executor.pickler):
            yield executor
    finally:
        executor.close()
        # Otherwise, after Ctrl-C, the loop would wait for the thread in `join`.
        connected.cancel()


class _RayConnection:
    """The connection of this process to Ray, which has one for a process; all runs share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._address: str | None = None

    def join(self, ray: Any, address: str, connected: Future[None]) -> None:  # noqa: ANN401
        """Connects this process, unless it is connected; cancelling `connected` ends the wait."""
        with self._lock:
            if ray.is_initialized() and self._address not in {None, address}:
                raise ConfigurationInvalid(
                    f"an earlier run has connected this process to Ray at '{self._address}', and "
                    f"it cannot be connected to '{address}' too; run that in another process",
                    code="ray.other-address",
                )
            if not ray.is_initialized():
                # In a thread that never ends, since Ray's processes end with the thread that
                # started them.
                arguments = (ray, address, connected)
                threading.Thread(target=_connect_and_stay, args=arguments, daemon=True).start()
                try:
                    connected.result(timeout=_CONNECT_S)
                except TimeoutError:
                    raise _no_cluster(address, f"no answer in {_CONNECT_S:g} s") from None
                self._address = address


# Stays open when a run ends: if it was closed, the actors of the next run died before they began
# (Ray 2.60; the reason is unknown).
_CONNECTION = _RayConnection()


def _connect_and_stay(ray: Any, address: str, connected: Future[None]) -> None:  # noqa: ANN401
    with suppress(InvalidStateError):  # `connected` was cancelled
        try:
            _connect(ray, address)
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            connected.set_exception(error)
            return
        connected.set_result(None)
    threading.Event().wait()


def _connect(ray: Any, address: str) -> None:  # noqa: ANN401 - the library
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to Ray's makers
    options: dict[str, Any] = {}
    if address == LOCAL:
        options = {
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
            "_system_config": {"gcs_rpc_server_reconnect_timeout_s": _HEAD_S},
        }
    try:
        host, _, port = address.rpartition(":")
        if host and port.isdecimal():
            # Tried first: Ray would wait for minutes, and no signal would end that.
            socket.create_connection((host, int(port)), timeout=_REACH_S).close()
        ray.init(address=address, logging_level=logging.ERROR, **options)
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

    def __init__(self, ray: Any, **run: Any) -> None:  # noqa: ANN401 - the library
        super().__init__(**run)
        self.lost = (ray.exceptions.RayError,)
        self._ray = ray
        # (resources, whether it may ask the driver) → `_perform` as a remote function, which Ray
        # sends to the cluster once.
        self._remote_functions: dict[tuple[Resources, bool], Any] = {}
        # Digest of a large input → its reference in the object store, the latest used last.
        self._stored: OrderedDict[bytes, Any] = OrderedDict()
        self._switchboard: Any = None
        self._listener: asyncio.Task[None] | None = None

    def close(self) -> None:
        if self._listener is not None:
            self._listener.cancel()
        if self._switchboard is not None:
            self._ray.kill(self._switchboard)

    async def send(self, call: PackedCall, on: Resources) -> PerformedCall:
        task = self._submit(call, on)
        result = asyncio.wrap_future(task.future())
        try:
            # Not `await result`: this would be cancelled itself, before Ray cancels the task.
            await asyncio.wait({result})
        except asyncio.CancelledError:
            # Retrieves its error, or asyncio would complain that nothing did.
            result.add_done_callback(lambda future: future.cancelled() or future.exception())
            # First as Ctrl-C does, so that the node can clean up.
            self._ray.cancel(task)
            await asyncio.wait({result}, timeout=_END_S)
            if not result.done():
                self._ray.cancel(task, force=True)
            raise
        errors = self._ray.exceptions
        try:
            performed: PerformedCall = result.result()
        except (errors.RayTaskError, errors.RuntimeEnvSetupError) as error:
            # No error of the node, which `perform` would have returned.
            raise ConfigurationInvalid(
                f"the cluster's workers cannot make calls ({error}); install the same version of "
                "harness there, and what the nodes import",
                code="ray.worker-unfit",
            ) from error
        except errors.RayError as error:
            lost = WorkerLost(f"its worker was lost ({type(error).__name__})")
            deaths = (errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError)
            if not call.asks and isinstance(error, deaths):
                # Ray itself has made the call again before, each time on another worker: see
                # `max_retries` in `task_options`.
                lost.workers = on.max_retries + 1
            raise lost from error
        return performed

    def _submit(self, call: PackedCall, on: Resources) -> Any:  # noqa: ANN401 - a reference of Ray's
        """Makes the call a task of the cluster."""
        board = _RayBoard(self._open_switchboard()) if call.asks else None
        inputs = call.arguments
        small = {name: data for name, data in inputs.items() if len(data) < _LARGE_BYTES}
        large = {name: self._put(data) for name, data in inputs.items() if name not in small}
        try:
            function = self._remote_function(on, asks=call.asks)
            return function.remote(call._replace(arguments=small), board, **large)
        except (TypeError, ValueError) as error:
            raise ConfigurationInvalid(
                f"Ray refuses what its on=Resources(...) asks for ({error}); change that",
                code="ray.resources-refused",
            ) from error

    def _put(self, data: bytes) -> Any:  # noqa: ANN401 - a reference of Ray's
        """Puts an input into the object store, unless an equal one is there; its reference."""
        digest = blake2b(data, digest_size=16).digest()
        if digest not in self._stored:
            self._stored[digest] = self._ray.put(data)
            if len(self._stored) > _MOST_STORED:
                # Ray keeps it as long as a call under way needs it.
                self._stored.popitem(last=False)
        self._stored.move_to_end(digest)
        return self._stored[digest]

    def _remote_function(self, on: Resources, *, asks: bool) -> Any:  # noqa: ANN401 - Ray's
        if (on, asks) not in self._remote_functions:
            self._warn_if_too_much(on)
            options = task_options(on, asks=asks)
            self._remote_functions[on, asks] = self._ray.remote(**options)(_perform)
        return self._remote_functions[on, asks]

    def _warn_if_too_much(self, on: Resources) -> None:
        # Ray would wait without a message until a machine has all of it.
        needed = {"CPU": on.cpus, "GPU": on.gpus, "memory": on.memory_bytes, **on.custom}
        if on.accelerator_type is not None:
            # A machine with the accelerator has 1 of this resource, and a call takes 0.001 of it.
            needed[f"accelerator_type:{on.accelerator_type}"] = 0.001
        machines = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        is_enough = any(
            all(machine.get(name, 0) >= amount for name, amount in needed.items())
            for machine in machines
        )
        if not is_enough:
            log_warning(
                "no machine of the cluster has what a node asks for; it waits until one joins",
                code="ray.no-such-worker",
                **{name: amount for name, amount in needed.items() if amount},
            )

    def _open_switchboard(self) -> Any:  # noqa: ANN401 - a handle of Ray's
        """Starts the switchboard, unless there is one."""
        if self._switchboard is None:
            ray = self._ray
            # On the driver's machine: the loss of another must cost only the calls there.
            strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
                ray.get_runtime_context().get_node_id(), soft=False
            )
            self._switchboard = (
                ray.remote(_Switchboard)
                # Each open question takes one of an actor's places. Ray gives 1,000 by default;
                # with that many open, `answer` could not be called any more.
                .options(num_cpus=0, max_concurrency=100_000, scheduling_strategy=strategy)
                .remote()
            )
            # Not in a task group: it serves the calls of all nodes, until the run ends.
            listening = self._listen(self._switchboard)
            self._listener = asyncio.get_running_loop().create_task(listening)
        return self._switchboard

    async def _listen(self, switchboard: Any) -> None:  # noqa: ANN401 - as above
        """Passes on the questions and signs of life of all workers."""
        with suppress(self._ray.exceptions.RayError):
            while True:
                for call, number, data in await switchboard.take.remote():
                    if data is None:
                        self.hear(call, None)
                        continue
                    # By this switchboard, as a later one would count its questions from 1 again.
                    answer = partial(switchboard.answer.remote, number)
                    self.hear(call, WorkerQuestion(data, answer))
        # It has died: the calls of the workers fail, and are sent again with a new one.
        self._switchboard = None


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
        # If Ray made a call again that asks the driver, the driver would not know that it has to
        # answer the same questions once more.
        "max_retries": 0 if asks else on.max_retries,
    }


# --- in a worker, and between ---------------------------------------------------------------------


def _perform(call: PackedCall, board: _RayBoard | None, /, **large: bytes) -> PerformedCall:
    performed = perform(call._replace(arguments={**call.arguments, **large}), board)
    # No public interface of Ray has the number of attempts.
    with suppress(ImportError, AttributeError):
        from ray._private.worker import global_worker  # noqa: PLC0415 - an optional library

        earlier_attempts = global_worker.core_worker.get_current_task_attempt_number()
        performed = performed._replace(workers_lost=earlier_attempts)
    return performed


class _RayBoard:
    """A `Board` by way of the switchboard."""

    def __init__(self, switchboard: Any) -> None:  # noqa: ANN401 - a handle of Ray's
        self._switchboard = switchboard
        self._open_questions: set[Any] = set()  # Ray's references of the answers

    def beat(self, call: int) -> object:
        return self._switchboard.beat.remote(call)

    async def ask(self, call: int, question: bytes) -> bytes:
        reference = self._switchboard.ask.remote(call, question)
        self._open_questions.add(reference)
        try:
            answer: bytes = await reference
        finally:
            self._open_questions.discard(reference)
        return answer

    def loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.SelectorEventLoop(_LendingSelector(self._open_questions))


class _LendingSelector(selectors.DefaultSelector):
    """Lets Ray lend this worker's CPU while the event loop waits for nothing but the driver."""

    def __init__(self, open_questions: set[Any]) -> None:
        super().__init__()
        self._open_questions = open_questions
        self._threads = threading.active_count()  # before the node can start any

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # An event loop always waits for one file, its own pipe. Threads of the node would need the
        # CPU.
        is_idle = len(self.get_map()) == 1 and threading.active_count() <= self._threads
        is_short = timeout is not None and timeout <= _LEND_AFTER_S
        if not self._open_questions or not is_idle or is_short:
            return super().select(timeout)
        if ready := super().select(_LEND_AFTER_S):
            return ready
        import ray  # noqa: PLC0415 - an optional library

        lend_s = _LEND_S if timeout is None else min(timeout - _LEND_AFTER_S, _LEND_S)
        answered: list[Any] = []
        # Ray lends the CPU only during its own calls that block the main thread. When Ctrl-C
        # interrupts one, the event loop's handler has cancelled the node already.
        with suppress(KeyboardInterrupt):
            answered, _ = ray.wait([*self._open_questions], num_returns=1, timeout=lend_s)
        # The answer itself comes through the pipe, a moment later.
        return super().select(_LEND_AFTER_S if answered else 0)


class _Switchboard:
    """An actor between workers and the driver, since in Ray a worker cannot call the driver.

    Workers call `beat` and `ask`, the driver `take` and `answer`.
    """

    def __init__(self) -> None:
        self._numbers = count(1)
        # (number of the call, number of the question, question); None is a sign of life.
        self._messages: asyncio.Queue[tuple[int, int, bytes | None]] = asyncio.Queue()
        self._answers: dict[int, asyncio.Future[bytes]] = {}  # by the number of the question

    async def beat(self, call: int) -> None:
        self._messages.put_nowait((call, 0, None))

    async def ask(self, call: int, question: bytes) -> bytes:
        number = next(self._numbers)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        self._messages.put_nowait((call, number, question))
        return await answer

    async def take(self) -> list[tuple[int, int, bytes | None]]:
        """Waits for messages, and removes and returns all that have come."""
        messages = [await self._messages.get()]
        while not self._messages.empty():
            messages.append(self._messages.get_nowait())
        return messages

    async def answer(self, number: int, data: bytes) -> None:
        self._answers.pop(number).set_result(data)
