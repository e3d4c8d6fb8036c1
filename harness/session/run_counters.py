"""Counters on a run's timeline: from servers, and from this machine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from harness.hardware.machine import CoreUse, Gpus, ProcessUse, core_use, opened_gpus, process_use
from harness.inference.providers.counters import Reading
from harness.log import log_warning
from harness.trace import Clock, Tracer, describe

_MIB = 1 << 20


class Source(Protocol):
    """Tells readings, asked again and again by one task."""

    @property
    def pause_s(self) -> float:
        """The least time between the end of a read and the next."""
        ...

    async def read(self) -> tuple[Reading, ...]:
        """Quantities as they are now."""
        ...

    async def aclose(self) -> None:
        """Lets go of what it holds."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """A server or device to sample."""

    source: Source
    track: str
    """Where its counters are drawn: `server <tag>`, `machine`, `gpu0`, …"""
    called: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at the first call to it: a server that the run does not use is left alone."""


@asynccontextmanager
async def sampling(
    servers: Iterable[Sampled], *, tracer: Tracer, every_s: float = 0.25
) -> AsyncIterator[None]:
    """Samples every server from its first call until the block is left, then closes the sources.

    A slow server delays only its own next sample. A source may ask for longer pauses.
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
            await tracer.listened_to()
            for reading in await server.source.read():
                if reading.value != written.get(reading.name):
                    written[reading.name] = reading.value
                    tracer.counter(
                        reading.name, reading.value, unit=reading.unit, track=server.track
                    )
            await asyncio.sleep(max(every_s, server.source.pause_s))
    except Exception as error:  # noqa: BLE001 - a server's word about itself must not end the run
        log_warning(
            "a server's counters are no longer read",
            code="sampling.stopped",
            server=server.track,
            error=describe(error),
        )


@contextmanager
def device_sources(
    engines: Mapping[str, Callable[[], int | None]], *, clock: Clock
) -> Iterator[list[Sampled]]:
    """What to sample of the machine; the driver of its GPUs stays open for the block.

    Args:
        engines: By track, the process of each engine that was started here, None while there is
            none.
        clock: In nanoseconds.
    """
    with opened_gpus() as gpus:
        sources: dict[str, Source] = {"machine": CoreSource()}
        sources["process harness"] = ProcessSource(os.getpid, clock=clock)
        for track, process_id in engines.items():
            sources[track] = ProcessSource(process_id, clock=clock)
        if gpus is not None:
            for number, gpu in enumerate(gpus.found):
                sources[gpu.name] = GpuSource(gpus, number)
        sampled = [Sampled(source=source, track=track) for track, source in sources.items()]
        for entry in sampled:
            entry.called.set()
        yield sampled


class _LocalSource:
    pause_s = 0.0

    async def aclose(self) -> None:
        """Holds nothing."""


class CoreSource(_LocalSource):
    """How busy all cores were since the last reading, by any program."""

    def __init__(self) -> None:
        self._before: CoreUse | None = None

    async def read(self) -> tuple[Reading, ...]:
        """Nothing at first, or where Linux does not count."""
        before, current = self._before, core_use()
        self._before = current
        if before is None or current is None or current.total_s <= before.total_s:
            return ()
        share = (current.busy_s - before.busy_s) / (current.total_s - before.total_s)
        return (Reading(name="cores in use", unit="share", value=round(share, 3)),)


class ProcessSource(_LocalSource):
    """What one process took since the last reading, in cores, and what it holds of memory.

    `process_id` gives that of the process as it is now; None while there is none.
    """

    def __init__(self, process_id: Callable[[], int | None], *, clock: Clock) -> None:
        self._process_id = process_id
        self._clock = clock
        self._before: tuple[int, int, ProcessUse] | None = None

    async def read(self) -> tuple[Reading, ...]:
        """Of the cores it used nothing at first, or after another process took its place."""
        process_id, now_ns = self._process_id(), self._clock()
        current = None if process_id is None else process_use(process_id)
        before, self._before = self._before, None
        if process_id is None or current is None:
            return ()
        self._before = process_id, now_ns, current
        resident_bytes = current.resident_bytes // _MIB * _MIB
        readings = [
            Reading(name="process memory", unit="bytes", value=resident_bytes),
            Reading(name="page", unit="faults", value=current.page_faults),
        ]
        if before is not None and before[0] == process_id and now_ns > before[1]:
            cores = (current.cpu_s - before[2].cpu_s) * 1e9 / (now_ns - before[1])
            readings.append(Reading(name="CPU", unit="cores", value=round(cores, 2)))
        return tuple(readings)


class GpuSource(_LocalSource):
    """What one GPU does."""

    def __init__(self, gpus: Gpus, number: int) -> None:
        self._gpus = gpus
        self._number = number

    async def read(self) -> tuple[Reading, ...]:
        """What it tells; asked in a thread, since a driver may take its time."""
        state = await asyncio.to_thread(self._gpus.state, self._number)
        quantities = (
            ("in use", "share", state.busy),
            ("memory in use", "share", state.memory_busy),
            ("memory taken", "bytes", state.used_bytes),
            ("power", "W", state.power_w),
        )
        return tuple(
            Reading(name=name, unit=unit, value=value)
            for name, unit, value in quantities
            if value is not None
        )
