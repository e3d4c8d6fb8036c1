"""Pipelines on scripted replies and scores."""

from __future__ import annotations

import asyncio
import time
from enum import Enum
from typing import Literal

import pytest
from pydantic import BaseModel

from harness import Pipeline, Retry, Run, Tool
from harness.errors import NodeFailed, RateLimited, ReplyCut
from harness.graph import Question
from harness.inference import Usage
from harness.rubric import Dimension, Rubric
from harness.testing import (
    Judge,
    Script,
    ScriptedReply,
    ScriptMismatch,
    ToolCall,
    _Person,
    run_pipeline,
    run_pipeline_async,
)

RUBRIC = Rubric(
    id="note",
    title="Note",
    repeats=1,
    pass_at=8,
    dimensions=(
        Dimension(name="clear", judge="Is it clear?"),
        Dimension(name="useful", judge="Is it useful?"),
    ),
)


class Topic(BaseModel):
    name: str


class Colour(Enum):
    RED = "red"


digest = Pipeline("digest")


@digest.node(models=["planner"])
async def topics(run: Run, document: str) -> list[Topic]:
    return await run.chat("planner", f"Topics of {document}", returns=list[Topic])


@digest.node(each={"topic": "topics"}, models=["producer"])
async def notes(run: Run, topic: Topic) -> str:
    # The first item takes longest, so that it asks last.
    await asyncio.sleep(0.02 if topic.name == "tea" else 0)
    first = await run.chat("producer", f"Note on {topic.name}")
    return f"{first} {await run.chat('producer', f'More on {topic.name}')}"


TOPICS = {"planner": [[Topic(name="tea"), Topic(name="milk")]]}


def asking(**options):
    """A pipeline that asks the producer once."""
    pipeline = Pipeline("asking")

    @pipeline.node
    async def text(run: Run) -> str:
        return repr(await run.chat("producer", "Say something.", **options))

    return pipeline


def loop(*, rubric=RUBRIC, **options):
    """A pipeline that revises a draft."""
    pipeline = Pipeline("loop")

    @pipeline.node
    async def text(run: Run, task: str) -> str:
        return (await run.wiggum(task, rubric=rubric, **options)).text

    return pipeline


# --- scripts --------------------------------------------------------------------------------------


def test_typed_values_are_given_as_they_are_and_each_item_has_the_replies_of_its_own() -> None:
    script = Script({**TOPICS, "notes[0]": ["Tea.", "Hot."], "notes[1]": ["Milk.", "Cold."]})
    result = run_pipeline(digest, script, document="Tea and milk.")

    assert result.outputs["topics"] == [Topic(name="tea"), Topic(name="milk")]
    assert result.outputs["notes"] == ["Tea. Hot.", "Milk. Cold."]
    assert [one.role for one in script.requests] == ["planner"] + ["producer"] * 4
    assert not result.files.journal.is_relative_to(".")


@pytest.mark.parametrize(
    ("entries", "notes"),
    [
        ({"producer": ["One.", "Two."]}, ["One. Two.", "One. Two."]),
        ({"notes": ["One.", "Two."]}, ["One. Two.", "One. Two."]),
        ({"producer": "Same."}, ["Same. Same.", "Same. Same."]),
        ({"producer": {"milk": "Milk.", "": ["One.", "Two."]}}, ["One. Two.", "Milk. Milk."]),
        (
            {"producer": lambda request: request.messages[-1].content.split()[-1]},
            ["tea tea", "milk milk"],
        ),
    ],
    ids=["a list by role", "a list by node", "one reply", "by the prompt", "a function"],
)
def test_every_form_of_an_entry_answers_the_same_however_items_overtake_each_other(
    entries, notes
) -> None:
    result = run_pipeline(digest, Script({**TOPICS, **entries}), document="Tea and milk.")
    assert result.outputs["notes"] == notes


def test_replies_can_be_cut_fail_and_be_counted() -> None:
    cut = Script({"producer": [ScriptedReply(text="An", finish_reason="length")]})
    with pytest.raises(NodeFailed) as caught:
        run_pipeline(asking(), cut)
    assert isinstance(caught.value.__cause__, ReplyCut)

    usage = Usage(input_tokens=7, output_tokens=5, cached_tokens=None)
    limited = RateLimited("slow down", endpoint="producer", retry_after_s=0)
    script = Script({"producer": [limited, ScriptedReply(text="Fine.", usage=usage)]})
    result = run_pipeline(asking(), script)
    assert result.result == "'Fine.'"
    assert result.spent.output_tokens == 5


