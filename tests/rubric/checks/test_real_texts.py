"""Texts as people write them, in thirty languages, each with what a check must say of it."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter

from harness.rubric import Draft
from harness.rubric.checks import AnyCheck

CASES = yaml.safe_load(Path(__file__).with_name("real_texts.yaml").read_text("utf-8"))
CHECK: TypeAdapter[Any] = TypeAdapter(AnyCheck)


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=f"{case['check']['check']}: {case['name']}") for case in CASES]
)
def test_a_check_says_of_a_text_what_a_reader_would(case):
    if case["check"].get("forms"):
        pytest.importorskip("simplemma", reason="simplemma is not installed")
    draft = Draft(
        text=case["text"],
        task="",
        sources=tuple(case.get("sources", ())),
        language=case.get("language"),
    )

    grade = CHECK.validate_python(case["check"]).grade(draft)

    value = "unjudged" if grade.unjudged else "met" if grade.share == 1 else "unmet"
    assert value == case["value"], grade.findings
