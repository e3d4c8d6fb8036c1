"""A graph as it is drawn: boxes in layers, the arrows into them, and what a run made of them."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import orjson
from rich.cells import cell_len

from harness.graph.graph import Graph
from harness.graph.node import Node, Parameter, When
from harness.trace import Interval, Journal
from harness.trace.critical_path import critical_path
from harness.trace.node_records import NodeRecord, NodeStatus, node_records
from harness.trace.records import RunState

Way = Literal["value", "item", "list", "when"]
"""How a node takes something: as it is, one item a call, as the list that a mapped node's calls
gave, or only to decide whether it is run."""

Kind = Literal["async", "plain", "stream"]
"""A coroutine function; one that runs in a thread; one that yields its items as they come."""

Direction = Literal["TD", "LR"]
"""Where later layers are: below, or to the right."""

# What a box and a layer take of a page that is four wide and three high, in its quarters.
_BREADTH, _LAYER_DOWN = 180 / 4, 110 / 3
_LAYER_ACROSS, _HEIGHT = 230 / 4, 64 / 3


MAPPED = "\N{MULTIPLICATION SIGN}"
"""After the name of a node that is called once per item."""

CRITICAL = "●"
"""Before a node on the critical path."""

MAPPED_MEANS = f"{MAPPED} is called once per item"
CRITICAL_MEANS = f"{CRITICAL} is on the critical path, which decided how long the run took"

_KINDS: Mapping[Kind, str] = {"async": "", "plain": "in a thread", "stream": "streams its items"}
_SECONDS_FROM_NS = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """What goes into a node."""

    source: str
    is_input: bool
    way: Way
    is_critical: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A node."""

    name: str
    layer: int
    arrows: tuple[Arrow, ...]
    """What it takes, in the order of its signature; nothing twice in the same way."""
    is_mapped: bool
    kind: Kind
    when: str | None
    """What decides whether it is run: `wanted(task)`; None when it always is."""
    roles: tuple[str, ...]
    seen: NodeSeen | None = None
    """What the run made of it; None when there is no run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A graph, to be drawn in one form or another."""

    name: str
    inputs: tuple[str, ...]
    """What it needs from outside, in the order in which nodes take it."""
    boxes: tuple[Box, ...]
    """Layer by layer, and within each in the order of definition."""
    run: RunSeen | None = None
    """The run whose figures it shows; None when there is none."""

    @property
    def layers(self) -> int:
        """How many there are."""
        return self.boxes[-1].layer + 1 if self.boxes else 0

    @property
    def direction(self) -> Direction:
        """Which way it comes nearest to the shape of a page: boxes are wider than they are high."""
        widest = max(Counter(box.layer for box in self.boxes).values(), default=0)
        down = max(widest * _BREADTH, self.layers * _LAYER_DOWN)
        across = max(self.layers * _LAYER_ACROSS, widest * _HEIGHT)
        return "TD" if down <= across else "LR"

    @property
    def unknown(self) -> tuple[str, ...]:
        """Nodes that the run had and the graph does not have."""
        known = {box.name for box in self.boxes}
        return tuple(name for name in (self.run.nodes if self.run else ()) if name not in known)


def drawing_of(graph: Graph, run: RunSeen | None = None) -> Drawing:
    """What there is to draw.

    Args:
        graph: One that was checked: it has no cycle.
        run: What became of it in a run.
    """
    # Here rather than at the top: networkx takes 70 ms to import.
    import networkx as nx  # noqa: PLC0415

    order = nx.DiGraph()
    order.add_nodes_from(graph.nodes)
    for node in graph.nodes.values():
        order.add_edges_from((name, node.name) for name in node.sources if name in graph.nodes)
    rank = {name: number for number, name in enumerate(graph.nodes)}
    # A node's generation is the length of the longest way to it.
    layers = [sorted(names, key=rank.__getitem__) for names in nx.topological_generations(order)]
    sources = dict.fromkeys(name for node in graph.nodes.values() for name in node.sources)
    return Drawing(
        name=graph.name,
        inputs=tuple(name for name in sources if name not in graph.nodes),
        boxes=tuple(
            _box(graph.nodes[name], graph, layer, run)
            for layer, names in enumerate(layers)
            for name in names
        ),
        run=run,
    )


def _box(node: Node, graph: Graph, layer: int, run: RunSeen | None) -> Box:
    return Box(
        name=node.name,
        layer=layer,
        arrows=tuple(dict.fromkeys(_arrows(node, graph, run))),
        is_mapped=node.is_mapped,
        kind=_kind(node),
        when=_condition(node.when) if node.when else None,
        roles=node.policies.over(graph.policies).models or (),
        seen=run.of(node.name) if run else None,
    )


