"""What a rubric takes over from another, and what is said when the two do not fit."""

import pytest

from harness.errors import RubricInvalid
from harness.rubric import Dimension, load_rubric, load_rubric_file
from harness.rubric.checks import Excludes, Finished, Words

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
    found = [load_rubric_file(mine, directory=own).title]
    for place in (own, elsewhere):
        (place / "brief.yaml").write_text(BASE.replace("Base", place.name))
        found.append(load_rubric_file(mine, directory=own).title)

    assert found == ["Brief", "own", "elsewhere"]


def test_a_path_is_taken_from_the_files_folder(tmp_path, monkeypatch):
    (tmp_path / "drafts").mkdir()
    (tmp_path / "base.yml").write_text(BASE)
    (tmp_path / "drafts" / "mine.yaml").write_text("extends: ../base.yml\n")
    monkeypatch.chdir("/")

    assert load_rubric_file(tmp_path / "drafts" / "mine.yaml").title == "Base"


def row(mine, base, mistake, says):
    """What stands in mine.yaml and in base.yaml; the mistake's file, line and code; its facts."""
    return mine, base, mistake, says


MISFITS = {
    "unknown base": row("title: T\nextends: bsae\n", BASE, "mine:2 base-not-found", "'base'"),
    "nothing of that name to leave out": row(
        "extends: base\nwithout:\n- length\n- claer\n", BASE, "mine:4 unknown-left-out", "'clear'"
    ),
    "misspelt dimension": row(
        "extends: base\ndimensions:\n- name: length\n- name: usefull\n  weight: 2\n",
        BASE,
        "mine:4 unknown-dimension",
        "'useful'",
    ),
    "twice the same dimension": row(
        "extends: base\ndimensions:\n- name: useful\n- name: useful\n  judge: Good?\n",
        BASE,
        "mine:4 duplicate-dimension",
        "'useful'",
    ),
    "a scale that the base is off": row(
        "title: T\nextends: base\nscale: { max: 8 }\n", BASE, "mine:2 off-scale", "base.yaml:15"
    ),
    "none left": row(
        "extends: base\nwithout: [length, clear, useful]\n",
        BASE,
        "mine:1 list-empty",
        "base.yaml:6",
    ),
    "itself as a path": row("extends: mine.yaml\n", BASE, "mine:1 extends-circle", "mine.yaml → "),
    "itself": row("extends: mine\n", BASE, "mine:1 base-not-found", "'mine'"),
    "dimensions that are no list": row(
        "extends: base\ndimensions: 0\n", BASE, "mine:2 not-a-list", "0"
    ),
}


@pytest.mark.parametrize(("mine", "base", "expected", "says"), MISFITS.values(), ids=MISFITS)
def test_a_misfit_is_answered_by_the_file_and_line_to_mend(rubrics, mine, base, expected, says):
    (problem,) = refused(rubrics, "mine", mine=mine, base=base).problems

    code = problem.code.removeprefix("rubric.")
    assert f"{problem.path.stem}:{problem.line} {code}" == expected
    assert says in problem.message


@pytest.mark.parametrize(("links", "allowed"), [(8, True), (9, False)])
def test_a_chain_has_eight_rubrics_at_most(rubrics, links, allowed):
    chain = {f"r{n}": f"extends: r{n + 1}\n" for n in range(1, links)}
    contents = {**chain, f"r{links}": BASE}
    if allowed:
        assert rubrics("r1", **contents).title == "Base"
    else:
        error = refused(rubrics, "r1", **contents)
        assert error.code == "rubric.extends-too-many"
        assert str(error).count(" → ") == 8
