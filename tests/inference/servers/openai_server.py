"""A server of OpenAI's chat protocol, emulated: what sets the servers apart is data, a `Dialect`.

It answers by what it is asked: token limits, stop texts and schemas count.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from servers.emulated import (
    ARGUMENTS,
    JSON_TEXT,
    TEXT,
    THOUGHT,
    TYPED_ANSWER,
    TYPED_CALL,
    Answer,
    Asked,
    Emulated,
    event,
)

MODEL = "served-name"
CONTEXT_TOKENS = 4096
LONG_PROMPT_TOKENS = 5000
"""Of the prompt that is too long."""
PROMPT_TOKENS = 31
CACHED_TOKENS = 24
GARBAGE = b"<h1>It works!</h1>"


@dataclass(frozen=True, kw_only=True)
class Complaint:
    """An error as its server tells of it."""

    status: int
    message: str
    kind: str = "BadRequestError"
    code: object = None
    more: Mapping[str, object] = field(default_factory=dict)
    """Fields beside these."""
    headers: tuple[tuple[str, str], ...] = ()
    told_late: bool = False
    """Whether a streamed call is told in its stream, which has begun with 200."""


NOT_FOUND = Complaint(status=404, message="Not Found", kind="not_found_error", code=404)


class Refused(Exception):
    """A request that is answered with a complaint."""

    def __init__(self, complaint: Complaint) -> None:
        super().__init__(complaint.message)
        self.complaint = complaint


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """The ways of one server, by its own code and documentation."""

    version: str
    body: Callable[[Complaint], object]
    """Of a refusal."""
    event: Callable[[Complaint], object] | None
    """What tells of an error in a stream; None when that breaks the connection."""
    done_after_error: bool
    """Whether `[DONE]` follows it."""
    schema: Callable[[Mapping[str, Any]], object]
    """From `response_format`, the schema it enforces; None when it takes no notice."""
    knows: str = ""
    """The only fields it takes, with blanks between; empty when it takes no notice of others."""
    first_delta: Mapping[str, object] | None = None
    """What comes before the first token."""
    finish: Literal["own chunk", "last token", "usage chunk"] = "own chunk"
    """Where the finish reason is."""
    cut_by_limit: str = "length"
    """The finish reason when the token limit ended the reply."""
    null_usage: bool = False
    """Whether the chunks before the last have a usage that is null."""
    usage: Mapping[str, object] = field(default_factory=dict)
    """In the usage, beside the three counts."""
    beside_usage: Mapping[str, object] = field(default_factory=dict)
    """Fields of the last chunk, and of a whole reply."""
    counts_usage: Literal["always", "streamed", "never"] = "always"
    """Which replies have their usage; streamed ones, if that is asked for."""
    thought: Literal["reasoning", "reasoning_content", "<think>"] = "reasoning_content"
    """The field for reasoning, or the tag where it stands in the text."""
    calls: Literal["in pieces", "whole", "one"] = "in pieces"
    """How tools are called: each in pieces, each at once, or one of them, always by one id and by
    an object where the reply is not streamed."""
    no_tools: Complaint | None = None
    """What it says to tools that it has no means for; None if it says nothing, nor does it tell
    its model of them."""
    overflow: Complaint
    unknown_model: Complaint | None = None
    """None when it does not look at the model's name."""
    overload: Complaint = Complaint(status=503, message="Loading model")
    embeds: Literal["texts", "one text", "nothing"] = "texts"
    counts: Mapping[str, Callable[[Any, int], object]] = field(default_factory=dict)
    """By path, from the request and the number of its words, the reply to a count of tokens."""
    pages: Mapping[str, object] = field(default_factory=dict)
    """What it tells of itself, by path; None for an empty body."""


