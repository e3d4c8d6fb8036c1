"""A check that another distribution adds stands in rubrics as those that ship do."""

from __future__ import annotations

from pathlib import Path

import pytest
from installed import Distribution

from harness import Draft, load_rubric
from harness.errors import ConfigurationInvalid, EvaluationFailed, RubricInvalid
from harness.rubric.evaluator import Evaluator

RUBRIC = """title: Notes
pass_at: 5
dimensions:
  - name: calm
    weight: 1
    checks:
      - check: no_shouting
        max_share: {share}
"""


@pytest.fixture
def rubric(distribution: Distribution, tmp_path: Path) -> Path:
    shouting = Path(__file__).parents[2] / "plugins/shouting/harness_shouting.py"
    (tmp_path / "added.py").write_text(shouting.read_text())
    distribution("shouting", "[harness.checks]\nno_shouting = added:NoShouting\nodd = added:WORD\n")
    path = tmp_path / "notes.yaml"
    path.write_text(RUBRIC.format(share=0.1))
    return path


def test_it_scores_and_its_parameters_count(rubric: Path) -> None:
    loaded = load_rubric(rubric)
    loud = Evaluator(loaded, ask=None).checked(Draft(text="WE SHOUT ALL the time", task=""))
    calm = Evaluator(loaded, ask=None).checked(Draft(text="we talk all the time", task=""))
    assert (calm.mean, loud.mean < 10) == (10, True)
    assert "max_share" in loaded.model_dump_json()


def test_what_it_raises_ends_the_evaluation_by_its_name(rubric: Path, monkeypatch) -> None:
    loaded = load_rubric(rubric)

    def broken(_check: object, _draft: Draft) -> None:
        raise ValueError("no words")

    monkeypatch.setattr(type(loaded.dimensions[0].checks[0]), "grade", broken)
    with pytest.raises(EvaluationFailed, match="NoShouting raised ValueError: no words"):
        Evaluator(loaded, ask=None).checked(Draft(text="we talk", task=""))
    rubric.write_text(RUBRIC.format(share=0.2))
    assert load_rubric(rubric).sha256 != loaded.sha256


def test_a_wrong_parameter_is_told_with_its_line(rubric: Path) -> None:
    rubric.write_text(RUBRIC.format(share=3))
    with pytest.raises(RubricInvalid, match="max_share: Input should be less") as caught:
        load_rubric(rubric)
    assert (caught.value.code, caught.value.line) == ("rubric.check-invalid", 7)


def test_a_misspelt_name_finds_it(rubric: Path) -> None:
    rubric.write_text(rubric.read_text().replace("no_shouting", "no_shoutin"))
    with pytest.raises(RubricInvalid, match="did you mean 'no_shouting'"):
        load_rubric(rubric)


def test_what_is_installed_as_a_check_and_is_none_is_refused(rubric: Path) -> None:
    rubric.write_text("title: N\ndimensions:\n  - {name: a, weight: 1, checks: [{check: odd}]}\n")
    with pytest.raises(ConfigurationInvalid) as caught:
        load_rubric(rubric)
    assert caught.value.code == "plugin.broken"


@pytest.mark.parametrize("name", ["[a]", "{a: b}", "3", "true"])
def test_a_name_that_is_no_text_is_an_unknown_check(rubric: Path, name: str) -> None:
    rubric.write_text(rubric.read_text().replace("no_shouting", name))
    with pytest.raises(RubricInvalid) as caught:
        load_rubric(rubric)
    assert (caught.value.code, caught.value.line) == ("rubric.unknown-check", 7)
