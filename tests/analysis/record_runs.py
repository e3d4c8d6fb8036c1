"""Records the real runs in recorded_runs/, each with one fault in it, or its healthy twin.

    python tests/analysis/record_runs.py cold_start swap_thrash drifting_prefix steady_prefix
    python tests/analysis/record_runs.py revise_loop
    python tests/analysis/record_runs.py serial_client parallel_client --url http://127.0.0.1:18200/v1
    python tests/analysis/record_runs.py queueing --url http://127.0.0.1:18201/v1

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
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from harness import Pipeline, Run, Settings
from harness.inference import Endpoint
from harness.session.settings import demo_endpoint

HERE = Path(__file__).parent / "recorded_runs"
EIGHT_THINGS = ["tea", "salt", "rain", "bread", "sand", "glass", "wool", "ink"]
DOCUMENT = "\n".join(
    f"{number}. Before shift {number} the operator notes the pressure of pump {number % 7}, the "
    f"temperature of tank {number % 5} and the level of basin {number % 3}, and signs for them."
    for number in range(1, 19)
)


async def cold_start(run: Run) -> str:
    """One short call: most of it is loading the model."""
    return await run.chat("writer", "Say hello.", max_output_tokens=8, on_cut="keep")


async def swap_thrash(run: Run) -> str:
    """A writer and a critic take turns, and memory holds one of them."""
    text = await run.chat(
        "writer", "Write one line about tea.", max_output_tokens=12, on_cut="keep"
    )
    for _ in range(3):
        advice = await run.chat(
            "critic", f"{text}\n\nImprove this.", max_output_tokens=12, on_cut="keep"
        )
        text = await run.chat(
            "writer", f"{text}\n\nAdvice: {advice}", max_output_tokens=12, on_cut="keep"
        )
    return text


async def drifting_prefix(run: Run) -> str:
    """Every prompt begins with the time, so the document after it is read anew each time."""
    return await _notes(run, lambda time, notes: f"Time: {time}\n\n{DOCUMENT}\n\n{notes}")


async def steady_prefix(run: Run) -> str:
    """The same with the time at the end."""
    return await _notes(run, lambda time, notes: f"{DOCUMENT}\n\n{notes}\n\nTime: {time}")


async def _notes(run: Run, prompt: Callable[[str, str], str]) -> str:
    text = "No notes yet."
    for number in range(8):
        asked = prompt(f"{number + 10}:{number * 5 + 12}:07", f"Notes so far: {text}")
        text = await run.chat("writer", f"{asked}\n\nGo on.", max_output_tokens=32, on_cut="keep")
    return text


async def revise_loop(run: Run) -> str:
    """Calls that are serial because each needs the one before: nothing is wrong with that."""
    loop = await run.wiggum(
        "In two or three sentences: what does the operator sign for, and when?",
        sources=[DOCUMENT],
        rubric="answer",
        max_rounds=4,
        max_output_tokens=60,
    )
    return loop.text


async def serial_client(run: Run) -> list[str]:
    """A for-loop over things that have nothing to do with each other."""
    return [await _sentence(run, thing) for thing in EIGHT_THINGS]


async def _sentence(run: Run, thing: str) -> str:
    return await run.chat(
        "writer", f"Say in one sentence what {thing} is.", max_output_tokens=40, on_cut="keep"
    )


def pipeline_for(name: str) -> Pipeline:
    """Of one node, or of one call per item where the calls are to come at once."""
    pipeline = Pipeline(name.replace("_", " "))
    if name in AT_ONCE:
        pipeline.node(things)
        pipeline.node(each={"thing": "things"})(sentences)
    else:
        pipeline.node(ONE_NODE[name])
    return pipeline


async def things() -> list[str]:
    return EIGHT_THINGS


async def sentences(run: Run, thing: str) -> str:
    return await _sentence(run, thing)


ONE_NODE: Mapping[str, Callable[[Run], Awaitable[object]]] = {
    work.__name__: work
    for work in (
        cold_start, swap_thrash, drifting_prefix, steady_prefix, revise_loop, serial_client
    )
}  # fmt: skip
AT_ONCE = ("parallel_client", "queueing")
"""The server answers them side by side, and one at a time."""


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
    parser.add_argument("names", nargs="+", choices=[*ONE_NODE, *AT_ONCE])
    parser.add_argument("--url", help="of vLLM; the embedded engine when left out")
    given = parser.parse_args()
    HERE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        # So that no path of this machine is in the journals.
        os.chdir(directory)
        for name in given.names:
            settings = settings_for(name, given.url)
            result = asyncio.run(pipeline_for(name).run_async({}, settings=settings))
            shutil.copyfile(result.files.journal, HERE / f"{name}.jsonl")
            print(f"{name}: {result.duration_s:.1f} s")


if __name__ == "__main__":
    main()
