"""What was found in a run's journal: in words for people, as JSON for scripts."""

from __future__ import annotations

from dataclasses import asdict

import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.trace.check import FileCheck, JournalCheck


def print_check(found: JournalCheck, console: Console) -> None:
    """Prints of each file whether it is whole and what is wrong with it, and what was open."""
    last = found.parts[-1].part
    for file in found.files:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(file.records.items()))
        verdict = _verdict(file, is_of_last_part=file.part == last)
        console.print(Text(f"{file.path}{_part(file) if last else ''}: {verdict}"), soft_wrap=True)
        console.print(Text(f"records: {kinds or 'none'}"), style="dim")
        for problem in file.problems:
            line = "" if problem.line is None else f"line {problem.line}: "
            console.print(Text(f"{line}{problem.message}"), style="red")
    if found.open_spans:
        table = Table(title="Open at the end", title_justify="left")
        for column in ("what", "since second", "for seconds"):
            table.add_column(column)
        for span in found.open_spans:
            what = span.title if span.title == span.name else f"{span.name}: {span.title}"
            table.add_row(Text(what), f"{span.start_ns / 1e9:.3f}", f"{span.open_ns / 1e9:.3f}")
        console.print(table)


def check_as_json(found: JournalCheck) -> bytes:
    """The same as one JSON object, indented, with a newline."""
    said = {
        "is_whole": found.is_whole,
        "is_readable": found.is_readable,
        "run_id": found.run_id,
        "parts": len(found.parts),
        "open_spans": [asdict(span) for span in found.open_spans],
        "files": [
            {"is_whole": file.is_whole, "is_readable": file.is_readable, **asdict(file)}
            for file in found.files
        ],
    }
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    return orjson.dumps(said, default=str, option=options)  # a problem's path


def _verdict(found: FileCheck, *, is_of_last_part: bool) -> str:
    if found.run_id is None:
        is_torn = found.torn_bytes > 0 and not found.problems
        return "killed in its first line, or not a journal" if is_torn else "not a journal"
    if found.problems:
        return "damaged"
    if found.is_whole:
        return f"whole; the run ended: {found.ended}"
    torn = f", in the middle of a line ({found.torn_bytes} bytes)" if found.torn_bytes else ""
    why = "killed, or still going" if is_of_last_part else "killed; it was resumed"
    return f"readable, but it stops before the run's end{torn}: {why}"


def _part(found: FileCheck) -> str:
    return f" (joined part {found.part})" if found.is_joined else f" (part {found.part})"
