"""Nodes that ask a person, and runs that wait for the answer."""

import asyncio
import threading
from datetime import datetime
from typing import Literal

import pytest
from graph_runs import nests, run, run_recorded, step
from pydantic import BaseModel

from harness.errors import NodeTimedOut
from harness.graph import Default, Graph, Question, Retry, Skipped, Timeout
from harness.graph.outcome import Asked
from harness.trace import Instant, NodeOutput


@pytest.fixture
def graph():
    return Graph("asking")


class Choice(BaseModel):
    """What to do next."""

    step: str
    times: int = 1


def asks(graph, *, text="Ship this?", returns=bool, name="ship", **options):
    """Adds a node that asks and returns the answer as text."""

    @graph.node(name=name, **options)
    async def ask(run) -> str:
        return repr(await run.ask(text, returns=returns))


def keys(ended):
    return [one.key for one in ended.questions]


def answered(ended, *given):
    """What a next part of the run is told: the questions with their answers."""
    pairs = zip(ended.questions, given, strict=True)
    return {question.asked: answer for question, answer in pairs}


# --- no answer -----------------------------------------------------------------------------------


def test_a_run_waits_for_an_answer_and_everything_else_goes_on(graph):
    asks(graph)
    step(graph, "shipped", "ship")
    step(graph, "beside", seconds=10, gives="done")
    step(graph, "after", "beside", gives=str)

    @graph.node
    async def told(ship: str | Skipped) -> str:
        return "never"  # the answer will come

    ended, records = run_recorded(graph)

    assert ended.status == "waiting"
    assert ended.questions == (
        Question(key="ship/ask", node="ship", text="Ship this?", form="yes or no"),
    )
    assert ended.outputs == {"beside": "done", "after": "done"}
    skips = [(one.node, one.because_of) for one in ended.skips]
    assert skips == [("shipped", "ship"), ("told", "ship")]
    asked = [one for one in records if isinstance(one, Instant) and one.name == "question"]
    for question in asked:
        assert question.attributes.pop("about")
    assert [one.attributes for one in asked] == [
        {"key": "ship/ask", "text": "Ship this?", "form": "yes or no"}
    ]
    assert [one.node for one in records if isinstance(one, NodeOutput)] == ["beside", "after"]


@pytest.mark.parametrize("on_error", ["skip", Default("no")], ids=str)
def test_to_ask_is_no_failure(graph, on_error):
    asks(graph, on_error=on_error, retry=Retry(3), timeout=Timeout(total_s=5))

    ended, records = run_recorded(graph)

    assert ended.status == "waiting"
    assert keys(ended) == ["ship/ask"]
    assert not ended.outputs
    assert sum(isinstance(one, Instant) and one.name == "question" for one in records) == 1


def test_a_node_that_catches_every_mistake_still_waits(graph):
    @graph.node
    async def ship(run) -> bool:
        try:
            return await run.ask("Ship this?", returns=bool)
        except Exception:  # noqa: BLE001 - as users do
            return False

    assert run(graph).status == "waiting"


# --- several at once -----------------------------------------------------------------------------


def test_a_question_of_a_nested_graph_is_the_runs(graph):
    inner = Graph("inner")
    asks(inner, name="one", text="One?")
    asks(inner, name="two", text="Two?", returns=str)
    nests(graph, "page", inner)

    ended = run(graph)

    assert [(one.key, one.node) for one in ended.questions] == [
        ("page/inner/one/ask", "page/inner/one"),
        ("page/inner/two/ask", "page/inner/two"),
    ]
    ended = run(graph, answers=answered(ended, "no", "no"))
    assert ended.outputs == {"page": [{"one": "False", "two": "'no'"}]}


