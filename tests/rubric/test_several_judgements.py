"""Judgements that become one: a panel's, and repeats where one cannot tell."""

import asyncio
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rubric.judged import CLEAR, DRAFT, LENGTH, USEFUL, alone, judge, rubric, said, scripted

from harness.errors import CallTimeout, EvaluatorAbstained, LimitReached, ServerError
from harness.inference import ScriptedBackend
from harness.rubric import (
    DimensionScore,
    Draft,
    Evaluator,
    Finding,
    Rubric,
    measured_noise,
    reach_verdict,
)
from harness.rubric.noise import is_undecided
from harness.rubric.rubric import Scale
from harness.rubric.scoring import Opinion, combined, samples_of
from harness.rubric.verdict import half_up

UNREADABLE = ["Nine.", "Nine!"]

# --- a panel ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("combine", "points", "score", "passed"),
    [
        pytest.param("mean", (7, 7, 7.5), 7.17, False, id="mean to the hundredth"),
        pytest.param("median", (2, 8, 9), 8, True, id="median"),
        pytest.param("majority", (2, 8, 9), 8, True, id="two of three"),
        pytest.param("majority", (2, 7.5, 10), 7.5, False, id="one of three"),
        pytest.param("majority", (7, 9), 8, False, id="half is not more than half"),
    ],
)
def test_the_judgements_of_a_panel_become_one(combine, points, score, passed):
    panel = {f"judge {index}": [alone(given_score)] for index, given_score in enumerate(points)}

    verdict, _ = judge(panel, combine=combine)

    assert (verdict.vector, verdict.passed) == ({"clear": score}, passed)
    judges = verdict.judges
    assert judges.evaluators == tuple(panel)
    assert (judges.judgements, judges.combine, judges.absent) == (len(panel), combine, ())
    assert judges.spread == verdict.scores[0].spread == pytest.approx(statistics.stdev(points))
    assert judges.pass_share == sum(one >= 8 for one in points) / len(panel)


def test_they_are_asked_at_once():
    async def main():
        all_there = asyncio.Event()
        asked = []

        async def ask(request):
            asked.append(request.model)
            if set(asked) == {"a", "b", "c"}:
                all_there.set()
            await all_there.wait()
            return await ScriptedBackend([alone(7)]).chat(request)

        by = Evaluator(rubric(CLEAR), ask=ask, models=["a", "b", "c"])
        return await by.evaluate(DRAFT)

    assert asyncio.run(main()).judges.judgements == 3


@pytest.mark.parametrize(
    ("missing", "abstentions"),
    [
        pytest.param(UNREADABLE, 1, id="one abstains"),
        pytest.param([CallTimeout("too slow", endpoint="b")], 0, id="one cannot be reached"),
    ],
)
def test_whoever_gives_no_judgement_counts_for_nothing_while_others_judge(missing, abstentions):
    verdict, _ = judge({"a": [alone(8)], "b": missing, "c": [alone(9)]})

    assert verdict.vector == {"clear": 8.5}
    judges = verdict.judges
    assert (judges.evaluators, judges.judgements) == (("a", "c"), 2)
    assert (judges.abstentions, len(judges.absent)) == (abstentions, 1)
    assert "b" in judges.absent[0]


def test_when_nobody_judges_that_is_the_error_and_what_can_be_mended_goes_first():
    with pytest.raises(EvaluatorAbstained) as caught:
        judge({"a": UNREADABLE, "b": UNREADABLE})
    assert caught.value.abstentions == 2
    with pytest.raises(ServerError):
        judge({"a": UNREADABLE, "b": [ServerError("broken", endpoint="b")]})


def test_when_the_limits_leave_room_for_some_of_them_those_judge():
    def reply(request):
        if request.model == "b":
            raise LimitReached("no tokens left", limit="tokens")
        return alone(7)

    verdict, _ = judge(reply, models=("a", "b"))

    assert verdict.judges.absent == ("no tokens left",)


def test_what_any_of_them_found_is_found_once_and_at_its_section():
    verdict, _ = judge(
        {
            "a": [alone(8, "Name the parts.", section="parts")],
            "b": [alone(3, "name the PARTS", "No figures.", section="# Parts")],
            "c": [alone(9, "Name the parts.", section="Use")],
        },
        draft=Draft(text="# Parts\n\nTwo.\n\n# Use\n\nNone.\n", task="Write."),
    )

    (score,) = verdict.scores
    assert score.findings == (
        Finding("Name the parts.", "Parts", 0),
        Finding("No figures.", "Parts", 0),
        Finding("Name the parts.", "Use", 1),
    )
    assert score.reason == said(3)["reason"]


def score_of(name: str, points: float, **more) -> DimensionScore:
    return DimensionScore(name=name, score=points, source="judged", reason="r", **more)


