"""Typed replies: a JSON Schema made from a Python type, and the reply parsed back into it.

Also detects whether a server enforces schemas. It may accept one and silently ignore it: Ollama has
done so with thinking models, llama-server does with a schema in another place. So the first call
with a schema is preceded by a probe, which asks for a greeting under a schema that allows only
something else.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from functools import partial
from inspect import isroutine
from itertools import islice
from math import isfinite
from typing import Any, Generic, TypeVar

import orjson
from pydantic import ConfigDict, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic_core import ErrorDetails, SchemaError

from harness.errors import ConfigurationInvalid, InferenceError, ReplyInvalid, ServerError
from harness.inference.call_spans import token_counts
from harness.inference.completion import Completion, StructuredMode, is_visible, why_no_text
from harness.inference.json_text import DECODER, objects_in, values_in
from harness.inference.request import ChatRequest, JsonSchema, Message
from harness.inference.strict_schema import plain, strict_schema
from harness.trace import Span, Tracer, events

T = TypeVar("T")
Ask = Callable[[ChatRequest], Awaitable[Completion]]

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
_PROBE_TOKENS = 256  # a greeting takes ten; a model that thinks aloud first takes more
_REFUSALS = {400, 422, 501}  # statuses with which servers refuse a schema
# Refusals of a schema, also with 500 (llama-server, SGLang), and no others: each costs a call.
_ABOUT_SCHEMAS = re.compile(
    r"schema|grammar|response_format|\bjson|\bformat\b|guided|structured|propert|keyword"
    r"|\bpattern\b|\benum|\$ref|recursi|context=|[a-z](?:Of|Items|Length)\b",
    re.IGNORECASE,
)
_KEPT = f'{{"word":"{_WORD}"}}'  # what the probe's schema allows

_SCALARS = {"string", "integer", "number", "boolean"}
_FENCED = re.compile(r"^(`{3,}|~{3,})[\w+-]*\s*\n(.*)\n\s*\1$", re.DOTALL)
_AROUND_WORDS = " \t\r\n.`*\"'“”„\u2018\u2019«»"


class ReplyType(Generic[T]):
    """A type that replies are asked for in; raises `ConfigurationInvalid` without a JSON Schema."""

    def __init__(self, python_type: type[T]) -> None:
        # For a function, pydantic would take the type of its arguments.
        if isinstance(python_type, str) or isroutine(python_type):
            raise _unusable(python_type, "it is no type")
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(python_type)
            self._bare = self._adapter
            # Servers enforce objects, not every one enforces a bare list or number: those travel as
            # `{"answer": …}`, and without it they count as well.
            bare_schema = self._adapter.json_schema()
            self._wrapped = bare_schema.get("type") != "object"
            self._is_scalar = bare_schema.get("type") in _SCALARS
            if self._wrapped:
                fields: Any = {"answer": (python_type, ...)}
                model = create_model("Reply", __config__=ConfigDict(extra="forbid"), **fields)
                self._adapter = TypeAdapter(model)
            self.schema: JsonSchema = self._adapter.json_schema()
        except (PydanticUserError, PydanticUndefinedAnnotation, SchemaError) as error:
            raise _unusable(python_type, getattr(error, "message", str(error))) from error

    def parse(self, completion: Completion, *, endpoint: str) -> T:
        """The reply as a value; raises `ReplyInvalid`, which says if the token limit cut it."""
        text = completion.text
        # 1. The only object of the type among several. A model that is only told of the schema
        #    likes to put its JSON into a fence, between two sentences, or behind a schema that it
        #    quotes. The value itself has to be of the type, to the letter.
        objects = objects_in(text)
        fitting = []
        for candidate in objects if len(objects) > 1 else ():
            with suppress(ValidationError):
                fitting.append(self._adapter.validate_json(candidate))
        if len(fitting) == 1:
            return self._unwrapped(fitting[0])
        # 2. The only object, or else the whole text.
        try:
            parsed = self._adapter.validate_json(objects[0] if len(objects) == 1 else text)
            if not objects:
                DECODER.decode(text)  # refuses two equal keys; pydantic takes the last
            return self._unwrapped(parsed)
        except ValueError as error:
            # 3. A value without the `{"answer": …}` that was asked for.
            may_be_bare = self._wrapped and completion.finish_reason == "stop" and not fitting
            bare = self._bare_values(text) if may_be_bare else []
            if len(bare) == 1:
                return bare[0]
            why = self._mismatch(completion, error, candidates=len(fitting or bare))
            raise ReplyInvalid(
                f"the reply does not match the type asked for: {why}. It begins: {text[:160]!r}"
                + _UNENFORCED.get(completion.structured, ""),
                endpoint=endpoint,
                text=text,
                problem=why,
                from_cache=completion.from_cache,
            ) from error

    def _unwrapped(self, parsed: Any) -> T:  # noqa: ANN401 - of the type, or with it as `answer`
        value: T = parsed.answer if self._wrapped else parsed
        return value

    def _mismatch(self, completion: Completion, error: ValueError, *, candidates: int) -> str:
        """Why the reply is no value of the type; `candidates` counts the values that could be."""
        if candidates:
            return f"it holds {candidates} different values of the type"
        if completion.finish_reason == "length":
            return "max_output_tokens cut it short; raise it"
        if not is_visible(completion.text):
            return f"it has no text: {why_no_text(completion)}"
        if not isinstance(error, ValidationError):
            return str(error)
        faults = self._faults_of_bare(completion.text) or error.errors()
        return "; ".join(f"{_path(fault['loc'])}{fault['msg']}" for fault in faults[:3])

    def _faults_of_bare(self, text: str) -> list[ErrorDetails]:
        """The faults of a value without `{"answer": …}`; its lack is none, as such values count."""
        value, raw = next(values_in(text), (None, text))
        if not self._wrapped or (isinstance(value, dict) and "answer" in value):
            return []
        try:
            self._bare.validate_json(raw)
        except ValidationError as error:
            faults = error.errors()
            # An object, where the type is none, is faulty because it lacks `answer`.
            return faults if faults[0]["loc"] or not isinstance(value, dict) else []
        return []

    def _bare_values(self, text: str) -> list[T]:
        """The different values in a reply that stand there without `{"answer": …}`."""
        with suppress(ValueError):
            DECODER.decode(text)
            return [self._bare.validate_json(text)]
        values: dict[str, T] = {}
        for value, raw in values_in(text):
            # The value itself may be of the type, or the only object of a list.
            is_list = isinstance(value, list) and len(value) == 1
            items = value if is_list and isinstance(value[0], dict) else []
            for candidate in (raw, *map(json.dumps, items)):
                with suppress(ValueError):
                    fitting = self._bare.validate_json(candidate)
                    values.setdefault(json.dumps(value, sort_keys=True), fitting)
                    break
        return [*values.values()] or [*islice(self._from_words(text), 1)]

    def _from_words(self, text: str) -> Iterator[T]:
        """The reply as a text or another scalar, if it is a scalar as a whole and no JSON."""
        whole = _FENCED.sub(r"\2", text.strip()).strip()
        # JSON of another shape is no text, whatever it holds.
        is_json = whole.startswith(("{", "[")) or objects_in(whole)
        if not self._is_scalar or is_json or not is_visible(whole):
            return
        for word in (whole, whole.removesuffix("."), whole.strip(_AROUND_WORDS)):
            with suppress(ValueError):
                value = self._bare.validate_strings(word)
                # "nan" is no number in JSON either.
                if not isinstance(value, float | Decimal) or isfinite(value):
                    yield value


class FoundOnce(Generic[T]):
    """Caches the result of the first call in `known`; later calls wait for it."""

    def __init__(self, known: T | None = None) -> None:
        self.known = known
        # The search under way; done with its error, if it has failed.
        self._search: asyncio.Future[None] | None = None

    async def found(self, find: Callable[[], Awaitable[T]]) -> T:
        """`known`, or what `find` returns: calls side by side share its result, or its error."""
        while self.known is None:
            if (search := self._search) is not None:
                # `wait`, since a call that gives up waiting must not end the search of the others.
                await asyncio.wait([search])
                if not search.cancelled() and (error := search.exception()):
                    raise error
                continue
            self._search = search = asyncio.get_running_loop().create_future()
            try:
                self.known = await find()
            except InferenceError as error:
                search.set_exception(error)
                search.exception()  # perhaps no other call waits for it
                raise
            finally:
                self._search = None
                search.cancel()  # wakes the calls that wait; does nothing after an error
        return self.known


class SchemaKnowledge:
    """What one model's server does with schemas, found out once; its tags share it.

    `mode` is given if it is known without a probe. A schema that the server refuses is put in words
    from then on. `strict` is for servers that enforce schemas by OpenAI's rules.
    """

    def __init__(self, mode: StructuredMode | None = None, *, strict: bool = False) -> None:
        self._mode: FoundOnce[StructuredMode] = FoundOnce(mode)
        self._strict = strict
        # Whether the server refuses the probe's schema with an error: then it is sent no schema.
        self._refuses_all = False
        self._refused: set[bytes] = set()  # the schemas that it refused, as JSON

    async def fit(
        self, request: ChatRequest, ask: Ask, *, tracer: Tracer
    ) -> tuple[ChatRequest, StructuredMode]:
        """A call with a schema as its server should get it, and what becomes of the schema."""
        mode = await self._mode.found(partial(self._probe, request, ask, tracer))
        schema = request.reply_schema
        assert schema is not None
        is_refused = self._refuses_all or orjson.dumps(schema) in self._refused
        if mode == "enforced" and not is_refused:
            if not self._strict:
                return request, mode
            if (strict := strict_schema(schema)) is not None:
                return replace(request, reply_schema=strict), mode
        # The model is told of it in words, at the very end of the prompt.
        described = replace(request, messages=_with_schema(request.messages, schema))
        # This call's schema is only advice, even if the server enforces other schemas.
        mode = "advisory" if mode == "enforced" else mode
        return (replace(described, reply_schema=None) if is_refused else described), mode

    def learn(self, error: ServerError, request: ChatRequest, sent: ChatRequest) -> bool:
        """Whether the schema may be what the server refused; it is put in words from then on."""
        key = orjson.dumps(request.reply_schema)
        if sent.reply_schema is None:
            # It fails without the schema, too. So the schema was not to blame, and is sent again.
            self._refused.discard(key)
            return False
        is_about_schemas = _ABOUT_SCHEMAS.search(str(error)) is not None
        may_be_about = error.status in _REFUSALS and self._mode.known != "enforced"
        if not may_be_about and not (is_about_schemas and error.status in {*_REFUSALS, 500}):
            return False
        self._refused.add(key)
        return True

    async def _probe(self, request: ChatRequest, ask: Ask, tracer: Tracer) -> StructuredMode:
        probe = {"max_output_tokens": _PROBE_TOKENS, "reply_schema": _PROBE_SCHEMA}
        with tracer.span(events.SchemaProbe(model=request.model)) as span:
            try:
                mode = mode_of(await probed(request, ask, span, _PROBE_PROMPT, **probe))
            except ServerError as error:
                if error.status not in _REFUSALS:
                    raise
                self._refuses_all = True
                mode = "advisory"
            span.set(schema=mode)
        return mode


def read_fitted(
    request: ChatRequest, sent: ChatRequest, reply: Completion, mode: StructuredMode | None
) -> Completion:
    """The reply to a call whose schema was sent as `sent` has it."""
    if mode is None or request.reply_schema is None:
        return reply
    is_rewritten = sent.reply_schema is not None and sent.reply_schema != request.reply_schema
    text = plain(reply.text, request.reply_schema) if is_rewritten else reply.text
    return replace(reply, text=text, structured=mode)


async def probed(
    request: ChatRequest,
    ask: Ask,
    span: Span,
    prompt: str,
    **fields: Any,  # noqa: ANN401 - of a request
) -> Completion:
    """The reply to a probe that precedes a request; `span` gets its usage and cost."""
    messages = (Message("user", prompt),)
    reply = await ask(
        ChatRequest(model=request.model, role=request.role, messages=messages, **fields)
    )
    span.set(model_id=reply.model_id, cost_usd=reply.cost_usd)
    if reply.usage is not None:
        span.set(**token_counts(reply.usage))
    return reply


def mode_of(reply: Completion) -> StructuredMode:
    """What a server made of the probe's schema."""
    letters = "".join(reply.text.split())
    if reply.finish_reason == "length" and not letters:
        return "advisory"  # the model thought all the while, which proves nothing
    # Blanks between the tokens of JSON may have used up the limit.
    if letters == _KEPT or (reply.finish_reason == "length" and _KEPT.startswith(letters)):
        return "enforced"
    try:
        orjson.loads(reply.text)
    except orjson.JSONDecodeError:
        return "ignored"
    return "advisory"


def _with_schema(messages: tuple[Message, ...], schema: JsonSchema) -> tuple[Message, ...]:
    *before, last = messages
    content = (
        f"{last.content}\n\nAnswer with JSON alone, without any other text, that matches this JSON "
        f"Schema:\n{orjson.dumps(schema).decode()}"
    )
    return (*before, replace(last, content=content))


def _unusable(python_type: object, why: str) -> ConfigurationInvalid:
    name = getattr(python_type, "__name__", None) or repr(python_type)
    return ConfigurationInvalid(
        f"returns={name}: {why}; give a pydantic model, a dataclass, a builtin type such as "
        "list[str], or any of these annotated",
        code="reply.type-unusable",
    )


def _path(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location) + ": " if location else ""
