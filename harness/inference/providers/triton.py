"""Triton's own generate protocol: one text in, one text out.

The parameters of a call are those of Triton's vLLM backend. The TensorRT-LLM backend has other
names for them (`max_tokens` and `stop_words` of their own, `sampling_param_max_tokens`): reach its
models through Triton's OpenAI front end, which is the backend `triton-openai`.

A call cannot carry a schema for its reply, and the reply does not report its times. A stream ends
with the HTTP body, without a mark of its own; the finish reason shows that the model was done.
Servers before 24.12 send no finish reason and count no tokens, and slightly newer ones count only
the reply's.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

from harness.errors import NotOffered
from harness.inference.completion import Completion, Embeddings, Usage
from harness.inference.endpoint import Endpoint, PromptTemplate
from harness.inference.json_text import at, json_of, names, text_at
from harness.inference.providers.http import Access, HttpBackend
from harness.inference.providers.openai_wire import ONLY_TOP_P, wire_fields
from harness.inference.providers.provider import NEVER, HostReport, Provider, check_offers, remedies
from harness.inference.providers.server_host import ServerFacts, ServerHost, ServerPages, until
from harness.inference.providers.wire_reply import proper_end
from harness.inference.refused_fields import RefusedFields
from harness.inference.reply_in_progress import ReplyInProgress, as_count
from harness.inference.request import ChatRequest, EmbedRequest, Message, Role

# Sent with a call without a limit: vLLM's default here is 16, and Triton tells no context length.
UNSTATED_ROOM_TOKENS = 1024
_EXPLICIT = "--model-control-mode=explicit"
_NOT_EXPLICIT = re.compile(
    rb"(?i)explicit model load / unload is not allowed|requires --model-control-mode=explicit",
)


class TritonWire(HttpBackend):
    """A model of a Triton server that speaks `POST <url>/v2/models/<model>/generate`.

    The endpoint has the model's name there (`name`, or `name/versions/2`), and the template for a
    conversation: `prompt_template` must be set; see `HttpBackend`.
    """

    def __init__(self, endpoint: Endpoint, access: Access) -> None:
        # It has no place for this field.
        refused = RefusedFields((*endpoint.drop, "reasoning_effort"))
        super().__init__(endpoint, access, refused)
        assert endpoint.prompt_template is not None
        self._turns = TURN_FORMATS[endpoint.prompt_template]
        model = f"{self._connection.base}/v2/models/{quote(endpoint.model_id)}"
        self._url = f"{model}/{'generate_stream' if endpoint.stream else 'generate'}"

    def _fields(self, request: ChatRequest) -> dict[str, object]:
        check_offers(request, PROVIDER)
        # Sampling parameters, whose names in vLLM's `SamplingParams` are OpenAI's.
        parameters = wire_fields(request, self._endpoint.model_id, stream=False)
        del parameters["model"], parameters["messages"]  # they have another place here
        stop = [*request.stop, *self._turns.stop]
        return parameters | {"max_tokens": _max_tokens(request), "stop": stop}

    async def embed(self, request: EmbedRequest) -> Embeddings:
        """Not offered; see `Backend.embed`."""
        raise NotOffered(
            "Triton's generate protocol does not embed; ask an endpoint of another backend",
            endpoint=request.model,
        )

    def _body(self, fields: dict[str, object], request: ChatRequest) -> dict[str, object]:
        parameters = {
            # Without it, even a stream is one piece.
            "stream": self._endpoint.stream,
            "exclude_input_in_output": True,
            "return_finish_reason": True,
            "return_num_input_tokens": True,
            "return_num_output_tokens": True,
            # As one text, since a parameter cannot be a list, which the stop texts are.
            "sampling_parameters": json_of(fields).decode(),
        }
        text = prompt_text(self._turns, request.conversation)
        return {"text_input": text, "parameters": parameters}

    async def _read(self, values: AsyncIterator[Any], progress: ReplyInProgress) -> Completion:
        last: Mapping[str, Any] | None = None
        output_tokens: int | None = None
        async for value in values:
            if (part := self._part(value)) is None:
                continue
            text = part.get("text_output")  # what is new since the part before
            if not isinstance(text, str):
                raise self._connection.unexpected(part)
            last = part
            new_tokens = as_count(part.get("num_output_tokens"))
            if new_tokens is not None:
                output_tokens = (output_tokens or 0) + new_tokens
            progress.add(text, is_whole=not self._endpoint.stream)
        if last is None:
            raise self._connection.cut("it ended before it began")
        finish_word = last.get("finish_reason")  # the text `None` until the model has finished
        if not finish_word:  # an old server
            is_at_limit = (output_tokens or 0) >= _max_tokens(progress.request)
            finish_word = "length" if is_at_limit else "stop"
        usage = None
        input_tokens = as_count(last.get("num_input_tokens"))
        if input_tokens is not None and output_tokens is not None:
            usage = Usage(
                input_tokens=input_tokens, output_tokens=output_tokens, cached_tokens=None
            )
        return progress.completion(
            finish_reason=proper_end(str(finish_word)),
            usage=usage,
            model_id=text_at(last, "model_name") or self._endpoint.model_id,
        )


def _max_tokens(request: ChatRequest) -> int:
    return request.max_output_tokens or UNSTATED_ROOM_TOKENS


class TurnFormat(NamedTuple):
    """How a prompt marks the turns of a conversation."""

    header: str  # before a turn; `{role}` stands for its role, `{Role}` for `User`
    end: str  # after a turn
    stop: tuple[str, ...]  # texts at which the model's own turn is over
    strips: bool = False  # whether blanks around a turn are dropped

    def header_of(self, role: Role) -> str:
        """The header of a turn of this role."""
        return self.header.format(role=role, Role=role.capitalize())


TURN_FORMATS: Mapping[PromptTemplate, TurnFormat] = {
    "chatml": TurnFormat("<|im_start|>{role}\n", "<|im_end|>\n", ("<|im_end|>",)),
    "llama3": TurnFormat(
        "<|start_header_id|>{role}<|end_header_id|>\n\n", "<|eot_id|>", ("<|eot_id|>",), strips=True
    ),
    # For models that were never trained on conversations: they go on with the other side's turn.
    "plain": TurnFormat("{Role}:\n", "\n\n", ("\nUser:", "\nSystem:")),
}


def prompt_text(turns: TurnFormat, messages: Sequence[Message]) -> str:
    """The conversation as text, with the header of the model's turn at its end."""
    prompt = ""
    for turn in messages:
        text = turn.content.strip() if turns.strips else turn.content
        prompt += turns.header_of(turn.role) + text + turns.end
    return prompt + turns.header_of("assistant")


