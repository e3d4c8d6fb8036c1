"""Requests to a model: messages, the requests that backends receive, and bounds on their tokens."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import groupby
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple, get_args

import orjson

from harness.errors import InvalidInput
from harness.inference.images import Image
from harness.inference.json_text import json_of, parsed

Role = Literal["system", "user", "assistant", "tool"]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How much a model thinks: `none` switches it off."""
_EFFORTS: tuple[str, ...] = get_args(Effort)
SAMPLING = ("top_p", "top_k", "min_p", "presence_penalty")
"""Settings of a call that are sent only if they are set, by the names that all servers use."""

_LONG_NUMBER = re.compile(r"\d{19}")
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
_MOST_NAME_CHARS = 64  # of a tool's name, at every server


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's request to call a tool."""

    id: str
    """Names the call in the message that answers it; unique in its conversation."""
    name: str
    arguments: str
    """A JSON object as the model wrote it; it may be invalid, or not fit the tool."""
    extra: Mapping[str, object] = field(default_factory=dict, hash=False, repr=False)
    """Further fields of the call's JSON, as in `Message.extra`."""

    def as_object(self) -> dict[str, Any]:
        """The arguments; empty if they are not a JSON object."""
        try:
            value = read_arguments(self.arguments)
        except orjson.JSONDecodeError:
            return {}
        return value if isinstance(value, dict) else {}

    @property
    def sendable(self) -> ToolCall:
        """The call in a form that servers and their templates read, whatever the model wrote."""
        # llama-server answers 500 to a history with broken arguments, OpenAI 400 to a strange name.
        name = _NOT_IN_NAMES.sub("_", self.name)[:_MOST_NAME_CHARS] or "unknown"
        if isinstance(parsed(self.arguments), dict):
            return replace(self, name=name)  # as it was written, since the prefix cache has it so
        return replace(self, name=name, arguments=json_of(self.as_object()).decode())


def read_arguments(arguments: str) -> object:
    """The value in JSON, or in JSON in a string; `{}` for nothing; raises `JSONDecodeError`."""
    value = orjson.loads(arguments.strip() or "{}")
    if isinstance(value, str):
        return read_arguments(value)
    if _LONG_NUMBER.search(arguments):
        value = json.loads(arguments)  # orjson rounds integers of more than 64 bits
    return {} if value is None else value


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as described to a model."""

    name: str
    """Letters, digits, `_` and `-`, 64 at most: what every server takes."""
    description: str
    parameters: Mapping[str, object] = field(hash=False)
    """JSON Schema of the arguments: an object."""


Layout = tuple[tuple[int, bool, Mapping[str, Any]], ...]
"""The parts of a message: the character of the content that each begins at, whether it is the next
image, and further fields of its JSON, such as `detail` and `cache_control`."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation.

    Raises:
        InvalidInput: There is no such role; a tool's message answers no call; the content is not a
            text, or holds half a surrogate pair, as bytes that are not UTF-8 are read.
    """

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    """The calls that an assistant's turn asks for."""
    answers: str | None = None
    """For a tool's turn: the id of the call whose result the content is."""
    images: tuple[Image, ...] = ()
    """Sent before the content, or where `layout` has them; those of a tool's result are sent in a
    user's turn behind the results."""
    layout: Layout = field(default=(), hash=False, repr=False)
    shared_chars: tuple[int, ...] = field(default=(), compare=False, repr=False)
    """Lengths of the beginnings that other calls share, in characters, ascending: the prefixes to
    cache, for providers that cache only marked ones."""
    extra: Mapping[str, object] = field(default_factory=dict, hash=False, repr=False)
    """Further fields of its JSON, sent as they are: a name; for a reply, the fields that its server
    wants back, such as thought signatures, encrypted reasoning or annotations."""
    source: str | None = None
    """The server that `extra` came from and is sent to, no other; None for a turn that was written
    here, whose fields go to every server."""

    @property
    def extra_names(self) -> set[str]:
        """The names of the fields in its own `extra` and in its calls'."""
        return {*self.extra, *(name for call in self.tool_calls for name in call.extra)}

    @property
    def without_extras(self) -> Message:
        """The turn as servers other than its source get it."""
        calls = tuple(replace(call, extra={}) for call in self.tool_calls)
        return replace(self, extra={}, tool_calls=calls)

    @property
    def placed(self) -> Layout:
        """The layout; if none is stated, the images stand before the content."""
        return self.layout or tuple((0, True, {}) for _ in self.images)

    def __post_init__(self) -> None:
        if self.role not in get_args(Role):
            raise InvalidInput(
                f"a message's role is {self.role!r}; it is one of {', '.join(get_args(Role))}",
                code="request.role-unknown",
            )
        if (self.role == "tool") != (self.answers is not None):
            raise InvalidInput(
                f"the {self.role} message has answers={self.answers!r}; a tool's message, and no "
                "other, names the call that it answers (tool_call_id)",
                code="request.answers-nothing",
            )
        if not isinstance(self.content, str):
            raise InvalidInput(
                f"the content of the {self.role} message is a {type(self.content).__name__}; "
                "give a text",
                code="request.content-not-text",
            )
        try:
            self.content.encode()
        except UnicodeEncodeError as error:
            raise InvalidInput(
                f"the {self.role} message is not text: character {error.start} is half a surrogate "
                "pair; was it read from bytes that are not UTF-8?",
                code="request.not-text",
            ) from error


