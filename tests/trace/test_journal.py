import json
import subprocess
import sys
import threading

import pytest
from sample_runs import STARTED

from harness.errors import JournalInvalid
from harness.trace import Content, Instant, JournalWriter, RunTrace, load_run, read_journal
from harness.trace.records import encode


def instant(number):
    return Instant(span=None, name="tick", time_ns=number)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.jsonl"


def test_a_record_can_be_read_as_soon_as_it_is_appended(path):
    writer = JournalWriter(path)
    writer.append(STARTED)
    assert list(read_journal(path)) == [STARTED]
    writer.append(instant(1))
    assert list(read_journal(path)) == [STARTED, instant(1)]
    writer.close()


def test_a_journal_is_never_written_over(path):
    path.write_text("something else")

    with pytest.raises(FileExistsError):
        JournalWriter(path)

    assert path.read_text() == "something else"


def test_a_last_line_that_was_cut_off_is_left_out(path):
    whole, last = encode(STARTED) + encode(instant(1)), encode(instant(2))

    for length in range(len(last)):
        path.write_bytes(whole + last[:length])
        assert list(read_journal(path)) == [STARTED, instant(1)]


def test_a_broken_line_in_the_middle_is_named(path):
    path.write_bytes(encode(STARTED) + b'{"kind":"instant","na\n' + encode(instant(2)))

    with pytest.raises(JournalInvalid) as caught:
        list(read_journal(path))

    assert (caught.value.path, caught.value.line) == (path, 2)
    assert str(caught.value).startswith(f"{path}:2: ")


def test_a_journal_of_a_newer_version_is_refused_with_the_remedy(path):
    newer = json.loads(encode(STARTED)) | {"schema": 2, "host": "a field of version 2"}
    path.write_text(json.dumps(newer) + '\n{"kind":"a kind of version 2"}\n')

    with pytest.raises(JournalInvalid) as caught:
        list(read_journal(path))

    assert str(caught.value) == (
        f"{path}:1: written by a newer version (schema 2, this one reads up to 1); "
        "upgrade wiggum-harness to read it"
    )


def test_what_comes_after_the_end_is_dropped(path, tmp_path):
    writer = JournalWriter(path)
    writer.append(STARTED)
    writer.close()
    # This file gets the number that the journal had with the operating system.
    with (tmp_path / "another").open("wb"):
        writer.append(instant(1))

    assert writer.failure is None
    assert list(read_journal(path)) == [STARTED]
    assert (tmp_path / "another").read_bytes() == b""


def test_records_of_threads_do_not_mix(path):
    writer = JournalWriter(path)
    texts = [str(number) * 50_000 for number in range(8)]

    def write(text):
        for _ in range(10):
            writer.append(Content(sha256="", text=text))

    threads = [threading.Thread(target=write, args=[text]) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()

    assert sorted(record.text for record in read_journal(path)) == sorted(texts * 10)


SIZE_LIMITED_RUN = """
import resource, sys
from pathlib import Path
from harness.trace import RunTrace

resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
with RunTrace(Path(sys.argv[1]), name="limited") as trace:
    done = 0
    for number in range(100):
        with trace.span("step", number=number):
            done += 1
print(done, trace.record)
"""


def test_a_run_outlives_a_file_that_may_not_grow(tmp_path):
    pytest.importorskip("resource", reason="file sizes cannot be limited here")

    done = subprocess.run(
        [sys.executable, "-c", SIZE_LIMITED_RUN, tmp_path],
        capture_output=True,
        text=True,
        check=True,
    )

    *warnings, result = done.stdout.splitlines()
    assert result == "100 None"
    assert ["the journal is incomplete" in warning for warning in warnings] == [True]
    (journal,) = tmp_path.iterdir()  # and no Chrome trace of half a run
    spans = load_run(journal).spans
    assert 0 < len(spans) < 100
    assert [span.attributes["number"] for span in spans] == list(range(len(spans)))


KILLED_RUN = """
import sys
from pathlib import Path
from harness.trace import RunTrace

with RunTrace(Path(sys.argv[1]), name="killed") as trace:
    with trace.span("run"):
        with trace.span("draft"):
            trace.instant("written", text="ü" * 10_000)
        with trace.span("chat", model="small") as chat:
            chat.set(output_tokens=3)
            print("in the middle", flush=True)
            sys.stdin.read()
"""


def test_a_killed_process_leaves_its_open_spans_unfinished(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", KILLED_RUN, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "in the middle\n"
        process.kill()

    (journal,) = tmp_path.iterdir()
    run = load_run(journal)
    assert run.ended is None
    assert {span.name: span.status for span in run.spans} == {
        "run": "unfinished",
        "draft": "ok",
        "chat": "unfinished",
    }
    run_span, draft, chat = run.spans
    assert chat.attributes == {"model": "small"}  # what was set was not yet written
    # They reach to the last thing that is known.
    assert run_span.end_ns == chat.end_ns == chat.start_ns >= draft.end_ns
    assert run.instants[0].attributes == {"text": "ü" * 10_000}


def test_a_run_can_be_read_while_it_goes_on(tmp_path):
    with RunTrace(tmp_path, name="going on") as trace, trace.span("run"):
        assert [span.status for span in load_run(trace.journal_path).spans] == ["unfinished"]
