"""What a call through the shim costs, against raw httpx and against litellm.

    python tests/benchmarks/bench_shim.py [--json] [--tokens 64]

One loopback server, in a process of its own, answers at once with a streamed reply. Three clients
take turns, one call at a time and 200 at once; each streams, joins the text and reads the usage:

1. raw httpx: a pooled client, a line at a time, `json.loads`;
2. the shim as a run has it: retry, trace, limits, every chunk checked, phases and counts kept;
3. litellm's `acompletion`, without retries.

The figures are medians of the turns, each turn in a shuffled order. litellm has one turn: it takes
ten times as long, and so much more than its figures differ by.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from figures import Figure, print_figures

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import httpx
import litellm

from harness.inference import ChatRequest, Endpoint, Message
from harness.session.models import open_models
from harness.session.settings import Settings
from harness.trace import RunTrace, TraceOptions, Tracer

TURNS, IN_A_ROW, AT_ONCE = 3, 20, 200
RATIOS = [
    ("shim", "raw httpx", "aim ≤ 1.3"),
    ("shim with a journal", "raw httpx", ""),
    ("litellm", "shim", "aim ≥ 2.5"),
]
PROMPT = "Summarize this: " + "some words of a usual prompt " * 20
FIELDS = {
    "messages": [{"role": "user", "content": PROMPT}],
    "max_tokens": 512,
    "temperature": 0.0,
    "stream": True,
    "stream_options": {"include_usage": True},
}

Ask = Callable[[], Awaitable[str]]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--tokens", type=int, default=64, help="pieces of a reply")
    arguments.add_argument("--serve", action="store_true", help="internal")
    options = arguments.parse_args()
    if options.serve:
        asyncio.run(serve(options.tokens))
        return
    command = [sys.executable, __file__, "--serve", "--tokens", str(options.tokens)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            figures = asyncio.run(
                measure(f"http://127.0.0.1:{server.stdout.readline().strip()}/v1")
            )
        finally:
            server.terminate()
    print_figures(figures, as_json=options.json)


async def measure(url: str) -> list[Figure]:
    async with AsyncExitStack() as stack:
        clients: dict[str, Ask] = {
            "raw httpx": await raw_httpx(stack, url),
            "shim": await shim(stack, url, Tracer()),
            "shim with a journal": await shim(stack, url, _journal(stack)),
            "litellm": through_litellm(url),
        }
        texts = {await ask() for ask in clients.values()}
        assert len(texts) == 1, texts
        alone: dict[str, list[float]] = {name: [] for name in clients}
        together: dict[str, list[float]] = {name: [] for name in clients}
        order = list(clients)
        for _ in range(TURNS):
            random.shuffle(order)
            for name in order:
                alone[name].append(await _alone_s(clients[name]))
            for name in order:
                together[name].append(await _together_s(clients[name]))
            order = [name for name in order if name != "litellm"]
    return [*_figures("one at a time", alone), *_figures(f"{AT_ONCE} at once", together)]


async def _alone_s(ask: Ask) -> float:
    start = time.perf_counter()
    for _ in range(IN_A_ROW):
        await ask()
    return (time.perf_counter() - start) / IN_A_ROW


async def _together_s(ask: Ask) -> float:
    start = time.perf_counter()
    await asyncio.gather(*(ask() for _ in range(AT_ONCE)))
    return (time.perf_counter() - start) / AT_ONCE


def _figures(how: str, times: dict[str, list[float]]) -> list[Figure]:
    call_s = {name: statistics.median(taken) for name, taken in times.items()}
    return [
        *(Figure(f"{name}, {how}: ms a call", s * 1e3) for name, s in call_s.items()),
        *(Figure(f"{a} / {b}, {how}", call_s[a] / call_s[b], aim) for a, b, aim in RATIOS),
    ]


# --- the clients ------------------------------------------------------------------------------


async def raw_httpx(stack: AsyncExitStack, url: str) -> Ask:
    limits = httpx.Limits(max_connections=None, keepalive_expiry=3.0)
    client = httpx.AsyncClient(timeout=None, limits=limits, verify=False, trust_env=False)
    await stack.enter_async_context(client)
    body = {"model": "small", **FIELDS}

    async def ask() -> str:
        text = []
        async with client.stream("POST", f"{url}/chat/completions", json=body) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    chunk = json.loads(line[6:])
                    text += [choice["delta"].get("content") or "" for choice in chunk["choices"]]
        return "".join(text)

    return ask


async def shim(stack: AsyncExitStack, url: str, tracer: Tracer) -> Ask:
    endpoint = Endpoint(tag="small", url=url, backend="vllm", model_id="small")
    run = {"settings": Settings(), "environment": {}, "required": {"small"}, "tracer": tracer}
    opened = await stack.enter_async_context(open_models({"small": endpoint}, **run))
    request = ChatRequest(model="small", messages=(Message("user", PROMPT),))

    async def ask() -> str:
        return (await opened.client.chat(request)).text

    return ask


def _journal(stack: AsyncExitStack) -> Tracer:
    directory = stack.enter_context(tempfile.TemporaryDirectory())
    options = TraceOptions(timelines=())
    return stack.enter_context(RunTrace(Path(directory), name="bench", options=options))


def through_litellm(url: str) -> Ask:
    async def ask() -> str:
        reached = {"api_base": url, "api_key": "none", "max_retries": 0}
        stream = await litellm.acompletion(model="openai/small", **FIELDS, **reached)
        text = []
        async for chunk in stream:
            text += [choice.delta.content or "" for choice in chunk.choices]
        return "".join(text)

    return ask


# --- the server -------------------------------------------------------------------------------


async def serve(tokens: int) -> None:
    """Answers every request with the same bytes, until it is ended."""
    reply = _reply(tokens)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    int(line[15:])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length:")
                )
                await reader.readexactly(length)
                writer.write(reply)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def _reply(tokens: int) -> bytes:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "small"}

    def event(**fields: object) -> bytes:
        data = b"data: " + json.dumps(head | fields).encode() + b"\n\n"
        return b"%x\r\n%b\r\n" % (len(data), data)

    def delta(*, finish_reason: str | None = None, **said: object) -> bytes:
        choice = {"index": 0, "delta": said, "finish_reason": finish_reason, "logprobs": None}
        return event(choices=[choice])

    usage = {"prompt_tokens": 131, "completion_tokens": tokens, "total_tokens": 131 + tokens}
    parts = [
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
        delta(role="assistant", content=""),
        *(delta(content=f"word{n} ") for n in range(tokens)),
        delta(content="", finish_reason="stop"),
        event(choices=[], usage=usage),
        b"e\r\ndata: [DONE]\n\n\r\n",
        b"0\r\n\r\n",
    ]
    return b"".join(parts)


if __name__ == "__main__":
    main()
