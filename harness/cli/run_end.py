"""How a run ended: what failed, was left out, waits or was reused, and how to go on."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from harness.errors import HarnessError, RunLimitReached
from harness.graph import NodeFailure, NodeSkip, Question
from harness.inference import Spent
from harness.inference.limits import FIELD_OF
from harness.session import RunResult, Settings

_MOST = 20
"""Lines of one kind; a fan-out could fill thousands."""


def command() -> str:
    """The command as a user can call it here: its virtual environment may not be active."""
    return "harness" if shutil.which("harness") else os.path.relpath(sys.argv[0])


def journal_name(journal: Path) -> str:
    """How a command names a run: by its id, with its folder if that is not the usual one."""
    traces = os.path.relpath(journal.parent)
    where = "" if traces == str(Settings().traces) else f" --traces {shlex.quote(traces)}"
    return f"{journal.stem}{where}"


def resume_command(journal: Path) -> str:
    """What to type to go on with a run."""
    return f"{command()} resume {journal_name(journal)}"


def print_end(result: RunResult, console: Console) -> None:
    """Prints how the run ended, beside its outputs; nothing for a run that simply finished."""
    for line in (*_resumed(result), *_tried_again(result), *_left_out(result)):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if result.stopped_by is not None:
        _say(f"Stopped: {result.stopped_by}", console, style="yellow")
    for question in result.questions:
        problem = f" {question.problem}." if question.problem else ""
        text = f"'{question.node}' asks: {question.text} ({question.form}){problem}"
        _say(text, console, style="yellow")


def print_to_do(result: RunResult, console: Console) -> None:
    """Prints the command to type next, if the run is not over."""
    resume = resume_command(result.files.journal)
    if result.status == "stopped":
        named = (name for name in FIELD_OF.values() if name in (result.stopped_by or ""))
        option = next((f" --{name.replace('_', '-')} …" for name in named), "")
        _say(f"To go on{' with more' if option else ''}: {resume}{option}", console)
    elif len(result.questions) == 1:
        _say(f"To answer: {resume} --answer {_example(result.questions[0])}", console)
    elif result.questions:
        answers = (
            f"--answer {shlex.quote(one.key)}={_example(one)}" for one in result.questions[:_MOST]
        )
        _say(f"To answer: {' '.join((resume, *answers))}", console)


def print_failure(result: RunResult, console: Console) -> None:
    """Prints all about a failed run but its first failure."""
    others = [f"also failed: {_failed(one)}" for one in result.failures[1:]]
    for line in _capped(others):
        _say(line, console)
    print_end(result, console)
    if result.spent.calls:
        _say(spent_line(result.spent, what="The run"), console)
    print_to_do(result, console)


def spent_line(spent: Spent, *, what: str) -> str:
    """Time, calls, tokens and dollars of a run or a loop."""
    about = "about " if spent.estimated_calls else ""
    said = (
        f"{what} took {spent.seconds:.1f} s; calls: {spent.calls}; tokens in: "
        f"{about}{spent.input_tokens:,}, out: {about}{spent.output_tokens:,}"
    )
    if spent.cost_usd is not None:
        said += f"; dollars: {spent.cost_usd:.4f}"
        if spent.unpriced_calls:
            said += f", without {spent.unpriced_calls} of the calls, whose price is unknown"
    return f"{said}."


def end_as_json(result: RunResult) -> dict[str, object]:
    """How it ended, for scripts."""
    return {
        "status": result.status,
        "stopped_by": result.stopped_by,
        "failures": [
            {
                "node": one.node,
                "type": type(one.error).__name__,
                "code": one.error.code if isinstance(one.error, HarnessError) else None,
                "message": str(one.error),
                "attempts": one.attempts,
            }
            for one in result.failures
        ],
        "skips": [asdict(one) for one in result.skips],
        "questions": [asdict(one) for one in result.questions],
        "reused": list(result.reused),
        "reruns": [asdict(one) for one in result.reruns],
        "retries": dict(result.retries),
        "replies_used_again": result.replies_used_again,
        "parts": result.parts,
    }


def _resumed(result: RunResult) -> Iterator[str]:
    if result.had_finished:
        yield "The run had finished: nothing was left to do."
        return
    if result.parts == 1 and not result.reused:
        return
    count = len(result.reused)
    shown = f"{count:,}" if count else "No"
    calls = f"{shown} node {'call was' if count == 1 else 'calls were'} done before"
    if replies := result.replies_used_again:
        calls += (
            f"; {replies:,} {'reply' if replies == 1 else 'replies'} of models to calls that had "
            f"not ended {'was' if replies == 1 else 'were'} used again"
        )
    if not result.reruns:
        yield f"{calls}{', and none of them was made again' if count and not replies else ''}."
        return
    yield f"{calls}; made again:"
    yield from _capped([f"  {one.node}: {one.reason}" for one in result.reruns])


def _tried_again(result: RunResult) -> Iterator[str]:
    if result.retries:
        yield "Tried again:"
        times = result.retries.items()
        yield from _capped([f"  {who}: {n:,} time{'s' if n > 1 else ''}" for who, n in times])


def _left_out(result: RunResult) -> Iterator[str]:
    if result.skips:
        yield "Left out:"
        yield from _capped([f"  {one.node}: {_why(one)}" for one in result.skips])


def _why(skip: NodeSkip) -> str:
    at_limit = skip.reason.startswith(RunLimitReached.__name__)
    return "was stopped by a limit" if at_limit else skip.reason


def _capped(lines: list[str]) -> Iterable[str]:
    more = len(lines) - _MOST
    return [*lines[:_MOST], f"  and {more:,} more (--json has all)"] if more > 0 else lines


def _failed(failure: NodeFailure) -> str:
    error = failure.error
    said = str(error) if isinstance(error, HarnessError) else f"{type(error).__name__}: {error}"
    attempts = f" (called {failure.attempts} times)" if failure.attempts > 1 else ""
    return f"{failure.node}: {said}{attempts}"


def _example(question: Question) -> str:
    """An answer of the right form."""
    if question.form == "yes or no":
        return "yes"
    choices = question.form.removeprefix("one of ")
    return shlex.quote(choices.split(", ")[0]) if choices != question.form else "…"


def _say(text: str, console: Console, *, style: str = "") -> None:
    console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)
