"""Calls of which three in ten meet a fault of the network or the server."""

import asyncio
import itertools
import random
import time
from collections import Counter
from pathlib import Path

import pytest
from calls import backend_at
from servers.emulated import Answer, Asked, Emulated, event
from servers.fault_proxy import Fault, FaultProxy

from harness.errors import (
    CallTimeout,
    InferenceError,
    Overloaded,
    RateLimited,
    ServerError,
    StreamCut,
)
from harness.inference import ChatRequest, Client, Endpoint, as_messages
from harness.inference.client import Route
from harness.inference.gate import Gate
from harness.inference.health import RetryPolicy
from harness.inference.providers.registry import connect
from harness.trace import Tracer

CALLS, WORKERS, SHARE = 1_000, 32, 0.3
DEADLINE_S = 5.0
SLACK_S = 3.0
"""What a busy machine may take beyond that to notice."""
BODIES = (
    b'{"error": {"message": "boom", "type": "server_error", "code": null}}',
    b'{"detail": "boom"}',
    b"<h1>boom</h1>",
)
"""A refusal in some of the shapes that servers, and the gateways before them, send."""
BREAKS = [
    Fault(kind="reset"),
    Fault(kind="reset", after_bytes=700),
    Fault(kind="cut"),
    Fault(kind="cut", after_bytes=333),  # in the middle of a token
    Fault(kind="stall"),
    Fault(kind="stall", after_bytes=700),
    Fault(kind="garbage"),
    Fault(kind="garbage", after_bytes=700),
    Fault(kind="no end"),
]
REFUSALS = {
    Fault(kind="refuse", status=status, body=body, headers=(("retry-after", "0.01"),)): error
    for status, error in ((429, RateLimited), (500, ServerError), (503, Overloaded))
    for body in BODIES
}
FAULTS = [*BREAKS, *REFUSALS]


class Echo(Emulated):
    """Says again what it was asked, a word at a time, as vLLM would."""

    async def respond(self, asked: Asked, answer: Answer) -> None:
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "small"}
        words = asked.body["messages"][0]["content"].split(" ")

        async def say(text: str, finish_reason: str | None = None) -> None:
            choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}
            await answer.send(event(head | {"choices": [choice]}))

        await answer.start("text/event-stream")
        for word in words:
            await say(f"{word} ")
        await say("", "stop")
        usage = {"prompt_tokens": len(words), "completion_tokens": len(words)}
        await answer.send(event(head | {"choices": [], "usage": usage}))
        await answer.send(b"data: [DONE]\n\n")
        await answer.end()


def prompt(number: int) -> str:
    return f"Call {number} of many — naïve 🦉 " + " ".join(f"w{number}.{n}" for n in range(20))


def planned(seed: int) -> dict[int, Fault]:
    """Which request meets which fault: every fault again and again, in three of ten requests."""
    randomness = random.Random(seed)
    faults = itertools.cycle(FAULTS)
    hit = (n for n in range(1, 4 * CALLS) if randomness.random() < SHARE)
    return {number: next(faults) for number in hit}


def open_sockets() -> int:
    links = (fd.readlink() for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink())
    return sum(link.name.startswith("socket:") for link in links)


async def storm(seed):
    """What each call ended in and how long it took; what met which fault; what is left over."""
    outcomes: dict[int, str | InferenceError] = {}
    seconds: dict[int, float] = {}
    numbers = iter(range(CALLS))
    async with Echo() as server, FaultProxy(server.root, planned(seed).get) as proxy:
        sockets_before = open_sockets()
        backend = stack(proxy.url)

        async def work():
            for number in numbers:
                start = time.monotonic()
                asked = ChatRequest(model="small", messages=as_messages(prompt(number)))
                try:
                    outcomes[number] = (await backend.chat(asked)).text
                except InferenceError as error:
                    outcomes[number] = error
                seconds[number] = time.monotonic() - start

        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(work())
        await backend.routes["small"].backends[0].aclose()
        while proxy.open_connections:  # noqa: ASYNC110 - it hears of it by and by
            await asyncio.sleep(0.01)
        left_over = open_sockets() - sockets_before
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        met = Counter(fault.kind for fault in proxy.faults)
    return outcomes, seconds, met, left_over, [t for t in tasks if not t.done()]


def stack(url):
    endpoint = Endpoint(
        tag="small",
        url=url,
        backend="vllm",
        timeout_s=DEADLINE_S,
        first_token_timeout_s=1.0,
        between_tokens_timeout_s=1.0,
        max_parallel=24,
        retry=RetryPolicy(base_s=0.02),
    )
    tracer = Tracer()
    line = Route(
        endpoint=endpoint,
        backends=(connect(endpoint),),
        gate=Gate(endpoint=endpoint, tracer=tracer),
    )
    return Client(routes={"small": line}, tracer=tracer, randomness=random.Random(7))


@pytest.mark.slow
def test_every_call_ends_in_the_right_answer_or_the_right_error_within_its_deadline():
    outcomes, seconds, met, sockets, tasks = asyncio.run(storm(seed=7))

    assert set(met) == {fault.kind for fault in FAULTS}
    assert sum(met.values()) > SHARE * CALLS
    errors = {n: outcome for n, outcome in outcomes.items() if not isinstance(outcome, str)}
    # Right, to the letter: none is cut, and none is another call's.
    answers = {n: text for n, text in outcomes.items() if isinstance(text, str)}
    assert all(text == f"{prompt(number)} " for number, text in answers.items())
    assert len(answers) + len(errors) == CALLS
    # Retrying makes good nearly all of it; a stalled reply has used up a limit of its own.
    kinds = Counter(type(error) for error in errors.values())
    assert set(kinds) <= {CallTimeout, StreamCut, ServerError, Overloaded, RateLimited}
    assert len(errors) < 0.1 * CALLS, kinds
    # The wait for a place is not in a call's time, and no place is held for longer than that.
    assert max(seconds.values()) < 2 * DEADLINE_S + SLACK_S
    assert not sockets
    assert not tasks


def test_without_retries_each_fault_ends_in_its_own_error():
    asked = ChatRequest(model="small", messages=as_messages(prompt(1)))
    soon = {"first_token_timeout_s": 0.1, "between_tokens_timeout_s": 0.1}

    async def main():
        seen = {}
        async with Echo() as server:
            for fault in FAULTS:
                limits = soon if fault.kind == "stall" else {}
                async with (
                    FaultProxy(server.root, lambda _, fault=fault: fault) as proxy,
                    backend_at(proxy, backend="vllm", **limits) as wire,
                ):
                    with pytest.raises(InferenceError) as caught:
                        await wire.chat(asked)
                    seen[fault] = type(caught.value)
        return seen

    broken = {fault: CallTimeout if fault.kind == "stall" else StreamCut for fault in BREAKS}
    assert asyncio.run(main()) == broken | REFUSALS
