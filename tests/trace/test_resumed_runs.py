"""Runs of several parts: killed or stopped, and gone on with."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfetto import query_traces
from sample_runs import journal_lines, steady

from harness.errors import InvalidInput, JournalInvalid
from harness.trace import (
    TIMELINES,
    CounterSet,
    Flow,
    Instant,
    JoinedTrace,
    Journal,
    ManualClock,
    NodeOutput,
    RunEnded,
    RunStarted,
    RunTrace,
    SpanEnded,
    SpanRecord,
    SpanStarted,
    TraceOptions,
    call_group,
    calls_of,
    load_run,
    report_of,
)
from harness.trace.check import check_journal
from harness.trace.diagnosis import diagnose
from harness.trace.journal_line import decode, encode
from harness.trace.otlp.spans import otlp_spans

HERE = Path(__file__).parent
SECOND_NS = 1_000_000_000
HOUR_NS = 3600 * SECOND_NS
NEW_YEAR_NS = 1_767_225_600 * SECOND_NS
ONLY_A_JOURNAL = TraceOptions(timelines=())


def write(path, *records):
    path.write_bytes(b"".join(map(encode, records)))


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
    assert [spans[span.parent].start_ns for span in spans.values() if span.parent] == [
        510, 510, 701
    ]  # fmt: skip
    assert [(spans[f.source].start_ns, spans[f.target].start_ns) for f in journal.flows] == [
        (510, 520), (701, 711)
    ]  # fmt: skip
    outputs = [item for item in journal.items() if isinstance(item, NodeOutput)]
    assert [(one.node, one.value) for one in outputs] == [("a", 1), ("b", 2)]
    instants = [item for item in journal.items() if isinstance(item, Instant)]
    assert [(one.name, one.time_ns) for one in instants] == [("first token", 700), ("resumed", 700)]
    (counter,) = (item for item in journal.items() if isinstance(item, CounterSet))
    assert (counter.time_ns, spans[counter.span].start_ns) == (721, 711)


def test_the_pause_is_not_the_runs_time(resumed):
    journal = Journal(resumed)

    assert journal.duration_ns == (700 - 500) + (79 - 9)
    assert report_of(journal).duration_ns == 270


def test_a_further_part_that_was_killed_leaves_the_run_without_an_end(resumed):
    third = SECOND._replace(time_ns=3000, joined_ns=770, part=2)
    write(resumed.with_suffix(".2.jsonl"), third, SpanStarted(1, None, "run", 3010))

    journal = Journal(resumed)

    assert (journal.parts, journal.ended, journal.last_ns) == (3, None, 780)
    assert [span.status for span in journal.spans() if span.name == "run"] == [
        "unfinished", "ok", "unfinished"
    ]  # fmt: skip


def test_parts_are_read_in_the_order_of_their_numbers(path):
    write(path, FIRST)
    for part in range(1, 12):
        started = SECOND._replace(joined_ns=700 + part, part=part)
        ended = RunEnded(10, "waiting" if part == 11 else "ok")
        write(path.with_suffix(f".{part}.jsonl"), started, NodeOutput(str(part), None, 1), ended)

    journal = Journal(path)

    assert (journal.parts, journal.ended.status) == (12, "waiting")
    assert [one.node for one in journal.items()] == [str(part) for part in range(1, 12)]


@pytest.mark.parametrize("length", [0, 1, 60])
def test_a_part_killed_before_its_first_line_was_whole_is_none(resumed, length):
    beside = resumed.with_suffix(".2.jsonl")
    beside.write_bytes(encode(SECOND._replace(part=2))[:length])

    assert (Journal(resumed).parts, Journal(resumed).ended) == (2, RunEnded(79, "ok"))
    assert check_journal(resumed).is_whole


@pytest.mark.parametrize("cut", [1, 20])
def test_a_last_line_that_a_kill_cut_off_is_left_out_of_any_part(resumed, cut):
    third = SECOND._replace(joined_ns=770, part=2)
    write(resumed.with_suffix(".2.jsonl"), third, RunEnded(11, "ok"))
    for torn in (resumed, resumed.with_suffix(".1.jsonl")):
        with torn.open("ab") as file:
            file.write(encode(NodeOutput("torn", None, 1))[:cut])

    journal = Journal(resumed)

    assert (journal.parts, journal.ended) == (3, RunEnded(11, "ok"))
    assert [one.node for one in journal.items() if isinstance(one, NodeOutput)] == ["a", "b"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"nonsense\n", "run.1.jsonl:1: not a journal", id="nonsense"),
        pytest.param(encode(SECOND._replace(schema=2)), "newer version", id="newer"),
        pytest.param(encode(FIRST), "not part 1 of the run", id="a copy"),
        pytest.param(encode(SECOND._replace(part=2)), "not part 1 of the run", id="another part"),
        pytest.param(encode(SECOND) + b"nonsense\n" + encode(Flow("x", 1, 1)), "run.1.jsonl:2: not",
                     id="damaged"),
    ],
)  # fmt: skip
def test_a_damaged_part_is_an_error_as_in_the_journal(path, content, message):
    write(path, *KILLED)
    path.with_suffix(".1.jsonl").write_bytes(content)

    with pytest.raises(JournalInvalid, match=message):
        list(Journal(path).items())
    found = check_journal(path)
    assert (found.is_readable, found.is_whole, len(found.parts)) == (False, False, 2)


def test_a_part_of_another_run_is_not_of_this_one(path):
    write(path, *KILLED)
    write(path.with_suffix(".1.jsonl"), SECOND._replace(run_id="another"), NodeOutput("b", None, 2))

    assert (Journal(path).parts, len(check_journal(path).files)) == (1, 1)


def test_a_part_reads_alone_on_its_own_clock(resumed):
    journal = Journal(resumed.with_suffix(".1.jsonl"))

    assert [span.start_ns for span in journal.spans()] == [10, 20]
    assert (journal.parts, journal.duration_ns) == (1, 70)


def test_a_process_that_joined_a_part_hangs_in_its_spans_on_its_clock(resumed):
    # Its clock showed 3 when that of part 1 showed 40: it is another machine's.
    joined = SECOND._replace(wall_ns=SECOND.wall_ns + 31, time_ns=3, parent=2, joined_ns=35)
    write(resumed.with_suffix(".7-a.jsonl"), joined, SpanRecord(1, None, "work", 5, 15),
          RunEnded(15, "ok"))  # fmt: skip
    of_first = FIRST._replace(parent=3, joined_ns=620, time_ns=0, wall_ns=NEW_YEAR_NS + 130)
    write(resumed.with_suffix(".8-b.jsonl"), of_first, SpanStarted(1, None, "orphan", 5))

    journal = Journal(resumed)

    spans = {span.id: span for span in journal.spans()}
    assert len(spans) == 7
    work, orphan = (
        next(s for s in spans.values() if s.name == name) for name in ("work", "orphan")
    )
    assert (work.start_ns, work.end_ns, work.status) == (42 + 691, 52 + 691, "ok")
    assert (spans[work.parent].name, spans[work.parent].start_ns) == ("node", 711)
    assert (orphan.start_ns, orphan.status) == (635, "unfinished")
    assert (spans[orphan.parent].name, spans[orphan.parent].start_ns) == ("node", 610)


def test_a_process_that_joined_a_part_that_is_gone_is_left_out(resumed):
    joined = SECOND._replace(parent=2, joined_ns=35, part=5)
    write(resumed.with_suffix(".7-a.jsonl"), joined, SpanRecord(1, None, "work", 5, 15))

    assert "work" not in {span.name for span in Journal(resumed).spans()}


def test_the_check_names_the_parts_and_what_a_kill_left_open_does_not_spoil_the_run(resumed):
    found = check_journal(resumed)

    assert (found.is_whole, found.is_readable, found.open_spans) == (True, True, ())
    assert [(file.part, file.is_joined, file.is_whole, file.ended) for file in found.files] == [
        (0, False, False, None),
        (1, False, True, "ok"),
    ]
    first, _ = found.files
    assert [(one.name, one.start_ns, one.open_ns) for one in first.open_spans] == [
        ("run", 10, 190), ("node", 110, 90)
    ]  # fmt: skip


def test_of_the_last_part_the_check_says_what_was_open_from_the_runs_start(resumed):
    third = SECOND._replace(time_ns=3000, joined_ns=770, part=2)
    write(resumed.with_suffix(".2.jsonl"), third, SpanStarted(1, None, "run", 3010),
          Instant(1, "x", 3050))  # fmt: skip

    found = check_journal(resumed)

    assert not found.is_whole
    assert [(one.name, one.start_ns, one.open_ns) for one in found.open_spans] == [("run", 280, 40)]


def test_a_run_that_ended_well_at_last_is_not_called_killed(resumed):
    report, diagnosis = report_of(Journal(resumed)), diagnose(Journal(resumed))

    assert (report.status, report.parts, report.unfinished) == ("ok", 2, ())
    assert (diagnosis.status, diagnosis.findings) == ("ok", ())


def test_of_calls_cut_off_by_a_kill_only_those_of_the_last_count_as_under_way(path):
    call = SpanStarted(1, None, "chat", 600, {"model": "small"})
    write(path, FIRST, call, Instant(1, "x", 700))
    write(path.with_suffix(".1.jsonl"), SECOND, call._replace(time_ns=20), Instant(1, "x", 30))

    (finding,) = diagnose(Journal(path)).findings

    assert (finding.rule, finding.evidence.figures["open_calls"]) == ("failed-run", 1)
    assert [(one.start_ns, one.open_ns) for one in report_of(Journal(path)).unfinished] == [
        (211, 10)
    ]


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

    assert report_of(Journal(path)).status == status
    diagnosis = diagnose(Journal(path))
    assert (diagnosis.status, diagnosis.findings) == (status, ())
    assert check_journal(path).is_whole


# --- as they are recorded --------------------------------------------------------------------


CLOCKS = st.tuples(st.integers(0, 2**60), st.integers(-(2**60), 2**60))
"""What a process's clock shows at first, and by how much the wall's is ahead."""


def record_part(directory, clock, *, resume=None, wall_ns=NEW_YEAR_NS, calls=2, status=None):
    """A part with so many calls of 10 ms each; returns its trace."""
    options = TraceOptions(durability="exit")
    with RunTrace(
        directory, name="essay", clock=clock, wall_ns=lambda: wall_ns, resume=resume,
        options=options,
    ) as trace:  # fmt: skip
        with trace.span("run"):
            for number in range(calls):
                prompt = trace.content("the same prompt")
                with (
                    trace.span("node", node=f"n{number}", label=f"n{number}"),
                    trace.span(
                        "chat", model="small", input_tokens=100, output_tokens=7,
                        prompt_sha256=prompt,
                    ),
                ):  # fmt: skip
                    clock.advance(ms=10)
                trace.counter("done", number, unit="calls", track="model small")
        trace.instant(
            "endpoint", model="small", usd_per_million_input_tokens=1.0,
            usd_per_million_output_tokens=10.0,
        )  # fmt: skip
        if status is not None:
            trace.end_as(status)
    return trace


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_the_parts_of_a_run_add_up(tmp_path, parts):
    """However the clocks of the processes differ."""
    single = record_part(tmp_path / "alone", ManualClock(start_ns=77))
    journal = None
    for part in range(parts):
        clock = ManualClock(start_ns=(part * 7919 * SECOND_NS) % (9 * HOUR_NS))
        trace = record_part(
            tmp_path, clock, resume=journal, wall_ns=NEW_YEAR_NS + part * HOUR_NS,
            status="waiting" if part < parts - 1 else None,
        )  # fmt: skip
        assert (trace.part, trace.journal_path.stem) == (part, trace.run_id)
        journal = trace.journal_path

    run, alone = load_run(journal), load_run(single.journal_path)
    assert sorted(path.name for path in tmp_path.glob("*.jsonl")) == sorted(
        [journal.name, *(f"{journal.stem}.{part}.jsonl" for part in range(1, parts))]
    )
    assert len({span.id for span in run.spans}) == len(run.spans) == parts * len(alone.spans)
    assert run.duration_ns == parts * alone.duration_ns
    assert run.ended == RunEnded(run.ended.time_ns, "ok")
    starts_ns = [span.start_ns for span in run.spans]
    assert starts_ns == sorted(starts_ns)
    assert set(run.contents.values()) == {"the same prompt"}
    report, one = report_of(Journal(journal)), report_of(Journal(single.journal_path))
    assert one.cost.usd is not None
    assert report.cost.usd == pytest.approx(parts * one.cost.usd)
    assert report.calls.calls == parts * one.calls.calls
    assert report.calls.input_tokens == parts * one.calls.input_tokens
    assert report.calls.total_ns == parts * one.calls.total_ns
    assert report.occupancy.idle_ns == parts * one.occupancy.idle_ns == 0
    assert [
        (instant.attributes["part"], instant.attributes["away_s"], instant.time_ns)
        for instant in run.instants
        if instant.name == "resumed"
    ] == [
        (part, pytest.approx(3600 - 0.02), run.started.time_ns + part * alone.duration_ns)
        for part in range(1, parts)
    ]
    assert check_journal(journal).is_whole
    assert len(list(otlp_spans(Journal(journal)))) == len(run.spans)


@steady
@given(
    st.lists(st.tuples(st.integers(0, 2**60), st.integers(-(2**60), 2**60)), min_size=2, max_size=5)
)
def test_clocks_that_jump_move_nothing(tmp_path_factory, clocks):
    directory, journal = tmp_path_factory.mktemp("jumps"), None
    for start_ns, ahead_ns in clocks:
        clock = ManualClock(start_ns=start_ns)
        options = TraceOptions(durability="exit", timelines=())
        with RunTrace(
            directory, name="essay", clock=clock, wall_ns=lambda: NEW_YEAR_NS + ahead_ns,  # noqa: B023
            options=options, resume=journal,
        ) as trace, trace.span("run"):  # fmt: skip
            clock.advance(ms=3)
        journal = trace.journal_path

    spans = list(Journal(journal).spans())
    origin_ns = clocks[0][0]
    assert [(span.start_ns - origin_ns, span.end_ns - origin_ns) for span in spans] == [
        (part * 3_000_000, (part + 1) * 3_000_000) for part in range(len(clocks))
    ]
    run = load_run(journal)
    assert all(one.attributes["away_s"] >= 0 for one in run.instants if one.name == "resumed")


def test_a_run_keeps_its_id_and_its_place(tmp_path):
    first = record_part(tmp_path / "traces", ManualClock())
    second = record_part(tmp_path / "elsewhere", ManualClock(), resume=first.journal_path)

    assert (second.run_id, second.journal_path) == (first.run_id, first.journal_path)
    assert second.timeline_paths == first.timeline_paths
    assert not (tmp_path / "elsewhere").exists()
    begun = journal_lines(first.journal_path.with_suffix(".1.jsonl"))[0]
    assert (begun.run_id, begun.part) == (first.run_id, 1)


def test_the_number_of_a_part_that_left_no_line_is_not_used_again(tmp_path):
    first = record_part(tmp_path, ManualClock())
    first.journal_path.with_suffix(".1.jsonl").write_bytes(b"")

    second = record_part(tmp_path, ManualClock(), resume=first.journal_path)

    assert second.part == 2
    assert Journal(first.journal_path).parts == 2
    assert check_journal(first.journal_path).is_whole


def test_a_process_joins_the_part_that_invites_it(tmp_path):
    first = record_part(tmp_path, ManualClock())
    with (
        RunTrace(tmp_path, name="essay", resume=first.journal_path) as trace,
        trace.span("run"),
        trace.span("node", label="second") as node,
    ):
        invitation = trace.invitation()
        with JoinedTrace(invitation) as joined, joined.span("work"):
            pass

    assert json.loads(invitation)["part"] == 1
    spans = {span.id: span for span in Journal(first.journal_path).spans()}
    (work,) = (span for span in spans.values() if span.name == "work")
    assert spans[work.parent].attributes == {"label": "second"} == node.attributes
    assert spans[work.parent].start_ns <= work.start_ns <= work.end_ns <= spans[work.parent].end_ns
    found = check_journal(first.journal_path)
    assert [(file.part, file.is_joined) for file in found.files] == [
        (0, False), (1, False), (1, True)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("resume", "error", "message"),
    [
        pytest.param("away.jsonl", FileNotFoundError, "away.jsonl", id="no such file"),
        pytest.param("notes.jsonl", JournalInvalid, "notes.jsonl:1: not a", id="no journal"),
        pytest.param("run.1.jsonl", InvalidInput, "only a part of a run; resume the run: run.jsonl",
                     id="a part"),
    ],
)  # fmt: skip
def test_what_is_no_run_cannot_be_resumed_and_leaves_nothing(tmp_path, resume, error, message):
    (tmp_path / "notes.jsonl").write_text("{}\n")
    write(tmp_path / "run.jsonl", *KILLED)
    write(tmp_path / "run.1.jsonl", *RESUMED)
    before = sorted(tmp_path.iterdir())

    for _ in range(2):  # what was refused must not stay locked
        with pytest.raises(error, match=message):
            RunTrace(tmp_path, name="essay", resume=tmp_path / resume)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("left_by", "said", "ended"),
    [
        pytest.param(None, ("waiting", None), ("waiting", None), id="waits"),
        pytest.param(None, ("stopped", "3 calls"), ("stopped", "3 calls"), id="stopped"),
        pytest.param(None, ("error", "NodeFailed: x"), ("error", "NodeFailed: x"), id="failed"),
        pytest.param(ValueError("x"), ("stopped", None), ("stopped", None), id="and an exception"),
        pytest.param(ValueError("x"), None, ("error", "ValueError: x"), id="nothing said"),
    ],
)
def test_what_a_run_ended_as_can_be_said(tmp_path, left_by, said, ended):
    try:
        with RunTrace(tmp_path, name="essay", options=ONLY_A_JOURNAL) as trace:
            if said is not None:
                trace.end_as(*said)
            if left_by is not None:
                raise left_by
    except ValueError:
        pass

    last = journal_lines(trace.journal_path)[-1]
    assert (last.status, last.error) == ended


@pytest.mark.slow
def test_the_timelines_of_a_resumed_run_show_all_of_it(tmp_path):
    clock = ManualClock(start_ns=5 * HOUR_NS)
    first = record_part(tmp_path, clock)
    # As a kill would have left it.
    lines = first.journal_path.read_bytes().splitlines(keepends=True)
    begun = encode(SpanStarted(1, None, "run", 5 * HOUR_NS))
    first.journal_path.write_bytes(lines[0] + begun + b"".join(lines[2:-1]))
    second = record_part(tmp_path, ManualClock(start_ns=3), resume=first.journal_path)

    lost = "SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0"
    slices = (
        "SELECT name, count(*) AS count, min(ts) AS first, sum(dur) AS dur FROM slice "
        "GROUP BY name ORDER BY name"
    )
    paths = [second.timeline_paths[form] for form in TIMELINES]
    answers = query_traces([(path, sql) for path in paths for sql in (lost, slices)])
    for complaints, rows in zip(answers[::2], answers[1::2], strict=True):
        assert complaints == []
        found = {row["name"]: (row["count"], row["dur"]) for row in rows}
        assert found == {
            "chat": (4, 40_000_000),
            "n0": (2, 20_000_000),
            "n1": (2, 20_000_000),
            "run": (1, 20_000_000),
            "run: unfinished": (1, 20_000_000),
            "resumed": (1, 0),
            "endpoint": (2, 0),
        }
        firsts = {row["name"]: row["first"] for row in rows}
        assert firsts["run"] - firsts["run: unfinished"] == 20_000_000


# --- while it goes on ------------------------------------------------------------------------

GOING_ON = """
import asyncio, os, sys
from pathlib import Path
from harness.trace import RunTrace

