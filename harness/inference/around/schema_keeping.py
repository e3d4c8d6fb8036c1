"""What becomes of the schema of a reply: found out once, and made the best of.

A server may take a schema and not keep to it, with a status of 200 and no word: Ollama has done so
with thinking models, llama-server does with a schema in another place. So the first call that has
one is preceded by a probe: it asks for a greeting, under a schema that allows something else alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import orjson

from harness.errors import ServerError
from harness.inference.around.wrapper import R, T, Wrapper
from harness.inference.backend import Backend
from harness.inference.completion import Completion, StructuredMode
from harness.inference.message import Message
from harness.inference.request import ChatRequest, JsonSchema
from harness.trace import Tracer

_WORD = "owl-7f3a"
_PROBE_SCHEMA: JsonSchema = {
    "type": "object",
    "properties": {"word": {"type": "string", "enum": [_WORD]}},
    "required": ["word"],
    "additionalProperties": False,
}
_PROBE_PROMPT = "Say hello, in one short sentence."
_PROBE_TOKENS = 256
"""A greeting takes ten; a model that thinks aloud first takes more."""
_KEPT = f'{{"word":"{_WORD}"}}'


class SchemaKeeping(Wrapper):
    """A backend of which it is known what it does with schemas.

    Where it does not enforce them, the model is told of the schema in words, at the very end of the
    prompt. Every completion says what became of its schema.

    Args:
        backend: Answers, and is probed before the first call with a schema.
        tracer: Sees the probe.
        known: What is known without a probe.
    """

    def __init__(
        self, backend: Backend, *, tracer: Tracer, known: StructuredMode | None = None
    ) -> None:
        super().__init__(backend)
        self._tracer = tracer
        self._mode = known
        self._refused = False
        self._probing = asyncio.Lock()

    async def around(self, request: R, ask: Callable[[R], Awaitable[T]]) -> T:
        """Nothing but a chat has a schema."""
        return await ask(request)

    async def chat(self, request: ChatRequest) -> Completion:
        """One reply, whole; see `Backend.chat`."""
        if request.reply_schema is None:
            return await self._backend.chat(request)
        mode = await self._known_mode(request)
        if mode != "enforced":
            request = replace(
                request,
                messages=_with_schema(request.messages, request.reply_schema),
                reply_schema=None if self._refused else request.reply_schema,
            )
        return replace(await self._backend.chat(request), structured=mode)

    async def _known_mode(self, request: ChatRequest) -> StructuredMode:
        if self._mode is None:
            # Calls side by side wait for the one probe.
            async with self._probing:
                if self._mode is None:
                    self._mode = await self._probe(request)
        return self._mode

    async def _probe(self, request: ChatRequest) -> StructuredMode:
        probe = ChatRequest(
            model=request.model,
            role=request.role,
            messages=(Message("user", _PROBE_PROMPT),),
            max_output_tokens=_PROBE_TOKENS,
            reply_schema=_PROBE_SCHEMA,
            timeout_s=request.timeout_s,
        )
        with self._tracer.span("schema probe", model=request.model) as span:
            try:
                mode = mode_of(await self._backend.chat(probe))
            except ServerError as error:
                if error.status not in {400, 422, 501}:
                    raise
                # It refuses schemas as such: then it is not sent any.
                self._refused, mode = True, "advisory"
            span.set(schema=mode)
        return mode


def mode_of(reply: Completion) -> StructuredMode:
    """What a server made of the probe's schema."""
    said = "".join(reply.text.split())
    if reply.finish_reason == "length" and not said:
        return "advisory"  # it has thought all the while, and nothing is known
    # Blanks between the tokens of JSON may have used up the limit.
    if said == _KEPT or (reply.finish_reason == "length" and _KEPT.startswith(said)):
        return "enforced"
    try:
        orjson.loads(reply.text)
    except orjson.JSONDecodeError:
        return "ignored"
    return "advisory"


def _with_schema(messages: tuple[Message, ...], schema: JsonSchema) -> tuple[Message, ...]:
    *before, last = messages
    told = (
        f"{last.content}\n\nAnswer with JSON alone, without any other text, that matches this JSON "
        f"Schema:\n{orjson.dumps(schema).decode()}"
    )
    return (*before, replace(last, content=told))
