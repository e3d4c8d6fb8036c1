"""The memory store: how well it finds, and how fast, beside LanceDB, Chroma and SQLite FTS5.

    python tests/benchmarks/bench_memory.py [--json] [--quality [DIRECTORY]] [--speed]
        [--passages 50000] [--growth] [--systems ours FTS5 …] [--turn-s 2]

For a quiet machine, and the extra `bench`. Without a part: the quality and the speed.

--quality   nDCG@10 on a collection in the form of BEIR, Cranfield unless another is named: all with
            the defaults.
--speed     Searching, writing and opening, on the same passages with the same vectors. What the
            peers are set to is in `memory_peers.py`; the passages are from `memory_corpus.py`.
--growth    The speed at 50,000 passages and at 500,000, and what became of each figure.

A search is from a text to ten passages with theirs, its embedding included. Systems take turns at
it, all of them open, so that a noisy moment hits all. `true nearest` is the share of a vector
search's hits that are among as many true nearest passages. Ingesting is timed with the vectors at
hand, until the indexes are made and a search has found something; the embedder's own speed is told
apart. An add is of one passage; it is found when a search that follows returns it. Opening is by a
new process that has imported all before, with the files in the system's cache.

Aims: on Cranfield, hybrid 0.38 and the best of all, lexical 0.365; at 50,000 passages hybrid in
3 ms at the median, LanceDB 15 times that, FTS5 50 times our lexical search, open in 200 ms.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from random import Random
from statistics import mean, median
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent.parent / "memory"))

from judged_collection import CRANFIELD, JudgedCollection
from memory_corpus import Corpus

from harness.memory import MemoryStore, Mode, Passage, WordLlamaEmbedder

MODES: tuple[Mode, ...] = ("hybrid", "lexical", "vector")
OURS = "ours"
SYSTEMS = (OURS, "LanceDB", "LanceDB-IVF", "Chroma", "FTS5")
SIZES = (50_000, 500_000)
LIMIT, BATCH = 10, 5_000
TURNS = 5
CLIENTS = 8
ADDS, OPENINGS = 30, 3

Vectors = NDArray[np.float32]
Figures = dict[str, dict[str, float]]
"""What was measured, by system: a table's rows, and the cells of each."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--quality", nargs="?", type=Path, const=CRANFIELD, metavar="DIRECTORY")
    arguments.add_argument("--speed", action="store_true")
    arguments.add_argument("--passages", type=int, default=SIZES[0])
    arguments.add_argument("--growth", action="store_true")
    arguments.add_argument("--turn-s", type=float, default=2.0)
    arguments.add_argument("--systems", nargs="+", default=SYSTEMS, choices=SYSTEMS)
    arguments.add_argument("--open", nargs=2, metavar=("SYSTEM", "DIRECTORY"), help="internal")
    options = arguments.parse_args()
    if options.open:
        open_alone(options.open[0], Path(options.open[1]))
        return
    everything = not (options.quality or options.speed or options.growth)
    parts: list[Iterator[Part]] = []
    if options.quality or everything:
        parts.append(quality(options.quality or CRANFIELD))
    if options.growth:
        parts.append(growth(options.systems, options.turn_s))
    elif options.speed or everything:
        parts.append(speed(options.passages, options.systems, options.turn_s))
    if options.json:
        print(json.dumps({part.title: part.figures for part in itertools.chain(*parts)}, indent=2))
        return
    for part in itertools.chain(*parts):
        print_part(part)


class Part(NamedTuple):
    """A table, printed as soon as it is known."""

    title: str
    figures: Figures


# --- 1. Quality ---------------------------------------------------------------------------------


def quality(directory: Path) -> Iterator[Part]:
    collection = JudgedCollection.read(directory)
    embedder = WordLlamaEmbedder()
    figures: Figures = {}
    with tempfile.TemporaryDirectory() as kept, MemoryStore.open(kept, embedder=embedder) as store:
        added = store.add(collection.passages)
        say(
            f"{directory.name}: {len(added.new):,} passages new, {len(added.merged)} merged, "
            f"{len(added.refused)} refused; {len(collection.questions)} questions"
        )
        for mode in MODES:
            figures[mode] = {"nDCG@10": collection.ndcg_at_10(store, mode)}
    yield Part(directory.name, figures)


# --- 2. Speed -----------------------------------------------------------------------------------


class System(Protocol):
    """A store of passages in a directory, made there when it is opened for the first time."""

    modes: ClassVar[tuple[Mode, ...]]

    def load(self, passages: Sequence[Passage]) -> None:
        """Stores passages, as many at once as suits it, and makes its indexes."""

    def add(self, passage: Passage) -> None:
        """Stores one more."""

    def search(self, query: str, mode: Mode) -> list[str]:
        """The ids of the best passages, best first; their titles and texts were read too."""

    def close(self) -> None: ...


