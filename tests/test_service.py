"""The example of a service, served by a real server: answers, streams, limits, and who leaves."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx2
import pytest
import uvicorn
from demo import ROOT

from harness.trace import Journal

sys.path.insert(0, str(ROOT / "tests" / "inference"))

from servers.emulated import Answer, Asked, Emulated, stream


class Writer(Emulated):
    """Writes back what it is asked; of a hanging question only the beginning."""

    async def respond(self, asked: Asked, answer: Answer) -> None:
        if not asked.path.endswith("/chat/completions"):
            await answer.json({"data": []})
            return
        question = asked.body["messages"][-1]["content"]
        if question == "hang":
            await answer.hold()
        await stream(answer, f"{question}!", model="writer", tokens=(3, 2))


def is_asked(writer: Writer) -> bool:
    return any(asked.path.endswith("/chat/completions") for asked in writer.asked)


def example() -> ModuleType:
    """The module, made anew, so that no test has another's session."""
    spec = importlib.util.spec_from_file_location("service", ROOT / "examples" / "service.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["service"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@asynccontextmanager
async def served(module: ModuleType) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the service while it runs."""
    server = uvicorn.Server(
        uvicorn.Config(module.app, port=0, log_level="error", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            yield client
    finally:
        server.should_exit = True
        await asyncio.to_thread(thread.join, 30)
        assert not thread.is_alive()


@asynccontextmanager
async def answering(folder: Path, monkeypatch: Any) -> AsyncIterator[tuple[Any, Any, Any]]:
    monkeypatch.chdir(folder)
    module = example()
    async with Writer() as writer:
        endpoint = {"url": f"{writer.root}/v1", "model_id": "writer"}
        monkeypatch.setenv("HARNESS_ENDPOINTS", json.dumps({"producer": endpoint}))
        async with served(module) as client:
            yield module, writer, client


def states(folder: Path) -> list[str]:
    ended = (Journal(path).ended for path in folder.glob("traces/2*.jsonl"))
    return sorted("going on" if end is None else end.status for end in ended)


def test_it_answers_and_streams_and_stops_a_user_at_the_limit(tmp_path, monkeypatch):
    async def main():
        async with answering(tmp_path, monkeypatch) as (module, _, client):
            whole = await client.post("/answers", json={"question": "Why"})
            assert (whole.status_code, whole.json()["answer"]) == (200, "Why!")
            streamed = await client.get("/answers", params={"question": "How"})
            kinds = [line.partition(": ")[2] for line in streamed.text.splitlines()[::3]]
            assert kinds[0] == "node started"
            assert kinds[-1] == "done"
            done = json.loads(streamed.text.splitlines()[-2].removeprefix("data: "))
            assert done["result"]["result"] == "How!"

            page = await client.get("/metrics")
            (count,) = re.findall(r"gen_ai_workflow_duration_seconds_count{[^}]*} (\d+)", page.text)
            assert int(count) == 2

            session = module.app.state.session
            session._parts = replace(session._parts, tenants=module.Limits(max_calls=1))
            for status in (200, 429):
                asked = {"json": {"question": "Why"}, "headers": {"x-user": "ann"}}
                assert (await client.post("/answers", **asked)).status_code == status

    asyncio.run(main())
    assert states(tmp_path) == ["ok", "ok", "ok", "stopped"]


@pytest.mark.parametrize("is_stream", [False, True])
def test_the_run_of_a_client_that_leaves_ends(tmp_path, monkeypatch, *, is_stream):
    async def main():
        async with answering(tmp_path, monkeypatch) as (_, writer, client):
            call = (
                client.get("/answers", params={"question": "hang"}, timeout=30)
                if is_stream
                else client.post("/answers", json={"question": "hang"}, timeout=30)
            )
            asking = asyncio.create_task(call)
            async with asyncio.timeout(30):
                while not is_asked(writer):  # noqa: ASYNC110 - nobody says when
                    await asyncio.sleep(0.01)
                asking.cancel()
                while states(tmp_path) != ["cancelled"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)

    asyncio.run(main())


def test_when_the_server_stops_its_runs_end_and_can_be_resumed(tmp_path, monkeypatch):
    async def main():
        async with answering(tmp_path, monkeypatch) as (_, writer, client):
            asked = {"json": {"question": "hang"}, "timeout": 30}
            asking = asyncio.create_task(client.post("/answers", **asked))
            while not is_asked(writer):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await asyncio.gather(asking, return_exceptions=True)

    asyncio.run(main())
    assert states(tmp_path) == ["cancelled"]
