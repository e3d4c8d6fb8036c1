"""What labels say of a rubric: which drafts count, who pays for looking, what is claimed."""

import numpy as np
import pytest
from rubric.judged import CLEAR, LENGTH, TONE, rubric

from harness.errors import InvalidInput
from harness.rubric.calibration.bounds import RiskAim
from harness.rubric.calibration.calibration_files import Attempts
from harness.rubric.calibration.labels import Labeled
from harness.rubric.calibration.tuning import Tuning, one_per_group, scored_drafts
from harness.rubric.checks import GroundedNumbers
from harness.rubric.rubric import Dimension

pytest.importorskip("scipy", reason="scipy is not installed")

RUBRIC = rubric(pass_at=7)
YES, NO = {"": True}, {"": False}


def draft(number, score, accept=None, **more):
    said = {"": accept} if isinstance(accept, bool) else accept or {}
    scores = score if isinstance(score, dict) else {"clear": (score,)}
    return Labeled.model_construct(id=f"d{number}", scores=scores, accept=said, **more)


def drawn(count, seed=0, **more):
    """Of a judge that tells well: three in four are good and score 8, the others 5.2."""
    generator = np.random.default_rng(seed)
    bad = generator.random(count) < 0.25
    scores = np.clip(generator.normal(np.where(bad, 5.2, 8.0), 1.1), 0, 10)
    pairs = enumerate(zip(scores, bad, strict=True))
    return [draft(n, float(score), not wrong, **more) for n, (score, wrong) in pairs]


def tuned(drafts, using=RUBRIC, *, attempts=None, **aim):
    return Tuning(drafts, using, RiskAim(**aim), accept_at=7, attempts=attempts or Attempts())


def scored(drafts, using=RUBRIC, accept_at=7):
    """The drafts that count, and the ids of the others by the reason."""
    found = scored_drafts(drafts, using, accept_at=accept_at)
    lacking: dict[str, tuple[str, ...]] = {}
    for one in found:
        if one.lacks:
            lacking[one.lacks] = (*lacking.get(one.lacks, ()), one.labeled.id)
    return [one for one in found if not one.lacks], lacking


def test_a_threshold_is_claimed_and_its_counts_are_those_of_the_drafts():
    drafts = drawn(200)
    found = tuned(drafts)
    named = found.named
    accepted = [one for one in drafts if round(one.scores["clear"][0], 1) >= named.threshold]

    assert named.accepted == pytest.approx(len(accepted), abs=1)  # halves are rounded up
    assert named.drafts == 200
    assert named.wrong <= 0.1 * named.accepted
    assert named.rejects == sum(not one.accept[""] for one in drafts)
    assert named.good_lost == 200 - named.rejects - (named.accepted - named.wrong)
    assert found.missing is None


def test_with_few_labels_nothing_is_claimed_and_what_is_missing_is_said():
    found = tuned([draft(n, 9, YES) for n in range(15)] + [draft(15, 3, NO)])

    assert found.named is None
    assert found.missing == (38 - 16, 3)  # one wrong of 38 would do


def test_labels_of_rejects_are_missing_where_the_rate_is_of_those():
    drafts = [draft(n, 9, YES) for n in range(100)] + [draft(n, 3, NO) for n in range(100, 110)]
    found = tuned(drafts, risk="rejected")

    assert found.named is None
    assert found.missing == (22 - 10, 9)


@pytest.mark.parametrize("risk", ["accepted", "rejected", "all"])
def test_at_a_threshold_fixed_before_the_bound_is_of_the_rate_that_is_asked_for(risk):
    drafts = [draft(n, 9, n % 10 > 0) for n in range(60)] + [draft(n, 3, NO) for n in range(60, 90)]
    found = tuned(drafts, risk=risk)
    trials = {"accepted": 60, "rejected": 36, "all": 90}[risk]

    assert (found.own.accepted, found.own.wrong, found.own.trials(risk)) == (60, 6, trials)
    assert 6 / trials < found.own_bound < 6 / trials + 0.15


