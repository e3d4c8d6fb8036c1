"""The evaluator with one model: checks, gates, calls, repairs, abstentions, re-scoring."""

import asyncio
import json
from dataclasses import replace

import pytest

from harness.errors import (
    CallTimeout,
    ConfigurationInvalid,
    ContextOverflow,
    EvaluationFailed,
    EvaluatorAbstained,
    LimitReached,
)
from harness.inference import ScriptedBackend
from harness.rubric import (
    Cap,
    Dimension,
    Draft,
    Evaluator,
    Finding,
    Rescore,
    Rubric,
    Scale,
)
from harness.rubric.checks import Excludes, Finished, GroundedNumbers, SectionWords, Words
from harness.rubric.judging.prompt import prompt_sha256
from harness.rubric.judging.scoring import checked_score

LENGTH = Dimension(name="length", checks=(Words(min=4),))
CLEAR = Dimension(name="clear", judge="Is it clear?", weight=3)
USEFUL = Dimension(name="useful", judge="Is it useful?")
TONE = Dimension(name="tone", judge="Is it kind?", optional=True)
GROUNDED = Dimension(name="grounded", judge="Do the sources say so?", needs_sources=True)
DRAFT = Draft(text="Two words.", task="Write.")


def rubric(*dimensions, **fields) -> Rubric:
    fields = {"repeats": 1, **fields}
    return Rubric(id="essay", title="Essay", sha256="abc", dimensions=dimensions, **fields)


def said(score: float, reason: str = "x", **more) -> dict:
    return {"reason": reason, "issues": [], **more, "score": score}


def scores(**points: float) -> str:
    """An evaluator's reply."""
    return json.dumps({name: said(score) for name, score in points.items()})


def evaluate(backend, *dimensions, models=("judge",), draft=DRAFT, rescore=None, **fields):
    evaluator = Evaluator(rubric(*dimensions, **fields), ask=backend.chat, models=models)
    return asyncio.run(evaluator.evaluate(draft, rescore=rescore))


def asked_for(request) -> list[str]:
    """The dimensions that a call asks for."""
    last = request.messages[-1].content.rpartition("Judge the draft on ")[2]
    return last.partition(". Reply")[0].removesuffix(" alone").split(", ")


def test_a_rubric_of_checks_needs_no_model():
    backend = ScriptedBackend([])

    verdict = evaluate(backend, LENGTH, models=())

    assert backend.requests == []
    assert verdict.vector == {"length": 5}
    assert (verdict.judges, verdict.evaluator, verdict.unjudged) == (None, None, ())
    (length,) = verdict.scores
    assert length.source == "checked"
    assert length.findings == (Finding("2 words in all; at least 4 are needed"),)


def test_a_model_that_has_nothing_to_judge_is_neither_asked_nor_named():
    backend = ScriptedBackend([])

    assert evaluate(backend, LENGTH).judges is None
    assert backend.requests == []


def test_checks_and_the_models_scores_make_one_verdict():
    backend = ScriptedBackend([scores(clear=9, useful=9)])

    verdict = evaluate(backend, LENGTH, CLEAR, USEFUL)

    assert verdict.vector == {"length": 5, "clear": 9, "useful": 9}
    assert (verdict.composite, verdict.passed) == (8.2, True)
    assert [score.source for score in verdict.scores] == ["checked", "judged", "judged"]
    assert (verdict.rubric, verdict.rubric_sha256) == ("essay", "abc")


def test_the_verdict_says_who_judged_and_by_which_prompt():
    judges = evaluate(ScriptedBackend([scores(clear=9, useful=9)]), CLEAR, LENGTH, USEFUL).judges

    assert judges is not None
    assert (judges.evaluators, judges.judgements, judges.abstentions) == (("judge",), 1, 0)
    assert (judges.spread, judges.pass_share, judges.shortened) == (None, None, None)
    measured_by = rubric(CLEAR, LENGTH, USEFUL)
    assert judges.prompt_sha256 == prompt_sha256(measured_by, [(CLEAR, USEFUL)])


