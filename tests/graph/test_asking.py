"""Nodes that ask a person, and runs that wait for the answer."""

import asyncio
from typing import Literal

import pytest
from graph_runs import Calls, run, run_recorded
from pydantic import BaseModel

from harness.errors import NodeTimedOut
from harness.graph import Default, Graph, Question, Retry, Skipped, Timeout
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
    return {(question.key, question.text): answer for question, answer in pairs}


# --- no answer -----------------------------------------------------------------------------------


def test_a_run_waits_for_an_answer_and_everything_else_goes_on(graph):
    calls = Calls()
    asks(graph)

    @graph.node
    async def shipped(ship: str) -> str:
        return ship

    @graph.node
    async def beside() -> str:
        await asyncio.sleep(10)
        calls.note("beside")
        return "done"

    @graph.node
    async def after(beside: str) -> str:
        return beside

    ended, records = run_recorded(graph)

    assert ended.status == "waiting"
    assert ended.questions == (
        Question(key="ship/ask", node="ship", text="Ship this?", form="yes or no"),
    )
    assert ended.outputs == {"beside": "done", "after": "done"}
    assert [(one.node, one.reason, one.because_of) for one in ended.skips] == [
        ("shipped", "'ship' waits for an answer", "ship")
    ]
    asked = [one for one in records if isinstance(one, Instant) and one.name == "question"]
    assert [one.attributes for one in asked] == [
        {"key": "ship/ask", "text": "Ship this?", "form": "yes or no"}
    ]
    assert [one.node for one in records if isinstance(one, NodeOutput)] == ["beside", "after"]


def test_a_failure_is_worse_than_a_question(graph):
    asks(graph)

    @graph.node
    async def broken() -> str:
        raise RuntimeError("no")

    ended = run(graph)

    assert ended.status == "failed"
    assert keys(ended) == ["ship/ask"]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"on_error": "skip"}, id="may be left out"),
        pytest.param({"on_error": Default("no")}, id="has a default"),
        pytest.param({"retry": Retry(3)}, id="is tried again"),
        pytest.param({"timeout": Timeout(total_s=5)}, id="has a time limit"),
    ],
)
def test_to_ask_is_no_failure(graph, options):
    asks(graph, **options)

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


def test_questions_of_one_node_are_numbered(graph):
    @graph.node
    async def ship(run) -> list[str]:
        return [await run.ask("Who?"), await run.ask("Where?"), await run.ask("Who?")]

    answers = {}
    for key, text, said in (
        ("ship/ask", "Who?", "me"),
        ("ship/ask#2", "Where?", "here"),
        ("ship/ask#3", "Who?", "you"),
    ):
        ended = run(graph, answers=answers)
        assert keys(ended) == [key]
        answers[key, text] = said

    assert run(graph, answers=answers).outputs == {"ship": ["me", "here", "you"]}


# --- several at once -----------------------------------------------------------------------------


def test_each_item_asks_its_own_question(graph):
    @graph.node(each={"name": "names"})
    async def ship(run, name: str) -> bool:
        return name == "b" or await run.ask(f"Ship {name}?", returns=bool)

    @graph.node
    async def shipped(ship: list[bool]) -> int:
        return sum(ship)

    ended = run(graph, {"names": ["a", "b", "c"]})

    assert keys(ended) == ["ship[0]/ask", "ship[2]/ask"]
    ended = run(graph, {"names": ["a", "b", "c"]}, answers=answered(ended, "yes", "no"))
    assert ended.outputs == {"ship": [True, True, False], "shipped": 2}


def test_a_question_of_a_nested_graph_is_the_runs(graph):
    inner = Graph("inner")
    asks(inner, name="one", text="One?")
    asks(inner, name="two", text="Two?", returns=str)

    @graph.node
    async def page(run) -> list[str]:
        outputs = await run.call(inner, {})
        return [outputs["one"], outputs["two"]]

    ended = run(graph)

    assert [(one.key, one.node) for one in ended.questions] == [
        ("page/inner/one/ask", "page/inner/one"),
        ("page/inner/two/ask", "page/inner/two"),
    ]
    ended = run(graph, answers=answered(ended, "no", "no"))
    assert ended.outputs == {"page": ["False", "'no'"]}


