"""Sessions: what runs share, what each has of its own, and how both end."""

from __future__ import annotations

import asyncio
import gc
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from embedding_backend import EmbeddingBackend
from session_runs import (
    Charging,
    codes,
    idle,
    lines_of,
    pipeline_of,
    refused,
    settings_of,
    spans_of,
)

import harness
from harness import Limits, NodeFailed, Run, ScriptedBackend
from harness.errors import EndpointUnreachable, ServerError
from harness.memory import MemoryStore
from harness.session.settings import TraceSettings, demo_endpoint
from harness.trace import Journal


@pytest.fixture
def settings(tmp_path):
    return settings_of(tmp_path)


class Closing(ScriptedBackend):
    """Answers with the prompt, and knows how often it was closed."""

    def __init__(self):
        super().__init__(lambda request: request.messages[-1].content)
        self.closed = 0

    async def aclose(self):
        self.closed += 1


class Hanging(ScriptedBackend):
    """Answers nothing, until it is let go."""

    def __init__(self):
        super().__init__(["late"] * 100)
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()

    async def chat(self, request):
        self.begun.set()
        await self.may_end.wait()
        return await super().chat(request)


async def said(run: Run, task: str) -> str:
    return await run.chat("producer", task)


saying = pipeline_of(said)


def inside(settings, work, **options):
    """What comes of work inside a session."""

    async def main():
        async with harness.open(settings=settings, **options) as session:
            return await work(session)

    return asyncio.run(main())


# --- what is shared, and what is not --------------------------------------------------------------


def test_runs_share_their_models_and_each_has_its_own_journal_and_line(settings):
    backend = Closing()

    async def work(session):
        first = await session.run(saying, task="one")
        both = await asyncio.gather(*(session.run(saying, {"task": t}) for t in ("two", "three")))
        assert backend.closed == 0
        return [first, *both]

    results = inside(settings, work, backends={"producer": backend})

    assert [result.result for result in results] == ["one", "two", "three"]
    assert [result.spent.calls for result in results] == [1, 1, 1]
    assert backend.closed == 1
    assert {line["run_id"] for line in lines_of(settings)} == {one.run_id for one in results}
    for result in results:
        assert [span["model"] for span in spans_of(result, "chat")] == ["producer"]


def test_a_run_that_fails_leaves_the_others_and_the_session_as_they_were(settings):
    class Refusing(Closing):
        async def chat(self, request):
            if request.messages[-1].content == "bad":
                raise ServerError("broken", endpoint="producer", status=400)
            return await super().chat(request)

    async def work(session):
        with pytest.raises(NodeFailed) as caught:
            await session.run(saying, task="bad")
        return caught.value.result, await session.run(saying, task="good")

    failed, good = inside(settings, work, backends={"producer": Refusing()})
    assert (failed.status, good.result) == ("failed", "good")


def test_warnings_and_roles_are_each_runs_own(settings):
    async def planned(run: Run) -> str:
        return await run.chat("planner", "Plan.")

    async def work(session):
        return [await session.run(pipeline) for pipeline in (pipeline_of(planned), idle())]

    chosen = settings.model_copy(update={"roles": {"producer": "producer", "critic": "producer"}})
    first, second = inside(chosen, work, backends={"producer": ScriptedBackend(["plan"])})
    assert codes(first.warnings) == ["roles.played-by-producer"]
    assert second.warnings == ()


def test_documents_are_kept_in_one_store_or_with_each_run_if_it_has_no_path(tmp_path):
    async def kept(run: Run, text: str) -> int:
        if text:
            await run.remember(text, source="notes.md")
        return len(await run.recall("green tea"))

    async def work(session):
        pipeline = pipeline_of(kept)
        return [(await session.run(pipeline, text=t)).result for t in ("Green tea, 3 min.", "")]

    assert inside(settings_of(tmp_path), work, backends={}) == [1, 0]
    path = tmp_path / "memory"
    assert inside(settings_of(tmp_path, memory={"path": path}), work, backends={}) == [1, 1]


