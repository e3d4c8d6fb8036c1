"""A brief of a long document: plan, draft in parallel, assemble, evaluate, revise.

    harness run examples/brief.py
    harness run examples/brief.py --task "…" --set document=@notes.md

The document is split into passages and kept in the run's memory. The planner asks the questions
that the task raises; each is answered from the passages nearest to it; the answers become the
sections of a draft, which is revised until `rubrics/brief.yaml` is met.
"""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from harness import Pipeline, Run

TASK = "What should an engineer know who runs a writer and a judge model on one machine?"
DOCUMENT = Path(__file__).with_name("documents") / "one-machine-two-models.md"

Topics = Annotated[
    list[Annotated[str, Field(min_length=4, max_length=60)]], Field(min_length=3, max_length=3)
]

brief = Pipeline("brief")


@brief.node
async def passages(run: Run, document: str = DOCUMENT.read_text()) -> int:
    """Keeps the document for recall; says how many passages it made."""
    return await run.remember(document, source=DOCUMENT.name)


@brief.node
async def outline(run: Run, passages: int, task: str = TASK) -> list[str]:
    """Three topics that a brief for this task must cover."""
    hits = await run.recall(task, limit=8)
    titles = "\n".join(f"- {title}" for title in dict.fromkeys(h.passage.title for h in hits))
    prompt = (
        f"A document has these parts:\n{titles}\n\n"
        f"Task: {task}\n\nName the three parts that matter most for the task."
    )
    return await run.chat("planner", prompt, returns=Topics, max_output_tokens=120)


@brief.node(each={"topic": "outline"})
async def findings(run: Run, topic: str) -> str:
    """What the document says on one topic, in a few sentences."""
    hits = await run.recall(topic, limit=2)
    text = "\n\n".join(hit.passage.text for hit in hits)
    prompt = f"{text}\n\nSummarize this text in three sentences, with its numbers."
    return await run.chat("producer", prompt, max_output_tokens=160)


@brief.node
async def sources(run: Run, outline: list[str]) -> list[str]:
    """The passages that the brief may rest on."""
    hits = [hit for topic in outline for hit in await run.recall(topic, limit=3)]
    return list(dict.fromkeys(hit.passage.text for hit in hits))


@brief.node
async def text(
    run: Run, outline: list[str], findings: list[str], sources: list[str], task: str = TASK
) -> str:
    """The brief: one section per topic, revised until the rubric is met."""
    sections = [f"## {topic}\n\n{found}\n" for topic, found in zip(outline, findings, strict=True)]
    result = await run.wiggum(
        task, rubric="brief", draft="\n".join(sections), sources=sources, max_output_tokens=160
    )
    return result.text