def test_jointly_the_model_is_asked_once_and_greedily_for_all_it_is_to_judge():
    backend = ScriptedBackend([scores(clear=9, tone=8)])

    verdict = evaluate(backend, CLEAR, LENGTH, TONE)

    (request,) = backend.requests
    assert (request.model, request.role, request.temperature) == ("judge", "evaluator", 0)
    assert request.top_logprobs is None
    assert request.reply_schema["required"] == ["clear", "tone"]
    assert asked_for(request) == ["clear", "tone"]
    assert verdict.unjudged == ()


def test_there_is_room_for_the_longest_judgement_that_the_schema_allows():
    many = [Dimension(name=f"d{number}", judge="Good?") for number in range(12)]
    backend = ScriptedBackend([scores(**{dimension.name: 9 for dimension in many})])

    evaluate(backend, *many)

    issue = {"section": "s" * 80, "problem": "p" * 240}
    longest = json.dumps(
        {d.name: {"reason": "r" * 400, "issues": [issue] * 3, "score": 9.5} for d in many}
    )
    # A token is hardly ever fewer than three characters.
    assert backend.requests[0].max_output_tokens >= len(longest) / 3


@pytest.mark.parametrize(
    ("facts", "room"),
    [
        pytest.param({"prompt_tokens": 3_300, "context_tokens": 4_096}, 796, id="what is left"),
        pytest.param({}, 256, id="the least, where the server does not say"),
    ],
)
def test_where_the_context_has_less_room_the_model_is_asked_for_a_reply_that_fits(facts, room):
    backend = ScriptedBackend(
        [ContextOverflow("too long", endpoint="judge", **facts), json.dumps(said(9))]
    )

    assert evaluate(backend, CLEAR).vector == {"clear": 9}
    first, second = backend.requests
    assert second == replace(first, max_output_tokens=room)


@pytest.mark.parametrize(
    ("facts", "calls"),
    [
        pytest.param({"prompt_tokens": 4_000, "context_tokens": 4_096}, 1, id="too little is left"),
        pytest.param({}, 2, id="nor for the least"),
    ],
)
def test_a_prompt_that_leaves_no_room_for_a_judgement_cannot_be_asked(facts, calls):
    backend = ScriptedBackend([ContextOverflow("too long", endpoint="judge", **facts)] * 3)

    with pytest.raises(ContextOverflow):
        evaluate(backend, CLEAR)
    assert len(backend.requests) == calls


@pytest.mark.parametrize("models", [("judge",), ("judge", "other")])
def test_an_error_that_is_not_ours_comes_out_as_it_is(models):
    async def ask(request):
        raise ValueError("a fault in the program")

    with pytest.raises(ValueError, match="a fault in the program"):
        asyncio.run(Evaluator(rubric(CLEAR), ask=ask, models=models).evaluate(DRAFT))


# --- replies that cannot be read -------------------------------------------------------------


def test_an_unreadable_reply_is_repaired_in_the_same_conversation():
    backend = ScriptedBackend(["I would say nine.", scores(clear=9, useful=8)])

    assert evaluate(backend, CLEAR, USEFUL).vector == {"clear": 9, "useful": 8}
    first, second = backend.requests
    assert second.messages[: len(first.messages)] == first.messages
    assert second.messages[2].content == "I would say nine."
    assert second.temperature > first.temperature
    assert second.frequency_penalty == 0


def test_only_what_is_missing_is_asked_for_again():
    backend = ScriptedBackend([scores(clear=9, useful=11, tone=5), json.dumps(said(8))])

    verdict = evaluate(backend, CLEAR, USEFUL, TONE)

    assert verdict.vector == {"clear": 9, "useful": 8, "tone": 5}
    assert asked_for(backend.requests[1]) == ["useful"]
    assert list(backend.requests[1].reply_schema["properties"]) == ["reason", "issues", "score"]


