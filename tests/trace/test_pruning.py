"""Runs that are removed or packed: which, and that nothing is left half done."""

import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_runs import write_random_run
from sample_runs import STARTED, journal_lines, sealed, span

from harness.errors import InvalidInput, JournalInvalid
from harness.trace import (
    AUDIT_LOG,
    Instant,
    Journal,
    RunEnded,
    RunTrace,
    SpanEnded,
    SpanStarted,
    append_line,
    dump_json,
    list_runs,
)
from harness.trace.journal_reader import is_packed
from harness.trace.pruning import (
    StoredRun,
    can_pack,
    note_pruned,
    pack_run,
    remove_run,
    runs_to_remove,
    stored_runs,
)
from harness.trace.run_list import find_journal
from harness.trace.run_trace import RunLock

DAY_S = 86_400


def name(number):
    return f"20260102T030405Z-{number:012x}"


def store(directory, number, *, final="PASS", begun=None, ended=True, age_s=0):
    """A run of two parts, with timelines, and a line in the audit log."""
    journal = directory / f"{name(number)}.jsonl"
    started = STARTED._replace(run_id=name(number))
    part = started._replace(part=1, joined_ns=50)
    beginning = [] if begun is None else [Instant(None, "pipeline", 1, begun)]
    end = [RunEnded(90, "ok")] if ended else []
    open_span = [SpanStarted(1, None, "node", 5), span(2, 6, 8), SpanEnded(1, 40)]
    journal.write_bytes(sealed(started, *beginning, *open_span))
    journal.with_suffix(".1.jsonl").write_bytes(sealed(part, *beginning, span(1, 55, 80), *end))
    journal.with_suffix(".json").write_text("{}")
    journal.with_suffix(".replies").write_text("wal")
    for path in directory.glob(f"{name(number)}.*"):
        os.utime(path, (time.time() - age_s,) * 2)
    if ended:
        line = {"run_id": name(number), "timestamp": "2026-01-02T03:04:05Z", "final": final}
        append_line(directory / AUDIT_LOG, dump_json(line) + b"\n")
    return journal


def stored(directory, keep=()):
    return {run.run_id: run for run in stored_runs(directory, list_runs(directory), keep=keep)}


def test_all_files_of_a_run_go_and_no_others(tmp_path):
    store(tmp_path, 1)
    kept = store(tmp_path, 2)
    for other in ("notes.jsonl", "outputs.sqlite", ".machine.json", f"{name(1)}0.json"):
        (tmp_path / other).write_text("{}")
    copy = tmp_path / "mine.jsonl"
    copy.write_bytes(kept.read_bytes())
    runs = stored(tmp_path)
    assert [*runs] == [name(1), name(2)]  # a copy with a name of its own is nobody's
    assert len(runs[name(1)].paths) == 4

    assert remove_run(runs[name(1)])

    left = {path.name.partition(".")[0] for path in tmp_path.iterdir()}
    assert left == {"", name(2), "notes", "outputs", f"{name(1)}0", "mine", "runs"}
    with pytest.raises(InvalidInput, match="no run"):
        find_journal(name(1), lambda: tmp_path)
    assert not remove_run(runs[name(1)])  # another command was quicker


def test_a_removed_run_is_gone_in_the_list_until_it_is_dropped(tmp_path):
    store(tmp_path, 1)
    store(tmp_path, 2)
    remove_run(stored(tmp_path)[name(1)])
    assert [(line.run_id, line.is_gone) for line in list_runs(tmp_path)] == [
        (name(1), True),
        (name(2), False),
    ]

    note_pruned(tmp_path, [line for line in list_runs(tmp_path) if line.is_gone])

    assert [line.run_id for line in list_runs(tmp_path)] == [name(2)]
    assert [line.run_id for line in list_runs(tmp_path, latest=1)] == [name(2)]
    store(tmp_path, 1, final="ERROR")  # it came back, of a backup, and went on
    assert [line.final for line in list_runs(tmp_path)] == ["PASS", "ERROR"]


