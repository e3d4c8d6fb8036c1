import csv
import json
from pathlib import Path

import numpy as np
import pytest

from harness.errors import InvalidInput
from harness.memory.embedder import FunctionEmbedder
from harness.memory.unrelated import unrelated_cosine

CRANFIELD = Path(__file__).parents[3] / "shared" / "data" / "ir" / "cranfield"


def test_it_is_always_the_same(embedder):
    assert (
        unrelated_cosine(embedder) == unrelated_cosine(embedder) == pytest.approx(0.159, abs=0.001)
    )


def test_it_is_the_mean_of_all_pairs_and_two_deviations():
    seen = []

    def remember(texts):
        seen.extend(texts)
        return np.random.default_rng(1).standard_normal((len(texts), 8)) + 1

    found = unrelated_cosine(FunctionEmbedder("random", remember, 8))

    unit = [
        v / np.sqrt((v**2).sum()) for v in np.random.default_rng(1).standard_normal((28, 8)) + 1
    ]
    pairs = [float((a * b).sum()) for i, a in enumerate(unit) for b in unit[:i]]
    mean = sum(pairs) / len(pairs)
    deviation = (sum((pair - mean) ** 2 for pair in pairs) / len(pairs)) ** 0.5
    assert found == pytest.approx(mean + 2 * deviation, abs=1e-6)
    assert len(set(seen)) == len(seen) == 28


def test_it_leaves_room_above_it_even_when_all_texts_are_alike():
    constant = FunctionEmbedder("constant", lambda texts: [[1.0, 0.0]] * len(texts), 2)

    assert unrelated_cosine(constant) == 0.99


def test_an_embedder_that_breaks_its_promise_is_named():
    flat = FunctionEmbedder("flat", lambda texts: [1.0] * len(texts), 2)

    with pytest.raises(InvalidInput, match="'flat' gave an array of shape"):
        unrelated_cosine(flat)


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("how do I bake banana bread?", "the index speeds up the query", False),
        ("who won the cup final?", "heat transfer in hypersonic flow", False),
        ("how do I bake banana bread?", "a recipe for a loaf of sweet bread", True),
        ("an index on an expression", "create indexes on expressions of columns", True),
        ("the puppy is barking", "my dog barks at night", True),
    ],
)
def test_it_tells_what_has_to_do_with_each_other(embedder, one, other, alike):
    first, second = embedder.embed([one, other])

    assert (first @ second > unrelated_cosine(embedder)) == alike


@pytest.mark.skipif(not CRANFIELD.exists(), reason=f"no Cranfield collection at {CRANFIELD}")
def test_next_to_nothing_that_is_relevant_is_below_it(embedder):
    def lines(name):
        return [json.loads(line) for line in (CRANFIELD / name).read_text().splitlines()]

    documents, queries = lines("corpus.jsonl"), lines("queries.jsonl")
    texts = embedder.embed([f"{document['title']} {document['text']}" for document in documents])
    cosines = embedder.embed([query["text"] for query in queries]) @ texts.T
    row = {query["_id"]: place for place, query in enumerate(queries)}
    column = {document["_id"]: place for place, document in enumerate(documents)}
    with (CRANFIELD / "qrels" / "test.tsv").open() as file:
        relevant = [
            cosines[row[line["query-id"]], column[line["corpus-id"]]]
            for line in csv.DictReader(file, delimiter="\t")
            if int(line["score"]) > 0
        ]

    assert len(relevant) == 1612
    assert np.mean(np.array(relevant) <= unrelated_cosine(embedder)) < 0.025
