import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.compress import sections_of
from harness.rubric.judging.located import section_named

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
        pytest.param("# 1. Introduction", 1, id="with its mark"),
        pytest.param("**Introduction**:", 1, id="in other markup"),
        pytest.param("Section 1: Introduction", 1, id="with another numbering"),
        pytest.param("the introduction", 1, id="with an article"),
        pytest.param("Introduction section", 1, id="called a section"),
        pytest.param("The Escapement of clocks", 2, id="without its markup"),
        pytest.param("Discussion and out", 4, id="cut off"),
        pytest.param('"Discussion and outlook"', 4, id="in quotes"),
        pytest.param("Links: a list", 6, id="a link's text"),
        pytest.param("Results", None, id="a heading that occurs twice"),
        pytest.param("whole text", None, id="the whole"),
        pytest.param("Before", None, id="text that is no heading"),
        pytest.param("Disc", None, id="too little of it"),
        pytest.param("", None, id="nothing"),
        pytest.param("Conclusion", None, id="none of them"),
        pytest.param("1.", None, id="a number alone"),
    ],
)
def test_a_section_is_found_by_its_heading_as_models_write_it(heading, index):
    assert section_named(heading, SECTIONS) == index


@given(heading=st.text(max_size=60))
def test_any_text_names_a_section_or_none(heading):
    found = section_named(heading, SECTIONS)

    assert found is None or 0 <= found < len(SECTIONS)
