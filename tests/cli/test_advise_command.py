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


TWO = ("producer=small.gguf", "evaluator=8B", "--memory", "24 GiB", "--users", "4")


def test_a_gguf_24_gib_and_two_models_give_two_command_lines(project: Path) -> None:
    done = advise(project, *TWO)
    assert done.exit_code == 0, done.stderr
    assert len([line for line in done.stdout.splitlines() if line.startswith("llama-server")]) == 2
    assert_shown("advise_two", done.stdout)


def test_every_figure_is_explained_on_request(project: Path) -> None:
    done = advise(project, "70B", "--device", "h100", "--users", "16", "--gpus", "4", "--explain")
    assert_shown("advise_explained", done.stdout)


def test_models_in_turns_are_loaded_from_their_files_and_replicas_have_a_server_each(
    project: Path,
) -> None:
    done = advise(project, "producer=8B", "judge=8B", "--memory", "12 GiB")
    assert 'path = "8B-Q8_0.gguf"' in done.stdout
    assert "serve" not in done.stdout
    # One server has both.
    two = ("producer=3B", "judge=8B", "--memory", "12 GiB", "--runtime", "ollama")
    assert advise(project, *two).stdout.count("ollama serve") == 1
    done = advise(project, "8B", "--device", "h100", "--gpus", "2")
    [line] = [one for one in done.stdout.splitlines() if one.startswith("CUDA_VISIBLE_DEVICES=0")]
    first, second = line.split(" & ")
    assert (first[-11:], second[-11:]) == ("--port 8080", "--port 8081")
    assert second.startswith("CUDA_VISIBLE_DEVICES=1 llama-server ")


def test_json_has_the_figures_and_the_settings_with_their_reasons(project: Path) -> None:
    [producer, judge] = json.loads(advise(project, *TWO, "--json").stdout)["models"]
    assert producer["chosen"]["quantization"] == "Q4_1"
    assert [one["name"] for one in judge["figures"]][:2] == ["weights", "KV cache of a token"]
    assert judge["launch"]["command"][0]["text"].startswith("llama-server")


def test_a_run_is_the_load_of_its_models(project: Path) -> None:
    run = str(ROOT / "traces" / "recorded" / "h100-eight-at-once.jsonl")
    done = advise(project, "--run", run, "--device", "h100", "--json")
    [model] = json.loads(done.stdout)["models"]
    assert (model["role"], model["sequences"]) == ("producer", 16)
    named = advise(project, "m8=small.gguf", "--run", run, "--device", "h100", "--json")
    assert json.loads(named.stdout)["models"][0]["title"].startswith("Smollm2")
    # It does not say where the file was.
    assert "does not say where m8.gguf is" in model["notes"][0]
    assert model["launch"]["command"][0]["text"] == "llama-server -m /path/to/m8.gguf"
    (project / "kept").mkdir()
    shutil.copy(run, project / "kept")
    (project / "other.toml").write_text('traces = "kept"\n')
    other = ("--run", "latest", "--config", "other.toml", "--device", "h100")
    assert advise(project, *other).exit_code == 0
    # Its server had the model.
    run = str(ROOT / "tests" / "analysis" / "recorded_runs" / "queueing.jsonl")
    assert advise(project, "--run", run, "--device", "h100").stderr.endswith("smollm2=8B\n")


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


def test_tables_are_shown_with_own_rows(project: Path) -> None:
    head = "name,kind,memory_gib,bandwidth_gb_s,source,date"
    (project / "mine.csv").write_text(f"{head}\nmine,gpu,8,100,me,2026-01-01\n")
    own = ("--table", "devices=mine.csv")
    assert "mine" in advise(project, *own, "--tables", "devices").stdout
    assert "devices: rtx-3090" in advise(project, "--tables").stdout
    assert advise(project, "8B", *own, "--device", "mine").stdout.startswith("mine: 8.0 GiB")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "there is no model"),
        (("8B", "7B"), "another model has the same role"),
        (("none.gguf",), "none.gguf: cannot be opened"),
        (("8X",), "give a GGUF file, a folder of safetensors"),
        (("llama3.1:70b",), "or a size: harness advise 70B"),
        (("evalutor=8B",), "did you mean 'evaluator'?"),
        (("producer=8B", "judges-b=8B"), "did you mean 'judge'?"),
        (("evalutor2=8B",), "did you mean 'evaluator'?"),
        (("codex=8B",), "'code'? If not, choose a name less like it"),
        (("8B", "--bandwidth", "100 GB"), "give both: --memory"),
        (("8B", "--bandwidth", "100 GB", "--device", "l4"), "give both: --memory"),
        (("8B", "--memory", "much"), "'much' is not a size"),
        (("8B", "--rate", "0"), "Invalid value for '--rate'"),
        (("8B", "--device", "h10"), "did you mean 'h100'"),
        (("8B", "--device", "gpu7"), "'gpu7' is not seen"),
        (("8B", "--runtime", "vlm"), "'vlm' is not a runtime"),
        (("8B", "--quantization", "Q4"), "'Q4' is not a quantization"),
        (("8B", "--device", "nvlink-4"), "'nvlink-4' has no memory or no speed"),
        (("8B", "--memory", "0 GiB"), "'0 GiB' has no memory"),
        (("8B", "--memory", "24"), "give both with their units"),
        (("8B", "--memory", "8 GiB", "--bandwidth", "0 GB"), "'8 GiB' has no memory or no speed"),
        (("8B", "--table", "devices=mine.csv", "--device", "gpu-lab"), "'gpu-lab' has no memory"),
        (("--tables", "device"), "'device' is not a table"),
    ],
)
def test_what_is_not_usable_is_told_with_a_remedy(
    project: Path, arguments: tuple[str, ...], said: str
) -> None:
    (project / "mine.csv").write_text(
        "\ufeffname,kind,bandwidth_gb_s,source,date\ngpu-lab,gpu,100,me,2026-01-01\n"
    )
    where = {"--device", "--memory", "--bandwidth"}.isdisjoint(arguments)
    done = advise(project, *arguments, *(("--device", "l4") if where else ()))
    assert done.exit_code == 2
    assert said in done.stderr


