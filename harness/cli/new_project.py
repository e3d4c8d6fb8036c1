"""`harness init` makes a project, `harness new` further files of one.

Both copy `examples/starter/`, a small project with its own test. Existing files stay unchanged.
"""

from __future__ import annotations

import ast
import os
import sys
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from shlex import quote

import click

from harness.cli.consoles import Command, Group, say
from harness.cli.project_files import PIPELINES
from harness.cli.run_result import command_here
from harness.errors import InvalidInput, did_you_mean
from harness.files import shipped_directory, writing
from harness.session.roles import DEMO_INSTALL
from harness.session.settings import demo_endpoint

# The name of the pipeline in `examples/starter/`, of its rubric and of its test.
_NAME = "brief_me"
_OF_A_PIPELINE = (
    f"pipelines/{_NAME}.py",
    f"rubrics/{_NAME}.yaml",
    "rubrics/rubric.schema.json",
    f"evaluations/{_NAME}.csv",
    f"tests/test_{_NAME}.py",
    "tests/conftest.py",
)
_OF_A_PROJECT = (*_OF_A_PIPELINE, "harness.toml", "README.md", ".gitignore", "traces/.gitkeep")
_RUBRIC = {"rubric": ("harness.cli.rubric_command:new", "Begin a rubric in rubrics/.")}


@click.command(cls=Command)
@click.argument(
    "directory", metavar="[DIR]", type=click.Path(path_type=Path, file_okay=False), default="."
)
def init(directory: Path) -> None:
    """Make a project in DIR: a pipeline with its rubric and test, settings, and a place for runs.

    Existing files stay unchanged.
    """
    _copy(_OF_A_PROJECT, directory, _NAME)
    harness = command_here(directory)
    interpreter = quote(os.path.relpath(sys.executable, directory))
    python = "python" if harness == "harness" else interpreter
    steps = [f"{harness} run {_NAME}", f"{harness} trace open", f"{python} -m pytest"]
    if directory.resolve() != Path.cwd():
        steps.insert(0, f"cd {quote(str(directory))}")
    if not demo_endpoint():
        say(f"Not installed is the demo's model: {DEMO_INSTALL}")
    if not find_spec("pytest"):
        say("Not installed is pytest: pip install pytest")
    say("Next:")
    for step in steps:
        say(f"  {step}")


@click.group(cls=Group, lazy=_RUBRIC)
def new() -> None:
    """Begin a pipeline, a pattern or a rubric in this directory."""


@new.command()
@click.argument("name")
def pipeline(name: str) -> None:
    """Begin a pipeline in pipelines/, with a rubric and a test of its own."""
    module = name.replace("-", "_")
    if not module.isidentifier() or iskeyword(module) or _is_module(module):
        raise InvalidInput(
            f"'{name}' cannot name a pipeline; give letters, digits and underscores, such as "
            "meeting_notes, but no Python module's name",
            code="pipeline.name-invalid",
        )
    _refuse_if_there(PIPELINES / f"{module}.py")
    _copy(_OF_A_PIPELINE, Path(), module)
    say(f"Next: {command_here()} run {module}")


def _is_module(name: str) -> bool:
    # Its imports would get the pipeline. A spec without an origin is of any folder that is here.
    return name in {"conftest", *sys.modules} or bool(getattr(find_spec(name), "origin", None))


@new.command()
@click.argument("name", required=False)
def pattern(name: str | None) -> None:
    """Copy a shipped pattern into pipelines/, to change it; without NAME, list them."""
    files = sorted(shipped_directory("patterns").glob("*.py"))
    # In a checkout, the folder also has the script that draws the patterns' pictures.
    shipped = {path.stem: path for path in files if path.stem != "gallery"}
    if name is None:
        width = max(map(len, shipped))
        for stem, path in shipped.items():
            about = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            first_line = about.partition("\n")[0]
            say(f"{stem:{width}}  {first_line}")
        return
    if name not in shipped:
        raise InvalidInput(
            f"no pattern is called '{name}'; {did_you_mean(name, shipped)}", code="pattern.unknown"
        )
    path = PIPELINES / f"{name}.py"
    _refuse_if_there(path)
    _write(path, shipped[name].read_bytes())
    say(f"{path}: a copy of the pattern; next: {command_here()} run {name}")


def _copy(files: tuple[str, ...], directory: Path, name: str) -> None:
    """Copies the starter's files, with its name replaced; existing files stay unchanged."""
    for file in files:
        source = shipped_directory("examples/starter") / file
        # The schema of rubrics is not a file of the starter.
        if not source.exists():
            source = shipped_directory("rubrics").parent / file
        text = source.read_text(encoding="utf-8").replace(_NAME, name)
        text = text.replace(_NAME.replace("_", "-"), name.replace("_", "-"))
        target = directory / file.replace(_NAME, name)
        if target.exists():
            say(f"kept  {target}")
        else:
            _write(target, text.encode())
            say(f"made  {target}")


def _write(path: Path, data: bytes) -> None:
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(data)


def _refuse_if_there(path: Path) -> None:
    if path.exists():
        raise InvalidInput(
            "it exists already; choose another name", code="project.file-exists", path=path
        )
