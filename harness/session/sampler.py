"""Samples servers while a run is on: what they say about themselves becomes counters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from harness.inference import MetricsSource
from harness.trace import Tracer


@asynccontextmanager
async def sampling(
    sources: Mapping[str, MetricsSource], *, tracer: Tracer, every_s: float = 0.25
) -> AsyncIterator[None]:
    """Samples every source until the block is left, then closes it.

    A slow server delays nobody but its own next sample. A source may ask for longer pauses.

    Args:
        sources: By tag of their endpoints.
        tracer: Gets a counter when a value is new, on the track `server <tag>`.
        every_s: The pause between two samples of one server.
    """
    group = asyncio.TaskGroup()
    async with AsyncExitStack() as stack:
        for source in sources.values():
            stack.push_async_callback(source.aclose)
        # Not `async with group`: what goes wrong in the run would leave it in an exception group.
        await group.__aenter__()
        stack.push_async_callback(group.__aexit__, None, None, None)
        for tag, source in sources.items():
            task = group.create_task(_sample(source, tag, tracer=tracer, every_s=every_s))
            stack.callback(task.cancel)
        yield


async def _sample(source: MetricsSource, tag: str, *, tracer: Tracer, every_s: float) -> None:
    written: dict[str, float] = {}
    while True:
        for reading in await source.read():
            if reading.value != written.get(reading.name):
                written[reading.name] = reading.value
                tracer.counter(
                    reading.name, reading.value, unit=reading.unit, track=f"server {tag}"
                )
        await asyncio.sleep(max(every_s, source.pause_s))
