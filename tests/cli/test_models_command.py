"""`harness models` as a person meets it: tables or JSON, and exit codes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
from command import NOBODY, Done, harness, serving
from demo import ROOT
from golden import assert_shown
from servers.ollama_residency import GIB, Pulled, ResidentOllama

from harness.session.settings import demo_endpoint

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


def models(*arguments: str, cwd: Path, endpoints: dict[str, Any], **how: Any) -> Done:
    return harness("models", *arguments, cwd=cwd, endpoints=endpoints, **how)


def ollama(**how: Any) -> ResidentOllama:
    pulled = {JUDGE["model_id"]: Pulled(size_bytes=3 * GIB, gpu_bytes=2 * GIB)}
    return ResidentOllama(**({"models": pulled} | how))


def load(server: ResidentOllama, model: str) -> None:
    httpx.post(f"{server.root}/api/generate", json={"model": model}).raise_for_status()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with the example and a budget that has no room for two models."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "harness.toml").write_text('[budget]\ncapacity = "300 MiB"\n')
    return tmp_path


def plan(project: Path, *options: str, **how: Any) -> Done:
    return models("plan", "examples/brief.py", *options, cwd=project, **how)


# --- plan -----------------------------------------------------------------------------------------


ROLES = ("--role", "producer=small", "--role", "evaluator=judge")


def test_the_plan_of_the_example_is_a_table_and_what_is_to_be_said_of_it(project: Path) -> None:
    endpoints = {"small": SMALL, "judge": JUDGE}

    planned = plan(project, *ROLES, endpoints=endpoints)

    assert (planned.exit_code, planned.stderr) == (0, "")
    # How quick this machine is differs.
    masks = {r"(?<=  8  ).*(?= 120.7)": "SPEEDS ", " {2,}": "  "}
    assert_shown("models", "plan", planned.stdout, masks=masks)
    assert sorted(path.name for path in project.iterdir()) == ["examples", "harness.toml"]


def test_the_plan_as_json_has_all_of_it(project: Path) -> None:
    options = ("--json", "--role", "evaluator=spare")

    planned = plan(project, *options, endpoints={"producer": SMALL, "spare": JUDGE})

    assert planned.exit_code == 0
    assert planned.json["pipeline"] == "brief"
    producer, judge = planned.json["models"]
    assert planned.json["devices"][0]["capacity_bytes"] == 300 << 20
    assert (producer["layout"]["precision"], judge["layout"]) == ("Q4_1", None)
    assert (producer["tag"], producer["roles"]) == ("producer", ["planner", "producer"])
    assert judge["need"] == {"machine": 200 << 20}


def test_a_run_that_would_be_refused_is_refused_when_it_is_planned(project: Path) -> None:
    pinned = {"producer": {**SMALL, "pin": True}, "spare": JUDGE}
    planned = plan(project, "--role", "evaluator=spare", "--json", endpoints=pinned)
    assert (planned.exit_code, planned.code) == (2, "budget.does-not-fit")
    assert "'spare' needs 200.0 MiB" in planned.stderr


def test_a_role_for_no_endpoint_is_refused(project: Path) -> None:
    planned = plan(project, "--role", "producer=x", "--json", endpoints={"producer": SMALL})
    assert (planned.exit_code, planned.code.split(".")[0]) == (2, "roles")
    assert "'x'" in planned.stderr


def test_a_plan_loads_nothing_at_a_server(project: Path) -> None:
    with serving(ollama()) as server:
        endpoints = {"producer": SMALL, "evaluator": {**JUDGE, "url": server.root}}
        assert plan(project, endpoints=endpoints).exit_code == 0
    assert server.log == []


# --- list -----------------------------------------------------------------------------------------


def test_the_list_says_of_every_endpoint_what_is_known(tmp_path: Path) -> None:
    with serving(ollama()) as server:
        judge = {**JUDGE, "url": server.root}
        own = {**judge, "manage": False, "model_id": "other", "need": None}
        endpoints = {"file": SMALL, "judge": judge, "own": own}
        before = models("list", "--json", cwd=tmp_path, endpoints=endpoints)
        load(server, JUDGE["model_id"])
        after = models("list", "--json", cwd=tmp_path, endpoints=endpoints)

    assert [one.exit_code for one in (before, after)] == [0, 0]
    known = [(one["control"], one["resident"], one["reachable"]) for one in before.json]
    assert known == [("run", None, None), ("managed", False, True), ("fixed", None, True)]
    judge = after.json[1]
    assert (judge["resident"], judge["total_bytes"], judge["gpu_bytes"]) == (True, 3 * GIB, 2 * GIB)


def test_the_list_is_a_table_that_says_what_could_not_be_asked(tmp_path: Path) -> None:
    listed = models("list", cwd=tmp_path, endpoints={"file": SMALL, "judge": JUDGE}, COLUMNS="80")

    assert (listed.exit_code, listed.stderr) == (1, "")
    assert_shown("models", "list", listed, masks={str(found.path.parent): "/there"})


def test_what_cannot_be_looked_at_is_told_of_its_endpoint_alone(tmp_path: Path) -> None:
    no_key = {**JUDGE, "api_key_env": "NO_SUCH_KEY"}
    endpoints = {"file": SMALL, "no file": {"path": "absent.gguf"}, "no key": no_key}

    listed = models("list", "--json", cwd=tmp_path, endpoints=endpoints)

    assert (listed.exit_code, listed.stderr) == (1, "")
    file, no_file, no_key = (one["problem"] for one in listed.json)
    assert (file, "absent.gguf" in no_file, "NO_SUCH_KEY" in no_key) == (None, True, True)


# --- unload ---------------------------------------------------------------------------------------


def test_models_are_let_go_and_one_that_fails_keeps_no_other_from_it(tmp_path: Path) -> None:
    pulled = {name: Pulled(size_bytes=GIB) for name in ("a:1b", "b:1b")}
    done, resident = [], []
    with serving(ollama(models=pulled)) as server:
        judge = {**JUDGE, "url": server.root}
        endpoints = {tag: {**judge, "model_id": f"{tag}:1b"} for tag in ("a", "b")}
        endpoints["silent"] = JUDGE
        for name in pulled:
            load(server, name)
        for command in ("unload a a", "unload silent a b"):
            done.append(models(*command.split(), cwd=tmp_path, endpoints=endpoints))
            resident.append(server.resident)

    whole, part = done
    assert [one.exit_code for one in done] == [0, 1]
    assert whole.stdout == "a: not in memory\n"
    assert part.stdout == "a: not in memory\nb: not in memory\n"
    assert NOBODY in part.stderr
    assert resident == [["b:1b"], []]


@pytest.mark.parametrize(
    ("tag", "named"),
    [
        pytest.param("file", "'file'", id="a file"),
        pytest.param("own", "[endpoints.own]", id="not managed"),
        pytest.param("hosted", "'openai'", id="no way"),
        pytest.param("jugde", "did you mean 'judge'?", id="no endpoint"),
    ],
)
def test_what_cannot_be_controlled_is_refused_before_anything_is_done(
    tmp_path: Path, tag: str, named: str
) -> None:
    endpoints = {
        "file": SMALL,
        "judge": JUDGE,
        "own": {"backend": "ollama", "url": NOBODY},
        "hosted": {"url": f"{NOBODY}/v1"},
    }

    refused = models("unload", "judge", tag, cwd=tmp_path, endpoints=endpoints)

    assert (refused.exit_code, refused.stdout) == (2, "")
    assert named in refused.stderr
    assert NOBODY not in refused.stderr
