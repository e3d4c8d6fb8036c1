"""The loop around a real evaluator and a real reviser, whose models answer from scripts."""

import asyncio
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import CallTimeout, EvaluationFailed, InferenceError, StreamCut
from harness.inference import ScriptedBackend
from harness.rubric import Dimension, Draft, Evaluator, Rubric
from harness.rubric.checks import Finished
from harness.trace import Content, CounterSet, Instant, SpanEnded, SpanStarted, Tracer
from harness.wiggum import LoopLimits, Reviser, best_round, revise_until_met

RUBRIC = Rubric(
    id="essay",
    sha256="5eed",
    title="Essay",
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


def revise(judge, writer, *, rubric=RUBRIC, first=FIRST, max_rounds=3, sink=None):
    return asyncio.run(
        revise_until_met(
            first,
            evaluator=Evaluator(rubric, ask=judge.chat, model="judge"),
            reviser=Reviser(
                ask=writer.chat, model="writer", requirements=(), max_output_tokens=100
            ),
            limits=LoopLimits(max_rounds=max_rounds, focus_below=rubric.focus_below),
            tracer=Tracer(sink) if sink else Tracer(),
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
            [verdict(6), verdict(4), verdict(3)], ["B", "C"], "max_rounds", 1, False, id="worse"
        ),
        pytest.param(
            [verdict(5, 7), verdict(7, 5), verdict(6)],
            ["B", "C"],
            "max_rounds",
            1,
            False,
            id="the earliest of equals",
        ),
        pytest.param([verdict(5), verdict(5)], ["B"], "cycling", 1, False, id="no change"),
        pytest.param(
            [verdict(5), CUT], ["B"], "evaluator_error", 1, False, id="the evaluator is cut off"
        ),
        pytest.param(
            [verdict(5), NO_VERDICT, NO_VERDICT],
            ["B"],
            "evaluator_error",
            1,
            False,
            id="the evaluator gives no verdict",
        ),
        pytest.param(
            [verdict(5), verdict(7), CUT],
            ["B", "C"],
            "evaluator_error",
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
            [verdict(5)], [TIMEOUT], "producer_error", 1, False, id="the producer times out"
        ),
        pytest.param([verdict(5)], [" \n"], "producer_error", 1, False, id="an empty revision"),
        pytest.param(
            [verdict(5), verdict(4)],
            ["B", TIMEOUT],
            "producer_error",
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
        pytest.param([verdict(5)], [""], "writer: the revision is empty", id="empty revision"),
        pytest.param([verdict(9)], [], "", id="none"),
    ],
)
def test_an_error_that_ended_the_loop_is_told(verdicts, texts, detail):
    assert revise(ScriptedBackend(verdicts), ScriptedBackend(texts)).stop_detail == detail


@pytest.mark.parametrize(
    ("replies", "error"),
    [
        pytest.param([CUT], StreamCut, id="cut off"),
        pytest.param([NO_VERDICT, NO_VERDICT], EvaluationFailed, id="no verdict"),
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

    result = revise(judge, writer, max_rounds=4)

    assert [step.base.number for step in result.revisions] == [1, 1, 1]
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
        pytest.param(["", "Yes."], "the revision is empty", id="one reply of several is empty"),
    ],
)
def test_sections_that_cannot_be_had_are_the_producers_error(replies, detail):
    result = revise(ScriptedBackend([]), ScriptedBackend(replies), rubric=FINISHED, first=SECTIONS)

    assert result.stop_reason == "producer_error"
    assert detail in result.stop_detail
    assert result.text == SECTIONS.text


@pytest.mark.parametrize("role", ["evaluator", "producer"])
def test_cancelling_passes_through(role):
    class Never:
        """A backend that does not answer."""

        def __init__(self) -> None:
            self.asked = asyncio.Event()

        async def chat(self, _request):
            self.asked.set()
            await asyncio.Event().wait()

    records = []

    async def cancel_while_asked():
        never = Never()
        judge = never if role == "evaluator" else ScriptedBackend([verdict(5)])
        loop = asyncio.create_task(
            revise_until_met(
                FIRST,
                evaluator=Evaluator(RUBRIC, ask=judge.chat, model="judge"),
                reviser=Reviser(
                    ask=never.chat, model="writer", requirements=(), max_output_tokens=100
                ),
                limits=LoopLimits(),
                tracer=Tracer(records.append),
            )
        )
        async with asyncio.timeout(10):
            await never.asked.wait()
        loop.cancel()
        await loop

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel_while_asked())
    ended = [record.status for record in records if isinstance(record, SpanEnded)]
    assert ended[-2:] == ["cancelled", "cancelled"]


