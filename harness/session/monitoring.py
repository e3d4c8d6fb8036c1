"""What a recorded run shows beside its calls: of its event loop, its servers and the machine.

`heartbeat` records when the loop is blocked, and by which function. `sampling` records counters of
servers, processes, cores and GPUs. `record_machine_speed` records the limits to which the run's
speed is compared. `open_models` starts and ends all three.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import sysconfig
import threading
import time
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Protocol

from pydantic import BaseModel, ValidationError

from harness.errors import ModelFileInvalid
from harness.files import whole_file
from harness.hardware import Loading, prompt_kv_bytes, read_gguf_header
from harness.hardware.machine import (
    CoreUse,
    Gpus,
    ProcessUse,
    core_count,
    core_use,
    memory_bytes_per_s,
    opened_gpus,
    process_use,
    read_gpus,
)
from harness.inference import MACHINE, Endpoint
from harness.inference.providers.counters import Reading
from harness.log import log_warning
from harness.trace import Clock, Interval, Tracer, describe, events
from harness.trace.clock import boot_id
from harness.trace.stalls import BEAT_NS

# A stall of this length is inspected, and again after the same time.
_LOOK_S = 0.05

_LOOKING = threading.Lock()
# Successive stalls are recorded together, up to this length.
_LONGEST_NS = 1_000_000_000

_LIBRARIES = tuple(
    sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_OWN = str(Path(__file__).parents[1])
# Modules whose functions call the code that the loop runs.
_LOOP = {"asyncio.events", "asyncio.base_events", "asyncio.runners"}

_MIB = 1 << 20

KEPT = ".machine.json"
"""The file beside the runs with measurements, valid until the machine restarts."""


# --- stalls of the event loop ---------------------------------------------------------------------


@contextmanager
def heartbeat(tracer: Tracer) -> Iterator[None]:
    """Beats inside the block, for recorded runs; enter it in their loop.

    Each stall is a span `client lag`. `at` is the place where the loop was found, as file and line,
    and `function` is the innermost function there, if possible the user's own. Both are missing for
    a short stall, and for one in which the whole process did not run.
    """
    if not tracer.is_recorded:
        yield
        return
    heart = _Heart(tracer)
    ended = threading.Event()
    watch = threading.Thread(target=heart.watch, args=(ended,), name="harness-stalls", daemon=True)
    watch.start()
    heart.beat()
    try:
        yield
    finally:
        heart.stop()
        ended.set()


class _Heart:
    """Notices the stalls of its loop, and records successive ones together as one span."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._next: asyncio.TimerHandle | None = None
        self._unrecorded_stalls: list[Interval] = []
        # Function → how often the watch saw the loop in it since the last record.
        self._looks_by_function: Counter[str | None] = Counter()
        # Function → the line at which the watch saw it last, as `file.py:12`.
        self._line_by_function: dict[str | None, str | None] = {}
        # The loop's processor time at the last record, and that of garbage collection since.
        self._computed_ns = time.thread_time_ns()
        self._collected_ns = 0
        self._collects_since_ns = 0
        gc.callbacks.append(self._note_collection)

    def beat(self) -> None:
        stall = self._tracer.stalls.beat()
        if stall is None:
            self._record()
        else:
            self._unrecorded_stalls.append(stall)
            if stall.end_ns - self._unrecorded_stalls[0].start_ns >= _LONGEST_NS:
                self._record()
        self._next = self._loop.call_later(BEAT_NS / 1e9, self.beat)

    def stop(self) -> None:
        if self._next is not None:
            self._next.cancel()
        gc.callbacks.remove(self._note_collection)
        if (stall := self._tracer.stalls.beat()) is not None:
            self._unrecorded_stalls.append(stall)
        self._record()
        self._tracer.stalls.stop()

    def watch(self, ended: threading.Event) -> None:
        """In a thread: checks regularly whether the loop runs and, if not, where it is."""
        while not ended.wait(_LOOK_S):
            if self._tracer.stalls.overdue_ns >= _LOOK_S * 1e9:
                frame = _frame_of(self._thread)
                # The thread runs on meanwhile, and a frame that has ended may lead nowhere.
                if frame is not None:
                    with suppress(AttributeError):
                        line, function = _place(frame)
                        # Not by line: a loop of several lines would divide the looks among them.
                        self._looks_by_function[function] += 1
                        self._line_by_function[function] = line

    def _record(self) -> None:
        looks, self._looks_by_function = self._looks_by_function, Counter()
        before_ns, self._computed_ns = self._computed_ns, time.thread_time_ns()
        collected_ns, self._collected_ns = self._collected_ns, 0
        if not self._unrecorded_stalls:
            return
        stalls, self._unrecorded_stalls = self._unrecorded_stalls, []
        longest_ns = max(stall.duration_ns for stall in stalls)
        stood_ns = sum(stall.duration_ns for stall in stalls)
        function, count = looks.most_common(1)[0] if looks else (None, 0)
        at = self._line_by_function.get(function)
        # Code that computes keeps the watch from looking, and other programs this whole process:
        # then a look or two would blame whatever line came next.
        seen_ns = max(self._computed_ns - before_ns, count * _LOOK_S * 1e9)
        if 2 * collected_ns > stood_ns:
            at, function = None, "garbage collection"
        elif 2 * count <= looks.total() or 4 * seen_ns < stood_ns:
            at = function = None
        lag = events.ClientLag(track="client lag", longest_ns=longest_ns, at=at, function=function)
        start_ns = stalls[0].start_ns + BEAT_NS
        self._tracer.completed_span(lag, start_ns=start_ns, end_ns=stalls[-1].end_ns)

    def _note_collection(self, phase: str, _info: dict[str, int]) -> None:
        # Processor time: by the clock, a process that others keep waiting would "collect" too.
        now_ns = time.thread_time_ns()
        if phase == "start":
            self._collects_since_ns = now_ns
        else:
            self._collected_ns += now_ns - self._collects_since_ns


