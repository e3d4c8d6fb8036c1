"""What a finished run looks like: in words for people, as JSON for scripts."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict

import orjson
from pydantic_core import to_jsonable_python
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

from harness.errors import HarnessError
from harness.rubric import DimensionScore
from harness.session import RunResult
from harness.trace import CallGroup
from harness.trace.lenient_json import dump_json
from harness.wiggum import Revise, StopReason, WiggumResult

_REASONS: dict[StopReason, str] = {
    "passed": "the draft meets the rubric",
    "max_rounds": "no round was left, and the rubric is not met",
    "cycling": "the last revision changed no score",
    "evaluator_error": "no valid verdict could be had",
    "producer_error": "no revision could be had",
}


def print_result(result: RunResult, console: Console) -> None:
    """Prints the last output, every loop's rounds, what the models did, and the files."""
    _print_output(result.result, console)
    for loop in result.loops:
        _print_loop(loop, console)
    for warning in result.warnings:
        console.print(f"Warning: {warning}", style="yellow", markup=False, soft_wrap=True)
    if result.models:
        console.print(_model_table(result.models))
    console.print(f"{result.duration_s:.1f} s in all; the run's files:")
    for path in asdict(result.files).values():
        if path is not None:
            console.print(f"  {path}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"See where the time went: {_command()} trace open", style="dim")


def _command() -> str:
    """How the command is called from here: its virtual environment may not be active."""
    return "harness" if shutil.which("harness") else os.path.relpath(sys.argv[0])


def result_as_json(result: RunResult) -> bytes:
    """The result as one JSON object, indented, with a newline."""
    return _as_json(
        {
            "run_id": result.run_id,
            "pipeline": result.pipeline,
            "passed": result.passed,
            "result": to_jsonable_python(result.result),
            "outputs": to_jsonable_python(dict(result.outputs)),
            "loops": [_loop_as_json(loop) for loop in result.loops],
            "models": [asdict(model) for model in result.models],
            "separation": asdict(result.separation) if result.separation else None,
            "evaluator_draw": asdict(result.evaluator_draw) if result.evaluator_draw else None,
            "warnings": result.warnings,
            "duration_s": result.duration_s,
            "files": {
                name: None if path is None else str(path)
                for name, path in asdict(result.files).items()
            },
        }
    )


def error_as_json(error: HarnessError, *, run_id: str | None) -> bytes:
    """What a run failed of, as one JSON object; `run_id` is null when it had not begun."""
    return _as_json(
        {"error": {"type": type(error).__name__, "message": str(error)}, "run_id": run_id}
    )


def _as_json(value: dict[str, object]) -> bytes:
    # By way of the lenient form: whatever a node returned, the report of its run can be written.
    return orjson.dumps(
        orjson.loads(dump_json(value)), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    )


def _print_output(output: object, console: Console) -> None:
    if not isinstance(output, str):
        console.print_json(data=to_jsonable_python(output))
    elif console.is_terminal:
        console.print(Markdown(output))
    else:
        console.print(output, markup=False, highlight=False, soft_wrap=True)
    console.print()


def _print_loop(loop: WiggumResult, console: Console) -> None:
    table = Table(title=Text(f"Rounds, by rubric '{loop.rubric.id}'"), title_justify="left")
    table.add_column("round", justify="right")
    names = [score.name for score in loop.rounds[0].verdict.scores]
    for name in names:
        table.add_column(name, justify="right")
    table.add_column("composite", justify="right")
    for one in loop.rounds:
        table.add_row(
            f"{one.number}{'*' if one is loop.best else ''}",
            *(f"{one.verdict.vector[name]:g}" for name in names),
            f"{one.verdict.composite:.1f}",
        )
    console.print(table)
    if loop.revisions:
        console.print(_asked_table(loop.revisions))
    verdict = loop.best.verdict
    needed = f"needed: {loop.rubric.pass_at:g}"
    if verdict.below_floor:
        needed += f", and {', '.join(verdict.below_floor)} not below its floor"
    console.print(
        f"Stopped: {loop.stop_reason} ({_REASONS[loop.stop_reason]}). Round {loop.best.number}* is "
        f"returned: {verdict.composite:.1f}, {'passed' if loop.passed else 'not passed'} "
        f"({needed}).",
        highlight=False,
    )
    if loop.stop_detail:
        console.print(loop.stop_detail, style="yellow", markup=False)
    if verdict.unjudged:
        console.print(
            f"Not judged, since no evaluator model is configured: "
            f"{', '.join(verdict.unjudged)}. The scores above are the rubric's own "
            "deterministic checks.",
            highlight=False,
        )
    console.print()


def _asked_table(revisions: Sequence[Revise]) -> Table:
    """What each revision was asked for, a row per dimension."""
    table = Table(title="Asked to change", title_justify="left")
    table.add_column("in round", justify="right")
    table.add_column("dimension")
    table.add_column("what", ratio=1)
    for revision in revisions:
        for score in revision.focus:
            table.add_row(f"{revision.base.number}", score.name, Text(_asked(score)))
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
            f"{model.calls}" + (f" ({model.failed} failed)" if model.failed else ""),
            f"{model.input_tokens:,}",
            _cached(model),
            f"{model.output_tokens:,}",
            "-" if model.ttft is None else f"{model.ttft.p50_ns / 1e6:,.0f} ms",
            "-" if model.decode_tokens_per_s is None else f"{model.decode_tokens_per_s:,.0f}",
        )
    return table


def _cached(model: CallGroup) -> str:
    if model.cached_tokens is None:
        return "not reported"
    share = model.cached_tokens / model.input_tokens if model.input_tokens else 0.0
    return f"{model.cached_tokens:,} ({share:.0%})"


def _loop_as_json(loop: WiggumResult) -> dict[str, object]:
    return {
        "rubric": loop.rubric.id,
        "pass_at": loop.rubric.pass_at,
        "passed": loop.passed,
        "stop_reason": loop.stop_reason,
        "stop_detail": loop.stop_detail,
        "best_round": loop.best.number,
        "unjudged": loop.best.verdict.unjudged,
        "rounds": [
            {
                "round": one.number,
                "composite": one.verdict.composite,
                "passed": one.verdict.passed,
                "scores": [asdict(score) for score in one.verdict.scores],
                "draft": one.draft,
            }
            for one in loop.rounds
        ],
    }
