"""A server whose model judges drafts, and the drafts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from command import Done, harness, interrupt, serving
from scripted_judge import Scores, reply_to
from servers.emulated import Answer, Asked, Emulated, stream

RUBRIC = """\
title: Notes
pass_at: 8
repeats: 1
dimensions:
  - name: length
    checks: [{ check: words, min: 5, max: 40 }]
  - name: clear
    weight: 3
    floor: 4
    judge: Is it clear?
"""

DRAFTS = {
    "good.md": "Keeping the model loaded between calls removes the cold start.\n",
    "fair.md": "The model is kept loaded, which helps with all sorts of things.\n",
    "poor.md": "Things happen and are then kept as they were before that, or not.\n",
}
SCORES = {"good.md": 9.0, "fair.md": 7.0, "poor.md": 3.0}
"""By the draft; the composites are (10 + 3 * score) / 4, rounded: 9.3, 7.8 and 4.8."""


def by_draft(prompt: str) -> float:
    """What the judge gives to the draft that it is shown."""
    return SCORES[next(name for name, text in DRAFTS.items() if text.strip() in prompt)]


@dataclass
class Judge(Emulated):
    """A server of OpenAI's protocol whose model judges."""

    score: Callable[[str], Scores] = by_draft
    """By the conversation so far."""
    at: dict[str, str | int] = field(default_factory=dict)
    """By the draft: in place of a judgement, what it refuses with, or a signal to interrupt by."""

    async def respond(self, asked: Asked, answer: Answer) -> None:
        """Answers one request."""
        if asked.path.endswith("/models"):  # so it is known again at another address
            await answer.json({"object": "list", "data": [{"id": "judge", "object": "model"}]})
            return
        if not asked.path.endswith("/chat/completions"):
            await answer.json({"error": {"message": "Not Found"}}, status=404)
            return
        prompt = "\n".join(message["content"] for message in asked.body["messages"])
        for name, instead in self.at.items():
            if DRAFTS[name].strip() not in prompt:
                continue
            if isinstance(instead, str):
                await answer.json({"error": {"message": instead}}, status=400)
            else:
                interrupt(instead)
                await answer.hold()
            return
        schema = asked.body["response_format"]["json_schema"]["schema"]
        text = reply_to(schema, self.score(prompt), reason="It could say how much.")
        await stream(answer, text, model="judge", tokens=(100, 20))


def alone(*arguments: str, cwd: Path) -> Done:
    """`harness rubric` without an evaluator."""
    return harness("rubric", *arguments, cwd=cwd, endpoints={})


def judged(*arguments: str, cwd: Path, model_id: str = "judge", **judge: Any) -> tuple[Done, int]:
    """The same with one; and how many requests it got."""
    with serving(Judge(**judge)) as server:
        url = f"{server.root}/v1"
        endpoints = {"evaluator": {"url": url, "model_id": model_id, "structured": "enforced"}}
        done = harness("rubric", *arguments, cwd=cwd, endpoints=endpoints)
    return done, calls_of(server)


def calls_of(server: Judge) -> int:
    """How many judgements it was asked for."""
    return sum(asked.path.endswith("/chat/completions") for asked in server.asked)
