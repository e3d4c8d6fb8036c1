"""Drafts to be checked, what was found in them, and what a check refuses."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from harness.errors import Mistake
from harness.rubric import Draft
from harness.rubric.checks import Grade


def draft(text: str, *sources: str, task: str = "") -> Draft:
    return Draft(text=text, task=task, sources=sources)


def found(grade: Grade) -> list[str]:
    """The findings' codes; `too-few@1` is about section 1, `too-few` about the whole draft."""
    return [
        finding.code.removeprefix("check.")
        + ("" if finding.section_index is None else f"@{finding.section_index}")
        for finding in grade.findings
    ]


def messages(grade: Grade) -> str:
    return "\n".join(finding.message for finding in grade.findings)


def refused(make, *arguments, **parameters) -> str:
    """The code of what is wrong with these parameters, or what pydantic calls it."""
    with pytest.raises(ValidationError) as caught:
        make(*arguments, **parameters)
    first = caught.value.errors()[0]
    mistake = first.get("ctx", {}).get("error")
    return mistake.code.removeprefix("rubric.") if isinstance(mistake, Mistake) else first["type"]
