import asyncio
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_runs import STARTED, random_spans, steady, write_journal
from structlog.testing import capture_logs

from harness.errors import JournalInvalid
from harness.trace import (
    Content,
    CounterSet,
    Flow,
    Flows,
    Instant,
    Journal,
    NodeOutput,
    RunEnded,
    RunTrace,
    SpanEnded,
    SpanRecord,
    SpanStarted,
)
from harness.trace.journal_line import encode


def instant(number):
    return Instant(None, "tick", number)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.jsonl"


def test_a_journal_says_which_run_it_is_of_and_how_that_ended(path):
    journal = write_journal(path, RunEnded(41, "error", "X: y"))

    assert (journal.path, journal.started) == (path, STARTED)
    assert journal.ended == RunEnded(41, "error", "X: y")
    assert journal.duration_ns == 41
    assert list(journal.items()) == []


def test_items_stand_in_the_order_of_their_lines_with_the_two_ends_of_spans_joined(path):
    records = [
        SpanStarted(1, None, "run", 10),
        Flow("draft", 2, 3),
        SpanRecord(2, 1, "chat", 11, 19, "error", "X: y", {"a": 1}),
        SpanStarted(3, 1, "chat", 20, {"a": 1, "b": 1}),
        Content("f00d", "a prompt"),
        Instant(3, "first token", 25),
        SpanEnded(3, 30, "error", "X: y", {"b": 2, "c": 3}),
        CounterSet("composite", "points", 31, 7.5, 1),
        NodeOutput("plan", None, ["a"]),
        Flow("needs", 1, 3),
        SpanEnded(1, 40),
        RunEnded(41, "ok"),
    ]

    journal = write_journal(path, *records)

    run = SpanRecord(1, None, "run", 10, 40)
    second = SpanRecord(3, 1, "chat", 20, 30, "error", "X: y", {"a": 1, "b": 2, "c": 3})
    assert list(journal.items()) == [
        run, records[2], second, records[4], records[5], records[7], records[8]
    ]  # fmt: skip
    assert list(journal.spans()) == [run, records[2], second]
    assert journal.flows == (Flow("draft", 2, 3), Flow("needs", 1, 3))


def test_arrows_that_were_written_together_are_read_one_by_one(path):
    journal = write_journal(path, Flow("draft", 1, 4), Flows("output", (1, 2, 3), 4))

    assert journal.flows == (
        Flow("draft", 1, 4), Flow("output", 1, 4), Flow("output", 2, 4), Flow("output", 3, 4)
    )  # fmt: skip
    assert list(journal.items()) == []


def test_a_journal_can_be_read_again_and_by_two_at_a_time(path):
    journal = write_journal(path, *(SpanRecord(n, None, "chat", n, n + 1) for n in (1, 2, 3)))

    assert list(zip(journal.spans(), journal.spans(), strict=True)) == [
        (span, span) for span in journal.spans()
    ]


@steady
@given(
    st.builds(
        random_spans,
        st.randoms(use_true_random=False),
        count=st.integers(0, 40),
        within_ns=st.integers(0, 100),
    ),
    st.integers(),
)
def test_how_its_ends_were_written_makes_no_difference_to_a_span(tmp_path_factory, spans, seed):
    randomness = random.Random(seed)
    begins, ends = [], []
    for span in spans:
        number, parent, name, start_ns, end_ns, status, error, attributes = span
        if randomness.random() < 0.5:
            begins.append(span)
        else:
            begins.append(SpanStarted(number, parent, name, start_ns, attributes))
            ends.append((SpanEnded(number, end_ns, status, error), randomness.random()))
    ends.sort(key=lambda pair: pair[1])

    path = tmp_path_factory.mktemp("run") / "run.jsonl"
    journal = write_journal(path, *begins, *(end for end, _ in ends))

    assert list(journal.spans()) == spans


def test_a_span_that_never_ended_reaches_to_the_last_moment_known(path):
    journal = write_journal(
        path,
        SpanStarted(1, None, "run", 10),
        SpanStarted(2, 1, "chat", 20),
        SpanEnded(2, 50),
        SpanStarted(3, 1, "chat", 60),
    )

    assert journal.ended is None
    assert [(one.status, one.end_ns) for one in journal.spans()] == [
        ("unfinished", 60),
        ("ok", 50),
        ("unfinished", 60),
    ]


