"""Anthropic's Messages API, version 2023-06-01, as its SDK (1.x) and its documentation have it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from servers.emulated import ARGUMENTS, JSON_TEXT, TEXT, THOUGHT, Answer, Asked, Emulated

FRESH, WRITTEN, READ = 10, 3, 5
"""Tokens of the prompt that were computed, put into the cache, and taken from it."""
OVERFLOW = "prompt is too long: 208310 tokens > 200000 maximum"


@dataclass
class Anthropic(Emulated):
    """`POST /v1/messages`."""

    refuses: tuple[str, ...] = ()
    """Fields that the model does not take, as Claude's newer ones do not take `temperature`."""
    stop_reason: str = "end_turn"

    async def respond(self, asked: Asked, answer: Answer) -> None:
        body = asked.body
        if asked.path != "/v1/messages":
            await self._refuse(answer, 404, "not_found_error", "Not found")
            return
        if not asked.headers.get("x-api-key"):
            await self._refuse(answer, 401, "authentication_error", "x-api-key header is required")
            return
        if "max_tokens" not in body:
            await self._refuse(answer, 400, "invalid_request_error", "max_tokens: Field required")
            return
        for name in self.refuses:
            if name in body:
                said = f"{name}: Extra inputs are not permitted"
                await self._refuse(answer, 400, "invalid_request_error", said)
                return
        match self.scenario:
            case "overflow":
                await self._refuse(answer, 400, "invalid_request_error", OVERFLOW)
            case "unknown model":
                await self._refuse(answer, 404, "not_found_error", f"model: {body['model']}")
            case "overload":
                await self._refuse(answer, 529, "overloaded_error", "Overloaded")
            case "silent":
                await answer.hold()
            case _ if body.get("stream"):
                await self._stream(body, answer)
            case "garbage":
                await answer.page(b"<h1>It works!</h1>")
            case _:
                await answer.json(self._message(body))

    async def _stream(self, body: Any, answer: Answer) -> None:
        await answer.start("text/event-stream; charset=utf-8")
        *beginning, stopped, ended = self._events(body)
        if self.scenario == "garbage":
            await answer.send(b"event: message_start\ndata: {not JSON}\n\n")
            await answer.end()
            return
        if self.scenario in {"cut stream", "unended stream", "late error", "stalled", "endless"}:
            beginning = beginning[:4]
        for event in beginning:
            await answer.send(_event(event))
        match self.scenario:
            case "cut stream":
                answer.drop()
            case "stalled":
                await answer.hold()
            case "late error":
                error = {"type": "overloaded_error", "message": "Overloaded"}
                await answer.send(_event({"type": "error", "error": error}))
            case "endless":
                while True:
                    await answer.send(_event(_delta(0, {"type": "text_delta", "text": "na "})))
            case "reply" | "empty" | "length" | "thinking":
                await answer.send(_event(stopped))
                await answer.send(_event(ended))
        await answer.end()

    def _events(self, body: Any) -> Iterator[dict[str, object]]:
        message = self._message(body) | {"content": [], "stop_reason": None}
        message["usage"] = _usage(output_tokens=1)
        yield {"type": "message_start", "message": message}
        yield {"type": "ping"}
        for index, (block, deltas) in enumerate(self._blocks(body)):
            yield {"type": "content_block_start", "index": index, "content_block": block}
            for delta in deltas:
                yield _delta(index, delta)
            yield {"type": "content_block_stop", "index": index}
        yield {
            "type": "message_delta",
            "delta": {"stop_reason": self._stop_reason(body), "stop_sequence": None},
            "usage": _usage(output_tokens=7),
        }
        yield {"type": "message_stop"}

    def _blocks(self, body: Any) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
        if self.scenario == "thinking":
            block = {"type": "thinking", "thinking": "", "signature": ""}
            thoughts = [{"type": "thinking_delta", "thinking": piece} for piece in THOUGHT]
            yield block, [*thoughts, {"type": "signature_delta", "signature": "c2lnbmVk"}]
        if body.get("tool_choice", {}).get("type") == "tool":
            block = {
                "type": "tool_use",
                "id": "toolu_1",
                "name": body["tool_choice"]["name"],
                "input": {},
            }
            yield block, [{"type": "input_json_delta", "partial_json": p} for p in JSON_TEXT]
        elif calls := _calls(body):
            yield from calls
        elif self.scenario != "empty":
            pieces = JSON_TEXT if "output_config" in body or "output_format" in body else TEXT
            yield (
                {"type": "text", "text": ""},
                [{"type": "text_delta", "text": piece} for piece in pieces],
            )

    def _message(self, body: Any) -> dict[str, object]:
        return {
            "id": "msg_01",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": [_whole(block, deltas) for block, deltas in self._blocks(body)],
            "stop_reason": self._stop_reason(body),
            "stop_sequence": None,
            "usage": _usage(output_tokens=7),
        }

    def _stop_reason(self, body: Any) -> str:
        if self.scenario == "length":
            return "max_tokens"
        is_call = body.get("tool_choice", {}).get("type") == "tool" or _calls(body)
        return "tool_use" if is_call else self.stop_reason

    async def _refuse(self, answer: Answer, status: int, kind: str, said: str) -> None:
        error = {"type": kind, "message": said}
        await answer.json(
            {"type": "error", "error": error, "request_id": "req_01"},
            status=status,
            headers=[("retry-after", "7")] if status in {429, 529} else [],
        )


def _calls(body: Any) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """A call of each tool, until they were answered by their ids."""
    blocks = [b for m in body["messages"] if isinstance(m["content"], list) for b in m["content"]]
    asked = [block["id"] for block in blocks if block["type"] == "tool_use"]
    assert asked == [one["tool_use_id"] for one in blocks if one["type"] == "tool_result"]
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ARGUMENTS]
    return [
        ({"type": "tool_use", "id": f"toolu_{n}", "name": tool["name"], "input": {}}, deltas)
        for n, tool in enumerate(() if asked else body.get("tools", ()))
    ]


def _usage(*, output_tokens: int) -> dict[str, int]:
    return {
        "input_tokens": FRESH,
        "cache_creation_input_tokens": WRITTEN,
        "cache_read_input_tokens": READ,
        "output_tokens": output_tokens,
    }


def _delta(index: int, delta: dict[str, Any]) -> dict[str, object]:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def _whole(block: dict[str, Any], deltas: list[dict[str, Any]]) -> dict[str, Any]:
    """A block as replies have it that are not streamed."""
    whole = dict(block)
    for delta in deltas:
        match delta:
            case {"text": piece}:
                whole["text"] += piece
            case {"thinking": piece}:
                whole["thinking"] += piece
            case {"signature": signature}:
                whole["signature"] = signature
    if block["type"] == "tool_use":
        whole["input"] = json.loads("".join(delta["partial_json"] for delta in deltas))
    return whole


def _event(event: dict[str, Any]) -> bytes:
    data = json.dumps(event, ensure_ascii=False)
    return f"event: {event['type']}\ndata: {data}\n\n".encode()
