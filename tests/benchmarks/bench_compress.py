"""What the compressor keeps of long documents, what that costs, and whether it keeps its word.

    python tests/benchmarks/bench_compress.py [--json] [--budget 6000] [--documents FOLDER]

On real README files and manual pages (20 in `../shared/data/longdocs`; any folder of `.md` files
will do), each shortened to the budget:

1. Speed, beside the parse alone and a complete parse by the same parser, inline markup included.
2. Promises: budgets met, headings all there and in order, fences balanced, the end kept.
3. The twenty most characteristic words of each section (tf-idf, sections being the documents)
   that are left in it, beside two peers of equal size: the first 85 % and the last 15 % of the
   document, and all headings with an equal share of the beginning of each section.
4. Deterministic checks on the shortened against the full text, out of 10. Those that count what is
   there differ by design, and are listed apart.
5. The evaluation prompt: drafts made of one sentence from each of up to twelve sections, as they
   are, with every third word left out, and with as many false ones among them (of the next
   document, which this one does not support). How many of the true sentences the shortened source
   still supports, by `grounded_sentences`, at three limits for the whole prompt; beside the peers.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from figures import Figure, print_figures
from markdown_it import MarkdownIt

from harness.compress import Section, condense, condense_toward, sections_of, sentences_of
from harness.compress.markdown import blocks_of
from harness.rubric import Draft, load_rubric
from harness.rubric.checks import CHECKS, Check
from harness.rubric.prompt import shown
from harness.rubric.rubric import Shortening
from harness.text.words import terms

DOCUMENTS = Path(__file__).parents[3] / "shared" / "data" / "longdocs"
FOCUS = "A guide that explains how to configure and run it, with examples."
REVISER_BUDGET = 5_000
# What the shipped rubrics `brief` and `summary` exclude.
EXCLUDED = (
    *("TODO", "lorem ipsum", "[insert", "as an AI", "Question:", "Answer:", "write about"),
    *("earlier version", "the text", "the passage", "the document", "the sources"),
    *("this article", "this document", "this text", "this summary", "in summary"),
    *("the author", "the authors", "discusses"),
)
LIMITS = (6_000, 12_000, 24_000)
"""Of evaluation prompts."""
CLAIMS = 12
RUNS = 7


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--budget", type=int, default=6_000)
    arguments.add_argument("--documents", type=Path, default=DOCUMENTS)
    options = arguments.parse_args()
    documents = [p.read_text(encoding="utf-8") for p in sorted(options.documents.glob("*.md"))]
    documents = [document for document in documents if len(document) > options.budget]
    if not documents:
        sys.exit(f"no Markdown files over {options.budget} characters in {options.documents}")
    condensed = [condense(text, budget_chars=options.budget, focus=FOCUS) for text in documents]

    figures = [
        Figure("documents", len(documents)),
        Figure("characters in all", sum(map(len, documents))),
        *speed_figures(documents, options.budget),
        *promise_figures(documents, condensed, options.budget),
        *term_figures(documents, options.budget),
        *check_figures(documents, options.budget),
        *(figure for limit in LIMITS for figure in payload_figures(documents, limit)),
    ]
    print_figures(figures, as_json=options.json)


# --- 1. Speed -----------------------------------------------------------------------------------


def speed_figures(documents: Sequence[str], budget: int) -> list[Figure]:
    """Megabytes a second of this process, the best of several runs that take turns."""
    parser = MarkdownIt("commonmark").enable("table")
    ways: dict[str, Callable[[str], object]] = {
        "condense": lambda text: condense(text, budget_chars=budget, focus=FOCUS),
        "condense around a section": lambda text: condense(
            text, sections=(1,), budget_chars=REVISER_BUDGET, focus=FOCUS, keep_tail_chars=0
        ),
        "condense_toward": lambda text: condense_toward(
            [text], draft=text[:REVISER_BUDGET], budget_chars=budget, focus=FOCUS
        ),
        "the parse alone": blocks_of,
        "markdown-it-py, complete": parser.parse,
    }
    size_mb = sum(len(text.encode()) for text in documents) / 1e6
    best: dict[str, float] = dict.fromkeys(ways, math.inf)
    for _ in range(RUNS):
        for name, way in ways.items():
            start = time.process_time()
            for text in documents:
                way(text)
            best[name] = min(best[name], time.process_time() - start)
    aims = {"condense": "aim ≥ 2"}
    return [
        *(Figure(f"{name}, MB/s", size_mb / best[name], aims.get(name, "")) for name in ways),
        Figure(
            "condense / markdown-it-py, times as fast",
            best["markdown-it-py, complete"] / best["condense"],
        ),
    ]


# --- 2. Promises --------------------------------------------------------------------------------


def promise_figures(
    documents: Sequence[str], condensed: Sequence[str], budget: int
) -> list[Figure]:
    """Shares of the documents; of the reviser's view, of every section cited alone."""
    pairs = list(zip(documents, condensed, strict=True))
    around = [
        (text, index, condense(text, sections=(index,), budget_chars=REVISER_BUDGET))
        for text in documents
        for index in range(len(sections_of(text)))
    ]
    return [
        Figure("budget met", share(len(c) <= budget for c in condensed), "aim 1"),
        Figure("used of the budget", statistics.mean(len(c) / budget for c in condensed)),
        Figure(
            "headings all there and in order",
            share(headings(text) == headings(c) for text, c in pairs),
            "aim 1",
        ),
        Figure("fences balanced", share(balanced(c) for c in condensed), "aim 1"),
        Figure(
            "the last 300 characters kept",
            share(c.endswith(text[-300:]) for text, c in pairs),
            "aim 1",
        ),
        Figure(
            "the same in a second run",
            share(condense(text, budget_chars=budget, focus=FOCUS) == c for text, c in pairs),
            "aim 1",
        ),
        Figure(
            "cited section byte for byte, of all sections",
            share(sections_of(view)[n] == sections_of(text)[n] for text, n, view in around),
            "aim 1",
        ),
        Figure(
            "headings all there and in order around it",
            share(headings(text) == headings(view) for text, _, view in around),
            "aim 1",
        ),
    ]


