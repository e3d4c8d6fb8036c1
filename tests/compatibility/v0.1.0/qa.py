"""An evaluation in two epochs, by a rubric and by a function."""

from harness import Evaluation, Pipeline, Run

sums = Pipeline("sums")


@sums.node(models=["producer"])
async def total(run: Run, question: str) -> str:
    return await run.chat("producer", question)


def near(output: str, target: str) -> float:
    return 1 - abs(int(output) - int(target)) / 10


qa = Evaluation(sums, dataset="qa.csv", rubric="right", scorers=[near], epochs=2, name="qa")
