"""Requests to a model: messages, the requests that backends receive, and bounds of their tokens."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal, get_args

from harness.errors import InvalidInput
from harness.inference.images import Image
from harness.inference.limits import Spent

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's request to call a tool."""

    id: str
    """Names the call in the message that answers it; unique in its conversation."""
    name: str
    arguments: str
    """A JSON object as the model wrote it; it may be invalid, or not fit the tool."""

    def as_object(self) -> dict[str, Any]:
        """The arguments; empty if they are not a JSON object."""
        try:
            said = json.loads(self.arguments)
        except ValueError:
            return {}
        return said if isinstance(said, dict) else {}


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as described to a model."""

    name: str
    """Letters, digits, `_` and `-`, 64 at most: what every server takes."""
    description: str
    parameters: Mapping[str, object] = field(hash=False)
    """JSON Schema of the arguments: an object."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation.

    Raises:
        InvalidInput: There is no such role; a tool's message answers no call; or the content is no
            text, or holds half a surrogate pair, which cannot be sent. Such text comes from reading
            bytes that are not UTF-8.
    """

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    """Of an assistant: the calls it asks for."""
    answers: str | None = None
    """Of a tool: the id of the call whose result the content is."""
    images: tuple[Image, ...] = ()
    """Sent before the content."""
    shared_chars: tuple[int, ...] = field(default=(), compare=False, repr=False)
    """Numbers of first characters that other calls share, ascending: the prefixes to cache, for
    providers that must be told."""

    def __post_init__(self) -> None:
        if self.role not in get_args(Role):
            raise InvalidInput(
                f"a message's role is {self.role!r}; it is one of {', '.join(get_args(Role))}",
                code="request.role-unknown",
            )
        if (self.role == "tool") != (self.answers is not None):
            raise InvalidInput(
                f"the {self.role} message has answers={self.answers!r}; only a tool's message "
                "names the call that it answers",
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
`{"type": "image_url", "image_url": {"url": "…"}}`. Images are sent before the text. It may have
OpenAI's `tool_calls`, or as a tool's message `tool_call_id`.
"""

_KEYS = {"role", "content", "tool_calls", "tool_call_id"}


def as_messages(prompt: Prompt) -> tuple[Message, ...]:
    """The prompt as messages.

    Raises:
        InvalidInput: It is not a prompt, or a message holds more than text and images.
    """
    if isinstance(prompt, str):
        return (Message("user", prompt),)
    if isinstance(prompt, Message | Mapping):
        prompt = (prompt,)
    if not isinstance(prompt, Sequence):
        raise _no_message(prompt)
    return tuple(map(_message, prompt))


def as_texts(texts: str | Iterable[str]) -> tuple[str, ...]:
    """The texts; a single `str` is one text, and not its letters.

    Raises:
        InvalidInput: They cannot be iterated over.
    """
    if isinstance(texts, str):
        return (texts,)
    if not isinstance(texts, Iterable):
        raise InvalidInput(
            f"{texts!r:.80} are no texts; give a text, or a sequence of texts",
            code="request.wrong-type",
        )
    return tuple(texts)


def _message(given: object) -> Message:
    if isinstance(given, Message):
        return given
    if not isinstance(given, Mapping) or not {"role", "content"} <= set(given) <= _KEYS:
        raise _no_message(given)
    calls = tuple(map(_tool_call, given.get("tool_calls") or ()))
    content, images = given["content"], tuple[Image, ...]()
    if content is None and calls:
        content = ""
    if isinstance(content, list | tuple):
        parts = [*map(_part, content)]
        content = "".join(part for part in parts if isinstance(part, str))
        images = tuple(part for part in parts if isinstance(part, Image))
    return Message(
        given["role"], content, images=images, tool_calls=calls, answers=given.get("tool_call_id")
    )


def _tool_call(given: object) -> ToolCall:
    match given:
        case ToolCall():
            return given
        case {"id": str(id_), "function": {"name": str(name), "arguments": str(arguments)}}:
            return ToolCall(id_, name, arguments)
    raise InvalidInput(
        f"not a call of a tool: {given!r:.80}; give a ToolCall, or "
        '{"id": "…", "function": {"name": "…", "arguments": "{…}"}}',
        code="request.not-a-tool-call",
    )


def _part(part: object) -> str | Image:
    match part:
        case str() | Image():
            return part
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "image_url", "image_url": {"url": str(url)} | str(url)}:
            return Image.from_url(url)
    kind = part.get("type") if isinstance(part, Mapping) else None
    raise InvalidInput(
        f"a part of a message is {kind or type(part).__name__!r}; only texts and images are sent: "
        '{"type": "text", "text": "…"}, {"type": "image_url", "image_url": {"url": "…"}}',
        code="request.part-not-text",
    )


