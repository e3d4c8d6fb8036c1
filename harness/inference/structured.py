"""Typed replies: a JSON Schema made from a Python type, and the reply parsed back into it.

Also detects whether a server enforces schemas. It may accept one and silently ignore it: Ollama has
done so with thinking models, llama-server does with a schema in another place. So the first call
with a schema is preceded by a probe, which asks for a greeting under a schema that allows only
something else.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from inspect import isroutine
from typing import Any, Generic, TypedDict, TypeVar

import orjson
from pydantic import ConfigDict, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic_core import SchemaError

from harness.errors import ConfigurationInvalid, InferenceError, ReplyInvalid, ServerError
from harness.inference.call_spans import token_counts
from harness.inference.completion import Completion, StructuredMode
from harness.inference.request import (
    ChatRequest,
    JsonSchema,
    Message,
    Prompt,
    as_messages,
    as_texts,
)
from harness.inference.whole_reply import OnCut
from harness.trace import Tracer

T = TypeVar("T")
Ask = Callable[[ChatRequest], Awaitable[Completion]]

_FENCED = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)
_UNENFORCED: dict[StructuredMode | None, str] = {
    "advisory": ". The server does not enforce schemas; the model was only told of it",
    "ignored": ". The server took no notice of the schema; the model was only told of it",
}


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
"""Statuses with which servers refuse a schema."""
_KEPT = f'{{"word":"{_WORD}"}}'


class ReplyType(Generic[T]):
    """A type that replies are asked for in.

    Servers enforce objects, not every one enforces a bare list or number. So a type whose schema is
    not an object travels as `{"answer": …}` and is unwrapped again.

    Raises:
        ConfigurationInvalid: It is no type, or one without a JSON Schema.
    """

    def __init__(self, python_type: type[T]) -> None:
        if isinstance(python_type, str) or isroutine(python_type):
            raise _unusable(python_type, "it is no type")
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(python_type)
            self._wrapped = self._adapter.json_schema().get("type") != "object"
            if self._wrapped:
                self._adapter = TypeAdapter(_envelope(python_type))
            self.schema: JsonSchema = self._adapter.json_schema()
        except (PydanticUserError, PydanticUndefinedAnnotation, SchemaError) as error:
            raise _unusable(python_type, getattr(error, "message", str(error))) from error

    def parse(self, completion: Completion, *, endpoint: str) -> T:
        """The reply as a value.

        A model that is only told of the schema likes to put its JSON into a fence, or between two
        sentences: that is looked through. The value itself has to be of the type, to the letter.

        Raises:
            ReplyInvalid: The text is not JSON of this type; if the token limit cut it, it says so.
        """
        text = completion.text
        try:
            parsed = self._adapter.validate_json(json_in(text))
        except ValidationError as error:
            why = (
                "max_output_tokens cut it short; raise it"
                if completion.finish_reason == "length"
                else "; ".join(f"{_path(e['loc'])}{e['msg']}" for e in error.errors()[:3])
            )
            raise ReplyInvalid(
                f"the reply does not match the type asked for: {why}. It begins: {text[:160]!r}"
                + _UNENFORCED.get(completion.structured, ""),
                endpoint=endpoint,
                text=text,
                problem=why,
            ) from error
        value: T = parsed.answer if self._wrapped else parsed
        return value


class ChatOptions(TypedDict, total=False):
    """What every form of `chat` takes."""

    max_output_tokens: int | None
    """Where the reply is cut. When left out, where the model's context or a limit of the run ends
    it."""
    on_cut: OnCut
    """What becomes of a reply that was cut, filtered or has no text: `error` raises, `keep` takes
    it as it is, and `continue` asks for the rest, a few times at most, and joins it."""
    temperature: float
    """0, which is greedy, when left out."""
    top_p: float | None
    """Draws from the likeliest tokens that together have this probability."""
    top_k: int | None
    """Draws from so many of the likeliest tokens."""
    min_p: float | None
    """Draws from tokens that have this share of the likeliest one's probability."""
    frequency_penalty: float
    """From 0 to 2; keeps small models from saying one thing for ever."""
    seed: int | None
    """Makes sampling repeatable where the server can."""
    stop: Sequence[str]
    """Texts that end the reply."""
    timeout_s: float | None
    """Longest that it may take, if less than the endpoint's."""
    priority: int
    """Of calls that wait here for one endpoint, the highest goes first."""


