"""Which candidates are taken: what the checks rank higher, section by section."""

import asyncio
from dataclasses import replace
from functools import partial

import pytest
from scripted_loops import PARTED, TIMEOUT, World, completion, journal_of, run_loop, scores

from harness.compress import splice
from harness.errors import CallTimeout, EndpointUnreachable, InvalidInput
from harness.inference import ChatRequest, Completion, Message
from harness.rubric import Checked, Dimension, DimensionScore, Draft, Finding, Rubric, reach_verdict
from harness.trace import Flows, Instant, SpanRecord, Tracer
from harness.wiggum import LoopPolicy, Reviser, Round
from harness.wiggum.prompts import FailedDraft
from harness.wiggum.ratchet import Candidate, Contest, best_of, select
from harness.wiggum.sampling import SampledPlace, sample

RUBRIC = Rubric(title="Clear", dimensions=(Dimension(name="clear", judge="Is it clear?"),))
BASE = Draft(text="# One\n\nbad\n\n# Two\n\nbad\n", task="Write.")


def check(draft: Draft) -> Checked:
    """Two points for every `good`, one for every `fair`."""
    return Checked(rank=(False, True, 2.0 * draft.text.count("good") + draft.text.count("fair")))


def put(texts):
    return splice(BASE.text, dict(texts))


def candidates(**texts: list[str]) -> list[Candidate]:
    sections = {"one": 0, "two": 1}
    return [
        Candidate(number=number, section=sections[name], text=text)
        for name, said in texts.items()
        for number, text in enumerate(said, start=1)
    ]


def chosen(found, *, finalists=1, **contest):
    contest = {"base": BASE, "put": put, "check": check, **contest}
    return select(Contest(**contest), found, finalists=finalists)


def test_the_best_candidate_of_each_section_is_taken_and_the_others_say_why_not():
    found = candidates(one=["fair", "good", "bad", "", "worse"], two=["poor", "poor"])

    selection = chosen(found)

    (draft,) = selection.finalists
    assert draft.text == "# One\n\ngood\n\n# Two\n\nbad\n"
    outcomes = [one.outcome for one in selection.tried]
    assert outcomes == ["outdone", "taken", "no_gain", "unusable", "no_gain", "no_gain", "no_gain"]
    assert [one.checked for one in selection.tried] == [1, 2, 0, None, 0, 2, 2]
    assert [(one.section, one.section_index) for one in selection.tried[-2:]] == [("Two", 1)] * 2


def test_without_a_gain_no_candidate_is_taken():
    assert chosen(candidates(one=["poor"], two=["poor"])).finalists == ()


def test_where_a_model_criticized_a_section_an_equal_rank_is_enough():
    (draft,) = chosen(candidates(one=["other"], two=["other"]), undecided={1}).finalists

    assert draft.text == "# One\n\nbad\n\n# Two\n\nother\n"


def test_further_finalists_are_made_of_the_next_best_candidates():
    found = candidates(one=["fair", "good"], two=["good", "bad too"])

    drafts = [one.text for one in chosen(found, finalists=3).finalists]

    assert drafts == [
        "# One\n\ngood\n\n# Two\n\ngood\n",
        "# One\n\nfair\n\n# Two\n\ngood\n",
    ]


def test_the_first_finalist_is_the_taken_one_even_if_a_later_candidate_repeats_it():
    found = candidates(one=["one good", "a good", "one good"])
    drafts = [Candidate(number=n, text=text) for n, text in enumerate("XYX", start=1)]

    parts = chosen(found, finalists=3)
    wholes = best_of(drafts, base=BASE, check=check, finalists=3)

    assert [one.taken[0].number for one in parts.finalists] == [1, 2]
    assert [one.taken[0].number for one in wholes.finalists] == [1, 2]
    assert [one.outcome for one in parts.tried] == ["taken", "outdone", "outdone"]