def headings(markdown: str) -> list[str]:
    return [section.heading.strip() for section in sections_of(markdown) if section.level]


def balanced(markdown: str) -> bool:
    """Whether every block of fenced code ends with its fence."""
    return all(
        block.text.rstrip().splitlines()[-1].strip().startswith(block.fence)
        for block in blocks_of(markdown)
        if block.fence
    )


# --- 3. Characteristic words --------------------------------------------------------------------


def term_figures(documents: Sequence[str], budget: int) -> list[Figure]:
    """Shares kept, without a focus, and their ratios to those of the peers."""
    ours, ends, leads = [], [], []
    numbers: tuple[list[float], list[float]] = ([], [])
    for text in documents:
        shortened = condense(text, budget_chars=budget)
        in_ends, in_leads = head_and_tail(text, len(shortened)), lead(text, len(shortened))
        wanted = characteristic(text)
        ours.append(kept(wanted, [section.text for section in sections_of(shortened)]))
        ends.append(kept(wanted, in_ends))
        leads.append(kept(wanted, in_leads))
        if named := found_numbers(text):
            for shares, peer in zip(numbers, (shortened, "\n".join(in_ends)), strict=True):
                shares.append(len(named & found_numbers(peer)) / len(named))

    def pooled(shares: Sequence[Sequence[float]]) -> float:
        return statistics.mean(share for document in shares for share in document)

    by_document = [
        statistics.mean(mine) / statistics.mean(others)
        for mine, others in zip(ours, ends, strict=True)
    ]
    return [
        Figure("characteristic words kept, mean over all sections", pooled(ours)),
        Figure("of head and tail, equal size", pooled(ends)),
        Figure("of headings and leads, equal size", pooled(leads)),
        Figure("ratio to head and tail, over all sections", pooled(ours) / pooled(ends), "aim 1.5"),
        Figure("ratio to head and tail, mean of documents", statistics.mean(by_document)),
        Figure(
            "ratio to head and tail, of the means of documents",
            statistics.mean(map(statistics.mean, ours))
            / statistics.mean(map(statistics.mean, ends)),
        ),
        Figure("ratio to headings and leads, over all sections", pooled(ours) / pooled(leads)),
        Figure("numbers kept, mean over documents", statistics.mean(numbers[0])),
        Figure("numbers kept by head and tail", statistics.mean(numbers[1])),
    ]


def words(text: str) -> list[str]:
    return re.findall(r"\w{3,}", text.casefold())


def characteristic(text: str) -> list[set[str]]:
    """The twenty words of each section with the highest tf-idf; headings count as text."""
    counts = [Counter(words(section.text)) for section in sections_of(text)]
    sections_with = Counter(word for count in counts for word in count)
    best = []
    for count in counts:
        scores = {w: n * math.log(len(counts) / sections_with[w]) for w, n in count.items()}
        ranked = sorted(scores, key=lambda word: (-scores[word], word))
        best.append({word for word in ranked[:20] if scores[word] > 0})
    return best


