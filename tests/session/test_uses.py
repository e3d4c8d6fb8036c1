"""What nodes ask of models, as their source says it."""

from __future__ import annotations

import asyncio
import functools
import types
from collections.abc import Callable

import pytest

from harness import Pipeline, Run
from harness.graph import Graph
from harness.session.source_uses import ASKS_A_ROLE, ASKS_MEMORY, ASKS_NOTHING
from harness.session.uses import Loop, NodeUses, Turn, uses_of

PLANNER = "planner"
names = types.ModuleType("names")
names.CRITIC = "critic"


def uses(function: Callable[..., object], **how: object) -> NodeUses:
    graph = Graph("one")
    graph.node(name="it", **how)(function)
    return uses_of(graph)["it"]


def turns(*roles: str) -> tuple[Turn, ...]:
    return tuple(Turn(roles=(role,)) for role in roles)


# --- what can be read in one function -----------------------------------------------------------


def plain(text: str) -> str:
    return text.upper()


async def several(run: Run) -> str:
    run.counter("n", 1, unit="")
    with run.span("begin", id=run.id):
        await run.ask("Shall it be?")
    text = await run.chat("producer", await run.chat(role="planner", prompt="What about?"))
    await run.count_tokens("counter", text)
    await run.embed("embedder", [text])
    return text


async def by_names(run: Run) -> str:
    return await run.chat(PLANNER, "") + await run.chat(names.CRITIC, "")


async def both_branches(run: Run, *, hard: bool = False) -> str:
    if hard:
        return await run.chat("expert", "")
    return await run.chat("fast" if run.id else "slow", "")


async def in_a_loop(run: Run) -> str:
    text = await run.chat("planner", "")
    for _ in range(3):
        text = await run.chat("producer", text)
        text = await run.chat("critic", text)
    return await run.chat("editor", text)


async def while_it_asks(run: Run) -> str:
    while await run.chat("critic", ""):
        await run.chat("producer", "")
    return ""


async def function_inside(run: Run) -> list[str]:
    async def draft(topic: str) -> str:
        return await run.chat("producer", topic)

    topics = (await run.chat("planner", "")).split()
    drafts = await asyncio.gather(*(draft(topic) for topic in topics))
    return await run.map(draft, drafts)


async def function_inside_and_its_result(run: Run) -> str:
    async def draft() -> str:
        return await run.chat("producer", "")

    draft = await draft()
    return await run.chat("critic", draft)


async def function_inside_with_its_run(run: Run) -> list[str]:
    async def draft(topic: str, run: Run) -> str:
        return await run.chat("producer", topic)

    await draft("a", run)
    return await run.map(draft, ["b"])


async def lambdas(run: Run) -> object:
    return await run.map(lambda topic: run.chat("producer", topic), ["a"])


async def loops(run: Run, draft: str, rounds: int = 5) -> str:
    first = await run.wiggum("task", rubric="answer")
    second = await run.wiggum("task", rubric=PLANNER, draft=draft, max_rounds=rounds)
    third = await run.wiggum("task", rubric=draft, draft=None, max_rounds=2)
    verdict = await run.evaluate(third.text, rubric="answer")
    return first.text + second.text + str(verdict)


async def memory(run: Run) -> float:
    await run.remember("text")
    await run.recall("text")
    return await run.novelty(["text"])


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        pytest.param(plain, (), id="no run"),
        pytest.param(several, turns("planner", "producer", "counter", "embedder"), id="in order"),
        pytest.param(by_names, turns("planner", "critic"), id="names of the module"),
        pytest.param(both_branches, turns("expert", "fast", "slow"), id="branches, one by one"),
        pytest.param(
            in_a_loop,
            (*turns("planner"), Turn(roles=("producer", "critic")), *turns("editor")),
            id="for, by turns",
        ),
        pytest.param(while_it_asks, (Turn(roles=("critic", "producer")),), id="while, by turns"),
        pytest.param(
            function_inside,
            turns("planner", "producer", "producer"),
            id="a function inside, where it is named",
        ),
        pytest.param(
            function_inside_and_its_result,
            turns("producer", "critic"),
            id="a function inside, whose result takes its name",
        ),
        pytest.param(function_inside_with_its_run, turns("producer", "producer"), id="its own run"),
        pytest.param(lambdas, turns("producer"), id="a lambda"),
        pytest.param(
            loops,
            (
                Loop(max_rounds=3, rubric="answer"),
                Loop(max_rounds=5, rubric="planner", has_draft=True),
                Loop(max_rounds=2),
                *turns("evaluator"),
            ),
            id="revise loops",
        ),
        pytest.param(memory, turns("memory", "memory", "memory"), id="memory"),
    ],
)
def test_a_nodes_source_says_what_it_asks(
    function: Callable[..., object], expected: tuple[object, ...]
) -> None:
    assert uses(function) == NodeUses(uses=expected)


# --- what other functions and pipelines ask -------------------------------------------------------


async def ask(the_run: Run, role: str, prompt: str = "") -> str:
    return await the_run.chat(role, prompt)


