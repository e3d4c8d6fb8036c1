"""What the README shows is tried: its pipeline runs, its settings load."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from demo import ROOT

from harness import RunResult, ScriptedBackend, Settings, load_settings
from harness.cli.project_files import load_pipeline
from harness.inference import ChatRequest
from harness.inference.endpoint import BackendName

README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(language: str, *, naming: str = "") -> str:
    blocks = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    return next(one for one in blocks if naming in one)


def test_its_pipeline_runs(tmp_path: Path) -> None:
    (tmp_path / "brief.py").write_text(block("python"))
    pipeline = load_pipeline(str(tmp_path / "brief.py"))

    def answer(request: ChatRequest) -> str:
        return '{"answer": ["What?", "Why?", "How?"]}' if request.role == "planner" else "Tea."

    result = asyncio.run(
        pipeline.run_async(
            {"task": "Brew tea.", "document": "# Tea\n\nSteep it for three minutes.\n"},
            settings=Settings(traces=tmp_path / "traces"),
            backends={"producer": ScriptedBackend(answer)},
        )
    )
    assert result.outputs["questions"] == ["What?", "Why?", "How?"]
    assert isinstance(result.result, str)


def test_what_else_it_shows_of_nodes_runs_and_goes_on(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n([^`]*release = Pipeline.*?)```", README, re.DOTALL)
    (tmp_path / "release.py").write_text(code)
    pipeline = load_pipeline(str(tmp_path / "release.py"))
    settings = Settings(traces=tmp_path / "traces")
    document = "# 1.1\n\nFaster.\n# 1.0\n\nFirst."

    def run(**options: Any) -> RunResult:
        inputs = {} if "resume" in options else {"document": document}
        backends = {"producer": ScriptedBackend(["Tea."] * 9)}
        return asyncio.run(
            pipeline.run_async(inputs, settings=settings, backends=backends, **options)
        )

    waiting = run()
    assert waiting.status == "waiting"
    assert waiting.outputs["summary"] == "Tea.\nTea."
    finished = run(resume=waiting.run_id, answers={"approved": "yes"})
    assert finished.result is True
    assert len(finished.reused) == 4  # chapters, two notes, summary


def test_what_it_stores_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(block("python", naming="MemoryStore"), {})  # it is meant to be copied
    assert "Formats: Keep the judge at 8 bits." in capsys.readouterr().out


def test_its_settings_load(tmp_path: Path) -> None:
    (tmp_path / "harness.toml").write_text(block("toml", naming="[roles]"))
    settings = load_settings(tmp_path / "harness.toml", environment={})
    assert settings.roles["evaluator"] in settings.endpoints


def test_each_of_its_tables_loads(tmp_path: Path) -> None:
    path = tmp_path / "harness.toml"
    for settings in re.findall(r"```toml\n(.*?)```", README, re.DOTALL):
        path.write_text(settings)
        assert load_settings(path, environment={}) != Settings(), settings


def test_the_example_of_every_endpoint_has_every_backend() -> None:
    settings = load_settings(ROOT / "examples" / "endpoints.toml", environment={})
    told = {endpoint.backend for endpoint in settings.endpoints.values()}
    assert told == set(get_args(BackendName)) - {"scripted"}


def test_its_variable_loads() -> None:
    value = re.search(r"HARNESS_ENDPOINTS='(.*?)'", README, re.DOTALL)
    assert value is not None
    settings = load_settings(environment={"HARNESS_ENDPOINTS": value[1]})
    assert settings.endpoints.keys() >= {"producer", "evaluator"}


def test_what_it_links_to_is_there() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert [link for link in links if not (ROOT / link).exists()] == []
