"""The comparison of two runs, as tables for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.analysis.comparison import (
    Difference,
    FigureDifference,
    FigureUnit,
    FindingChange,
    FindingDifference,
    LoopDifference,
    NodeDifference,
    RunComparison,
)
from harness.analysis.finding import ns_text
from harness.analysis.time_budget import TIME_KINDS
from harness.cli.tables import UNKNOWN, digits, dollars, known, seconds, table
from harness.cli.trace_report import composites
from harness.trace.node_records import NodeRecord
from harness.wiggum import RecordedLoop

_FINDINGS: Mapping[FindingChange, str] = {
    "gone": "Findings of A that are gone:",
    "new": "New in B:",
    "moved": "Moved:",
    "same": "The same in both:",
}
# Rows of a table that a person still reads; JSON has all.
_MOST_ROWS = 20


def print_comparison(comparison: RunComparison, console: Console) -> None:
    """Prints what differs, the biggest differences first; what is equal is counted."""
    a, b = comparison.a, comparison.b
    console.print(_bottleneck_line(comparison), style="bold")
    console.print(f"A is {a.run_id}, B is {b.run_id}", style="bold")
    if a.pipeline != b.pipeline:
        sentence = f"They are runs of two pipelines, '{a.pipeline}' and '{b.pipeline}'."
        console.print(sentence, style="yellow")
    for side, run in (("A", a), ("B", b)):
        # Not in the table, whose first column a long message would leave no room.
        if run.error:
            console.print(f"{side} ended in {run.error}")
    console.print(_figure_table(comparison))
    for role, models in comparison.roles.items():
        if models[0] != models[1]:
            in_a, in_b = (", ".join(names) or "no model" for names in models)
            console.print(f"Role {role}: {in_a} in A, {in_b} in B.", soft_wrap=True)
    for name, (of_a, of_b) in comparison.settings.items():
        console.print(f"Set differently: {name}: {known(of_a, str)} → {known(of_b, str)}")
    for change, words in _FINDINGS.items():
        findings = [_finding(f) for f in comparison.findings if f.change == change]
        if findings:
            console.print(f"{words} {', '.join(findings)}.")
    if names := ", ".join(comparison.changed_inputs):
        console.print(f"Inputs that were given differently: {names}.")
    differing = [node for node in comparison.nodes if node.differs_in]
    alone = "only in one run"
    kinds = Counter(alone if None in (n.a, n.b) else n.differs_in[0] for n in differing)
    most = f" ({', '.join(f'{kind}: {n:,}' for kind, n in kinds.items())})" if kinds else ""
    equal = len(comparison.nodes) - len(differing)
    console.print(f"Node calls that differ: {len(differing):,}{most}; equal: {equal:,}.")
    if differing:
        console.print(_node_table(differing))
    if any(not loop.is_equal for loop in comparison.loops):
        console.print(_loop_table(comparison.loops))


def _bottleneck_line(comparison: RunComparison) -> str:
    """Whether the bottleneck has moved, in a sentence."""
    of_a, of_b = comparison.bottlenecks
    if of_a is None or of_b is None:
        return "Where the bottleneck is cannot be told: one of the runs took no time."
    share_a = f"{comparison.time[of_a][0] / comparison.a.duration_ns:.0%} of A"
    share_b = f"{comparison.time[of_b][1] / comparison.b.duration_ns:.0%} of B"
    if of_a == of_b:
        return f"The bottleneck has not moved: {TIME_KINDS[of_a]} ({share_a}, {share_b})."
    now = f"{TIME_KINDS[of_b]} ({share_b})"
    return f"The bottleneck has moved: {TIME_KINDS[of_a]} ({share_a}), now {now}."


def _seconds(time_ns: float) -> str:
    return f"{seconds(round(time_ns))} s"


_UNITS: Mapping[FigureUnit, Callable[[float], str]] = {
    "ns": lambda ns: _seconds(ns) if ns >= 1e9 else f"{digits(ns / 1e6)} ms",
    "share": lambda share: f"{share:.0%}",
    "tokens/s": lambda rate: f"{digits(rate)} tokens/s",
}


def _figure_table(comparison: RunComparison) -> Table:
    """The totals of both runs, the time of their critical paths, and the figures of their calls."""
    a, b, nodes = comparison.a, comparison.b, comparison.nodes
    rows = table("", "", "A", "B", "change")
    for column in rows.columns[1:]:
        column.no_wrap = True
    rows.add_row("ended", a.status, b.status, "")
    _add_change(rows, "time", a.duration_ns, b.duration_ns, _seconds)
    for title, of_a, of_b in (
        ("node calls", sum(n.a is not None for n in nodes), sum(n.b is not None for n in nodes)),
        ("model calls", a.calls.calls, b.calls.calls),
        ("tokens in", a.calls.input_tokens, b.calls.input_tokens),
        ("tokens out", a.calls.output_tokens, b.calls.output_tokens),
    ):
        _add_change(rows, title, of_a, of_b, lambda count: f"{count:,}")
    if a.cost.usd is not None or b.cost.usd is not None:
        _add_change(rows, "dollars", a.cost.usd, b.cost.usd, dollars)
    rows.add_section()
    rows.add_row(Text("Time of the critical path", style="bold"))
    for kind, (a_ns, b_ns) in comparison.time.items():
        # Kinds that took at least a hundredth of one of the runs.
        if 100 * a_ns >= a.duration_ns or 100 * b_ns >= b.duration_ns:
            _add_change(rows, TIME_KINDS[kind], a_ns, b_ns, _seconds)
    if figures := _changed(comparison.figures):
        rows.add_section()
        rows.add_row(Text("Calls", style="bold"))
        for figure in figures:
            name = f"{figure.model}: {figure.name}" if figure.model else figure.name
            _add_change(rows, name, figure.a, figure.b, _UNITS[figure.unit])
    return rows


def _changed(figures: Sequence[FigureDifference]) -> list[FigureDifference]:
    """Figures that changed by over a twentieth (times: a millisecond), per model if of several."""
    in_both = [figure for figure in figures if figure.a is not None and figure.b is not None]
    # One of these is None: that of the figures of all calls.
    has_several_models = len({figure.model for figure in in_both}) > 2
    changed = []
    for figure in figures:
        a, b = figure.a or 0.0, figure.b or 0.0
        is_shown = not figure.model or (has_several_models and figure in in_both)
        if is_shown and abs(b - a) > max(0.05 * a, 1e6 if figure.unit == "ns" else 0.0):
            changed.append(figure)
    return changed


def _finding(finding: FindingDifference) -> str:
    sides = [side for side in (finding.a, finding.b) if side]
    losses = " → ".join(f"{side.severity}, {ns_text(side.lost_ns or 0)}" for side in sides)
    model = f"{finding.model}, " if finding.model else ""
    return f"{finding.rule} ({model}{losses})"


def _add_change(
    rows: Table, title: str, a: float | None, b: float | None, form: Callable[[float], str]
) -> None:
    change = "" if a is None or b is None else _change(a, b)
    rows.add_row(title, known(a, form), known(b, form), change)


_NODE_FIGURES: Mapping[str, Callable[[NodeRecord], str]] = {
    "time": lambda node: f"{seconds(node.duration_ns)} s",
    "calls": lambda node: f"{node.calls}",
    "tokens in": lambda node: f"{node.input_tokens:,}",
    "tokens out": lambda node: f"{node.output_tokens:,}",
    "dollars": lambda node: known(node.cost_usd, dollars),
}


def _node_table(nodes: list[NodeDifference]) -> Table:
    rows = table("Node calls, A → B; the biggest differences first", "node")
    rows.add_column("differs in", ratio=1)
    has_cost = any(n and n.cost_usd is not None for node in nodes for n in (node.a, node.b))
    figures = {
        title: form for title, form in _NODE_FIGURES.items() if has_cost or title != "dollars"
    }
    for title in figures:
        rows.add_column(title, justify="right")
    for node in nodes[:_MOST_ROWS]:
        both = [(known(node.a, form), known(node.b, form)) for form in figures.values()]
        cells = (a if a == b else f"{a} → {b}" for a, b in both)
        differences = ", ".join(_difference(kind, node) for kind in node.differs_in)
        rows.add_row(node.node, differences, *cells)
    if len(nodes) > _MOST_ROWS:
        rows.add_row(f"and {len(nodes) - _MOST_ROWS:,} more", "all of them: --json")
    return rows


def _difference(kind: Difference, node: NodeDifference) -> str:
    """What differs in a node call, in a phrase."""
    a, b = node.a, node.b
    if a is None or b is None:
        return "only in A" if b is None else "only in B"
    match kind:
        case "status":
            error = b.error or a.error
            return f"{a.status} in A, {b.status} in B" + (f" ({error})" if error else "")
        case "inputs":
            return f"inputs {', '.join(node.changed_inputs)}"
        case "work":
            return "other calls"
        case _:
            return kind


def _loop_table(loops: tuple[LoopDifference, ...]) -> Table:
    rows = table("Loops: composites (* returned)", "node")
    for column in ("A", "B"):
        rows.add_column(column, ratio=1)
    differing = [loop for loop in loops if not loop.is_equal]
    for loop in differing[:_MOST_ROWS]:
        number = f", loop {loop.number}" if loop.number > 1 else ""
        rows.add_row(f"{loop.node or UNKNOWN}{number}", *(_loop(side) for side in (loop.a, loop.b)))
    if len(differing) > _MOST_ROWS:
        rows.add_row(f"and {len(differing) - _MOST_ROWS:,} more", "all of them: --json")
    if equal := len(loops) - len(differing):
        rows.add_row(f"and {equal:,} equal")
    return rows


def _loop(loop: RecordedLoop | None) -> str:
    if loop is None:
        return UNKNOWN
    return f"{composites(loop)} {loop.stop_reason or loop.status}"


def _change(a: float, b: float) -> str:
    """How far B is above A, as a share of A; `=` if they are equal."""
    if a == b:
        return "="
    return f"{(b - a) / a:+.1%}" if a else ""