async def ask_both(run: Run, *, last: str = "editor") -> str:
    return await ask(run, "planner") + await ask(role=last, the_run=run)


async def hands_it_on(run: Run) -> str:
    return await ask_both(run, last="critic")


async def step(item: str, run: Run) -> str:
    return await run.chat("critic", await run.chat("producer", item))


async def maps(run: Run) -> list[str]:
    lengths = await run.map(plain, ["a"])
    return lengths + await run.map(step, ["a", "b"])


nested = Pipeline("nested")


@nested.node
def words(text: str) -> list[str]:
    return text.split()


@nested.node(each={"word": "words"})
async def each_word(run: Run, word: str) -> str:
    return await run.chat("critic", await run.chat("producer", word))


@nested.node
async def all_words(run: Run, each_word: list[str]) -> str:
    return await run.chat("editor", " ".join(each_word))


async def calls(run: Run) -> object:
    return (await run.call(nested, text="a b")).result


def wrapped(function: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(function)
    def wrapper(*args: object, **how: object) -> object:
        return function(*args, **how)

    return wrapper


@wrapped
async def decorated(run: Run) -> str:
    return await run.chat("producer", "")


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        pytest.param(hands_it_on, turns("planner", "critic"), id="functions"),
        pytest.param(maps, (Turn(roles=("producer", "critic")),), id="what run.map names"),
        pytest.param(
            calls,
            (Turn(roles=("producer", "critic")), *turns("editor")),
            id="what run.call names",
        ),
        pytest.param(decorated, turns("producer"), id="what a decorator wraps"),
    ],
)
def test_what_a_run_is_handed_to_is_read_as_well(
    function: Callable[..., object], expected: tuple[object, ...]
) -> None:
    assert uses(function) == NodeUses(uses=expected)


# --- what cannot be read --------------------------------------------------------------------------


async def role_of_an_input(run: Run, role: str = "planner") -> str:
    return await run.chat(role, "")


async def role_made_up(run: Run) -> str:
    return await run.chat("producer", "") + await run.chat(f"expert {run.id}", "")


async def handed_to_a_library(run: Run) -> object:
    return functools.partial(run.chat, "producer")


async def handed_to_a_method(run: Run, boss: object = None) -> None:
    await run.chat("producer", "")
    boss.work(run)  # type: ignore[attr-defined]


async def in_a_class(run: Run) -> object:
    class Asker:
        async def ask(self) -> str:
            return await run.chat("producer", "")

    return Asker()


async def calls_itself(run: Run, depth: int = 3) -> str:
    return await calls_itself(run, depth - 1) if depth else await run.chat("producer", "")


async def calls_an_input(run: Run, pipeline: object = None) -> object:
    return await run.call(pipeline)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("function", "roles"),
    [
        pytest.param(role_of_an_input, ("planner",), id="a role that can be given"),
        pytest.param(role_made_up, ("producer",), id="a role that is made up"),
        pytest.param(handed_to_a_library, (), id="a method handed on"),
        pytest.param(handed_to_a_method, ("producer",), id="handed to an object"),
        pytest.param(in_a_class, (), id="a class inside"),
        pytest.param(calls_itself, ("producer",), id="a function that calls itself"),
        pytest.param(calls_an_input, (), id="a pipeline that is given"),
    ],
)
def test_where_reading_ends_the_rest_is_unknown(
    function: Callable[..., object], roles: tuple[str, ...]
) -> None:
    found = uses(function)
    assert (found.roles, found.is_all) == (roles, False)


def test_a_function_without_source_asks_who_knows_what() -> None:
    made: dict[str, Callable[..., object]] = {}
    exec("async def node(run): await run.chat('producer', '')", made)
    assert uses(made["node"]) == NodeUses(is_all=False)


def test_a_pipeline_that_calls_itself_is_read_once() -> None:
    pipeline = Pipeline("again")

    @pipeline.node
    async def node(run: Run, depth: int) -> None:
        await run.chat("producer", "")
        await run.call(pipeline, depth=depth - 1)

    assert uses_of(pipeline)["node"] == NodeUses(uses=turns("producer"), is_all=False)


def test_all_that_a_run_offers_is_known() -> None:
    """A new method is to be sorted in: until then a node that calls it asks who knows what."""
    known = {*ASKS_A_ROLE, *ASKS_MEMORY, *ASKS_NOTHING, "wiggum", "evaluate", "call", "map"}
    assert known == {name for name in vars(Run) if not name.startswith("_")}


# --- what is declared -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "models", "expected"),
    [
        pytest.param(
            role_made_up,
            ["producer", "critic"],
            (Turn(roles=("producer", "critic")),),
            id="by turns",
        ),
        pytest.param(
            by_names, ["critic", "planner"], turns("planner", "critic"), id="the source's order"
        ),
        pytest.param(by_names, [], (), id="none"),
        pytest.param(memory, ["producer"], (Turn(roles=("producer", "memory")),), id="and memory"),
    ],
)
def test_a_node_that_declares_roles_asks_in_those(
    function: Callable[..., object], models: list[str], expected: tuple[object, ...]
) -> None:
    assert uses(function, models=models) == NodeUses(uses=expected)
