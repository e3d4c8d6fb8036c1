import json
from dataclasses import replace

import pytest
from sample_runs import STARTED, record_eventful_run, run_of, span

from harness.trace import CounterSet, Instant, write_chrome_trace
from harness.trace.chrome import chrome_events


def events(run, phase):
    return [event for event in chrome_events(run) if event["ph"] == phase]


def test_times_are_microseconds_since_the_run_began():
    run = run_of(
        span(1, 2_000_000_001, 2_000_123_456),
        started=replace(STARTED, time_ns=2_000_000_000),
    )

    (event,) = events(run, "X")

    assert (event["ts"], event["dur"]) == (0.001, 123.455)


@pytest.mark.parametrize(
    ("attributes", "title"),
    [
        pytest.param({}, "node", id="its name"),
        pytest.param({"label": "sections[2]"}, "sections[2]", id="its label"),
        pytest.param({"label": ""}, "node", id="its name for want of a label"),
        pytest.param({"label": 7}, "7", id="a label that is no text"),
    ],
)
def test_a_slice_is_called_by_its_label_and_sorted_by_its_name(attributes, title):
    (event,) = events(run_of(span(1, 0, 9, name="node", **attributes)), "X")

    assert (event["name"], event["cat"]) == (title, "node")


@pytest.mark.parametrize(
    ("status", "error", "arguments"),
    [
        pytest.param("ok", None, {}, id="ok"),
        pytest.param(
            "error",
            "ValueError: boom",
            {"status": "error", "error": "ValueError: boom"},
            id="error",
        ),
        pytest.param("unfinished", None, {"status": "unfinished"}, id="unfinished"),
    ],
)
def test_a_slice_carries_its_identity_its_attributes_and_how_it_ended(status, error, arguments):
    child = replace(span(2, 1, 2, parent=1, model="small"), status=status, error=error)

    _, event = events(run_of(span(1, 0, 9), child), "X")

    assert event["args"] == {"span": 2, "parent": 1, "model": "small", **arguments}


def test_each_lane_is_a_thread_of_its_own_named_after_its_track():
    run = run_of(
        span(1, 0, 9),
        span(2, 1, 5, parent=1, track="write"),
        span(3, 2, 6, parent=1, track="write"),
        span(4, 3, 4, parent=3),
    )

    names = {
        event["tid"]: event["args"]["name"]
        for event in events(run, "M")
        if event["name"] == "thread_name"
    }

    assert names == {1: "essay", 2: "write", 3: "write (2)"}
    assert [event["tid"] for event in events(run, "X")] == [1, 2, 3, 3]


def test_instants_lie_on_the_lane_of_their_span_or_on_the_process():
    run = run_of(
        span(1, 0, 9, track="write"),
        instants=[
            Instant(span=1, name="first token", time_ns=5, attributes={"n": 1}),
            Instant(span=None, name="begun", time_ns=0),
            Instant(span=99, name="of a span that was lost", time_ns=6),
        ],
    )

    drawn = [
        (event["name"], event["s"], event["tid"], event["ts"], event["args"])
        for event in events(run, "i")
    ]
    assert drawn == [
        ("first token", "t", 1, 0.005, {"n": 1}),
        ("begun", "p", 0, 0, {}),
        ("of a span that was lost", "p", 0, 0.006, {}),
    ]


def test_a_counter_is_drawn_under_its_unit():
    run = run_of(counters=[CounterSet(name="composite", unit="points", time_ns=3000, value=7.5)])

    (event,) = events(run, "C")

    assert (event["name"], event["ts"], event["args"]) == ("composite", 3.0, {"points": 7.5})


def test_the_file_is_json_and_says_which_run_it_shows(tmp_path):
    trace = record_eventful_run(tmp_path)

    document = json.loads(trace.chrome_path.read_bytes())

    assert document["otherData"] == {
        "run_id": trace.run_id,
        "pipeline": "Übersicht 概要",
        "started_wall_ns": str(trace.record.started.wall_ns),
    }
    assert len(document["traceEvents"]) > 30
    assert not list(tmp_path.glob("*.partial"))


def test_a_run_that_did_not_come_from_a_journal_can_be_written_too(tmp_path):
    path = tmp_path / "run.json"

    write_chrome_trace(run_of(span(1, 0, 9, odd=object, text="\ud800")), path)

    assert json.loads(path.read_bytes())


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    path = tmp_path / "run.json"
    path.mkdir()

    with pytest.raises(OSError, match=r"run\.json"):
        write_chrome_trace(run_of(span(1, 0, 9)), path)

    assert list(tmp_path.iterdir()) == [path]
