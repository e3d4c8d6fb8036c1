"""Kills runs of a pipeline at random moments, resumes them, and counts what a server was asked.

    python tests/session/kill_and_resume.py DIRECTORY RUNS [--json]

The pipeline has everything that a resumed run has to get right: maps over maps, a nested pipeline,
a fan-out inside a node, attempts that fail, revise loops with a judge, memory, replies that are
sampled. Each run is killed (SIGKILL) several times, at random moments, and ends in its own time at
last. Then:

- its outputs are those of a run that nobody killed;
- no call that the server had answered was sent again;
- what it says it took is what the server sent, but for replies that a kill cut off.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripted_judge import reply_to
from servers.emulated import Answer, Asked, Emulated, forked, stream

from harness import Pipeline, Run, Settings
from harness.graph import Retry
from harness.session.resume import run_spent
from harness.trace import Journal

MODELS = ("writer-one", "judge-two")
LET_LIVE = 3
"""Runs that are not killed, to know what is asked."""
KILLS = 6
"""Of one run, at most."""
MARGIN_S = 0.25
"""A reply that the server sent so shortly before a kill may not have been read: a busy machine
takes more than 0.1 s at times. How many were is in the tally."""
WORDS = [
    *("queue", "load", "prefill", "decode", "cache", "token", "batch"),
    *("stream", "draft", "score", "round", "judge"),
]

DIRECTORY = Path(sys.argv[1])
RUBRIC = DIRECTORY / "judged.yaml"
RUBRIC_TEXT = """
title: Judged
pass_at: 8.5
repeats: 1
dimensions:
  - name: depth
    judge: Does the text go deep?
    anchors: {9: It does., 3: It does not.}
  - name: clarity
    judge: Is the text clear?
    anchors: {9: It is., 3: It is not.}
