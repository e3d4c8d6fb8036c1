"""What is left of runs that were killed, cut off, forked, or spread over several processes."""

import os
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest
from random_runs import write_random_run
from sample_runs import journal_lines, load_run

from harness.errors import InvalidInput, JournalInvalid
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
)
from harness.trace.journal_line import decode


def run_python(code, *arguments):
    # Forking while threads run is just what some of them try.
    command = [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def spans_in(lines):
    """The spans of some lines, by id, with when they ended."""
    ends = {one.id: one.time_ns for one in lines if type(one) is SpanEnded}
    begun = {one.id: ends.get(one.id) for one in lines if type(one) is SpanStarted}
    return begun | {one.id: one.end_ns for one in lines if type(one) is SpanRecord}


# --- killed, and gone on with ----------------------------------------------------------------

GOING_ON = """
import asyncio, os, sys
from pathlib import Path
from harness.trace import RunTrace

with RunTrace(Path(sys.argv[1]), name="going on") as trace, trace.span("run"):
    asyncio.run(trace.persisted())
    if os.fork() == 0:
        os.write(1, b"in the child\\n")
        sys.stdin.read()
        os._exit(0)
    os.write(1, f"{trace.journal_path}\\n".encode())
    sys.stdin.read()
"""


def test_a_run_can_be_resumed_once_its_process_is_gone_though_a_child_outlives_it(tmp_path):
    command = [sys.executable, "-c", GOING_ON, tmp_path]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        said = [process.stdout.readline().strip() for _ in range(2)]
        (journal,) = (Path(line) for line in said if line != "in the child")

        with pytest.raises(InvalidInput) as refused:
            RunTrace(tmp_path, name="essay", resume=journal)
        assert (refused.value.code, refused.value.path) == ("run.still-going", journal)
        assert [path.name for path in tmp_path.iterdir()] == [journal.name]
        # It may be read all the same.
        assert [span.status for span in Journal(journal).spans()] == ["unfinished"]

        process.kill()
        process.wait()
        with RunTrace(tmp_path, name="essay", resume=journal) as trace:
            with pytest.raises(InvalidInput) as refused:
                RunTrace(tmp_path, name="essay", resume=journal)
            assert refused.value.code == "run.still-going"
        process.stdin.close()  # at which the child ends
    assert (trace.part, Journal(journal).parts) == (1, 2)
    with RunTrace(tmp_path, name="essay", resume=journal):
        pass


# --- cut off ---------------------------------------------------------------------------------

STRETCH = 4096


@pytest.fixture(scope="module")
def whole_journal(tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole")
    journals = (write_random_run(directory / f"{seed}.jsonl", seed) for seed in count())
    sizes = ((journal.path.read_bytes(), journal.flows) for journal in journals)
    return next(data for data, flows in sizes if 2 < len(data) / STRETCH < 4 and len(flows) > 20)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["first", "last"])
def test_a_journal_cut_at_any_byte_has_everything_before_the_cut(whole_journal, tmp_path, end):
    size, first_line = len(whole_journal), whole_journal.index(b"\n") + 1
    lengths = range(STRETCH) if end == "first" else range(size - STRETCH // 2, size + 1)
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
        lines = [decode(line) for line in whole_journal[:length].split(b"\n")[:-1]]
        read = {one.id: one for one in items if type(one) is SpanRecord}
        ends = {n: None if one.status == "unfinished" else one.end_ns for n, one in read.items()}
        assert ends == spans_in(lines)
        others = Instant | CounterSet | NodeOutput
        assert [one for one in items if isinstance(one, others)] == [
            one for one in lines if isinstance(one, others)
        ]
        assert list(journal.flows) == [one for one in lines if type(one) is Flow]
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
            trace.counter("queue", 3, unit="calls")
            assert last().value == 3
            trace.output("plan", ["a"])
            assert last() == NodeOutput("plan", None, ["a"])
            trace.flow("draft", source=node.id, target=2)
            assert last() == Flow("draft", 1, 2)
        assert type(last()) is SpanEnded
    assert isinstance(last(), RunEnded)


LEFT_OPEN = """
import sys
from pathlib import Path
from harness import RunTrace

trace = RunTrace(Path(sys.argv[1]), name="essay").__enter__()
trace.span("open").__enter__()
with trace.span("done"):
    pass
"""


def test_an_interpreter_that_ends_in_the_middle_leaves_what_was_recorded(tmp_path):
    run_python(LEFT_OPEN, tmp_path)

    (journal,) = tmp_path.glob("*.jsonl")
    spans = {span.name: span.status for span in load_run(journal).spans}
    assert spans == {"open": "unfinished", "done": "ok"}


SIZE_LIMITED = """
import logging, resource, sys
from pathlib import Path
from harness.trace import RunTrace, TraceOptions

logging.basicConfig(stream=sys.stdout)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
seen = []
options = TraceOptions(durability=sys.argv[2])
with RunTrace(Path(sys.argv[1]), name="limited", options=options, observers=[seen.append]) as trace:
    for number in range(100):
        with trace.span("step", number=number):
            pass
print(number, len(seen), trace.journal())
"""


@pytest.mark.parametrize(
    "durability",
    ["node", *(pytest.param(one, marks=pytest.mark.slow) for one in ("exit", "sync"))],
)
def test_a_run_outlives_a_file_that_may_not_grow(tmp_path, durability):
    pytest.importorskip("resource", reason="file sizes cannot be limited here")

    *warnings, result = run_python(SIZE_LIMITED, tmp_path, durability).stdout.splitlines()

    assert result.startswith("99 202 ")  # who observes still sees everything
    assert "trace.journal-incomplete" in warnings[0]
    (journal,) = tmp_path.glob("*.jsonl")
    numbers = [span.attributes["number"] for span in load_run(journal).spans]
    assert 0 < len(numbers) < 100
    assert numbers == list(range(len(numbers)))


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
    signal.alarm(60)  # seconds; nobody else would end one that hangs
    with trace.span("in the child", way=way):
        for _ in range(1000):
            trace.instant("in the child")
        asyncio.run(trace.persisted())
    trace.output("child", way)
    if way == "leaves the block":
        raise SystemExit(0)
    if way == "closes it":
        trace.__exit__(None, None, None)
    os._exit(0)

directory, durability, forks = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
over = threading.Event()
children = []
with RunTrace(directory, name="forks", options=TraceOptions(durability=durability)) as trace:
    threads = [threading.Thread(target=busy) for _ in range(2)]
    for thread in threads:
        thread.start()
    with trace.span("run"):
        for number in range(forks):
            child = os.fork()
            if child == 0:
                in_child(("leaves the block", "closes it", "just ends")[number % 3])
            children.append(child)
        statuses = {os.waitpid(child, 0)[1] for child in children}
    print(statuses, sorted(path.suffix for path in directory.iterdir()))
    over.set()
    for thread in threads:
        thread.join()
    trace.output("parent", None)
"""


@pytest.mark.parametrize(
    ("durability", "forks"),
    [("node", 3), *(pytest.param(one, 12, marks=pytest.mark.slow) for one in ("exit", "sync"))],
)
def test_a_forked_child_writes_none_of_its_parents_files_and_does_not_hang(
    tmp_path, durability, forks
):
    done = run_python(FORKS, tmp_path, durability, forks)

    assert done.stdout == "{0} ['.jsonl']\n"
    (path,) = tmp_path.glob("*.jsonl")
    run = load_run(path)
    assert run.ended.status == "ok"
    assert {span.name for span in run.spans} == {"run", "in the parent"}
    assert run.instants == ()
    assert [output.node for output in run.outputs] == ["parent"]
    assert b"in the child" not in path.read_bytes()


# --- several processes -----------------------------------------------------------------------

JOINS = """
import asyncio, sys
from harness.trace import JoinedTrace

invitation, name = sys.argv[1:]
with JoinedTrace(invitation) as trace, trace.span("work", name=name) as work:
    with trace.span("chat", name=name) as chat:
        trace.instant("first token")
        trace.counter("queue", 1, unit="calls", track="model small")
    trace.flow("asked", source=work.id, target=chat.id)
    trace.output(name, 1)
    if name == "killed":
        with trace.span("for ever"):
            asyncio.run(trace.persisted())
            print("in the middle", flush=True)
            sys.stdin.read()
"""


@pytest.mark.slow
def test_every_process_writes_a_file_of_its_own_and_they_read_as_one_run(tmp_path):
    names = ("first", "second", "killed")
    with RunTrace(tmp_path, name="joined") as joined_run, joined_run.span("run"):
        processes = {}
        for name in names:
            with joined_run.span("node", name=name):
                command = [sys.executable, "-c", JOINS, joined_run.invitation(), name]
                pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
                processes[name] = subprocess.Popen(command, text=True, **pipes)
        assert processes["killed"].stdout.readline() == "in the middle\n"
        processes["killed"].kill()
        for name, process in processes.items():
            with process:
                assert process.wait(60) == (-signal.SIGKILL if name == "killed" else 0)

    paths = sorted(joined_run.journal_path.parent.glob("*.jsonl"))
    started = [journal_lines(path)[0] for path in paths]
    assert len(paths) == 1 + len(names) == len({one.process_id for one in started})
    assert {one.run_id for one in started} == {joined_run.run_id}

    run = load_run(joined_run.journal_path)
    spans = {span.id: span for span in run.spans}
    assert len(spans) == len(run.spans) == 1 + 3 * len(names) + 1  # all ids are different
    around = {"node": "run", "work": "node", "chat": "work", "for ever": "work"}
    for span in run.spans:
        if span.name in around:
            parent = spans[span.parent]
            assert parent.name == around[span.name]
            assert parent.start_ns <= span.start_ns
    assert sorted(output.node for output in run.outputs) == sorted(names)
    assert len(run.flows) == len(run.counters) == len(names)
    assert all(spans[flow.target].parent == flow.source for flow in run.flows)
    assert [spans[instant.span].name for instant in run.instants] == ["chat"] * len(names)
    # The one that was killed shows what it was doing.
    unfinished = [(span.name, span.status) for span in run.spans if span.status != "ok"]
    assert unfinished == [("work", "unfinished"), ("for ever", "unfinished")]
    assert run.ended.status == "ok"
