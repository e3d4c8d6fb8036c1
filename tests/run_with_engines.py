"""Runs pytest, with its arguments, beside engines that need more than wheels: `make test-all`.

- llama-cpp-python is built from source, for which there must be a C++ compiler.
- psycopg, Ray, Dask and DuckDB are installed. The tests start clusters of Ray and Dask, and a
  PostgreSQL of their own, if its programs are there.
- vLLM is started by the script that `VLLM_START` names. It takes a port, prints the process id and
  address of the server, and leaves it running; it is ended here.

What is not there is skipped, and it is said why.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def main() -> int:
    # Side by side: the one computes, the other is downloaded.
    with vllm() as address:
        install_extras()
        url = address()
        environment = os.environ | ({"HARNESS_TEST_VLLM_URL": url} if url else {})
        # The output of a skipped test says why it was.
        command = [sys.executable, "-m", "pytest", "-rs", *sys.argv[1:]]
        return subprocess.run(command, env=environment, check=False).returncode


def install_extras() -> None:
    extras = "plugins,postgres,ray"
    if any(map(shutil.which, ("c++", "g++", "clang++"))):
        extras += ",llama-cpp"
        print("building llama-cpp-python, once (some minutes) ...", flush=True)
    else:
        print("llama-cpp-python is not built: there is no C++ compiler", flush=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    # Some virtual machines announce instructions (AMX) that end the process which uses them. Images
    # are not tested, and to build what reads them takes a minute or more.
    how = "-DGGML_NATIVE=OFF -DLLAVA_BUILD=OFF"
    portable = {"CMAKE_ARGS": os.environ.get("CMAKE_ARGS", how)}
    # Nor a wheel that an earlier build left in the cache, whatever its options were.
    install = [*pip, "install", "--no-cache-dir", "--editable", f".[{extras}]"]
    subprocess.run(install, env=os.environ | portable, check=True)


@contextmanager
def vllm() -> Iterator[Callable[[], str | None]]:
    """Starts a vLLM and ends it with the block.

    Yields:
        A function that waits until it is up and returns its address, or None if there is no vLLM.
    """
    if url := os.environ.get("HARNESS_TEST_VLLM_URL"):
        yield lambda: url
        return
    script = os.environ.get("VLLM_START", "")
    if not Path(script).is_file():
        print(f"vLLM is not started: VLLM_START is '{script}', and no such file", flush=True)
        yield lambda: None
        return
    print("starting vLLM (some minutes the first time) ...", flush=True)
    command = ["bash", script, str(free_port())]
    with tempfile.TemporaryFile("w+") as said:
        starting = subprocess.Popen(command, stdout=said)

        def running() -> re.Match[str]:
            failed = starting.wait()
            said.seek(0)
            text = said.read()
            found = re.search(r"pid (\d+), (http\S+)", text)
            if failed or not found:
                raise SystemExit(f"vLLM did not start:\n{text}")
            return found

        try:
            yield lambda: running()[2].removesuffix("/v1")
        finally:
            os.kill(int(running()[1]), signal.SIGTERM)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
