"""The memory store on PostgreSQL beside the one in a directory, on one machine.

    python tests/benchmarks/bench_postgres.py [--json] [--passages 50000] [--adds 60]

For a quiet machine, with a PostgreSQL server that `tests/memory/postgres.py` finds; it is started
on loopback, durable as it is by default. Both stores hold the same passages with the same vectors.

- copy: `harness memory copy` from the directory to the server, with all vectors.
- search: hybrid, limit 10, the two in turns, embedding the query included.
- open: the index is there, the vectors are read.
- lag: another process adds single passages; from the moment that its `add` begins or returns until
  a search by words finds it here. This one looks every 5 ms.
- burst: 2,000 passages that another process adds, until the indexes here have read them all.

Aims: the search at most 1.1 times the directory's at the median, the lag under 1 s at p95.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

sys.path.insert(0, str(Path(__file__).parent.parent / "memory"))

import postgres
from memory_corpus import Corpus

from harness.memory import MemoryStore, Passage, PrimaryStore, WordLlamaEmbedder, copy, place_of

BATCH, LIMIT, ROUNDS, BURST = 5_000, 10, 3, 2_000
CALM_S = 0.2


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--passages", type=int, default=50_000)
    arguments.add_argument("--adds", type=int, default=60)
    arguments.add_argument("--write", nargs=3, metavar=("URL", "CACHE", "COUNT"))
    options = arguments.parse_args()
    if options.write:
        return write(*options.write)
    if reason := postgres.missing():
        raise SystemExit(reason)
    with (
        postgres.server(durable=True) as server,
        tempfile.TemporaryDirectory(prefix="bench-postgres-") as folder,
    ):
        rows = measured(server.url("bench"), Path(folder), options.passages, options.adds)
    if options.json:
        print(json.dumps(rows, indent=2))
        return None
    for name, value in rows.items():
        print(
            f"{name:<44}{value:>12,.2f}" if isinstance(value, float) else f"{name:<44}{value:>12,}"
        )
    return None


def measured(url: str, folder: Path, count: int, adds: int) -> dict[str, float]:
    corpus = Corpus.read()
    embedder = WordLlamaEmbedder()
    rows: dict[str, float] = {"passages": count}
    # 1. The same in both.
    began = time.perf_counter()
    with MemoryStore.open(folder / "m", embedder=embedder) as store:
        passages = list(corpus.passages(count))
        for start in range(0, count, BATCH):
            store.add(passages[start : start + BATCH])
    rows["directory: added and embedded, passages/s"] = count / (time.perf_counter() - began)
    began = time.perf_counter()
    source, target = PrimaryStore.open(folder / "m"), PrimaryStore.open(place_of(url), cache=folder)
    copy(source, target, lambda *_: None)
    rows["server: copied with vectors, passages/s"] = count / (time.perf_counter() - began)
    rows["server: bytes a passage"] = target.database.size_bytes() / count
    source.close()
    target.close()
    # 2. Opening, the second time.
    for name, place in (("directory", folder / "m"), ("server", url)):
        for _ in range(2):
            began = time.perf_counter()
            MemoryStore.open(place, embedder=embedder, cache=folder).close()
        rows[f"{name}: open, ms"] = (time.perf_counter() - began) * 1000
    files = (folder / "m" / "lexical").rglob("*")
    rows["index of words, bytes a passage"] = sum(one.stat().st_size for one in files) / count
    # 3. Searching, in turns.
    with (
        MemoryStore.open(folder / "m", embedder=embedder) as local,
        MemoryStore.open(url, embedder=embedder, cache=folder) as shared,
    ):
        took: dict[str, list[float]] = {"directory": [], "server": []}
        for turn in range(ROUNDS + 1):
            for query in corpus.queries():
                found = {}
                for name, store in (("directory", local), ("server", shared)):
                    began = time.perf_counter()
                    found[name] = [hit.id for hit in store.search(query, limit=LIMIT)]
                    if turn:  # the first is for warming up
                        took[name].append((time.perf_counter() - began) * 1000)
                assert found["directory"] == found["server"], query
        for name, times in took.items():
            rows[f"{name}: search p50, ms"] = median(times)
            rows[f"{name}: search p95, ms"] = quantiles(times, n=20)[-1]
        rows["server / directory: search p50"] = median(took["server"]) / median(took["directory"])
        # 4. Lag.
        since_return, since_begin = lags(url, folder / "other", shared, adds)
        rows["lag after add returned p50, ms"] = median(since_return)
        rows["lag after add returned p95, ms"] = quantiles(since_return, n=20)[-1]
        rows["lag after add began p95, ms"] = quantiles(since_begin, n=20)[-1]
        rows["lag max, ms"] = max(since_begin)
        before = len(shared)
        writer = run_writer(url, folder / "other", -BURST)
        writer.wait()
        while shared.behind or len(shared) < before + BURST:
            time.sleep(0.005)
        rows[f"burst of {BURST:,}: all read after the writer's end, ms"] = (
            time.perf_counter() - float(writer.stdout.read())
        ) * 1000
    return rows


def lags(url: str, cache: Path, store: MemoryStore, adds: int) -> tuple[list[float], list[float]]:
    since_return, since_begin = [], []
    writer = run_writer(url, cache, adds)
    for line in writer.stdout:
        word, began, returned = line.split()
        while not store.search(word, mode="lexical", limit=1):
            time.sleep(0.005)
        now = time.perf_counter()
        since_return.append((now - float(returned)) * 1000)
        since_begin.append((now - float(began)) * 1000)
    writer.wait()
    return since_return, since_begin


def run_writer(url: str, cache: Path, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--write", url, str(cache), str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def write(url: str, cache: str, count: str) -> None:
    """Adds single passages, or a negative number at once; says when."""
    with MemoryStore.open(url, embedder=WordLlamaEmbedder(), cache=Path(cache)) as store:
        if int(count) < 0:
            stamp = time.time_ns()
            store.add(Passage(text=f"burst{stamp} number{n}") for n in range(-int(count)))
            print(time.perf_counter(), flush=True)
        for number in range(max(0, int(count))):
            time.sleep(CALM_S)
            word = f"zq{number}x{time.time_ns()}"
            began = time.perf_counter()
            store.add([Passage(text=f"the word {word}")])
            print(word, began, time.perf_counter(), flush=True)


if __name__ == "__main__":
    main()
