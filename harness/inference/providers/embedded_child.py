"""The process of one embedded model: the llama-server in the `xllamacpp` wheel.

`embedded.py` starts this file as a script. The two exchange a line of JSON each. The first, on
standard input, holds fields of `CommonParams`, the API key among them. The second, on standard
output, holds the server's `url`, or the `error` and the number of GPUs. The log goes to standard
error.

The process ends when its standard input closes, and so also when its parent is killed.
"""

from __future__ import annotations

# Nothing of harness, whose import would take longer than the load of a small model.
import fcntl
import json
import os
import sys
from collections.abc import Mapping
from enum import Enum
from functools import reduce
from typing import Any

import xllamacpp

Fields = Mapping[str, Any]
"""Values of `CommonParams` by attribute, such as `cpuparams.n_threads`; enums by name."""


def main() -> None:
    """Serves a model until standard input closes."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # What a library prints is not the answer.
    fields = json.loads(sys.stdin.readline())
    _end_with_standard_input()
    try:
        server = _server(fields)
        answer = {"url": server.listening_address}
    except Exception as error:  # noqa: BLE001 - the parent translates it
        answer = {"error": str(error), "gpus": _gpus()}
    print(json.dumps(answer), file=answers, flush=True)
    if "url" in answer:
        sys.stdin.read()
    # Without the server's destructor: it waits for the prompts under way.
    os._exit(0)


def _gpus() -> int:
    """How many there are. llama.cpp uses an integrated one only where there is no other."""
    kinds = xllamacpp.ggml_backend_dev_type
    types = [device["type"] for device in xllamacpp.get_device_info()]
    return types.count(kinds.GGML_BACKEND_DEVICE_TYPE_GPU) or types.count(
        kinds.GGML_BACKEND_DEVICE_TYPE_IGPU
    )


def _end_with_standard_input() -> None:
    # The kernel has to do it: a load holds the interpreter's lock, so no thread could notice. Linux
    # ends a process that does not handle SIGIO; elsewhere the end is seen once the load is over.
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)


def _server(fields: Fields) -> Any:  # noqa: ANN401 - xllamacpp is not typed
    params = xllamacpp.CommonParams()
    for name, value in fields.items():
        _set(params, name, value)
    gpus, gpu = _gpus(), fields.get("main_gpu")
    if gpu is not None and gpu >= gpus:
        raise ValueError(f"there is no GPU {gpu}")  # llama.cpp would use the processor
    # Finding out how many layers fit on GPUs is a quarter of a small model's load.
    params.fit_params = gpus > 0
    server = xllamacpp.Server(params)
    if params.embedding and "error" in server.handle_embeddings({"input": ["pool"]}):
        # The model was not trained to embed, and does not say how its tokens become one vector.
        # The destructor waits for ever for a loop that has not begun yet; the loop answers this.
        server.handle_metrics()
        del server
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
        server = xllamacpp.Server(params)
    return server


def _set(params: Any, name: str, value: Any) -> None:  # noqa: ANN401 - as above
    *path, last = name.split(".")
    holder = reduce(getattr, path, params)
    default = getattr(holder, last)
    if last == "tensor_split":  # takes only a list of its own length
        value = [*value, *default[len(value) :]]
    setattr(holder, last, type(default)[value] if isinstance(default, Enum) else value)


if __name__ == "__main__":
    main()
