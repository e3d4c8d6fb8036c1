"""The loop around a real evaluator and a real reviser, whose models answer from scripts."""

import asyncio
import json
import re
from dataclasses import replace

import pytest

from harness.errors import CallTimeout, EvaluatorAbstained, InvalidInput, StreamCut
from harness.inference import ScriptedBackend
from harness.rubric import Dimension, Draft, Evaluator, Rubric
from harness.rubric.checks import Finished
from harness.trace import Content, CounterSet, Instant, SpanEnded, SpanStarted, Tracer, monotonic
from harness.wiggum import LoopLimits, LoopPolicy, Meter, Reviser, revise_until_met

RUBRIC = Rubric(
    id="essay",
    sha256="5eed",
    title="Essay",
    repeats=1,
    dimensions=(
        Dimension(name="clear", judge="Is it clear?"),
        Dimension(name="useful", judge="Is it useful?"),
    ),
)
FIRST = Draft(text="Draft number 1.", task="Write.")

CUT = StreamCut("after 12 tokens", endpoint="judge")
TIMEOUT = CallTimeout("30 s without a token", endpoint="writer")
NO_VERDICT = "I like it."


def verdict(clear: float, useful: float | None = None) -> str:
    """The evaluator's reply."""
    points = {"clear": clear, "useful": clear if useful is None else useful}
    return json.dumps({name: {"reason": "x", "score": score} for name, score in points.items()})


def revise(
    judge, writer, *, rubric=RUBRIC, first=FIRST, sink=None, policy=None, rounds=(), **limits
):
    async def ask(request):
        return await (judge if request.role == "evaluator" else writer).chat(request)

    tracer = Tracer(sink) if sink else Tracer()
    meter = Meter(ask, limits=LoopLimits(**limits), clock=monotonic)
    models = ("judge",) if rubric.judged else ()
    return asyncio.run(
        revise_until_met(
            first,
            evaluator=Evaluator(rubric, ask=meter.ask, models=models),
            reviser=Reviser(ask=meter.ask, model="writer", requirements=(), max_output_tokens=100),
            meter=meter,
            policy=policy,
            tracer=tracer,
            rounds=rounds,
        )
    )


def evaluated(judge: ScriptedBackend) -> list[str]:
    """The drafts that the evaluator was shown, each once, in order."""
    shown = (request.messages[-1].content for request in judge.requests)
    drafts = (re.search(r"(?s)<(draft-\w+)>\n(.*)\n</\1>", prompt)[2] for prompt in shown)
    return list(dict.fromkeys(drafts))


@pytest.mark.parametrize(
    ("verdicts", "texts", "stop_reason", "best", "passed"),
    [
        pytest.param([verdict(9)], [], "passed", 1, True, id="passed at once"),
        pytest.param([verdict(5), verdict(9)], ["B"], "passed", 2, True, id="passed when revised"),
        pytest.param(
            [verdict(5), verdict(6), verdict(7)], ["B", "C"], "max_rounds", 3, False, id="rising"
        ),
        pytest.param(
            [verdict(5), verdict(7), verdict(2)], ["B", "C"], "max_rounds", 2, False, id="falling"
        ),
        pytest.param(
            [verdict(6), verdict(4), verdict(3)], ["B", "C"], "regression", 1, False, id="worse"
        ),
        pytest.param(
            [verdict(5, 7), verdict(7, 5), verdict(6)],
            ["B", "C"],
            "plateau",
            1,
            False,
            id="the earliest of equals",
        ),
        pytest.param([verdict(5), verdict(5)], ["B"], "cycle", 1, False, id="no change"),
        pytest.param(
            [verdict(5), CUT], ["B"], "evaluator_failed", 1, False, id="the evaluator is cut off"
        ),
        pytest.param(
            [verdict(5), NO_VERDICT, NO_VERDICT],
            ["B"],
            "abstained",
            1,
            False,
            id="the evaluator gives no verdict",
        ),
        pytest.param(
            [verdict(5), verdict(7), CUT],
            ["B", "C"],
            "evaluator_failed",
            2,
            False,
            id="the evaluator is cut off later",
        ),
        pytest.param(
            [verdict(5), NO_VERDICT, verdict(9)],
            ["B"],
            "passed",
            2,
            True,
            id="the evaluator recovers",
        ),
        pytest.param(
            [verdict(5)], [TIMEOUT], "producer_failed", 1, False, id="the producer times out"
        ),
        pytest.param([verdict(5)], [" \n"], "producer_empty", 1, False, id="an empty revision"),
        pytest.param(
            [verdict(5), verdict(4)], ["B", FIRST.text], "cycle", 1, False, id="the first again"
        ),
        pytest.param(
            [verdict(5), verdict(4)],
            ["B", TIMEOUT],
            "producer_failed",
            1,
            False,
            id="the producer times out later",
        ),
    ],
)
def test_the_best_evaluated_draft_is_returned_with_the_reason(
    verdicts, texts, stop_reason, best, passed
):
    judge, writer = ScriptedBackend(verdicts), ScriptedBackend(texts)

    result = revise(judge, writer)

    assert (result.stop_reason, result.best.number, result.passed) == (stop_reason, best, passed)
    assert result.text == result.best.draft == [FIRST.text, *texts][best - 1]
    assert [one.number for one in result.rounds] == list(range(1, len(result.rounds) + 1))
    # Every reply was used: nothing was asked for in vain, and nothing was left out.
    assert len(judge.requests) == len(verdicts)
    assert len(writer.requests) == len(texts)
    assert len(result.revisions) == len(texts)


