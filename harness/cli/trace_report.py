"""A run's report and diagnosis, in tables and words for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from harness.analysis import LAYERS, Aside, Diagnosis, RunFinding, RunReport, Severity
from harness.analysis.finding import counted
from harness.analysis.run_report import Goodput, Occupancy
from harness.analysis.speed_limits import MACHINE, Bound, SpeedLimit
from harness.analysis.time_budget import TIME_KINDS, TimeShare
from harness.cli.tables import UNKNOWN, digits, dollars, known, plain_table, seconds
from harness.trace.calls import LEAST_FOR_TAILS, CallGroup, Percentiles, RunCost
from harness.trace.node_records import CriticalPath
from harness.trace.records import OpenSpan, RunState
from harness.wiggum import RecordedLoop

_OPEN_SPANS_SHOWN = 20
_ENDED: dict[RunState, str] = {
    "unfinished": "killed, or still going",
    "waiting": "waiting for an answer",
    "stopped": "stopped at a limit",
}

_STYLES: dict[Severity, str] = {"error": "bold red", "warning": "bold yellow", "hint": "bold cyan"}

_BOUNDS: dict[Bound, str] = {
    "bandwidth": "Memory is the limit.",
    "compute": "Computing is the limit.",
    "neither": "Neither is near: something else slows it down.",
    "unknown": "Nothing passes a limit, so what the limit is could not be told: the machine was "
    "slower when it was measured.",
}
_LEAST_SHARE = 0.01
_ABOUT_SHARES = (
    "Findings count all nodes and calls, also those beside that path: their shares of the run may "
    "be larger."
)
_CHECKED = (
    "Looked for by {rules} rules{cut}: calls that failed, waited or came again, loads of models, "
    "prompts, replies, nodes and this process.{none}"
)
_WHERE_SPANS_ARE = (
    "harness trace show SPAN {run} prints one; in the timeline (harness trace open {run}) its "
    "number is `span` among a slice's arguments."
)


def print_report(report: RunReport, console: Console) -> None:
    """Prints those parts of the report that the run has figures for; unknown ones are dashes."""
    for part in _parts(report):
        if isinstance(part, Table):
            console.print()
        console.print(part)


def print_findings(diagnosis: Diagnosis, console: Console) -> None:
    """Prints the findings, worst first, each with its remedies, and what was looked for."""
    for number, finding in enumerate(diagnosis.findings, start=1):
        _print_finding(number, finding, console)
    if any(finding.spans for finding in diagnosis.findings):
        # A part of the id is enough to name a run, which may not be the latest.
        where = _WHERE_SPANS_ARE.format(run=diagnosis.run_id[-12:])
        console.print(where, style="dim")
    if diagnosis.time:
        console.print(_time_line(diagnosis))
    for limit in diagnosis.speed_limits:
        console.print(_limit_line(limit))
    console.print(_checked(diagnosis))
    for remark in diagnosis.remarks:
        console.print(str(remark))


def _parts(report: RunReport) -> Iterator[Table | str]:
    yield _headline(report)
    yield _calls_line(report)
    if report.calls.calls:
        title = "Latency of the calls that ended well"
        yield _groups_table(title, report, _LATENCIES, caption=_LATENCY_CAPTION)
        title = "Tokens, decoding speed, and seconds in each phase"
        yield _groups_table(title, report, _TOKENS)
        yield from (line for model in report.models for line in _model_lines(model))
        yield from map(_limit_line, report.speed_limits)
        yield _goodput_line(report.goodput)
        yield _occupancy_line(report.occupancy)
    for aside in report.asides:
        yield _aside_line(aside)
    for load in report.loads:
        loads = counted(load.loads, "load")
        yield f"Loading {load.model}: {seconds(load.load_ns)} s in {loads}."
    if report.critical_path.steps:
        yield _path_table(report.critical_path)
    if report.time:
        yield _time_table(report.time)
    if report.place_waits:
        most = "" if report.max_parallel is None else f": {report.max_parallel} run at once"
        yield f"{counted(report.place_waits, 'call')} of nodes waited for a place{most}."
    if report.loops:
        yield _loop_table(report.loops)
    if report.cost.usd is not None:
        yield _cost_table(report.cost)
    elif report.cost.models:
        yield f"Cost: unknown; no price for {', '.join(report.cost.unpriced_models)}."
    if report.unfinished:
        yield _open_table(report.unfinished)


def _headline(report: RunReport) -> str:
    ended = _ENDED.get(report.status, report.status)
    error = f" ({report.error})" if report.error else ""
    parts = f" in {report.parts} parts" if report.parts > 1 else ""
    duration = f"{seconds(report.duration_ns)} s{parts}"
    return f"{report.run_id}: {report.pipeline}, {duration}, {ended}{error}"


def _calls_line(report: RunReport) -> str:
    calls = report.calls
    counts = {
        "failed": calls.failed,
        "cancelled": calls.cancelled,
        "unfinished": calls.unfinished,
        "refused at a limit": calls.refused,
        "answered from the cache": calls.from_cache,
        "cut at a limit": calls.cut,
    }
    line = counted(calls.calls, "model call")
    line += "".join(f", {count} {outcome}" for outcome, count in counts.items() if count)
    line += f"; tried again {counted(report.retries, 'time')}"
    if report.fallbacks:
        line += f"; {counted(report.fallbacks, 'time')} another endpoint was asked"
    return f"{line}; {counted(report.evictions, 'model')} evicted to make room."


def _groups_table(
    title: str,
    report: RunReport,
    figures: Mapping[str, Callable[[CallGroup], str]],
    *,
    caption: str | None = None,
) -> Table:
    table = plain_table(title, "", figures)
    table.caption, table.caption_justify = caption, "left"
    for label, group in _rows(report):
        table.add_row(label, *(figure(group) for figure in figures.values()))
    return table


def _rows(report: RunReport) -> Iterator[tuple[str, CallGroup]]:
    """Pairs of a title and a group of calls."""
    # No role whose calls are all those of one node: its row would repeat the node's.
    of_nodes = [replace(group, name=None) for group in report.nodes]
    roles = [group for group in report.roles if replace(group, name=None) not in of_nodes]
    kinds = {"model": report.models, "replica": report.replicas, "node": report.nodes}
    for kind, groups in (*kinds.items(), ("role", roles)):
        for group in groups:
            yield f"no {kind}" if group.name is None else f"{kind} {group.name}", group


def _model_lines(model: CallGroup) -> Iterator[str]:
    """Sentences about a model's replies that no figure tells."""
    if model.ignored_schemas or model.advisory_schemas:
        yield (
            f"Schemas of {model.name} not enforced: {model.advisory_schemas} advice only, "
            f"{model.ignored_schemas} ignored."
        )
    if model.dropped:
        yield f"Not sent to {model.name}: {', '.join(model.dropped)}."
    if model.uncounted:
        yield f"Tokens of {counted(model.uncounted, 'call')} to {model.name}: not counted."
    if model.unreliable:
        yield (
            f"Latencies of {counted(model.unreliable, 'call')} to {model.name} are left out: this "
            "process stood still when their tokens came."
        )
    if model.cache_saved_usd is not None:
        saved = model.cache_saved_usd
        end = "saved" if saved >= 0 else "lost"
        yield (
            f"Prompt cache of {model.name}: {model.cached_tokens or 0:,} of {model.input_tokens:,} "
            f"tokens read from it, {dollars(abs(saved))} dollars {end}."
        )
    if model.accepted_share is not None:
        yield (
            f"Drafts of {model.name}: {model.accepted_tokens:,} of {model.draft_tokens:,} tokens "
            f"accepted, {_share(model.accepted_share)}."
        )


