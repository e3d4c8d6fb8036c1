"""Finding the pipeline in a file that a person wrote."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from harness.errors import HarnessError, InvalidInput, did_you_mean
from harness.session import Pipeline
from harness.shipped import shipped_directory


def load_pipeline(target: str) -> Pipeline:
    """The pipeline that `FILE.py`, `FILE.py:name`, or a shipped pattern's name stands for.

    Raises:
        InvalidInput: There is no such file, it cannot be imported, or it is not clear which of its
            pipelines is meant.
        PipelineInvalid: The pipeline breaks a rule.
    """
    file, _, name = target.partition(":")
    path = _find_file(file)
    module = _import_file(path)
    pipelines = {key: value for key, value in vars(module).items() if isinstance(value, Pipeline)}
    if name:
        if name not in pipelines:
            raise InvalidInput(
                f"there is no pipeline '{name}'; {did_you_mean(name, pipelines)}",
                code="pipeline.unknown",
                path=path,
            )
        return pipelines[name]
    if len({id(pipeline) for pipeline in pipelines.values()}) != 1:
        remedy = (
            f"say which: {', '.join(f'{path}:{key}' for key in pipelines)}"
            if pipelines
            else 'define one at the top level: my_pipeline = Pipeline("name")'
        )
        raise InvalidInput(
            f"there are {len(pipelines)} pipelines here; {remedy}",
            code="pipeline.not-one",
            path=path,
        )
    return next(iter(pipelines.values()))


def absolute_target(target: str) -> str:
    """The same for `load_pipeline`, wherever it is called from."""
    file, colon, name = target.partition(":")
    return f"{Path(file).absolute()}{colon}{name}" if Path(file).is_file() else target


def target_file(target: str) -> Path | None:
    """What `load_pipeline` would run, a user's file or a shipped one; None if there is neither."""
    return _found(target.partition(":")[0])


def _find_file(file: str) -> Path:
    found = _found(file)
    if found is not None:
        return found
    path, patterns = Path(file), shipped_directory("patterns")
    known = {pattern.stem for pattern in patterns.glob("*.py")} | {
        str(p) for p in path.parent.glob("*.py")
    }
    raise InvalidInput(
        f"there is no file '{file}', nor a pattern of that name; {did_you_mean(file, known)}",
        code="pipeline.no-file",
    )


def _found(file: str) -> Path | None:
    shipped = shipped_directory("patterns") / f"{file}.py"
    return next((path for path in (Path(file), shipped) if path.is_file()), None)


def _import_file(path: Path) -> ModuleType:
    # A name of its own: a file called asyncio.py must not stand in for the library.
    name = f"harness_pipeline_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidInput(
            "a pipeline file is a Python file, with the ending .py",
            code="pipeline.not-python",
            path=path,
        )
    module = importlib.util.module_from_spec(spec)
    # As with `python FILE.py`: its neighbours can be imported, and its types resolved by name.
    sys.path.insert(0, str(path.parent.resolve()))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except HarnessError:
        raise
    except SystemExit as error:
        raise InvalidInput(
            f"it ends with exit code {error.code} when imported; put what only a script should do "
            'under if __name__ == "__main__":',
            code="pipeline.exits-on-import",
            path=path,
        ) from error
    except SyntaxError as error:
        raise InvalidInput(
            f"{error.msg}", code="pipeline.syntax-error", path=path, line=error.lineno
        ) from error
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [
            f.lineno
            for f in frames
            if Path(f.filename) == path.resolve() or f.filename == str(path)
        ]
        raise InvalidInput(
            f"importing it failed: {type(error).__name__}: {error}",
            code="pipeline.import-failed",
            path=path,
            line=lines[-1] if lines else None,
        ) from error
    return module
