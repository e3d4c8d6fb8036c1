"""Map-reduce over a corpus (hierarchical summary): notes on each document, then on the notes.

    harness run map_reduce
    harness run map_reduce --set question="…" --set 'documents=["…", "…"]'

**Problem.** The corpus does not fit into one prompt, and a search would leave documents out: “what
recurs in all of them” is a question about each.

**Forces.** Every document is read once, in full. Notes must be short enough for a group of them to
fit into one prompt. Each level of reducing loses something, so groups are as large as the context
allows.

**Costs.** n + ⌈n/g⌉ + 1 calls for n documents in groups of g: for 6 and 3, 9 calls. The tokens are
those of the corpus, once, and of the notes, twice. The time is three calls, with enough slots.

**When not.** If few documents matter, find them (`semantic_chunker`, `dual_backend_memory`).

**In Perfetto.** `node notes` has a lane for each document; the narrow end is the reduce. A lane
that continues alone is a straggler: the nodes that need all notes wait for it.
"""

from harness import Pipeline, Run

QUESTION = "What caused it?"
DOCUMENTS = [
    "Incident 1. The site was down for 12 minutes. A certificate had run out on Sunday.",
    "Incident 2. Mails were late by an hour. The queue was full, since one worker hung.",
    "Incident 3. Logins failed for 5 minutes. The certificate of the directory had run out.",
    "Incident 4. Reports were empty. A disk was full, and the nightly job wrote nothing.",
    "Incident 5. Uploads failed. The disk for temporary files was full after a large import.",
    "Incident 6. The shop was slow for an hour. One worker hung, and the others had its load.",
]

map_reduce = Pipeline("map-reduce")


async def noted(run: Run, text: str, question: str) -> str:
    """One sentence about a text."""
    asked = f"{text}\n\n{question} One sentence in the words of the text."
    return await run.chat("producer", asked, max_output_tokens=40, on_cut="keep", stop=["\n"])


@map_reduce.node
def corpus(documents: list[str] = DOCUMENTS) -> list[str]:
    """The documents; in earnest, read from files."""
    return documents


@map_reduce.node(each={"document": "corpus"}, models=["producer"])
async def notes(run: Run, document: str, question: str = QUESTION) -> str:
    """Map: a note on each."""
    return await noted(run, document, question)


@map_reduce.node(models=["producer"])
async def groups(run: Run, notes: list[str], question: str = QUESTION, group: int = 3) -> list[str]:
    """Reduce: a note on each group of notes."""

    async def reduced(start: int) -> str:
        return await noted(run, "\n".join(notes[start : start + group]), question)

    return await run.map(reduced, range(0, len(notes), group))


@map_reduce.node(models=["producer"])
async def answer(run: Run, groups: list[str], question: str = QUESTION) -> str:
    """Reduce once more."""
    return await noted(run, "\n".join(groups), question)