def test_a_span_that_a_thread_began_when_the_run_was_over_has_no_negative_length(path):
    journal = write_journal(
        path, SpanStarted(1, None, "run", 3), RunEnded(10, "ok"), SpanStarted(2, None, "late", 12)
    )

    assert [(one.start_ns, one.end_ns, one.status) for one in journal.spans()] == [
        (3, 10, "unfinished"),
        (12, 12, "unfinished"),
    ]


def test_an_end_without_a_beginning_is_no_span(path):
    journal = write_journal(path, SpanEnded(9, 5), SpanRecord(2, None, "chat", 1, 2))

    assert [one.id for one in journal.spans()] == [2]


@pytest.mark.parametrize(
    ("records", "duration_ns"),
    [
        pytest.param([], 0, id="nothing"),
        pytest.param([SpanRecord(1, None, "a", 0, 9), SpanRecord(2, 1, "b", 1, 5)], 9, id="spans"),
        pytest.param([SpanRecord(1, None, "a", 0, 9), instant(12)], 12, id="an instant"),
        pytest.param([CounterSet("x", "y", 7, 0)], 7, id="a counter"),
        pytest.param([SpanStarted(1, None, "a", 3), SpanEnded(1, 8)], 8, id="the end of a span"),
        pytest.param([SpanStarted(1, None, "a", 3)], 3, id="the start of a span"),
        pytest.param(
            [instant(5), Content("", ""), NodeOutput("a", None, 1), Flow("x", 1, 2)],
            5,
            id="what has no time",
        ),
    ],
)
def test_a_killed_run_lasted_until_the_last_thing_in_it(path, records, duration_ns):
    assert write_journal(path, *records).duration_ns == duration_ns


def test_a_last_line_that_was_cut_off_is_left_out(path):
    whole, last = encode(STARTED) + encode(instant(1)), encode(instant(2))

    for length in range(len(last)):
        path.write_bytes(whole + last[:length])
        assert list(Journal(path).items()) == [instant(1)]


def test_what_is_appended_later_is_not_seen(path):
    journal = write_journal(path, SpanStarted(1, None, "run", 10), instant(20))

    with path.open("ab") as file:
        file.write(encode(SpanEnded(1, 30)) + encode(Flow("x", 1, 1)) + encode(instant(40)))

    (span, tick) = journal.items()
    assert (span.status, span.end_ns, tick.time_ns) == ("unfinished", 20, 20)
    assert journal.flows == ()
    assert [one.end_ns for one in Journal(path).spans()] == [30]


def test_a_run_can_be_read_while_it_goes_on(tmp_path):
    with RunTrace(tmp_path, name="going on") as trace, trace.span("run"):
        asyncio.run(trace.persisted())
        assert [span.status for span in Journal(trace.journal_path).spans()] == ["unfinished"]


@pytest.mark.parametrize(
    ("broken", "line"),
    [
        pytest.param(b'{"kind":"instant","na\n', 2, id="half a line"),
        pytest.param(b"\n", 2, id="an empty line"),
        pytest.param(encode(instant(1)) + b"\xff\n", 3, id="no text"),
        pytest.param(b'{"kind":"flow","name":"x"}\n', 2, id="half a flow"),
        pytest.param(b'{"kind":"end","id":}\n', 2, id="a broken end"),
        pytest.param(encode(instant(1)) + b'{"kind":"dream"}\n', 3, id="an unknown kind"),
        pytest.param(b'{"kind":"instant","span":null,"name":null,"time_ns":1}\n', 2, id="no name"),
        pytest.param(encode(SpanEnded(4 * 10**12, 5)), 2, id="an end with a wild id"),
        pytest.param(b'{"kind":"end","id":-7,"time_ns":5}\n', 2, id="an end below zero"),
        pytest.param(encode(SpanRecord(4 * 10**12, None, "chat", 1, 2)), 2, id="a wild id"),
        pytest.param(encode(SpanRecord(2, -7, "chat", 1, 2)), 2, id="a parent below zero"),
    ],
)
def test_a_broken_line_in_the_middle_is_named(path, broken, line):
    path.write_bytes(encode(STARTED) + broken + encode(instant(2)))

    with pytest.raises(JournalInvalid) as caught:
        list(Journal(path).items())

    assert (caught.value.path, caught.value.line) == (path, line)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert str(caught.value).endswith("; harness trace check says what is wrong")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "does not begin with a run", id="empty"),
        pytest.param(b"a text\n", "not a journal: it does not begin with a run", id="a text"),
        pytest.param(b"\x7fELF\xff\n\xff\n", "not a journal: it does not", id="a binary"),
        pytest.param(encode(SpanEnded(1, 0)), "does not begin with a run", id="beginning lost"),
        pytest.param(encode(STARTED)[:-1], "does not begin with a run", id="half a beginning"),
    ],
)
def test_a_file_that_is_no_journal_is_named(path, content, message):
    path.write_bytes(content)

    with pytest.raises(JournalInvalid, match=message) as caught:
        Journal(path)

    assert (caught.value.path, caught.value.line) == (path, 1)