def test_drafts_that_fail_at_every_threshold_are_never_accepted():
    strict = rubric(CLEAR.model_copy(update={"floor": 5}), LENGTH, pass_at=2)
    drafts, _ = scored(
        [
            draft(1, {"clear": (4,), "length": (10,)}, YES),
            draft(2, {"clear": (6,), "length": (0,)}, YES),
        ],
        strict,
    )

    assert [one.reached for one in drafts] == [-np.inf, 4.5]
    assert drafts[0].composite == 5.5


def test_checks_are_made_where_the_file_has_no_score_of_them():
    checked = rubric(LENGTH, CLEAR)
    found, dropped = scored(
        [
            draft(1, 8, YES, draft="Four words are here."),
            draft(2, 8, YES, draft="Two words."),
            draft(3, 8, YES),
            draft(4, {"clear": (8,), "length": (10,)}, YES),
        ],
        checked,
    )

    assert [one.scores["length"] for one in found] == [10, 5, 10]
    assert list(dropped.values()) == [("d3",)]


@pytest.mark.parametrize(("language", "score"), [("de", 0), ("en", 10)])
def test_checks_read_a_draft_in_the_language_of_the_rubric(language, score):
    numbers = Dimension(name="numbers", checks=(GroundedNumbers(),))
    labeled = draft(1, {}, YES, draft="Es sind 1.200.", sources=("Es sind 1,2.",))
    (one,), _ = scored([labeled], rubric(numbers, language=language))

    assert one.scores == {"numbers": score}


def test_a_draft_without_a_score_or_label_is_left_out_and_named():
    found, dropped = scored(
        [draft(1, 8, YES), draft(2, {}, YES), draft(3, 8), draft(4, {}, NO), draft(5, 2, NO)]
    )

    assert [one.labeled.id for one in found] == ["d1", "d5"]
    assert sorted(dropped.values()) == [("d2", "d4"), ("d3",)]


def test_where_people_decide_their_scores_do_not_decide_in_their_place():
    unsaid = draft(1, 9, people={"clear": {"": 9.0}})
    drafts, dropped = scored([draft(0, 8, YES), unsaid])
    alone, _ = scored([unsaid])

    assert [one.labeled.id for one in drafts] == ["d0"]
    assert dropped == {"no label by people": ("d1",)}
    assert alone[0].accept is True


def test_an_optional_dimension_that_nobody_scored_does_not_count():
    optional = rubric(CLEAR, TONE)
    found, dropped = scored([draft(1, 8, YES)], optional)
    assert (found[0].composite, dropped) == (8, {})

    both = [draft(1, {"clear": (8,), "tone": (4,)}, YES), draft(2, 8, YES)]
    found, dropped = scored(both, optional)
    assert [one.composite for one in found] == [7]
    assert list(dropped.values()) == [("d2",)]


def test_a_dimension_that_needs_sources_is_left_out_without_any():
    faithful = Dimension(name="faithful", judge="Is it?", needs_sources=True)
    found, dropped = scored(
        [draft(1, 8, YES), draft(2, 8, YES, sources=("s",))], rubric(CLEAR, faithful)
    )

    assert [one.labeled.id for one in found] == ["d1"]
    assert list(dropped.values()) == [("d2",)]


def test_samples_are_averaged_and_one_score_for_the_whole_is_taken_as_it_is():
    found, _ = scored([draft(1, {"clear": (7, 8, 8)}, YES), draft(2, {"": (4.1, 4.2)}, YES)])

    # Never above the best score.
    assert [one.composite for one in found] == [7.67, 4.2]


@pytest.mark.parametrize(
    ("evaluators", "who"),
    [(("a", "a"), "a"), (("b", "a"), "a, b"), (("a", ""), None), (("", ""), None)],
)
def test_who_judged_is_known_only_if_it_is_of_all_drafts(evaluators, who):
    drafts = [draft(n, 8, YES, evaluator=one) for n, one in enumerate(evaluators)]

    assert tuned(drafts).evaluators == who


