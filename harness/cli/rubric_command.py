"""`harness rubric`: check rubrics, list them, and score drafts by them; `harness new rubric`."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from shlex import quote

import click

from harness.cli.arguments import config_option
from harness.cli.consoles import failures_told, json_object, say, write_json
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
        write_json(json_object([_as_json(result) for result in looked]))
    else:
        for result in looked:
            _print(result)
        warnings = sum(len(result.warnings) for result in looked)
        if strict and warnings:
            say(f"{_counted(warnings, 'warning')}, which --strict counts as mistakes")
    if any(result.mistakes or (strict and result.warnings) for result in looked):
        sys.exit(UNUSABLE)


@rubric.command()
@click.option("--output", type=click.Path(path_type=Path), help="Write it to this file instead.")
def schema(output: Path | None) -> None:
    """Print the JSON Schema by which editors check rubrics."""
    if output is None:
        write_json(json_object(rubric_schema()))
        return
    with failures_told(), writing(output):
        output.write_bytes(json_object(rubric_schema()))


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
            "name": result.name,
            "title": result.rubric.title if result.rubric else "",
            "path": _shown(result.path),
            "ships": result.path is not None and result.path.parent == shipped_directory("rubrics"),
            "mistakes": len(result.mistakes),
        }
        for result in looked
    ]
    if as_json:
        write_json(json_object(rows))
        return
    width = max(len(result.name) for result in looked)
    for result, row in zip(looked, rows, strict=True):
        mistakes = _counted(len(result.mistakes), "mistake")
        title = row["title"] or f"{mistakes}, named by: harness rubric check {result.name}"
        where = "ships" if row["ships"] else row["path"]
        say(f"{result.name:{width}}  {title} ({where})")


@click.command()
@click.argument("name", metavar="NAME|FILE.yaml")
@click.option("--from", "base", help="Rubric to copy; by default a small one with comments.")
@config_option
def new(name: str, base: str | None, config: Path | None) -> None:
    """Begin a rubric with a copy of another.

    A name goes into the directory of rubrics; a path is used as it is. The schema is put beside the
    rubric, so that editors complete and check it.
    """
    # The one of new projects: it is short, and explains its fields.
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
            path.with_name("rubric.schema.json").write_bytes(json_object(rubric_schema()))
    origin = f"a copy of '{base}'" if base else "a small rubric with comments"
    say(f"{path}: {origin}; next: harness rubric check {quote(str(path))}")
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
        file = read_named(name, directory)
    except RubricInvalid as error:
        return _Looked(name=name, path=error.path, mistakes=error.problems)
    warnings = advice_on(file.rubric, file.written)
    return _Looked(name=name, path=file.written.path, rubric=file.rubric, warnings=warnings)


def _print(result: _Looked) -> None:
    """A line for each mistake and warning, as compilers do, and one for the rubric."""
    for problem in result.mistakes:
        say(f"{_where(problem.path, problem.line)}{problem.message}")
    for advice in result.warnings:
        say(f"{_where(advice.path, advice.line)}warning: {advice.message}")
    summary = (
        _summary(result.rubric) if result.rubric else _counted(len(result.mistakes), "mistake")
    )
    say(f"{_shown(result.path) or result.name}: {summary}")


def _summary(rubric: Rubric) -> str:
    total = sum(d.weight for d in rubric.dimensions)
    dimensions = ", ".join(
        f"{d.name} {d.weight / total:.0%}{_remarks(d)}" for d in rubric.dimensions
    )
    floors = any(d.floor is not None for d in rubric.dimensions)
    passes = f"passes from {rubric.pass_at:g} on" + (", with every floor reached" * floors)
    return f"{rubric.title}: {dimensions}; {passes}"


def _remarks(dimension: Dimension) -> str:
    own = ""
    if scale := dimension.scale:
        own = "pass or fail" if scale.is_pass_fail else f"{scale.min:g} to {scale.max:g}"
    words = [
        "judged" * (dimension.judge is not None),
        own,
        f"floor {dimension.floor:g}" if dimension.floor is not None else "",
        "gate" * dimension.gate,
        "optional" * dimension.optional,
        "needs sources" * dimension.needs_sources,
    ]
    remarks = [word for word in words if word]
    return f" ({', '.join(remarks)})" if remarks else ""


def _as_json(result: _Looked) -> dict[str, object]:
    """For scripts; the rubric includes what it takes from others."""
    return {
        "name": result.name,
        "path": _shown(result.path),
        "rubric": result.rubric.model_dump(mode="json") if result.rubric else None,
        "mistakes": [asdict(p) | {"path": _shown(p.path)} for p in result.mistakes],
        "warnings": [asdict(a) | {"path": _shown(a.path)} for a in result.warnings],
    }


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
