"""A brief of a long document: plan, draft in parallel, assemble, evaluate, revise.

    harness run examples/brief.py
    harness run examples/brief.py --task "…" --set document=@notes.md

The document is split into passages and kept in the run's memory. The planner chooses the topics
that matter for the task, each is drafted from the passages nearest to it, and the drafts become the
sections of a brief, which is revised until `rubrics/brief.yaml` is met.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from harness import Pipeline, Run

TASK = "What should an engineer know before running a writer and a judge model on one machine?"
DOCUMENT = Path(__file__).with_name("documents") / "one-machine-two-models.md"

brief = Pipeline("brief")


@brief.node
async def passages(run: Run, document: str = DOCUMENT.read_text(encoding="utf-8")) -> int:
    """Keeps the document for recall; returns the number of its passages."""
    return await run.remember(document)


@brief.node
async def topics(run: Run, passages: int, task: str = TASK) -> list[str]:
    """The three topics of the document that matter most for the task."""
    hits = await run.recall(task, limit=12)
    titles = list(dict.fromkeys(hit.passage.title.rsplit(" > ", 1)[-1] for hit in hits))
    listed = "\n".join(f"- {title}" for title in titles)
    chosen = await run.chat(
        "planner",
        f"Task: {task}\n\nA document has these parts:\n{listed}\n\n"
        "Name the three parts that matter most for the task, as JSON.",
        # The reply can only be titles that there are; a small model may still repeat one.
        returns=Annotated[list[Literal[tuple(titles)]], Field(min_length=3, max_length=3)],
    )
    return list(dict.fromkeys([*chosen, *titles]))[:3]


@brief.node(each={"topic": "topics"})
async def sources(run: Run, topic: str) -> str:
    """What the document says on one topic."""
    hits = await run.recall(topic, limit=2)
    return "\n\n".join(hit.passage.text for hit in hits)


@brief.node(each={"topic": "topics", "source": "sources"})
async def sections(run: Run, topic: str, source: str) -> str:
    """A first draft of one section."""
    text = await run.chat(
        "producer",
        f"{source}\n\nSummarize this text about {topic} in two or three sentences.",
        max_output_tokens=110,
    )
    return f"## {topic}\n\n{text}\n"


@brief.node
async def text(run: Run, sections: list[str], sources: list[str], task: str = TASK) -> str:
    """The brief, revised until it meets its rubric."""
    result = await run.wiggum(
        task, rubric="brief", draft="\n".join(sections), sources=sources, max_output_tokens=110
    )
    return result.text
