"""Prompt chain (sequential workflow): fixed steps, each with one job, and a check in code between.

    harness run prompt_chain
    harness run prompt_chain --set notes=@meeting.md

**Problem.** A prompt that asks for five things gets three of them.

**Forces.** A step with one job is easier for a model, and you can look at its output. Each step
adds a call and can lose something, so a check follows the step that others rely on.

**Costs.** 3 calls, one after the other: the time is their sum. A failed check ends the chain before
you pay for later calls.

**When not.** If one prompt is enough, or if the steps depend on the input (`router`,
`planner_first`).

**In Perfetto.** A staircase: each node begins where the one before ends, joined by an arrow
`output`. Look at the widest step.
"""

from typing import Annotated, Literal

from pydantic import Field

from harness import Pipeline, Run

NOTES = (
    "Anna tested the new build on Monday: uploads over 2 GB still fail. Ben found the cause, a "
    "timeout of 60 seconds in the proxy. It goes up to 300 seconds on Thursday. Until then, large "
    "files go through the command line. Customers were told by mail."
)

prompt_chain = Pipeline("prompt-chain")


@prompt_chain.node(models=["producer"])
async def points(run: Run, notes: str = NOTES) -> list[str]:
    """Step 1: the sentences that matter. The reply can only quote, so nothing is made up."""
    sentences = tuple(f"{one.strip().rstrip('.')}." for one in notes.split(". "))
    return await run.chat(
        "producer",
        f"{notes}\n\nThe three most important sentences of these notes, as JSON.",
        returns=Annotated[list[Literal[sentences]], Field(min_length=3, max_length=3)],
    )


@prompt_chain.node
def checked(points: list[str]) -> list[str]:
    """The gate: no model is asked further unless there are two different points."""
    different = list(dict.fromkeys(points))
    if len(different) < 2:
        raise ValueError(f"the notes gave one point only: {different}")
    return different


@prompt_chain.node(models=["producer"])
async def summary(run: Run, checked: list[str]) -> str:
    """Step 2: prose, from the points alone."""
    asked = "\n".join(checked) + "\n\nSay this in two sentences, in the same words."
    return await run.chat("producer", asked, max_output_tokens=80, on_cut="keep")


@prompt_chain.node(models=["producer"])
async def mail(run: Run, summary: str) -> str:
    """Step 3: a subject for it."""
    asked = f"{summary}\n\nA subject line of at most six words for a mail with this text:"
    subject = await run.chat("producer", asked, max_output_tokens=16, on_cut="keep", stop=["\n"])
    return f"Subject: {subject}\n\n{summary}"
