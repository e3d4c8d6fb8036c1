import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_runs import STARTED, load_run, random_spans, sealed, write_journal

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
    SpanEnded,
    SpanRecord,
    SpanStarted,
)
from harness.trace.journal_line import encode, seal
from harness.trace.journal_reader import (
    journal_of,
    next_part,
    part_of,
    part_path,
    paths_beside,
)


def instant(number):
    return Instant(None, "tick", number)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.jsonl"


def test_a_journal_has_its_records_in_order_with_the_two_ends_of_spans_joined(path):
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
        Flows("needs", (1, 2), 3),
        SpanEnded(1, 40),
        SpanEnded(9, 40),  # which has no beginning
        RunEnded(41, "error", "X: y"),
    ]

    journal = write_journal(path, *records)
    run = load_run(path)

    assert (journal.path, journal.started, journal.duration_ns) == (path, STARTED, 41)
    assert journal.ended == run.ended == RunEnded(41, "error", "X: y")
    whole = SpanRecord(1, None, "run", 10, 40)
    second = SpanRecord(3, 1, "chat", 20, 30, "error", "X: y", {"a": 1, "b": 2, "c": 3})
    _, _, first, _, content, token, _, counter, output, *_ = records
    assert list(journal.items()) == [whole, first, second, content, token, counter, output]
    # And again, by two at a time.
    assert list(zip(journal.spans(), journal.spans(), strict=True)) == [
        (one, one) for one in (whole, first, second)
    ]
    assert journal.flows == (Flow("draft", 2, 3), Flow("needs", 1, 3), Flow("needs", 2, 3))
    assert (run.started, run.duration_ns, run.spans) == (STARTED, 41, (whole, first, second))
    assert (run.instants, run.counters, run.outputs) == ((token,), (counter,), (output,))
    assert (run.flows, run.contents) == (journal.flows, {"f00d": "a prompt"})


@pytest.mark.parametrize("kinds", [(SpanRecord,), (Instant, CounterSet), (Content,), (NodeOutput,)])
def test_the_classes_that_are_asked_for_come_alone_and_in_the_same_order(path, kinds):
    main = [SpanStarted(1, None, "run", 10), Content("f00d", "a prompt"), instant(15), instant(25)]
    more = [NodeOutput("plan", None, 1), CounterSet("x", "y", 30, 1), SpanEnded(1, 40)]
    inner = [instant(22), SpanRecord(1, None, "work", 12, 13), Content("beef", "a reply")]
    write_journal(path, *main, *more, RunEnded(41, "ok"))
    further = STARTED._replace(part=1, joined_ns=41)
    write_journal(path.with_suffix(".1.jsonl"), *inner, started=further)
    journal = Journal(path)

    asked = list(journal.items(*kinds))

    assert asked == [item for item in journal.items() if isinstance(item, kinds)] != []
    assert journal.texts({"beef", "f00d", "b0b"}) == {"f00d": "a prompt", "beef": "a reply"}


def test_damage_to_a_line_that_is_not_asked_for_is_an_error_all_the_same(path):
    records = [STARTED, Content("f00d", "a prompt"), SpanRecord(1, None, "run", 10, 20)]
    write_journal(path, *records[1:])
    assert [span.id for span in Journal(path).spans()] == [1]

    path.write_bytes(sealed(*records).replace(b"prompt", b"tromp."))

    with pytest.raises(JournalInvalid) as caught:
        list(Journal(path).spans())
    assert caught.value.line == 2


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


@pytest.mark.parametrize(
    ("records", "spans"),
    [
        pytest.param(
            [
                SpanStarted(1, None, "run", 10),
                SpanStarted(2, 1, "chat", 20),
                SpanEnded(2, 50),
                SpanStarted(3, 1, "chat", 60),
            ],
            [(10, 60, "unfinished"), (20, 50, "ok"), (60, 60, "unfinished")],
            id="until the last moment known",
        ),
        pytest.param(
            [SpanStarted(1, None, "run", 3), RunEnded(10, "ok"), SpanStarted(2, None, "late", 12)],
            [(3, 10, "unfinished"), (12, 12, "unfinished")],
            id="of a thread, when the run was over",
        ),
    ],
)
def test_a_span_that_never_ended_is_unfinished(path, records, spans):
    journal = write_journal(path, *records)

    assert [(one.start_ns, one.end_ns, one.status) for one in journal.spans()] == spans