"""

inner = Pipeline("inner")


@inner.node
async def facts(run: Run, topic: str) -> list[str]:
    """Three sentences, one call each."""

    async def fact(number: int) -> str:
        return await run.chat("producer", f"Fact {number} on {topic}.")

    return await run.map(fact, [1, 2, 3])


@inner.node
async def essay(run: Run, topic: str, facts: list[str]) -> str:
    result = await run.wiggum(
        f"Write on {topic}.", rubric=RUBRIC, sources=facts, max_rounds=3, max_output_tokens=60
    )
    return result.text


outer = Pipeline("outer", retry=Retry(3, first_delay_s=0.001))
attempts: Counter[str] = Counter()


@outer.node
async def topics(run: Run, task: str) -> list[str]:
    await run.remember(f"# {task}\n\nWhat is known of {task} is short: a queue, and a cache.")
    said = await run.chat("planner", f"Topics for {task}.")
    return [f"{word} {n}" for n, word in enumerate(said.split()[:4])]


@outer.node(each={"topic": "topics"})
async def sections(run: Run, topic: str, task: str) -> str:
    recalled = await run.recall(f"What is known of {task}, such as {topic}?", limit=1)
    attempts[topic] += 1
    text = await run.chat(
        "producer", f"Section {attempts[topic]} on {topic}: {recalled[0].passage.text}"
    )
    if attempts[topic] == 1 and topic.endswith("1"):
        raise ValueError("the first attempt fails")
    return text


@outer.node(each={"section": "sections"})
async def revised(run: Run, section: str) -> str:
    result = await run.wiggum(
        "Say it well.", rubric=RUBRIC, draft=section, max_rounds=3, max_output_tokens=60
    )
    return f"{result.stop_reason}: {result.text}"


@outer.node
async def nested(run: Run, topics: list[str]) -> str:
    both = [run.call(inner, topic=topic) for topic in topics[:2]]
    return "\n".join(str(one.result) for one in await asyncio.gather(*both))


@outer.node
async def text(revised: list[str], nested: str) -> str:
    return "\n".join([*revised, nested])


class Server(Emulated):
    """Answers by what it is asked, always the same, and writes down each reply."""

    def __init__(self, log: Path) -> None:
        super().__init__()
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._refused: set[str] = set()

    async def respond(self, asked: Asked, answer: Answer) -> None:
        if not asked.path.endswith("/chat/completions"):
            listed = [{"id": model, "object": "model"} for model in MODELS]
            await answer.json({"object": "list", "data": listed})
            return
        body: Any = asked.body
        key = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        chance = random.Random(key)
        await asyncio.sleep(chance.uniform(0.001, 0.008))
        if chance.random() < 0.1 and key not in self._refused:
            self._refused.add(key)
            await answer.json({"error": {"message": "loading", "code": 503}}, status=503)
            return
        is_probe, said = self._reply(body, chance)
        written = 0 if is_probe else len(said.split())
        await stream(answer, said, model=body["model"], tokens=(40, written))
        if is_probe:
            return
        line = {"key": key, "ended_s": time.monotonic(), "tokens": written}
        os.write(self._log, json.dumps(line).encode() + b"\n")

    def _reply(self, body: Any, chance: random.Random) -> tuple[bool, str]:
        """The reply, and whether it was only asked for to see if schemas are kept to."""
        wanted = body.get("response_format")
        if wanted is not None:
            schema = wanted["json_schema"]["schema"]
            if "reason" in json.dumps(schema):
                score = chance.choice([5, 6, 6.5, 7, 9])
                return False, reply_to(schema, score, reason="It could say more.")
            words = {name: one["enum"][0] for name, one in schema["properties"].items()}
            return True, json.dumps(words)
        return False, " ".join(chance.choices(WORDS, k=12)).capitalize() + "."


@dataclass(kw_only=True)
class Tally:
    """What came of all runs."""

    runs: int = 0
    kills: int = 0
    parts: Counter[int] = field(default_factory=Counter)
    """Runs by how many parts they had."""
    replies: int = 0
    """That the server sent."""
    cut_replies: int = 0
    """That were sent just before a kill, and so once more."""
    sent_again: int = 0
    """Calls that were sent again although they had been answered."""
    other_outputs: int = 0
    """Runs whose outputs are not those of an uninterrupted one."""
    other_costs: int = 0
    """Runs that say they took less than one that nobody killed, or more than the server sent."""

    @property
    def is_sound(self) -> bool:
        return not (self.sent_again or self.other_outputs or self.other_costs)


@dataclass(kw_only=True)
class Whole:
    """A run that nobody killed."""

    outputs: object
    """What it gave."""
    calls: Counter[str]
    """How often each call was sent."""
    output_tokens: int
    """What it says it took."""


def main(runs: int, *, as_json: bool) -> None:
    """Forks each part of a run from this process, which has imported everything already."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    tempfile.tempdir = str(DIRECTORY)  # a killed run leaves its memory behind: not elsewhere
    RUBRIC.write_text(RUBRIC_TEXT, encoding="utf-8")
    log = DIRECTORY / "replies.jsonl"
    server, root = forked(Server(log))
    try:
        tally = kill_and_resume(runs, root, log)
    finally:
        os.kill(server, signal.SIGTERM)
        os.waitpid(server, 0)
    said = {**vars(tally), "parts": dict(sorted(tally.parts.items())), "sound": tally.is_sound}
    if as_json:
        print(json.dumps(said))
    else:
        for name, value in said.items():
            print(f"{name.replace('_', ' '):15} {value}")
    sys.exit(not tally.is_sound)