class Ours:
    modes: ClassVar[tuple[Mode, ...]] = MODES

    def __init__(self, directory: Path, embedder: VectorsAtHand) -> None:
        self._store = MemoryStore.open(directory, embedder=embedder)

    def load(self, passages: Sequence[Passage]) -> None:
        for start in range(0, len(passages), BATCH):
            self._store.add(passages[start : start + BATCH])
        self._store.wait()

    def add(self, passage: Passage) -> None:
        self._store.add([passage])

    def search(self, query: str, mode: Mode) -> list[str]:
        return [hit.id for hit in self._store.search(query, limit=LIMIT, mode=mode)]

    def close(self) -> None:
        self._store.close()


class VectorsAtHand:
    """wordllama's, with some texts embedded before."""

    def __init__(self) -> None:
        self._embedder = WordLlamaEmbedder()
        self._vectors: dict[str, NDArray[np.float32]] = {}
        self.name = self._embedder.name
        self.dimensions = self._embedder.dimensions
        self.embed(["The weights are read at the first call."])

    def keep(self, texts: Sequence[str]) -> Vectors:
        vectors = self._embedder.embed(texts)
        self._vectors = dict(zip(texts, vectors, strict=True))
        return vectors

    def embed(self, texts: Sequence[str]) -> Vectors:
        if all(text in self._vectors for text in texts):
            return np.array([self._vectors[text] for text in texts])
        return self._embedder.embed(texts)


def opened(system: str, directory: Path, embedder: VectorsAtHand) -> System:
    if system == OURS:
        return Ours(directory, embedder)
    import memory_peers

    return memory_peers.PEERS[system](directory, embedder)


def growth(names: Sequence[str], turn_s: float) -> Iterator[Part]:
    small, *_ = parts = list(speed(SIZES[0], names, turn_s))
    yield from parts
    large, *_ = parts = list(speed(SIZES[1], names, turn_s))
    yield from parts
    yield Part(
        f"{large.title} / {small.title}",
        {
            figure: {system: value / small.figures[figure][system] for system, value in row.items()}
            for figure, row in large.figures.items()
        },
    )


def speed(size: int, names: Sequence[str], turn_s: float) -> Iterator[Part]:
    # 1. Passages and their vectors.
    corpus = Corpus.read()
    passages = list(corpus.passages(size))
    queries = corpus.queries()
    embedder = VectorsAtHand()
    say(f"embedding {size:,} passages")
    begun = time.perf_counter()
    vectors = embedder.keep([passage.searchable for passage in passages])
    figures: Figures = {
        "the embedder alone, passages/s": {OURS: size / (time.perf_counter() - begun)}
    }
    # 2. Into each system.
    with tempfile.TemporaryDirectory() as kept:
        places = {name: Path(kept) / name for name in names}
        systems = {name: opened(name, place, embedder) for name, place in places.items()}
        for name, system in systems.items():
            say(f"{name}: ingesting")
            begun = time.perf_counter()
            system.load(passages)
            for mode in system.modes:
                assert system.search(queries[0], mode), f"{name} found nothing by {mode}"
            put(figures, "ingesting, passages/s", name, size / (time.perf_counter() - begun))
        # 3. Searched by turns, then written to, and opened anew.
        search_figures(figures, systems, queries, turn_s)
        for name, system in systems.items():
            if "vector" in system.modes:
                share = truth_of(system, passages, vectors, queries, embedder)
                put(figures, "vector, true nearest", name, share)
        for name, system in systems.items():
            say(f"{name}: adding")
            add_figures(figures, name, system, corpus)
            system.close()
        for name, place in places.items():
            say(f"{name}: opening")
            open_figures(figures, name, place)
    yield Part(f"{size:,} passages", figures)
    yield Part(f"{size:,} passages: times ours", dict(times_ours(figures)))


# --- Searching


