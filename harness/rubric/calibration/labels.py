"""Reads drafts that people labeled.

The rows are those of any table. A draft may have several rows, one for each `rater`; a repeated
score is another sample. All mistakes are reported at once.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, StringConstraints, ValidationError

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
# Beside the words that pydantic reads: yes, no, true, false, 1, 0 …
_DECISIONS = {"1.0": "yes", "0.0": "no", "accept": "yes", "reject": "no"}
_VERDICTS = {"pass": 1, "yes": 1, "true": 1, "fail": 0, "no": 0, "false": 0}
_SHOWN_OF_A_KIND = 3

_MODEL = ConfigDict(frozen=True, coerce_numbers_to_str=True, allow_inf_nan=False)

Unreadable = Literal["drop", "lowest"]
"""How a judgement without a score, which is null in a file, counts: not, or as the lowest score."""
OffScale = Literal["refuse", "drop", "clip", "lowest"]
"""How an evaluator's score off the scale counts: as a mistake of the file, not at all, as the
nearest end of the scale, or as the lowest score."""


def _samples(value: object) -> list[Any]:
    """The samples in a cell: a list, or numbers with spaces, `|` or `;` between."""
    if isinstance(value, str) and not value.startswith("["):
        return re.split(r"[\s|;]+", value.strip())
    return listed(value)


def _decision(value: object) -> object:
    word = str(value).strip().lower()
    return _DECISIONS.get(word, word)


Name = Annotated[str, StringConstraints(strip_whitespace=True)]
Decision = Annotated[bool, BeforeValidator(_decision)]


class Labeled(BaseModel):
    """A draft with people's labels."""

    model_config = _MODEL

    id: str
    named: bool = True
    """Whether the file gives the id; else the id is the draft's place in the file."""
    draft: str | None = None
    task: str = ""
    sources: tuple[str, ...] = ()
    people: dict[str, dict[str, float]] = {}
    """Dimension or `COMPOSITE` → rater, who may have no name → score."""
    accept: dict[str, Decision] = {}
    """Whether the draft is good enough, by rater."""
    scores: dict[str, tuple[float, ...]] = {}
    """Dimension or `COMPOSITE` → the evaluator's scores, one for each sample."""
    group: Name = ""
    """What it shares with other drafts, such as a source; empty if nothing."""
    split: Name = ""
    evaluator: Name = ""
    unjudged: Annotated[tuple[str, ...], BeforeValidator(listed)] = ()
    """Dimensions that have no score since there was nothing to score them by."""
    rubric_sha256: str = ""
    """Digest of the rubric that it was scored by; empty if the file does not say."""
    samples: str = ""
    """How often it was judged; empty if the file does not say, or if that was not fixed."""
    sha256: str = ""
    """Digest of text, task and sources, if the file gives it in their place."""
    among: str = ""
    """Digest of all labels in its file, by which drafts with only a line number are told apart."""

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
        """The digest by which looks at the draft's label are remembered, in any file.

        It is of text, task and sources; without a text, of the id.
        """
        number = self.id.rpartition(":")[2]
        identity = self.content or (self.id if self.named else f"{self.among} {number}")
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


_Place = tuple[str, ...]
"""The fields and keys that lead to a value in `Labeled`, such as `("people", "clear", "anna")`."""


