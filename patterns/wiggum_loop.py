"""C1 Wiggum Loop (evaluator-optimizer, self-refine): evaluate, revise what failed, keep the best.

    harness run wiggum_loop
    harness run wiggum_loop --task "…" --set source=@notes.md --set rubric=my_rubric.yaml

**Problem.** The first draft is rarely the best that a model can write, and “improve it” makes
another text, not a better one.

**Forces.** A revision can be worse than the text it replaces, so the best round is kept, not the
last. Feedback must say what failed, and the judge must not be the author. Code ends the loop, by
scores and limits, and says why.

**Costs.** 1 call for the draft, then c calls in each further round for c candidates; with an
evaluator 1 more for each of r rounds. At most r = `rounds`; a draft that passes at once costs 1 or
2 calls.

**When not.** Without a rubric that tells good from bad: the loop raises only the score that steers
it.

**In Perfetto.** `wiggum` with `evaluate`, `revise`, `evaluate` …; arrows lead from each draft to
its verdict and on to the revision. The counter `composite` rises, or the loop gained nothing.
"""

from harness import Pipeline, Run

TASK = "In two or three sentences: what is a cold start, how long does one take, and what helps?"
SOURCE = (
    "A cold start happens when a request arrives before its model is in memory. The server must "
    "read the weights from disk and move them to the GPU before it can process the prompt. A cold "
    "13B GGUF model takes 8 to 15 s from disk, against less than 0.2 s when warm. Keeping the "
    "model loaded between calls removes the cold start; Ollama keeps one for 5 minutes by default."
)

wiggum_loop = Pipeline("wiggum-loop")


@wiggum_loop.node(models=["producer", "evaluator"])
async def text(
    run: Run, task: str = TASK, source: str = SOURCE, rubric: str = "answer", rounds: int = 3
) -> str:
    """The best draft."""
    result = await run.wiggum(
        task, sources=[source], rubric=rubric, max_rounds=rounds, max_output_tokens=120
    )
    return result.text
