"""Failures of other revise loops that are on record, by the number they have in the project's list.

One test each, named after it: what went wrong there must not go wrong here.
"""

import asyncio
import json
from dataclasses import replace

import pytest
from scripted_loops import PARTED, World, run_loop, scores

from harness.inference import ChatRequest, ScriptedBackend
from harness.rubric import Dimension, Draft, Evaluator, Rubric
from harness.trace import Tracer, monotonic
from harness.wiggum import LoopLimits, LoopPolicy, Meter, Reviser, revise_until_met


def by_text(**points: float):
    """An evaluator that scores a draft by the word of it that is a name here."""
    return lambda text: scores(next(score for word, score in points.items() if word in text), 6)


def loop(world: World, *, first: Draft, max_rounds: int = 3, **more):
    return asyncio.run(
        run_loop(world, first=first, limits=LoopLimits(max_rounds=max_rounds), **more)
    )


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param("", id="an empty string"),
        pytest.param("\n \n", id="white space"),
        pytest.param("# One\n\n[…]\n\n# Two\n\n[…]\n", id="the condensed text"),
        pytest.param("# One\n\n[python code left out, lines: 9]\n", id="the mark of code"),
    ],
)
@pytest.mark.parametrize("mode", ["sections", "whole"])
@pytest.mark.parametrize("section", [0, None], ids=["one section", "all"])
def test_failure_3_an_empty_or_condensed_text_overwrites_the_document(reply, mode, section):
    world = World(lambda _number: reply, lambda _text: scores(3, 5, section=section))

    result = loop(world, first=PARTED, mode=mode)

    assert result.text == PARTED.text
    assert result.stop_reason == "producer_empty"
    assert len(world.evaluated) == 1


def test_failure_7_a_discarded_edit_stays_in_place():
    replies = {2: "# One\n\nWorse.", 3: "# Two\n\nBetter."}
    world = World(replies.__getitem__, by_text(Worse=1, Better=7, number=3))

    result = loop(world, first=PARTED)

    # The second revision, and what is returned, were made from the first draft and not the worse.
    assert result.rounds[2].base_round == 1
    assert "Worse" not in result.rounds[2].draft
    assert result.text == PARTED.text.replace("Some more.", "Better.")


def test_failure_10_the_last_round_is_reported_as_the_result():
    world = World({2: "good", 3: "bad"}.__getitem__, by_text(good=7, bad=2, first=3))

    result = loop(world, first=Draft(text="first", task="Write."))

    assert [one.verdict.composite for one in result.rounds] == [4.5, 6.5, 4.0]
    assert (result.text, result.best.number) == ("good", 2)


@pytest.mark.parametrize(
    ("lucky", "honest"), [pytest.param(9, 6, id="lower"), pytest.param(9, 8, id="still enough")]
)
def test_failure_14_the_luckiest_of_several_scores_is_taken(lucky, honest):
    said = iter([(3, 8), (lucky, 8), (honest, 8), (3, 3)])
    world = World(
        lambda number: f"# One\n\nText {number}.",
        lambda _text: scores(*next(said), section=0),
    )

    result = loop(world, first=PARTED, max_rounds=2, policy=LoopPolicy(rescore="changed"))

    # The score that the full evaluation gave counts, be it that the one before it was higher.
    assert result.rounds[1].verdict.vector["clear"] == honest
    assert result.passed == (honest == 8)


def test_failure_14_a_gain_within_the_noise_is_taken_for_one():
    world = World(lambda number: f"Text {number}", by_text(**{"2": 3.4, "3": 3.2, "Text": 3}))

    result = loop(
        world, first=Draft(text="Text", task="Write."), max_rounds=9, policy=LoopPolicy(noise=0.3)
    )

    assert result.stop_reason == "plateau"
    assert len(result.rounds) == 3


CONSTRAINTS = ("Keep to the style of a manual.", "Every number stands in the sources.")