def kept(wanted: Sequence[set[str]], texts: Sequence[str]) -> list[float]:
    """Of each section that has characteristic words, the share that its text still has."""
    return [
        len(best & set(words(text))) / len(best)
        for best, text in zip(wanted, texts, strict=True)
        if best
    ]


def head_and_tail(text: str, chars: int) -> list[str]:
    """What each section has left of the first 85 % of so many characters and the last 15 %."""
    head = int(0.85 * chars)
    tail = len(text) - (chars - head)
    left, start = [], 0
    for section in sections_of(text):
        end = start + len(section.text)
        left.append(f"{text[start : min(end, head)]} {text[max(start, tail) : end]}")
        start = end
    return left


def lead(text: str, chars: int) -> list[str]:
    """Each section with its heading and an equal share of the beginning of its body."""
    sections = sections_of(text)
    room = max(chars - sum(len(section.heading) for section in sections), 0)
    share_of = room / sum(len(section.body) for section in sections)
    return [s.heading + s.body[: int(share_of * len(s.body))] for s in sections]


def found_numbers(text: str) -> set[str]:
    return set(re.findall(r"\d+(?:[.,]\d+)*", text))


# --- 4. Checks ----------------------------------------------------------------------------------


def check_figures(documents: Sequence[str], budget: int) -> list[Figure]:
    """How many scores of the shortened text are within 0.5 of those of the full one."""
    compared: dict[str, list[bool]] = {}
    by_design: dict[str, list[bool]] = {}
    unjudged = 0
    for text in documents:
        checks = qualities(text)
        # What an evaluator shortens for: the task and the rubric.
        focus = "\n".join([FOCUS, *(check.requirement for check in checks)])
        short = condense(text, budget_chars=budget, focus=focus)
        for results, some in ((compared, checks), (by_design, counts(text))):
            for check in some:
                full, shown = (
                    check.grade(Draft(text=seen, task=FOCUS, sources=(text,)))
                    for seen in (text, short)
                )
                if full.unjudged or shown.unjudged:
                    unjudged += 1
                    continue
                within = abs(full.share - shown.share) * 10 <= 0.5
                results.setdefault(CHECK_NAMES[type(check)], []).append(within)
    every = [within for results in compared.values() for within in results]
    return [
        Figure("scores of checks within 0.5 of 10, all together", share(every), "aim ≥ 0.95"),
        *(Figure(f"  {name}", share(results)) for name, results in compared.items()),
        Figure("pairs left out: one of the texts has nothing to judge", unjudged),
        *(
            Figure(f"  differs by design: {name}", share(results))
            for name, results in by_design.items()
        ),
    ]


CHECK_NAMES = {check: name for name, check in CHECKS.items()}


def qualities(text: str) -> list[Check]:
    """Checks of how it is written; the document is its own source."""
    titles = {tuple(w for w in terms(s.title) if not w.isdecimal()): s for s in sections_of(text)}
    return [
        CHECKS["finished"](),
        CHECKS["headings"](titles=[s.title for k, s in titles.items() if k]),
        CHECKS["sections"](min=2 * len(titles)),
        CHECKS["excludes"](phrases=EXCLUDED),
        CHECKS["contains_all"](phrases=subjects(text)),
        CHECKS["contains_any"](phrases=subjects(text)),
        CHECKS["regex"](pattern=r"https?://", meaning="a link"),
        CHECKS["no_repetition"](),
        CHECKS["language"](code="en"),
        CHECKS["python"](),
        CHECKS["no_stubs"](),
        CHECKS["grounded_numbers"](),
        CHECKS["grounded_names"](),
        CHECKS["grounded_sentences"](),
    ]


def subjects(text: str) -> list[str]:
    """What a rubric may ask a text to mention: the words characteristic of the most sections."""
    sections_with = Counter(word for best in characteristic(text) for word in best)
    return sorted(sections_with, key=lambda word: (-sections_with[word], word))[:5]


def counts(text: str) -> list[Check]:
    """Checks of how much there is, which the full text just passes."""
    return [
        CHECKS["words"](min=len(text.split())),
        CHECKS["section_words"](min=60),
        CHECKS["items"](min=20),
    ]


# --- 5. The evaluation prompt -------------------------------------------------------------------