@pytest.mark.parametrize(
    "replies",
    [
        pytest.param(["9/11", "Nine"], id="never a score"),
        pytest.param([scores(clear=11), scores(tone=9)], id="a different fault each time"),
        pytest.param(["", ""], id="nothing"),
    ],
)
def test_two_unreadable_replies_are_an_abstention_and_never_a_score(replies):
    backend = ScriptedBackend([*replies, scores(clear=9)])

    with pytest.raises(EvaluatorAbstained, match=r"'judge' gave no score .* for clear") as caught:
        evaluate(backend, CLEAR)
    assert len(backend.requests) == 2
    assert caught.value.abstentions == 1


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        pytest.param('{"reason": "It' + " \n" * 999, "white space .*disable_any", id="white space"),
        pytest.param('{"reason": "' + "and so on " * 99, "ran on until it was cut", id="words"),
    ],
)
def test_a_reply_that_ran_on_is_repaired_with_less_repetition_and_said_to_have(reply, told):
    backend = ScriptedBackend([reply, reply])

    async def ask(request):
        return replace(await backend.chat(request), finish_reason="length")

    with pytest.raises(EvaluatorAbstained, match=told) as caught:
        asyncio.run(Evaluator(rubric(CLEAR), ask=ask, models=["judge"]).evaluate(DRAFT))
    assert "\\n" not in str(caught.value)
    assert [request.frequency_penalty > 0 for request in backend.requests] == [False, True]


def test_a_repair_that_fails_loses_no_score_that_was_read():
    asked = Dimension(
        name="clear", judge="Is it clear?", caps=(Cap(at_most=4, when="it is too short"),)
    )
    failure = CallTimeout("too slow", endpoint="judge")
    backend = ScriptedBackend([json.dumps(said(9)), failure])

    assert evaluate(backend, asked).vector == {"clear": 9}

    with pytest.raises(CallTimeout):
        evaluate(ScriptedBackend(["Nine.", failure]), asked)


def test_a_limit_that_leaves_no_room_for_a_repair_ends_in_an_abstention():
    async def ask(request):
        if len(request.messages) > 2:
            raise LimitReached("no tokens left", limit="tokens")
        return await ScriptedBackend(["Nine."]).chat(request)

    with pytest.raises(EvaluatorAbstained):
        asyncio.run(Evaluator(rubric(CLEAR), ask=ask, models=["judge"]).evaluate(DRAFT))


def test_a_limit_that_leaves_no_room_for_the_first_judgement_is_let_through():
    async def ask(request):
        raise LimitReached("no tokens left", limit="tokens")

    with pytest.raises(LimitReached):
        asyncio.run(Evaluator(rubric(CLEAR), ask=ask, models=["judge"]).evaluate(DRAFT))


def test_a_call_that_fails_is_not_asked_again_here():
    backend = ScriptedBackend([CallTimeout("30 s without a token", endpoint="judge")])

    with pytest.raises(CallTimeout):
        evaluate(backend, CLEAR)
    assert len(backend.requests) == 1


# --- who is there to judge -------------------------------------------------------------------


def test_a_rubric_that_needs_a_judge_is_refused_without_one():
    with pytest.raises(ConfigurationInvalid) as caught:
        Evaluator(rubric(LENGTH, CLEAR, TONE), ask=ScriptedBackend([]).chat)

    message = str(caught.value)
    assert "rubric 'essay'" in message
    assert "(clear)" in message
    assert "[roles] in harness.toml" in message
    assert "HARNESS_ENDPOINTS" in message


def test_without_a_judge_optional_dimensions_are_left_out_and_named():
    verdict = evaluate(ScriptedBackend([]), LENGTH, TONE, models=())

    assert verdict.vector == {"length": 5}
    assert verdict.unjudged == ("tone",)