def kill_and_resume(runs: int, root: str, log: Path) -> Tally:
    """The runs, one after the other."""
    randomness = random.Random(0)
    for number in range(LET_LIVE):
        wait_for(fork_run(root, f"whole-{number}", None))
    whole = Whole(
        outputs=outputs_of("whole-0"),
        calls=Counter(
            {key: n // LET_LIVE for key, n in Counter(keys_in(read_from(log, 0))).items()}
        ),
        output_tokens=spent_by("whole-0"),
    )
    tally = Tally()
    offset = log.stat().st_size
    for number in range(runs):
        name, kills = f"killed-{number}", []
        resume = None
        while len(kills) < KILLS:
            left = whole.calls.total() - len(read_from(log, offset))
            moment = Moment.drawn(randomness, log, left)
            if wait_for(fork_run(root, name, resume), moment):
                break
            kills.append(time.monotonic())
            # A run that was killed before it had begun is begun again.
            resume = resumable(name)
        else:
            wait_for(fork_run(root, name, resume))
        replies = [json.loads(line) for line in read_from(log, offset)]
        offset = log.stat().st_size
        tally.runs += 1
        tally.kills += len(kills)
        add_up(tally, name, replies, kills, whole)
    return tally


def add_up(
    tally: Tally, name: str, replies: list[dict[str, Any]], kills: list[float], whole: Whole
) -> None:
    """Compares one run with what the server saw of it, and with one that nobody killed."""
    by_key = defaultdict(list)
    for reply in replies:
        by_key[reply["key"]].append(reply)
    for key, sent in by_key.items():
        again = len(sent) - whole.calls[key]
        cut = sum(any(0 <= kill - reply["ended_s"] < MARGIN_S for kill in kills) for reply in sent)
        tally.cut_replies += min(again, cut)
        tally.sent_again += max(0, again - cut)
    tally.replies += len(replies)
    tally.parts[Journal(journals(name)[0]).parts] += 1
    tally.other_outputs += outputs_of(name) != whole.outputs
    sent_tokens = sum(reply["tokens"] for reply in replies)
    tally.other_costs += not whole.output_tokens <= spent_by(name) <= sent_tokens


def fork_run(root: str, name: str, resume: Path | None) -> int:
    """The process of a part of a run."""
    process = os.fork()
    if process == 0:
        status = 1
        try:
            result = asyncio.run(
                outer.run_async({"task": "serving"}, settings=settings(root, name), resume=resume)
            )
            outputs = json.dumps(dict(result.outputs), sort_keys=True)
            (DIRECTORY / f"{name}.json").write_text(outputs, encoding="utf-8")
            status = 0
        finally:
            os._exit(status)
    return process


def settings(root: str, name: str) -> Settings:
    """Of a run whose files lie in a folder of its own."""
    return Settings.model_validate(
        {
            "roles": {"producer": MODELS[0], "planner": MODELS[0], "evaluator": MODELS[1]},
            "endpoints": {
                model: {
                    "tag": model,
                    "url": f"{root}/v1",
                    "model_id": model,
                    "family": model,
                    "usd_per_million_input_tokens": 1,
                    "usd_per_million_output_tokens": 10,
                }
                for model in MODELS
            },
            "traces": DIRECTORY / name,
            "trace": {"timelines": [], "sample_ms": 0},
        }
    )


@dataclass(frozen=True)
class Moment:
    """When a process is killed: by what it has done, as busy cores make any time long or short."""

    log: Path
    lines: int
    """Of the log, when the process is nearly there."""
    delay_s: float

    @classmethod
    def drawn(cls, randomness: random.Random, log: Path, left: int) -> Moment:
        """Among the lines that are left to be written; none, where nothing is."""
        lines = randomness.randint(0, left) if left > 0 else 1
        return cls(log, len(read_from(log, 0)) + lines, randomness.uniform(0, 0.02))

    def wait(self, process: int) -> bool:
        """False when the process came to its end before; then it is still to be waited for."""
        while len(read_from(self.log, 0)) < self.lines:
            if os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return False
            time.sleep(0.001)
        time.sleep(self.delay_s)
        return True


def wait_for(process: int, moment: Moment | None = None) -> bool:
    """Whether a process came to its end; at its moment it is killed."""
    if moment is not None and moment.wait(process):
        os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    if os.WIFEXITED(status) and os.waitstatus_to_exitcode(status):
        raise RuntimeError("a process that nobody killed failed; see above")
    return os.WIFEXITED(status)


def journals(name: str) -> list[Path]:
    """Those of the runs in a folder that came so far that they can be resumed."""
    return [
        path
        for path in (DIRECTORY / name).glob("*.jsonl")
        if path.stem.count(".") == 0 and b'"name":"pipeline"' in path.read_bytes()
    ]


def resumable(name: str) -> Path | None:
    """The journal to go on with; None when the run was killed before it had begun."""
    return next(iter(journals(name)), None)


def outputs_of(name: str) -> object:
    """What a run gave."""
    return json.loads((DIRECTORY / f"{name}.json").read_text(encoding="utf-8"))


def spent_by(name: str) -> int:
    """The output tokens that a run says it took, over all its parts."""
    return run_spent(Journal(journals(name)[0])).output_tokens


def keys_in(lines: list[bytes]) -> list[str]:
    """What was asked, by hash."""
    return [json.loads(line)["key"] for line in lines]


def read_from(log: Path, offset: int) -> list[bytes]:
    """The lines that were written since."""
    with log.open("rb") as file:
        file.seek(offset)
        return file.readlines()


if __name__ == "__main__":
    main(int(sys.argv[2]), as_json="--json" in sys.argv)