def search_figures(
    figures: Figures, systems: dict[str, System], queries: Sequence[str], turn_s: float
) -> None:
    lanes = [(name, mode) for mode in MODES for name in systems if mode in systems[name].modes]
    alone: dict[tuple[str, Mode], list[float]] = {lane: [] for lane in lanes}
    together: dict[tuple[str, Mode], list[float]] = {lane: [] for lane in lanes}
    with ThreadPoolExecutor(CLIENTS) as threads:
        for turn in range(TURNS + 1):
            say(f"searching, turn {turn} of {TURNS}")
            if turn == 1:  # in the one before everybody warmed up
                for warm in (*alone.values(), *together.values()):
                    warm.clear()
            for name, mode in lanes:
                # Each is asked the same in the same order, as far as it comes.
                asked = itertools.cycle(queries[turn * len(queries) // (TURNS + 1) :])
                ask = partial(searches, systems[name], mode, asked, turn_s)
                alone[name, mode] += ask()
                running = [threads.submit(ask) for _ in range(CLIENTS)]
                together[name, mode] += [ms for thread in running for ms in thread.result()]
    for name, mode in lanes:
        for clients, times in (("one client", alone), (f"{CLIENTS} threads", together)):
            ms = times[name, mode]
            put(figures, f"{mode}, {clients}, p50, ms", name, float(np.quantile(ms, 0.50)))
            put(figures, f"{mode}, {clients}, p95, ms", name, float(np.quantile(ms, 0.95)))
        per_s = len(together[name, mode]) / (TURNS * turn_s)
        put(figures, f"{mode}, {CLIENTS} threads, searches/s", name, per_s)


def searches(system: System, mode: Mode, queries: Iterator[str], turn_s: float) -> list[float]:
    """The milliseconds of each of those that a turn has time for."""
    took = []
    until = time.perf_counter() + turn_s
    while (begun := time.perf_counter()) < until:
        system.search(next(queries), mode)
        took.append((time.perf_counter() - begun) * 1e3)
    return took


def truth_of(
    system: System,
    passages: Sequence[Passage],
    vectors: Vectors,
    queries: Sequence[str],
    embedder: VectorsAtHand,
) -> float:
    """See the beginning; of as many, since ours leaves out what has nothing to do with a query."""
    shares = []
    for query in queries[:100]:
        found = system.search(query, "vector")
        cosines = vectors @ embedder.embed([query])[0]
        nearest = np.argsort(-cosines)[: len(found)].tolist()
        if found:
            shares.append(len({passages[row].id for row in nearest} & set(found)) / len(found))
    return mean(shares)


# --- Writing and opening


def add_figures(figures: Figures, name: str, system: System, corpus: Corpus) -> None:
    random = Random(8)
    added, found = [], []
    for _ in range(ADDS):
        # Short, so that it can be asked for by all it says, in any mode.
        text = f"{random.choice(corpus.sentences)} Its mark is {random.getrandbits(40):x}."
        passage = Passage(text=text, title=random.choice(corpus.headings))
        begun = time.perf_counter()
        system.add(passage)
        added.append((time.perf_counter() - begun) * 1e3)
        while passage.id not in system.search(passage.searchable, system.modes[0]):
            assert time.perf_counter() - begun < 30, f"{name} does not find what was added"
        found.append((time.perf_counter() - begun) * 1e3)
    put(figures, "adding one, p50, ms", name, median(added))
    put(figures, "adding one until it is found, p50, ms", name, median(found))
    put(figures, "adding one until it is found, p95, ms", name, float(np.quantile(found, 0.95)))


def open_figures(figures: Figures, name: str, place: Path) -> None:
    command = [sys.executable, __file__, "--open", name, str(place)]
    said = [
        json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        for _ in range(OPENINGS)
    ]
    opening, found = map(median, zip(*said, strict=True))
    put(figures, "opening, ms", name, opening)
    put(figures, "opening until a search has found, ms", name, found)


def open_alone(name: str, place: Path) -> None:
    """Prints the milliseconds until it is open, and until a search has found something."""
    embedder = VectorsAtHand()
    with tempfile.TemporaryDirectory() as other:
        opened(name, Path(other), embedder).close()  # imports all it needs
    begun = time.perf_counter()
    system = opened(name, place, embedder)
    is_open = time.perf_counter()
    assert system.search("how a transaction is committed", system.modes[0])
    found = time.perf_counter()
    print(json.dumps([(is_open - begun) * 1e3, (found - begun) * 1e3]))
    system.close()


# --- Figures ------------------------------------------------------------------------------------


def put(figures: Figures, figure: str, system: str, value: float) -> None:
    figures.setdefault(figure, {})[system] = value


def times_ours(figures: Figures) -> Iterator[tuple[str, dict[str, float]]]:
    """How many times as long as ours the others take."""
    for figure, row in figures.items():
        if "p50" in figure and OURS in row and len(row) > 1:
            yield (
                figure.removesuffix(", ms"),
                {system: value / row[OURS] for system, value in row.items()},
            )


def print_part(part: Part) -> None:
    named = {name for row in part.figures.values() for name in row}
    systems = [name for name in SYSTEMS if name in named] or sorted(named)
    print(f"\n{part.title:<44}" + "".join(f"{name:>14}" for name in systems))
    for figure, row in part.figures.items():
        cells = (f"{row[name]:>14,.4g}" if name in row else f"{'':>14}" for name in systems)
        print(f"{figure:<44}" + "".join(cells), flush=True)


def say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
