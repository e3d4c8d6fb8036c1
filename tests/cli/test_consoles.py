"""What is printed is shown, and not obeyed."""

from __future__ import annotations

import io
import json
import threading

import pytest
from rich.table import Table
from rich.text import Text

from harness.cli.consoles import JsonLines, Shown

SECRET = "tawny-owl-" * 12
CLIPBOARD = "owl\x1b]52;c;ZXZpbA==\x07\x9b2Jowl"


def in_a_table(text):
    table = Table()
    table.add_column("one")
    table.add_row(text)
    return table


@pytest.mark.parametrize("made", [str, Text, in_a_table], ids=["s", "t", "table"])
def test_a_terminal_is_shown_what_it_would_have_obeyed(made):
    out = io.StringIO()
    Shown(file=out, force_terminal=True, width=200).print(made(CLIPBOARD), style="red")
    assert "\x1b[31m" in out.getvalue(), "the styles are ours"
    assert "\x1b]" not in out.getvalue()
    assert not {"\x07", "\x9b"} & {*out.getvalue()}
    assert "owl?" in out.getvalue()


def test_a_file_gets_no_escape_sequences_either_and_no_markup_is_obeyed():
    out = io.StringIO()
    Shown(file=out, width=200).print(CLIPBOARD, "[b]:x:[/y]", in_a_table("\a\b[b]:x:[/y]"))
    assert "\x1b]52" not in out.getvalue()
    assert out.getvalue().count("[b]:x:[/y]") == 2
    with Shown(file=out).status("Writing a[/b].json"):
        assert "[/b]" not in out.getvalue()


@pytest.mark.parametrize("overflow", ["fold", "crop", "ellipsis"])
@pytest.mark.parametrize("made", [str, Text, in_a_table], ids=["s", "t", "table"])
def test_a_secret_too_long_for_its_line_is_not_printed_in_parts(made, overflow, monkeypatch):
    monkeypatch.setenv("NEST_KEY", SECRET)
    out = io.StringIO()
    Shown(file=out, width=50).print(made(f"the key {SECRET} owl"), overflow=overflow)
    assert "tawny" not in out.getvalue()
    assert "[redacted]" in out.getvalue()


@pytest.mark.parametrize(
    ("printed", "events"),
    [
        pytest.param([f"{CLIPBOARD}\n"], ["owl?]52;c;ZXZpbA==??2Jowl"], id="escape sequences"),
        pytest.param([f"key {SECRET}\n"], ["key [redacted]"], id="a secret"),
        pytest.param(["half \ud800 a letter\n"], ["half ? a letter"], id="half a letter"),
        pytest.param(["a", "b", "\n", "\n"], ["ab"], id="in parts"),
        pytest.param(["two\nlines\n"], ["two\nlines"], id="two lines at once"),
        pytest.param(["{}\n", "{no\n", "[1]\n"], ["{}", "{no", "[1]"], id="no objects"),
        pytest.param(["a", '{"event": "own"}', "\n"], ["own", "a"], id="an object in between"),
        pytest.param(["without an end"], ["without an end"], id="without an end"),
    ],
)
def test_what_is_printed_for_a_program_is_an_object_a_line(printed, events, monkeypatch):
    monkeypatch.setenv("NEST_KEY", SECRET)
    out = io.TextIOWrapper(io.BytesIO(), "utf-8")
    lines = JsonLines(out)
    for text in printed:
        lines.write(text)
    lines.flush()
    assert events_in(out) == events


def events_in(out):
    return [json.loads(line)["event"] for line in out.buffer.getvalue().splitlines()]


def test_half_lines_of_two_threads_stay_apart():
    out = io.TextIOWrapper(io.BytesIO(), "utf-8")
    lines = JsonLines(out)
    lines.write("mine, ")
    thread = threading.Thread(target=lines.write, args=["of a thread that ends"])
    thread.start()
    thread.join()
    other = threading.Thread(target=lines.flush)
    other.start()
    other.join()
    lines.write("whole\n")
    assert sorted(events_in(out)) == ["mine, whole", "of a thread that ends"]


def test_what_programs_do_with_a_stream_works_where_a_program_reads_it(tmp_path):
    with (tmp_path / "log").open("w", encoding="latin-1") as file:
        lines = JsonLines(file)
        assert (lines.name, lines.fileno(), lines.mode) == (file.name, file.fileno(), "w")
    out = io.TextIOWrapper(io.BytesIO(), "utf-8")
    lines = JsonLines(out)
    lines.writelines(["a\n", "b\n"])
    assert events_in(out) == ["a", "b"]
