"""Orchestrator-workers (dynamic fan-out): a model divides the task, workers do the parts.

    harness run orchestrator_workers
    harness run orchestrator_workers --task "…" --set source=@notes.md

**Problem.** The number and kind of a task's parts are known only when the task is there.

**Forces.** The orchestrator must not invent workers: their kinds are a closed set, each with its
own prompt. It must not fan out without end: the list has a maximum length. A worker sees only its
part, so the synthesis needs all results, and nothing else.

**Costs.** n + 2 calls. The n parts run side by side, as far as slots and `max_parallel` allow; the
synthesis reads n short results.

**When not.** If the parts are always the same, make them nodes (`dag_orchestrator`). If a part
needs an earlier one, make a plan (`planner_first`).

**In Perfetto.** `node plan`, then `results/part[0]`, `results/part[1]` … in their own lanes, then
one call that reads them all. The synthesis waited for the longest part.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from harness import Pipeline, Run

TASK = "Should we close the office on Fridays?"
SOURCE = (
    "On Fridays 9 of 40 people come in. Heating and cleaning cost 600 euros a day. Two customers "
    "visit each month, one of them on Fridays. The landlord needs four weeks of notice."
)
WORKERS = {
    "figures": "Which figures of the text matter for this? Quote them.",
    "people": "Whom does this concern, by the text?",
    "risks": "What could go wrong, by the text?",
}
Kind = Literal["figures", "people", "risks"]

orchestrator_workers = Pipeline("orchestrator-workers")


@dataclass(frozen=True)
class Part:
    """What a worker is given."""

    worker: Kind
    focus: Annotated[str, Field(min_length=4, max_length=60)]


@orchestrator_workers.node(models=["planner"])
async def plan(run: Run, task: str = TASK) -> list[Part]:
    """Two or three parts, for workers that there are."""
    parts = await run.chat(
        "planner",
        f"Task: {task}\n\nDivide it among the workers {', '.join(WORKERS)}, as JSON.",
        returns=Annotated[list[Part], Field(min_length=2, max_length=3)],
        max_output_tokens=400,
    )
    return list({part.worker: part for part in parts}.values())  # one part for each worker


@orchestrator_workers.node(models=["producer"])
async def results(run: Run, plan: list[Part], source: str = SOURCE) -> list[str]:
    """Each part by its worker, side by side."""

    async def part(one: Part) -> str:
        asked = f"{source}\n\n{one.focus}: {WORKERS[one.worker]} One sentence."
        said = await run.chat("producer", asked, max_output_tokens=48, on_cut="keep", stop=["\n"])
        return f"{one.worker}: {said}"

    return await run.map(part, plan)


@orchestrator_workers.node(models=["planner"])
async def answer(run: Run, results: list[str], task: str = TASK) -> str:
    """The synthesis."""
    asked = "\n".join(results) + f"\n\n{task} Answer in two sentences by these notes."
    return await run.chat("planner", asked, max_output_tokens=80, on_cut="keep")
