"""What a finished run looks like: in words for people, as JSON for scripts."""

from __future__ import annotations

import os
import shlex
import textwrap
from collections.abc import Sequence
from dataclasses import asdict

from pydantic_core import to_jsonable_python
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

from harness.cli.consoles import json_object
from harness.cli.run_end import command, end_as_json, print_end, spent_line
from harness.cli.verdicts import decision, points, remarks, verdict_as_json
from harness.compress import sections_of
from harness.graph import Skipped
from harness.inference import Spent
from harness.rubric import DimensionScore
from harness.session import RunResult
from harness.session.separation import Separation
from harness.trace import CallGroup
from harness.wiggum import RecordedLoop, Revise, Round, StopReason, WiggumResult

_REASONS: dict[StopReason, str] = {
    "passed": "the draft meets the rubric",
    "max_rounds": "no round was left, and the rubric is not met",
    "plateau": "the last revisions or candidates gained nothing beyond the evaluator's noise",
    "cycle": "a revision was an earlier draft again, or changed no score",
    "regression": "the last revisions only lost",
    "budget": "its tokens, cost or time do not suffice for another round",
    "abstained": "no score could be read from what the evaluator said",
    "producer_empty": "a revision had no text",
    "producer_failed": "no revision could be had",
    "evaluator_failed": "no verdict could be had",
    "cancelled": "it was ended from outside",
}


def print_result(result: RunResult, out: Console, console: Console) -> None:
    """Prints the result; and every loop's rounds, how it ended, what the models did, the files.

    Args:
        result: Of the run.
        out: Where the result goes, which may be piped on.
        console: Where all the rest goes.
    """
    if result.status == "finished" or result.result is not None:
        _print_output(result.result, out)
        console.print()
    for earlier in result.earlier_loops:
        console.print(_earlier_line(earlier), highlight=False, markup=False, soft_wrap=True)
    for loop in result.loops:
        _print_loop(loop, console)
    print_end(result, console)
    for warning in result.warnings:
        console.print(f"Warning: {warning}", style="yellow", markup=False, soft_wrap=True)
    if result.models:
        console.print(_model_table(result.models))
    console.print(f"{_time(result)}; the run's files:", highlight=False)
    for path in asdict(result.files).values():
        if path is not None:
            console.print(f"  {path}", highlight=False, markup=False, soft_wrap=True)
    if result.files.journal.is_file():
        journal = shlex.quote(os.path.relpath(result.files.journal))
        said = f"See where the time went: {command()} trace open {journal}"
        console.print(said, style="dim", highlight=False, markup=False, soft_wrap=True)


def result_as_json(result: RunResult) -> bytes:
    """The result as one JSON object, indented, with a newline."""
    return json_object(result_fields(result))


def result_fields(result: RunResult) -> dict[str, object]:
    """The same before it is written."""
    return {
        "run_id": result.run_id,
        "pipeline": result.pipeline,
        "passed": result.passed,
        **end_as_json(result),
        "result": to_jsonable_python(result.result),
        "outputs": {name: _as_json(one) for name, one in result.outputs.items()},
        "loops": [_loop_as_json(loop) for loop in result.loops],
        "earlier_loops": [_earlier_as_json(loop) for loop in result.earlier_loops],
        "models": [asdict(model) for model in result.models],
        "spent": _spent_as_json(result.spent),
        "separation": _separation_as_json(result.separation) if result.separation else None,
        "evaluator_draw": asdict(result.evaluator_draw) if result.evaluator_draw else None,
        "evaluator_panel": asdict(result.evaluator_panel) if result.evaluator_panel else None,
        "warnings": [asdict(one) for one in result.warnings],
        "duration_s": result.duration_s,
        "files": {
            name: None if path is None else str(path) for name, path in asdict(result.files).items()
        },
    }


def _print_output(output: object, console: Console) -> None:
    if not isinstance(output, str):
        console.print_json(data=to_jsonable_python(output))
    elif console.is_terminal:
        console.print(Markdown(output))
    else:
        console.print(output, markup=False, highlight=False, soft_wrap=True)


def _as_json(output: object) -> object:
    """An output; what was skipped says so, as an item too."""
    match output:
        case Skipped():
            return {"skipped": output.reason}
        case list() if any(isinstance(item, Skipped) for item in output):
            return [_as_json(item) for item in output]
        case _:
            return to_jsonable_python(output)


def _time(result: RunResult) -> str:
    """How long the run took, and of one that was resumed, how much of that was now."""
    if result.had_finished:
        return f"It took {result.spent.seconds:.1f} s in all"
    if result.parts == 1:
        return f"{result.duration_s:.1f} s in all"
    return (
        f"{result.duration_s:.1f} s, and {result.spent.seconds:.1f} s in all {result.parts} parts"
    )


def _earlier_line(loop: RecordedLoop) -> str:
    scores = " → ".join(str(score) for score in loop.composites)
    return (
        f"Before the run was resumed, a loop by rubric '{loop.rubric}' ended: {scores}; "
        f"{loop.stop_reason}, round {loop.best_round} is returned."
    )


def _earlier_as_json(loop: RecordedLoop) -> dict[str, object]:
    return {
        "rubric": loop.rubric,
        "passed": loop.passed,
        "stop_reason": loop.stop_reason,
        "best_round": loop.best_round,
        "composites": loop.composites,
    }


