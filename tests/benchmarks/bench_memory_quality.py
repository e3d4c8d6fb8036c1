"""How well a store finds: nDCG@10 of words, vectors and both, on collections that people judged.

    python tests/benchmarks/bench_memory_quality.py DIRECTORY… [--json] [--before FILE]
        [--embedder wordllama] [--undeclared]

A directory is one of these, by the files in it; none is part of this repository:

    corpus.jsonl, queries.jsonl, qrels/test.tsv    the form of BEIR
    NAME.ALL, NAME.QRY, NAME.REL                   SMART's form: CISI, MED
    doc-text, query-text, rlv-ass                  NPL
    *.json with sessions and questions             LoCoMo: a store for each conversation

LoCoMo's questions are judged by the turns that are their evidence; those without any are left out.
Its turns are declared as turns, or with `--undeclared` stored as plain passages, `Ann: Hello`.
NPL's questions, which are in capitals, are asked in small letters.

`--json` prints the figure of each question. `--before` reads such a file, made with an earlier
version or another embedder, and says what has changed: the mean of the differences, and its 95 %
interval by a paired bootstrap of the questions, 10,000 times.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "memory"))

from judged_collection import JudgedCollection

from harness.memory import Embedder, MemoryStore, Mode, Passage, WordLlamaEmbedder

MODES: tuple[Mode, ...] = ("hybrid", "lexical", "vector")
EMBEDDERS = ("wordllama", "minilm")
RESAMPLES = 10_000

Figures = dict[str, dict[str, dict[str, float]]]
"""nDCG@10 by collection, mode and question."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("directories", nargs="+", type=Path, metavar="DIRECTORY")
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--before", type=Path, metavar="FILE")
    arguments.add_argument("--embedder", choices=EMBEDDERS, default=EMBEDDERS[0])
    arguments.add_argument("--undeclared", action="store_true")
    options = arguments.parse_args()
    before: Figures = json.loads(options.before.read_text()) if options.before else {}
    figures: Figures = {}
    for directory in options.directories:
        name = directory.resolve().name
        figures[name] = {mode: {} for mode in MODES}
        for part, collection in collections_in(directory, declared=not options.undeclared):
            for mode, found in ndcgs(collection, embedder_named(options.embedder)).items():
                figures[name][mode] |= {f"{part}{id_}": ndcg for id_, ndcg in found.items()}
        if not options.json:
            print_table(name, figures[name], before.get(name, {}))
    if options.json:
        print(json.dumps(figures))


def embedder_named(name: str) -> Embedder:
    if name == "wordllama":
        return WordLlamaEmbedder()
    from harness.memory import MiniLmEmbedder

    return MiniLmEmbedder()


def ndcgs(collection: JudgedCollection, embedder: Embedder) -> dict[Mode, dict[str, float]]:
    with (
        tempfile.TemporaryDirectory() as directory,
        MemoryStore.open(directory, embedder=embedder, merge=False) as store,
    ):
        store.add(collection.passages)
        assert store.wait(), "not all passages have a vector"
        return {mode: collection.ndcgs_at_10(store, mode) for mode in MODES}


def print_table(name: str, now: dict[str, dict[str, float]], before: dict[str, dict[str, float]]):
    print(f"{name}, {len(now[MODES[0]])} questions")
    for mode in MODES:
        line = f"  {mode:8} {np.mean(list(now[mode].values())):.3f}"
        if mode in before:
            mean, low, high = difference(before[mode], now[mode])
            line += f"  {mean:+.3f} [{low:+.3f}, {high:+.3f}]"
        print(line, flush=True)


def difference(before: dict[str, float], now: dict[str, float]) -> tuple[float, float, float]:
    """The mean of what each question gained, and the interval."""
    gained = np.array([now[question] - before[question] for question in now])
    random = np.random.default_rng(7)
    drawn = random.integers(0, len(gained), (RESAMPLES, len(gained)))
    low, high = np.quantile(gained[drawn].mean(axis=1), (0.025, 0.975))
    return float(gained.mean()), float(low), float(high)


# --- collections ----------------------------------------------------------------------------------


