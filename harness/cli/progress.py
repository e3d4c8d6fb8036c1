"""Live progress of a run on a terminal, drawn from the run's own records."""

from __future__ import annotations

import io
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice
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

# The most loops that are shown.
_LOOPS = 4
# Of more nodes, only the running and failed ones are shown.
_MOST_NODES = 20
# The most lines that show what was printed and has no line end yet.
_UNFINISHED_LINES = 3
# Without a terminal, a line of progress is printed so often.
_PERIOD_S = {"text": 30.0, "json": 5.0}

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
        self._console = console
        self._above = _Above(console)
        self._redirected = ExitStack()

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._redirected.callback(self._above.end)
            self._redirected.enter_context(redirect_stderr(self._above))
            self._redirected.enter_context(redirect_stdout(self._above))
            self._redirected.enter_context(self._live)
        else:
            # Standard output is for the result, so what nodes print goes to standard error.
            self._redirected.enter_context(redirect_stdout(sys.stderr))
            if isinstance(sys.stderr, JsonLines):
                self._redirected.callback(sys.stderr.flush, of_all=True)
            self._is_over.clear()
            watch = threading.Thread(target=self._watch, daemon=True)
            watch.start()
            self._redirected.callback(watch.join)
            self._redirected.callback(self._is_over.set)
        return self

    def __exit__(self, *_: object) -> None:
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

    def _watch(self) -> None:
        # By the clock and not as calls end: a slow run must not look dead.
        is_for_program = isinstance(sys.stderr, JsonLines)
        while not self._is_over.wait(_PERIOD_S["json" if is_for_program else "text"]):
            self._print_line()
        if is_for_program:
            self._print_line()

    def _print_line(self) -> None:
        out, state = sys.stderr, self._state
        with self._lock:
            if isinstance(out, JsonLines):
                out.flush()
                out.emit("progress", state.figures)
            elif self._node is not None:
                node = state.nodes[self._node]
                count = f"{self._node} {_count(node)}"
                parts = [count, _details(node).plain, _pace(node), _calls_line(state)]
                say("  ".join(filter(None, parts)), err=True)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The picture at this moment; `Live` cuts what does not fit the terminal."""
        with self._lock:
            most_chars = _UNFINISHED_LINES * console.size.width
            if unfinished := Text.from_ansi(self._above.unfinished)[-most_chars:]:
                yield unfinished
            yield self._picture()

    def _picture(self) -> RenderableType:
        state = self._state
        table = Table.grid(padding=(0, 2))
        for name, node in state.nodes.items():
            is_urgent = node.counts["running"] or node.counts["failed"]
            if is_urgent or len(state.nodes) <= _MOST_NODES:
                mark = self._mark(node)
                table.add_row(mark, Text(name), _count(node), _details(node), _seconds(node))
        lines: list[RenderableType] = [table]
        lines += [Text(_loop_line(loop)) for loop in islice(state.loops.values(), _LOOPS)]
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


def _details(node: NodeState) -> Text:
    counts = ((node.counts[status], words) for status, words in _DETAILS.items())
    text = ", ".join(f"{count:,} {words}" for count, words in counts if count)
    return Text(text, "red" if node.counts["failed"] else "dim", no_wrap=True, overflow="ellipsis")


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
    return f"{pace}, {timedelta(seconds=round(left_s))} left"


def _loop_line(loop: LoopState) -> str:
    scores = " → ".join(str(score) for score in loop.composites) or "…"
    return f"  {loop.node}: round {max(1, len(loop.composites))}, scores {scores}"


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

    def __init__(self) -> None:
        self.counts: Counter[CallStatus] = Counter()
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
        self._changed_s = time.monotonic()
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
    def total(self) -> int:
        """Calls made and, as far as they are known, calls to come."""
        return max(self._items, len(self._calls))

    @property
    def seconds(self) -> float | None:
        """From the first call's start to now, or to the last call's end; None before."""
        if self._began_s is None:
            return None
        return (time.monotonic() if self.counts["running"] else self._changed_s) - self._began_s


@dataclass
class LoopState:
    """An open revise loop in a call of a node."""

    node: str
    composites: list[float] = field(default_factory=list)


class RunState:
    """A run so far.

    `nodes` is path → state, with nodes of nested pipelines as `rows/answer`. `loops` is span's id →
    state, for open loops. `resident` has the models that it loaded.
    """

    def __init__(self, nodes: Iterable[str]) -> None:
        self._open: dict[int, SpanStarted] = {}
        self.run_id = ""
        self.nodes = {name: NodeState() for name in nodes}
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
        elif events.LoopEvent.of(span):
            self.loops.pop(span.id, None)
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
        return self.nodes.setdefault(node_of_all(path), NodeState())

    def _node_around(self, span: SpanStarted) -> str:
        """The label of the node's call in which a span lies."""
        around: SpanStarted | None = span
        while around is not None and not (node := events.NodeAttempt.of(around)):
            around = self._open.get(around.parent or 0)
        return "a loop" if around is None or node is None else node.label
