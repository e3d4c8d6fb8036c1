"""Judgements: what an evaluator model said of one dimension, before code makes a score of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Issue:
    """One thing that an evaluator model wants changed."""

    problem: str
    """What is wrong."""
    section: str = ""
    """The section's heading as the model wrote it; empty where it named none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """An evaluator model's word on one dimension."""

    score: float
    """On the rubric's scale and step."""
    start: int
    """Where in the reply the score's number begins."""
    end: int
    """Where it ends."""
    reason: str = ""
    """Why not more; empty where none was given."""
    issues: tuple[Issue, ...] = ()
    """What to change."""
    rules: Mapping[str, bool] = field(default_factory=dict)
    """Whether the statement of a cap is true of the draft, by the statement's key in the reply;
    those that were left open are missing."""
