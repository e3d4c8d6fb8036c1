import pytest
from sample_runs import STARTED, sealed, write_journal

from harness.analysis.damage import check_journal
from harness.errors import JournalInvalid
from harness.trace import Flow, Instant, Journal, RunEnded, SpanEnded, SpanRecord, SpanStarted
from harness.trace.journal_line import decode, encode, seal

RUN = SpanStarted(1, None, "run", 10, {"label": "tea"})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.jsonl"


def problems(path):
    return [(one.code, one.line) for one in check_journal(path).files[0].problems]


def test_a_run_that_came_to_its_end_is_whole(path):
    records = [RUN, SpanRecord(2, 1, "chat", 11, 19), Flow("x", 1, 2), SpanEnded(1, 20)]
    write_journal(path, *records, RunEnded(21, "error", "X: y"))

    found = check_journal(path)

    assert (found.is_whole, found.is_readable, found.run_id) == (True, True, STARTED.run_id)
    (file,) = found.files
    assert (file.path, file.ended, file.torn_bytes, file.problems) == (str(path), "error", 0, ())
    # In the words that stand in the journal.
    assert file.records == {"run": 1, "begin": 1, "span": 1, "flow": 1, "end": 1, "run end": 1}


def test_of_a_killed_run_it_says_how_much_of_a_line_there_is(path):
    write_journal(path, RUN, SpanStarted(2, 1, "chat", 15), SpanRecord(3, 2, "decode", 16, 40))
    with path.open("ab") as file:
        file.write(b'{"ki')

    found = check_journal(path)

    assert (found.is_whole, found.is_readable, found.files[0].torn_bytes) == (False, True, 4)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        pytest.param(encode(Instant(None, "x", 5)), "line-invalid", id="no checksum"),
        pytest.param(sealed(STARTED, first=2), "second-run", id="two runs"),
        pytest.param(sealed(SpanEnded(2, 5), first=2), "end-without-beginning", id="only an end"),
    ],
)
def test_a_damaged_line_is_named_and_the_rest_looked_at(path, line, code):
    later = [Instant(None, "x", 5), RunEnded(6, "ok")]
    path.write_bytes(sealed(STARTED) + line + sealed(*later, first=3))

    found = check_journal(path)

    assert (found.is_whole, found.is_readable, found.files[0].ended) == (False, False, "ok")
    assert problems(path) == [(f"journal.{code}", 2)]
    assert found.files[0].records["instant"] == 1


@pytest.mark.parametrize("number", [1, 7])
def test_a_line_in_which_any_bit_changed_is_no_record(number):
    line = seal(encode(SpanRecord(2, 1, "chat", 11, 19)), number)
    assert decode(line, number=number) == SpanRecord(2, 1, "chat", 11, 19)

    for place in range(len(line) - 2):
        for bit in range(7):
            changed = bytearray(line)
            changed[place] ^= 1 << bit
            with pytest.raises(ValueError):  # noqa: PT011 - any reason will do
                decode(bytes(changed), number=number)


def test_what_readers_refuse_is_damaged(path):
    chat = SpanRecord(2, 1, "chat", 11, 19, "ok", None, {"a": 1})
    write_journal(path, RUN, chat, Flow("x", 1, 2), SpanEnded(1, 20), RunEnded(21, "ok"))
    whole = path.read_bytes()

    for place in range(whole.index(b"\n") + 1, len(whole)):
        for byte in (b"9", b"\n"):
            path.write_bytes(whole[:place] + byte + whole[place + 1 :])
            try:
                list(Journal(path).items())
            except JournalInvalid:
                assert not check_journal(path).is_readable, (place, byte)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        pytest.param(b"", [("journal.empty", None)], id="empty"),
        pytest.param(sealed(RUN), [("journal.no-run", 1)], id="no run"),
        pytest.param(
            sealed(STARTED._replace(schema=2)), [("journal.newer-version", 1)], id="newer"
        ),
    ],
)
def test_a_file_that_is_no_journal_of_ours_is_not_judged_further(path, content, found):
    path.write_bytes(content)

    assert problems(path) == found
    assert not check_journal(path).is_readable
