"""How users call the public API, for type checkers: `tests/test_typing.py` has each line checked.

`assert_type` is what a checker must infer; nothing here runs.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, assert_type

from pydantic import BaseModel, Field

import harness
from harness import AgentResult, Completion, Message, Pipeline, Run, ToolSpec


class Answer(BaseModel):
    number: int


def look(name: str) -> str:
    """Looks."""
    return name


TOOL = ToolSpec("look", "Looks.", {"type": "object"})
brief = Pipeline[str]("brief")
plain = Pipeline("plain")


@brief.node(models=["producer"])
async def text(run: Run, task: str) -> str:
    return await run.chat("producer", task)


async def of_nodes(run: Run) -> None:
    assert_type(await run.chat("producer", "?"), str)
    assert_type(await run.chat("producer", "?", allow_empty=True, on_cut="keep"), str)
    assert_type(await run.chat("producer", "?", returns=Answer, attempts=2), Answer)
    assert_type(await run.chat("producer", "?", returns=list[Answer]), list[Answer])
    assert_type(await run.chat("producer", "?", returns=Completion), Completion)
    assert_type(await run.chat("producer", "?", tools=[look, TOOL]), Completion)
    grade: Literal["a", "b"] = await run.chat("producer", "?", returns=Literal["a", "b"])
    share: float = await run.chat("producer", "?", returns=Annotated[float, Field(ge=0)])
    assert_type(await run.ask(f"{grade} {share}?"), str)
    assert_type(await run.ask("Publish?", returns=bool), bool)

    agent = await run.agent("producer", "?", tools=[look], system="Be short.", max_steps=3)
    assert_type(agent, AgentResult[None])
    typed = await run.agent("producer", "?", tools=[look], returns=Answer)
    assert_type(typed.value, Answer | None)
    assert_type(typed.messages, tuple[Message, ...])
    loose = await run.agent("producer", "?", tools=[look], returns=Annotated[float, Field(ge=0)])
    assert_type(loose.value, Any)

    assert_type((await run.call(brief, task="?")).result, str)
    assert_type((await run.call(plain)).result, Any)
    assert_type(await run.map(len, ["a"]), list[int])


async def agent_as_output(run: Run, task: str) -> AgentResult[Answer | None]:
    return await run.agent("producer", task, tools=[look], returns=Answer)


async def without_a_pipeline() -> None:
    assert_type(await harness.chat("m", "?"), Completion)
    assert_type(await harness.chat("m", "?", returns=Answer, temperature=0.5), Answer)
    assert_type(await harness.chat("m", "?", tools=[look]), Completion)
    assert_type((await brief.run_async(task="?")).result, str)
    async for piece in harness.stream("m", "?", allow_empty=True):
        assert_type(piece, str)


def of_scripts() -> None:
    assert_type(harness.chat_sync("m", "?"), Completion)
    assert_type(harness.chat_sync("m", "?", returns=Answer, attempts=2), Answer)
    assert_type(harness.chat_sync("m", "?", returns=list[str], settings=None), list[str])
    assert_type(harness.chat_sync("m", "?", tools=[look], on_text=print), Completion)
    assert_type(brief.run(task="?").result, str)
    assert_type(brief.run({"task": "?"}).result.upper(), str)
    assert_type(plain.run().result, Any)
