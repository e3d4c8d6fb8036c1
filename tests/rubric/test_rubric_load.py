import contextlib
import hashlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import RubricInvalid
from harness.rubric import Dimension, Scale, load_rubric_file
from harness.rubric.checks import Excludes, Words

GOOD = """\
# An essay.
title: Essay
purpose: >
  A short essay
  for people.
scale: {min: 1, max: 5, step: 1}
pass_at: 4
focus_below: 3.5

dimensions:
  - name: length
    weight: 2
    floor: 3
    checks:
      - { check: words, min: 200, max: 400 }
      - check: excludes
        phrases: [" TODO ", as an AI]
  - name: useful
    judge: >
      Does it help?
    anchors:
      5: It does.
      2.5: It may.
    optional: true
"""


@pytest.fixture
def load(tmp_path):
    """Loads a rubric of this content."""

    def load_content(content):
        path = tmp_path / "essay.yaml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return load_rubric_file(path)

    return load_content


def test_a_rubric_is_read_as_it_is_written(load):
    rubric = load(GOOD)

    assert (rubric.id, rubric.title, rubric.purpose) == (
        "essay",
        "Essay",
        "A short essay for people.",
    )
    assert rubric.scale == Scale(min=1, max=5, step=1)
    assert (rubric.pass_at, rubric.focus_below) == (4, 3.5)
    length, useful = rubric.dimensions
    assert length == Dimension(
        name="length",
        weight=2,
        floor=3,
        checks=(Words(min=200, max=400), Excludes(phrases=("TODO", "as an AI"))),
    )
    assert useful == Dimension(
        name="useful",
        judge="Does it help?",
        anchors={5: "It does.", 2.5: "It may."},
        optional=True,
    )
    assert rubric.judged == (useful,)


def test_what_is_left_out_has_the_books_defaults(load):
    rubric = load("title: T\ndimensions:\n- name: a\n  judge: Good?\n")

    assert rubric.scale == Scale(min=0, max=10, step=0.5)
    assert (rubric.pass_at, rubric.focus_below, rubric.purpose) == (8, 7, "")
    assert rubric.dimensions == (Dimension(name="a", weight=1, floor=None, judge="Good?"),)


def test_the_digest_is_that_of_the_files_bytes(load):
    content = GOOD.replace("\n", "\r\n").encode()

    assert load(content).sha256 == hashlib.sha256(content).hexdigest()
    assert load(content).dimensions == load(GOOD).dimensions


def test_a_byte_order_mark_is_not_part_of_the_first_name(load):
    assert load(b"\xef\xbb\xbf" + GOOD.encode()).title == "Essay"


def test_words_and_dates_are_texts_and_only_true_is_true(load):
    rubric = load(
        "title: 2026-01-31\n"
        "dimensions:\n"
        "- name: a\n"
        "  checks: [{ check: excludes, phrases: [no, On, y] }]\n"
        "- name: b\n"
        "  judge: Good?\n"
        "  anchors: { 9: Yes, 3: No }\n"
        "  optional: true\n"
    )

    assert rubric.title == "2026-01-31"
    assert rubric.dimensions[0].checks == (Excludes(phrases=("no", "On", "y")),)
    assert rubric.dimensions[1].anchors == {9: "Yes", 3: "No"}
    assert rubric.dimensions[1].optional


def test_authors_are_told_what_every_check_and_question_requires(load):
    assert load(GOOD).requirements == (
        "The whole text has 200 to 400 words.",
        "These do not occur: TODO, as an AI.",
        "Does it help?",
    )


def dimension(*fields: str) -> str:
    """A rubric whose one dimension has these lines, the first of them on line 4."""
    return "".join(f"{line}\n" for line in ["title: T", "dimensions:", "- name: a", *fields])


