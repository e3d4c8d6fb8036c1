"""Drafts to be measured by a rubric, as they are given on the command line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import click

from harness.cli.failures import failures_told
from harness.cli.trusting import refusal_after_asking, settings_for_calls
from harness.cli.values import read_pairs, read_text
from harness.rubric import Draft
from harness.session import Settings
from harness.session.evaluation import ChosenRubric, choose_rubric

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., None])


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What the command line gave, read."""

    settings: Settings
    """Say who judges."""
    chosen: ChosenRubric
    """What is measured by."""
    task: str
    """What was asked for; empty when that was not said."""
    drafts: Mapping[str, Draft]
    """By the names of their files."""


def draft_options(command: Command) -> Command:
    """The arguments and options that say what is measured, by what, and by whom."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def read_given(
    *,
    rubric: str,
    drafts: tuple[str, ...],
    task: str,
    sources: tuple[str, ...],
    config: Path | None,
    roles: tuple[str, ...],
) -> Given:
    """Reads the files.

    Raises:
        InvalidInput: One is missing, empty or not text; or the rubric or the settings have a
            mistake.
    """
    settings = settings_for_calls(config, roles=read_pairs(roles, option="--role", form="role=tag"))
    asked = read_text("task", Path(task[1:])) if task.startswith("@") else task
    evidence = tuple(read_text("source", Path(name)) for name in sources)
    return Given(
        settings=settings,
        chosen=choose_rubric(rubric, rubrics=settings.rubrics, refuse=refusal_after_asking),
        task=asked,
        drafts={
            name: Draft(text=read_text("draft", Path(name)), task=asked, sources=evidence)
            for name in drafts
        },
    )


def run_or_exit(work: Callable[[], Coroutine[None, None, T]], *, as_json: bool) -> T:
    """What the work comes to; if it fails, the process says why, and ends with its exit code."""
    with failures_told(as_json=as_json):
        return asyncio.run(work())


_OPTIONS = (
    click.argument("rubric", metavar="RUBRIC"),
    click.argument("drafts", nargs=-1, required=True, metavar="DRAFT..."),
    click.option("--task", default="", help="What was asked for; @FILE reads it from a file."),
    click.option(
        "--sources",
        multiple=True,
        metavar="FILE",
        help="What the drafts may rest on. May be repeated.",
    ),
    click.option(
        "--config",
        type=click.Path(path_type=Path),
        help="Settings; harness.toml in this directory when left out.",
    ),
    click.option(
        "--role",
        "roles",
        multiple=True,
        metavar="ROLE=TAG",
        help="Which endpoint's model plays a role, such as evaluator=llama. May be repeated.",
    ),
)
