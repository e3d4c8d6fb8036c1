"""llama.cpp inside this process, by way of the `xllamacpp` wheel.

Loading a model starts llama.cpp's own server on a loopback port of the system's choosing; calls
then take the same wire as to any other server.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from harness.errors import ModelFileInvalid, ServerError
from harness.inference.completion import Completion
from harness.inference.endpoint import Endpoint
from harness.inference.openai_wire import OpenAIWire
from harness.inference.request import ChatRequest
from harness.trace import Clock, monotonic


class EmbeddedLlamaCpp:
    """One GGUF model, resident between `load` and `unload`.

    Args:
        endpoint: The file, its context and slots; `path` must be set.
        clock: The caller's clock.
    """

    def __init__(self, endpoint: Endpoint, *, clock: Clock = monotonic) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._server: Any = None
        self._wire: OpenAIWire | None = None

    async def load(self) -> None:
        """Makes the model resident; takes from tenths of a second to minutes.

        Raises:
            ModelFileInvalid: The file is missing or llama.cpp refuses it.
        """
        path = self._endpoint.path
        assert path is not None
        if not path.is_file():
            raise ModelFileInvalid(
                f"there is no such file; set path of endpoint '{self._endpoint.tag}' to a GGUF",
                path=path,
            )
        try:
            self._server = await asyncio.to_thread(_start_server, self._endpoint)
        except (RuntimeError, ValueError) as error:
            raise ModelFileInvalid(f"llama.cpp cannot load it ({error})", path=path) from error
        served = self._endpoint.model_copy(
            update={
                "backend": "llamacpp",
                "path": None,
                "url": f"{self._server.listening_address}/v1",
            }
        )
        self._wire = OpenAIWire(served, clock=self._clock)

    async def unload(self) -> None:
        """Gives the memory back; no call may be under way."""
        if self._wire is not None:
            await self._wire.aclose()
            self._wire = None
        # The list holds the only reference, so the engine is torn down in the thread that clears
        # it, and the event loop does not wait.
        last_reference, self._server = [self._server], None
        await asyncio.to_thread(last_reference.clear)

    async def chat(self, request: ChatRequest) -> Completion:
        """One reply, whole; see `Backend.chat`."""
        if self._wire is None:
            raise ServerError("the model is not loaded", endpoint=self._endpoint.tag)
        return await self._wire.chat(request)

    async def aclose(self) -> None:
        """Unloads the model."""
        await self.unload()


def _start_server(endpoint: Endpoint) -> Any:  # noqa: ANN401 - xllamacpp is not typed
    # Here rather than at the top: the engine is 34 MB and needed only once a model loads.
    import xllamacpp  # noqa: PLC0415

    params = xllamacpp.CommonParams()
    params.model.path = str(endpoint.path)
    # llama.cpp divides the context between the slots; an endpoint states it per call.
    params.n_ctx = endpoint.context_tokens * endpoint.slots
    params.n_parallel = endpoint.slots
    threads = endpoint.threads or max(1, (os.cpu_count() or 2) - 1)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.verbosity = -1
    return xllamacpp.Server(params)
