"""What 600 rows cost, one call and one judgement each, here and in the programs people write.

    python tests/benchmarks/bench_batch_peers.py [--json] [--rows 600] [--times 3] [--epochs 1]
        [--client NAME ...] [--inspect PYTHON]

One loopback server takes 20 ms for a call. Each client is a process of its own, 32 calls at once to
either of two models, with prompts of a sentence and of 50 KB. They take turns; the figures are
medians, from the first row to the last, without imports.

raw aiohttp, raw httpx    A coroutine a row, a semaphore a model; no journal, no retry, no limit.
Inspect AI                `generate()` and `model_graded_qa()`, with its log. `--inspect` names a
                          Python that has `inspect-ai`; it is left out where there is none.
harness                   A batch that is scored by a rubric, with its journal.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from figures import Figure, print_figures

PARALLEL, LATENCY_S = 32, 0.02
PROMPTS = {"a sentence": 10, "50 KB": 50_000}
QUESTION = "Is it clear?"
RUBRIC = """\
title: Notes
repeats: 1
dimensions:
  - name: clear
    judge: Is it clear?
    anchors: { 9: Throughout., 6: Mostly., 3: Hardly. }
"""
ANSWER = "It says what happened and what to do. GRADE: C"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--rows", type=int, default=600)
    arguments.add_argument("--times", type=int, default=3)
    arguments.add_argument("--epochs", type=int, default=1, help="of Inspect AI and harness")
    arguments.add_argument("--client", action="append", choices=CLIENTS)
    arguments.add_argument("--inspect", default=sys.executable, metavar="PYTHON")
    arguments.add_argument("--run", nargs=2, metavar=("URL", "BYTES"), help="internal")
    arguments.add_argument("--serve", action="store_true", help="internal")
    options = arguments.parse_args()
    os.environ["EPOCHS"] = str(options.epochs)  # for the processes that it begins
    if options.serve:
        asyncio.run(serve())
    elif options.run:
        url, size = options.run
        print(json.dumps(measured(options.client[0], url, texts(options.rows, int(size)))))
    else:
        names = options.client or list(CLIENTS)
        taken = compared(names, options.rows, options.times, options.inspect)
        print_figures(taken, as_json=options.json)


def texts(rows: int, size: int) -> list[str]:
    return [f"Row {n}. What is to be done? {'Words of it. ' * (size // 13)}" for n in range(rows)]


# --- the comparison ---------------------------------------------------------------------------


def compared(names: list[str], rows: int, times: int, inspect: str) -> Iterator[Figure]:
    if "Inspect AI" in names and (reason := why_not(inspect)):
        print(f"Inspect AI is left out: {reason}", file=sys.stderr)
        names = [name for name in names if name != "Inspect AI"]
    for how, size in PROMPTS.items():
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for _ in range(times):
            for name in names:
                python = inspect if name == "Inspect AI" else sys.executable
                runs[name].append(one_run(python, name, rows, size))
        medians = {
            name: {of: statistics.median(run[of] for run in all_of) for of in all_of[0]}
            for name, all_of in runs.items()
        }
        for name, median in medians.items():
            yield Figure(f"{name}, {how}: seconds", median["s"])
            yield Figure(f"{name}, {how}: seconds of the processor", median["cpu_s"])
            yield Figure(f"{name}, {how}: memory at its peak, MB", median["mb"])
            yield Figure(f"{name}, {how}: calls", median["calls"])
        for name, of, aim in RATIOS:
            if {name, "harness"} <= medians.keys():
                ratio = medians[name][of] / medians["harness"][of]
                what = "" if of == "s" else ", of the processor"
                yield Figure(f"{name} / harness, {how}{what}", ratio, aim)


RATIOS = (
    ("raw aiohttp", "s", ""),
    ("raw httpx", "s", "aim ≥ 1.67"),
    ("Inspect AI", "s", "aim ≥ 5"),
    ("Inspect AI", "cpu_s", "aim ≥ 5"),
)


def why_not(python: str) -> str:
    """Why Inspect AI cannot be compared; empty if it can."""
    command = [python, "-c", "import inspect_ai, openai"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return "" if done.returncode == 0 else f"{said} (give --inspect a Python that has inspect-ai)"


def one_run(python: str, name: str, rows: int, size: int) -> dict[str, float]:
    with server() as url:
        command = [python, __file__, "--client", name, "--rows", str(rows), "--run", url, str(size)]
        command += ["--epochs", os.environ["EPOCHS"]]
        told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        run: dict[str, float] = json.loads(told.stdout.splitlines()[-1])
        return run


def measured(name: str, url: str, rows: list[str]) -> dict[str, float]:
    """One client's run, in this process."""
    with tempfile.TemporaryDirectory() as folder:
        run = CLIENTS[name](url, rows, Path(folder))
        begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
        run()
        seconds, cpu_s = time.perf_counter() - begun_s, time.process_time() - begun_cpu_s
    mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"s": seconds, "cpu_s": cpu_s, "mb": mb, "calls": calls_at(url)}


# --- the clients: each returns what is timed -----------------------------------------------------

Ask = Callable[[str, str], Awaitable[str]]


async def all_rows(ask: Ask, rows: list[str]) -> None:
    """The program without a library: each row is asked about, and its answer is judged."""
    places = {model: asyncio.Semaphore(PARALLEL) for model in ("writer", "judge")}

    async def asked(model: str, text: str) -> str:
        async with places[model]:
            return await ask(model, text)

    async def row(text: str) -> bool:
        answer = await asked("writer", text)
        grade = await asked("judge", f"{text}\n\n{answer}\n\n{QUESTION} GRADE: C or GRADE: I")
        return "GRADE: C" in grade

    assert all(await asyncio.gather(*map(row, rows)))


