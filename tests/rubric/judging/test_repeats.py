"""Judging again where one judgement cannot tell on which side of the threshold a draft is."""

import asyncio
import itertools
import json
import statistics

import pytest

from harness.errors import CallTimeout, LimitReached
from harness.inference import ScriptedBackend
from harness.rubric import Dimension, DimensionScore, Draft, Evaluator, Rubric, reach_verdict
from harness.rubric.checks import Words
from harness.rubric.judging.repeats import is_undecided

CLEAR = Dimension(name="clear", judge="Is it clear?")
DRAFT = Draft(text="Two words.", task="Write.")


def rubric(*dimensions, **fields) -> Rubric:
    return Rubric(id="essay", title="Essay", dimensions=dimensions or (CLEAR,), **fields)


def said(score) -> str:
    return json.dumps({"reason": f"It is worth {score}.", "issues": [], "score": score})


def evaluate(replies, *, models=("judge",), noise=None, by=None):
    backend = ScriptedBackend(replies)
    evaluator = Evaluator(by or rubric(repeats=5), ask=backend.chat, models=models, noise=noise)
    return asyncio.run(evaluator.evaluate(DRAFT)), backend.requests


@pytest.mark.parametrize(
    ("scores", "judgements"),
    [
        pytest.param([7], 1, id="far below"),
        pytest.param([9], 1, id="far above"),
        pytest.param([7.5, 7.5], 2, id="near, and sure of it"),
        pytest.param([8.5, 8.5], 2, id="near from above"),
        pytest.param([7.5, 8.5, 7.5, 8.5, 7.5], 5, id="never sure, up to the limit"),
        # 7.5, 9.5 and 9.5: 8.83 +- 1.33. With another 9.5: 9 +- 1. With a fifth: 9.1 +- 0.8.
        pytest.param([7.5, 9.5, 9.5, 9.5, 9.5], 5, id="sure in the end"),
        # 8.5 and 9: 8.75 +- 0.5.
        pytest.param([8.5, 9], 2, id="sure after two"),
    ],
)
def test_a_draft_near_the_threshold_is_judged_until_it_is_clear(scores, judgements):
    verdict, requests = evaluate(map(said, scores))

    assert verdict.judges.judgements == len(requests) == judgements == len(scores)
    assert verdict.vector["clear"] == pytest.approx(statistics.fmean(scores), abs=0.005)
    if judgements > 1:
        assert verdict.judges.spread == pytest.approx(statistics.stdev(scores))
        assert verdict.scores[0].spread == verdict.judges.spread
        passing = sum(score >= 8 for score in scores)
        assert verdict.judges.pass_share == passing / len(scores)


def test_the_first_judgement_is_greedy_and_the_others_are_not_and_none_is_another():
    _, requests = evaluate(map(said, [7.5, 8.5, 7.5, 8.5, 7.5]))

    assert [request.temperature > 0 for request in requests] == [False, True, True, True, True]
    assert len({request.seed for request in requests}) == 5
    assert len({request.messages for request in requests}) == 1


def test_they_follow_one_another():
    running, most = 0, 0

    async def ask(request):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return await ScriptedBackend([said(next(scores))]).chat(request)

    scores = itertools.cycle([7.5, 8.5])
    asyncio.run(Evaluator(rubric(), ask=ask, models=["judge"]).evaluate(DRAFT))

    assert most == 1


@pytest.mark.parametrize(
    ("noise", "score", "judgements"),
    [
        pytest.param(0.2, 7.5, 1, id="quieter than the margin"),
        pytest.param(0.25, 7.5, 2, id="as wide"),
        pytest.param(1, 6, 2, id="louder"),
        pytest.param(0, 8, 1, id="none at all"),
        pytest.param(None, 7.5, 2, id="not measured"),
    ],
)
def test_measured_noise_goes_before_the_rubrics_margin(noise, score, judgements):
    by = rubric(repeats=2, repeat_within=0.5)

    _, requests = evaluate([said(score)] * judgements, noise=noise, by=by)

    assert len(requests) == judgements


