"""B3 Dual-Backend Memory Store (hybrid search): words and meaning find a passage, side by side.

    harness run dual_backend_memory
    harness run dual_backend_memory --set question="…" --set document=@notes.md --memory memory

**Problem.** Search by words misses a passage with other words. Search by vectors misses names,
numbers and error codes. You learn too late which of them fails.

**Forces.** Two indexes must agree about what exists: SQLite holds the passages, and both indexes
are built from it. Two scores must become one: a sum of shares, not of ranks. While passages are
still being embedded, words alone answer, and say so (`fallback`).

**Costs.** 1 call. A recall takes some milliseconds and no model; vectors take 1 kB per passage.

**When not.** If everything fits into the prompt, put it there.

**In Perfetto.** A span `recall` for each `mode`, with its hits: id, rank, the BM25 score and the
cosine. A `hybrid` hit without a BM25 score was found by its meaning alone.
"""

from harness import Pipeline, Run

QUESTION = "The service will not come up again after error E4711. What should I try?"
DOCUMENT = """\
# Runbook

## E4711
The license file is missing. Copy it to /etc/app and try again.

## It does not restart
Stop the leftover worker first: it still holds the port. Then start the service anew.

## Slow answers
Look at the queue. If it grows, add a worker.

## Backups
They are made at night and kept for thirty days.
"""

dual_backend_memory = Pipeline("dual-backend-memory")


@dual_backend_memory.node
async def passages(run: Run, document: str = DOCUMENT) -> int:
    """Keeps the document, a passage for each section; returns how many there are."""
    return len(await run.remember(document, source="runbook"))


@dual_backend_memory.node
async def found(run: Run, passages: int, question: str = QUESTION) -> dict[str, list[str]]:
    """The titles that each index finds, and both together."""
    titles = {}
    for mode in ("lexical", "vector", "hybrid"):
        hits = await run.recall(question, limit=min(2, passages), mode=mode)
        titles[mode] = [hit.title for hit in hits]
    return titles


@dual_backend_memory.node(models=["producer"])
async def answer(run: Run, found: dict[str, list[str]], question: str = QUESTION) -> str:
    """From what both found together."""
    hits = await run.recall(question, limit=len(found["hybrid"]))
    notes = "\n\n".join(hit.text for hit in hits)
    asked = f"{notes}\n\n{question} Answer in two sentences in the words of the text."
    return await run.chat("producer", asked, max_output_tokens=70, on_cut="keep")