def test_a_candidate_that_cannot_be_put_into_the_draft_is_unusable():
    def refuse(texts):
        if texts.get(0) == "good":
            raise InvalidInput("no", code="test.no")
        return put(texts)

    selection = chosen(candidates(one=["good", "fair"]), put=refuse)

    assert [one.outcome for one in selection.tried] == ["unusable", "taken"]


def test_of_first_drafts_a_whole_one_goes_before_a_cut_one():
    drafts = [
        Candidate(number=1, text="fair"),
        Candidate(number=2, text="good good", cut=True),
        Candidate(number=3, error="no reply"),
        Candidate(number=4, text="good"),
    ]

    selection = best_of(drafts, base=BASE, check=check, finalists=2)

    assert [one.text for one in selection.finalists] == ["good", "fair"]
    assert [one.outcome for one in selection.tried] == ["outdone", "outdone", "failed", "taken"]


def test_in_the_best_first_draft_the_better_sections_of_others_take_the_place_of_its_own():
    drafts = [
        Candidate(number=1, text="# One\n\nbad\n\n# Two\n\ngood\n"),
        Candidate(number=2, text="# Two\n\nfair\n\n# One\n\ngood good\n\n# Three\n\ngood\n"),
        Candidate(number=3, text="# Two\n\ngood good good\n", cut=True),
    ]

    selection = best_of(drafts, base=BASE, check=check, finalists=1)

    (draft,) = selection.finalists
    assert draft.text == "# Two\n\ngood\n\n# One\n\ngood good\n\n# Three\n\ngood\n"
    assert [(one.section, one.number, one.outcome) for one in selection.tried] == [
        (None, 1, "outdone"),
        (None, 2, "taken"),
        (None, 3, "outdone"),
        ("Two", 1, "taken"),
        ("One", 1, "no_gain"),
    ]


# --- in a loop -----------------------------------------------------------------------------------


def loop(said, *, judged=lambda _text: scores(5, section=0), records=None, **more):
    """A loop over two sections whose producer says this, by the number of the candidate."""
    world = World(lambda _round, candidate: said[candidate - 1], judged)
    result = asyncio.run(
        run_loop(
            world,
            first=replace(PARTED, text=BASE.text),
            policy=LoopPolicy(max_rounds=2),
            candidates=len(said),
            check=lambda text: float(text.count("good")),
            sink=records.append if records is not None else None,
            **more,
        )
    )
    return result, world


def test_the_record_has_every_candidate_and_an_arrow_from_the_one_that_was_taken(tmp_path):
    records: list = []

    result, world = loop(["bad", "good", "poor"], records=records)

    assert result.rounds[1].draft == "# One\n\ngood\n\n# Two\n\nbad\n"
    asked = [request for request in world.requests if request.role == "producer"]
    assert len({request.seed for request in asked}) == len(asked) == 3
    written = list(journal_of(records, tmp_path / "run.jsonl").items())
    told = [r for r in written if isinstance(r, Instant) and r.name == "candidate"]
    assert [one.attributes["outcome"] for one in told] == ["no_gain", "taken", "outdone"]
    assert [one.attributes["seed"] for one in told] == sorted(request.seed for request in asked)
    (arrow,) = (r for r in records if isinstance(r, Flows) and r.name == "candidate")
    spans = {r.id: r for r in written if isinstance(r, SpanRecord)}
    assert [spans[source].attributes["number"] for source in arrow.sources] == [2]
    assert spans[arrow.target].name == "evaluate"


def test_of_several_finalists_the_one_that_the_evaluator_prefers_is_the_round():
    def judged(text):
        return scores(9 if "second" in text else 5, section=0)

    result, _ = loop(["first", "second", "third"], judged=judged, finalists=3)

    assert "second" in result.rounds[1].draft
    assert len(result.rounds) == 2
    outcomes = {one.text: one.outcome for one in result.rounds[1].tried}
    assert outcomes["second"] == "taken"
    assert outcomes["first"] == "finalist"
    assert result.passed