def read_labels(
    path: Path,
    rubric: Rubric,
    *,
    columns: Mapping[str, str],
    need: Literal["labels", "scores"] = "labels",
    unreadable: Unreadable = "drop",
    off_scale: OffScale = "refuse",
    rows: Iterable[Row | InvalidInput] | None = None,
) -> Labels:
    """The labels of a file.

    `columns` has the file's name of a column by its name here; `need` is what the file must have;
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
    need: Literal["labels", "scores"]
    unreadable: Unreadable
    off_scale: OffScale
    unreadable_counts: Counter[str] = field(default_factory=Counter)
    off_scale_counts: Counter[str] = field(default_factory=Counter)
    mistakes: list[tuple[str, InvalidInput]] = field(default_factory=list)
    """Each with the name of its column in the file."""

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
                self.mistakes.append(("row", mistake))
        columns = dict.fromkeys(column for row in rows for column in row.fields)
        column_by_kind = {column.partition(".")[0]: column for column in columns}
        self._check_columns(columns, column_by_kind.keys())

        by_draft = self._cells_by_draft(rows, has_raters="rater" in column_by_kind)
        drafts = [draft for draft in map(self._labeled, by_draft.values()) if draft is not None]
        people = sorted(draft.model_dump_json(include={"people", "accept"}) for draft in drafts)
        among = hashlib.sha256("".join(people).encode()).hexdigest()
        return Labels(
            path=self.path,
            drafts=tuple(draft.model_copy(update={"among": among}) for draft in drafts),
            ignored=tuple(column for kind, column in column_by_kind.items() if kind not in _KNOWN),
            unreadable=self.unreadable_counts,
            off_scale=self.off_scale_counts,
        )

    def _check_columns(self, columns: Iterable[str], kinds: Set[str]) -> None:
        scores = {"score"} if self.need == "scores" else set()
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
        """By the draft's id, the cells of its rows by their places."""
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
            cells = by_draft.setdefault(row.id, {})
            cells.setdefault(("id",), _Cell(row, "id", row.id))
            # In a file of scores, a draft without an id has its place in a file, such as `a.csv:3`.
            is_place = "sha256" in row.fields and re.search(r":\d+$", row.id)
            is_named = "id" in row.fields and not is_place
            cells.setdefault(("named",), _Cell(row, "id", is_named))
            self._gather(row, cells)
        return by_draft

    def raise_mistakes(self) -> None:
        """Raises all mistakes at once; of each kind, the message has the first few."""
        kinds = Counter[tuple[str, str]]()
        lines = []
        for column, mistake in self.mistakes:
            kinds[column, mistake.code] += 1
            if kinds[column, mistake.code] <= _SHOWN_OF_A_KIND:
                lines.append(str(mistake))
        for (column, _), count in kinds.items():
            if count > _SHOWN_OF_A_KIND:
                lines.append(f"{self.path}: {column}: {count - _SHOWN_OF_A_KIND} more like it")
        if lines:
            raise LabelsInvalid("\n".join(lines), problems=[m for _, m in self.mistakes])

    def _wrong(self, cell: _Cell, message: str, *, code: str) -> None:
        column = self.columns.get(cell.column, cell.column)
        # In a spreadsheet, lines are hard to count where texts have several.
        draft = f" (draft '{cell.row.id}')" if "id" in cell.row.fields and column != "id" else ""
        self.mistakes.append((column, cell.row.refusal(f"{column}: {message}{draft}", code=code)))

    def _gather(self, row: Row, cells: dict[_Place, _Cell]) -> None:
        try:
            draft, sources = row.draft, row.sources
        except InvalidInput as error:
            self.mistakes.append(("draft", error))
            return
        texts = {"draft": draft, "path": draft, "sources": sources}
        not_judged = {dimension.name for dimension in self.rubric.checked}
        not_judged.update(map(str, listed(row.fields.get("unjudged", []))))
        for (kind, *rest), column in _places_in(row).items():
            place = (_FIELDS.get(kind, kind), *rest)
            value = texts.get(kind, row.fields[column])
            # Code scores it, or it had nothing to be judged by: no judgement has failed.
            if value is None and place[1] in not_judged:
                continue
            self._add(place, _Cell(row, column, value), cells)

    def _add(self, place: _Place, cell: _Cell, cells: dict[_Place, _Cell]) -> None:
        """Adds a cell to those of its draft, which may have one in its place."""
        if place[0] == "people" and not place[2] and isinstance(cell.value, str | list):
            scores = _samples(cell.value)
            # Several scores in a cell without a rater's name are of several people.
            if len(scores) > 1:
                for number, score in enumerate(scores, start=1):
                    if score is not None:
                        cells[*place[:2], str(number)] = replace(cell, value=score)
                return
        before = cells.get(place)
        if place[0] == "scores" and before is not None:
            cell = replace(cell, value=[*_samples(before.value), *_samples(cell.value)])
        elif before is not None and before.value != cell.value:
            problem = f"another value than on line {before.row.line}, for the same id"
            self._wrong(cell, problem, code="labels.two-values")
        cells[place] = cell

    def _labeled(self, cells: Mapping[_Place, _Cell]) -> Labeled | None:
        """The draft that has these cells; None after a mistake in one of them."""
        fields: dict[str, Any] = {}
        for place, cell in cells.items():
            value = cell.value
            if place[0] == "people":
                value = self._score(cell, value, place[1])
            elif place[0] == "scores":
                value = self._sample_scores(cell, place[1])
            parent = fields
            for part in place[:-1]:
                parent = parent.setdefault(part, {})
            if value not in (None, ()):
                parent[place[-1]] = value
        try:
            return Labeled.model_validate(fields)
        except ValidationError as error:
            for fault in error.errors():
                # pydantic's place may lie deeper than the cell's: one sample of several.
                deepest = tuple(map(str, fault["loc"]))
                cell = next(c for place, c in cells.items() if place == deepest[: len(place)])
                code, problem = _EXPLAINED.get(fault["type"], ("labels.malformed", fault["msg"]))
                self._wrong(cell, f"{str(fault['input'])!r:.40}: {problem}", code=code)
        return None

    def _score(self, cell: _Cell, value: object, name: str) -> float | None:
        scale = self.rubric.scale_of(name)
        score = _number(value, scale)
        if score is None:
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


def _number(value: object, scale: Scale) -> float | None:
    """The score in a cell, which may be a word on a scale of pass and fail; None if it is none."""
    word = str(value).strip().lower()
    if scale.is_pass_fail and word in _VERDICTS:
        return scale.at(float(_VERDICTS[word]))
    try:
        score = float(word)
    except ValueError:
        return None
    return score if math.isfinite(score) else None


def labels_in(row: Row) -> dict[str, str | float | bool]:
    """What people said of a row's draft, by columns such as `human.clear.anna`."""
    labels = {}
    for place, column in _places_in(row).items():
        name = ".".join(place).rstrip(".")
        if place[0] in _LABELS:
            value = row.fields[column]
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


_FIELDS = {"human": "people", "score": "scores", "path": "draft"}
"""Column → field of `Labeled`, where the names differ."""

_NO_NUMBER = "not a number; write it with a point, 7.5, or leave it empty"
_EXPLAINED = {"bool_parsing": ("labels.not-yes-or-no", "write yes or no, or nothing")}
"""By pydantic's type of error."""
