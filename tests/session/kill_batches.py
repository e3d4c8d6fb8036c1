"""Kills batches at random moments, runs them again, and counts what a server was asked.

    python tests/session/kill_batches.py DIRECTORY KILLS [--json]

An evaluation of rows with two calls and a judgement each, in three epochs, is killed (SIGKILL)
until it comes to its end before its kill does; then the next one begins, until there were enough
kills. Of each batch:

- its output has each row and epoch once, with what an uninterrupted batch gives, and its scores;
- no call that the server had answered was sent again, but those that may have been under way.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from kill_and_resume import Moment, read_from, wait_for
from servers.emulated import Answer, Asked, Emulated, forked, stream

from harness import Evaluation, Pipeline, Rubric, Run, Settings

DIRECTORY = Path(sys.argv[1])
ROWS = [{"id": f"row {n}", "task": f"task {n}", "target": n} for n in range(20)]
EPOCHS = 3
RUBRIC = {
    "id": "clear",
    "title": "Clear",
    "pass_at": 8,
    "repeats": 1,
    "dimensions": [{"name": "clear", "judge": "Is it clear?"}],
}
JUDGEMENT = '{"reason": "So it is.", "issues": [], "score": 9}'
MARGIN_S = 0.25
"""As in `kill_and_resume.py`."""
PARALLEL = 16
MODEL, JUDGE = "writer", "judge"

two = Pipeline("two")


@two.node
async def first(run: Run, task: str) -> str:
    return await run.chat("producer", f"first {task}")


@two.node
async def second(run: Run, first: str) -> str:
    return await run.chat("producer", f"second {first}")


class Server(Emulated):
    """Says again what it is told; writes down each reply."""

    def __init__(self, log: Path) -> None:
        super().__init__()
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def respond(self, asked: Asked, answer: Answer) -> None:
        if not asked.path.endswith("/chat/completions"):
            await answer.json({"object": "list", "data": [{"id": MODEL, "object": "model"}]})
            return
        body: Any = asked.body
        said = body["messages"][-1]["content"]
        await asyncio.sleep(0.01)
        is_judge = body["model"] == JUDGE
        await stream(answer, JUDGEMENT if is_judge else said, model=body["model"])
        line = {"said": said, "ended_s": time.monotonic()}
        os.write(self._log, json.dumps(line).encode() + b"\n")


def main(kills: int, *, as_json: bool) -> None:
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    tempfile.tempdir = str(DIRECTORY)
    log = DIRECTORY / "replies.jsonl"
    server, root = forked(Server(log))
    chance = random.Random(0)
    tally = {"batches": 0, "kills": 0, "parts": 0, "lost": 0, "twice": 0, "wrong": 0, "again": 0}
    try:
        wait_for(fork_batch(root, "whole"))
        calls = len(read_from(log, 0))
        while tally["kills"] < kills:
            name, offset = f"batch {tally['batches']}", log.stat().st_size
            killed = list[float]()
            moment: Moment | None = Moment.drawn(chance, log, calls)
            while not wait_for(fork_batch(root, name), moment):
                killed.append(time.monotonic())
                left = calls - len(read_from(log, offset))
                is_enough = tally["kills"] + len(killed) == kills
                moment = None if is_enough else Moment.drawn(chance, log, left)
            replies = [json.loads(line) for line in read_from(log, offset)]
            tally["batches"] += 1
            tally["kills"] += len(killed)
            tally["parts"] = max(tally["parts"], len(killed) + 1)
            add_up(tally, name, replies, killed)
    finally:
        os.kill(server, signal.SIGTERM)
        os.waitpid(server, 0)
    said = {**tally, "sound": not any(tally[one] for one in ("lost", "twice", "wrong", "again"))}
    print(json.dumps(said) if as_json else "\n".join(f"{n:8} {one}" for n, one in said.items()))
    sys.exit(not said["sound"])


def add_up(
    tally: dict[str, int], name: str, replies: list[dict[str, Any]], kills: list[float]
) -> None:
    lines = [
        json.loads(line) for line in (DIRECTORY / name / "out.jsonl").read_bytes().splitlines()
    ]
    found = {(line["id"], line["epoch"]): line for line in lines}
    tally["lost"] += EPOCHS * len(ROWS) - len(found)
    tally["twice"] += len(lines) - len(found)
    scores = {"clear": 9.0, "clear.passed": 1.0, "clear.clear": 9.0, "number": 1.0}
    tally["wrong"] += sum(
        line["output"] != f"second first {line['inputs']['task']}" or line["scores"] != scores
        for line in found.values()
    )
    by_call = defaultdict(list)
    for reply in replies:
        by_call[reply["said"]].append(reply["ended_s"])
    again = 0
    for ended in by_call.values():
        cut = sum(any(0 <= kill - one < MARGIN_S for kill in kills) for one in ended)
        again += max(0, len(ended) - EPOCHS - cut)
    # A process that stood still, for a disk or a processor, had read none of its calls' replies.
    tally["again"] += max(0, again - PARALLEL * len(kills))


def fork_batch(root: str, name: str) -> int:
    process = os.fork()
    if process == 0:
        status = 1
        try:
            output = DIRECTORY / name / "out.jsonl"
            rubric = Rubric.model_validate(RUBRIC)
            done = Evaluation(two, ROWS, rubric=rubric, scorers=["number"], epochs=EPOCHS).run(
                output=output, max_parallel=PARALLEL, settings=settings(root, name)
            )
            status = len(done.failures)
        finally:
            os._exit(status)
    return process


def settings(root: str, name: str) -> Settings:
    return Settings.model_validate(
        {
            "roles": {"producer": MODEL, "evaluator": JUDGE},
            "endpoints": {
                name: {
                    "tag": name,
                    "url": f"{root}/v1",
                    "model_id": name,
                    **({"structured": "enforced"} if name == JUDGE else {}),
                }
                for name in (MODEL, JUDGE)
            },
            "traces": DIRECTORY / name / "traces",
            "trace": {"timelines": [], "sample_ms": 0},
        }
    )


if __name__ == "__main__":
    main(int(sys.argv[2]), as_json="--json" in sys.argv)