def test_a_loop_whose_candidates_have_no_text_ends_after_its_first_round():
    result, world = loop(["", " "])

    assert result.stop_reason == "producer_empty"
    assert len(world.evaluated) == 1


def test_a_loop_whose_candidates_all_repeat_the_draft_ends_on_a_plateau():
    result, _ = loop(["bad", "bad"])

    assert (result.stop_reason, len(result.rounds)) == ("plateau", 1)


def test_a_loop_whose_candidates_gain_nothing_ends_on_a_plateau():
    """A finding about the whole draft is revised by edits, and these are not asked for again."""
    result, world = loop(
        ["# One\n\nworse\n", "# One\n\npoor\n"], judged=lambda _: scores(5), source="checked"
    )

    assert (result.stop_reason, len(result.rounds)) == ("plateau", 1)
    assert "2 candidates" in result.stop_detail
    assert len([one for one in world.requests if one.role == "producer"]) == 2


def test_one_failed_candidate_does_not_end_the_loop():
    result, _ = loop([TIMEOUT, "good"])

    assert [one.outcome for one in result.rounds[1].tried] == ["failed", "taken"]


def test_one_call_at_a_time_ends_with_the_first_candidate_that_the_checks_find_nothing_in():
    result, world = loop(["bad", "good", "poor"], at_once=1)

    assert [one.outcome for one in result.rounds[1].tried] == ["no_gain", "taken"]
    assert len([one for one in world.requests if one.role == "producer"]) == 2


def test_several_finalists_need_all_candidates():
    result, _ = loop(["good", "fair", "poor"], at_once=1, finalists=2)

    assert len(result.rounds[1].tried) == 3


def sampled(said: dict[int, list[str]], *, at_once: int | None, times: int = 3):
    """What is asked for, in waves, by section and number; `good` is enough."""
    waves: list[list[tuple[int, int]]] = []

    async def ask(request: ChatRequest) -> Completion:
        section, number = int(request.model), 1 + (request.seed or 0) // 1000
        waves[-1].append((section, number))
        await asyncio.sleep(0)
        if waves[-1]:
            waves.append([])
        return completion(said[section][number - 1])

    places = [
        SampledPlace(
            request=ChatRequest(model=str(section), messages=(Message("user", "Go on."),)),
            read=lambda reply: (reply.text, False),
            base_seed=0,
            section=section,
            is_enough=lambda one: one.text == "good",
        )
        for section in said
    ]
    waves.append([])
    found = asyncio.run(sample(places, times=times, at_once=at_once, ask=ask, tracer=Tracer()))
    return [(one.section, one.number) for one in found], [wave for wave in waves if wave]


@pytest.mark.parametrize(
    ("at_once", "waves"),
    [
        (1, [[(0, 1)], [(0, 2)], [(1, 1)], [(1, 2)], [(1, 3)]]),
        (2, [[(0, 1), (1, 1)], [(0, 2), (1, 2)], [(1, 3)]]),
        (4, [[(0, 1), (0, 2), (1, 1), (1, 2)], [(1, 3)]]),
        (None, [[(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3)]]),
    ],
)
def test_calls_are_made_as_many_at_once_as_the_model_answers(at_once, waves):
    asked, seen = sampled({0: ["bad", "good", "bad"], 1: ["bad"] * 3}, at_once=at_once)

    assert seen == waves
    assert asked == sorted(pair for wave in waves for pair in wave)


def test_the_first_error_of_several_places_is_raised_itself():
    async def ask(request: ChatRequest) -> Completion:
        raise CallTimeout("late", endpoint=request.model)

    places = [
        SampledPlace(
            request=ChatRequest(model="m", messages=(Message("user", "Go on."),)),
            read=lambda reply: (reply.text, False),
            base_seed=0,
        )
    ] * 2
    with pytest.raises(CallTimeout):
        asyncio.run(sample(places, times=1, ask=ask, tracer=Tracer()))