@pytest.mark.parametrize(
    ("composites", "noise", "undecided"),
    [
        # Two standard errors of a mean of four are one deviation.
        pytest.param([8.6] * 4, 0.5, False, id="4 at 0.6, of 0.5"),
        pytest.param([8.5] * 4, 0.5, True, id="4 at 0.5, of 0.5"),
        pytest.param([8.5] * 9, 0.75, True, id="9 at 0.5, of 0.75"),
        pytest.param([8.6] * 9, 0.75, False, id="9 at 0.6, of 0.75"),
        # 8.5 and 9.5 deviate by 0.71: their mean has two standard errors of 1.
        pytest.param([8.5, 9.5], None, True, id="2 at 1, of 0.71"),
        pytest.param([8.6, 9.6], None, False, id="2 at 1.1, of 0.71"),
    ],
)
def test_the_interval_narrows_with_the_root_of_the_number(composites, noise, undecided):
    by = rubric()
    verdicts = [
        reach_verdict(by, [DimensionScore(name="clear", score=c, source="judged", reason="")])
        for c in composites
    ]

    assert is_undecided(verdicts, by, noise=noise) is undecided


@pytest.mark.parametrize(
    ("floor", "undecided"),
    [
        pytest.param(None, True, id="no floor"),
        pytest.param(8, True, id="at the floor"),
        pytest.param(8.5, True, id="under it, but as near"),
        pytest.param(9, False, id="clearly under it"),
    ],
)
def test_a_floor_that_decides_spares_the_repeats(floor, undecided):
    by = rubric(CLEAR.model_copy(update={"floor": floor}), Dimension(name="useful", judge="?"))
    scores = [
        DimensionScore(name=name, score=8, source="judged", reason="")
        for name in ("clear", "useful")
    ]

    assert is_undecided([reach_verdict(by, scores)], by) is undecided


def test_a_check_under_its_floor_spares_them_too():
    length = Dimension(name="length", checks=(Words(min=4),), floor=6, weight=0.1)
    reply = json.dumps({"clear": {"reason": "", "issues": [], "score": 8}})

    verdict, requests = evaluate([reply], by=rubric(CLEAR, length, repeats=5))

    assert (verdict.below_floor, len(requests)) == (("length",), 1)


@pytest.mark.parametrize(
    ("repeats", "within"), [pytest.param(1, 0.5, id="once"), pytest.param(5, 0, id="no margin")]
)
def test_a_rubric_may_do_without(repeats, within):
    _, requests = evaluate([said(8)], by=rubric(repeats=repeats, repeat_within=within))

    assert len(requests) == 1


def test_a_repeat_that_cannot_be_read_is_counted_and_counts_for_nothing():
    replies = [said(7.5), "Nine.", "Nine.", said(7.5)]

    verdict, _ = evaluate(replies, by=rubric(repeats=3))

    assert verdict.vector == {"clear": 7.5}
    assert (verdict.judges.judgements, verdict.judges.abstentions) == (2, 1)
    assert len(verdict.judges.absent) == 1


def test_a_repeat_that_cannot_be_asked_ends_them_with_what_there_is():
    verdict, requests = evaluate([said(7.5), CallTimeout("too slow", endpoint="judge")])

    assert (verdict.vector, len(requests)) == ({"clear": 7.5}, 2)
    assert verdict.judges.absent == ("judge: too slow",)


def test_a_limit_that_leaves_no_room_for_repeats_ends_them():
    asked = []

    async def ask(request):
        asked.append(request)
        if len(asked) > 2:
            raise LimitReached("no tokens left", limit="tokens")
        return await ScriptedBackend([said(7 + len(asked) / 2)]).chat(request)

    verdict = asyncio.run(Evaluator(rubric(repeats=9), ask=ask, models=["a"]).evaluate(DRAFT))

    assert (verdict.judges.judgements, len(asked)) == (2, 3)


def test_a_panel_that_disagrees_about_the_threshold_is_heard_again():
    scores = iter([7, 9, 7, 7, 9, 9])

    async def ask(request):
        return await ScriptedBackend([said(next(scores))]).chat(request)

    evaluator = Evaluator(rubric(repeats=3), ask=ask, models=["a", "b"], combine="majority")
    verdict = asyncio.run(evaluator.evaluate(DRAFT))

    assert verdict.judges.judgements == 6
    assert (verdict.judges.pass_share, verdict.passed) == (0.5, False)


@pytest.mark.parametrize("times", [1, 4])
def test_samples_are_that_many_judgements_that_chance_has_a_part_in(times):
    backend = ScriptedBackend(said(score) for score in range(times))
    evaluator = Evaluator(rubric(), ask=backend.chat, models=["judge"])

    verdicts = asyncio.run(evaluator.sampled(DRAFT, times=times))

    assert [verdict.composite for verdict in verdicts] == list(range(times))
    assert all(request.temperature > 0 for request in backend.requests)
    assert len({request.seed for request in backend.requests}) == times