@given(
    vectors=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=2, max_size=7),
    how=st.sampled_from(["mean", "median", "majority"]),
)
def test_each_dimension_is_combined_by_itself_and_lies_among_what_was_given(vectors, how):
    opinions = [
        Opinion(evaluator=f"e{n}", scores=(score_of("a", a / 2), score_of("b", b / 2)))
        for n, (a, b) in enumerate(vectors)
    ]
    naive = statistics.fmean if how == "mean" else statistics.median

    for index, score in enumerate(combined(opinions, how)):
        points = [vector[index] / 2 for vector in vectors]
        assert score.score == half_up(naive(points), 0.01)
        assert min(points) <= score.score <= max(points)


def test_a_rule_that_held_any_score_down_is_named_and_one_opinion_stays_as_it_is():
    held = score_of("a", 6, capped=("at most 6: x",), findings=(Finding("x"), Finding("X")))
    one = Opinion(evaluator="a", scores=(held,))

    (score,) = combined([one, Opinion(evaluator="b", scores=(score_of("a", 9),))], "mean")

    assert (score.score, score.capped) == (7.5, ("at most 6: x",))
    assert combined([one], "mean") == (held,)


# --- repeats ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("points", "judgements"),
    [
        pytest.param([7], 1, id="far below"),
        pytest.param([7.5, 7.5], 2, id="near, and sure of it"),
        pytest.param([7.5, 8.5, 7.5, 8.5, 7.5], 5, id="never sure, up to the limit"),
        # 7.5, 9.5 and 9.5: 8.83 +- 1.33. With another 9.5: 9 +- 1. With a fifth: 9.1 +- 0.8.
        pytest.param([7.5, 9.5, 9.5, 9.5, 9.5], 5, id="sure in the end"),
        # 8.5 and 9: 8.75 +- 0.5.
        pytest.param([8.5, 9], 2, id="sure after two"),
        # That they are equal says little: 8 +- 0.5, 0.35, 0.29, ...
        pytest.param([8, 8, 8, 8, 8], 5, id="equal at the threshold"),
    ],
)
def test_a_draft_near_the_threshold_is_judged_until_it_is_clear(points, judgements):
    verdict, requests = judge(map(alone, points), repeats=5)

    judges = verdict.judges
    assert judges.judgements == len(requests) == judgements
    assert verdict.vector["clear"] == pytest.approx(statistics.fmean(points), abs=0.005)
    if judgements > 1:
        assert judges.spread == verdict.scores[0].spread == pytest.approx(statistics.stdev(points))
        assert judges.pass_share == sum(score >= 8 for score in points) / len(points)
    # All are of one kind, and none is another.
    assert all(request.temperature > 0 for request in requests)
    assert len({request.seed for request in requests}) == judgements
    assert len({request.messages for request in requests}) == 1


def test_a_judgement_that_is_never_repeated_is_the_likeliest():
    _, (request,) = judge([alone(8)], repeats=1)

    assert request.temperature == 0


@pytest.mark.parametrize(
    ("noise", "score", "fields", "judgements"),
    [
        pytest.param(0.2, 7.5, {}, 1, id="noise quieter than the margin"),
        pytest.param(0.25, 7.5, {}, 2, id="as wide"),
        pytest.param(None, 7.5, {}, 2, id="not measured"),
        pytest.param(None, 8, {"repeats": 1}, 1, id="a rubric without repeats"),
    ],
)
def test_measured_noise_goes_before_the_rubrics_margin(noise, score, fields, judgements):
    _, requests = judge([alone(score)] * judgements, noise=noise, **{"repeats": 2, **fields})

    assert len(requests) == judgements


@pytest.mark.parametrize(
    ("noise", "points", "borderline"),
    [
        pytest.param(0.25, [8, 8, 7.5], True, id="near after all repeats"),
        pytest.param(0.25, [7.5, 6.5], False, id="clear after some"),
        pytest.param(0.25, [5], False, id="far away"),
        pytest.param(0.0, [8], False, id="a judge without noise"),
        pytest.param(None, [8, 8, 7.5], None, id="never measured"),
    ],
)
def test_a_verdict_is_borderline_where_chance_may_have_decided(noise, points, borderline):
    verdict, _ = judge(map(alone, points), noise=noise, repeats=3)

    assert verdict.judges.judgements == len(points)
    assert verdict.judges.borderline is borderline


@pytest.mark.parametrize(
    ("composites", "noise", "undecided"),
    [
        pytest.param([8.5] * 4, 0.5, True, id="4 at 0.5, of 0.5"),
        pytest.param([8.6] * 9, 0.75, False, id="9 at 0.6, of 0.75"),
        # 8.5 and 9.5 deviate by 0.71: their mean has two standard errors of 1.
        pytest.param([8.5, 9.5], None, True, id="2 at 1, of 0.71"),
        pytest.param([8.6, 9.6], None, False, id="2 at 1.1, of 0.71"),
    ],
)
def test_the_interval_narrows_with_the_root_of_the_number(composites, noise, undecided):
    assert undecided_of([composites], noise=noise) is undecided