def test_all_questions_of_a_map_are_asked_at_once(graph):
    async def ask(run, name: str) -> bool:
        return await run.ask(f"Ship {name}?", returns=bool)

    @graph.node
    async def page(run) -> list[bool]:
        return await run.map(ask, ["a", "b", "c"])

    ended = run(graph)

    assert keys(ended) == [f"page/ask[{n}]/ask" for n in range(3)]
    ended = run(graph, answers=answered(ended, "true", "no", "yes"))
    assert ended.outputs == {"page": [True, False, True]}


@pytest.mark.parametrize("together", ["a task group", "gather"])
def test_all_questions_of_tasks_of_a_node_are_asked_at_once(graph, together):
    @graph.node
    async def ship(run) -> list[str]:
        questions = [run.ask("Who?"), run.ask("Where?")]
        if together == "gather":
            return await asyncio.gather(*questions)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in questions]
        return [task.result() for task in tasks]

    ended = run(graph)

    assert ended.status == "waiting"
    # Of a gathering Python itself lets go all but the first.
    first = {"ship/ask": ("Who?", "me"), "ship/ask#2": ("Where?", "here")}
    assert keys(ended) == (["ship/ask"] if together == "gather" else list(first))
    answers = {(key, text): said for key, (text, said) in first.items()}
    assert run(graph, answers=answers).outputs == {"ship": ["me", "here"]}


def test_a_question_in_a_task_group_goes_before_what_failed_beside_it(graph):
    @graph.node
    async def ship(run) -> str:
        async def fail() -> None:
            raise RuntimeError("no")

        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            task = group.create_task(run.ask("Who?"))
        return task.result()

    ended = run(graph)

    assert (ended.status, keys(ended)) == ("waiting", ["ship/ask"])


# --- answers -------------------------------------------------------------------------------------


ANSWERS = [
    pytest.param(bool, "yes", "True", id="yes"),
    pytest.param(bool, " No ", "False", id="no"),
    pytest.param(bool, True, "True", id="a truth value"),
    pytest.param(int, "3", "3", id="int"),
    pytest.param(float, "2.5", "2.5", id="float"),
    pytest.param(str, " as it is ", "' as it is '", id="str"),
    pytest.param(Literal["left", "right"], "left", "'left'", id="Literal"),
    pytest.param(list[int], "[1, 2]", "[1, 2]", id="list"),
    pytest.param(Choice, '{"step": "on"}', repr(Choice(step="on")), id="model as JSON"),
    pytest.param(Choice, Choice(step="on", times=2), repr(Choice(step="on", times=2)), id="model"),
]


@pytest.mark.parametrize(("returns", "given", "value"), ANSWERS)
def test_an_answer_becomes_what_was_asked_for(graph, returns, given, value):
    asks(graph, returns=returns)

    ended, records = run_recorded(graph, answers={("ship/ask", "Ship this?"): given})

    assert ended.outputs == {"ship": value}
    (said,) = [one for one in records if isinstance(one, Instant) and one.name == "answer"]
    assert said.attributes == {"key": "ship/ask", "text": "Ship this?", "answer": given}


@pytest.mark.parametrize(
    ("returns", "given", "form"),
    [
        pytest.param(bool, "perhaps", "yes or no", id="bool"),
        pytest.param(int, "many", "a whole number", id="int"),
        pytest.param(int, "2.5", "a whole number", id="half"),
        pytest.param(Literal["left", "right"], "up", "one of left, right", id="Literal"),
        pytest.param(Choice, '{"times": 2}', "JSON of Choice", id="model"),
        pytest.param(Choice, "on", "JSON of Choice", id="no JSON"),
    ],
)
def test_an_answer_of_another_kind_is_asked_for_again_and_why(graph, returns, given, form):
    asks(graph, returns=returns)

    ended = run(graph, answers={("ship/ask", "Ship this?"): given})

    (question,) = ended.questions
    assert question.form == form
    assert question.problem == f"{given!r} is not {form}"


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param({("ship/ask", "Ship that?"): "yes"}, id="to another text"),
        pytest.param({("shop/ask", "Ship this?"): "yes"}, id="to another node"),
    ],
)
def test_an_answer_to_another_question_is_none(graph, answers):
    asks(graph)

    assert run(graph, answers=answers).status == "waiting"


