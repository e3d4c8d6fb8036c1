"""The reference pages that are made from the code when the documentation is built.

`configuration.md` comes from the settings models, `errors.md` from the messages in the source, and
`api.md` from `harness.__all__`. mkdocs loads this file as a hook (see mkdocs.yml).
"""

from __future__ import annotations

import re
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from wording import wording  # noqa: E402

import harness  # noqa: E402
from harness import Settings  # noqa: E402


def on_files(files: Files, config: Any) -> Files:
    """Adds the generated pages."""
    pages = {"configuration.md": configuration(), "errors.md": errors(), "api.md": api()}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


# --- configuration ---------------------------------------------------------------------------


def configuration() -> str:
    """Every setting of `harness.toml`, as a table for each of its tables."""
    head = (
        "# Configuration\n\n"
        "Settings come from `harness.toml` in the working directory and from `HARNESS_ENDPOINTS` "
        "(JSON, which overrides the file). Python code passes them as `settings=Settings(...)`. "
        "Relative paths start at the file's folder. An unknown or wrong setting is an error with "
        "its line; all mistakes are reported at once.\n\n"
    )
    return head + "\n".join(_tables(Settings, ""))


def _tables(model: type[BaseModel], name: str) -> Iterator[str]:
    title = f"`[{name}]`" if name else "Top level"
    yield f"## {title}\n"
    if name and model.__doc__:
        yield f"{_sentence(model.__doc__)}\n"
    rows, below = [], []
    for field, info in model.model_fields.items():
        if info.exclude or field == "tag":
            continue
        key = info.alias or field
        inner, many = _model_in(info.annotation)
        if inner is None:
            rows.append((key, info))
        else:
            below.append((inner, ".".join(filter(None, [name, key, "TAG" if many else ""]))))
    if rows:
        yield "| setting | type | default | meaning |\n|---|---|---|---|"
        for key, info in rows:
            cells = (f"`{key}`", _type(info), _default(info), info.description or "")
            yield (
                "| "
                + " | ".join(re.sub(r"\s+", " ", cell).replace("|", "\\|") for cell in cells)
                + " |"
            )
        yield ""
    for inner, where in below:
        yield from _tables(inner, where)


def _model_in(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """The settings model that a field holds, and whether it holds one for each tag."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    if typing.get_origin(annotation) is dict:
        value = typing.get_args(annotation)[1]
        if isinstance(value, type) and issubclass(value, BaseModel):
            return value, True
    return None, False


def _type(info: FieldInfo) -> str:
    return _words(info.annotation)


def _words(annotation: Any) -> str:
    args = typing.get_args(annotation)
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        return " or ".join(
            f"`{str(one).lower() if isinstance(one, bool) else one}`" for one in args
        )
    if origin is typing.Annotated:
        return _words(args[0])
    if origin in {tuple, list}:
        return f"list of {_words(args[0])}"
    if origin is dict:
        return f"table of {_words(args[1])}"
    if args:
        return " or ".join(_words(one) for one in args if one is not type(None))
    names = {str: "text", int: "integer", float: "number", bool: "`true` or `false`", Path: "path"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _default(info: FieldInfo) -> str:
    if info.default is PydanticUndefined:
        return "required"
    value = info.default
    if value is None or value in ("", (), {}):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return ", ".join(f"`{one}`" for one in value)
    return f"`{value}`"


def _sentence(doc: str) -> str:
    text = re.sub(r"\s+", " ", doc.strip())
    return re.sub(r"^`\[.*?\]`: ", "", text)[0:1].upper() + re.sub(r"^`\[.*?\]`: ", "", text)[1:]


# --- errors ----------------------------------------------------------------------------------


def errors() -> str:
    """Every code, with the wording of its messages, by area."""
    by_area: dict[str, dict[str, list[str]]] = {}
    for line in wording().splitlines():
        code, _, message = line.partition(": ")
        by_area.setdefault(code.partition(".")[0], {}).setdefault(code, []).append(message)
    parts = [
        "# Errors by code\n",
        """Every error, warning, remark and finding has a code. It stays the same if the message
is reworded. In Python it is `error.code`; with `--json` it is in the output. Braces mark values
that the program fills in.
""",
    ]
    for area, codes in sorted(by_area.items()):
        parts.append(f"## {area}\n")
        parts.append("| code | message |\n|---|---|")
        for code, messages in sorted(codes.items()):
            said = "<br>".join(_cell(one) for one in messages)
            parts.append(f"| `{code}` | {said} |")
        parts.append("")
    return "\n".join(parts)


def _cell(message: str) -> str:
    # An expression says less than a gap: {name} stays, {did_you_mean(name, known)} does not.
    message = re.sub(r"\{[^{}]*[^\w{}][^{}]*\}", "{…}", message)
    for sign, entity in (
        ("&", "&amp;"),
        ("<", "&lt;"),
        ("|", "&#124;"),
        ("[", "&#91;"),
        ("*", "&#42;"),
        ("_", "&#95;"),
        ("`", "&#96;"),
    ):
        message = message.replace(sign, entity)
    return message


# --- Python ----------------------------------------------------------------------------------

GROUPS = {
    "Pipelines and runs": (
        "Pipeline", "Run", "RunResult", "RunEvents", "RunEvent", "Skipped", "Question",
        "Retry", "Timeout", "Concurrency", "Cache", "Default", "BatchResult", "BatchScores",
        "RowFailure",
    ),
    "The loop and its limits": ("Limits", "WiggumResult", "Round", "rounds_from"),
    "Rubrics": ("load_rubric", "Rubric", "Draft", "Verdict", "Finding", "Grade"),
    "Models": (
        "chat", "chat_sync", "ChatOptions", "stream", "TextStream", "embed", "open_shim", "Message",
        "ChatRequest", "EmbedRequest", "Completion", "Embeddings", "Usage", "OnCut", "Endpoint",
        "Image", "ScriptedBackend", "ScriptedReply",
    ),
    "Tools and agents": ("Tool", "mcp", "AgentResult", "ToolResult", "ToolCall", "ToolSpec"),
    "Memory": ("MemoryStore", "Passage", "Hit"),
    "Traces": ("RunTrace", "TraceOptions", "Journal"),
    "Sessions and settings": (
        "open", "Session", "open_sync", "SyncSession", "Settings", "load_settings",
    ),
    "Errors": ("HarnessError", "NodeFailed", "ReplyCut", "Notice"),
}  # fmt: skip

# Where not every public member is for users.
MEMBERS = {
    "Pipeline": "    options:\n      members: [node, include, check, run, run_async, events, "
    "batch]\n",
}


def api() -> str:
    """Every public name, by its use; names without a group come last."""
    grouped = {name for names in GROUPS.values() for name in names}
    rest = [one for one in harness.__all__ if one not in grouped and not one.startswith("_")]
    parts = ["# Python API\n", "Import these from `harness`.\n"]
    for title, names in {**GROUPS, "More": tuple(rest)}.items():
        known = [name for name in names if name in harness.__all__]
        if known:
            parts.append(f"## {title}\n")
            parts += [f"::: {_path(name)}\n{MEMBERS.get(name, '')}" for name in known]
    tested = ("run_pipeline", "run_pipeline_async", "Script", "Judge")
    parts += ["## Tests\n", "Import these from `harness.testing`.\n"]
    parts += [f"::: harness.testing.{name}\n" for name in tested]
    parts.append("::: harness.recording.Recording\n")
    return "\n".join(parts)


def _path(name: str) -> str:
    value = getattr(harness, name)
    module = getattr(value, "__module__", "")
    return f"{module}.{name}" if module.startswith("harness") else f"harness.{name}"
