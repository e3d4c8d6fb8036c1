"""Reads passages from files and standard input: Markdown, text, JSON Lines."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.compress import passages_of
from harness.errors import InvalidInput, did_you_mean
from harness.files import read_text, text_of
from harness.memory import Passage, Scalar, Turn
from harness.rows import TEXTS, Row, rows_in

_LINES = {".jsonl", ".ndjson"}
ENDINGS = TEXTS | _LINES
_STDIN = Path("standard input")


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """Fields of passages for which the file has no value."""

    title: str = ""
    source: str | None = None
    """If None, the source is the file's path."""
    quality: float | None = None
    metadata: Mapping[str, Scalar] = field(default_factory=dict)

    def of(self, path: Path | None) -> dict[str, Any]:
        """Name → value, for the passages of a file, or of standard input."""
        file = "" if path is None else str(path)
        values = {"title": self.title, "quality": self.quality, "metadata": self.metadata}
        return {**values, "source": file if self.source is None else self.source}


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    id: str = Field(default="", alias="_id")
    text: str
    title: str | None = None
    source: str | None = None
    quality: float | None = None
    created: datetime | None = None
    metadata: dict[str, Any] = {}
    turn: Turn | None = None


def passages_in(
    files: Iterable[Path | None], defaults: Defaults, *, jsonl: bool
) -> Iterator[Passage]:
    """The passages of files, read as they are taken."""
    for path in files:
        if jsonl or (path is not None and path.suffix.lower() in _LINES):
            for row in rows_in(path, ending=".jsonl"):
                if isinstance(row, InvalidInput):
                    raise row
                yield _passage(row, defaults)
        else:
            yield from _document(path, defaults)


def _document(path: Path | None, defaults: Defaults) -> Iterator[Passage]:
    if path is None:
        data = sys.stdin.buffer.read()
        # Otherwise a forgotten option would store the JSON as a text.
        with suppress(orjson.JSONDecodeError):
            first = orjson.loads(data.lstrip().partition(b"\n")[0])
            if isinstance(first, dict) and "text" in first:
                raise InvalidInput(
                    'it begins with a JSON object with "text"; add --jsonl to store each line as a '
                    "passage",
                    code="passage.needs-jsonl",
                    path=_STDIN,
                )
        text = text_of("standard input", data, path=None)
    else:
        text = read_text("the document", path)
    fields = defaults.of(path)
    for excerpt in passages_of(text):
        title = excerpt.title or defaults.title
        yield Passage(text=excerpt.text, **{**fields, "title": title})


def _passage(row: Row, defaults: Defaults) -> Passage:
    fields = defaults.of(row.path)
    try:
        # A null is no value.
        values = {name: v for name, v in _Line.model_validate(row.fields) if v is not None}
        metadata = {**fields["metadata"], **values["metadata"]}
        return Passage(**{**fields, **values, "metadata": metadata})
    except ValidationError as error:
        raise row.refusal(_explained(error), code="passage.malformed") from error
    except InvalidInput as error:
        raise row.refusal(str(error), code=error.code) from error


def _explained(error: ValidationError) -> str:
    problem = error.errors()[0]
    name = ".".join(map(str, problem["loc"]))
    owner, fields, form = "a passage", [*_Line.model_fields], '{"text": "…"}'
    if problem["loc"][0] == "turn":
        owner, form = "a turn", '"turn": {"conversation": "…", "position": 1}'
        fields = [*Turn.__dataclass_fields__]
    match problem["type"]:
        case "extra_forbidden" | "unexpected_keyword_argument":
            nearest = did_you_mean(name.removeprefix("turn."), fields)
            return f"'{name}' is no field of {owner} ({nearest}); put it into 'metadata'"
        case "missing":
            return f"it has no '{name}'; write {form}, and optional fields"
        case "dataclass_type":
            return f"'{name}' has no fields; write {form}"
        case _:
            return f"'{name}': {problem['msg']}"
