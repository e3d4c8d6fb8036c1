"""Evaluations by scripted models: rubrics, replies, and the verdicts that come of them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from harness.inference import ChatRequest, ScriptedBackend
from harness.rubric import Dimension, Draft, Evaluator, Rubric, Verdict
from harness.rubric.checks import Words

LENGTH = Dimension(name="length", checks=(Words(min=4),))
CLEAR = Dimension(name="clear", judge="Is it clear?", weight=3)
USEFUL = Dimension(name="useful", judge="Is it useful?")
TONE = Dimension(name="tone", judge="Is it kind?", optional=True)
DRAFT = Draft(text="Two words.", task="Write.")


def rubric(*dimensions: Dimension, **fields: Any) -> Rubric:
    """The rubric `essay`, whose drafts are judged once."""
    fields = {"id": "essay", "title": "Essay", "repeats": 1, **fields}
    return Rubric(dimensions=dimensions or (CLEAR,), **fields)


def said(score: float, *problems: str, section: str = "whole text", **more: Any) -> dict[str, Any]:
    """What a model says of one dimension."""
    issues = [{"section": section, "problem": problem} for problem in problems]
    return {"reason": f"It is worth {score}.", "issues": issues, **more, "score": score}


def alone(score: float, *problems: str, **more: Any) -> str:
    """A reply on one dimension."""
    return json.dumps(said(score, *problems, **more))


def scores(**points: float) -> str:
    """A reply on several."""
    return json.dumps({name: said(score) for name, score in points.items()})


def asked_for(request: ChatRequest) -> list[str]:
    """The dimensions that a call asks for."""
    last = request.messages[-1].content.rpartition("Judge the draft on ")[2]
    return last.partition(". Reply")[0].removesuffix(" alone").split(", ")


def scripted(replies: Any) -> ScriptedBackend:
    """What answers so: in order, by a function of the call, or in order for each of the models."""
    if isinstance(replies, dict):
        by_model = {model: iter(script) for model, script in replies.items()}
        return ScriptedBackend(lambda request: next(by_model[request.model]))
    return ScriptedBackend(replies)


def judge(
    replies: Any,
    *dimensions: Dimension,
    draft: Draft = DRAFT,
    models: tuple[str, ...] = ("judge",),
    combine: Any = "mean",
    noise: float | None = None,
    **fields: Any,
) -> tuple[Verdict, list[ChatRequest]]:
    """The verdict on a draft, and what the models were asked for it."""
    backend = scripted(replies)
    by = Evaluator(
        rubric(*dimensions, **fields),
        ask=backend.chat,
        models=tuple(replies) if isinstance(replies, dict) else models,
        combine=combine,
        noise=noise,
    )
    return asyncio.run(by.evaluate(draft)), backend.requests
