"""Exact search for the best 100 of n vectors: the ways the vector lane could do it, side by side.

    python tests/benchmarks/bench_vector_search.py [--json] [--vectors 50000] [--dimensions 256]

The lane uses `np.einsum`: on a quiet machine a BLAS product is faster, but its threads wait for
each other when a model keeps the cores busy. Run it beside such a load to see that.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
from usearch.index import MetricKind, search

BEST = 100
RUNS = 30


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--vectors", type=int, default=50_000)
    arguments.add_argument("--dimensions", type=int, default=256)
    options = arguments.parse_args()

    generator = np.random.default_rng(1)
    matrix = generator.standard_normal((options.vectors, options.dimensions), dtype=np.float32)
    matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
    query = matrix[0] + 0.1

    ways: dict[str, Callable[[], object]] = {
        "np.einsum": lambda: best(np.einsum("ij,j->i", matrix, query)),
        "matrix @ query": lambda: best(matrix @ query),
        "usearch exact": lambda: search(matrix, query, BEST, MetricKind.Cos, exact=True),
    }
    results = [{"way": name, **timed(way)} for name, way in ways.items()]
    if options.json:
        print(json.dumps(results, indent=2))
        return
    print(f"{options.vectors:,} x {options.dimensions}, best {BEST}, {RUNS} runs")
    for row in results:
        print(f"{row['way']:<16} median {row['median_ms']:>7.2f} ms   max {row['max_ms']:>7.2f} ms")


def best(scores: np.ndarray[tuple[int], np.dtype[np.float32]]) -> object:
    return np.argpartition(scores, -BEST)[-BEST:]


def timed(way: Callable[[], object]) -> dict[str, float]:
    way()
    durations = []
    for _ in range(RUNS):
        start = time.perf_counter()
        way()
        durations.append((time.perf_counter() - start) * 1000)
    return {"median_ms": round(statistics.median(durations), 2), "max_ms": round(max(durations), 2)}


if __name__ == "__main__":
    main()
