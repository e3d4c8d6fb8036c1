"""`harness resume`: resumes a run that was killed, failed, was stopped, or waits."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from harness.analysis.salvage import salvage_run
from harness.cli.arguments import find_journal, read_pairs, role_option, traces_option
from harness.cli.consoles import Command, say, show
from harness.cli.made_again import confirm_again, is_costly, listed_again
from harness.cli.project_files import check_may_run, target_file
from harness.cli.run_command import (
    RunOptions,
    failures_of_run,
    order_of,
    perform,
    report,
    run_options,
)
from harness.errors import InvalidInput
from harness.graph import Question
from harness.session import (
    EarlierRun,
    Origin,
    Rehearsal,
    load_settings,
    question_named,
    read_earlier_run,
    rehearse,
    run_to_its_end,
)
from harness.session.trust import check_store


@click.command(cls=Command)
@click.argument("run", metavar="RUN")
@click.option(
    "--answer",
    "answers",
    multiple=True,
    metavar="[KEY=]TEXT",
    help="Answer to a waiting question; KEY names one of several. May be repeated.",
)
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="NAME=VALUE",
    help="Replace an input, written as for harness run. May be repeated.",
)
@click.option("--file", "target", metavar="FILE.py", help="The pipeline's file, if it moved.")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="Settings file; by default the one the run began with.",
)
@role_option
@traces_option
@click.option(
    "--salvage",
    is_flag=True,
    help="Resume from the sound part of a damaged journal, and keep a copy of the damaged file.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be repeated, and run nothing.")
@click.option("--yes", is_flag=True, help="Do not ask before repeating costly calls.")
@run_options
def resume(
    *,
    run: str,
    answers: tuple[str, ...],
    assignments: tuple[str, ...],
    target: str | None,
    config: Path | None,
    roles: tuple[str, ...],
    traces: Path | None,
    salvage: bool,
    dry_run: bool,
    yes: bool,
    **arguments: Any,  # noqa: ANN401 - of `RunOptions`
) -> None:
    """Resume RUN: a run's id, a part of it, one of its files, or "latest".

    A node's call is repeated only if its code or inputs changed; revise loops continue at their
    round. Before repeating calls that took many tokens or dollars, the command asks. Limits given
    here are of this command; those of [limits] are of the run with its earlier parts. Exit codes
    are those of harness run.
    """
    options = RunOptions.taken_from(arguments)
    with failures_of_run(options) as started:
        directory = traces
        if directory is None and config is not None:
            directory = load_settings(config, environment={}).traces
        journal = find_journal(run, directory)
        if salvage:
            salvage_run(journal)
        earlier = read_earlier_run(journal)
        before = earlier.origin or Origin(target="")
        named = Origin(target=target or "", config=config, memory=options.memory)
        origin = Origin(
            target=named.target or before.target,
            config=config or before.config,
            roles={**before.roles, **read_pairs(roles, option="--role", form="role=tag")},
            memory=options.memory or before.memory,
            seed=before.seed,
            engine=options.engine or before.engine,
            limits=options.limits,
        )
        _check_resumable(origin, earlier, named=named)
        answered = _answers_by_question(answers, earlier.questions)
        order = order_of(origin, assignments, resume=journal, answers=answered)
        if dry_run or (not yes and is_costly(earlier.spent.tokens, earlier.spent.cost_usd)):
            foreseen = rehearse(order.pipeline, order.inputs, earlier, settings=order.settings)
            plan = run_to_its_end(foreseen)
            if dry_run:
                show(plan, lambda plan, _: say("\n".join(_foreseen(plan))), as_json=options.as_json)
                return
            confirm_again(plan.made_again)
        result = perform(order, started, as_json=options.as_json)
    report(result, as_json=options.as_json)


def _check_resumable(origin: Origin, earlier: EarlierRun, *, named: Origin) -> None:
    """Raises if a run cannot be resumed, or may not with what its journal names.

    `named` has what the command line names, and empty fields for what the journal does.
    """
    journal = earlier.journal.path
    if earlier.beginning.is_batch:
        raise InvalidInput(
            "this is a batch; run the same `harness batch`, `harness evaluate` or `harness "
            "rubric` command again, or the same Python code",
            code="resume.is-batch",
            path=journal,
        )
    if not origin.target:
        raise InvalidInput(
            "the run was begun from Python, so its pipeline's file is not known; give it: "
            "--file FILE.py",
            code="run.file-unknown",
            path=journal,
        )
    # What the user names is trusted; a journal from elsewhere could name any file.
    if not named.target:
        file = target_file(origin.target)
        if file is None:
            raise InvalidInput(
                f"the run was begun from '{origin.target}', which is gone; say where it is now: "
                "--file FILE.py",
                code="run.file-gone",
            )
        check_may_run(file, named_in=journal)
    if named.config is None and origin.config is not None:
        check_may_run(origin.config, named_in=journal)
    if named.memory is None:
        folder = journal.parent.resolve()
        check_store(origin.memory, written_in=folder, environment=os.environ, journal=journal)


def _foreseen(plan: Rehearsal) -> Iterator[str]:
    for name, before in plan.renamed.items():
        yield f"{name}: not made again; it is '{before}' under a new name"
    for name in plan.new:
        yield f"{name}: not called before"
    yield from listed_again(plan.made_again)


def _answers_by_question(answers: Sequence[str], questions: Sequence[Question]) -> dict[str, str]:
    """Key or node of a question → its answer."""
    names = {question.key for question in questions} | {question.node for question in questions}
    named: dict[str, str] = {}
    for answer in answers:
        name, separator, text = answer.partition("=")
        # An answer without a key may have "=" in its text.
        if not separator or name not in names:
            name = question_named("", questions).key
            text = answer
        if name in named:
            raise InvalidInput(f"--answer answers '{name}' twice", code="option.given-twice")
        named[name] = text
    return named
