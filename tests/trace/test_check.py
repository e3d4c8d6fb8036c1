import re

import pytest
from sample_runs import STARTED

from harness.errors import JournalInvalid
from harness.trace import (
    Flow,
    Instant,
    Journal,
    RunEnded,
    SpanEnded,
    SpanRecord,
    SpanStarted,
)
from harness.trace.check import check_journal
from harness.trace.journal_line import encode

RUN = SpanStarted(1, None, "run", 10, {"label": "tea"})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.jsonl"


def write(path, *records, started=STARTED):
    path.write_bytes(b"".join(encode(record) for record in (started, *records)))


def test_a_run_that_came_to_its_end_is_whole(path):
    write(path, RUN, SpanRecord(2, 1, "chat", 11, 19), Flow("x", 1, 2), SpanEnded(1, 20),
          RunEnded(21, "error", "X: y"))  # fmt: skip

    found = check_journal(path)

    assert (found.is_whole, found.is_readable, found.run_id) == (True, True, STARTED.run_id)
    (file,) = found.files
    assert (file.path, file.ended, file.torn_bytes, file.problems) == (str(path), "error", 0, ())
    # In the words that stand in the journal.
    assert file.records == {"run": 1, "begin": 1, "span": 1, "flow": 1, "end": 1, "run end": 1}
    assert found.open_spans == ()


def test_of_a_killed_run_it_says_what_was_open_and_how_much_of_a_line_there_is(path):
    write(path, RUN, SpanStarted(2, 1, "chat", 15), SpanRecord(3, 2, "decode", 16, 40))
    with path.open("ab") as file:
        file.write(b'{"ki')

    found = check_journal(path)

    assert (found.is_whole, found.is_readable, found.files[0].torn_bytes) == (False, True, 4)
    assert [(one.name, one.title, one.start_ns, one.open_ns) for one in found.open_spans] == [
        ("run", "tea", 10, 30),
        ("chat", "chat", 15, 25),
    ]


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        pytest.param(
            b'{"kind":"end","id":1,"time_ns":"a"}\n', 'time_ns of a .end.* be "a"', id="a"
        ),
        pytest.param(
            b'{"kind":"span","id":1,"parent":null,"name":null,"start_ns":1,"end_ns":2}\n',
            "line 2: name of a 'span' cannot be null",
            id="no name",
        ),
        pytest.param(encode(SpanEnded(-7, 5)), "line 2: id of a 'end' cannot be -7", id="below 0"),
        pytest.param(
            encode(SpanEnded(4 * 10**12, 5)), "line 2: there cannot be a span 4000", id="wild id"
        ),
        pytest.param(encode(SpanRecord(9**9, None, "x", 1, 2)), "there cannot be", id="wild span"),
        pytest.param(encode(SpanRecord(1, None, "x", 2**63, 2)), "start_ns of", id="far away"),
        pytest.param(encode(STARTED), "line 2: another run begins", id="two runs"),
        pytest.param(b"\n", "line 2: not JSON: ", id="an empty line"),
        pytest.param(b"\xff\n", "line 2: not JSON: ", id="no text"),
        pytest.param(b"[1]\n", "line 2: not a journal record", id="no object"),
        pytest.param(encode(SpanEnded(2, 5)), "line 2: span 2 ends and has not", id="only an end"),
    ],
)
def test_a_damaged_line_is_named_and_the_rest_looked_at(path, lines, problem):
    path.write_bytes(
        encode(STARTED) + lines + encode(Instant(None, "x", 5)) + encode(RunEnded(6, "ok"))
    )

    found = check_journal(path)

    assert (found.is_whole, found.is_readable, found.files[0].ended) == (False, False, "ok")
    (said,) = found.files[0].problems
    assert re.search(problem, said)
    assert found.files[0].records["instant"] == 1


def test_what_readers_refuse_is_damaged(path):
    chat = SpanRecord(2, 1, "chat", 11, 19, "ok", None, {"a": 1})
    records = [STARTED, RUN, chat, Flow("x", 1, 2), SpanEnded(1, 20), RunEnded(21, "ok")]
    whole = b"".join(map(encode, records))

    for place in range(whole.index(b"\n") + 1, len(whole)):
        for byte in (b"\xff", b"-", b'"', b"9", b"\n"):
            path.write_bytes(whole[:place] + byte + whole[place + 1 :])
            try:
                list(Journal(path).items())
            except JournalInvalid:
                assert not check_journal(path).is_readable, (place, byte)


def test_no_more_problems_are_kept_than_are_shown(path):
    path.write_bytes(encode(STARTED) + b"nonsense\n" * 1000)

    assert len(check_journal(path).files[0].problems) == 20


def test_an_empty_file_is_said_to_be_empty(path):
    path.write_bytes(b"")

    found = check_journal(path)

    assert (found.is_whole, found.is_readable, found.run_id) == (False, False, None)
    assert found.files[0].problems == ("the file is empty",)


def test_a_file_that_begins_with_no_run_is_no_journal(path):
    path.write_bytes(encode(RUN))

    found = check_journal(path)

    assert found.run_id is None
    assert found.files[0].problems == ("line 1: a journal begins with its run",)


def test_a_journal_of_a_newer_version_is_not_judged(path):
    write(path, started=STARTED._replace(schema=2))

    assert check_journal(path).files[0].problems == ("line 1: written by a newer version",)


# --- runs of several processes ---------------------------------------------------------------

MAIN = STARTED._replace(time_ns=500, wall_ns=1_000_000)
JOINED = MAIN._replace(parent=1, joined_ns=600, time_ns=0, wall_ns=1_000_150)


def test_a_joined_process_that_was_killed_leaves_the_run_not_whole(path):
    write(path, RUN._replace(time_ns=510), SpanEnded(1, 800), RunEnded(900, "ok"), started=MAIN)
    beside = path.with_suffix(".1-a.jsonl")
    write(beside, SpanStarted(1, None, "work", 20), Instant(1, "x", 90), started=JOINED)
    write(path.with_suffix(".2-b.jsonl"), RunEnded(90, "ok"), started=JOINED)

    found = check_journal(path)

    assert (found.is_whole, found.is_readable, found.run_id) == (False, True, MAIN.run_id)
    assert [(file.path, file.is_whole) for file in found.files] == [
        (str(path), True),
        (str(beside), False),
        (str(path.with_suffix(".2-b.jsonl")), True),
    ]
    # Its clock showed 0 when that of the main process showed 650, which is 150 after its start.
    assert [(one.name, one.start_ns, one.open_ns) for one in found.open_spans] == [
        ("work", 170, 70)
    ]


@pytest.mark.parametrize("content", [b"", b"nonsense\n"], ids=["empty", "nonsense"])
def test_a_joined_file_that_is_no_journal_leaves_the_run_readable(path, content):
    write(path, RunEnded(900, "ok"), started=MAIN)
    path.with_suffix(".1-a.jsonl").write_bytes(content)

    found = check_journal(path)

    assert (found.is_whole, found.is_readable) == (False, True)
    assert len(found.files[1].problems) == 1


def test_files_of_other_runs_beside_it_are_not_looked_at(path):
    write(path, RunEnded(900, "ok"), started=MAIN)
    write(path.with_suffix(".old.jsonl"), started=JOINED._replace(run_id="another"))

    assert check_journal(path).is_whole