@pytest.mark.parametrize(
    ("verdicts", "texts", "detail"),
    [
        pytest.param([verdict(5), CUT], ["B"], "judge: after 12 tokens", id="evaluator"),
        pytest.param([verdict(5)], [TIMEOUT], "writer: 30 s without a token", id="producer"),
        pytest.param([verdict(5)], [""], "the revision has no text of its own", id="no text"),
        pytest.param(
            [verdict(5)], [FIRST.text], "the revision is the draft of round 1 again", id="no change"
        ),
        pytest.param([verdict(9)], [], "", id="none"),
    ],
)
def test_what_ended_the_loop_is_told(verdicts, texts, detail):
    assert revise(ScriptedBackend(verdicts), ScriptedBackend(texts)).stop_detail == detail


@pytest.mark.parametrize(
    ("replies", "error"),
    [
        pytest.param([CUT], StreamCut, id="cut off"),
        pytest.param([NO_VERDICT, NO_VERDICT], EvaluatorAbstained, id="no verdict"),
    ],
)
def test_without_a_first_verdict_there_is_nothing_to_return(replies, error):
    writer = ScriptedBackend([])

    with pytest.raises(error):
        revise(ScriptedBackend(replies), writer)
    assert writer.requests == []


def test_with_one_round_the_producer_is_never_asked():
    writer = ScriptedBackend([])

    result = revise(ScriptedBackend([verdict(5)]), writer, max_rounds=1)

    assert (result.stop_reason, result.text) == ("max_rounds", FIRST.text)
    assert writer.requests == []
    assert result.revisions == ()


def test_a_revision_starts_from_the_best_draft_and_what_failed_in_it():
    judge = ScriptedBackend([verdict(6, 9), verdict(3, 3), verdict(5, 9), verdict(6, 6)])
    writer = ScriptedBackend(["Draft number 2.", "Draft number 3.", "Draft number 4."])

    result = revise(judge, writer, max_rounds=4, policy=LoopPolicy(patience=9))

    assert [step.base.number for step in result.revisions] == [1, 1, 1]
    assert [one.base_round for one in result.rounds] == [None, 1, 1, 1]
    assert all("Draft number 1." in r.messages[-1].content for r in writer.requests)
    assert [[s.name for s in step.focus] for step in result.revisions] == [["clear"]] * 3
    # From the same draft, but not by the same chance.
    assert [request.seed for request in writer.requests] == [2, 3, 4]


def test_every_round_keeps_to_the_task_and_the_sources():
    judge = ScriptedBackend([verdict(5), verdict(6)])
    writer = ScriptedBackend(["Draft number 2."])
    first = Draft(text="Draft number 1.", task="Say why.", sources=("Because it is so.",))

    revise(judge, writer, first=first, max_rounds=2)

    for request in (*judge.requests, *writer.requests):
        assert "Say why." in request.messages[-1].content
        assert "Because it is so." in request.messages[-1].content


