"""Tools for servers without them: the reply's type is a call of a tool or the answer.

A server may refuse tools, or accept them and leave them out of the prompt: llama-server and vLLM do
so if the model's chat template has no place for them. So a probe with one tool of many words
precedes the first call with tools; if its prompt has fewer tokens, the tool was left out.

The type is a schema like any other: `SchemaKnowledge` has it enforced, or described in the prompt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from harness.errors import ReplyInvalid, ServerError
from harness.inference.completion import Completion, ToolMode
from harness.inference.json_text import json_objects_in, json_of, parsed_with_digits
from harness.inference.reply_in_progress import CallPiece, tool_calls
from harness.inference.request import (
    ChatRequest,
    JsonSchema,
    Message,
    ToolSpec,
    called_names,
    one_turn,
)
from harness.inference.structured import Ask, SharedResult, probed
from harness.trace import Tracer, events

_MALFORMED = re.compile(r'\s*(?:```(?:json)?\s*)?\{\s*"(?:next|call|answer)"')
_FORMS = 'Reply with {"next":{"call":…,"arguments":{…}}} or {"next":{"answer":…}} alone.'
_PROBE_WORDS = 96  # more than a greeting has tokens in any template without tools
_PROBE_TOKENS = 16
_REFUSALS = {400, 422, 500, 501}  # statuses with which servers refuse tools; llama-server's was 500
_REFUSED = re.compile(
    r"(?is)\btool\w*.{0,60}(?:n[o']t support|unsupported|requires --|not permitted|unexpected)"
    r"|(?:not support|unsupported|unknown|unexpected|unrecogni[sz]ed).{0,60}\btool\w*"
    r"|\broles? .{0,60}(?:support|alternate|allowed)",  # Gemma, where a tool has answered
)


class ToolKnowledge:
    """What one model's server does with tools; its tags share it."""

    def __init__(self, mode: ToolMode | None = None, *, requires_calls: bool = True) -> None:
        self._mode: SharedResult[ToolMode] = SharedResult(mode)
        self._requires_calls = requires_calls

    async def offer(self, request: ChatRequest, ask: Ask, *, tracer: Tracer) -> ChatRequest:
        """The call as its server should get it."""
        if not (request.tools or any(message.role == "tool" for message in request.messages)):
            return request
        mode = await self._mode.get(partial(self._probe, request, ask, tracer))
        # The type of a reply can require a call of a tool where the server cannot.
        if mode == "typed" or (request.tool_choice == "required" and not self._requires_calls):
            return _typed(request)
        if not request.tools or request.reply_schema is None:
            return request
        # With native tools, the prompt describes the schema in words, since many servers refuse
        # tools and a schema together. Typed, the schema is the type of the answer.
        instruction = _WITH_SCHEMA.format(schema=_json(request.reply_schema))
        messages = _with_instruction(request.messages, instruction)
        return replace(request, messages=messages, reply_schema=None)

    def learn(self, error: ServerError, offered: ChatRequest) -> bool:
        """Makes tools typed if the error refuses the tools of a call; False if it does not."""
        has_tools = offered.tools or any(message.role == "tool" for message in offered.messages)
        if not (has_tools and error.status in _REFUSALS and _REFUSED.search(str(error))):
            return False
        self._mode.value = "typed"
        return True

    async def _probe(self, request: ChatRequest, ask: Ask, tracer: Tracer) -> ToolMode:
        mode: ToolMode = "typed"
        tool = ToolSpec("owl", "owl " * _PROBE_WORDS, {"type": "object", "properties": {}})
        probe = {"max_output_tokens": _PROBE_TOKENS, "tools": (tool,)}
        with tracer.span(events.ToolProbe(model=request.model)) as span:
            try:
                reply = await probed(request, ask, span, "Say hello.", **probe)
            except ServerError as error:
                if not self.learn(error, request):
                    raise
            else:
                # A server that does not count tokens and does not refuse tools is trusted.
                if reply.usage is None or reply.usage.input_tokens >= _PROBE_WORDS:
                    mode = "native"
            span.set(tools=mode)
        return mode


def read_offered(request: ChatRequest, offered: ChatRequest, reply: Completion) -> Completion:
    """The reply to `request`, which was sent as `offered`; passes the text of a typed one on."""
    if not request.tools:
        return reply
    if offered.tools:
        is_in_words = request.reply_schema is not None and offered.reply_schema is None
        return replace(reply, structured="advisory") if is_in_words else reply
    unwrapped = _unwrapped(request, reply)
    if request.on_text and unwrapped.text:
        request.on_text(unwrapped.text)
    return unwrapped


_WITH_SCHEMA = (
    "Call tools as you need them. When you need none, give your answer as JSON alone, without any "
    "other text, that matches this JSON Schema:\n{schema}"
)
_TOOLS = """You can call these tools:
{tools}

Reply with one JSON object alone. To call a tool, and get its result in the next message:
{{"next":{{"call":"<name of the tool>","arguments":{{…}}}}}}"""
_ANSWER = """
To give your answer, when you need no tool:
{"next":{"answer":…}}"""