def chat_request(
    prompt: Prompt,
    *,
    returns: Any = None,  # noqa: ANN401 - a type, annotated perhaps
    stop: Sequence[str] = (),
    **fields: Any,  # noqa: ANN401
) -> tuple[ChatRequest, ReplyType[Any] | None]:
    """A call as users write it, with the type of its reply, if one is given.

    Raises:
        InvalidInput: An argument cannot be used.
        ConfigurationInvalid: The type has no JSON Schema.
    """
    reply_type = None if returns in (None, Completion) else ReplyType(returns)
    request = ChatRequest(
        messages=as_messages(prompt),
        stop=as_texts(stop),
        reply_schema=None if reply_type is None else reply_type.schema,
        **fields,
    )
    return request, reply_type


class FoundOnce(Generic[T]):
    """What is found out when it is first needed, by one for all.

    Attributes:
        known: None until it is.
    """

    def __init__(self, known: T | None = None) -> None:
        self.known = known
        # The search under way; done with its error, if it has failed.
        self._finding: asyncio.Future[None] | None = None

    async def found(self, find: Callable[[], Awaitable[T]]) -> T:
        """What is known, or what `find` returns: calls side by side share it, and its error."""
        while self.known is None:
            if self._finding is None:
                return await self._find(find)
            # `wait`, since a call that gives up waiting must not end the search of the others.
            finding = self._finding
            await asyncio.wait([finding])
            if not finding.cancelled() and (error := finding.exception()):
                raise error
        return self.known

    async def _find(self, find: Callable[[], Awaitable[T]]) -> T:
        self._finding = finding = asyncio.get_running_loop().create_future()
        try:
            self.known = known = await find()
        except InferenceError as error:
            finding.set_exception(error)
            finding.exception()  # perhaps no other call waits for it
            raise
        finally:
            self._finding = None
            if not finding.done():
                finding.cancel()
        return known


class SchemaKnowledge:
    """What one model's server does with schemas, found out once; its tags share it.

    `mode` is what is known without a probe.
    """

    def __init__(self, mode: StructuredMode | None = None) -> None:
        self._mode: FoundOnce[StructuredMode] = FoundOnce(mode)
        # Whether the server answers a schema with an error: then it is sent none.
        self._refused = False

    async def fit(
        self, request: ChatRequest, ask: Ask, *, tracer: Tracer
    ) -> tuple[ChatRequest, StructuredMode]:
        """A call with a schema as its server should get it, and what becomes of the schema there.

        Where the server does not enforce schemas, the model is told of it in words, at the very end
        of the prompt.
        """
        mode = await self._mode.found(partial(self._probe, request, ask, tracer))
        if mode == "enforced":
            return request, mode
        assert request.reply_schema is not None
        told = replace(request, messages=_with_schema(request.messages, request.reply_schema))
        return (replace(told, reply_schema=None) if self._refused else told), mode

    def learn(self, error: ServerError) -> bool:
        """Whether the server refused a schema that it was not known to refuse."""
        if self._refused or self._mode.known == "enforced" or error.status not in _REFUSALS:
            return False
        self._refused = True
        return True

    async def _probe(self, request: ChatRequest, ask: Ask, tracer: Tracer) -> StructuredMode:
        probe = ChatRequest(
            model=request.model,
            role=request.role,
            messages=(Message("user", _PROBE_PROMPT),),
            max_output_tokens=_PROBE_TOKENS,
            reply_schema=_PROBE_SCHEMA,
        )
        with tracer.span("schema probe", model=request.model) as span:
            try:
                reply = await ask(probe)
            except ServerError as error:
                if error.status not in _REFUSALS:
                    raise
                self._refused = True
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
        return "advisory"  # it thought all the while, which tells nothing
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


def _unusable(python_type: object, why: str) -> ConfigurationInvalid:
    name = getattr(python_type, "__name__", None) or repr(python_type)
    return ConfigurationInvalid(
        f"returns={name}: {why}; give a pydantic model, a dataclass, a builtin type such as "
        "list[str], or any of these annotated",
        code="reply.type-unusable",
    )


def json_in(text: str) -> str:
    """The object in a text: all of it, what is fenced, or from the first brace to the last."""
    if text.lstrip().startswith("{"):
        return text
    fenced = _FENCED.search(text)
    found = fenced[1] if fenced else text[text.find("{") : text.rfind("}") + 1]
    return found or text


def _envelope(python_type: type[Any]) -> Any:  # noqa: ANN401 - a class made here has no static type
    return create_model("Reply", __config__=ConfigDict(extra="forbid"), answer=(python_type, ...))


def _path(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location) + ": " if location else ""
