"""Runs of several parts: stopped, and gone on with."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from manual_clock import ManualClock
from sample_runs import journal_lines, load_run, sealed

from harness.analysis import diagnose, report_of
from harness.analysis.otlp_spans import otlp_spans
from harness.errors import InvalidInput, JournalInvalid
from harness.trace import (
    CounterSet,
    Flow,
    Instant,
    Journal,
    NodeOutput,
    RunEnded,
    RunStarted,
    RunTrace,
    SpanEnded,
    SpanRecord,
    SpanStarted,
    TraceOptions,
)

SECOND_NS = 1_000_000_000
HOUR_NS = 3600 * SECOND_NS
NEW_YEAR_NS = 1_767_225_600 * SECOND_NS


def write(path, *records):
    path.write_bytes(sealed(*records))


# --- by hand ---------------------------------------------------------------------------------

FIRST = RunStarted(1, "r", "essay", NEW_YEAR_NS, 500, 1)
KILLED = [
    FIRST,
    SpanStarted(1, None, "run", 510),
    SpanRecord(2, 1, "node", 520, 600),
    Flow("output", 1, 2),
    NodeOutput("a", None, 1),
    SpanStarted(3, 1, "node", 610),
    Instant(3, "first token", 700),
]
SECOND = FIRST._replace(
    wall_ns=NEW_YEAR_NS + HOUR_NS, time_ns=9, process_id=2, joined_ns=700, part=1
)
RESUMED = [
    SECOND,
    Instant(None, "resumed", 9, {"part": 1, "away_s": 3600.0}),
    SpanStarted(1, None, "run", 10),
    SpanRecord(2, 1, "node", 20, 60),
    CounterSet("queue", "calls", 30, 4, 2),
    Flow("output", 1, 2),
    NodeOutput("b", None, 2),
    SpanEnded(1, 70),
    RunEnded(79, "ok"),
]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.jsonl"


@pytest.fixture
def resumed(path):
    """A run that was killed at 700 on its clock, and an hour later took 70 ns more."""
    write(path, *KILLED)
    write(path.with_suffix(".1.jsonl"), *RESUMED)
    return path


def test_a_resumed_run_reads_as_one(resumed):
    journal = Journal(resumed)

    assert (journal.started, journal.ended, journal.parts) == (FIRST, RunEnded(79, "ok"), 2)
    assert [(span.name, span.start_ns, span.end_ns, span.status) for span in journal.spans()] == [
        ("run", 510, 700, "unfinished"),
        ("node", 520, 600, "ok"),
        ("node", 610, 700, "unfinished"),
        ("run", 701, 761, "ok"),
        ("node", 711, 751, "ok"),
    ]
    spans = {span.id: span for span in journal.spans()}
    assert len(spans) == 5
    parents = [spans[span.parent].start_ns for span in spans.values() if span.parent]
    assert parents == [510, 510, 701]
    flows = [(spans[flow.source].start_ns, spans[flow.target].start_ns) for flow in journal.flows]
    assert flows == [(510, 520), (701, 711)]
    outputs = [item for item in journal.items() if isinstance(item, NodeOutput)]
    assert [(one.node, one.value) for one in outputs] == [("a", 1), ("b", 2)]
    instants = [item for item in journal.items() if isinstance(item, Instant)]
    assert [(one.name, one.time_ns) for one in instants] == [("first token", 700), ("resumed", 700)]
    (counter,) = (item for item in journal.items() if isinstance(item, CounterSet))
    assert (counter.time_ns, spans[counter.span].start_ns) == (721, 711)

    # The pause is not the run's time, and what a kill left open does not spoil it.
    report, diagnosis = report_of(journal), diagnose(journal)
    assert journal.duration_ns == report.duration_ns == (700 - 500) + (79 - 9)
    assert (report.status, report.parts, report.unfinished) == ("ok", 2, ())
    assert (diagnosis.status, diagnosis.findings) == ("ok", ())
    # A part reads alone on its own clock.
    part = Journal(resumed.with_suffix(".1.jsonl"))
    assert ([span.start_ns for span in part.spans()], part.duration_ns) == ([10, 20], 70)


def test_the_critical_path_leads_through_all_parts(path):
    """A row of a batch needs no other row, and a node made again what an earlier part has."""
    row = SpanRecord(2, 1, "node", 520, 600, attributes={"node": "a", "label": "a"})
    cut_off = SpanStarted(3, 1, "node", 610, {"node": "b", "label": "b"})
    write(path, FIRST, SpanStarted(1, None, "run", 510), row, cut_off, Instant(3, "token", 700))
    known = {"node": "b", "label": "b", "needs": ["a"]}
    again = SpanRecord(2, 1, "node", 20, 60, attributes=known)
    write(path.with_suffix(".1.jsonl"), SECOND, SpanStarted(1, None, "run", 10), again,
          RunEnded(79, "ok"))  # fmt: skip
    report = report_of(Journal(path))

    steps = [(step.node, step.wait_ns, step.duration_ns) for step in report.critical_path.steps]
    assert steps == [("b", 110, 90), ("b", 11, 40)]
    spent_ns = {share.kind: share.duration_ns for share in report.time}
    assert spent_ns == {"code": 130, "start": 121, "end": 19}
    assert sum(spent_ns.values()) == report.duration_ns


def test_a_further_part_that_was_killed_leaves_the_run_without_an_end(resumed):
    third = SECOND._replace(time_ns=3000, joined_ns=770, part=2)
    open_span = SpanStarted(1, None, "run", 3010)
    write(resumed.with_suffix(".2.jsonl"), third, open_span, Instant(1, "x", 3050))

    journal = Journal(resumed)

    assert (journal.parts, journal.ended, journal.last_ns) == (3, None, 820)
    runs = [span.status for span in journal.spans() if span.name == "run"]
    assert runs == ["unfinished", "ok", "unfinished"]


@pytest.mark.parametrize("length", [0, 1, 60])
def test_what_a_kill_cut_off_is_left_out_of_any_part(resumed, length):
    torn = sealed(SECOND._replace(part=2))[:length]
    for part in (resumed, resumed.with_suffix(".1.jsonl")):
        with part.open("ab") as file:
            file.write(torn)
    # Killed before its first line was whole, it is no part at all; nor is what another run left.
    resumed.with_suffix(".2.jsonl").write_bytes(torn)
    write(resumed.with_suffix(".3.jsonl"), SECOND._replace(run_id="another", part=3))

    journal = Journal(resumed)

    assert (journal.parts, journal.ended) == (2, RunEnded(79, "ok"))
    assert [one.node for one in journal.items() if isinstance(one, NodeOutput)] == ["a", "b"]


@pytest.mark.parametrize(
    ("content", "code", "line"),
    [
        pytest.param(b"nonsense\n", "journal.invalid", 1, id="nonsense"),
        pytest.param(sealed(SECOND._replace(schema=2)), "journal.newer-version", 1, id="newer"),
        pytest.param(sealed(SECOND._replace(part=2)), "journal.invalid", 1, id="another part"),
        pytest.param(
            sealed(SECOND) + b"nonsense\n" + sealed(Flow("x", 1, 1), first=3),
            "journal.invalid",
            2,
            id="damaged",
        ),
    ],
)
def test_a_damaged_part_is_an_error_as_in_the_journal(path, content, code, line):
    write(path, *KILLED)
    part = path.with_suffix(".1.jsonl")
    part.write_bytes(content)

    with pytest.raises(JournalInvalid) as caught:
        list(Journal(path).items())
    assert (caught.value.code, caught.value.path, caught.value.line) == (code, part, line)


def test_of_calls_cut_off_by_a_kill_only_those_of_the_last_count_as_under_way(path):
    call = SpanStarted(1, None, "chat", 600, {"model": "small"})
    write(path, FIRST, call, Instant(1, "x", 700))
    write(path.with_suffix(".1.jsonl"), SECOND, call._replace(time_ns=20), Instant(1, "x", 30))

    (finding,) = diagnose(Journal(path)).findings
    (unfinished,) = report_of(Journal(path)).unfinished

    assert (finding.rule, len(finding.spans)) == ("failed-run", 1)
    assert (unfinished.start_ns, unfinished.open_ns) == (211, 10)


def test_a_call_that_failed_before_the_run_was_resumed_did_not_fail_for_good(path):
    failed = SpanRecord(1, None, "chat", 600, 650, "error", "ServerError: x", {"model": "small"})
    done = SpanRecord(1, None, "chat", 20, 30, "ok", None, {"model": "small"})
    write(path, FIRST, failed, RunEnded(700, "error", "NodeFailed: x"))

    assert [one.rule for one in diagnose(Journal(path)).findings] == ["failed-calls"]
    write(path.with_suffix(".1.jsonl"), SECOND, done, RunEnded(40, "ok"))
    assert diagnose(Journal(path)).findings == ()


@pytest.mark.parametrize("status", ["waiting", "stopped"])
def test_a_run_that_waits_or_was_stopped_did_not_fail(path, status):
    write(path, FIRST, RunEnded(700, status, "LimitReached: 3 calls"))

    diagnosis = diagnose(Journal(path))

    assert report_of(Journal(path)).status == diagnosis.status == status
    assert diagnosis.findings == ()


# --- as they are recorded --------------------------------------------------------------------


def record_part(directory, clock, *, resume=None, wall_ns=NEW_YEAR_NS, status=None):
    """A part with two calls of 10 ms each; returns its trace."""
    options = TraceOptions(durability="exit", timelines=())
    trace = RunTrace(
        directory, name="essay", clock=clock, wall_ns=lambda: wall_ns, resume=resume,
        options=options,
    )  # fmt: skip
    with trace:
        with trace.span("run"):
            for number in range(2):
                prompt = trace.content("the same prompt")
                said = {"input_tokens": 100, "output_tokens": 7, "prompt_sha256": prompt}
                with (
                    trace.span("node", node=f"n{number}", label=f"n{number}"),
                    trace.span("chat", model="small", **said),
                ):
                    clock.advance(ms=10)
                trace.counter("done", number, unit="calls", track="model small")
        prices = {"usd_per_million_input_tokens": 1.0, "usd_per_million_output_tokens": 10.0}
        trace.instant("endpoint", model="small", **prices)
        if status is not None:
            trace.end_as(status)
    return trace


def test_the_parts_of_a_run_add_up(tmp_path):
    """However the clocks of the processes differ."""
    parts = 3
    single = record_part(tmp_path / "alone", ManualClock(start_ns=77))
    journal = None
    for part in range(parts):
        clock = ManualClock(start_ns=(part * 7919 * SECOND_NS) % (9 * HOUR_NS))
        status = "waiting" if part < parts - 1 else None
        wall_ns = NEW_YEAR_NS + part * HOUR_NS
        # It keeps its id and its place.
        directory = tmp_path / "elsewhere" if part else tmp_path
        trace = record_part(directory, clock, resume=journal, wall_ns=wall_ns, status=status)
        assert (trace.part, trace.journal_path.parent) == (part, tmp_path)
        assert trace.journal_path == (journal or trace.journal_path)
        journal = trace.journal_path

    run, alone = load_run(journal), load_run(single.journal_path)
    assert sorted(path.name for path in tmp_path.glob("*.jsonl")) == sorted(
        [journal.name, *(f"{journal.stem}.{part}.jsonl" for part in range(1, parts))]
    )
    assert len({span.id for span in run.spans}) == len(run.spans) == parts * len(alone.spans)
    assert run.duration_ns == parts * alone.duration_ns
    assert run.ended == RunEnded(run.ended.time_ns, "ok")
    assert set(run.contents.values()) == {"the same prompt"}
    report, one = report_of(Journal(journal)), report_of(Journal(single.journal_path))
    assert report.cost.usd == pytest.approx(parts * one.cost.usd)
    assert report.calls.calls == parts * one.calls.calls
    assert report.calls.input_tokens == parts * one.calls.input_tokens
    assert report.occupancy.idle_ns == parts * one.occupancy.idle_ns == 0
    pauses = [one for one in run.instants if one.name == "resumed"]
    assert [(one.attributes["part"], one.attributes["away_s"]) for one in pauses] == [
        (part, pytest.approx(3600 - 0.02)) for part in range(1, parts)
    ]
    assert len(list(otlp_spans(Journal(journal)))) == len(run.spans)


@given(
    st.lists(st.tuples(st.integers(0, 2**60), st.integers(-(2**60), 2**60)), min_size=2, max_size=5)
)
def test_clocks_that_jump_move_nothing(tmp_path_factory, clocks):
    directory, journal = tmp_path_factory.mktemp("jumps"), None
    for start_ns, ahead_ns in clocks:
        clock, wall_ns = ManualClock(start_ns=start_ns), NEW_YEAR_NS + ahead_ns
        journal = record_part(directory, clock, resume=journal, wall_ns=wall_ns).journal_path

    run = load_run(journal)
    assert [
        (span.start_ns - clocks[0][0], span.end_ns - clocks[0][0])
        for span in run.spans
        if span.name == "run"
    ] == [(part * 20_000_000, (part + 1) * 20_000_000) for part in range(len(clocks))]
    assert all(one.attributes["away_s"] >= 0 for one in run.instants if one.name == "resumed")


def test_the_number_of_a_part_that_left_no_line_is_not_used_again(tmp_path):
    journal = record_part(tmp_path, ManualClock()).journal_path
    journal.with_suffix(".1.jsonl").write_bytes(b"")

    assert record_part(tmp_path, ManualClock(), resume=journal).part == 2
    assert Journal(journal).parts == 2


@pytest.mark.parametrize(
    ("resume", "code"),
    [
        pytest.param("away.jsonl", None, id="no such file"),
        pytest.param("notes.jsonl", "journal.invalid", id="no journal"),
        pytest.param("run.1.jsonl", "run.only-a-part", id="a part"),
    ],
)
def test_what_is_no_run_cannot_be_resumed_and_leaves_nothing(tmp_path, resume, code):
    (tmp_path / "notes.jsonl").write_text("{}\n")
    write(tmp_path / "run.jsonl", *KILLED)
    write(tmp_path / "run.1.jsonl", *RESUMED)
    before = sorted(tmp_path.iterdir())

    for _ in range(2):  # what was refused must not stay locked
        with pytest.raises((FileNotFoundError, InvalidInput, JournalInvalid)) as refused:
            RunTrace(tmp_path, name="essay", resume=tmp_path / resume)
        assert getattr(refused.value, "code", None) == code
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("left_by", "said", "ended"),
    [
        pytest.param(None, ("waiting", None), ("waiting", None), id="waits"),
        pytest.param(None, ("stopped", "3 calls"), ("stopped", "3 calls"), id="stopped"),
        pytest.param(ValueError("x"), ("stopped", None), ("stopped", None), id="and an exception"),
        pytest.param(ValueError("x"), None, ("error", "ValueError: x"), id="nothing said"),
    ],
)
def test_what_a_run_ended_as_can_be_said(tmp_path, left_by, said, ended):
    try:
        with RunTrace(tmp_path, name="essay", options=TraceOptions(timelines=())) as trace:
            if said is not None:
                trace.end_as(*said)
            if left_by is not None:
                raise left_by
    except ValueError:
        pass

    last = journal_lines(trace.journal_path)[-1]
    assert (last.status, last.error) == ended
