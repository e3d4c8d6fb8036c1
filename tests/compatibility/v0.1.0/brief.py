"""A map, a memory, tools and a revise loop. `traces/` has a finished run and a killed one."""

from harness import Pipeline, Run, Tool

brief = Pipeline("brief")


def seconds_to_load(gigabytes: float) -> float:
    """How long a model of this size takes to load from the disk."""
    return gigabytes / 0.5


@brief.node(models=["planner"])
async def questions(run: Run, task: str) -> list[str]:
    return await run.chat("planner", f"Two questions that settle this: {task}", returns=list[str])


@brief.node(each={"question": "questions"}, models=["producer"])
async def findings(run: Run, question: str, document: str) -> str:
    return await run.chat("producer", f"{document}\n\n{question}")


@brief.node
async def passages(run: Run, task: str, document: str) -> list[str]:
    await run.remember(document, title="Cold starts", source="handbook", quality=8)
    return [hit.text for hit in await run.recall(task, limit=2)]


@brief.node(models=["producer"])
async def estimate(run: Run, task: str) -> str:
    return (await run.agent("producer", task, tools=[Tool(seconds_to_load)])).text


@brief.node(models=["producer", "evaluator"])
async def answer(
    run: Run, task: str, findings: list[str], passages: list[str], estimate: str
) -> str:
    sources = [*findings, *passages, estimate]
    return (await run.wiggum(task, sources=sources, rubric="notes")).text
