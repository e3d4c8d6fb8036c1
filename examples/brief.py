"""A brief of a long document: plan, draft in parallel, assemble, evaluate, revise.

    harness run examples/brief.py
    harness run examples/brief.py --task "…" --set document=@notes.md

The planner chooses topics of the document. Each has a passage as its source, and a draft for each
paragraph of that. `rubrics/brief.yaml` chooses among these, and lets no sentence pass that the
section's source does not have. With `--memory`, further runs recall what earlier ones wrote.
"""

from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from harness import Pipeline, Run

TASK = "How do I fit both models on one card?"
DOCUMENT = Path(__file__).with_name("documents") / "one-machine-two-models.md"
RUBRIC = Path(__file__).with_name("rubrics") / "brief.yaml"

brief = Pipeline("brief")


@brief.node(models=[])
async def parts(
    run: Run, task: str = TASK, document: str = DOCUMENT.read_text(encoding="utf-8")
) -> list[str]:
    """Keeps the document for recall; returns its parts, those that bear on the task first."""
    kept = await run.remember(document)
    found = [hit.passage for hit in await run.recall(task, limit=12)]
    titles = [p.title.rsplit(" > ", 1)[-1] or p.text[:60] for p in (*found, *kept)]
    of_document = document.partition("\n")[0].removeprefix("# ")
    return [title for title in dict.fromkeys(titles) if title != of_document][:12]


@brief.node(models=["planner"])
async def topics(run: Run, parts: list[str], task: str = TASK) -> list[str]:
    """The three parts that matter most for the task."""
    chosen = await run.chat(
        "planner",
        f"Task: {task}\n\nA document has these parts:\n- " + "\n- ".join(parts) + "\n\n"
        "Name the three parts that matter most for the task, as JSON.",
        # The reply can only name parts that there are; a small model may still repeat one.
        returns=Annotated[list[Literal[tuple(parts)]], Field(min_length=3, max_length=3)],  # type: ignore[misc]
        max_output_tokens=150,
    )
    return list(dict.fromkeys([*chosen, *parts]))[:3]


@brief.node(each={"topic": "topics"}, models=[])
async def sources(run: Run, topic: str) -> str:
    """The passage that says most on one topic."""
    return "\n\n".join(hit.passage.text for hit in await run.recall(topic, limit=1))


@brief.node(each={"source": "sources"}, models=["producer"])
async def sections(run: Run, source: str) -> list[str]:
    """First drafts of one section, one from each paragraph of its source."""
    prompts = (f"Repeat this text exactly:\n\n{part}" for part in source.split("\n\n")[:2])
    return [
        await run.chat("producer", one, max_output_tokens=110, on_cut="keep") for one in prompts
    ]


@brief.node(models=["producer", "evaluator"])
async def text(
    run: Run, topics: list[str], sections: list[list[str]], sources: list[str], task: str = TASK
) -> str:
    """The brief: the best sections of all drafts, revised until it meets its rubric."""
    drafts = [
        "\n".join(f"## {topic}\n\n{text}\n" for topic, text in zip(topics, texts, strict=True))
        for texts in zip_longest(*sections, fillvalue="")
    ]
    about = dict(zip(topics, sources, strict=True))
    result = await run.wiggum(task, rubric=RUBRIC, draft=drafts, sources=about)
    await run.remember(result.text, source="brief", quality=result.best.verdict.composite)
    return result.text
