"""A brief of a document in its own words, revised until `rubrics/brief_me.yaml` is met.

    harness run brief_me
    harness run brief_me --task "…" --set document=@notes.md
    harness evaluate brief_me             # on the rows of evaluations/brief_me.csv

The parameters of a node are inputs of the run, or other nodes: a node with a parameter `text` would
run after this one and get its result.
"""

from harness import Evaluation, Pipeline, Run

TASK = "In two or three sentences: what is a cold start, how long does one take, and what helps?"
DOCUMENT = (
    "A cold start happens when a request arrives before its model is in memory. The server must "
    "read the weights from disk and move them to the GPU before it can process the prompt. A cold "
    "13B model takes 8 to 15 s from disk, against less than 0.2 s when warm. Keeping the model "
    "loaded between calls removes the cold start; Ollama keeps one for 5 minutes by default."
)

brief_me = Pipeline("brief-me")


@brief_me.node(models=["producer", "evaluator"])
async def text(run: Run, task: str = TASK, document: str = DOCUMENT) -> str:
    """The best draft."""
    # All that the demo's model can do is quote. With a larger one, leave the draft to the loop.
    quoted = await run.chat(
        "producer", f"Repeat this text exactly:\n\n{document}", max_output_tokens=150, on_cut="keep"
    )
    result = await run.wiggum(
        task, draft=quoted, sources=[document], rubric="brief_me", max_rounds=3
    )
    return result.text


evaluation = Evaluation(brief_me, dataset="evaluations/brief_me.csv", rubric="brief_me")
