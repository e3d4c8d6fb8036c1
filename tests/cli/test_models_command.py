"""`harness models` as a person meets it: tables or JSON, and exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from servers.ollama_residency import GIB, Pulled, ResidentOllama

from harness.session.demo_model import demo_endpoint

COMMAND = Path(sys.executable).with_name("harness")
ROOT = Path(__file__).parents[2]
NOBODY = "http://127.0.0.1:9"
"""At the discard port nothing listens."""

found = demo_endpoint()
assert found is not None, "the demo's model is installed for tests"
SMALL = {"path": str(found.path), "context_tokens": 1024, "slots": 1}
WIDE = {"path": str(found.path), "context_tokens": 2048, "slots": 2}
JUDGE = {
    "backend": "ollama",
    "url": NOBODY,
    "model_id": "qwen2.5:3b-instruct-q4_K_M",
    "manage": True,
    "need": "200 MiB",
}


@dataclass(frozen=True)
class Done:
    """What the command did."""

    returncode: int
    stdout: str
    stderr: str


async def start(
    *arguments: str, cwd: Path, endpoints: Mapping[str, Any], stderr: int = PIPE, **environment: str
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        COMMAND,
        "models",
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


async def models(
    *arguments: str, cwd: Path, endpoints: Mapping[str, Any] | None = None, **environment: str
) -> Done:
    return await end(await start(*arguments, cwd=cwd, endpoints=endpoints or {}, **environment))


def done(
    *arguments: str, cwd: Path, endpoints: Mapping[str, Any] | None = None, **how: str
) -> Done:
    return asyncio.run(models(*arguments, cwd=cwd, endpoints=endpoints, **how))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with the example and a budget that has no room for two models."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "harness.toml").write_text('[budget]\ncapacity = "300 MiB"\n')
    return tmp_path


def cells(table: str) -> dict[str, list[str]]:
    """The rows of a table by their title."""
    rows = (line.strip("│┃").split("│") for line in table.splitlines() if line[:1] in "│┃")
    return {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows}


# --- plan -----------------------------------------------------------------------------------------


def test_the_plan_of_the_example_is_a_table_and_what_is_to_be_said_of_it(project: Path) -> None:
    endpoints = {"small": SMALL, "judge": JUDGE}
    roles = ("--role", "producer=small", "--role", "evaluator=judge")

    plan = done("plan", "examples/brief.py", *roles, cwd=project, endpoints=endpoints)

    assert (plan.returncode, plan.stderr) == (0, "")
    rows = cells(plan.stdout)
    assert rows["roles"] == ["planner, producer", "evaluator"]
    assert rows["quantisation"] == ["Q4_1", "Q4_K_M"]
    assert rows["weights"] == ["92.1 MiB", "-"]
    assert rows["KV cache"] == ["22.5 MiB", "-"]
    assert rows["takes in all"] == ["120.7 MiB on machine", "200.0 MiB on machine"]
    assert rows["fits"] == ["whole, alone", "whole, alone"]
    assert rows["loads"] == ["3", "3"]
    assert rows["one load, s"] == ["0.1 (guess)", "0.2 (guess)"]
    assert "machine: 300.0 MiB; all of these models together take 320.7 MiB" in plan.stdout
    assert "predicted: 6 loads, 1.0 s of loading (guessed from sizes" in plan.stdout
    assert "every mapped node to have 4 items" in plan.stdout
    assert "warning: evaluator 'judge' is quantised to Q4_K_M" in plan.stdout
    assert "warning: node 'text' goes back and forth" in plan.stdout
    assert sorted(path.name for path in project.iterdir()) == ["examples", "harness.toml"]


def test_a_narrow_terminal_has_the_models_below_each_other(project: Path) -> None:
    endpoints = {"producer": SMALL, "planner": WIDE}

    plan = done("plan", "examples/brief.py", cwd=project, endpoints=endpoints, COLUMNS="50")

    tables = [line for line in plan.stdout.splitlines() if line.startswith("┃")]
    assert [line.split("┃")[2].strip() for line in tables] == ["planner", "producer"]
    assert max(len(line) for line in plan.stdout.splitlines() if line[:1] in "│┃") <= 50


def test_the_plan_as_json_has_all_of_it(project: Path) -> None:
    endpoints = {"producer": {**SMALL, "pin": True, "priority": 3}, "spare": JUDGE}

    plan = done(
        *("plan", "examples/brief.py", "--items", "7", "--json"),
        *("--role", "evaluator=spare"),
        cwd=project,
        endpoints=endpoints,
    )

    said = json.loads(plan.stdout)
    assert plan.returncode == 2, plan.stderr  # beside what is pinned there is no room for the judge
    assert set(said) == {
        "pipeline",
        "items",
        "devices",
        "models",
        "unused",
        "loads",
        "load_s",
        "notes",
        "warnings",
        "refusals",
    }
    assert (said["pipeline"], said["items"], said["loads"]) == ("brief", 7, None)
    assert said["devices"] == [
        {
            "name": "machine",
            "capacity_bytes": 300 << 20,
            "reserve_bytes": 0,
            "wanted_bytes": sum(sum(model["need"].values()) for model in said["models"]),
        }
    ]
    producer, judge = said["models"]
    assert (producer["tag"], producer["roles"]) == ("producer", ["planner", "producer"])
    assert (producer["pin"], producer["priority"], producer["fit"]) == (True, 3, "whole")
    assert producer["footprint"].pop("kv_is_exact") is True
    assert sum(producer["footprint"].values()) == producer["need"]["machine"]
    assert producer["load_time"]["source"] == "guess"
    assert (judge["fit"], judge["footprint"], judge["is_managed"]) == ("never", None, True)
    (refusal,) = said["refusals"]
    assert "'spare' needs 200.0 MiB" in refusal
    assert "of pinned 'producer'" in refusal


def test_what_can_never_fit_is_refused_with_the_table_and_the_sum(project: Path) -> None:
    huge = {**JUDGE, "need": "1 GiB"}

    plan = done(
        "plan", "examples/brief.py", cwd=project, endpoints={"producer": SMALL, "planner": huge}
    )

    assert plan.returncode == 2
    assert cells(plan.stdout)["fits"] == ["never", "whole, alone"]
    assert (
        "refused: model 'planner' needs 1.0 GiB and the whole budget of 'machine' is 300.0 MiB"
        in plan.stdout
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["nowhere.py"], "there is no file 'nowhere.py'", id="no file"),
        pytest.param(["examples/brief.py", "--role", "producer"], "role=tag", id="no pair"),
        pytest.param(["examples/brief.py", "--role", "producer=x"], "'x'", id="no endpoint"),
        pytest.param(["examples/brief.py", "--config", "x.toml"], "no such file", id="no settings"),
        pytest.param(["examples/brief.py", "--items", "0"], "1<=x<=100", id="no items"),
    ],
)
def test_what_is_not_usable_ends_with_2_and_says_why(
    project: Path, arguments: list[str], said: str
) -> None:
    plan = done("plan", *arguments, cwd=project, endpoints={"producer": SMALL})

    assert (plan.returncode, plan.stdout) == (2, "")
    assert said in plan.stderr


def test_an_error_is_json_too(project: Path) -> None:
    plan = done("plan", "nowhere.py", "--json", cwd=project, endpoints={"producer": SMALL})

    assert plan.returncode == 2
    assert json.loads(plan.stdout)["error"]["type"] == "InvalidInput"


def test_a_plan_loads_nothing_at_a_server(project: Path) -> None:
    async def main() -> tuple[Done, ResidentOllama]:
        async with ollama() as server:
            judge = {**JUDGE, "url": server.root}
            endpoints = {"producer": SMALL, "evaluator": judge}
            return await models(
                "plan", "examples/brief.py", cwd=project, endpoints=endpoints
            ), server

    plan, server = asyncio.run(main())

    assert plan.returncode == 0, plan.stderr
    assert server.log == []


# --- list -----------------------------------------------------------------------------------------


def ollama(**how: Any) -> ResidentOllama:
    pulled = {JUDGE["model_id"]: Pulled(size_bytes=3 * GIB, gpu_bytes=2 * GIB)}
    return ResidentOllama(**({"models": pulled} | how))


def test_the_list_says_of_every_endpoint_what_is_known(tmp_path: Path) -> None:
    async def main() -> tuple[list[Any], list[Done]]:
        async with ollama() as server:
            judge = {**JUDGE, "url": server.root}
            endpoints = {
                "file": SMALL,
                "judge": judge,
                "own": {**judge, "manage": False, "model_id": "other", "need": None},
            }
            before = await models("list", "--json", cwd=tmp_path, endpoints=endpoints)
            loaded = await models("load", "judge", cwd=tmp_path, endpoints=endpoints)
            after = await models("list", "--json", cwd=tmp_path, endpoints=endpoints)
            return [json.loads(one.stdout) for one in (before, after)], [before, loaded, after]

    (before, after), all_done = asyncio.run(main())

    assert [one.returncode for one in all_done] == [0, 0, 0]
    assert all_done[1].stdout.startswith("judge: in memory (3.0 GiB, 2.0 GiB of it on GPUs), after")
    file, judge, own = before
    assert (file["control"], file["resident"], file["reachable"]) == ("run", None, None)
    assert (judge["control"], judge["resident"], judge["reachable"]) == ("managed", False, True)
    assert (own["control"], own["resident"], own["reachable"]) == ("fixed", None, True)
    assert (after[1]["resident"], after[1]["total_bytes"], after[1]["gpu_bytes"]) == (
        True,
        3 * GIB,
        2 * GIB,
    )


def test_the_list_is_a_table_that_says_what_could_not_be_asked(tmp_path: Path) -> None:
    endpoints = {"file": SMALL, "judge": JUDGE}

    listed = done("list", cwd=tmp_path, endpoints=endpoints, COLUMNS="80")

    assert (listed.returncode, listed.stderr) == (1, "")
    rows = cells(listed.stdout)
    assert rows["loaded by"] == ["each run", "the budget"]
    assert rows["reachable"] == ["-", "no"]
    assert rows["in memory"] == ["in runs alone", "-"]
    assert f"\njudge: the server at {NOBODY} does not answer" in listed.stdout


def test_files_that_cannot_be_looked_at_are_told_of_their_endpoints_alone(tmp_path: Path) -> None:
    too_long = {"path": f"{'a' * 300}.gguf"}
    endpoints = {"file": SMALL, "absent": {"path": "absent.gguf"}, "too long": too_long}

    listed = done("list", "--json", cwd=tmp_path, endpoints=endpoints)

    problems = {one["tag"]: one["problem"] for one in json.loads(listed.stdout)}
    assert (listed.returncode, listed.stderr) == (1, "")
    assert problems["file"] is None
    assert problems["absent"] == "there is no file absent.gguf"
    assert problems["too long"].endswith("cannot be looked at (File name too long)")


def test_a_missing_key_is_told_of_its_endpoint_alone(tmp_path: Path) -> None:
    endpoints = {"file": SMALL, "judge": {**JUDGE, "api_key_env": "NO_SUCH_KEY"}}

    listed = done("list", "--json", cwd=tmp_path, endpoints=endpoints)

    file, judge = json.loads(listed.stdout)
    assert (listed.returncode, file["problem"]) == (1, None)
    assert "NO_SUCH_KEY" in judge["problem"]


# --- load and unload ------------------------------------------------------------------------------


def test_models_are_loaded_and_let_go_one_after_the_other(tmp_path: Path) -> None:
    async def main() -> tuple[list[Done], list[list[str]]]:
        pulled = {name: Pulled(size_bytes=GIB) for name in ("a:1b", "b:1b")}
        async with ollama(models=pulled) as server:
            endpoints = {
                tag: {**JUDGE, "url": server.root, "model_id": f"{tag}:1b"} for tag in ("a", "b")
            }
            seen, resident = [], []
            for command in (["load", "a", "b", "a"], ["unload", "a"], ["unload", "a", "b"]):
                seen.append(await models(*command, cwd=tmp_path, endpoints=endpoints))
                resident.append(server.resident)
            return seen, resident

    (loaded, first, both), resident = asyncio.run(main())

    assert [one.returncode for one in (loaded, first, both)] == [0, 0, 0]
    assert [line.split(",")[0] for line in loaded.stdout.splitlines()] == [
        "a: in memory (1.0 GiB",
        "b: in memory (1.0 GiB",
    ]
    assert both.stdout == "a: not in memory\nb: not in memory\n"
    assert resident == [["a:1b", "b:1b"], ["b:1b"], []]


def test_one_that_cannot_be_loaded_does_not_keep_others_from_it(tmp_path: Path) -> None:
    async def main() -> tuple[Done, list[str]]:
        async with ollama() as server:
            judge = {**JUDGE, "url": server.root}
            endpoints = {"absent": {**judge, "model_id": "absent:1b"}, "judge": judge}
            loaded = await models("load", "absent", "judge", cwd=tmp_path, endpoints=endpoints)
            return loaded, server.resident

    loaded, resident = asyncio.run(main())

    assert loaded.returncode == 1
    assert "ollama pull absent:1b" in loaded.stderr
    assert loaded.stdout.startswith("judge: in memory")
    assert resident == [JUDGE["model_id"]]


@pytest.mark.parametrize("command", ["load", "unload"])
@pytest.mark.parametrize(
    ("tag", "said"),
    [
        pytest.param("file", "outside of a run there is nothing to load it into", id="a file"),
        pytest.param("own", "write manage = true under [endpoints.own]", id="not managed"),
        pytest.param("hosted", "backend 'openai' has no way to say so", id="no way"),
        pytest.param("jugde", "did you mean 'judge'?", id="no endpoint"),
    ],
)
def test_what_cannot_be_controlled_is_refused_before_anything_is_done(
    tmp_path: Path, command: str, tag: str, said: str
) -> None:
    endpoints = {
        "file": SMALL,
        "judge": JUDGE,
        "own": {"backend": "ollama", "url": NOBODY},
        "hosted": {"url": f"{NOBODY}/v1"},
    }

    refused = done(command, "judge", tag, cwd=tmp_path, endpoints=endpoints)

    assert (refused.returncode, refused.stdout) == (2, "")
    assert said in refused.stderr
    assert "does not answer" not in refused.stderr


def test_what_the_budget_can_never_hold_is_not_loaded(project: Path) -> None:
    async def main() -> tuple[Done, ResidentOllama]:
        async with ollama() as server:
            judge = {**JUDGE, "url": server.root, "need": "3 GiB"}
            return await models("load", "judge", cwd=project, endpoints={"judge": judge}), server

    loaded, server = asyncio.run(main())

    assert loaded.returncode == 2
    assert "needs 3.0 GiB and the whole budget of 'machine' is 300.0 MiB" in loaded.stderr
    assert server.log == []


def test_ctrl_c_during_a_load_leaves_nothing_in_memory(tmp_path: Path) -> None:
    async def main() -> tuple[Done, list[str]]:
        async with ollama() as server:
            server.may_load.clear()
            endpoints = {"judge": {**JUDGE, "url": server.root}}
            process = await start("load", "judge", cwd=tmp_path, endpoints=endpoints)
            async with asyncio.timeout(60):
                await server.loading.wait()
            process.send_signal(signal.SIGINT)
            return await end(process), server.resident

    interrupted, resident = asyncio.run(main())

    assert (interrupted.returncode, interrupted.stdout) == (130, "")
    assert interrupted.stderr == "interrupted\n"
    assert resident == []


def test_a_terminal_is_told_what_is_being_done_and_for_how_long(tmp_path: Path) -> None:
    terminal, stderr = os.openpty()

    async def main() -> tuple[bytes, Done]:
        async with ollama() as server:
            server.may_load.clear()
            endpoints = {"judge": {**JUDGE, "url": server.root}}
            process = await start(
                "load", "judge", cwd=tmp_path, endpoints=endpoints, stderr=stderr, TERM="xterm"
            )
            os.close(stderr)
            told = await asyncio.to_thread(read_until, terminal, b"0:00:01")
            server.may_load.set()
            return told, await end(process)

    told, loaded = asyncio.run(main())
    os.close(terminal)

    assert b"loading judge" in told
    assert (loaded.returncode, loaded.stdout.split(",")[0]) == (0, "judge: in memory (3.0 GiB")


def read_until(file: int, wanted: bytes) -> bytes:
    """What comes from a terminal; raises OSError when it is closed before what is wanted."""
    told = b""
    while wanted not in told:
        told += os.read(file, 4096)
    return told


# --- help -----------------------------------------------------------------------------------------


def test_the_help_names_the_group_and_its_commands(tmp_path: Path) -> None:
    group = done("--help", cwd=tmp_path)
    assert group.returncode == 0
    assert all(name in group.stdout for name in ("plan", "list", "load", "unload"))
    assert "manage = true" in group.stdout


@pytest.mark.parametrize("command", ["plan", "list", "load", "unload"])
def test_the_help_of_a_command_says_its_exit_codes(tmp_path: Path, command: str) -> None:
    helped = done(command, "--help", cwd=tmp_path)
    assert helped.returncode == 0
    assert "Exit codes: 0" in helped.stdout
