import json
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from harness.trace import (
    AuditEntry,
    AuditLine,
    LoopEntry,
    RoundEntry,
    StageUse,
    append_line,
    latest_lines,
    read_audit_log,
)

ENTRY = AuditEntry(
    run_id="20260102T030405Z-00",
    timestamp="2026-01-02T03:04:05+00:00",
    pipeline="essay",
    task="Über 概要",
    producer_model="small",
    evaluator_model=None,
    run_duration_s=1.5,
    subtask_count=3,
    loops=(),
    final="PASS",
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs.jsonl"


def line_of(**more):
    return json.loads(replace(ENTRY, **more).as_line())


def loop(*scores, rubric="brief", best_round=1, **more):
    rounds = tuple(
        RoundEntry(
            round=number,
            score=score,
            dims={"tone": score},
            issues=("too dry",),
            content_sha256="f00d",
            compressed=False,
            prompt_sha256=f"p{number}",
        )
        for number, score in enumerate(scores, start=1)
    )
    said = {"rubric_sha256": "11", "stop_reason": "passed", **more}
    return LoopEntry(rubric=rubric, best_round=best_round, rounds=rounds, **said)


def stage(**more):
    said = {"input": 100, "output": 20, "calls": 2, "total_ms": 900.0, "prompt_ms": 300.0}
    return StageUse(**{**said, "eval_ms": 500.0, "tok_s": 40.0, **more})


def test_the_series_fields_are_of_the_last_loop():
    # A gate stopped its last round: the composite is of the checks alone, and not the best.
    line = line_of(loops=(loop(5.0, rubric="essay"), loop(6.0, 8.5, 9.0, best_round=2)))

    assert [loop["rubric"] for loop in line["loops"]] == ["essay", "brief"]
    assert (line["schema_version"], line["task"], line["final"]) == (1, "Über 概要", "PASS")
    assert (line["wiggum_rounds"], line["wiggum_scores"]) == (3, [6.0, 8.5, 9.0])
    assert line["wiggum_dims"] == [{"tone": 6.0}, {"tone": 8.5}, {"tone": 9.0}]
    assert line["wiggum_eval_log"] == line["loops"][1]["rounds"]
    assert line["wiggum_eval_log"][0].items() >= {"round": 1, "issues": ["too dry"]}.items()
    assert (line["first_score"], line["best_score"], line["last_score"]) == (6.0, 8.5, 9.0)
    assert (line["rubric_id"], line["rubric_sha256"]) == ("brief", "11")
    assert (line["stop_reason"], line["best_round"]) == ("passed", 2)
    assert line["prompt_sha256"] == "p2"


def test_a_run_without_a_loop_or_a_call_has_the_series_fields_too():
    line = line_of()

    assert (line["wiggum_rounds"], line["wiggum_scores"], line["wiggum_dims"]) == (0, [], [])
    assert (line["first_score"], line["best_score"], line["stop_reason"]) == (None, None, None)
    assert (line["input_tokens"], line["total_tokens"]) == (0, 0)
    assert (line["generation_tok_s"], line["tokens_by_stage"]) == (None, {})


def test_totals_are_of_all_stages_and_the_rate_of_those_that_have_one():
    line = line_of(
        stages={
            "producer": stage(),
            "evaluator": stage(input=7, output=1, eval_ms=1500.0, tok_s=20.0),
            "other": stage(input=1, output=0, prompt_ms=0.0, eval_ms=3.0, tok_s=None),
        }
    )

    assert (line["input_tokens"], line["output_tokens"], line["total_tokens"]) == (108, 21, 129)
    assert (line["total_prompt_ms"], line["total_eval_ms"]) == (600.0, 2003.0)
    assert line["generation_tok_s"] == (40 * 500 + 20 * 1500) / 2000
    assert list(line["tokens_by_stage"]) == ["producer", "evaluator", "other"]
    assert line["tokens_by_stage"]["other"]["input"] == 1
    assert "stages" not in line


def test_entries_are_appended_a_line_each_and_read_back(path):
    assert list(read_audit_log(path)) == []
    one = replace(ENTRY, loops=(loop(6.0, 8.5),), stages={"producer": stage()})
    append_line(path, one.as_line())
    # What Python makes of bytes on a command line that are not UTF-8.
    task = b"two\ncaf\xe9".decode("utf-8", "surrogateescape")
    append_line(path, replace(ENTRY, run_id="another", task=task).as_line())

    first, second = read_audit_log(path)
    assert (first.run_id, first.task, first.final) == (ENTRY.run_id, "Über 概要", "PASS")
    assert (first.wiggum_scores, first.stop_reason) == ((6.0, 8.5), "passed")
    assert (first.input_tokens, first.output_tokens) == (100, 20)
    assert (second.run_id, second.task) == ("another", "two\ncaf?")


def test_a_run_that_was_resumed_is_listed_once_where_it_ended_last():
    ends = [("a", "WAITING"), ("b", "PASS"), ("a", "STOPPED"), (None, ""), (None, ""), ("a", "OK")]
    lines = [AuditLine(run_id=run_id, final=final) for run_id, final in ends]

    # Those without an id are each of a run of its own.
    assert [(line.run_id, line.final) for line in latest_lines(lines)] == [
        ("b", "PASS"), (None, ""), (None, ""), ("a", "OK")
    ]  # fmt: skip


def test_lines_of_the_series_that_lack_our_fields_are_read_too(path):
    path.write_text('{"task": null, "wiggum_scores": null, "final": "PASS", "plan": ["a"]}\n\n')

    (line,) = read_audit_log(path)

    assert (line.run_id, line.task, line.wiggum_scores, line.final) == (None, "", (), "PASS")


def test_what_is_no_whole_line_of_a_run_is_left_out(path):
    whole = ENTRY.as_line()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole + whole[:length])
        assert len(list(read_audit_log(path))) == 1

    # What a full disk cut off takes no other line with it.
    append_line(path, whole)
    path.write_bytes(path.read_bytes() + b"a note\n" + whole)
    with capture_logs() as logs:
        assert [line.run_id for line in read_audit_log(path)] == [ENTRY.run_id] * 3
    assert [(log["code"], log["line"]) for log in logs] == [
        ("audit.line-skipped", 2),
        ("audit.line-skipped", 4),
    ]
