"""What the README shows is tried: its pipeline runs, its settings load."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import get_args

import pytest
from demo import ROOT

from harness import ScriptedBackend, Settings, load_settings
from harness.cli.pipeline_file import load_pipeline
from harness.inference import ChatRequest
from harness.inference.endpoint import BackendName

README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert found is not None
    return found[1]


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


def test_its_settings_load(tmp_path: Path) -> None:
    (tmp_path / "harness.toml").write_text(block("toml"))
    settings = load_settings(tmp_path / "harness.toml", environment={})
    assert settings.roles["evaluator"] in settings.endpoints


@pytest.mark.parametrize("settings", re.findall(r"```toml\n(.*?)```", README, re.DOTALL))
def test_each_of_its_tables_loads(tmp_path: Path, settings: str) -> None:
    (tmp_path / "harness.toml").write_text(settings)
    assert load_settings(tmp_path / "harness.toml", environment={}) != Settings()


def test_the_example_of_every_endpoint_has_every_backend() -> None:
    settings = load_settings(ROOT / "examples" / "endpoints.toml", environment={})
    told = {endpoint.backend for endpoint in settings.endpoints.values()}
    assert told == set(get_args(BackendName)) - {"scripted"}


def test_its_variable_loads() -> None:
    value = re.search(r"HARNESS_ENDPOINTS='(.*?)'", README, re.DOTALL)
    assert value is not None
    settings = load_settings(environment={"HARNESS_ENDPOINTS": value[1]})
    assert settings.endpoints.keys() >= {"producer", "evaluator"}


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)#:]+)\)", README))
def test_what_it_links_to_is_there(link: str) -> None:
    assert (ROOT / link).exists()
