"""G1 Data Flywheel (learning from runs): scored drafts become examples and training pairs.

    harness run data_flywheel --memory memory       # each run recalls earlier good texts
    harness runs export --format dpo pairs.jsonl    # a better and a worse draft of a loop
    harness runs export --format sft good.jsonl     # drafts that passed

**Problem.** Every loop finds out which of two drafts is better. Usually this knowledge is thrown
away with the worse draft.

**Forces.** Two drafts make a pair only if they have the same task, rubric and evaluator. An example
in the prompt helps at once and costs tokens in every call; training helps later and costs once.

**Costs.** Those of its loops (`wiggum_loop`), and the tokens of one example in each prompt. The
export reads journals and asks no model.

**When not.** If only checks decide, a model learns to please the checks. Look at some pairs first,
and set `--margin` above the evaluator's noise.

**In Perfetto.** `recall` before each loop has hits once earlier runs passed; `remember` follows the
loop. If the wheel turns, `composite` rises from run to run: `harness runs`.
"""

from dataclasses import dataclass

from harness import Pipeline, Run

FACTS = {
    "What is a slot?": "A slot is a place for one call in the batch of a server. With 4 slots a "
    "server writes four replies side by side, and divides its context among them.",
    "What is prefill?": "Prefill is the reading of the prompt, before the first token of the reply "
    "is written. It is limited by computing, and a prefix cache can skip part of it.",
}

data_flywheel = Pipeline("data-flywheel")


@dataclass(frozen=True)
class Loop:
    """The best draft, and what the rounds came to: the more they differ, the more pairs."""

    text: str
    composites: list[float]
    examples: int


@data_flywheel.node
def questions(facts: dict[str, str] = FACTS) -> list[str]:
    """What is to be answered."""
    return list(facts)


@data_flywheel.node(each={"question": "questions"}, models=["producer", "evaluator"])
async def answers(run: Run, question: str, facts: dict[str, str] = FACTS) -> Loop:
    """A loop for each question, with the best that was said so far as an example."""
    hits = await run.recall(question, limit=1, where={"source": "flywheel"})
    example = "".join(f" Write as plainly as this: {hit.text}" for hit in hits)
    result = await run.wiggum(
        question + example,
        sources=[facts[question]],
        rubric="answer",
        max_rounds=2,
        candidates=2,
        max_output_tokens=70,
    )
    if result.passed:
        quality = result.best.verdict.composite
        await run.remember(result.text, title=question, source="flywheel", quality=quality)
    return Loop(result.text, [one.verdict.composite for one in result.rounds], len(hits))
