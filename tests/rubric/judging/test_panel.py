"""Several evaluators, whose judgements become one verdict."""

import asyncio
import json
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import CallTimeout, EvaluatorAbstained, LimitReached, ServerError
from harness.inference import ScriptedBackend
from harness.rubric import Dimension, DimensionScore, Draft, Evaluator, Finding, Rubric, half_up
from harness.rubric.judging.combine import Opinion, combined

CLEAR = Dimension(name="clear", judge="Is it clear?")
USEFUL = Dimension(name="useful", judge="Is it useful?")
RUBRIC = Rubric(id="essay", title="Essay", dimensions=(CLEAR,), repeats=1)
DRAFT = Draft(text="# Parts\n\nTwo.\n\n# Use\n\nNone.\n", task="Write.")


def said(score, *problems, section="whole text") -> str:
    issues = [{"section": section, "problem": problem} for problem in problems]
    return json.dumps({"reason": f"It is worth {score}.", "issues": issues, "score": score})


def evaluate(by_model, *, combine="mean", rubric=RUBRIC):
    """The verdict of a panel, and what was asked."""
    scripts = {model: ScriptedBackend(replies) for model, replies in by_model.items()}

    async def ask(request):
        return await scripts[request.model].chat(request)

    evaluator = Evaluator(rubric, ask=ask, models=list(by_model), combine=combine)
    return asyncio.run(evaluator.evaluate(DRAFT)), scripts


@pytest.mark.parametrize(
    ("combine", "given_scores", "score", "passed"),
    [
        pytest.param("mean", (6, 7, 9.5), 7.5, False, id="mean"),
        pytest.param("mean", (7, 7, 7.5), 7.17, False, id="mean to the hundredth"),
        pytest.param("median", (2, 8, 9), 8, True, id="median"),
        pytest.param("median", (7, 9), 8, True, id="median of two"),
        pytest.param("majority", (2, 8, 9), 8, True, id="two of three"),
        pytest.param("majority", (2, 7.5, 10), 7.5, False, id="one of three"),
        pytest.param("majority", (7, 9), 8, False, id="half is not more than half"),
    ],
)
def test_the_judgements_of_a_panel_become_one(combine, given_scores, score, passed):
    panel = {f"judge {index}": [said(points)] for index, points in enumerate(given_scores)}

    verdict, _ = evaluate(panel, combine=combine)

    assert (verdict.vector, verdict.passed) == ({"clear": score}, passed)
    judges = verdict.judges
    assert judges.evaluators == tuple(panel)
    assert (judges.judgements, judges.combine, judges.absent) == (len(panel), combine, ())
    assert judges.spread == pytest.approx(statistics.stdev(given_scores))
    assert judges.pass_share == sum(points >= 8 for points in given_scores) / len(panel)
    assert verdict.scores[0].spread == pytest.approx(statistics.stdev(given_scores))


def test_they_are_asked_at_once():
    async def main():
        all_there = asyncio.Event()
        asked = []

        async def ask(request):
            asked.append(request.model)
            if len(asked) == 3:
                all_there.set()
            await all_there.wait()
            return await ScriptedBackend([said(7)]).chat(request)

        evaluator = Evaluator(RUBRIC, ask=ask, models=["a", "b", "c"])
        return await asyncio.wait_for(evaluator.evaluate(DRAFT), timeout=10)

    assert asyncio.run(main()).judges.judgements == 3


@pytest.mark.parametrize(
    ("missing", "abstentions"),
    [
        pytest.param(["Nine.", "Nine!"], 1, id="one abstains"),
        pytest.param([CallTimeout("too slow", endpoint="b")], 0, id="one cannot be reached"),
    ],
)
def test_whoever_gives_no_judgement_counts_for_nothing_while_others_judge(missing, abstentions):
    verdict, _ = evaluate({"a": [said(8)], "b": missing, "c": [said(9)]})

    assert verdict.vector == {"clear": 8.5}
    judges = verdict.judges
    assert (judges.evaluators, judges.judgements) == (("a", "c"), 2)
    assert judges.abstentions == abstentions
    (why,) = judges.absent
    assert why.startswith(("b: ", "'b' "))