def test_a_run_that_goes_on_is_left_alone(tmp_path):
    journal = store(tmp_path, 1)
    run = stored(tmp_path)[name(1)]
    lock = RunLock(journal)
    try:
        assert (remove_run(run), pack_run(run)) == (False, None)
    finally:
        lock.release()
    further = journal.with_suffix(".2.jsonl")
    further.write_bytes(sealed(STARTED._replace(run_id=name(1), part=2, joined_ns=95)))
    assert (remove_run(run), pack_run(run)) == (False, None)  # it was resumed meanwhile
    assert not is_packed(journal)


def test_a_run_in_this_process_is_going(tmp_path):
    with RunTrace(tmp_path, name="essay") as trace:
        trace.flush()
        (run,) = stored(tmp_path).values()
        assert (run.final, run.kept) == ("GOING", "going")
    (run,) = stored(tmp_path).values()
    assert run.kept == "going"  # it may get its line in the audit log yet
    os.utime(trace.journal_path, (time.time() - 61,) * 2)
    (run,) = stored(tmp_path).values()
    assert run.kept is None


def test_a_run_that_ends_while_it_is_looked_at_is_left_alone(tmp_path):
    with RunTrace(tmp_path, name="essay") as trace:
        trace.flush()
        os.utime(trace.journal_path, (time.time() - DAY_S,) * 2)
        (run,) = stored_runs(tmp_path, [], keep=())
        assert not remove_run(run)  # its lock is held, whatever the list says
    assert (remove_run(run), pack_run(run)) == (False, None)
    here = {path.name for path in tmp_path.iterdir()}
    assert here == {f"{trace.run_id}{end}" for end in (".jsonl", ".json", ".pftrace")}


@pytest.mark.parametrize("change", ["begun", "gone"])
def test_a_run_whose_parts_changed_since_it_was_listed_is_left_alone(tmp_path, change):
    journal = store(tmp_path, 1, age_s=DAY_S)
    (part,) = set(stored(tmp_path)[name(1)].journals) - {journal}
    run = stored(tmp_path)[name(1)]
    if change == "gone":
        part.unlink()
    else:
        shutil.copy2(part, journal.with_suffix(".2.jsonl"))
    assert (remove_run(run), pack_run(run), journal.exists()) == (False, None, True)


def test_to_remove_a_run_its_directory_is_not_read_again(tmp_path):
    for number in range(4):
        store(tmp_path, number, age_s=DAY_S)
    runs = [*stored(tmp_path).values()]
    called = list[object]()
    sys.setprofile(lambda _frame, _event, function: called.append(function))
    try:
        assert all(map(remove_run, runs))
    finally:
        sys.setprofile(None)
    assert os.unlink in called
    assert os.scandir not in called
    assert os.listdir not in called


def test_timelines_that_were_drawn_since_the_list_go_with_their_run(tmp_path):
    journal = store(tmp_path, 1)
    run = stored(tmp_path)[name(1)]
    journal.with_suffix(".pftrace").write_bytes(b"prompts")
    assert remove_run(run)
    assert [path.name for path in tmp_path.iterdir()] == [AUDIT_LOG]


def test_files_that_are_left_of_a_run_go_when_they_are_old(tmp_path):
    store(tmp_path, 1, age_s=2 * DAY_S).unlink()
    store(tmp_path, 2).unlink()
    back = store(tmp_path, 3, age_s=2 * DAY_S)
    aside = back.replace(tmp_path / "aside")
    (tmp_path / "mine.json").write_text("{}")
    os.utime(tmp_path / "mine.json", (0, 0))
    runs = [*stored(tmp_path).values()]
    assert [run.run_id for run in runs] == [name(1), name(2), name(3)]
    removed, _ = runs_to_remove(runs, older_s=DAY_S, size_bytes=None, now_s=time.time())
    aside.replace(back)  # of a backup
    assert [remove_run(run) for run in removed] == [True, False]
    left = {path.name.partition(".")[0] for path in tmp_path.iterdir()}
    assert left == {name(2), name(3), "mine", "runs"}