@pytest.mark.parametrize(
    ("returns", "value"),
    [
        (int, 3),
        (str, "3"),
        (list[str], ["a"]),
        (Topic, Topic(name="a")),
        (dict[str, int], {"a": 1}),
    ],
    ids=str,
)
def test_a_value_is_sent_as_a_model_would_write_it(returns, value) -> None:
    result = run_pipeline(asking(returns=returns), Script({"producer": [value]}))
    assert result.result == repr(value)


@pytest.mark.parametrize(
    ("returns", "text", "value"),
    [
        (list[Topic], '[{"name": "tea"}]', [Topic(name="tea")]),
        (list[Topic], 'Here: [{"name": "tea"}]', [Topic(name="tea")]),
        (Topic | None, '{"answer": {"name": "tea"}}', Topic(name="tea")),
        (int, "3.", 3),
        (str, '["a"]', '["a"]'),
        (str | None, "3", "3"),
        (Literal["tea", "milk"] | int, "tea", "tea"),
        (Colour | list[Topic], "red", Colour.RED),
    ],
    ids=str,
)
def test_a_text_is_sent_as_it_is_unless_it_is_a_value_of_the_type(returns, text, value) -> None:
    result = run_pipeline(asking(returns=returns), Script({"producer": [text]}))
    assert result.result == repr(value)


def test_a_call_without_a_reply_names_what_was_asked() -> None:
    with pytest.raises(ScriptMismatch, match=r"(?s)call 2 of 'notes\[.\]'.*Topics of Tea") as found:
        run_pipeline(digest, Script({**TOPICS, "producer": ["One."]}), document="Tea and milk.")
    assert found.value.code == "script.no-reply"

    with pytest.raises(ScriptMismatch, match="no entry 'text' or 'producer'"):
        run_pipeline(asking(), Script({"evaluator": "?"}))
    with pytest.raises(ScriptMismatch, match="none of 'tea', 'milk'"):
        run_pipeline(asking(), Script({"producer": {"tea": "Tea.", "milk": "Milk."}}))
    with pytest.raises(ScriptMismatch) as found:
        run_pipeline(asking(), Script({"producer": [["a"]]}))
    assert found.value.code == "script.not-a-text"


def test_a_call_without_a_reply_is_not_made_again() -> None:
    pipeline = Pipeline("again", retry=Retry(3, first_delay_s=60))

    @pipeline.node
    async def text(run: Run) -> str:
        return await run.chat("producer", "Say something.")

    script = Script({"producer": []})
    with pytest.raises(ScriptMismatch):
        run_pipeline(pipeline, script)
    assert len(script.requests) == 1


def test_replies_that_were_not_asked_for_are_listed() -> None:
    entries = {"text": ["One.", "Two."], "planner": {"tea": ["Never."]}, "critic": "Whenever."}
    with pytest.raises(ScriptMismatch, match=r"2 replies .*'Two.', 'Never.'\.") as found:
        run_pipeline(asking(), Script(entries))
    assert found.value.code == "script.unused-replies"


async def _run_it():
    with pytest.raises(Exception, match=r"await run_pipeline_async"):
        run_pipeline(asking(), Script({"producer": "Fine."}))
    return await run_pipeline_async(asking(), Script({"producer": "Fine."}))


def test_there_is_a_door_for_code_that_runs_in_an_event_loop() -> None:
    assert asyncio.run(_run_it()).result == "'Fine.'"


# --- people ---------------------------------------------------------------------------------------

release = Pipeline("release")


@release.node
async def ship(run: Run, title: str) -> str:
    return f"{title}: {await run.ask('Ship it?', returns=bool)}"


@release.node(models=["producer"])
async def pay(run: Run) -> str:
    def pay(euros: int) -> str:
        return f"{euros} paid."

    result = await run.agent("producer", "Pay 9.", tools=[Tool(pay, approve=True)])
    return result.calls[0].outcome


PAY_9 = ScriptedReply(tool_calls=(ToolCall(id="1", name="pay", arguments='{"euros": 9}'),))


def paying() -> Script:
    return Script({"pay": [PAY_9, "Done."]})


@pytest.mark.parametrize(
    "named",
    [
        {"ship": True, "pay": "no"},
        {"Ship it?": "yes", "May this be called? pay(euros=9)": False},
        {"ship/ask": "y", "pay/agent[0]/ask": False},
    ],
    ids=["by node", "by text", "by key"],
)
def test_a_person_answers_by_what_is_asked(named) -> None:
    result = run_pipeline(release, paying(), title="Tea", answers=named)
    assert result.outputs == {"ship": "Tea: True", "pay": "refused"}


