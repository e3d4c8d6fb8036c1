"""Reads drafts that people labeled, and pairs of drafts of which people prefer one.

A file is CSV (with commas, semicolons or tabs) or JSON Lines, whose nested objects are columns with
points: `human.clear.anna`. A draft may have several rows, told apart by `dimension` (the long form)
or `rater`; a score that is given again is another sample. All mistakes are reported at once.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import PydanticCustomError
from pydantic_core.core_schema import ValidationInfo

from harness.errors import InvalidInput, LabelsInvalid, Problem, did_you_mean
from harness.rubric.rubric import Rubric

COMPOSITE = ""
"""In place of a dimension's name, where a file has one score for the whole draft."""
HOLD = "hold"
"""The split of drafts that nobody looks at while a rubric is written."""

_TEXTS = ("id", "draft", "path", "task", "group", "split", "evaluator", "sources")
_OF_PAIRS = ("prefer", "judged", "judged_swapped", "a", "b")
_KNOWN = {*_TEXTS, *_OF_PAIRS, "accept", "human", "score", "dimension", "rater"}
_MISSING = {"", "na", "n/a", "nan", "null", "none"}
_PREFERENCES = {"1": "a", "2": "b", "0": "tie", "equal": "tie", "": ""}
_DECISIONS = {"1.0": "yes", "0.0": "no", "accept": "yes", "reject": "no"}
_SHOWN_OF_A_KIND = 3

M = TypeVar("M", bound=BaseModel)

_MODEL = ConfigDict(frozen=True, coerce_numbers_to_str=True, allow_inf_nan=False)


def _on_scale(value: float, info: ValidationInfo) -> float:
    scale: Any = info.context
    if not scale.min <= value <= scale.max:
        raise PydanticCustomError("off_scale", "off the scale")
    return value


def _listed(value: object) -> list[Any]:
    """A list, one that is written as JSON, or a single value."""
    if isinstance(value, str) and value.startswith("["):
        with suppress(orjson.JSONDecodeError):
            value = orjson.loads(value)
    return value if isinstance(value, list) else [value]


def _samples(value: object) -> list[Any]:
    """As `_listed`, or numbers with spaces, `|` or `;` between."""
    if isinstance(value, str) and not value.startswith("["):
        return re.split(r"[\s|;]+", value.strip())
    return _listed(value)


def _lower(words: Mapping[str, str]) -> BeforeValidator:
    def read(value: object) -> object:
        said = str(value).strip().lower()
        return words.get(said, said)

    return BeforeValidator(read)


Score = Annotated[float, AfterValidator(_on_scale)]
Decision = Annotated[bool, _lower(_DECISIONS)]
Preference = Annotated[Literal["a", "b", "tie", ""], _lower(_PREFERENCES)]
"""Which draft of a pair is preferred; empty if that was not said."""


class Labeled(BaseModel):
    """A draft with people's labels."""

    model_config = _MODEL

    id: str
    named: bool = True
    """Whether the file gives the id; else it is the line."""
    draft: str | None = None
    """Its text."""
    task: str = ""
    sources: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()
    people: dict[str, dict[str, Score]] = {}
    """Their scores, by dimension or `COMPOSITE`, and rater, who may have no name."""
    accept: dict[str, Decision] = {}
    """Whether the draft is good enough, by rater."""
    scores: dict[str, Annotated[tuple[Score, ...], BeforeValidator(_samples)]] = {}
    """The evaluator's, by dimension or `COMPOSITE`: one for each sample."""
    group: str = ""
    """What it shares with other drafts, such as a source; empty if nothing."""
    split: str = ""
    evaluator: str = ""
    file: str = ""
    """Where it was read, which tells drafts apart of which only a number is known."""

    @property
    def digest(self) -> str:
        """Of what people said of it: with the same digest, it is the same label."""
        where = {"draft"} if self.draft else {"file"}
        if self.named or not self.draft:
            where.add("id")
        said = self.model_dump_json(include={"people", "accept", *where})
        return hashlib.sha256(said.encode()).hexdigest()[:12]


class Pair(BaseModel):
    """Two drafts of which people prefer one."""

    model_config = _MODEL

    id: str
    prefer: Preference = ""
    """By people."""
    judged: Preference = ""
    """By the evaluator, which was shown `a` first."""
    judged_swapped: Preference | None = None
    """By the evaluator, which was shown `b` first; None if it was not asked so."""
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """What a file holds: drafts, or pairs of them."""

    path: Path
    drafts: tuple[Labeled, ...] = ()
    pairs: tuple[Pair, ...] = ()
    ignored: tuple[str, ...] = ()
    """Columns that mean nothing here."""


@dataclass(frozen=True, slots=True)
class _Cell:
    line: int
    column: str
    """As the file calls it."""
    value: Any = None


_Row = dict[str, _Cell]
"""Cells that are not empty, by the names of their columns."""
_Place = tuple[str, ...]
"""Where a value stands in `Labeled` or `Pair`."""


