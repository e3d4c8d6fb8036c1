import json
from dataclasses import replace

import pytest

from harness.trace import AuditEntry, LoopEntry, append_entry

ENTRY = AuditEntry(
    run_id="20260102T030405Z-00",
    timestamp="2026-01-02T03:04:05+00:00",
    pipeline="essay",
    task="Über 概要",
    producer_model="small",
    evaluator_model=None,
    run_duration_s=1.5,
    input_tokens=10,
    output_tokens=20,
    loops=(),
    final="PASS",
)
FIRST_LOOP = LoopEntry(
    rubric="essay",
    rubric_sha256="00",
    stop_reason="max_rounds",
    best_round=1,
    scores=(5.0,),
    dimensions=({"tone": 5.0},),
)
LAST_LOOP = LoopEntry(
    rubric="brief",
    rubric_sha256="11",
    stop_reason="passed",
    best_round=2,
    scores=(6.0, 8.5),
    dimensions=({"tone": 6.0}, {"tone": 8.5}),
)


def test_a_line_holds_the_entry_and_the_series_fields_for_the_last_loop():
    entry = replace(ENTRY, loops=(FIRST_LOOP, LAST_LOOP), final="FAIL")

    assert json.loads(entry.as_line()) == {
        "schema_version": 1,
        "wiggum_rounds": 2,
        "wiggum_scores": [6.0, 8.5],
        "wiggum_dims": [{"tone": 6.0}, {"tone": 8.5}],
        "run_id": "20260102T030405Z-00",
        "timestamp": "2026-01-02T03:04:05+00:00",
        "pipeline": "essay",
        "task": "Über 概要",
        "producer_model": "small",
        "evaluator_model": None,
        "run_duration_s": 1.5,
        "input_tokens": 10,
        "output_tokens": 20,
        "loops": [
            {
                "rubric": "essay",
                "rubric_sha256": "00",
                "stop_reason": "max_rounds",
                "best_round": 1,
                "scores": [5.0],
                "dimensions": [{"tone": 5.0}],
            },
            {
                "rubric": "brief",
                "rubric_sha256": "11",
                "stop_reason": "passed",
                "best_round": 2,
                "scores": [6.0, 8.5],
                "dimensions": [{"tone": 6.0}, {"tone": 8.5}],
            },
        ],
        "final": "FAIL",
        "error": None,
    }


def test_a_run_without_a_loop_has_the_series_fields_too():
    line = json.loads(ENTRY.as_line())

    assert (line["wiggum_rounds"], line["wiggum_scores"], line["wiggum_dims"]) == (0, [], [])


def test_entries_are_appended_a_line_each(tmp_path):
    path = tmp_path / "runs.jsonl"

    append_entry(path, ENTRY)
    append_entry(path, replace(ENTRY, run_id="another", task="two\nlines"))

    lines = path.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["run_id"] for line in lines] == [ENTRY.run_id, "another"]


def test_a_task_that_is_no_valid_unicode_is_logged_all_the_same(tmp_path):
    # What Python makes of bytes on a command line that are not UTF-8.
    task = b"caf\xe9".decode("utf-8", "surrogateescape")

    append_entry(tmp_path / "runs.jsonl", replace(ENTRY, task=task))

    assert json.loads((tmp_path / "runs.jsonl").read_bytes())["task"] == "caf?"


def test_a_log_that_cannot_be_written_is_an_os_error(tmp_path):
    with pytest.raises(OSError, match=str(tmp_path)):
        append_entry(tmp_path, ENTRY)
