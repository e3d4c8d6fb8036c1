"""A4 Keep-Alive Budget (model residency): calls are grouped by model, so that fewer are loaded.

    harness models plan patterns/keep_alive_budget.py    # what is loaded, in which order
    harness run keep_alive_budget

With one model there is nothing to decide. Give `reader` one of its own, and room for one of them:

    [roles]
    producer = "writer"    # tags of two [endpoints.TAG] with a path
    reader = "reader"

    [budget]
    capacity = "6 GiB"     # less than both need together

**Problem.** Two models, room for one. Written one text after the other, each text loads both.

**Forces.** A model that stays blocks memory; one that goes must be read again. Calls that wait for
their model must not wait for ever (`max_wait_s`).

**Costs.** 2n calls. n texts side by side take 2 loads; one after the other they take 2n.

**When not.** If both models fit, or a server of yours decides what it keeps.

**In Perfetto.** Each model has a slice `loading` of its own, in its lowest lane: one is as it
should be, one for each call is thrash. On `server keep-alive budget` the counter `resident` falls
before it rises again.
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
