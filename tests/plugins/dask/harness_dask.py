"""Nodes on Dask: calls that ask for `Resources` are tasks of a cluster, all others run here.

`harness run pipeline.py --on dask`; the address is a scheduler's, or `local` for a cluster of this
process. Memory and GPUs are Dask's resources `MEMORY` and `GPU`, which a worker declares: `dask
worker … --resources GPU=1`. Start a scheduler of your own with
`DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES=0`, or it repeats calls of lost workers unseen.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import dask
from distributed import Client, KilledWorker, LocalCluster, Queue, worker_client
from distributed.client import FutureCancelledError

from harness import Resources
from harness.errors import ConfigurationInvalid, WorkerLost
from harness.graph.executor import LOCAL, Executor
from harness.graph.worker_calls import (
    OnWorkers,
    PackedCall,
    PerformedCall,
    WorkerQuestion,
    own_modules_by_value,
    perform,
)
from harness.trace import ContentPolicy, Tracer


@asynccontextmanager
async def on_dask(
    address: str | None,
    *,
    tracer: Tracer,
    content: ContentPolicy,
    give_again: Callable[[str], None],
) -> AsyncIterator[Executor]:
    """See `harness.graph.executor.OpenExecutor`.

    Raises:
        ConfigurationInvalid: No scheduler answers at the address.
    """
    try:
        if address in {None, LOCAL}:
            # A lost call is `WorkerLost` at once: Dask would send it again by itself.
            dask.config.set({"distributed.scheduler.allowed-failures": 0})
            cluster = await LocalCluster(asynchronous=True, dashboard_address=None)
            client = await Client(cluster, asynchronous=True)
        else:
            cluster = None
            client = await Client(address, asynchronous=True, timeout="5s")
    except OSError as error:
        raise ConfigurationInvalid(
            f"no Dask scheduler answers at '{address}' ({error}); start one with dask scheduler",
            code="dask.unreachable",
        ) from error
    executor = _OnDask(client, tracer=tracer, content=content, give_again=give_again)
    try:
        with own_modules_by_value(executor.pickler):
            yield executor
    finally:
        await executor.close()
        await client.close()
        if cluster is not None:
            await cluster.close()


class _OnDask(OnWorkers):
    def __init__(self, client: Client, **run: Any) -> None:
        super().__init__(**run)
        self._client = client
        self._inbox = f"harness-{uuid4().hex}"
        self._hearing: asyncio.Task[None] | None = None

    async def close(self) -> None:
        if self._hearing is not None:
            self._hearing.cancel()
            await asyncio.wait({self._hearing})

    async def send(self, call: PackedCall, on: Resources) -> PerformedCall:
        """See `OnWorkers.send`."""
        if call.asks and self._hearing is None:
            self._hearing = asyncio.create_task(self._hear_all())
        needed = {"GPU": on.gpus, "MEMORY": on.memory_bytes}
        future = self._client.submit(
            _perform,
            call,
            self._inbox if call.asks else None,
            key=f"{call.label}-{uuid4().hex}",
            resources={name: number for name, number in needed.items() if number},
            pure=False,
            retries=0,  # `OnWorkers` decides whether a lost call is made again
        )
        try:
            performed: PerformedCall = await future.result()
        except asyncio.CancelledError:
            await future.cancel(force=True)
            raise
        except (KilledWorker, FutureCancelledError) as error:
            raise WorkerLost(f"its worker was lost ({type(error).__name__})") from error
        return performed

    async def _hear_all(self) -> None:
        inbox = await Queue(self._inbox, client=self._client)
        while True:
            call, outbox, data = await inbox.get()
            if data is None:
                self.hear(call, None)
                continue
            self.hear(
                call,
                WorkerQuestion(data, lambda answer, outbox=outbox: self._answer(outbox, answer)),
            )

    def _answer(self, outbox: str, answer: bytes) -> asyncio.Task[None]:
        async def put() -> None:
            await (await Queue(outbox, client=self._client)).put(answer)

        return asyncio.create_task(put())


def _perform(call: PackedCall, inbox: str | None) -> PerformedCall:
    """In a thread of a worker."""
    if inbox is None:
        return perform(call, None)
    with worker_client() as client:
        return perform(call, _Board(client, inbox))


class _Board:
    """A `Board` by way of queues of the scheduler."""

    def __init__(self, client: Client, inbox: str) -> None:
        self._client = client
        self._inbox = Queue(inbox, client=client)

    def beat(self, call: int) -> None:
        self._inbox.put((call, "", None))

    async def ask(self, call: int, question: bytes) -> bytes:
        outbox = f"harness-{uuid4().hex}"

        def exchange() -> bytes:
            self._inbox.put((call, outbox, question))
            return Queue(outbox, client=self._client).get()

        return await asyncio.to_thread(exchange)
