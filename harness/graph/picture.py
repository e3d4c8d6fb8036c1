"""Pictures of a graph, and what a run made of its nodes.

A `Drawing` holds the content: nodes in layers, and the inputs of each. `as_mermaid` writes a
flowchart, which Markdown and notebooks draw: https://mermaid.js.org/syntax/flowchart.html.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import orjson

from harness.graph.graph import Graph
from harness.graph.node import Node, Parameter, When
from harness.trace import Interval, Journal, events
from harness.trace.intervals import length_ns
from harness.trace.node_records import NodeRecord, NodeStatus, critical_path, node_records

Way = Literal["value", "item", "list", "when"]
"""How a node takes a value: as a whole, one item per call, as the list of a mapped node's outputs,
or only in its `when`."""

Kind = Literal["async", "plain", "stream"]
"""A coroutine function; one that runs in a thread; one that yields its items as they come."""

Edges = frozenset[tuple[str, str]]

SeenStatus = NodeStatus | Literal["not run"]
"""How a node ended: the worst of its items."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeen:
    """A run's figures for a node, over all its items and nested nodes."""

    status: SeenStatus = "not run"
    items: int = 0
    """1 for a node that is not mapped, 0 for one that was not run."""
    busy_ns: int = 0
    """Time during which at least one of its items was running."""
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    is_critical: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """A value that a node takes."""

    source: str
    """A node, or an input of the graph."""
    is_input: bool
    way: Way
    is_implied: bool = False
    """Whether other arrows lead there by way of further nodes. A flowchart does not draw the arrow,
    and names the source in the node instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A node, as it is drawn."""

    name: str
    layer: int
    """The number of nodes above it, along the longest way."""
    arrows: tuple[Arrow, ...]
    """In the order of its signature, without duplicates."""
    is_mapped: bool
    kind: Kind
    when: str | None
    """Its `when`, such as `wanted(task)`; None if it always runs."""
    roles: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A graph to draw, in any form."""

    name: str
    inputs: tuple[str, ...]
    """In the order in which nodes take them."""
    boxes: tuple[Box, ...]
    """Layer by layer, and within each in the order of definition."""


# --- the graph ----------------------------------------------------------------------------------


def drawing_of(graph: Graph) -> Drawing:
    """Makes the drawing of a graph that was checked before, and so has no cycle."""
    import networkx  # noqa: PLC0415 - slow

    edges = graph.graph()
    generations = networkx.topological_generations(edges)
    layers = {name: number for number, names in enumerate(generations) for name in names}
    drawn = frozenset(networkx.transitive_reduction(edges).edges)
    sources = dict.fromkeys(name for node in graph.nodes.values() for name in node.sources)
    return Drawing(
        name=graph.name,
        inputs=tuple(name for name in sources if name not in graph.nodes),
        boxes=tuple(
            Box(
                name=name,
                layer=layers[name],
                arrows=tuple(dict.fromkeys(_arrows(graph.nodes[name], graph, drawn))),
                is_mapped=graph.nodes[name].is_mapped,
                kind=_kind(graph.nodes[name]),
                when=_condition(graph.nodes[name].when),
                roles=graph.nodes[name].policies.over(graph.policies).models or (),
            )
            for name in sorted(graph.nodes, key=layers.__getitem__)
        ),
    )


def _arrows(node: Node, graph: Graph, drawn: Edges) -> Iterator[Arrow]:
    sources = {parameter.source for parameter in node.parameters}
    for parameter in node.everything_taken:
        source = parameter.source
        is_condition = parameter not in node.parameters
        if is_condition and source in sources:
            continue  # by another name, the arrow is there already
        yield Arrow(
            source=source,
            is_input=source not in graph.nodes,
            way="when" if is_condition else _way(parameter, graph.nodes.get(source)),
            is_implied=source in graph.nodes and (source, node.name) not in drawn,
        )


def _way(parameter: Parameter, source: Node | None) -> Way:
    if parameter.is_mapped:
        return "item"
    gives_items = source is not None and (source.is_mapped or source.is_generator)
    return "list" if gives_items else "value"


def _kind(node: Node) -> Kind:
    if node.is_generator:
        return "stream"
    is_async = inspect.iscoroutinefunction(inspect.unwrap(node.function))
    return "async" if is_async else "plain"


def _condition(when: When | None) -> str | None:
    if when is None:
        return None
    name = getattr(when.function, "__name__", "when").strip("<>")
    return f"{name}({', '.join(parameter.name for parameter in when.parameters)})"


# --- the run ------------------------------------------------------------------------------------

_WORST_FIRST: tuple[NodeStatus, ...] = (
    "failed", "unfinished", "stopped", "waiting", "cancelled", "done", "reused", "skipped",
)  # fmt: skip


def nodes_seen(journal: Journal) -> dict[str, NodeSeen]:
    """A run's figures by node; the run may have ended, been killed, or be still going.

    Raises:
        JournalInvalid: A line in the middle is not a record.
    """
    records_by_node: dict[str, list[NodeRecord]] = {}
    for record in node_records(journal):
        records_by_node.setdefault(outermost_node(record.node), []).append(record)
    attempts = events.Events(journal.spans())[events.NodeAttempt]
    outer_attempts = [attempt for attempt in attempts if "/" not in attempt.label]
    run = Interval(start_ns=journal.started.time_ns, end_ns=journal.last_ns)
    path = critical_path(outer_attempts, journal.flows, run=run, resumed_ns=journal.resumed_ns)
    critical = {outermost_node(step.node) for step in path.steps}
    return {
        name: node_seen(records, is_critical=name in critical)
        for name, records in records_by_node.items()
    }


def node_seen(records: Sequence[NodeRecord], *, is_critical: bool) -> NodeSeen:
    """A run's figures for a node, from the records of its items and of nested calls."""
    # The time of a nested call lies within its caller's, so only tokens and calls are added up.
    outer = [record for record in records if "/" not in record.node]
    statuses = {record.status for record in outer}
    return NodeSeen(
        status=next((status for status in _WORST_FIRST if status in statuses), "not run"),
        items=len(outer),
        busy_ns=length_ns(part for record in outer for part in record.times),
        calls=sum(record.calls for record in records),
        input_tokens=sum(record.input_tokens for record in records),
        output_tokens=sum(record.output_tokens for record in records),
        is_critical=is_critical,
    )


