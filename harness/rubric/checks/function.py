"""A user's own check: a function of the draft.

It is in an installed module (`my_package.checks:polite`), or in a file beside the rubric
(`./checks.py:polite`). A file that needs its neighbors must be installed.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import Literal, Self

from pydantic import Field, PrivateAttr, ValidationInfo, computed_field, model_validator

from harness.errors import EvaluationFailed, Mistake, Notice, did_you_mean
from harness.rubric.checks.base import Check, Grade, path_beside
from harness.rubric.draft import Draft, Finding

_Score = Callable[[Draft], object]

Refuse = Callable[[Path], Notice | None]
"""Says why the code of a file may not be run; None where it may."""


class Function(Check):
    """A function of the user's own.

    It is called with the `Draft`, which is all that it gets to see: `text`, `task`, `sources`,
    `sections`, `sentences`. It returns the share that is right, from 0 to 1; or that and a list of
    messages that say what to change; or a `Grade`, whose findings may name sections, and which may
    say why it is unjudged.
    """

    check: Literal["function"] = "function"
    call: str = Field(pattern=r"^(?:[A-Za-z_][\w.]*|.+\.py):[A-Za-z_]\w*$")
    """`package.module:function` of something installed, or `./file.py:function` of a file, by its
    path from this rubric's directory."""

    _function: _Score = PrivateAttr()
    _sha256: str = PrivateAttr()

    @model_validator(mode="after")
    def _find(self, info: ValidationInfo) -> Self:
        place, _, name = self.call.rpartition(":")
        path = path_beside(place, info)
        refuse: Refuse | None = (info.context or {}).get("refuse")
        # Before any of its code is run: a rubric may be from elsewhere.
        if refuse is not None and (refusal := refuse(path)) is not None:
            raise Mistake(refusal.message, code=refusal.code)
        module, content = _run(path) if place.endswith(".py") else _import(place)
        function = getattr(module, name, None)
        if function is None:
            functions = [n for n, value in vars(module).items() if inspect.isfunction(value)]
            raise Mistake(
                f"{place} has no '{name}'; {did_you_mean(name, functions)}",
                code="rubric.function-missing",
            )
        if not callable(function) or inspect.iscoroutinefunction(function):
            raise Mistake(
                f"'{name}' in {place} must be a plain function, without async",
                code="rubric.function-not-plain",
            )
        if not _takes_one(function):
            raise Mistake(
                f"'{name}' in {place} must take one argument, the draft",
                code="rubric.function-arguments",
            )
        self._function = function
        self._sha256 = hashlib.sha256(content).hexdigest()
        return self

    @computed_field  # type: ignore[prop-decorator]  # mypy knows of no decorated properties
    @property
    def sha256(self) -> str:
        """Digest of the function's module: with another one, a rubric asks for something else."""
        return self._sha256

    @property
    def requirement(self) -> str:
        """For the author: the first line of the function's docstring."""
        first_line = (inspect.getdoc(self._function) or "").partition("\n")[0]
        return (first_line or f"The text satisfies {self.call}").strip().rstrip(".") + "."

    def grade(self, draft: Draft) -> Grade:
        """Calls the function; raises `EvaluationFailed` if it raises, or returns no grade."""
        try:
            result = self._function(draft)
        except Exception as error:
            # The author's code may raise anything; there is no score then.
            raise EvaluationFailed(
                f"the check {self.call} raised {type(error).__name__}: {error}"
            ) from error
        grade = _as_grade(result)
        if grade is None or not _holds(grade, draft):
            raise EvaluationFailed(
                f"the check {self.call} returned {_shown(result)}; it must return a number from 0 "
                "to 1, or that and a list of messages, or a Grade whose findings are about "
                "sections that are there"
            )
        titled = (
            f if (n := f.section_index) is None else replace(f, section=draft.sections[n].title)
            for f in grade.findings
        )
        return replace(grade, findings=tuple(titled))


def _import(name: str) -> tuple[ModuleType, bytes]:
    """An installed module, and what stands in its file; its name, where it has none."""
    try:
        module = importlib.import_module(name)
        path = getattr(module, "__file__", None)
        return module, Path(path).read_bytes() if path else name.encode()
    except ModuleNotFoundError as error:
        # It is there, and imports one that is not.
        if not f"{name}.".startswith(f"{error.name}."):
            raise Mistake(
                f"the module '{name}' needs '{error.name}', which is missing",
                code="rubric.module-needs-another",
            ) from error
        raise Mistake(
            f"there is no module '{error.name}' installed; a file beside the rubric is written "
            f"'./{name}.py:function'",
            code="rubric.module-missing",
        ) from error
    except (Exception, SystemExit) as error:
        # A module may raise anything while it is imported.
        raise Mistake(
            f"the module '{name}' fails: {type(error).__name__}: {error}",
            code="rubric.module-fails",
        ) from error


def _run(path: Path) -> tuple[ModuleType, bytes]:
    """The module that a file makes, the same for the same content, and that content."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise Mistake(
            f"{path} cannot be read ({error.strerror})", code="rubric.named-file-unreadable"
        ) from error
    key = hashlib.sha256(bytes(path.resolve()) + b"\0" + content).hexdigest()
    name = f"harness_check_{key[:16]}"
    if name in sys.modules:
        return sys.modules[name], content
    module = ModuleType(name)
    module.__file__ = str(path)
    # Dataclasses look their own module up while it runs.
    sys.modules[name] = module
    try:
        # Not by an import: that would leave compiled code beside the rubric, and might take some
        # that is out of date from there. Nor with its folder in `sys.path`, where a `json.py`
        # would shadow Python's.
        exec(compile(content, path, "exec"), vars(module))  # noqa: S102 - what a rubric asks for
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        # As above.
        raise Mistake(
            f"{path} fails: {type(error).__name__}: {error}", code="rubric.module-fails"
        ) from error
    return module, content


def _takes_one(function: _Score) -> bool:
    try:
        inspect.signature(function).bind(None)
    except ValueError:  # some builtins have no signature
        return True
    except TypeError:
        return False
    return True


def _as_grade(result: object) -> Grade | None:
    share, findings, unjudged = result, tuple[Finding, ...](), ""
    match result:
        case Grade():
            share, findings, unjudged = result.share, result.findings, result.unjudged
        case (number, [*messages]) if all(isinstance(m, str) and m.strip() for m in messages):
            share, findings = number, tuple(Finding(str(message)) for message in messages)
    # A decimal number is no `Real`, since it does not add to floats.
    if not isinstance(share, Real | Decimal):
        return None
    return Grade(float(share), findings, unjudged)


def _holds(grade: Grade, draft: Draft) -> bool:
    """Whether the share is in range and every finding names a section that exists."""
    places = {None, *range(len(draft.sections))}
    try:
        # A share that is no number (NaN) is not between them either.
        in_range = isinstance(grade.unjudged, str) and 0 <= grade.share <= 1
        return in_range and all(f.section_index in places for f in grade.findings)
    except (TypeError, AttributeError):  # a user's grade may hold anything
        return False


def _shown(result: object) -> str:
    excerpt = repr(result)
    return excerpt if len(excerpt) <= 80 else excerpt[:79] + "…"
