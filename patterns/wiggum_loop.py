"""The Wiggum loop (C1): evaluate, send back what failed, revise, keep the best round.

    harness run wiggum_loop
    harness run wiggum_loop --task "…" --set source=@notes.md --set rubric=my_rubric.yaml

The producer drafts and revises; the rubric's checks score every draft, and so does an evaluator
model if one is configured. What comes back is the best draft that was evaluated, with the reason
why the loop ended.
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