def test_what_needs_sources_is_neither_asked_nor_counted_without_any():
    backend = ScriptedBackend([json.dumps(said(9))])

    verdict = evaluate(backend, CLEAR, GROUNDED)

    assert asked_for(backend.requests[0]) == ["clear"]
    assert (verdict.vector, verdict.unjudged) == ({"clear": 9}, ("grounded",))


def test_with_sources_it_is_asked():
    backend = ScriptedBackend([scores(clear=9, grounded=3)])

    verdict = evaluate(backend, CLEAR, GROUNDED, draft=Draft(text="x", task="", sources=("y",)))

    assert (verdict.vector, verdict.unjudged) == ({"clear": 9, "grounded": 3}, ())


def test_a_check_that_has_nothing_to_judge_by_leaves_its_dimension_out():
    numbers = Dimension(name="numbers", checks=(GroundedNumbers(),))

    with_sources = Draft(text="It has 7 parts.", task="", sources=("It has 8.",))
    judged = evaluate(ScriptedBackend([]), LENGTH, numbers, draft=with_sources)
    unjudged = evaluate(ScriptedBackend([]), LENGTH, numbers, draft=Draft(text="7 parts", task=""))

    assert judged.vector["numbers"] == 0
    assert unjudged.vector == {"length": 5}
    assert unjudged.unjudged == ("numbers",)


def test_a_draft_that_nothing_can_be_judged_of_has_no_verdict():
    with pytest.raises(EvaluationFailed, match="nothing of rubric 'essay' could be judged"):
        evaluate(ScriptedBackend([]), GROUNDED)


# --- gates and caps --------------------------------------------------------------------------

GATE = Dimension(name="gate", checks=(Words(min=4),), gate=True, floor=9)


def test_a_shut_gate_spares_the_model_and_fails_the_draft():
    backend = ScriptedBackend([])

    verdict = evaluate(backend, GATE, CLEAR, TONE, Dimension(name="free", checks=(Words(min=1),)))

    assert backend.requests == []
    assert (verdict.gates, verdict.passed) == (("gate",), False)
    assert verdict.vector == {"gate": 5, "free": 10}
    assert verdict.unjudged == ("clear", "tone")


def test_an_open_gate_lets_the_model_judge():
    backend = ScriptedBackend([json.dumps(said(9))])

    verdict = evaluate(backend, GATE, CLEAR, draft=Draft(text="Now it has four words.", task=""))

    assert (verdict.gates, verdict.vector) == ((), {"gate": 10, "clear": 9})


def test_a_gate_is_open_to_what_just_reaches_its_floor():
    reached = GATE.model_copy(update={"floor": 5})

    verdict = evaluate(ScriptedBackend([json.dumps(said(9))]), reached, CLEAR)

    assert (verdict.gates, verdict.vector) == ((), {"gate": 5, "clear": 9})


MISSING = Cap(at_most=6, when="A part is missing")
FLAT = Cap(at_most=5, when="It is a list")
LONG = Cap(at_most=4, unless=Words(min=3))


@pytest.mark.parametrize(
    ("caps", "answers", "given", "score", "capped"),
    [
        pytest.param((MISSING,), {"a_part_is_missing": True}, 9, 6, 1, id="true"),
        pytest.param((MISSING,), {"a_part_is_missing": False}, 9, 9, 0, id="false"),
        pytest.param((MISSING,), {"a_part_is_missing": True}, 5, 5, 0, id="low already"),
        pytest.param(
            (MISSING, FLAT), {"a_part_is_missing": True, "it_is_a_list": True}, 9, 5, 2, id="both"
        ),
        pytest.param((LONG,), {}, 9, 4, 1, id="a check that is not met"),
        pytest.param((Cap(at_most=4, unless=Words(min=2)),), {}, 9, 9, 0, id="one that is"),
    ],
)
def test_caps_are_applied_by_code(caps, answers, given, score, capped):
    dimension = Dimension(name="clear", judge="Is it clear?", caps=caps)
    backend = ScriptedBackend([json.dumps(said(given, **answers))])

    (found,) = evaluate(backend, dimension).scores

    assert (found.score, len(found.capped)) == (score, capped)
    assert len(backend.requests) == 1
    for rule in found.capped:
        assert rule in found.reason
    assert len(found.findings) == capped


