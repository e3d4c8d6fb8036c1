"""Whether calls side by side are batched by the server they go to.

    python tests/benchmarks/bench_batching.py URL MODEL [--backend vllm] [--json]

16 independent calls of 64 tokens through the shim, one after another and all at once, in turns. A
server that batches continuously (vLLM) does many in little more than the time of one. Raw clients
reached 4.3 on a vLLM 0.32 on two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import time
from typing import NamedTuple

from harness.inference import ChatRequest, Client, Completion, Endpoint, Message
from harness.session.endpoint_check import most_at_once
from harness.session.models import open_models
from harness.session.settings import Settings
from harness.trace import Tracer

CALLS, TOKENS, TURNS = 16, 64, 3


class Figure(NamedTuple):
    """One line of the table."""

    figure: str
    value: float
    aim: str = ""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("url", help="of the server, with its /v1")
    arguments.add_argument("model", help="the name it serves")
    arguments.add_argument("--backend", default="vllm")
    arguments.add_argument("--json", action="store_true")
    options = arguments.parse_args()
    endpoint = Endpoint.model_validate(
        {
            "tag": "served",
            "url": options.url,
            "model_id": options.model,
            "backend": options.backend,
        }
    )
    figures = asyncio.run(measure(endpoint))
    if options.json:
        print(json.dumps([figure._asdict() for figure in figures], indent=2))
        return
    for figure in figures:
        print(f"{figure.figure:<52}{figure.value:>10,.2f}  {figure.aim}")


async def measure(endpoint: Endpoint) -> list[Figure]:
    async with open_models(
        {endpoint.tag: endpoint},
        settings=Settings(),
        environment={},
        required={endpoint.tag},
        tracer=Tracer(),
    ) as models:
        shim = models.client
        await shim.chat(request(-1))
        alone_s, together_s, tokens, most = [], [], [], []
        numbers = itertools.count()
        for _ in range(TURNS):
            start = time.perf_counter()
            for _ in range(CALLS):
                await shim.chat(request(next(numbers)))
            alone_s.append(time.perf_counter() - start)
            start = time.perf_counter()
            completions = await all_at_once(shim, [next(numbers) for _ in range(CALLS)])
            together_s.append(time.perf_counter() - start)
            tokens.append(sum(c.usage.output_tokens for c in completions if c.usage))
            most.append(most_at_once(completions) or 0)
    alone, together = statistics.median(alone_s), statistics.median(together_s)
    return [
        Figure(f"{CALLS} calls, one after another: seconds", alone),
        Figure(f"{CALLS} calls at once: seconds", together),
        Figure("tokens a second, all calls at once", statistics.median(tokens) / together),
        Figure("replies being written at one moment, at most", max(most)),
        Figure("one after another / at once", alone / together, "aim ≥ 3.5"),
    ]


async def all_at_once(shim: Client, numbers: list[int]) -> list[Completion]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(shim.chat(request(number))) for number in numbers]
    return [task.result() for task in tasks]


def request(number: int) -> ChatRequest:
    """Different from its beginning on, so that no prefix is cached, and not to be ended early."""
    prompt = (
        f"{number}. Write a long story about {number + 2} owls, with all that they do in a day."
    )
    return ChatRequest(
        model="served", messages=(Message("user", prompt),), max_output_tokens=TOKENS
    )


if __name__ == "__main__":
    main()
