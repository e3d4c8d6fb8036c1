"""Recordings of real models, the plugin that makes them, and what a stale one says."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from servers.emulated import TEXT
from servers.openai_dialects import DIALECTS
from servers.openai_server import MODEL, OpenAIServer

from harness import Pipeline, Run
from harness.recording import Recording
from harness.testing import ScriptMismatch, run_pipeline, run_pipeline_async

ANSWER = "".join(TEXT)

twice = Pipeline("twice")


@twice.node
def cities() -> list[str]:
    return ["Kraków", "Łódź"]


@twice.node(each={"city": "cities"}, models=["producer"])
async def notes(run: Run, city: str, word: str) -> str:
    return await run.chat("producer", f"{word} {city}.\nNo more.", temperature=0.5)


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """The path of a recording of the pipeline, made against a server over HTTP."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "recordings" / "twice.jsonl"

    async def record():
        async with OpenAIServer(dialect=DIALECTS["vllm"]) as server:
            endpoint = {"url": server.url, "backend": "vllm", "model_id": MODEL}
            monkeypatch.setenv("HARNESS_ENDPOINTS", json.dumps({"writer": endpoint}))
            return await run_pipeline_async(twice, Recording(path, record=True), word="Tell me of")

    result = asyncio.run(record())
    monkeypatch.delenv("HARNESS_ENDPOINTS")
    assert result.outputs["notes"] == [ANSWER.strip()] * 2
    return path


def test_what_was_recorded_is_given_again_without_a_model(recorded) -> None:
    result = run_pipeline(twice, Recording(recorded), word="Tell me of")

    assert result.outputs["notes"] == [ANSWER.strip()] * 2
    assert result.spent.calls == 2
    assert result.spent.output_tokens > 0
    head, *lines = map(json.loads, recorded.read_bytes().splitlines())
    assert head["models"] == ["writer"]
    assert [(one["node"], one["served_by"]) for one in lines] == [
        ("notes[0]", MODEL),
        ("notes[1]", MODEL),
    ]
    assert "temperature = 0.5" in lines[0]["asked"]


def test_an_endpoint_that_bears_the_name_of_anothers_role_does_not_play_it(recorded) -> None:
    head, *replies = recorded.read_text().splitlines(keepends=True)
    said = {"roles": {"producer": "writer"}, "models": ["producer", "writer"]}
    recorded.write_text("".join([json.dumps({**json.loads(head), **said}), "\n", *replies]))

    result = run_pipeline(twice, Recording(recorded), word="Tell me of")
    assert [one.name for one in result.models] == ["writer"]


def test_a_call_that_was_not_recorded_shows_what_changed_and_how_to_record(recorded) -> None:
    with pytest.raises(ScriptMismatch) as caught:
        run_pipeline(twice, Recording(recorded), word="Tell us of")
    assert caught.value.code == "script.not-recorded"
    said = str(caught.value)
    assert "-Tell me of Kraków." in said
    assert "+Tell us of Kraków." in said
    assert "--harness-record" in said

    again = Recording(recorded)
    run_pipeline(twice, again, word="Tell me of")
    with pytest.raises(ScriptMismatch, match="was recorded 1 times"):
        run_pipeline(twice, again, word="Tell me of")

    with pytest.raises(ScriptMismatch) as caught:
        run_pipeline(twice, Recording(recorded.with_name("other.jsonl")), word="Tell me of")
    assert caught.value.code == "script.no-recording"

    head = '{"roles": {}, "models": []}'
    for text in ('{"roles": {}', "", "1", head.replace("{}", "[]"), f'{head}\n{{"role": "x"}}'):
        recorded.write_text(text)
        with pytest.raises(ScriptMismatch, match="is no recording"):
            run_pipeline(twice, Recording(recorded), word="Tell me of")