def test_a_cap_on_a_checked_dimension_holds_it_down():
    dimension = Dimension(
        name="words",
        checks=(Words(min=1),),
        caps=(Cap(at_most=3, unless=Excludes(phrases=("two",))),),
    )

    (found,) = evaluate(ScriptedBackend([]), dimension).scores

    assert found.score == 3
    assert found.capped == ("at most 3: unless: These do not occur: two.",)
    assert "remove" in found.findings[0].message


def test_a_rule_left_open_is_asked_for_again_and_does_not_apply_if_it_stays_open():
    dimension = Dimension(name="clear", judge="Is it clear?", caps=(MISSING,))
    replies = [json.dumps(said(9)), "I do not know."]
    backend = ScriptedBackend(replies)

    (found,) = evaluate(backend, dimension).scores

    assert len(backend.requests) == 2
    assert (found.score, found.capped) == (9, ())


def test_a_rule_that_is_answered_in_the_repair_applies():
    dimension = Dimension(name="clear", judge="Is it clear?", caps=(MISSING,))
    replies = [json.dumps(said(9)), json.dumps(said(8, a_part_is_missing=True))]

    (found,) = evaluate(ScriptedBackend(replies), dimension).scores

    assert (found.score, found.capped) == (6, ("at most 6: A part is missing",))


# --- what is found ---------------------------------------------------------------------------


def test_issues_become_findings_at_their_sections():
    draft = Draft(text="Intro.\n\n# 1. The *Parts*\n\nTwo.\n\n# Use\n\nNone.\n", task="")
    issues = [
        {"section": "the parts", "problem": "Name them."},
        {"section": "whole text", "problem": "Too short."},
        {"section": "Nowhere", "problem": "Lost."},
    ]
    backend = ScriptedBackend([json.dumps({"reason": "r", "issues": issues, "score": 4})])

    (found,) = evaluate(backend, CLEAR, draft=draft).scores

    assert found.reason == "r"
    assert found.findings == (
        Finding("Name them.", "1. The *Parts*", 1),
        Finding("Too short."),
        Finding("Lost."),
    )


def test_without_a_reason_the_issues_say_why():
    issues = [{"section": "", "problem": "Too short."}]
    backend = ScriptedBackend([json.dumps({"reason": "", "issues": issues, "score": 4})])

    assert evaluate(backend, CLEAR).scores[0].reason == "Too short."


# --- one call for each dimension -------------------------------------------------------------


def test_split_the_model_is_asked_for_each_dimension_by_itself():
    backend = ScriptedBackend(
        lambda request: json.dumps(
            said({"clear": 9, "useful": 6, "tone": 7}[asked_for(request)[0]])
        )
    )

    verdict = evaluate(backend, CLEAR, LENGTH, USEFUL, TONE, judge="split")

    assert verdict.vector == {"length": 5, "clear": 9, "useful": 6, "tone": 7}
    assert [asked_for(request) for request in backend.requests] == [["clear"], ["useful"], ["tone"]]
    assert verdict.judges.judgements == 1
    texts = [
        request.messages[-1].content.rpartition("Judge the draft")[0]
        for request in backend.requests
    ]
    assert len(set(texts)) == 1
    assert len({json.dumps(request.reply_schema) for request in backend.requests}) == 1


