"""How long the way of a call is, from a node's `run.chat` to httpx2."""

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from servers.openai_dialects import DIALECTS
from servers.openai_server import OpenAIServer

import harness
from harness import Pipeline, Run, Settings

PACKAGE = Path(harness.__file__).parent
MOST_FRAMES = 12


def ours_below(frame):
    """Functions of the package between httpx2 and `Run.chat`, both ends of ours included."""
    found = []
    while frame is not None:
        code = frame.f_code
        if PACKAGE in Path(code.co_filename).parents:
            found.append(f"{Path(code.co_filename).stem}.{code.co_name}")
        if code is Run.chat.__code__:
            return found[::-1]
        frame = frame.f_back
    return None


@dataclass
class City:
    city: str
    owls: int


@pytest.mark.parametrize("returns", [None, City], ids=["text", "typed"])
def test_at_most_twelve_frames_stand_between_a_nodes_chat_and_httpx2(tmp_path, returns):
    seen = []

    def watch(frame, event, _argument):
        if event == "call" and frame.f_code is httpx2.AsyncClient.send.__code__:
            seen.append(ours_below(frame))

    one = Pipeline("one")

    @one.node
    async def asked(run: Run) -> str:
        kind = {} if returns is None else {"returns": returns}
        return str(await run.chat("producer", "How many owls?", **kind))

    async def main():
        async with OpenAIServer(dialect=DIALECTS["vllm"]) as server:
            endpoint = {"url": server.url, "backend": "vllm", "structured": "enforced"}
            settings = Settings.model_validate(
                {
                    "traces": tmp_path,
                    "endpoints": {"m": {"tag": "m", "model_id": "served-name", **endpoint}},
                    "roles": {"producer": "m"},
                    "limits": {"max_calls": 5},
                }
            )
            sys.setprofile(watch)
            try:
                await one.run_async(settings=settings)
            finally:
                sys.setprofile(None)

    asyncio.run(main())
    paths = [one for one in seen if one is not None]
    assert paths
    assert max(map(len, paths)) <= MOST_FRAMES, max(paths, key=len)
