"""D1 DAG Orchestrator (workflow graph): independent steps run side by side.

    harness graph patterns/dag_orchestrator.py    # the graph, before anything runs
    harness run dag_orchestrator --task "…"

**Problem.** Steps written one below the other run one after the other, although most need only the
first. With callbacks, you cannot see which step waits for which.

**Forces.** Order must come from need: a parameter named after a node is an edge. Mistakes must cost
nothing: a cycle, an unknown type or a missing input is an error before the first call.

**Costs.** n + 2 calls for n branches. The time is that of the longest path, 3 calls, if the server
answers n calls at once; with one slot it is the sum.

**When not.** If the steps are known only at run time, use `orchestrator_workers`.

**In Perfetto.** Arrows `output` lead from a node to the nodes that waited for it. The branches lie
one above the other; `queue` in their calls means that the server has too few slots.
"""

from harness import Pipeline, Run

TASK = "Move the nightly reports from a rented GPU to the office machine"

dag_orchestrator = Pipeline("dag-orchestrator")


async def briefly(run: Run, question: str) -> str:
    """One sentence."""
    return await run.chat("producer", question, max_output_tokens=40, on_cut="keep", stop=["\n"])


@dag_orchestrator.node(models=["producer"])
async def goal(run: Run, task: str = TASK) -> str:
    """What all branches start from."""
    return await briefly(run, f"{task}. In one sentence: what is gained?")


@dag_orchestrator.node(models=["producer"])
async def risks(run: Run, goal: str, task: str = TASK) -> str:
    """A branch."""
    return await briefly(run, f"{task}. {goal} In one sentence: what can go wrong?")


@dag_orchestrator.node(models=["producer"])
async def costs(run: Run, goal: str, task: str = TASK) -> str:
    """A branch."""
    return await briefly(run, f"{task}. {goal} In one sentence: what does it cost?")


@dag_orchestrator.node(models=["producer"])
async def people(run: Run, goal: str, task: str = TASK) -> str:
    """A branch."""
    return await briefly(run, f"{task}. {goal} In one sentence: who must be asked?")


@dag_orchestrator.node(models=["producer"])
async def memo(run: Run, risks: str, costs: str, people: str) -> str:
    """Waits for all three."""
    question = f"{risks}\n{costs}\n{people}\n\nIn one sentence: what should be done first?"
    first = await briefly(run, question)
    return f"Risks: {risks}\nCosts: {costs}\nPeople: {people}\nFirst: {first}"
