"""Retrieval quality with the defaults, on a collection that is not in the repository."""

import json
import math
from pathlib import Path
from statistics import mean

import pytest

from harness.memory import MemoryStore, Passage

CRANFIELD = Path(__file__).parents[3] / "shared" / "data" / "ir" / "cranfield"


def read_jsonl(name):
    return [json.loads(line) for line in (CRANFIELD / name).read_text().splitlines()]


def ndcg(gains, ideal, depth=10):
    """Linear gain, as trec_eval has it: Järvelin and Kekäläinen, ACM TOIS 2002."""

    def dcg(values):
        return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(values[:depth], 1))

    return dcg(gains) / dcg(sorted(ideal, reverse=True))


@pytest.mark.skipif(not CRANFIELD.exists(), reason=f"no Cranfield collection at {CRANFIELD}")
def test_both_lanes_together_find_better_than_either(tmp_path, embedder):
    judged = {}
    for line in (CRANFIELD / "qrels" / "test.tsv").read_text().splitlines()[1:]:
        query, document, gain = line.split("\t")
        judged.setdefault(query, {})[document] = int(gain)
    queries = {query["_id"]: query["text"] for query in read_jsonl("queries.jsonl")}

    def quality(mode):
        return mean(
            ndcg(
                [
                    gains.get(hit.passage.source, 0)
                    for hit in store.search(text, limit=10, mode=mode)
                ],
                gains.values(),
            )
            for text, gains in ((queries[query], gains) for query, gains in judged.items())
        )

    with MemoryStore.open(tmp_path, embedder=embedder) as store:
        store.add(
            Passage(text=document["text"], title=document["title"], source=document["_id"])
            for document in read_jsonl("corpus.jsonl")
            if document["text"]  # two documents are blank
        )
        lexical, vector, hybrid = quality("lexical"), quality("vector"), quality("hybrid")

    # tantivy, wordllama 256 and convex fusion at 0.5 give 0.370, 0.329 and 0.384.
    assert lexical == pytest.approx(0.370, abs=0.005)
    assert vector == pytest.approx(0.329, abs=0.005)
    assert hybrid > max(lexical, vector)