def test_a_journal_of_a_newer_version_is_refused_with_the_remedy(path):
    newer = json.loads(encode(STARTED)) | {"schema": 2, "host": "a field of version 2"}
    path.write_text(json.dumps(newer) + '\n{"kind":"a kind of version 2"}\n')

    with pytest.raises(JournalInvalid) as caught:
        Journal(path)

    assert str(caught.value) == (
        f"{path}:1: written by a newer version (schema 2, this one reads up to 1); "
        "upgrade wiggum-harness to read it"
    )


def test_a_file_that_is_not_there_is_an_os_error(path):
    with pytest.raises(FileNotFoundError):
        Journal(path)


# --- runs of several processes ---------------------------------------------------------------

MAIN = STARTED._replace(wall_ns=1_000_000, time_ns=500)


def write_joined(path, name, *records, **started):
    """The file of a process that joined the run at 600 on its clock, for span 2."""
    first = MAIN._replace(**{"parent": 2, "joined_ns": 600, **started})
    beside = path.with_suffix(f".{name}.jsonl")
    beside.write_bytes(b"".join(encode(record) for record in (first, *records)))
    return beside


def test_what_joined_processes_did_lies_in_the_span_that_asked_them(path):
    main = [
        SpanRecord(1, None, "run", 510, 900),
        SpanRecord(2, 1, "node", 590, 800),
        Flow("draft", 1, 2),
        NodeOutput("node", None, 1),
        RunEnded(900, "ok"),
    ]
    path.write_bytes(b"".join(map(encode, [MAIN, *main])))
    # The clocks of the others show 0 when that of the main process shows 700 and 600.
    write_joined(
        path,
        "22-b",
        SpanRecord(1, None, "work", 20, 40),
        SpanRecord(2, 1, "chat", 25, 35),
        Instant(None, "asked", 21),
        Instant(2, "first token", 30),
        CounterSet("queue", "calls", 26, 3, None, "model qwen"),
        CounterSet("queue", "calls", 27, 4),
        Flow("draft", 1, 2),
        RunEnded(41, "ok"),
        wall_ns=MAIN.wall_ns + 200,
        time_ns=0,
    )
    write_joined(
        path,
        "33-a",
        SpanStarted(1, None, "work", 10),
        Content("f00d", "a prompt"),
        wall_ns=MAIN.wall_ns + 100,
        time_ns=0,
    )

    journal = Journal(path)

    spans = {span.id: span for span in journal.spans()}
    assert len(spans) == 5
    names = {
        number: (span.name, spans[span.parent].name if span.parent else None, span.start_ns)
        for number, span in spans.items()
    }
    assert sorted(names.values(), key=lambda row: row[2]) == [
        ("run", None, 510),
        ("node", "run", 590),
        ("work", "node", 610),
        ("work", "node", 720),
        ("chat", "work", 725),
    ]
    assert [span.start_ns for span in journal.spans()] == [510, 590, 610, 720, 725]
    # The killed one is known to have lived until its last record.
    assert [(s.end_ns, s.status) for s in spans.values() if s.status != "ok"] == [
        (610, "unfinished")
    ]
    flows = [(names[flow.source], names[flow.target]) for flow in journal.flows]
    assert [(source[0], target[0]) for source, target in flows] == [
        ("run", "node"),
        ("work", "chat"),
    ]
    instants = [item for item in journal.items() if isinstance(item, Instant)]
    assert [(one.name, one.time_ns, names[one.span][0]) for one in instants] == [
        ("asked", 721, "node"),
        ("first token", 730, "chat"),
    ]
    counters = [item for item in journal.items() if isinstance(item, CounterSet)]
    assert [
        (one.time_ns, one.value, one.track, one.span and names[one.span][0]) for one in counters
    ] == [(726, 3, "model qwen", None), (727, 4, None, "node")]
    assert {type(item) for item in journal.items()} >= {Content, NodeOutput}
    assert journal.ended == RunEnded(900, "ok")
    assert journal.duration_ns == 400