@pytest.mark.parametrize(
    ("records", "duration_ns"),
    [
        pytest.param([], 0, id="nothing"),
        pytest.param([SpanRecord(1, None, "a", 0, 9), SpanRecord(2, 1, "b", 1, 5)], 9, id="spans"),
        pytest.param([CounterSet("x", "y", 7, 0)], 7, id="a counter"),
        pytest.param([SpanStarted(1, None, "a", 3), SpanEnded(1, 8)], 8, id="the end of a span"),
        pytest.param([instant(5), Content("", ""), Flow("x", 1, 2)], 5, id="what has no time"),
    ],
)
def test_a_killed_run_lasted_until_the_last_thing_in_it(path, records, duration_ns):
    journal = write_journal(path, *records)

    assert (journal.ended, journal.duration_ns) == (None, duration_ns)


def test_a_last_line_that_was_cut_off_is_left_out(path):
    whole, last = sealed(STARTED, instant(1)), sealed(instant(2), first=3)

    for length in range(len(last)):
        path.write_bytes(whole + last[:length])
        assert list(Journal(path).items()) == [instant(1)]


def test_what_is_appended_later_is_not_seen(path):
    journal = write_journal(path, SpanStarted(1, None, "run", 10), instant(20))

    with path.open("ab") as file:
        file.write(sealed(SpanEnded(1, 30), Flow("x", 1, 1), instant(40), first=4))

    (span, tick) = journal.items()
    assert (span.status, span.end_ns, tick.time_ns) == ("unfinished", 20, 20)
    assert journal.flows == ()
    assert [one.end_ns for one in Journal(path).spans()] == [30]


@pytest.mark.parametrize(
    ("broken", "line"),
    [
        pytest.param(b'{"kind":"instant","na\n', 2, id="half a line"),
        pytest.param(b'{"kind":"flow","name":"x"}\n', 2, id="half a flow"),
        pytest.param(b'{"kind":"end","id":}\n', 2, id="a broken end"),
        pytest.param(sealed(instant(1), first=2) + b'{"kind":"dream"}\n', 3, id="an unknown kind"),
        pytest.param(encode(SpanEnded(1, 5)), 2, id="no checksum"),
    ],
)
def test_a_broken_line_in_the_middle_is_named(path, broken, line):
    path.write_bytes(sealed(STARTED) + broken + sealed(instant(2), first=line + 1))

    for read in (lambda: list(Journal(path).items()), lambda: load_run(path)):
        with pytest.raises(JournalInvalid) as caught:
            read()
        assert (caught.value.code, caught.value.path) == ("journal.invalid", path)
        assert caught.value.line == line


NEWER = json.loads(encode(STARTED)) | {"schema": 2, "host": "a field of version 2"}
NEWER_LINE = seal(json.dumps(NEWER).encode() + b"\n", 1)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        pytest.param(b"", "invalid", id="empty"),
        pytest.param(b"\x7fELF\xff\n\xff\n", "invalid", id="a binary"),
        pytest.param(sealed(SpanEnded(1, 0)), "invalid", id="beginning lost"),
        pytest.param(NEWER_LINE + b"{}\n", "newer-version", id="newer"),
    ],
)
def test_a_file_that_is_no_journal_of_ours_is_named(path, content, code):
    with pytest.raises(JournalInvalid) as missing:
        Journal(path)
    assert (missing.value.code, missing.value.line) == ("journal.unreadable", None)
    path.write_bytes(content)

    with pytest.raises(JournalInvalid) as caught:
        Journal(path)

    error = caught.value
    assert (error.code, error.path, error.line) == (f"journal.{code}", path, 1)


# --- files of a run ---------------------------------------------------------------------------

JOURNAL = Path("traces", "my.run.jsonl")


@pytest.mark.parametrize(
    ("name", "journal", "part"),
    [
        ("run.jsonl", "run.jsonl", None),
        ("run.12.jsonl", "run.jsonl", 12),
        (part_path(JOURNAL, 7).name, JOURNAL.name, 7),
        ("run.old.jsonl", "run.old.jsonl", None),
        ("run.2026-01.jsonl", "run.2026-01.jsonl", None),
    ],
)
def test_a_file_says_by_its_name_what_it_is_of_a_run(name, journal, part):
    path = Path("traces", name)

    assert journal_of(path) == Path("traces", journal)
    assert part_of(path, Path("traces", journal)) == part
    assert part_of(path, Path("traces", "another.jsonl")) is None


def test_parts_come_in_order_and_the_next_is_after_the_last(tmp_path):
    journal = tmp_path / "run[1].jsonl"
    assert next_part(journal) == 1
    for name in ("run[1].7-a", "run[1].2", "run[1].10", "run1.3", "run[1]"):
        (tmp_path / f"{name}.jsonl").touch()

    assert [path.name for path in paths_beside(journal)] == [
        "run[1].2.jsonl", "run[1].10.jsonl"
    ]  # fmt: skip
    assert next_part(journal) == 11