Prompt = str | Message | Mapping[str, object] | Sequence[Message | Mapping[str, object]]
"""What a model is asked: a text, which becomes one user message, or a conversation.

A message may be a dictionary, `{"role": "user", "content": "…"}`, whose content is a text or a list
of parts: texts, `Image`s, `{"type": "text", "text": "…"}`, and
`{"type": "image_url", "image_url": {"url": "…"}}`. They are sent in their order. It may have
OpenAI's `tool_calls`, or as a tool's message `tool_call_id`. All other fields are sent as they are.
"""


def as_messages(prompt: Prompt) -> tuple[Message, ...]:
    """The prompt as messages; raises `InvalidInput` for anything but texts and images."""
    if isinstance(prompt, str):
        return (Message("user", prompt),)
    if isinstance(prompt, Message | Mapping):
        prompt = (prompt,)
    if not isinstance(prompt, Sequence):
        raise _no_message(prompt)
    return tuple(map(_message, prompt))


def as_texts(texts: str | Iterable[str]) -> tuple[str, ...]:
    """The texts; a single `str` is one text, and not its letters. Raises `InvalidInput`."""
    if isinstance(texts, str):
        return (texts,)
    if not isinstance(texts, Iterable):
        raise InvalidInput(
            f"{texts!r:.80} are no texts; give a text, or a sequence of texts",
            code="request.wrong-type",
        )
    return tuple(texts)


def _message(message: object) -> Message:
    if isinstance(message, Message):
        return message
    if not isinstance(message, Mapping) or "role" not in message:
        raise _no_message(message)
    tool_calls = message.get("tool_calls") or ()
    calls = tuple(map(_tool_call, tool_calls if isinstance(tool_calls, Sequence) else [tool_calls]))
    if "content" not in message and not calls:
        raise _no_message(message)
    content: Any = message.get("content")
    images: list[Image] = []
    layout: list[tuple[int, bool, Mapping[str, Any]]] = []
    if content is None and calls:
        content = ""  # OpenAI's turns with calls alone have null there
    elif isinstance(content, list | tuple):
        parts, content = [*map(_part, content)], ""
        for part, further in parts:
            layout.append((len(content), isinstance(part, Image), further))
            if isinstance(part, Image):
                images.append(part)
            else:
                content += part
        # Without a layout, images stand before the text.
        if not any(further or (begin and is_image) for begin, is_image, further in layout):
            layout = []
    return Message(
        message["role"],
        content,
        images=tuple(images),
        layout=tuple(layout),
        tool_calls=calls,
        answers=message.get("tool_call_id"),
        extra=_further_fields(message, ("role", "content", "tool_calls", "tool_call_id")),
    )


def _further_fields(part: Mapping[Any, object], known: Iterable[str] = ()) -> dict[str, object]:
    return {name: value for name, value in part.items() if name not in known and value is not None}


def _tool_call(call: Any) -> ToolCall:  # noqa: ANN401 - what users write
    match call:
        case ToolCall():
            return call
        case {"id": str(id_), "function": {"name": str(name), "arguments": str(arguments)}}:
            return ToolCall(id_, name, arguments, _further_fields(call, ("id", "type", "function")))
    raise InvalidInput(
        f"not a call of a tool: {call!r:.80}; give a ToolCall, or "
        '{"id": "…", "function": {"name": "…", "arguments": "{…}"}}',
        code="request.not-a-tool-call",
    )


