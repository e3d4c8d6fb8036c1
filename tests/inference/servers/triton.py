"""Triton's generate protocol with a model of its vLLM backend.

From the server's src/http_server.cc and docs/protocol/extension_generate.md, and the vLLM backend's
src/model.py and src/utils/request.py, as they were in early 2026.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from servers.emulated import TEXT, THOUGHT, TYPED_ANSWER, TYPED_CALL, Answer, Asked, Emulated, event

PROMPT_TOKENS = 31
VERSION = "1"
OVERFLOW = (
    "Error generating stream: This model's maximum context length is 4096 tokens. However, you "
    "requested 512 output tokens and your prompt contains at least 5000 input tokens, for a total "
    "of at least 5512 tokens. Please reduce the length of the input prompt or the number of "
    "requested output tokens. (parameter=input_tokens, value=5000)"
)
BROKEN = "Error generating stream: EngineCore encountered an issue. See stack trace (above)."
SEVERAL = (
    "generate expects model to produce exactly 1 response, use generate stream for model that "
    "generates various number of responses"
)

_PATH = re.compile(r"/v2/models/([^/]+)(?:/versions/\d+)?/(generate|generate_stream)")
_INPUTS: Mapping[str, type] = {
    "stream": bool,
    "sampling_parameters": str,
    "exclude_input_in_output": bool,
    "return_finish_reason": bool,
    "return_num_input_tokens": bool,
    "return_num_output_tokens": bool,
}
"""What the model's configuration declares beside `text_input`."""


@dataclass
class TritonServer(Emulated):
    """`POST /v2/models/<model>/generate` and `…/generate_stream`."""

    counts: bool = True
    """Whether it knows the additional outputs, as releases since 25.02 do."""

    async def respond(self, asked: Asked, answer: Answer) -> None:
        if refusal := self._refusal(asked):
            status, said = refusal
            await answer.json({"error": said}, status=status)
        elif self.scenario == "silent":
            await answer.hold()
        elif self.scenario == "garbage":
            await answer.page(b"<h1>It works!</h1>\n\ndata: {not JSON}\n\n")
        else:
            reply = _Reply(asked, self)
            if asked.path.endswith("_stream"):
                await self._stream(reply, answer)
            else:
                await self._whole(reply, answer)

    def _refusal(self, asked: Asked) -> tuple[int, str] | None:
        """What Triton answers before the model has seen the request."""
        found = _PATH.fullmatch(asked.path)
        if found is None or asked.method != "POST":
            return 404, "Not Found"
        if self.scenario == "unknown model":
            return 400, f"Request for unknown model: '{found[1]}' is not found"
        if self.scenario == "overload":
            return 503, "[request id: <id_unknown>] Exceeds maximum queue size"
        complaint = _complaint(asked.body)
        return (400, complaint) if complaint else None

    async def _stream(self, reply: _Reply, answer: Answer) -> None:
        # The status is that of the first response, and even an error is an event.
        await answer.start("text/event-stream; charset=utf-8", status=reply.status)
        if reply.error:
            await answer.send(event({"error": reply.error}))
            await answer.end()
            return
        *texts, last = reply.pieces()
        if self.scenario in {"cut stream", "stalled", "late error", "endless"}:
            texts = texts[:3]
        for text in texts:
            await answer.send(event(reply.output(text)))
        match self.scenario:
            case "cut stream":
                answer.drop()
            case "stalled":
                await answer.hold()
            case "late error":
                await answer.send(event({"error": BROKEN}))
            case "endless":
                while True:
                    await answer.send(event(reply.output("na ")))
                    await asyncio.sleep(0)
            case "unended stream":
                pass
            case _:
                await answer.send(event(reply.output(last, finish_reason=reply.finish_reason)))
        await answer.end()

    async def _whole(self, reply: _Reply, answer: Answer) -> None:
        output = reply.output("".join(reply.pieces()), finish_reason=reply.finish_reason)
        match self.scenario:
            case _ if reply.error:
                await answer.json({"error": reply.error}, status=reply.status)
            case "cut stream" | "stalled":
                await answer.start("application/json")
                await answer.send(json.dumps(output).encode()[:40])
                if self.scenario == "cut stream":
                    answer.drop()
                await answer.hold()
            case "endless":
                await answer.hold()
            case "late error":
                # The status was that of the first response; only then came more of them.
                await answer.json({"error": SEVERAL})
            case _:
                await answer.json(output)


class _Reply:
    """What the vLLM backend makes of one request."""

    def __init__(self, asked: Asked, server: TritonServer) -> None:
        found = _PATH.fullmatch(asked.path)
        assert found is not None
        self._model = found[1]
        self._scenario = server.scenario
        self._counts = server.counts
        self._inputs = {name: asked.body["parameters"].get(name) for name in _INPUTS}
        self._prompt = asked.body["text_input"]
        self._sampling = json.loads(self._inputs["sampling_parameters"] or "{}")
        self.error = self._error()
        """What is wrong with the request, if anything is."""
        self.status = 500 if self.error else 200
        self.finish_reason = {"length": "length", "unended stream": "None"}.get(
            self._scenario, "stop"
        )

    def _error(self) -> str:
        if self._scenario == "overflow":
            return OVERFLOW
        if self._inputs["stream"] and self._inputs["exclude_input_in_output"] is False:
            return (
                "Error generating stream: When streaming, `exclude_input_in_output` = False is "
                "not allowed."
            )
        return ""

    def pieces(self) -> Iterator[str]:
        """The text of every response, of which the last has none: the end of the reply."""
        texts = () if self._scenario == "empty" else TEXT
        if self._scenario == "thinking":
            texts = ("<think>", *THOUGHT, "</think>", "\n\n", *TEXT)
        if '{"next":{"call":' in self._prompt:
            texts = (TYPED_ANSWER if "Result of" in self._prompt else TYPED_CALL,)
        if self._inputs["stream"]:
            yield from (*texts, "")
        else:
            echoed = "" if self._inputs["exclude_input_in_output"] else self._prompt
            yield echoed + "".join(texts)

    def output(self, text: str, *, finish_reason: str = "None") -> dict[str, object]:
        """One response as JSON; tensors of one element are bare."""
        output: dict[str, object] = {
            "model_name": self._model,
            "model_version": VERSION,
            "text_output": text,
        }
        tokens = 1 if self._inputs["stream"] else len(TEXT) + 1
        if self._asked("return_finish_reason"):
            output["finish_reason"] = finish_reason
        if self._asked("return_num_output_tokens"):
            output["num_output_tokens"] = tokens
        if self._asked("return_num_input_tokens"):
            output["num_input_tokens"] = PROMPT_TOKENS
        return output

    def _asked(self, name: str) -> bool:
        return self._counts and bool(self._inputs[name])


def _complaint(body: Mapping) -> str:
    """What Triton finds wrong with a request before its model sees it."""
    if not isinstance(body.get("text_input"), str):
        return "Unable to parse JSON bytes array: attempt to access JSON non-string as string"
    for name, value in body.get("parameters", {}).items():
        wanted = _INPUTS.get(name)
        if wanted is None and not isinstance(value, str | int | float | bool):
            return (
                f"Converting keyword: 'parameters': parameter '{name}' has invalid type. It should "
                "be either 'int', 'bool', or 'string'."
            )
        if wanted is not None and not isinstance(value, wanted):
            return f"Converting keyword: 'parameters': Unable to parse 'data': '{name}'"
    return ""