@dataclass
class OpenAIServer(Emulated):
    """Serves `MODEL`, with a context of `CONTEXT_TOKENS`."""

    dialect: Dialect = field(kw_only=True)
    enforced: list[object] = field(default_factory=list)
    """Every schema that a reply was held to."""

    @property
    def url(self) -> str:
        """Its base address."""
        return f"{self.root}/v1"

    async def respond(self, asked: Asked, answer: Answer) -> None:
        """Answers one request."""
        path = asked.path.partition("?")[0]
        try:
            if path == "/v1/chat/completions":
                await self._chat(asked.body, answer)
            elif path == "/v1/embeddings":
                await answer.json(_embeddings(asked.body, self.dialect))
            elif path in self.dialect.counts:
                await answer.json(self.dialect.counts[path](asked.body, _words(asked.body)))
            elif path in self.dialect.pages:
                await _page(self.dialect.pages[path], answer)
            else:
                raise Refused(NOT_FOUND)
        except Refused as refused:
            await self._refuse(refused.complaint, asked.body, answer)

    async def _chat(self, body: Any, answer: Answer) -> None:
        if self.scenario == "silent":
            await answer.hold()
        troubles = {
            "overflow": self.dialect.overflow,
            "unknown model": self.dialect.unknown_model,
            "overload": self.dialect.overload,
        }
        trouble = troubles.get(self.scenario)
        if trouble is not None:
            raise Refused(trouble)
        said = _Said(body, self.scenario, self.dialect)
        if said.schema is not None:
            self.enforced.append(said.schema)
        if body.get("stream"):
            await self._stream(said, answer)
        else:
            await self._whole(said, answer)

    async def _stream(self, said: _Said, answer: Answer) -> None:
        await answer.start("text/event-stream")
        for chunk in said.tokens() if self.scenario != "garbage" else ():
            await answer.send(event(chunk))
        match self.scenario:
            case "garbage":
                await answer.send(b"data: " + GARBAGE + b"\n\n")
            case "cut stream":
                answer.drop()
            case "stalled":
                await answer.hold()
            case "endless":
                while True:
                    await answer.send(event(said.token("na ")))
            case "late error":
                boom = Complaint(status=500, message="boom", kind="InternalServerError", code=500)
                await self._tell(boom, answer)
            case _:
                for chunk in said.ending():
                    await answer.send(event(chunk))
                if self.scenario != "unended stream":
                    await answer.send(b"data: [DONE]\n\n")
        await answer.end()

    async def _whole(self, said: _Said, answer: Answer) -> None:
        data = json.dumps(said.whole(), ensure_ascii=False).encode()
        if self.scenario == "garbage":
            data = GARBAGE
        await answer.start("application/json")
        if self.scenario == "cut stream":
            await answer.send(data[: len(data) // 2])
            answer.close()
        await answer.send(data)
        await answer.end()

    async def _refuse(self, complaint: Complaint, body: Any, answer: Answer) -> None:
        said = self.dialect.body(complaint)
        if complaint.told_late and body.get("stream"):
            await answer.start("text/event-stream")
            await self._tell(complaint, answer)
            await answer.end()
        else:
            await answer.json(said, status=complaint.status, headers=complaint.headers)

    async def _tell(self, complaint: Complaint, answer: Answer) -> None:
        if self.dialect.event is None:
            answer.close()
        await answer.send(event(self.dialect.event(complaint)))
        if self.dialect.done_after_error:
            await answer.send(b"data: [DONE]\n\n")


class _Said:
    """One reply, in the words of its dialect.

    Raises:
        Refused: The request is refused.
    """

    def __init__(self, body: Any, scenario: str, dialect: Dialect) -> None:
        self._body = body
        self._scenario = scenario
        self._dialect = dialect
        unknown = set(body) - set(dialect.knows.split()) if dialect.knows else None
        if unknown:
            raise Refused(Complaint(status=400, message=_extra_forbidden(unknown)))
        self.schema = dialect.schema(body.get("response_format", {}))
        self._calls = list(_calls(body, dialect, is_without=scenario == "no tools"))
        pieces = JSON_TEXT if self.schema is not None else () if self._calls else TEXT
        if isinstance(self.schema, dict) and "next" in self.schema.get("properties", ()):
            pieces = (TYPED_ANSWER if "Result of" in json.dumps(body) else TYPED_CALL,)
        pieces = () if scenario == "empty" else tuple(_until(body.get("stop", ()), pieces))
        limit = 2 if scenario == "length" else body.get("max_tokens", 512)
        self._pieces = pieces[:limit]
        self._thought = THOUGHT if scenario == "thinking" else ()
        ended = "tool_calls" if self._calls else "stop"
        self._finish = dialect.cut_by_limit if len(pieces) > limit else ended
        self._is_broken = scenario in {"cut stream", "late error", "stalled"}

    def token(self, text: str, *, finish: str | None = None) -> dict[str, object]:
        """A chunk with a token of the answer."""
        return self._chunk(_choice({"content": text}, finish))

    def tokens(self) -> Iterator[dict[str, object]]:
        """All of it that comes before the end; only some, if it breaks off."""
        if self._dialect.first_delta is not None:
            yield self._chunk(_choice(self._dialect.first_delta))
        yield from (self._chunk(_choice(delta)) for delta in self._thoughts())
        pieces = self._pieces[:2] if self._is_broken else self._pieces
        for number, call in enumerate(self._calls):
            yield from (
                self._chunk(_choice({"tool_calls": [{"index": number, **piece}]}))
                for piece in _in_pieces(call, whole=self._dialect.calls == "whole")
            )
        with_finish = self._dialect.finish == "last token" and not self._is_broken
        for number, piece in enumerate(pieces, start=1):
            is_last = with_finish and number == len(pieces)
            yield self.token(piece, finish=self._finish if is_last else None)
        if with_finish and not pieces:
            yield self.token("", finish=self._finish)

    def ending(self) -> Iterator[dict[str, object]]:
        """The finish reason and the usage."""
        last = {"usage": self._usage()} | dict(self._dialect.beside_usage)
        if self._dialect.finish == "usage chunk":
            yield self._chunk(_choice({}, self._finish)) | last
            return
        if self._dialect.finish == "own chunk":
            yield self._chunk(_choice({}, self._finish))
        asked_for = self._body.get("stream_options", {}).get("include_usage")
        if asked_for and self._dialect.counts_usage != "never":
            yield self._chunk() | last

    def whole(self) -> dict[str, object]:
        """The reply that is not streamed."""
        message: dict[str, object] = {"role": "assistant", "content": "".join(self._pieces)}
        if self._calls:
            message["tool_calls"] = self._calls
            if self._dialect.calls == "one":
                function = self._calls[0]["function"]
                function["arguments"] = json.loads(function["arguments"])
        for delta in self._thoughts():
            for name, text in delta.items():
                message[name] = f"{text}{message[name]}" if name == "content" else "".join(THOUGHT)
        choice = {"index": 0, "message": message, "finish_reason": self._finish}
        counted = {"usage": self._usage() if self._dialect.counts_usage == "always" else None}
        head = _head("chat.completion") | {"choices": [choice]}
        return head | counted | dict(self._dialect.beside_usage)

    def _thoughts(self) -> Iterator[dict[str, object]]:
        if self._dialect.thought != "<think>":
            yield from ({self._dialect.thought: piece} for piece in self._thought)
        elif self._thought:
            yield {"content": f"<think>{''.join(self._thought)}</think>\n\n"}

    def _chunk(self, *choices: Mapping[str, object]) -> dict[str, object]:
        usage = {"usage": None} if self._dialect.null_usage else {}
        return _head("chat.completion.chunk") | {"choices": choices} | usage

    def _usage(self) -> dict[str, object]:
        written = len(self._pieces) + len(self._thought)
        is_told = self._scenario != "no tools"
        tools = re.findall(r"\w+", json.dumps(self._body.get("tools", "")) if is_told else "")
        read = PROMPT_TOKENS + len(tools)
        counts = {"prompt_tokens": read, "completion_tokens": written}
        return counts | {"total_tokens": read + written} | dict(self._dialect.usage)


def _calls(body: Any, dialect: Dialect, *, is_without: bool) -> Iterator[dict[str, Any]]:
    """A call of each tool, until one was answered; answers have to name calls."""
    asked = [call["id"] for message in body["messages"] for call in message.get("tool_calls", ())]
    answered = [one["tool_call_id"] for one in body["messages"] if one["role"] == "tool"]
    if asked != answered or len(set(asked)) != len(asked):
        raise Refused(Complaint(status=400, message=f"calls {asked} and results {answered}"))
    tools = body.get("tools", [])
    if tools and is_without:
        if dialect.no_tools is not None:
            raise Refused(dialect.no_tools)
        return
    for number, tool in enumerate(() if answered else tools):
        named = {"name": tool["function"]["name"], "arguments": "".join(ARGUMENTS)}
        call_id = "0" if dialect.calls == "one" else f"call_x{number}"
        yield {"id": call_id, "type": "function", "function": named}
        if dialect.calls == "one":
            return


def _in_pieces(call: dict[str, Any], *, whole: bool) -> Iterator[dict[str, Any]]:
    if whole:
        yield call
        return
    yield call | {"function": {"name": call["function"]["name"], "arguments": ""}}
    yield from ({"function": {"arguments": piece}} for piece in ARGUMENTS)


def _head(kind: str) -> dict[str, object]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1_760_000_000, "model": MODEL}


def _choice(delta: Mapping[str, object], finish: str | None = None) -> dict[str, object]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}


