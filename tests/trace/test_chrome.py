"""The timeline in Chrome's format, and the files that timelines are written to."""

import json

import pytest
from sample_runs import STARTED, span, write_journal

from harness.errors import JournalInvalid
from harness.files import whole_file
from harness.trace import Content, CounterSet, Flow
from harness.trace.calls import PHASES
from harness.trace.chrome import chrome_events, write_chrome_trace


@pytest.fixture
def events(tmp_path):
    """The events of one phase, of a run with these records."""

    def of(phase, *records, started=STARTED):
        journal = write_journal(tmp_path / "run.jsonl", *records, started=started)
        return [event for event in chrome_events(journal) if event["ph"] == phase]

    return of


@pytest.mark.parametrize(
    ("attributes", "title"),
    [({"label": "sections[2]"}, "sections[2]"), ({"label": ""}, "node"), ({"label": 7}, "7")],
)
def test_a_slice_has_its_label_its_name_and_its_time_in_microseconds(events, attributes, title):
    started = STARTED._replace(time_ns=2_000_000_000)
    one = span(1, 2_000_000_001, 2_000_123_456, name="node", **attributes)
    (event,) = events("X", one, started=started)

    assert (event["name"], event["cat"]) == (title, "node")
    assert (event["ts"], event["dur"]) == (0.001, 123.455)


def test_a_slice_carries_its_identity_its_attributes_and_how_it_ended(events):
    child = span(2, 1, 2, parent=1, model="small")
    shown = events(
        "X",
        span(1, 0, 9),
        child,
        child._replace(id=3, status="error", error="ValueError: boom"),
        span(4, 3, 4, parent=1, status="unfinished"),
        span(5, 3, 4, parent=1, track="model small"),
    )

    said = {"status": "error", "error": "ValueError: boom"}
    assert [event["args"] for event in shown[1:]] == [
        {"span": 2, "model": "small"},
        # What is not drawn in its parent names it.
        {"span": 3, "model": "small", "parent": 1, **said},
        {"span": 4, "status": "unfinished"},
        {"span": 5, "parent": 1},
    ]


def test_a_call_shows_its_texts_shortened_the_command_that_prints_all_and_milliseconds(events):
    prompt = "Write for engineers. " * 40 + "About salt."
    call = span(3, 1, 9, name="chat", ttft_ns=1_234_567, prompt_sha256="p", reply_sha256="r")
    shown = events(
        "X",
        call._replace(attributes={**call.attributes, "rubric_sha256": "of no text"}),
        Content("p", prompt),
        Content("r", "Salt is salt."),
        started=STARTED._replace(run_id="20260102T030405Z-0123456789ab"),
    )

    said = shown[0]["args"]
    assert said == {
        "span": 3,
        "ttft_ns": 1_234_567,
        "ttft_ms": 1.2,
        "rubric_sha256": "of no text",
        "prompt": said["prompt"],
        "reply": "Salt is salt.",
        "whole": "harness trace show 3 0123456789ab",
    }
    first, _, last = said["prompt"].partition(" […] ")
    assert prompt.startswith(first)
    assert prompt.endswith(last)
    assert len(said["prompt"]) == 110


def test_each_track_is_a_process_and_each_lane_of_it_a_thread(events):
    records = [
        span(1, 0, 9),
        span(2, 1, 5, parent=1, track="node write"),
        span(3, 2, 6, parent=1, track="node write"),
        span(4, 3, 4, parent=3),
    ]
    named = [
        (event["name"], event["pid"], event["tid"], event["args"].get("name"))
        for event in events("M", *records)
        if event["name"].endswith("_name")
    ]

    assert named == [
        ("process_name", 1, 0, "run essay"),
        ("thread_name", 1, 1, "run essay"),
        ("process_name", 2, 0, "node write"),
        ("thread_name", 2, 2, "node write"),
        ("thread_name", 2, 3, "node write (2)"),
    ]
    drawn = [(event["pid"], event["tid"]) for event in events("X", *records)]
    assert drawn == [(1, 1), (2, 2), (2, 3), (2, 3)]


def test_models_stand_above_nodes_and_the_nodes_of_rows_below_all(events):
    tracks = ["node rows", "node rows[0]/words/draft", "machine", "model small", "server small"]
    records = [span(n, n, n + 1, parent=1, track=track) for n, track in enumerate(tracks, 2)]
    described = events("M", span(1, 0, 9), *records)
    names = {e["pid"]: e["args"]["name"] for e in described if e["name"] == "process_name"}
    ranks = {
        names[e["pid"]]: e["args"]["sort_index"]
        for e in described
        if e["name"] == "process_sort_index"
    }
    in_order = ["run essay", "model small", "server small", "node rows", "machine"]
    assert sorted(ranks, key=ranks.__getitem__) == [*in_order, "node rows[0]/words/draft"]


