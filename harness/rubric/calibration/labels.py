"""Reads drafts that people labeled.

The rows are those of any table. A draft may have several rows, one for each `rater`; a repeated
score is another sample. All mistakes are reported at once.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from harness.errors import InvalidInput, LabelsInvalid, did_you_mean
from harness.rows import Row, listed, read_rows
from harness.rubric.calibration.evaluation_rows import as_draft
from harness.rubric.draft import Draft
from harness.rubric.rubric import Rubric, Scale

COMPOSITE = ""
"""In place of a dimension's name, for a score of the whole draft."""
HOLD = "hold"
"""The split of drafts that stays unseen while a rubric is written."""

_TEXTS = ("id", "draft", "path", "task", "group", "split", "evaluator", "sources")
_LABELS = {"accept", "human", "group", "split"}
_READ = {*_TEXTS, *_LABELS, "score", "unjudged", "rubric_sha256", "samples", "sha256"}
_OF_SCORING = {"passed", "composite", "below_floor", "gates", "missing", "rubric"}
_OF_SCORING |= {"compressed", "scores", "judges", "error", "outdated", "unjudged_reasons"}
"""Columns of `harness rubric score` that are ignored here."""
_KNOWN = {*_READ, *_OF_SCORING, "rater", "seed"}
_OF_A_JUDGE = {"score", "evaluator", "unjudged", "rubric_sha256", "samples"}
"""Columns that do not count in a row that is outdated."""
_MISSING = {"", "na", "n/a", "nan", "null", "none"}
_YES = {"yes", "y", "true", "t", "on", "1", "1.0", "accept", "pass"}
_NO = {"no", "n", "false", "f", "off", "0", "0.0", "reject", "fail"}
_MOST_SHOWN = 20

Unreadable = Literal["drop", "lowest"]
"""How a judgement without a score, which is null in a file, counts: not, or as the lowest score."""
OffScale = Literal["refuse", "drop", "clip", "lowest"]
"""How an evaluator's score off the scale counts: as a mistake of the file, not at all, as the
nearest end of the scale, or as the lowest score."""


