"""Evaluation Set (eval, benchmark of one's own): a change is judged on many rows, not on one look.

    harness run evaluation_set
    harness evaluate evaluation_set          # all rows, three epochs each
    harness view evaluations/evaluation-set.jsonl

**Problem.** A prompt is changed until one example looks right, and nobody sees what got worse.

**Forces.** Single outputs vary more than prompts differ. Rows with targets, each run several times,
give a mean and its error; rows about one subject share their luck, so the error is clustered.

**Costs.** 1 call for each row and epoch, and none for these scorers. Another scorer costs no call:
the outputs are kept.

**When not.** Where no row has a right answer: then a rubric scores, at 1 more call for each output.

**In Perfetto.** `harness run` shows one row with its call. In the evaluation's run, each item of
`rows` is one row in one epoch, and the items of `score_number` come as rows end.
"""

from harness import Evaluation, Pipeline, Run

ROWS = [
    {"id": "six", "question": "2 * 3", "target": 6, "group": "products"},
    {"id": "eight", "question": "2 * 4", "target": 8, "group": "products"},
    {"id": "five", "question": "2 + 3", "target": 5, "group": "sums"},
    {"id": "nine", "question": "4 + 5", "target": 9, "group": "sums"},
]

evaluation_set = Pipeline("evaluation-set")


@evaluation_set.node(models=["producer"])
async def answer(run: Run, question: str = "2 * 3") -> str:
    """The text whose last number counts."""
    return await run.chat("producer", f"{question} =", max_output_tokens=20, on_cut="keep")


def brief(output: str) -> bool:
    """Whether it says little beside the number."""
    return len(output.split()) <= 3


evaluation = Evaluation(evaluation_set, ROWS, scorers=["number", brief], epochs=3, reduce="mean")
