"""The main job, end to end, on the real model: what the demo promises is in what it leaves."""

from __future__ import annotations

from collections import Counter

import orjson
import pytest
from demo import ROOT, DemoRun
from perfetto import query_trace
from sample_runs import RunRecord, load_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def record(demo_run: DemoRun) -> RunRecord:
    return load_run(demo_run.journal)


def test_the_brief_is_the_best_evaluated_draft_and_the_loop_says_why_it_stopped(
    demo_run: DemoRun, record: RunRecord
) -> None:
    counts = Counter(output.node for output in record.outputs)
    assert counts == {"parts": 1, "topics": 1, "sources": 3, "sections": 3, "text": 1}
    (loop,) = demo_run.result["loops"]
    best = loop["rounds"][loop["best_round"] - 1]
    assert demo_run.result["result"] == best["draft"]
    assert best["composite"] == max(one["composite"] for one in loop["rounds"])
    assert loop["stop_reason"] in {"passed", "max_rounds", "plateau", "cycle", "regression"}
    assert loop["unjudged"] == ["useful"], "a 135M model judges nothing"


def test_the_document_is_what_the_brief_is_about(demo_run: DemoRun) -> None:
    document = (ROOT / "examples/documents/one-machine-two-models.md").read_text()
    for topic in demo_run.result["outputs"]["topics"]:
        assert f"# {topic}\n" in document
        assert f"## {topic}" in demo_run.result["result"]


def test_tokens_speed_and_cache_hits_are_reported(demo_run: DemoRun) -> None:
    (model,) = demo_run.result["models"]
    line = orjson.loads((demo_run.directory / "traces/runs.jsonl").read_bytes())
    assert (model["name"], line["producer_model"], model["failed"]) == (*["smollm2-135m"] * 2, 0)
    assert 0 < model["output_tokens"] == line["output_tokens"]
    assert 0 < model["cached_tokens"] < model["input_tokens"], "rounds begin their prompts alike"
    assert model["ttft"]["p50_ns"] > 0
    assert model["decode_tokens_per_s"] > 0
    assert line["final"] == ("PASS" if demo_run.result["passed"] else "FAIL")


def test_every_call_has_prefill_and_decode_inside_it_and_the_model_is_loaded_once(
    record: RunRecord,
) -> None:
    # A call that waits for the load has a phase of the same name.
    loads = [span for span in record.spans if span.name == "load"]
    assert sum("waits_for" not in span.attributes for span in loads) == 1
    calls = [span for span in record.spans if span.name == "chat"]
    assert len(calls) >= 4
    for call in calls:
        phases = [
            s for s in record.spans if s.parent == call.id and s.name in {"prefill", "decode"}
        ]
        assert [phase.name for phase in phases] == ["prefill", "decode"]
        for phase in phases:
            assert call.start_ns <= phase.start_ns <= phase.end_ns <= call.end_ns
            assert phase.attributes["source"] in {"measured", "reported", "derived"}


def test_perfetto_shows_the_run_as_it_was(demo_run: DemoRun, record: RunRecord) -> None:
    trace = demo_run.chrome_trace
    lost = query_trace(
        trace,
        "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
    )
    assert lost == []

    rows = query_trace(
        trace,
        "select slice.category, slice.dur, extract_arg(slice.arg_set_id, 'args.span') as span,"
        # Its parent, where it is drawn in it and where it is not.
        " coalesce(extract_arg(around.arg_set_id, 'args.span'),"
        " extract_arg(slice.arg_set_id, 'args.parent')) as parent"
        " from slice left join slice as around on around.id = slice.parent_id"
        " where slice.category is not null and slice.dur >= 0",
    )
    shown = {row["span"]: row for row in rows}
    assert shown.keys() == {span.id for span in record.spans}
    for span in record.spans:
        assert shown[span.id]["category"] == span.name
        assert shown[span.id]["dur"] == span.duration_ns
        assert shown[span.id]["parent"] == span.parent

    kinds = Counter(span.name for span in record.spans)
    rounds = len(demo_run.result["loops"][0]["rounds"])
    assert kinds["node"] == 9
    assert kinds["evaluate"] == rounds
    # A revision that is an earlier draft again has no round of its own.
    assert kinds["revise"] in {rounds - 1, rounds}
    assert kinds["chat"] == kinds["prefill"] == kinds["decode"]


def test_the_tracks_bear_the_names_of_the_nodes(demo_run: DemoRun) -> None:
    rows = query_trace(demo_run.chrome_trace, "select distinct name from thread")
    names = {row["name"] for row in rows}
    nodes = {"parts", "topics", "sources", "sections", "sections (2)", "text"}
    assert {f"node {name}" for name in nodes} <= names
    assert {"run brief", "model smollm2-135m"} <= names


def test_arrows_lead_through_the_pipeline_and_round_the_loop(demo_run: DemoRun) -> None:
    rows = query_trace(
        demo_run.chrome_trace,
        "select source.name || ' to ' || target.name as arrow from flow"
        " join slice as source on source.id = slice_out"
        " join slice as target on target.id = slice_in",
    )
    expected = {
        "topics to sources[0]",
        "sources[1] to sections[1]",
        "sections[2] to text",
        "call to topics · planner",
    }
    if len(demo_run.result["loops"][0]["rounds"]) > 1:
        expected |= {
            "evaluate round 1 to revise for round 2",
            "revise for round 2 to evaluate round 2",
        }
    assert expected <= {row["arrow"] for row in rows}


def test_what_the_server_said_is_drawn(demo_run: DemoRun) -> None:
    rows = query_trace(
        demo_run.chrome_trace,
        "select process.name || ': ' || track.name as counter, max(value) as most"
        " from counter join process_counter_track as track on track.id = track_id"
        " join process using (upid) group by 1",
    )
    most = {row["counter"]: row["most"] for row in rows}
    assert "server smollm2-135m: running requests" in most
    assert float(str(most["server keep-alive budget: resident MB"])) > 100
    assert "node text: composite points of 10" in most