FINISHED = Rubric(
    id="essay", title="Essay", dimensions=(Dimension(name="finished", checks=(Finished(),)),)
)
SECTIONS = Draft(text="# One\n\nIt is\n\n# Two\n\nIt is.\n\n# One\n\nSo it\n", task="Write.")


def test_a_loop_of_checks_mends_the_sections_that_break_off():
    result = revise(
        ScriptedBackend([]), ScriptedBackend(["Yes.", "Yes."]), rubric=FINISHED, first=SECTIONS
    )

    assert result.text == "# One\n\nYes.\n\n# Two\n\nIt is.\n\n# One\n\nYes.\n"
    assert result.stop_reason == "passed"


@pytest.mark.parametrize(
    ("replies", "detail"),
    [
        pytest.param(["# One\n", "Yes."], "cannot be put back", id="a heading alone"),
        pytest.param(["Yes.", TIMEOUT], "30 s without a token", id="one call of several fails"),
    ],
)
def test_sections_that_cannot_be_had_are_the_producers_error(replies, detail):
    result = revise(ScriptedBackend([]), ScriptedBackend(replies), rubric=FINISHED, first=SECTIONS)

    assert result.stop_reason == "producer_failed"
    assert detail in result.stop_detail
    assert result.text == SECTIONS.text


@pytest.mark.parametrize(
    ("role", "best"),
    [
        pytest.param("evaluator", None, id="before there is a round"),
        pytest.param("producer", 1, id="after the first round"),
    ],
)
def test_cancelling_passes_through_and_is_told(role, best):
    records = []
    judge = ScriptedBackend([verdict(5)])

    async def cancel_while_asked():
        asked = asyncio.Event()

        async def ask(request):
            if request.role == role:
                asked.set()
                await asyncio.Event().wait()
            return await judge.chat(request)

        meter = Meter(ask, limits=LoopLimits(), clock=monotonic)
        loop = asyncio.create_task(
            revise_until_met(
                FIRST,
                evaluator=Evaluator(RUBRIC, ask=meter.ask, models=("judge",)),
                reviser=Reviser(
                    ask=meter.ask, model="writer", requirements=(), max_output_tokens=100
                ),
                meter=meter,
                tracer=Tracer(records.append),
            )
        )
        async with asyncio.timeout(10):
            await asked.wait()
        loop.cancel()
        await loop

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel_while_asked())
    ended = [record for record in records if isinstance(record, SpanEnded)]
    assert [span.status for span in ended[-2:]] == ["cancelled", "cancelled"]
    assert ended[-1].attributes["stop_reason"] == "cancelled"
    (stop,) = (r for r in records if isinstance(r, Instant) and r.name == "stop")
    assert (stop.attributes["reason"], stop.attributes["best_round"]) == ("cancelled", best)


@pytest.mark.parametrize(
    ("judge", "writer"),
    [
        pytest.param([verdict(5), verdict(6)], [], id="producer"),
        pytest.param([verdict(5)], ["B"], id="evaluator"),
    ],
)
def test_an_error_that_is_no_reply_is_not_taken_for_one(judge, writer):
    with pytest.raises((LookupError, ExceptionGroup)) as caught:
        revise(ScriptedBackend(judge), ScriptedBackend(writer))

    (error,) = getattr(caught.value, "exceptions", (caught.value,))
    assert "the script has no reply" in str(error)


# --- limits ----------------------------------------------------------------------------------


def test_a_loop_ends_with_its_best_draft_when_the_tokens_do_not_suffice_for_more():
    judge, writer = ScriptedBackend([verdict(5)]), ScriptedBackend([])

    result = revise(judge, writer, max_tokens=3_000)

    assert (result.stop_reason, result.text) == ("budget", FIRST.text)
    assert "a revision and its evaluation may take" in result.stop_detail
    assert result.revisions == ()
    assert result.spent.tokens == result.rounds[0].spent.tokens


def test_each_round_says_what_changed_and_what_it_took():
    judge = ScriptedBackend([verdict(5), verdict(6), verdict(9)])

    result = revise(judge, ScriptedBackend(["Draft no. 2.", "Draft no. 3."]), max_rounds=3)

    assert [one.changed_chars for one in result.rounds] == [0, 15 + 12, 12 + 12]
    assert [(one.drafting.calls, one.judging.calls) for one in result.rounds] == [
        (0, 1),
        (1, 1),
        (1, 1),
    ]
    assert result.spent.calls == 5
    assert result.spent.tokens == sum(one.spent.tokens for one in result.rounds) > 0


