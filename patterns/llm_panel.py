"""LLM panel (jury): several judges score every draft, and code combines their scores.

    harness run llm_panel

It needs two models in `harness.toml`, of other families than the producer's:

    [roles]
    evaluator = ["llama", "gemma"]    # tags of two [endpoints.TAG]

    [evaluation]
    panel = "median"                  # or "mean", or "majority"

**Problem.** One judge's preferences decide, and you cannot tell them from quality.

**Forces.** Judges must be different models: three prompts to one model are one judge with three
voices. The median ignores one outlier, the mean does not; a majority decides without a score.

**Costs.** j calls for each draft with j judges; j loads, if only one fits into memory. Three small
judges are often cheaper than one large one.

**When not.** If checks decide, or if runs are many and cheap: draw one judge (`evaluator_pool`).

**In Perfetto.** `evaluator panel` on the run's track names the members. Below `evaluate`, their
calls lie side by side on the tracks of their models; `spread` says how far they disagree.
"""

from dataclasses import dataclass

from harness import Pipeline, Run

TASK = "What does a slot of a model server do?"
SOURCE = (
    "A slot is a place for one call in the batch of a server. With four slots a server writes four "
    "replies side by side, and divides its context among them. A single reply gets no faster."
)

llm_panel = Pipeline("llm-panel")


@dataclass(frozen=True)
class Jury:
    """One verdict, and what each judge gave."""

    text: str
    passed: bool
    composite: float
    each: dict[str, float]


@llm_panel.node(models=["producer"])
async def draft(run: Run, task: str = TASK, source: str = SOURCE) -> str:
    """The text to be judged."""
    asked = f"{source}\n\n{task} Two sentences in the words of the text."
    return await run.chat("producer", asked, max_output_tokens=80, on_cut="keep")


@llm_panel.node(models=["evaluator"])  # the run does not start without one
async def verdict(run: Run, draft: str, task: str = TASK, source: str = SOURCE) -> Jury:
    """All members judge the same draft."""
    found = await run.evaluate(draft, rubric="answer", task=task, sources=[source])
    each = {one.evaluator: one.composite for one in found.judges.each} if found.judges else {}
    return Jury(draft, found.passed, found.composite, each)
