"""What was wrong with a run: in words for people, as JSON for scripts."""

from __future__ import annotations

from dataclasses import asdict

import orjson
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from harness.analysis import LAYERS, Diagnosis, Finding, Severity

_STYLES: dict[Severity, str] = {"error": "bold red", "warning": "bold yellow", "hint": "bold cyan"}

_NOTHING = (
    "Nothing is wrong that this can see: no model was loaded in a call's way, and no call waited "
    "long or failed"
)
_NOTHING_IN_TEXTS = (
    ", no prompt was read twice for nothing, and nothing ran one after another that could have run "
    "at once"
)
_NOTHING_YET = "Nothing was wrong that this can see until the run was cut short."
_NEVER_SEEN = (
    "What a journal cannot show: how busy the device was, what else ran on the machine, and "
    "whether the replies were any good."
)
_WHERE_SPANS_ARE = (
    "A span's number is `span` among a slice's arguments in the timeline: harness trace open."
)


def print_findings(diagnosis: Diagnosis, console: Console) -> None:
    """Prints what was found, worst first, each with what to change; or that nothing was."""
    for number, finding in enumerate(diagnosis.findings, start=1):
        _print_finding(number, finding, console)
    if any(finding.evidence.spans for finding in diagnosis.findings):
        console.print(Text(_WHERE_SPANS_ARE, style="dim"))
    if diagnosis.unexplained is not None:
        also = "also " if diagnosis.findings else ""
        console.print(
            Text(f"Calls were {also}slow, and no rule knows why. {diagnosis.unexplained}")
        )
    elif not diagnosis.findings:
        console.print(_all_clear(diagnosis), highlight=False)
    if diagnosis.not_examined:
        console.print(Text(f"Not examined: {'; '.join(map(str, diagnosis.not_examined))}."))


def findings_as_json(diagnosis: Diagnosis) -> bytes:
    """The diagnosis as one JSON object, indented, with a newline."""
    return orjson.dumps(asdict(diagnosis), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _print_finding(number: int, finding: Finding, console: Console) -> None:
    title = Text(f"{number}. {finding.rule}", style=_STYLES[finding.severity])
    title.append(f"  {finding.severity}, {LAYERS[finding.layer]}", style="dim")
    console.print(title)
    for line in (finding.seen, finding.meaning):
        console.print(_indented(line))
    for move in finding.move:
        console.print(_indented(f"- {move}"))
    if finding.evidence.spans:
        spans = ", ".join(map(str, finding.evidence.spans))
        console.print(_indented(f"spans {spans}", style="dim"))
    console.print()


def _all_clear(diagnosis: Diagnosis) -> str:
    """That nothing was found, denying no more than was looked at."""
    if diagnosis.status not in {"ok", "waiting", "stopped"}:
        return _NOTHING_YET
    return f"{_NOTHING}{'' if diagnosis.not_examined else _NOTHING_IN_TEXTS}. {_NEVER_SEEN}"


def _indented(line: str, *, style: str = "") -> Padding:
    # Text rather than str: what models and servers said may hold brackets.
    return Padding(Text(line, style=style), (0, 0, 0, 3))
