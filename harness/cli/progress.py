"""Live progress of a run on a terminal, drawn from the run's own records."""

from __future__ import annotations

import io
import math
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from typing import Literal

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from harness.cli.consoles import JsonLines, say
from harness.trace import Instant, Record, RunStarted, SpanEnded, SpanStarted, events
from harness.trace.node_records import NodeStatus, attempt_status
from harness.trace.records import joined, node_of_all

CallStatus = NodeStatus | Literal["running"]

# The most loops that are shown, open ones first; as many ended ones are kept.
_LOOPS = 4
# Lines below the nodes and loops: the summary, the models, and a free one.
_BESIDE_NODES = 3
# The most lines that show what was printed and has no line end yet.
_UNFINISHED_LINES = 3

# Without a terminal: the most lines of progress, and the fewest calls for which there are any.
_LINES = 20
# After so long without a line, progress is printed although no call ended.
_SILENT_S = {"text": 30.0, "json": 5.0}

_DETAILS: dict[CallStatus, str] = {
    "failed": "failed",
    "waiting": "waiting for an answer",
    "skipped": "skipped",
    "reused": "done before",
}

# Spans that are named while they are open.
_SHOWN = (events.LoadEvent.NAME, events.Evaluate.NAME, events.name_of(events.Revise))
# A call's wait for the end of an outage.
_HOLD = events.name_of(events.Hold)


