"""Python in a draft: whether it parses."""

from __future__ import annotations

import ast
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from harness.compress import Section
from harness.rubric.checks.check import Check, Grade, quoted
from harness.rubric.draft import Draft
from harness.rubric.finding import Finding

_LABELS = {"py", "python", "python3"}

NO_PYTHON = Grade(1.0, unjudged="there is no Python in it")


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonBlock:
    """One block of code that says it is Python."""

    index: int
    """Of its section in `draft.sections`."""
    section: Section
    """Where it stands."""
    code: str
    """Without the indentation of the whole, and of a session (`>>> `) what was typed."""
    tree: ast.Module | None
    """None when it does not parse."""
    problem: str = ""
    """Why it does not."""


def python_blocks(draft: Draft) -> Iterator[PythonBlock]:
    """The draft's fences labelled `python` or `py`, in order."""
    for index, section, fence in draft.fences:
        if fence.language in _LABELS:
            code = _typed(textwrap.dedent(fence.code))
            parsed = _parse(code)
            tree, problem = (None, parsed) if isinstance(parsed, str) else (parsed, "")
            yield PythonBlock(index=index, section=section, code=code, tree=tree, problem=problem)


class ParsesAsPython(Check):
    """Every fence labelled `python` or `py` holds Python that parses; it is never run.

    A draft without one is not judged, unless `min` asks for some.
    """

    check: Literal["python"] = "python"
    min: int = Field(default=0, ge=0)
    """How many such fences there must be at least."""

    @property
    def requirement(self) -> str:
        """For the author."""
        some = f"There are at least {self.min} blocks of Python, and every" if self.min else "Every"
        return f"{some} fence labelled python holds whole, valid Python."

    def grade(self, draft: Draft) -> Grade:
        """The share of fences that parse, of as many as there are or must be."""
        blocks = list(python_blocks(draft))
        if not blocks and not self.min:
            return NO_PYTHON
        findings = [
            Finding(
                f"this Python does not parse: {block.problem}",
                block.section.title,
                block.index,
                code="check.python-invalid",
            )
            for block in blocks
            if block.tree is None
        ]
        if lacking := max(0, self.min - len(blocks)):
            findings.append(
                Finding(
                    f"{len(blocks)} fences labelled python; at least {self.min} are needed",
                    code="check.too-few",
                )
            )
        parsed = sum(block.tree is not None for block in blocks)
        return Grade(parsed / (len(blocks) + lacking), tuple(findings))


def _typed(code: str) -> str:
    """Of an interactive session what was typed; any other code as it is."""
    lines = code.splitlines()
    if not next((line for line in lines if line.strip()), "").startswith(">>>"):
        return code
    return "\n".join(line[4:] for line in lines if line.startswith((">>>", "...")))


def _parse(code: str) -> ast.Module | str:
    """The tree, or what is wrong."""
    try:
        with warnings.catch_warnings():
            # A needless backslash in somebody's draft is no matter of ours.
            warnings.simplefilter("ignore")
            return ast.parse(code)
    except SyntaxError as error:
        lines = code.splitlines()
        line = error.lineno or 0
        shown = quoted(lines[line - 1]) if 0 < line <= len(lines) else "its end"
        return f"{error.msg}, at line {line} of the block, {shown}"
    except ValueError as error:  # half a surrogate pair, a null byte, a number of 5,000 digits
        return f"it holds what Python cannot read ({error})"
    except (RecursionError, MemoryError):
        return "it is nested too deeply"
