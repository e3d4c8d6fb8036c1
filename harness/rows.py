"""Rows of tables and texts: read from several kinds of files, and saved so that a kill loses none.

A row that cannot be read is an error beside the others, with its file and line. A file of rows
grows by one whole line at a time; a command that finds its rows there continues after them.
"""

from __future__ import annotations

import csv
import fcntl
import glob
import io
import os
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, Self

import orjson

from harness.errors import ConfigurationInvalid, InvalidInput, did_you_mean
from harness.files import behind_link, opened, read_text, whole_file, writing
from harness.result_files import samples_in

STDIN = "-"
"""Names standard input in place of a file."""
TEXTS = frozenset({".md", ".markdown", ".txt", ".rst"})
TABLES = frozenset({".csv", ".tsv", ".jsonl", ".ndjson", ".parquet"})

_OF_CELLS = frozenset({".csv", ".tsv", ".parquet"})
_STDIN_PATH = Path("standard input")
_WHOLE = frozenset({"draft", "sources"})
_ROW_GROUP = 1_000
_LONG_CHARS = 4_096
_MOST_CHARS = 1 << 30
# Python's spelling of numbers that JSON does not have.
_NAN = re.compile(r"(?<=[:,\[\s])-?(?:NaN|Infinity)(?=[,\]}\s])")
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
    `human.clear`. A text has one field: its file, as `path`."""
    path: Path
    """The file that has the row."""
    line: int | None = None
    """The line on which the row begins, or its number in a Parquet file; from 1. None for a text.
    """

    @property
    def id(self) -> str:
        """The cell `id` on one line; without one, `place`."""
        return " ".join(str(self.fields["id"]).split()) if "id" in self.fields else self.place

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
        text, path = self.fields.get("draft"), self.fields.get("path")
        # An empty cell beside a path is no draft.
        text = text or (None if path else text)
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
    """The cells of a row, long texts packed."""

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
        # Thousands of documents wait in memory for their turn. Packed, English takes a third of its
        # room or less.
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
    """The files that `names` mean: files, directories and patterns; None for standard input.

    In directories, files with one of the `endings` are taken.

    Raises:
        InvalidInput: One is missing, or nothing is found.
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
    empty: AbstractSet[str] = frozenset(),
) -> Iterator[Row | InvalidInput]:
    """The rows of files, directories, patterns and standard input (JSON Lines), in order.

    CSV with commas, semicolons or tabs, JSON Lines, Parquet and `.json` lists of objects are
    tables, as are results of Inspect AI (`.eval`, `.json`) and promptfoo (`.json`); any other file
    is a text.

    Args:
        names: As for `files_named`.
        columns: Our name of a column → its name in the files.
        whole: Columns whose objects stay objects, and do not become columns with points.
        empty: Columns whose empty cells are kept, by the part of a name before its first point.

    Raises:
        InvalidInput: A file is missing, or no row has such a column.
    """
    renamed = {theirs: mine for mine, theirs in (columns or {}).items()}
    columns_seen: set[str] = set()
    for path in files_named(names, endings=TEXTS | TABLES):
        for row in rows_in(path):
            if isinstance(row, InvalidInput):
                yield row
                continue
            fields = dict(_flat(row.fields, whole))
            columns_seen |= fields.keys()
            # A column whose name is given to another column is dropped.
            named = {
                renamed.get(n, n): value
                for n, value in fields.items()
                if n in renamed or n not in renamed.values()
            }
            # Without empty cells and NaN, which does not equal itself.
            full = {n: v for n, v in named.items() if n and v not in (None, "") and v == v}  # noqa: PLR0124
            # Tables of spreadsheets end in lines of empty cells; an object was written on purpose.
            if full or row.path.suffix.lower() not in _OF_CELLS:
                stored = (n for n in named if n in full or n.partition(".")[0] in empty)
                cells = _Cells({n: named[n] for n in stored})
                yield Row(fields=cells, path=row.path, line=row.line)
    for theirs, mine in renamed.items():
        if columns_seen and theirs not in columns_seen:
            hint = did_you_mean(theirs, columns_seen)
            # The user may have swapped the two names.
            if mine in columns_seen - whole:
                hint = f"write {theirs}={mine}"
            raise InvalidInput(
                f"--columns {mine}={theirs}: there is no column '{theirs}'; {hint}",
                code="row.no-column",
            )


