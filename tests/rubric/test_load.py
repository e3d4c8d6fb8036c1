"""Reading a rubric: its values, its digest, where it is looked for, what it extends."""

from __future__ import annotations

import pytest
from golden import assert_shown

from harness.errors import RubricInvalid
from harness.rubric import Dimension, Rubric, load_rubric
from harness.rubric.checks import Excludes, Finished, Words
from harness.rubric.rubric import Scale, Shortening

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
        return load_rubric(path)

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


def test_a_rubric_made_in_python_has_the_digest_of_its_values_and_a_copy_that_of_its_own(load):
    loaded = load(GOOD)
    made = Rubric.model_validate(loaded.model_dump(by_alias=True))
    assert made.sha256 == loaded.sha256
    assert made.model_copy(update={"pass_at": 4.5}).sha256 != made.sha256
    assert made.model_copy(update={"id": "other"}).sha256 == made.sha256


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


@pytest.mark.parametrize("name", ["breif", "zzz", "draft.txt", "elsewhere/essay.yaml"])
def test_an_unknown_name_is_answered_by_the_nearest_known(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "essay.yaml").write_text(MINE)
    (tmp_path / "draft.txt").write_text("A draft.")

    with pytest.raises(RubricInvalid) as caught:
        load_rubric(name, directory=tmp_path)

    assert caught.value.code == "rubric.not-found"
    masks = {str(tmp_path): "/rubrics"}
    assert_shown("rubric mistakes", f"no rubric {name}", str(caught.value), masks=masks)


# --- defaults ------------------------------------------------------------------------------------


def test_what_is_left_out_has_the_usual_values(load):
    rubric = load(MINE)

    assert rubric.scale == Scale(min=0, max=10, step=0.5)
    assert (rubric.pass_at, rubric.focus_below, rubric.purpose) == (8, 7, "")
    assert rubric.shorten == Shortening(evaluate_over=6_000, revise_over=5_000, cap=20_000)
    assert rubric.dimensions == (Dimension(name="a", weight=1, floor=None, judge="Good?"),)


BASE = """\
title: Base
purpose: For all.
scale: { min: 0, max: 10, step: 0.5 }
pass_at: 7.5
shorten: { cap: 9000 }
dimensions:
- name: length
  weight: 2
  floor: 5
  checks:
  - { check: words, min: 50 }
  - { check: finished }
- name: clear
  judge: Clear?
  anchors: { 9: Yes, 6: Nearly, 3: No }
  feedback: Say where.
  optional: true
- name: useful
  judge: Useful?
"""


@pytest.fixture
def rubrics(tmp_path):
    """Writes rubrics; loads one of them."""

    def load(name, **contents):
        for stem, content in {"base": BASE, **contents}.items():
            (tmp_path / f"{stem}.yaml").write_text(content)
        return load_rubric(name, directory=tmp_path)

    return load


def refused(rubrics, name, **contents):
    with pytest.raises(RubricInvalid) as caught:
        rubrics(name, **contents)
    return caught.value


def test_a_file_that_adds_nothing_says_what_its_base_says_and_changes_with_it(rubrics):
    own = {"id", "extends"}
    mine, base = rubrics("mine", mine="extends: base\n"), rubrics("base")

    assert mine.id == "mine"
    assert mine.model_dump(exclude=own) == base.model_dump(exclude=own)
    assert rubrics("mine", base=f"# New.\n{BASE}").sha256 == mine.sha256 == base.sha256
    assert rubrics("mine", base=BASE.replace("Clear?", "Is it clear?")).sha256 != mine.sha256


def test_what_a_file_writes_goes_before_its_base_field_by_field(rubrics):
    mine = rubrics(
        "mine",
        mine="extends: base\n"
        "title: Mine\n"
        "scale: { step: 1 }\n"
        "shorten: { evaluate_over: 8000 }\n"
        "dimensions:\n"
        "- { name: clear, weight: 3, anchors: { 9: Surely, 1: By no means } }\n",
    )

    assert (mine.title, mine.purpose, mine.pass_at) == ("Mine", "For all.", 7.5)
    assert (mine.scale.max, mine.scale.step) == (10, 1)
    assert (mine.shorten.evaluate_over, mine.shorten.cap) == (8000, 9000)
    assert mine.dimensions[1] == Dimension(
        name="clear",
        weight=3,
        judge="Clear?",
        anchors={9: "Surely", 6: "Nearly", 3: "No", 1: "By no means"},
        feedback="Say where.",
        optional=True,
    )