def _aside_line(aside: Aside) -> str:
    failed = f", {aside.failed} failed" if aside.failed else ""
    tokens = f", {aside.input_tokens:,} tokens in" if aside.input_tokens is not None else ""
    requests = counted(aside.requests, "request")
    return (
        f"{aside.name.capitalize()} by {aside.model}: {requests}{failed}, "
        f"{seconds(aside.total_ns)} s{tokens}."
    )


def _limit_line(limit: SpeedLimit) -> str:
    line = (
        f"{limit.model} wrote {digits(limit.tokens_per_s)} tokens/s a reply, {limit.at_once:.1f} "
        f"at once. Memory allows {digits(limit.memory_limit)} ({limit.weight_bytes / 1e6:,.0f} MB "
        f"of weights a token at {limit.memory_bytes_per_s / 1e9:.1f} GB/s, "
        f"{limit.memory_source}): {_share(limit.memory_share)}."
    )
    if limit.compute_limit is not None:
        computes = "The processor" if limit.device == MACHINE else limit.device
        line += (
            f" {computes} allows {digits(limit.compute_limit)}, by how it reads prompts: "
            f"{_share(limit.compute_share)}."
        )
    if limit.bound == "unknown":
        return f"{line} {_BOUNDS[limit.bound]}"
    half = digits(limit.with_weights(limit.weight_bytes // 2))
    return f"{line} {_BOUNDS[limit.bound]} Predicted: {half} with weights of half the size."


def _goodput_line(goodput: Goodput) -> str:
    targets = goodput.targets
    failed = f" ({goodput.failed} failed)" if goodput.failed else ""
    return (
        f"Goodput: {known(goodput.tokens_per_s, digits)} of "
        f"{known(goodput.throughput_tokens_per_s, digits)} tokens/s over the run. First token "
        f"within {_milliseconds(targets.ttft_ns)} ms and the others "
        f"{_milliseconds(targets.itl_ns)} ms apart: {goodput.met} met "
        f"({_share(goodput.attained)}), {goodput.missed} missed{failed}, {goodput.unknown} "
        "unknown and counted as neither."
    )


def _occupancy_line(occupancy: Occupancy) -> str:
    line = f"At most {counted(occupancy.most_at_once, 'call')} at once. No call under way: "
    line += f"{seconds(occupancy.idle_ns)} s ({_share(occupancy.idle_share)}) in "
    line += counted(occupancy.idle_gaps, "gap")
    if gap := occupancy.longest_gap:
        line += f", the longest {seconds(gap.duration_ns)} s from second {seconds(gap.start_ns)}"
    return f"{line}."


def _path_table(path: CriticalPath) -> Table:
    title = "Critical path: each node waited for the one above it"
    columns = ("waited, s", "from second", "took, s", "of the run")
    table = plain_table(title, "node", columns)
    for step in path.steps:
        ended = "" if step.status == "ok" else f" ({step.status})"
        table.add_row(
            step.node + ended,
            seconds(step.wait_ns),
            seconds(step.start_ns),
            seconds(step.duration_ns),
            _share(step.run_share),
        )
    table.add_row(Text("until the end", style="dim"), seconds(path.after_ns), "", "", "")
    return table


def _time_table(time: Sequence[TimeShare]) -> Table:
    table = plain_table("Where the time of the critical path went", "", ("s", "of the run"))
    for share in time:
        table.add_row(_kind_line(share), seconds(share.duration_ns), _share(share.share))
    return table


def _loop_table(loops: tuple[RecordedLoop, ...]) -> Table:
    table = plain_table("Loops: the composite of each round (* returned)", "node", ())
    table.add_column("rubric", overflow="fold")
    table.add_column("composites")
    table.add_column("stopped", overflow="fold")
    table.add_column("took, s", justify="right")
    for loop in loops:
        table.add_row(
            loop.node or UNKNOWN,
            loop.rubric,
            composites(loop),
            loop.stop_reason or loop.status,
            seconds(loop.duration_ns),
        )
    return table


def composites(loop: RecordedLoop) -> str:
    """The composite of each round, with a star at the one that was returned."""
    scores = (
        f"{score}{'*' if number == loop.best_round else ''}"
        for number, score in enumerate(loop.composites, start=1)
    )
    return " ".join(scores) or UNKNOWN


def _cost_table(cost: RunCost) -> Table:
    columns = ("priced by", "cost", "calls not in it", "output tokens", "per million")
    table = plain_table("Cost in dollars", "model", columns)
    for model in cost.models:
        table.add_row(
            model.model,
            ", ".join(model.basis) or UNKNOWN,
            known(model.usd, dollars),
            f"{model.unpriced_calls}",
            f"{model.output_tokens:,}",
            known(model.usd_per_million_output_tokens, dollars),
        )
    total_rate = known(cost.usd_per_million_output_tokens, dollars)
    table.add_row("all", "", known(cost.usd, dollars), "", "", total_rate)
    return table


def _open_table(spans: tuple[OpenSpan, ...]) -> Table:
    title = f"Still under way: {counted(len(spans), 'span')}"
    table = plain_table(title, "what", ("from second", "for, s"))
    for span in spans[:_OPEN_SPANS_SHOWN]:
        caption = span.name if span.title == span.name else f"{span.name}: {span.title}"
        table.add_row(caption, seconds(span.start_ns), seconds(span.open_ns))
    if len(spans) > _OPEN_SPANS_SHOWN:
        table.add_row(f"and {len(spans) - _OPEN_SPANS_SHOWN} more", "", "")
    return table


def _attempts(group: CallGroup) -> str:
    not_ok = group.failed + group.cancelled + group.unfinished
    return f"{group.calls}" + (f" ({not_ok} not ok)" if not_ok else "")


def _percentiles(percentiles: Percentiles | None, unit: Callable[[int], str]) -> str:
    if percentiles is None:
        return UNKNOWN
    p50, longest = unit(percentiles.p50_ns), unit(percentiles.max_ns)
    if percentiles.p95_ns is None:
        return p50 if p50 == longest else f"{p50} ({longest})"
    return f"{p50} / {unit(percentiles.p95_ns)}"


def _share(share: float | None) -> str:
    return known(share, lambda share: f"{share:.1%}")


def _milliseconds(time_ns: int) -> str:
    return digits(time_ns / 1e6)


_LATENCIES: Mapping[str, Callable[[CallGroup], str]] = {
    "calls": _attempts,
    "first token": lambda group: _percentiles(group.ttft, _milliseconds),
    "between": lambda group: _percentiles(group.itl_mean, _milliseconds),
    "longest": lambda group: known(group.itl_max_ns, _milliseconds),
    "whole call": lambda group: _percentiles(group.duration, seconds),
}
_LATENCY_CAPTION = (
    f"Median / 95th percentile; of fewer than {LEAST_FOR_TAILS} calls median (most). First "
    "token: ms from sending the request. Between: ms from token to token, a mean for each "
    "call. Longest: the longest such wait of all. Whole call: s."
)
_TOKENS: Mapping[str, Callable[[CallGroup], str]] = {
    "in": lambda group: f"{group.input_tokens:,}",
    "cached": lambda group: _share(group.cached_share),
    "out": lambda group: f"{group.output_tokens:,}",
    "out/s": lambda group: known(group.decode_tokens_per_s, digits),
    "queue": lambda group: known(group.queue_ns or None, seconds),
    "load": lambda group: known(group.load_ns or None, seconds),
    "prefill": lambda group: known(group.prefill_ns or None, seconds),
    "decode": lambda group: known(group.decode_ns or None, seconds),
}


def _print_finding(number: int, finding: RunFinding, console: Console) -> None:
    title = Text(f"{number}. {finding.rule}", style=_STYLES[finding.severity])
    title.append(f"  {finding.severity}, {LAYERS[finding.layer]}", style="dim")
    console.print(title)
    for line in (finding.seen, finding.meaning):
        console.print(_indented(line))
    for move in finding.move:
        console.print(_indented(f"- {move}"))
    if finding.spans:
        spans = ", ".join(map(str, finding.spans))
        console.print(_indented(f"spans {spans}", style="dim"))
    console.print()


def _time_line(diagnosis: Diagnosis) -> str:
    largest = [share for share in diagnosis.time if share.share >= _LEAST_SHARE]
    parts = [f"{share.share:.0%} {_kind_line(share)}" for share in largest]
    line = f"Where the {seconds(diagnosis.duration_ns)} s of the critical path went: "
    line += f"{'; '.join(parts)}."
    if any(finding.lost_ns for finding in diagnosis.findings):
        line += f" {_ABOUT_SHARES}"
    return line


def _kind_line(share: TimeShare) -> str:
    return TIME_KINDS[share.kind] + (f" (most in '{share.most_of}')" if share.most_of else "")


def _checked(diagnosis: Diagnosis) -> str:
    """Sentences: what was looked for, and the largest part of the time that no finding explains."""
    sentence = _CHECKED.format(
        none="" if diagnosis.findings else " Nothing was found.",
        rules=len(diagnosis.checked),
        cut="" if diagnosis.status in {"ok", "waiting", "stopped"} else ", up to its end",
    )
    part = diagnosis.unexplained
    if part is None or part.share < _LEAST_SHARE:
        return sentence
    return f"{sentence} The largest part that none explains: {part.share:.0%} {_kind_line(part)}."


def _indented(line: str, *, style: str = "") -> Padding:
    return Padding(Text(line, style=style), (0, 0, 0, 3))
