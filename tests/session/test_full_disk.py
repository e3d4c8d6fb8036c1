"""A run whose journal cannot be written any more."""

import errno
import os
from contextlib import contextmanager

import pytest
from session_runs import codes, run, settings_of, spans_of

from harness import Pipeline, Run, ScriptedBackend
from harness.trace import Journal

resource = pytest.importorskip("resource", reason="file sizes cannot be limited here")


@contextmanager
def room_for(size):
    """No file of this process grows beyond a size, as on a disk that is full."""
    _, most = before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def steps(count):
    """A pipeline that asks a model so often, one question after the other."""
    pipeline = Pipeline("steps")

    @pipeline.node
    async def asks(run: Run) -> list[str]:
        return [await run.chat("producer", f"{number} " + "x" * 500) for number in range(count)]

    @pipeline.node
    def after(asks: list[str]) -> int:
        return len(asks)

    return pipeline


def answering(count):
    return ScriptedBackend(["yes"] * count)


def test_a_run_whose_journal_is_full_begins_no_further_call(tmp_path):
    backend = answering(40)

    with room_for(6000):
        result = run(steps(40), settings_of(tmp_path), backends={"producer": backend})

    assert result.status == "stopped"
    assert "trace.journal-incomplete" in codes(result.warnings)
    written = len(spans_of(result, "chat"))
    assert 0 < written <= len(backend.requests) <= written + 1
    assert os.strerror(errno.EFBIG) in result.stopped_by


def test_it_goes_on_without_a_record_where_the_settings_say_so_and_the_result_says_it(tmp_path):
    backend = answering(40)
    settings = settings_of(tmp_path, trace={"on_failure": "continue"})

    with room_for(6000):
        result = run(steps(40), settings, backends={"producer": backend})

    assert (result.status, result.result) == ("finished", 40)
    assert "trace.journal-incomplete" in codes(result.warnings)


def test_a_stopped_run_goes_on_from_what_was_written_once_there_is_room(tmp_path):
    backend = answering(80)
    settings = settings_of(tmp_path)
    with room_for(6000):
        stopped = run(steps(40), settings, backends={"producer": backend})

    resumed = run(steps(40), settings, backends={"producer": backend}, resume=stopped.run_id)

    assert (resumed.status, resumed.result) == ("finished", 40)
    assert Journal(resumed.files.journal).parts == 2


def test_no_node_begins_either_that_asks_no_model(tmp_path):
    called = []
    pipeline = Pipeline("plain")

    @pipeline.node
    def long() -> str:
        return "x" * 9000

    @pipeline.node
    def after(long: str) -> str:
        called.append(long)
        return long

    with room_for(6000):
        result = run(pipeline, settings_of(tmp_path))

    assert (result.status, called) == ("stopped", [])
