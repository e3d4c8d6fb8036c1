"""Scores by the probabilities of all that the evaluator could have given."""

import asyncio
import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.inference import ScriptedBackend, TokenLogprob
from harness.rubric import Cap, Dimension, Draft, Evaluator, Rubric, Scale, half_up

CLEAR = Dimension(name="clear", judge="Is it clear?")
USEFUL = Dimension(name="useful", judge="Is it useful?")
DRAFT = Draft(text="Two words.", task="Write.")
REPLY = '{"reason": "Of 4 parts, 2.", "issues": [], "score": 4}'


def rubric(*dimensions) -> Rubric:
    return Rubric(
        id="essay",
        title="Essay",
        dimensions=dimensions or (CLEAR,),
        scale=Scale(min=1, max=5, step=1),
        pass_at=4,
        focus_below=3,
        judge="logprob",
        repeats=1,
    )


def tokens(before: str, score: str, behind: str, top: dict[str, float]) -> tuple[TokenLogprob, ...]:
    """A reply as tokens, with the probabilities of what could have stood for the score."""
    sure = [TokenLogprob(token=t, logprob=-0.01, top=((t, -0.01), ("9", -5.0))) for t in before]
    likely = tuple((token, math.log(p)) for token, p in top.items())
    chosen = TokenLogprob(token=score, logprob=math.log(top.get(score, 0.001)), top=likely)
    return (*sure, chosen, *(TokenLogprob(token=t, logprob=-0.01) for t in behind))


def score(text: str, logprobs, *dimensions):
    async def ask(request):
        assert request.top_logprobs == 20
        completion = await ScriptedBackend([text]).chat(request)
        return replace(completion, logprobs=logprobs)

    evaluator = Evaluator(rubric(*dimensions), ask=ask, models=["judge"])
    return asyncio.run(evaluator.evaluate(DRAFT)).scores[0]


@pytest.mark.parametrize(
    ("token", "top", "expected"),
    [
        pytest.param("4", {"4": 0.6, "3": 0.2, "5": 0.2}, 4, id="even"),
        pytest.param("4", {"4": 0.5, "5": 0.5}, 4.5, id="between two"),
        pytest.param("4", {"4": 0.4, "3": 0.3}, 3.57, id="renormalised"),
        pytest.param("4", {"4": 0.5, "9": 0.2, "0": 0.1, "five": 0.2}, 4, id="others left out"),
        pytest.param("4", {"4": 0.3, " 4": 0.1, "5": 0.4}, 4.5, id="a token with a blank"),
        pytest.param(" 4", {" 4": 0.5, " 2": 0.5}, 3, id="all with a blank"),
        pytest.param("4", {"4": 0.25, "5": 0.25}, 4.5, id="just enough"),
        pytest.param("4", {"4": 0.2, "5": 0.2, "The": 0.6}, None, id="about to say something else"),
        pytest.param("4", {"4": 0.3, "45": 0.7}, None, id="two digits are no score"),
    ],
)
def test_the_score_is_the_mean_of_those_it_could_have_given(token, top, expected):
    before, behind = REPLY[:-1].removesuffix(token), "}"

    found = score(REPLY, tokens(before, token, behind, top))

    assert found.score == (4 if expected is None else expected)
    assert found.from_logprobs is (expected is not None)


@settings(derandomize=True, deadline=None)
@given(weights=st.lists(st.integers(1, 100), min_size=5, max_size=5))
def test_it_is_the_weighted_mean_to_the_hundredth(weights):
    top = {str(n): weight / sum(weights) for n, weight in enumerate(weights, start=1)}

    found = score(REPLY, tokens(REPLY[:-2], "4", "}", top))

    naive = sum(n * weight for n, weight in enumerate(weights, start=1)) / sum(weights)
    assert found.score == pytest.approx(half_up(naive, 0.01), abs=0.0101)


def test_a_server_without_probabilities_gives_the_plain_score_and_the_verdict_says_so():
    found = score(REPLY, ())

    assert (found.score, found.from_logprobs) == (4, False)


def test_reasoning_before_the_reply_does_not_shift_the_score():
    top = {"4": 0.5, "5": 0.5}
    logprobs = tokens("<think>1 2 3</think>\n" + REPLY[:-2], "4", "}", top)

    assert score(REPLY, logprobs).score == 4.5


def test_tokens_that_are_not_the_replys_are_not_used():
    found = score(REPLY, tokens("something else ", "4", "", {"4": 0.5, "5": 0.5}))

    assert (found.score, found.from_logprobs) == (4, False)


def test_caps_hold_an_expected_score_down_too():
    capped = CLEAR.model_copy(update={"caps": (Cap(at_most=3, when="It is short"),)})
    reply = json.dumps({"reason": "x", "issues": [], "it_is_short": True, "score": 4})

    found = score(reply, tokens(reply[:-2], "4", "}", {"4": 0.5, "5": 0.5}), capped)

    assert (found.score, found.from_logprobs) == (3, True)


def test_each_dimension_is_asked_for_by_itself():
    backend = ScriptedBackend([REPLY, REPLY])
    evaluator = Evaluator(rubric(CLEAR, USEFUL), ask=backend.chat, models=["judge"])

    asyncio.run(evaluator.evaluate(DRAFT))

    assert len(backend.requests) == 2
