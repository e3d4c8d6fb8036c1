"""What commands print, in `shown/`: a file for each printer, a section for each case.

`WRITE_SHOWN=1 pytest -n 0 tests/cli` writes anew what these tests show; look at the diff. To drop
cases that are gone, delete the printer's file before.
Tests assert values: exit codes, codes of errors, JSON. How they are worded is seen here alone.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from rich.console import Console

from harness.cli.consoles import Shown

SHOWN = Path(__file__).with_name("shown")
# In no two runs the same.
MASKS = {
    re.escape(str(Path(sys.executable).with_name("harness"))): "harness",
    r"\d{8}T\d{6}Z-[0-9a-f]{12}": "RUN",
    r"(run took|part took|together took|this one) \d+\.\d+ s": r"\1 0.0 s",
    # As click and orjson word it, of any version.
    r"Usage: .*\nTry .*\n\n": "",
    r"not JSON \(.*\);": "not JSON (…);",
}


class Ended(Protocol):
    """How a command ended, and what it wrote."""

    exit_code: int
    stdout: str
    stderr: str


def assert_shown(
    printer: str, case: str, shown: str | Ended, *, masks: dict[str, str] | None = None
) -> None:
    """Compares a text with the one that is kept, but for what no two runs have the same.

    Args:
        printer: Of the file that keeps it.
        case: Of its section.
        shown: What was shown; of a command also its exit code.
        masks: By a regular expression, what stands in place of all that it matches.
    """
    if isinstance(shown, str):
        text = shown
    else:
        text = f"exit code {shown.exit_code}\n{shown.stdout}"
        text += f"--- standard error\n{shown.stderr}" if shown.stderr else ""
    for pattern, instead in {**(masks or {}), **MASKS}.items():
        text = re.sub(pattern, instead, text)
    text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    path = SHOWN / f"{printer}.txt"
    sections = _sections(path)
    if os.environ.get("WRITE_SHOWN"):
        sections[case] = text
        path.write_text("\n".join(f"=== {name}\n{sections[name]}" for name in sections), "utf-8")
    assert text == sections.get(case, ""), f"{printer}: {case}"


def _sections(path: Path) -> dict[str, str]:
    """The cases of a file, with the text of each."""
    if not path.exists():
        return {}
    _, *parts = re.split(r"^=== (.*)\n", path.read_text("utf-8"), flags=re.MULTILINE)
    names, texts = parts[::2], parts[1::2]
    last = len(names) - 1
    return {
        name: text if at == last else text[:-1]
        for at, (name, text) in enumerate(zip(names, texts, strict=True))
    }


def printed(show: Callable[[Console], None], *, width: int = 100) -> str:
    """What is printed on a console of this width."""
    console = Shown(file=io.StringIO(), width=width)
    show(console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()