def test_vectors_are_paid_by_the_run_that_asks_for_them(tmp_path):
    settings = settings_of(tmp_path, memory={"path": tmp_path / "memory", "embedder": "vectors"})

    async def kept(run: Run, text: str) -> int:
        await run.remember(text, source="notes.md")
        return len(await run.recall("tea", mode="vector"))

    async def work(session):
        pipeline = pipeline_of(kept)
        runs = [await session.run(pipeline, text=f"Tea number {n}.") for n in range(3)]
        return [one.spent.calls for one in runs], session.spent().calls

    calls, together = inside(settings, work, backends={"vectors": EmbeddingBackend()})
    assert len(set(calls[1:])) == 1
    assert calls[1] >= 2, "to remember, and to recall"
    assert together >= sum(calls)


def test_a_store_that_could_not_be_opened_once_is_opened_by_the_next_run(tmp_path, monkeypatch):
    settings = settings_of(tmp_path, memory={"path": tmp_path / "memory"})

    async def kept(run: Run) -> int:
        return len(await run.recall("tea"))

    async def work(session):
        pipeline = pipeline_of(kept)
        with monkeypatch.context() as broken:
            broken.setattr(MemoryStore, "__len__", lambda _: 1 / 0)
            with pytest.raises(NodeFailed):
                await session.run(pipeline)
        return (await session.run(pipeline)).result

    assert inside(settings, work, backends={}) == 0


def test_what_the_store_asks_by_itself_is_counted_too(tmp_path):
    settings = settings_of(tmp_path, memory={"path": tmp_path / "memory", "embedder": "vectors"})
    backend = EmbeddingBackend()

    async def kept(run: Run) -> int:
        return len(await run.remember("Tea, three minutes.", source="notes.md"))

    async def work(session):
        await session.run(pipeline_of(kept))
        return session.spent().calls

    assert inside(settings, work, backends={"vectors": backend}) == len(backend.embedded)


def test_an_observer_of_all_runs_is_no_option_of_one(settings):
    heard = []

    async def counts(observers: int = 3) -> int:
        return observers

    async def work(session):
        return (await session.run(pipeline_of(counts))).result

    assert inside(settings, work, backends={}, observers=[heard.append]) == 3
    assert heard


# --- limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "tenants", "statuses"),
    [
        ({"limits": Limits(max_calls=2)}, "aab", ["finished", "finished", "stopped"]),
        ({"tenants": Limits(max_calls=1)}, "aab", ["finished", "stopped", "finished"]),
        ({"tenants": {"a": Limits(max_cost_usd=0.3), "b": Limits()}}, "aaabb",
         ["finished", "finished", "stopped", "finished", "finished"]),
    ],
    ids=["all runs", "each tenant", "by name"],
)  # fmt: skip
def test_limits_hold_over_runs(settings, options, tenants, statuses):
    async def work(session):
        runs = [await session.run(saying, task="Say it.", tenant=one) for one in tenants]
        return runs, session.spent().calls, session.spent("a").calls

    backends = {"producer": Charging(["It."] * 9)}
    runs, calls, of_a = inside(settings, work, backends=backends, **options)
    assert [one.status for one in runs] == statuses
    assert calls == statuses.count("finished")
    assert of_a == sum(
        one.spent.calls for one, name in zip(runs, tenants, strict=True) if name == "a"
    )
    (stopped,) = [one.stopped_by for one in runs if one.status == "stopped"]
    option = "limits" if "limits" in options else "tenants"
    assert f"harness.open({option}=...)" in stopped


