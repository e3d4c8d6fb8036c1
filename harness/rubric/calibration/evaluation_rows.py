"""Reads rows of evaluations, also of Inspect AI and promptfoo, as samples or as scored drafts."""

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
from harness.text.value_text import text_of

_SCORES = "scores."
_ALIKE = ("accept", "evaluator", "group", "human", "outdated", "rubric_sha256", "split", "unjudged")
"""Columns that have the same names in files of labeled drafts."""


def is_evaluation(fields: Mapping[str, object]) -> bool:
    """Whether rows with these columns are of an evaluation; one that failed has no scores."""
    columns = {name.partition(".")[0] for name in fields}
    return "epoch" in columns and "draft" not in columns and bool(columns & {"scores", "inputs"})


class PairNames:
    """Names the rows of one evaluation by their ids, or else by their inputs, to pair them."""

    def __init__(self) -> None:
        self._name_by_id: dict[str, str] = {}
        self._rows_by_name = Counter[str]()

    def assign(self, row: Row, inputs: Mapping[str, object]) -> str:
        """The name of a row, the same in all its epochs; rows with equal inputs are numbered."""
        table, line = row.fields.get("file"), row.fields.get("line")
        place = str(table) if line is None else f"{table}:{line}"
        # An id that is only a place in a table names another row once the table is sorted.
        if row.id != " ".join(place.split()):
            return row.id
        if row.id not in self._name_by_id:
            # Only what a table's cell can hold too: a row has one name in files of any kind.
            values = {name: v for name, v in sorted(inputs.items()) if v not in (None, "")}
            name = "; ".join(f"{name}: {text_of(value)}" for name, value in values.items())
            self._rows_by_name[name] += 1
            count = self._rows_by_name[name]
            self._name_by_id[row.id] = name if count == 1 else f"{name} #{count}"
        return self._name_by_id[row.id]


def evaluation_samples(rows: Iterable[Row | InvalidInput]) -> list[Sample]:
    """One `Sample` for each row that is not outdated, named so that two evaluations pair up.

    Raises:
        InvalidInput: A row cannot be read, its `scores` are no object, or a score is no number.
    """
    samples = []
    names = PairNames()
    for row in rows:
        if isinstance(row, InvalidInput):
            raise row
        if row.fields.get("outdated"):
            continue
        inputs = object_in(row.fields, "inputs") or {}
        group = str(row.fields.get("group", ""))
        samples.append(Sample(row=names.assign(row, inputs), scores=scores_in(row), group=group))
    return samples


def scores_in(row: Row) -> dict[str, float]:
    """A row's scores by name; raises `InvalidInput` if they are no object of numbers."""
    values = object_in(row.fields, "scores") or {}
    if not isinstance(values, dict):
        raise row.refusal(f"'scores' is {values!r:.40}, not an object", code="labels.not-a-number")
    try:
        return {name: float(value) for name, value in values.items()}
    except (TypeError, ValueError) as error:
        raise row.refusal(f"a score is no number ({error})", code="labels.not-a-number") from error


def object_in(fields: Mapping[str, Any], name: str) -> Any:  # noqa: ANN401 - JSON
    """The value of a field; objects may be JSON in a cell, or columns such as `scores.clear`."""
    value = fields.get(name)
    prefix = f"{name}."
    parts = {key.removeprefix(prefix): v for key, v in fields.items() if key.startswith(prefix)}
    if isinstance(value, str) and value[:1] in {"{", "["}:
        with suppress(orjson.JSONDecodeError):
            value = orjson.loads(value)
    return {**parts, **value} if isinstance(value, dict) else parts or value


def whole_number_in(row: Row, name: str) -> int:
    """A field of a row; raises `InvalidInput` if it is no whole number."""
    # Other programs write 1.0. An object has columns such as `epoch.a` alone.
    match = re.fullmatch(r"([+-]?\d{1,18})(\.0*)?", str(row.fields.get(name)).strip())
    if match is None:
        raise row.refusal(f"'{name}' is not a whole number", code="labels.not-a-number")
    return int(match[1])


def as_draft(row: Row, rubric: Rubric) -> Row:
    """A row of an evaluation as a draft with scores; any other row as it is.

    Each epoch is a draft. The scores are the rubric's own, or another program's if they have the
    names of the rubric's dimensions. Raises `InvalidInput` if the epoch is no whole number.
    """
    if not is_evaluation(row.fields):
        return row
    epoch = whole_number_in(row, "epoch")
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
        # Labels may stand in the data set; the evaluation then has them among its inputs.
        if plain.partition(".")[0] in _ALIKE:
            fields[plain] = value
        elif name.startswith(_SCORES) and score in dimensions:
            fields[f"score.{score}"] = value
    if not isinstance(fields["draft"], str):
        del fields["draft"]
    return replace(row, fields=fields)