def test_a_run_lasted_as_long_as_the_last_of_its_processes(path):
    path.write_bytes(encode(MAIN) + encode(RunEnded(700, "ok")))
    write_joined(path, "1-a", RunEnded(300, "ok"), wall_ns=MAIN.wall_ns, time_ns=0)

    assert Journal(path).duration_ns == 400  # asked at 600, and 300 of its own


HOUR_NS = 3_600_000_000_000


@pytest.mark.parametrize(
    ("ahead_ns", "starts_ns"),
    [
        pytest.param(0, 610, id="right"),
        pytest.param(-HOUR_NS, 610, id="an hour behind"),
        pytest.param(-20, 610, id="a little behind"),
        pytest.param(25, 635, id="a little ahead"),
        pytest.param(HOUR_NS, 610 + HOUR_NS, id="an hour ahead and killed"),
    ],
)
def test_nothing_happened_before_it_was_asked_for_whatever_the_wall_clock_says(
    path, ahead_ns, starts_ns
):
    node = SpanRecord(2, None, "node", 590, 800)
    path.write_bytes(b"".join(map(encode, [MAIN, node, RunEnded(900, "ok")])))
    write_joined(
        path,
        "1-a",
        SpanRecord(1, None, "work", 10, 40),
        SpanRecord(2, 1, "chat", 20, 30),
        wall_ns=MAIN.wall_ns + 100 + ahead_ns,
        time_ns=0,
    )

    spans = list(Journal(path).spans())

    assert [span.name for span in spans] == ["node", "work", "chat"]
    assert [(span.start_ns, span.duration_ns) for span in spans[1:]] == [
        (starts_ns, 30),
        (starts_ns + 10, 10),
    ]


@pytest.mark.parametrize(
    ("ahead_ns", "starts_ns"),
    [
        pytest.param(0, 610, id="right"),
        pytest.param(-HOUR_NS, 610, id="an hour behind"),
        pytest.param(100, 710, id="a little ahead"),
        pytest.param(HOUR_NS, 870, id="an hour ahead"),
    ],
)
def test_on_another_machine_a_process_began_after_it_was_asked_and_ended_before_the_run(
    path, ahead_ns, starts_ns
):
    started = MAIN._replace(boot_id="this machine")
    write_journal(path, SpanRecord(2, None, "node", 590, 890), RunEnded(900, "ok"), started=started)
    write_joined(
        path,
        "1-a",
        SpanRecord(1, None, "work", 10, 40),
        RunEnded(40, "ok"),
        wall_ns=MAIN.wall_ns + 100 + ahead_ns,
        time_ns=0,
        boot_id="another",
    )
    journal = Journal(path)

    assert [span.start_ns for span in journal.spans()] == [590, starts_ns]
    assert journal.duration_ns == 400


@pytest.mark.parametrize("main_end", [[], [RunEnded(620, "ok")]], ids=["killed", "ended first"])
def test_what_had_no_time_to_end_before_the_run_is_where_its_wall_clock_says(path, main_end):
    write_journal(path, SpanRecord(2, None, "node", 590, 615), *main_end, started=MAIN)
    write_joined(
        path, "1-a", SpanRecord(1, None, "work", 10, 40), RunEnded(40, "ok"),
        wall_ns=MAIN.wall_ns + 700, time_ns=0,
    )  # fmt: skip

    assert [span.start_ns for span in Journal(path).spans()] == [590, 1210]


@pytest.mark.parametrize("ahead_ns", [0, HOUR_NS, -HOUR_NS])
def test_on_one_machine_the_clock_is_the_same_whatever_the_wall_clock_says(path, ahead_ns):
    started = MAIN._replace(boot_id="this machine")
    write_journal(path, SpanRecord(2, None, "node", 590, 800), RunEnded(900, "ok"), started=started)
    write_joined(
        path,
        "1-a",
        SpanRecord(1, None, "work", 640, 670),
        wall_ns=MAIN.wall_ns + ahead_ns,
        time_ns=630,
        boot_id="this machine",
    )

    assert [(s.start_ns, s.end_ns) for s in Journal(path).spans()] == [(590, 800), (640, 670)]


