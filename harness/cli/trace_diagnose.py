"""What was wrong with a run: in words for people, as JSON for scripts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import orjson
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from harness.trace.diagnosis import LAYERS, Finding, Severity

_STYLES: dict[Severity, str] = {"error": "bold red", "warning": "bold yellow", "hint": "bold cyan"}

_NOTHING = (
    "Nothing is wrong that this can see: no model was loaded in a call's way, no call waited long "
    "or failed, no prompt was read twice for nothing, and nothing ran one after another that could "
    "have run at once. What a journal cannot show: how busy the device was, what else ran on the "
    "machine, and whether the replies were any good."
)


def print_findings(findings: Sequence[Finding], console: Console) -> None:
    """Prints what was found, worst first, each with what to change; or that nothing was."""
    if not findings:
        console.print(_NOTHING, highlight=False)
        return
    for number, finding in enumerate(findings, start=1):
        title = Text(f"{number}. {finding.rule}", style=_STYLES[finding.severity])
        title.append(f"  {finding.severity}, {_owner(finding)}", style="dim")
        console.print(title)
        for line in (finding.seen, finding.meaning):
            console.print(_indented(line))
        for move in finding.move:
            console.print(_indented(f"- {move}"))
        if finding.evidence.spans:
            spans = ", ".join(map(str, finding.evidence.spans))
            console.print(_indented(f"spans {spans}", style="dim"))
        console.print()


def findings_as_json(findings: Sequence[Finding]) -> bytes:
    """The findings as one JSON object, indented, with a newline."""
    return orjson.dumps(
        {"findings": [asdict(finding) for finding in findings]},
        option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE,
    )


def _owner(finding: Finding) -> str:
    return f"{finding.layer} {LAYERS[finding.layer]}"


def _indented(line: str, *, style: str = "") -> Padding:
    # Text rather than str: what models and servers said may hold brackets.
    return Padding(Text(line, style=style), (0, 0, 0, 3))
