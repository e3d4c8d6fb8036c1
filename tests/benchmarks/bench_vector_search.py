"""Search for the best 100 of n vectors: the ways the vector lane could do it, side by side.

    python tests/benchmarks/bench_vector_search.py [--json] [--vectors 16000 64000 110000]

The vectors are wordllama's, of runs of one to four sentences from real documents; the queries are
questions and headings. Each way has one thread, but for BLAS: on a quiet machine its product is
faster than `np.vecdot`, but its threads wait for each other when a model keeps the cores busy. Run
it beside such a load to see that. Recall is of what an exact search finds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import numpy as np
from memory_corpus import COLLECTIONS, DATA, Corpus
from numpy.typing import NDArray
from usearch.index import MetricKind, search

from harness.compress.markdown import sentences_of
from harness.memory import WordLlamaEmbedder, hnsw
from harness.memory.embedder import Vectors
from harness.memory.matrix import cosines

BEST = 100
RUNS = 100
LONGEST_RUN = 4

Numbers = NDArray[np.int64]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--vectors", type=int, nargs="+", default=[16_000, 64_000, 110_000])
    options = arguments.parse_args()

    embedder = WordLlamaEmbedder()
    queries = embedder.embed(Corpus.read().queries()[:RUNS])
    matrix = embedder.embed(runs_of_sentences(max(options.vectors)))
    results = [
        row for count in options.vectors for row in compared(matrix[:count], queries, embedder)
    ]
    if options.json:
        print(json.dumps(results, indent=2))
        return
    print(f"best {BEST} of wordllama's vectors, {len(queries)} queries")
    for row in results:
        print(
            f"{row['vectors']:>8,}  {row['way']:<16} median {row['median_ms']:>6.2f} ms   "
            f"max {row['max_ms']:>6.2f} ms   recall@10 {row['recall_at_10']:.3f}   "
            f"@100 {row['recall_at_100']:.3f}   {row['mib']:>5.0f} MiB   "
            f"made in {row['made_in_s']:>5.1f} s"
        )


def runs_of_sentences(count: int) -> list[str]:
    """Of real documents, in no order."""
    runs = set()
    for name in COLLECTIONS:
        for line in (DATA / name).read_text(encoding="utf-8").splitlines():
            document = json.loads(line)
            sentences = sentences_of(document["text"])
            for length in range(1, LONGEST_RUN + 1):
                for start in range(len(sentences) - length + 1):
                    text = " ".join(sentences[start : start + length])
                    runs.add(f"{document['title']} {' '.join(text.split())}")
    if count > len(runs):
        sys.exit(f"only {len(runs):,} different runs of sentences at {DATA}")
    return Random(1).sample(sorted(runs), count)


def compared(
    matrix: Vectors, queries: Vectors, embedder: WordLlamaEmbedder
) -> list[dict[str, object]]:
    print(f"a graph of {len(matrix):,} vectors ...", file=sys.stderr)
    with tempfile.TemporaryDirectory() as directory:
        began = time.perf_counter()
        graph = graph_of(matrix, Path(directory), embedder)
        made_in_s = time.perf_counter() - began

    def exactly(scores: Vectors) -> Numbers:
        best = np.argpartition(-scores, BEST - 1)[:BEST]
        return best[np.argsort(-scores[best])]

    ways: dict[str, Callable[[Vectors], Numbers]] = {
        "np.vecdot": lambda query: exactly(cosines(matrix, query)),
        "matrix @ query": lambda query: exactly(matrix @ query),
        "usearch exact": lambda query: (
            search(matrix, query, BEST, MetricKind.Cos, exact=True, threads=1).keys
        ),
        "graph": lambda query: graph.nearest(query, BEST),
    }
    right = [ways["np.vecdot"](query) for query in queries]
    return [
        {
            "vectors": len(matrix),
            "way": name,
            **timed(way, queries),
            "recall_at_10": recall([way(query) for query in queries], right, 10),
            "recall_at_100": recall([way(query) for query in queries], right, 100),
            "mib": (graph.nbytes if name == "graph" else matrix.nbytes) / 2**20,
            "made_in_s": made_in_s if name == "graph" else 0.0,
        }
        for name, way in ways.items()
    ]


def graph_of(matrix: Vectors, directory: Path, embedder: WordLlamaEmbedder) -> hnsw.Graph:
    hnsw.write(
        directory,
        embedder,
        position=len(matrix),
        vectors=[(np.arange(len(matrix)), matrix)],
        went_on=lambda _: True,
    )
    graph = hnsw.Graph.load(directory, embedder)
    assert graph is not None
    return graph


def recall(found: Sequence[Numbers], right: Sequence[Numbers], depth: int) -> float:
    """The share of the best that were found among as many."""
    return statistics.mean(
        len(set(ours[:depth].tolist()) & set(theirs[:depth].tolist())) / depth
        for ours, theirs in zip(found, right, strict=True)
    )


def timed(way: Callable[[Vectors], object], queries: Vectors) -> dict[str, float]:
    way(queries[0])
    durations = []
    for query in queries:
        start = time.perf_counter()
        way(query)
        durations.append((time.perf_counter() - start) * 1000)
    return {"median_ms": round(statistics.median(durations), 2), "max_ms": round(max(durations), 2)}


if __name__ == "__main__":
    main()
