"""What a shortened text still says, beside lead, random sentences and TextRank, by budget.

    python tests/benchmarks/bench_compress_peers.py [--json] [--documents FOLDER] [--prose FILE]

- `--prose`: JSON Lines with `document` and the `references` that people wrote of it, or in the form
  of SQuALITY (Wang et al. 2022, CC BY 4.0; github.com/nyu-mll/SQuALITY, `data/v1-3/txt`: science
  fiction of 20 to 40 thousand characters, each with four summaries): the share of a reference's
  words, without stop words, that the shortened text has; the mean over references.
- `--documents` (20 in `../shared/data/longdocs`): the same share of the words that are most
  characteristic of its sections, by tf-idf among them.

All have the same budget. `lead` is the beginning; `random` takes whole sentences, the mean of five
seeds; `TextRank` ranks sentences by PageRank over their common words (Mihalcea and Tarau, 2004).
Sentences stay in order. Differences are means of documents with 95 % intervals from 2,000 bootstrap
samples of them.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from bench_compress import DOCUMENTS, characteristic, words

from harness.compress import condense, sentences_of
from harness.text.words import terms

BUDGETS = (1_300, 3_000, 6_000, 10_000)
SEEDS = 5
BOOTSTRAPS = 2_000

Text = tuple[str, Callable[[str], float]]
"""A document, and how much of what is wanted a shortened one has, from 0 to 1."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--documents", type=Path, default=DOCUMENTS)
    arguments.add_argument("--prose", type=Path)
    options = arguments.parse_args()
    corpora = {"documents": list(manuals_in(options.documents))}
    if options.prose is not None:
        corpora["prose"] = list(prose_in(options.prose))
    rows = [
        row_of(name, texts, budget)
        for name, texts in corpora.items()
        if texts
        for budget in BUDGETS
    ]
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{'':<22}{'budget':>7}{'ours':>7}{'lead':>7}{'random':>8}{'TextRank':>9}", end="")
    print("   ours - lead, - random, - TextRank")
    for row in rows:
        means = "".join(f"{row[way]:>8.3f}" for way in ("ours", "lead", "random", "TextRank"))
        against = ", ".join(
            "{:+.3f} [{:+.3f}, {:+.3f}]".format(*row[f"ours - {way}"])
            for way in ("lead", "random", "TextRank")
        )
        print(f"{row['texts']:>3} {row['corpus']:<18}{row['budget']:>7}{means}   {against}")


def prose_in(path: Path) -> Iterable[Text]:
    for line in path.read_text(encoding="utf-8").splitlines():
        said = json.loads(line)
        references = said.get("references") or [
            response["response_text"]
            for question in said["questions"][:1]  # asks for the plot
            for response in question["responses"]
        ]
        wanted = [set(terms(one)) for one in references]

        def has(text: str, wanted: Sequence[set[str]] = wanted) -> float:
            there = set(terms(text))
            return statistics.fmean(len(one & there) / len(one) for one in wanted if one)

        yield said["document"], has


def manuals_in(folder: Path) -> Iterable[Text]:
    for path in sorted(folder.glob("*.md")):
        document = path.read_text(encoding="utf-8")
        wanted = set[str]().union(*characteristic(document))

        def has(text: str, wanted: set[str] = wanted) -> float:
            return len(wanted & set(words(text))) / len(wanted)

        yield document, has


def row_of(corpus: str, texts: Sequence[Text], budget: int) -> dict[str, object]:
    longer = [(document, has) for document, has in texts if len(document) > budget]
    shares = {
        "ours": [has(condense(one, budget_chars=budget).text) for one, has in longer],
        "lead": [has(one[:budget]) for one, has in longer],
        "random": [
            statistics.fmean(has(at_random(one, budget, seed)) for seed in range(SEEDS))
            for one, has in longer
        ],
        "TextRank": [has(by_text_rank(one, budget)) for one, has in longer],
    }
    return {
        "corpus": corpus,
        "texts": len(longer),
        "budget": budget,
        **{way: statistics.fmean(values) for way, values in shares.items()},
        **{
            f"ours - {way}": interval(shares["ours"], shares[way])
            for way in shares
            if way != "ours"
        },
    }


def at_random(document: str, budget: int, seed: int) -> str:
    sentences = sentences_of(document)
    return fitting(
        sentences, random.Random(seed).sample(range(len(sentences)), len(sentences)), budget
    )


def by_text_rank(document: str, budget: int) -> str:
    sentences = sentences_of(document)
    said = [set(terms(one)) for one in sentences]
    common = np.array([[len(a & b) if a is not b else 0 for b in said] for a in said], dtype=float)
    sizes = np.array([math.log(1 + len(one)) for one in said])
    weights = common / np.maximum(sizes[:, None] + sizes[None, :], 1)
    weights /= np.maximum(weights.sum(axis=1, keepdims=True), 1e-9)
    rank = np.full(len(said), 1 / len(said))
    for _ in range(50):
        rank = 0.15 / len(said) + 0.85 * weights.T @ rank
    return fitting(sentences, np.argsort(-rank, kind="stable").tolist(), budget)


def fitting(sentences: Sequence[str], order: Sequence[int], budget: int) -> str:
    """The first of them that fit, in the order of the text."""
    kept, room = [], budget
    for number in order:
        if len(sentences[number]) < room:
            kept.append(number)
            room -= len(sentences[number]) + 1
    return " ".join(sentences[number] for number in sorted(kept))


def interval(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    differences = np.array(ours) - np.array(theirs)
    drawn = np.random.default_rng(1).choice(differences, size=(BOOTSTRAPS, len(differences)))
    low, high = np.quantile(drawn.mean(axis=1), [0.025, 0.975])
    return float(differences.mean()), float(low), float(high)


if __name__ == "__main__":
    main()
