"""The loop around a real evaluator and a real reviser, whose models answer from scripts."""

import asyncio
import json
import re
from dataclasses import replace

import pytest
from clients import in_a_loop
from scripted_loops import CUT, FIRST, NO_VERDICT, PARTED, RUBRIC, TIMEOUT

from harness.errors import EvaluatorAbstained, InvalidInput, RunLimitReached, StreamCut
from harness.inference import Limits, ScriptedBackend
from harness.rubric import Dimension, Draft, Evaluator, Prompts, Rubric
from harness.rubric.checks import Finished
from harness.trace import Content, CounterSet, Instant, SpanEnded, SpanStarted, Tracer, sha256_of
from harness.wiggum import LoopPolicy, Reviser, revise_until_met


def reply(judged) -> object:
    """What the evaluator says: of one score both dimensions', of two each its own."""
    if not isinstance(judged, int | tuple):
        return judged
    clear, useful = judged if isinstance(judged, tuple) else (judged, judged)
    points = {"clear": clear, "useful": useful}
    return json.dumps({name: {"reason": "x", "score": score} for name, score in points.items()})


class Models:
    """An evaluator that judges so, and a writer that writes so, each in order."""

    def __init__(self, judged, written=()) -> None:
        self.judge = ScriptedBackend(map(reply, judged))
        self.writer = ScriptedBackend(written)

    async def ask(self, request):
        return await (self.judge if request.role == "evaluator" else self.writer).chat(request)

    async def run(self, *, rubric=RUBRIC, first=FIRST, mode="sections", ask=None, **more):
        rounds = {name: more.pop(name) for name in ("max_rounds",) if name in more}
        limits = {name: more.pop(name) for name in list(more) if name.startswith("max_")}
        policy = replace(more.pop("policy", LoopPolicy()), **rounds)
        models = ("judge",) if rubric.judged else ()
        sink = more.pop("sink", None)
        with in_a_loop(ask or self.ask, Limits(**limits)) as (asked, meter):
            return await revise_until_met(
                first,
                evaluator=Evaluator(rubric, ask=asked, models=models),
                reviser=Reviser(ask=asked, model="writer", max_output_tokens=100, mode=mode),
                meter=meter,
                policy=policy,
                tracer=Tracer(sink) if sink else Tracer(),
                **more,
            )

    @property
    def evaluated(self) -> list[str]:
        """The drafts that the evaluator was shown, each once, in order."""
        shown = (request.messages[-1].content for request in self.judge.requests)
        drafts = (re.search(r"(?s)<(draft-\w+)>\n(.*)\n</\1>", prompt)[2] for prompt in shown)
        return list(dict.fromkeys(drafts))


def revise(judged, written=(), **more):
    return asyncio.run(Models(judged, written).run(**more))


# What the evaluator gives, what the writer writes, why it ends, the best round, and what is told.
ENDS = {
    "passed at once": ([9], [], "passed", 1, ""),
    "passed when revised": ([5, 9], ["B"], "passed", 2, ""),
    "rising": ([5, 6, 7], ["B", "C"], "max_rounds", 3, ""),
    "worse": ([6, 4, 3], ["B", "C"], "regression", 1, ""),
    "the earliest of equals": ([(5, 7), (7, 5), 6], ["B", "C"], "plateau", 1, ""),
    "no change": ([5, 5], ["B"], "cycle", 1, "round 1"),
    "it is cut off later": ([5, 7, CUT], ["B", "C"], "evaluator_failed", 2, str(CUT)),
    "it gives no verdict": ([5, NO_VERDICT, NO_VERDICT], ["B"], "abstained", 1, "judge"),
    "the producer times out": ([5], [TIMEOUT], "producer_failed", 1, str(TIMEOUT)),
    "an empty revision": ([5], [" \n"], "producer_empty", 1, "no text"),
    "the first again": ([5, 4], ["B", FIRST.text], "cycle", 1, "round 1"),
}


