"""A4 Keep-Alive Budget (model residency): calls are grouped by model, so fewer models are loaded.

    harness models plan patterns/keep_alive_budget.py    # whether all fit at once
    harness run keep_alive_budget

With one model there is nothing to decide. Give `reader` its own model, and room for one of the two:

    [roles]
    producer = "writer"    # tags of two [endpoints.TAG] with a path
    reader = "reader"

    [budget]
    capacity = "6 GiB"     # less than both need together

**Problem.** There is room for one of two models. If texts are processed one after the other, each
text loads both models.

**Forces.** A model that stays blocks memory; one that leaves must be read again. Calls must not
wait forever for their model (`max_wait_s`).

**Costs.** 2n calls. n texts side by side take 2 loads; one after the other they take 2n.

**When not.** If both models fit, or if your server decides which models it keeps.

**In Perfetto.** Each model has its own `loading` slices, in its lowest lane: one is right, one per
call is thrash. On `server keep-alive budget` the counter `resident` falls before it rises again.
"""

from harness import Pipeline, Run

TEXTS = [
    "The mill stood still until noon, because the river had risen in the night.",
    "Two boats brought bread, and on the third day the bridge was opened again.",
    "The council met in the school and voted for a higher dam.",
]

keep_alive_budget = Pipeline("keep-alive-budget")


@keep_alive_budget.node
def texts(given: list[str] = TEXTS) -> list[str]:
    """What is to be titled."""
    return given


@keep_alive_budget.node(each={"text": "texts"}, models=["producer"])
async def titles(run: Run, text: str) -> str:
    """All of these are made while the writer is in memory."""
    asked = f"{text}\n\nA title of at most five words:"
    return await run.chat("producer", asked, max_output_tokens=16, on_cut="keep", stop=["\n"])


@keep_alive_budget.node(each={"text": "texts", "title": "titles"}, models=["reader"])
async def readings(run: Run, text: str, title: str) -> str:
    """The reader is loaded when the writer's calls are done, not after each of them."""
    asked = f"Title: {title}\n\n{text}\n\nIn a few words: what does the title leave out?"
    return await run.chat("reader", asked, max_output_tokens=16, on_cut="keep", stop=["\n"])


@keep_alive_budget.node
def listed(titles: list[str], readings: list[str]) -> list[str]:
    """Each title with what it leaves out."""
    return [f"{title} — {left}" for title, left in zip(titles, readings, strict=True)]