@pytest.mark.parametrize(
    ("people", "accepts"),
    [
        pytest.param({"accept": {"a": True, "b": True, "c": False}}, True, id="most do"),
        pytest.param({"accept": {"a": True, "b": False}}, False, id="half do"),
        pytest.param({"people": {"clear": {"a": 6.0, "b": 8.0}}}, True, id="scores of the mean"),
        pytest.param({"people": {"clear": {"a": 6.0, "b": 7.0}}}, False, id="scores below"),
        pytest.param({"people": {"": {"": 7.0}}}, True, id="a score of the whole"),
    ],
)
def test_people_accept_what_most_of_them_do(people, accepts):
    found, _ = scored([draft(1, 8, **people)])

    assert found[0].accept is accepts


def test_the_mean_of_peoples_scores_goes_by_the_weights():
    people = {"clear": {"": 8.0}, "length": {"": 4.0}}
    one = draft(1, {"clear": (8,), "length": (10,)}, people=people)

    assert scored([one], rubric(CLEAR, LENGTH), accept_at=7)[0][0].accept
    assert not scored([one], rubric(CLEAR, LENGTH), accept_at=7.1)[0][0].accept


def test_one_draft_of_a_group_counts_whatever_its_score_and_label():
    drafts = [draft(n, 8, YES, group=f"g{n // 4}") for n in range(40)]
    found, _ = scored(drafts)
    other, _ = scored([draft(n, 2, NO, group=f"g{n // 4}") for n in reversed(range(40))])
    picked = {one.labeled.id for one in one_per_group(found)}

    assert len(picked) == 10
    assert picked == {one.labeled.id for one in one_per_group(other)}
    assert {int(name[1:]) % 4 for name in picked} != {0}


def test_drafts_held_back_alone_count_and_are_not_shown():
    held = [
        one.model_copy(update={"id": f"h{n}", "split": "hold"}) for n, one in enumerate(drawn(80))
    ]
    found = tuned([*drawn(100, seed=1), *held])

    assert found.own.drafts == 80
    assert {one.labeled.split for one in found.counted} == {"hold"}
    assert found.held_back == 100
    assert {one.labeled.split for one in found.disagreements} == {""}
    assert found.agreements == ()
    assert found.discrimination == tuned(held).discrimination


def test_votes_that_differ_are_counted_with_their_agreement_beyond_chance():
    votes = [{"a": n < 20, "b": n < 15} for n in range(30)]
    found = tuned([draft(n, 8, vote) for n, vote in enumerate(votes)]).votes

    assert (found.several, found.disputed, found.ties) == (30, 5, 5)
    assert found.kappa == pytest.approx(1 - (5 / 30) / (2 * 35 / 60 * 25 / 60))
    assert tuned(drawn(30)).votes.disputed == 0


def test_drafts_that_another_look_saw_are_named():
    first = tuned([draft(n, 8, YES) for n in range(30)])
    again = tuned([draft(n, 7, YES) for n in range(29, 80)], attempts=first.attempts)
    same = tuned([draft(n, 7, YES) for n in range(29, 80)], attempts=again.attempts)

    assert (first.seen_before, again.seen_before, same.seen_before) == ([], ["d29"], ["d29"])


def test_an_edited_rubric_pays_for_a_look_at_the_same_labels():
    first = tuned(drawn(200))
    again = tuned(drawn(200), attempts=first.attempts)
    edited = tuned(
        [
            one.model_copy(update={"scores": {"clear": (one.scores["clear"][0] / 2,)}})
            for one in drawn(200)
        ],
        attempts=again.attempts,
    )
    others = [one.model_copy(update={"id": f"new {one.id}"}) for one in drawn(200)]
    fresh = tuned(others, attempts=edited.attempts)

    assert [one.aim.looks for one in (first, again, edited)] == [1, 1, 2]
    assert fresh.aim.looks == 1
    assert edited.aim.error == pytest.approx(0.05)


