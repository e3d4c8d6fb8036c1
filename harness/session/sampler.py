"""Samples servers while a run is on: what they say about themselves becomes counters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from harness.inference import MetricsSource
from harness.log import log_warning
from harness.trace import Tracer, describe


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """A server to sample."""

    source: MetricsSource
    """Asks it."""
    track: str
    """Where its counters are drawn: `server <tag>`."""
    called: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at the first call to it: a server that the run does not use is left alone."""


@asynccontextmanager
async def sampling(
    servers: Iterable[Sampled], *, tracer: Tracer, every_s: float = 0.25
) -> AsyncIterator[None]:
    """Samples every server from its first call until the block is left, then closes the sources.

    A slow server delays nobody but its own next sample. A source may ask for longer pauses.

    Args:
        servers: Each once.
        tracer: Gets a counter when a value is new.
        every_s: The pause between two samples of one server.
    """
    group = asyncio.TaskGroup()
    async with AsyncExitStack() as stack:
        for server in servers:
            stack.push_async_callback(server.source.aclose)
        # Not `async with group`: what goes wrong in the run would leave it in an exception group.
        await group.__aenter__()
        stack.push_async_callback(group.__aexit__, None, None, None)
        for server in servers:
            task = group.create_task(_sample(server, tracer=tracer, every_s=every_s))
            stack.callback(task.cancel)
        yield


async def _sample(server: Sampled, *, tracer: Tracer, every_s: float) -> None:
    await server.called.wait()
    written: dict[str, float] = {}
    try:
        while True:
            for reading in await server.source.read():
                if reading.value != written.get(reading.name):
                    written[reading.name] = reading.value
                    tracer.counter(
                        reading.name, reading.value, unit=reading.unit, track=server.track
                    )
            await asyncio.sleep(max(every_s, server.source.pause_s))
    except Exception as error:  # noqa: BLE001 - a server's word about itself must not end the run
        log_warning(
            "a server is sampled no more",
            code="sampling.stopped",
            server=server.track,
            error=describe(error),
        )