@pytest.mark.parametrize(
    ("final", "keep", "kept"),
    [
        ("ERROR", ["failed"], "failed"),
        ("FAIL", ["failed"], "failed"),
        ("PASS", ["failed", "unfinished"], None),
        ("WAITING", ["failed"], None),
        ("WAITING", ["unfinished"], "unfinished"),
        ("ERROR", [], None),
    ],
)
def test_runs_are_kept_by_how_they_ended(tmp_path, final, keep, kept):
    store(tmp_path, 1, final=final)
    assert stored(tmp_path, keep)[name(1)].kept == kept


def test_a_run_is_kept_as_long_as_its_batch_names_it(tmp_path):
    state = tmp_path / "out" / "out.jsonl.batch"
    begun = {"pipeline": "batch x", "content": "full", "is_batch": True, "batch_state": str(state)}
    store(tmp_path, 1, begun=begun)

    def kept():
        run = stored(tmp_path)[name(1)]
        return run.kept, run.batch_state

    assert kept() == ("batch", str(state))  # its folder may be on another machine
    state.parent.mkdir()
    assert kept() == (None, None)
    for text in (json.dumps({"run": name(1)}), "torn {"):
        state.write_text(text)
        assert kept() == ("batch", str(state))
    state.write_text(json.dumps({"run": name(2)}))
    assert kept() == (None, None)
    store(tmp_path, 1, begun={"is_batch": True, "batch_state": ""})  # it kept no output
    assert kept() == (None, None)
    store(tmp_path, 1, begun={"is_batch": True})  # of an earlier version
    assert kept() == ("batch", None)
    store(tmp_path, 1, begun={"is_batch": False})
    assert kept() == (None, None)


def test_a_damaged_beginning_keeps_a_run(tmp_path):
    journal = store(tmp_path, 1, begun={"is_batch": True, "batch_state": "/out.jsonl.batch"})
    for path in (journal, journal.with_suffix(".1.jsonl")):
        path.write_bytes(path.read_bytes().replace(b"/out", b"/oat"))
    assert stored(tmp_path)[name(1)].kept == "cannot be read"


@pytest.mark.parametrize("damage", ["packed and cut", "garbage", "of a later version"])
def test_a_run_that_cannot_be_read_stays(tmp_path, damage):
    journal = store(tmp_path, 1, ended=False, age_s=2 * DAY_S)
    later = sealed(STARTED._replace(schema=99))
    packed = gzip.compress(journal.read_bytes())[:30]
    data = {"packed and cut": packed, "garbage": b"\xff\x00 no\n{}\n", "of a later version": later}
    journal.write_bytes(data[damage])
    os.utime(journal, (time.time() - 2 * DAY_S,) * 2)
    (run,) = stored(tmp_path, ["failed"]).values()
    assert (run.kept, can_pack(run)) == ("cannot be read", False)


def test_a_run_that_was_killed_before_its_first_record_goes_like_any_other(tmp_path):
    store(tmp_path, 1, ended=False, age_s=2 * DAY_S).write_bytes(b"")
    os.utime(tmp_path / f"{name(1)}.jsonl", (time.time() - 2 * DAY_S,) * 2)
    (run,) = stored(tmp_path).values()
    assert run.kept is None
    assert remove_run(run)
    assert not list(tmp_path.iterdir())
    assert [*stored_runs(tmp_path, [], keep=())] == []


def run_of(number, *, size_bytes, changed_s, kept=None):
    path = Path(f"{name(number)}.jsonl")
    return StoredRun(
        journal=path,
        final="PASS",
        paths=(path,),
        size_bytes=size_bytes,
        changed_s=changed_s,
        kept=kept,
    )