@pytest.mark.parametrize(("judged", "written", "reason", "best", "detail"), ENDS.values(), ids=ENDS)
def test_the_best_evaluated_draft_is_returned_with_the_reason(
    judged, written, reason, best, detail
):
    models = Models(judged, written)

    result = asyncio.run(models.run())

    assert (result.stop_reason, result.best.number) == (reason, best)
    assert result.passed == (reason == "passed")
    assert detail in result.stop_detail
    assert bool(detail) == bool(result.stop_detail)
    assert result.text == result.best.draft == [FIRST.text, *written][best - 1]
    assert [one.number for one in result.rounds] == list(range(1, len(result.rounds) + 1))
    # Every reply was used: nothing was asked for in vain, and nothing was left out.
    assert len(models.judge.requests) == len(judged)
    assert len(models.writer.requests) == len(written)


@pytest.mark.parametrize(
    ("judged", "error"),
    [([CUT], StreamCut), ([NO_VERDICT, NO_VERDICT], EvaluatorAbstained)],
    ids=["cut off", "no verdict"],
)
def test_without_a_first_verdict_there_is_nothing_to_return(judged, error):
    with pytest.raises(error):
        revise(judged)


def test_a_revision_starts_from_the_best_draft_and_what_failed_in_it():
    models = Models([(6, 9), 3, (5, 9)], ["Draft number 2.", "Draft number 3."])

    result = asyncio.run(models.run())

    assert [one.base_round for one in result.rounds] == [None, 1, 1]
    requests = models.writer.requests
    assert all("useful: " not in request.messages[-1].content for request in requests)
    assert all("Draft number 1." in request.messages[-1].content for request in requests)
    # From the same draft, but not by the same chance.
    assert [request.seed for request in requests] == [2, 3]


@pytest.mark.parametrize("mode", ["sections", "whole"])
@pytest.mark.parametrize("written", ["", "# One\n\n[…]\n\n# Two\n\n[…]\n", "# One\n\n[…]\n"])
def test_an_empty_or_condensed_text_never_overwrites_the_document(written, mode):
    models = Models([3], [written] * 2)

    result = asyncio.run(models.run(first=PARTED, mode=mode))

    assert (result.text, result.stop_reason) == (PARTED.text, "producer_empty")
    assert models.evaluated == [PARTED.text]


FINISHED = Rubric(
    id="essay", title="Essay", dimensions=(Dimension(name="finished", checks=(Finished(),)),)
)
SECTIONS = Draft(text="# One\n\nIt is\n\n# Two\n\nIt is.\n\n# One\n\nSo it\n", task="Write.")
MENDED = "# One\n\nYes.\n\n# Two\n\nIt is.\n\n# One\n\nYes.\n"


@pytest.mark.parametrize(
    ("written", "reason", "text"),
    [
        pytest.param(["Yes.", "Yes."], "passed", MENDED, id="both"),
        pytest.param(["Yes.", TIMEOUT], "producer_failed", SECTIONS.text, id="one call fails"),
    ],
)
def test_a_loop_of_checks_mends_the_sections_that_break_off(written, reason, text):
    result = revise([], written, rubric=FINISHED, first=SECTIONS)

    assert (result.stop_reason, result.text) == (reason, text)


@pytest.mark.parametrize(
    ("role", "best"),
    [
        pytest.param("evaluator", None, id="before there is a round"),
        pytest.param("producer", 1, id="after the first round"),
    ],
)
def test_cancelling_passes_through_and_is_told(role, best):
    records = []
    models = Models([5])

    async def cancel_while_asked():
        asked = asyncio.Event()

        async def ask(request):
            if request.role == role:
                asked.set()
                await asyncio.Event().wait()
            return await models.ask(request)

        loop = asyncio.create_task(models.run(ask=ask, sink=records.append))
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


@pytest.mark.parametrize(("judged", "written"), [([5, 6], []), ([5], ["B"])])
def test_an_error_that_is_no_reply_is_not_taken_for_one(judged, written):
    with pytest.raises((LookupError, ExceptionGroup)) as caught:
        revise(judged, written)

    (error,) = getattr(caught.value, "exceptions", (caught.value,))
    assert isinstance(error, LookupError)