@pytest.mark.parametrize(
    ("options", "how", "code"),
    [
        ({"limits": Limits(max_seconds=1)}, {}, "session.limit-on-time"),
        ({"tenants": {"a": Limits(max_seconds=1)}}, {}, "session.limit-on-time"),
        ({"limits": 3}, {}, "pipeline.limits-invalid"),
        ({"tenants": {"acme": Limits()}}, {"tenant": "acne"}, "session.tenant-unknown"),
        ({}, {"settings": harness.Settings()}, "session.option-of-session"),
        ({}, {"backends": {}}, "session.option-of-session"),
        ({"tenants": 5}, {}, "session.tenants-invalid"),
        ({"observers": print}, {}, "pipeline.observers-invalid"),
        ({}, {"observers": [5]}, "pipeline.observers-invalid"),
        ({}, {"tenant": 5}, "session.tenant-not-text"),
    ],
)
def test_what_cannot_be_is_refused(settings, options, how, code):
    async def work(session):
        await session.run(saying, {"task": ""}, **how)

    with refused(code):
        inside(settings, work, backends={"producer": Closing()}, **options)


def test_only_pipelines_and_mappings_of_inputs_are_run(settings):
    async def work(session):
        with refused("session.not-a-pipeline"):
            await session.run("said")
        with refused("pipeline.inputs-not-mapping"):
            await session.run(saying, ["task"])

    inside(settings, work, backends={"producer": Closing()})


# --- how runs and sessions end --------------------------------------------------------------------


def test_a_session_that_ends_cancels_its_runs_which_can_be_resumed(settings):
    async def main():
        hanging = Hanging()
        async with harness.open(settings=settings, backends={"producer": hanging}) as session:
            runs = [asyncio.create_task(session.run(saying, task=t)) for t in ("one", "two")]
            await hanging.begun.wait()
        assert all(one.cancelled() for one in runs)
        with refused("session.closed"):
            await session.run(saying, task="late")
        async with harness.open(settings=settings, backends={"producer": Closing()}) as session:
            names = [line["run_id"] for line in lines_of(settings)]
            return [await session.run(saying, resume=name) for name in names]

    assert sorted(one.result for one in asyncio.run(main())) == ["one", "two"]


def test_a_session_ends_with_its_runs_and_not_with_who_asked_for_them(settings):
    async def main():
        hanging, lingers = Hanging(), asyncio.Event()

        async def handler(session):
            try:
                await session.run(saying, task="one")
            finally:
                await lingers.wait()

        async with harness.open(settings=settings, backends={"producer": hanging}) as session:
            task = asyncio.create_task(handler(session))
            await hanging.begun.wait()
        assert not task.done()
        lingers.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(main(), 30))


def test_what_closing_fails_by_is_raised_by_a_synchronous_session_too(settings):
    class Stuck(Closing):
        async def aclose(self):
            raise OSError("stuck")

    with (
        pytest.raises(OSError, match="stuck"),
        harness.open_sync(settings=settings, backends={"producer": Stuck()}) as session,
    ):
        session.run(saying, task="one")


def test_a_reader_that_leaves_its_events_ends_only_its_run(settings):
    async def work(session):
        texts = []
        async with session.events(saying, task="one") as events:
            async for event in events:
                texts.append(event.kind)
                break
        return texts, (await session.run(saying, task="two")).result

    assert inside(settings, work, backends={"producer": Closing()}) == (["node started"], "two")


def test_another_event_loop_is_refused(settings):
    async def work(session):
        def elsewhere():
            with refused("session.other-loop"):
                asyncio.run(session.run(saying, task=""))
            return True

        return await asyncio.to_thread(elsewhere)

    assert inside(settings, work, backends={"producer": Closing()})


def test_any_thread_may_use_a_synchronous_session(settings):
    backend = Closing()
    with (
        harness.open_sync(settings=settings, backends={"producer": backend}) as session,
        ThreadPoolExecutor(8) as threads,
    ):
        texts = list(threads.map(lambda n: session.run(saying, task=f"{n}").result, range(20)))
        with (
            refused("session.tenant-unknown"),
            harness.open_sync(
                settings=settings, tenants={}, backends={"producer": Closing()}
            ) as other,
        ):
            other.run(saying, task="", tenant="a")
        assert session.spent().calls == 20
    assert texts == [f"{n}" for n in range(20)]
    assert backend.closed == 1
    assert not [one for one in threading.enumerate() if one.name == "harness loop"]


