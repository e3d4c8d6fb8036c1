"""Reads passages from files and standard input: Markdown, text, JSON Lines."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
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


class _TurnOfLine(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    conversation: str
    position: int
    speaker: str = ""


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    id: str = Field(default="", alias="_id")
    text: str
    title: str | None = None
    source: str | None = None
    quality: float | None = None
    created: datetime | None = None
    metadata: dict[str, Any] = {}
    turn: _TurnOfLine | None = None


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
        if _are_passages(data):
            raise InvalidInput(
                'every line is a JSON object with "text"; add --jsonl to store each as a passage',
                code="passage.needs-jsonl",
                path=_STDIN,
            )
        text = text_of("standard input", data, path=None)
    else:
        text = read_text("the document", path)
    for excerpt in passages_of(text):
        yield Passage(
            text=excerpt.text,
            title=excerpt.title or defaults.title,
            source=_source(defaults, path),
            quality=defaults.quality,
            metadata=defaults.metadata,
        )


def _are_passages(data: bytes) -> bool:
    """Whether the data is JSON Lines of passages, although `--jsonl` does not say so."""
    try:
        values = [orjson.loads(line) for line in data.splitlines() if line.strip()]
    except orjson.JSONDecodeError:
        return False
    return bool(values) and all(isinstance(value, dict) and "text" in value for value in values)


def _passage(row: Row, defaults: Defaults) -> Passage:
    source = _source(defaults, row.path)
    try:
        entry = _Line.model_validate(row.fields)
        return Passage(
            id=entry.id,
            text=entry.text,
            title=defaults.title if entry.title is None else entry.title,
            source=source if entry.source is None else entry.source,
            quality=defaults.quality if entry.quality is None else entry.quality,
            created=entry.created,
            metadata={**defaults.metadata, **entry.metadata},
            turn=None if entry.turn is None else Turn(**entry.turn.model_dump()),
        )
    except ValidationError as error:
        raise row.refusal(_explained(error), code="passage.malformed") from error
    except InvalidInput as error:
        raise row.refusal(str(error), code=error.code) from error


def _explained(error: ValidationError) -> str:
    problem = error.errors()[0]
    name = ".".join(map(str, problem["loc"]))
    match problem["type"]:
        case "extra_forbidden":
            fields = did_you_mean(name, _Line.model_fields)
            return f"'{name}' is no field of a passage ({fields}); put it into 'metadata'"
        case "missing":
            return f"""it has no '{name}'; write {{"text": "…"}}, and optional fields"""
        case _:
            return f"'{name}': {problem['msg']}"


def _source(defaults: Defaults, path: Path | None) -> str:
    if defaults.source is not None:
        return defaults.source
    return "" if path is None else str(path)