def _typed(request: ChatRequest) -> ChatRequest:
    """The call without tools: its reply's type takes their place, and earlier calls are text."""
    messages = _as_text(request.messages)
    if not request.tools:
        return replace(request, messages=messages)  # only results in the conversation are left
    lines = "\n".join(
        f"- {tool.name}: {tool.description} Arguments: {_json(tool.parameters)}"
        for tool in request.tools
    )
    instruction = _TOOLS.format(tools=lines) + (_ANSWER if request.tool_choice == "auto" else "")
    return replace(
        request,
        messages=_with_instruction(messages, instruction),
        tools=(),
        tool_choice="auto",
        reply_schema=_type_of(request),
        on_text=None,  # `read_offered` passes on the answer, without the JSON around it
    )


def _type_of(request: ChatRequest) -> JsonSchema:
    """The schema of a reply: an object, since not every server enforces more at the top."""
    definitions: dict[str, object] = {}

    def lifted(part: JsonSchema, owner: str) -> JsonSchema:
        """A schema whose definitions move to the top of the whole one, under its own names."""
        # References look for definitions at the top, where two tools may have the same names.
        text = _json(part).replace('"#/$defs/', f'"#/$defs/{owner}.')

        def without_definitions(inner: dict[str, Any]) -> dict[str, Any]:
            for name, value in inner.pop("$defs", {}).items():
                definitions[f"{owner}.{name}"] = value
            return inner

        # Some schemas, put together of others, have definitions further down as well.
        result: JsonSchema = json.loads(text, object_hook=without_definitions)
        return result

    choices = [
        _object(
            call={"type": "string", "enum": [tool.name]},
            arguments=lifted(tool.parameters, f"call_{tool.name}"),
        )
        for tool in request.tools
    ]
    if request.tool_choice == "auto":
        choices.append(_object(answer=lifted(request.reply_schema or {"type": "string"}, "answer")))
    schema = _object(next=choices[0] if len(choices) == 1 else {"anyOf": choices})
    return schema | ({"$defs": definitions} if definitions else {})


def _object(**properties: object) -> dict[str, object]:
    fields = {"properties": properties, "required": [*properties], "additionalProperties": False}
    return {"type": "object", **fields}


def _as_text(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The conversation with calls as the model writes typed ones, and results as a user's turns."""
    names = called_names(messages)
    turns: list[Message] = []
    for message in messages:
        if message.answers is not None:
            text = f"Result of {names.get(message.answers, 'a tool')}:\n{message.content}"
            result = replace(message, role="user", content=text, layout=(), answers=None)
            # Some templates refuse two turns of one role in a row.
            if turns and turns[-1].role == "user":
                turns[-1] = one_turn(turns[-1], result)
            else:
                turns.append(result)
            continue
        calls = [
            _json({"next": {"call": call.name, "arguments": call.as_object()}})
            for call in message.tool_calls
        ]
        content = "\n".join([*filter(None, [message.content]), *calls])
        turns.append(replace(message, content=content, tool_calls=()))
    return tuple(turns)


def _with_instruction(messages: Sequence[Message], instruction: str) -> tuple[Message, ...]:
    # In the first message it is the same for all calls, as the prefix cache needs it.
    first, *later = messages
    if first.role != "system":
        return (one_turn(Message(first.role, instruction), first), *later)
    texts = filter(None, (first.content, instruction))
    return (replace(first, content="\n\n".join(texts), shared_chars=()), *later)


def _unwrapped(request: ChatRequest, reply: Completion) -> Completion:
    """A typed reply as the call or the answer in its JSON; one that is neither stays a text."""
    reply = replace(reply, tools="typed")
    match _parsed(reply.text):
        case {"call": str(name), **fields}:
            arguments = fields.get("arguments")
            piece = CallPiece(None, "", name, _json({} if arguments is None else arguments))
            calls = tool_calls([piece], request.messages, request.tools)
            return replace(reply, text="", tool_calls=calls, finish_reason="tool_calls")
        case {"answer": answer} if request.tool_choice == "auto":
            return replace(reply, text=answer if isinstance(answer, str) else _json(answer))
    return reply


def check_typed(request: ChatRequest, reply: Completion) -> None:
    """Raises `ReplyInvalid` for a typed reply that should be a call or an answer and is neither."""
    if reply.tools != "typed" or reply.tool_calls or reply.finish_reason != "stop":
        return
    if request.tool_choice == "required" or _MALFORMED.match(reply.text):
        raise ReplyInvalid(
            f"the reply is neither a tool call nor an answer. It begins: {reply.text[:160]!r}",
            endpoint=request.model,
            text=reply.text,
            problem=_FORMS,
        )


def _parsed(text: str) -> object:
    """The call or answer in a typed reply, with its wrapper or without; None if it is no JSON."""
    objects = json_objects_in(text)
    document = parsed_with_digits(objects[0] if len(objects) == 1 else text)
    return document.get("next", document) if isinstance(document, dict) else None


def _json(value: object) -> str:
    return json_of(value).decode()
