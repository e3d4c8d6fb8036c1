"""Router (routing, triage): one short call chooses the branch; only that branch is run.

    harness run router
    harness run router --set message="I was charged twice this month."

**Problem.** One prompt for all kinds of input is good at none, and the most expensive model answers
the easiest question.

**Forces.** The choice must be one of a closed set, a `Literal`, or code cannot branch. It must be
cheap, and it can be wrong, so each branch must cope with a message for another branch.

**Costs.** 2 calls: the choice, a few tokens long, and one branch. The others cost nothing.

**When not.** If code can choose: by a form field, a language, a length.

**In Perfetto.** `node kind`, then the branch that ran. The others have no track, only an instant
`skip` with the reason on the run's track. If branches have their own models by roles, their calls
get their own tracks.
"""

from typing import Literal

from harness import Pipeline, Run, Skipped

MESSAGE = "Since the last update the export button does nothing. No error, no file."
Kind = Literal["billing", "fault", "question"]

router = Pipeline("router")


@router.node(models=["planner"])
async def kind(run: Run, message: str = MESSAGE) -> Kind:
    """One of three words, or an error."""
    asked = (
        "billing: money, invoices, refunds\nfault: something does not work\n"
        f"question: how to do something\n\nMessage: {message}\n\nWhich of the three is it?"
    )
    return await run.chat("planner", asked, returns=Kind)


async def reply(run: Run, message: str, task: str) -> str:
    """One short reply."""
    asked = f"Message: {message}\n\n{task} One sentence."
    return await run.chat("producer", asked, max_output_tokens=50, on_cut="keep", stop=["\n"])


@router.node(when=lambda kind: kind == "billing", models=["producer"])
async def billing(run: Run, message: str = MESSAGE) -> str:
    """Money: ask for what the desk needs."""
    return await reply(run, message, "Ask politely for the number of the invoice.")


@router.node(when=lambda kind: kind == "fault", models=["producer"])
async def fault(run: Run, message: str = MESSAGE) -> str:
    """Something does not work: ask for what a developer needs."""
    return await reply(run, message, "Ask politely for the version and the browser.")


@router.node(when=lambda kind: kind == "question", models=["producer"])
async def question(run: Run, message: str = MESSAGE) -> str:
    """How to do it."""
    return await reply(run, message, "Say politely where in the handbook to look.")


@router.node
def answer(billing: str | Skipped, fault: str | Skipped, question: str | Skipped) -> str:
    """The reply of the branch that ran."""
    return next(one for one in (billing, fault, question) if not isinstance(one, Skipped))
