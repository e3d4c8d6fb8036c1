"""How much an evaluator varies: measured, kept beside the rubric, and used only where it fits."""

import math
import statistics

import numpy as np
import pytest
from rubric.judged import rubric

from harness.errors import InvalidInput
from harness.rubric import Noise, load_noise, measured_noise, write_noise

RUBRIC = rubric()
LESS_THAN_NONE = (
    b'{"rubric_sha256": "%s", "measured": [{"evaluator": "judge", "deviation": -1, '
    b'"drafts": 3, "judgements": 15, "between": 1.2}]}' % RUBRIC.sha256.encode()
)
NOISE = Noise(evaluator="judge", deviation=0.4, drafts=3, judgements=15, between=1.2)


def test_the_deviation_is_pooled_over_the_drafts_about_their_own_means():
    # Variances 1 (two degrees of freedom) and 0.5 (one): (2 * 1 + 1 * 0.5) / 3.
    noise = measured_noise("judge", [[7, 8, 9], [2, 3], [5]])

    assert noise.deviation == pytest.approx(math.sqrt(2.5 / 3))
    assert (noise.drafts, noise.judgements) == (2, 5)
    assert noise.between == pytest.approx(statistics.stdev([8, 2.5]))


@pytest.mark.parametrize("composites", [[], [[7]], [[7], [8], []]])
def test_nothing_is_said_of_drafts_that_were_judged_once(composites):
    with pytest.raises(InvalidInput) as caught:
        measured_noise("judge", composites)
    assert caught.value.code == "noise.nothing-repeated"


@pytest.mark.parametrize(
    ("composites", "is_frozen"),
    [
        pytest.param([[7.8, 7.8], [7.8, 7.8], [7.8, 7.8]], True, id="always the same"),
        pytest.param([[7.8, 7.8], [3, 3]], False, id="sure of each draft"),
        pytest.param([[7.8, 7.8]], False, id="one draft tells nothing"),
    ],
)
def test_a_judge_that_gives_every_draft_the_same_is_noticed(composites, is_frozen):
    assert measured_noise("judge", composites).is_frozen is is_frozen


def test_what_was_measured_is_found_again_beside_that_of_other_evaluators(tmp_path):
    other = NOISE.model_copy(update={"evaluator": "other", "deviation": 0.9})
    newer = NOISE.model_copy(update={"deviation": 0.1})
    assert load_noise(RUBRIC, "judge", directory=tmp_path) == (None, "")

    paths = {write_noise(noise, RUBRIC, directory=tmp_path) for noise in (NOISE, other, newer)}

    assert load_noise(RUBRIC, "judge", directory=tmp_path) == (newer, "")
    assert load_noise(RUBRIC, "other", directory=tmp_path) == (other, "")
    assert set(tmp_path.iterdir()) == paths == {tmp_path / "essay.noise.json"}


def test_what_was_measured_of_something_else_is_not_used_and_a_new_rubric_starts_over(tmp_path):
    changed = RUBRIC.model_copy(update={"purpose": "Letters."})
    write_noise(NOISE, RUBRIC, directory=tmp_path)

    found = [load_noise(changed, "judge", directory=tmp_path)]
    found.append(load_noise(RUBRIC, "other", directory=tmp_path))
    write_noise(NOISE.model_copy(update={"evaluator": "other"}), changed, directory=tmp_path)
    found.append(load_noise(changed, "judge", directory=tmp_path))

    assert [noise for noise, _ in found] == [None] * 3
    assert all("harness rubric noise" in reason for _, reason in found)
    assert load_noise(changed, "other", directory=tmp_path)[0] is not None


@pytest.mark.parametrize(
    "content",
    [b"", b"0.4", b'{"rubric_sha256": "%s"}' % RUBRIC.sha256.encode(), b"\xff\xfe", LESS_THAN_NONE],
    ids=["nothing", "a number", "half", "no text", "less than none"],
)
def test_a_file_that_is_something_else_is_refused_by_name(tmp_path, content):
    (tmp_path / "essay.noise.json").write_bytes(content)

    with pytest.raises(InvalidInput) as caught:
        load_noise(RUBRIC, "judge", directory=tmp_path)
    assert caught.value.code == "rubric.record-invalid"
    assert caught.value.path == tmp_path / "essay.noise.json"


# --- what it says of composites --------------------------------------------------------------


@pytest.mark.parametrize("deviation", [0.3, 0.8])
def test_what_is_said_of_judgements_is_so_of_a_judge_whose_noise_is_known(deviation):
    chance = np.random.default_rng(3)

    def judged(mean, times):
        return np.round(chance.normal(mean, deviation, times), 1)

    noise = measured_noise("judge", [judged(chance.uniform(3, 9), 10).tolist() for _ in range(300)])
    differences = abs(judged(6.2, 4_000) - judged(6.2, 4_000))
    assert np.mean(differences <= noise.repeatability) == pytest.approx(0.95, abs=0.02)
