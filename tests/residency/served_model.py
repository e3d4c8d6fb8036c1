"""llama.cpp's server in a process of its own, as a program: a model file, a port.

Says a line when it listens, and ends when its standard input does: with whoever started it.
"""

import os
import sys


def serve(path: str, port: int) -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = path
    params.port = port
    params.n_ctx = 1024
    params.n_parallel = 2
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.n_batch = 128
    params.endpoint_metrics = True
    params.verbosity = -1
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.buffer.read()
    # Tearing the engine down would wait for what it is computing.
    os._exit(0)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