def outermost_node(path: str) -> str:
    """The node of the graph itself that a call was made in: `answer` of `answer[3]/brief/text`."""
    return path.partition("/")[0].partition("[")[0]


# --- words --------------------------------------------------------------------------------------

_MAPPED = "\N{MULTIPLICATION SIGN}"
_KINDS: Mapping[Kind, str] = {"async": "", "plain": "in a thread", "stream": "streams its items"}


def _printable(text: str) -> str:
    """The text on one line, without control characters."""
    return "".join(sign if sign.isprintable() else " " for sign in text)


def _label(box: Box) -> Iterator[str]:
    """The lines of a node: its name, inputs and remarks."""
    yield f"{box.name} {_MAPPED}" if box.is_mapped else box.name
    # Sources without an arrow in the picture are named in the node.
    sources = [
        f"each {arrow.source}" if arrow.way == "item" else arrow.source
        for arrow in box.arrows
        if arrow.is_input or arrow.is_implied
    ]
    if sources:
        yield f"← {', '.join(sources)}"
    remarks = (f"when {box.when}" if box.when else "", ", ".join(box.roles), _KINDS[box.kind])
    yield from (_printable(remark) for remark in remarks if remark)


# --- Mermaid ------------------------------------------------------------------------------------

# Characters that need no escape within quotes, besides letters and digits.
_UNESCAPED = frozenset(f" _-.,:/()[]+=←{_MAPPED}")
_ARROWS: Mapping[Way, str] = {
    "value": "-->",
    "item": "-- each -->",
    "list": "-->",
    "when": "-. when .->",
}


def as_mermaid(drawing: Drawing) -> str:
    """The text of a flowchart; ends with a newline."""
    return "".join(f"{line}\n" for line in _flowchart(drawing))


def _flowchart(drawing: Drawing) -> Iterator[str]:
    # A text in the quotes of JSON is one of YAML too.
    title = orjson.dumps(_printable(drawing.name)).decode()
    yield from ("---", f"title: {title}", "---", "flowchart TD")
    # Numbers, since a name may be a keyword, such as `end`.
    ids = {box.name: f"n{number}" for number, box in enumerate(drawing.boxes)}
    for box in drawing.boxes:
        # A box with double sides is called once per item; a hexagon may be skipped.
        opening, closing = ("{{", "}}") if box.when else ("(", ")")
        if box.is_mapped:
            opening, closing = "[[", "]]"
        label = "<br/>".join(map(_escaped, _label(box)))
        yield f'    {ids[box.name]}{opening}"{label}"{closing}'
    for box in drawing.boxes:
        for arrow in box.arrows:
            if not arrow.is_input and not arrow.is_implied:
                yield f"    {ids[arrow.source]} {_ARROWS[arrow.way]} {ids[box.name]}"


def _escaped(text: str) -> str:
    # Mermaid writes a character by its number with `#`, where HTML has `&#`.
    return "".join(
        sign if sign.isalnum() or sign in _UNESCAPED else f"#{ord(sign)};" for sign in text
    )