def undecided_of(composites, *, combine="mean", noise=None):
    """Of a panel, each of whose judges gave these composites."""
    by = rubric(CLEAR)
    judgements = [[verdict_at(one, by) for one in of_judge] for of_judge in composites]
    opinions = [
        Opinion(evaluator=f"e{n}", scores=verdict.scores)
        for n, of_judge in enumerate(judgements)
        for verdict in of_judge
    ]
    together = reach_verdict(by, combined(opinions, combine))
    return is_undecided(together, judgements, by, noise=noise)


def verdict_at(score, by):
    return reach_verdict(by, [score_of("clear", score)])


@pytest.mark.parametrize(
    ("composites", "combine", "noise", "undecided"),
    [
        # Severe, fair and mild, and far below: the mean is 7 +- 0.5, or, twice, 7 +- 0.35.
        pytest.param([[5], [7], [9]], "mean", None, False, id="who is severe is no noise"),
        pytest.param([[5, 5], [7, 7], [9, 9]], "mean", None, False, id="nor heard again"),
        # The median is 8 and the mean 6.3; and the other way round.
        pytest.param([[2], [8], [9]], "median", None, True, id="the median at the threshold"),
        pytest.param([[6], [9], [9]], "median", None, False, id="the mean at the threshold"),
        # Measured of the panel: 8.8 +- 1, and not 1 / sqrt(3).
        pytest.param([[8.8], [8.8], [8.8]], "mean", 0.5, True, id="the panel's own noise"),
        pytest.param([[8.8] * 2] * 3, "mean", 0.5, False, id="the same, heard twice"),
    ],
)
def test_a_panel_is_repeated_for_what_it_comes_to_and_for_noise_alone(
    composites, combine, noise, undecided
):
    assert undecided_of(composites, combine=combine, noise=noise) is undecided


@pytest.mark.parametrize(
    ("biases", "combine", "rounds"),
    [
        pytest.param((0,), "mean", 1, id="one judge"),
        pytest.param((0,), "mean", 3, id="one judge, heard three times"),
        pytest.param((-1, 0, 1), "mean", 1, id="a panel"),
        pytest.param((-0.1, 0, 0.1), "median", 1, id="a panel's median"),
        pytest.param((-1, 0, 1), "mean", 2, id="a panel, heard twice"),
    ],
)
def test_the_interval_around_a_composite_has_its_mean_as_often_as_is_said(biases, combine, rounds):
    by, chance, tenths = rubric(CLEAR), random.Random(7), 0.1
    fine = by.model_copy(update={"scale": Scale(step=tenths)})

    def heard(times):
        """What each judge says, one time after another, of a draft whose mean is 5."""
        draws = [[chance.gauss(5 + bias, 0.6) for _ in range(times)] for bias in biases]
        return [[half_up(one, tenths) for one in of_judge] for of_judge in draws]

    def together(judgements):
        opinions = [
            Opinion(evaluator=f"e{n}", scores=(score_of("clear", one),))
            for n, of_judge in enumerate(judgements)
            for one in of_judge
        ]
        return reach_verdict(fine, combined(opinions, combine))

    of_drafts = [[together(heard(1)).composite for _ in range(5)] for _ in range(200)]
    noise = measured_noise("e", of_drafts).deviation
    inside = 0
    for _ in range(1_000):
        judgements = heard(rounds)
        verdict = together(judgements)
        at_mean = fine.model_copy(update={"pass_at": 5.0})
        verdicts = [[verdict_at(one, at_mean) for one in of_judge] for of_judge in judgements]
        inside += is_undecided(verdict, verdicts, at_mean, noise=noise)

    assert inside / 1_000 == pytest.approx(0.954, abs=0.02)


@pytest.mark.parametrize(
    ("floor", "undecided"),
    [
        pytest.param(None, True, id="no floor"),
        pytest.param(8, True, id="at the floor"),
        pytest.param(9, False, id="clearly under it"),
    ],
)
def test_a_floor_that_decides_spares_the_repeats(floor, undecided):
    by = rubric(CLEAR.model_copy(update={"floor": floor}), USEFUL)
    verdict = reach_verdict(by, [score_of("clear", 8), score_of("useful", 8)])

    assert is_undecided(verdict, [[verdict]], by) is undecided


def test_a_check_under_its_floor_spares_them_too():
    short = LENGTH.model_copy(update={"floor": 6, "weight": 0.1})

    verdict, requests = judge([alone(8)], CLEAR, short, repeats=5)

    assert (verdict.below_floor, len(requests)) == (("length",), 1)


