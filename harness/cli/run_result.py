"""The result of a run, in words for people and as JSON for scripts.

Its output, how it ended (what failed, was left out, waits or was reused), and how to resume it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from pydantic_core import to_jsonable_python
from rich.console import Console
from rich.markdown import Markdown

from harness.cli.rounds import changes, round_as_json, rounds_table
from harness.cli.tables import first_of, print_line
from harness.cli.verdicts import decision, remarks
from harness.errors import HarnessError
from harness.graph import NodeFailure, Question, Skipped
from harness.inference import Spent
from harness.inference.limits import FIELD_OF
from harness.session import RunResult
from harness.trace import CallGroup, events
from harness.wiggum import STOPPED_SINCE, WiggumResult

# Title → the command that shows it.
_NEXT = {
    "read it": "view",
    "timeline": "trace open",
    "rounds, reasons": "trace rounds",
    "times, tokens": "trace report",
}
_NEXT_WIDTH = 17
# Fields of `RunResult` and of `RecordedLoop` that scripts get as they are.
_RESULT_FIELDS = (
    *("run_id", "pipeline", "passed", "status", "stopped_by", "skips", "questions", "reused"),
    *("reruns", "replies_used_again", "parts", "result", "models", "evaluator_pool", "warnings"),
    "duration_s",
)
_EARLIER_LOOP_FIELDS = ("rubric", "passed", "stop_reason", "best_round", "composites")

# Lines of one kind; a fan-out could fill thousands.
_MOST_LINES = 20


def print_result(result: RunResult, out: Console, console: Console) -> None:
    """Prints the result, how each loop and the run went, and commands that show more.

    The result goes to `out`, which may be piped on, and all else to `console`.
    """
    if result.status == "finished" or result.result is not None:
        _print_output(result.result, out)
        console.print()
    for loop in result.loops:
        _print_loop(loop, console)
    _print_end(result, console)
    print_line(spent_line(result), console)
    files = result.files
    if files.journal.is_file():
        drawn = [p.suffix for p in (files.chrome_trace, files.perfetto_trace) if p is not None]
        lines = {"files": ", ".join([str(files.journal), *drawn])}
        has_loop = result.loops or result.earlier_loops
        for title, command in _NEXT.items():
            if command != "trace rounds" or has_loop:
                lines[title] = _of_journal(command, files.journal)
        for title, line in lines.items():
            print_line(f"{title:<{_NEXT_WIDTH}}{line}", console, "dim")


def print_failure(result: RunResult, console: Console) -> None:
    """Prints how a failed run went, but not its first failure, which its error tells."""
    lines = [f"also failed: {_failed(failure)}" for failure in result.failures[1:]]
    for line in _capped(lines):
        print_line(line, console)
    _print_end(result, console)
    if result.spent.calls:
        print_line(_spent(result), console)
    print_to_do(result, console)


def print_to_do(result: RunResult, console: Console) -> None:
    """Prints the command to type next, if the run is not over."""
    resume = resume_command(result.files.journal)
    if result.status == "stopped":
        purpose = "To go on:"
        if result.command_limit is not None:
            purpose = "To go on with more:"
            resume += f" --{FIELD_OF[result.command_limit].replace('_', '-')} …"
        print_line(f"{purpose} {resume}", console)
    elif result.questions:
        answers = [f"{shlex.quote(q.key)}={_example_answer(q)}" for q in result.questions]
        if len(answers) == 1:
            answers = [_example_answer(result.questions[0])]
        options = " ".join(f"--answer {answer}" for answer in answers[:_MOST_LINES])
        print_line(f"To answer: {resume} {options}", console)


def resume_command(journal: Path) -> str:
    """What to type to go on with a run."""
    return _of_journal("resume", journal)


def open_command(journal: Path) -> str:
    """What to type to see a run in Perfetto."""
    return _of_journal(_NEXT["timeline"], journal)


def result_fields(result: RunResult) -> dict[str, object]:
    """The result, for scripts; bytes, which need not be a text, are base64 as in the journal."""
    separation = result.separation
    values = {
        **{name: getattr(result, name) for name in _RESULT_FIELDS},
        "failures": [
            {
                "node": failure.node,
                "type": type(failure.error).__name__,
                "code": failure.error.code if isinstance(failure.error, HarnessError) else None,
                "message": str(failure.error),
                "attempts": failure.attempts,
                "beside": failure.beside,
            }
            for failure in result.failures
        ],
        "retries": dict(result.retries),
        "outputs": {name: _as_json(output) for name, output in result.outputs.items()},
        "loops": [_loop_as_json(loop) for loop in result.loops],
        "earlier_loops": [
            {name: getattr(loop, name) for name in _EARLIER_LOOP_FIELDS}
            for loop in result.earlier_loops
        ],
        "spent": _spent_as_json(result.spent),
        "separation": separation and {**asdict(separation), "relation": separation.relation},
        "files": asdict(result.files),
    }
    fields: dict[str, object] = to_jsonable_python(values, bytes_mode="base64")
    return fields


def _print_output(output: object, console: Console) -> None:
    if not isinstance(output, str):
        console.print_json(data=to_jsonable_python(output, bytes_mode="base64"))
    elif console.is_terminal:
        console.print(Markdown(output))
    else:
        console.print(output, soft_wrap=True)


def _as_json(output: object) -> object:
    """An output, for scripts; a skipped one, also in a list, is replaced by the reason."""
    match output:
        case Skipped():
            return {"skipped": output.reason}
        case list() if any(isinstance(item, Skipped) for item in output):
            return [_as_json(item) for item in output]
        case _:
            return output


def spent_line(result: RunResult) -> str:
    """Sentences: what the run took in all its parts, and which models answered."""
    sentences = [_spent(result)]
    if answered := [*filter(None, map(_answered, result.models))]:
        sentences.append(f"Answered by {', '.join(answered)}.")
    models = result.models
    # Not "of the calls": a call that reached no server is not among those above.
    if failed := sum(model.failed for model in models):
        sentences.append(f"Failed calls: {failed:,}.")
    others = result.spent.calls - sum(model.calls - model.from_cache for model in models)
    # Of calls that were cut off, it is unknown whether they were sent.
    is_exact = not any(model.failed + model.cancelled + model.unfinished for model in models)
    if others > 0 and is_exact:
        about = "probes of what a server can do, requests sent again, embeddings, rerankings"
        sentences.append(f"Other calls: {others:,} ({about}).")
    if refused := sum(model.refused for model in models):
        sentences.append(f"Refused calls: {refused:,}.")
    return " ".join(sentences)


def _answered(use: CallGroup) -> str:
    """An endpoint and how many calls it answered, by model if its server changed the model."""
    count = use.calls - use.failed - use.cancelled - use.unfinished - use.from_cache
    counts: list[object] = [count] if count > 0 else []
    if len(use.answered_by) > 1:
        counts = [f"'{model}': {times}" for model, times in use.answered_by.items()]
    return f"{use.name} ({', '.join(map(str, counts))})" if counts else ""


def _print_loop(loop: WiggumResult, console: Console) -> None:
    verdict = loop.best.verdict
    if loop.best is not loop.rounds[0]:
        _print_changes(loop, console)
    console.print(rounds_table(loop.rounds, best=loop.best.number))
    console.print(
        f"Stopped: {loop.stop_reason} ({STOPPED_SINCE[loop.stop_reason]}). Round "
        f"{loop.best.number}* is returned: {verdict.composite}, {decision(verdict, loop.rubric)}, "
        f"by rubric '{loop.rubric.id}'."
    )
    if loop.stop_detail:
        console.print(loop.stop_detail, style="yellow")
    for line in remarks(verdict, loop.rubric):
        console.print(line)
    console.print()


# How much of a section is shown, before the revisions and after them.
_CHANGE_CHARS = 200
_CHANGES_SHOWN = 2


def _print_changes(loop: WiggumResult, console: Console) -> None:
    sections = changes(loop.rounds[0].draft, loop.text)
    rest = len(sections) - _CHANGES_SHOWN
    more = f" (and {rest} more)" if rest > 0 else ""
    console.print(f"What the revisions changed{more}:", style="italic")
    for change in sections[:_CHANGES_SHOWN]:
        console.print(change.shown(chars=_CHANGE_CHARS))
    console.print()


def _spent_as_json(spent: Spent) -> dict[str, object]:
    return {**asdict(spent), "seconds": spent.seconds}


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
            {**round_as_json(round_), "spent": _spent_as_json(round_.spent)}
            for round_ in loop.rounds
        ],
    }


def _print_end(result: RunResult, console: Console) -> None:
    """Prints what was reused, retried, left out or asked; nothing if the run simply finished."""
    for line in _about_calls(result):
        print_line(line, console)
    if result.stopped_by is not None:
        print_line(f"Stopped: {result.stopped_by}", console, "yellow")
    for question in result.questions:
        problem = f" {question.problem}." if question.problem else ""
        text = f"'{question.node}' asks: {question.text} ({question.form_with_fields}){problem}"
        print_line(text, console, "yellow")


def _spent(result: RunResult) -> str:
    spent, parts = result.spent, result.parts
    about = "about " if spent.estimated_calls else ""
    subject = "The run" if parts == 1 else f"All {parts} parts of the run together"
    of_it = f", this one {result.duration_s:.1f} s" if parts > 1 and not result.had_finished else ""
    text = (
        f"{subject} took {spent.seconds:.1f} s{of_it}; calls: {spent.calls}; tokens in: "
        f"{about}{spent.input_tokens:,}, out: {about}{spent.output_tokens:,}"
    )
    if spent.cost_usd is not None:
        text += f"; dollars: {spent.cost_usd:.4f}"
        if spent.unpriced_calls:
            text += f", without {spent.unpriced_calls} of the calls, whose cost is unknown"
    return f"{text}."


def command_here(directory: Path | None = None) -> str:
    """How a user calls harness in a directory; in the working directory without one."""
    # By its path if its virtual environment is not active.
    if shutil.which("harness"):
        return "harness"
    is_module = Path(sys.argv[0]).name == "__main__.py"
    program = sys.executable if is_module else sys.argv[0]
    nearby = os.path.relpath(program, directory)
    # A path that climbs far is hard to read.
    path = os.path.abspath(program) if nearby.startswith("../../") else nearby  # noqa: PTH100
    return shlex.quote(path) + (" -m harness" if is_module else "")


def _of_journal(command: str, journal: Path) -> str:
    """A command on a run, as a user types it here."""
    # By the file and not by the run's id: it is found whatever folder the settings name for runs.
    return f"{command_here()} {command} {shlex.quote(os.path.relpath(journal))}"


def _about_calls(result: RunResult) -> Iterator[str]:
    """Lines about calls that were reused, made or tried again, or left out."""
    if result.had_finished:
        yield "The run had finished: nothing was left to do."
        return
    if result.parts > 1 or result.reused:
        replies = (
            f"; replies to unfinished calls: {n:,}" if (n := result.replies_used_again) else ""
        )
        yield f"Used again, calls of nodes: {len(result.reused):,}{replies}."
    lines_by_title = {
        "Made again:": [f"  {rerun.node}: {rerun.reason}" for rerun in result.reruns],
        "Retries:": [f"  {label}: {n:,}" for label, n in result.retries.items()],
        "Left out:": [f"  {skip.node}: {skip.reason}" for skip in result.skips],
    }
    for title, lines in lines_by_title.items():
        if lines:
            yield from (title, *_capped(lines))


def _capped(lines: list[str]) -> Iterator[str]:
    return first_of(lines, _MOST_LINES, more="  and {} more (--json has all)")


def _failed(failure: NodeFailure) -> str:
    error = failure.error
    text = str(error) if isinstance(error, HarnessError) else f"{type(error).__name__}: {error}"
    attempts = f" (called {failure.attempts} times)" if failure.attempts > 1 else ""
    return f"{failure.node}: {'; '.join([text, *failure.beside])}{attempts}"


def _example_answer(question: Question) -> str:
    if question.form == "yes or no":
        return "yes"
    choices = events.QuestionEvent.choices_of(question.form)
    return "…" if choices is None else shlex.quote(choices.partition(", ")[0])
