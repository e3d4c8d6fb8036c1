"""Calls beyond a server's slots: they wait on this side, and no timeout runs meanwhile."""

from __future__ import annotations

import asyncio

import pytest
from loopback import Loopback, llama_server_stream
from session_runs import settings_of

from harness import Pipeline, Run, Timeout

REPLY_S = 0.15


class TwoSlots(Loopback):
    """A llama-server that answers two calls side by side, and takes its time."""

    def __init__(self):
        super().__init__([])
        self.slots = asyncio.Semaphore(2)
        self.under_way = self.most = 0

    async def respond(self, asked, answer):
        if not asked.path.endswith("/chat/completions"):
            await answer.json({"total_slots": 2})
            return
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        async with self.slots:
            await asyncio.sleep(REPLY_S)
            await answer.start("text/event-stream")
            for piece in llama_server_stream("ok"):
                await answer.send(piece)
            await answer.end()
        self.under_way -= 1


@pytest.mark.slow  # a second of waiting, and a loaded machine may double a reply's
@pytest.mark.parametrize("declared", [{"max_parallel": 2}, {}], ids=["declared", "told"])
def test_items_that_wait_for_a_slot_are_not_cancelled_as_idle(tmp_path, declared):
    pipeline = Pipeline("notes")

    @pipeline.node
    async def chapters() -> list[str]:
        return [f"chapter {number}" for number in range(20)]

    @pipeline.node(each={"chapter": "chapters"}, timeout=Timeout(idle_s=0.6), on_error="skip")
    async def notes(run: Run, chapter: str) -> str:
        return await run.chat("producer", chapter)

    async def main():
        async with TwoSlots() as server:
            endpoint = {"tag": "w", "backend": "llamacpp", "url": server.url, **declared}
            settings = settings_of(tmp_path, roles={"producer": "w"}, endpoints={"w": endpoint})
            return await pipeline.run_async({}, settings=settings), server.most

    result, most = asyncio.run(main())
    assert result.skips == ()
    assert result.result == ["ok"] * 20
    assert most == 2