class Progress:
    """Draws a run's progress on a terminal; give `observe` to the run as an observer.

    If the console is no terminal, prints a line now and then: for programs how far all nodes are,
    else how far the mapped `node` is, and nothing without one.
    """

    def __init__(self, console: Console, nodes: Iterable[str], *, node: str | None = None) -> None:
        self._state = RunState(nodes)
        self._node = node
        self._printed_part = 0  # of `_LINES`, how many parts of the calls the last line had
        self._printed_s = time.monotonic()
        self._is_over = threading.Event()
        # One thread brings records, another draws the picture.
        self._lock = threading.Lock()
        self._spinner = Spinner("dots")
        self._live = Live(
            self,
            console=console,
            transient=True,
            refresh_per_second=10,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._is_terminal = console.is_terminal
        self._above = _Above(console)
        self._redirected = ExitStack()

    def __enter__(self) -> Progress:
        if self._is_terminal:
            self._redirected.callback(self._above.end)
            self._redirected.enter_context(redirect_stderr(self._above))
            self._redirected.enter_context(redirect_stdout(self._above))
            self._live.start()
        else:
            # Standard output is for the result, so what nodes print goes to standard error.
            self._redirected.enter_context(redirect_stdout(sys.stderr))
            self._is_over.clear()
            watch = threading.Thread(target=self._watch, daemon=True)
            watch.start()
            self._redirected.callback(watch.join)
            self._redirected.callback(self._is_over.set)
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_terminal:
            self._live.stop()
        if isinstance(sys.stderr, JsonLines):
            sys.stderr.flush(of_all=True)
        self._redirected.close()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leaves the terminal free inside the block."""
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()

    def observe(self, record: Record) -> None:
        """Takes one record of the run."""
        with self._lock:
            self._state.take(record)
            if type(record) is SpanEnded and not self._is_terminal:
                self._print_line()

    def _watch(self) -> None:
        # So that a slow run does not look dead, a line is printed while nothing ends, too.
        silent_s = _SILENT_S["json" if isinstance(sys.stderr, JsonLines) else "text"]
        left_s = silent_s
        while not self._is_over.wait(left_s):
            with self._lock:
                left_s = self._printed_s + silent_s - time.monotonic()
                if left_s <= 0:
                    self._print_line(is_silent=True)
                    left_s = silent_s

    def _print_line(self, *, is_silent: bool = False) -> None:
        """Prints a line if a further part of the calls has ended, or if it `is_silent`."""
        out, state = sys.stderr, self._state
        if self._node is None and not isinstance(out, JsonLines):
            return
        nodes = [*state.nodes.values()] if self._node is None else [state.nodes[self._node]]
        total = sum(max(1, node.total) for node in nodes)
        if total < _LINES and not isinstance(out, JsonLines):
            return
        ended = sum(node.ended - node.counts["skipped"] for node in nodes)
        part = ended * min(_LINES, total) // max(1, total)
        if part <= self._printed_part and not is_silent:
            return
        self._printed_part = part
        self._printed_s = time.monotonic()
        if isinstance(out, JsonLines):
            out.flush()
            out.emit("progress", state.figures)
        else:
            details = _details(nodes[0], skipped="not begun").plain
            parts = [f"{self._node} {_count(nodes[0])}", details, _pace(nodes[0])]
            say("  ".join(filter(None, [*parts, _calls_line(state)])), err=True)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The picture at this moment."""
        with self._lock:
            height = options.height or console.size.height
            width = console.size.width
            rows = min(_UNFINISHED_LINES, height // 10)
            if rows and (unfinished := Text.from_ansi(self._above.unfinished)[-rows * width :]):
                yield unfinished
                height -= math.ceil(len(unfinished) / width)
            yield self._picture(height)

    def _picture(self, height: int) -> RenderableType:
        state = self._state
        loops = sorted(state.loops.values(), key=lambda loop: loop.is_over)[:_LOOPS]
        room = max(1, height - len(loops) - _BESIDE_NODES)
        table = Table.grid(padding=(0, 2))
        nodes = list(state.nodes.items())
        # Of many nodes, the running and failed ones are shown, and the others counted.
        if len(nodes) > room:
            urgent = [row for row in nodes if row[1].counts["running"] or row[1].counts["failed"]]
            nodes = urgent[: room - 1]
        for name, node in nodes:
            mark = self._mark(node)
            table.add_row(mark, Text(name), _count(node), _details(node), _seconds(node))
        lines: list[RenderableType] = [table]
        if hidden := [node for name, node in state.nodes.items() if name not in dict(nodes)]:
            lines.append(Text(_summary(hidden), style="dim"))
        lines += [Text(_loop_line(loop)) for loop in loops]
        lines.append(Text(_calls_line(state), style="dim"))
        if state.resident:
            models = f"in memory: {', '.join(state.resident)}"
            lines.append(Text(models, style="dim", no_wrap=True, overflow="ellipsis"))
        return Group(*lines)

    def _mark(self, node: NodeState) -> Spinner | Text:
        if node.counts["running"]:
            return self._spinner
        if node.counts["failed"]:
            return Text("✗", style="red")
        if node.counts["waiting"]:
            return Text("?", style="yellow")
        if node.counts["done"] or node.counts["reused"]:
            return Text("✓", style="green")
        return Text("-" if node.counts["skipped"] else "·", style="dim")


class _Above(io.TextIOBase):
    """Prints whole lines above a live picture."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.rich_proxied_file = console.file  # otherwise the console would write here too
        # A line without its end yet, such as a streamed answer: printed, it would be drawn over.
        self.unfinished = ""
        self._lock = threading.Lock()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self.unfinished = f"{self.unfinished}{text}".split("\n")
        for line in lines:
            self._console.print(Text.from_ansi(line), soft_wrap=True)
        return len(text)

    def end(self) -> None:
        """Prints the unfinished line."""
        if self.unfinished:
            self.write("\n")


def _count(node: NodeState) -> str:
    done = node.counts["done"] + node.counts["reused"]
    return f"{done:,}/{node.total:,}" if node.total > 1 else ""


def _details(node: NodeState, *, skipped: str = "skipped") -> Text:
    text = ", ".join(
        f"{node.counts[status]:,} {words}"
        for status, words in (_DETAILS | {"skipped": skipped}).items()
        if node.counts[status]
    )
    style = "red" if node.counts["failed"] else "dim"
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _seconds(node: NodeState) -> str:
    if node.seconds is None:
        return ""
    return "  ".join(filter(None, [f"{node.seconds:.1f} s", _pace(node)]))


def _pace(node: NodeState) -> str:
    """How quickly a mapped node's items end, and the time left; empty if unknown or over."""
    if node.pace is None:
        return ""
    rate, left_s = node.pace
    pace = f"{rate:.1f}/s" if rate >= 1 else f"{rate * 60:.1f}/min"
    for unit, size_s in (("h", 3600), ("min", 60)):
        if left_s >= 2 * size_s:
            return f"{pace}, {left_s / size_s:.0f} {unit} left"
    return f"{pace}, {left_s:.0f} s left"


def _summary(nodes: list[NodeState]) -> str:
    over = sum(node.is_over for node in nodes)
    return f"{over} other nodes done, {len(nodes) - over} to come"


def _loop_line(loop: LoopState) -> str:
    scores = " → ".join(str(score) for score in loop.composites) or "…"
    ended = f" ({loop.stop_reason})" if loop.stop_reason else ""
    return f"  {loop.node}: round {max(1, len(loop.composites))}, scores {scores}{ended}"


def _calls_line(state: RunState) -> str:
    parts = [
        f"{state.calls:,} calls",
        f"tokens in {state.input_tokens:,}, out {state.output_tokens:,}",
    ]
    if state.cost_usd:
        parts.append(f"${state.cost_usd:.4f}")
    if state.retries:
        parts.append(f"{state.retries:,} tried again")
    under_way = state.under_way
    if in_flight := under_way[events.Chat.NAME]:
        parts.append(f"{in_flight:,} in flight")
    if waiting := under_way[_HOLD]:
        parts.append(f"{waiting:,} wait for a server that is down")
    parts += [f"{name} …" for name in _SHOWN if under_way[name]]
    return "  ".join(parts)


class NodeState:
    """One node's calls so far: of all its items, also if its pipeline is called several times."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.counts: Counter[CallStatus] = Counter()
        self._clock = clock
        # (path of the node, item) → status of the latest attempt.
        self._calls: dict[tuple[str, int | None], CallStatus] = {}
        self._items = 0  # done or to come
        self._refused = 0  # items that failed without a call
        self._began_s: float | None = None  # when the first call began
        self._changed_s = 0.0  # when a status last changed

    def set(self, call: tuple[str, int | None], status: CallStatus) -> None:
        """Notes the status of the latest attempt of a call: its node's path and its item."""
        before = self._calls.get(call)
        # With `on_error`, a failed call is recorded as skipped, too, but counts as failed.
        if before == "failed" and status == "skipped":
            return
        if before is not None:
            self.counts[before] -= 1
        self._calls[call] = status
        self.counts[status] += 1
        self._changed_s = self._clock()
        if status == "running" and self._began_s is None:
            self._began_s = self._changed_s

    def expect(self, items: int) -> None:
        """Adds a number of items, done or to come."""
        self._items += items

    def refuse(self, items: int) -> None:
        """Adds a number of items that failed without a call."""
        self._refused += items
        self.counts["failed"] += items
        self.expect(items)

    @property
    def ended(self) -> int:
        """Calls that are over, and calls that need not be made."""
        return sum(self.counts[status] for status in ("done", "failed", "reused", "skipped"))

    @property
    def pace(self) -> tuple[float, float] | None:
        """Calls that end in a second, and seconds until all have; None if unknown or over."""
        made = self.counts["done"] + self.counts["failed"] - self._refused
        if not made or not self.seconds or self.ended >= self.total:
            return None
        rate = made / self.seconds
        return rate, (self.total - self.ended) / rate

    @property
    def is_over(self) -> bool:
        """Whether any calls are done, reused or skipped."""
        return any(self.counts[status] for status in ("done", "reused", "skipped"))

    @property
    def total(self) -> int:
        """Calls made and, as far as they are known, calls to come."""
        return max(self._items, len(self._calls))

    @property
    def seconds(self) -> float | None:
        """From the first call's start to now, or to the last call's end; None before."""
        if self._began_s is None:
            return None
        return (self._clock() if self.counts["running"] else self._changed_s) - self._began_s


@dataclass
class LoopState:
    """A revise loop in a call of a node."""

    node: str
    composites: list[float] = field(default_factory=list)
    stop_reason: str | None = None
    is_over: bool = False


class RunState:
    """A run so far.

    `nodes` is path → state, with nodes of nested pipelines as `rows/answer`. `loops` is span's id →
    state, for open loops and the last that are over. `resident` has the models that it loaded.
    """

    def __init__(
        self, nodes: Iterable[str], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._open: dict[int, SpanStarted] = {}
        self.run_id = ""
        self.nodes = {name: NodeState(clock) for name in nodes}
        self.loops: dict[int, LoopState] = {}
        self.calls = 0
        self.retries = 0
        self.input_tokens = 0
        self.output_tokens = 0
        self.cost_usd = 0.0
        self.resident: dict[str, None] = {}

    @property
    def under_way(self) -> Counter[str]:
        """Open spans, by name."""
        return Counter(span.name for span in self._open.values())

    @property
    def figures(self) -> dict[str, object]:
        """All figures, for a program."""
        nodes: dict[str, dict[str, object]] = {}
        for name, node in self.nodes.items():
            left_s = node.pace and round(node.pace[1], 1)
            counts = {str(status): calls for status, calls in node.counts.items() if calls}
            nodes[name] = {"total": node.total, "left_s": left_s, **counts}
        names = ("calls", "retries", "input_tokens", "output_tokens", "cost_usd")
        return {
            "run_id": self.run_id,
            "nodes": nodes,
            **{name: getattr(self, name) for name in names},
            "in_flight": self.under_way[events.Chat.NAME],
            "held": self.under_way[_HOLD],
        }

    def take(self, record: Record) -> None:
        """Takes one record."""
        match record:
            case SpanStarted():
                self._open[record.id] = record
                self._begin(record)
            case SpanEnded():
                began = self._open.pop(record.id, None)
                if began is not None:
                    self._end(began, record)
            case Instant():
                self._note(record)
            case RunStarted():
                self.run_id = record.run_id

    def _begin(self, span: SpanStarted) -> None:
        if node := events.NodeAttempt.of(span):
            self._set(node, "running")
        elif events.LoopEvent.of(span):
            self.loops[span.id] = LoopState(self._node_around(span))

    def _end(self, began: SpanStarted, ended: SpanEnded) -> None:
        span = joined(began, ended)
        if node := events.NodeAttempt.of(span):
            self._set(node, attempt_status(ended))
        elif (call := events.Chat.of(span)) and not (call.from_cache or call.was_refused):
            self.calls += 1
            self.input_tokens += call.input_tokens or 0
            self.output_tokens += call.output_tokens or 0
            self.cost_usd += call.cost_usd or 0.0
        elif loop := events.LoopEvent.of(span):
            self.loops[span.id].is_over = True
            self.loops[span.id].stop_reason = loop.stop_reason
            over = [number for number, loop in self.loops.items() if loop.is_over]
            for number in over[:-_LOOPS]:
                del self.loops[number]
        elif (load := events.LoadEvent.of(span)) and load.model and load.status == "ok":
            self.resident[load.model] = None
        elif unload := events.UnloadEvent.of(span):
            self.resident.pop(unload.model, None)

    def _note(self, instant: Instant) -> None:
        if skip := events.Skip.of(instant):
            self._set(skip, "skipped")
        elif reuse := events.Reuse.of(instant):
            self._set(reuse, "reused")
        elif events.RetryEvent.of(instant):
            self.retries += 1
        elif items := events.ItemsEvent.of(instant):
            self._node(items.node).expect(items.total)
        elif refused := events.RefusedRows.of(instant):
            self._node(refused.node).refuse(refused.total)
        elif (event := events.RoundEvent.of(instant)) and event.id in self.loops:
            self.loops[event.id].composites.append(event.composite)

    def _set(
        self, call: events.NodeAttempt | events.Skip | events.Reuse, status: CallStatus
    ) -> None:
        self._node(call.node).set((call.node, call.item), status)

    def _node(self, path: str) -> NodeState:
        return self.nodes.setdefault(node_of_all(path), NodeState(self._clock))

    def _node_around(self, span: SpanStarted) -> str:
        """The label of the node's call in which a span lies."""
        around: SpanStarted | None = span
        while around is not None and not (node := events.NodeAttempt.of(around)):
            around = self._open.get(around.parent or 0)
        return "a loop" if around is None or node is None else node.label
