"""ReAct agent (tool use): a model calls tools until it can answer; code decides when it must.

    harness run react_agent
    harness run react_agent --task "…"

The demo's model is too small to choose tools, and answers without them. Give it a larger one.

**Problem.** The first look-up decides which look-ups a question needs.

**Forces.** The model chooses the tools, so it can choose the same one forever: `max_steps` ends it,
and so do repeated calls. If a tool fails, the model must be told, and the run must go on. Each step
reads the whole conversation.

**Costs.** s + 1 calls for s steps with tools, at most `max_steps`. Prompts grow with each step, so
tokens grow with the square of s; a prefix cache saves reading the old part.

**When not.** If you can write the steps down: a chain or a graph is cheaper, and fails where you
can see it.

**In Perfetto.** `agent` with a span `step 1`, `step 2` … for each reply of the model, and inside it
one for each tool call, side by side. `read (prefill)` of the calls grows from step to step.
"""

from typing import Literal

from harness import Pipeline, Run

TASK = "How many euros do 12 chairs cost, and how many days do they take to come?"
PRICES = {"chair": 49, "desk": 180, "lamp": 25}
STOCK = {"chair": "in stock, 3 days", "desk": "ordered, 20 days", "lamp": "in stock, 2 days"}

Article = Literal["chair", "desk", "lamp"]

react_agent = Pipeline("react-agent")


def price(article: Article, count: int) -> int:
    """The price in euros of so many chairs, desks or lamps."""
    return PRICES[article] * count


def delivery(article: Article) -> str:
    """Whether an article is in stock, and how many days it takes to come."""
    return STOCK[article]


@react_agent.node(models=["producer"])
async def answer(run: Run, task: str = TASK, max_steps: int = 5) -> dict[str, object]:
    """The answer, why the agent stopped, and what it called."""
    result = await run.agent("producer", task, tools=[price, delivery], max_steps=max_steps)
    calls = [f"{call.name} {call.arguments}: {call.text}" for call in result.calls]
    return {"text": result.text, "stopped": result.stop_reason, "calls": calls}
