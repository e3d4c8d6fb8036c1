"""The agent: what it calls, what its model is told, when it ends, and what a resumed run keeps."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from sample_runs import load_run
from session_runs import Calls, instants_of, pipeline_of, refused, run, settings_of, spans_of
from session_runs import fail as failed

from harness import (
    AgentResult,
    Completion,
    Image,
    Limits,
    Message,
    Retry,
    Run,
    ScriptedBackend,
    ScriptedReply,
    Tool,
    ToolCall,
)
from harness.errors import NodeFailed, NotOffered, ReplyEmpty, RunLimitReached, ServerError
from harness.session.agent import AgentStep, next_move
from harness.session.tools import ToolResult

SCRIPT = Path(__file__).with_name("kill_agents.py")
TESTS = SCRIPT.parents[1]
calls = Calls()


def add(a: int, b: int = 1) -> int:
    """Adds."""
    calls.note(("add", a, b))
    return a + b


def fail(why: str) -> str:
    """Fails."""
    raise ValueError(why)


def exits() -> str:
    """Ends the program."""
    sys.exit(2)


async def exits_on_the_loop() -> str:
    """Ends the program."""
    sys.exit(2)


async def ends_itself() -> str:
    """Is cancelled."""
    raise asyncio.CancelledError


async def hang() -> str:
    """Never returns."""
    await asyncio.Event().wait()
    return ""


def hang_in_a_thread() -> str:
    """Takes its time."""
    time.sleep(0.5)
    return ""


def flood() -> str:
    """Says too much."""
    return "x" * 10_000_000


def asks(*wanted: tuple[str, Any]) -> ScriptedReply:
    """A reply that asks for these calls."""
    return ScriptedReply(
        tool_calls=tuple(
            ToolCall(f"{name}-{n}", name, said if isinstance(said, str) else json.dumps(said))
            for n, (name, said) in enumerate(wanted)
        )
    )


def agent_run(tmp_path, script, tools, *, how=None, **options):
    """A run of one agent, and its result."""
    model = script if isinstance(script, ScriptedBackend) else ScriptedBackend(script)

    async def answer(run: Run) -> AgentResult:
        return await run.agent("producer", "Do it.", tools=tools, **options)

    ended = run(
        pipeline_of(answer), settings_of(tmp_path), backends={"producer": model}, **(how or {})
    )
    return ended, ended.outputs.get("answer"), model


def outcomes(result):
    return [(one.name, one.outcome) for one in result.calls]


def test_an_agent_calls_tools_until_its_model_answers(tmp_path):
    script = [asks(("add", {"a": 1}), ("add", {"a": "2", "b": 2})), "  It is 4.\n"]

    _, result, model = agent_run(tmp_path, script, [add], system="Be short.")

    assert (result.text, result.stop_reason, result.steps) == ("It is 4.", "answered", 2)
    assert [one.text for one in result.calls] == ["2", "4"]
    assert [(m.role, m.content) for m in model.requests[1].messages] == [
        ("system", "Be short."),
        ("user", "Do it."),
        ("assistant", ""),
        ("tool", "2"),
        ("tool", "4"),
    ]
    assert [m.answers for m in result.messages] == [None, None, None, "add-0", "add-1", None]
    assert [one.name for one in model.requests[0].tools] == ["add"]


def test_calls_of_one_reply_are_made_side_by_side_and_answered_in_their_order(tmp_path):
    met, is_there = [], asyncio.Event()

    async def meet(name: str, waits: int) -> str:
        """Waits for another."""
        if waits:
            await is_there.wait()
        is_there.set()
        met.append(name)
        return name

    script = [asks(("meet", {"name": "a", "waits": 1}), ("meet", {"name": "b", "waits": 0}))]
    _, result, _ = agent_run(tmp_path, [*script, "Done."], [meet])

    assert met == ["b", "a"]
    assert [one.text for one in result.calls] == ["a", "b"]


@pytest.mark.parametrize(
    ("wanted", "outcome", "told"),
    [
        (("ad", {}), "unknown", "Error: there is no tool 'ad'; did you mean 'add'?"),
        (("add", "{"), "invalid", "Error: the arguments are not valid JSON"),
        (("add", {"a": "x"}), "invalid", "Error: a: Input should be a valid integer"),
        (("fail", {"why": "no disk"}), "failed", "Error: ValueError: no disk"),
        (("ends_itself", {}), "failed", "Error: CancelledError"),
        (("exits", {}), "failed", "Error: RuntimeError: the tool ended itself: SystemExit: 2"),
        (("exits_on_the_loop", {}), "failed", "Error: RuntimeError: the tool ended itself"),
        (("hang", {}), "timed out", "Error: 'hang' took longer than timeout_s = 0.05 s"),
        (("hang_in_a_thread", {}), "timed out", "Error: 'hang_in_a_thread' took longer"),
        (("flood", {}), "ok", "x" * 6_666 + "\n[… 9,990,000 characters are left out"),
    ],
    ids=lambda one: one[0] if isinstance(one, tuple) else None,
)
def test_whatever_goes_wrong_the_model_is_told(tmp_path, wanted, outcome, told):
    tools = [add, fail, ends_itself, exits, exits_on_the_loop, hang, hang_in_a_thread, flood]

    limit_s = 0.05 if outcome == "timed out" else 60
    ended, result, model = agent_run(tmp_path, [asks(wanted), "Well."], tools, timeout_s=limit_s)

    assert outcomes(result) == [(wanted[0], outcome)]
    assert model.requests[1].messages[-1].content.startswith(told)
    (span,) = [one for one in load_run(ended.files.journal).spans if one.name == "tool"]
    assert span.status == ("error" if outcome in {"failed", "timed out"} else "ok")
    assert span.attributes["outcome"] == outcome
    assert ended.files.journal.stat().st_size < 200_000


def test_a_tool_is_given_the_run_and_may_do_what_a_node_may(tmp_path):
    async def look_up(run: Run, word: str) -> list[str]:
        """Looks up."""

        async def letter(one: str) -> str:
            return one * 2

        return await run.map(letter, [*word])

    _, result, _ = agent_run(tmp_path, [asks(("look_up", {"word": "ab"})), "Ok."], [look_up])
    assert result.calls[0].text == '["aa","bb"]'


def test_the_model_is_told_before_its_last_step(tmp_path):
    script = [asks(("add", {"a": n})) for n in range(3)]

    _, result, model = agent_run(tmp_path, script, [add], max_steps=3)

    assert (result.stop_reason, result.steps, len(result.calls)) == ("max_steps", 3, 2)
    told = [request.messages[-1].content for request in model.requests]
    is_last = [one.endswith("Answer now, with what you know.]") for one in told]
    assert is_last == [False, False, True]


def test_an_agent_that_never_answers_returns_the_last_that_it_said(tmp_path):
    said = ScriptedReply(text="I will add.", tool_calls=asks(("add", {"a": 1})).tool_calls)

    _, result, _ = agent_run(tmp_path, [said, asks(("add", {"a": 2}))], [add], max_steps=2)

    assert (result.text, result.stop_reason) == ("I will add.", "max_steps")


def test_a_cut_answer_is_an_error_unless_it_may_be_kept(tmp_path):
    cut = ScriptedReply(text="It is", finish_reason="length")

    with refused("call.reply-cut"):
        agent_run(tmp_path, [cut], [add])
    _, result, _ = agent_run(tmp_path, [cut], [add], on_cut="keep")

    assert (result.text, result.stop_reason) == ("It is", "answered")


@pytest.mark.parametrize("text", ["", "\u200b"], ids=["no text", "nothing visible"])
def test_a_thought_that_was_cut_is_no_answer_though_cut_replies_may_be_kept(tmp_path, text):
    thought = ScriptedReply(text=text, reasoning="I will", finish_reason="length")
    with refused("call.reply-cut") as caught:
        agent_run(tmp_path, [asks(("add", {"a": 1})), thought], [add], on_cut="keep")
    assert str(caught.value).endswith("used up its room; raise max_output_tokens")


def test_the_same_call_over_and_over_is_answered_without_it_and_then_ends_the_agent(tmp_path):
    calls.made.clear()
    again = asks(("add", '{"a": 1, "b": 2}')), asks(("add", '{"b":2,"a":1}'))

    _, result, _ = agent_run(tmp_path, [again[n % 2] for n in range(9)], [add])

    assert len(calls.made) == 3
    assert [one.outcome for one in result.calls] == ["ok", "ok", "ok", "repeated"]
    assert (result.stop_reason, result.steps) == ("repeating", 5)


def _reply(*wanted, text=""):
    return Completion(
        text=text,
        tool_calls=asks(*wanted).tool_calls,
        reasoning="",
        finish_reason="stop",
        usage=None,
        sent_ns=0,
        first_token_ns=0,
        phases=(),
        model_id="m",
    )


def _step(text, *wanted, outcome="ok"):
    made = asks(*wanted).tool_calls
    results = tuple(
        ToolResult(name=c.name, arguments=c.arguments, text=text, outcome=outcome) for c in made
    )
    return AgentStep(turn=Message("assistant", "", tool_calls=made), results=results)


ONE, TWO = ("add", {"a": 1}), ("add", {"a": 2})


@pytest.mark.parametrize(
    ("steps", "reply", "move"),
    [
        ([], _reply(text="Yes."), "answered"),
        ([], _reply(ONE, text="Wait."), "call"),
        ([_step("1", ONE)] * 2, _reply(ONE), "call"),
        ([_step("1", ONE)] * 3, _reply(ONE), "remind"),
        ([_step("1", ONE)] * 3, _reply(TWO), "call"),
        ([_step("1", ONE), _step("2", ONE), _step("3", ONE)], _reply(ONE), "call"),
        ([_step("1", ONE, outcome="repeated")], _reply(ONE), "repeating"),
        ([_step("1", ONE, outcome="repeated")], _reply(ONE, TWO), "call"),
        ([_step("1", ONE), _step("1", TWO)] * 4, _reply(ONE), "call"),
        ([_step("1", TWO)] * 9, _reply(ONE), "max_steps"),
    ],
    ids=[
        *("an answer", "a call", "the third", "the fourth", "another", "a poll"),
        *("told so", "told so, and more", "by turns", "no step left"),
    ],
)
def test_what_comes_next(steps, reply, move):
    assert next_move(steps, reply, max_steps=10) == move


def test_an_empty_reply_is_no_answer(tmp_path):
    _, result, model = agent_run(tmp_path, ["", "Tea."], [add])

    assert (result.text, result.steps) == ("Tea.", 1)
    assert "empty" in model.requests[1].messages[-1].content


def test_a_second_empty_reply_in_a_row_is_an_error(tmp_path):
    def model(_: Any) -> str:
        return ""

    backend = ScriptedBackend(model)
    with pytest.raises(NodeFailed) as caught:
        agent_run(tmp_path, backend, [add])

    assert isinstance(caught.value.__cause__, ReplyEmpty)
    assert len(backend.requests) == 2


def test_the_answer_is_asked_for_once_more_in_its_type(tmp_path):
    script = [asks(("add", {"a": 1})), "There are two.", '{"answer": 2}']

    _, result, model = agent_run(tmp_path, script, [add], returns=int)

    assert (result.text, result.value) == ("There are two.", 2)
    assert not model.requests[2].tools
    before, last = model.requests[2].messages[:-1], model.requests[2].messages[-1]
    assert before == result.messages, "with the calls and what they gave"
    assert [m.role for m in before] == ["user", "assistant", "tool", "assistant"]
    assert last.role == "user"


PIXEL = Image.from_bytes(b"\x89PNG\r\n\x1a\n" + bytes(9))
OTHER = Image.from_bytes(b"\xff\xd8\xff" + bytes(9))


@dataclass
class Chart:
    title: str
    picture: Image


class Page(BaseModel):
    number: int
    pictures: list[Image]


@pytest.mark.parametrize(
    ("value", "text", "images"),
    [
        (PIXEL, "[image 1]", (PIXEL,)),
        (["Before and after:", PIXEL, OTHER], "Before and after:\n[image 1]\n[image 2]", "both"),
        ({"a": PIXEL, "n": 3}, '{"a":"[image 1]","n":3}', (PIXEL,)),
        (Chart("Sales", PIXEL), '{"title":"Sales","picture":"[image 1]"}', (PIXEL,)),
        (Page(number=2, pictures=[PIXEL, OTHER]), None, "both"),
        ([[PIXEL], 3], '[["[image 1]"],3]', (PIXEL,)),
        ({"a": 1}, '{"a":1}', ()),
        (["a", "b"], '["a","b"]', ()),
    ],
    ids=[
        "alone",
        "beside a text",
        "in a mapping",
        "in a dataclass",
        "in a model",
        "deep",
        "",
        "no",
    ],
)
def test_an_image_in_a_result_is_an_image_to_the_model(tmp_path, value, text, images):
    def look():
        """Looks."""
        return value

    _, result, model = agent_run(tmp_path, [asks(("look", {})), "A dot."], [look])

    shown = model.requests[1].messages[-1]
    both = (PIXEL, OTHER)
    assert shown.images == result.calls[0].images == (both if images == "both" else images)
    expected = '{"number":2,"pictures":["[image 1]","[image 2]"]}' if text is None else text
    assert (shown.role, shown.content) == ("tool", expected)
    assert PIXEL.encoded not in shown.content
    assert result.stop_reason == "answered"


def test_a_model_that_takes_no_images_is_told_that_there_was_one(tmp_path):
    def look():
        """Looks."""
        return PIXEL

    class Blind(ScriptedBackend):
        async def chat(self, request):
            if request.images:
                self.requests.append(request)
                raise NotOffered("no images", endpoint="producer")
            return await super().chat(request)

    model = Blind([asks(("look", {})), asks(("look", {})), "I cannot see it."])
    _, result, _ = agent_run(tmp_path, model, [look])

    assert result.text == "I cannot see it."
    told = model.requests[-1].messages
    results = [message.content for message in told if message.role == "tool"]
    assert [("cannot be shown" in one) for one in results] == [True, True]


def test_a_resumed_run_has_the_images_of_its_tools(tmp_path):
    calls.made.clear()

    def look() -> Image:
        """Looks."""
        calls.note("look")
        return PIXEL

    down = ServerError("no", endpoint="producer", status=400)
    model = ScriptedBackend([asks(("look", {})), down, "A dot."])

    async def answer(run: Run) -> str:
        return (await run.agent("producer", "Do it.", tools=[look])).text

    given, pipeline = settings_of(tmp_path), pipeline_of(answer)
    failed(pipeline, given, backends={"producer": model})
    ended = run(pipeline, given, backends={"producer": model}, resume="latest")
    assert ended.result == "A dot."
    assert model.requests[-1].images == (PIXEL,)
    assert calls.made == ["look"]


def test_the_same_call_with_another_picture_is_no_repetition():
    plain = _step("[image 1]", ONE)
    step = [
        replace(plain, results=(replace(plain.results[0], images=(image,)),))
        for image in (PIXEL, PIXEL, OTHER)
    ]
    assert next_move(step, _reply(ONE), max_steps=10) == "call"
    assert next_move([step[0]] * 3, _reply(ONE), max_steps=10) == "remind"


def test_a_conversation_can_go_on(tmp_path):
    first = [asks(("add", {"a": 1})), "Two."]

    async def answer(run: Run) -> str:
        before = await run.agent("producer", "Add.", tools=[add])
        more = [*before.messages, Message("user", "And one more?")]
        return (await run.agent("producer", more, tools=[add])).text

    model = ScriptedBackend([*first, asks(("add", {"a": 2})), "Three."])
    ended = run(pipeline_of(answer), settings_of(tmp_path), backends={"producer": model})

    assert ended.result == "Three."
    assert len(model.requests[3].messages) == 7
    labels = [one["label"] for one in spans_of(ended, "node")]
    assert labels == ["answer", "answer/agent[0]", "answer/agent2[0]"]


def test_limits_that_are_too_low_are_refused(tmp_path):
    with refused("agent.limit-not-positive"):
        agent_run(tmp_path, [], [add], max_steps=0)


# --- people ---------------------------------------------------------------------------------------


def test_a_person_allows_a_call_in_the_next_part_of_the_run(tmp_path):
    calls.made.clear()
    script = [asks(("add", {"a": 1}), ("spend", {"usd": 9})), "Done."]

    def spend(usd: int) -> str:
        """Spends."""
        calls.note(("spend", usd))
        return "spent"

    tools = [add, Tool(spend, approve="Pay?")]
    waiting, _, model = agent_run(tmp_path, script, tools)
    assert waiting.status == "waiting"
    (question,) = waiting.questions
    assert question.text == "Pay? spend(usd=9)"
    assert calls.made == [("add", 1, 1)]

    how = {"resume": waiting.run_id, "answers": {question.key: "yes"}}
    ended, result, _ = agent_run(tmp_path, model, tools, how=how)

    assert ended.status == "finished"
    assert outcomes(result) == [("add", "ok"), ("spend", "ok")]
    assert calls.made == [("add", 1, 1), ("spend", 9)]
    assert len(model.requests) == 2


def test_what_a_person_refuses_is_not_called(tmp_path):
    calls.made.clear()

    async def no(question):
        return "no"

    tools = [Tool(add, approve=lambda given: given["a"] > 1 and f"Add {given['a']}?")]
    script = [asks(("add", {"a": 1}), ("add", {"a": 2})), "Done."]
    ended, result, model = agent_run(tmp_path, script, tools, how={"asker": no})

    assert outcomes(result) == [("add", "ok"), ("add", "refused")]
    assert calls.made == [("add", 1, 1)]
    assert "refused by the person" in model.requests[1].messages[-1].content
    assert [one["text"] for one in instants_of(ended, "answer")] == ["Add 2? add(a=2)"]


# --- the run --------------------------------------------------------------------------------------


def test_the_timeline_shows_agent_steps_and_tools_inside_each_other(tmp_path):
    ended, _, _ = agent_run(tmp_path, [asks(("add", {"a": 1}), ("no", {})), "Two."], [add])

    spans = {one.id: one for one in load_run(ended.files.journal).spans}

    def path(span):
        around = () if span.parent is None else path(spans[span.parent])
        return (*around, str(span.attributes.get("label", span.name)))

    paths = {" / ".join(path(one)[1:]) for one in spans.values()}
    assert paths >= {
        "answer / agent (producer) / step 1 / answer · producer",
        "answer / agent (producer) / step 1 / answer/agent[0] / add",
        "answer / agent (producer) / step 1 / answer/agent[1] / no",
        "answer / agent (producer) / step 2 / answer · producer",
    }
    (agent,) = spans_of(ended, "agent")
    assert (agent["steps"], agent["calls"], agent["stop_reason"]) == (2, 2, "answered")
    tracks = {one["track"] for one in spans_of(ended, "node")}
    assert tracks == {"node answer"}


def test_a_limit_of_the_run_ends_the_agent_and_it_goes_on_from_there_with_a_higher_one(tmp_path):
    calls.made.clear()
    script = [asks(("add", {"a": 1})), asks(("add", {"a": 2})), "Done."]

    stopped, _, model = agent_run(tmp_path, script, [add], how={"limits": Limits(max_calls=2)})
    assert stopped.status == "stopped"

    how = {"resume": stopped.run_id, "limits": Limits(max_calls=9)}
    ended, result, _ = agent_run(tmp_path, model, [add], how=how)
    assert (ended.status, result.text, len(model.requests)) == ("finished", "Done.", 3)
    assert calls.made == [("add", 1, 1), ("add", 2, 1)]


def test_a_limit_that_a_tool_meets_is_not_for_the_model_to_see(tmp_path):
    async def think(run: Run) -> str:
        """Thinks."""
        raise ExceptionGroup("both", [RunLimitReached("no calls left", limit="calls")])

    ended, _, model = agent_run(tmp_path, [asks(("think", {}))], [think])
    assert (ended.status, len(model.requests)) == ("stopped", 1)


def test_a_second_attempt_of_the_node_makes_no_call_again(tmp_path):
    calls.made.clear()

    async def answer(run: Run) -> str:
        result = await run.agent("producer", "Add.", tools=[add], temperature=1)
        if calls.note("attempt") == 2:
            raise ValueError("once more")
        return result.text

    model = ScriptedBackend([asks(("add", {"a": 1})), "Two."] * 2)
    pipeline = pipeline_of(answer, retry=Retry(2, first_delay_s=0))
    ended = run(pipeline, settings_of(tmp_path), backends={"producer": model})

    assert ended.result == "Two."
    assert calls.made == [("add", 1, 1), "attempt", "attempt"]


def test_a_tool_whose_code_changed_is_called_again_and_no_other(tmp_path):
    calls.made.clear()
    tools = Calls()  # no part of the node's code
    model = ScriptedBackend([asks(("add", {"a": 1}), ("other", {})), "Done.", "Done."])

    def other_that(gives):
        def other() -> str:
            """Gives."""
            return gives

        return other

    async def answer(run: Run) -> list[str]:
        result = await run.agent("producer", "Do it.", tools=tools.made)
        await run.ask("Go on?")
        return [one.text for one in result.calls]

    def part(other, **how):
        tools.made = [add, other_that(other)]
        backends = {"producer": model}
        return run(pipeline_of(answer), settings_of(tmp_path), backends=backends, **how)

    waiting = part("old")
    ended = part("new", resume=waiting.run_id, answers={waiting.questions[0].key: "yes"})

    assert ended.result == ["2", "new"]
    assert calls.made == [("add", 1, 1)]
    assert [one.node for one in ended.reruns] == ["answer/agent[1]"]


# --- random programs ------------------------------------------------------------------------------


def join(left: str, right: str) -> str:
    """Joins."""
    calls.note(("join", left, right))
    return f"{left[-20:]}{right[-20:]}"


def odd(n: int) -> str:
    """Refuses even numbers."""
    calls.note(("odd", n))
    if n % 2 == 0:
        raise ValueError(f"{n} is even")
    return "odd"


WORD = st.one_of(st.text(max_size=3), st.integers(0, 9))
"""A text, or the number of an earlier result, whose text it stands for."""
CALL = st.one_of(
    st.tuples(st.just("join"), WORD, WORD),
    st.tuples(st.just("odd"), st.integers(0, 9)),
    st.tuples(st.sampled_from(["odd", "joint"]), st.just("x")),
)
STEPS = st.lists(st.lists(CALL, min_size=1, max_size=4), max_size=6)
# Without the repetitions that end an agent.
PROGRAM = STEPS.filter(lambda steps: all(a != b for a, b in pairwise(steps)))


def filled(call, results):
    """A call with its arguments, of which some are results so far."""
    name, *rest = call
    words = [
        one
        if name != "join" or isinstance(one, str)
        else (["", *results][one % (len(results) + 1)])
        for one in rest
    ]
    return name, dict(zip({"join": ("left", "right")}.get(name, ("n",)), words, strict=True))


def interpreted(program, max_steps):
    """What an agent should do: the calls of tools, all results and the last text."""
    made, results = [], []
    for step in program[: max_steps - 1]:
        known = [*results]
        for call in step:
            match filled(call, known):
                case "join", {"left": left, "right": right}:
                    made.append(("join", left, right))
                    results.append(f"{left[-20:]}{right[-20:]}")
                case "odd", {"n": int(n)}:
                    made.append(("odd", n))
                    results.append("odd" if n % 2 else f"Error: ValueError: {n} is even")
                case "odd", _:
                    problem = "unable to parse string as an integer"
                    results.append(f"Error: n: Input should be a valid integer, {problem}")
                case name, _:
                    results.append(f"Error: there is no tool '{name}'; did you mean 'join'?")
    return made, results, "|".join(results) + "." if len(program) < max_steps else ""


def check_program(directory, program, max_steps):
    calls.made.clear()

    def model(request):
        step = sum(one.role == "assistant" for one in request.messages)
        note = "\n\n[No further"
        told = [one.content.partition(note)[0] for one in request.messages if one.role == "tool"]
        if step == len(program):
            return "|".join(told) + "."
        return asks(*(filled(call, told) for call in program[step]))

    _, result, _ = agent_run(directory, ScriptedBackend(model), [join, odd], max_steps=max_steps)
    made, results, text = interpreted(program, max_steps)
    assert [one.text for one in result.calls] == results
    assert sorted(calls.made, key=repr) == sorted(made, key=repr)
    assert result.text == text.strip()


@example(program=[[("join", "", "\r")]], max_steps=2)
@settings(max_examples=min(50, settings().max_examples))
@given(program=PROGRAM, max_steps=st.integers(1, 8))
def test_an_agent_does_what_a_plain_interpreter_of_its_program_does(program, max_steps):
    with tempfile.TemporaryDirectory() as directory:
        check_program(Path(directory), program, max_steps)


@pytest.mark.slow
@settings(max_examples=1_000 if settings.get_current_profile_name() == "nightly" else 100)
@given(program=PROGRAM, max_steps=st.integers(1, 8))
def test_hundreds_of_programs(program, max_steps):
    with tempfile.TemporaryDirectory() as directory:
        check_program(Path(directory), program, max_steps)


@pytest.mark.slow
def test_killed_agents_end_as_others_do_and_make_no_call_again(tmp_path):
    ended = subprocess.run(
        [sys.executable, SCRIPT, tmp_path, "12"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS / 'inference'}:{TESTS.parent}"},
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    tally = json.loads(ended.stdout)
    assert tally["kills"] >= 6
    assert tally["parts"] >= 3
    assert tally["kept"] > 50


def test_an_agents_result_with_its_type_can_be_the_output_of_a_node(tmp_path):
    async def answer(run: Run) -> AgentResult[int | None]:
        return await run.agent("producer", "Do it.", tools=[add], returns=int)

    def behind(answer: AgentResult[int | None]) -> int:
        return answer.value or 0

    model = ScriptedBackend(["Two.", '{"answer": 2}'])
    given, pipeline = settings_of(tmp_path), pipeline_of(answer, behind)
    assert run(pipeline, given, backends={"producer": model}).result == 2
