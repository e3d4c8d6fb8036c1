"""What was found in a journal: in words for people, as JSON for scripts."""

from __future__ import annotations

from dataclasses import asdict

import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.trace.check import JournalCheck


def print_check(found: JournalCheck, console: Console) -> None:
    """Prints whether the journal is whole, what is wrong with it, and what was open."""
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(found.records.items()))
    console.print(Text(f"{found.path}: {_verdict(found)}"), soft_wrap=True)
    console.print(Text(f"records: {kinds or 'none'}"), style="dim")
    for problem in found.problems:
        console.print(Text(problem), style="red")
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
    whole = {"is_whole": found.is_whole, "is_readable": found.is_readable}
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    return orjson.dumps({**whole, **asdict(found)}, option=options)


def _verdict(found: JournalCheck) -> str:
    if found.run_id is None:
        return "not a journal"
    if found.problems:
        return "damaged"
    if found.is_whole:
        return f"whole; the run ended: {found.ended}"
    torn = f", in the middle of a line ({found.torn_bytes} bytes)" if found.torn_bytes else ""
    return f"readable, but it stops before the run's end{torn}: killed, or still going"
