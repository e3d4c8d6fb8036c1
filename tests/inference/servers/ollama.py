"""An emulated Ollama, as of 0.34.2: server/routes.go, llm/llama_server.go, api/types.go."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

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
)

SENT_AT = "2026-09-17T15:42:59.7420965Z"
LOAD_NS, PREFILL_NS, DECODE_NS = 25_000_000, 30_000_000, 200_000_000
PROMPT_TOKENS, CACHED_TOKENS = 29, 24

OVERFLOW = (
    '{"error":{"code":400,"message":"request (12628 tokens) exceeds the available context size '
    '(8192 tokens), try increasing it","type":"exceed_context_size_error",'
    '"n_prompt_tokens":12628,"n_ctx":8192}}'
)
"""What its llama-server says; Ollama passes it on as a string, JSON in JSON."""
OVERFLOW_OF_EMBEDDINGS = "the input length exceeds the context length"
"""Here it has words of its own. Up to 0.30 they were those of its chat, too."""
FULL = "server busy, please try again.  maximum pending requests exceeded"
CRASHED = "an error was encountered while running the model: unexpected EOF"


@dataclass
class OllamaServer(Emulated):
    """Ollama."""

    async def respond(self, asked: Asked, answer: Answer) -> None:
        """Answers one request."""
        match asked.method, asked.path:
            case "POST", "/api/chat" | "/api/embed":
                await self._generate(asked, answer)
            case "GET", "/":
                await answer.page(b"Ollama is running", content_type="text/plain")
            case "GET", "/api/version":
                await _json(answer, {"version": "0.34.2"})
            case _:
                await answer.page(b"404 page not found", content_type="text/plain", status=404)

    async def _generate(self, asked: Asked, answer: Answer) -> None:
        body, chats = asked.body, asked.path == "/api/chat"
        # What is too long is cut and not spoken of, unless the request forbids it.
        cuts = body.get("truncate", True) or (chats and body.get("shift", True))
        if self.scenario == "unknown model":
            await _refuse(answer, 404, f"model '{body['model']}' not found")
        elif self.scenario == "overload":
            await _refuse(answer, 503, FULL)
        elif self.scenario == "no tools" and body.get("tools"):
            await _refuse(answer, 400, f"{body['model']} does not support tools")
        elif self.scenario == "overflow" and not cuts:
            await _refuse(answer, 400, OVERFLOW if chats else OVERFLOW_OF_EMBEDDINGS)
        elif self.scenario == "silent":
            await answer.hold()
        elif self.scenario == "garbage":
            await answer.page(b"<!doctype html><title>Welcome to nginx!</title>")
        elif not chats:
            await _json(answer, _embeddings(body))
        elif body.get("stream", True):
            await self._stream(body, answer)
        else:
            await self._whole(body, answer)

    async def _stream(self, body: dict[str, Any], answer: Answer) -> None:
        pieces = list(self._pieces(body))
        await answer.start("application/x-ndjson")
        if self.scenario == "stalled":
            await answer.send(_line(pieces[0]))
            await answer.hold()
        for piece in pieces:
            await answer.send(_line(piece))
        while self.scenario == "endless":
            await answer.send(_line(pieces[-1]))
        match self.scenario:
            case "cut stream":
                answer.drop()
            case "late error":
                await answer.send(_line({"error": CRASHED}))
            case "unended stream":
                pass  # Too many identical tokens in a row end it like this.
            case _:
                await answer.send(_line(_part(body) | self._last(pieces)))
        await answer.end()

    async def _whole(self, body: dict[str, Any], answer: Answer) -> None:
        # Not a byte of a reply is written before all of it is there.
        if self.scenario in {"stalled", "endless"}:
            await answer.hold()
        if self.scenario == "late error":
            await _refuse(answer, 500, CRASHED)
            return
        pieces = list(self._pieces(body))
        reply = _part(body) | self._last(pieces)
        if self.scenario == "unended stream":
            reply = _part(body)
        for key in ("content", "thinking"):
            if said := "".join(piece["message"].get(key, "") for piece in pieces):
                reply["message"][key] = said
        if calls := [one for piece in pieces for one in piece["message"].get("tool_calls", ())]:
            reply["message"]["tool_calls"] = calls
        data = _encode(reply)
        await answer.start("application/json; charset=utf-8")
        if self.scenario == "cut stream":
            await answer.send(data[:40])
            answer.drop()
        await answer.send(data)
        await answer.end()

    def _pieces(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The lines of a reply before its last."""
        texts = () if self.scenario == "empty" else JSON_TEXT if "format" in body else TEXT
        if "next" in body.get("format", {}).get("properties", ()):
            texts = (TYPED_ANSWER if "Result of" in json.dumps(body) else TYPED_CALL,)
        asked = [
            call["function"]["name"]
            for message in body["messages"]
            for call in message.get("tool_calls", ())
            if isinstance(call["function"]["arguments"], dict)
        ]
        assert asked == [one["tool_name"] for one in body["messages"] if one["role"] == "tool"]
        if body.get("tools") and not asked:
            for tool in body["tools"]:
                named = tool["function"]["name"]
                part = _part(body)
                arguments = json.loads("".join(ARGUMENTS))
                call = {"function": {"index": 0, "name": named, "arguments": arguments}}
                part["message"]["tool_calls"] = [call]
                yield part
            return
        if self.scenario == "thinking":
            for text in THOUGHT:
                yield _part(body, thinking=text)
        for text in texts:
            yield _part(body, content=text)

    def _last(self, pieces: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "done": True,
            "done_reason": "length" if self.scenario == "length" else "stop",
            "total_duration": LOAD_NS + PREFILL_NS + DECODE_NS + 1_000_000,
            "load_duration": LOAD_NS,
            "prompt_eval_count": PROMPT_TOKENS,
            "prompt_eval_cached_count": CACHED_TOKENS,
            "prompt_eval_duration": PREFILL_NS,
            "eval_count": len(pieces) + 1,  # the token that ends the reply is one of them
            "eval_duration": DECODE_NS,
        }


def _part(body: dict[str, Any], *, content: str = "", **said: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": content, **said}
    return {"model": body["model"], "created_at": SENT_AT, "message": message, "done": False}


def _embeddings(body: dict[str, Any]) -> dict[str, Any]:
    """Unit vectors, turned by the length of their texts."""
    angles = [len(text) / 100 for text in body["input"]]
    return {
        "model": body["model"],
        "embeddings": [[math.cos(angle), math.sin(angle)] for angle in angles],
        "total_duration": LOAD_NS + PREFILL_NS,
        "load_duration": LOAD_NS,
        "prompt_eval_count": 3 * len(angles),
    }


async def _refuse(answer: Answer, status: int, error: str) -> None:
    await _json(answer, {"error": error}, status=status)


async def _json(answer: Answer, value: object, *, status: int = 200) -> None:
    await answer.start("application/json; charset=utf-8", status=status)
    await answer.send(_encode(value))
    await answer.end()


def _line(value: object) -> bytes:
    return _encode(value) + b"\n"


def _encode(value: object) -> bytes:
    """JSON as Go writes it: UTF-8, except what might disturb a browser."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode()
