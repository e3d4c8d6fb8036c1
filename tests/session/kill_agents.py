"""Kills agents at random moments, resumes them, and counts how often their tools were called.

    python tests/session/kill_agents.py DIRECTORY RUNS

Each run has two agents side by side, whose scripted models ask for several calls in a reply; each
call is written down when it begins. A run is killed (SIGKILL) several times and ends in its own
time at last. Then its outputs are those of a run that nobody killed, and no call was made again
whose result was in the journal when the run was killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

from kill_and_resume import DIRECTORY, Moment, journals, resumable, wait_for

from harness import Pipeline, Run, ScriptedBackend, ScriptedReply, Settings, ToolCall
from harness.trace import Journal, NodeOutput

STEPS, CALLS = 5, 3
KILLS = 4
LOG = DIRECTORY / "calls.jsonl"

agents = Pipeline("agents")


async def work(agent: str, step: int, n: int) -> str:
    """Works a little."""
    with LOG.open("a", encoding="utf-8") as log:
        log.write(json.dumps({"agent": agent, "step": step, "n": n}) + "\n")
    await asyncio.sleep(0.02 + 0.02 * n)
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


def results_in(path: Path | None) -> set[str]:
    """The arguments of the calls whose results a journal has."""
    outputs = () if path is None else Journal(path).items(NodeOutput)
    return {one.value["arguments"] for one in outputs if "/agent" in one.node}


def main(runs: int) -> None:
    """Forks each part of a run from this process, which has imported everything already."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    wait_for(fork_run("whole", None))
    whole = (DIRECTORY / "whole.json").read_text(encoding="utf-8")
    chance = random.Random(0)
    tally = {"kills": 0, "calls": 0, "kept": 0, "again": 0, "other_outputs": 0, "parts": 0}
    for number in range(runs):
        name, resume, kept = f"killed-{number}", None, set[str]()
        made: set[str] = set()
        for life in range(KILLS + 1):
            LOG.write_text("", encoding="utf-8")
            left = 2 * STEPS * CALLS - len(made)
            moment = None if life == KILLS else Moment.drawn(chance, LOG, left)
            has_ended = wait_for(fork_run(name, resume), moment)
            calls = LOG.read_text(encoding="utf-8").splitlines()
            tally["again"] += len(kept.intersection(calls))
            tally["calls"] += len(calls)
            made.update(calls)
            if has_ended:
                break
            tally["kills"] += 1
            resume = resumable(name)
            kept = results_in(resume)
        assert len(made) == 2 * STEPS * CALLS
        tally["kept"] += len(kept)
        tally["parts"] = max(tally["parts"], Journal(journals(name)[0]).parts)
        tally["other_outputs"] += (DIRECTORY / f"{name}.json").read_text("utf-8") != whole
    print(json.dumps(tally))
    sys.exit(bool(tally["again"] or tally["other_outputs"]))


if __name__ == "__main__":
    main(int(sys.argv[2]))