@pytest.mark.parametrize(
    ("fields", "dimension"),
    [
        pytest.param(
            "name: length, checks: [{ check: excludes, phrases: [TODO] }]",
            {"weight": 2, "floor": 5, "checks": (Excludes(phrases=("TODO",)),)},
            id="checks are one file's or the other's",
        ),
        pytest.param(
            "name: length, judge: 'Long enough?'",
            {"weight": 2, "floor": 5, "judge": "Long enough?"},
            id="judged, it keeps weight and floor alone",
        ),
        pytest.param(
            "name: clear, checks: [{ check: finished }]",
            {"checks": (Finished(),)},
            id="checked, it keeps nothing of judging",
        ),
        pytest.param(
            "name: length, floor: null",
            {"weight": 2, "checks": (Words(min=50), Finished())},
            id="null takes a floor away",
        ),
    ],
)
def test_a_dimension_takes_over_what_fits_the_way_it_is_scored(rubrics, fields, dimension):
    mine = rubrics("mine", mine=f"extends: base\ndimensions: [{{ {fields} }}]\n")

    (changed,) = [d for d in mine.dimensions if d not in rubrics("base").dimensions]
    assert changed == Dimension(name=changed.name, **dimension)


@pytest.mark.parametrize(
    ("mine", "dimensions"),
    [
        pytest.param(
            "extends: base\nwithout: [clear]\ndimensions:\n- { name: new, judge: New }\n"
            "- { name: useful, weight: 4 }\n- { name: length, weight: 5 }\n",
            [("length", 5), ("useful", 4), ("new", 1)],
            id="the base's order, and new ones last",
        ),
        pytest.param(
            "extends: middle\ndimensions: [{ name: useful, weight: 2 }]\n",
            [("clear", 1), ("useful", 2)],
            id="a chain",
        ),
    ],
)
def test_dimensions_keep_the_bases_order_but_for_those_left_out(rubrics, mine, dimensions):
    middle = "extends: base\nwithout: [length]\n"

    merged = rubrics("mine", mine=mine, middle=middle)

    assert [(d.name, d.weight) for d in merged.dimensions] == dimensions


def test_a_name_is_looked_for_beside_the_file_then_among_ones_own_then_among_those_that_ship(
    tmp_path,
):
    own, elsewhere = tmp_path / "own", tmp_path / "elsewhere"
    own.mkdir()
    elsewhere.mkdir()
    mine = elsewhere / "mine.yaml"
    mine.write_text("extends: brief\n")
    found = [load_rubric(mine, directory=own).title]
    for place in (own, elsewhere):
        (place / "brief.yaml").write_text(BASE.replace("Base", place.name))
        found.append(load_rubric(mine, directory=own).title)

    assert found == ["Brief", "own", "elsewhere"]


def test_a_path_is_taken_from_the_files_folder(tmp_path, monkeypatch):
    (tmp_path / "drafts").mkdir()
    (tmp_path / "base.yml").write_text(BASE)
    (tmp_path / "drafts" / "mine.yaml").write_text("extends: ../base.yml\n")
    monkeypatch.chdir("/")

    assert load_rubric(tmp_path / "drafts" / "mine.yaml").title == "Base"