class Labeled(BaseModel):
    """A draft with people's labels."""

    model_config = ConfigDict(frozen=True)

    id: str
    """As the file gives it; else the draft's place in the file."""
    draft: str | None = None
    task: str = ""
    sources: tuple[str, ...] = ()
    people: dict[str, dict[str, float]] = {}
    """Dimension or `COMPOSITE` → rater, who may have no name → score."""
    accept: dict[str, bool] = {}
    """Whether the draft is good enough, by rater."""
    scores: dict[str, tuple[float, ...]] = {}
    """Dimension or `COMPOSITE` → the evaluator's scores, one for each sample."""
    group: str = ""
    """What it shares with other drafts, such as a source; empty if nothing."""
    split: str = ""
    evaluator: str = ""
    unjudged: tuple[str, ...] = ()
    """Dimensions that have no score since there was nothing to score them by."""
    rubric_sha256: str = ""
    """Digest of the rubric that it was scored by; empty if the file does not say."""
    samples: str = ""
    """How often it was judged; empty if the file does not say, or if that was not fixed."""
    sha256: str = ""
    """Digest of text, task and sources, if the file gives it in their place."""
    place: str = ""
    """If it has no id: the digest of all labels in its file, and its line."""

    @property
    def text(self) -> Draft | None:
        """What the evaluator reads; None if the file does not have it."""
        if self.draft is None:
            return None
        return Draft(text=self.draft, task=self.task, sources=self.sources)

    @property
    def content(self) -> str:
        """Digest of text, task and sources; empty if they are unknown."""
        return self.text.sha256 if self.text else self.sha256

    @property
    def digest(self) -> str:
        """The digest by which looks at the draft's label are remembered, in any file."""
        identity = self.content or self.place or self.id
        return hashlib.sha256(identity.encode()).hexdigest()[:12]

    @property
    def identified_labels(self) -> str:
        """The draft's digest and what people say of it, as one text."""
        return self.digest + self.model_dump_json(include={"people", "accept"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """What a file holds."""

    path: Path
    drafts: tuple[Labeled, ...] = ()
    ignored: tuple[str, ...] = ()
    """Columns that mean nothing here."""
    unreadable: Mapping[str, int] = field(default_factory=dict)
    """Column → number of the evaluator's judgements without a score."""
    off_scale: Mapping[str, int] = field(default_factory=dict)
    """Column → number of the evaluator's scores off the scale, if that is no mistake."""


@dataclass(frozen=True, slots=True)
class _Cell:
    row: Row
    column: str
    """The column's name here, whatever the file calls it."""
    value: Any
    """As the file has it, until `_LabelTable.value_of` has read it."""


_Place = tuple[str, ...]
"""The fields and keys that lead to a value in `Labeled`, such as `("people", "clear", "anna")`."""


def read_labels(
    path: Path,
    rubric: Rubric,
    *,
    columns: Mapping[str, str],
    need: Literal["labels", "either", "scores"] = "labels",
    unreadable: Unreadable = "drop",
    off_scale: OffScale = "refuse",
    rows: Iterable[Row | InvalidInput] | None = None,
) -> Labels:
    """The labels of a file.

    `columns` has the file's name of a column by its name here; `need` is what the file must have,
    and if that is scores, its labels do not count;
    `rows` are its rows if it was read before, with these columns and the empty cells of scores.
    `unreadable` and `off_scale` are for the evaluator's scores.

    Raises:
        InvalidInput: The file cannot be read, or has no labels.
        LabelsInvalid: It has mistakes.
    """
    if rows is None:
        rows = read_rows([str(path)], columns=columns, empty={"score"})
    table = _LabelTable(path, rubric, columns, need, unreadable, off_scale)
    labels = table.labels(rows)
    table.raise_mistakes()
    return labels


@dataclass(frozen=True, slots=True)
class _LabelTable:
    """One file on its way to labels, and the mistakes in it."""

    path: Path
    rubric: Rubric
    columns: Mapping[str, str]
    need: Literal["labels", "either", "scores"]
    unreadable: Unreadable
    off_scale: OffScale
    unreadable_counts: Counter[str] = field(default_factory=Counter)
    off_scale_counts: Counter[str] = field(default_factory=Counter)
    without_id: set[str] = field(default_factory=set)
    mistakes: list[InvalidInput] = field(default_factory=list)

    def labels(self, table_rows: Iterable[Row | InvalidInput]) -> Labels:
        rows: list[Row] = []
        for row in table_rows:
            try:
                if isinstance(row, InvalidInput):
                    raise row
                rows.append(as_draft(row, self.rubric))
            except InvalidInput as mistake:
                # Not a row's mistake: the file cannot be read.
                if mistake.line is None:
                    raise
                self.mistakes.append(mistake)
        if self.need == "scores":
            for number, row in enumerate(rows):
                names = [name for name in row.fields if name.partition(".")[0] not in _LABELS]
                rows[number] = replace(row, fields={name: row.fields[name] for name in names})
        columns = dict.fromkeys(column for row in rows for column in row.fields)
        column_by_kind = {column.partition(".")[0]: column for column in columns}
        self._check_columns(columns, column_by_kind.keys())

        by_draft = self._cells_by_draft(rows, has_raters="rater" in column_by_kind)
        drafts = [_labeled(cells) for cells in by_draft.values()]
        people = sorted(draft.model_dump_json(include={"people", "accept"}) for draft in drafts)
        among = hashlib.sha256("".join(people).encode()).hexdigest()
        for number, draft in enumerate(drafts):
            if draft.id in self.without_id:
                place = f"{among} {draft.id.rpartition(':')[2]}"
                drafts[number] = draft.model_copy(update={"place": place})
        return Labels(
            path=self.path,
            drafts=tuple(drafts),
            ignored=tuple(column for kind, column in column_by_kind.items() if kind not in _KNOWN),
            unreadable=self.unreadable_counts,
            off_scale=self.off_scale_counts,
        )

    def _check_columns(self, columns: Iterable[str], kinds: Set[str]) -> None:
        scores = {"score"} if self.need != "labels" else set()
        if not kinds & {"accept", "human", *scores}:
            self.raise_mistakes()
            raise InvalidInput(
                "it has no human labels; add a column 'accept' with yes or no, 'human.DIMENSION' "
                "with scores, or name another column with --columns accept=NAME "
                f"(columns with values: {', '.join(columns) or 'none'})",
                code="labels.no-labels",
                path=self.path,
            )
        header = Row(fields={}, path=self.path, line=1)
        dimensions = [dimension.name for dimension in self.rubric.dimensions]
        for column in columns:
            kind, _, rest = column.partition(".")
            name = rest.partition(".")[0]
            if kind in {"human", "score"} and name not in {"", *dimensions}:
                problem = f"the rubric has no dimension '{name}'; {did_you_mean(name, dimensions)}"
                self._wrong(_Cell(header, column, name), problem, code="labels.unknown-dimension")

    def _cells_by_draft(
        self, rows: Iterable[Row], *, has_raters: bool
    ) -> dict[str, dict[_Place, _Cell]]:
        """By the draft's id, the cells of its rows by their places, with their values read."""
        by_draft: dict[str, dict[_Place, _Cell]] = {}
        for row in rows:
            # A file of scores has a new row for what has changed since.
            if "sha256" in row.fields:
                by_draft.pop(row.id, None)
            if not has_raters and row.id in by_draft:
                problem = (
                    f"'{row.id}' occurs twice; give each draft its own, or say who is the 'rater'"
                )
                self._wrong(_Cell(row, "id", row.id), problem, code="labels.duplicate-id")
                continue
            # In a file of scores, a draft without an id has its place in a file, such as `a.csv:3`.
            if "id" not in row.fields or ("sha256" in row.fields and re.search(r":\d+$", row.id)):
                self.without_id.add(row.id)
            cells = by_draft.setdefault(row.id, {("id",): _Cell(row, "id", row.id)})
            try:
                for place, cell in self._cells_of(row):
                    value = self._value_of(cell, place)
                    if value is not None:
                        self._add(place, replace(cell, value=value), cells)
            except InvalidInput as error:  # of the draft or its sources
                self.mistakes.append(error)
        return by_draft

    def raise_mistakes(self) -> None:
        """Raises all mistakes at once; the message has the first ones."""
        if self.mistakes:
            self.mistakes.sort(key=lambda mistake: mistake.line or 0)
            lines = [str(mistake) for mistake in self.mistakes[:_MOST_SHOWN]]
            if (rest := len(self.mistakes) - _MOST_SHOWN) > 0:
                lines.append(f"{self.path}: {rest} more")
            raise LabelsInvalid("\n".join(lines), problems=self.mistakes)

    def _wrong(self, cell: _Cell, message: str, *, code: str) -> None:
        column = self.columns.get(cell.column, cell.column)
        # In a spreadsheet, lines are hard to count where texts have several.
        draft = f" (draft '{cell.row.id}')" if "id" in cell.row.fields and column != "id" else ""
        self.mistakes.append(cell.row.refusal(f"{column}: {message}{draft}", code=code))

    def _cells_of(self, row: Row) -> Iterator[tuple[_Place, _Cell]]:
        """The cells of a row that say something of its draft, by their places."""
        texts = {"draft": row.draft, "path": row.draft, "sources": row.sources}
        not_judged = {dimension.name for dimension in self.rubric.checked}
        not_judged.update(map(str, listed(row.fields.get("unjudged", []))))
        for (kind, *rest), column in _places_in(row).items():
            place = (_FIELDS.get(kind, kind), *rest)
            cell = _Cell(row, column, texts.get(kind, row.fields[column]))
            scores = _samples(cell.value) if kind == "human" else []
            # Code scores it, or it had nothing to be judged by: no judgement has failed.
            if cell.value is None and place[1] in not_judged:
                continue
            if len(scores) > 1 and not place[2]:
                # Several scores in a cell without a rater's name are of several people.
                for number, score in enumerate(scores, start=1):
                    if score is not None:
                        yield (*place[:2], str(number)), replace(cell, value=score)
            else:
                yield place, cell

    def _value_of(self, cell: _Cell, place: _Place) -> object:
        """What a cell says; None after a mistake, or if it says nothing."""
        match place:
            case ("people", name, _):
                return self._score(cell, cell.value, name)
            case ("scores", name):
                return self._sample_scores(cell, name) or None
            case ("accept", _):
                return self._decision(cell)
            case ("unjudged",):
                return tuple(map(str, listed(cell.value)))
            case ("draft" | "sources",):
                return cell.value
            case _:
                # The task is a part of the draft's digest, as it stands.
                return str(cell.value) if place == ("task",) else str(cell.value).strip()

    def _add(self, place: _Place, cell: _Cell, cells: dict[_Place, _Cell]) -> None:
        """Adds a cell to those of its draft, which may have one in its place."""
        before = cells.get(place)
        if place[0] == "scores" and before is not None:
            cell = replace(cell, value=before.value + cell.value)
        elif before is not None and before.value != cell.value:
            problem = f"another value than on line {before.row.line}, for the same id"
            self._wrong(cell, problem, code="labels.two-values")
        cells[place] = cell

    def _decision(self, cell: _Cell) -> bool | None:
        if (decision := _decision(cell.value)) is None:
            problem = f"{str(cell.value)!r:.40}: write yes or no, or nothing"
            self._wrong(cell, problem, code="labels.not-yes-or-no")
        return decision

    def _score(self, cell: _Cell, value: object, name: str) -> float | None:
        scale = self.rubric.scale_of(name)
        if (score := _number(value, scale)) is None:
            self._wrong(cell, f"{str(value)!r:.40}: {_NO_NUMBER}", code="labels.not-a-number")
        elif not scale.min <= score <= scale.max:
            problem = f"{str(value)!r:.40}: not on its scale, {scale.min:g} to {scale.max:g}"
            if cell.column.startswith("score"):
                problem += " (--off-scale can clip or drop it)"
            self._wrong(cell, problem, code="labels.off-scale")
        return score

    def _sample_scores(self, cell: _Cell, name: str) -> tuple[float, ...]:
        """The evaluator's scores in a cell that count."""
        scale = self.rubric.scale_of(name)
        scores = []
        for value in _samples(cell.value):
            score = _number(value, scale)
            if value is None or str(value).strip().lower() in _MISSING:
                self.unreadable_counts[cell.column] += 1
                scores += [scale.min] if self.unreadable == "lowest" else []
            elif score is None or self.off_scale == "refuse" or scale.min <= score <= scale.max:
                # 0 in place of a mistake, which is raised with all others.
                scores.append(self._score(cell, value, name) or 0.0)
            else:
                self.off_scale_counts[cell.column] += 1
                nearest = min(max(score, scale.min), scale.max)
                scores += {"drop": [], "clip": [nearest], "lowest": [scale.min]}[self.off_scale]
        return tuple(scores)


def _labeled(cells: Mapping[_Place, _Cell]) -> Labeled:
    fields: dict[str, Any] = {}
    for place, cell in cells.items():
        parent = fields
        for part in place[:-1]:
            parent = parent.setdefault(part, {})
        parent[place[-1]] = cell.value
    return Labeled(**fields)


def _samples(value: object) -> list[Any]:
    """The samples in a cell: a list, or numbers with spaces, `|` or `;` between."""
    if isinstance(value, str) and not value.startswith("["):
        return re.split(r"[\s|;]+", value.strip())
    return listed(value)


def _decision(value: object) -> bool | None:
    word = str(value).strip().lower()
    return word in _YES if word in _YES | _NO else None


def _number(value: object, scale: Scale) -> float | None:
    """The score in a cell, which may be a word on a scale of pass and fail; None if it is none."""
    try:
        score = float(str(value).strip())
    except ValueError:
        decision = _decision(value) if scale.is_pass_fail else None
        return None if decision is None else scale.at(float(decision))
    return score if math.isfinite(score) else None


def labels_in(row: Row) -> dict[str, str | float | bool]:
    """What people said of a row's draft, by columns such as `human.clear.anna`."""
    labels = {}
    for place, column in _places_in(row).items():
        if place[0] in _LABELS:
            value = row.fields[column]
            name = ".".join(place).rstrip(".")  # without a rater's name, the last part is empty
            labels[name] = value if isinstance(value, str | int | float) else str(value)
    return labels


def _places_in(row: Row) -> dict[_Place, str]:
    """The columns of a row by kind, dimension and rater, such as `("human", "clear", "anna")`.

    Left out are columns that say which row it is or mean nothing, and cells without a label.
    """
    rater = str(row.fields.get("rater", "")).strip().rstrip(".")
    columns = {}
    for name, value in row.fields.items():
        kind, _, rest = name.partition(".")
        is_missing = isinstance(value, str) and value.strip().lower() in _MISSING
        if kind not in _READ - {"id"} or (is_missing and kind not in {*_TEXTS, "score"}):
            continue
        # A null is a judgement without a score, an empty cell is no judgement.
        if kind == "score" and value == "":
            continue
        if kind in _OF_A_JUDGE and "outdated" in row.fields:
            continue
        rest = rest.rstrip(".")
        dimension, _, named_rater = rest.partition(".")
        place: _Place = (name,)
        if kind == "accept":
            place = (kind, rest or rater)
        elif kind == "human":
            place = (kind, dimension, named_rater or rater)
        elif kind == "score":
            place = (kind, dimension)
        columns[place] = name
    return columns


# Column → field of `Labeled`, where the names differ.
_FIELDS = {"human": "people", "score": "scores", "path": "draft"}

_NO_NUMBER = "not a number; write it with a point, 7.5, or leave it empty"
