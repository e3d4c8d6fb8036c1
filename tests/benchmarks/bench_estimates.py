"""What is said that a model needs, beside what llama.cpp says that it takes; and what that costs.

    python tests/benchmarks/bench_estimates.py [--json] [--all]

1. The demo's model is loaded over a grid of contexts, slots and cache types; with `--all` over a
   larger one. llama.cpp logs MiB with two decimals. Of more than 10,486 cells that leaves one whole
   number of bytes for each, and so an exact figure; with fewer, the figures agree in all that is
   logged.
2. A small model of every kind of cache: windows, latents, states, shared layers. The same.
   Where a model is as small as these, what is allowed for small inputs shows.
3. Reading a header: that of the demo's model, and one of 500,000 tokens with their scores, types
   and merges. Beside it `GGUFReader` of the gguf package, llama.cpp's own, where that is
   installed, each in a process of its own. Times want a quiet machine.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent / "hardware"))

from gguf_writer import F32, I32, SMALL, STRING, TENSOR_BYTES, header
from logged_memory import MIB, MOST_WITH_A_DOUBT, LoggedMemory, exact_bytes, logged_memory
from tiny_models import MODELS, write_model

from harness.hardware import Footprint, GgufHeader, Loading, gguf_footprint, read_gguf_header
from harness.session.settings import demo_endpoint

CONTEXTS = (512, 2048, 8192)
SLOTS = (1, 4)
TYPES = ("f16 f16", "q8_0 q8_0", "q4_0 q4_0", "q8_0 q4_0")
MORE_CONTEXTS = (256, 1000, 4096, 16_384)
MORE_SLOTS = (1, 3, 8)
MORE_TYPES = ("f32 f32", "bf16 bf16", "q5_1 q5_1", "q5_0 iq4_nl", "q4_1 f16")
TINY_SLOTS, TINY_CONTEXT = 32, 1024

RUNS = 7
VOCABULARY = 500_000
TIME_AIM_MS, PEAK_AIM_MB = 60.0, 50.0
WEIGHTS_AIM, TOTAL_AIM = 0.01, 0.05

# The kernel's other figure, `ru_maxrss`, begins at what the parent had.
PEER = r"""
import re, sys, time
from gguf import GGUFReader
start = time.perf_counter()
GGUFReader(sys.argv[1])
milliseconds = 1e3 * (time.perf_counter() - start)
print(milliseconds, int(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1]) / 1e3)
"""


class Estimate(NamedTuple):
    """One load: what was said before, and what llama.cpp said then; MiB."""

    case: str
    weights: float
    weights_logged: float
    kv: float
    kv_logged: float
    kv_exact: str
    total: float
    total_logged: float

    @property
    def weights_off(self) -> float:
        return abs(self.weights / self.weights_logged - 1)

    @property
    def total_off(self) -> float:
        return abs(self.total / self.total_logged - 1)


class Figure(NamedTuple):
    """One line of the summary."""

    figure: str
    value: float | str
    aim: str = ""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--all", action="store_true", help="a larger grid: some minutes")
    options = arguments.parse_args()
    grid = list(itertools.product(CONTEXTS, SLOTS, TYPES))
    if options.all:
        grid += itertools.product(MORE_CONTEXTS, MORE_SLOTS, TYPES + MORE_TYPES)

    estimates = demo_estimates(grid)
    with tempfile.TemporaryDirectory() as folder:
        tiny = tiny_estimates(Path(folder))
        figures = [*accuracy(estimates, tiny), *reading(Path(folder))]
    if options.json:
        rows = [each._asdict() for each in (*estimates, *tiny)]
        print(json.dumps({"loads": rows, "figures": [f._asdict() for f in figures]}, indent=2))
        return
    print_loads("The demo's model, MiB", estimates)
    print_loads(f"Of every kind, {TINY_SLOTS} slots of {TINY_CONTEXT} tokens, MiB", tiny)
    for figure in figures:
        value = figure.value if isinstance(figure.value, str) else f"{figure.value:,.2f}"
        print(f"{figure.figure:<66}{value:>16}  {figure.aim}")


def demo_model() -> Path:
    demo = demo_endpoint()
    if demo is None or demo.path is None:
        raise SystemExit("the demo's model is not installed: make demo")
    return demo.path


# --- estimates -------------------------------------------------------------------------------


def demo_estimates(grid: Iterable[tuple[int, int, str]]) -> list[Estimate]:
    path = demo_model()
    model = read_gguf_header(path)
    estimates = []
    for context_tokens, slots, types in grid:
        cache_type_k, cache_type_v = types.split()
        case = {
            "context_tokens": context_tokens,
            "slots": slots,
            "cache_type_k": cache_type_k,
            "cache_type_v": cache_type_v,
        }
        logged = logged_memory(path, **case)
        name = f"{context_tokens:>6} tokens, {slots} slots, {types}"
        estimates.append(estimate(name, model, gguf_footprint(model, Loading(**case)), logged))
    return estimates


def tiny_estimates(folder: Path) -> list[Estimate]:
    estimates = []
    for name in MODELS:
        path = write_model(folder / f"{name}.gguf", name)
        model = read_gguf_header(path)
        case = {"context_tokens": TINY_CONTEXT, "slots": TINY_SLOTS}
        logged = logged_memory(path, **case)
        estimates.append(estimate(name, model, gguf_footprint(model, Loading(**case)), logged))
    return estimates


def estimate(name: str, model: GgufHeader, said: Footprint, logged: LoggedMemory) -> Estimate:
    states = sum(cache.state_elements for cache in model.caches) * 4 * logged.slots
    logged_states_mib = sum(logged.states) if logged.states else 0.0
    kv_logged = logged.kv_mib + logged_states_mib
    if all(cache.cells > MOST_WITH_A_DOUBT for cache in logged.caches) and logged.caches:
        counted = sum(
            exact_bytes(cache.cells, mib)
            for cache in logged.caches
            for mib in (cache.keys_mib, cache.values_mib)
        )
        exact = "to the byte" if said.kv_bytes - states == counted else "NO"
        if states:
            exact += ", states as logged" if close(states, logged_states_mib) else ", states: NO"
    else:
        exact = "as logged" if close(said.kv_bytes, kv_logged) else "NO"
    return Estimate(
        case=name,
        weights=said.weights_bytes / MIB,
        weights_logged=logged.model_mib,
        kv=said.kv_bytes / MIB,
        kv_logged=kv_logged,
        kv_exact=exact,
        total=said.total_bytes / MIB,
        total_logged=logged.model_mib + kv_logged + logged.compute_mib + logged.output_mib,
    )


def close(size: int, mib: float) -> bool:
    """Whether that is what was logged, as the sum of two rounded figures."""
    return abs(size / MIB - mib) <= 0.0101


def accuracy(estimates: list[Estimate], tiny: list[Estimate]) -> list[Figure]:
    kv_wrong = sum("NO" in each.kv_exact for each in (*estimates, *tiny))
    exact = sum(each.kv_exact.startswith("to the byte") for each in (*estimates, *tiny))
    loads = len(estimates) + len(tiny)
    return [
        Figure("KV cache: loads where it is another than said", f"{kv_wrong} of {loads}", "aim 0"),
        Figure("KV cache: loads where that is known to the byte", f"{exact} of {loads}"),
        Figure(
            "demo's model, weights: furthest off, %",
            100 * max(each.weights_off for each in estimates),
            f"aim ≤ {100 * WEIGHTS_AIM:g}",
        ),
        Figure(
            "demo's model, all in all: furthest off, %",
            100 * max(each.total_off for each in estimates),
            f"aim ≤ {100 * TOTAL_AIM:g}",
        ),
        Figure(
            "demo's model, all in all: loads that are further off",
            f"{sum(each.total_off > TOTAL_AIM for each in estimates)} of {len(estimates)}",
            "aim 0",
        ),
        Figure(
            "demo's model, all in all: loads that took more than was said",
            f"{sum(each.total_logged > each.total for each in estimates)} of {len(estimates)}",
        ),
    ]


def print_loads(title: str, estimates: list[Estimate]) -> None:
    columns = ("weights", "logged", "KV", "logged", "in all", "logged", "off %")
    print(f"{title:<40}{''.join(f'{column:>10}' for column in columns)}")
    for each in estimates:
        numbers = (each.weights, each.weights_logged, each.kv, each.kv_logged, each.total)
        print(
            f"{each.case:<40}{''.join(f'{number:>10.2f}' for number in numbers)}"
            f"{each.total_logged:>10.2f}{100 * each.total_off:>10.2f}  KV {each.kv_exact}"
        )
    print()


# --- reading headers -------------------------------------------------------------------------


def reading(folder: Path) -> list[Figure]:
    large = folder / "large.gguf"
    write_large(large)
    figures = []
    for name, path in (("demo's model", demo_model()), ("500,000 tokens", large)):
        times_ms = []
        for _ in range(RUNS):
            start = time.perf_counter()
            read_gguf_header(path)
            times_ms.append(1e3 * (time.perf_counter() - start))
        tracemalloc.start()
        read_gguf_header(path)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        figures += [
            Figure(
                f"header, {name}: median of {RUNS}, ms",
                statistics.median(times_ms),
                f"aim ≤ {TIME_AIM_MS:g}; best {min(times_ms):.1f}",
            ),
            Figure(f"header, {name}: peak, MB", peak / 1e6, f"aim ≤ {PEAK_AIM_MB:g}"),
            *peer_reading(name, path),
        ]
    return figures


def peer_reading(name: str, path: Path) -> list[Figure]:
    """The gguf package, in a process of its own, which is there before it is told to read."""
    if importlib.util.find_spec("gguf") is None:
        return [Figure(f"header, {name}: gguf package", "not installed", "pip install gguf")]
    done = subprocess.run(
        [sys.executable, "-c", PEER, str(path)], capture_output=True, text=True, check=True
    )
    milliseconds, megabytes = map(float, done.stdout.split())
    return [
        Figure(f"header, {name}: gguf package, once, ms", milliseconds),
        Figure(f"header, {name}: gguf package, peak of the process, MB", megabytes),
    ]


def write_large(path: Path) -> None:
    generator = random.Random(1)
    letters = "abcdefghijklmnopqrstuvwxyz "
    tokens = [
        "".join(generator.choices(letters, k=generator.randint(1, 12))) for _ in range(VOCABULARY)
    ]
    values = SMALL | {
        "tokenizer.ggml.tokens": (STRING, tokens),
        "tokenizer.ggml.scores": (F32, [0.0] * VOCABULARY),
        "tokenizer.ggml.token_type": (I32, [1] * VOCABULARY),
        "tokenizer.ggml.merges": (
            STRING,
            [f"{one} {other}" for one, other in itertools.pairwise(tokens)],
        ),
    }
    path.write_bytes(header(values) + bytes(TENSOR_BYTES))


if __name__ == "__main__":
    main()
