"""What it costs to judge six dimensions in a call each, against one, where prefixes are cached.

    python tests/benchmarks/bench_split_evaluation.py --url http://127.0.0.1:8000/v1 \\
        --model-id NAME [--backend vllm] [--trials 5] [--json]

The rubric is the shipped `synthesis`, which is judged by dimension. Every trial has a draft and a
task that the server has not seen, judged once on the first dimension alone and once on all six:
what is cached before is what always is, the instructions and the rubric. The calls go through the
shim, with the evaluator's own order: one ahead, the others once it answers. How long a small model
talks is chance, and would decide the ratio: every reply is cut at as many tokens as a reason, an
issue and a score take, and a whole one is put in its place, so that none is asked for twice.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import structlog

from harness import ChatRequest, open_shim
from harness.inference import Client, Completion, Endpoint
from harness.rubric import Dimension, Draft, Rubric, load_rubric
from harness.rubric.judge import Case, judge
from harness.rubric.prompt import shown
from harness.session import Settings

ROOT = Path(__file__).parent.parent.parent
DOCUMENT = ROOT / "examples/documents/one-machine-two-models.md"
JUDGE = "evaluator"
AIM = 2.5
REPLY_TOKENS = 100
STARTED_NS = time.time_ns()
"""In every task, so that a server that was asked before has not seen it either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One evaluation of one draft."""

    dimensions: int
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
    # vLLM's engine for CPUs dies of a seed; nothing here is sampled but repairs.
    judge = Endpoint(
        tag=JUDGE,
        url=options.url,
        model_id=options.model_id,
        backend=options.backend,
        drop=("seed",),
    )
    pairs = asyncio.run(trials(judge, options.trials))
    ratios = [six.seconds / one.seconds for one, six in pairs]
    ratio = statistics.median(ratios)
    if options.json:
        rows = [{"one": asdict(one), "six": asdict(six)} for one, six in pairs]
        print(json.dumps({"median_ratio": ratio, "aim": AIM, "trials": rows}, indent=2))
        return
    print("trial  dimensions  seconds  prompt  cached   share  written  to one")
    for number, pair in enumerate(pairs, start=1):
        for evaluation in pair:
            share = evaluation.cached_tokens / evaluation.prompt_tokens
            print(
                f"{number:>5}{evaluation.dimensions:>12}"
                f"{evaluation.seconds:>9.2f}{evaluation.prompt_tokens:>8}"
                f"{evaluation.cached_tokens:>8}{share:>8.1%}{evaluation.output_tokens:>9}"
                f"{evaluation.seconds / pair[0].seconds:>8.2f}"
            )
    print(f"\nsix dimensions / one, median: {ratio:.2f}  aim ≤ {AIM:g}")


async def trials(judge: Endpoint, count: int) -> list[tuple[Evaluation, Evaluation]]:
    """One dimension and six, of a new draft each; the first of all is thrown away."""
    rubric = load_rubric("synthesis", directory=ROOT / "rubrics")
    parts = DOCUMENT.read_text(encoding="utf-8").split("\n## ")[1:]
    pairs = []
    async with open_shim(settings=Settings(endpoints={JUDGE: judge})) as shim:
        for number in range(count + 1):
            one = await evaluated(shim, rubric, rubric.judged[:1], drawn(parts, 2 * number))
            six = await evaluated(shim, rubric, rubric.judged, drawn(parts, 2 * number + 1))
            pairs.append((one, six))
            print(f"trial {number} of {count}", file=sys.stderr)
    return pairs[1:]


def drawn(parts: Sequence[str], number: int) -> Draft:
    """A draft that differs from all others in its task, and so in all that follows it."""
    chosen = [parts[(number + step) % len(parts)] for step in range(4)]
    return Draft(
        text="\n\n".join(f"## {part.strip()}" for part in chosen[:2])[:3_000],
        task=f"Question {number} of {STARTED_NS}: what should an engineer do first about this?",
        sources=tuple(part.strip()[:2_000] for part in chosen[2:]),
    )


async def evaluated(
    shim: Client, rubric: Rubric, dimensions: tuple[Dimension, ...], draft: Draft
) -> Evaluation:
    """Judges a draft, and adds up what its calls took."""
    replies: list[Completion] = []

    async def ask(request: ChatRequest) -> Completion:
        completion = await shim.chat(replace(request, max_output_tokens=REPLY_TOKENS))
        replies.append(completion)
        return replace(completion, text=whole_reply(request), finish_reason="stop")

    case = Case(
        rubric=rubric, draft=draft, shown=shown(rubric, draft), dimensions=dimensions, held={}
    )
    begun = time.perf_counter()
    await judge(case, ask=ask, model=JUDGE, sample=0)
    seconds = time.perf_counter() - begun
    usages = [reply.usage for reply in replies if reply.usage is not None]
    return Evaluation(
        dimensions=len(dimensions),
        seconds=seconds,
        prompt_tokens=sum(usage.input_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens or 0 for usage in usages),
        output_tokens=sum(usage.output_tokens for usage in usages),
    )


def whole_reply(request: ChatRequest) -> str:
    """A reply in the shape that was asked for."""
    assert request.reply_schema is not None
    names = request.reply_schema["required"]
    assert isinstance(names, list)
    return json.dumps({**dict.fromkeys(names, False), "reason": "", "issues": [], "score": 5})


if __name__ == "__main__":
    main()