def _part(part: object) -> tuple[str | Image, dict[str, object]]:
    """The text or image that a part of a content is, and the further fields of its JSON."""
    match part:
        case str() | Image():
            return part, {}
        case {"type": "text", "text": str(text), **further}:
            return text, _further_fields(further)
        case {"type": "image_url", "image_url": str(url), **further}:
            return Image.from_url(url), _further_fields(further)
        case {"type": "image_url", "image_url": {"url": str(url), **details}, **further}:
            of_image = {"image_url": _further_fields(details)} if details else {}
            return Image.from_url(url), _further_fields(further) | of_image
    kind = part.get("type") if isinstance(part, Mapping) else None
    raise InvalidInput(
        f"a part of a message is {kind or type(part).__name__!r}; only texts and images are sent: "
        '{"type": "text", "text": "…"}, {"type": "image_url", "image_url": {"url": "…"}}',
        code="request.part-not-text",
    )


def _no_message(value: object) -> InvalidInput:
    keys = f" with the keys {list(value)}" if isinstance(value, Mapping) else ""
    return InvalidInput(
        f"not a message: {type(value).__name__}{keys}; give a text, a Message, or "
        '{"role": "user", "content": "…"}, or a list of messages',
        code="request.not-a-message",
    )


JsonSchema = Mapping[str, object]

