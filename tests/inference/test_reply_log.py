"""The file of a run's replies: what was kept is there after a kill, and what is damaged is not."""

import asyncio
import os
import threading
import time
from types import SimpleNamespace

import pytest

from harness.inference import ChatRequest, Message
from harness.inference.reply_store import KeptReplies, ReplyLog


def found(path, *keys, kept=None):
    """What a later process finds, and what it is told, after it has kept texts itself."""
    told = []

    async def main():
        log = ReplyLog(path, troubled=told.append)
        log.keep(kept or {})
        texts = [await log.find(key) for key in keys]
        log.close()
        return texts

    return asyncio.run(main()), told


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.replies"


def test_what_was_kept_is_found_by_a_later_process_and_its_latest_text_counts(path):
    log = ReplyLog(path, troubled=pytest.fail)
    log.keep({"a": "first", "b": "two\nlines"})
    log.keep({"a": "second"})  # and no close: the process was killed
    assert found(path, "a", "b", "c") == (["second", "two\nlines", None], [])
    assert path.stat().st_mode & 0o777 == 0o600, "for its owner alone"
    assert found(path, "a", kept={"a": "third"}) == (["third"], [])
    assert found(path, "a", "b") == (["third", "two\nlines"], [])


def test_without_texts_there_is_no_file_and_without_a_path_they_stay_in_memory(path):
    assert found(path, "a") == ([None], [])
    assert not path.exists()
    assert found(None, "a", kept={"a": "first"}) == (["first"], [])


@pytest.mark.parametrize("cut", range(2, 40, 3))
def test_a_line_that_a_kill_cut_off_is_left_out_and_spoils_no_other(path, cut):
    found(path, kept={"a": "first", "b": "second"})
    os.truncate(path, path.stat().st_size - cut)
    assert found(path, "a", "b", kept={"c": "third"}) == (["first", None], [])
    assert found(path, "a", "b", "c") == (["first", None, "third"], [])


def test_a_damaged_line_is_left_out_and_told(path):
    found(path, kept={"a": "first", "b": "second"})
    path.write_bytes(path.read_bytes().replace(b"first", b"worst"))
    assert found(path, "a", "b") == ([None, "second"], ["1 of its lines are damaged"])


def test_that_texts_cannot_be_kept_is_told_once(tmp_path):
    told = []
    log = ReplyLog(tmp_path / "missing" / "run.replies", troubled=told.append)
    log.keep({"a": "first"})
    log.keep({"b": "second"})
    (reason,) = told
    assert "No such file" in reason


def test_a_search_that_is_cancelled_opens_no_file_after_it_was_closed(path, monkeypatch):
    found(path, kept={"a": "first"})
    begun, may_end = threading.Event(), threading.Event()
    read = ReplyLog._read

    def slow(log):
        begun.set()
        may_end.wait(10)
        return read(log)

    monkeypatch.setattr(ReplyLog, "_read", slow)

    async def main():
        log = ReplyLog(path, troubled=pytest.fail)
        finding = asyncio.create_task(log.find("a"))
        await asyncio.to_thread(begun.wait, 10)
        finding.cancel()
        log.keep({"b": "second"})
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await finding
        log.close()
        assert log._descriptor is None
        path.unlink()

    asyncio.run(main())
    assert not path.exists()


def test_what_cannot_be_opened_is_told_once_by_searching_and_keeping(tmp_path):
    texts, told = found(tmp_path, "a", kept={"a": "first"})  # a directory
    assert texts == [None]
    assert len(told) == 1


def test_equal_calls_are_numbered_in_a_moment_however_many_came_before(path):
    async def call_often() -> None:
        for _ in range(9_000):
            async with replies.slot(call, label="n"):
                pass

    call = ChatRequest(model="m", messages=(Message("user", "a"),))
    trace, began_s = SimpleNamespace(journal_path=path, now_ns=int), time.process_time()
    replies = KeptReplies({}, is_wanted=False, trace=trace, warn=pytest.fail)
    asyncio.run(call_often())
    assert time.process_time() - began_s < 3