@pytest.mark.parametrize(
    ("judge", "writer"),
    [
        pytest.param([verdict(5), verdict(6)], [], id="producer"),
        pytest.param([verdict(5)], ["B"], id="evaluator"),
    ],
)
def test_an_error_that_is_no_reply_is_not_taken_for_one(judge, writer):
    with pytest.raises(LookupError, match="the script has no reply"):
        revise(ScriptedBackend(judge), ScriptedBackend(writer))


# --- whatever happens ------------------------------------------------------------------------

points = st.integers(0, 20).map(lambda halves: halves / 2)
verdicts = st.tuples(points, points)


@settings(derandomize=True, deadline=None, max_examples=250)
@given(
    evaluations=st.lists(
        verdicts | verdicts | verdicts | st.sampled_from(["error", "no verdict"]),
        min_size=6,
        max_size=6,
    ),
    revisions=st.lists(
        st.sampled_from(["text", "text", "text", "text", "error", "nothing"]),
        min_size=5,
        max_size=5,
    ),
    max_rounds=st.integers(1, 6),
)
def test_whatever_happens_the_best_evaluated_draft_is_returned(evaluations, revisions, max_rounds):
    judge_replies = []
    for one in evaluations:
        match one:
            case "error":
                judge_replies.append(CUT)
            case "no verdict":
                judge_replies += [NO_VERDICT, NO_VERDICT]
            case (clear, useful):
                judge_replies.append(verdict(clear, useful))
    writer_replies = [
        {"text": f"Draft number {number}.", "error": TIMEOUT, "nothing": ""}[one]
        for number, one in enumerate(revisions, start=2)
    ]
    judge, writer = ScriptedBackend(judge_replies), ScriptedBackend(writer_replies)
    try:
        result = revise(judge, writer, max_rounds=max_rounds)
    except (EvaluationFailed, InferenceError):
        assert isinstance(evaluations[0], str)
        assert writer.requests == []
        return

    # What was evaluated, naively.
    valid = [
        (round((clear + useful) / 2 + 1e-9, 1), -number)
        for number, (clear, useful) in enumerate(
            (one for one in evaluations[: len(result.rounds)]), start=1
        )
    ]
    assert [one.draft for one in result.rounds] == evaluated(judge)[: len(result.rounds)]
    assert result.text in evaluated(judge)

    # Never a worse one.
    assert result.best is best_round(result.rounds)
    assert (result.best.verdict.composite, -result.best.number) == pytest.approx(max(valid))

    # Never a revision that could not be evaluated.
    assert len(writer.requests) <= max_rounds - 1
    made = len(writer.requests) - (result.stop_reason == "producer_error")
    assert len(evaluated(judge)) == 1 + made
    assert len(result.rounds) == 1 + made - (result.stop_reason == "evaluator_error")

    # Always the reason.
    last = result.rounds[-1].verdict
    assert result.passed == (result.stop_reason == "passed") == last.passed
    assert (result.stop_detail != "") == result.stop_reason.endswith("_error")
    if result.stop_reason == "max_rounds":
        assert len(result.rounds) == max_rounds
    if result.stop_reason == "cycling":
        assert last.vector == result.rounds[-2].verdict.vector


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
    assert loop.attributes == {"rubric": "essay", "rubric_sha256": "5eed"}
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
    (stop,) = (record for record in records if isinstance(record, Instant))
    assert stop.name == "stop"
    assert stop.attributes == {
        "reason": "producer_error",
        "detail": "writer: 30 s without a token",
    }