def test_a_loop_ends_with_its_best_draft_when_the_tokens_do_not_suffice_for_more():
    result = revise([5], max_tokens=3_000)

    assert (result.stop_reason, result.text, len(result.rounds)) == ("budget", FIRST.text, 1)
    assert "max_tokens" in result.stop_detail
    assert result.spent.tokens == result.rounds[0].spent.tokens


def test_each_round_says_what_changed_and_what_it_took():
    result = revise([5, 6, 9], ["Draft no. 2.", "Draft no. 3."], max_rounds=3)

    assert [one.changed_chars for one in result.rounds] == [0, 15 + 12, 12 + 12]
    calls = [(one.drafting.calls, one.judging.calls) for one in result.rounds]
    assert calls == [(0, 1), (1, 1), (1, 1)]
    assert result.spent.calls == 5
    assert result.spent.tokens == sum(one.spent.tokens for one in result.rounds) > 0


@pytest.mark.parametrize(
    ("change", "code"),
    [
        pytest.param({"draft": "Another."}, "loop.other-rounds", id="another draft"),
        pytest.param({"number": 2}, "loop.other-rounds", id="not from the first on"),
        pytest.param({"rubric_sha256": "0ther"}, "loop.other-rounds", id="another rubric"),
    ],
)
def test_rounds_of_another_loop_are_refused(change, code):
    (first,) = revise([5], max_rounds=1).rounds
    if "rubric_sha256" in change:
        change = {"verdict": replace(first.verdict, **change)}

    with pytest.raises(InvalidInput) as caught:
        revise([], rounds=[replace(first, **change)])
    assert caught.value.code == code


# --- what the trace shows --------------------------------------------------------------------


def test_the_trace_shows_every_round_and_why_the_loop_ended():
    records = []

    revise([(6, 4), (5, 5), 9], ["B", "C"], sink=records.append)

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
    assert loop.attributes == {
        "rubric": "essay",
        "rubric_sha256": RUBRIC.sha256,
        "prompts_sha256": Prompts().sha256,
        "task_sha256": sha256_of("Write."),
        "prompt_sha256": loop.attributes["prompt_sha256"],
        "key": None,
    }
    assert {span.status for span in ended.values()} == {"ok"}
    assert second_revision.attributes["base_round"] == 1
    assert second_revision.attributes["focus"] == ["useful", "clear"]

    attributes = ended[first.id].attributes
    assert (attributes["composite"], attributes["scores"]) == (5, {"clear": 6, "useful": 4})
    assert attributes["findings"] == ["clear: x", "useful: x"]
    told = ended[loop.id].attributes
    assert (told["stop_reason"], told["best_round"], told["passed"]) == ("passed", 3, True)
    assert told["composites"] == [5, 5, 9]


def test_the_trace_counts_the_scores_and_keeps_the_drafts():
    records = []

    revise([(6, 4), 9], ["Draft number 2."], sink=records.append)

    counters = [record for record in records if isinstance(record, CounterSet)]
    names = ("composite", "clear", "useful")
    assert [record.name for record in counters] == [*names, *names]
    assert [record.value for record in counters] == [5, 6, 4, 9, 9, 9]
    assert {record.unit for record in counters} == {"points of 10"}
    contents = {record.sha256: record.text for record in records if isinstance(record, Content)}
    spans = [record for record in records if isinstance(record, SpanStarted | SpanEnded)]
    drafts = [
        span.attributes["draft_sha256"] for span in spans if "draft_sha256" in span.attributes
    ]
    assert [contents[draft] for draft in drafts] == [FIRST.text, *["Draft number 2."] * 2]


def test_a_loop_whose_server_is_away_for_too_long_did_not_run_out_of_its_budget():
    models = Models([5])

    async def ask(request):
        if request.role == "evaluator":
            return await models.ask(request)
        raise RunLimitReached("the endpoint was down for too long", limit="outage")

    result = asyncio.run(models.run(ask=ask))

    assert (result.stop_reason, result.stop_detail) == (
        "producer_failed",
        "the endpoint was down for too long",
    )
