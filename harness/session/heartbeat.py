"""Detects when the event loop of a run is blocked, and by which function.

A function that computes, or waits without `await`, stops everything else in the process. The stalls
go to the tracer (`Stalls`) and to a track of the timeline.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import sysconfig
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from types import FrameType

from harness.trace import Interval, Tracer, events
from harness.trace.stalls import BEAT_NS

_LOOK_S = 0.05
"""A stall of this length is inspected, and again after the same time."""

_LOOKING = threading.Lock()
_LONGEST_NS = 1_000_000_000
"""Successive stalls are recorded together, up to this length."""

_LIBRARIES = tuple(
    sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_OWN = str(Path(__file__).parents[1])
_LOOP = {"asyncio.events", "asyncio.base_events", "asyncio.runners"}
"""Modules whose functions call the code that the loop runs."""


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
    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._next: asyncio.TimerHandle | None = None
        self._lag: list[Interval] = []
        """Successive stalls that are not recorded yet."""
        self._places: Counter[str | None] = Counter()
        self._at: dict[str | None, str | None] = {}
        self._computed_ns = time.thread_time_ns()
        self._collected_ns = self._collects_since_ns = 0
        gc.callbacks.append(self._note_collection)

    def beat(self) -> None:
        """Comes again until it is stopped."""
        stall = self._tracer.stalls.beat()
        if stall is None:
            self._record()
        else:
            self._lag.append(stall)
            if stall.end_ns - self._lag[0].start_ns >= _LONGEST_NS:
                self._record()
        self._next = self._loop.call_later(BEAT_NS / 1e9, self.beat)

    def stop(self) -> None:
        """There are no more beats."""
        if self._next is not None:
            self._next.cancel()
        gc.callbacks.remove(self._note_collection)
        if (stall := self._tracer.stalls.beat()) is not None:
            self._lag.append(stall)
        self._record()
        self._tracer.stalls.stop()

    def watch(self, ended: threading.Event) -> None:
        """In a thread: checks regularly whether the loop runs and, if not, where it is."""
        while not ended.wait(_LOOK_S):
            if self._tracer.stalls.overdue_ns >= _LOOK_S * 1e9:
                frame = _frame_of(self._thread)
                # The thread runs on: behind a frame that has ended stands none, or anything.
                if frame is not None:
                    with suppress(AttributeError):
                        at, function = _place(frame)
                        self._places[function] += 1
                        self._at[function] = at

    def _record(self) -> None:
        places, self._places = self._places, Counter()
        before_ns, self._computed_ns = self._computed_ns, time.thread_time_ns()
        collected_ns, self._collected_ns = self._collected_ns, 0
        if not self._lag:
            return
        stalls, self._lag = self._lag, []
        longest_ns = max(stall.duration_ns for stall in stalls)
        stood_ns = sum(stall.duration_ns for stall in stalls)
        function, count = places.most_common(1)[0] if places else (None, 0)
        at = self._at.get(function)
        # Code that computes keeps the watch from looking, and other programs this whole process:
        # then a look or two would blame whatever line came next.
        seen_ns = max(self._computed_ns - before_ns, count * _LOOK_S * 1e9)
        if 2 * collected_ns > stood_ns:
            at, function = None, "garbage collection"
        elif 2 * count <= places.total() or 4 * seen_ns < stood_ns:
            at = function = None
        lag = events.ClientLag(track="client lag", longest_ns=longest_ns, at=at, function=function)
        start_ns = stalls[0].start_ns + BEAT_NS
        self._tracer.completed_span(lag, start_ns=start_ns, end_ns=stalls[-1].end_ns)

    def _note_collection(self, phase: str, _info: dict[str, int]) -> None:
        # Of the processor: by the clock, a process that other programs keep waiting "collects" too.
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
    """Where the loop is, as `file.py:12`, and in which function; nowhere in code of harness.

    What awaits harness is not at work: its frames lie around those of harness.
    """
    for frame in takewhile(_is_in_task, _outward(innermost)):
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if file.startswith(_OWN):
            break
        is_library = file.startswith((*_LIBRARIES, "<")) or "site-packages" in file
        if not is_library and not name.startswith("<"):  # <listcomp> stands in a function
            return f"{Path(file).name}:{frame.f_lineno}", name
    return None, None


def _outward(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_in_task(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") not in _LOOP
