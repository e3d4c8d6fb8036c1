"""Rows of evaluations, also of Inspect AI and promptfoo: as samples, and as drafts with scores."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from harness.errors import InvalidInput
from harness.rows import Row, read_rows
from harness.rubric.calibration.score_figures import Sample
from harness.rubric.rubric import Rubric

_SCORES = "scores."
_ALIKE = ("accept", "evaluator", "group", "human", "outdated", "rubric_sha256", "split", "unjudged")
"""Columns that drafts with labels have by the same names."""


def is_evaluation(fields: Mapping[str, object]) -> bool:
    """Whether rows with these columns are of an evaluation; one that failed has no score."""
    has = {name.partition(".")[0] for name in fields}
    return "epoch" in has and "draft" not in has and not has.isdisjoint({"scores", "inputs"})


def evaluation_samples(path: Path) -> list[Sample]:
    """The scores of an evaluation's rows, without outdated ones.

    Raises:
        InvalidInput: A row cannot be read, or a score is no number.
    """
    samples = []
    for row in read_rows([str(path)]):
        if isinstance(row, InvalidInput):
            raise row
        if row.fields.get("outdated"):
            continue
        try:
            scores = {
                name.removeprefix(_SCORES): float(value)
                for name, value in row.fields.items()
                if name.startswith(_SCORES)
            }
        except (TypeError, ValueError) as error:
            raise row.refusal(
                f"a score is no number ({error})", code="labels.not-a-number"
            ) from error
        samples.append(Sample(row=row.id, scores=scores, group=str(row.fields.get("group", ""))))
    return samples


def as_draft(row: Row, rubric: Rubric) -> Row:
    """A row of an evaluation as a draft that was scored by the rubric; others as they are.

    Each epoch is a draft, and those of one row are a group unless the row has another. Labels may
    stand in the data set. Scores are the rubric's, or those that another program gave by the names
    of its dimensions.
    """
    if not is_evaluation(row.fields):
        return row
    epoch = int(row.fields["epoch"])
    fields = {
        "id": row.id if epoch == 1 else f"{row.id} epoch {epoch}",
        "group": row.id,
        "draft": row.fields.get("output"),
        "task": row.fields.get("inputs.task", ""),
    }
    dimensions = {dimension.name for dimension in rubric.dimensions}
    for name, value in row.fields.items():
        plain = name.removeprefix("inputs.")
        score = name.removeprefix(_SCORES).removeprefix(f"{rubric.id}.")
        score = re.sub(r"\W+", "_", score.lower())
        if plain.partition(".")[0] in _ALIKE:
            fields[plain] = value
        elif name.startswith(_SCORES) and score in dimensions:
            fields[f"score.{score}"] = value
    if not isinstance(fields["draft"], str):
        del fields["draft"]
    return replace(row, fields=fields)
