"""Presets: what they say of fields that nobody writes."""

from typing import get_args

import pytest

from harness.rubric import Scale, load_rubric
from harness.rubric.files import PRESETS
from harness.rubric.rubric import PresetName, Rubric, Shortening

DIMENSIONS = "dimensions: [{ name: a, judge: 'Good?' }]\n"


@pytest.fixture
def load(tmp_path):
    """Loads `mine`, which may extend `base`."""

    def load_contents(mine, base=f"title: B\n{DIMENSIONS}"):
        (tmp_path / "mine.yaml").write_text(mine)
        (tmp_path / "base.yaml").write_text(base)
        return load_rubric("mine", directory=tmp_path)

    return load_contents


def test_every_preset_that_a_rubric_may_name_has_its_values():
    assert set(PRESETS) == set(get_args(PresetName))


def test_book_has_the_values_of_the_book(load):
    rubric = load(f"title: T\npreset: book\n{DIMENSIONS}")

    assert rubric.scale == Scale(min=0, max=10, step=0.5)
    assert (rubric.pass_at, rubric.focus_below) == (8, 7)
    assert rubric.shorten == Shortening(evaluate_over=6_000, revise_over=5_000, cap=20_000)
    assert rubric.dimensions[0].weight == 1


def test_without_a_preset_a_rubric_is_as_by_the_book(load):
    none = load(f"title: T\n{DIMENSIONS}")
    book = load(f"title: T\npreset: book\n{DIMENSIONS}")

    assert none.sha256 == book.sha256


def test_code_has_whole_scores_and_shows_longer_drafts(load):
    rubric = load(f"title: T\npreset: code\n{DIMENSIONS}")

    assert rubric.scale == Scale(min=0, max=10, step=1)
    assert rubric.pass_at == 8
    assert rubric.shorten == Shortening(evaluate_over=32_000, revise_over=5_000, cap=None)


def what(rubric: Rubric) -> tuple[float, float, int | None]:
    return rubric.pass_at, rubric.scale.step, rubric.shorten.cap


@pytest.mark.parametrize(
    ("mine", "base", "expected"),
    [
        pytest.param(
            f"title: T\npreset: code\npass_at: 6\nshorten: {{ cap: 7000 }}\n{DIMENSIONS}",
            "",
            (6, 1, 7000),
            id="its own before its preset",
        ),
        pytest.param(
            "extends: base\npreset: code\n",
            f"title: B\npass_at: 5\n{DIMENSIONS}",
            (5, 1, None),
            id="what it extends before its preset",
        ),
        pytest.param(
            "extends: base\n",
            f"title: B\npreset: code\n{DIMENSIONS}",
            (8, 1, None),
            id="the preset of what it extends",
        ),
        pytest.param(
            "extends: base\npreset: book\n",
            f"title: B\npreset: code\n{DIMENSIONS}",
            (8, 0.5, 20_000),
            id="its own preset before its base's",
        ),
        pytest.param(
            "extends: base\npreset: code\npass_at: 6\n",
            f"title: B\npass_at: 5\nscale: {{ step: 2 }}\n{DIMENSIONS}",
            (6, 2, None),
            id="all three",
        ),
    ],
)
def test_the_file_goes_before_its_base_and_the_base_before_the_preset(load, mine, base, expected):
    assert what(load(mine, base or f"title: B\n{DIMENSIONS}")) == expected
