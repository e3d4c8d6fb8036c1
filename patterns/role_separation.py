"""A2 Model Role Separation (planner, writer, judge): no model evaluates its own output.

    harness run role_separation
    harness run role_separation --role evaluator=TAG    # TAG from your harness.toml

**Problem.** A model that judges its own text prefers it. A score from the author is no evidence.

**Forces.** Three models cost memory and loads. Two tags can be the same model: a copy of a file,
another quantization, a distillate. So roles are compared by the model they resolve to.

**Costs.** 2 calls, and 1 more with an evaluator; as many loads as there are models.

**When not.** If code can tell what is good. Then checks are the judge, as here without an
evaluator: the result says what was not judged.

**In Perfetto.** One `model …` track per model. The arrow `draft` leads from the producer's call to
`evaluate`; calls below it must be on another track than the draft's.
"""

from dataclasses import dataclass

from harness import Pipeline, Run

TASK = "Why does the first request to a model that is not loaded take so long?"
SOURCE = (
    "A request for a model that is not in memory waits until the server has read the weights from "
    "disk. For a file of 8 GB on a drive that reads 2 GB a second, that takes 4 seconds. Later "
    "requests find the model in memory and begin at once."
)

role_separation = Pipeline("role-separation")


@dataclass(frozen=True)
class Judged:
    """A draft, and who says how good it is."""

    text: str
    composite: float
    judged_by: str
    not_judged: list[str]


@role_separation.node(models=["planner"])
async def angle(run: Run, task: str = TASK) -> str:
    """What the text should settle."""
    question = f"{task}\n\nIn a few words: what must a good answer name?"
    return await run.chat("planner", question, max_output_tokens=24, on_cut="keep", stop=["\n"])


@role_separation.node(models=["producer"])
async def draft(run: Run, angle: str, task: str = TASK, source: str = SOURCE) -> str:
    """The text."""
    asked = f"{source}\n\n{task} Two sentences in the words of the text. Name: {angle}"
    return await run.chat("producer", asked, max_output_tokens=90, on_cut="keep")


@role_separation.node(models=["producer", "evaluator"])  # without an evaluator, checks judge
async def verdict(run: Run, draft: str, task: str = TASK, source: str = SOURCE) -> Judged:
    """A score from somebody else. The run is refused if that is the producer's model."""
    found = await run.evaluate(draft, rubric="answer", task=task, sources=[source])
    judge = found.evaluator or "the rubric's checks"
    return Judged(draft, found.composite, judge, list(found.unjudged))
