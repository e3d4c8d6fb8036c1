"""What a run records beside its calls, about its event loop, its servers and the machine.

`heartbeat` records when the loop is blocked, and by which function. `sampling` records counters of
servers, processes, cores and GPUs. `record_machine_speed` records the limits to which reports
compare the run's speed. `open_models` starts and ends all three.
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

from pydantic import BaseModel, ValidationError

from harness.errors import ModelFileInvalid
from harness.files import whole_file
from harness.hardware import Loading, prompt_kv_bytes, read_gguf_header
from harness.hardware.capacity import core_count
from harness.hardware.machine import (
    GpuDriver,
    ProcessUse,
    core_use,
    memory_bytes_per_s,
    opened_gpus,
    process_use,
    read_gpus,
)
from harness.inference import MACHINE, Endpoint
from harness.inference.providers.counters import MetricsSource, Reading
from harness.log import log_warning
from harness.trace import Clock, Interval, Tracer, describe, events
from harness.trace.clock import boot_id
from harness.trace.stalls import BEAT_NS

# A stall of this length is inspected, and again after the same time.
_LOOK_S = 0.05
# One thread at a time looks at the frames of another.
_LOOKING = threading.Lock()
# Successive stalls are recorded together, up to this length.
_LONGEST_RECORD_NS = 1_000_000_000

_LIBRARIES = tuple(
    sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"
# Modules whose functions call the code that the loop runs.
_LOOP_MODULES = {"asyncio.events", "asyncio.base_events", "asyncio.runners"}

_MIB = 1 << 20

KEPT = ".machine.json"
"""The file beside the runs with measurements, valid until the machine restarts."""


# --- stalls of the event loop ---------------------------------------------------------------------


@contextmanager
def heartbeat(tracer: Tracer) -> Iterator[None]:
    """Records the stalls of the running event loop inside the block, if there is a run to record.

    Each stall is a span `client lag`. `at` is the file and line where the loop was seen, and
    `function` is the innermost of the user's own functions there. Both are missing for a short
    stall, and for one in which the whole process did not run.
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
        self._next_beat: asyncio.TimerHandle | None = None
        self._unrecorded_stalls: list[Interval] = []
        # Function → how often the watch saw the loop in it since the last record.
        self._looks_by_function: Counter[str | None] = Counter()
        # Function → the line at which the watch saw it last, as `file.py:12`.
        self._line_by_function: dict[str | None, str | None] = {}
        # The thread's processor time at the last record and at the start of a garbage collection,
        # and what collections took since the last record.
        self._recorded_at_ns = time.thread_time_ns()
        self._collection_start_ns = 0
        self._collected_ns = 0
        gc.callbacks.append(self._note_collection)

    def beat(self) -> None:
        """Notes a stall since the last beat; records the stalls as soon as the loop runs on."""
        stall = self._tracer.stalls.beat()
        if stall is None:
            self._record()
        else:
            self._unrecorded_stalls.append(stall)
            if stall.end_ns - self._unrecorded_stalls[0].start_ns >= _LONGEST_RECORD_NS:
                self._record()
        self._next_beat = self._loop.call_later(BEAT_NS / 1e9, self.beat)

    def stop(self) -> None:
        if self._next_beat is not None:
            self._next_beat.cancel()
        gc.callbacks.remove(self._note_collection)
        stall = self._tracer.stalls.beat()
        if stall is not None:
            self._unrecorded_stalls.append(stall)
        self._record()
        self._tracer.stalls.stop()

    def watch(self, ended: threading.Event) -> None:
        """Runs in a thread of its own: notes where the loop is whenever it does not run."""
        while not ended.wait(_LOOK_S):
            if self._tracer.stalls.overdue_ns >= _LOOK_S * 1e9:
                frame = _frame_of(self._thread)
                if frame is None:
                    continue
                # The loop's thread runs on meanwhile: a frame that has ended may lack an attribute.
                with suppress(AttributeError):
                    line, function = _user_code(frame)
                    # By function, since a loop of several lines would divide the looks among them.
                    self._looks_by_function[function] += 1
                    self._line_by_function[function] = line

    def _record(self) -> None:
        """Records the stalls so far as one span; without any, only what was noted is dropped."""
        looks = self._looks_by_function
        self._looks_by_function = Counter()
        stalls = self._unrecorded_stalls
        self._unrecorded_stalls = []
        now_ns = time.thread_time_ns()
        if stalls:
            stalled_ns = sum(stall.duration_ns for stall in stalls)
            function = self._blocker(looks, stalled_ns, now_ns - self._recorded_at_ns)
            lag = events.ClientLag(
                track="client lag",
                longest_ns=max(stall.duration_ns for stall in stalls),
                at=None if function is None else self._line_by_function.get(function),
                function=function,
            )
            start_ns = stalls[0].start_ns + BEAT_NS
            self._tracer.completed_span(lag, start_ns=start_ns, end_ns=stalls[-1].end_ns)
        self._recorded_at_ns = now_ns
        self._collected_ns = 0

    def _blocker(self, looks: Counter[str | None], stalled_ns: int, computed_ns: int) -> str | None:
        """The function that blocked the loop; None if none is seen for certain."""
        if 2 * self._collected_ns > stalled_ns:
            return "garbage collection"
        if not looks:
            return None
        function, count = looks.most_common(1)[0]
        # Code that computes keeps the watch from looking, and other programs may keep this whole
        # process from running: then a look or two would blame whatever line came next.
        seen_ns = max(computed_ns, count * _LOOK_S * 1e9)
        is_certain = 2 * count > looks.total() and 4 * seen_ns >= stalled_ns
        return function if is_certain else None

    def _note_collection(self, phase: str, _info: dict[str, int]) -> None:
        # Processor time, since by the clock a process that others keep waiting would "collect" too.
        now_ns = time.thread_time_ns()
        if phase == "start":
            self._collection_start_ns = now_ns
        else:
            self._collected_ns += now_ns - self._collection_start_ns


