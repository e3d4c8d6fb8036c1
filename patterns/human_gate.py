"""Human gate (human in the loop): the run stops at a question and continues with the answer.

    harness run human_gate                  # asks at a terminal
    harness resume latest --answer yes      # elsewhere the run ends as `waiting`, exit code 4

**Problem.** Some steps cannot be undone: a mail, a payment, a release. A person must say yes, and
is often not there when the run asks.

**Forces.** Waiting must not hold a process, a GPU or a connection: the run ends, and its journal
has the finished part. The answer must not repeat paid work: nodes before the question are not
called again. So the question has its own node, and asks before anything else.

**Costs.** 1 call and a person. A resume repeats no finished call.

**When not.** For a question that a rubric can decide, or one so frequent that people click it away.

**In Perfetto.** `node approved` ends with an instant `question`, and so does the run. The resumed
run is a second part on the same timeline: `resumed` says how long the run was away, `reuse` lists
what was not called again.
"""

from harness import Pipeline, Run

CHANGES = (
    "Exports keep the order of columns. Uploads over 2 GB no longer fail. After the upgrade, run "
    "`migrate` once; it takes about three minutes for 10,000 reports."
)

human_gate = Pipeline("human-gate")


@human_gate.node(models=["producer"])
async def draft(run: Run, changes: str = CHANGES) -> str:
    """What is to be sent."""
    asked = f"{changes}\n\nTell customers what is new, in two sentences, in the words of the text."
    return await run.chat("producer", asked, max_output_tokens=70, on_cut="keep")


@human_gate.node
async def approved(run: Run, draft: str) -> bool:
    """A person's word."""
    return await run.ask(f"Send this to all customers?\n\n{draft}\n", returns=bool)


@human_gate.node
def sent(draft: str, approved: bool) -> str:  # noqa: FBT001 - the node before it
    """The step that cannot be taken back stands behind the gate."""
    return f"sent: {draft}" if approved else "not sent"
