"""A user's own check: a function of the draft.

It is in an installed module (`my_package.checks:polite`), or in a file beside the rubric
(`./checks.py:polite`). A file that needs its neighbors must be installed.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Self

from pydantic import Field, PrivateAttr, ValidationInfo, computed_field, model_validator

from harness.errors import EvaluationFailed, Mistake, Notice, did_you_mean
from harness.rubric.checks.base import Check, Grade, path_beside
from harness.rubric.draft import Draft, Finding

_Score = Callable[[Draft], object]

_RUNNING = threading.RLock()  # a file may load a rubric in its turn

Refuse = Callable[[Path], Notice | None]
"""Says why the code of a file may not be run; None if it may."""


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
    def _load(self, info: ValidationInfo) -> Self:
        """Imports the function, once the code may run."""
        place, _, name = self.call.rpartition(":")
        # For a module the path names no file, but lies in the rubric's folder, whose trust decides.
        path = path_beside(place, info)
        refuse: Refuse | None = (info.context or {}).get("refuse")
        # Before any of its code is run: a rubric may be from elsewhere.
        refusal = refuse(path) if refuse is not None else None
        if refusal is not None:
            raise Mistake(refusal.message, code=refusal.code)
        if place.endswith(".py"):
            # One at a time: a module that another thread still runs lacks functions.
            with _RUNNING:
                module, content = _run(path)
        else:
            module, content = _import(place)
        if (function := getattr(module, name, None)) is None:
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
        if not _takes_one_argument(function):
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
        """Digest of the function's module, by which a rubric with other code is another rubric."""
        return self._sha256

    @property
    def requirement(self) -> str:
        """The first line of the function's docstring, as a sentence."""
        first_line = (inspect.getdoc(self._function) or "").partition("\n")[0]
        return (first_line or f"The text satisfies {self.call}").strip().rstrip(".") + "."

    def grade(self, draft: Draft) -> Grade:
        """Calls the function; raises `EvaluationFailed` if it raises, or returns no grade."""
        try:
            result = self._function(draft)
        except Exception as error:
            # The author's code may raise anything; there is no score then.
            remedy = ""
            # As of `draft.split()` and `len(draft)`, by a function that was written for a text.
            if isinstance(error, AttributeError | TypeError) and Draft.__name__ in str(error):
                remedy = "; it gets the draft as a Draft, whose text is `draft.text`"
            raise EvaluationFailed(
                f"the check {self.call} raised {type(error).__name__}: {error}{remedy}"
            ) from error
        grade = _as_grade(result)
        if grade is None or not _is_valid(grade, draft):
            raise EvaluationFailed(
                f"the check {self.call} returned {_shown(result)}; it must return a number from 0 "
                "to 1, or that and a list of messages, or a Grade whose findings are about "
                "sections that are there"
            )
        findings = []
        for finding in grade.findings:
            index = finding.section_index
            title = finding.section if index is None else draft.sections[index].title
            findings.append(replace(finding, section=title))
        return replace(grade, findings=tuple(findings))


def _import(name: str) -> tuple[ModuleType, bytes]:
    """An installed module, and the content of its file, or its name if it has no file."""
    try:
        module = importlib.import_module(name)
        path = getattr(module, "__file__", None)
        return module, Path(path).read_bytes() if path else name.encode()
    except ModuleNotFoundError as error:
        raise Mistake(
            f"there is no module '{error.name}' installed; a file beside the rubric is written "
            f"'./{name}.py:function'",
            code="rubric.module-missing",
        ) from error
    # A module may raise anything while it is imported.
    except (Exception, SystemExit) as error:
        raise Mistake(
            f"the module '{name}' fails: {type(error).__name__}: {error}",
            code="rubric.module-fails",
        ) from error


def _run(path: Path) -> tuple[ModuleType, bytes]:
    """The module of a file, which runs once while its content is the same, and that content."""
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
        raise Mistake(
            f"{path} fails: {type(error).__name__}: {error}", code="rubric.module-fails"
        ) from error
    return module, content


def _takes_one_argument(function: _Score) -> bool:
    try:
        inspect.signature(function).bind(None)
    except ValueError:  # some builtins have no signature
        return True
    except TypeError:
        return False
    return True


def _as_grade(result: Any) -> Grade | None:  # noqa: ANN401 - whatever a user's function returns
    """The result of a user's function as a grade; None if its share is no number."""
    match result:
        case Grade():
            grade = result
        case (share, [*messages]) if all(isinstance(m, str) and m.strip() for m in messages):
            grade = Grade(share, tuple(Finding(str(message)) for message in messages))
        case _:
            grade = Grade(result)
    number: object = grade.share
    # A decimal number is no `Real`, since it does not add to floats.
    if not isinstance(number, Real | Decimal):
        return None
    return Grade(float(number), grade.findings, grade.unjudged)


def _is_valid(grade: Grade, draft: Draft) -> bool:
    """Whether the fields are of their types and ranges, and sections of findings exist."""
    indices = {None, *range(len(draft.sections))}
    try:
        return (
            isinstance(grade.unjudged, str)
            and 0 <= grade.share <= 1  # NaN is not
            and all(finding.section_index in indices for finding in grade.findings)
        )
    except (TypeError, AttributeError):  # a user's grade may hold anything
        return False


def _shown(result: object) -> str:
    excerpt = repr(result)
    return excerpt if len(excerpt) <= 80 else excerpt[:79] + "…"
