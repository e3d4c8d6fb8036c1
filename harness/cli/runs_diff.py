"""The comparison of two runs, as tables for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.analysis import RunReport
from harness.analysis.comparison import (
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
from harness.cli.tables import UNKNOWN, digits, dollars, known, seconds
from harness.cli.trace_report import composites
from harness.trace.node_records import NodeRecord
from harness.wiggum import RecordedLoop

_FINDINGS: Mapping[FindingChange, str] = {
    "gone": "Findings of A that are gone:",
    "new": "New in B:",
    "moved": "Moved:",
    "same": "The same in both:",
}
# Lines that a person still reads; JSON has all.
_MOST_NODES = 40


def print_comparison(comparison: RunComparison, console: Console) -> None:
    """Prints what differs, the biggest differences first; what is equal is counted."""
    a, b = comparison.a, comparison.b
    console.print(Text(_bottleneck_line(comparison), style="bold"))
    console.print(Text(f"A is {a.run_id}, B is {b.run_id}", style="bold"))
    if a.pipeline != b.pipeline:
        sentence = f"They are runs of two pipelines, '{a.pipeline}' and '{b.pipeline}'."
        console.print(Text(sentence, style="yellow"))
    console.print(_totals_table(comparison))
    for name, (was, later) in comparison.settings.items():
        console.print(Text(f"Set differently: {name}: {known(was, str)} → {known(later, str)}"))
    console.print(_time_table(comparison))
    console.print(_figure_table(comparison.figures))
    for change, words in _FINDINGS.items():
        if changes := [
            _finding(finding) for finding in comparison.findings if finding.change == change
        ]:
            console.print(Text(f"{words} {', '.join(changes)}."))
    if names := ", ".join(comparison.changed_inputs):
        console.print(Text(f"Inputs that were given differently: {names}."))
    differing = [node for node in comparison.nodes if node.differs_in]
    if differing:
        console.print(_node_table(differing))
    equal = len(comparison.nodes) - len(differing)
    console.print(f"Node calls that differ: {len(differing):,}; equal: {equal:,}.", highlight=False)
    if any(not loop.is_equal for loop in comparison.loops):
        console.print(_loop_table(comparison.loops))
    for role, models in comparison.roles.items():
        if models[0] != models[1]:
            of_a, of_b = (", ".join(names) or "no model" for names in models)
            console.print(Text(f"Role {role}: {of_a} in A, {of_b} in B."), soft_wrap=True)


def _bottleneck_line(comparison: RunComparison) -> str:
    """Whether the bottleneck has moved, in a sentence."""
    a, b, (was, later) = comparison.a, comparison.b, comparison.bottlenecks
    if was is None or later is None:
        return "Where the bottleneck is cannot be told: one of the runs took no time."
    of_a = f"{comparison.time[was][0] / a.duration_ns:.0%} of A"
    of_b = f"{comparison.time[later][1] / b.duration_ns:.0%} of B"
    if was == later:
        return f"The bottleneck has not moved: {TIME_KINDS[was]} ({of_a}, {of_b})."
    return (
        f"The bottleneck has moved: {TIME_KINDS[was]} ({of_a}), now {TIME_KINDS[later]} ({of_b})."
    )


def _time_table(comparison: RunComparison) -> Table:
    """What took a hundredth of one of the runs."""
    wholes = [max(1, run.duration_ns) for run in (comparison.a, comparison.b)]
    table = _changes("Time of the critical path")
    for kind, spent in comparison.time.items():
        shares = [ns / whole for ns, whole in zip(spent, wholes, strict=True)]
        if max(shares) >= 0.01:
            cells = (
                f"{seconds(ns)} s, {share:.0%}" for ns, share in zip(spent, shares, strict=True)
            )
            table.add_row(TIME_KINDS[kind], *cells, _change(*spent))
    return table


_UNITS: Mapping[FigureUnit, Callable[[float], str]] = {
    "ns": lambda ns: f"{seconds(round(ns))} s" if ns >= 1e9 else f"{digits(ns / 1e6)} ms",
    "share": lambda share: f"{share:.0%}",
    "tokens/s": lambda rate: f"{digits(rate)} tokens/s",
}


def _figure_table(figures: Sequence[FigureDifference]) -> Table:
    """What has changed by a twentieth, and by a millisecond; of models, where they are several."""
    table = _changes("Calls")
    several = len({f.model for f in figures if f.a is not None and f.b is not None}) > 2
    for row in figures:
        if row.model and not (several and row.a is not None and row.b is not None):
            continue
        was, later = row.a or 0.0, row.b or 0.0
        if abs(later - was) > max(0.05 * was, 1e6 if row.unit == "ns" else 0.0):
            name = f"{row.model}: {row.name}" if row.model else row.name
            _add_change(table, name, row.a, row.b, _UNITS[row.unit])
    return table


def _changes(title: str) -> Table:
    table = Table(title, "A", "B", "change")
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    return table


def _finding(finding: FindingDifference) -> str:
    sides = [side for side in (finding.a, finding.b) if side]
    lost = " → ".join(f"{side.severity}, {ns_text(side.lost_ns or 0)}" for side in sides)
    return f"{finding.rule} ({f'{finding.model}, ' if finding.model else ''}{lost})"


def _totals_table(comparison: RunComparison) -> Table:
    a, b, nodes = comparison.a, comparison.b, comparison.nodes
    table = _changes("")
    table.add_row("ended", Text(_ended(a)), Text(_ended(b)), "")
    _add_change(table, "time", a.duration_ns, b.duration_ns, lambda ns: f"{seconds(round(ns))} s")
    for title, of_a, of_b in (
        ("node calls", sum(n.a is not None for n in nodes), sum(n.b is not None for n in nodes)),
        ("model calls", a.calls.calls, b.calls.calls),
        ("tokens in", a.calls.input_tokens, b.calls.input_tokens),
        ("tokens out", a.calls.output_tokens, b.calls.output_tokens),
    ):
        _add_change(table, title, of_a, of_b, lambda count: f"{count:,}")
    if a.cost.usd is not None or b.cost.usd is not None:
        _add_change(table, "dollars", a.cost.usd, b.cost.usd, dollars)
    return table


def _add_change(
    table: Table, title: str, a: float | None, b: float | None, form: Callable[[float], str]
) -> None:
    change = "" if a is None or b is None else _change(a, b)
    table.add_row(Text(title), known(a, form), known(b, form), change)


def _ended(run: RunReport) -> str:
    return f"{run.status} ({run.error})" if run.error else run.status


_NODE_FIGURES: Mapping[str, Callable[[NodeRecord], str]] = {
    "time": lambda node: f"{seconds(node.duration_ns)} s",
    "calls": lambda node: f"{node.calls}",
    "tokens in": lambda node: f"{node.input_tokens:,}",
    "tokens out": lambda node: f"{node.output_tokens:,}",
    "dollars": lambda node: known(node.cost_usd, dollars),
}


def _node_table(nodes: list[NodeDifference]) -> Table:
    table = Table(title="Node calls, A → B; the biggest differences first", title_justify="left")
    table.add_column("node", overflow="fold")
    table.add_column("what", ratio=1)
    has_cost = any(n and n.cost_usd is not None for node in nodes for n in (node.a, node.b))
    figures = {name: of for name, of in _NODE_FIGURES.items() if has_cost or name != "dollars"}
    for name in figures:
        table.add_column(name, justify="right")
    for node in nodes[:_MOST_NODES]:
        cells = (_both(known(node.a, of), known(node.b, of)) for of in figures.values())
        table.add_row(Text(node.node), Text("; ".join(_differences(node))), *cells)
    if len(nodes) > _MOST_NODES:
        table.add_row(f"and {len(nodes) - _MOST_NODES:,} more", "all of them: --json")
    return table


def _differences(node: NodeDifference) -> Iterator[str]:
    """What differs in a node call, in words."""
    a, b, differs = node.a, node.b, node.differs_in
    if a is None or b is None:
        yield "only in A" if b is None else "only in B"
        return
    if "status" in differs:
        yield f"{a.status} in A, {b.status} in B" + (
            f" ({error})" if (error := b.error or a.error) else ""
        )
    causes = list(_causes(node, a, b))
    if "output" not in differs:
        yield from causes
    elif causes:
        yield f"output changed: {', '.join(causes)}"
    elif a.code is None or b.code is None:
        yield "output changed; why is not recorded"
    elif a.calls or b.calls:
        yield "output changed, with the same code, inputs and models: another reply"
    else:
        yield "output changed, with the same code and inputs"
    if node.differs_in == ("time",):
        yield "took longer in " + ("A" if a.duration_ns > b.duration_ns else "B")
    elif node.differs_in[0] == "work":
        yield "the same output, with other calls"


def _causes(node: NodeDifference, a: NodeRecord, b: NodeRecord) -> Iterator[str]:
    if "code" in node.differs_in:
        yield "its code"
    if node.changed_inputs:
        names = ", ".join(f"'{name}'" for name in node.changed_inputs)
        yield f"its input{'' if len(node.changed_inputs) == 1 else 's'} {names}"
    if "models" in node.differs_in:
        roles = [role for role in a.models if a.models[role] != b.models.get(role, a.models[role])]
        yield f"its models ({', '.join(roles)})"


def _loop_table(loops: tuple[LoopDifference, ...]) -> Table:
    table = Table(title="Loops: composites (* returned)", title_justify="left")
    table.add_column("node", overflow="fold")
    for column in ("A", "B"):
        table.add_column(column, ratio=1)
    equal = 0
    for loop in loops:
        if loop.is_equal:
            equal += 1
            continue
        number = f", loop {loop.number}" if loop.number > 1 else ""
        table.add_row(
            Text(f"{loop.node or UNKNOWN}{number}"), *(_loop(side) for side in (loop.a, loop.b))
        )
    if equal:
        table.add_row(f"and {equal:,} equal")
    return table


def _loop(loop: RecordedLoop | None) -> Text:
    if loop is None:
        return Text(UNKNOWN)
    return Text(f"{composites(loop)} {loop.stop_reason or loop.status}")


def _both(a: str, b: str) -> str:
    """Both sides of a cell; once, where they look the same."""
    return a if a == b else f"{a} → {b}"


def _change(was: float, later: float) -> str:
    """By how much more or less, as a share of what was."""
    if was == later:
        return "="
    return f"{(later - was) / was:+.1%}" if was else ""
