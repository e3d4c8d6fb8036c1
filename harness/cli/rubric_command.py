"""`harness rubric`: check rubrics, list them, and score drafts by them; `harness new rubric`."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from shlex import quote

import click
import orjson

from harness.cli.arguments import config_option
from harness.cli.consoles import failures_told, say, write_json
from harness.cli.process import UNUSABLE, LazyGroup
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
from harness.rubric.rubric import Scale
from harness.session.settings import load_settings

_OTHERS = {
    "compare": (
        "harness.cli.rubric_compare:compare_scores",
        "Compare two sets of scores of the same drafts.",
    ),
    "label": ("harness.cli.rubric_labeling:label", "Label drafts, without seeing scores."),
    "noise": (
        "harness.cli.rubric_noise:noise",
        "Measure how far an evaluator's scores scatter.",
    ),
    "prompts": ("harness.cli.rubric_prompts:prompts", "Print the prompts of a rubric."),
    "score": ("harness.cli.rubric_scoring:score", "Score drafts by a rubric."),
    "tune": (
        "harness.cli.rubric_tuning:tune_rubric",
        "Find the threshold that labeled drafts allow.",
    ),
}
"""Subcommands that need models or the loop, or import much."""


@click.group(cls=LazyGroup, lazy=_OTHERS)
def rubric() -> None:
    """Check, list and create rubrics, and judge drafts by them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Looked:
    """A rubric, and what is wrong with it."""

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
    with failures_told(as_json=as_json):
        directory = own_rubrics(config)
    looked = [_look(name, directory) for name in names]
    if as_json:
        _print_json([_as_json(one) for one in looked])
    else:
        for one in looked:
            _print(one)
        warnings = sum(len(one.warnings) for one in looked)
        if strict and warnings:
            say(f"{_counted(warnings, 'warning')}, which --strict counts as mistakes")
    if any(one.mistakes or (strict and one.warnings) for one in looked):
        sys.exit(UNUSABLE)


@rubric.command()
@click.option("--output", type=click.Path(path_type=Path), help="Write it to this file instead.")
def schema(output: Path | None) -> None:
    """Print the JSON Schema by which editors check rubrics."""
    if output is None:
        write_json(_schema())
        return
    with failures_told(), writing(output):
        output.write_bytes(_schema())


@rubric.command(name="list")
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def list_rubrics(config: Path | None, *, as_json: bool) -> None:
    """List your own rubrics, and the shipped ones."""
    with failures_told(as_json=as_json):
        directory = own_rubrics(config)
    looked = [_look(name, directory) for name in known_rubrics(directories(directory))]
    rows = [
        {
            "name": one.name,
            "title": one.rubric.title if one.rubric else "",
            "path": _shown(one.path),
            "ships": one.path is not None and one.path.parent == shipped_directory("rubrics"),
            "mistakes": len(one.mistakes),
        }
        for one in looked
    ]
    if as_json:
        _print_json(rows)
        return
    width = max(len(one.name) for one in looked)
    for one, row in zip(looked, rows, strict=True):
        mistakes = _counted(len(one.mistakes), "mistake")
        said = row["title"] or f"{mistakes}, named by: harness rubric check {one.name}"
        where = "ships" if row["ships"] else row["path"]
        say(f"{one.name:{width}}  {said} ({where})")


@click.command()
@click.argument("name", metavar="NAME|FILE.yaml")
@click.option("--from", "base", help="Rubric to copy; by default a small one with comments.")
@config_option
def new(name: str, base: str | None, config: Path | None) -> None:
    """Begin a rubric with a copy of another.

    A name goes into the directory of rubrics; a path is used as it is. The schema is put beside the
    rubric, so that editors complete and check it.
    """
    source_name = base or str(shipped_directory("examples/starter") / "rubrics/brief_me.yaml")
    with failures_told():
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
            path.with_name("rubric.schema.json").write_bytes(_schema())
    said = f"a copy of '{base}'" if base else "a small rubric with comments"
    say(f"{path}: {said}; next: harness rubric check {quote(str(path))}")
    if extends := source.rubric.extends:
        say(f"What it does not say is taken from '{extends}', which it extends.")
    if path.parent == directory and path.stem in known_rubrics(directories(directory)[1:]):
        say(f"From now on, '{path.stem}' means this one and not the one that ships.")


def own_rubrics(config: Path | None) -> Path:
    """The project's directory of rubrics."""
    return load_settings(config, environment=os.environ).rubrics


def read_named(name: str, directory: Path) -> RubricFile:
    """A rubric by its name or file; a person is asked whether its code may run."""
    return read_rubric(name, directory=directory, refuse=refusal_after_asking)


def _look(name: str, directory: Path) -> _Looked:
    try:
        found = read_named(name, directory)
    except RubricInvalid as error:
        return _Looked(name=name, path=error.path, mistakes=error.problems)
    warnings = advice_on(found.rubric, found.written)
    return _Looked(name=name, path=found.written.path, rubric=found.rubric, warnings=warnings)


def _print(one: _Looked) -> None:
    """A line for each mistake and warning, as compilers do, and one for the rubric."""
    for problem in one.mistakes:
        say(f"{_where(problem.path, problem.line)}{problem.message}")
    for advice in one.warnings:
        say(f"{_where(advice.path, advice.line)}warning: {advice.message}")
    said = _summary(one.rubric) if one.rubric else _counted(len(one.mistakes), "mistake")
    say(f"{_shown(one.path) or one.name}: {said}")


def _summary(rubric: Rubric) -> str:
    total = sum(d.weight for d in rubric.dimensions)
    dimensions = ", ".join(
        f"{d.name} {d.weight / total:.0%}{_remarks(d)}" for d in rubric.dimensions
    )
    floors = any(d.floor is not None for d in rubric.dimensions)
    passes = f"passes from {rubric.pass_at:g} on" + (", with every floor reached" * floors)
    return f"{rubric.title}: {dimensions}; {passes}"


def _remarks(dimension: Dimension) -> str:
    said = [
        "judged" * (dimension.judge is not None),
        _scale(dimension.scale),
        f"floor {dimension.floor:g}" if dimension.floor is not None else "",
        "gate" * dimension.gate,
        "optional" * dimension.optional,
        "needs sources" * dimension.needs_sources,
    ]
    kept = [one for one in said if one]
    return f" ({', '.join(kept)})" if kept else ""


def _scale(scale: Scale | None) -> str:
    """A dimension's own scale in words."""
    if scale is None:
        return ""
    return "pass or fail" if scale.is_pass_fail else f"{scale.min:g} to {scale.max:g}"


def _as_json(one: _Looked) -> dict[str, object]:
    """For scripts; the rubric includes what it takes from others."""
    return {
        "name": one.name,
        "path": _shown(one.path),
        "rubric": one.rubric.model_dump(mode="json") if one.rubric else None,
        "mistakes": [asdict(p) | {"path": _shown(p.path)} for p in one.mistakes],
        "warnings": [asdict(a) | {"path": _shown(a.path)} for a in one.warnings],
    }


def _print_json(rows: Sequence[object]) -> None:
    said = orjson.dumps(rows, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    write_json(said)


def _schema() -> bytes:
    return orjson.dumps(rubric_schema(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _where(path: Path | None, line: int | None) -> str:
    if path is None:
        return ""
    return f"{_shown(path)}: " if line is None else f"{_shown(path)}:{line}: "


def _shown(path: Path | None) -> str | None:
    """Relative to this directory if it lies below."""
    if path is None:
        return None
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