def test_all_questions_of_a_map_are_asked_at_once(graph):
    async def ask(run, name: str) -> bool:
        return await run.ask(f"Ship {name}?", returns=bool)

    step(graph, "page", "run", gives=lambda run: run.map(ask, ["a", "b", "c"]))

    ended = run(graph)

    assert keys(ended) == [f"page/ask[{n}]/ask" for n in range(3)]
    ended = run(graph, answers=answered(ended, "true", "no", "yes"))
    assert ended.outputs == {"page": [True, False, True]}


def test_all_questions_of_tasks_of_a_node_are_numbered_and_asked_at_once(graph):
    @graph.node
    async def ship(run) -> list[str]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run.ask(text)) for text in ("Who?", "Where?")]
        return [task.result() for task in tasks]

    ended = run(graph)

    assert (ended.status, keys(ended)) == ("waiting", ["ship/ask", "ship/ask#2"])
    answers = {Asked("ship/ask", "Who?"): "me", Asked("ship/ask#2", "Where?"): "here"}
    assert run(graph, answers=answers).outputs == {"ship": ["me", "here"]}


# --- answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("returns", "given", "value"),
    [
        pytest.param(bool, "yes", True, id="yes"),
        pytest.param(bool, " No ", False, id="no"),
        pytest.param(int, "3", 3, id="int"),
        pytest.param(str, " as it is ", " as it is ", id="str"),
        pytest.param(Literal["left", "right"], "left", "left", id="Literal"),
        pytest.param(Choice, '{"step": "on"}', Choice(step="on"), id="model as JSON"),
    ],
)
def test_an_answer_becomes_what_was_asked_for(graph, returns, given, value):
    asks(graph, returns=returns)

    ended, records = run_recorded(graph, answers={Asked("ship/ask", "Ship this?"): given})

    assert ended.outputs == {"ship": repr(value)}
    (said,) = [one for one in records if isinstance(one, Instant) and one.name == "answer"]
    assert said.attributes.pop("about")
    assert said.attributes == {"key": "ship/ask", "text": "Ship this?", "answer": given}


@pytest.mark.parametrize(
    ("returns", "given", "form"),
    [
        pytest.param(bool, "perhaps", "yes or no", id="bool"),
        pytest.param(Literal["left", "right"], "up", "one of left, right", id="Literal"),
        pytest.param(Choice, '{"times": 2}', "JSON of Choice", id="model"),
        pytest.param(datetime, "2024", "JSON of datetime", id="number for a time"),
    ],
)
def test_an_answer_of_another_kind_is_asked_for_again_and_why(graph, returns, given, form):
    asks(graph, returns=returns)

    (question,) = run(graph, answers={Asked("ship/ask", "Ship this?"): given}).questions

    assert question.form == form
    assert repr(given) in question.problem


class Step(BaseModel):
    """Holds steps itself."""

    action: Literal["approve", "reject"]
    why: str | None = None
    tags: list[str] = []
    after: list["Step"] = []


def test_a_question_for_json_names_the_fields_and_has_the_schema(graph):
    asks(graph, returns=Step)

    (question,) = run(graph).questions

    assert question.form == "JSON of Step"
    assert question.form_with_fields == (
        'JSON of Step: {"action": "approve" or "reject", "why": text or null (may be left out), '
        '"tags": list of text (may be left out), "after": list of Step (may be left out)}'
    )
    assert question.schema == Step.model_json_schema()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        pytest.param(
            '{"action": "aprove"}', "action: Input should be 'approve' or 'reject'", id="a choice"
        ),
        pytest.param(
            '{"action": "reject", "after": [{}]}', "after.0.action: Field required", id="a field"
        ),
        pytest.param("approve", "Input should be a valid dictionary", id="no JSON"),
        pytest.param({"action": 3}, "action: Input should be", id="from Python"),
    ],
)
def test_a_mistake_in_an_answer_in_json_is_named(graph, given, problem):
    asks(graph, returns=Step)

    (question,) = run(graph, answers={Asked("ship/ask", "Ship this?"): given}).questions

    assert f"{given!r} is not JSON of Step: {problem}" in question.problem


