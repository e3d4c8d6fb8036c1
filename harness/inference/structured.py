"""Typed replies: a JSON Schema made from a Python type, and the reply parsed back into it.

Also detects whether a server enforces schemas. It may accept one and silently ignore it: Ollama has
done so with thinking models, llama-server does with a schema in another place. So a probe precedes
the first call with a schema: it asks for a greeting under a schema that allows no greeting.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from functools import partial
from inspect import isroutine
from math import isfinite
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic_core import ErrorDetails, SchemaError

from harness.errors import ConfigurationInvalid, InferenceError, ReplyInvalid, ServerError
from harness.inference.call_spans import token_counts
from harness.inference.completion import Completion, StructuredMode, is_visible, why_no_text
from harness.inference.json_text import (
    DECODER,
    json_objects_in,
    json_of,
    json_values_in,
    parsed,
    without_slips,
)
from harness.inference.request import ChatRequest, JsonSchema, Message
from harness.inference.strict_schema import plain, strict_schema
from harness.text.typed_json import AROUND_WORDS, NULLS, TypedJson
from harness.trace import Span, Tracer, events

T = TypeVar("T")
Ask = Callable[[ChatRequest], Awaitable[Completion]]

# How the schema was treated → the end of a message about a reply that does not match it.
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
_PROBE_REPLY = f'{{"word":"{_WORD}"}}'  # what the probe's schema allows

_SCALARS = {"string", "integer", "number", "boolean"}
# Blanks beside the fence are those of its own line: with all of `\s`, empty lines take cubic time.
_FENCED = re.compile(r"^(`{3,}|~{3,})[\w+-]*[^\S\n]*\n(.*)\n[^\S\n]*\1$", re.DOTALL)

# Where models put the fields of an object that they take for a schema or for a function's call.
_WRAPPERS = frozenset({"properties", "arguments", "parameters", "input"})


class ReplyType(Generic[T]):
    """A type that replies are asked for in; raises `ConfigurationInvalid` without a JSON Schema."""

    def __init__(self, python_type: type[T]) -> None:
        # For a function, pydantic would take the type of its arguments.
        if isinstance(python_type, str) or isroutine(python_type):
            raise _unusable(python_type, "it is no type")
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(python_type)
            # All servers that enforce schemas enforce objects, and only some a bare list or number:
            # those are asked for as `{"answer": …}`. A reply without that wrapper counts as well.
            bare_schema = adapter.json_schema()
            self._wrapped = bare_schema.get("type") != "object"
            self._bare = self._whole = TypedJson(adapter.core_schema)
            self._is_scalar = bare_schema.get("type") in _SCALARS
            if self._wrapped:
                fields: Any = {"answer": (python_type, ...)}
                model = create_model("Reply", __config__=ConfigDict(extra="forbid"), **fields)
                adapter = TypeAdapter(model)
                self._whole = TypedJson(adapter.core_schema)
            self.schema: JsonSchema = adapter.json_schema()
            self._field_names = _names_of_fields(self.schema)
        except (PydanticUserError, PydanticUndefinedAnnotation, SchemaError) as error:
            raise _unusable(python_type, getattr(error, "message", str(error))) from error

    def parse(self, completion: Completion, *, endpoint: str) -> T:
        """The reply as a value; raises `ReplyInvalid`, which says if the token limit cut it."""
        text = _FENCED.sub(r"\2", completion.text.strip()).strip()
        values, fault = self._values(text, completion)
        if not values and (strict := without_slips(text)) != text:
            values, _ = self._values(strict, completion)
        if len(values) == 1:
            return values[0]
        if values:
            problem = f"it holds {len(values)} different values of the type"
        else:
            problem = self._mismatch(completion, fault)
        raise ReplyInvalid(
            f"the reply does not match the type asked for: {problem}. It begins: {text[:160]!r}"
            + _UNENFORCED.get(completion.structured, ""),
            endpoint=endpoint,
            text=completion.text,
            problem=problem,
            from_cache=completion.from_cache,
        ) from fault

    def _values(self, text: str, completion: Completion) -> tuple[list[T], ValueError | None]:
        """The values of the type in a text of a reply, and the fault of it as a whole."""
        # A model that only reads the schema in its prompt likes to put its JSON into a fence,
        # between two sentences, or behind a schema that it quotes. So one object of the reply has
        # to be of the type. The whole text comes last, since its fault is the one to report.
        objects = json_objects_in(text)
        values: list[T] = []
        fault: ValueError | None = None
        for json_text in objects if len(objects) == 1 else [*objects, text]:
            try:
                values.append(self._value(json_text))
            except ValueError as error:
                fault = error.with_traceback(None)  # else it would hold this frame, which holds it
        # A value without the `{"answer": …}` that was asked for counts, too, in a whole reply.
        if not values and self._wrapped and completion.finish_reason == "stop":
            values = self._bare_values(text)
        return values, fault

    def _value(self, json_text: str) -> T:
        """The value in a JSON text, without its wrapper; raises `ValueError` if it is of no use."""
        parsed = self._whole.read(json_text)
        decoded = DECODER.decode(json_text)  # refuses two equal keys; pydantic takes the last
        if isinstance(decoded, str) and isinstance(parsed, BaseModel):
            decoded = DECODER.decode(decoded)
        if problem := self._misplaced(decoded, parsed):
            raise ValueError(problem)
        value: T = parsed.answer if self._wrapped else parsed
        return value

    def _misplaced(self, decoded: object, parsed: object) -> str:
        """Why a JSON object says nothing that its value holds; empty if it does.

        pydantic ignores unknown fields. So for a type whose fields have defaults, an object that
        repeats the schema, or has its fields in another object, would be a value of defaults.
        """
        if decoded == self.schema:
            return "it repeats the schema instead of a value"
        if not isinstance(decoded, dict) or not self._field_names:
            return ""
        for key in _WRAPPERS & (decoded.keys() - self._field_names):
            inner = decoded[key]
            if isinstance(inner, dict) and inner and inner.keys() <= self._field_names:
                return f"its fields stand under '{key}', and belong to the object itself"
        # A validator of a model, or an alias, may take other names.
        own = self._field_names & decoded.keys()
        if decoded and not (parsed.model_fields_set if isinstance(parsed, BaseModel) else own):
            names = ", ".join(f"'{name}'" for name in decoded)
            return f"it has none of the fields of the type, only {names[:200]}"
        return ""

    def _mismatch(self, completion: Completion, fault: ValueError | None) -> str:
        """Why a reply holds no value of the type, for the message; `fault` is that of its JSON."""
        if completion.finish_reason == "length":
            return "max_output_tokens cut it short; raise it"
        if not is_visible(completion.text):
            return f"it has no text: {why_no_text(completion)}"
        if not isinstance(fault, ValidationError):
            return str(fault)
        faults = self._faults_of_bare(completion.text) or fault.errors()
        return "; ".join(f"{_path(fault['loc'])}{fault['msg']}" for fault in faults[:3])

    def _faults_of_bare(self, text: str) -> list[ErrorDetails]:
        """The faults of the first JSON value as one without `{"answer": …}`; empty if it has it."""
        value, raw = next(json_values_in(text), (None, text))
        if not self._wrapped or (isinstance(value, dict) and "answer" in value):
            return []
        try:
            self._bare.read(raw)
        except ValidationError as error:
            faults = error.errors()
            # If the type is no object, the fault of an object is that it lacks `answer`.
            return faults if faults[0]["loc"] or not isinstance(value, dict) else []
        return []

    def _bare_values(self, text: str) -> list[T]:
        """The different values of the type in a reply that stand there without `{"answer": …}`."""
        with suppress(ValueError):
            DECODER.decode(text)
            return [self._bare.read(text)]
        values: dict[str, T] = {}  # by their JSON in one spelling, so that equal ones count once
        for value, raw in json_values_in(text):
            candidates = [raw]
            if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
                candidates.append(raw[1:-1])  # the only object of a list
            for candidate in candidates:
                with suppress(ValueError):
                    valid = self._bare.read(candidate)
                    values.setdefault(json.dumps(value, sort_keys=True), valid)
                    break
        return [*values.values()] or self._scalars(text)

    def _scalars(self, text: str) -> list[T]:
        """The whole reply as one text or other scalar; empty if it is none, or is JSON."""
        # JSON of another shape is no text, whatever it holds; nor is it beside another type.
        is_json = text.startswith(("{", "[")) or json_objects_in(text)
        if is_json or not is_visible(text) or (not self._is_scalar and "{" in text):
            return []
        words = [text, text.removesuffix("."), text.strip(AROUND_WORDS)]
        for word in [text, *map(json.dumps, words)]:
            with suppress(ValueError):
                value = self._bare.read(word)
                # "nan" is no number in JSON either, and "none" may be null or a text.
                is_null = isinstance(value, str) and words[-1].casefold() in NULLS
                is_number = isinstance(value, float | Decimal)
                is_other = (is_null and not self._is_scalar) or (is_number and not isfinite(value))
                return [] if is_other else [value]
        return []


def _names_of_fields(schema: JsonSchema) -> frozenset[str]:
    """The names of an object's fields; empty if it may have any others, or is no object."""
    properties: Any = schema.get("properties", ())
    is_open = schema.get("additionalProperties") or "patternProperties" in schema
    return frozenset() if is_open else frozenset(properties)


