"""Tools of MCP servers: what a model sees of them, and what becomes of servers that misbehave."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import venv
from contextlib import contextmanager
from pathlib import Path

import pytest
from session_runs import fail, pipeline_of, refused, run, settings_of, spans_of
from test_agent import agent_run, asks, outcomes

from harness import AgentResult, Run, RunTrace, ScriptedBackend, Timeout, mcp
from harness.errors import McpServerFailed
from harness.session.mcp_tools import McpServers

SERVER = [sys.executable, str(Path(__file__).with_name("mcp_server.py"))]
CACHE = Path.home() / ".cache" / "harness-tests" / "mcp"


def is_running(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_server_is_started_once_in_a_run_sees_no_secret_and_ends_with_the_run(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789abcdef")

    async def one(run: Run) -> AgentResult:
        return await run.agent("producer", "Go.", tools=[mcp(SERVER, env={"A": "b"})])

    async def two(run: Run, one: AgentResult) -> AgentResult:
        return await run.agent("producer", "Go.", tools=[mcp(SERVER, env={"A": "b"})])

    script = [asks(("process", {}), ("env", {})), "Ok.", asks(("process", {})), "Ok."]
    ended = run(
        pipeline_of(one, two), settings_of(tmp_path), backends={"producer": ScriptedBackend(script)}
    )

    first, second = ended.outputs["one"].calls, ended.outputs["two"].calls
    assert first[0].text == second[0].text
    assert not is_running(int(first[0].text))
    assert set(first[1].text.split()) <= {
        *("A", "HOME", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TERM", "USER"),
    }
    assert len(spans_of(ended, "mcp start")) == 1


def test_what_a_server_answers_is_a_text_whatever_it_is(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("MY_TOKEN", "correct-horse-battery")
    wanted = [
        ("add", {"a": 1}),
        ("picture", {}),
        ("flood", {}),
        ("fail", {}),
        ("lie", {}),
        ("garbage", {}),
        ("die", {"what": "correct-horse-battery"}),
        ("odd_name", {}),
    ]
    script = [*map(asks, wanted), "Well."]

    async def answer(run: Run) -> AgentResult:
        return await run.agent("producer", "Go.", tools=[mcp(SERVER)])

    ended = run(
        pipeline_of(answer),
        settings_of(tmp_path, trace={"secrets": ["MY_TOKEN"]}),
        backends={"producer": ScriptedBackend(script)},
    )

    result = ended.outputs["answer"]
    assert [(one.outcome, one.text[:40]) for one in result.calls[:4]] == [
        ("ok", "2"),
        ("ok", "a dot:\n[image of type image/png is left "),
        ("ok", "x" * 40),
        ("failed", "Error: the disk is gone"),
    ]
    assert len(result.calls[2].text) < 10_200
    lie, garbage, dead, again = result.calls[4:]
    assert (lie.outcome, "did not answer 'lie' as it must" in lie.text) == ("failed", True)
    assert (garbage.outcome, garbage.text) == ("ok", "after it")
    assert (dead.outcome, "has ended" in dead.text) == ("failed", True)
    assert (again.outcome, again.text) == ("ok", '{"n":1}')
    assert capfd.readouterr().err == ""
    said = ended.files.journal.with_suffix(".mcp.log").read_text()
    assert "out of" in said
    assert "correct-horse-battery" not in said + dead.text
    assert len(spans_of(ended, "mcp start")) == 2


LINK = {"type": "resource_link", "uri": "file:///q3.pdf", "name": "q3.pdf", "description": "Q3."}


def test_a_value_beside_a_text_is_told_unless_the_text_says_it(tmp_path):
    rows = {"rows": [{"n": 1}]}
    results = {
        "Two pages read.": {"structuredContent": rows},
        '{"rows": [{"n": 1}]}': {"structuredContent": rows},
        "7": {"structuredContent": {"result": 7}},
        "seven": {"structuredContent": {"result": "seven"}},
        '{"n": 1}': {"structuredContent": {"result": '{"n": 1}'}},
        "no quota": {"structuredContent": {"retry_after": 30}, "isError": True},
    }
    wanted = [("value", {"result": texts(said) | more}) for said, more in results.items()]
    items = texts("1", "b") | {"structuredContent": {"result": [1, "b"]}}
    wanted += [("value", {"result": items}), ("value", {"result": {"content": [LINK]}})]

    _, result, _ = agent_run(tmp_path, [*map(asks, wanted), "Well."], [mcp(SERVER, only=["value"])])

    assert [call.text for call in result.calls] == [
        'Two pages read.\n{"rows":[{"n":1}]}',
        '{"rows": [{"n": 1}]}',
        "7",
        "seven",
        '{"n": 1}',
        'Error: no quota\n{"retry_after":30}',
        "1\nb",
        "[a link to file:///q3.pdf (q3.pdf: Q3.)]",
    ]


def texts(*said):
    return {"content": [{"type": "text", "text": text} for text in said]}


def test_a_tool_that_hangs_is_left_at_its_limit(tmp_path):
    tools = [mcp(SERVER, only=["hang"], prefix="test-", timeout_s=0.1)]

    _, result, model = agent_run(tmp_path, [asks(("test-hang", {})), "Well."], tools)

    assert outcomes(result) == [("test-hang", "timed out")]
    assert [one.name for one in model.requests[0].tools] == ["test-hang"]


def test_a_person_is_asked_by_the_arguments(tmp_path):
    asked = []

    async def no(question):
        asked.append(question.text)
        return "no"

    tools = [mcp(SERVER, only=["add"], approve=lambda given: given["a"] > 1)]
    script = [asks(("add", {"a": 1}), ("add", {"a": 2})), "Well."]
    _, result, _ = agent_run(tmp_path, script, tools, how={"asker": no})

    assert outcomes(result) == [("add", "ok"), ("add", "refused")]
    assert asked == ["May this be called? add(a=2)"]


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ([*SERVER, "noisy"], "no such licence"),
        ([*SERVER, "lying"], "inputSchema"),
        (["no-such-program-7f"], "No such file"),
    ],
    ids=["ends at once", "lies about its schema", "is not there"],
)
def test_a_server_that_cannot_be_used_fails_the_node_and_says_why(tmp_path, command, told):
    async def answer(run: Run) -> str:
        return (await run.agent("producer", "Go.", tools=[mcp(command)])).text

    error = fail(pipeline_of(answer), settings_of(tmp_path)).__cause__

    assert isinstance(error, McpServerFailed)
    assert (error.code, command[-1] in error.server) == ("mcp.failed", True)
    assert told in str(error)


def test_a_server_that_does_not_answer_is_ended(tmp_path):
    async def start(trace):
        servers = McpServers(trace, start_s=0.3)
        with pytest.raises(McpServerFailed, match="it took too long"):
            await servers.tools([mcp([*SERVER, "silent"])], timeout_s=None)
        await servers.aclose()

    with RunTrace(tmp_path, name="silent") as trace:
        asyncio.run(start(trace))


def test_a_run_does_not_wait_for_a_server_that_does_not_answer(tmp_path):
    async def answer(run: Run) -> str:
        return (await run.agent("producer", "Go.", tools=[mcp([*SERVER, "silent"])])).text

    error = fail(pipeline_of(answer, timeout=Timeout(total_s=0.3)), settings_of(tmp_path))
    assert error.__cause__.code == "node.timeout"


def test_a_mistake_in_naming_a_server_is_said_at_once(tmp_path):
    both = {"command": "uvx one", "url": "http://127.0.0.1:1"}
    for how in ({}, both, {"command": "uvx 'one"}):
        with refused("mcp.command-or-url"):
            mcp(**how)
    with refused("mcp.tool-unknown"):
        agent_run(tmp_path, [], [mcp(SERVER, only=["ad"])])


# --- real servers ---------------------------------------------------------------------------------


def from_pypi(name):
    """The program of a package, installed once into a folder of its own."""
    folder = CACHE / name
    if not (folder / "bin" / name).exists():
        venv.create(folder, with_pip=True, clear=True)
        _install([folder / "bin" / "pip", "install", "--quiet", name])
    return str(folder / "bin" / name)


def from_npm(name, program):
    folder = CACHE / program
    if shutil.which("npm") is None:
        pytest.skip("node is missing: there is no npm for the mcp server")
    if not (folder / "node_modules" / ".bin" / program).exists():
        _install(["npm", "install", "--no-audit", "--no-fund", "--prefix", folder, name])
    return str(folder / "node_modules" / ".bin" / program)


def _install(command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        pytest.skip(f"an mcp server cannot be installed: {done.stderr.strip()[-200:]}")


@pytest.mark.slow
def test_the_reference_server_of_times(tmp_path):
    script = [
        asks(("get_current_time", {"timezone": "Europe/Warsaw"})),
        asks(("get_current_time", {"timezone": "Nowhere"})),
        "It is late.",
    ]

    _, result, _ = agent_run(tmp_path, script, [mcp(from_pypi("mcp-server-time"))])

    assert outcomes(result) == [("get_current_time", "ok"), ("get_current_time", "failed")]
    assert "Europe/Warsaw" in result.calls[0].text


@pytest.mark.slow
def test_the_reference_server_of_everything(tmp_path):
    program = from_npm("@modelcontextprotocol/server-everything", "mcp-server-everything")
    wanted = [("echo", {"message": "tea"}), ("get-tiny-image", {}), ("echo", {})]

    _, result, _ = agent_run(tmp_path, [*map(asks, wanted), "Ok."], [mcp([program, "stdio"])])

    assert [one.outcome for one in result.calls] == ["ok", "ok", "failed"]
    assert "tea" in result.calls[0].text
    assert [image.media_type for image in result.calls[1].images] == ["image/png"]


HTTP = """
import sys
from mcp.server import MCPServer
server = MCPServer("test", log_level="ERROR")
@server.tool()
def add(a: int, b: int) -> int:
    return a + b
server.run("streamable-http", port=int(sys.argv[1]))
"""


@contextmanager
def http_server():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with subprocess.Popen([sys.executable, "-c", HTTP, str(port)]) as process:
        try:
            for _ in range(300):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                assert process.poll() is None
                asyncio.run(asyncio.sleep(0.1))
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.terminate()


@pytest.mark.slow
def test_a_server_at_an_address(tmp_path):
    with http_server() as url:
        script = [asks(("add", {"a": 1, "b": 2}), ("add", {"a": "x"})), "Three."]
        _, result, _ = agent_run(tmp_path, script, [mcp(url=url)])
    assert [one.outcome for one in result.calls] == ["ok", "failed"]
    assert result.calls[0].text == "3"


def test_an_address_where_no_server_is_fails_the_node(tmp_path):
    with refused("mcp.failed"):
        agent_run(tmp_path, [], [mcp(url="http://127.0.0.1:9/mcp")])