def collections_in(directory: Path, *, declared: bool) -> Iterator[tuple[str, JudgedCollection]]:
    """The collections of a directory, each with what its questions' ids begin with."""
    if (directory / "corpus.jsonl").exists():
        yield "", JudgedCollection.read(directory)
    elif smart := sorted(directory.glob("*.ALL")):
        yield "", smart_collection(smart[0])
    elif (directory / "doc-text").exists():
        yield "", npl_collection(directory)
    elif conversations := sorted(directory.glob("*.json")):
        for path in conversations:
            yield f"{path.stem}/", conversation(path, declared=declared)
    else:
        raise SystemExit(f"{directory}: no collection of a form that is read here")


def smart_collection(path: Path) -> JudgedCollection:
    documents = smart_records(path)
    questions = smart_records(path.with_suffix(".QRY"))
    rows = [line.split() for line in path.with_suffix(".REL").read_text().splitlines()]
    # CISI: question, document, 0, 0. MED: question, 0, document, 1.
    column = 2 if rows[0][1] == "0" else 1
    return judged(
        {number: (record.get("T", ""), record.get("W", "")) for number, record in documents},
        {number: record.get("W", "") for number, record in questions},
        ((row[0], row[column]) for row in rows if row),
    )


def smart_records(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    for record in re.split(r"^\.I +", path.read_text(errors="replace"), flags=re.MULTILINE)[1:]:
        number, _, rest = record.partition("\n")
        parts = re.split(r"^\.([A-Z])\s*$", rest, flags=re.MULTILINE)
        yield number.strip(), dict(zip(parts[1::2], parts[2::2], strict=True))


def npl_collection(directory: Path) -> JudgedCollection:
    def records(name: str) -> Iterator[tuple[str, str]]:
        text = (directory / name).read_text()
        for record in re.split(r"^ *\/ *$", text, flags=re.MULTILINE):
            number, _, rest = record.strip().partition("\n")
            if number:
                yield number, rest

    return judged(
        {number: ("", text) for number, text in records("doc-text")},
        {number: text.lower() for number, text in records("query-text")},
        ((number, document) for number, row in records("rlv-ass") for document in row.split()),
    )


def judged(
    documents: dict[str, tuple[str, str]],
    questions: dict[str, str],
    relevant: Iterable[tuple[str, str]],
) -> JudgedCollection:
    gains: dict[str, dict[str, int]] = {}
    for question, document in relevant:
        gains.setdefault(question, {})[document] = 1
    return JudgedCollection(
        passages=[
            Passage(id=number, title=" ".join(title.split()), text=" ".join(text.split()))
            for number, (title, text) in documents.items()
            if title.strip() or text.strip()
        ],
        questions={
            number: " ".join(text.split()) for number, text in questions.items() if number in gains
        },
        gains=gains,
    )


def conversation(path: Path, *, declared: bool) -> JudgedCollection:
    data = json.loads(path.read_text())
    sessions = sorted(
        (key for key in data if re.fullmatch(r"session_\d+", key)),
        key=lambda key: int(key.removeprefix("session_")),
    )
    turns = [turn for key in sessions for turn in data[key]]
    there = {turn["dia_id"] for turn in turns}
    questions, gains = {}, {}
    for number, row in enumerate(data["qa"]):
        if evidence := {dia for dia in row["evidence"] if dia in there}:
            questions[str(number)] = row["question"]
            gains[str(number)] = dict.fromkeys(evidence, 1)
    passages = [
        turn_passage(path.stem, position, turn, declared=declared)
        for position, turn in enumerate(turns)
        if turn["text"].strip()
    ]
    return JudgedCollection(passages=passages, questions=questions, gains=gains)


def turn_passage(name: str, position: int, turn: dict[str, str], *, declared: bool) -> Passage:
    id_, speaker, text = turn["dia_id"], turn["speaker"], turn["text"]
    if not declared:
        return Passage(id=id_, text=f"{speaker}: {text}")
    from harness.memory import Turn

    declaration = Turn(conversation=name, position=position, speaker=speaker)
    return Passage(id=id_, text=text, turn=declaration)


if __name__ == "__main__":
    main()