def test_an_endpoint_that_the_next_call_would_not_reach_is_asked_once():
    asked = []

    async def ask(request: ChatRequest) -> Completion:
        asked.append(request)
        raise EndpointUnreachable("nobody there", endpoint=request.model)

    place = SampledPlace(
        request=ChatRequest(model="m", messages=(Message("user", "Go on."),)),
        read=lambda reply: (reply.text, False),
        base_seed=0,
    )
    with pytest.raises(EndpointUnreachable):
        asyncio.run(sample([place] * 3, times=4, at_once=1, ask=ask, tracer=Tracer()))
    assert len(asked) == 1


def revised_once(draft, focus, **how):
    """The revision of a first draft for one low score."""
    reviser = Reviser(model="m", max_output_tokens=50, at_once=1, **how)
    first = Round(number=1, draft=draft.text, verdict=reach_verdict(RUBRIC, [DULL]))
    return asyncio.run(reviser.revise(FailedDraft(draft, (focus,), (first,))))


DULL = DimensionScore(name="clear", score=3, source="checked", reason="", findings=())


@pytest.mark.parametrize(
    ("reply", "short", "asked"),
    [
        pytest.param("good", [], 1, id="full scores"),
        pytest.param("good", [DULL], 3, id="a low score without a finding"),
        pytest.param("good", [(1, "Two")], 1, id="a finding elsewhere"),
        pytest.param("good", [(0, "One")], 3, id="a finding here"),
        pytest.param("good\n\n## Part\n\nbad\n", [(1, "Part")], 3, id="below its own heading"),
    ],
)
def test_a_candidate_is_enough_if_nothing_is_left_to_gain_in_its_section(reply, short, asked):
    scores = [
        one
        if isinstance(one, DimensionScore)
        else replace(DULL, findings=(Finding("mend it", one[1], one[0]),))
        for one in short
    ]
    requests = []

    async def ask(request: ChatRequest) -> Completion:
        requests.append(request)
        return completion(reply)

    focus = replace(DULL, findings=(Finding("mend it", "One", 0),))
    checked = partial(replace, short=tuple(scores))
    revised_once(BASE, focus, ask=ask, candidates=3, check=lambda draft: checked(check(draft)))

    assert len(requests) == asked


def test_a_whole_candidate_that_scores_as_a_cut_draft_is_enough():
    asked = []

    async def ask(request: ChatRequest) -> Completion:
        asked.append(request)
        return completion("All of it, to the end.")

    def check(draft: Draft) -> Checked:
        return Checked(rank=(not draft.cut, True, 5.0))

    draft = Draft(text="All of it, to the", task="Write.", cut=True)
    revised_once(draft, DULL, ask=ask, candidates=3, check=check)

    assert len(asked) == 1


POOR = "Servers load models. Bakers bake bread. Bread is eaten."


@pytest.mark.parametrize(
    ("source", "finding", "left"),
    [
        ("checked", 'no source says this: "Bakers bake bread."', "Servers load models. Bread is"),
        ("judged", 'leave out "Bakers bake bread."', None),
        ("checked", "say more", None),
        ("checked", f'no source says this: "{POOR}"', None),
    ],
    ids=["by a check", "by an evaluator", "without a quotation", "the whole section"],
)
def test_a_section_without_its_criticized_sentences_is_tried_before_anything_is_asked(
    source, finding, left
):
    requests = []

    async def ask(request: ChatRequest) -> Completion:
        requests.append(request)
        return completion("Nothing good.")

    draft = replace(BASE, text=f"# One\n\n{POOR}\n\n# Two\n\nbad\n")
    focus = replace(DULL, source=source, findings=(Finding(finding, "One", 0),))
    revision = revised_once(
        draft,
        focus,
        ask=ask,
        candidates=2,
        check=lambda one: Checked(rank=(False, True, float("Bakers" not in one.text))),
    )

    assert (requests == []) is (left is not None)
    if left:
        assert revision.best.text == f"# One\n\n{left} eaten.\n\n# Two\n\nbad\n"
        assert [(one.number, one.outcome) for one in revision.tried] == [(0, "taken")]
