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
    """The number of GPUs that llama.cpp uses."""
    kinds = xllamacpp.ggml_backend_dev_type
    types = [device["type"] for device in xllamacpp.get_device_info()]
    # It uses an integrated GPU only where there is no other.
    return types.count(kinds.GGML_BACKEND_DEVICE_TYPE_GPU) or types.count(
        kinds.GGML_BACKEND_DEVICE_TYPE_IGPU
    )


def _end_with_standard_input() -> None:
    """Has the kernel end this process when its standard input closes."""
    # No thread could notice that during a load, which holds the interpreter's lock. Linux ends a
    # process that does not handle SIGIO; elsewhere the end is noticed once the load is over.
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)


def _server(fields: Fields) -> Any:  # noqa: ANN401 - xllamacpp is not typed
    params = xllamacpp.CommonParams()
    for name, value in fields.items():
        _set(params, name, value)
    gpus = _gpus()
    main_gpu = fields.get("main_gpu")
    if main_gpu is not None and main_gpu >= gpus:
        raise ValueError(f"there is no GPU {main_gpu}")  # llama.cpp would use the processor
    # Only with a GPU: finding out how many layers fit takes a quarter of a small model's load.
    params.fit_params = gpus > 0
    server = xllamacpp.Server(params)
    if params.embedding and "error" in server.handle_embeddings({"input": ["pool"]}):
        # The model was not trained to embed, and does not say how its tokens become one vector.
        # The server's destructor would wait for ever if the server's loop had not begun yet. Its
        # loop answers this question, and so has begun after it.
        server.handle_metrics()
        del server
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
        server = xllamacpp.Server(params)
    return server


def _set(params: Any, path: str, value: Any) -> None:  # noqa: ANN401 - as above
    *owners, name = path.split(".")
    owner = reduce(getattr, owners, params)
    default = getattr(owner, name)
    if isinstance(default, Enum):
        value = type(default)[value]
    elif name == "tensor_split":
        # It takes only a list of the same length.
        value = [*value, *default[len(value) :]]
    setattr(owner, name, value)


if __name__ == "__main__":
    main()