def test_a_clock_that_shows_less_than_when_it_was_asked_is_not_the_same(path):
    started = MAIN._replace(boot_id="this machine")
    write_journal(path, RunEnded(900, "ok"), started=started)
    write_joined(
        path,
        "1-a",
        SpanRecord(1, None, "work", 40, 70),
        wall_ns=MAIN.wall_ns + 120,
        time_ns=30,
        boot_id="this machine",
    )

    assert [span.start_ns for span in Journal(path).spans()] == [630]


@pytest.mark.parametrize("length", [0, 1, 60])
def test_a_process_killed_before_its_first_line_was_whole_takes_nothing_from_the_run(path, length):
    path.write_bytes(encode(MAIN) + encode(instant(600)))
    beside = write_joined(path, "1-a")
    beside.write_bytes(beside.read_bytes()[:length])

    assert list(Journal(path).items()) == [instant(600)]


def test_the_journals_of_other_runs_beside_it_are_not_of_the_run(path):
    path.write_bytes(encode(MAIN) + encode(instant(600)))
    write_joined(path, "old", instant(7), run_id="another")

    assert list(Journal(path).items()) == [instant(600)]


SOUND = [
    SpanStarted(1, None, "work", 10),
    SpanStarted(2, 1, "chat", 20),
    SpanEnded(2, 30),
    Flow("asked", 1, 2),
]


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(b"nonsense\n", id="nonsense"),
        pytest.param(b'{"kind":"end","id":1,"time_ns":"a"}\n', id="a broken end"),
        pytest.param(b'{"kind":"flow","name":"x"}\n', id="half a flow"),
        pytest.param(encode(SpanEnded(4 * 10**12, 5)), id="a wild id"),
    ],
)
def test_a_joined_file_that_is_damaged_ends_there(path, damage):
    write_journal(path, SpanRecord(2, None, "node", 590, 800), RunEnded(900, "ok"), started=MAIN)
    beside = write_joined(path, "1-a", *SOUND, wall_ns=MAIN.wall_ns + 100, time_ns=0)
    later = [instant(35), Flow("asked", 2, 1), SpanEnded(1, 40), RunEnded(41, "ok")]
    with beside.open("ab") as file:
        file.write(damage + b"".join(map(encode, later)))

    with capture_logs() as logs:
        journal = Journal(path)
        items = list(journal.items())

    assert [(one.name, one.end_ns, one.status) for one in items] == [
        ("node", 800, "ok"),
        ("work", 630, "unfinished"),
        ("chat", 630, "ok"),
    ]
    assert [flow.name for flow in journal.flows] == ["asked"]
    assert journal.ended == RunEnded(900, "ok")
    (warning,) = logs
    assert (warning["event"], warning["path"], warning["line"]) == (
        "what a process did for the run is known in part",
        str(beside),
        6,
    )
    assert warning["hint"] == "harness trace check says what is wrong"


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"\x7fELF\xff\n", id="a binary"),
        pytest.param(encode(instant(1)), id="beginning lost"),
        pytest.param(encode(MAIN._replace(schema=2)), id="of a newer version"),
    ],
)
def test_a_joined_file_that_is_no_journal_is_left_out(path, content):
    write_journal(path, instant(600), started=MAIN)
    path.with_suffix(".1-a.jsonl").write_bytes(content)

    with capture_logs() as logs:
        assert list(Journal(path).items()) == [instant(600)]

    (warning,) = logs
    assert warning["path"] == str(path.with_suffix(".1-a.jsonl"))
    assert warning["hint"] == "harness trace check says what is wrong"


def test_a_joined_file_reads_alone_on_its_own_clock(path):
    beside = write_joined(path, "1-a", *SOUND, wall_ns=7, time_ns=0)

    assert [span.start_ns for span in Journal(beside).spans()] == [10, 20]


def test_a_run_whose_name_means_something_to_the_shell_finds_its_own_parts_only(tmp_path):
    path = tmp_path / "run[12].jsonl"
    path.write_bytes(encode(MAIN))
    write_joined(path, "1-a", instant(7), wall_ns=MAIN.wall_ns, time_ns=500)
    write_joined(tmp_path / "run1.jsonl", "1-a", instant(8))

    (tick,) = Journal(path).items()
    assert tick.time_ns == 107