MISFITS = {
    "unknown base": ("title: T\nextends: bsae\n", "mine:2 base-not-found"),
    "nothing of that name to leave out": (
        "extends: base\nwithout:\n- length\n- claer\n",
        "mine:4 unknown-left-out",
    ),
    "misspelt dimension": (
        "extends: base\ndimensions:\n- name: length\n- name: usefull\n  weight: 2\n",
        "mine:4 unknown-dimension",
    ),
    "twice the same dimension": (
        "extends: base\ndimensions:\n- name: useful\n- name: useful\n  judge: Good?\n",
        "mine:4 duplicate-dimension",
    ),
    "another scale than that of the base's scores": (
        "title: T\nextends: base\nscale: { max: 100 }\n",
        "mine:2 taken-from-another-scale",
    ),
    "none left": ("extends: base\nwithout: [length, clear, useful]\n", "mine:1 list-empty"),
    "itself as a path": ("extends: mine.yaml\n", "mine:1 extends-circle"),
    "itself": ("extends: mine\n", "mine:1 base-not-found"),
    "dimensions that are no list": ("extends: base\ndimensions: 0\n", "mine:2 not-a-list"),
}


@pytest.mark.parametrize(
    "mine",
    [
        pytest.param("scale: { min: 0, step: 1 }\n", id="finer steps between the same ends"),
        pytest.param(
            "scale: { max: 20 }\npass_at: 15\ndimensions:\n- { name: length, floor: 10 }\n"
            "- { name: clear, anchors: { 3: No, 6: Nearly, 9: Half } }\n",
            id="every score written again",
        ),
        pytest.param(
            "scale: { max: 20 }\npass_at: 15\nwithout: [length, clear]\n", id="the rest left out"
        ),
    ],
)
def test_another_scale_goes_with_scores_that_were_written_for_it(rubrics, mine):
    assert rubrics("mine", mine=f"title: T\nextends: base\n{mine}").scale.min == 0


def test_what_is_off_the_other_scale_is_named_with_its_line_in_the_base(rubrics):
    problems = refused(
        rubrics, "mine", mine="title: T\nextends: base\nscale: { max: 8 }\n"
    ).problems

    assert [one.code for one in problems] == ["rubric.off-scale"]
    assert "base.yaml:15" in problems[0].message  # the place to mend


@pytest.mark.parametrize("case", MISFITS)
def test_a_misfit_is_answered_by_the_file_and_line_to_mend(rubrics, tmp_path, case):
    mine, expected = MISFITS[case]
    (problem,) = refused(rubrics, "mine", mine=mine).problems

    code = problem.code.removeprefix("rubric.")
    assert f"{problem.path.stem}:{problem.line} {code}" == expected
    masks = {str(tmp_path): "/rubrics"}
    assert_shown("rubric mistakes", f"extending: {case}", problem.message, masks=masks)


def test_a_base_that_is_nowhere_was_looked_for_beside_the_file_too(tmp_path):
    mine = tmp_path / "mine/brief.yaml"
    mine.parent.mkdir()
    (tmp_path / "mine/basis.yaml").write_text("title: T\ndimensions: [{ name: a, judge: Good? }]\n")
    mine.write_text("title: T\nextends: bsais\n")
    with pytest.raises(RubricInvalid) as caught:
        load_rubric(mine, directory=tmp_path / "rubrics")

    message = caught.value.problems[0].message
    assert f"{tmp_path}/mine/ or {tmp_path}/rubrics/" in message
    assert "'basis'" in message


@pytest.mark.parametrize(
    ("scale", "defaults"),
    [
        pytest.param(Scale(), (8, 7, 0.5), id="to 10"),
        pytest.param(Scale(max=1, step=0.1), (0.8, 0.7, 0.05), id="to 1"),
        pytest.param(Scale(min=1, max=5, step=1), (4.2, 3.8, 0.2), id="from 1 to 5"),
        pytest.param(Scale(max=100, step=1), (80, 70, 5), id="to 100"),
    ],
)
def test_thresholds_that_are_not_given_follow_the_scale(scale, defaults):
    rubric = Rubric(title="T", dimensions=(Dimension(name="a", judge="?"),), scale=scale)

    assert (rubric.pass_at, rubric.focus_below, rubric.repeat_within) == defaults


def test_a_rubric_is_loaded_by_a_path_too(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("title: T\ndimensions:\n- name: a\n  judge: Is it?\n")

    assert load_rubric(path) == load_rubric(str(path))
