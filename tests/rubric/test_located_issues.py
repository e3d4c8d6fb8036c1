import pytest

from harness.compress import sections_of
from harness.rubric.scoring import section_named

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
