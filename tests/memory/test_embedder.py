"""Vectors of texts: what embedders promise, which texts are unrelated, and what is new."""

import subprocess
import sys
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored import failing

from harness.errors import ConfigurationInvalid, InvalidInput
from harness.memory.embedder import (
    WordLlamaEmbedder,
    embed,
    has_wordllama,
    normalized,
    unrelated_cosines,
)
from harness.memory.ranking import novelty

needs_wordllama = pytest.mark.skipif(not has_wordllama(), reason="wordllama is not installed")

# --- embedders ---------------------------------------------------------------------------------


def test_vectors_are_float32_of_unit_length_whatever_the_company(embedder):
    texts = ["a river otter", "a text that is a good deal longer " * 20, "日本語", "7"]
    vectors = embedder.embed(texts)

    assert (vectors.dtype, vectors.shape) == (np.float32, (4, embedder.dimensions))
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1)
    assert np.array_equal(vectors, np.concatenate([embedder.embed([text]) for text in texts]))
    assert not embedder.embed([""]).any()
    assert embedder.embed([]).shape == (0, embedder.dimensions)


def test_without_wordllama_its_embedder_says_what_to_use(monkeypatch):
    monkeypatch.setattr("harness.memory.embedder.has_wordllama", lambda: False)
    with failing(ConfigurationInvalid, "memory.no-wordllama"):
        WordLlamaEmbedder()


@pytest.fixture
def peak_bytes(embedder):
    """Tells how much more memory was in use since the test began, at most."""
    embedder.embed(["loaded"])  # its weights, which the process keeps
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


@needs_wordllama
def test_a_long_text_is_embedded_in_little_memory_and_as_its_parts(embedder, peak_bytes):
    shells, courts = "otters crack shells " * 2_000, "a court heard appeals " * 2_000
    both, first, second = embedder.embed([shells + courts, shells, courts])

    assert peak_bytes() < 20e6  # all tokens of one at a time: 60 MB
    assert both @ (first + second) / np.linalg.norm(first + second) > 0.99
    assert first @ embedder.embed(["otters crack shells"])[0] > 0.999
    assert np.linalg.norm(embedder.embed(["日本語" * 10_000])) == pytest.approx(1)


@needs_wordllama
def test_embedders_of_one_process_share_their_weights(peak_bytes):
    WordLlamaEmbedder().embed(["once"])
    assert peak_bytes() < 5e6  # the weights are 33 MB


WRONG = {
    "a row short": np.ones((1, 3)),
    "a column short": np.ones((2, 2)),
    "not numbers": np.full((2, 3), np.nan),
    "beyond float32": np.full((2, 3), 1e300),
}


@pytest.mark.parametrize("reply", WRONG.values(), ids=WRONG)
def test_an_embedder_that_breaks_its_promise_is_named(reply):
    broken = SimpleNamespace(name="broken", dimensions=3, embed=lambda _: reply)
    with failing(InvalidInput, "embedder.wrong-vectors"):
        embed(broken, ["one", "two"])
    with failing(InvalidInput, "embedder.wrong-vectors"):
        unrelated_cosines(broken)


DIRECTIONS = {
    "longer": ([3, 4], [0.6, 0.8]),
    "shorter": ([0, 0.1], [0, 1]),
    "squares too large": ([3e30, 4e30], [0.6, 0.8]),
    "squares too small": ([3e-30, 4e-30], [0.6, 0.8]),
    "the smallest": ([1e-44, 0], [1, 0]),
    "no content": ([0, 0], [0, 0]),
}


@pytest.mark.parametrize(("vector", "unit"), DIRECTIONS.values(), ids=DIRECTIONS)
def test_vectors_of_any_length_are_compared_by_their_direction(vector, unit):
    plain = SimpleNamespace(name="plain", dimensions=2, embed=lambda texts: [vector for _ in texts])
    assert embed(plain, ["one"])[0] == pytest.approx(np.array(unit))
    assert embed(plain, []).shape == (0, 2)


OFFLINE = """
import logging, sys

def no_network(event, args):
    assert not event.startswith("socket."), (event, args)

sys.addaudithook(no_network)

import harness.memory
slow = {"tantivy", "wordllama"} & set(sys.modules)
assert not slow, slow

vectors = harness.memory.WordLlamaEmbedder().embed(["some text"])
assert vectors.any()
assert logging.getLogger().handlers == [] and logging.getLogger().level == logging.WARNING
"""


@needs_wordllama
@pytest.mark.slow
def test_import_is_light_and_embedding_touches_neither_network_nor_logging():
    # A process of its own: here the modules are loaded and pytest owns the root logger.
    # An empty home folder, where wordllama would look for what it had downloaded before.
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", OFFLINE],
        env={"HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr


# --- unrelated texts ---------------------------------------------------------------------------


def test_unrelated_is_the_mean_of_all_pairs_and_two_deviations():
    seen = []

    def remember(texts):
        seen.extend(texts)
        return normalized(np.random.default_rng(1).standard_normal((len(texts), 8)) + 1)

    found = unrelated_cosines(SimpleNamespace(name="random", dimensions=8, embed=remember))

    unit = [v / np.sqrt((v**2).sum()) for v in remember(range(28))]
    pairs = [float((a * b).sum()) for i, a in enumerate(unit) for b in unit[:i]]
    mean = sum(pairs) / len(pairs)
    deviation = (sum((pair - mean) ** 2 for pair in pairs) / len(pairs)) ** 0.5
    assert found == pytest.approx((mean, mean + 2 * deviation), abs=1e-6)
    assert len(set(seen[:28])) == 28


def test_there_is_room_above_it_even_when_all_texts_are_alike():
    constant = SimpleNamespace(
        name="constant", dimensions=2, embed=lambda texts: [[1.0, 0.0]] * len(texts)
    )

    assert unrelated_cosines(constant) == (0.99, 0.99)


@needs_wordllama
@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("who won the cup final?", "heat transfer in hypersonic flow", False),
        ("how do I bake banana bread?", "a recipe for a loaf of sweet bread", True),
    ],
)
def test_it_tells_what_has_to_do_with_each_other(embedder, one, other, alike):
    first, second = embedder.embed([one, other])

    assert unrelated_cosines(embedder).limit == pytest.approx(0.159, abs=0.001)
    assert (first @ second > unrelated_cosines(embedder).limit) == alike


# --- novelty -----------------------------------------------------------------------------------


def of(*cosines, unrelated=0.2):
    return novelty(np.array(cosines, dtype=np.float32), unrelated=unrelated)


@given(
    cosines=st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=8),
    unrelated=st.floats(-1, 0.99),
)
def test_it_is_the_mean_distance_as_far_as_distance_means_anything(cosines, unrelated):
    naive = [min(1, (1 - cosine) / (1 - unrelated)) for cosine in cosines]

    assert of(*cosines, unrelated=unrelated) == pytest.approx(10 * sum(naive) / len(naive))
    assert of() == of(1.0000001) == 0  # nothing is said; a rounding above 1


WATCHED = """
import logging, sys

class Busy:  # as other threads are, while something is imported
    def find_spec(self, name, *_):
        logging.getLogger("httpx").info("https://me:secret@host/")

from harness.memory import WordLlamaEmbedder

sys.meta_path.insert(0, Busy())
WordLlamaEmbedder().embed(["tea"])
assert (logging.root.level, logging.root.handlers) == (logging.WARNING, [])
"""


@needs_wordllama
def test_nobody_elses_log_is_printed_while_the_embedder_is_imported():
    done = subprocess.run(
        [sys.executable, "-c", WATCHED], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
