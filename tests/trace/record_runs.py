"""Records the real runs in recorded_runs/, each with one fault in it, or its healthy twin.

    python tests/trace/record_runs.py cold_start swap_thrash drifting_prefix steady_prefix
    python tests/trace/record_runs.py revise_loop
    python tests/trace/record_runs.py serial_client parallel_client --url http://127.0.0.1:18200/v1
    python tests/trace/record_runs.py queueing --url http://127.0.0.1:18201/v1

The first two need the demo's model (`make demo` installs it). The others need vLLM with
`--enable-per-request-metrics --enable-prompt-tokens-details`, serving its model as `smollm2`;
`queueing` one that was started with `--max-num-seqs 1` as well. Timings are those of the machine:
record on one that has nothing else to do.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from harness import Pipeline, Run, Settings
from harness.inference import Endpoint
from harness.session.demo_model import demo_endpoint

HERE = Path(__file__).parent / "recorded_runs"
EIGHT_THINGS = ["tea", "salt", "rain", "bread", "sand", "glass", "wool", "ink"]
DOCUMENT = "\n".join(
    f"{number}. Before shift {number} the operator notes the pressure of pump {number % 7}, the "
    f"temperature of tank {number % 5} and the level of basin {number % 3}, and signs for them."
    for number in range(1, 19)
)


def cold_start() -> Pipeline:
    """One short call: most of it is loading the model."""
    pipeline = Pipeline("cold start")

    @pipeline.node
    async def greeting(run: Run) -> str:
        return await run.chat("writer", "Say hello.", max_output_tokens=8)

    return pipeline


def swap_thrash() -> Pipeline:
    """A writer and a critic take turns, and memory holds one of them."""
    pipeline = Pipeline("swap thrash")

    @pipeline.node
    async def line(run: Run) -> str:
        text = await run.chat("writer", "Write one line about tea.", max_output_tokens=12)
        for _ in range(3):
            advice = await run.chat("critic", f"{text}\n\nImprove this.", max_output_tokens=12)
            text = await run.chat("writer", f"{text}\n\nAdvice: {advice}", max_output_tokens=12)
        return text

    return pipeline


def drifting_prefix() -> Pipeline:
    """Every prompt begins with the time, so the document after it is read anew each time."""
    return _notes("drifting prefix", lambda time, notes: f"Time: {time}\n\n{DOCUMENT}\n\n{notes}")


def steady_prefix() -> Pipeline:
    """The same with the time at the end."""
    return _notes("steady prefix", lambda time, notes: f"{DOCUMENT}\n\n{notes}\n\nTime: {time}")


def _notes(name: str, prompt: Callable[[str, str], str]) -> Pipeline:
    pipeline = Pipeline(name)

    @pipeline.node
    async def notes(run: Run) -> str:
        text = "No notes yet."
        for number in range(8):
            asked = prompt(f"{number + 10}:{number * 5 + 12}:07", f"Notes so far: {text}")
            text = await run.chat("writer", f"{asked}\n\nGo on.", max_output_tokens=32)
        return text

    return pipeline


def revise_loop() -> Pipeline:
    """Calls that are serial because each needs the one before: nothing is wrong with that."""
    pipeline = Pipeline("revise loop")

    @pipeline.node
    async def answer(run: Run) -> str:
        loop = await run.wiggum(
            "In two or three sentences: what does the operator sign for, and when?",
            sources=[DOCUMENT],
            rubric="answer",
            max_rounds=4,
            max_output_tokens=60,
        )
        return loop.text

    return pipeline


def serial_client() -> Pipeline:
    """A for-loop over things that have nothing to do with each other."""
    pipeline = Pipeline("serial client")

    @pipeline.node
    async def sentences(run: Run) -> list[str]:
        return [await _sentence(run, thing) for thing in EIGHT_THINGS]

    return pipeline


def parallel_client() -> Pipeline:
    """The same, one call per item."""
    return _one_call_per_item("parallel client")


def queueing() -> Pipeline:
    """The same again, and the server takes one call at a time."""
    return _one_call_per_item("queueing")


def _one_call_per_item(name: str) -> Pipeline:
    pipeline = Pipeline(name)

    @pipeline.node
    async def things() -> list[str]:
        return EIGHT_THINGS

    @pipeline.node(each={"thing": "things"})
    async def sentences(run: Run, thing: str) -> str:
        return await _sentence(run, thing)

    return pipeline


async def _sentence(run: Run, thing: str) -> str:
    return await run.chat("writer", f"Say in one sentence what {thing} is.", max_output_tokens=40)


PIPELINES: Mapping[str, Callable[[], Pipeline]] = {
    make.__name__: make
    for make in (
        cold_start,
        swap_thrash,
        drifting_prefix,
        steady_prefix,
        revise_loop,
        serial_client,
        parallel_client,
        queueing,
    )
}


def settings_for(name: str, url: str | None) -> Settings:
    """The models of a run; embedded ones by a path relative to the working directory."""
    roles = {"writer": "smollm2", "producer": "smollm2"}
    trace = {"timelines": []}
    if url is not None:
        served = Endpoint(tag="smollm2", backend="vllm", url=url)
        return Settings(endpoints={"smollm2": served}, roles=roles, trace=trace)
    names = ["smollm2", "smollm2-copy"] if name == "swap_thrash" else ["smollm2"]
    for tag in names:
        _copy_of_the_model(Path(f"{tag}.gguf"))
    return Settings(
        endpoints={
            tag: Endpoint(
                tag=tag, path=Path(f"{tag}.gguf"), context_tokens=2048, slots=1, threads=1
            )
            for tag in names
        },
        roles=roles if len(names) == 1 else {**roles, "critic": names[1]},
        budget={"capacity": "300 MiB"},
        trace=trace,
    )


def _copy_of_the_model(path: Path) -> None:
    demo = demo_endpoint()
    assert demo is not None, "the demo's model is not installed"
    assert demo.path is not None
    if not path.exists():
        shutil.copyfile(demo.path, path)


def main() -> None:
    """Runs what was named and keeps the journals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", choices=PIPELINES)
    parser.add_argument("--url", help="of vLLM; the embedded engine when left out")
    given = parser.parse_args()
    HERE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        # So that no path of this machine is in the journals.
        os.chdir(directory)
        for name in given.names:
            settings = settings_for(name, given.url)
            result = asyncio.run(PIPELINES[name]().run_async({}, settings=settings))
            shutil.copyfile(result.files.journal, HERE / f"{name}.jsonl")
            print(f"{name}: {result.duration_s:.1f} s")


if __name__ == "__main__":
    main()