def test_in_a_running_loop_the_synchronous_one_is_refused(settings):
    async def main():
        with refused("pipeline.event-loop-running"), harness.open_sync(settings=settings):
            pass

    asyncio.run(main())


# --- models in memory -----------------------------------------------------------------------------


@pytest.mark.slow
def test_an_embedded_model_is_loaded_once_and_each_run_that_waited_shows_it(tmp_path):
    demo = demo_endpoint()
    assert demo is not None
    endpoint = demo.model_copy(update={"tag": "writer", "context_tokens": 256, "slots": 2})
    settings = settings_of(
        tmp_path,
        endpoints={"writer": endpoint},
        roles={"producer": "writer"},
        budget={"capacity": "2 GiB"},
    )

    async def short(run: Run) -> str:
        return await run.chat("producer", "Hi.", max_output_tokens=4, on_cut="keep")

    async def work(session):
        pipeline = pipeline_of(short)
        first = await asyncio.gather(*(session.run(pipeline) for _ in range(2)))
        return [*first, await session.run(pipeline)]

    *first, last = inside(settings, work)
    for result in first:
        spans = {span.id: span for span in Journal(result.files.journal).spans()}
        waits = [one for one in spans.values() if "waits_for" in one.attributes]
        loads = {spans[one.attributes["waits_for"]].name for one in waits}
        assert loads == {"load"}
    names = Counter(span.name for span in Journal(last.files.journal).spans())
    assert names["load"] == 0
    assert replace(last.spent, time_ns=0).calls == 1


# --- over time ------------------------------------------------------------------------------------


def test_it_may_be_closed_in_another_task_as_by_another_cell_of_a_notebook(settings):
    async def main():
        stack = AsyncExitStack()
        opening = harness.open(settings=settings, backends={"producer": Closing()})
        session = await asyncio.create_task(stack.enter_async_context(opening))
        result = await asyncio.create_task(session.run(saying, task="one"))
        await asyncio.create_task(stack.aclose())
        return result.result

    assert asyncio.run(main()) == "one"


def test_an_outage_that_ended_one_run_is_waited_for_anew_by_the_next(settings):
    class Down(ScriptedBackend):
        """Answers once, and then is away until it is told to be back."""

        is_back = False

        async def chat(self, request):
            if self.requests and not self.is_back:
                raise EndpointUnreachable("refused", endpoint="producer")
            return await super().chat(request)

    backend = Down(["good"] * 9)

    async def work(session):
        gate = session._parts.models.client.routes["producer"].gate
        gate.endpoint = gate.endpoint.model_copy(update={"max_outage_s": 0.2})
        runs = [await session.run(saying, task="one")]
        runs.append(await session.run(saying, task="two"))
        backend.is_back = True
        return [*runs, await session.run(saying, task="three")]

    runs = inside(settings, work, backends={"producer": backend})
    assert [one.status for one in runs] == ["finished", "stopped", "finished"]


def held_by_this_process():
    """Threads, open files, and memory in use."""
    status = Path("/proc/self/status").read_text()
    memory_kb = int(re.search(r"VmRSS:\s+(\d+)", status)[1])
    return threading.active_count(), len([*Path("/proc/self/fd").iterdir()]), memory_kb