def test_adding_labels_until_one_pleases_is_paid_for():
    drafts = drawn(200)
    looks, attempts = [], Attempts()
    for count in (20, 30, 100, 200, 200):  # with fewer than 38, nothing can be claimed
        found = tuned(drafts[:count], attempts=attempts)
        attempts = found.attempts
        looks.append(found.aim.looks)

    assert looks == [1, 1, 1, 2, 2]


def test_another_threshold_on_the_same_labels_pays_for_its_own_bound_alone():
    first = tuned(drawn(200))
    moved = tuned(drawn(200), rubric(pass_at=7.1), attempts=first.attempts)
    by_itself = tuned(drawn(200), rubric(pass_at=7.1))

    assert moved.aim.looks == 1
    assert moved.named == by_itself.named
    assert moved.own_bound > by_itself.own_bound


def test_agreement_is_told_by_dimension_and_disagreements_with_the_worst_first():
    drafts = [
        draft(n, score, accept, people={"clear": {"anna": float(people)}}, draft="x " * n)
        for n, (score, people, accept) in enumerate(
            [(9, 8, True), (8, 7, True), (9.5, 3, False), (3, 4, False), (6, 8, True)]
        )
    ]
    found = tuned(drafts[1:] + drafts[:1])

    assert [one.name for one in found.agreements] == ["clear"]
    assert found.agreements[0].estimates["offset"].value == pytest.approx(1.1)
    assert [one.labeled.id for one in found.disagreements] == ["d2", "d4"]
    assert found.discrimination.value == pytest.approx(4 / 6, abs=0.2)


def test_without_both_scores_and_labels_the_reasons_are_told():
    with pytest.raises(InvalidInput) as caught:
        tuned([draft(1, {}, YES), draft(2, 8)])

    assert caught.value.code == "tune.nothing-to-count"


def test_labels_on_another_scale_than_the_threshold_are_noticed():
    with pytest.raises(InvalidInput) as caught:
        tuned([draft(n, 8, people={"clear": {"": 4.0}}) for n in range(50)])

    assert caught.value.code == "tune.nobody-accepts"


def test_drafts_that_all_fail_at_every_threshold_give_no_threshold():
    strict = rubric(CLEAR.model_copy(update={"floor": 9}))
    found = tuned([draft(n, 5, YES) for n in range(50)], strict)

    assert (found.named, found.steps, found.own_bound) == (None, (), 1)


def test_a_draft_without_one_score_still_counts_for_agreement_in_the_others():
    using = rubric(CLEAR, TONE, pass_at=7)
    people = {"clear": {"": 8.0}, "tone": {"": 7.0}}
    drafts = [
        draft(n, {"clear": (n % 5 + 4,)} | ({} if n % 4 else {"tone": (7,)}), n > 9, people=people)
        for n in range(40)
    ]
    found = tuned(drafts, using)

    assert len(found.counted) == 10
    assert len(found.dropped["no 'score.tone'"]) == 30
    assert {one.name: one.drafts for one in found.agreements} == {"clear": 40, "tone": 10}


def test_scores_on_other_scales_count_by_how_far_they_are_from_the_lowest():
    five = Dimension(name="five", judge="Is it?", weight=2, scale={"min": 1, "max": 5, "step": 1})
    safe = Dimension(name="safe", judge="Is it?", scale="pass_fail", floor=1)
    using = rubric(five, safe, CLEAR, pass_at=7)
    given = {"five": (4, 3), "safe": (1, 1), "clear": (6, 6)}
    unsafe = given | {"safe": (1, 0)}
    (one, other), _ = scored([draft(1, given, YES), draft(2, unsafe, NO)], using)

    # 3.5 of 1 to 5 is 6.25 of 10.
    assert one.composite == 6.8  # (2 * 6.25 + 10 + 3 * 6) / 6
    assert (other.composite, other.blocked) == (5.9, True)
    people = {"five": {"": 3.0}, "safe": {"": 1.0}, "clear": {"": 9.0}}
    (decided,), _ = scored([draft(1, given, people=people)], using)
    assert decided.accept  # (2 * 5 + 10 + 3 * 9) / 6 = 7.8
