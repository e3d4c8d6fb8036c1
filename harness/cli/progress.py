"""Live progress of a run on a terminal, drawn from the run's own records."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from harness.cli.progress_state import LoopState, NodeState, RunState
from harness.trace import Record

_LOOPS_SHOWN = 4
"""Loops at most, those under way first."""
_BESIDE_NODES = 3
"""Lines below the nodes and loops: the summary, the models, and one that stays free."""


class Progress:
    """Draws what a run is doing; give `observe` to the run as an observer.

    Never more than the terminal has lines for: of many nodes those that are under way or failed,
    and how many others there are.

    Args:
        console: Where to draw; nothing is drawn unless it is a terminal.
        nodes: The names of the pipeline's nodes, in order.
    """

    def __init__(self, console: Console, nodes: Iterable[str]) -> None:
        self._state = RunState(nodes)
        # Records come from the thread that writes them, and the picture is drawn in another.
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
        self._redirected = ExitStack()

    def __enter__(self) -> Progress:
        if self._is_terminal:
            above = _Above(self._live.console)
            self._redirected.callback(above.end)
            self._redirected.enter_context(redirect_stderr(above))
            self._redirected.enter_context(redirect_stdout(above))
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_terminal:
            self._live.stop()
        self._redirected.close()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leaves the terminal to somebody else inside the block."""
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()

    def observe(self, record: Record) -> None:
        """Takes in one record of the run."""
        with self._lock:
            self._state.take(record)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The picture at this moment."""
        with self._lock:
            yield self._picture(options.height or console.size.height)

    def _picture(self, height: int) -> RenderableType:
        state = self._state
        loops = sorted(state.loops.values(), key=lambda loop: loop.is_over)[:_LOOPS_SHOWN]
        room = max(1, height - len(loops) - _BESIDE_NODES)
        table = Table.grid(padding=(0, 2))
        shown = list(state.nodes.items())
        if len(shown) > room:
            urgent = [(name, node) for name, node in shown if node.running or node.failed]
            shown = urgent[: room - 1]
        for name, node in shown:
            mark = self._mark(node)
            table.add_row(mark, Text(name), _count(node), _details(node), _seconds(node))
        lines: list[RenderableType] = [table]
        hidden = [node for name, node in state.nodes.items() if name not in dict(shown)]
        if hidden:
            lines.append(Text(_summary(hidden), style="dim"))
        lines += [Text(_loop_line(loop)) for loop in loops]
        lines.append(Text(_calls_line(state), style="dim"))
        if state.resident:
            models = f"in memory: {', '.join(state.resident)}"
            lines.append(Text(models, style="dim", no_wrap=True, overflow="ellipsis"))
        return Group(*lines)

    def _mark(self, node: NodeState) -> Spinner | Text:
        if node.running:
            return self._spinner
        if node.failed:
            return Text("✗", style="red")
        if node.waiting:
            return Text("?", style="yellow")
        if node.done or node.reused:
            return Text("✓", style="green")
        return Text("-" if node.skipped else "·", style="dim")


class _Above(io.TextIOBase):
    """Prints whole lines above a live picture: half a line would be drawn over."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.rich_proxied_file = console.file  # or else the console would write here, too
        self._begun = ""
        self._lock = threading.Lock()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self._begun = f"{self._begun}{text}".split("\n")
        for line in lines:
            self._console.print(Text.from_ansi(line), soft_wrap=True)
        return len(text)

    def end(self) -> None:
        """Prints what was begun."""
        if self._begun:
            self.write("\n")


def _count(node: NodeState) -> str:
    return f"{node.done + node.reused:,}/{node.total:,}" if node.total > 1 else ""


def _details(node: NodeState) -> Text:
    counts = {
        "failed": node.failed,
        "waiting for an answer": node.waiting,
        "skipped": node.skipped,
        "done before": node.reused,
    }
    said = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    return Text(said, style="red" if node.failed else "dim", no_wrap=True, overflow="ellipsis")


def _seconds(node: NodeState) -> str:
    return "" if node.seconds is None else f"{node.seconds:.1f} s"


def _summary(nodes: list[NodeState]) -> str:
    over = sum(1 for node in nodes if node.done or node.reused or node.skipped)
    return f"{over} other nodes done, {len(nodes) - over} to come"


def _loop_line(loop: LoopState) -> str:
    scores = " → ".join(f"{score:.1f}" for score in loop.composites) or "…"
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
    if state.in_flight:
        parts.append(f"{state.in_flight:,} in flight")
    parts += [f"{name} …" for name in state.under_way]
    return "  ".join(parts)
