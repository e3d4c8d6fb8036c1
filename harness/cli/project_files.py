"""A project's files: its settings and pipelines, and the user's permission to use them.

At a terminal, the user is asked once for each permission that the files of a folder need.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import TypeVar, cast

import click

from harness.cli.arguments import parsed_by
from harness.cli.consoles import hide, is_attended, say
from harness.errors import HarnessError, InvalidInput, Notice, did_you_mean
from harness.files import shipped_directory
from harness.inference import Endpoint
from harness.memory import Place, place_of
from harness.session import Evaluation, Pipeline, Settings, load_settings
from harness.session.models import known_endpoints
from harness.session.roles import DEMO_INSTALL
from harness.session.trust import known_secrets, not_allowed, project_of, refusal_to_run, remember

Loaded = TypeVar("Loaded")

PIPELINES = Path("pipelines")
"""The folder of a project's pipelines, which are run by name."""

store_place = parsed_by(place_of)
"""Reads a directory, or the url of a PostgreSQL database."""


def settings_for_calls(
    config: Path | None,
    *,
    roles: Mapping[str, str] | None = None,
    memory: Place | None = None,
    seed: int | None = None,
    engine: str | None = None,
) -> Settings:
    """`load_settings` for a command that calls models.

    Also hides the endpoints' secrets in all output, and asks whether they may be sent.
    """
    settings = load_settings(config, environment=os.environ, roles=roles, memory=memory)
    if seed is not None:
        settings = settings.model_copy(update={"seed": seed})
    if engine is not None:
        execution = settings.execution.model_copy(update={"engine": engine})
        settings = settings.model_copy(update={"execution": execution})
    endpoints, named = settings.endpoints.values(), settings.trace.secrets
    hide(known_secrets(endpoints, environment=os.environ, named=named))
    for endpoint in (replica for pool in endpoints for replica in pool.replicas.values()):
        for refusal in not_allowed(endpoint, os.environ):
            # An entry is `VARIABLE@HOST FOLDER`.
            permission, _, folder = refusal.entry.partition(" ")
            name, _, host = permission.partition("@")
            # A variable that is not set sends nothing.
            if name == "*" or os.environ.get(name):
                secret = "all credentials found here" if name == "*" else name
                # If the answer is no, the endpoint fails when it is opened.
                if _is_allowed(f"The settings in {folder} would send {secret} to {host}."):
                    _remember(refusal.entry)
    return settings


def endpoints_of(settings: Settings) -> dict[str, Endpoint]:
    """Tag → endpoint; the demo's endpoint if the settings have none."""
    endpoints = known_endpoints(settings)
    if not endpoints:
        raise InvalidInput(
            "there are no endpoints; write [endpoints.<tag>] into harness.toml, "
            f"set HARNESS_ENDPOINTS, or install the demo's model: {DEMO_INSTALL}",
            code="config.no-endpoints",
        )
    return endpoints


def refusal_after_asking(path: Path) -> Notice | None:
    """Why a file may not be run; None if it may, or if the user at the terminal allows it now."""
    refusal = refusal_to_run(path, environment=os.environ)
    if refusal is not None and _is_allowed(f"The code of {project_of(path)} would be run."):
        _remember(str(project_of(path)))
        return refusal_to_run(path, environment=os.environ)
    return refusal


def check_may_run(path: Path, *, named_in: Path) -> None:
    """Refuses to run a file that another file names, unless the user allows it."""
    refusal = refusal_after_asking(path)
    if refusal is not None:
        raise InvalidInput(refusal.message, path=named_in, code=refusal.code)


def remember_run(target: str, settings: Path | None) -> None:
    """Remembers that the user ran these files, so that the run's resumes may run them."""
    for path in (target_file(target), settings):
        if path is not None and refusal_to_run(path, environment=os.environ) is not None:
            _remember(str(path.resolve()))


def _is_allowed(what: str) -> bool:
    question = f"{repr(what)[1:-1]} Do you allow that, from now on?"
    return is_attended() and click.confirm(question, err=True)


def _remember(entry: str) -> None:
    try:
        remember(entry, os.environ)
    except OSError as error:
        say(f"harness: this cannot be remembered ({error.strerror})", err=True)


def load_pipeline(target: str) -> Pipeline:
    """The pipeline of a file, of a name in `pipelines/`, or of a shipped pattern's name.

    `FILE.py:name` picks one of several in a file.
    """
    return _load(target, Pipeline)


def load_evaluated(target: str) -> Evaluation | Pipeline:
    """The evaluation of a file; its pipeline if it has no evaluation. See `load_pipeline`."""
    return _load(target, cast("type[Evaluation | Pipeline]", Evaluation), Pipeline)