@pytest.mark.parametrize(
    ("replies", "error", "message"),
    [
        pytest.param(
            {"a": ["Nine.", "Nine."], "b": ["Ten.", "Ten."]},
            EvaluatorAbstained,
            "'a' gave no score .* 'b' gave no score",
            id="all abstain",
        ),
        pytest.param(
            {"a": ["Nine.", "Nine."], "b": [ServerError("broken", endpoint="b")]},
            ServerError,
            "broken",
            id="what can be mended goes before an abstention",
        ),
    ],
)
def test_when_nobody_judges_that_is_the_error(replies, error, message):
    with pytest.raises(error, match=message) as caught:
        evaluate(replies)
    if error is EvaluatorAbstained:
        assert caught.value.abstentions == 2


def test_when_the_limits_leave_room_for_some_of_them_those_judge():
    async def ask(request):
        if request.model == "b":
            raise LimitReached("no tokens left", limit="tokens")
        return await ScriptedBackend([said(7)]).chat(request)

    verdict = asyncio.run(Evaluator(RUBRIC, ask=ask, models=["a", "b"]).evaluate(DRAFT))

    assert verdict.judges.absent == ("no tokens left",)


def test_what_any_of_them_found_is_found_once_and_at_its_section():
    verdict, _ = evaluate(
        {
            "a": [said(8, "Name the parts.", section="parts")],
            "b": [said(3, "name the PARTS", "No figures.", section="# Parts")],
            "c": [said(9, "Name the parts.", section="Use")],
        }
    )

    (score,) = verdict.scores
    assert score.findings == (
        Finding("Name the parts.", "Parts", 0),
        Finding("No figures.", "Parts", 0),
        Finding("Name the parts.", "Use", 1),
    )
    assert score.reason == "It is worth 3."


def score_of(name: str, points: float, **more) -> DimensionScore:
    return DimensionScore(name=name, score=points, source="judged", reason="r", **more)


@settings(derandomize=True, deadline=None)
@given(
    vectors=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=2, max_size=7),
    how=st.sampled_from(["mean", "median", "majority"]),
)
def test_each_dimension_is_combined_by_itself_and_lies_among_what_was_given(vectors, how):
    opinions = [
        Opinion(evaluator="e", scores=(score_of("a", a / 2), score_of("b", b / 2)))
        for a, b in vectors
    ]

    for index, score in enumerate(combined(opinions, how)):
        given_scores = sorted(vector[index] / 2 for vector in vectors)
        middle = len(given_scores) // 2
        naive = (
            sum(given_scores) / len(given_scores)
            if how == "mean"
            else given_scores[middle]
            if len(given_scores) % 2
            else (given_scores[middle - 1] + given_scores[middle]) / 2
        )
        assert score.score == half_up(naive, 0.01)
        assert given_scores[0] <= score.score <= given_scores[-1]


def test_a_rule_that_held_any_score_down_is_named():
    opinions = [
        Opinion(evaluator="a", scores=(score_of("a", 6, capped=("at most 6: x",)),)),
        Opinion(evaluator="b", scores=(score_of("a", 9),)),
    ]

    (score,) = combined(opinions, "mean")

    assert (score.score, score.capped) == (7.5, ("at most 6: x",))


def test_one_opinion_stays_as_it_is():
    only = score_of("a", 7, findings=(Finding("x"), Finding("X")))

    assert combined([Opinion(evaluator="a", scores=(only,))], "mean") == (only,)


def test_a_panel_judges_more_dimensions_by_split_calls_too():
    rubric = Rubric(id="e", title="E", dimensions=(CLEAR, USEFUL), judge="split", repeats=1)

    verdict, scripts = evaluate({"a": [said(6), said(8)], "b": [said(7), said(9)]}, rubric=rubric)

    assert verdict.vector == {"clear": 6.5, "useful": 8.5}
    assert [len(script.requests) for script in scripts.values()] == [2, 2]