@pytest.mark.parametrize("mode", ["sections", "whole"])
@pytest.mark.parametrize("section", [0, None], ids=["one section", "all"])
def test_failure_23_the_original_constraints_are_lost_in_revisions(mode, section):
    world = World(
        lambda number: f"# One\n\nText {number}.",
        lambda text: scores(3 + text.count("2") + text.count("3"), 5, section=section),
    )
    first = replace(PARTED, task="Write, in British English.")

    result = loop(world, first=first, mode=mode, requirements=CONSTRAINTS)

    prompts = [r.messages[-1].content for r in world.requests if r.role == "producer"]
    assert len(prompts) == len(result.revisions) == 2
    for prompt in prompts:
        assert all(constraint in prompt for constraint in (first.task, *CONSTRAINTS))


@pytest.mark.parametrize(
    ("reply", "ends"),
    [
        pytest.param("# One\n\nIt is whole. It is cu", "It is whole.\n\n# Two", id="a sentence"),
        pytest.param(
            "# One\n\nRun it:\n\n```sh\nls\ncd /tm", "```sh\nls\n```\n\n# Two", id="a code fence"
        ),
    ],
)
def test_failure_24_a_token_cap_cuts_a_section_and_leaves_it_broken(reply, ends):
    world = World(lambda _number: reply, lambda _text: scores(3, 5, section=0))
    told = world.ask

    async def cut(request: ChatRequest):
        reason = "length" if request.role == "producer" else "stop"
        return replace(await told(request), finish_reason=reason)

    world.ask = cut

    result = loop(world, first=PARTED, max_rounds=2)

    assert ends in result.rounds[1].draft
    assert result.rounds[1].draft.endswith("# Two\n\nSome more.\n")


def test_failure_25_the_feedback_of_a_panel_is_not_delivered():
    rubric = Rubric(
        title="Essay", repeats=1, dimensions=(Dimension(name="clear", judge="Is it clear?"),)
    )
    problems = {
        "ann": ("whole text", "It begins in the middle."),
        "bob": ("One", "What a part is stays open."),
        "cem": ("Two", "Nothing is said of time."),
    }
    told = []

    async def ask(request: ChatRequest):
        if request.role == "producer":
            told.append(request.messages[-1].content)
            return await ScriptedBackend(["# One\n\nNew."]).chat(request)
        section, problem = problems[request.model]
        issues = [{"section": section, "problem": problem}]
        judgement = {"reason": f"So says {request.model}.", "issues": issues, "score": 3}
        return await ScriptedBackend([json.dumps(judgement)]).chat(request)

    meter = Meter(ask, limits=LoopLimits(max_rounds=2), clock=monotonic)
    asyncio.run(
        revise_until_met(
            PARTED,
            evaluator=Evaluator(rubric, ask=meter.ask, models=tuple(problems)),
            reviser=Reviser(ask=meter.ask, model="writer", requirements=(), max_output_tokens=100),
            meter=meter,
            tracer=Tracer(),
        )
    )

    (prompt,) = told
    for _section, problem in problems.values():
        assert problem in prompt


def test_failure_26_a_retry_because_of_a_count_lowers_the_score():
    # The revision that the count asked for is worse in all else.
    world = World({2: "short and dull", 3: "short, dull, bad"}.__getitem__, by_text(long=6, dull=3))

    result = loop(world, first=Draft(text="long but good", task="Write."))

    assert result.text == "long but good"
    assert result.best.verdict.composite == 6.0


def test_failure_27_the_producer_answers_about_the_task():
    drift = "This is a good task, and here is how one might go about it."
    world = World(lambda number: f"{drift} {number}", by_text(task=1, number=5))

    result = loop(world, first=PARTED)

    assert result.text == PARTED.text
    asked = [r.messages[-1].content for r in world.requests if r.role == "producer"]
    assert all("nothing about it or about the task" in prompt for prompt in asked)