class SharedResult(Generic[T]):
    """The result of an awaitable function that is called once, for all calls that need it."""

    def __init__(self, value: T | None = None) -> None:
        self.value = value  # None until it is known
        # The computation under way, for the calls that wait; it ends with its error, if any.
        self._pending: asyncio.Future[None] | None = None

    async def get(self, compute: Callable[[], Awaitable[T]]) -> T:
        """The value; at first from `compute`, whose result or error concurrent calls share."""
        while self.value is None:
            if (pending := self._pending) is not None:
                # `wait`, since a call that gives up must not end what the others wait for.
                await asyncio.wait([pending])
                if not pending.cancelled() and (error := pending.exception()):
                    raise error
                continue
            self._pending = pending = asyncio.get_running_loop().create_future()
            try:
                self.value = await compute()
            except InferenceError as error:
                pending.set_exception(error)
                pending.exception()  # perhaps no other call waits for it
                raise
            finally:
                self._pending = None
                pending.cancel()  # wakes the calls that wait; does nothing after an error
        return self.value


class SchemaKnowledge:
    """What one model's server does with schemas; the tags of one model share it.

    Without a `mode`, a probe before the first call with a schema detects it. Schemas that the
    server refuses are put in words. `strict` is for servers that enforce OpenAI's rules.
    """

    def __init__(self, mode: StructuredMode | None = None, *, strict: bool = False) -> None:
        self._mode: SharedResult[StructuredMode] = SharedResult(mode)
        self._strict = strict
        # Whether the server refuses the probe's schema with an error: then it is sent no schema.
        self._refuses_all = False
        self._refused: set[bytes] = set()  # the schemas that it refused, as JSON

    async def fit(
        self, request: ChatRequest, ask: Ask, *, tracer: Tracer
    ) -> tuple[ChatRequest, StructuredMode]:
        """A call with a schema as its server should get it, and how the schema is treated."""
        mode = await self._mode.get(partial(self._probe, request, ask, tracer))
        schema = request.reply_schema
        assert schema is not None
        is_refused = self._refuses_all or json_of(schema) in self._refused
        if mode == "enforced" and not is_refused:
            if not self._strict:
                return request, mode
            if (strict := strict_schema(schema)) is not None:
                return replace(request, reply_schema=strict), mode
        # The prompt describes the schema in words, at its very end.
        described = replace(request, messages=_with_schema(request.messages, schema))
        if is_refused:
            described = replace(described, reply_schema=None)
        # This call's schema is only advice, even if the server enforces other schemas.
        return described, "advisory" if mode == "enforced" else mode

    def learn(self, error: ServerError, request: ChatRequest, sent: ChatRequest) -> bool:
        """Notes a refused schema, which is put in words from then on; False if it is not that."""
        key = json_of(request.reply_schema)
        if sent.reply_schema is None:
            # It fails without the schema, too. So the schema was not to blame, and is sent again.
            self._refused.discard(key)
            return False
        is_about_schemas = _ABOUT_SCHEMAS.search(str(error)) is not None
        # A server that has enforced a schema is believed only if its error speaks of schemas.
        if error.status in _REFUSALS:
            is_refusal = is_about_schemas or self._mode.value != "enforced"
        else:
            is_refusal = is_about_schemas and error.status == 500
        if is_refusal:
            self._refused.add(key)
        return is_refusal

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
    """The reply to `request`, whose schema was sent as in `sent`: by the request's own schema."""
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
    """How a server treats schemas, by its reply to the probe."""
    is_cut = reply.finish_reason == "length"
    letters = "".join(reply.text.split())
    if is_cut and not letters:
        return "advisory"  # the model thought all the while, which proves nothing
    # Blanks between the tokens of JSON may have used up the limit.
    if letters == _PROBE_REPLY or (is_cut and _PROBE_REPLY.startswith(letters)):
        return "enforced"
    return "ignored" if parsed(reply.text) is None else "advisory"


def _with_schema(messages: tuple[Message, ...], schema: JsonSchema) -> tuple[Message, ...]:
    *before, last = messages
    content = (
        f"{last.content}\n\nAnswer with JSON alone, without any other text, that matches this JSON "
        f"Schema:\n{json_of(schema).decode()}"
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
