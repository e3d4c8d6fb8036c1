"""What is left of runs that were killed, cut off, forked, or spread over several processes."""

import os
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest
from perfetto import query_traces
from random_runs import write_random_run
from sample_runs import journal_lines

from harness.errors import JournalInvalid
from harness.trace import (
    TIMELINES,
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
    calls_of,
    group_calls,
    load_run,
)
from harness.trace.journal_line import decode

HERE = Path(__file__).parent

# --- killed ----------------------------------------------------------------------------------

RUNS = 103
"""All but three of them are killed."""


@pytest.fixture(scope="module")
def killed_runs(tmp_path_factory):
    """Folders of runs that were killed at random moments; a few were let live."""
    directory = tmp_path_factory.mktemp("killed")
    subprocess.run(
        [sys.executable, HERE / "kill_runs.py", directory, str(RUNS)], check=True, timeout=120
    )
    return [directory / str(number) for number in range(RUNS)]


def journal_of(folder):
    """The journal in a folder, if there is one of which a line is whole."""
    for path in sorted(folder.glob("traces/*.jsonl")):
        try:
            return Journal(path)
        except JournalInvalid:
            assert b"\n" not in path.read_bytes()
    return None


def printed(folder):
    return (folder / "printed").read_text().split() if (folder / "printed").exists() else []


@pytest.mark.slow
def test_runs_are_killed_in_the_middle(killed_runs):
    in_the_middle = [
        folder
        for folder in killed_runs
        if printed(folder) and (journal := journal_of(folder)) and journal.ended is None
    ]

    assert len(in_the_middle) > RUNS / 3
    assert len({len(printed(folder)) for folder in in_the_middle}) > 20  # and at many moments


@pytest.mark.slow
def test_nothing_that_somebody_was_told_is_done_is_lost_by_a_kill(killed_runs):
    for folder in killed_runs:
        journal = journal_of(folder)
        told = printed(folder)
        if journal is None:
            assert told == [], folder
            continue
        items = list(journal.items())
        outputs = {item.node: item.value for item in items if isinstance(item, NodeOutput)}
        assert {name: outputs.get(name) for name in told} == {
            name: {"text": name} for name in told
        }, folder
        nodes = {span.attributes.get("label"): span for span in items if type(span) is SpanRecord}
        assert all(nodes[name].status == "ok" for name in told), folder


@pytest.mark.slow
def test_a_killed_run_shows_what_it_was_doing(killed_runs):
    for folder in killed_runs:
        journal = journal_of(folder)
        if journal is None:
            continue
        spans = {span.id: span for span in journal.spans()}
        unfinished = [span for span in spans.values() if span.status == "unfinished"]
        assert {span.status for span in spans.values()} <= {"ok", "unfinished"}, folder
        if journal.ended is not None:
            assert unfinished == [], folder
            continue
        # What is open lies in what is open, and one worker has one node open at most.
        assert {span.end_ns for span in unfinished} <= {journal.last_ns}, folder
        assert all(
            spans[span.parent].status == "unfinished" for span in unfinished if span.parent
        ), folder
        tracks = [span.attributes["track"] for span in unfinished if span.name == "node"]
        assert len(set(tracks)) == len(tracks), folder
        if spans:
            assert spans[1].status == "unfinished", folder


@pytest.mark.slow
def test_a_killed_run_has_timelines_and_figures(killed_runs, tmp_path):
    for number, folder in enumerate(killed_runs):
        if (journal := journal_of(folder)) is None:
            continue
        for ending, write in TIMELINES.values():
            write(journal, tmp_path / f"{number}{ending}")
        spans = list(journal.spans())
        groups = group_calls(calls_of(spans), by=lambda call: call.model)
        assert sum(group.calls for group in groups) == sum(span.name == "chat" for span in spans)
        assert all(
            group.output_tokens
            == sum(span.attributes["output_tokens"] for span in spans
                   if span.name == "chat" and span.status == "ok")
            for group in groups
        )  # fmt: skip

    # Every tenth, as Perfetto sees it.
    paths = [path for path in sorted(tmp_path.iterdir()) if int(path.stem) % 10 == 0]
    lost = "SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0"
    slices = "SELECT count(*) AS count FROM slice WHERE category IS NOT NULL"
    answers = query_traces([(path, sql) for path in paths for sql in (lost, slices)])
    for path, complaints, [row] in zip(paths, answers[::2], answers[1::2], strict=True):
        journal = journal_of(killed_runs[int(path.stem)])
        assert complaints == []
        assert row["count"] == sum(1 for _ in journal.spans())


