"""B1 Planner-First (plan and execute): the plan is complete before the first step is taken.

    harness run planner_first
    harness run planner_first --task "…" --set source=@notes.md

**Problem.** A model that answers at once answers the part that it noticed. A model that acts step
by step without a plan forgets its goal.

**Forces.** A plan that is too long costs a call per step; a plan that the model may change at any
time is none. Here it has two or three steps. Each is taken once, in order, and sees the results of
the earlier ones.

**Costs.** 1 + n + 1 calls for n steps, one after the other, so time grows with n. Prompts grow with
the findings.

**When not.** If steps are independent, fan them out (`orchestrator_workers`). If they are always
the same, write them as nodes (`prompt_chain`).

**In Perfetto.** `node plan`, then `node found` with one call for each step, one after the other.
`harness view` shows the plan beside its node, and each prompt with the earlier findings.
"""

from typing import Annotated

from pydantic import Field

from harness import Pipeline, Run

TASK = "Should a team of five run its own model server?"
SOURCE = (
    "A server with one GPU costs 700 euros a month, whether it is used or not. A managed API costs "
    "nothing while nobody asks. The team sends 2 million tokens a day, which cost 1,100 euros a "
    "month there. Somebody must update the server: about four hours a month."
)
Step = Annotated[str, Field(min_length=8, max_length=80)]

planner_first = Pipeline("planner-first")


@planner_first.node(models=["planner"])
async def plan(run: Run, task: str = TASK) -> list[str]:
    """Two or three questions, in the order in which they are settled."""
    steps = await run.chat(
        "planner",
        f"Task: {task}\n\nList the questions that must be settled one by one, as JSON.",
        returns=Annotated[list[Step], Field(min_length=2, max_length=3)],
        max_output_tokens=400,
    )
    return list(dict.fromkeys(steps))


@planner_first.node(models=["producer"])
async def found(run: Run, plan: list[str], source: str = SOURCE) -> list[str]:
    """What each step found; later steps see it."""
    notes: list[str] = []
    for step in plan:
        known = "\n".join(notes)
        asked = f"{source}\n{known}\n\n{step} One sentence in the words of the text."
        notes.append(
            await run.chat("producer", asked, max_output_tokens=48, on_cut="keep", stop=["\n"])
        )
    return notes


@planner_first.node(models=["producer"])
async def answer(run: Run, found: list[str], task: str = TASK) -> str:
    """From the notes alone."""
    notes = "\n".join(found)
    asked = f"{notes}\n\n{task} Answer in two sentences by these notes."
    return await run.chat("producer", asked, max_output_tokens=90, on_cut="keep")
