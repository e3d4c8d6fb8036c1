"""A3 Evaluator Pool (judge rotation): the run's seed draws one evaluator from several.

    harness run evaluator_pool
    harness run evaluator_pool --task "…"    # another task may draw another evaluator

It needs two models in `harness.toml`, of other families than the producer's:

    [roles]
    evaluator = ["llama", "gemma"]    # tags of two [endpoints.TAG]

**Problem.** One judge has one bias: it likes long answers, or its own kind. Over many runs that
bias looks like quality.

**Forces.** A draw must be repeatable, or no run can be compared with itself: the seed is the task,
or `pool_seed` under `[separation]`. Models too close to the producer are left out before the draw.

**Costs.** 2 calls and 1 load of an evaluator per run, as with one judge. The bias becomes variance
between runs, so you need more runs to see a small gain.

**When not.** If one run must be as certain as possible, let all evaluators judge it (`llm_panel`).

**In Perfetto.** The instant `evaluator drawn` on the run's track has pool, seed and choice. Compare
`composite` over runs by evaluator: `harness runs --json`.
"""

from dataclasses import dataclass

from harness import Pipeline, Run

TASK = "What is a prefix cache, and when does it help?"
SOURCE = (
    "A prefix cache keeps what a server has computed for the beginning of a prompt. The next "
    "prompt that begins with the same words skips that part. It helps when many prompts share a "
    "long beginning, and not at all when the first words differ."
)

evaluator_pool = Pipeline("evaluator-pool")


@dataclass(frozen=True)
class Judged:
    """A draft, its score, and which member of the pool gave it."""

    text: str
    composite: float
    evaluator: str


@evaluator_pool.node(models=["producer"])
async def draft(run: Run, task: str = TASK, source: str = SOURCE) -> str:
    """The text to be judged."""
    asked = f"{source}\n\n{task} Two sentences in the words of the text."
    return await run.chat("producer", asked, max_output_tokens=90, on_cut="keep")


@evaluator_pool.node(models=["evaluator"])  # the run does not start without one
async def verdict(run: Run, draft: str, task: str = TASK, source: str = SOURCE) -> Judged:
    """The drawn evaluator's score."""
    found = await run.evaluate(draft, rubric="answer", task=task, sources=[source])
    return Judged(draft, found.composite, found.evaluator or "checks")
