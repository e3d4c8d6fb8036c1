"""`harness rubric`: check rubrics, list them, and score drafts by them; `harness new rubric`."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

import click
from pydantic_core import to_jsonable_python

from harness.cli.arguments import config_option
from harness.cli.consoles import Command, Group, json_object, say, write_json
from harness.cli.process import UNUSABLE
from harness.cli.project_files import refusal_after_asking
from harness.errors import InvalidInput, Problem, RubricInvalid
from harness.files import shipped_directory, writing
from harness.rubric import (
    Dimension,
    Rubric,
    RubricAdvice,
    RubricFile,
    advice_on,
    directories,
    known_rubrics,
    read_rubric,
    rubric_schema,
)
from harness.session.settings import load_settings

# Imported when they are called: they need models or the loop, or import much.
_OTHERS = {
    "compare": (
        "harness.cli.rubric_compare:compare_scores",
        "Compare two sets of scores of the same drafts.",
    ),
    "label": ("harness.cli.rubric_labeling:label", "Label drafts, without seeing scores."),
    "noise": ("harness.cli.rubric_noise:noise", "Measure how far an evaluator's scores scatter."),
    "prompts": ("harness.cli.rubric_prompts:prompts", "Print the prompts of a rubric."),
    "score": ("harness.cli.rubric_scoring:score", "Score drafts by a rubric."),
    "tune": (
        "harness.cli.rubric_tuning:tune_rubric",
        "Find the threshold that labeled drafts allow.",
    ),
}


@click.group(cls=Group, lazy=_OTHERS)
def rubric() -> None:
    """Check, list and create rubrics, and judge drafts by them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _CheckedRubric:
    """A rubric that a command names, with its mistakes and warnings; the JSON has these fields."""

    name: str
    path: Path | None = None
    rubric: Rubric | None = None
    """None if it has mistakes."""
    mistakes: tuple[Problem, ...] = ()
    warnings: tuple[RubricAdvice, ...] = ()


@rubric.command()
@click.argument("names", nargs=-1, required=True, metavar="FILE|NAME...")
@config_option
@click.option("--strict", is_flag=True, help="Count warnings as mistakes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def check(names: tuple[str, ...], config: Path | None, *, strict: bool, as_json: bool) -> None:
    """Report mistakes in rubrics, and what looks unintended.

    Exit codes: 0 they can be used, 2 one of them cannot (or, with --strict, has warnings).
    """
    directory = own_rubrics(config)
    results = [_check(name, directory) for name in names]
    if as_json:
        write_json(json_object(to_jsonable_python(results)))
    else:
        for result in results:
            _print(result)
        warnings = sum(len(result.warnings) for result in results)
        if strict and warnings:
            say(f"{_counted(warnings, 'warning')}, which --strict counts as mistakes")
    if any(result.mistakes or (strict and result.warnings) for result in results):
        sys.exit(UNUSABLE)


@rubric.command()
@click.option("--output", type=click.Path(path_type=Path), help="Write it to this file instead.")
def schema(output: Path | None) -> None:
    """Print the JSON Schema by which editors check rubrics."""
    document = json_object(rubric_schema())
    if output is None:
        write_json(document)
        return
    with writing(output):
        output.write_bytes(document)


@rubric.command(name="list")
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def list_rubrics(config: Path | None, *, as_json: bool) -> None:
    """List your own rubrics, and the shipped ones."""
    directory = own_rubrics(config)
    results = [_check(name, directory) for name in known_rubrics(directories(directory))]
    rows = [
        {
            "name": result.name,
            "title": result.rubric.title if result.rubric else "",
            "path": result.path,
            "ships": result.path is not None and result.path.parent == shipped_directory("rubrics"),
            "mistakes": len(result.mistakes),
        }
        for result in results
    ]
    if as_json:
        write_json(json_object(to_jsonable_python(rows)))
        return
    width = max(len(result.name) for result in results)
    for result, row in zip(results, rows, strict=True):
        mistakes = _counted(len(result.mistakes), "mistake")
        title = row["title"] or f"{mistakes}, named by: harness rubric check {result.name}"
        where = "ships" if row["ships"] else row["path"]
        say(f"{result.name:{width}}  {title} ({where})")


@click.command(cls=Command)
@click.argument("name", metavar="NAME|FILE.yaml")
@click.option("--from", "base", help="Rubric to copy; by default a small one with comments.")
@config_option
def new(name: str, base: str | None, config: Path | None) -> None:
    """Begin a rubric with a copy of another.

    A name goes into the directory of rubrics; a path is used as it is. The schema is put beside the
    rubric, so that editors complete and check it.
    """
    # By default the rubric of new projects, which is short and explains its fields.
    source_name = base or str(shipped_directory("examples/starter") / "rubrics/brief_me.yaml")
    directory = own_rubrics(config)
    source = read_named(source_name, directory)
    path = Path(name) if name.endswith((".yaml", ".yml")) else directory / f"{name}.yaml"
    if path.exists():
        raise InvalidInput(
            "it exists already; choose another name", code="rubric.exists", path=path
        )
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source.written.path, path)
        path.with_name("rubric.schema.json").write_bytes(json_object(rubric_schema()))
    origin = f"a copy of '{base}'" if base else "a small rubric with comments"
    say(f"{path}: {origin}; next: harness rubric check {quote(str(path))}")
    if path.parent == directory and path.stem in known_rubrics(directories(directory)[1:]):
        say(f"From now on, '{path.stem}' means this one and not the one that ships.")