def _no_message(given: object) -> InvalidInput:
    keys = f" with the keys {list(given)}" if isinstance(given, Mapping) else ""
    return InvalidInput(
        f"not a message: {type(given).__name__}{keys}; give a text, a Message, or "
        '{"role": "user", "content": "…"}, or a list of messages',
        code="request.not-a-message",
    )


JsonSchema = Mapping[str, object]


_MOST_LOGPROBS = 20
"""As every server that has them allows."""
_MOST_PENALTY = 2

_GO_ON = (
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
    seed: int | None = None
    """Makes sampling repeatable, if the server supports it."""
    stop: tuple[str, ...] = ()
    """Texts that end generation when they appear."""
    reply_schema: JsonSchema | None = None
    """JSON Schema that the reply must match, enforced by servers that can."""
    tools: tuple[ToolSpec, ...] = ()
    """What the model may call."""
    tool_choice: Literal["auto", "required"] = "auto"
    """Whether the model decides if it calls a tool, or has to call one."""
    top_logprobs: int | None = None
    """Asks for log probabilities: of each token of the reply, and of this many alternatives, 0 to
    20. None for no log probabilities."""
    goes_on: bool = False
    """Whether the last message is the beginning of the reply, for the model to continue."""
    ignore_eos: bool = False
    """Whether the reply continues to its limit, past the model's own end, if the server supports
    it."""
    timeout_s: float | None = None
    """Time limit of the call, if shorter than the endpoint's."""
    priority: int = 0
    """Among calls that wait in this process for an endpoint, the highest goes first."""
    on_text: Callable[[str], None] | None = field(default=None, compare=False, repr=False)
    """Called with each piece of the answer as it arrives, without reasoning. After the first piece,
    the call is not retried."""
    on_piece: Callable[[], None] | None = field(default=None, compare=False, repr=False)
    """Called for every piece of a reply, of any kind: a sign of life."""
    on_taken: Callable[[Spent], None] | None = field(default=None, compare=False, repr=False)
    """Called with the use of each request of the call, including its schema probe and retries, if a
    run counts them."""

    def __post_init__(self) -> None:
        _check_types(self)
        if not self.messages:
            raise InvalidInput(
                "there are no messages; a call needs at least one", code="request.no-messages"
            )
        if self.max_output_tokens is not None and self.max_output_tokens < 1:
            raise InvalidInput(
                f"max_output_tokens is {self.max_output_tokens}; it must be 1 or more",
                code="request.no-room",
            )
        if not self.temperature >= 0:
            raise InvalidInput(
                f"temperature is {self.temperature:g}; it cannot be less than 0",
                code="request.temperature-negative",
            )
        if not (
            (self.top_p is None or 0 < self.top_p <= 1)
            and (self.top_k is None or self.top_k >= 1)
            and (self.min_p is None or 0 <= self.min_p <= 1)
        ):
            raise InvalidInput(
                f"top_p is {self.top_p}, top_k {self.top_k} and min_p {self.min_p}; top_p can be "
                "above 0 and up to 1, top_k 1 or more, min_p 0 to 1",
                code="request.cutoff-out-of-range",
            )
        if not 0 <= self.frequency_penalty <= _MOST_PENALTY:
            raise InvalidInput(
                f"frequency_penalty is {self.frequency_penalty:g}; it can be 0 to {_MOST_PENALTY}",
                code="request.penalty-out-of-range",
            )
        if self.top_logprobs is not None and not 0 <= self.top_logprobs <= _MOST_LOGPROBS:
            raise InvalidInput(
                f"top_logprobs is {self.top_logprobs}; it can be 0 to {_MOST_LOGPROBS}",
                code="request.logprobs-out-of-range",
            )
        _check_time(self.timeout_s)

    @property
    def cutoffs(self) -> dict[str, float]:
        """The set ones among `top_p`, `top_k` and `min_p`, by the names all servers use."""
        said = {"top_p": self.top_p, "top_k": self.top_k, "min_p": self.min_p}
        return {name: value for name, value in said.items() if value is not None}

    @property
    def images(self) -> tuple[Image, ...]:
        """The images of all messages."""
        return tuple(image for message in self.messages for image in message.images)

    @property
    def conversation(self) -> tuple[Message, ...]:
        """The messages for a server that cannot continue a reply: they ask for its rest."""
        return (*self.messages, Message("user", _GO_ON)) if self.goes_on else self.messages


def called_names(messages: Iterable[Message]) -> dict[str, str]:
    """The tools that a conversation has called, by the ids of the calls."""
    return {call.id: call.name for message in messages for call in message.tool_calls}


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRequest:
    """A request for the vectors of texts."""

    model: str
    """The endpoint's tag."""
    texts: tuple[str, ...]
    """At least one."""
    role: str | None = None
    """What the vectors are for; used only in the trace."""
    timeout_s: float | None = None
    """Time limit of the call, if shorter than the endpoint's."""

    def __post_init__(self) -> None:
        _check_types(self)
        if not self.texts:
            raise InvalidInput(
                "there are no texts; a call to embed needs at least one", code="request.no-texts"
            )
        _check_time(self.timeout_s)


Request = ChatRequest | EmbedRequest


_WHOLE = (Integral, "a whole number")
_NUMBER = (Real, "a number")
_KINDS: Mapping[str, tuple[Any, str]] = {
    "model": (str, "the tag of an endpoint, as text"),
    "messages": (Sequence, "a sequence of messages"),
    "texts": (Sequence, "a sequence of texts"),
    "max_output_tokens": _WHOLE,
    "temperature": _NUMBER,
    "top_p": _NUMBER,
    "top_k": _WHOLE,
    "min_p": _NUMBER,
    "frequency_penalty": _NUMBER,
    "seed": _WHOLE,
    "stop": (Sequence, "a sequence of texts"),
    "reply_schema": (Mapping, "a JSON Schema, as a mapping"),
    "tools": (Sequence, "a sequence of tools"),
    "top_logprobs": _WHOLE,
    "priority": _WHOLE,
    "timeout_s": (Real, "a number of seconds"),
    "on_text": (Callable, "a function of one text"),
}
"""The types of the fields of requests, and how messages name them."""
_PARTS: Mapping[str, type] = {"messages": Message, "texts": str, "stop": str, "tools": ToolSpec}
"""What the items of sequences are; a text alone is not a sequence."""
_NEVER_NONE = frozenset(
    {"model", "messages", "texts", "temperature", "frequency_penalty", "stop", "tools", "priority"}
)


def _check_types(request: Request) -> None:
    """Raises `InvalidInput` if a field has another type: else the error would come from below."""
    for name, (kind, said) in _KINDS.items():
        if not hasattr(request, name):
            continue
        value = getattr(request, name)
        if value is None and name not in _NEVER_NONE:
            continue
        is_right = isinstance(value, kind) and not isinstance(value, bool)
        if is_right and name in _PARTS:
            of_parts = all(isinstance(part, _PARTS[name]) for part in value)
            is_right = of_parts and not isinstance(value, str)
        if not is_right:
            raise InvalidInput(f"{name} is {value!r:.80}; give {said}", code="request.wrong-type")


def _check_time(timeout_s: float | None) -> None:
    if timeout_s is not None and timeout_s <= 0:
        raise InvalidInput(
            f"timeout_s is {timeout_s:g}; it must be more than 0",
            code="request.timeout-not-positive",
        )


_BYTES_PER_TOKEN = 3
"""Low, so that it is an upper bound: in English there are about four, and a letter of Chinese,
which has three bytes, is a token or less."""


_PER_MESSAGE = 8
"""What a chat template puts around a message: five or six."""
_PER_CALL = 64
"""What it puts before the first, a system prompt of its own: 26 in Qwen 2.5, 60 in gpt-oss."""
_PER_IMAGE = 2048
"""Claude's largest takes 1,600, GPT-4o's 1,445; a model that scales no image may take more."""
_PER_TOOL = 32
"""What a template puts around a tool or a call of one: 10 to 20."""


def most_tokens_in(text: str) -> int:
    """An upper bound of the tokens of a text in any script."""
    return math.ceil(len(text.encode("utf-8", "replace")) / _BYTES_PER_TOKEN)


def most_prompt_tokens(request: ChatRequest) -> int:
    """The same of a call's prompt, with what the model's chat template adds."""
    calls = [call for message in request.messages for call in message.tool_calls]
    said = [message.content for message in request.messages]
    said += [text for call in calls for text in (call.id, call.name, call.arguments)]
    for tool in request.tools:
        said += [tool.name, tool.description, json.dumps(dict(tool.parameters))]
    beside = (len(calls) + len(request.tools)) * _PER_TOOL + len(request.images) * _PER_IMAGE
    return beside + most_tokens_of_messages("".join(said), messages=len(request.messages))


def most_tokens_of_messages(text: str, *, messages: int) -> int:
    """The same of so many messages, whose contents together are this text."""
    return most_tokens_in(text) + messages * _PER_MESSAGE + _PER_CALL


def most_tokens_of(request: ChatRequest) -> int:
    """The same of a call: its prompt, and the room for the reply if that is stated."""
    return most_prompt_tokens(request) + (request.max_output_tokens or 0)