@pytest.mark.parametrize("speaks", [pytest.param(True, id="text"), pytest.param(False, id="none")])
def test_split_the_others_wait_for_the_first_text_of_the_first_call(speaks):
    """So that they find what all share in the server's prefix cache."""
    events = []

    async def main():
        all_there = asyncio.Event()

        async def ask(request):
            name = asked_for(request)[0]
            events.append(f"{name} asked")
            if name == "clear":
                for _ in range(5):
                    await asyncio.sleep(0)
                events.append("clear speaks")
                if speaks:
                    request.on_text("{")
                    await all_there.wait()
                events.append("clear done")
            else:
                assert request.on_text is None
                if sum("asked" in event for event in events) == 3:
                    all_there.set()
                await all_there.wait()
            return await ScriptedBackend([json.dumps(said(7))]).chat(request)

        evaluator = Evaluator(rubric(CLEAR, USEFUL, TONE, judge="split"), ask=ask, models=["judge"])
        return await evaluator.evaluate(DRAFT)

    verdict = asyncio.run(main())

    assert verdict.vector == {"clear": 7, "useful": 7, "tone": 7}
    done = ["clear done"]
    assert events == [
        "clear asked",
        "clear speaks",
        *([] if speaks else done),
        "useful asked",
        "tone asked",
        *(done if speaks else []),
    ]


@pytest.mark.parametrize("fails", ["clear", "tone"])
def test_split_a_call_that_fails_is_the_error_and_ends_the_others(fails):
    ended = []

    async def ask(request):
        if asked_for(request)[0] == fails:
            raise CallTimeout("too slow", endpoint="judge")
        if fails == "clear" or asked_for(request)[0] == "clear":
            return await ScriptedBackend([json.dumps(said(7))]).chat(request)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(asked_for(request)[0])

    evaluator = Evaluator(rubric(CLEAR, USEFUL, TONE, judge="split"), ask=ask, models=["judge"])

    with pytest.raises(CallTimeout):
        asyncio.run(evaluator.evaluate(DRAFT))
    assert ended == ([] if fails == "clear" else ["useful"])


def test_split_a_dimension_that_cannot_be_read_is_repaired_by_itself():
    backend = ScriptedBackend(
        lambda request: (
            "Nine."
            if asked_for(request) == ["useful"] and len(request.messages) == 2
            else json.dumps(said(6))
        )
    )

    assert evaluate(backend, CLEAR, USEFUL, judge="split").vector == {"clear": 6, "useful": 6}
    assert len(backend.requests) == 3


# --- only what changed -----------------------------------------------------------------------


def test_only_named_dimensions_are_judged_anew_and_the_others_carried():
    base = evaluate(ScriptedBackend([scores(clear=4, useful=7, tone=6)]), CLEAR, USEFUL, TONE)
    rescore = Rescore(base=base, dimensions=frozenset({"clear"}), sections=frozenset({0}))
    backend = ScriptedBackend([json.dumps(said(9))])

    verdict = evaluate(backend, CLEAR, USEFUL, TONE, rescore=rescore)

    assert [asked_for(request) for request in backend.requests] == [["clear"]]
    assert verdict.vector == {"clear": 9, "useful": 7, "tone": 6}
    assert verdict.carried == ("useful", "tone")
    assert base.carried == ()


def test_checks_run_anew_and_a_base_that_a_gate_stopped_has_nothing_to_carry():
    base = evaluate(ScriptedBackend([]), GATE, CLEAR, USEFUL)
    rescore = Rescore(base=base, dimensions=frozenset({"clear"}), sections=frozenset())
    backend = ScriptedBackend([scores(clear=9, useful=8)])

    verdict = evaluate(
        backend,
        GATE,
        CLEAR,
        USEFUL,
        draft=Draft(text="It has four words.", task=""),
        rescore=rescore,
    )

    assert verdict.vector == {"gate": 10, "clear": 9, "useful": 8}
    assert verdict.carried == ()


