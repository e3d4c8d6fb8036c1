"""Scores by the probabilities of all that could have been given, and the sections of issues."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import pytest
from rubric.judged import CLEAR, DRAFT, alone, rubric

from harness.compress import sections_of
from harness.inference import ScriptedBackend
from harness.inference.completion import TokenLogprob
from harness.rubric import Dimension, Draft, Evaluator
from harness.rubric.rubric import Cap, Scale
from harness.rubric.scoring import checked_score, section_named

REPLY = '{"reason": "Of 4 parts, 2.", "issues": [], "score": 4}'
BY = {"judge": "logprob", "scale": Scale(min=1, max=5, step=1), "pass_at": 4, "focus_below": 3}
EVEN = {"4": 0.5, "5": 0.5}


def tokens(before: str, score: str, behind: str, top: dict[str, float]) -> tuple[TokenLogprob, ...]:
    """A reply as tokens, with the probabilities of what could have stood for the score."""
    sure = [TokenLogprob(token=t, logprob=-0.01, top=((t, -0.01), ("9", -5.0))) for t in before]
    likely = tuple((token, math.log(p)) for token, p in top.items())
    chosen = TokenLogprob(token=score, logprob=math.log(top.get(score, 0.001)), top=likely)
    return (*sure, chosen, *(TokenLogprob(token=t, logprob=-0.01) for t in behind))


def score(text: str, logprobs, dimension=CLEAR):
    async def ask(request):
        assert request.top_logprobs == 20
        completion = await ScriptedBackend([text]).chat(request)
        return replace(completion, logprobs=logprobs)

    by = Evaluator(rubric(dimension, **BY), ask=ask, models=["judge"])
    return asyncio.run(by.evaluate(DRAFT)).scores[0]


@pytest.mark.parametrize(
    ("token", "top", "expected"),
    [
        pytest.param("4", EVEN, 4.5, id="between two"),
        pytest.param("4", {"4": 0.4, "3": 0.3}, 3.57, id="renormalised"),
        pytest.param("4", {"4": 0.5, "9": 0.2, "0": 0.1, "five": 0.2}, 4, id="others left out"),
        pytest.param("4", {"4": 0.3, " 4": 0.1, "5": 0.4}, 4.5, id="a token with a blank"),
        pytest.param("4", {"4": 0.2, "5": 0.2, "The": 0.6}, None, id="about to say something else"),
        pytest.param("4", {"4": 0.3, "45": 0.7}, None, id="two digits are no score"),
    ],
)
def test_the_score_is_the_mean_of_those_it_could_have_given(token, top, expected):
    found = score(REPLY, tokens(REPLY[:-1].removesuffix(token), token, "}", top))

    assert found.score == (4 if expected is None else expected)
    assert found.from_logprobs is (expected is not None)


@pytest.mark.parametrize(
    ("logprobs", "expected"),
    [
        pytest.param((), 4, id="a server without any"),
        pytest.param(tokens("something else ", "4", "", EVEN), 4, id="of another text"),
        pytest.param(
            tokens(f"<think>1 2</think>\n{REPLY[:-2]}", "4", "}", EVEN), 4.5, id="thought"
        ),
    ],
)
def test_probabilities_that_are_not_the_replys_are_not_used(logprobs, expected):
    found = score(REPLY, logprobs)

    assert (found.score, found.from_logprobs) == (expected, expected != 4)


def test_caps_hold_an_expected_score_down_too():
    capped = CLEAR.model_copy(update={"caps": (Cap(at_most=3, when="It is short"),)})
    reply = alone(4, it_is_short=True)

    found = score(reply, tokens(reply[:-2], "4", "}", EVEN), capped)

    assert (found.score, found.from_logprobs) == (3, True)


HEADINGS = (
    "# 1. Introduction",
    "## 2.1 The *Escapement* of `clocks`",
    "## Results",
    "## IV. Discussion and outlook",
    "## Results",
    "## [Links](https://example.org): a list",
)
SECTIONS = sections_of("Before.\n\n" + "".join(f"{one}\n\nText.\n\n" for one in HEADINGS))


@pytest.mark.parametrize(
    ("heading", "index"),
    [
        pytest.param("1. Introduction", 1, id="as it is"),
        pytest.param("introduction", 1, id="without number and case"),
        pytest.param("Section 1: Introduction", 1, id="with another numbering"),
        pytest.param("Introduction section", 1, id="called a section"),
        pytest.param("The Escapement of clocks", 2, id="without its markup"),
        pytest.param("Discussion and out", 4, id="cut off"),
        pytest.param("Links: a list", 6, id="a link's text"),
        pytest.param("Results", None, id="a heading that occurs twice"),
        pytest.param("whole text", None, id="the whole"),
        pytest.param("Disc", None, id="too little of it"),
        pytest.param("1.", None, id="a number alone"),
    ],
)
def test_a_section_is_found_by_its_heading_as_models_write_it(heading, index):
    assert section_named(heading, SECTIONS) == index


def test_a_floor_holds_for_each_check_of_a_dimension():
    checks = [{"check": "words", "min": 10}, {"check": "finished"}]
    made = [
        Dimension.model_validate({"name": "form", "checks": checks, "floor": floor})
        for floor in (None, 3, 6)
    ]
    draft = Draft(text="Four words are here.", task="")

    assert [checked_score(one, draft, rubric(one)).score for one in made] == [7, 7, 4]
