"""Reading a rubric: its values, its defaults, its digest, and where it is looked for."""

import pytest

from harness.errors import RubricInvalid
from harness.rubric import Dimension, Scale, load_rubric, load_rubric_file
from harness.rubric.checks import Excludes, Words
from harness.rubric.rubric import Shortening

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
DIMENSIONS = "dimensions: [{ name: a, judge: 'Good?' }]\n"
MINE = f"title: Mine\n{DIMENSIONS}"


@pytest.fixture
def load(tmp_path):
    """Loads a rubric of this content, which may extend `base`."""

    def load_content(content, base=MINE):
        (tmp_path / "base.yaml").write_text(base)
        path = tmp_path / "essay.yaml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return load_rubric_file(path)

    return load_content


def test_a_rubric_is_read_as_it_is_written(load):
    rubric = load(GOOD)

    assert (rubric.id, rubric.title) == ("essay", "Essay")
    assert rubric.scale == Scale(min=1, max=5, step=1)
    assert rubric.purpose == "A short essay for people."
    assert (rubric.pass_at, rubric.focus_below) == (4, 3.5)
    length, useful = rubric.dimensions
    checks = (Words(min=200, max=400), Excludes(phrases=("TODO", "as an AI")))
    assert length == Dimension(name="length", weight=2, floor=3, checks=checks)
    anchors = {5: "It does.", 2.5: "It may."}
    assert useful == Dimension(name="useful", judge="Does it help?", anchors=anchors, optional=True)
    assert rubric.judged == (useful,)
    assert rubric.requirements == (
        "The whole text has 200 to 400 words.",
        "These do not occur: TODO, as an AI.",
        "Does it help?",
    )


def test_words_and_dates_are_texts_and_only_true_is_true(load):
    rubric = load(
        "title: 2026-01-31\n"
        "dimensions:\n"
        "- name: a\n"
        "  checks: [{ check: excludes, phrases: [no, On, y, 12:30, 0x1f, 010, =, 1_000] }]\n"
        "- name: b\n"
        "  judge: Good?\n"
        "  anchors: { 9: Yes, 3: No }\n"
        "  optional: true\n"
    )

    assert rubric.title == "2026-01-31"
    phrases = ("no", "On", "y", "12:30", "0x1f", "010", "=", "1_000")
    assert rubric.dimensions[0].checks == (Excludes(phrases=phrases),)
    assert rubric.dimensions[1].anchors == {9: "Yes", 3: "No"}
    assert rubric.dimensions[1].optional


def test_a_byte_order_mark_is_not_part_of_the_first_name(load):
    assert load(b"\xef\xbb\xbf" + GOOD.encode()).title == "Essay"


# --- the digest ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        pytest.param("\n", "\r\n", True, id="line ends"),
        pytest.param("# An essay.", "# Another comment.", True, id="comment"),
        pytest.param("{min: 1, max: 5,", "{max: 5, min: 1,", True, id="order of fields"),
        pytest.param("pass_at: 4", "pass_at: 4.5", False, id="threshold"),
        pytest.param("Does it help?", "Does it help me?", False, id="question"),
        pytest.param("title: Essay", "title: Letter", False, id="title, which evaluators see"),
    ],
)
def test_the_digest_changes_with_what_is_said_and_with_nothing_else(load, before, after, same):
    assert before in GOOD
    assert (load(GOOD.replace(before, after)).sha256 == load(GOOD).sha256) is same


def test_files_that_checks_name_lie_beside_the_rubric_and_belong_to_its_digest(load, tmp_path):
    content = (
        "title: T\ndimensions:\n- name: a\n  checks:\n"
        "  - { check: function, call: './checks.py:polite' }\n"
        "  - { check: json, against: person.json }\n"
    )
    (tmp_path / "person.json").write_text('{"type": "object"}')
    digests = set()
    for share in ("1.0", "0.5", "1.0"):
        (tmp_path / "checks.py").write_text(f"def polite(draft):\n    return {share}\n")
        rubric = load(content)
        digests.add(rubric.sha256)

    assert rubric.dimensions[0].checks[1].against == {"type": "object"}
    assert len(digests) == 2


# --- where rubrics are looked for ----------------------------------------------------------------


def test_a_rubric_of_ones_own_goes_before_the_one_that_ships(tmp_path):
    assert load_rubric("brief", directory=tmp_path / "none").title == "Brief"
    assert load_rubric("brief", directory=tmp_path).title == "Brief"

    (tmp_path / "brief.yaml").write_text(MINE)

    assert load_rubric("brief", directory=tmp_path).title == "Mine"


@pytest.mark.parametrize(
    ("name", "near"),
    [
        pytest.param("breif", "'brief'", id="nearly one that ships"),
        pytest.param("zzz", "known: answer, brief, code, essay", id="like none"),
        pytest.param("draft.txt", ".yaml", id="a file of another kind"),
        pytest.param("elsewhere/essay.yaml", "/essay.yaml?", id="a path, and one of that name"),
    ],
)
def test_an_unknown_name_is_answered_by_the_nearest_known(tmp_path, monkeypatch, name, near):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "essay.yaml").write_text(MINE)
    (tmp_path / "draft.txt").write_text("A draft.")

    with pytest.raises(RubricInvalid) as caught:
        load_rubric(name, directory=tmp_path)

    assert caught.value.code == "rubric.not-found"
    assert name in str(caught.value)
    assert near in str(caught.value)


# --- defaults and presets ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "step", "shorten"),
    [
        ("", 0.5, Shortening(evaluate_over=6_000, revise_over=5_000, cap=20_000)),
        ("preset: book\n", 0.5, Shortening(evaluate_over=6_000, revise_over=5_000, cap=20_000)),
        ("preset: code\n", 1, Shortening(evaluate_over=32_000, revise_over=5_000, cap=None)),
    ],
    ids=["none, so the book", "book", "code"],
)
def test_what_is_left_out_has_the_presets_values(load, preset, step, shorten):
    rubric = load(preset + MINE)

    assert rubric.scale == Scale(min=0, max=10, step=step)
    assert (rubric.pass_at, rubric.focus_below, rubric.purpose) == (8, 7, "")
    assert rubric.shorten == shorten
    assert rubric.dimensions == (Dimension(name="a", weight=1, floor=None, judge="Good?"),)
    assert (rubric.sha256 == load(MINE).sha256) is (step == 0.5)


@pytest.mark.parametrize(
    ("own", "base", "expected"),
    [
        (f"{MINE}preset: code\npass_at: 6\nshorten: {{ cap: 7000 }}\n", "", (6, 1, 7000)),
        ("extends: base\npreset: code\n", "pass_at: 5\n", (5, 1, None)),
        ("extends: base\npreset: code\npass_at: 6\n", "scale: { step: 2 }\n", (6, 2, None)),
    ],
    ids=[
        "its own before its preset",
        "what it extends before its preset",
        "all three",
    ],
)
def test_the_file_goes_before_its_base_and_the_base_before_the_preset(load, own, base, expected):
    rubric = load(own, MINE + base)

    assert (rubric.pass_at, rubric.scale.step, rubric.shorten.cap) == expected
