"""A run whose journal cannot be written any more."""

import asyncio
import errno
import os
from contextlib import contextmanager

import pytest
from sample_runs import load_run
from servers.openai_api import OpenAIAPI
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


def test_calls_that_wait_for_a_place_are_not_sent_once_the_journal_is_full(tmp_path):
    async def main():
        async with OpenAIAPI() as server:
            endpoint = {"tag": "p", "url": server.url, "max_parallel": 1}
            settings = settings_of(tmp_path, endpoints={"p": endpoint}, roles={"producer": "p"})
            pipeline = Pipeline("many")

            @pipeline.node
            async def asks(run: Run) -> list[str]:
                async def ask(number: int) -> str:
                    return await run.chat("producer", f"{number} " + "x" * 500)

                return await run.map(ask, range(60))

            result = await pipeline.run_async({}, settings=settings)
            return result, sum("/chat" in one.path for one in server.asked)

    with room_for(60_000):
        result, sent = asyncio.run(main())

    assert result.status == "stopped"
    assert "under way" in result.stopped_by
    spans = load_run(result.files.journal).spans
    written = sum(one.name == "chat" and one.status == "ok" for one in spans)
    assert 0 < written <= sent <= written + 1
    assert result.spent.calls == sent, "what never left is not counted"
