"""Writes what this version leaves on disk, for later versions to read.

    python tests/compatibility/v0.1.0/make.py

The pipelines, the tables, the rubrics and the settings beside this file are its inputs; all else is
made anew. Models are scripted, and no network is reached. A later release copies the folder under
its own name, changes what its version needs, and runs its copy; this one stays as it is.
"""

from __future__ import annotations

import asyncio
import csv
import importlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import harness
from harness import (
    ChatRequest,
    Pipeline,
    Run,
    ScriptedBackend,
    Settings,
    load_rubric,
    load_settings,
)
from harness.rubric import measured_noise, write_noise
from harness.testing import Judge, Script, ScriptedReply, ToolCall
from harness.trace.journal_line import dump_json, seal

HERE = Path(__file__).parent
ROOT = Path(harness.__file__).parents[1]
# What is made; of the rubrics, only the threshold and what stands beside them.
MADE = ("traces", "memory", "evaluations", "out.jsonl*", "labels.csv", "settings", "rubrics")
KILLED_AT = "HARNESS_KILLED_AT"
"""A variable with the draft before whose judgement the process ends."""

INPUTS = {
    "task": "How long is a cold start?",
    "document": (
        "# Loading\n\nA cold start takes 8 to 15 s, since the weights are read from the disk.\n\n"
        "# Keeping\n\nA model that is kept loaded begins to answer within 0.2 s.\n"
    ),
}
DRAFTS = ["A start takes some time.", "A cold start takes 8 to 15 s; a model kept loaded, 0.2 s."]
LOAD = ToolCall(id="1", name="seconds_to_load", arguments='{"gigabytes": 5}')
SETTINGS = Settings.model_validate(
    {
        "memory": {"path": "memory"},
        "trace": {"timelines": [], "durability": "sync", "sample_ms": 0},
        "seed": 7,
    }
)


def main() -> None:
    """Makes everything in a folder of its own, so that no path of this machine is written."""
    if KILLED_AT in os.environ:
        run_brief()
        return
    os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp()
    with tempfile.TemporaryDirectory() as folder:
        made = shutil.ignore_patterns(*MADE[:-2], "values.json", "notes.*.json")
        shutil.copytree(HERE, folder, ignore=made, dirs_exist_ok=True)
        os.chdir(folder)
        sys.path[0] = folder
        make_all()
        for pattern in MADE:
            for path in HERE.glob(pattern):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
            for path in Path().glob(pattern):
                keep(path)


def make_all() -> None:
    """Makes all files in this directory."""
    values = load_settings(Path("settings/harness.toml"), environment={})
    text = values.model_dump_json(indent=1, by_alias=True, exclude_defaults=True)
    Path("settings/values.json").write_text(text + "\n")
    tune()
    measure_noise()
    killed = os.environ | {KILLED_AT: DRAFTS[1]}
    done = subprocess.run([sys.executable, "make.py"], env=killed, check=False)
    assert done.returncode == -signal.SIGKILL
    run_brief()
    asyncio.run(
        pipeline("tickets").batch(
            "tickets.csv",
            output="out.jsonl",
            settings=SETTINGS,
            backends={"producer": ScriptedBackend(ticket_reply)},
        )
    )
    importlib.import_module("qa").qa.run(
        output="evaluations/qa.jsonl",
        settings=SETTINGS,
        backends={"producer": ScriptedBackend(sum_reply)},
    )


def pipeline(name: str) -> Pipeline:
    """The pipeline of a file here, which has the file's name."""
    return getattr(importlib.import_module(name), name)


def run_brief() -> None:
    """Runs `brief.py`: to its end, or to the draft at which it is to be killed."""

    def score(draft: str) -> float:
        if draft == os.environ.get(KILLED_AT):
            os.kill(os.getpid(), signal.SIGKILL)
        return 4 if draft == DRAFTS[0] else 9

    script = Script(
        {
            "questions": [["How long does it take?", "What avoids it?"]],
            "findings": {"How long": "8 to 15 s.", "What avoids": "Keeping the model loaded."},
            "estimate": [ScriptedReply(tool_calls=(LOAD,)), "About 10 s."],
            "answer": DRAFTS,
            "evaluator": Judge(score, reason="It gives no figures."),
        }
    )
    pipeline("brief").run(INPUTS, settings=SETTINGS, backends=script.backends)


def ticket_reply(request: ChatRequest) -> str:
    """The subject of a ticket."""
    subjects = {"charged": "Invoice", "log in": "Login", "parcel": "Parcel"}
    return next(subjects[word] for word in subjects if word in request.messages[-1].content)


def sum_reply(request: ChatRequest) -> str:
    """The answer to a sum; one is wrong."""
    return {"2+2": "4", "3+3": "5", "2*3": "6"}[request.messages[-1].content]


def tune() -> None:
    """Writes 80 labels with scores, and sets the threshold by them."""
    with Path("labels.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "draft", "accept", "score.length", "score.clear", "evaluator"])
        for number in range(80):
            accept, score = ("no", 3 + number % 3) if number % 4 == 0 else ("yes", 7 + number % 3)
            rows.writerow([f"d{number}", f"Draft {number}.", accept, 10, score, "evaluator"])
    command = [sys.executable, "-m", "harness", "rubric", "tune", "notes", "labels.csv", "--write"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def measure_noise() -> None:
    """Judges two drafts five times each, by a model whose scores scatter."""
    measuring = Pipeline("measuring")
    composites: list[list[float]] = []

    @measuring.node(models=["evaluator"])
    async def judged(run: Run) -> None:
        for draft in DRAFTS:
            verdict = await run.evaluate(draft, rubric="notes", samples=5)
            assert verdict.judges is not None
            composites.append(list(verdict.judges.composites))

    scores = itertools.cycle([7, 8, 9, 8, 8])
    script = Script({"evaluator": Judge(lambda draft: next(scores) - 4 * (draft == DRAFTS[0]))})
    # Only what it came to is kept, not its run.
    with tempfile.TemporaryDirectory() as traces:
        settings = SETTINGS.model_copy(update={"traces": Path(traces)})
        measuring.run(settings=settings, backends=script.backends)
    rubric = load_rubric("notes")
    write_noise(measured_noise("evaluator", composites), rubric, directory=Path("rubrics"))


def keep(path: Path) -> None:
    """Copies a file, or the files of a folder, to the folder of this script."""
    if path.is_dir():
        for below in path.iterdir():
            keep(below)
        return
    (HERE / path).parent.mkdir(parents=True, exist_ok=True)
    content = path.read_bytes()
    (HERE / path).write_bytes(without_paths(content) if content[:8] == b'{"kind":' else content)


def without_paths(journal: bytes) -> bytes:
    """A journal of folders that no machine has. Each line's checksum is made anew."""
    lines = []
    for number, line in enumerate(journal.decode().splitlines(), start=1):
        neutral = line.replace(str(Path.cwd()), "/project").replace(
            str(HERE.parents[2]), "/harness"
        )
        record = json.loads(neutral)
        del record["line"], record["crc"]
        lines.append(seal(dump_json(record) + b"\n", number))
    return b"".join(lines)


if __name__ == "__main__":
    main()