# --- the two front ends ----------------------------------------------------------------------


async def _facts(pages: ServerPages) -> ServerFacts:
    index = await pages.json("/v2/repository/index", post={"ready": True})
    return ServerFacts(models=names(index, "name"))


class TritonHost(ServerHost):
    """One model of a repository, by KServe's docs/protocol/extension_model_repository.md.

    The models that an ensemble is made of come and go with it. The server does not report how large
    a model is. Memory of its own process that a model gave back may stay with the allocator.
    """

    def __init__(self, endpoint: Endpoint, access: Access) -> None:
        super().__init__(endpoint, access)
        # Versions of a model are loaded together, as its configuration says.
        self._model = endpoint.model_id.partition("/versions/")[0]
        self._path = f"/v2/repository/models/{quote(self._model, safe='')}"

    async def load(self) -> None:
        """Has the server load the model, unless a version of it is ready."""
        if await self._is_there():
            return
        async with self.or_else(self._let_go):
            await self._do("load", {})

    async def unload(self) -> None:
        """Has the server unload the model when the calls under way have ended."""
        if not await self._is_gone():
            await self._let_go()

    async def report(self) -> HostReport:
        """Whether a version of the model is ready."""
        return HostReport(resident=await self._is_there())

    async def _let_go(self) -> None:
        await self._do("unload", {"parameters": {"unload_dependents": True}})
        await until(self._is_gone)

    async def _do(self, action: Literal["load", "unload"], body: object) -> None:
        answer = await self.ask("POST", f"{self._path}/{action}", body)
        if _NOT_EXPLICIT.search(answer.body):
            raise self.switched_off("Triton", needs=_EXPLICIT)
        if answer.status != 200:
            raise self.failure(answer, doing=action)

    async def _is_there(self) -> bool:
        return "READY" in await self._states()

    async def _is_gone(self) -> bool:
        return {"READY", "UNLOADING"}.isdisjoint(await self._states())

    async def _states(self) -> frozenset[str]:
        """The states of the model's versions: `READY`, `UNAVAILABLE`, `LOADING`, `UNLOADING`."""
        answer = await self.ask("POST", "/v2/repository/index", {})
        if answer.status != 200:
            raise self.refusal(answer)
        if not isinstance(answer.json, list):
            raise self.misread(answer)
        return frozenset(
            str(at(row, "state")) for row in answer.json if at(row, "name") == self._model
        )


class TritonOpenAIHost(TritonHost):
    """One model of a repository, by the OpenAI front end (python/openai, 2.73)."""

    def __init__(self, endpoint: Endpoint, access: Access) -> None:
        super().__init__(endpoint, access)
        self._path = f"/v1/models/{quote(endpoint.model_id, safe='')}"

    async def _let_go(self) -> None:
        await self._do("unload", None)  # answered when the calls under way have ended

    async def _states(self) -> frozenset[str]:
        answer = await self.ask("GET", "/v1/models")
        ids = names(self.fields(answer).get("data"), "id")
        if ids is None:
            raise self.misread(answer)
        return frozenset({"READY"} if self.endpoint.model_id in ids else ())


REMEDIES = remedies(
    "",
    enforce_schemas="reach the model by an engine's own server, such as vLLM's: Triton takes no "
    "schema",
)

PROVIDER = Provider(
    title="Triton",
    remedies=REMEDIES,
    host=lambda endpoint, access, _: TritonHost(endpoint, access),
    connect=TritonWire,
    facts=_facts,
    tools=NEVER,
    images=NEVER,
)

# 2.73. Only its vLLM backend embeds. Every reply ends with "stop", even if the token limit cut it.
OPENAI_FRONT_END = Provider(
    title="Triton's OpenAI front end",
    remedies=REMEDIES,
    telemetry_name="triton",
    host=lambda endpoint, access, _: TritonOpenAIHost(endpoint, access),
    room_tokens=UNSTATED_ROOM_TOKENS,
    refuses=ONLY_TOP_P,
    tools="--tool-call-parser NAME",
    images=NEVER,
    counts_usage=False,
    embeds="the vLLM backend",
    embeds_one_by_one=True,
)