def _until(stops: tuple[str, ...], pieces: tuple[str, ...]) -> Iterator[str]:
    """The pieces up to where a stop text begins."""
    whole = "".join(pieces)
    ends = [whole.index(stop) for stop in stops if stop in whole]
    left = min(ends, default=len(whole))
    for piece in pieces:
        if left > 0:
            yield piece[:left]
        left -= len(piece)


def _extra_forbidden(names: Iterable[str]) -> str:
    """pydantic's words for fields that a model does not have."""
    why = {"type": "extra_forbidden", "msg": "Extra inputs are not permitted"}
    return str([why | {"loc": ("body", name)} for name in sorted(names)])


def _words(body: Any) -> int:
    """The words of a conversation, which this server's model has for tokens."""
    messages = body.get("messages") or body["text"]
    return sum(len(message["content"].split()) for message in messages)


def _embeddings(body: Any, dialect: Dialect) -> object:
    if dialect.embeds == "nothing":
        raise Refused(NOT_FOUND)
    texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
    if dialect.embeds == "one text" and not isinstance(body["input"], str):
        said = "Expected a single string for the embedding's input"
        raise Refused(Complaint(status=400, message=said))
    rows = [
        {"object": "embedding", "index": index, "embedding": _coded([len(text), 0.5], body)}
        for index, text in enumerate(texts)
    ]
    # The order is not promised; the index is.
    usage = {"prompt_tokens": 3 * len(texts), "total_tokens": 3 * len(texts)}
    return {"object": "list", "data": rows[::-1], "model": MODEL, "usage": usage}


def _coded(vector: list[float], body: Any) -> object:
    if body.get("encoding_format") != "base64":
        return vector
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


async def _page(page: object, answer: Answer) -> None:
    if page is None:
        await answer.start("text/plain")
        await answer.end()
    else:
        await answer.json(page)
