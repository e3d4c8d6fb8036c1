"""`harness rubric noise`: what is measured, what it is said to mean, and that it is used then."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest
from golden import assert_shown
from judging import DRAFTS, RUBRIC, alone, judged

from harness.cli.rubric_noise import meaning
from harness.rubric import Noise, Rubric

GOOD = (5.0, 7.0, 6.0, 8.0, 9.0)
"""What the judge gives to the good draft, one judgement after another."""
COMPOSITES = [6.3, 7.8, 7.0, 8.5, 9.3]
"""(10 + 3 * score) / 4, rounded half up."""

GATE = """\
  - name: whole
    gate: true
    floor: 10
    checks: [{ check: words, min: 9000 }]
"""


def scattered() -> Callable[[str], float]:
    """A judge whose word on the good draft varies, and on the others does not."""
    turns = itertools.cycle(GOOD)
    return lambda prompt: next(turns) if DRAFTS["good.md"].strip() in prompt else 3.0


def test_what_scatters_is_measured_told_and_kept_beside_the_rubric(drafts: Path) -> None:
    done, calls = judged(
        "noise", "notes.yaml", "good.md", "poor.md", "--json", cwd=drafts, score=scattered()
    )
    assert done.exit_code == 0, done.stderr
    result = done.json
    assert calls == 10
    assert [one["composites"] for one in result["drafts"]] == [COMPOSITES, [4.8] * 5]
    # Pooled by degrees of freedom: four of the first draft, four of the second.
    pooled = math.sqrt(4 * statistics.variance(COMPOSITES) / 8)
    assert result["deviation"] == pytest.approx(pooled)
    assert result["repeatability"] == pytest.approx(1.96 * math.sqrt(2) * pooled, rel=1e-4)
    kept = json.loads((drafts / "notes.noise.json").read_text())
    assert kept["rubric_sha256"] == result["rubric_sha256"]
    assert [one["evaluator"] for one in kept["measured"]] == ["evaluator"]
    assert (drafts / result["journal"]).is_file()


def test_it_is_said_in_words_and_kept_among_ones_own_rubrics(drafts: Path) -> None:
    (drafts / "rubrics").mkdir()
    (drafts / "rubrics/notes.yaml").write_text(RUBRIC)
    done, _ = judged("noise", "notes", "good.md", cwd=drafts, score=scattered())
    assert_shown("rubric noise", "measured", done.stdout)
    assert (drafts / "rubrics/notes.noise.json").is_file()


def test_scoring_uses_what_was_measured_of_this_version_of_the_rubric(drafts: Path) -> None:
    judged("noise", "notes.yaml", "good.md", cwd=drafts, score=scattered())
    done, _ = judged("score", "notes.yaml", "good.md", "--json", cwd=drafts)
    journal = (drafts / done.json["journal"]).read_text()
    assert '"evaluator noise"' in journal
    assert '"deviation":1.18' in journal
    (drafts / "notes.yaml").write_text(RUBRIC.replace("pass_at: 8", "pass_at: 7"))
    done, _ = judged("score", "notes.yaml", "good.md", cwd=drafts)
    assert "another version" in done.stderr
    assert done.exit_code == 0


def test_without_an_evaluator_nothing_is_measured(drafts: Path) -> None:
    done = alone("noise", "notes.yaml", "good.md", "--json", cwd=drafts)
    assert (done.exit_code, done.code) == (2, "config.no-evaluator")


def test_drafts_that_never_come_before_the_model_are_told_why(drafts: Path) -> None:
    (drafts / "notes.yaml").write_text(RUBRIC + GATE)
    done, calls = judged("noise", "notes.yaml", "good.md", "--json", cwd=drafts)
    assert (done.exit_code, calls, done.code) == (2, 0, "noise.nothing-judged")


# --- what it means ---------------------------------------------------------------------------


def rubric(**more: object) -> Rubric:
    return Rubric.model_validate(
        {"title": "T", "dimensions": [{"name": "a", "judge": "Is it?"}], **more}
    )


TWO = {"dimensions": [{"name": name, "judge": "Is it?"} for name in "ab"]}


def measured(deviation: float, between: float | None = 1.0) -> Noise:
    return Noise(evaluator="judge", deviation=deviation, drafts=3, judgements=15, between=between)


@pytest.mark.parametrize(
    ("case", "noise", "more"),
    [
        ("judged up to four times", measured(0.5), {"repeats": 4}),
        ("frozen", measured(0, 0), {}),
        ("none", measured(0, 1), {}),
        ("drafts alike", measured(0.5, 0.3), TWO),
        ("drafts alike, and nothing to split", measured(0.5, 0.3), {}),
        ("drafts apart", measured(0.5, 2.0), {}),
    ],
)
def test_the_figures_are_of_a_normal_distribution_and_a_judge_that_tells_nothing_apart_is_told(
    case: str, noise: Noise, more: dict[str, object]
) -> None:
    assert_shown("rubric noise", case, "\n".join(meaning(noise, rubric(**more))))
