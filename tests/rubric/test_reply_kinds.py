"""Replies of evaluator models by their kinds, and the scores that a careful person reads.

The replies are in `tests/rubric/replies/kinds.yaml`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from harness.rubric import Dimension, Draft, Rubric
from harness.rubric.reply import read_reply
from harness.rubric.rubric import Scale

KINDS = yaml.safe_load((Path(__file__).parent / "replies" / "kinds.yaml").read_text("utf-8"))
ROWS = [
    pytest.param(*row, id=f"{kind} {number}")
    for kind, rows in KINDS.items()
    for number, row in enumerate(rows, start=1)
]
SCALES = {
    "0-10": Scale(),
    "1-10": Scale(min=1, max=10, step=1),
    "1-5": Scale(min=1, max=5, step=1),
    "1-100": Scale(min=1, max=100, step=1),
    "0-1": Scale(min=0, max=1),
    "pass": Scale(min=0, max=1, step=1),
    "-5--1": Scale(min=-5, max=-1, step=1),
    "-1-1": Scale(min=-1, max=1, step=0.5),
    "fine": Scale(min=0, max=100_000, step=0.01),
}
DRAFT = Draft(text="Team A won, 4 of 5 games. Our own mark is clear: 9/10.", task="Report.")


def read(scale: str, names: str, reply: str) -> str:
    """The scores read from the reply, in the order of the names."""
    dimensions = tuple(
        Dimension(name=name, judge="Is it?", scale=SCALES[scale]) for name in names.split()
    )
    rubric = Rubric(id="essay", title="Essay", dimensions=dimensions)
    judgements = read_reply(reply, rubric, rubric.judged, draft=DRAFT)
    scores = (judgements[name].score if name in judgements else None for name in names.split())
    return " ".join("-" if score is None else f"{score:g}" for score in scores)


@pytest.mark.parametrize(("scale", "names", "reply", "scores"), ROWS)
def test_a_reply_gives_the_scores_that_a_person_reads_or_none(scale, names, reply, scores):
    assert read(scale, names, reply) == scores