def own_rubrics(config: Path | None) -> Path:
    """The project's directory of rubrics."""
    return load_settings(config, environment=os.environ).rubrics


def read_named(name: str, directory: Path) -> RubricFile:
    """A rubric by its name or file; a person is asked whether its code may run."""
    return read_rubric(name, directory=directory, refuse=refusal_after_asking)


def _check(name: str, directory: Path) -> _CheckedRubric:
    try:
        file = read_named(name, directory)
    except RubricInvalid as error:
        return _CheckedRubric(name=name, path=error.path, mistakes=error.problems)
    return _CheckedRubric(
        name=name,
        path=file.written.path,
        rubric=file.rubric,
        warnings=advice_on(file.rubric, file.written),
    )


def _print(result: _CheckedRubric) -> None:
    """Prints a line for each mistake and warning, as compilers do, and one for the rubric."""
    for problem in result.mistakes:
        say(problem)
    for advice in result.warnings:
        message = f"warning: {advice.message}"
        say(Problem(path=advice.path, line=advice.line, message=message, code=advice.code))
    if result.rubric is None:
        summary = _counted(len(result.mistakes), "mistake")
    else:
        summary = _summary(result.rubric)
    say(f"{result.path or result.name}: {summary}")


def _summary(rubric: Rubric) -> str:
    total_weight = sum(dimension.weight for dimension in rubric.dimensions)
    dimensions = ", ".join(
        f"{dimension.name} {dimension.weight / total_weight:.0%}{_properties(dimension)}"
        for dimension in rubric.dimensions
    )
    passes = f"passes from {rubric.pass_at:g} on"
    if any(dimension.floor is not None for dimension in rubric.dimensions):
        passes += ", with every floor reached"
    return f"{rubric.title}: {dimensions}; {passes}"


def _properties(dimension: Dimension) -> str:
    """What differs from a plain checked dimension, in brackets; empty if nothing does."""
    words: list[str] = []
    if dimension.judge is not None:
        words.append("judged")
    if scale := dimension.scale:
        words.append("pass or fail" if scale.is_pass_fail else f"{scale.min:g} to {scale.max:g}")
    if dimension.floor is not None:
        words.append(f"floor {dimension.floor:g}")
    if dimension.gate:
        words.append("gate")
    if dimension.optional:
        words.append("optional")
    if dimension.needs_sources:
        words.append("needs sources")
    return f" ({', '.join(words)})" if words else ""


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