def test_no_secret_is_recorded_and_the_recording_run_hears_what_the_others_will(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SOME_API_KEY", ANSWER.split()[0] + "-hidden")
    secret = Pipeline("secret")

    @secret.node
    async def text(run: Run) -> str:
        return await run.chat("producer", f"Say {os.environ['SOME_API_KEY']}.")

    async def record():
        async with OpenAIServer(dialect=DIALECTS["vllm"]) as server:
            endpoint = {"url": server.url, "backend": "vllm", "model_id": MODEL}
            monkeypatch.setenv("HARNESS_ENDPOINTS", json.dumps({"writer": endpoint}))
            await run_pipeline_async(secret, Recording("one.jsonl", record=True))

    asyncio.run(record())
    assert os.environ["SOME_API_KEY"] not in Path("one.jsonl").read_text()
    run_pipeline(secret, Recording("one.jsonl"))


# --- the plugin -----------------------------------------------------------------------------------

TESTS = """\
import json
import sys

from harness import Pipeline, Run
from harness.testing import Script

ask = Pipeline("ask")


@ask.node
async def text(run: Run) -> str:
    return await run.chat("producer", "Say something.")


def test_scripted(harness_run, tmp_path):
    result = harness_run(ask, Script({"producer": ["Fine."]}))
    assert result.outputs["text"] == "Fine."
    assert result.files.perfetto_trace.is_relative_to(tmp_path)


def test_recorded(harness_run, harness_recording):
    assert harness_run(ask, harness_recording).outputs["text"]
"""


def pytest_says(pytester: pytest.Pytester, *words: str) -> str:
    """With the plugin as an installed package brings it."""
    done = pytester.runpytest_inprocess("-p", "harness.pytest_plugin", "-q", *words)
    return str(done.stdout)


def test_the_plugin_runs_scripts_records_where_it_is_told_to_and_shows_what_failed(
    pytester, monkeypatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(test_ask=TESTS)

    async def record():
        async with OpenAIServer(dialect=DIALECTS["vllm"]) as server:
            endpoint = {"url": server.url, "backend": "vllm", "model_id": MODEL}
            monkeypatch.setenv("HARNESS_ENDPOINTS", json.dumps({"producer": endpoint}))
            return await asyncio.to_thread(pytest_says, pytester, "--harness-record")

    assert "2 passed" in asyncio.run(record())
    monkeypatch.delenv("HARNESS_ENDPOINTS")
    assert (pytester.path / "recordings" / "test_ask.test_recorded.jsonl").is_file()
    fails = TESTS.partition("def test_recorded")[0].replace('"Fine."', "KeyError('x')")
    pytester.makepyfile(test_fails=fails)

    said = pytest_says(pytester)

    assert "1 failed, 2 passed" in said
    # A failed node is shown without the frames of harness.
    assert "NodeFailed: node 'text' failed" in said
    assert "KeyError('x')" in said
    assert "result = harness_run(ask" in said
    assert "pipeline_run.py" not in said


def test_each_test_has_a_recording_of_its_own(pytester, monkeypatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(
        test_a="""
        import pytest
        @pytest.mark.parametrize("language", ["C", "C++", "C#", "C-", "-C"])
        def test_it(harness_recording, language): print(harness_recording._path.name)
        class TestTea:
            def test_it(self, harness_recording): print(harness_recording._path.name)
        class TestMilk(TestTea): pass
        """
    )

    files = re.findall(r"test_a\S+jsonl", pytest_says(pytester, "-s"))

    assert len(set(files)) == len(files) == 7
    assert {"test_a.test_it-C.jsonl", "test_a.TestTea-test_it.jsonl"} < set(files)
    older = pytester.mkdir("recordings") / "test_a.test_it.jsonl"
    older.touch()
    assert re.findall(r"test_a\S+jsonl", pytest_says(pytester, "-s", "-k", "Tea")) == [older.name]
    # Recorded into it, one test's replies would be those of all three.
    monkeypatch.setenv("HARNESS_RECORD", "1")
    assert older.name not in pytest_says(pytester, "-s")


def test_the_plugin_costs_a_project_without_pipelines_nothing() -> None:
    program = (
        "import sys, harness.pytest_plugin\n"
        "print([name for name in sys.modules if name.startswith('harness.')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "['harness.pytest_plugin']"
