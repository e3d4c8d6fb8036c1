"""What is left of runs that were killed, cut off or forked."""

import os
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
            trace.output(NodeOutput("plan", None, ["a"]))
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
from harness.trace import NodeOutput, RunTrace, TraceOptions

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
    trace.output(NodeOutput("child", None, way))
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
    trace.output(NodeOutput("parent", None, None))
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
