"""Texts that break off, and texts that only seem to."""

import pytest
from check_drafts import draft, found

from harness.rubric.checks import Finished

BREAKS_OFF = "the last sentence breaks off; finish it"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("It is.", id="a full stop"),
        pytest.param("Is it?!", id="other stops"),
        pytest.param("So it goes\u2026", id="an ellipsis"),
        pytest.param('He said "yes."', id="a stop in quotes"),
        pytest.param("It is. (So *he* **said.**)", id="closing marks"),
        pytest.param("It is so.[3][^a] ", id="references"),
        pytest.param("\u662f\u3002", id="a Chinese stop"),
        pytest.param("Two ways:\n\n- by day\n- by night", id="a list without stops"),
        pytest.param("- Go by day.\n- Go by night.", id="a list with stops"),
        pytest.param("1. only this", id="a list of one"),
        pytest.param("| a | b |\n|---|---|\n| 1 | 2 |", id="a table"),
        pytest.param("Run it:\n\n```sh\nls\n```", id="code"),
        pytest.param("````\n```\n````", id="a fence that shows a fence"),
        pytest.param("~~~\n```\n~~~~", id="a fence of tildes"),
        pytest.param("Run it:\n\n    ls", id="indented code"),
        pytest.param("> So it is.", id="a quotation"),
        pytest.param("See [it].\n\n[it]: http://example.org", id="a link definition"),
        pytest.param("It is.\n\n---", id="a rule"),
        pytest.param("It is.\n\n<!-- to do -->", id="a comment"),
    ],
)
def test_a_text_is_finished_when_it_ends_as_texts_do(text):
    grade = Finished().grade(draft(f"# A\n\n{text}\n\n# B\n\nIt is.\n"))

    assert grade.share == 1
    assert grade.findings == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("It is", BREAKS_OFF, id="mid-sentence"),
        pytest.param("It is. And then,", BREAKS_OFF, id="after a comma"),
        pytest.param("There are two ways:", BREAKS_OFF, id="a colon that nothing follows"),
        pytest.param("- Go by day.\n- Go by", BREAKS_OFF, id="an item unlike the one before"),
        pytest.param("```sh\nls\n```\n\nThen go", BREAKS_OFF, id="after code"),
        pytest.param("> So it", BREAKS_OFF, id="a quotation"),
        pytest.param("", "this section has no text", id="a heading and no more"),
        pytest.param("```sh\nls", "a code fence is never closed", id="an open fence"),
        pytest.param("```", "a code fence is never closed", id="only the fence"),
        pytest.param("````\n```", "a code fence is never closed", id="a fence too short"),
    ],
)
def test_a_text_that_breaks_off_is_not_finished(text, message):
    grade = Finished().grade(draft(f"# A\n\nIt is.\n\n# B\n\n{text}"))

    assert grade.share == 0.5
    assert found(grade) == [(message, 1)]


@pytest.mark.parametrize(
    ("text", "share", "findings"),
    [
        pytest.param("", 0, [("there is no text", None)], id="nothing"),
        pytest.param(" \n\t\n", 0, [("there is no text", None)], id="blank"),
        pytest.param("# T\n\n## A\n\nIt is.\n", 1, [], id="a title"),
        pytest.param(
            "# A\n\nTwo ways:\n\n## B\n\nIt is.\n", 1, [], id="a colon before subsections"
        ),
        pytest.param(
            "# A\n# B\n\n## C\n",
            0,
            [("this section has no text", 0), ("this section has no text", 2)],
            id="headings only",
        ),
    ],
)
def test_headings_want_a_text_unless_they_are_titles(text, share, findings):
    grade = Finished().grade(draft(text))

    assert grade.share == share
    assert found(grade) == findings


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("```py\nx = 1\n\n## B\n\n```py\ny = 2\n```\n", id="another is opened"),
        pytest.param("- Run it:\n\n  ```sh\n  ls\n", id="in a list"),
        pytest.param("> ```sh\n> ls\n", id="in a quotation"),
        pytest.param("\n```", id="an opening fence is not its own end"),
        pytest.param("```sh\nls\n\nThen go on. It is so.", id="with prose behind it"),
    ],
)
def test_a_fence_that_is_not_closed_where_it_should_be_is_found(text):
    assert found(Finished().grade(draft(text))) == [("a code fence is never closed", 0)]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("- Run it:\n\n  ```sh\n  ls\n  ```\n", id="in a list"),
        pytest.param("1. a\n   - b\n\n     ~~~\n     ls\n     ~~~\n", id="in a list in a list"),
        pytest.param("> ```sh\n> ls\n> ```\n", id="in a quotation"),
        pytest.param("````md\n```py\nx\n```\n````\n", id="a longer one around another"),
    ],
)
def test_a_fence_that_is_closed_is_not_found(text):
    assert Finished().grade(draft(text)).share == 1