def read_labels(path: Path, rubric: Rubric, *, columns: Mapping[str, str]) -> Labels:
    """The labels of a file.

    Args:
        path: JSON Lines if it ends in `.jsonl` or `.ndjson`, else CSV.
        rubric: Names the dimensions, and its scale bounds their scores.
        columns: The file's name of a column, by its name here.

    Raises:
        InvalidInput: The file cannot be read, or has no labels.
        LabelsInvalid: It has mistakes.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        said = f"cannot be read ({error.strerror})"
        raise InvalidInput(said, code="file.unreadable", path=path) from error
    except UnicodeDecodeError as error:
        said = f"not UTF-8 text (byte {error.start}); save it as CSV in UTF-8"
        raise InvalidInput(said, code="file.not-utf8", path=path) from error
    reading = _Reading(path, rubric)
    labels = reading.labels(text, columns)
    reading.refuse()
    return labels


@dataclass(frozen=True, slots=True)
class _Reading:
    """One file on its way to labels, and the mistakes in it."""

    path: Path
    rubric: Rubric
    mistakes: list[tuple[str, Problem]] = field(default_factory=list)
    """With their columns."""

    def labels(self, text: str, columns: Mapping[str, str]) -> Labels:
        # 1. Rows of cells, by the names that columns have here.
        lines = self.path.suffix.lower() in {".jsonl", ".ndjson"}
        rows = list(self._json_lines(text) if lines else self._csv(text))
        ours = self._renamed(dict.fromkeys(name for row in rows for name in row), columns)
        rows = [{ours[name]: cell for name, cell in row.items()} for row in rows]
        kinds = {ours[name].partition(".")[0]: name for name in ours}
        if not kinds.keys() & {"accept", "human", "prefer"}:
            self.refuse()
            raise InvalidInput(
                "it has no labels of people's: a column 'accept' with yes or no, or "
                "'human.DIMENSION' with scores, or 'prefer' for pairs; name another column with "
                f"--columns accept=NAME (there are: {', '.join(ours)})",
                code="labels.no-labels",
                path=self.path,
            )

        # 2. What they mean, by draft or pair.
        found: dict[str, dict[_Place, _Cell]] = {}
        by_row = not kinds.keys() & {"dimension", "rater"}
        for row in rows:
            line = next(iter(row.values())).line
            own = str(row["id"].value) if "id" in row else f"line {line}"
            if by_row and own in found:
                said = f"'{own}' stands twice; give each draft its own, or say who is the 'rater'"
                self._wrong(row["id"], said, code="labels.duplicate-id")
                continue
            known = {("id",): own, ("named",): "id" in row, ("file",): self.path.name}
            cells = found.setdefault(own, {at: _Cell(line, "id", v) for at, v in known.items()})
            self._gather(row, cells)
        ignored = tuple(name for kind, name in kinds.items() if kind not in _KNOWN)
        if "prefer" in kinds:
            pairs = tuple(filter(None, [self._value(Pair, cells) for cells in found.values()]))
            return Labels(path=self.path, pairs=pairs, ignored=ignored)
        drafts = tuple(filter(None, [self._value(Labeled, cells) for cells in found.values()]))
        return Labels(path=self.path, drafts=drafts, ignored=ignored)

    def refuse(self) -> None:
        """Raises all mistakes at once; of each kind, the message has the first few."""
        kinds = Counter[tuple[str, str]]()
        said = []
        for column, problem in self.mistakes:
            kinds[column, problem.code] += 1
            if kinds[column, problem.code] <= _SHOWN_OF_A_KIND:
                said.append(str(problem))
        for (column, _), count in kinds.items():
            if count > _SHOWN_OF_A_KIND:
                said.append(f"{self.path}: {column}: {count - _SHOWN_OF_A_KIND} more like it")
        if said:
            raise LabelsInvalid("\n".join(said), problems=[one for _, one in self.mistakes])

    def _wrong(self, cell: _Cell, message: str, *, code: str) -> None:
        said = f"{cell.column}: {message}"
        problem = Problem(path=self.path, line=cell.line, message=said, code=code)
        self.mistakes.append((cell.column, problem))

    # --- rows ------------------------------------------------------------------------------------

    def _csv(self, text: str) -> Iterator[_Row]:
        csv.field_size_limit(sys.maxsize)  # a draft may be long
        delimiter = max(",;\t", key=text.partition("\n")[0].count)
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        header = [name.strip() for name in next(reader, [])]
        for name, count in Counter(filter(None, header)).items():
            if count > 1:
                said = f"{count} columns have this name; rename or delete one"
                self._wrong(_Cell(1, name), said, code="labels.duplicate-column")
        line = reader.line_num + 1
        for values in reader:
            if any(values) and len(values) != len(header):
                said = (
                    f'{len(values)} cells, not {len(header)}; put texts with {delimiter!r} in "…"'
                )
                self._wrong(_Cell(line, "row"), said, code="labels.cells")
            named = zip(header, values, strict=False)
            yield from _row(line, {name: value.strip() for name, value in named if name})
            line = reader.line_num + 1

    def _json_lines(self, text: str) -> Iterator[_Row]:
        for line, written in enumerate(text.split("\n"), start=1):
            if not written.strip():
                continue
            try:
                yield from _row(line, dict(_flat(orjson.loads(written))))
            except (orjson.JSONDecodeError, AttributeError) as error:
                said = f'not an object ({error}); write one a line: {{"id": "1", "accept": true}}'
                self._wrong(_Cell(line, "row"), said, code="labels.not-json")

    def _renamed(self, theirs: Iterable[str], columns: Mapping[str, str]) -> dict[str, str]:
        """The names of columns here, by the file's; their dimensions are the rubric's."""
        ours = {name: name for name in theirs}
        for mine, name in columns.items():
            if name not in ours:
                said = f"--columns {mine}={name}: there is no column '{name}'"
                hint = f"write {name}={mine}" if mine in ours else did_you_mean(name, ours)
                self._wrong(_Cell(1, "header"), f"{said}; {hint}", code="labels.no-column")
            else:
                ours = {one: f"_{one}" if one == mine else my for one, my in ours.items()}
                ours[name] = mine
        for name, mine in ours.items():
            kind, _, rest = mine.partition(".")
            if rest and kind in {"human", "score"}:
                self._check_dimension(_Cell(1, name, rest.partition(".")[0]))
        return ours

    def _check_dimension(self, cell: _Cell) -> None:
        known = [dimension.name for dimension in self.rubric.dimensions]
        if str(cell.value) not in known:
            said = f"the rubric has no dimension '{cell.value}'; {did_you_mean(cell.value, known)}"
            self._wrong(cell, said, code="labels.unknown-dimension")

    # --- drafts and pairs ------------------------------------------------------------------------

    def _gather(self, row: _Row, cells: dict[_Place, _Cell]) -> None:
        """Adds a row's cells to those of its draft."""
        dimension, rater = (str(row[n].value) if n in row else "" for n in ("dimension", "rater"))
        if "dimension" in row:
            self._check_dimension(row["dimension"])
        for name, cell in row.items():
            kind, _, rest = name.partition(".")
            missing = isinstance(cell.value, str) and cell.value.lower() in _MISSING
            if kind in {"dimension", "rater", "id"} or (missing and kind not in _TEXTS):
                continue
            of, _, who = (rest or dimension).partition(".")
            place = {
                "accept": ("accept", rest or rater),
                "human": ("people", of, who or rater),
                "score": ("scores", of),
                "path": ("draft",),
            }.get(kind, (name,))
            one = self._text_at(cell) if name == "path" else cell
            before = cells.get(place)
            if kind == "score" and before is not None:
                samples = [*_samples(before.value), *_samples(one.value)]
                one = _Cell(one.line, one.column, samples)
            elif before is not None and before.value != one.value:
                said = f"another value than on line {before.line}, for the same id"
                self._wrong(one, said, code="labels.two-values")
            cells[place] = one

    def _text_at(self, cell: _Cell) -> _Cell:
        file = self.path.parent / str(cell.value)
        try:
            return _Cell(cell.line, cell.column, file.read_text(encoding="utf-8-sig"))
        except (OSError, UnicodeDecodeError) as error:
            said = f"cannot be read ({error}); a path starts at the folder of this file"
            self._wrong(cell, said, code="labels.draft-unreadable")
            return cell

    def _value(self, kind: type[M], cells: Mapping[_Place, _Cell]) -> M | None:
        nested: dict[str, Any] = {}
        for place, cell in cells.items():
            inner = nested
            for part in place[:-1]:
                inner = inner.setdefault(part, {})
            inner[place[-1]] = cell.value
        try:
            return kind.model_validate(nested, context=self.rubric.scale)
        except ValidationError as error:
            for one in error.errors():
                place = tuple(map(str, one["loc"]))
                cell = next(cell for at, cell in cells.items() if at == place[: len(at)])
                code, said = _EXPLAINED.get(one["type"], ("labels.malformed", one["msg"]))
                self._wrong(cell, f"{str(one['input'])!r:.40}: {said}", code=code)
        return None


_NO_NUMBER = "labels.not-a-number", "not a number; write it with a point, 7.5, or leave it empty"
_EXPLAINED = {
    **dict.fromkeys(("float_parsing", "float_type", "finite_number"), _NO_NUMBER),
    "bool_parsing": ("labels.not-yes-or-no", "write yes or no, or nothing"),
    "literal_error": ("labels.not-a-preference", "write a, b or tie, or nothing"),
    "off_scale": ("labels.off-scale", "not on the rubric's scale; give all scores on it"),
}
"""By pydantic's type of error."""


def _row(line: int, cells: Mapping[str, Any]) -> Iterator[_Row]:
    kept = {name: _Cell(line, name, v) for name, v in cells.items() if v not in (None, "")}
    if kept:
        yield kept


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, one in value.items():
        if isinstance(one, dict):
            yield from _flat(one, f"{prefix}{name}.")
        else:
            yield prefix + name, one