def test_an_answer_to_another_question_is_none(graph):
    asks(graph)

    assert run(graph, answers={Asked("ship/ask", "Ship that?"): "yes"}).status == "waiting"


# --- somebody is there ---------------------------------------------------------------------------


class Person:
    """Somebody who says these things, one after the other, and then goes away."""

    def __init__(self, *says: object, seconds: float = 1) -> None:
        self.says = list(says)
        self.seconds = seconds
        self.asked: list[Question] = []

    async def __call__(self, question: Question) -> object | None:
        self.asked.append(question)
        await asyncio.sleep(self.seconds)
        return self.says.pop(0) if self.says else None


@pytest.mark.parametrize(
    ("before", "says", "asked"),
    [
        pytest.param("3", [], [], id="not what has been answered"),
        pytest.param(None, ["many", "more", "3"], ["", "many", "more"], id="until it will do"),
        pytest.param("many", ["3"], ["many"], id="when the answer from before will not do"),
    ],
)
def test_a_person_who_is_there_is_asked(graph, before, says, asked):
    asks(graph, returns=int)
    person = Person(*says)
    answers = {} if before is None else {Asked("ship/ask", "Ship this?"): before}

    assert run(graph, asker=person, answers=answers).outputs == {"ship": "3"}
    assert [one.key for one in person.asked] == ["ship/ask"] * len(asked)
    for question, problem in zip(person.asked, asked, strict=True):
        assert (repr(problem) in question.problem) if problem else question.problem == ""


def test_a_plain_function_is_asked_one_question_at_a_time_and_other_nodes_go_on(graph):
    asks(graph)
    asks(graph, name="sell")
    turn, is_beside_over = threading.Lock(), threading.Event()

    @graph.node
    async def beside() -> None:
        is_beside_over.set()

    def person(_: Question) -> bool:
        is_alone = turn.acquire(blocking=False)
        says = is_alone and is_beside_over.wait(5)
        turn.release()
        return says

    ended = run(graph, asker=person)
    assert (ended.outputs["ship"], ended.outputs["sell"]) == ("True", "True")


@pytest.mark.parametrize("nested", [False, True], ids=["the node itself", "what is nested in it"])
@pytest.mark.parametrize("limits", [Timeout(total_s=5), Timeout(idle_s=5)], ids=str)
def test_a_person_may_take_longer_than_a_node_may(graph, limits, nested):
    async def ask(run, one: str) -> bool:
        return await run.ask(f"Ship {one}?", returns=bool)

    @graph.node(timeout=limits)
    async def ship(run) -> bool:
        await asyncio.sleep(2)
        given = await (run.map(ask, ["a", "b"]) if nested else ask(run, "a"))
        await asyncio.sleep(2.5)
        return bool(given)

    assert run(graph, asker=Person("yes", "yes", seconds=100)).outputs == {"ship": True}


@pytest.mark.parametrize("limits", [Timeout(total_s=5), Timeout(idle_s=5)], ids=str)
def test_what_a_node_takes_before_and_after_it_asks_counts(graph, limits):
    person = Person("yes")

    @graph.node(timeout=limits)
    async def ship(run) -> bool:
        await asyncio.sleep(4.9375)
        answer = await run.ask("Ship this?", returns=bool)
        await asyncio.sleep(5.5)
        return answer

    (failure,) = run(graph, asker=person).failures

    assert isinstance(failure.error, NodeTimedOut)
    assert len(person.asked) == 1


def test_a_second_attempt_does_not_ask_again(graph):
    person, errors = Person("yes", "no"), [RuntimeError("not yet")]

    @graph.node(retry=Retry(2, first_delay_s=0))
    async def ship(run) -> bool:
        answer = await run.ask("Ship this?", returns=bool)
        if errors:
            raise errors.pop()
        return answer

    assert run(graph, asker=person).outputs == {"ship": True}
    assert len(person.asked) == 1