def test_an_asker_answers_the_other_questions() -> None:
    async def asker(question: Question) -> bool:
        return question.node != "ship"

    result = run_pipeline(release, paying(), title="Tea", answers={"ship": True}, asker=asker)
    assert result.outputs == {"ship": "Tea: True", "pay": "ok"}


def test_a_question_without_an_answer_waits() -> None:
    script = Script({"pay": [PAY_9]})
    result = run_pipeline(release, script, title="Tea", answers={"ship": True})
    assert [one.node for one in result.questions] == ["pay/agent[0]"]


@pytest.mark.parametrize(
    ("answers", "code", "said"),
    [
        ({"shop": True}, "script.unused-answers", "ship/ask: Ship it?"),
        ({"pay": "perhaps"}, "script.answer-invalid", "perhaps"),
    ],
    ids=["to no question", "in no usable form"],
)
def test_an_answer_that_does_not_fit_is_an_error(answers, code, said) -> None:
    with pytest.raises(ScriptMismatch) as found:
        run_pipeline(release, paying(), title="Tea", answers=answers)
    assert found.value.code == code
    assert said in str(found.value)


def test_a_node_that_asks_until_it_is_content_does_not_ask_for_ever() -> None:
    async def title(run: Run) -> None:
        while await run.ask("Which title?"):
            pass

    choosy = Pipeline("choosy")
    choosy.node(title)
    with pytest.raises(ScriptMismatch, match="has asked 1000 times"):
        run_pipeline(choosy, Script({}), answers={"title": "Tea"})


def test_the_time_for_answers_grows_as_the_number_of_questions() -> None:
    def seconds(count: int) -> float:
        person, start = _Person({"?": "Tea"}, None), time.process_time()
        for number in range(count):
            person(Question(key="", node=f"{number}", text="?", form="", schema=None, about=""))
        return time.process_time() - start

    few, many = (min(seconds(count) for _ in range(3)) for count in (1_000, 4_000))
    assert many < 8 * few


# --- the judge ------------------------------------------------------------------------------------


def test_a_judge_needs_one_score_a_draft() -> None:
    script = Script({"producer": ["A draft.", "A better one."], "evaluator": Judge([6, 9])})
    result = run_pipeline(loop(), script, task="Write.")

    assert result.outputs["text"] == "A better one."
    assert [one.verdict.composite for one in result.loops[0].rounds] == [6, 9]


@pytest.mark.parametrize("judge", ["joint", "separate"])
def test_a_judge_scores_by_dimension_and_its_reason_reaches_the_reviser(judge) -> None:
    scores = [{"clear": 4, "useful": 9}, 9]
    script = Script(
        {"producer": ["A draft.", "A better one."], "evaluator": Judge(scores, reason="Too short.")}
    )
    rubric = RUBRIC.model_copy(update={"judge": judge})
    result = run_pipeline(loop(rubric=rubric), script, task="Write.")

    first, second = result.loops[0].rounds
    assert (first.verdict.vector, second.verdict.composite) == ({"clear": 4, "useful": 9}, 9)
    revision = [one for one in script.requests if one.role == "producer"][-1]
    assert "Too short." in revision.messages[-1].content


@pytest.mark.parametrize("scores", [9, {"clear": 9, "useful": 9}], ids=["one", "by dimension"])
def test_a_judge_can_have_one_score_for_all_drafts(scores) -> None:
    script = Script({"producer": {"": "A draft."}, "evaluator": Judge(scores)})
    result = run_pipeline(loop(), script, task="Write.")
    assert [one.verdict.composite for one in result.loops[0].rounds] == [9]


def test_a_judge_scores_by_the_draft_itself() -> None:
    judge = Judge(lambda draft: 9 if "better" in draft else 4)
    script = Script({"producer": ["A draft.", "A better one."], "evaluator": judge})
    result = run_pipeline(loop(), script, task="Write.")
    assert [one.verdict.composite for one in result.loops[0].rounds] == [4, 9]


@pytest.mark.parametrize(
    ("scores", "code"),
    [
        ([9, 4], "script.unused-replies"),
        ([4], "script.no-scores"),
        ([{"clear": 4}], "script.no-score"),
    ],
    ids=["too many", "too few", "a dimension is missing"],
)
def test_a_judge_whose_scores_do_not_fit_is_an_error(scores, code) -> None:
    script = Script({"producer": {"": "A draft."}, "evaluator": Judge(scores)})
    with pytest.raises(ScriptMismatch) as found:
        run_pipeline(loop(max_rounds=2, draft="First."), script, task="Write.")
    assert found.value.code == code
