"""What the tests of the vector lane share."""

import pytest
from plain_vectors import Named

from harness.memory.truth import Truth


@pytest.fixture
def flat():
    return Named()


@pytest.fixture
def truth(tmp_path):
    opened = Truth.open(tmp_path)
    yield opened
    opened.close()
