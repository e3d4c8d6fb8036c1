"""What four candidates of a section cost, against one, on a server that batches.

    python tests/benchmarks/bench_candidates.py --url http://127.0.0.1:8000/v1 \\
        --model-id NAME [--backend vllm] [--trials 5] [--json]

Every trial revises two drafts that the server has not seen, of which one section was criticized:
one with a single candidate, the other with four. The calls are the reviser's own, through the
shim: two prompts of two candidates each, with the same sources at their beginning. How long a small
model talks is chance: a reply has room for two sentences, and mostly fills it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

from harness import ChatRequest, open_shim
from harness.compress import sections_of
from harness.inference import Client, Completion, Endpoint
from harness.rubric import Checked, Dimension, DimensionScore, Draft, Finding, Rubric, reach_verdict
from harness.session import Settings
from harness.wiggum import Reviser, Round
from harness.wiggum.prompts import FailedDraft, RevisionPrompts

DOCUMENT = Path(__file__).parents[2] / "examples" / "documents" / "one-machine-two-models.md"
PRODUCER = "producer"
AIM = 1.6
REPLY_TOKENS = 64
STARTED_NS = time.time_ns()
"""In every draft, so that a server that was asked before has not seen it either."""

RUBRIC = Rubric(
    title="Guide", dimensions=(Dimension(name="clear", judge="Does every section say what to do?"),)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Revised:
    """One draft, revised."""

    candidates: int
    calls: int
    seconds: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--url", required=True)
    arguments.add_argument("--model-id", required=True)
    arguments.add_argument("--backend", default="vllm")
    arguments.add_argument("--trials", type=int, default=5)
    arguments.add_argument("--json", action="store_true")
    options = arguments.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    # vLLM's engine for CPUs dies of a seed: the candidates differ by chance.
    writer = Endpoint(
        tag=PRODUCER,
        url=options.url,
        model_id=options.model_id,
        backend=options.backend,
        drop=("seed",),
    )
    pairs = asyncio.run(trials(writer, options.trials))
    ratio = statistics.median(four.seconds / one.seconds for one, four in pairs)
    if options.json:
        rows = [{"one": asdict(one), "four": asdict(four)} for one, four in pairs]
        print(json.dumps({"median_ratio": ratio, "aim": AIM, "trials": rows}, indent=2))
        return
    print("trial  candidates  calls  seconds  prompt  cached  written  to one")
    for number, pair in enumerate(pairs, start=1):
        for row in pair:
            print(
                f"{number:>5}{row.candidates:>12}{row.calls:>7}{row.seconds:>9.2f}"
                f"{row.prompt_tokens:>8}{row.cached_tokens:>8}{row.output_tokens:>9}"
                f"{row.seconds / pair[0].seconds:>8.2f}"
            )
    print(f"\nfour candidates / one, median: {ratio:.2f}  aim ≤ {AIM:g}")


async def trials(writer: Endpoint, count: int) -> list[tuple[Revised, Revised]]:
    """One candidate and four, of a new draft each; the first of all is thrown away."""
    pairs = []
    async with open_shim(settings=Settings(endpoints={PRODUCER: writer})) as shim:
        for number in range(count + 1):
            one = await revised(shim, drawn(2 * number), candidates=1)
            four = await revised(shim, drawn(2 * number + 1), candidates=4)
            pairs.append((one, four))
            print(f"trial {number} of {count}", file=sys.stderr)
    return pairs[1:]


def drawn(number: int) -> Draft:
    """A draft of two sections, with sources that begin like no others."""
    parts = DOCUMENT.read_text(encoding="utf-8").split("\n## ")[1:]
    chosen = [parts[(number + step) % len(parts)].strip() for step in range(2)]
    return Draft(
        text="\n\n".join(f"## {part[:400]}" for part in chosen),
        task="What should an engineer do first about this?",
        sources=tuple(f"Note {number} of {STARTED_NS}. {part[:1_200]}" for part in chosen),
    )


async def revised(shim: Client, draft: Draft, *, candidates: int) -> Revised:
    """Revises the first section, and adds up what the calls took."""
    replies: list[Completion] = []

    async def ask(request: ChatRequest) -> Completion:
        completion = await shim.chat(request)
        replies.append(completion)
        return completion

    finding = Finding("say it more plainly", sections_of(draft.text)[0].title, 0)
    failed = DimensionScore(
        name="clear", score=5, source="judged", reason="it is vague", findings=(finding,)
    )
    first = Round(number=1, draft=draft.text, verdict=reach_verdict(RUBRIC, [failed]))
    reviser = Reviser(
        ask=ask,
        model=PRODUCER,
        max_output_tokens=REPLY_TOKENS,
        prompts=RevisionPrompts.of(RUBRIC),
        candidates=candidates,
        check=lambda _: Checked(),
    )
    begun = time.perf_counter()
    await reviser.revise(FailedDraft(draft, (failed,), (first,)))
    seconds = time.perf_counter() - begun
    usages = [reply.usage for reply in replies if reply.usage is not None]
    return Revised(
        candidates=candidates,
        calls=len(replies),
        seconds=seconds,
        prompt_tokens=sum(usage.input_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens or 0 for usage in usages),
        output_tokens=sum(usage.output_tokens for usage in usages),
    )


if __name__ == "__main__":
    main()