def test_where_nothing_is_judged_anew_the_judges_are_those_of_the_base():
    base = evaluate(ScriptedBackend([json.dumps(said(4))]), LENGTH, CLEAR)
    rescore = Rescore(base=base, dimensions=frozenset({"length"}), sections=frozenset())
    longer = Draft(text="Now it has four words.", task="")

    verdict = evaluate(ScriptedBackend([]), LENGTH, CLEAR, draft=longer, rescore=rescore)

    assert verdict.vector == {"length": 10, "clear": 4}
    assert verdict.carried == ("clear",)
    assert verdict.judges == base.judges


WHOLE = Draft(text="# A\n\nOne.\n\n# B\n\nTwo.\n", task="Write.")
BROKEN_OFF = Draft(text="# A\n\nOne.\n\n# B\n\nTwo and\n", task="Write.")


@pytest.mark.parametrize(
    ("before", "after", "carried", "vector"),
    [
        pytest.param(WHOLE, BROKEN_OFF, ("tidy",), {"tidy": 5, "clear": 9}, id="it applies now"),
        pytest.param(BROKEN_OFF, WHOLE, (), {"tidy": 8, "clear": 9}, id="it applies no longer"),
        pytest.param(
            BROKEN_OFF, BROKEN_OFF, ("tidy",), {"tidy": 5, "clear": 9}, id="it still does"
        ),
    ],
)
def test_a_score_is_carried_under_the_caps_that_checks_put_on_the_new_draft(
    before, after, carried, vector
):
    tidy = Dimension(name="tidy", judge="Is it?", caps=(Cap(at_most=5, unless=Finished()),))
    fields = {"judge": "split"}
    base = evaluate(ScriptedBackend([json.dumps(said(8))] * 2), tidy, CLEAR, draft=before, **fields)
    rescore = Rescore(base=base, dimensions=frozenset({"clear"}), sections=frozenset({1}))
    backend = ScriptedBackend(
        lambda request: json.dumps(said(9 if asked_for(request) == ["clear"] else 8))
    )

    verdict = evaluate(backend, tidy, CLEAR, draft=after, rescore=rescore, **fields)

    assert (verdict.vector, verdict.carried) == (vector, carried)
    assert len(backend.requests) == 2 - len(carried)
    assert verdict.scores[0].capped == (
        ("at most 5: unless: Every section ends with a whole sentence.",)
        if vector["tidy"] == 5
        else ()
    )


# --- long drafts -----------------------------------------------------------------------------

LONG_TEXT = "# Part\n\n" + "".join(f"Sentence {n} stands here.\n\n" for n in range(300))


def test_the_verdict_says_when_the_evaluator_saw_a_shortened_draft():
    long = Draft(text=LONG_TEXT, task="Write.")
    backend = ScriptedBackend([json.dumps(said(9))])

    verdict = evaluate(backend, CLEAR, draft=long)

    shortened = verdict.judges.shortened
    assert verdict.compressed
    assert shortened.before_chars == len(LONG_TEXT)
    assert shortened.after_chars <= 6000
    assert f"{len(LONG_TEXT)} characters" in backend.requests[0].messages[-1].content
    assert not evaluate(ScriptedBackend([]), LENGTH, draft=long).compressed


@pytest.mark.parametrize(
    ("summary", "is_used"),
    [
        pytest.param("# Part\n\nAll sentences stand here.", True, id="of use"),
        pytest.param("All sentences stand here.", False, id="without the heading"),
    ],
)
def test_a_summary_is_shown_if_it_is_of_use_and_the_verdict_says_which(summary, is_used):
    async def summarise(prompt):
        return summary

    backend = ScriptedBackend([json.dumps(said(9))])
    evaluator = Evaluator(rubric(CLEAR), ask=backend.chat, models=["judge"], summarise=summarise)

    verdict = asyncio.run(evaluator.evaluate(Draft(text=LONG_TEXT, task="")))

    shortened = verdict.judges.shortened
    assert shortened.summarised is is_used
    assert bool(shortened.refused) is not is_used
    assert ("All sentences stand here." in backend.requests[0].messages[-1].content) is is_used