@pytest.mark.slow
def test_two_thousand_runs_leave_nothing_behind(settings):
    class Forgetful(Closing):
        """Keeps no requests, which hold their runs."""

        async def chat(self, request):
            self.requests.clear()
            return await super().chat(request)

    chosen = settings.model_copy(update={"trace": TraceSettings(timelines=())})

    async def work(session):
        places = asyncio.Semaphore(50)

        async def one():
            async with places:
                await session.run(saying, task="Say it.", tenant="a")

        held = []
        for _ in range(5):
            await asyncio.gather(*(one() for _ in range(400)))
            gc.collect()
            held.append(held_by_this_process())
        return held

    held = inside(chosen, work, backends={"producer": Forgetful()})
    threads, files, memory_kb = zip(*held[1:], strict=True)
    assert max(threads) <= 50, threads  # those that closing runs and journals share
    assert max(files) <= files[0] + 2, files
    assert memory_kb[-1] <= memory_kb[0] + 10_000, memory_kb


INTERRUPTED = """
import asyncio, sys
import harness
from harness import Pipeline, Run, ScriptedBackend

class Hanging(ScriptedBackend):
    async def chat(self, request):
        if request.messages[-1].content != "first":
            await asyncio.sleep(3600)
        return await super().chat(request)

pipeline = Pipeline("one")

@pipeline.node
async def said(run: Run, task: str) -> str:
    await run.chat("producer", "first")
    return await run.chat("producer", task)

async def main():
    settings, backend = harness.Settings(traces=sys.argv[1]), Hanging(["1"] * 99)
    async with harness.open(settings=settings, backends={"producer": backend}) as session:
        runs = [asyncio.create_task(session.run(pipeline, task=f"{n}")) for n in range(50)]
        await asyncio.sleep(1)
        print("ready", flush=True)
        await asyncio.gather(*runs)

asyncio.run(main())
"""


@pytest.mark.slow
def test_ctrl_c_ends_a_session_at_once_and_each_run_can_be_resumed(settings):
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, settings.traces],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        began_s = time.monotonic()
        process.wait(timeout=30)
        took_s = time.monotonic() - began_s
    assert took_s < 10, "under 2 s on quiet cores"
    journals = sorted(settings.traces.glob("2*.jsonl"))
    assert [Journal(path).ended.status for path in journals] == ["cancelled"] * 50

    async def said(run: Run, task: str) -> str:
        await run.chat("producer", "first")
        return await run.chat("producer", task)

    async def work(session):
        resumed = pipeline_of(said)
        return [await session.run(resumed, resume=path) for path in journals[:5]]

    runs = inside(settings, work, backends={"producer": Closing()})
    assert [one.replies_used_again for one in runs] == [1] * 5


def test_a_tenant_is_in_the_journal_in_the_audit_log_and_in_what_stops_its_runs(settings):
    async def work(session):
        return [await session.run(saying, task="Say it.", tenant="acme") for _ in range(2)]

    first, second = inside(
        settings, work, tenants=Limits(max_calls=1), backends={"producer": Closing()}
    )
    assert [span["tenant"] for span in spans_of(first, "run")] == ["acme"]
    assert [line["tenant"] for line in lines_of(settings)] == ["acme"] * 2
    assert second.limit == "calls"
    assert "tenant 'acme' is at its limit" in second.stopped_by

    async def resumed(session):
        done = await session.run(saying, resume=second.files.journal)
        return done.status, session.spent("acme").calls

    assert inside(settings, resumed, backends={"producer": Closing()}) == ("finished", 1)
    assert lines_of(settings)[-1]["tenant"] == "acme"
    with refused("session.tenant-unknown"):
        inside(settings, resumed, tenants={"other": Limits()}, backends={"producer": Closing()})


def test_a_misspelt_option_is_no_option():
    with pytest.raises(TypeError, match="limit"):
        harness.open(limit=Limits(max_calls=1))
    with pytest.raises(TypeError, match="tenents"), harness.open_sync(tenents={}):
        pass


def test_a_synchronous_session_is_closed_after_its_block_and_blocks_no_loop(settings):
    with harness.open_sync(settings=settings, backends={"producer": Closing()}) as session:

        async def main():
            with refused("pipeline.event-loop-running"):
                session.run(saying, task="")

        asyncio.run(main())
    with refused("session.closed"):
        session.run(saying, task="")
