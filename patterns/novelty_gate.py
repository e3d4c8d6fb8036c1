"""B2 Novelty Gate (early stopping of retrieval): a batch without news ends the search.

    harness run novelty_gate
    harness run novelty_gate --task "…" --memory memory    # what earlier runs know is not new

**Problem.** A search that continues until its budget is spent fills the prompt with the same facts
in other words. Longer prompts are slower, and no better.

**Forces.** Stop too early, and a fact is missing: at least two batches are read. Stop too late, and
the reader pays: at most five. In between, code decides by a score from 0 to 10, not a model.

**Costs.** 1 call, for any number of batches. A batch costs one search and some milliseconds for its
vectors.

**When not.** If each batch is small and certain to be new, such as pages of one document.

**In Perfetto.** A span `novelty` for each batch with its score, `remember` after each batch that
passed, and the counter `novelty`: the search ends when it falls under 3.
"""

from harness import Pipeline, Run

TASK = "What makes a cold start slow?"
QUERIES = [
    "cold start weights disk",
    "first request load GPU memory",
    "weights read from disk before the first request",
    "cold start disk",
    "quantized weights smaller file",
]
CORPUS = [
    "A cold start reads the model's weights from disk.",
    "The weights are then copied to the memory of the GPU.",
    "The first request must wait until the weights are read from disk.",
    "A quantized model has smaller weights, so its file is read sooner.",
    "Some servers compile kernels when the first request arrives.",
]
LEAST, MOST, THRESHOLD = 2, 5, 3.0

novelty_gate = Pipeline("novelty-gate")


def search(query: str, corpus: list[str]) -> list[str]:
    """The two nearest sentences; in earnest, a search engine."""
    words = set(query.lower().split())
    return sorted(corpus, key=lambda one: -len(words & set(one.lower().split(" "))))[:2]


@novelty_gate.node
async def gathered(run: Run, queries: list[str] = QUERIES, corpus: list[str] = CORPUS) -> list[str]:
    """Batches, as long as they say something new."""
    kept: list[str] = []
    for number, query in enumerate(queries[:MOST], start=1):
        batch = search(query, corpus)
        novelty = await run.novelty(batch)
        run.counter("novelty", novelty, unit="of 10")
        if number > LEAST and novelty < THRESHOLD:
            break  # the batch is discarded
        for text in batch:
            await run.remember(text, source=query)
        kept += [text for text in batch if text not in kept]
    return kept


@novelty_gate.node(models=["producer"])
async def answer(run: Run, gathered: list[str], task: str = TASK) -> str:
    """From what passed the gate."""
    notes = "\n".join(gathered)
    asked = f"{notes}\n\n{task} Answer in two sentences in the words of these notes."
    return await run.chat("producer", asked, max_output_tokens=80, on_cut="keep")