@pytest.mark.parametrize("judge", ["joint", "split", "logprob"])
@pytest.mark.parametrize("models", [("a",), ("a", "b", "c")], ids=["one", "panel"])
@pytest.mark.parametrize("text", ["Short.", LONG_TEXT], ids=["short", "long"])
def test_no_evaluation_takes_more_tokens_than_it_said(judge, models, text):
    calls = []
    scale = {"scale": Scale(max=9, step=1)}
    dimensions = (CLEAR, LENGTH, USEFUL, TONE)
    reply = scores(clear=1, useful=1, tone=1) if judge == "joint" else json.dumps(said(1))
    backend = ScriptedBackend(lambda request: calls.append(request) or reply)
    evaluator = Evaluator(
        rubric(*dimensions, judge=judge, **scale), ask=backend.chat, models=models
    )
    draft = Draft(text=text, task="Write.", sources=("It is so.",))

    most = evaluator.most_tokens(draft)
    asyncio.run(evaluator.evaluate(draft))

    asked = sum(len(m.content.encode()) for request in calls for m in request.messages) / 3
    room = sum(request.max_output_tokens for request in calls)
    assert asked + room <= most <= asked + room + len(calls)


def test_a_summary_that_is_as_long_as_it_may_be_is_allowed_for():
    longest = "# Part\n\n" + "Summed up. " * 505 + "\n\n# End"

    async def summarise(prompt):
        return longest

    backend = ScriptedBackend([json.dumps(said(9))])
    evaluator = Evaluator(rubric(CLEAR), ask=backend.chat, models=["judge"], summarise=summarise)
    # So little can be picked of one long item that the draft's own sentences take no room.
    draft = Draft(text=f"# Part\n\n- {'x' * 9000}\n\n# End\n\n{'It ends. ' * 40}", task="Write.")

    most = evaluator.most_tokens(draft)
    verdict = asyncio.run(evaluator.evaluate(draft))

    (request,) = backend.requests
    assert verdict.judges.shortened.summarised
    asked = sum(len(m.content.encode()) for m in request.messages) / 3
    assert asked + request.max_output_tokens <= most


def test_checks_alone_take_no_tokens():
    assert Evaluator(rubric(LENGTH), ask=ScriptedBackend([]).chat).most_tokens(DRAFT) == 0


# --- scores by checks ------------------------------------------------------------------------


def test_several_checks_make_their_mean_and_all_findings():
    two_checks = Dimension(name="form", checks=(SectionWords(min=4), Finished(), Words(min=1)))
    draft = Draft(text="# A\n\nIt is\n", task="")

    score = checked_score(two_checks, draft, rubric(two_checks))

    # Shares of 1/2, 0 and 1.
    assert score.score == 5
    assert [finding.section_index for finding in score.findings] == [0, 0]
    assert score.reason == (
        "A: 2 words in this section; at least 4 are needed; "
        "A: the last sentence breaks off; finish it"
    )


@pytest.mark.parametrize(
    ("scale", "words", "score"),
    [
        pytest.param(Scale(), 3, 7.5, id="from 0 to 10"),
        pytest.param(Scale(min=1, max=5, step=1), 3, 4, id="from 1 to 5"),
        pytest.param(Scale(min=1, max=5, step=2), 0, 1, id="at the bottom"),
        pytest.param(Scale(min=1, max=5, step=2), 4, 5, id="at the top"),
        pytest.param(Scale(min=0, max=1, step=0.1), 2, 0.5, id="from 0 to 1"),
    ],
)
def test_a_share_becomes_a_score_on_the_rubrics_scale(scale, words, score):
    middle = (scale.min + scale.max) / 2
    measured_by = rubric(LENGTH, scale=scale, pass_at=middle, focus_below=middle)
    draft = Draft(text="word " * words, task="")

    assert checked_score(LENGTH, draft, measured_by).score == score
