"""Rounds in a run's journal, and back from there."""

import asyncio
from dataclasses import replace

import pytest
from sample_runs import load_run
from scripted_loops import FIRST, PARTED, World, journal_of, run_loop, scores

from harness.errors import InvalidInput
from harness.inference import Spent
from harness.rubric import DimensionScore, Finding, Verdict
from harness.rubric.verdict import Judges, Shortened
from harness.trace import (
    Content,
    Instant,
    Journal,
    RunTrace,
    SpanEnded,
    SpanStarted,
    TraceOptions,
    events,
)
from harness.wiggum import LoopPolicy, Round, recorded_loops, rounds_from
from harness.wiggum.record import record_round

FULL = Round(
    number=2,
    draft="# Añb\r\n\nIt is so.\n\x0c",
    verdict=Verdict(
        rubric="essay",
        rubric_sha256="5eed",
        scores=(
            DimensionScore(
                name="clear",
                score=6.25,
                source="judged",
                reason='"So", he said.',
                findings=(Finding("say more", "Añb", 0, code="check.x"), Finding("cut")),
                spread=0.1 + 0.2,
                capped=("no source",),
            ),
        ),
        composite=6.3,
        passed=False,
        below_floor=("clear",),
        gates=("clear",),
        unjudged=("useful",),
        judges=Judges(
            evaluators=("a", "b"),
            prompt_sha256="1234",
            judgements=3,
            abstentions=1,
            spread=0.25,
            pass_share=1 / 3,
            combine="majority",
            shortened=Shortened(before_chars=9_000, after_chars=6_000),
        ),
    ),
    base_round=1,
    changed_chars=17,
    drafting=Spent(calls=1, input_tokens=10, output_tokens=3, cost_usd=0.1 + 0.2, time_ns=123),
    judging=Spent(calls=2, estimated_calls=1, unpriced_calls=2),
)


def recorded(directory, *rounds: Round, loops: int = 1, **options) -> Journal:
    """The journal of a run with as many loops, the last of which has these rounds."""
    chosen = TraceOptions(timelines=(), **options)
    with RunTrace(directory, name="test", options=chosen) as trace:
        for number in range(1, loops + 1):
            with trace.span("wiggum", rubric="essay"):
                for one in rounds if number == loops else ():
                    record_round(one, trace)
    return Journal(trace.journal_path)


def test_a_round_comes_back_as_it_was(tmp_path):
    bare = replace(FULL.verdict, judges=None, scores=(), gates=())
    first = replace(FULL, number=1, draft=FIRST.text, base_round=None, verdict=bare)

    assert rounds_from(recorded(tmp_path, first, FULL)) == (first, FULL)


def test_each_loop_of_a_run_has_its_own_rounds(tmp_path):
    journal = recorded(tmp_path, FULL, loops=2)

    assert rounds_from(journal, loop=0) == ()
    assert rounds_from(journal, loop=1) == (FULL,)
    with pytest.raises(InvalidInput) as caught:
        rounds_from(journal, loop=2)
    assert caught.value.code == "loop.not-found"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"content": "hash"}, "loop.texts-not-recorded"),
        ({"content": "none"}, "loop.texts-not-recorded"),
        ({"secrets": ["It is so."]}, "loop.draft-redacted"),
    ],
)
def test_rounds_whose_texts_were_not_recorded_in_full_are_refused(tmp_path, options, code):
    journal = recorded(tmp_path, FULL, **options)

    with pytest.raises(InvalidInput) as caught:
        rounds_from(journal)
    assert caught.value.code == code
    assert "It is so." not in journal.path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("killed", "reason", "detail"), [(1, "plateau", "no gain"), (2, None, "")], ids=["less", "all"]
)
def test_a_loop_that_was_killed_tells_one_score_for_each_of_its_rounds(
    tmp_path, killed, reason, detail
):
    with RunTrace(tmp_path, name="test", options=TraceOptions(timelines=())) as trace:
        for rounds, is_killed in ((2, False), (killed, True)):
            with trace.span("wiggum", rubric="essay", key="k") as span:
                for number, finalists in enumerate([[5], [6, 7]][:rounds], start=1):
                    for points in finalists:
                        with trace.span("evaluate", round=number, composite=points):
                            verdict = replace(FULL.verdict, composite=points)
                    record_round(replace(FULL, number=number, verdict=verdict), trace)
                if not is_killed:
                    span.set(stop_reason="plateau", composites=[5, 7])
                    trace.instant(
                        events.StopEvent(reason="plateau", detail="no gain", best_round=2)
                    )

    (loop,) = recorded_loops(Journal(trace.journal_path))
    assert (loop.composites, loop.stop_reason, loop.stop_detail) == ((5, 7), reason, detail)


def test_a_round_that_another_version_wrote_is_refused(tmp_path):
    records = [
        SpanStarted(1, None, "wiggum", 0),
        Content("aa", "Draft."),
        Content("bb", '{"number": 1, "verdict": "passed"}'),
        Instant(1, "round", 1, {"draft_sha256": "aa", "round_sha256": "bb", "draft_chars": 6}),
        SpanEnded(1, 2),
    ]

    with pytest.raises(InvalidInput) as caught:
        rounds_from(journal_of(records, tmp_path / "journal.jsonl"))
    assert caught.value.code == "loop.round-unreadable"


def test_a_run_that_was_killed_goes_on_from_its_journal_to_the_same_end(tmp_path):
    def world():
        drafts = ["", "", "Draft b.", "Draft c.", "Draft d.", "Draft e."]
        points = {"Draft b.": 6, "Draft c.": 5.5, "Draft d.": 6.5, "Draft e.": 8}
        return World(
            lambda number, _candidate: drafts[number], lambda text: scores(points.get(text, 3), 6)
        )

    policy = LoopPolicy(max_rounds=5)
    whole = asyncio.run(run_loop(world(), policy=policy))
    assert (whole.stop_reason, len(whole.rounds)) == ("max_rounds", 5)

    for known in range(len(whole.rounds) + 1):
        journal = recorded(tmp_path, *whole.rounds[:known])
        left = world()
        again = asyncio.run(run_loop(left, policy=policy, rounds=rounds_from(journal)))
        assert again == whole
        assert len(left.evaluated) == len(whole.rounds) - known


def test_a_loop_that_went_on_can_be_gone_on_with_from_its_own_journal(tmp_path):
    world = World(lambda number, _candidate: f"# One\n\nText {number}.", lambda _text: scores(3, 4))
    once = {"first": PARTED, "policy": LoopPolicy(max_rounds=1)}
    records = []
    first = asyncio.run(run_loop(world, **once)).rounds

    asyncio.run(run_loop(world, rounds=first, sink=records.append, **once))

    assert rounds_from(journal_of(records, tmp_path / "again.jsonl")) == first


def test_a_round_shows_in_the_record_with_its_size_and_what_it_took(tmp_path):
    journal = recorded(tmp_path, FULL)

    (instant,) = (one for one in load_run(journal.path).instants if one.name == "round")
    shown = instant.attributes
    assert (shown["round"], shown["composite"], shown["passed"]) == (2, 6.3, False)
    assert (shown["calls"], shown["cost_usd"], shown["seconds"]) == (3, 0.1 + 0.2, 123 / 1e9)
    assert shown["draft_chars"] == len(FULL.draft)
