"""Search for the best 100 of n vectors: `Matrix.search`, and other ways to do the same.

    python tests/benchmarks/bench_vector_search.py [--json] [--vectors 64000 256000 1000000]
        [--disk]

The vectors are random, of unit length: an exact search takes as long for any others. All have
one thread, but for BLAS (`matrix @ query`): its threads wait for each other when a model keeps the
cores busy. Run it beside such a load to see that; `cpu` is then what a quiet machine would take.

--disk  Also LanceDB's IVF_PQ on this disk (extra `bench`), which holds no vectors in memory: the
        time that making the index takes, and its bytes. Approximate, with all its defaults.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from harness.memory.embedder import Vectors, normalized
from harness.memory.vector_index import Matrix, products

BEST = 100
QUERIES = 50
DIMENSIONS = 256
BLOCK = 4096


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--vectors", type=int, nargs="+", default=[64_000, 256_000, 1_000_000])
    arguments.add_argument("--disk", action="store_true")
    options = arguments.parse_args()
    results = [row for count in options.vectors for row in compared(count, disk=options.disk)]
    if options.json:
        print(json.dumps(results, indent=2))
        return
    print(f"best {BEST} of n x {DIMENSIONS}, {QUERIES} queries")
    for row in results:
        print(
            f"{row['vectors']:>9,}  {row['way']:<18} median {row['median_ms']:>6.1f} ms   "
            f"max {row['max_ms']:>6.1f} ms   cpu {row['cpu_ms']:>6.1f} ms   {row['mib']:>6,.0f} MiB"
        )


def compared(count: int, *, disk: bool) -> list[dict[str, object]]:
    random = np.random.default_rng(1)
    queries = normalized(random.standard_normal((QUERIES, DIMENSIONS), dtype=np.float32))
    matrix = Matrix.empty(DIMENSIONS).with_room(count)
    for start in range(0, count, BLOCK):
        numbers = np.arange(start, min(start + BLOCK, count))
        some = random.standard_normal((len(numbers), DIMENSIONS), dtype=np.float32)
        matrix = matrix.with_more(numbers, normalized(some))
    vectors = matrix.buffer[:count]
    half = vectors.astype(np.float16)

    def best(scores: Vectors) -> None:
        np.argpartition(-scores, BEST - 1)[:BEST]

    def in_blocks(every: np.ndarray, query: Vectors) -> None:
        blocks = [every[start : start + BLOCK] for start in range(0, count, BLOCK)]
        best(np.concatenate([products(block.astype(np.float32), query) for block in blocks]))

    ways: dict[str, tuple[Callable[[Vectors], object], int]] = {
        "Matrix.search": (lambda query: matrix.search(query, limit=BEST), matrix.nbytes),
        "np.vecdot": (lambda query: best(products(vectors, query)), vectors.nbytes),
        "matrix @ query": (lambda query: best(vectors @ query), vectors.nbytes),
        "float16 in blocks": (lambda query: in_blocks(half, query), half.nbytes),
    }
    rows = [
        {"vectors": count, "way": name, **timed(way, queries), "mib": size / 2**20}
        for name, (way, size) in ways.items()
    ]
    return [*rows, on_disk(vectors, queries)] if disk else rows


def on_disk(vectors: Vectors, queries: Vectors) -> dict[str, object]:
    import lancedb
    import lancedb.index
    import pyarrow as pa

    def parts() -> Iterator[pa.RecordBatch]:
        for start in range(0, len(vectors), BLOCK):
            some = vectors[start : start + BLOCK]
            column = pa.FixedSizeListArray.from_arrays(some.ravel(), DIMENSIONS)
            yield pa.record_batch({"vector": column})

    with tempfile.TemporaryDirectory(prefix="bench-lance-") as folder:
        schema = pa.schema({"vector": pa.list_(pa.float32(), DIMENSIONS)})
        table = lancedb.connect(folder).create_table("v", parts(), schema=schema)
        began = time.perf_counter()
        table.create_index("vector", config=lancedb.index.IvfPq(distance_type="cosine"))
        made_s = time.perf_counter() - began
        found = timed(lambda query: table.search(query).limit(BEST).to_arrow(), queries)
        size = sum(one.stat().st_size for one in Path(folder).rglob("*") if one.is_file())
    way = f"LanceDB, {made_s:.0f} s"
    return {"vectors": len(vectors), "way": way, **found, "mib": size / 2**20}


def timed(way: Callable[[Vectors], object], queries: Vectors) -> dict[str, float]:
    way(queries[0])
    durations, computed = [], []
    for query in queries:
        start, cpu_start = time.perf_counter(), time.process_time()
        way(query)
        computed.append((time.process_time() - cpu_start) * 1000)
        durations.append((time.perf_counter() - start) * 1000)
    return {
        "median_ms": statistics.median(durations),
        "max_ms": max(durations),
        "cpu_ms": statistics.median(computed),
    }


if __name__ == "__main__":
    main()