def _flat(
    fields: Mapping[str, Any], whole: AbstractSet[str], prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    for name, value in fields.items():
        column = prefix + name
        if isinstance(value, dict) and column not in whole:
            yield from _flat(value, whole, f"{column}.")
        else:
            yield column, value


def rows_in(path: Path | None, *, ending: str | None = None) -> Iterator[Row | InvalidInput]:
    """The rows of one file, or with None of standard input; `ending` overrides the file's own."""
    ending = ending or (".jsonl" if path is None else path.suffix.lower())
    samples = samples_in(path) if path is not None and ending in {".eval", ".json"} else None
    if samples is not None and path is not None:
        for number, fields in enumerate(samples, start=1):
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
        yield InvalidInput(f"cannot be read ({error.strerror})", code="file.unreadable", path=path)
    except InvalidInput as error:
        yield error


def _lines(file: BinaryIO, newline: str, path: Path) -> Iterator[str]:
    # Lines are read one by one, since a table may be larger than memory.
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
        # Undetached, the wrapper would close standard input when it is collected.
        lines.detach()
    if is_empty:
        raise InvalidInput("the table is empty", code="file.empty", path=path)


def _json_rows(lines: Iterable[str], path: Path) -> Iterator[Row | InvalidInput]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            fields = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            problem, code = f"not JSON ({error}); each line must be one object", "row.not-json"
            nan = _NAN.search(line)
            # Blamed only if nothing else is wrong with the line.
            if nan and _is_json(_NAN.sub("null", line).encode()):
                problem, code = f"{nan[0]} is no value of JSON; write null", "row.nan"
            yield InvalidInput(problem, code=code, path=path, line=number)
            continue
        if isinstance(fields, dict):
            yield Row(fields=fields, path=path, line=number)
        else:
            yield InvalidInput(
                'not an object; each line must be one, such as {"id": …, "draft": …}',
                code="row.not-object",
                path=path,
                line=number,
            )


def _csv_rows(lines: Iterator[str], path: Path) -> Iterator[Row | InvalidInput]:
    # A draft may be longer than the usual 128 KiB.
    csv.field_size_limit(_MOST_CHARS)
    header_line = next(lines, "")
    # Excel's first line may name the separator.
    separator = re.fullmatch(r"sep=(.)\s*", header_line)
    if separator:
        header_line = next(lines, "")
    # The comma comes first, so that it wins in a header of one column.
    delimiter = separator[1] if separator else max(",;\t", key=header_line.count)
    # `strict`, or else a stray quotation mark would join all that follows to one cell.
    reader = csv.reader(chain([header_line], lines), delimiter=delimiter, strict=True)
    header: list[str] = []
    while True:
        # The line on which the next row begins; a cell may have several lines.
        line = reader.line_num + (2 if separator else 1)
        try:
            cells = next(reader, None)
        except csv.Error as error:
            problem = f"not CSV ({error}); the rest of the file is not read"
            yield InvalidInput(problem, code="row.not-csv", path=path, line=line)
            return
        if cells is None:
            return
        # The header is a row here too, so that its mistakes have a place.
        row = Row(fields=dict(zip(header, cells, strict=False)), path=path, line=line)
        if not header:
            header = [name.strip() for name in cells]
            named = [name for name in header if name]
            if len(set(named)) < len(named):
                yield row.refusal("two columns have the same name", code="row.columns-alike")
        elif cells and len(cells) != len(header):
            problem = (
                f"it has {len(cells)} cells under {len(header)} columns; put a text with "
                f"{delimiter!r} in it between double quotes"
            )
            yield row.refusal(problem, code="row.cells")
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
    rest = iter(rows)
    group = list(islice(rest, _ROW_GROUP))
    if not group:
        return
    with writing(path), whole_file(path) as file, ExitStack() as stack:
        if pyarrow is not None:
            # The schema of the first rows holds for all: a later group, such as a column of None,
            # might by itself get another type.
            schema = pyarrow.Table.from_pylist(group).schema
            writer = stack.enter_context(pyarrow.parquet.ParquetWriter(file, schema))
        while group:
            if pyarrow is None:
                file.writelines(orjson.dumps(row) + b"\n" for row in group)
            else:
                writer.write_batch(pyarrow.RecordBatch.from_pylist(group, schema=schema))
            group = list(islice(rest, _ROW_GROUP))


def rows_saved(path: Path) -> list[Mapping[str, Any]]:
    """The whole rows that a command saved in a `.jsonl`, `.csv` or `.parquet` file."""
    return [row.fields for row in rows_in(path) if isinstance(row, Row)]


def replace_rows(
    path: Path, rows: Iterable[Mapping[str, Any]], *, columns: Sequence[str]
) -> RowFile:
    """Replaces a file by one with these rows, once all are written; it may grow further."""
    target = behind_link(path)
    partial = target.with_name(f".{target.stem}.partial{path.suffix}")
    with writing(path):
        # A partial file that a kill has left would be continued, or refused.
        partial.unlink(missing_ok=True)
    with ExitStack() as stack:
        # After a failure the partial file goes, so that a full disk has room again.
        stack.callback(_remove, partial)
        file = stack.enter_context(RowFile(partial, columns=columns, shown_as=path))
        for row in rows:
            file.append(row)
        with writing(path):
            partial.replace(target)
        # The file is neither removed nor closed, since the caller writes on.
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
        path: The file; neither it nor its folder need exist, and a CSV file must not.
        columns: The columns of a CSV file, in order; each row of JSON Lines has at least these.
        shown_as: The file that messages name, if it will have another name.

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
            # An existing CSV file is not ours: `replace_rows` writes beside the file it replaces.
            self._file = path.open("xb" if self._is_csv else "a+b", buffering=0)
        try:
            # Locked before it is read: another command may be writing.
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
        """Adds a row, to a CSV file its `columns` only; raises `InvalidInput` if that fails."""
        cells = (row.get(name) for name in self.columns)
        self._write(_csv_line(cells) if self._is_csv else orjson.dumps(row) + b"\n")

    def drop_last(self) -> None:
        """Removes the last row of a file of JSON Lines."""
        self._file.seek(0)
        data = self._file.read()
        os.ftruncate(self._file.fileno(), data.rstrip(b"\n").rfind(b"\n") + 1)

    def _write(self, line: bytes) -> None:
        with writing(self.path):
            while line:
                # Unbuffered, one call may write only a part.
                line = line[self._file.write(line) :]

    def _read(self) -> list[Mapping[str, Any]]:
        # 1. The whole lines: a kill may have cut off the last. One that lacks only its newline is
        #    whole.
        self._file.seek(0)
        data = self._file.read()
        is_whole = _is_json(data[data.rfind(b"\n") + 1 :])
        lines = data if is_whole else data[: data.rfind(b"\n") + 1]
        items = list(_json_rows(lines.decode(errors="replace").split("\n"), self.path))
        rows = [row.fields for row in items if isinstance(row, Row)]
        # 2. Whether all of them are this command's.
        columns = set(self.columns)
        strange = [
            item for item in items if not (isinstance(item, Row) and columns <= item.fields.keys())
        ]
        # Nothing is dropped from a file that another program may have written.
        if rows and "id" in rows[0] and (lacks := sorted(columns - rows[0].keys())):
            problem = f"its rows have no {', '.join(lacks)}, as rows do here; give another file"
            raise InvalidInput(problem, code="row.output-other-columns", path=self.path)
        if strange and len(strange) < len(items):
            problem = (
                "it is no whole row of this command; delete this line, and what it held is made "
                "again, or give another file"
            )
            raise InvalidInput(
                problem, code="row.output-damaged", path=self.path, line=strange[0].line
            )
        # A file cut off within its first line may be shorter than the `{"` of a row.
        if strange or not data.startswith(b'{"'[: len(data)]):
            problem = "it holds something else than rows of this command; give another file"
            raise InvalidInput(problem, code="row.output-foreign", path=self.path)
        # 3. The file is ours: without the rest, and ready for a further row.
        os.ftruncate(self._file.fileno(), len(lines))
        if lines and not lines.endswith(b"\n"):
            self._write(b"\n")
        return rows


def _is_json(text: bytes) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def _csv_line(values: Iterable[object]) -> bytes:
    """One row; a text with several lines takes as many, and a value that is no text is JSON."""
    buffer = io.StringIO(newline="")
    texts = map(_cell_of, values)
    cells = [f"'{text}" if _FORMULA.match(text) else text for text in texts]
    # csv quotes cells with a character of its line ending: with \r\n, a lone \r is quoted too.
    csv.writer(buffer, lineterminator="\r\n").writerow(cells)
    return buffer.getvalue().removesuffix("\r\n").encode() + b"\n"


def _without_apostrophe(cell: str) -> str:
    """A cell as it was before `_csv_line` made it harmless."""
    return cell[1:] if cell[:1] == "'" and _FORMULA.match(cell) else cell


def _cell_of(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else orjson.dumps(value).decode()