CPU = ("--device", "ddr", "--memory", "16 GiB")


@pytest.mark.parametrize(
    ("arguments", "started"),
    [
        (("8B", "--memory", "4 GiB"), "llama-server -m 8B-Q4_K_M.gguf"),  # the smallest, in part
        (("8B", "--device", "l4", "--itl", "0.001"), "llama-server -m 8B-Q4_K_M.gguf"),
        (("8B", "--runtime", "vllm", "--memory", "24 GiB"), "vllm serve 8B "),
        (("8B", "--runtime", "mlc-llm", "--device", "l4"), "mlc_llm serve 8B --mode server"),
        (("8B", *CPU, "--users", "4"), "embedded: harness starts llama.cpp itself"),
        (("8B", *CPU, "--users", "5"), "llama-server -m"),
        (("evaluator2=8B", "code=8B", "codex=8B", "--device", "h100"), "codex = "),
    ],
    ids=[
        "too large",
        "too slow",
        "of a runtime",
        "of another format",
        "few on a CPU",
        "many on a CPU",
        "roles near known ones",
    ],
)
def test_packing_and_runtime_follow_from_what_is_asked(
    project: Path, arguments: tuple[str, ...], started: str
) -> None:
    assert started in advise(project, *arguments).stdout


def test_a_queue_that_grows_without_end_is_said_to(project: Path) -> None:
    done = advise(project, "8B", "--device", "rtx-3090", "--rate", "100")
    assert "first token in the queue without end" in done.stdout, done.stderr


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
        by_url = ("small.gguf", "--runtime", "vLLM", "--measure", server.url, "--users", "2")
        named_by_url = harness("advise", *by_url, "--json", **cache)
        (project / "none").symlink_to("missing/folder")
        nowhere = {"cwd": project, "XDG_CACHE_HOME": str(project / "none")}
        unkept = [harness("advise", *named, *how, **nowhere) for how in ((), ("--json",))]
    assert first.exit_code == 0, first.stderr
    assert "2 at once, 31 tokens: " in first.stdout
    assert named_by_url.json["learned"]["runtime"] == "vllm", named_by_url.stdout
    assert {"run_id", "bursts", "learned"} == second.json.keys()
    assert [one.exit_code for one in unkept] == [2, 2]
    assert "2 at once, 31 tokens: " in unkept[0].stdout
    assert {"run_id", "bursts", "learned", "error"} <= unkept[1].json.keys()
    assert f"as quick as {second.json['learned']['model']} with openai in run" in advised.stdout


def test_what_is_learned_is_of_the_endpoints_own_device(project: Path) -> None:
    (project / "harness.toml").write_text(
        '[endpoints.far]\nbackend = "openai"\nurl = "http://gpu-box:8000/v1"\n'
        '[endpoints.file]\npath = "small.gguf"\ndevice = "gpu7"\n'
    )
    far = advise(project, "small.gguf", "--measure", "far", "--json")
    assert (far.exit_code, far.code) == (2, "advise.device-of-endpoint")
    assert "'gpu7' is not seen" in advise(project, "--measure", "file").stderr


HERE = "http://127.0.0.1:9/v1"


@pytest.mark.parametrize(
    ("named", "code", "said"),
    [
        (("nobody",), "endpoint.unknown", "no endpoint is called 'nobody'"),
        (("http://",), "endpoint.unusable", "url 'http://' must start"),
        ((HERE, "--runtime", "nonsense"), "advise.runtime-unknown", "--runtime: 'nonsense' is not"),
        (
            ("http://gpu-box:8000/v1",),
            "advise.device-of-endpoint",
            "endpoint 'measured' is not served",
        ),
    ],
)
def test_an_endpoint_to_measure_has_to_be_there(
    project: Path, named: tuple[str, ...], code: str, said: str
) -> None:
    done = advise(project, "small.gguf", "--measure", *named, "--json")
    assert (done.exit_code, done.code) == (2, code)
    assert done.json["error"]["message"].startswith(said)