@given(
    st.lists(
        st.tuples(
            st.integers(0, 9), st.integers(0, 40 * DAY_S), st.sampled_from([None, None, "batch"])
        )
    ),
    st.none() | st.integers(0, 40 * DAY_S),
    st.none() | st.integers(0, 60),
)
def test_the_oldest_go_until_the_rest_is_small_and_young_enough(rows, older_s, size_bytes):
    runs = [
        run_of(n, size_bytes=size, changed_s=-age_s, kept=kept)
        for n, (size, age_s, kept) in enumerate(rows)
    ]
    removed, kept = runs_to_remove(runs, older_s=older_s, size_bytes=size_bytes, now_s=0)
    rest = [run for run in runs if run not in removed]

    assert all(run.kept is None for run in removed)
    assert all(run.kept is not None for run in kept)
    if older_s is not None:
        assert all(run.kept is None or run in kept for run in runs if -run.changed_s > older_s)
    free = [run for run in rest if run.kept is None]
    assert all(old.changed_s <= young.changed_s for old in removed for young in free)
    if older_s is not None:
        assert all(-run.changed_s <= older_s for run in free)
    total = sum(run.size_bytes for run in rest)
    if size_bytes is not None:
        assert total <= size_bytes or not free
    if removed:  # none too many
        last = max(removed, key=lambda run: run.changed_s)
        is_old = older_s is not None and -last.changed_s > older_s
        assert is_old or (size_bytes is not None and total + last.size_bytes > size_bytes)


# --- packed -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_a_packed_journal_is_read_as_it_was(tmp_path, seed):
    path = tmp_path / f"{name(1)}.jsonl"
    before = write_random_run(path, seed)
    items, flows, last_ns = list(before.items()), before.flows, before.last_ns
    data, times = path.read_bytes(), path.stat().st_mtime_ns

    run = run_of(1, size_bytes=0, changed_s=path.stat().st_mtime)
    pack_run(replace(run, journal=path, paths=(path,)))

    assert gzip.decompress(path.read_bytes()) == data
    assert (path.stat().st_mtime_ns, path.stat().st_mode & 0o777) == (times, 0o600)
    after = Journal(path)
    assert dump_json(list(after.items())) == dump_json(items)
    assert (after.flows, after.last_ns) == (flows, last_ns)


def test_all_parts_are_packed_and_the_run_goes_on_in_a_further_one(tmp_path):
    journal = store(tmp_path, 1, begun={"is_batch": False}, age_s=DAY_S)
    partial = tmp_path / f".{journal.name}.00c0ffee.partial"
    partial.write_text("of a kill")
    before = list(Journal(journal).items())
    run = stored(tmp_path)[name(1)]
    assert can_pack(run)

    size = pack_run(run)

    after = stored(tmp_path)[name(1)]
    assert (size, after.changed_s) == (after.size_bytes, run.changed_s)
    assert all(map(is_packed, after.journals))
    assert not can_pack(after)
    assert not partial.exists()
    assert list(Journal(journal).items()) == before
    assert [(line.run_id, line.final) for line in list_runs(tmp_path)] == [(name(1), "PASS")]
    with RunTrace(tmp_path, name="essay", resume=journal) as further:
        further.instant("more")
    assert journal_lines(journal.with_suffix(".2.jsonl"))
    assert len(list(Journal(journal).items())) == len(before) + 2
    assert [line.name for line in Journal(journal).items(Instant)][-2:] == ["resumed", "more"]


def test_a_file_beside_a_run_that_is_no_part_of_it_holds_up_nothing(tmp_path):
    journal = store(tmp_path, 1, age_s=2 * DAY_S)
    journal.with_suffix(".scores.jsonl").write_text("{}")  # newer than the journal
    journal.with_suffix(".1.bak").write_text("a copy")
    assert {path.suffix for path in stored(tmp_path)[name(1)].journals} == {".jsonl"}
    store(tmp_path, 2, age_s=2 * DAY_S)
    (tmp_path / f"{name(2)}.77-00c0ffee0bad.jsonl").write_bytes(sealed(STARTED))
    assert [line.final for line in list_runs(tmp_path)] == ["PASS", "PASS"]
    assert remove_run(stored(tmp_path)[name(1)])
    assert not list(tmp_path.glob(f"{name(1)}*"))


def test_a_run_without_a_line_in_the_audit_log_is_packed_and_counts_as_killed(tmp_path):
    with pytest.raises(KeyError), RunTrace(tmp_path, name="own") as trace:
        raise KeyError
    os.utime(trace.journal_path, (time.time() - 2 * DAY_S,) * 2)
    (run,) = stored(tmp_path, keep=["failed"]).values()
    assert can_pack(run)
    assert run.kept == "failed"