def _frame_of(thread: int) -> FrameType | None:
    """The innermost frame of a thread."""
    # Garbage collection must not begin meanwhile: its callbacks would let other threads run, and a
    # thread that starts waits for a lock that is held here, for ever (CPython gh-106883).
    with _LOOKING:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames().get(thread)  # noqa: SLF001 - documented
        finally:
            if was_enabled:
                gc.enable()


def _user_code(innermost: FrameType) -> tuple[str | None, str | None]:
    """The line of the user's code that runs, as `file.py:12`, and its function; else two Nones."""
    frame: FrameType | None = innermost
    while frame is not None and frame.f_globals.get("__name__") not in _LOOP_MODULES:
        file = frame.f_code.co_filename
        function = frame.f_code.co_name
        # Frames further out only wait for the code of harness.
        if file.startswith(_PACKAGE):
            break
        is_library = file.startswith((*_LIBRARIES, "<")) or "site-packages" in file
        # `<listcomp>` and `<lambda>` say less than the function around them.
        if not is_library and not function.startswith("<"):
            return f"{Path(file).name}:{frame.f_lineno}", function
        frame = frame.f_back
    return None, None


# --- counters of servers and devices --------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """A server or device to sample."""

    source: MetricsSource | LocalSource
    track: str
    """The track of its counters: `server <tag>`, `machine`, `gpu0`, …"""
    called: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at the first call to it, since servers that the run does not use are not sampled."""


@asynccontextmanager
async def sampling(
    servers: Collection[Sampled], *, tracer: Tracer, every_s: float = 0.25
) -> AsyncIterator[None]:
    """Samples every server from its first call until the block is left, then closes the sources."""
    async with AsyncExitStack() as stack:
        tasks = []
        for server in servers:
            stack.push_async_callback(server.source.aclose)
            # Each has a task, so that a slow server delays only its own next sample. A task group
            # would wrap an error of the run into an exception group.
            tasks.append(asyncio.create_task(_sample(server, tracer=tracer, every_s=every_s)))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _sample(server: Sampled, *, tracer: Tracer, every_s: float) -> None:
    """Records the counters that have changed, until the task is cancelled."""
    await server.called.wait()
    recorded: dict[str, float] = {}
    try:
        while True:
            await tracer.listened_to()
            for reading in await server.source.read():
                if reading.value != recorded.get(reading.name):
                    recorded[reading.name] = reading.value
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

    `engines` map a track to a function that gives the process id of an engine started here, or None
    as long as it has no process.
    """
    with opened_gpus() as driver:
        sources = {"machine": LocalSource(core_readings())}
        for track, process_id in {"process harness": os.getpid, **engines}.items():
            sources[track] = LocalSource(process_readings(process_id, clock=clock))
        if driver is not None:
            for number, gpu in enumerate(driver.gpus):
                sources[gpu.name] = GpuSource(gpu_readings(driver, number))
        sampled = [Sampled(source=source, track=track) for track, source in sources.items()]
        for entry in sampled:
            entry.called.set()
        yield sampled


class LocalSource:
    """Readings of this machine, made one after another."""

    pause_s = 0.0

    def __init__(self, readings: Iterator[tuple[Reading, ...]]) -> None:
        self._readings = readings

    async def read(self) -> tuple[Reading, ...]:
        """The quantities now."""
        return next(self._readings)

    async def aclose(self) -> None:
        """There is nothing to close."""