@pytest.mark.parametrize(
    ("replies", "judgements", "abstentions"),
    [
        pytest.param([alone(7.5), *UNREADABLE, alone(7.5)], 2, 1, id="unreadable: it goes on"),
        pytest.param([alone(7.5), CallTimeout("slow", endpoint="judge")], 1, 0, id="it fails"),
    ],
)
def test_a_repeat_that_gives_nothing_counts_for_nothing(replies, judgements, abstentions):
    verdict, requests = judge(replies, repeats=3)

    assert verdict.vector == {"clear": 7.5}
    judges = verdict.judges
    assert (judges.judgements, judges.abstentions) == (judgements, abstentions)
    assert (len(judges.absent), len(requests)) == (1, len(replies))


def test_a_limit_that_leaves_no_room_for_repeats_ends_them():
    left = [alone(8), alone(7.5)]

    def reply(request):
        if not left:
            raise LimitReached("no tokens left", limit="tokens")
        return left.pop()

    verdict, requests = judge(reply, repeats=9)

    assert (verdict.judges.judgements, len(requests)) == (2, 3)


def test_a_panel_that_disagrees_about_the_threshold_is_heard_again():
    replies = map(alone, [7, 9, 7, 7, 9, 9])

    verdict, _ = judge(replies, models=("a", "b"), combine="majority", repeats=3)

    assert verdict.judges.judgements == 6
    assert (verdict.judges.pass_share, verdict.passed) == (0.5, False)


@pytest.mark.parametrize(
    ("samples", "points"),
    [
        pytest.param(1, [2], id="one, and not the likeliest"),
        pytest.param(4, [2, 9, 2, 9], id="four, far from the threshold"),
    ],
)
def test_a_number_of_samples_is_kept_to_wherever_the_scores_lie(samples, points):
    backend = scripted(map(alone, points))
    by = Evaluator(rubric(repeats=3), ask=backend.chat, models=["judge"])

    verdict = asyncio.run(by.evaluate(DRAFT, samples=samples))

    assert verdict.composite == statistics.fmean(points)
    assert [one.composite for one in verdict.judges.each] == points
    assert verdict.judges.composites == tuple(points)
    assert all(request.temperature > 0 for request in backend.requests)
    assert len({request.seed for request in backend.requests}) == samples


def test_samples_that_cannot_all_be_had_are_no_verdict():
    backend = scripted([alone(7), CallTimeout("slow", endpoint="judge")])
    by = Evaluator(rubric(repeats=3), ask=backend.chat, models=["judge"])

    with pytest.raises(CallTimeout):
        asyncio.run(by.evaluate(DRAFT, samples=2))


def test_a_median_is_taken_between_judges_and_not_among_the_samples_of_one():
    opinions = [
        Opinion(evaluator=evaluator, scores=(score_of("a", points),))
        for evaluator, points in (("x", 1), ("x", 8), ("x", 9), ("y", 2), ("z", 7))
    ]

    (score,) = combined(opinions, "median")

    assert score.score == 6


def test_every_judgement_is_kept_with_what_it_took():
    verdict, _ = judge({"a": ["Nine.", alone(9)], "b": [alone(5)]})

    first, second = verdict.judges.each
    assert (first.evaluator, first.scores, first.composite) == ("a", {"clear": 9}, 9)
    assert (first.repaired, second.repaired) == (("clear",), ())
    assert (second.evaluator, second.composite) == ("b", 5)


@pytest.mark.parametrize(
    ("combine", "samples"), [("mean", [5, 7]), ("median", [4, 7])], ids=["mean", "median"]
)
def test_a_sample_of_a_panel_is_what_its_judges_come_to(combine, samples):
    replies = {"a": [2, 6], "b": [4, 7], "c": [9, 8]}
    backend = scripted({model: map(alone, points) for model, points in replies.items()})
    by = Evaluator(rubric(), ask=backend.chat, models=tuple(replies), combine=combine)

    verdict = asyncio.run(by.evaluate(DRAFT, samples=2))

    assert samples_of(verdict.judges) == {"clear": samples}


@pytest.mark.parametrize(
    ("fields", "noise", "calls"),
    [
        pytest.param({}, None, 1, id="no calibration"),
        pytest.param({}, 0.5, 3, id="measured noise"),
        pytest.param({"repeats": 2}, None, 2, id="the rubric asks for it"),
    ],
)
def test_a_score_at_the_threshold_is_judged_once_until_the_noise_is_known(fields, noise, calls):
    asked = Rubric(title="One", dimensions=(CLEAR,), **fields)
    backend = ScriptedBackend([alone(8), alone(7), alone(9)])

    by = Evaluator(asked, ask=backend.chat, models=["judge"], noise=noise)
    verdict = asyncio.run(by.evaluate(DRAFT))

    assert (len(backend.requests), verdict.judges.judgements) == (calls, calls)