_IMAGES_INTRODUCTION = "The images of the results above, in their order:"
# Asks for the rest of a cut reply where a server cannot continue one.
GO_ON = (
    "Your answer was cut off there. Write the rest of it, beginning with the very next word: no "
    "introduction, and nothing again that you have written."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A request to a model for a completion.

    Raises:
        InvalidInput: There are no messages, or a number is out of its range.
    """

    model: str
    """The endpoint's tag."""
    messages: tuple[Message, ...]
    """The conversation. Put text that stays the same between calls first, for the prefix cache."""
    role: str | None = None
    """The model's role (`producer`, `evaluator`, …); used only in the trace."""
    max_output_tokens: int | None = None
    """Longest reply; a longer one is cut, with finish reason `length`. None: as long as the model's
    context and the limits allow."""
    temperature: float = 0.0
    """0 is greedy."""
    top_p: float | None = None
    """Above 0, up to 1: samples from the likeliest tokens that together have this probability. None
    for the server's own setting, as for the next two."""
    top_k: int | None = None
    """Samples from this many of the likeliest tokens."""
    min_p: float | None = None
    """From 0 to 1: samples from tokens with at least this share of the likeliest one's probability
    (Nguyen et al. 2024, "Turning Up the Heat")."""
    frequency_penalty: float = 0.0
    """From 0 to 2: lowers a token's chance for each time it was used."""
    presence_penalty: float | None = None
    """From 0 to 2: lowers a token's chance once it was used."""
    reasoning_effort: Effort | None = None
    """How much the model thinks before it answers, in the server's own spelling; `none` switches
    thinking off. None for the server's own setting."""
    extra_body: Mapping[str, object] | None = None
    """Fields of the request's JSON that harness does not know, merged into it last."""
    seed: int | None = None
    """Makes sampling repeatable, if the server supports it."""
    stop: tuple[str, ...] = ()
    """Texts that end generation when they appear."""
    reply_schema: JsonSchema | None = None
    """JSON Schema that the reply must match, enforced by servers that can."""
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: Literal["auto", "required"] = "auto"
    """Whether the model decides if it calls a tool, or has to call one."""
    goes_on: bool = False
    """Whether the last message is the beginning of the reply, for the model to continue."""
    allow_empty: bool = False
    """Whether a reply without visible text is an answer, and no `ReplyEmpty`."""
    ignore_eos: bool = False
    """Whether the reply continues past its end to its limit, if the server supports that."""
    asks_again: bool = False
    """Whether it follows a reply that could not be used; used only in the trace."""
    timeout_s: float | None = None
    """Time limit of the call, if shorter than the endpoint's."""
    priority: int = 0
    """Among calls that wait in this process for an endpoint, the highest goes first."""
    on_text: Callable[[str], None] | None = field(default=None, compare=False, repr=False)
    """Called with each piece of the answer, without reasoning; after the first, without a retry."""
    on_piece: Callable[[], None] | None = field(default=None, compare=False, repr=False)
    """Called for every piece of a reply, of any kind: a sign of life."""

    def __post_init__(self) -> None:
        _check(self)

    @property
    def sampling(self) -> dict[str, float]:
        """Those of `SAMPLING` that are set."""
        values = {name: getattr(self, name) for name in SAMPLING}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def images(self) -> tuple[Image, ...]:
        """The images of all messages."""
        return tuple(image for message in self.messages for image in message.images)

    @property
    def conversation(self) -> tuple[Message, ...]:
        """The messages for a server that cannot continue a reply: they ask for its rest."""
        asks = (Message("user", GO_ON),) if self.goes_on else ()
        return with_images_shown((*self.messages, *asks))


def merged(fields: Mapping[str, Any], further: Mapping[str, Any]) -> dict[str, Any]:
    """`fields` updated by `further`; objects that both have under one name are merged likewise."""
    objects = {
        name: merged(fields[name], value)
        for name, value in further.items()
        if isinstance(value, Mapping) and isinstance(fields.get(name), Mapping)
    }
    return {**fields, **further, **objects}


def with_images_shown(messages: Iterable[Message]) -> tuple[Message, ...]:
    """The conversation, with the images of tools' results in a user's turn behind the results."""
    # Chat Completions and Ollama take images from users alone, and results must stay together.
    conversation: list[Message] = []
    images: tuple[Image, ...] = ()  # of the last results, until a turn shows them
    for are_results, group in groupby(messages, lambda message: message.role == "tool"):
        turns = list(group)
        if are_results:
            images = tuple(image for turn in turns for image in turn.images)
            turns = [replace(turn, images=()) for turn in turns]
        elif images:
            shown = Message("user", _IMAGES_INTRODUCTION, images=images)
            if turns[0].role == "user":
                turns[0] = one_turn(shown, turns[0])
            else:
                turns.insert(0, shown)
            images = ()
        conversation += turns
    if images:
        conversation.append(Message("user", _IMAGES_INTRODUCTION, images=images))
    return tuple(conversation)


def one_turn(first: Message, second: Message) -> Message:
    """Two turns as one, of the first's role: templates want turns to alternate."""
    content = "\n\n".join(filter(None, (first.content, second.content)))
    begin = len(content) - len(second.content)
    moved = [(begin + at, is_image, further) for at, is_image, further in second.placed]
    # The second turn begins a part, or its text would get the fields of the first's last part.
    layout = (*first.placed, (begin, False, {}), *moved) if first.layout or second.layout else ()
    return replace(
        second,
        role=first.role,
        content=content,
        layout=layout,
        tool_calls=(*first.tool_calls, *second.tool_calls),
        answers=first.answers,
        images=(*first.images, *second.images),
        shared_chars=(),
    )


def called_names(messages: Iterable[Message]) -> dict[str, str]:
    """The names of the tools that a conversation has called, by the ids of the calls."""
    return {call.id: call.name for message in messages for call in message.tool_calls}


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRequest:
    """A request for the vectors of texts; `model` and `timeout_s` are as in `ChatRequest`."""

    model: str
    texts: tuple[str, ...]
    """At least one."""
    role: str | None = None
    """What the vectors are for; used only in the trace."""
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankRequest(EmbedRequest):
    """A request for scores of how well each text answers the question `query`."""

    query: str


Request = ChatRequest | EmbedRequest

_CUTOFF, _PENALTY = "request.cutoff-out-of-range", "request.penalty-out-of-range"


class _FieldRule(NamedTuple):
    """What a field of a request may be."""

    kind: Any
    hint: str  # how messages name the right values
    is_in_range: Callable[[Any], object] = lambda _: True
    code: str = ""  # of the error for a value that is out of range
    item: type | None = None  # the type of a sequence's items


_RULES: Mapping[str, _FieldRule] = {
    "model": _FieldRule(str, "the tag of an endpoint, as text"),
    "messages": _FieldRule(
        Sequence, "a sequence of messages, one or more", len, "request.no-messages", Message
    ),
    "texts": _FieldRule(Sequence, "a sequence of texts, one or more", len, "request.no-texts", str),
    "query": _FieldRule(str, "a question, as text"),
    "max_output_tokens": _FieldRule(
        Integral, "a whole number, 1 or more", lambda n: n >= 1, "request.no-room"
    ),
    "temperature": _FieldRule(
        Real, "a number, 0 or more", lambda t: 0 <= t < math.inf, "request.temperature-negative"
    ),
    "top_p": _FieldRule(Real, "a number above 0 and up to 1", lambda p: 0 < p <= 1, _CUTOFF),
    "top_k": _FieldRule(Integral, "a whole number, 1 or more", lambda n: n >= 1, _CUTOFF),
    "min_p": _FieldRule(Real, "a number from 0 to 1", lambda p: 0 <= p <= 1, _CUTOFF),
    "frequency_penalty": _FieldRule(Real, "a number from 0 to 2", lambda p: 0 <= p <= 2, _PENALTY),
    "presence_penalty": _FieldRule(Real, "a number from 0 to 2", lambda p: 0 <= p <= 2, _PENALTY),
    "reasoning_effort": _FieldRule(
        str, f"one of {', '.join(_EFFORTS)}", _EFFORTS.__contains__, "request.effort-unknown"
    ),
    "extra_body": _FieldRule(Mapping, "fields of a request, as a mapping"),
    "seed": _FieldRule(
        Integral, "a whole number of 64 bits", lambda n: -(2**63) <= n < 2**64, "request.long-seed"
    ),
    "stop": _FieldRule(Sequence, "a sequence of texts", item=str),
    "reply_schema": _FieldRule(Mapping, "a JSON Schema, as a mapping"),
    "tools": _FieldRule(Sequence, "a sequence of tools", item=ToolSpec),
    "priority": _FieldRule(Integral, "a whole number"),
    "timeout_s": _FieldRule(
        Real, "a number of seconds, above 0", lambda s: s > 0, "request.timeout-not-positive"
    ),
    "on_text": _FieldRule(Callable, "a function of one text"),
}
# Kind of request → its fields that are checked, with their defaults.
_CHECKED = {
    kind: [(part.name, part.default) for part in fields(kind) if part.name in _RULES]
    for kind in (ChatRequest, EmbedRequest, RerankRequest)
}


def _check(request: Request) -> None:
    """Raises `InvalidInput` for a value of a wrong type or out of range, before it is used."""
    for name, default in _CHECKED[type(request)]:
        value: Any = getattr(request, name)
        if value is default:  # as most are
            continue
        rule = _RULES[name]
        is_right = isinstance(value, rule.kind) and not isinstance(value, bool)
        if is_right and rule.item is not None:
            # A text, too, is a sequence of texts.
            are_items = all(isinstance(item, rule.item) for item in value)
            is_right = are_items and not isinstance(value, str)
        if not is_right:
            raise InvalidInput(
                f"{name} is {value!r:.80}; give {rule.hint}", code="request.wrong-type"
            )
        if rule.kind in (Integral, Real) and type(value) not in (int, float):
            # JSON and the keys of replies have no numbers of other libraries, such as numpy's.
            value = int(value) if rule.kind is Integral else float(value)
            object.__setattr__(request, name, value)
        if not rule.is_in_range(value):
            raise InvalidInput(f"{name} is {value!r:.80}; give {rule.hint}", code=rule.code)


# Low, for an upper bound: English has about four; a Chinese letter, with three, is at most one.
_BYTES_PER_TOKEN = 3
_PER_MESSAGE = 8  # what a chat template puts around a message: five or six
# What it puts before the first message, its own system prompt: 26 in Qwen 2.5, 60 in gpt-oss.
_PER_CALL = 64
# Claude's largest takes 1,600, GPT-4o's 1,445; a model that scales no image may take more.
_PER_IMAGE = 2048
_PER_TOOL = 32  # what a template puts around a tool or a call of one: 10 to 20


def most_tokens_in(text: str) -> int:
    """An upper bound on the tokens of a text in any script."""
    return math.ceil(len(text.encode("utf-8", "replace")) / _BYTES_PER_TOKEN)


def most_prompt_tokens(request: ChatRequest) -> int:
    """An upper bound on the tokens of a call's prompt, with what the chat template adds."""
    calls = [call for message in request.messages for call in message.tool_calls]
    texts = [message.content for message in request.messages]
    texts += [text for call in calls for text in (call.id, call.name, call.arguments)]
    extras = [*(part.extra for part in request.messages), *(part.extra for part in calls)]
    texts += [json.dumps(extra, default=str) for extra in extras if extra]
    for tool in request.tools:
        texts += [tool.name, tool.description, json.dumps(dict(tool.parameters))]
    tokens = most_tokens_of_messages("".join(texts), messages=len(request.messages))
    tokens += (len(calls) + len(request.tools)) * _PER_TOOL
    return tokens + len(request.images) * _PER_IMAGE


def most_tokens_of_messages(text: str, *, messages: int) -> int:
    """An upper bound on the tokens of `messages` messages whose joined contents are `text`."""
    return most_tokens_in(text) + messages * _PER_MESSAGE + _PER_CALL


def most_tokens_of(request: ChatRequest) -> int:
    """An upper bound on a call's tokens: its prompt, and `max_output_tokens` if it states them."""
    return most_prompt_tokens(request) + (request.max_output_tokens or 0)