def _arrows(node: Node, graph: Graph, run: RunSeen | None) -> Iterator[Arrow]:
    taken = {parameter.source for parameter in node.parameters}
    asked = [one for one in (node.when.parameters if node.when else ()) if one.source not in taken]
    for parameter in (*node.parameters, *asked):
        source = parameter.source
        yield Arrow(
            source=source,
            is_input=source not in graph.nodes,
            way="when" if source not in taken else _way(parameter, graph.nodes.get(source)),
            is_critical=run is not None and (source, node.name) in run.critical_steps,
        )


def _way(parameter: Parameter, source: Node | None) -> Way:
    if parameter.is_mapped:
        return "item"
    gives_items = source is not None and (source.is_mapped or source.is_streaming)
    return "list" if gives_items else "value"


def _kind(node: Node) -> Kind:
    if node.is_streaming:
        return "stream"
    is_async = inspect.iscoroutinefunction(inspect.unwrap(node.function))
    return "async" if is_async else "plain"


def _condition(when: When) -> str:
    name = getattr(when.function, "__name__", "when").strip("<>")
    return f"{name}({', '.join(parameter.name for parameter in when.parameters)})"


SeenStatus = NodeStatus | Literal["not run"]
"""What became of a node: the worst of its items."""

_WORST_FIRST: tuple[NodeStatus, ...] = (
    "failed",
    "unfinished",
    "stopped",
    "waiting",
    "cancelled",
    "done",
    "reused",
    "skipped",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeen:
    """What became of a node, with all of its items and of what was nested in it."""

    status: SeenStatus
    items: int
    """Items that it had; 1 for a node that is not mapped, 0 for one that was not run."""
    busy_ns: int
    calls: int
    input_tokens: int
    output_tokens: int
    is_critical: bool


NOT_RUN = NodeSeen(
    status="not run",
    items=0,
    busy_ns=0,
    calls=0,
    input_tokens=0,
    output_tokens=0,
    is_critical=False,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSeen:
    """A run of a graph."""

    run_id: str
    status: RunState
    """How it ended; `unfinished` when it was killed, or is not over."""
    duration_ns: int
    """From its first record to its last."""
    nodes: Mapping[str, NodeSeen]
    """By the node's name; those that the run had."""
    critical_path: tuple[str, ...]
    """The nodes that decided how long it took, in order; of a mapped node, one item did."""

    @property
    def critical_steps(self) -> frozenset[tuple[str, str]]:
        """Which node led to which along that path."""
        return frozenset(pairwise(self.critical_path))

    def of(self, node: str) -> NodeSeen:
        """What became of a node."""
        return self.nodes.get(node, NOT_RUN)


def run_seen(journal: Journal) -> RunSeen:
    """Reads a journal, of a run that ended, was killed, or is still going.

    Raises:
        JournalInvalid: A line in the middle is not a record.
    """
    records = node_records(journal)
    outermost: dict[str, list[NodeRecord]] = {}
    for record in records:
        outermost.setdefault(_outermost(record.node), []).append(record)
    path = _critical_path(journal)
    return RunSeen(
        run_id=journal.started.run_id,
        status=journal.ended.status if journal.ended else "unfinished",
        duration_ns=journal.duration_ns,
        nodes={
            name: _seen(members, is_critical=name in path) for name, members in outermost.items()
        },
        critical_path=path,
    )


def _seen(records: list[NodeRecord], *, is_critical: bool) -> NodeSeen:
    own = [record for record in records if "/" not in record.node]
    statuses = {record.status for record in own}
    return NodeSeen(
        status=next((status for status in _WORST_FIRST if status in statuses), "not run"),
        items=len(own),
        busy_ns=_covered_ns(part for record in own for part in record.times),
        calls=sum(record.calls for record in records),
        input_tokens=sum(record.input_tokens for record in records),
        output_tokens=sum(record.output_tokens for record in records),
        is_critical=is_critical,
    )


def _critical_path(journal: Journal) -> tuple[str, ...]:
    spans = [
        span
        for span in journal.spans()
        if span.name == "node" and "/" not in str(span.attributes.get("label"))
    ]
    run = Interval(start_ns=journal.started.time_ns, end_ns=journal.last_ns)
    steps = critical_path(spans, journal.flows, run=run).steps
    # Called again, or an item after an item of the same node, it is one box still.
    return tuple(dict.fromkeys(_outermost(step.node) for step in steps))


def _outermost(path: str) -> str:
    """The node of the graph itself that a call was made in: `answer` of `answer[3]/brief/text`."""
    return path.partition("/")[0].partition("[")[0]


def _covered_ns(intervals: Iterable[Interval]) -> int:
    """How much of the clock intervals cover, counted once where they overlap."""
    covered_ns, until_ns = 0, None
    for one in sorted(intervals, key=lambda one: one.start_ns):
        start_ns = one.start_ns if until_ns is None else max(one.start_ns, until_ns)
        covered_ns += max(0, one.end_ns - start_ns)
        until_ns = one.end_ns if until_ns is None else max(until_ns, one.end_ns)
    return covered_ns


_LONGEST_TITLE = 40
"""Columns. A longer name moves what follows it, in its own line alone."""
_GAP = "  "


def as_text(drawing: Drawing, *, width: int = 100) -> str:
    """Lines that end with a newline each.

    Args:
        drawing: What to draw.
        width: Columns, beyond which a line goes on in the next; a name is never broken.
    """
    lines = [_headline(drawing), *filter(None, [run_line(drawing)])]
    if drawing.boxes:
        lines += ["", *_box_lines(drawing, width)]
    if legend := list(_legend(drawing)):
        lines += ["", *legend]
    return "".join(f"{line}\n" for line in lines)


def _headline(drawing: Drawing) -> str:
    nodes, layers = len(drawing.boxes), drawing.layers
    return (
        f"{printable(drawing.name)}: {nodes} node{'' if nodes == 1 else 's'} in {layers} "
        f"layer{'' if layers == 1 else 's'}; inputs: {', '.join(drawing.inputs) or 'none'}"
    )


def _box_lines(drawing: Drawing, width: int) -> Iterator[str]:
    """The nodes' lines: layer, mark, name, the run's figures in columns, what the node takes."""
    boxes = drawing.boxes
    layers = [
        "" if number and boxes[number - 1].layer == box.layer else str(box.layer + 1)
        for number, box in enumerate(boxes)
    ]
    marks = [CRITICAL if box.seen and box.seen.is_critical else "" for box in boxes]
    grid = [
        _column(layers, right=True),
        *([_column(marks)] if drawing.run else []),
        _column([box_title(box) for box in boxes]),
    ]
    if drawing.run:
        seen = [figures(box.seen) if box.seen else ("",) * 4 for box in boxes]
        grid += [_column(cells, right=True) for cells in zip(*seen, strict=True) if any(cells)]
    for box, cells in zip(boxes, zip(*grid, strict=True), strict=True):
        yield from _wrapped(_GAP.join(cells), list(_pieces(box)), width=width)


def _column(cells: Sequence[str], *, right: bool = False) -> list[str]:
    width = min(_LONGEST_TITLE, max(map(columns, cells)))
    padding = [" " * (width - columns(cell)) for cell in cells]
    return [
        space + cell if right else cell + space for cell, space in zip(cells, padding, strict=True)
    ]


def _pieces(box: Box) -> Iterator[str]:
    """What a node takes and what was said of it, in pieces between which a line may end."""
    last = len(box.arrows) - 1
    for number, arrow in enumerate(box.arrows):
        yield f"{'' if number else '← '}{taken(arrow)}{',' if number < last else ''}"
    if said := remarks(box):
        yield f"({'; '.join(said)})"


def _wrapped(start: str, pieces: Sequence[str], *, width: int) -> Iterator[str]:
    """A line, and those that it goes on in, under where its first piece stands."""
    indent = " " * columns(f"{start}{_GAP}← ")
    line = start + _GAP
    has_piece = False
    for piece in pieces:
        if has_piece and columns(line) + columns(piece) + 1 > width:
            yield line.rstrip()
            line, has_piece = indent, False
        line += f" {piece}" if has_piece else piece
        has_piece = True
    yield line.rstrip()


def _legend(drawing: Drawing) -> Iterator[str]:
    signs = []
    if any(box.is_mapped for box in drawing.boxes):
        signs.append(MAPPED_MEANS)
    if any(arrow.way == "list" for box in drawing.boxes for arrow in box.arrows):
        signs.append("[] takes the list of all items")
    if drawing.run and drawing.run.critical_path:
        signs.append(CRITICAL_MEANS)
    if signs:
        yield "; ".join(signs)
    if line := unknown_line(drawing):
        yield line


_MEAN_NOTHING = frozenset(f" _-.,:/()[]+=→←·{MAPPED}{CRITICAL}")
"""Signs that are themselves within quotes, as letters and digits are."""
_ARROWS: Mapping[Way, str] = {
    "value": "-->",
    "item": "-- each -->",
    "list": "-->",
    "when": "-. when .->",
}
_CRITICAL_ARROWS: Mapping[Way, str] = {
    **_ARROWS,
    "value": "==>",
    "item": "== each ==>",
    "list": "==>",
}
_ABSENT = {"skipped", "not run"}


def as_mermaid(drawing: Drawing) -> str:
    """The text of a flowchart; ends with a newline."""
    return "".join(f"{line}\n" for line in _lines(drawing))


def _lines(drawing: Drawing) -> Iterator[str]:
    yield from ("---", f"title: {_title(drawing)}", "---", f"flowchart {drawing.direction}")
    ids = {box.name: f"n{number}" for number, box in enumerate(drawing.boxes)}
    for box in drawing.boxes:
        opening, closing = _shape(box)
        label = "<br/>".join(map(_escaped, _label(box)))
        yield f'    {ids[box.name]}{opening}"{label}"{closing}'
    for box in drawing.boxes:
        for arrow in box.arrows:
            if not arrow.is_input:
                line = (_CRITICAL_ARROWS if arrow.is_critical else _ARROWS)[arrow.way]
                yield f"    {ids[arrow.source]} {line} {ids[box.name]}"
    yield from _classes(drawing, ids)


def _title(drawing: Drawing) -> str:
    """The picture's title as a text of YAML, whose quotes JSON's are too."""
    said = " · ".join(filter(None, [printable(drawing.name), run_line(drawing)]))
    return orjson.dumps(said).decode()


def _shape(box: Box) -> tuple[str, str]:
    """A box with double sides is called once per item; a hexagon may be skipped."""
    if box.is_mapped:
        return "[[", "]]"
    return ("{{", "}}") if box.when else ("(", ")")


def _label(box: Box) -> Iterator[str]:
    critical = f"{CRITICAL} " if box.seen and box.seen.is_critical else ""
    yield critical + box_title(box)
    if outside := taken_from_outside(box):
        yield f"← {outside}"
    yield from remarks(box)
    if box.seen and (said := " · ".join(filter(None, figures(box.seen)))):
        yield said


def _classes(drawing: Drawing, ids: Mapping[str, str]) -> Iterator[str]:
    critical = [ids[box.name] for box in drawing.boxes if box.seen and box.seen.is_critical]
    absent = [ids[box.name] for box in drawing.boxes if box.seen and box.seen.status in _ABSENT]
    for name, style, members in (
        ("critical", "stroke-width:4px", critical),
        ("absent", "stroke-dasharray:5 4", absent),
    ):
        if members:
            yield f"    classDef {name} {style}"
            yield f"    class {','.join(members)} {name}"


def _escaped(text: str) -> str:
    return "".join(
        sign if sign.isalnum() or sign in _MEAN_NOTHING else f"#{ord(sign)};" for sign in text
    )


def columns(text: str) -> int:
    """How wide a text is on a terminal: some characters take two columns, some none."""
    return cell_len(text)


def printable(text: str) -> str:
    """A text on one line, with no control characters: some pictures have no form for them."""
    return "".join(sign if sign.isprintable() else " " for sign in text)


def box_title(box: Box) -> str:
    """A node's name, and how often it was called if once per item."""
    if not box.is_mapped:
        return box.name
    items = box.seen.items if box.seen else 0
    return f"{box.name} {MAPPED}{items or ''}"


def taken(arrow: Arrow) -> str:
    """What goes into a node: `task`, `each topics`, `sections[]`."""
    match arrow.way:
        case "item":
            return f"each {arrow.source}"
        case "list":
            return f"{arrow.source}[]"
        case _:
            return arrow.source


def taken_from_outside(box: Box) -> str:
    """The inputs that a node takes, for a picture whose arrows say the rest."""
    return ", ".join(taken(arrow) for arrow in box.arrows if arrow.is_input)


def remarks(box: Box) -> tuple[str, ...]:
    """What else its author said of a node."""
    parts = (
        f"when {box.when}" if box.when else "",
        ", ".join(box.roles),
        _KINDS[box.kind],
    )
    return tuple(printable(part) for part in parts if part)


def figures(seen: NodeSeen) -> tuple[str, str, str, str]:
    """What a run made of a node: how it ended if not well, time, calls, tokens; "" for none."""
    return (
        "" if seen.status == "done" else seen.status,
        duration(seen.busy_ns) if seen.busy_ns else "",
        f"{seen.calls:,} call{'' if seen.calls == 1 else 's'}" if seen.calls else "",
        f"{seen.input_tokens:,} → {seen.output_tokens:,} tokens" if seen.calls else "",
    )


def run_line(drawing: Drawing) -> str:
    """Which run it was, and how it ended; empty where there is none."""
    run = drawing.run
    if run is None:
        return ""
    ended = {"ok": "ended well", "unfinished": "was killed, or is not over"}
    how = ended.get(run.status, run.status)
    return f"run {printable(run.run_id)}: {duration(run.duration_ns)}, {how}"


def unknown_line(drawing: Drawing) -> str:
    """What the run had and the drawing does not have; empty where there is nothing."""
    names = printable(", ".join(drawing.unknown))
    return f"In the run, and not in the file: {names}" if names else ""


def duration(time_ns: int) -> str:
    """Milliseconds of what is short, else seconds."""
    if time_ns < _SECONDS_FROM_NS:
        return f"{time_ns / 1e6:.1f} ms"
    return f"{time_ns / 1e9:,.{2 if time_ns < 10e9 else 1}f} s"
