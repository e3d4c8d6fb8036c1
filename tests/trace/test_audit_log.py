import json
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from harness.errors import InvalidInput
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


def round_of(number, score, **more):
    return RoundEntry(
        **{
            "round": number,
            "score": score,
            "dims": {"tone": score},
            "issues": ("too dry",),
            "content_sha256": "f00d",
            "compressed": False,
            **more,
        }
    )


FIRST_LOOP = LoopEntry(
    rubric="essay",
    rubric_sha256="00",
    stop_reason="max_rounds",
    best_round=1,
    rounds=(round_of(1, 5.0),),
)
LAST_LOOP = LoopEntry(
    rubric="brief",
    rubric_sha256="11",
    stop_reason="passed",
    best_round=2,
    rounds=(round_of(1, 6.0), round_of(2, 8.5, compressed=True)),
)


def stage(**more):
    return StageUse(
        **{
            "input": 100,
            "output": 20,
            "calls": 2,
            "total_ms": 900.0,
            "prompt_ms": 300.0,
            "eval_ms": 500.0,
            "tok_s": 40.0,
            **more,
        }
    )


def test_a_line_holds_the_entry_and_every_loop():
    line = json.loads(replace(ENTRY, loops=(FIRST_LOOP, LAST_LOOP), final="FAIL").as_line())

    assert {key: line[key] for key in ("run_id", "pipeline", "task", "final", "error")} == {
        "run_id": "20260102T030405Z-00",
        "pipeline": "essay",
        "task": "Über 概要",
        "final": "FAIL",
        "error": None,
    }
    assert (line["schema_version"], line["subtask_count"]) == (1, 3)
    assert [loop["rubric"] for loop in line["loops"]] == ["essay", "brief"]
    assert line["loops"][0]["rounds"] == [
        {
            "round": 1,
            "score": 5.0,
            "dims": {"tone": 5.0},
            "issues": ["too dry"],
            "content_sha256": "f00d",
            "compressed": False,
            "prompt_sha256": None,
            "judgements": 0,
            "abstentions": 0,
            "spread": None,
            "changed_chars": 0,
        }
    ]


def test_the_series_fields_are_of_the_last_loop():
    line = json.loads(replace(ENTRY, loops=(FIRST_LOOP, LAST_LOOP)).as_line())

    assert {key: value for key, value in line.items() if key.startswith("wiggum")} == {
        "wiggum_rounds": 2,
        "wiggum_scores": [6.0, 8.5],
        "wiggum_dims": [{"tone": 6.0}, {"tone": 8.5}],
        "wiggum_eval_log": line["loops"][1]["rounds"],
    }
    assert (line["first_score"], line["best_score"], line["last_score"]) == (6.0, 8.5, 8.5)
    assert (line["rubric_id"], line["rubric_sha256"]) == ("brief", "11")
    assert (line["stop_reason"], line["best_round"]) == ("passed", 2)


def test_the_best_score_is_that_of_the_round_that_was_returned():
    # A gate stopped the second: its composite is of the checks alone.
    rounds = (round_of(1, 6.0, prompt_sha256="p1"), round_of(2, 9.0, prompt_sha256="p2"))
    loop = replace(FIRST_LOOP, best_round=1, rounds=rounds)
    line = json.loads(replace(ENTRY, loops=(loop,)).as_line())

    assert (line["best_round"], line["best_score"], line["last_score"]) == (1, 6.0, 9.0)
    assert line["prompt_sha256"] == "p1"


def test_a_run_without_a_loop_or_a_call_has_the_series_fields_too():
    line = json.loads(ENTRY.as_line())

    assert (line["wiggum_rounds"], line["wiggum_scores"], line["wiggum_dims"]) == (0, [], [])
    assert (line["first_score"], line["best_score"], line["stop_reason"]) == (None, None, None)
    assert (line["input_tokens"], line["total_tokens"]) == (0, 0)
    assert (line["generation_tok_s"], line["tokens_by_stage"]) == (None, {})