def _print_loop(loop: WiggumResult, console: Console) -> None:
    table = Table(title=Text(f"Rounds, by rubric '{loop.rubric.id}'"), title_justify="left")
    table.add_column("round", justify="right")
    # A draft that a gate stopped lacks the dimensions that others have.
    names = dict.fromkeys(name for one in loop.rounds for name in one.verdict.vector)
    for name in names:
        table.add_column(name, justify="right")
    table.add_column("composite", justify="right")
    table.add_column("changed, characters", justify="right")
    for one in loop.rounds:
        scores = {score.name: points(score) for score in one.verdict.scores}
        table.add_row(
            f"{one.number}{'*' if one is loop.best else ''}",
            *(scores.get(name, "-") for name in names),
            str(one.verdict.composite),
            "" if one.base_round is None else f"{one.changed_chars:,}",
        )
    console.print(table)
    if loop.revisions:
        console.print(_asked_table(loop.revisions))
    for one in loop.rounds:
        if one.tried:
            console.print(_candidates_line(one), highlight=False)
    _print_changes(loop, console)
    verdict = loop.best.verdict
    console.print(
        f"Stopped: {loop.stop_reason} ({_REASONS[loop.stop_reason]}). Round {loop.best.number}* is "
        f"returned: {verdict.composite}, {decision(verdict, loop.rubric)}.",
        highlight=False,
    )
    if loop.stop_detail:
        console.print(loop.stop_detail, style="yellow", markup=False)
    for line in (*remarks(verdict, loop.rubric), spent_line(loop.spent, what="The loop")):
        console.print(line, highlight=False, markup=False)
    console.print()


_CHANGE_CHARS = 240
"""How much of a section is shown before and after a revision."""


def _candidates_line(one: Round) -> str:
    taken = sum(candidate.outcome == "taken" for candidate in one.tried)
    return f"Round {one.number}: {taken} of {len(one.tried)} candidates were taken."


def _print_changes(loop: WiggumResult, console: Console) -> None:
    """What the revisions made of the first draft, section by section."""
    before, after = sections_of(loop.rounds[0].draft), sections_of(loop.text)
    if loop.best is loop.rounds[0] or [s.title for s in before] != [s.title for s in after]:
        return
    console.print("What the revisions changed", style="italic")
    for old, new in zip(before, after, strict=True):
        if old.body.strip() != new.body.strip():
            if new.title:
                console.print(Text(new.title, style="bold"))
            console.print(Text(f"- {_shortened(old.body)}", style="red"))
            console.print(Text(f"+ {_shortened(new.body)}", style="green"))
    console.print()


def _shortened(text: str) -> str:
    return textwrap.shorten(text, _CHANGE_CHARS, placeholder=" …")


def _asked_table(revisions: Sequence[Revise]) -> Table:
    """What each revision was asked for, a row per dimension."""
    table = Table(title="Asked to change", title_justify="left")
    table.add_column("for round", justify="right")
    table.add_column("from", justify="right")
    table.add_column("dimension")
    table.add_column("what", ratio=1)
    for number, revision in enumerate(revisions, start=2):
        for score in revision.focus:
            table.add_row(f"{number}", f"{revision.base.number}", score.name, Text(_asked(score)))
    return table


def _asked(score: DimensionScore) -> str:
    if not score.findings:
        return score.reason
    first, *others = score.findings
    where = f"“{first.section}”: " if first.section else ""
    more = f" (and {len(others)} more)" if others else ""
    return f"{where}{first.message}{more}"


def _model_table(models: Sequence[CallGroup]) -> Table:
    table = Table(
        title="Models: calls; tokens in, how many of them the prefix cache had, and out; "
        "median time to the first token; decoding speed",
        title_justify="left",
    )
    table.add_column("model", no_wrap=True)
    for column in ("calls", "in", "prefix cache", "out", "first token", "tokens/s"):
        table.add_column(column, justify="right")
    for model in models:
        table.add_row(
            Text(model.name or "-"),
            _calls(model),
            f"{model.input_tokens:,}",
            _cached(model),
            f"{model.output_tokens:,}",
            "-" if model.ttft is None else f"{model.ttft.p50_ns / 1e6:,.0f} ms",
            "-" if model.decode_tokens_per_s is None else f"{model.decode_tokens_per_s:,.0f}",
        )
    return table


def _calls(model: CallGroup) -> str:
    ends = {"failed": model.failed, "refused": model.refused}
    told = ", ".join(f"{count} {end}" for end, count in ends.items() if count)
    return f"{model.calls}" + (f" ({told})" if told else "")


def _cached(model: CallGroup) -> str:
    if model.cached_tokens is None:
        return "not reported"
    share = model.cached_tokens / model.input_tokens if model.input_tokens else 0.0
    return f"{model.cached_tokens:,} ({share:.0%})"


def _separation_as_json(separation: Separation) -> dict[str, object]:
    return {**asdict(separation), "relation": separation.relation}


def _spent_as_json(spent: Spent) -> dict[str, object]:
    return {
        "calls": spent.calls,
        "input_tokens": spent.input_tokens,
        "output_tokens": spent.output_tokens,
        "cost_usd": spent.cost_usd,
        "seconds": spent.seconds,
        "estimated_calls": spent.estimated_calls,
        "unpriced_calls": spent.unpriced_calls,
    }


def _loop_as_json(loop: WiggumResult) -> dict[str, object]:
    return {
        "rubric": loop.rubric.id,
        "pass_at": loop.rubric.pass_at,
        "passed": loop.passed,
        "stop_reason": loop.stop_reason,
        "stop_detail": loop.stop_detail,
        "best_round": loop.best.number,
        "unjudged": loop.best.verdict.unjudged,
        "spent": _spent_as_json(loop.spent),
        "rounds": [
            {
                "round": one.number,
                "base_round": one.base_round,
                "changed_chars": one.changed_chars,
                **verdict_as_json(one.verdict),
                "spent": _spent_as_json(one.spent),
                "draft": one.draft,
                "candidates": [asdict(candidate) for candidate in one.tried],
            }
            for one in loop.rounds
        ],
    }
