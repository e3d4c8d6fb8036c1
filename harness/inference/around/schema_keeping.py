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

from harness.errors import InferenceError, ServerError
from harness.inference.around.traced import token_counts
from harness.inference.around.wrapper import R, T, Wrapper
from harness.inference.backend import Backend
from harness.inference.completion import Completion, StructuredMode
from harness.inference.request import ChatRequest, JsonSchema, Message
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
_REFUSALS = {400, 422, 501}
"""What a server answers that does not know schemas."""
_KEPT = f'{{"word":"{_WORD}"}}'


class SchemaKnowledge:
    """What is known of what one model's server does with schemas; its tags share it.

    Args:
        mode: What is known without a probe.
    """

    def __init__(self, mode: StructuredMode | None = None) -> None:
        self.mode = mode
        self.refused = False
        """Whether it answers a schema with an error: then it is not sent any."""
        self.probing: asyncio.Future[None] | None = None
        """The probe under way; done with its error, if it has failed."""


class SchemaKeeping(Wrapper):
    """A backend of which it is known what it does with schemas.

    Where it does not enforce them, the model is told of the schema in words, at the very end of the
    prompt. Every completion says what became of its schema.

    Args:
        backend: Answers, and is probed before the first call with a schema.
        tracer: Sees the probe.
        known: Learns what comes of it.
    """

    def __init__(
        self, backend: Backend, *, tracer: Tracer, known: SchemaKnowledge | None = None
    ) -> None:
        super().__init__(backend)
        self._tracer = tracer
        self._known = known or SchemaKnowledge()

    async def around(self, request: R, ask: Callable[[R], Awaitable[T]]) -> T:
        """Nothing but a chat has a schema."""
        return await ask(request)

    async def chat(self, request: ChatRequest) -> Completion:
        """One reply, whole; see `Backend.chat`."""
        if request.reply_schema is None:
            return await self._backend.chat(request)
        mode = await self._find_out(request)
        if mode == "enforced":
            return replace(await self._backend.chat(request), structured=mode)
        told = replace(request, messages=_with_schema(request.messages, request.reply_schema))
        if not self._known.refused:
            try:
                return replace(await self._backend.chat(told), structured=mode)
            except ServerError as error:
                if error.status not in _REFUSALS:
                    raise
                self._known.refused = True
        unsent = replace(told, reply_schema=None)
        return replace(await self._backend.chat(unsent), structured=mode)

    async def _find_out(self, request: ChatRequest) -> StructuredMode:
        known = self._known
        while known.mode is None:
            if known.probing is None:
                return await self._probe_for_all(request)
            # `wait`, since who gives up waiting must not end the probe of the others.
            probing = known.probing
            await asyncio.wait([probing])
            if not probing.cancelled() and (error := probing.exception()):
                raise error
        return known.mode

    async def _probe_for_all(self, request: ChatRequest) -> StructuredMode:
        """Calls side by side have one probe, and if it fails, its error."""
        known = self._known
        known.probing = probing = asyncio.get_running_loop().create_future()
        try:
            known.mode = mode = await self._probe(request)
        except InferenceError as error:
            probing.set_exception(error)
            probing.exception()  # nobody else may be waiting for it
            raise
        finally:
            known.probing = None
            if not probing.done():
                probing.cancel()
        return mode

    async def _probe(self, request: ChatRequest) -> StructuredMode:
        probe = ChatRequest(
            model=request.model,
            role=request.role,
            messages=(Message("user", _PROBE_PROMPT),),
            max_output_tokens=_PROBE_TOKENS,
            reply_schema=_PROBE_SCHEMA,
            timeout_s=request.timeout_s,
            deadline=request.deadline,
            gate=request.gate,
        )
        with self._tracer.span("schema probe", model=request.model) as span:
            try:
                reply = await self._backend.chat(probe)
            except ServerError as error:
                if error.status not in _REFUSALS:
                    raise
                self._known.refused = True
                span.set(schema="advisory")
                return "advisory"
            mode = mode_of(reply)
            span.set(schema=mode, model_id=reply.model_id, cost_usd=reply.cost_usd)
            if reply.usage is not None:
                span.set(**token_counts(reply.usage))
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
