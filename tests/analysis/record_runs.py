"""Records the real runs in recorded_runs/, each with one fault in it, or its healthy twin.

    python tests/analysis/record_runs.py cold_start swap_thrash drifting_prefix steady_prefix
    python tests/analysis/record_runs.py revise_loop
    python tests/analysis/record_runs.py asked_again filled_context unused_dependency prefill_bound
    python tests/analysis/record_runs.py timed_out_attempts reply_gap failed_reply failed_calls
    python tests/analysis/record_runs.py slow_code slow_decode
    python tests/analysis/record_runs.py out_of_reach retries
    python tests/analysis/record_runs.py serial_client parallel_client --url http://127.0.0.1:18200/v1
    python tests/analysis/record_runs.py queueing --url http://127.0.0.1:18201/v1

Without a URL they need the demo's model (`make demo` installs it), but for the last two, which call
a server that is not there, and one of this script that is at its limit. The others need vLLM with
`--enable-per-request-metrics --enable-prompt-tokens-details`, serving its model as `smollm2`;
`queueing` one that was started with `--max-num-seqs 1` as well. Timings are those of the machine:
record on one that has nothing else to do.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Annotated

from pydantic import AfterValidator, BaseModel

from harness import NodeFailed, Pipeline, Retry, Run, Settings, Timeout
from harness.errors import EndpointUnreachable, ReplyInvalid
from harness.inference import Endpoint
from harness.session.settings import demo_endpoint
from harness.trace import Journal
from harness.trace.journal_line import dump_json, seal

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


def _of_the_century(year: int) -> int:
    if not 1700 <= year < 1800:
        raise ValueError(f"{year} is not in the 18th century")
    return year


class Year(BaseModel):
    """What a grammar enforces in part: it knows whole numbers, and not which ones are meant."""

    year: Annotated[int, AfterValidator(_of_the_century)]


async def asked_again(run: Run) -> list[int]:
    """Replies that are of the schema, and refused by its validator: each is asked for again."""
    years = []
    for thing in EIGHT_THINGS[:2]:
        with suppress(ReplyInvalid):
            prompt = f"In which year did people first make {thing}?"
            years.append((await run.chat("writer", prompt, returns=Year, attempts=2)).year)
    return years


async def failed_reply(run: Run) -> int:
    """The same without another attempt."""
    return (await run.chat("writer", "In which year did the war begin?", returns=Year)).year


async def filled_context(run: Run) -> str:
    """A list without an end, in a context of 512 tokens."""
    return await run.chat("writer", "Count from 1 to 1000, with commas.", on_cut="keep")


async def prefill_bound(run: Run) -> list[str]:
    """Three documents that have nothing in common, each for a reply of one word."""
    rng = random.Random(7)
    words = DOCUMENT.replace("\n", " ").split()
    texts = [" ".join(rng.choices(words, k=300)) for _ in range(3)]
    return [
        await run.chat("writer", f"{text}\n\nOne word:", max_output_tokens=4, on_cut="keep")
        for text in texts
    ]


async def timed_out_attempts(run: Run) -> str:
    """A reply of 200 tokens in a node that has one second."""
    return await run.chat(
        "writer", "Tell a long story of the sea.", max_output_tokens=200, on_cut="keep"
    )


async def slow_code(run: Run) -> str:
    """A pause between two calls, as a limiter of calls makes it."""
    text = await run.chat("writer", "Say hello.", max_output_tokens=4, on_cut="keep")
    await asyncio.sleep(8)
    return text


async def slow_decode(run: Run) -> None:
    """Sixteen replies at once on one thread."""
    async with asyncio.TaskGroup() as group:
        for number in range(16):
            prompt = f"Tell a story of {number} friends."
            chat = run.chat("writer", prompt, max_output_tokens=17, on_cut="keep")
            group.create_task(chat)


async def failed_calls(run: Run) -> str:
    """A document that is longer than the context of 512 tokens."""
    return await run.chat("writer", DOCUMENT, max_output_tokens=40, on_cut="keep")


async def out_of_reach(run: Run) -> None:
    """Three calls to a server that was not started."""
    for _ in range(3):
        with suppress(EndpointUnreachable):
            await run.chat("writer", "Say hello.")


async def retries(run: Run) -> list[str]:
    """A server that refuses every other call."""
    return [await run.chat("writer", f"Say hello to {thing}.") for thing in EIGHT_THINGS[:4]]


class AtItsLimit(BaseHTTPRequestHandler):
    """Answers 429, and what comes next."""

    calls = itertools.count()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        is_refused = next(self.calls) % 2 == 0
        message = {"role": "assistant", "content": "Hello, and welcome."}
        usage = {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        said = {"error": {"message": "Rate limit reached for requests"}}
        body = json.dumps(
            said if is_refused else {"id": "1", "choices": [choice], "usage": usage}
        ).encode()
        self.send_response(429 if is_refused else 200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        if is_refused:
            self.send_header("retry-after", "1")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


async def long_reply(run: Run) -> str:
    """Begins alone."""
    return await run.chat("writer", "Tell a story.", max_output_tokens=250, on_cut="keep")


async def long_prompt(run: Run) -> str:
    """Comes while the other reply is written, and is read in pieces of 512 tokens between tokens
    of it."""
    await asyncio.sleep(2)
    prompt = f"{DOCUMENT}\n\nOne word:"
    return await run.chat("writer", prompt, max_output_tokens=4, on_cut="keep")


async def outline(run: Run) -> str:
    """What the next node waits for."""
    return await run.chat(
        "writer",
        "Outline a talk about rivers, in five points.",
        max_output_tokens=80,
        on_cut="keep",
    )


async def title(run: Run, outline: str) -> str:
    """Takes the outline, and does not show it to the model."""
    assert outline
    prompt = "Write three titles for a talk about the sea, and say why they are good."
    return await run.chat("writer", prompt, max_output_tokens=80, on_cut="keep")


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
    if name in SEVERAL_NODES:
        for node in SEVERAL_NODES[name]:
            pipeline.node(node)
    elif name == "timed_out_attempts":
        pipeline.node(retry=Retry(3), timeout=Timeout(total_s=1), on_error="skip")(ONE_NODE[name])
    elif name in AT_ONCE:
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
        cold_start, swap_thrash, drifting_prefix, steady_prefix, revise_loop, serial_client,
        asked_again, failed_reply, filled_context, prefill_bound, timed_out_attempts, slow_code,
        slow_decode, failed_calls, out_of_reach, retries,
    )
}  # fmt: skip
SEVERAL_NODES: Mapping[str, Sequence[Callable[..., Awaitable[object]]]] = {
    "reply_gap": (long_reply, long_prompt),
    "unused_dependency": (outline, title),
}
AT_ONCE = ("parallel_client", "queueing")
"""The server answers them side by side, and one at a time."""


def settings_for(name: str, url: str | None) -> Settings:
    """The models of a run; embedded ones by a path relative to the working directory."""
    roles = {"writer": "smollm2", "producer": "smollm2"}
    trace = {"timelines": [], "sample_ms": 1000}
    if url is not None:
        served = Endpoint(tag="smollm2", backend="vllm", url=url)
        return Settings(endpoints={"smollm2": served}, roles=roles, trace=trace)
    if name in {"out_of_reach", "retries"}:
        server = ThreadingHTTPServer(("127.0.0.1", 0), AtItsLimit)
        if name == "out_of_reach":
            server.server_close()
        else:
            Thread(target=server.serve_forever, daemon=True).start()
        served = Endpoint(
            tag="m",
            url=f"http://127.0.0.1:{server.server_port}/v1",
            model_id="m",
            stream=False,
            max_outage_s=0,
        )
        return Settings(endpoints={"m": served}, roles={"writer": "m"}, trace=trace)
    context_tokens = 512 if name in {"filled_context", "failed_calls"} else 2048
    slots = {"reply_gap": 2, "slow_decode": 16}.get(name, 1)
    names = ["smollm2", "smollm2-copy"] if name == "swap_thrash" else ["smollm2"]
    for tag in names:
        _copy_of_the_model(Path(f"{tag}.gguf"))
    return Settings(
        endpoints={
            tag: Endpoint(
                tag=tag,
                path=Path(f"{tag}.gguf"),
                context_tokens=context_tokens,
                slots=slots,
                threads=1,
            )
            for tag in names
        },
        roles=roles if len(names) == 1 else {**roles, "critic": names[1]},
        budget={"capacity": "2 GiB" if name == "slow_decode" else "300 MiB"},
        trace=trace,
    )


def _copy_of_the_model(path: Path) -> None:
    demo = demo_endpoint()
    assert demo is not None, "the demo's model is not installed"
    assert demo.path is not None
    if not path.exists():
        shutil.copyfile(demo.path, path)


def without_tracebacks(journal: Path) -> bytes:
    """A journal without the paths of this machine that tracebacks name."""
    lines = []
    for number, line in enumerate(journal.read_bytes().splitlines(), start=1):
        record = json.loads(line)
        record.get("attributes", {}).pop("traceback", None)
        del record["line"], record["crc"]
        lines.append(seal(dump_json(record) + b"\n", number))
    return b"".join(lines)


def main() -> None:
    """Runs what was named and keeps the journals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", choices=[*ONE_NODE, *SEVERAL_NODES, *AT_ONCE])
    parser.add_argument("--url", help="of vLLM; the embedded engine when left out")
    given = parser.parse_args()
    HERE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        # So that no path of this machine is in the journals.
        os.chdir(directory)
        for name in given.names:
            settings = settings_for(name, given.url)
            with suppress(NodeFailed):
                pipeline_for(name).run(settings=settings)
            (journal,) = Path("traces").glob("*-*.jsonl")
            (HERE / f"{name}.jsonl").write_bytes(without_tracebacks(journal))
            print(f"{name}: {Journal(HERE / f'{name}.jsonl').duration_ns / 1e9:.1f} s")


if __name__ == "__main__":
    main()
