"""llama.cpp inside this process, by way of the `llama-cpp-python` package.

That package is compiled where it is installed, and so for whatever that machine computes with; the
wheel behind `embedded` comes ready-made. It reads and writes one sequence: calls wait for each
other. What it keeps of the last call is the next one's prefix cache.

Not everything in a schema is enforced: its converter to grammars passes over the bounds of numbers.
While it loads a file, whatever this process writes to stdout and stderr is lost: that is how the
package silences llama.cpp. A load that has begun goes on to its end: `load_timeout_s` is not kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from harness.errors import NotOffered, ServerError
from harness.inference.completion import Completion, Embeddings, Phase
from harness.inference.endpoint import Endpoint
from harness.inference.engines.llama_cpp_engine import LlamaCppEngine, Piece
from harness.inference.refused_fields import RefusedFields
from harness.inference.reply_in_progress import ReplyInProgress
from harness.inference.request import ChatRequest, CountRequest, EmbedRequest, Request
from harness.inference.time_limits import TimeLimits
from harness.inference.to_its_end import to_its_end
from harness.inference.wire.openai_request import wire_fields
from harness.trace import Clock, monotonic

_LEFT_OUT: Mapping[str, Any] = {
    "temperature": 0.8,
    "top_p": None,
    "top_k": None,
    "min_p": None,
    "frequency_penalty": 0.0,
    "seed": None,
    "top_logprobs": None,
}
"""What llama.cpp takes for a field that is not sent."""


class LlamaCppPython:
    """One GGUF model, resident between `load` and `unload`.

    Args:
        endpoint: The file and its context; `path` must be set.
        clock: The caller's clock.
    """

    def __init__(self, endpoint: Endpoint, *, clock: Clock = monotonic) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._engine: LlamaCppEngine | None = None
        self._turn = asyncio.Lock()
        self._refused = RefusedFields(endpoint.drop)

    @property
    def is_loaded(self) -> bool:
        """Whether calls can begin."""
        return self._engine is not None

    async def load(self) -> None:
        """Makes the model resident; takes from tenths of a second to minutes.

        Raises:
            ModelFileInvalid: The file is missing or llama.cpp refuses it.
            LoadFailed: There is no memory for it, or no GPU.
            ConfigurationInvalid: The package is not installed.
        """
        try:
            await to_its_end(self._start)
        except asyncio.CancelledError:
            await self.unload()
            raise

    async def unload(self) -> None:
        """Gives the memory back; a call that is under way is cut off."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await to_its_end(engine.close)

    async def chat(self, request: ChatRequest) -> Completion:
        """One reply, whole; see `Backend.chat`."""
        if self._endpoint.embeddings:
            raise NotOffered(
                "a model that is loaded to embed does not chat; unset the endpoint's embeddings",
                endpoint=self._endpoint.tag,
            )
        _, dropped = self._refused.without(wire_fields(request, self._endpoint.model_id))
        asked = replace(request, **{name: _LEFT_OUT[name] for name in _LEFT_OUT if name in dropped})
        asked_ns = self._clock()
        async with self._in_turn(request) as (engine, limits):
            progress = ReplyInProgress(asked, clock=self._clock, arrived=limits.token_arrived)
            steps = engine.reply(asked)
            while isinstance(step := await engine.compute(partial(next, steps)), Piece):
                progress.add(step.text, logprobs=step.logprobs)
            progress.end()
            completion = progress.completion(
                finish_reason=step.finish_reason,
                usage=step.usage,
                model_id=self._endpoint.model_id,
                reported=step.timings,
                dropped=dropped,
            )
        waited = Phase(
            name="queue", start_ns=asked_ns, end_ns=completion.sent_ns, source="measured"
        )
        return replace(
            completion,
            sent_ns=asked_ns,
            phases=(waited, *completion.phases),
            structured=None if request.reply_schema is None else "enforced",
        )

    async def embed(self, request: EmbedRequest) -> Embeddings:
        """One vector of length 1 per text; see `Backend.embed`.

        Of a model that names no pooling it is the mean over the text's tokens.
        """
        if not self._endpoint.embeddings:
            raise NotOffered(
                "the model is loaded to chat; set the endpoint's embeddings to true",
                endpoint=self._endpoint.tag,
            )
        async with self._in_turn(request) as (engine, _):
            vectors, input_tokens = await engine.compute(partial(engine.embed, request.texts))
        return Embeddings(
            vectors=vectors, input_tokens=input_tokens, model_id=self._endpoint.model_id
        )

    async def count_tokens(self, request: CountRequest) -> int:
        """How many tokens a prompt is; see `Backend.count_tokens`."""
        async with self._in_turn(request) as (engine, _):
            return len(await engine.compute(partial(engine.prompt, request.messages)))

    async def aclose(self) -> None:
        """Unloads the model."""
        await self.unload()

    @asynccontextmanager
    async def _in_turn(self, request: Request) -> AsyncIterator[tuple[LlamaCppEngine, TimeLimits]]:
        async with TimeLimits(self._endpoint, timeout_s=request.timeout_s) as limits, self._turn:
            if self._engine is None:
                raise ServerError(
                    "the model is not loaded; load it first", endpoint=self._endpoint.tag
                )
            yield self._engine, limits

    def _start(self) -> None:
        self._engine = LlamaCppEngine(self._endpoint)
