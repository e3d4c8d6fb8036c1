"""Rows of evaluations, also of Inspect AI and promptfoo: as samples, and as drafts with scores."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import orjson

from harness.errors import InvalidInput
from harness.rows import Row
from harness.rubric.calibration.score_figures import Sample
from harness.rubric.rubric import Rubric

_SCORES = "scores."
_ALIKE = ("accept", "evaluator", "group", "human", "outdated", "rubric_sha256", "split", "unjudged")
"""Columns that drafts with labels have by the same names."""


def is_evaluation(fields: Mapping[str, object]) -> bool:
    """Whether rows with these columns are of an evaluation; one that failed has no score."""
    has = {name.partition(".")[0] for name in fields}
    return "epoch" in has and "draft" not in has and not has.isdisjoint({"scores", "inputs"})


class PairNames:
    """What the rows of one evaluation are paired by: the id, or else the inputs."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._alike = Counter[str]()

    def of(self, row: Row, inputs: Mapping[str, object]) -> str:
        """The name of a row, in all its epochs; rows with the same inputs are numbered."""
        table, line = row.fields.get("file"), row.fields.get("line")
        place = str(table) if line is None else f"{table}:{line}"
        # An id that is only a place in a table names another row once the table is sorted.
        if row.id != " ".join(place.split()):
            return row.id
        if row.id not in self._names:
            texts = ((name, _cell(value)) for name, value in sorted(inputs.items()))
            name = "; ".join(f"{name}: {text}" for name, text in texts if text)
            self._alike[name] += 1
            count = self._alike[name]
            self._names[row.id] = name if count == 1 else f"{name} #{count}"
        return self._names[row.id]


def _cell(value: object) -> str:
    """A value as a table has it, so that outputs of several kinds have the same."""
    text = value if isinstance(value, str) else orjson.dumps(value, default=str).decode()
    return "" if value is None else text


def evaluation_samples(rows: Iterable[Row | InvalidInput]) -> list[Sample]:
    """The scores of an evaluation's rows by their names for pairs, without outdated ones.

    Raises:
        InvalidInput: A row cannot be read, its `scores` are no object, or a score is no number.
    """
    samples, names = [], PairNames()
    for row in rows:
        if isinstance(row, InvalidInput):
            raise row
        if row.fields.get("outdated"):
            continue
        values = object_in(row.fields, "scores") or {}
        if not isinstance(values, dict):
            raise row.refusal(
                f"'scores' is {values!r:.40}, not an object", code="labels.not-a-number"
            )
        try:
            scores = {name: float(value) for name, value in values.items()}
        except (TypeError, ValueError) as error:
            raise row.refusal(
                f"a score is no number ({error})", code="labels.not-a-number"
            ) from error
        inputs = object_in(row.fields, "inputs") or {}
        name, group = names.of(row, inputs), str(row.fields.get("group", ""))
        samples.append(Sample(row=name, scores=scores, group=group))
    return samples


def object_in(fields: Mapping[str, Any], name: str) -> Any:  # noqa: ANN401 - JSON
    """A value that may be an object, as JSON in a cell, or in columns with points."""
    value = fields.get(name)
    parts = {key.partition(".")[2]: of for key, of in fields.items() if key.startswith(f"{name}.")}
    if isinstance(value, str) and value[:1] in {"{", "["}:
        with suppress(orjson.JSONDecodeError):
            value = orjson.loads(value)
    return {**parts, **value} if isinstance(value, dict) else parts or value


def as_draft(row: Row, rubric: Rubric) -> Row:
    """A row of an evaluation as a draft that was scored by the rubric; others as they are.

    Each epoch is a draft. Scores are the rubric's, or those that another program gave by the names
    of its dimensions.
    """
    if not is_evaluation(row.fields):
        return row
    epoch = int(row.fields["epoch"])
    fields = {
        "id": row.id if epoch == 1 else f"{row.id} epoch {epoch}",
        # Epochs of one row are alike, unless the row has another group.
        "group": row.id,
        "draft": row.fields.get("output"),
        "task": row.fields.get("inputs.task", ""),
    }
    dimensions = {dimension.name for dimension in rubric.dimensions}
    for name, value in row.fields.items():
        plain = name.removeprefix("inputs.")
        score = name.removeprefix(_SCORES).removeprefix(f"{rubric.id}.")
        score = re.sub(r"\W+", "_", score.lower())
        # Labels may stand in the data set, so that they are inputs here.
        if plain.partition(".")[0] in _ALIKE:
            fields[plain] = value
        elif name.startswith(_SCORES) and score in dimensions:
            fields[f"score.{score}"] = value
    if not isinstance(fields["draft"], str):
        del fields["draft"]
    return replace(row, fields=fields)
