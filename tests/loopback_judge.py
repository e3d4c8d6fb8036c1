"""A judge in a process of its own, which takes its time and counts what it is asked.

python tests/loopback_judge.py SECONDS
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent / "inference"))

from scripted_judge import reply_to
from servers.emulated import Answer, Asked, Emulated, stream

RUBRIC = """\
title: Notes
repeats: 1
dimensions:
  - name: clear
    judge: Is it clear?
    anchors: { 9: Throughout., 6: Mostly., 3: Hardly. }
"""


def draft(number: int) -> str:
    """A text whose number the judge finds, and scores by."""
    return f"Draft number {number}. It says what happened and what to do."


def score_of(number: int) -> float:
    return number % 21 / 2


@dataclass
class SlowJudge(Emulated):
    """Answers after a while; a GET tells how often it was asked about each draft."""

    latency_s: float = 0.0
    seen: Counter[int] = field(default_factory=Counter)

    async def respond(self, asked: Asked, answer: Answer) -> None:
        """Answers one request."""
        if asked.path == "/seen":
            await answer.json(self.seen)
            return
        if not asked.path.endswith("/chat/completions"):
            await answer.json({"error": {"message": "Not Found"}}, status=404)
            return
        found = re.search(r"Draft number (\d+)\.", asked.body["messages"][-1]["content"])
        assert found is not None
        number = int(found[1])
        self.seen[number] += 1
        await asyncio.sleep(self.latency_s)
        schema = asked.body["response_format"]["json_schema"]["schema"]
        text = reply_to(schema, score_of(number), reason="It could say how much.")
        await stream(answer, text, model="judge", tokens=(100, 20))


@contextmanager
def loopback_judge(latency_s: float) -> Iterator[tuple[str, Callable[[], dict[int, int]]]]:
    """Its settings, for HARNESS_ENDPOINTS; and how often it was asked about each draft."""
    command = [sys.executable, __file__, str(latency_s)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        root = server.stdout.readline().strip()

        def seen() -> dict[int, int]:
            with urllib.request.urlopen(f"{root}/seen") as reply:
                return {int(number): times for number, times in json.load(reply).items()}

        endpoint = {"url": f"{root}/v1", "model_id": "judge", "structured": "enforced"}
        try:
            yield json.dumps({"evaluator": endpoint}), seen
        finally:
            server.stdin.close()


async def _serve(latency_s: float) -> None:
    async with SlowJudge(latency_s=latency_s) as server:
        print(server.root, flush=True)
        # Until the other end closes it, or dies.
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_serve(float(sys.argv[1])))