def _frame_of(thread: int) -> FrameType | None:
    # Were garbage collected meanwhile, its callbacks would let other threads run, and one that
    # starts waits for a lock that is held here: the process stands still (CPython gh-106883).
    with _LOOKING:
        collects = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames().get(thread)  # noqa: SLF001 - documented
        finally:
            if collects:
                gc.enable()


def _place(innermost: FrameType) -> tuple[str | None, str | None]:
    """Where the loop is, as `file.py:12`, and in which function; nowhere in code of harness."""
    frame: FrameType | None = innermost
    while frame is not None and frame.f_globals.get("__name__") not in _LOOP:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        # The frames further out await harness, and are not at work.
        if file.startswith(_OWN):
            break
        is_library = file.startswith((*_LIBRARIES, "<")) or "site-packages" in file
        if not is_library and not name.startswith("<"):  # <listcomp> stands in a function
            return f"{Path(file).name}:{frame.f_lineno}", name
        frame = frame.f_back
    return None, None


# --- counters of servers and devices --------------------------------------------------------------


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
    servers: Collection[Sampled], *, tracer: Tracer, every_s: float = 0.25
) -> AsyncIterator[None]:
    """Samples every server from its first call until the block is left, then closes the sources."""
    group = asyncio.TaskGroup()
    async with AsyncExitStack() as stack:
        for server in servers:
            stack.push_async_callback(server.source.aclose)
        # Not `async with group`: what goes wrong in the run would leave it in an exception group.
        await group.__aenter__()
        stack.push_async_callback(group.__aexit__, None, None, None)
        # A task for each: a slow server delays only its own next sample.
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

    `engines` say, by track, the process of each engine that was started here; None for none.
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
    """What one process took since the last reading, in cores, and what it holds of memory."""

    def __init__(self, process_id: Callable[[], int | None], *, clock: Clock) -> None:
        self._process_id = process_id
        self._clock = clock
        self._before: tuple[int, int, ProcessUse] | None = None

    async def read(self) -> tuple[Reading, ...]:
        """No `CPU` reading at first, nor after another process has taken the place of this one."""
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
        """Its load and its memory, as far as its driver tells."""
        # In a thread: a driver may take its time.
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


# --- the limits of the machine --------------------------------------------------------------------


async def record_machine_speed(
    endpoints: Iterable[Endpoint],
    *,
    directory: Path,
    tracer: Tracer,
    file_of: Callable[[Endpoint], Awaitable[Path | None]],
) -> None:
    """Records the limits of models that are wholly on one device, after all calls.

    Those are the weights of each, and the speed of the device's memory. `directory` is where runs
    land, and `file_of` finds the file of a server's model.
    """
    if not tracer.run_id:
        return
    devices = set()
    for endpoint in endpoints:
        file = endpoint.path
        # By default an endpoint with a URL is said to be on this machine, and may be anywhere.
        if file is None and endpoint.url and "device" in endpoint.model_fields_set:
            file = await file_of(endpoint)
        if file is None or endpoint.gpu_layers is not None or len(endpoint.shares) > 1:
            continue
        with suppress(ModelFileInvalid):
            header = read_gguf_header(file)
            loading = Loading(
                context_tokens=1,
                cache_type_k=endpoint.cache_type_k,
                cache_type_v=endpoint.cache_type_v,
            )
            weights = events.WeightsEvent(
                model=endpoint.tag,
                device=endpoint.device,
                active_bytes=header.active_bytes,
                token_bytes=prompt_kv_bytes(header, loading, 1) if header.exact_caches else 0,
            )
            tracer.instant(weights)
            devices.add(endpoint.device)
    # A GPU's speed comes from its driver; the machine's takes a third of a second to measure.
    if MACHINE in devices:
        speed = await asyncio.to_thread(_speed_of_memory, directory / KEPT)
        figures = speed.model_dump(exclude={"boot_id"})
        tracer.instant(events.MachineEvent(device=MACHINE, **figures, source="measured"))
    for gpu in read_gpus() if devices - {MACHINE} else ():
        if gpu.name in devices and gpu.memory_bytes_per_s:
            nominal = gpu.memory_bytes_per_s
            tracer.instant(
                events.MachineEvent(device=gpu.name, memory_bytes_per_s=nominal, source="nominal")
            )


class _MachineSpeed(BaseModel):
    boot_id: str | None
    memory_bytes_per_s: int
    cores: int


def _speed_of_memory(path: Path) -> _MachineSpeed:
    """The measurement since the machine's start, or a new one."""
    with suppress(OSError, ValidationError):
        measured = _MachineSpeed.model_validate_json(path.read_bytes())
        if measured.boot_id == boot_id() is not None and measured.cores == core_count():
            return measured
    machine = _MachineSpeed(
        boot_id=boot_id(), memory_bytes_per_s=round(memory_bytes_per_s()), cores=core_count()
    )
    with suppress(OSError), whole_file(path) as file:
        file.write(machine.model_dump_json().encode())
    return machine
