"""Live progress of a run on a terminal, drawn from the run's own records."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from harness.trace import CounterSet, Record, SpanEnded, SpanStarted


@dataclass(slots=True)
class _NodeState:
    """What is known of a node so far."""

    running: int = 0
    done: int = 0
    failed: int = 0
    started_s: float = 0.0
    ended_s: float = 0.0


class Progress:
    """Draws what a run is doing; give `observe` to the run as an observer.

    Args:
        console: Where to draw; nothing is drawn unless it is a terminal.
        nodes: The names of the pipeline's nodes, in order.
    """

    def __init__(self, console: Console, nodes: Iterable[str]) -> None:
        self._nodes = {name: _NodeState() for name in nodes}
        self._open: dict[int, SpanStarted] = {}
        self._calls = 0
        self._output_tokens = 0
        self._composites: list[float] = []
        self._spinner = Spinner("dots")
        self._live = Live(self, console=console, transient=True, refresh_per_second=10)
        self._is_terminal = console.is_terminal

    def __enter__(self) -> Progress:
        if self._is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_terminal:
            self._live.stop()

    def observe(self, record: Record) -> None:
        """Takes in one record of the run."""
        match record:
            case SpanStarted():
                self._open[record.id] = record
                if record.name == "node":
                    node = self._node(record)
                    node.running += 1
                    node.started_s = node.started_s or time.monotonic()
            case SpanEnded():
                began = self._open.pop(record.id, None)
                if began is not None:
                    self._close(began, record)
            case CounterSet(name="composite"):
                self._composites.append(record.value)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The picture at this moment."""
        table = Table.grid(padding=(0, 2))
        for name, node in self._nodes.items():
            table.add_row(self._mark(node), name, _count(node), _seconds(node))
        yield Group(table, Text(self._status(), style="dim"))

    def _node(self, began: SpanStarted) -> _NodeState:
        return self._nodes.setdefault(str(began.attributes.get("node")), _NodeState())

    def _close(self, began: SpanStarted, ended: SpanEnded) -> None:
        if began.name == "node":
            node = self._node(began)
            node.running -= 1
            node.done += ended.status == "ok"
            node.failed += ended.status == "error"
            node.ended_s = time.monotonic()
        elif began.name == "chat":
            self._calls += 1
            tokens = ended.attributes.get("output_tokens")
            self._output_tokens += tokens if isinstance(tokens, int) else 0

    def _mark(self, node: _NodeState) -> Spinner | Text:
        if node.running:
            return self._spinner
        if node.failed:
            return Text("✗", style="red")
        return Text("✓", style="green") if node.done else Text("·", style="dim")

    def _status(self) -> str:
        doing = [span.name for span in self._open.values()]
        parts = [f"{self._calls} calls", f"{self._output_tokens} tokens"]
        if waiting := doing.count("chat"):
            parts.append(f"{waiting} in flight")
        parts += [f"{name} …" for name in ("load", "evaluate", "revise") if name in doing]
        if self._composites:
            parts.append("scores " + " → ".join(f"{score:.1f}" for score in self._composites))
        return "  ".join(parts)


def _count(node: _NodeState) -> str:
    total = node.running + node.done + node.failed
    return f"{node.done}/{total}" if total > 1 else ""


def _seconds(node: _NodeState) -> str:
    if not node.started_s:
        return ""
    until_s = time.monotonic() if node.running else node.ended_s
    return f"{until_s - node.started_s:.1f} s"