# --- cut off ---------------------------------------------------------------------------------

STRETCH = 4096


@pytest.fixture(scope="module")
def whole_journal(tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole")
    journals = (write_random_run(directory / f"{seed}.jsonl", seed) for seed in count())
    sizes = ((journal.path.read_bytes(), journal.flows) for journal in journals)
    return next(data for data, flows in sizes if 2 < len(data) / STRETCH < 4 and len(flows) > 20)


def naive_reading(data):
    """What stands in the whole lines, by kind."""
    records = [decode(line) for line in data[: data.rfind(b"\n") + 1].split(b"\n") if line]
    ends = {one.id: one.time_ns for one in records if type(one) is SpanEnded}
    spans = {}
    for one in records:
        if type(one) is SpanRecord:
            spans[one.id] = one.end_ns
        elif type(one) is SpanStarted:
            spans[one.id] = ends.get(one.id)
    others = [one for one in records if isinstance(one, Instant | CounterSet | NodeOutput)]
    flows = [one for one in records if type(one) is Flow]
    return spans, others, flows


@pytest.mark.slow
@pytest.mark.parametrize("end", ["first", "last"])
def test_a_journal_cut_at_any_byte_has_everything_before_the_cut(whole_journal, tmp_path, end):
    size, first_line = len(whole_journal), whole_journal.index(b"\n") + 1
    lengths = range(STRETCH) if end == "first" else range(size - STRETCH, size + 1)
    path = tmp_path / "run.jsonl"
    path.write_bytes(whole_journal)

    exported = None
    for length in reversed(lengths):
        os.truncate(path, length)
        if length < first_line:
            with pytest.raises(JournalInvalid):
                Journal(path)
            continue
        journal = Journal(path)
        items = list(journal.items())
        spans, others, flows = naive_reading(whole_journal[:length])
        read = {one.id: one for one in items if type(one) is SpanRecord}
        assert {number: one.end_ns if one.status != "unfinished" else None
                for number, one in read.items()} == spans  # fmt: skip
        assert [one for one in items if isinstance(one, Instant | CounterSet | NodeOutput)
                ] == others  # fmt: skip
        assert list(journal.flows) == flows
        if items != exported:  # as often as there is something new to see
            exported = items
            for ending, write in TIMELINES.values():
                write(journal, path.with_suffix(ending))


# --- durability ------------------------------------------------------------------------------


def test_in_step_with_the_disk_every_record_is_in_the_file_once_it_is_made(tmp_path):
    trace = RunTrace(tmp_path, name="essay", options=TraceOptions(durability="sync"))

    def last():
        return journal_lines(trace.journal_path)[-1]

    assert isinstance(last(), RunStarted)
    with trace:
        with trace.span("node", n=1) as node:
            assert (type(last()), last().id, last().attributes) == (SpanStarted, 1, {"n": 1})
            trace.instant("first token")
            assert last().name == "first token"
            trace.counter("queue", 3, unit="calls")
            assert last().value == 3
            trace.completed_span("decode", start_ns=1, end_ns=2)
            assert last() == SpanRecord(2, 1, "decode", 1, 2)
            trace.output("plan", ["a"])
            assert last() == NodeOutput("plan", None, ["a"])
            trace.flow("draft", source=node.id, target=2)
            assert last() == Flow("draft", 1, 2)
            node.set(m=2)
        assert (type(last()), last().attributes) == (SpanEnded, {"m": 2})
    assert isinstance(last(), RunEnded)


EXIT = """
import sys
from pathlib import Path
from harness.trace import RunTrace, TraceOptions

options = TraceOptions(durability="exit")
with RunTrace(Path(sys.argv[1]), name="essay", options=options) as trace:
    for number in range(10_000):
        with trace.span("node"):
            trace.output(str(number), number)
    {ending}
"""


@pytest.mark.parametrize(
    ("ending", "code", "status"),
    [
        pytest.param("pass", 0, "ok", id="normally"),
        pytest.param("raise ValueError", 1, "error", id="by an error"),
        pytest.param("sys.exit(3)", 3, "error", id="by leaving"),
        pytest.param("raise KeyboardInterrupt", -signal.SIGINT, "cancelled", id="by Ctrl-C"),
    ],
)
def test_a_journal_for_the_end_is_whole_however_the_process_ends(tmp_path, ending, code, status):
    done = subprocess.run(
        [sys.executable, "-c", EXIT.format(ending=ending), tmp_path],
        check=False,
        stderr=subprocess.DEVNULL,
    )

    assert done.returncode == code
    (path,) = tmp_path.glob("*.jsonl")
    run = load_run(path)
    assert [output.value for output in run.outputs] == list(range(10_000))
    assert {span.status for span in run.spans} == {"ok"}
    assert run.ended.status == status
    assert len(list(tmp_path.iterdir())) == 1 + len(TIMELINES)


# --- forked ----------------------------------------------------------------------------------

FORKS = """
import asyncio, os, signal, sys, threading
from pathlib import Path
from harness.trace import RunTrace, TraceOptions

def busy():
    while not over.is_set():
        with trace.span("in the parent"):
            pass

def in_child(way):
    signal.alarm(20)  # seconds; nobody else would end one that hangs
    with trace.span("in the child", way=way):
        for _ in range(5000):
            trace.instant("in the child")
        asyncio.run(trace.persisted())
    trace.output("child", way)
    if way == "leaves the block":
        raise SystemExit(0)
    if way == "closes it":
        trace.__exit__(None, None, None)
    os._exit(0)

over = threading.Event()
children = []
with RunTrace(
    Path(sys.argv[1]), name="forks", options=TraceOptions(durability=sys.argv[2])
) as trace:
    threads = [threading.Thread(target=busy) for _ in range(2)]
    for thread in threads:
        thread.start()
    with trace.span("run"):
        for number in range(12):
            child = os.fork()
            if child == 0:
                in_child(("leaves the block", "closes it", "just ends")[number % 3])
            children.append(child)
        statuses = [os.waitpid(child, 0)[1] for child in children]
    print(statuses, sorted(path.suffix for path in Path(sys.argv[1]).iterdir()))
    over.set()
    for thread in threads:
        thread.join()
    trace.output("parent", None)
"""


@pytest.mark.parametrize("durability", ["exit", "node", "sync"])
def test_a_forked_child_writes_none_of_its_parents_files_and_does_not_hang(tmp_path, durability):
    done = subprocess.run(
        # Forking while threads run is just what is tried here.
        [sys.executable, "-W", "ignore", "-c", FORKS, tmp_path, durability],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.stdout == f"{[0] * 12} ['.jsonl']\n"
    (path,) = tmp_path.glob("*.jsonl")
    run = load_run(path)
    assert run.ended.status == "ok"
    assert {span.name for span in run.spans} == {"run", "in the parent"}
    assert run.instants == ()
    assert [output.node for output in run.outputs] == ["parent"]
    assert b"in the child" not in path.read_bytes()


# --- several processes -----------------------------------------------------------------------

JOINS = """
import sys, time
from harness.trace import JoinedTrace

invitation, name, ahead_s, ending = sys.argv[1:]
wall_ns = lambda: time.time_ns() + int(float(ahead_s) * 1e9)
with JoinedTrace(invitation, wall_ns=wall_ns) as trace:
    with trace.span("work", name=name) as work:
        for number in range(3):
            with trace.span("chat", name=name, number=number) as chat:
                trace.instant("first token")
                trace.counter("queue", number, unit="calls", track="model small")
            trace.flow("asked", source=work.id, target=chat.id)
        trace.output(name, number)
        if ending == "killed":
            with trace.span("for ever"):
                import asyncio
                asyncio.run(trace.persisted())
                print("in the middle", flush=True)
                sys.stdin.read()
"""
PROCESSES = {
    "right": 0,
    "behind": -3600,
    "ahead": 3600,
    "killed": 0,
}
"""By how much their wall clocks are ahead, in seconds."""


@pytest.fixture(scope="module")
def joined_run(tmp_path_factory):
    """A run that four processes joined from two of its spans, one of which was killed."""
    directory = tmp_path_factory.mktemp("joined")
    with RunTrace(directory, name="joined") as trace, trace.span("run"):
        processes = {}
        for name, ahead_s in PROCESSES.items():
            with trace.span("node", name=name):
                arguments = [trace.invitation(), name, str(ahead_s), name]
                processes[name] = subprocess.Popen(
                    [sys.executable, "-c", JOINS, *arguments],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
        assert processes["killed"].stdout.readline() == "in the middle\n"
        for name, process in processes.items():
            if name == "killed":
                process.kill()
            with process:
                assert process.wait(60) == (-signal.SIGKILL if name == "killed" else 0)
    return trace


def test_every_process_writes_a_file_of_its_own(joined_run):
    paths = sorted(joined_run.journal_path.parent.glob("*.jsonl"))

    assert len(paths) == 1 + len(PROCESSES)
    started = [journal_lines(path)[0] for path in paths]
    assert {one.run_id for one in started} == {joined_run.run_id}
    assert len({one.process_id for one in started}) == len(paths)
    main = journal_lines(joined_run.journal_path)
    assert {one.name for one in main if isinstance(one, SpanRecord | SpanStarted)} == {
        "run", "node"
    }  # fmt: skip


def test_the_files_read_as_one_run(joined_run):
    run = load_run(joined_run.journal_path)

    spans = {span.id: span for span in run.spans}
    assert len(spans) == len(run.spans) == 1 + len(PROCESSES) * 5 + 1  # all ids are different
    for span in run.spans:
        around = spans.get(span.parent)
        match span.name:
            case "node":
                assert around.name == "run"
            case "work":
                assert (around.name, around.attributes["name"]) == ("node", span.attributes["name"])
            case "chat":
                assert (around.name, around.attributes["name"]) == ("work", span.attributes["name"])
    assert sorted(output.node for output in run.outputs) == sorted(PROCESSES)
    arrows = [(spans[flow.source], spans[flow.target]) for flow in run.flows]
    assert len(arrows) == 3 * len(PROCESSES)
    assert all(
        (work.name, chat.name, work.id) == ("work", "chat", chat.parent) for work, chat in arrows
    )
    assert [spans[instant.span].name for instant in run.instants] == ["chat"] * len(arrows)
    assert {(one.track, one.span) for one in run.counters} == {("model small", None)}
    assert len(run.counters) == len(arrows)


def test_times_are_in_order_whatever_a_process_took_for_the_time(joined_run):
    journal = Journal(joined_run.journal_path)
    spans = {span.id: span for span in journal.spans()}

    seen = {None}
    for span in spans.values():
        assert span.parent in seen
        assert span.parent is None or spans[span.parent].start_ns <= span.start_ns
        seen.add(span.id)
    starts_ns = [span.start_ns for span in spans.values()]
    assert starts_ns == sorted(starts_ns)
    began_ns = {s.attributes["name"]: s.start_ns for s in spans.values() if s.name == "work"}
    for name in PROCESSES:
        assert 0 < (began_ns[name] - journal.started.time_ns) / 1e9 < 100, name


def test_a_joined_process_that_was_killed_shows_what_it_was_doing(joined_run):
    run = load_run(joined_run.journal_path)

    unfinished = [span for span in run.spans if span.status != "ok"]
    assert [(span.name, span.status) for span in unfinished] == [
        ("work", "unfinished"),
        ("for ever", "unfinished"),
    ]
    assert {span.attributes.get("name") for span in unfinished} == {"killed", None}
    assert len({span.end_ns for span in unfinished}) == 1
    assert unfinished[0].end_ns < run.started.time_ns + 100 * 10**9
    assert run.ended.status == "ok"


@pytest.mark.slow
def test_perfetto_shows_all_processes_in_one_timeline(joined_run):
    lost = "SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0"
    names = "SELECT name, count(*) AS count FROM slice GROUP BY name"
    paths = joined_run.timeline_paths.values()
    answers = query_traces([(path, sql) for path in paths for sql in (lost, names)])

    for complaints, rows in zip(answers[::2], answers[1::2], strict=True):
        assert complaints == []
        assert {row["name"]: row["count"] for row in rows} == {
            "run": 1, "node": 4, "work": 3, "work: unfinished": 1, "chat": 12, "first token": 12,
            "for ever: unfinished": 1,
        }  # fmt: skip