with RunTrace(Path(sys.argv[1]), name="going on") as trace, trace.span("run"):
    asyncio.run(trace.persisted())
    if sys.argv[2] == "forks" and os.fork() == 0:
        os.write(1, b"in the child\\n")
        sys.stdin.read()
        os._exit(0)
    os.write(1, f"{trace.journal_path}\\n".encode())
    sys.stdin.read()
"""


def going_on(directory, how):
    return subprocess.Popen(
        [sys.executable, "-c", GOING_ON, directory, how],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_a_run_that_is_still_going_in_another_process_cannot_be_resumed(tmp_path):
    with going_on(tmp_path, "alone") as process:
        journal = Path(process.stdout.readline().strip())

        with pytest.raises(InvalidInput, match="the run is still going, in another process") as no:
            RunTrace(tmp_path, name="essay", resume=journal)
        assert no.value.path == journal
        assert [path.name for path in tmp_path.iterdir()] == [journal.name]
        # It may be read all the same.
        assert Journal(journal).ended is None

        process.kill()
        process.wait()
        with (
            RunTrace(tmp_path, name="essay", resume=journal) as trace,
            pytest.raises(InvalidInput, match="still going"),
        ):
            RunTrace(tmp_path, name="essay", resume=journal)
    assert Journal(trace.journal_path).parts == 2
    with RunTrace(tmp_path, name="essay", resume=journal):
        pass


def test_a_child_that_outlives_a_killed_run_does_not_keep_it(tmp_path):
    with going_on(tmp_path, "forks") as process:
        said = [process.stdout.readline().strip() for _ in range(2)]
        (journal,) = (Path(line) for line in said if line != "in the child")
        process.kill()
        process.wait()

        with RunTrace(tmp_path, name="essay", resume=journal) as trace:
            pass
        process.stdin.close()  # at which the child ends
    assert trace.part == 1


# --- killed again and again ------------------------------------------------------------------

RUNS = 25


@pytest.fixture(scope="module")
def killed_runs(tmp_path_factory):
    """Folders of runs that were killed up to four times, and then came to their ends."""
    directory = tmp_path_factory.mktemp("resumed")
    subprocess.run(
        [sys.executable, HERE / "resume_runs.py", directory, str(RUNS)], check=True, timeout=300
    )
    return [directory / str(number) for number in range(RUNS)]


def journal_of(folder):
    (path,) = (path for path in folder.glob("traces/*.jsonl") if "." not in path.stem)
    return path


@pytest.mark.slow
def test_runs_are_killed_several_times(killed_runs):
    parts = Counter(Journal(journal_of(folder)).parts for folder in killed_runs)

    assert sum(count for number, count in parts.items() if number > 1) > RUNS / 2
    assert max(parts) >= 4


@pytest.mark.slow
def test_a_run_killed_again_and_again_gives_what_an_uninterrupted_one_does(killed_runs):
    alone = journal_of(killed_runs[0].with_name("uninterrupted"))
    expected = sorted(one.node for one in load_run(alone).outputs)

    for folder in killed_runs:
        run = load_run(journal_of(folder))
        assert sorted(one.node for one in run.outputs) == expected, folder
        assert run.ended.status == "ok"
        assert check_journal(journal_of(folder)).is_whole


@pytest.mark.slow
def test_nothing_that_was_done_is_done_again_and_every_call_counts(killed_runs):
    for folder in killed_runs:
        begun = (folder / "calls").read_text().split()
        told = (folder / "printed").read_text().split()
        assert len(told) == len(set(told)), folder
        spans = list(Journal(journal_of(folder)).spans())
        assert len({span.id for span in spans}) == len(spans)
        calls = calls_of(spans)
        finished = Counter(call.node for call in calls if call.status == "ok")
        # A call whose node was not over when it was killed is made again; its record may be lost.
        assert set(finished) == set(begun)
        assert len(finished) <= len(calls) <= len(begun)
        files = [path for path in folder.glob("traces/*.jsonl") if path.stat().st_size]
        apart = [call for path in files for call in calls_of(naive_spans(path))]
        assert call_group(calls).output_tokens == call_group(apart).output_tokens
        assert len(calls) == len(apart)


def naive_spans(path):
    """The spans of one file, from its whole lines."""
    records = [decode(line) for line in path.read_bytes().split(b"\n")[:-1]]
    ended = {one.id for one in records if isinstance(one, SpanEnded)}
    for one in records:
        if isinstance(one, SpanRecord):
            yield one
        elif isinstance(one, SpanStarted):
            status = "ok" if one.id in ended else "unfinished"
            yield SpanRecord(
                one.id, one.parent, one.name, one.time_ns, one.time_ns, status, None, one.attributes
            )
