"""The scores of checks, and the sections of issues."""

from __future__ import annotations

import pytest
from rubric.judged import rubric

from harness.compress import sections_of
from harness.rubric import Dimension, Draft
from harness.rubric.scoring import checked_score, section_named

HEADINGS = (
    "# 1. Introduction",
    "## 2.1 The *Escapement* of `clocks`",
    "## Results",
    "## IV. Discussion and outlook",
    "## Results",
    "## [Links](https://example.org): a list",
)
SECTIONS = sections_of("Before.\n\n" + "".join(f"{one}\n\nText.\n\n" for one in HEADINGS))


@pytest.mark.parametrize(
    ("heading", "index"),
    [
        pytest.param("1. Introduction", 1, id="as it is"),
        pytest.param("introduction", 1, id="without number and case"),
        pytest.param("Section 1: Introduction", 1, id="with another numbering"),
        pytest.param("Introduction section", 1, id="called a section"),
        pytest.param("The Escapement of clocks", 2, id="without its markup"),
        pytest.param("Discussion and out", 4, id="cut off"),
        pytest.param("Links: a list", 6, id="a link's text"),
        pytest.param("Results", None, id="a heading that occurs twice"),
        pytest.param("whole text", None, id="the whole"),
        pytest.param("Disc", None, id="too little of it"),
        pytest.param("1.", None, id="a number alone"),
    ],
)
def test_a_section_is_found_by_its_heading_as_models_write_it(heading, index):
    assert section_named(heading, SECTIONS) == index


def test_a_floor_holds_for_each_check_of_a_dimension():
    checks = [{"check": "words", "min": 10}, {"check": "finished"}]
    made = [
        Dimension.model_validate({"name": "form", "checks": checks, "floor": floor})
        for floor in (None, 3, 6)
    ]
    draft = Draft(text="Four words are here.", task="")

    assert [checked_score(one, draft, rubric(one)).score for one in made] == [7, 7, 4]
