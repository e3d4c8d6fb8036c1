"""Kills agents at random moments, resumes them, and counts how often their tools were called.

    python tests/session/kill_agents.py DIRECTORY RUNS

Each run has two agents side by side, whose scripted models ask for several calls in a reply; each
call is written down when it has ended. A run is killed (SIGKILL) several times and ends in its own
time at last. Then its outputs are those of a run that nobody killed, and no call was made again
that had ended well before a kill.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from kill_and_resume import DIRECTORY, journals, resumable, wait_for

from harness import Pipeline, Run, ScriptedBackend, ScriptedReply, Settings, ToolCall
from harness.trace import Journal

STEPS, CALLS = 5, 3
MARGIN_S = 0.1
"""A call that ended so shortly before a kill may not be in the journal yet."""
KILLS = 4
LOG = DIRECTORY / "calls.jsonl"

agents = Pipeline("agents")


async def work(agent: str, step: int, n: int) -> str:
    """Works a little."""
    await asyncio.sleep(0.02 + 0.02 * n)
    line = {"call": [agent, step, n], "ended_s": time.monotonic()}
    with LOG.open("a", encoding="utf-8") as log:
        log.write(json.dumps(line) + "\n")
    return f"{agent}{step}{n}"


@agents.node
async def both(run: Run, task: str) -> list[str]:
    each = (run.agent("producer", f"{task} {name}", tools=[work]) for name in "ab")
    return [f"{one.text}: {one.stop_reason}" for one in await asyncio.gather(*each)]


def model(request: Any) -> Any:
    said = [one.content for one in request.messages if one.role == "tool"]
    step, agent = len(said) // CALLS, request.messages[0].content[-1]
    if step == STEPS:
        return " ".join(said)
    wanted = [{"agent": agent, "step": step, "n": n} for n in range(CALLS)]
    calls = (ToolCall(f"{step}-{n}", "work", json.dumps(one)) for n, one in enumerate(wanted))
    return ScriptedReply(tool_calls=tuple(calls))


def fork_run(name: str, resume: Path | None) -> int:
    """The process of a part of a run."""
    process = os.fork()
    if process == 0:
        status = 1
        try:
            traces = {"traces": DIRECTORY / name, "trace": {"timelines": [], "sample_ms": 0}}
            result = asyncio.run(
                agents.run_async(
                    {"task": "Work,"},
                    settings=Settings.model_validate(traces),
                    backends={"producer": ScriptedBackend(model)},
                    resume=resume,
                )
            )
            (DIRECTORY / f"{name}.json").write_text(json.dumps(result.result), encoding="utf-8")
            status = 0
        finally:
            os._exit(status)
    return process


def main(runs: int) -> None:
    """Forks each part of a run from this process, which has imported everything already."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    began_s = time.monotonic()
    wait_for(fork_run("whole", None))
    life_s = time.monotonic() - began_s
    whole = (DIRECTORY / "whole.json").read_text(encoding="utf-8")
    chance = random.Random(0)
    tally = {"kills": 0, "calls": 0, "cut": 0, "again": 0, "other_outputs": 0, "parts": 0}
    for number in range(runs):
        name, kills, resume = f"killed-{number}", list[float](), None
        LOG.write_text("", encoding="utf-8")
        while len(kills) < KILLS:
            process = fork_run(name, resume)
            if wait_for(process, at_most_s=chance.uniform(0.3, 0.9) * life_s):
                break
            kills.append(time.monotonic())
            resume = resumable(name)
        else:
            wait_for(fork_run(name, resume))
        ended = defaultdict(list)
        for line in LOG.read_text(encoding="utf-8").splitlines():
            said = json.loads(line)
            ended[tuple(said["call"])].append(said["ended_s"])
        assert len(ended) == 2 * STEPS * CALLS
        for times_s in ended.values():
            cut = sum(any(0 <= kill - one < MARGIN_S for kill in kills) for one in times_s)
            tally["cut"] += min(cut, len(times_s) - 1)
            tally["again"] += max(0, len(times_s) - 1 - cut)
        tally["kills"] += len(kills)
        tally["calls"] += sum(map(len, ended.values()))
        tally["parts"] = max(tally["parts"], Journal(journals(name)[0]).parts)
        tally["other_outputs"] += (DIRECTORY / f"{name}.json").read_text("utf-8") != whole
    print(json.dumps(tally))
    sys.exit(bool(tally["again"] or tally["other_outputs"]))


if __name__ == "__main__":
    main(int(sys.argv[2]))