class GpuSource(LocalSource):
    """Readings of a GPU, whose driver may take long to answer."""

    async def read(self) -> tuple[Reading, ...]:
        """The quantities now."""
        return await asyncio.to_thread(next, self._readings)


def core_readings() -> Iterator[tuple[Reading, ...]]:
    """How busy all cores were since the last reading, by any program; Linux alone counts that."""
    before = core_use()
    yield ()  # ticks of 10 ms are too coarse for the moment since then
    while True:
        current = core_use()
        if before is None or current is None or current.total_s <= before.total_s:
            yield ()
            continue
        share = (current.busy_s - before.busy_s) / (current.total_s - before.total_s)
        before = current
        yield (Reading(name="cores in use", unit="share", value=round(share, 3)),)


def process_readings(
    process_id: Callable[[], int | None], *, clock: Clock
) -> Iterator[tuple[Reading, ...]]:
    """The memory of one process, and the cores that it used since the last reading.

    Without `CPU` at the first reading of a process, which may replace another one.
    """
    before: tuple[int, int, ProcessUse] | None = None
    while True:
        number = process_id()
        now_ns = clock()
        use = None if number is None else process_use(number)
        if number is None or use is None:
            before = None
            yield ()
            continue
        resident_bytes = use.resident_bytes // _MIB * _MIB
        readings = [Reading(name="process memory", unit="bytes", value=resident_bytes)]
        if before is not None:
            number_before, before_ns, use_before = before
            if number_before == number and now_ns > before_ns:
                cores = (use.cpu_s - use_before.cpu_s) * 1e9 / (now_ns - before_ns)
                readings.append(Reading(name="CPU", unit="cores", value=round(cores, 2)))
        before = (number, now_ns, use)
        yield tuple(readings)


def gpu_readings(driver: GpuDriver, number: int) -> Iterator[tuple[Reading, ...]]:
    """The load, memory and power of one GPU, as far as its driver reports them."""
    while True:
        state = driver.state(number)
        quantities = (
            ("in use", "share", state.busy),
            ("memory taken", "bytes", state.used_bytes),
            ("power", "W", state.power_w),
        )
        yield tuple(
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
    """Records, after all calls, how much the models read per token and how fast memory is.

    Only models that are on one device as a whole count. `directory` is that of runs, and `file_of`
    finds the file of a server's model.
    """
    if not tracer.run_id:
        return
    devices = set()
    for endpoint in endpoints:
        file = endpoint.path
        # The default device of an endpoint with a URL is this machine, but the server may be
        # anywhere: only a device that was set counts.
        if file is None and endpoint.url and "device" in endpoint.model_fields_set:
            file = await file_of(endpoint)
        if file is None or endpoint.gpu_layers is not None or len(endpoint.shares) > 1:
            continue
        with suppress(ModelFileInvalid):
            tracer.instant(_weights_of(endpoint, file))
            devices.add(endpoint.device)
    # A GPU's speed comes from its driver; the machine's takes a third of a second to measure.
    if MACHINE in devices:
        speed = await asyncio.to_thread(_speed_of_memory, directory / KEPT)
        figures = speed.model_dump(exclude={"boot_id"})
        tracer.instant(events.MachineEvent(device=MACHINE, **figures, source="measured"))
    if devices - {MACHINE}:
        for gpu in read_gpus():
            speed_bytes = gpu.memory_bytes_per_s
            if gpu.name in devices and speed_bytes:
                event = events.MachineEvent(
                    device=gpu.name, memory_bytes_per_s=speed_bytes, source="nominal"
                )
                tracer.instant(event)


def _weights_of(endpoint: Endpoint, file: Path) -> events.WeightsEvent:
    header = read_gguf_header(file)
    loading = Loading(
        context_tokens=1, cache_type_k=endpoint.cache_type_k, cache_type_v=endpoint.cache_type_v
    )
    return events.WeightsEvent(
        model=endpoint.tag,
        device=endpoint.device,
        active_bytes=header.active_bytes,
        token_bytes=prompt_kv_bytes(header, loading, 1) if header.exact_caches else 0,
    )


class _MachineSpeed(BaseModel):
    boot_id: str | None
    memory_bytes_per_s: int
    cores: int


def _speed_of_memory(path: Path) -> _MachineSpeed:
    """Measures the machine's memory, unless the file has a measurement since it was started."""
    boot = boot_id()
    if boot is not None:
        with suppress(OSError, ValidationError):
            recorded = _MachineSpeed.model_validate_json(path.read_bytes())
            if recorded.boot_id == boot and recorded.cores == core_count():
                return recorded
    measured = _MachineSpeed(
        boot_id=boot, memory_bytes_per_s=round(memory_bytes_per_s()), cores=core_count()
    )
    with suppress(OSError), whole_file(path) as file:
        file.write(measured.model_dump_json().encode())
    return measured
