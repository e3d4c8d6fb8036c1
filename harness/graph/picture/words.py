"""The words that are the same in every picture."""

from __future__ import annotations

from collections.abc import Mapping

from rich.cells import cell_len

from harness.graph.picture.drawing import Arrow, Box, Drawing, Kind
from harness.graph.picture.seen import NodeSeen

MAPPED = "\N{MULTIPLICATION SIGN}"
"""After the name of a node that is called once per item."""

CRITICAL = "●"
"""Before a node on the critical path."""

MAPPED_MEANS = f"{MAPPED} is called once per item"
CRITICAL_MEANS = f"{CRITICAL} is on the critical path, which decided how long the run took"

_KINDS: Mapping[Kind, str] = {"async": "", "plain": "in a thread", "stream": "streams its items"}
_SECONDS_FROM_NS = 10_000_000


def columns(text: str) -> int:
    """How wide a text is on a terminal: some characters take two columns, some none."""
    return cell_len(text)


def printable(text: str) -> str:
    """A text on one line, with no control characters: some pictures have no form for them."""
    return "".join(sign if sign.isprintable() else " " for sign in text)


def box_title(box: Box) -> str:
    """A node's name, and how often it was called if once per item."""
    if not box.is_mapped:
        return box.name
    items = box.seen.items if box.seen else 0
    return f"{box.name} {MAPPED}{items or ''}"


def taken(arrow: Arrow) -> str:
    """What goes into a node: `task`, `each topics`, `sections[]`."""
    match arrow.way:
        case "item":
            return f"each {arrow.source}"
        case "list":
            return f"{arrow.source}[]"
        case _:
            return arrow.source


def taken_from_outside(box: Box) -> str:
    """The inputs that a node takes, for a picture whose arrows say the rest."""
    return ", ".join(taken(arrow) for arrow in box.arrows if arrow.is_input)


def remarks(box: Box) -> tuple[str, ...]:
    """What else its author said of a node."""
    parts = (
        f"when {box.when}" if box.when else "",
        ", ".join(box.roles),
        _KINDS[box.kind],
    )
    return tuple(printable(part) for part in parts if part)


def figures(seen: NodeSeen) -> tuple[str, str, str, str]:
    """What a run made of a node: how it ended if not well, time, calls, tokens; "" for none."""
    return (
        "" if seen.status == "done" else seen.status,
        duration(seen.busy_ns) if seen.busy_ns else "",
        f"{seen.calls:,} call{'' if seen.calls == 1 else 's'}" if seen.calls else "",
        f"{seen.input_tokens:,} → {seen.output_tokens:,} tokens" if seen.calls else "",
    )


def run_line(drawing: Drawing) -> str:
    """Which run it was, and how it ended; empty where there is none."""
    run = drawing.run
    if run is None:
        return ""
    ended = {"ok": "ended well", "unfinished": "was killed, or is not over"}
    how = ended.get(run.status, run.status)
    return f"run {printable(run.run_id)}: {duration(run.duration_ns)}, {how}"


def unknown_line(drawing: Drawing) -> str:
    """What the run had and the drawing does not have; empty where there is nothing."""
    names = printable(", ".join(drawing.unknown))
    return f"In the run, and not in the file: {names}" if names else ""


def duration(time_ns: int) -> str:
    """Milliseconds of what is short, else seconds."""
    if time_ns < _SECONDS_FROM_NS:
        return f"{time_ns / 1e6:.1f} ms"
    return f"{time_ns / 1e9:,.{2 if time_ns < 10e9 else 1}f} s"
