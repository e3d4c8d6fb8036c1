"""The snippets of the README and the guides: pipelines run, settings load, commands parse."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import shlex
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any, get_args

import click
import pytest
from demo import ROOT
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from test_one_home_per_server import SERVER

import harness
from harness import Pipeline, RunResult, ScriptedBackend, Settings, load_rubric, load_settings
from harness.analysis import RULES
from harness.cli.main import command
from harness.cli.project_files import load_pipeline
from harness.inference import ChatRequest
from harness.inference.endpoint import BackendName
from harness.testing import Script, run_pipeline
from harness.wiggum.policy import StopReason

ROOT_PAGES = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")]
PAGES = [*ROOT_PAGES, *sorted((ROOT / "docs").glob("*.md")), ROOT / "patterns" / "README.md"]
HAIKU = Script({"producer": ["Steam over the cup\nfills the window of the old\nkitchen."]})
"""In place of what the guide records."""
GUIDED_ELSEWHERE = {"rubrics.md"}  # tests/rubric/test_rubrics_guide.py runs what it shows


def blocks(language: str) -> list[Any]:
    """The fenced blocks of a language, each named by its page and place."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for number, block in enumerate(re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)):
            if page.name not in GUIDED_ELSEWHERE:
                found.append(pytest.param(block, id=f"{page.stem}-{number}"))
    return found


def answer(request: ChatRequest) -> str:
    """A reply of the type that was asked for."""
    return json.dumps(value_of(request.reply_schema)) if request.reply_schema else "Tea."


def value_of(schema: Any) -> Any:
    """The first value that a schema allows, as far as those of the guides go."""
    match schema:
        case {"enum": [first, *_]}:
            return first
        case {"type": "object", "properties": fields}:
            return {name: value_of(field) for name, field in fields.items()}
        case {"type": "array"}:
            return ["What?", "Why?"]
    return {"integer": 1, "number": 1.0, "boolean": True}.get(schema.get("type"), "Tea.")


@pytest.mark.parametrize("rubric", blocks("yaml"))
def test_rubrics_have_no_mistake(rubric: str, tmp_path: Path) -> None:
    path = tmp_path / "tea.yaml"
    path.write_text(rubric)
    assert load_rubric(str(path)).dimensions


