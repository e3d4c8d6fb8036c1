"""What llama.cpp says that it takes: its log, for a model that is loaded with nothing else."""

import json
import re
import subprocess
import sys
import threading
from typing import NamedTuple

LOAD = """
import json, os, sys, xllamacpp
case = json.loads(sys.argv[1])
params = xllamacpp.CommonParams()
params.model.path = case["path"]
params.n_ctx = case["context_tokens"] * case["slots"]
params.n_parallel = case["slots"]
params.cache_type_k = getattr(xllamacpp.ggml_type, "GGML_TYPE_" + case["cache_type_k"].upper())
params.cache_type_v = getattr(xllamacpp.ggml_type, "GGML_TYPE_" + case["cache_type_v"].upper())
params.n_batch = case["batch_tokens"]
if case["embeds"]:
    params.embedding = True
    params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
params.fit_params = params.warmup = False
# More threads than free cores spin for seconds at the end of a load.
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.verbosity = 4
server = xllamacpp.Server(params)
sys.stdin.read()  # what logs is a thread of its own: whoever reads it says when it is done
os._exit(0)
"""
_LOADED = "model loaded"
_TIMEOUT_S = 60
MIB = 2**20
MOST_WITH_A_DOUBT = round(2 * 0.005 * MIB)
"""Cells: MiB are logged with two decimals, and of more cells than these each has a whole number of
bytes that nothing else rounds to."""


class LoggedCache(NamedTuple):
    """A KV cache: all slots' cells, and what it takes for some layers' keys and values."""

    cells: int
    layers: int
    keys_mib: float
    values_mib: float


class LoggedStates(NamedTuple):
    """What the recurrent layers keep of all slots."""

    inputs_mib: float
    states_mib: float


class LoggedMemory(NamedTuple):
    """What llama.cpp says that it takes, in MiB, each with two decimals."""

    slots: int
    model_mib: float
    kv_mib: float
    output_mib: float
    compute_mib: float
    caches: list[LoggedCache]
    states: LoggedStates | None


DEFAULTS = {
    "slots": 1,
    "cache_type_k": "f16",
    "cache_type_v": "f16",
    "batch_tokens": 2048,
    "embeds": False,
}


def logged_memory(path, **case):
    """Load a model in a process of its own, and read what that said.

    Args:
        path: The model's file.
        case: `context_tokens`, and what is not as in `DEFAULTS`.
    """
    case = DEFAULTS | case | {"path": str(path)}
    log = _log_of(case)

    def total(name):
        return sum(map(float, re.findall(rf" {name} buffer size = +([\d.]+) MiB", log)))

    states = re.search(
        r"memory_recurrent: size = .*R \(f32\): +([\d.]+) MiB, S \(f32\): +([\d.]+) MiB", log
    )
    return LoggedMemory(
        slots=case["slots"],
        model_mib=total("model"),
        kv_mib=total("KV"),
        output_mib=total("output"),
        compute_mib=total("compute"),
        caches=[
            LoggedCache(int(cells) * int(streams), int(layers), float(keys), float(values))
            for cells, layers, streams, keys, values in re.findall(
                r"kv_cache: size = .*?(\d+) cells, +(\d+) layers, +\d+/(\d+) seqs\), "
                r"K \(\w+\): +([\d.]+) MiB, V \(\w+\): +([\d.]+) MiB",
                log,
            )
        ],
        states=LoggedStates(float(states[1]), float(states[2])) if states else None,
    )


def _log_of(case):
    process = subprocess.Popen(
        [sys.executable, "-c", LOAD, json.dumps(case)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
    )
    watchdog = threading.Timer(_TIMEOUT_S, process.kill)
    watchdog.start()
    lines = []
    with process:
        for line in process.stderr:
            lines.append(line)
            if _LOADED in line:
                break
        process.stdin.close()
        lines += process.stderr
    watchdog.cancel()
    log = "".join(lines)
    assert _LOADED in log, log
    return log


def exact_bytes(cells, mib):
    """The bytes that a log means by a rounded number of MiB: so many for each of many cells."""
    assert cells > MOST_WITH_A_DOUBT
    return cells * round(mib * MIB / cells)
