"""Training data made of journals: which drafts make a pair, and what is left out and counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from harness.analysis.training import TrainingRows
from harness.rubric import DimensionScore, Verdict
from harness.rubric.verdict import Judges, Shortened
from harness.trace import Journal, RunTrace, TraceOptions
from harness.wiggum import Round
from harness.wiggum.record import record_round

JUDGES = Judges(evaluators=("judge",), prompt_sha256="9")


def verdict(composite: float, *, judges: Judges | None = JUDGES, names=("clear",), **more):
    scores = tuple(
        DimensionScore(name=name, score=composite, source="judged", reason="") for name in names
    )
    more = {"passed": composite >= 8, **more}
    return Verdict(
        rubric="essay",
        rubric_sha256="5eed",
        scores=scores,
        composite=composite,
        judges=judges,
        **more,
    )


def rounds_of(*composites: float) -> tuple[Round, ...]:
    """One after the other, whose drafts are "Draft 1." and so on."""
    return tuple(
        Round(number=number, draft=f"Draft {number}.", verdict=verdict(composite))
        for number, composite in enumerate(composites, start=1)
    )


def journal_of(directory, *loops, prompt="Write it.", **options) -> Journal:
    """The journal of a run with these loops, each a sequence of rounds.

    Args:
        directory: Where it lands.
        loops: Each is the rounds of one.
        prompt: For a first draft; None for a version that did not record it.
        options: How the run records.
    """
    chosen = TraceOptions(timelines=(), **options)
    with RunTrace(directory, name="essays", options=chosen) as trace:
        for rounds in loops:
            said = {} if prompt is None else {"prompt_sha256": trace.content(f"[user]\n{prompt}")}
            how = {"rubric": "essay", "rubric_sha256": "5eed", "prompts_sha256": "77", **said}
            with trace.span("node", label="text"), trace.span("wiggum", **how):
                for one in rounds:
                    record_round(one, trace)
    return Journal(trace.journal_path)


def made(journal, form="dpo", *, margin=0.5):
    """The rows of a run, and what was left out."""
    rows = TrainingRows(form, margin=margin)
    return rows.of_run(journal), rows.left_out


def pairs(rows) -> list[tuple[str, str]]:
    return [(row["chosen"][0]["content"], row["rejected"][0]["content"]) for row in rows]


def test_each_two_drafts_of_a_loop_make_a_pair_with_its_prompt_and_where_it_is_from(tmp_path):
    journal = journal_of(tmp_path, rounds_of(5, 8, 6.5))

    rows, left_out = made(journal)

    expected = [("Draft 2.", "Draft 1."), ("Draft 3.", "Draft 1."), ("Draft 2.", "Draft 3.")]
    assert (pairs(rows), left_out) == (expected, Counter())
    assert rows[2] == {
        "prompt": [{"role": "user", "content": "Write it."}],
        "chosen": [{"role": "assistant", "content": "Draft 2."}],
        "rejected": [{"role": "assistant", "content": "Draft 3."}],
        "score_chosen": 8,
        "score_rejected": 6.5,
        "scores_chosen": [{"dimension": "clear", "score": 8}],
        "scores_rejected": [{"dimension": "clear", "score": 6.5}],
        "round_chosen": 2,
        "round_rejected": 3,
        "run": journal.started.run_id,
        "pipeline": "essays",
        "node": "text",
        "loop": 1,
        "rubric": "essay",
        "rubric_sha256": "5eed",
        "prompts_sha256": "77",
        "evaluator": "judge",
        "producer_model": "",
        "evaluator_model": "",
    }


def test_a_reward_model_is_told_the_margin(tmp_path):
    ((row,), _) = made(journal_of(tmp_path, rounds_of(8.3, 8.0)), "reward", margin=0.3)
    ((pair,), _) = made(journal_of(tmp_path, rounds_of(8.3, 8.0)), margin=0.3)
    assert row == {**pair, "margin": 0.3, "run": row["run"]}


def test_drafts_of_two_loops_make_no_pair(tmp_path):
    rows, left_out = made(journal_of(tmp_path, rounds_of(5), rounds_of(8)))
    assert (rows, left_out) == ([], Counter({"one-draft": 2}))


OTHER = {
    "another evaluator": {"judges": replace(JUDGES, evaluators=("kind",))},
    "other prompts of the evaluator": {"judges": replace(JUDGES, prompt_sha256="10")},
    "other dimensions": {"names": ("clear", "useful")},
    "behind a gate": {"judges": None, "gates": ("length",), "names": ("length",)},
    "a shortened text": {
        "judges": replace(JUDGES, shortened=Shortened(before_chars=9, after_chars=5))
    },
}


@pytest.mark.parametrize("how", OTHER.values(), ids=OTHER)
def test_drafts_that_were_not_scored_alike_make_no_pair(tmp_path, how):
    first, second = rounds_of(5, 8)
    second = replace(second, verdict=verdict(8, **how))

    rows, left_out = made(journal_of(tmp_path, (first, second)))

    assert (rows, left_out) == ([], Counter({"not-comparable": 1}))


LEFT = {
    "near": (rounds_of(7.0, 7.4), "near-tie"),
    "equal": (rounds_of(7.0, 7.0), "near-tie"),
    "cut": ((rounds_of(5)[0], replace(rounds_of(5, 7)[1], cut=True)), "cut"),
    "below a floor": (
        (
            replace(rounds_of(9)[0], verdict=verdict(9, passed=False, below_floor=("clear",))),
            rounds_of(9, 8)[1],
        ),
        "failed",
    ),
    "again": ((*rounds_of(5, 7), replace(rounds_of(5, 7, 7)[2], draft="Draft 2.")), "duplicate"),
}


@pytest.mark.parametrize(("rounds", "reason"), LEFT.values(), ids=LEFT)
def test_a_pair_that_teaches_nothing_or_something_wrong_is_left_out_and_counted(
    tmp_path, rounds, reason
):
    rows, left_out = made(journal_of(tmp_path, rounds))

    assert left_out[reason] == 1
    assert len(rows) == (reason == "duplicate")


def test_equal_scores_make_no_pair_without_any_margin(tmp_path):
    rows, _ = made(journal_of(tmp_path, rounds_of(7, 7, 7.1)), margin=0)
    assert pairs(rows) == [("Draft 3.", "Draft 1."), ("Draft 3.", "Draft 2.")]


def test_a_cut_draft_may_be_the_worse_one(tmp_path):
    first, second = rounds_of(5, 7)
    rows, _ = made(journal_of(tmp_path, (replace(first, cut=True), second)))
    assert pairs(rows) == [("Draft 2.", "Draft 1.")]


# --- good drafts -----------------------------------------------------------------------------


def test_the_best_draft_of_a_loop_that_passed_is_a_good_one(tmp_path):
    rows, left_out = made(journal_of(tmp_path, rounds_of(5, 9, 8), rounds_of(5, 7)), "sft")

    ((row,), said) = rows, rows[0]["completion"]
    assert said == [{"role": "assistant", "content": "Draft 2."}]
    assert (row["score"], row["round"], row["evaluator"]) == (9, 2, "judge")
    assert left_out == Counter({"not-passed": 1})


def test_a_draft_that_several_loops_returned_counts_once(tmp_path):
    rows, left_out = made(journal_of(tmp_path, rounds_of(9), rounds_of(9)), "sft")
    assert (len(rows), left_out) == (1, Counter({"duplicate": 1}))


# --- texts that are not there ----------------------------------------------------------------

UNUSABLE = {
    "hashes": ({"content": "hash"}, "texts-not-recorded"),
    "nothing": ({"content": "none"}, "texts-not-recorded"),
    "no prompt": ({"prompt": None}, "texts-not-recorded"),
    "a secret in a draft": ({"secrets": ["Draft 2."]}, "draft-redacted"),
    "a secret in the prompt": ({"secrets": ["Write it."]}, "draft-redacted"),
}


@pytest.mark.parametrize("form", ["sft", "dpo"])
@pytest.mark.parametrize(("how", "reason"), UNUSABLE.values(), ids=UNUSABLE)
def test_a_loop_whose_texts_are_not_whole_is_counted(tmp_path, form, how, reason):
    rows, left_out = made(journal_of(tmp_path, rounds_of(5, 9), **how), form)
    assert (rows, left_out) == ([], Counter({reason: 1}))


def test_a_loop_without_an_evaluated_draft_is_counted(tmp_path):
    assert made(journal_of(tmp_path, ())) == ([], Counter({"no-draft": 1}))