# Content, line, and what the message says, remedy included.
MISTAKES = {
    "misspelt field": (
        "titel: T\ndimensions:\n- name: a\n  judge: Good?\n",
        1,
        "'titel' is not allowed here; did you mean 'title'?",
    ),
    "unknown field": (
        "title: T\nversion: 3\n" + dimension("  judge: Good?").removeprefix("title: T\n"),
        2,
        "not allowed here; known: dimensions, focus_below, pass_at, purpose, scale, title",
    ),
    "misspelt field of a dimension": (
        dimension("  judge: Good?", "  wieght: 2"),
        5,
        "'wieght' is not allowed here; did you mean 'weight'?",
    ),
    "misspelt field of the scale": (
        "scale:\n  minn: 0\n" + dimension("  judge: Good?"),
        2,
        "'minn' is not allowed here; did you mean 'min'?",
    ),
    "misspelt field of a check": (
        dimension("  checks:", "  - check: words", "    mn: 3"),
        6,
        "'mn' is not allowed here; did you mean 'min'?",
    ),
    "field whose name is a number": (
        dimension("  judge: Good?", "  5: x"),
        3,
        "'5' is not allowed here; known: anchors, checks, floor, judge, name, optional, weight",
    ),
    "field that loading fills in": (
        "id: mine\n" + dimension("  judge: Good?"),
        1,
        "'id' is filled in on loading; leave it out",
    ),
    "misspelt check": (
        dimension("  checks:", "  - { check: finished }", "  - { check: wrods, min: 3 }"),
        6,
        "there is no check 'wrods'; did you mean 'words'?",
    ),
    "unknown check": (
        dimension("  checks: [{ check: magic }]"),
        4,
        "there is no check 'magic'; known: excludes, finished, grounded_numbers, grounded_",
    ),
    "check without a name": (
        dimension("  checks:", "  - min: 3"),
        5,
        "'check' is missing; known: excludes, finished, ",
    ),
    "check that is only a name": (
        dimension("  checks:", "  - words"),
        5,
        "checks: must be a mapping of names to values (it is 'words')",
    ),
    "both checks and a judge": (
        dimension("  judge: Good?", "  checks: [{ check: finished }]"),
        3,
        "dimension 'a' needs either 'checks' or 'judge', and not both",
    ),
    "neither checks nor a judge": (
        dimension("  weight: 2"),
        3,
        "dimension 'a' needs either 'checks' or 'judge', and not both",
    ),
    "judge without a question": (
        dimension("  judge: '  '"),
        4,
        "judge: must not be empty",
    ),
    "weight of 0": (
        dimension("  judge: Good?", "  weight: 0"),
        5,
        "weight: must be greater than 0 (it is 0)",
    ),
    "weight of -1": (
        dimension("  judge: Good?", "  weight: -1"),
        5,
        "weight: must be greater than 0 (it is -1)",
    ),
    "infinite weight": (
        dimension("  weight: .inf", "  judge: Good?"),
        4,
        "weight: must be a finite number (it is inf)",
    ),
    "floor outside the scale": (
        dimension("  judge: Good?", "  floor: 11"),
        5,
        "the floor of dimension 'a' is 11, outside the scale 0 to 10",
    ),
    "anchor outside the scale": (
        dimension("  judge: Good?", "  anchors:", "    9: x", "    10.5: y"),
        7,
        "an anchor of dimension 'a' is 10.5, outside the scale 0 to 10",
    ),
    "anchor that is not a number": (
        dimension("  judge: Good?", "  anchors:", "    good: x"),
        6,
        "good: must be a valid number",
    ),
    "threshold outside the scale": (
        "pass_at: 80\n" + dimension("  judge: Good?"),
        1,
        "pass_at is 80, outside the scale 0 to 10",
    ),
    "scale that the default threshold is outside of": (
        dimension("  judge: Good?") + "scale: { max: 5 }\n",
        5,
        "pass_at, unless given, is 8, outside the scale 0 to 5",
    ),
    "scale upside down": (
        "scale:\n  min: 5\n  max: 1\n" + dimension("  judge: Good?"),
        1,
        "scale: min 5 must be below max 1",
    ),
    "scale that its steps miss the end of": (
        "scale: { min: 0, max: 10, step: 3 }\n" + dimension("  judge: Good?"),
        1,
        "scale: no whole number of steps of 3 leads from 0 to 10",
    ),
    "min above max": (
        dimension(
            "  checks:", "  - { check: finished }", "  - check: words", "    min: 9", "    max: 3"
        ),
        6,
        "words: min 9 is above max 3",
    ),
    "range without bounds": (
        dimension("  checks:", "  - { check: sections }"),
        5,
        "sections: give 'min', 'max' or both",
    ),
    "phrases that are not a list": (
        dimension("  checks:", "  - check: excludes", "    phrases: TODO"),
        6,
        "phrases: must be a list (it is 'TODO')",
    ),
    "phrase that is a number": (
        dimension("  checks:", "  - check: excludes", "    phrases:", "    - maybe", "    - 1984"),
        8,
        "phrases: must be text; put it in quotes (it is 1984)",
    ),
    "empty phrase, which is in every text": (
        dimension("  checks:", "  - { check: excludes, phrases: [''] }"),
        5,
        "phrases: must not be empty",
    ),
    "name that is not a name": (
        "title: T\ndimensions:\n- judge: Good?\n  name: Use of sources\n",
        4,
        "name: must be lower-case letters, digits and underscores (it is 'Use of sources')",
    ),
    "duplicate key": (
        dimension("  judge: Good?", "  weight: 2", "  judge: Bad?"),
        6,
        "'judge' stands twice; the first is on line 4",
    ),
    "duplicate dimension": (
        dimension("  judge: Good?", "- name: b", "  judge: Good?", "- judge: Bad?", "  name: a"),
        8,
        "dimension 'a' stands more than once",
    ),
    "all optional": (
        dimension("  judge: Good?", "  optional: true"),
        2,
        "every dimension is optional: without an evaluator nothing is scored",
    ),
    "optional check": (
        dimension("  checks: [{ check: finished }]", "  optional: true"),
        5,
        "checked by code, which is always there: 'optional' is for judged dimensions",
    ),
    "missing title": (
        "purpose: x\ndimensions:\n- name: a\n  judge: Good?\n",
        1,
        "'title' is missing",
    ),
    "missing name": (
        "title: T\ndimensions:\n- judge: Good?\n",
        3,
        "'name' is missing",
    ),
    "no dimensions": (
        "title: T\ndimensions: []\n",
        2,
        "dimensions: must hold at least one",
    ),
    "dimensions by name": (
        "title: T\ndimensions:\n  a:\n    judge: Good?\n",
        2,
        "dimensions: must be a list",
    ),
    "empty file": ("", 1, "a rubric is a mapping that starts with 'title:'"),
    "only comments": ("# later\n", 1, "a rubric is a mapping that starts with 'title:'"),
    "a list": ("- title: T\n", 1, "a rubric is a mapping that starts with 'title:'"),
    "prose": ("Be strict.\n", 1, "a rubric is a mapping that starts with 'title:'"),
    "not YAML": (
        "title: T\npurpose: for: people\n",
        2,
        "not YAML: mapping values are not allowed here",
    ),
    "a tab": (
        "title: T\ndimensions:\n\t- name: a\n",
        3,
        "found character '\\t' that cannot start any token; indent with spaces",
    ),
    "a quote that is never closed": (
        "title: T\npurpose: 'x\ndimensions:\n",
        4,
        "not YAML: while scanning a quoted scalar (line 2), found unexpected end of stream",
    ),
    "two documents": (
        "title: T\n---\ntitle: U\n",
        2,
        "not YAML: expected a single document in the stream (line 1), but found another document",
    ),
    "Python in YAML": (
        "title: T\npurpose: !!python/name:os.system\n",
        2,
        "not YAML: could not determine a constructor for the tag",
    ),
    "key that is a list": ("title: T\n[a]: b\n", 2, "a field's name is a plain word"),
    "control character": (
        "title: T\npurpose: \x00\n",
        2,
        "not YAML: it holds a control character",
    ),
    "number without digits": (
        "title: T\npass_at: 0b_\n",
        None,
        "a value cannot be read (invalid literal for int() with base 2: ''); quote it",
    ),
    "list in itself": (
        "title: T\ndimensions: &all [*all]\n",
        None,
        "the values are nested too deeply",
    ),
    "binary file": (
        b"title: T\n\x89PNG\r\n\x1a\n",
        2,
        "not UTF-8 text; save it as UTF-8",
    ),
}