def test_a_counter_is_drawn_under_its_unit_where_it_was_set(events):
    drawn = events(
        "C",
        span(1, 0, 9, track="model qwen"),
        span(2, 1, 8, track="model qwen"),
        CounterSet("composite", "points", 3000, 7.5),
        CounterSet("queue", "calls", 4000, 2, 2),
        CounterSet("memory", "bytes", 6000, 4_000_000, None, "server"),
    )

    assert [(event["name"], event["pid"], event["ts"], event["args"]) for event in drawn] == [
        ("composite", 1, 3.0, {"points": 7.5}),
        ("queue (2)", 2, 4.0, {"calls": 2}),
        ("memory", 3, 6.0, {"MB": 4}),
    ]


def test_an_arrow_leads_from_one_slice_to_another_and_a_call_from_the_moment_it_was_made(events):
    records = [
        Flow("draft", 1, 2),
        span(1, 1000, 5000),
        span(2, 6000, 9000),
        Flow("call", 2, 3),
        Flow("back", 3, 2),
        span(3, 7000, 9500, name="chat", track="model small"),
    ]

    def ends(phase):
        return [(e.get("id"), e["name"], e["tid"], e["ts"]) for e in events(phase, *records)]

    assert ends("s") == [(1, "draft", 1, 1.0), (5, "call", 1, 7.0), (3, "back", 2, 7.0)]
    assert ends("f") == [(1, "draft", 1, 6.0), (5, "call", 2, 7.0)]
    assert ends("i") == [(None, "call", 1, 7.0)]
    assert {event["bp"] for event in events("f", *records)} == {"e"}


def test_phases_have_titles_that_are_theirs_however_they_ended(events):
    phases = [
        span(number, number, number + 1, name=name, status="cancelled")
        for number, name in enumerate(PHASES, start=1)
    ]
    shown = events("X", *phases, span(9, 9, 10, name="load", label="load small"))

    titles = ["overhead", "queue", "loading", "read (prefill)", "decode", "load small"]
    assert [event["name"] for event in shown] == titles


@pytest.mark.parametrize("text", ["C:\\", '\\"', 'a "b" \\ c'])
def test_the_file_is_json_whatever_backslashes_stand_in_it(tmp_path, text):
    # Perfetto takes no quote after a backslash for the end of a text.
    one = span(1, 0, 9, name=text, label=text, track=text, **{text: [text]})
    started = STARTED._replace(name=text)
    journal = write_journal(tmp_path / "run.jsonl", one, started=started)

    write_chrome_trace(journal, tmp_path / "run.json")

    written = (tmp_path / "run.json").read_bytes()
    document = json.loads(written)
    (event,) = [event for event in document["traceEvents"] if event["ph"] == "X"]
    assert (event["name"], event["cat"], event["args"][text]) == (text, text, [text])
    said = {"run_id": STARTED.run_id, "pipeline": text, "started_wall_ns": "0"}
    assert document["otherData"] == said
    assert b'\\\\"' not in written


# --- files -----------------------------------------------------------------------------------


def test_a_timeline_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    journal = write_journal(tmp_path / "run.jsonl", *(span(n, n, n + 1) for n in range(1, 2000)))
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"):
        write_chrome_trace(journal, tmp_path / "taken")
    with pytest.raises(OSError, match="run"):
        write_chrome_trace(journal, journal.path / "run.json")

    journal.path.write_bytes(journal.path.read_bytes().replace(b'"id":1999', b'"id"#1999'))
    with pytest.raises(JournalInvalid):
        write_chrome_trace(journal, tmp_path / "run.json")

    assert sorted(tmp_path.iterdir()) == [journal.path, tmp_path / "taken"]


def test_a_file_takes_its_name_when_it_is_whole_and_two_do_not_mix(tmp_path):
    path = tmp_path / "run.json"
    path.write_bytes(b"the last one")
    with pytest.raises(ValueError, match="half way"), whole_file(path) as file:  # noqa: PT012
        file.write(b"half")
        raise ValueError("half way")
    assert path.read_bytes() == b"the last one"

    with whole_file(path) as first, whole_file(path) as second:
        first.write(b"first" * 1000)
        assert path.read_bytes() == b"the last one"
        second.write(b"second")

    assert path.read_bytes() == b"first" * 1000
    assert list(tmp_path.iterdir()) == [path]