def payload_figures(documents: Sequence[str], limit: int) -> list[Figure]:
    """What a source is worth as evidence when it is shortened toward a draft, by rubric `brief`."""
    shorten = Shortening(payload_over=limit)
    rubric = load_rubric("brief").model_copy(update={"shorten": shorten})
    following = [*documents[1:], documents[0]]
    supported: dict[tuple[str, str], list[float]] = {}
    sizes, verbatim, words_kept, words_by_itself, scores = [], [], [], [], []
    whole = 0
    for text, other in zip(documents, following, strict=True):
        true = claims(text)
        for kind, said in drafts_of(text, other).items():
            draft = Draft(text="\n\n".join(said), task=TASK, sources=(text,))
            seen = shown(rubric, draft)
            (view,) = seen.sources
            whole += view == text
            sizes.append(len(view))
            judged = reworded(true) if kind == "reworded" else true
            views = {
                "shown": view,
                "head and tail": "".join(head_and_tail(text, len(view))),
                "equal share of each section": "".join(lead(text, len(view))),
            }
            for name, source in views.items():
                kept_up = [grounded(claim, source) for claim in judged if grounded(claim, text)]
                supported.setdefault((kind, name), []).append(share(kept_up))
            if kind == "as they are":
                verbatim.append(share(claim in view for claim in true))
                scores.append(10 * (graded(draft, text) - graded(draft, view)))
                wanted = characteristic(text)
                words_kept.append(statistics.mean(kept(wanted, aligned(text, view))))
                by_itself = condense(text, budget_chars=len(view))
                words_by_itself.append(statistics.mean(kept(wanted, aligned(text, by_itself))))
    name = f"prompt of {limit:,}"
    return [
        Figure(f"{name}: characters of the source, mean", statistics.mean(sizes)),
        Figure(f"{name}: sources shown whole", whole / len(sizes)),
        *(
            Figure(f"{name}: still supported, sentences {kind}: {way}", statistics.mean(shares))
            for (kind, way), shares in supported.items()
        ),
        Figure(f"{name}: sentences there word for word", statistics.mean(verbatim)),
        Figure(f"{name}: points of 10 that grounded checks would lose", statistics.mean(scores)),
        Figure(f"{name}: characteristic words kept", statistics.mean(words_kept)),
        Figure(f"{name}: the same, not toward the draft", statistics.mean(words_by_itself)),
    ]


TASK = "Write a brief of it."


def claims(text: str) -> list[str]:
    """One sentence of each of up to twelve sections, from the first to the last."""
    first = [
        next((s for s in prose_of(section) if 60 <= len(s) <= 300), "")
        for section in sections_of(text)
    ]
    found = [sentence for sentence in first if sentence]
    step = max(1, len(found) / CLAIMS)
    return [found[int(n * step)] for n in range(min(CLAIMS, len(found)))]


def prose_of(section: Section) -> list[str]:
    """The sentences of a section's second half, where peers that take beginnings have least."""
    found = [s for b in section.blocks if b.kind == "paragraph" for s in sentences_of(b.text)]
    return found[len(found) // 2 :]


def drafts_of(text: str, other: str) -> dict[str, list[str]]:
    """Drafts, each a list of paragraphs."""
    true = claims(text)
    false = [claim for claim in claims(other) if not grounded(claim, text)]
    return {
        "as they are": true,
        "reworded": reworded(true),
        "among false ones": [s for pair in zip_longest(true, false) for s in pair if s],
    }


def reworded(sentences: Sequence[str]) -> list[str]:
    """Every third word left out, which no run of five survives."""
    return [
        " ".join(word for n, word in enumerate(sentence.split()) if n % 3 != 2)
        for sentence in sentences
    ]


def grounded(claim: str, source: str) -> bool:
    return graded(Draft(text=claim, task=TASK), source, "grounded_sentences") == 1


def graded(draft: Draft, source: str, *names: str) -> float:
    """The mean of the checks against sources."""
    names = names or ("grounded_sentences", "grounded_numbers", "grounded_names")
    against = replace(draft, sources=(source,))
    return statistics.mean(CHECKS[name]().grade(against).share for name in names)


def aligned(text: str, view: str) -> list[str]:
    """What each section has left in a view that may lack some."""
    left = list(sections_of(view))
    texts = []
    for section in sections_of(text):
        is_there = left and left[0].heading.strip() == section.heading.strip()
        texts.append(left.pop(0).text if is_there else "")
    return texts


def share(results: Iterable[bool]) -> float:
    found = list(results)
    return sum(found) / len(found) if found else math.nan


if __name__ == "__main__":
    main()
