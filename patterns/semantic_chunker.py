"""B4 Semantic Chunker (contextual compression): a long document is cut to what the task needs.

    harness run semantic_chunker
    harness run semantic_chunker --task "…" --set document=@paper.md --set limit=20

**Problem.** The document does not fit into the context, or fits and costs. Its first pages are not
the ones that matter.

**Forces.** If you cut by length, sentences lose their headings. So the document is split at
headings and paragraphs, and the passages nearest to the task are shown in their original order.

**Costs.** 1 call with k of n passages: about k/n of the tokens of the whole document. Choosing
takes some milliseconds and no model.

**When not.** If the task is about the whole document: a summary of a chosen part is a summary of
that part. Use `map_reduce`.

**In Perfetto.** `remember` says how many passages there are, `recall` which were chosen, and the
counter `kept` is the share of the characters. `input_tokens` of the call shows the saving.
"""

from harness import Pipeline, Run

TASK = "How was the noise of the judge measured, and how large is it?"
DOCUMENT = """\
# A judge for release notes

## Abstract
We ask how far a small judge can be trusted with release notes. Its scores scatter by 0.4 points.

## Introduction
Release notes are read by people who upgrade. Many say nothing. Others say it three times.

## Methods
Thirty drafts were judged five times each at temperature 0.7. The noise is the standard deviation
of the scores of one draft, pooled over all drafts.

## Machines
All calls ran on one GPU with 24 GB. A batch of thirty took four minutes.

## Results
The noise is 0.4 points of 10. Two scores of one draft lie within 1.1 points in 95 of 100 cases.

## Thanks
We thank the people who wrote the drafts, and those who had to read them.
"""

semantic_chunker = Pipeline("semantic-chunker")


@semantic_chunker.node
async def chunks(run: Run, task: str = TASK, document: str = DOCUMENT, limit: int = 3) -> list[str]:
    """The passages nearest to the task, in the order of the document."""
    kept = await run.remember(document, source="document")
    chosen = {hit.id for hit in await run.recall(task, limit=limit, where={"run": run.id})}
    texts = [f"## {one.title}\n{one.text}" for one in kept if one.id in chosen]
    run.counter("kept", 100 * sum(map(len, texts)) / len(document), unit="%")
    return texts


@semantic_chunker.node(models=["producer"])
async def answer(run: Run, chunks: list[str], task: str = TASK) -> str:
    """From the chosen passages alone."""
    shown = "\n\n".join(chunks)
    asked = f"{shown}\n\n{task} Answer in two sentences in the words of the text."
    return await run.chat("producer", asked, max_output_tokens=80, on_cut="keep")
