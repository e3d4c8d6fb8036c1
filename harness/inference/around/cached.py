"""A backend whose calls are answered as they were before, if they were made before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace

import orjson
from pydantic import TypeAdapter

from harness.errors import ModelFileInvalid
from harness.inference.around.call_cache import CallCache
from harness.inference.around.wrapper import R, T, Wrapper
from harness.inference.backend import Backend
from harness.inference.completion import Completion
from harness.inference.endpoint import Endpoint
from harness.inference.request import ChatRequest
from harness.trace import Clock

_FORMAT = 1
"""Of keys and of stored completions: to be raised with any change to either."""

_COMPLETION = TypeAdapter(Completion)

_DECIDES = {
    "backend",
    "url",
    "model_id",
    "context_tokens",
    "drop",
    "prompt_template",
    "structured",
}
"""What of an endpoint decides its replies, beside the file."""


class Cached(Wrapper):
    """Asks only for chats that are new; the others' replies come from the cache.

    Only calls that are meant to be answered alike every time are looked up and kept: greedy ones,
    and those with a seed. That the server has come to serve other weights by the same name is not
    noticed.

    Args:
        backend: Asked when the cache does not know.
        cache: May be shared between backends; not closed by this one.
        identity: Tells the model's replies from those of others: see `reply_identity`.
        clock: The caller's clock.
    """

    def __init__(self, backend: Backend, *, cache: CallCache, identity: str, clock: Clock) -> None:
        super().__init__(backend)
        self._cache = cache
        self._identity = identity
        self._clock = clock

    async def chat(self, request: ChatRequest) -> Completion:
        """One reply, whole; see `Backend.chat`."""
        if request.temperature != 0 and request.seed is None:
            return await self._backend.chat(request)
        asked_ns = self._clock()
        key = call_key(request, identity=self._identity)
        known = read_completion(await self._cache.find(key))
        if known is None:
            completion = await self._backend.chat(request)
            if _is_repeatable(request, completion):
                self._cache.keep(key, completion_as_text(completion))
            return completion
        return answer_again(known, request, asked_ns=asked_ns)

    async def around(self, request: R, ask: Callable[[R], Awaitable[T]]) -> T:
        """Asks: vectors and token counts are not kept."""
        return await ask(request)


def _is_repeatable(request: ChatRequest, completion: Completion) -> bool:
    """Whether the reply would come again: a field that the model refuses may have made it so."""
    if "seed" in completion.dropped:
        return request.temperature == 0 and "temperature" not in completion.dropped
    return request.seed is not None or "temperature" not in completion.dropped


def call_key(request: ChatRequest, *, identity: str) -> str:
    """The same for two calls if one reply answers both: SHA-256, hexadecimal.

    What a call is for, how long it may take and who listens makes no difference.
    """
    schema = request.reply_schema
    content = {
        "format": _FORMAT,
        "identity": identity,
        "goes_on": request.goes_on,
        "messages": [[message.role, message.content] for message in request.messages],
        "max_output_tokens": request.max_output_tokens,
        "temperature": float(request.temperature),
        # Left out when they are not set: keys from before there were such fields stay the same.
        **request.cutoffs,
        "frequency_penalty": float(request.frequency_penalty),
        "seed": request.seed,
        "stop": request.stop,
        # As it is written: the order of its fields becomes that of the reply's.
        "reply_schema": None if schema is None else orjson.dumps(schema).decode(),
        "top_logprobs": request.top_logprobs,
    }
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


def reply_identity(endpoint: Endpoint) -> str:
    """A text that two endpoints share only if they would reply alike.

    A file is known by its place, size and time of change.

    Raises:
        ModelFileInvalid: The file is not there.
    """
    said = endpoint.model_dump(mode="json", include=_DECIDES)
    if endpoint.path is not None:
        try:
            file = endpoint.path.stat()
        except OSError as error:
            raise ModelFileInvalid(
                f"cannot be read ({error.strerror})", path=endpoint.path
            ) from error
        said["file"] = [str(endpoint.path.resolve()), file.st_size, file.st_mtime_ns]
    return orjson.dumps(said, option=orjson.OPT_SORT_KEYS).decode()


def completion_as_text(completion: Completion) -> str:
    """A completion as it is kept."""
    return json.dumps(asdict(completion))


def read_completion(text: str | None) -> Completion | None:
    """A completion as it was kept; None for none, or what is none."""
    try:
        # Python's own json, as on writing: a log probability may be minus infinity.
        return None if text is None else _COMPLETION.validate_python(json.loads(text))
    except ValueError:
        return None


def answer_again(known: Completion, request: ChatRequest, *, asked_ns: int) -> Completion:
    """The same reply, without what the call that it is from took and cost.

    Args:
        known: The reply.
        request: What it answers now; who listens is told.
        asked_ns: When, by the caller's clock.
    """
    if request.on_text and known.text:
        request.on_text(known.text)
    return replace(
        known,
        sent_ns=asked_ns,
        first_token_ns=None,
        phases=(),
        itl=None,
        # Of a model without prices, nothing is to be said.
        cost_usd=None if known.cost_usd is None else 0.0,
        from_cache=True,
    )