def fields(model: str, text: str) -> dict[str, object]:
    message = {"role": "user", "content": text}
    return {"model": model, "messages": [message], "temperature": 0.0}


def raw_aiohttp(url: str, rows: list[str], _folder: Path) -> Callable[[], None]:
    import aiohttp

    async def run() -> None:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as client:

            async def ask(model: str, text: str) -> str:
                async with client.post(f"{url}/chat/completions", json=fields(model, text)) as said:
                    reply = await said.json()
                return str(reply["choices"][0]["message"]["content"])

            await all_rows(ask, rows)

    return lambda: asyncio.run(run())


def raw_httpx(url: str, rows: list[str], _folder: Path) -> Callable[[], None]:
    import httpx

    async def run() -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(limits=limits, timeout=None, verify=False) as client:

            async def ask(model: str, text: str) -> str:
                said = await client.post(f"{url}/chat/completions", json=fields(model, text))
                return str(said.json()["choices"][0]["message"]["content"])

            await all_rows(ask, rows)

    return lambda: asyncio.run(run())


def inspect_ai(url: str, rows: list[str], folder: Path) -> Callable[[], None]:
    os.environ |= {"LOCAL_API_KEY": "none", "LOCAL_BASE_URL": url}
    from inspect_ai import Task
    from inspect_ai import eval as run_task
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import GenerateConfig, get_model
    from inspect_ai.scorer import model_graded_qa
    from inspect_ai.solver import generate

    def run() -> None:
        config = GenerateConfig(max_connections=PARALLEL, temperature=0.0)
        writer, judge = (
            get_model(f"openai-api/local/{name}", config=config) for name in ("writer", "judge")
        )
        samples = [Sample(input=text, target=QUESTION) for text in rows]
        task = Task(
            dataset=MemoryDataset(samples),
            solver=generate(),
            scorer=model_graded_qa(model=judge),
            epochs=int(os.environ["EPOCHS"]),
        )
        (log,) = run_task(
            task, model=writer, log_dir=str(folder), display="none", max_samples=2 * PARALLEL
        )
        assert log.status == "success"

    return run


def harness(url: str, rows: list[str], folder: Path) -> Callable[[], None]:
    from harness import Evaluation, Pipeline, Run, Settings

    rubric = folder / "notes.yaml"
    rubric.write_text(RUBRIC)
    same = {"url": url, "max_parallel": PARALLEL, "structured": "enforced"}
    settings = Settings.model_validate(
        {
            "roles": {"producer": "writer", "evaluator": "judge"},
            "endpoints": {
                name: {"tag": name, "model_id": name, **same} for name in ("writer", "judge")
            },
            "traces": folder / "traces",
            "trace": {"timelines": []},
        }
    )
    notes = Pipeline("notes")

    @notes.node
    async def answer(run: Run, task: str) -> str:
        return await run.chat("producer", task)

    data = [{"id": str(number), "task": text} for number, text in enumerate(rows)]

    async def run() -> None:
        evaluation = Evaluation(notes, data, rubric=rubric, epochs=int(os.environ["EPOCHS"]))
        done = await evaluation.run_async(max_parallel=2 * PARALLEL, settings=settings)
        assert len(done.samples) == len(rows) * evaluation.epochs

    return lambda: asyncio.run(run())


CLIENTS: dict[str, Callable[[str, list[str], Path], Callable[[], None]]] = {
    "raw aiohttp": raw_aiohttp,
    "raw httpx": raw_httpx,
    "Inspect AI": inspect_ai,
    "harness": harness,
}


# --- the server -------------------------------------------------------------------------------


@contextmanager
def server() -> Iterator[str]:
    command = [sys.executable, __file__, "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}/v1"
        finally:
            process.terminate()


def calls_at(url: str) -> int:
    import urllib.request

    with urllib.request.urlopen(f"{url}/calls") as reply:
        return int(reply.read())


async def serve(port: int = 0) -> None:
    """Answers after a while, streamed or whole as it is asked, until it is ended."""
    calls = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal calls
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                _, _, rest = head.partition(b"content-length:")
                body = await reader.readexactly(int(rest.split()[0])) if rest else b""
                if body:
                    calls += 1
                    await asyncio.sleep(LATENCY_S)
                    writer.write(reply_to(json.loads(body)))
                else:
                    is_count = head.split()[1].endswith(b"/calls")
                    page = str(calls).encode() if is_count else b'{"data": []}'
                    writer.write(_page(b"application/json", page))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", port, backlog=512, limit=1 << 20)
    print(listening.sockets[0].getsockname()[1], flush=True)
    await listening.serve_forever()


def reply_to(asked: dict[str, object]) -> bytes:
    text = ANSWER
    if "response_format" in asked:
        from harness.testing import judgement

        schema = asked["response_format"]["json_schema"]["schema"]  # type: ignore[index]
        text = json.dumps(judgement(schema["properties"], 8.0, reason="It could say how much."))
    read = len(json.dumps(asked["messages"])) // 4
    usage = {"prompt_tokens": read, "completion_tokens": 20, "total_tokens": read + 20}
    head = {"id": "1", "model": asked["model"], "created": 1}
    message = {"role": "assistant", "content": text}
    if not asked.get("stream"):
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        whole = head | {"object": "chat.completion", "choices": [choice], "usage": usage}
        return _page(b"application/json", json.dumps(whole).encode())
    chunks = (
        {"choices": [{"index": 0, "delta": message, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": usage},
    )
    head["object"] = "chat.completion.chunk"
    events = "".join(f"data: {json.dumps(head | chunk)}\n\n" for chunk in chunks)
    return _page(b"text/event-stream", f"{events}data: [DONE]\n\n".encode())


def _page(kind: bytes, body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
    return head % (kind, len(body)) + body


if __name__ == "__main__":
    main()
