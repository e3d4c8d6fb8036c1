import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import InvalidInput
from harness.memory.embedder import WordLlamaEmbedder
from harness.memory.novelty import THRESHOLD, nearest, novelty

cosines = st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=8)


def of(*cosines, unrelated=0.2):
    return novelty(np.array(cosines, dtype=np.float32), unrelated=unrelated)


@pytest.mark.parametrize(
    ("cosines", "expected"),
    [
        pytest.param([1], 0, id="known word for word"),
        pytest.param([1.0000001], 0, id="a rounding above 1"),
        pytest.param([0.2], 10, id="unrelated"),
        pytest.param([-0.7], 10, id="further away is not newer"),
        pytest.param([0.6], 5, id="half way"),
        pytest.param([1, 0.6, -1], 5, id="the mean of all"),
        pytest.param([-1, -1], 10, id="nothing is known"),
        pytest.param([], 0, id="nothing is said"),
    ],
)
def test_novelty_is_from_0_to_10(cosines, expected):
    assert of(*cosines) == pytest.approx(expected, abs=1e-5)


@given(cosines=cosines, unrelated=st.floats(-1, 0.99))
def test_it_is_the_mean_distance_as_far_as_distance_means_anything(cosines, unrelated):
    naive = [min(1, (1 - cosine) / (1 - unrelated)) for cosine in cosines]

    found = of(*cosines, unrelated=unrelated)
    assert found == pytest.approx(10 * sum(naive) / len(naive))
    assert 0 <= found <= 10


@pytest.mark.parametrize("unrelated", [1, 1.5, -1.1, float("nan")])
def test_a_cosine_without_room_above_it_is_refused(unrelated):
    with pytest.raises(InvalidInput, match="unrelated is"):
        of(0.5, unrelated=unrelated)


def test_the_nearest_of_what_is_known_counts():
    known = np.array([[1, 0], [0, 1]], dtype=np.float32)
    batch = np.array([[0.6, 0.8], [-1, 0], [0, 0]], dtype=np.float32)

    # The last has no content, and so nothing new.
    assert nearest(batch, known) == pytest.approx([0.8, 0, 1])
    assert nearest(batch, known[:0]).tolist() == [-1, -1, 1]
    assert nearest(batch[:0], known).shape == (0,)


def test_a_batch_that_repeats_is_below_the_gates_threshold_and_one_about_else_above():
    known = [
        "Otters float on their back and crack shells with a stone.",
        "The write-ahead log is copied into the database at a checkpoint.",
    ]
    repeated = ["Otters crack shells with a stone while they float on their back."]
    new = ["The court dismissed the appeal for lack of evidence."]
    embed = WordLlamaEmbedder().embed

    assert novelty(nearest(embed(repeated), embed(known)), unrelated=0.16) < THRESHOLD
    assert novelty(nearest(embed(new), embed(known)), unrelated=0.16) > 9
