"""Settings come from harness.toml and HARNESS_ENDPOINTS, and every mistake names its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.errors import ConfigurationInvalid
from harness.session import Settings, load_settings
from harness.wiggum import Limits

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

[endpoints.llama]
url = "http://127.0.0.1:8000/v1"
backend = "vllm"
api_key_env = "VLLM_KEY"

[budget]
capacity = "6 GiB"

[memory]
path = "memory"
"""


def read(tmp_path: Path, text: str) -> Settings:
    path = tmp_path / "harness.toml"
    path.write_text(text)
    return load_settings(path, environment={})


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    settings = read(tmp_path, FULL)
    assert settings.roles == {"producer": "qwen", "evaluator": "llama"}
    assert settings.endpoints["qwen"].model_id == "qwen2.5:7b"
    assert settings.endpoints["llama"].model_id == "llama", "the tag, when nothing else is said"
    assert settings.budget.capacity_bytes == 6 * 2**30
    assert settings.memory.path == tmp_path / "memory"
    assert settings.traces == tmp_path / "runs"


def test_memory_is_described_by_its_table_and_a_given_directory_goes_before_its_path(
    tmp_path: Path,
) -> None:
    text = '[memory]\npath = "a"\nembedder = "e5"\nlanguage = "german"\nmerge = false\n'
    settings = read(tmp_path, text)
    memory = settings.memory
    assert (memory.embedder, memory.language, memory.merge) == ("e5", "german", False)
    assert Settings().memory.embedder == "wordllama"
    given = load_settings(tmp_path / "harness.toml", environment={}, memory=Path("b"))
    assert given.memory == memory.model_copy(update={"path": Path("b")})


def test_limits_are_those_of_a_run(tmp_path: Path) -> None:
    settings = read(tmp_path, "[limits]\nmax_tokens = 5000\nmax_seconds = 90.5\n")
    assert settings.limits.limits == Limits(max_tokens=5000, max_seconds=90.5)


def test_the_home_of_nobody_is_a_name_like_any_other(tmp_path: Path) -> None:
    settings = read(tmp_path, '[endpoints.a]\npath = "~nobody-has-this-name/m.gguf"\n')
    assert settings.endpoints["a"].path == tmp_path / "~nobody-has-this-name/m.gguf"


def test_relative_paths_start_at_the_settings_file(tmp_path: Path) -> None:
    embedded = read(tmp_path, FULL).endpoints["llama-3.1"]
    assert embedded.backend == "embedded"
    assert embedded.path == tmp_path / "models/llama.gguf"


def test_without_a_file_the_defaults_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_settings(environment={}) == Settings()


def test_the_environment_goes_before_the_file_and_arguments_before_both(tmp_path: Path) -> None:
    path = tmp_path / "harness.toml"
    path.write_text(FULL)
    given = {"qwen": {"url": "http://127.0.0.1:1/v1", "model_id": "other", "backend": "vllm"}}
    settings = load_settings(
        path,
        environment={"HARNESS_ENDPOINTS": json.dumps(given)},
        roles={"evaluator": "llama-3.1"},
    )
    assert settings.endpoints["qwen"].model_id == "other"
    assert settings.endpoints["llama"].backend == "vllm", "the others stay"
    assert settings.roles == {"producer": "qwen", "evaluator": "llama-3.1"}


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        pytest.param("[role]\nproducer = 'x'\n", 1, "did you mean 'roles'", id="unknown table"),
        pytest.param(
            "[endpoints.a]\nurl = 'http://h/v1'\nmodel = 'x'\n",
            3,
            "did you mean 'model_id'",
            id="unknown field of an endpoint",
        ),
        pytest.param(
            "[endpoints.a]\nurl = 'h:8000'\n", 1, "must start with http", id="url without scheme"
        ),
        pytest.param(
            "[endpoints.a]\nbackend = 'vllm'\n", 1, "needs 'url'", id="server without url"
        ),
        pytest.param(
            "\n[endpoints.a]\nurl = 'http://h'\nbackend = 'vlm'\n", 4, "'vllm'", id="backend"
        ),
        pytest.param("[budget]\ncapacity = 'lots'\n", 2, "8 GiB", id="size"),
        pytest.param(
            "[budget]\n[budget.devices.machine]\ncapacity = '1 GiB'\n",
            1,
            "under [budget] itself",
            id="the machine among the devices",
        ),
        pytest.param(
            "[budget.devices.gpu0]\ncapacity = '1 GiB'\nreserve = '1 GiB'\n",
            1,
            "leaves nothing",
            id="a reserve of everything",
        ),
        pytest.param("[limits]\nmax_calls = 0\n", 2, "greater than 0", id="a limit of nothing"),
        pytest.param("[limits]\n\nmax_cost_usd = nan\n", 3, "greater than 0", id="no number"),
        pytest.param(
            "[limits]\nmax_token = 9\n", 2, "did you mean 'max_tokens'", id="unknown limit"
        ),
        pytest.param(
            "[memory]\npath = 'm'\nembeder = 'x'\n", 3, "did you mean 'embedder'", id="of memory"
        ),
        pytest.param("[memory]\ndevice = 'tpu'\n", 2, "'cuda'", id="device"),
        pytest.param("a = \n", 1, "not TOML", id="not toml"),
        pytest.param("[roles]\nx = 3\n", 2, "string", id="type"),
    ],
)
def test_a_mistake_names_its_line_and_what_is_allowed(
    tmp_path: Path, text: str, line: int, said: str
) -> None:
    with pytest.raises(ConfigurationInvalid) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path / 'harness.toml'}:{line}: ")
    assert said in str(caught.value)


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationInvalid, match="there is no such file"):
        load_settings(tmp_path / "other.toml", environment={})


@pytest.mark.parametrize(
    "value",
    ["{", "[]", '{"a": 1}', '{"a": {"url": "x"}}', '{"a": {"urll": "http://h"}}'],
)
def test_a_mistake_in_the_variable_names_the_variable_and_its_form(value: str) -> None:
    with pytest.raises(ConfigurationInvalid, match="HARNESS_ENDPOINTS") as caught:
        load_settings(environment={"HARNESS_ENDPOINTS": value})
    assert '"model_id"' in str(caught.value)
