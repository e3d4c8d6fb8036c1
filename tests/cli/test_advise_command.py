"""`harness advise` as a person meets it: a first screen with command lines, JSON, tables."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import pytest
from command import Done, harness, serving
from demo import ROOT
from golden import assert_shown
from loopback import Loopback, Reply, llama_server_stream
from sample_runs import span, write_journal

from harness.session.settings import demo_endpoint

found = demo_endpoint()
assert found is not None, "the demo's model is installed for tests"
MODEL = found.path


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copy(str(MODEL), tmp_path / "small.gguf")
    return tmp_path


def advise(project: Path, *arguments: str) -> Done:
    return harness("advise", *arguments, cwd=project)


TWO = ("producer=small.gguf", "evaluator=8B", "--device", "rtx-4090", "--users", "4")


# What NVIDIA's driver sees on this machine.
GPUS = {r"\(found: .*\); [^,]*": "(found: …)"}

# As people who serve models would ask.
TABLES = {
    "a GGUF file and a size share a GPU": TWO,
    "8B on 24 GB": ("8B", "--device", "rtx-4090"),
    "70B on 2 H100": ("70B", "--device", "h100", "--gpus", "2", "--users", "40"),
    "DeepSeek-V3 on 8 H200": ("DeepSeek-V3", "--device", "h200", "--gpus", "8", "--users", "32"),
    "Mixtral on 2 A100": ("Mixtral-8x7B", "--device", "a100-80gb", "--gpus", "2", "--users", "8"),
    "a laptop of 8 GB": ("8B", "--memory", "8 GiB", "--bandwidth", "256 GB", "--tflops", "20"),
    "every figure explained": (
        *("70B", "--device", "h100", "--users", "4", "--gpus", "4", "--explain"),
    ),
    "nothing fits": ("70B", "--memory", "8 GiB"),
    "no target is met": ("405B", "--device", "l4", "--itl", "0.0001"),
    "two copies": (
        *("8B", "--device", "h100", "--gpus", "2", "--users", "96", "--quantization", "q8_0"),
        *("--ttft", "2"),
    ),
    "the quantization asked for": ("8B", "--device", "rtx-4090", "--quantization", "q5_k_m"),
    "an 8-bit cache": ("8B", "--device", "rtx-4090", "--kv-bits", "8"),
    "a processor": (
        *("1B", "--device", "machine", "--memory", "16 GiB", "--bandwidth", "50 GB", "--itl", "1"),
    ),
    "a queue without end": ("8B", "--device", "rtx-3090", "--rate", "100"),
}


@pytest.mark.parametrize("case", TABLES)
def test_a_first_screen_has_layouts_and_the_command_lines_of_the_marked_one(
    project: Path, case: str
) -> None:
    done = advise(project, *TABLES[case])
    assert ("vllm serve" in done.stdout or "llama-server" in done.stdout) is (done.exit_code == 0)
    assert_shown("advise", case, done)


def test_an_equals_sign_after_the_role_belongs_to_the_file(project: Path) -> None:
    (project / "a=b").mkdir()
    shutil.move(project / "small.gguf", project / "a=b" / "small.gguf")
    for argument in ("producer=a=b/small.gguf", "a=b/small.gguf"):
        assert advise(project, argument, "--device", "l4").exit_code == 0, argument


def test_json_has_the_layouts_and_what_the_marked_one_is_started_with(project: Path) -> None:
    found = json.loads(advise(project, *TWO, "--json").stdout)
    producer, judge = found["models"]
    assert producer["chosen"]["precision"] == "Q4_1"
    assert producer["commands"].keys() == {"llamacpp", "ollama"}
    assert producer["commands"]["llamacpp"].startswith("llama-server --model small.gguf")
    assert judge["layouts"][0] == judge["chosen"]
    assert judge["commands"]["vllm"].endswith("--port 8180")
    missed = json.loads(advise(project, "70B", "--device", "l4", "--json").stdout)
    assert missed["models"][0]["chosen"] is None
    assert missed["enough"][0]["device"]["name"] == "l4"


def test_a_run_is_the_load_of_its_models(project: Path) -> None:
    run = str(ROOT / "traces" / "recorded" / "h100-eight-at-once.jsonl")
    done = advise(project, "m8=8B", "--run", run, "--device", "h100", "--json")
    [model] = json.loads(done.stdout)["models"]
    assert (model["role"], model["load"]["users"]) == ("producer", 16)
    (project / "kept").mkdir()
    shutil.copy(run, project / "kept")
    (project / "other.toml").write_text('traces = "kept"\n')
    other = ("m8=8B", "--run", "latest", "--config", "other.toml", "--device", "h100")
    assert advise(project, *other).exit_code == 0
    assert advise(project, "--run", run, "--device", "h100").exit_code == 2


def test_the_lines_for_harness_toml_are_toml_whatever_models_are_called(project: Path) -> None:
    calls = [("a", "evaluator"), ("b-1", "evaluator"), ("qwen2.5-7b", None)]
    write_journal(
        project / "pool.jsonl",
        *(
            span(n, 0, 9**9, name="chat", model=tag, role=role, input_tokens=9, output_tokens=9)
            for n, (tag, role) in enumerate(calls, start=1)
        ),
    )
    models = ("a=small.gguf", "b-1=8B", "qwen2.5-7b=8B")
    done = advise(project, *models, "--run", "pool.jsonl", "--device", "h100")
    found = tomllib.loads(done.stdout.partition("harness.toml:")[2])
    tags = ["evaluator", "evaluator-b-1", "qwen2.5-7b"]
    assert ([*found["endpoints"]], [*found["roles"]]) == (tags, tags), done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("8B", "7B"),
        ("producer=", "7B"),
        ("none.gguf",),
        ("8X",),
        ("llama9:70b",),
        ("8B", "--bandwidth", "100 GB", "--device", "l4"),
        ("8B", "--memory", "much"),
        ("8B", "--rate", "nan"),
        ("8B", "--device", "h10"),
        ("8B", "--device", "gpu7"),
        ("8B", "--quantization", "Q4"),
        ("8B", "--memory", "0 GiB"),
        ("8B", "--memory", "24"),
        ("8B", "--memory", "8 GiB", "--bandwidth", "0 GB"),
    ],
    ids=" ".join,
)
def test_what_is_not_usable_is_told_with_a_remedy(
    project: Path, arguments: tuple[str, ...]
) -> None:
    where = {"--device", "--memory", "--bandwidth", "--tflops"}.isdisjoint(arguments)
    done = advise(project, *arguments, *(("--device", "l4") if where else ()))
    assert done.exit_code == 2
    assert_shown("advise", f"refused: {' '.join(arguments)}", done.stderr, masks=GPUS)


def test_what_an_endpoint_does_stands_beside_what_was_predicted(project: Path) -> None:
    """On a scripted wire: what a real one gives is in tests/benchmarks/bench_advise.py."""
    whole = Reply(steps=llama_server_stream(*"abcdefghij"))

    with serving(Loopback([whole] * 29)) as server:
        (project / "harness.toml").write_text(
            f'[endpoints.served]\nbackend = "openai"\nurl = "{server.url}"\n'
        )
        named = ("small.gguf", "--measure", "served", "--users", "2", "--prompt", "16")
        cache = {"cwd": project, "XDG_CACHE_HOME": str(project / "cache")}
        first = harness("advise", *named, **cache)
        second = harness("advise", *named, "--json", **cache)
        advised = harness("advise", "small.gguf", **cache)
        (project / "none").symlink_to("missing/folder")
        nowhere = {"cwd": project, "XDG_CACHE_HOME": str(project / "none")}
        unkept = [harness("advise", *named, *how, **nowhere) for how in ((), ("--json",))]
    assert first.exit_code == 0, first.stderr
    assert "2 at once, 31 tokens: " in first.stdout
    assert {"run_id", "bursts", "learned"} == second.json.keys()
    assert [one.exit_code for one in unkept] == [0, 0]
    assert "2 at once, 31 tokens: " in unkept[0].stdout
    assert unkept[1].json.keys() == second.json.keys()
    assert "later advice will not use these rates" in unkept[1].stderr
    assert f"as quick as {second.json['learned']['model']} with openai in run" in advised.stdout


def test_what_is_learned_is_of_the_endpoints_own_device(project: Path) -> None:
    (project / "harness.toml").write_text(
        '[endpoints.file]\npath = "small.gguf"\ndevice = "gpu7"\n'
    )
    unseen = advise(project, "--measure", "file")
    assert unseen.exit_code == 2
    assert_shown(
        "advise", "not measured: a file on a GPU that is not seen", unseen.stderr, masks=GPUS
    )


@pytest.mark.parametrize(
    ("named", "code"),
    [
        (("nobody",), "endpoint.unknown"),
        (("here", "--memory", "24 GiB"), "advise.speed-unknown"),
        (("far",), "advise.device-of-endpoint"),
    ],
)
def test_an_endpoint_to_measure_has_to_be_there(
    project: Path, named: tuple[str, ...], code: str
) -> None:
    (project / "harness.toml").write_text(
        '[endpoints.here]\nurl = "http://127.0.0.1:9/v1"\n'
        '[endpoints.far]\nurl = "http://gpu-box:8000/v1"\n'
    )
    done = advise(project, "small.gguf", "--measure", *named, "--json")
    assert (done.exit_code, done.code) == (2, code)
    assert_shown("advise", f"not measured: {' '.join(named)}", done.stderr)