def test_a_killed_run_is_not_packed(tmp_path):
    store(tmp_path, 1, ended=False)
    run = stored(tmp_path)[name(1)]
    assert (run.final, can_pack(run)) == ("KILLED", False)


@pytest.mark.parametrize("cut", [5, 40, -3])
def test_damage_of_a_packed_journal_is_an_error_in_words(tmp_path, cut):
    journal = store(tmp_path, 1)
    pack_run(stored(tmp_path)[name(1)])
    journal.write_bytes(journal.read_bytes()[:cut])
    with pytest.raises(JournalInvalid, match=r":\d+: ") as caught:
        list(Journal(journal).items())
    assert "None" not in str(caught.value)
    assert caught.value.line


def test_a_lock_on_a_file_that_was_replaced_holds_nothing(tmp_path, monkeypatch):
    journal = store(tmp_path, 1)
    real_open = os.open

    def replaced(path, *how, **more):
        descriptor = real_open(path, *how, **more)
        monkeypatch.setattr(os, "open", real_open)
        pack_run(stored(tmp_path)[name(1)])
        return descriptor

    monkeypatch.setattr(os, "open", replaced)
    with pytest.raises(InvalidInput, match="still going"):
        RunLock(journal)


# --- killed -----------------------------------------------------------------------------------


def state_of_run(directory, number, whole):
    """Whether a run is whole; False if it is gone."""
    journal = directory / f"{name(number)}.jsonl"
    if not journal.exists():
        with pytest.raises(InvalidInput):
            find_journal(name(number), lambda: directory)
        return False
    here = {path.name for path in directory.glob(f"{name(number)}.*")}
    assert here == {path.replace(name(0), name(number)) for path in whole}
    assert len(list(Journal(journal).items())) == 3
    assert Journal(journal).ended
    return True


@pytest.mark.slow
def test_a_command_that_is_killed_leaves_each_run_whole_or_gone(tmp_path):
    chance, middles, removals = random.Random(0), 0, 0
    for kill in range(30):
        directory = tmp_path / str(kill)
        directory.mkdir()
        for number in range(120):
            # The younger half stays, and is packed.
            store(directory, number, age_s=2 * DAY_S if number < 60 else 0)
        whole = {path.name for path in directory.glob(f"{name(0)}.*")}
        options = ["--older", "1d", "--compress", "--traces", str(directory)]
        code = "from harness.cli.main import main; main()"
        with subprocess.Popen(
            [sys.executable, "-c", code, "runs", "prune", *options],
            stdout=subprocess.DEVNULL,
            cwd=directory,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        ) as process:
            while process.poll() is None and (directory / f"{name(0)}.jsonl").exists():
                time.sleep(0.001)
            time.sleep(chance.random() ** 3 * 0.25)  # often soon: removing takes little
            process.send_signal(signal.SIGKILL)
        states = [state_of_run(directory, number, whole) for number in range(120)]
        assert all(states[60:])
        packed = [is_packed(directory / f"{name(number)}.jsonl") for number in range(60, 120)]
        middles += 0 < sum(packed) < 60
        removals += sum(states) > 60
        listed = {line.run_id for line in list_runs(directory) if not line.is_gone}
        assert listed == {name(number) for number, state in enumerate(states) if state}

        # What it left of a run that is gone is as old as that was.
        runs = [run for run in stored(directory).values() if run.journal not in run.paths]
        gone, _ = runs_to_remove(runs, older_s=DAY_S / 2, size_bytes=None, now_s=time.time())
        assert all(map(remove_run, gone))
        left = {path.name.lstrip(".").partition(".")[0] for path in directory.iterdir()}
        assert left == listed | {"runs"}
        for run in stored(directory).values():
            pack_run(run)
        assert not [path for path in directory.iterdir() if path.name.endswith("partial")]
    assert min(middles, removals) > 0, (middles, removals)