def _load(target: str, *kinds: type[Loaded]) -> Loaded:
    file, _, name = target.partition(":")
    values = vars(_import_file(path := _find_file(file)))
    objects: dict[str, Loaded] = {}
    noun = ""
    # Of the first kind that the file has; with a name, of the first that has this name.
    for kind in kinds:
        objects = {key: value for key, value in values.items() if isinstance(value, kind)}
        noun = kind.__name__.lower()
        if name in objects:
            return objects[name]
        if objects and not name:
            break
    if name:
        raise InvalidInput(
            f"there is no {noun} '{name}'; {did_you_mean(name, objects)}",
            code="pipeline.unknown",
            path=path,
        )
    # One object may have several names.
    if len({id(value) for value in objects.values()}) != 1:
        remedy = 'define one at the top level: my_pipeline = Pipeline("name")'
        if objects:
            remedy = f"say which: {', '.join(f'{path}:{key}' for key in objects)}"
        raise InvalidInput(
            f"there are {len(objects)} {noun}s here; {remedy}", code="pipeline.not-one", path=path
        )
    return next(iter(objects.values()))


def load_pipeline_to_read(target: str) -> Pipeline:
    """`load_pipeline` for a command that only reads the pipeline; may ask before a NAME's code."""
    path = target_file(target)
    # The user may not expect a NAME to run code; a FILE.py is run as by `python FILE.py`.
    if path is not None and path.parent == PIPELINES and path != Path(target.partition(":")[0]):
        check_may_run(path, named_in=path)
    return load_pipeline(target)


def absolute_target(target: str) -> str:
    """The target with an absolute path, to be found from any directory."""
    _, colon, name = target.partition(":")
    path = target_file(target)
    if path is None or path.parent == shipped_directory("patterns"):
        return target
    return f"{path.absolute()}{colon}{name}"


def target_file(target: str) -> Path | None:
    """The file that `load_pipeline` would run; None if there is none."""
    file = target.partition(":")[0]
    named = (folder / f"{file}.py" for folder in (PIPELINES, shipped_directory("patterns")))
    return next((path for path in (Path(file), *named) if path.is_file()), None)


def _find_file(file: str) -> Path:
    target = target_file(file)
    if target is not None:
        return target
    folders = (PIPELINES, shipped_directory("patterns"))
    names = {path.stem for folder in folders for path in folder.glob("*.py")}
    names |= {str(path) for path in Path(file).parent.glob("*.py")}
    raise InvalidInput(
        f"there is no file '{file}', nor a pipeline or pattern of that name; "
        + did_you_mean(file, names),
        code="pipeline.no-file",
    )


def _import_file(path: Path) -> ModuleType:
    """The module of a file, which is run; raises `InvalidInput` with its line if that fails."""
    root, package = _package_of(path)
    # Outside a package, a name of its own: a file called asyncio.py must not replace the library.
    name = f"{package}.{path.stem}" if package else f"harness_pipeline_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidInput(
            "a pipeline file is a Python file, with the ending .py",
            code="pipeline.not-python",
            path=path,
        )
    module = importlib.util.module_from_spec(spec)
    # As with `python FILE.py`: it can import its neighbors, and its types resolve by name.
    sys.path[:0] = dict.fromkeys([str(path.parent.resolve()), str(root)])
    try:
        with redirect_stdout(sys.stderr):  # standard output is for results
            if package:
                importlib.import_module(package)
                if name in sys.modules:  # by its package
                    return sys.modules[name]
            sys.modules[name] = module
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        sys.modules.pop(name, None)  # half of a module must not be found there next time
        failure = _import_failure(path, error)
        if failure is error:
            raise
        raise failure from error
    return module


def _import_failure(path: Path, error: Exception | SystemExit) -> Exception:
    """The error of a file that could not be imported, with its place in the file."""
    if isinstance(error, HarnessError):
        if type(error) is InvalidInput and error.path is None:
            line = _line_in(path, error)
            return InvalidInput(error.statement, code=error.code, path=path, line=line)
        return error
    if isinstance(error, SystemExit):
        return InvalidInput(
            f"it ends with exit code {error.code} when imported; put what only a script should do "
            'under if __name__ == "__main__":',
            code="pipeline.exits-on-import",
            path=path,
        )
    line = _line_in(path, error)
    if isinstance(error, SyntaxError):
        file = Path(error.filename or "")
        # Otherwise the mistake is in a text that the file evaluates, and the line is of that text.
        if file.is_file():
            line = error.lineno
            # A module that the file imports may have the mistake.
            path = path if file.samefile(path) else file
        return InvalidInput(f"{error.msg}", code="pipeline.syntax-error", path=path, line=line)
    return InvalidInput(
        f"importing it failed: {type(error).__name__}: {error}",
        code="pipeline.import-failed",
        path=path,
        line=line,
    )


def _package_of(path: Path) -> tuple[Path, str]:
    """The folder that the file's package is imported from, and the package; "" for none."""
    root, names = path.resolve().parent, list[str]()
    # No package can have a dot in its name, nor be the root of all files, which has no name.
    while root.name and "." not in root.name and (root / "__init__.py").is_file():
        names.insert(0, root.name)
        root = root.parent
    return root, ".".join(names)


def _line_in(path: Path, error: Exception) -> int | None:
    """The last line of a file on the way to an error."""
    frames = traceback.extract_tb(error.__traceback__)
    # Python names a file by its absolute path, and a module of a package by its real one.
    lines = [f.lineno for f in frames if f.filename in {str(path.absolute()), str(path.resolve())}]
    return lines[-1] if lines else None