@pytest.mark.parametrize("code", blocks("python"))
def test_python_runs(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shown.py").write_text(code)
    (page,) = (text for text in (page.read_text("utf-8") for page in PAGES) if code in text)
    (tmp_path / "rubrics").mkdir()
    for name, rubric in re.findall(r"`(rubrics/\w+\.yaml)`:\n\n```yaml\n(.*?)```", page, re.DOTALL):
        (tmp_path / name).write_text(rubric)
    names: dict[str, Any] = {"__name__": "shown"}
    exec(compile(code, "shown.py", "exec"), names)  # it is meant to be copied
    fixtures = {"tmp_path": tmp_path, "harness_run": run_pipeline, "harness_recording": HAIKU}
    for name, function in list(names.items()):
        if name.startswith("test_"):
            function(**{one: fixtures[one] for one in inspect.signature(function).parameters})
    if any(isinstance(one, Pipeline) for one in names.values()):
        pipeline = load_pipeline("shown.py")
        taken = {one for node in pipeline.nodes.values() for one in node.sources}
        inputs = dict.fromkeys(taken - pipeline.nodes.keys(), "# Tea\n\nSteep it.\n# Milk\n\nAdd.")
        result = asyncio.run(
            pipeline.run_async(
                inputs,
                settings=Settings(traces=tmp_path / "traces"),
                backends={role: ScriptedBackend(answer) for role in ("producer", "evaluator")},
            )
        )
        assert result.status in {"finished", "waiting"}


def test_the_pipeline_of_the_readme_runs(tmp_path: Path) -> None:
    code = re.findall(r"```python\n(.*?)```", PAGES[0].read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "brief.py").write_text(code[0])

    result = asyncio.run(
        load_pipeline(str(tmp_path / "brief.py")).run_async(
            {"task": "Brew tea.", "document": "# Tea\n\nSteep it for three minutes.\n"},
            settings=Settings(traces=tmp_path / "traces"),
            backends={"producer": ScriptedBackend(answer)},
        )
    )

    assert result.outputs["questions"] == ["What?", "Why?"]
    assert isinstance(result.result, str)


def test_the_pipeline_of_the_guide_waits_and_goes_on(tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "pipelines.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n([^`]*release = Pipeline.*?)```", guide, re.DOTALL)
    (tmp_path / "release.py").write_text(code)
    pipeline = load_pipeline(str(tmp_path / "release.py"))

    def run(**options: Any) -> RunResult:
        inputs = {} if "resume" in options else {"document": "# 1.1\n\nFaster.\n# 1.0\n\nFirst."}
        return asyncio.run(
            pipeline.run_async(
                inputs,
                settings=Settings(traces=tmp_path / "traces"),
                backends={"producer": ScriptedBackend(["Tea."] * 9)},
                **options,
            )
        )

    waiting = run()
    finished = run(resume=waiting.run_id, answers={"approved": "yes"})

    assert waiting.status == "waiting"
    assert waiting.outputs["summary"] == "Tea.\nTea."
    assert finished.result is True
    assert len(finished.reused) == 4  # chapters, two notes, summary


def test_the_page_of_the_guide_is_fed_from_events(tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "pipelines.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n([^`]*story = Pipeline.*?)```", guide, re.DOTALL)
    names: dict[str, Any] = {"__name__": "story"}
    exec(compile(code, "story.py", "exec"), names)
    names["story"].events = partial(
        names["story"].events,
        settings=Settings(traces=tmp_path / "traces"),
        backends={"producer": ScriptedBackend(["Frogs leap."])},
    )
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(names["app"]({}, None, send))

    assert sent[0]["headers"] == [(b"content-type", b"text/event-stream")]
    lines = b"".join(one.get("body", b"") for one in sent).decode().strip().split("\n\n")
    told = [json.loads(line.removeprefix("data: ")) for line in lines]
    kinds = [one["kind"] for one in told]
    assert kinds == ["node started", "text", "node ended", "done"]
    assert told[1]["text"] == told[-1]["result"]["result"] == "Frogs leap."
    assert sent[-1] == {"type": "http.response.body"}


@pytest.mark.parametrize("settings", blocks("toml"))
def test_settings_load(settings: str, tmp_path: Path) -> None:
    path = tmp_path / "harness.toml"
    path.write_text(settings)
    assert load_settings(path, environment={"HARNESS_TRUST": str(tmp_path)}).model_fields_set


def commands() -> list[Any]:
    found = []
    for block in blocks("sh"):
        for line in re.sub(r"\\\n", " ", block.values[0]).splitlines():
            if re.match(r"(\.venv/bin/)?harness ", line):
                words = shlex.split(line, comments=True)
                found.append(pytest.param(words[1:], id=" ".join(words[1:4])))
    return found


@pytest.mark.parametrize("words", commands())
def test_commands_have_the_options_that_are_shown(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Parsed, not carried out: a file must be there to be parsed.
    monkeypatch.chdir(tmp_path)
    for word in words:
        name = word.rpartition("@")[2]
        if re.fullmatch(r"[\w/]+\.\w+", name):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text("{}")
        elif name.endswith("/"):
            (tmp_path / name).mkdir()
    group: click.Command = command
    context = None
    while isinstance(group, click.Group) and words:
        context = click.Context(group, parent=context)
        name, found, words = group.resolve_command(context, list(words))
        assert found is not None, name
        group = found
    group.make_context("shown", list(words), parent=context)


def test_the_example_of_every_endpoint_has_every_backend() -> None:
    settings = load_settings(ROOT / "examples" / "endpoints.toml", environment={})
    told = {endpoint.backend for endpoint in settings.endpoints.values()}
    assert told == set(get_args(BackendName)) - {"scripted"}


def test_the_variable_loads() -> None:
    text = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    value = re.search(r"HARNESS_ENDPOINTS='(.*?)'", text, re.DOTALL)
    assert value is not None
    settings = load_settings(environment={"HARNESS_ENDPOINTS": value[1]})
    assert settings.endpoints.keys() >= {"producer", "evaluator"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_it_links_to_is_there(page: Path) -> None:
    made = {"configuration.md", "errors.md", "api.md"}  # when the documentation is built
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [one for one in links if one not in made and not (page.parent / one).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_files_it_names_are_there(page: Path) -> None:
    named = re.findall(r"`((?:harness|tests|examples)/[\w/.*]*)`", page.read_text(encoding="utf-8"))
    # The package is elsewhere while a wheel is tested; a new project has the starter's files.
    places = (ROOT, ROOT / "examples/starter", Path(harness.__file__).parent.parent)
    assert [one for one in named if not any(list(place.glob(one)) for place in places)] == []


def test_a_row_of_the_architecture_names_nothing_that_its_files_lack() -> None:
    """A name in a row of its tables stands in one of the files, or folders, of the same row."""
    places = Path(harness.__file__).parent, ROOT / "tests"
    files = [f for place in places for f in place.rglob("*.*") if f.suffix != ".pyc"]
    lacking = []
    for row in re.findall(r"^\| .*", (ROOT / "docs/architecture.md").read_text(), re.MULTILINE):
        names = re.findall(r"`([\w.*/]+)`", row)
        paths = [name for name in names if re.search(r"/|\.(?:py|json|[ct]sv|yaml|toml)$", name)]
        texts = "".join(
            file.read_text(encoding="utf-8", errors="replace")
            for file in files
            if any(fnmatch(file.as_posix(), f"*/{path}*") for path in paths)
        )
        parts = [name.rpartition(".")[2] for name in names if name not in paths]
        lacking += [part for part in parts if paths and not re.search(rf"\b{part}\b", texts)]
    assert lacking == []


# --- what a page lists ------------------------------------------------------------------------


def tables_of(model: type[BaseModel], place: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """The fields of the settings and of their tables, by their places."""
    for name, field in model.model_fields.items():
        where = f"{place}{field.alias or name}"
        yield where, field
        for part in (field.annotation, *get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from tables_of(part, f"{where}.")


def test_every_setting_has_a_docstring_for_the_reference() -> None:
    assert [where for where, field in tables_of(Settings) if not field.description] == []


def test_every_path_of_the_settings_starts_at_their_folder() -> None:
    """For another one, see `_start_paths_at` and, if it is written, `_refuse_writes_outside`."""
    paths = {where for where, field in tables_of(Settings) if "Path" in str(field.annotation)}
    paths -= {where for where in paths if where.endswith(".written_in")}  # not written by people
    assert paths == {"traces", "rubrics", "endpoints.path", "memory.path", "memory.cache"}


def test_pages_have_every_stop_reason_and_count_the_rules() -> None:
    loop, traces = ((ROOT / "docs" / f"{name}.md").read_text() for name in ("loop", "traces"))
    assert [reason for reason in get_args(StopReason) if f"`{reason}`" not in loop] == []
    assert f"its {len(RULES)} rules" in traces


def test_every_server_is_known_to_the_test_of_their_homes() -> None:
    general = {"openai", "embedded", "scripted"}
    names = [name for name in get_args(BackendName) if not SERVER.search(name)]
    assert set(names) <= general
