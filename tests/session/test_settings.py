"""Settings come from harness.toml and HARNESS_ENDPOINTS, and every mistake names its place."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from session_runs import refused
from structlog.testing import capture_logs

from harness import chat
from harness.errors import ConfigurationInvalid
from harness.inference import Endpoint, Limits
from harness.session import Settings, load_settings
from harness.session.roles import cast_roles

FULL = """\
traces = "runs"

[roles]
producer = "qwen"
evaluator = "llama"

[endpoints.qwen]
url = "http://127.0.0.1:11434/v1"
model_id = "qwen2.5:7b"
backend = "ollama"

[endpoints."llama-3.1"]
path = "models/llama.gguf"
context_tokens = 8192

[endpoints.nobody]
path = "~nobody-has-this-name/m.gguf"

[endpoints.llama]
url = "http://127.0.0.1:8000/v1"
backend = "vllm"
api_key_env = "VLLM_KEY"

[budget]
capacity = "6 GiB"

[limits]
max_tokens = 5000
max_seconds = 90.5

[trace]
content = "hash"
durability = "sync"

[memory]
path = "memory"
embedder = "e5"
language = "german"
merge = false
"""


def read(tmp_path, text, **more):
    path = tmp_path / "harness.toml"
    path.write_text(text)
    return load_settings(path, environment={}, **more)


def test_a_whole_file_is_read(tmp_path):
    settings = read(tmp_path, FULL)
    assert settings.roles == {"producer": "qwen", "evaluator": "llama"}
    assert settings.endpoints["qwen"].model_id == "qwen2.5:7b"
    assert settings.endpoints["llama"].model_id == "llama", "the tag, when nothing else is said"
    assert settings.budget.capacity_bytes == 6 * 2**30
    assert settings.limits.limits == Limits(max_tokens=5000, max_seconds=90.5)
    assert (settings.trace.content, settings.trace.durability) == ("hash", "sync")
    memory = settings.memory
    assert (memory.embedder, memory.language, memory.merge) == ("e5", "german", False)
    # Relative paths start at the file.
    assert (memory.path, settings.traces) == (tmp_path / "memory", tmp_path / "runs")
    embedded = settings.endpoints["llama-3.1"]
    assert (embedded.backend, embedded.path) == ("embedded", tmp_path / "models/llama.gguf")
    # The home of nobody is a name like any other.
    assert settings.endpoints["nobody"].path == tmp_path / "~nobody-has-this-name/m.gguf"
    given = read(tmp_path, FULL, memory=Path("b"))
    assert given.memory == memory.model_copy(update={"path": Path("b"), "written_in": None})


def test_a_file_that_begins_with_a_byte_order_mark_is_read(tmp_path):
    assert read(tmp_path, "\ufeff" + FULL) == read(tmp_path, FULL)


def test_without_a_file_the_defaults_hold(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_settings(environment={}) == Settings()


def test_the_environment_goes_before_the_file_and_arguments_before_both(tmp_path):
    path = tmp_path / "harness.toml"
    path.write_text(FULL)
    given = {"qwen": {"url": "http://127.0.0.1:1/v1", "model_id": "other", "backend": "vllm"}}
    environment = {"HARNESS_ENDPOINTS": json.dumps(given)}
    settings = load_settings(path, environment=environment, roles={"evaluator": "llama-3.1"})
    assert settings.endpoints["qwen"].model_id == "other"
    assert settings.endpoints["llama"].backend == "vllm", "the others stay"
    assert settings.roles == {"producer": "qwen", "evaluator": "llama-3.1"}


def test_endpoints_given_in_python_take_their_keys_as_tags():
    settings = Settings.model_validate({"endpoints": {"m": {"url": "http://h/v1"}}})
    assert settings.endpoints["m"] == Endpoint(tag="m", url="http://h/v1")
    with pytest.raises(ValueError, match="under 'fast' has the tag 'm'"):
        Settings(endpoints={"fast": settings.endpoints["m"]})


URL = "[endpoints.a]\nurl = 'http://h/v1'\n"
UNKNOWN = {
    "[role]\nproducer = 'x'\n": (1, "'roles'"),
    URL + "model = 'x'\n": (3, "'model_id'"),
    "[budget.devices.gpu0]\ncapacty = 1\n": (2, "'capacity'"),
    "[evaluation]\npanl = 'mean'\n": (2, "'panel'"),
}


@pytest.mark.parametrize("text", UNKNOWN)
def test_a_setting_that_is_none_has_the_nearest_beside_it(tmp_path, text):
    line, near = UNKNOWN[text]
    with refused("config.unknown-setting") as caught:
        read(tmp_path, text)
    assert (caught.value.path, caught.value.line) == (tmp_path / "harness.toml", line)
    assert f"did you mean {near}" in str(caught.value)


@pytest.mark.parametrize("name", Settings.model_fields)
@pytest.mark.parametrize("table", ["endpoints.a", "evaluation", "budget.devices.gpu0"])
def test_a_setting_of_the_whole_file_below_a_table_is_sent_where_it_belongs(tmp_path, table, name):
    is_table = name not in {"traces", "rubrics", "cache", "seed"}
    with refused("config.unknown-setting") as caught:
        read(tmp_path, f"{URL}[{table}]\n{name} = 1\n".replace(f"{URL}[endpoints.a]\n", URL))
    assert (f"[{name}]" if is_table else "above the first [table]") in str(caught.value)


@pytest.mark.parametrize("table", ["roles", "endpoints"])
def test_among_names_that_people_choose_it_is_found_by_its_value(tmp_path, table):
    def cast(settings):
        cast_roles(settings.endpoints, settings)

    with pytest.raises(ConfigurationInvalid, match=r"above the first \[table\]"):
        cast(read(tmp_path, f"{URL}[{table}]\ntraces = 'runs'\n"))


RESERVE = "[budget.devices.gpu0]\ncapacity = '1 GiB'\nreserve = '1 GiB'\n"
INVALID = {
    "[endpoints.a]\nurl = 'h:8000'\n": (1, "http"),
    "[endpoints.a]\nbackend = 'vllm'\n": (1, "'url'"),
    "\n[endpoints.a]\nurl = 'http://h'\nbackend = 'vlm'\n": (4, "did you mean 'vllm'"),
    "[budget]\ncapacity = 'lots'\n": (2, "8 GiB"),
    "[budget]\n[budget.devices.machine]\ncapacity = '1 GiB'\n": (1, "[budget]"),
    RESERVE: (1, "nothing"),
    "[limits]\n\nmax_cost_usd = inf\n": (3, "finite number"),
    "[roles]\nevaluator = [1]\n": (2, "roles.evaluator"),
    "[separation]\nsame_family = 'maybe'\n": (2, "allow, refuse"),
    "[endpoints.a]\npath = 'm.gguf'\ndevice = 'gpux'\n": (3, "'auto'"),
    "[endpoints.a]\nurl = 'http://h'\n\ndevice = ['gpu0', 'gpu1']\n": (4, "loads from a file"),
    "[endpoints.a]\npath = 'm.gguf'\ngpu_layers = 9\ndevice = ['gpu0', 'gpu1']\n": (
        4,
        "leave out 'gpu_layers'",
    ),
    "[endpoints.a]\npath = 'm.gguf'\ndevice = {gpu0 = 1, gpu1 = 0}\n": (3, "greater than 0"),
}


@pytest.mark.parametrize("text", INVALID)
def test_a_value_that_is_none_names_its_line_and_what_is_allowed(tmp_path, text):
    line, allowed = INVALID[text]
    with pytest.raises(ConfigurationInvalid) as caught:
        read(tmp_path, text)
    assert caught.value.code.split(".")[0] in {"config", "endpoint"}
    assert (caught.value.path, caught.value.line) == (tmp_path / "harness.toml", line)
    assert allowed in str(caught.value)


@pytest.mark.parametrize(
    "line",
    ['traces = "../x"', '[memory]\npath = "../x"', '[memory]\npath = "in"\ncache = "/tmp/x"'],
)
def test_settings_of_others_write_into_their_own_folder_only(tmp_path, line):
    project = tmp_path / "cloned"
    project.mkdir()
    file = project / "harness.toml"
    file.write_text(line)
    with refused("trust.path-not-allowed") as caught:
        load_settings(file, environment={})
    assert str(caught.value).endswith(f" HARNESS_TRUST={project}")
    assert load_settings(file, environment={"HARNESS_TRUST": str(project)})


def test_settings_in_a_parent_folder_are_not_read_and_the_user_is_told(tmp_path, monkeypatch):
    (tmp_path / "harness.toml").write_text('traces = "theirs"')
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    with capture_logs() as logs:
        settings = load_settings(environment={})
    assert settings.traces == Path("traces")
    assert [one["code"] for one in logs] == ["config.in-parent"]
    assert str(tmp_path / "harness.toml") in logs[0]["event"]


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")  # nobody writes to it
    assert load_settings(tmp_path / "pipe.toml", environment={}) == Settings()
    with refused("config.not-toml") as caught:
        read(tmp_path, "\na = \n")
    assert caught.value.line == 2
    for text in ('traces = "a\\u0000"', '[memory]\npath = "a\\u0000"', "[memory]\npath = 3"):
        with refused("config.setting-invalid") as caught:
            read(tmp_path, text)
        assert caught.value.line == 1 + text.count("\n")
    with refused("config.file-missing"):
        load_settings(tmp_path / "other.toml", environment={})
    (tmp_path / "harness.toml").write_bytes(b"\xff")
    with refused("config.file-unreadable"):
        load_settings(tmp_path / "harness.toml", environment={})


VARIABLE = {
    "{": "config.not-json",
    "[]": "config.setting-invalid",
    '{"a": 1}': "config.setting-invalid",
    '{"a": {"urll": "http://h"}}': "config.unknown-setting",
    r'{"a": {"path": "a\u0000b"}}': "config.setting-invalid",
}


@pytest.mark.parametrize(("value", "code"), VARIABLE.items())
def test_a_mistake_in_the_variable_names_the_variable_and_its_form(value, code):
    with refused(code) as caught:
        load_settings(environment={"HARNESS_ENDPOINTS": value})
    assert str(caught.value).startswith("HARNESS_ENDPOINTS")
    assert '"model_id"' in str(caught.value)


def test_all_mistakes_of_a_file_are_said_at_once_in_its_order(tmp_path):
    path = tmp_path / "harness.toml"
    path.write_text('[trace]\nsample_ms = "often"\n\n[limits]\nmax_cals = 3\n\n[budgett]\n')
    with pytest.raises(ConfigurationInvalid) as caught:
        load_settings(path, environment={})
    assert caught.value.line == 2
    places = [line.split(": ")[0] for line in str(caught.value).splitlines()]
    assert places == [f"{path}:2", f"{path}:5", f"{path}:7"]


def test_what_is_no_settings_is_refused_by_name():
    with pytest.raises(ConfigurationInvalid) as caught:
        asyncio.run(chat("m", "Hello.", settings="x"))
    assert caught.value.code == "config.not-settings"


def test_a_model_that_is_named_with_its_provider_needs_no_settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    roles = {"producer": "openai/gpt-4o", "evaluator": "ollama/qwen3:8b", "critic": "judge/x"}
    endpoints = load_settings(environment={}, roles=roles).endpoints
    assert {one.tag: (one.backend, one.model_id, one.url) for one in endpoints.values()} == {
        "openai/gpt-4o": ("litellm", "openai/gpt-4o", None),
        "ollama/qwen3:8b": ("ollama", "qwen3:8b", "http://127.0.0.1:11434"),
    }

    Path("harness.toml").write_text('[endpoints."openai/gpt-4o"]\nurl = "http://127.0.0.1:1/v1"\n')
    with capture_logs() as warned:
        settings = load_settings(environment={}, roles={"producer": "openai/gpt-4o"})
    (own,) = settings.endpoints.values()
    assert (own.backend, own.url) == ("openai", "http://127.0.0.1:1/v1")
    assert [one["code"] for one in warned] == ["roles.tag-first"]