# --- going on --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"draft": "Another."}, "began with another draft", id="another draft"),
        pytest.param({"number": 2}, "not all from the first on", id="not from the first on"),
        pytest.param(
            {"verdict": {"rubric_sha256": "0ther"}},
            "not scored by rubric 'essay' as it is now",
            id="another rubric",
        ),
    ],
)
def test_rounds_of_another_loop_are_refused(change, message):
    (first,) = revise(ScriptedBackend([verdict(5)]), ScriptedBackend([]), max_rounds=1).rounds
    if "verdict" in change:
        change = {"verdict": replace(first.verdict, **change["verdict"])}

    with pytest.raises(InvalidInput, match=message):
        revise(ScriptedBackend([]), ScriptedBackend([]), rounds=[replace(first, **change)])


# --- what the trace shows --------------------------------------------------------------------


def test_the_trace_shows_every_round_and_why_the_loop_ended():
    records = []
    judge = ScriptedBackend([verdict(6, 4), verdict(5, 5), verdict(9)])

    revise(judge, ScriptedBackend(["B", "C"]), sink=records.append)

    begun = [record for record in records if isinstance(record, SpanStarted)]
    ended = {record.id: record for record in records if isinstance(record, SpanEnded)}
    assert [(span.name, span.attributes.get("round")) for span in begun] == [
        ("wiggum", None),
        ("evaluate", 1),
        ("revise", 2),
        ("evaluate", 2),
        ("revise", 3),
        ("evaluate", 3),
    ]
    loop, first, _, _, second_revision, _ = begun
    assert loop.parent is None
    assert {span.parent for span in begun[1:]} == {loop.id}
    assert loop.attributes == {"rubric": "essay", "rubric_sha256": "5eed", "key": None}
    assert {span.status for span in ended.values()} == {"ok"}
    assert second_revision.attributes["base_round"] == 1
    assert second_revision.attributes["focus"] == ["useful", "clear"]

    attributes = ended[first.id].attributes
    assert attributes["composite"] == 5
    assert attributes["scores"] == {"clear": 6, "useful": 4}
    assert (attributes["passed"], attributes["evaluator"]) == (False, "judge")
    assert (attributes["unjudged"], attributes["compressed"]) == ([], False)
    assert attributes["findings"] == ["clear: x", "useful: x"]
    assert ended[loop.id].attributes == {
        "stop_reason": "passed",
        "best_round": 3,
        "passed": True,
        "composites": [5, 5, 9],
    }


def test_the_trace_counts_the_scores_and_keeps_the_drafts():
    records = []

    revise(
        ScriptedBackend([verdict(6, 4), verdict(9, 9)]),
        ScriptedBackend(["Draft number 2."]),
        sink=records.append,
    )

    counted = [(record.name, record.value) for record in records if isinstance(record, CounterSet)]
    assert counted == [
        ("composite", 5),
        ("clear", 6),
        ("useful", 4),
        ("composite", 9),
        ("clear", 9),
        ("useful", 9),
    ]
    assert {record.unit for record in records if isinstance(record, CounterSet)} == {"points"}
    contents = {record.sha256: record.text for record in records if isinstance(record, Content)}
    named = [
        contents[attributes["draft_sha256"]]
        for record in records
        if isinstance(record, SpanStarted | SpanEnded)
        and "draft_sha256" in (attributes := record.attributes)
    ]
    assert named == ["Draft number 1.", "Draft number 2.", "Draft number 2."]


def test_the_trace_tells_an_error_where_it_was_and_why_it_ended_the_loop():
    records = []

    revise(ScriptedBackend([verdict(5)]), ScriptedBackend([TIMEOUT]), sink=records.append)

    names = {record.id: record.name for record in records if isinstance(record, SpanStarted)}
    ended = [record for record in records if isinstance(record, SpanEnded)]
    assert [(names[span.id], span.status) for span in ended] == [
        ("evaluate", "ok"),
        ("revise", "error"),
        ("wiggum", "ok"),
    ]
    (stop,) = (r for r in records if isinstance(r, Instant) and r.name == "stop")
    assert stop.attributes == {
        "reason": "producer_failed",
        "detail": "writer: 30 s without a token",
        "best_round": 1,
    }