def test_totals_are_of_all_stages_and_the_rate_of_those_that_have_one():
    stages = {
        "producer": stage(),
        "evaluator": stage(input=7, output=1, eval_ms=1500.0, tok_s=20.0),
        "other": stage(input=1, output=0, prompt_ms=0.0, eval_ms=3.0, tok_s=None),
    }

    line = json.loads(replace(ENTRY, stages=stages).as_line())

    assert (line["input_tokens"], line["output_tokens"], line["total_tokens"]) == (108, 21, 129)
    assert (line["total_prompt_ms"], line["total_eval_ms"]) == (600.0, 2003.0)
    assert line["generation_tok_s"] == (40 * 500 + 20 * 1500) / 2000
    assert list(line["tokens_by_stage"]) == ["producer", "evaluator", "other"]
    assert line["tokens_by_stage"]["other"]["input"] == 1
    assert "stages" not in line


def test_entries_are_appended_a_line_each_and_read_back(tmp_path):
    path = tmp_path / "runs.jsonl"

    append_line(path, replace(ENTRY, loops=(LAST_LOOP,), stages={"producer": stage()}).as_line())
    append_line(path, replace(ENTRY, run_id="another", task="two\nlines").as_line())

    first, second = read_audit_log(path)
    assert (first.run_id, first.task, first.final) == (ENTRY.run_id, "Über 概要", "PASS")
    assert (first.wiggum_scores, first.stop_reason) == ((6.0, 8.5), "passed")
    assert (first.input_tokens, first.output_tokens) == (100, 20)
    assert (second.run_id, second.task) == ("another", "two\nlines")


def test_a_run_that_was_resumed_is_listed_once_where_it_ended_last(tmp_path):
    path = tmp_path / "runs.jsonl"
    ends = [("a", "WAITING"), ("b", "PASS"), ("a", "STOPPED"), ("c", "ERROR"), ("a", "PASS")]
    for run_id, final in ends:
        append_line(path, replace(ENTRY, run_id=run_id, final=final).as_line())

    lines = list(read_audit_log(path))

    assert [(line.run_id, line.final) for line in lines] == ends
    assert [(line.run_id, line.final) for line in latest_lines(lines)] == [
        ("b", "PASS"), ("c", "ERROR"), ("a", "PASS")
    ]  # fmt: skip


def test_lines_without_an_id_are_each_of_a_run_of_its_own():
    lines = [AuditLine(task="a"), AuditLine(run_id="r"), AuditLine(task="b")]

    assert latest_lines(lines) == lines


def test_a_task_that_is_no_valid_unicode_is_logged_all_the_same(tmp_path):
    # What Python makes of bytes on a command line that are not UTF-8.
    task = b"caf\xe9".decode("utf-8", "surrogateescape")

    append_line(tmp_path / "runs.jsonl", replace(ENTRY, task=task).as_line())

    assert json.loads((tmp_path / "runs.jsonl").read_bytes())["task"] == "caf?"


def test_a_log_that_cannot_be_written_is_an_os_error(tmp_path):
    with pytest.raises(OSError, match=str(tmp_path)):
        append_line(tmp_path, ENTRY.as_line())


def test_lines_of_the_series_that_lack_our_fields_are_read_too(tmp_path):
    path = tmp_path / "runs.jsonl"
    path.write_text('{"task": null, "wiggum_scores": null, "final": "PASS", "plan": ["a"]}\n\n')

    (line,) = read_audit_log(path)

    assert (line.run_id, line.task, line.wiggum_scores, line.final) == (None, "", (), "PASS")


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path):
    path = tmp_path / "runs.jsonl"
    whole = ENTRY.as_line()

    for length in range(len(whole)):
        path.write_bytes(whole + whole[:length])
        assert len(list(read_audit_log(path))) == 1


def test_a_line_that_is_no_run_is_left_out_with_a_warning(tmp_path):
    path = tmp_path / "runs.jsonl"
    path.write_bytes(ENTRY.as_line() + b"a note\n" + ENTRY.as_line())

    with capture_logs() as logs:
        assert len(list(read_audit_log(path))) == 2

    assert [(log["event"], log["line"]) for log in logs] == [("not a run, and left out", 2)]


def test_a_line_that_a_full_disk_cut_off_takes_no_other_with_it(tmp_path):
    path = tmp_path / "runs.jsonl"
    path.write_bytes(ENTRY.as_line()[:50])

    append_line(path, ENTRY.as_line())

    with capture_logs():
        assert [line.run_id for line in read_audit_log(path)] == [ENTRY.run_id]


def test_a_log_that_is_not_there_has_no_lines(tmp_path):
    assert list(read_audit_log(tmp_path / "runs.jsonl")) == []


def test_a_log_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(InvalidInput, match="cannot be read"):
        list(read_audit_log(tmp_path))
