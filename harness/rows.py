"""Rows of tables and texts: read from several kinds of files, and saved so that a kill loses none.

A row that cannot be read is an error beside the others, with its file and line. A file of rows
grows by one whole line at a time; a command that finds its rows there continues after them.
"""

from __future__ import annotations

import csv
import fcntl
import glob
import io
import json
import os
import re
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from itertools import chain, islice, tee
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, Self

import orjson

from harness.errors import ConfigurationInvalid, InvalidInput, Mistake, did_you_mean
from harness.files import behind_link, opened, read_bytes, read_text, whole_file, writing
from harness.result_files import samples_in

STDIN = "-"
"""Names standard input in place of a file."""
TEXTS = frozenset({".md", ".markdown", ".txt", ".rst"})
TABLES = frozenset({".csv", ".tsv", ".jsonl", ".ndjson", ".parquet"})

_OF_CELLS = frozenset({".csv", ".tsv", ".parquet"})
_STDIN_PATH = Path("standard input")
_WHOLE = frozenset({"draft", "sources"})
_ROW_GROUP = 1_000  # rows that are written to a Parquet file at once
_LONG_CHARS = 4_096  # of a text that is packed
_MOST_CHARS = 1 << 30  # of a CSV cell
_ROWS_COMPARED = 20  # the first rows of a CSV file, by which its separator is chosen
# Also after the mark of an encoding, or in UTF-16, both of which Python's parser takes.
_LIST_OF_OBJECTS = re.compile(rb"[\xef\xbb\xbf\xff\xfe\0\s]*\[[\0\s]*\{")
# A spreadsheet takes such a text for a formula, unless an apostrophe stands before it (OWASP, "CSV
# injection"). After a sign, which may begin a list in Markdown, only function calls and references
# to other sheets do harm. Excel takes the wide forms of these characters for the same.
_SIGN = r"[+\uff0b\-\uff0d@\uff20]"
_FORMULA = re.compile(
    rf"""'*\s*(?:[=\uff1d]|{_SIGN}.*(?:[\w.](?:\(| \(")|\||!\$?[A-Za-z]))""", re.DOTALL
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of a table, or a text."""

    fields: Mapping[str, Any]
    """Cells by column, without empty cells. Fields of an object are columns with points, such as
    `human.clear`. A text has one field `path`, with its file."""
    path: Path
    """The file that has the row."""
    line: int | None = None
    """The line on which the row begins, or its number in a Parquet file; from 1. None for a text.
    """

    @property
    def id(self) -> str:
        """The cell `id` on one line; if there is none, `place`."""
        if "id" not in self.fields:
            return self.place
        return " ".join(str(self.fields["id"]).split())

    @property
    def place(self) -> str:
        """The row's file and line; bytes that are not UTF-8 are replaced."""
        path = str(self.path).encode(errors="replace").decode()
        return path if self.line is None else f"{path}:{self.line}"

    @property
    def draft(self) -> str | None:
        """The text in `draft`, or in the file that `path` names; None if the row has neither.

        Raises:
            InvalidInput: The row has both, the file cannot be read, or `draft` is not a text.
        """
        text = self.fields.get("draft")
        path = self.fields.get("path")
        if path and not text:
            text = None  # an empty cell beside a path is no draft
        if text is not None and path is not None:
            raise self.refusal("it has both 'draft' and 'path'; give one", code="row.two-drafts")
        if path is not None:
            try:
                text = read_text("draft", self.beside(str(path)))
            except InvalidInput as error:
                if self.line is None:
                    raise
                raise self.refusal(str(error), code=error.code) from error
        if text is not None and not isinstance(text, str):
            raise self.refusal("its 'draft' is not text", code="row.draft-not-text")
        return text

    @property
    def sources(self) -> tuple[str, ...]:
        """The texts that the draft may rely on; raises `InvalidInput` if one is not a text."""
        sources = listed(self.fields.get("sources", []))
        if not all(isinstance(source, str) for source in sources):
            problem = "'sources' is a text, or a list of texts"
            raise self.refusal(problem, code="row.sources-not-texts")
        return tuple(sources)

    def beside(self, name: str) -> Path:
        """A file that the row names; relative paths start at the folder of the row's table."""
        return Path(name) if self.line is None else self.path.parent / name

    def refusal(self, message: str, *, code: str) -> InvalidInput:
        """An error about the row, with its file and line."""
        return InvalidInput(message, code=code, path=self.path, line=self.line)


class _Cells(Mapping[str, Any]):
    """The cells of a row by column, with long texts packed in memory."""

    def __init__(self, cells: Mapping[str, Any]) -> None:
        self._cells = {name: self._packed(cell) for name, cell in cells.items()}

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - of any type
        cell = self._cells[name]
        return zlib.decompress(cell).decode() if type(cell) is _PackedText else cell

    def __iter__(self) -> Iterator[str]:
        return iter(self._cells)

    def __len__(self) -> int:
        return len(self._cells)

    @staticmethod
    def _packed(cell: object) -> object:
        if not isinstance(cell, str) or len(cell) < _LONG_CHARS:
            return cell
        # Thousands of documents may be in memory at once. English takes a third of its room or less
        # when it is packed.
        return _PackedText(zlib.compress(cell.encode(), 1))


class _PackedText(bytes):
    """A packed text; a type of its own, since a Parquet file may hold plain `bytes`."""


def listed(cell: object) -> list[Any]:
    """A cell's values, from a list, a list written as JSON, or a single value."""
    if isinstance(cell, str) and cell.startswith("["):
        with suppress(orjson.JSONDecodeError):
            cell = orjson.loads(cell)
    return cell if isinstance(cell, list) else [cell]


def files_named(names: Iterable[str], *, endings: AbstractSet[str]) -> list[Path | None]:
    """The files of a list of files, directories and patterns; None stands for standard input.

    Of a directory, the files with one of the `endings` are taken.

    Raises:
        InvalidInput: A file is missing, or a directory has no such file.
    """
    files: list[Path | None] = []
    for name in names:
        path = Path(name)
        if name == STDIN:
            files.append(None)
        elif path.is_dir():
            files += _files_under(path, endings)
        elif path.exists():
            files.append(path)
        elif matches := sorted(glob.glob(name, recursive=True)):  # noqa: PTH207 - absolute ones too
            files += [Path(match) for match in matches if Path(match).is_file()]
        else:
            raise InvalidInput("there is no such file", code="file.missing", path=path)
    return files


def _files_under(directory: Path, endings: AbstractSet[str]) -> list[Path]:
    files = sorted(
        path
        for path in directory.rglob("*")
        if path.suffix.lower() in endings
        and path.is_file()
        # Files in hidden folders, such as `.git` or `.venv`, are left out.
        and not any(part.startswith(".") for part in path.relative_to(directory).parts)
    )
    if not files:
        raise InvalidInput(
            f"no file in it ends in {', '.join(sorted(endings))}; name files",
            code="file.none-in-directory",
            path=directory,
        )
    return files


def read_rows(
    names: Iterable[str],
    *,
    columns: Mapping[str, str] | None = None,
    whole: AbstractSet[str] = _WHOLE,
    named: AbstractSet[str] = frozenset(),
    empty: AbstractSet[str] = frozenset(),
) -> Iterator[Row | InvalidInput]:
    """The rows of files, directories, patterns and standard input (JSON Lines), in order.

    CSV with commas, semicolons or tabs, JSON Lines, Parquet and `.json` lists of objects are
    tables, as are results of Inspect AI (`.eval`, `.json`) and promptfoo (`.json`); any other file
    is a text.

    Args:
        names: As for `files_named`.
        columns: Name of a column here → its name in the files.
        whole: Columns whose objects stay objects, and do not become columns with points.
        named: Columns as they stand in the files that stay objects where they are objects; a
            column with points may stand beside its object.
        empty: Columns whose empty cells are kept, by the part of a name before its first point.

    Raises:
        InvalidInput: A file is missing, or no row has such a column.
    """
    new_names = {name_in_file: name for name, name_in_file in (columns or {}).items()}
    columns_seen: set[str] = set()
    for path in files_named(names, endings=TEXTS | TABLES):
        for row in rows_in(path):
            if isinstance(row, InvalidInput):
                yield row
                continue
            fields = dict(_flat(row.fields, whole, new_names.keys() | named))
            columns_seen |= fields.keys()
            cells = _renamed(fields, new_names)
            filled = {name for name, cell in cells.items() if name and not _is_empty(cell)}
            # Tables of spreadsheets end in lines of empty cells; an object was written on purpose.
            if filled or row.path.suffix.lower() not in _OF_CELLS:
                stored = {
                    name: cell
                    for name, cell in cells.items()
                    if name in filled or name.partition(".")[0] in empty
                }
                yield Row(fields=_Cells(stored), path=row.path, line=row.line)
    for name_in_file, name in new_names.items():
        if columns_seen and name_in_file not in columns_seen:
            hint = did_you_mean(name_in_file, columns_seen)
            # The user may have swapped the two names.
            if name in columns_seen - whole:
                hint = f"write {name_in_file}={name}"
            raise InvalidInput(
                f"--columns {name}={name_in_file}: there is no column '{name_in_file}'; {hint}",
                code="row.no-column",
            )


def _renamed(cells: Mapping[str, Any], new_names: Mapping[str, str]) -> dict[str, Any]:
    """The cells by their new names; a column whose name another one gets is dropped."""
    return {
        new_names.get(name, name): cell
        for name, cell in cells.items()
        if name in new_names or name not in new_names.values()
    }


def _is_empty(cell: object) -> bool:
    # NaN, which does not equal itself, is an empty cell too.
    return cell in (None, "") or cell != cell  # noqa: PLR0124


def _flat(
    fields: Mapping[str, Any], whole: AbstractSet[str], named: AbstractSet[str], prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """Columns and cells, where the fields of an object are columns with points: `human.clear`.

    The object of a column in `named` stays whole, as do those of `whole`; it is flat too if one
    of its fields is in `named`.
    """
    for name, value in fields.items():
        column = prefix + name
        is_object = isinstance(value, dict)
        is_whole = column in whole or column in named
        if not is_object or is_whole:
            yield column, value
        if is_object and (not is_whole or any(name.startswith(f"{column}.") for name in named)):
            yield from _flat(value, whole, named, f"{column}.")


def rows_in(path: Path | None, *, ending: str | None = None) -> Iterator[Row | InvalidInput]:
    """The rows of a file, or of standard input if None; `ending` replaces the file's own ending."""
    ending = ending or (".jsonl" if path is None else path.suffix.lower())
    if path is not None and ending in {".eval", ".json"}:
        objects = samples_in(path) or _objects_in(path)
        if objects is not None:
            for number, fields in enumerate(objects, start=1):
                yield Row(fields=fields, path=path, line=number)
            return
    if path is not None and ending not in TABLES:
        yield Row(fields={"path": str(path)}, path=path)
        return
    try:
        if path is not None and ending == ".parquet":
            yield from _parquet_rows(path)
            return
        with nullcontext(sys.stdin.buffer) if path is None else opened(path) as file:
            where = path or _STDIN_PATH
            if ending in {".jsonl", ".ndjson"}:
                yield from _json_rows(_lines(file, "\n", where), where)
            else:
                yield from _csv_rows(_lines(file, "", where), where)
    except OSError as error:
        problem = f"cannot be read ({error.strerror or error})"  # pyarrow's has no `strerror`
        yield InvalidInput(problem, code="file.unreadable", path=path)
    except InvalidInput as error:
        yield error


def _lines(file: BinaryIO, newline: str, path: Path) -> Iterator[str]:
    """The lines of a table, for `newline` as `open` has it; raises if it is no text, or empty."""
    # One by one, since a table may be larger than memory.
    lines = io.TextIOWrapper(file, encoding="utf-8-sig", newline=newline)
    is_empty = True
    number = 0
    try:
        for line in lines:
            number += 1
            if "\0" in line:
                problem = "the table is a binary file; give a text"
                raise InvalidInput(problem, code="file.binary", path=path)
            is_empty = is_empty and not line.strip()
            yield line
    except UnicodeDecodeError as error:
        where = f" (behind line {number})" if number else ""
        problem = f"the table is not UTF-8 text{where}; save it as UTF-8, or convert it with iconv"
        raise InvalidInput(problem, code="file.not-utf8", path=path) from error
    finally:
        # Otherwise the wrapper would close standard input when it is garbage-collected.
        lines.detach()
    if is_empty:
        raise InvalidInput("the table is empty", code="file.empty", path=path)


def _objects_in(path: Path) -> list[dict[str, Any]] | None:
    """The objects of a `.json` list, as many data sets are; None if the file is a text."""
    try:
        data = read_bytes(path)
    except OSError:
        return None  # whoever reads the text says why
    if not _LIST_OF_OBJECTS.match(data):
        return None
    try:
        items = _LIST.decode(data.decode(json.detect_encoding(data)))
        orjson.dumps(items)  # no output could hold half of a surrogate pair
    except Mistake as mistake:
        raise InvalidInput(str(mistake), code=mistake.code, path=path) from mistake
    except (ValueError, TypeError, RecursionError) as error:
        problem = f"not JSON ({error}); it begins as a list of objects, which are rows"
        raise InvalidInput(problem, code="row.not-json", path=path) from error
    return items if all(isinstance(item, dict) for item in items) else None


def _integer(digits: str) -> int | str:
    # No output could hold a longer number: it stays the text of its digits, as in a CSV file.
    number = int(digits[:21])
    return number if -(2**63) <= number < 2**64 else digits


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise Mistake(f"an object has the field '{twice}' twice", code="row.field-twice")
    return fields


def _constant(name: str) -> NoReturn:
    raise Mistake(f"{name} is no value of JSON; write null", code="row.nan")


# Not `orjson`, which rounds long numbers and drops a field that an object has twice.
_LIST = json.JSONDecoder(parse_int=_integer, object_pairs_hook=_object)
_LINE = json.JSONDecoder(parse_int=_integer, object_pairs_hook=_object, parse_constant=_constant)


def _json_rows(lines: Iterable[str], path: Path) -> Iterator[Row | InvalidInput]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            fields = _LINE.decode(line)
            # It refuses more than `json` does, such as half of a surrogate pair.
            orjson.loads(line)
            if not isinstance(fields, dict):
                raise Mistake(
                    'not an object; each line must be one, such as {"id": …, "draft": …}',
                    code="row.not-object",
                )
        except (ValueError, RecursionError) as error:
            problem, code = f"not JSON ({error}); each line must be one object", "row.not-json"
            if isinstance(error, Mistake):
                problem, code = str(error), error.code
            yield InvalidInput(problem, code=code, path=path, line=number)
            continue
        yield Row(fields=fields, path=path, line=number)


def _separated(lines: Iterator[str], separators: str) -> tuple[str, Iterator[str]]:
    """Which of the separators a table has, the first if none; and all of its lines."""
    *copies, lines = tee(lines, len(separators) + 1)
    fits: dict[str, tuple[int, int]] = {}  # → rows as long as the first row, then columns
    for separator, copy in zip(separators, copies, strict=True):
        lengths: list[int] = []
        # By a wrong separator, the first rows may not be CSV.
        with suppress(csv.Error):
            for cells in islice(csv.reader(copy, delimiter=separator, strict=True), _ROWS_COMPARED):
                lengths += [len(cells)] if cells else []
        columns = lengths[0] if lengths else 0
        fits[separator] = lengths[1:].count(columns) if columns > 1 else 0, columns
    return max(fits, key=fits.__getitem__), lines


def _csv_rows(lines: Iterator[str], path: Path) -> Iterator[Row | InvalidInput]:
    # A draft may be longer than Python's own limit of 128 KiB.
    csv.field_size_limit(_MOST_CHARS)
    first_line = next(lines, "")
    # Excel's first line may name the separator.
    if sep_line := re.fullmatch(r"sep=(.)\s*", first_line):
        delimiter = sep_line[1]
    else:
        separators = "\t,;" if path.suffix.lower() == ".tsv" else ",;\t"
        delimiter, lines = _separated(chain([first_line], lines), separators)
    # `strict`, since otherwise a stray quotation mark would join everything after it to one cell.
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    header: list[str] = []
    while True:
        # The line on which the next row begins; a cell may have several lines.
        line = reader.line_num + (2 if sep_line else 1)
        try:
            cells = next(reader, None)
        except csv.Error as error:
            problem = f"not CSV ({error}); the rest of the file is not read"
            yield InvalidInput(problem, code="row.not-csv", path=path, line=line)
            return
        if cells is None:
            return
        if not header:
            header = [name.strip() for name in cells]
            named = [name for name in header if name]
            if len(set(named)) < len(named):
                problem = "two columns have the same name"
                yield InvalidInput(problem, code="row.columns-alike", path=path, line=line)
        elif cells and len(cells) != len(header):
            problem = (
                f"it has {len(cells)} cells under {len(header)} columns; put a text with "
                f"{delimiter!r} in it between double quotes"
            )
            yield InvalidInput(problem, code="row.cells", path=path, line=line)
        elif cells:
            cells = [_without_apostrophe(cell) for cell in cells]
            yield Row(fields=dict(zip(header, cells, strict=True)), path=path, line=line)


def _parquet_rows(path: Path) -> Iterator[Row]:
    pyarrow = _pyarrow()
    try:
        batches = pyarrow.parquet.ParquetFile(path).iter_batches()
        records = (fields for batch in batches for fields in batch.to_pylist())
        for number, fields in enumerate(records, start=1):
            yield Row(fields=fields, path=path, line=number)
    except pyarrow.ArrowException as error:
        raise InvalidInput(f"not Parquet ({error})", code="row.not-parquet", path=path) from error


def _pyarrow() -> Any:  # noqa: ANN401 - it has no types
    try:
        import pyarrow.parquet  # noqa: PLC0415 - a large, optional library
    except ImportError as error:
        raise ConfigurationInvalid(
            "Parquet needs pyarrow: pip install 'wiggum-harness[tune]'", code="row.no-pyarrow"
        ) from error
    return pyarrow


def check_output(path: Path, endings: AbstractSet[str]) -> None:
    """Checks that rows can be written to a file of this name.

    Raises:
        InvalidInput: Its ending is not among the `endings`.
        ConfigurationInvalid: It is Parquet, and pyarrow is missing.
    """
    if path.suffix.lower() not in endings:
        problem = f"rows are written as {' or '.join(sorted(endings))}"
        raise InvalidInput(problem, code="row.output-unknown", path=path)
    if path.suffix.lower() == ".parquet":
        _pyarrow()


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes a `.jsonl` or `.parquet` file as a whole; without rows it writes none.

    An existing file is replaced. All rows have the columns and types of the first. Raises what
    `check_output` raises, and `InvalidInput` if the file cannot be written.
    """
    check_output(path, {".jsonl", ".parquet"})
    pyarrow = _pyarrow() if path.suffix.lower() == ".parquet" else None
    remaining = iter(rows)
    group = list(islice(remaining, _ROW_GROUP))
    if not group:
        return
    with writing(path), whole_file(path) as file, ExitStack() as stack:
        if pyarrow is not None:
            # The schema of the first group is used for all: a column that is None throughout a
            # later group would by itself get another type.
            schema = pyarrow.Table.from_pylist(group).schema
            writer = stack.enter_context(pyarrow.parquet.ParquetWriter(file, schema))
        while group:
            if pyarrow is None:
                file.writelines(orjson.dumps(row) + b"\n" for row in group)
            else:
                writer.write_batch(pyarrow.RecordBatch.from_pylist(group, schema=schema))
            group = list(islice(remaining, _ROW_GROUP))


def rows_saved(path: Path) -> list[Mapping[str, Any]]:
    """The readable rows of a `.jsonl`, `.csv` or `.parquet` file that a command saved."""
    return [row.fields for row in rows_in(path) if isinstance(row, Row)]


def replace_rows(
    path: Path, rows: Iterable[Mapping[str, Any]], *, columns: Sequence[str]
) -> RowFile:
    """Replaces a file by one with these rows, once all are written; returns it, to add more."""
    target = behind_link(path)
    partial = target.with_name(f".{target.stem}.partial{path.suffix}")
    with writing(path):
        # `RowFile` would continue or refuse a partial file that a kill has left.
        partial.unlink(missing_ok=True)
    with ExitStack() as stack:
        # The partial file is removed after a failure, so that a full disk has room again.
        stack.callback(_remove, partial)
        file = stack.enter_context(RowFile(partial, columns=columns, shown_as=path))
        for row in rows:
            file.append(row)
        with writing(path):
            partial.replace(target)
        # After success the file is neither removed nor closed, since the caller adds rows.
        stack.pop_all()
    return file


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


class RowFile:
    """A file of rows, `.jsonl` or `.csv`, that grows by one whole line at a time.

    A file of JSON Lines is continued: when it is opened again, a line that a kill cut off is
    dropped. A power cut may lose the last rows.

    Args:
        path: The file, which need not exist, nor its folder. A CSV file must not exist.
        columns: The columns of a CSV file, in order; each row of JSON Lines has at least these.
        shown_as: The name of the file in messages, if it will be renamed.

    Attributes:
        rows: The rows that the file had when it was opened.

    Raises:
        InvalidInput: It holds something else, another command is writing it, or it cannot be
            written.
    """

    def __init__(self, path: Path, *, columns: Sequence[str], shown_as: Path | None = None) -> None:
        self.path = shown_as or path
        self.rows: list[Mapping[str, Any]] = []
        self._is_csv = path.suffix.lower() == ".csv"
        self.columns = list(columns)
        check_output(path, {".csv", ".jsonl"})
        with writing(self.path):
            path.parent.mkdir(parents=True, exist_ok=True)
            # An existing CSV file is another program's: `replace_rows` writes a partial file first.
            self._file = path.open("xb" if self._is_csv else "a+b", buffering=0)
        try:
            # Locked before it is read, since another command may be writing it.
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._is_csv:
                self._write(_csv_line(self.columns))
            else:
                self.rows = self._read()
        except BaseException as error:
            self._file.close()
            if isinstance(error, BlockingIOError):
                problem = "another command is writing it"
                raise InvalidInput(problem, code="row.output-locked", path=path) from error
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def append(self, row: Mapping[str, Any]) -> None:
        """Adds a row; raises `InvalidInput` if that fails. A CSV file gets only its `columns`."""
        if self._is_csv:
            self._write(_csv_line(row.get(name) for name in self.columns))
        else:
            self._write(orjson.dumps(row) + b"\n")

    def drop_last(self) -> None:
        """Removes the last row of a file of JSON Lines."""
        self._file.seek(0)
        data = self._file.read()
        os.ftruncate(self._file.fileno(), data.rstrip(b"\n").rfind(b"\n") + 1)

    def _write(self, line: bytes) -> None:
        with writing(self.path):
            while line:
                # An unbuffered file may write only a part at once.
                written_bytes = self._file.write(line)
                line = line[written_bytes:]

    def _read(self) -> list[Mapping[str, Any]]:
        """The rows of an existing file of JSON Lines; makes the file ready for a further row."""
        # 1. Read the whole lines: a kill may have cut off the last. A line that lacks only its
        #    newline is whole.
        self._file.seek(0)
        data = self._file.read()
        last_line_start = data.rfind(b"\n") + 1
        lines = data
        try:
            orjson.loads(data[last_line_start:])
        except orjson.JSONDecodeError:
            lines = data[:last_line_start]
        items = list(_json_rows(lines.decode(errors="replace").split("\n"), self.path))
        rows = [row.fields for row in items if isinstance(row, Row)]
        # 2. Check that all rows are of this command: nothing may be removed from a file that
        #    another program has written.
        columns = set(self.columns)
        foreign = [
            item for item in items if not (isinstance(item, Row) and columns <= item.fields.keys())
        ]
        if rows and "id" in rows[0] and (lacking := sorted(columns - rows[0].keys())):
            problem = f"its rows have no {', '.join(lacking)}, as rows do here; give another file"
            raise InvalidInput(problem, code="row.output-other-columns", path=self.path)
        if foreign and len(foreign) < len(items):
            problem = (
                "it is no whole row of this command; delete this line, and what it held is made "
                "again, or give another file"
            )
            raise InvalidInput(
                problem, code="row.output-damaged", path=self.path, line=foreign[0].line
            )
        # A file that was cut off within its first line may be shorter than the `{"` of a row.
        if foreign or not data.startswith(b'{"'[: len(data)]):
            problem = "it holds something else than rows of this command; give another file"
            raise InvalidInput(problem, code="row.output-foreign", path=self.path)
        # 3. Remove a line that was cut off, and end the last one.
        os.ftruncate(self._file.fileno(), len(lines))
        if lines and not lines.endswith(b"\n"):
            self._write(b"\n")
        return rows


def _csv_line(values: Iterable[object]) -> bytes:
    """A row of CSV, in which a text may have several lines, and a value that is no text is JSON."""
    buffer = io.StringIO(newline="")
    texts = map(_cell_text, values)
    cells = [f"'{text}" if _FORMULA.match(text) else text for text in texts]
    # With this line ending, because csv quotes cells that have one of its characters: a lone \r has
    # to be quoted too.
    csv.writer(buffer, lineterminator="\r\n").writerow(cells)
    return buffer.getvalue().removesuffix("\r\n").encode() + b"\n"


def _without_apostrophe(cell: str) -> str:
    """A cell as it was before `_csv_line` put an apostrophe before a formula."""
    return cell[1:] if cell[:1] == "'" and _FORMULA.match(cell) else cell


def _cell_text(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else orjson.dumps(value).decode()
