import subprocess
import sys

import numpy as np
import pytest

from harness.errors import InvalidInput
from harness.memory.embedder import FunctionEmbedder, embed


def test_vectors_are_float32_of_unit_length(embedder):
    vectors = embedder.embed(["a river otter", "SELECT * FROM passage", "日本語", "\x00"])

    assert vectors.dtype == np.float32
    assert vectors.shape == (4, embedder.dimensions)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1)


def test_the_company_of_other_texts_changes_nothing(embedder):
    texts = ["short", "a text that is a good deal longer than the first " * 20, "short"]

    together = embedder.embed(texts)
    assert np.array_equal(together, np.concatenate([embedder.embed([text]) for text in texts]))


def test_a_text_without_content_is_all_zeros(embedder):
    assert not embedder.embed([""]).any()


def test_no_texts_give_no_vectors(embedder):
    assert embedder.embed([]).shape == (0, embedder.dimensions)


def test_what_means_the_same_lies_closer(embedder):
    dog, puppy, bond = embedder.embed(["my dog barks", "the puppy is barking", "bond yields fell"])

    assert dog @ puppy > dog @ bond + 0.2


@pytest.mark.parametrize(
    "reply",
    [np.ones((1, 3)), np.ones((2, 2)), np.ones(6), np.full((2, 3), np.nan)],
    ids=["a row short", "a column short", "flat", "not numbers"],
)
def test_an_embedder_that_breaks_its_promise_is_named(reply):
    class Broken:
        name = "broken"
        dimensions = 3
        embed = staticmethod(lambda _: reply)

    with pytest.raises(InvalidInput, match=r"'broken' .* must give \(2, 3\)"):
        embed(Broken(), ["one", "two"])


@pytest.mark.parametrize(
    "reply",
    [np.array([[3, 4], [0, 0]]), [[3.0, 4.0], [0.0, 0.0]], np.array([[3, 4], [0, 0]], dtype="f2")],
    ids=["whole numbers", "lists", "half precision"],
)
def test_any_function_is_an_embedder_whatever_the_lengths_of_its_vectors(reply):
    named = FunctionEmbedder("mine", lambda _: reply, 2)

    vectors = embed(named, ["one", ""])
    assert vectors.dtype == np.float32
    assert vectors.tolist() == [[pytest.approx(0.6), pytest.approx(0.8)], [0, 0]]


def test_a_function_is_not_asked_about_no_texts():
    assert embed(FunctionEmbedder("mine", pytest.fail, 2), []).shape == (0, 2)


def test_what_a_function_gives_is_not_changed():
    reply = np.array([[3, 4]], dtype=np.float32)

    embed(FunctionEmbedder("mine", lambda _: reply, 2), ["one"])
    assert reply.tolist() == [[3, 4]]


def test_a_function_that_gives_something_else_is_named():
    short = FunctionEmbedder("mine", lambda _: [[1.0]], 2)

    with pytest.raises(InvalidInput, match=r"'mine' gave .* \(1, 1\) .* must give \(1, 2\)"):
        embed(short, ["one"])


@pytest.mark.parametrize(
    ("name", "dimensions", "said"),
    [(" ", 2, "needs a name"), ("mine", 0, "has 0 dimensions")],
    ids=["no name", "no dimensions"],
)
def test_an_embedder_that_cannot_be_kept_apart_or_searched_is_refused(name, dimensions, said):
    with pytest.raises(InvalidInput, match=said):
        FunctionEmbedder(name, pytest.fail, dimensions)


OFFLINE = """
import logging, sys

def no_network(event, args):
    assert not event.startswith("socket."), (event, args)

sys.addaudithook(no_network)

import harness.memory
slow = {"tantivy", "usearch", "wordllama"} & set(sys.modules)
assert not slow, slow

vectors = harness.memory.WordLlamaEmbedder().embed(["some text"])
assert vectors.any()
assert logging.getLogger().handlers == [] and logging.getLogger().level == logging.WARNING
"""


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
