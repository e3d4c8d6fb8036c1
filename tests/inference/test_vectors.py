import math

import numpy as np
import pytest

from harness.errors import ServerError
from harness.inference.vectors import as_vectors


def test_rows_become_an_array_in_their_order():
    vectors = as_vectors([[1.0, 0.5], [3.0, 0.25]], endpoint="embedder", count=2)

    assert vectors.dtype == np.float32
    assert vectors.tolist() == [[1.0, 0.5], [3.0, 0.25]]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        pytest.param([[1.0, 2.0], [1.0]], r"different lengths \(1 to 2\)", id="ragged"),
        pytest.param([[1.0], []], r"different lengths \(0 to 1\)", id="one is empty"),
        pytest.param([[], []], "no numbers in them", id="all are empty"),
        pytest.param([[1.0]], "1 embeddings of 2 texts", id="too few"),
        pytest.param([[1.0]] * 3, "3 embeddings of 2 texts", id="too many"),
        pytest.param([], "0 embeddings of 2 texts", id="none"),
        pytest.param([[1.0], [math.nan]], "not finite", id="not a number"),
        pytest.param([[1.0], [1e300]], "not finite in float32", id="larger than float32"),
    ],
)
def test_what_is_not_a_vector_per_text_is_the_servers_fault(rows, says):
    with pytest.raises(ServerError, match=f"^embedder: .*{says}") as caught:
        as_vectors(rows, endpoint="embedder", count=2)

    assert caught.value.status is None