@pytest.mark.parametrize(("content", "line", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_answered_by_its_line_and_what_is_allowed(load, content, line, message):
    with pytest.raises(RubricInvalid) as caught:
        load(content)

    assert caught.value.line == line
    assert str(caught.value).startswith(f"{caught.value.path}:")
    assert message in str(caught.value)


def test_a_missing_file_is_said_to_be_missing(tmp_path):
    with pytest.raises(RubricInvalid, match=r"essay\.yaml: there is no such file"):
        load_rubric_file(tmp_path / "essay.yaml")


def test_a_directory_is_not_a_rubric(tmp_path):
    with pytest.raises(RubricInvalid, match="cannot be read"):
        load_rubric_file(tmp_path)


LINES = GOOD.splitlines(keepends=True)


@settings(derandomize=True, deadline=None, max_examples=100)
@given(
    content=st.one_of(
        st.binary(max_size=40),
        st.permutations(LINES).map(lambda lines: "".join(lines).encode()),
        st.integers(0, len(GOOD)).map(lambda end: GOOD[:end].encode()),
        st.tuples(st.integers(0, len(GOOD)), st.sampled_from(":-[]{}&*!|>'\"%@`\t\n?,#~ ")).map(
            lambda edit: f"{GOOD[: edit[0]]}{edit[1]}{GOOD[edit[0] :]}".encode()
        ),
    )
)
def test_whatever_a_file_holds_it_is_a_rubric_or_is_said_not_to_be(tmp_path_factory, content):
    path: Path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(content)
    with contextlib.suppress(RubricInvalid):
        assert load_rubric_file(path).dimensions
