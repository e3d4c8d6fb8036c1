import pytest
from sample_runs import STARTED, run_of, span

from harness.errors import JournalInvalid
from harness.trace import (
    Content,
    CounterSet,
    Instant,
    NodeOutput,
    RunEnded,
    SpanEnded,
    SpanRecord,
    SpanStarted,
    assemble,
    load_run,
)
from harness.trace.records import encode


def test_a_run_is_put_together_from_its_records():
    run = assemble(
        [
            STARTED,
            SpanStarted(id=1, parent=None, name="run", time_ns=10),
            SpanStarted(id=2, parent=1, name="chat", time_ns=20, attributes={"a": 1, "b": 1}),
            Content(sha256="f00d", text="a prompt"),
            Instant(span=2, name="first token", time_ns=25),
            SpanEnded(id=2, time_ns=30, status="error", error="X: y", attributes={"b": 2, "c": 3}),
            CounterSet(name="composite", unit="points", time_ns=31, value=7.5),
            NodeOutput(node="plan", item=None, value=["a"]),
            SpanEnded(id=1, time_ns=40),
            RunEnded(time_ns=41, status="ok"),
        ]
    )

    assert run.started == STARTED
    assert run.ended == RunEnded(time_ns=41, status="ok")
    assert run.spans == (
        span(1, 10, 40, name="run"),
        SpanRecord(
            id=2,
            parent=1,
            name="chat",
            start_ns=20,
            end_ns=30,
            status="error",
            error="X: y",
            attributes={"a": 1, "b": 2, "c": 3},
        ),
    )
    assert [one.duration_ns for one in run.spans] == [30, 10]
    assert run.instants == (Instant(span=2, name="first token", time_ns=25),)
    assert run.counters == (CounterSet(name="composite", unit="points", time_ns=31, value=7.5),)
    assert run.outputs == (NodeOutput(node="plan", item=None, value=["a"]),)
    assert run.contents == {"f00d": "a prompt"}
    assert run.duration_ns == 41


def test_a_span_that_never_ended_reaches_to_the_last_moment_known():
    run = assemble(
        [
            STARTED,
            SpanStarted(id=1, parent=None, name="run", time_ns=10),
            SpanStarted(id=2, parent=1, name="chat", time_ns=20),
            SpanEnded(id=2, time_ns=50),
            SpanStarted(id=3, parent=1, name="chat", time_ns=60),
        ]
    )

    assert [(one.status, one.end_ns) for one in run.spans] == [
        ("unfinished", 60),
        ("ok", 50),
        ("unfinished", 60),
    ]


@pytest.mark.parametrize(
    ("spans", "instants", "counters", "duration_ns"),
    [
        pytest.param([], [], [], 0, id="nothing"),
        pytest.param([span(1, 0, 9), span(2, 1, 5)], [], [], 9, id="spans"),
        pytest.param(
            [span(1, 0, 9)], [Instant(span=None, name="x", time_ns=12)], [], 12, id="an instant"
        ),
        pytest.param(
            [], [], [CounterSet(name="x", unit="y", time_ns=7, value=0)], 7, id="a counter"
        ),
    ],
)
def test_a_killed_run_lasted_until_its_last_record(spans, instants, counters, duration_ns):
    assert run_of(*spans, instants=instants, counters=counters).duration_ns == duration_ns


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        pytest.param(b"", 1, "does not begin with a run", id="empty"),
        pytest.param(b"a text\n", 1, "unexpected character", id="a text"),
        pytest.param(
            encode(SpanEnded(id=1, time_ns=0)), 1, "does not begin with a run", id="beginning lost"
        ),
        pytest.param(
            encode(STARTED)
            + encode(SpanStarted(id=1, parent=None, name="a", time_ns=1))
            + encode(SpanEnded(id=2, time_ns=2)),
            3,
            "span 2 ends and has not begun",
            id="line lost",
        ),
    ],
)
def test_a_file_that_is_no_whole_journal_is_named(tmp_path, content, line, message):
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)

    with pytest.raises(JournalInvalid, match=message) as caught:
        load_run(path)

    assert (caught.value.path, caught.value.line) == (path, line)
