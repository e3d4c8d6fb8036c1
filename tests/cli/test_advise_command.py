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


def test_a_gguf_and_a_size_share_a_gpu_each_with_its_command_lines(project: Path) -> None:
    done = advise(project, *TWO)
    assert done.exit_code == 0, done.stderr
    lines = [line.partition(": ") for line in done.stdout.splitlines()]
    servers = [name for name, _, said in lines if "small.gguf" in said or "8B" in said]
    assert {"llama-server", "vLLM", "SGLang"} <= set(servers)
    assert_shown("advise_two", done.stdout)


# As people who serve models would ask.
FIVE = {
    "8B on 24 GB": ("8B", "--device", "rtx-4090"),
    "70B on 2 H100": ("70B", "--device", "h100", "--gpus", "2", "--users", "40"),
    "DeepSeek-V3 on 8 H200": ("DeepSeek-V3", "--device", "h200", "--gpus", "8", "--users", "32"),
    "Mixtral on 2 A100": ("Mixtral-8x7B", "--device", "a100-80gb", "--gpus", "2", "--users", "8"),
    "a laptop of 8 GB": ("8B", "--memory", "8 GiB", "--bandwidth", "256 GB", "--tflops", "20"),
}


@pytest.mark.parametrize("arguments", FIVE.values(), ids=FIVE)
def test_tables_are_as_they_were_read_by_people(
    project: Path, arguments: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    done = advise(project, *arguments)
    name = request.node.callspec.id.replace(" ", "_")
    assert done.exit_code == ("No layout" in done.stdout), done.stderr
    assert_shown(f"advise_{name}", done.stdout)


def test_every_figure_is_explained_on_request(project: Path) -> None:
    done = advise(project, "70B", "--device", "h100", "--users", "4", "--gpus", "4", "--explain")
    assert_shown("advise_explained", done.stdout)


def test_nothing_is_started_if_no_layout_meets_the_targets(project: Path) -> None:
    done = advise(project, "70B", "--memory", "8 GiB")
    assert done.exit_code == 1
    assert "in AWQ its weights take 37.5 GiB, and there is room for 7.4 GiB." in done.stdout
    assert "What would meet the targets, of " in done.stdout
    assert "vllm serve" not in done.stdout
    assert "llama-server" not in done.stdout
    none = advise(project, "405B", "--device", "l4", "--itl", "0.0001")
    assert "None of these meets the targets" in none.stdout


def test_a_copy_has_a_server_and_gpus_of_its_own(project: Path) -> None:
    asked = ("--device", "h100", "--gpus", "2", "--users", "96", "--quantization", "q8_0")
    done = advise(project, "8B", *asked, "--ttft", "2")
    [line] = [one for one in done.stdout.splitlines() if one.startswith("llama-server: ")]
    first, second = line.removeprefix("llama-server: ").split(" & ")
    assert first.startswith("CUDA_VISIBLE_DEVICES=0 llama-server --model 8B-Q8_0.gguf ")
    assert second.startswith("CUDA_VISIBLE_DEVICES=1 ")
    assert second.endswith("--port 8081")


def test_only_the_quantization_that_is_asked_for_is_considered(project: Path) -> None:
    done = advise(project, "8B", "--device", "rtx-4090", "--quantization", "q5_k_m")
    assert "llama-server: llama-server --model 8B-Q5_K_M.gguf" in done.stdout
    assert "Q8_0" not in done.stdout
    eight = advise(project, "8B", "--device", "rtx-4090", "--kv-bits", "8")
    assert "BF16 KV8" in eight.stdout


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
    assert advise(project, "--run", run, "--device", "h100").stderr.endswith("m8=8B\n")


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
    ("arguments", "said"),
    [
        ((), "there is no model"),
        (("8B", "7B"), "another model has the same role"),
        (("none.gguf",), "none.gguf: cannot be opened"),
        (("8X",), "give a GGUF file, a folder of safetensors"),
        (("llama3.1:70b",), "or a size: harness advise 70B"),
        (("8B", "--bandwidth", "100 GB", "--device", "l4"), "give its memory too"),
        (("8B", "--memory", "much"), "'much' is not a size"),
        (("8B", "--rate", "0"), "Invalid value for '--rate'"),
        (("8B", "--device", "h10"), "did you mean 'h100'"),
        (("8B", "--device", "gpu7"), "'gpu7' is not seen"),
        (("8B", "--quantization", "Q4"), "'Q4' is not a quantization"),
        (("8B", "--memory", "0 GiB"), "'0 GiB' is no memory"),
        (("8B", "--memory", "24"), "give both with their units"),
        (("8B", "--memory", "8 GiB", "--bandwidth", "0 GB"), "'8 GiB' is no memory"),
    ],
)
def test_what_is_not_usable_is_told_with_a_remedy(
    project: Path, arguments: tuple[str, ...], said: str
) -> None:
    where = {"--device", "--memory", "--bandwidth", "--tflops"}.isdisjoint(arguments)
    done = advise(project, *arguments, *(("--device", "l4") if where else ()))
    assert done.exit_code == 2
    assert said in done.stderr


def test_a_processor_is_given_no_server_for_gpus(project: Path) -> None:
    machine = ("--device", "machine", "--memory", "16 GiB", "--bandwidth", "50 GB")
    done = advise(project, "1B", *machine, "--itl", "1")
    command = "llama-server --model 1B-F16.gguf --ctx-size 2560 --parallel 1 --gpu-layers 0"
    assert command in done.stdout, done.stdout
    assert "vllm" not in done.stdout


def test_a_queue_that_grows_without_end_is_said_to(project: Path) -> None:
    done = advise(project, "8B", "--device", "rtx-3090", "--rate", "100")
    assert "endless" in done.stdout, done.stderr


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
        '[endpoints.far]\nbackend = "openai"\nurl = "http://gpu-box:8000/v1"\n'
        '[endpoints.file]\npath = "small.gguf"\ndevice = "gpu7"\n'
    )
    far = advise(project, "small.gguf", "--measure", "far", "--json")
    assert (far.exit_code, far.code) == (2, "advise.device-of-endpoint")
    assert "'gpu7' is not seen" in advise(project, "--measure", "file").stderr


@pytest.mark.parametrize(
    ("named", "code", "said"),
    [
        (("nobody",), "endpoint.unknown", "no endpoint is called 'nobody'"),
        (("here", "--memory", "24 GiB"), "advise.speed-unknown", "what is measured is compared"),
        (("far",), "advise.device-of-endpoint", "endpoint 'far' is not served"),
    ],
)
def test_an_endpoint_to_measure_has_to_be_there(
    project: Path, named: tuple[str, ...], code: str, said: str
) -> None:
    (project / "harness.toml").write_text(
        '[endpoints.here]\nurl = "http://127.0.0.1:9/v1"\n'
        '[endpoints.far]\nurl = "http://gpu-box:8000/v1"\n'
    )
    done = advise(project, "small.gguf", "--measure", *named, "--json")
    assert (done.exit_code, done.code) == (2, code)
    assert done.json["error"]["message"].startswith(said)