def test_false_and_nothing_are_answers_too(graph):
    asks(graph, returns=bool)
    asks(graph, returns=str, name="say")

    ended = run(graph, answers={("ship/ask", "Ship this?"): False, ("say/ask", "Ship this?"): ""})

    assert ended.outputs == {"ship": "False", "say": "''"}


# --- somebody is there ---------------------------------------------------------------------------


class Person:
    """Somebody who says these things, one after the other, and then goes away."""

    def __init__(self, *says: object) -> None:
        self.says = list(says)
        self.asked: list[Question] = []

    async def __call__(self, question: Question) -> object | None:
        self.asked.append(question)
        await asyncio.sleep(1)
        return self.says.pop(0) if self.says else None


def test_a_person_who_is_there_is_asked_at_once(graph):
    asks(graph)
    person = Person("yes")

    ended = run(graph, asker=person)

    assert ended.outputs == {"ship": "True"}
    assert [one.key for one in person.asked] == ["ship/ask"]


def test_a_person_is_not_asked_what_has_been_answered(graph):
    asks(graph)
    person = Person()

    ended = run(graph, asker=person, answers={("ship/ask", "Ship this?"): "yes"})

    assert ended.outputs == {"ship": "True"}
    assert not person.asked


def test_a_person_is_asked_until_the_answer_will_do(graph):
    asks(graph, returns=int)
    person = Person("many", "very many", "3")

    ended = run(graph, asker=person)

    assert ended.outputs == {"ship": "3"}
    assert [one.problem for one in person.asked] == [
        "",
        "'many' is not a whole number",
        "'very many' is not a whole number",
    ]


def test_a_run_waits_when_the_person_has_gone(graph):
    asks(graph, returns=int)

    ended = run(graph, asker=Person("many"))

    assert ended.status == "waiting"
    assert ended.questions[0].problem == "'many' is not a whole number"


def test_a_wrong_answer_from_before_is_put_to_the_person(graph):
    asks(graph, returns=int)
    person = Person("3")

    ended = run(graph, asker=person, answers={("ship/ask", "Ship this?"): "many"})

    assert ended.outputs == {"ship": "3"}
    assert [one.problem for one in person.asked] == ["'many' is not a whole number"]


@pytest.mark.parametrize("nested", [False, True], ids=["the node itself", "what is nested in it"])
@pytest.mark.parametrize(
    "limits", [Timeout(total_s=5), Timeout(idle_s=5), Timeout(total_s=5, idle_s=5)], ids=str
)
def test_a_person_may_take_longer_than_a_node_may(graph, limits, nested):
    async def slow_person(question: Question) -> str:
        await asyncio.sleep(100)
        return "yes"

    async def asks_for(run, one: str) -> bool:
        return await run.ask(f"Ship {one}?", returns=bool)

    @graph.node(timeout=limits)
    async def ship(run) -> list[bool]:
        await asyncio.sleep(2)
        answers = (run.map(asks_for, ["a", "b"]),) if nested else (asks_for(run, "a"),)
        given = await asyncio.gather(*answers)
        await asyncio.sleep(2.5)
        return [bool(given)]

    assert run(graph, asker=slow_person).outputs == {"ship": [True]}


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
    attempts = Calls()
    person = Person("yes", "no")

    @graph.node(retry=Retry(2, first_delay_s=0))
    async def ship(run) -> bool:
        answer = await run.ask("Ship this?", returns=bool)
        attempts.note("ship")
        if attempts.counts["ship"] < 2:
            raise RuntimeError("not yet")
        return answer

    assert run(graph, asker=person).outputs == {"ship": True}
    assert len(person.asked) == 1


def test_a_question_is_not_taken_for_a_skip(graph):
    # Who asks for `Skipped` is not told of a question: the answer will come.
    asks(graph)

    @graph.node
    async def told(ship: str | Skipped) -> str:
        return "never"

    ended = run(graph)

    assert ended.status == "waiting"
    assert "told" not in ended.outputs
