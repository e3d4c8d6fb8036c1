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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

import orjson
from pydantic import BaseModel, Json, ValidationError

from harness.errors import NotOffered, ServerError
from harness.inference.completion import Completion, Embeddings, FinishReason, TokenLogprob, Usage
from harness.inference.endpoint import Endpoint, PromptTemplate
from harness.inference.providers.http import Connection, Exchange, base_of, event_data
from harness.inference.providers.openai_wire import ONLY_TOP_P, finish_reason
from harness.inference.providers.pages import ServerFacts, ServerPages, names, parsed
from harness.inference.providers.provider import (
    NEVER,
    Access,
    Aim,
    HostReport,
    Provider,
    Remedies,
    check_offers,
)
from harness.inference.providers.server_host import ServerHost, until
from harness.inference.refused_fields import RefusedFields
from harness.inference.reply_in_progress import ReplyInProgress
from harness.inference.request import ChatRequest, EmbedRequest, Message, Role
from harness.inference.time_limits import TimeLimits
from harness.trace import Clock, monotonic

UNSTATED_ROOM_TOKENS = 1024
"""Sent with a call that states no limit: vLLM's own default behind Triton is 16 tokens, and Triton
does not report the length of its context."""
_EXPLICIT = "--model-control-mode=explicit"
_NOT_EXPLICIT = re.compile(
    rb"explicit model load / unload is not allowed|requires --model-control-mode=explicit",
    re.IGNORECASE,
)


class TritonWire:
    """A model of a Triton server that speaks `POST <url>/v2/models/<model>/generate`.

    Args:
        endpoint: Its address, the model's name there (`name`, or `name/versions/2`), and the
            template for a conversation; `url` and `prompt_template` must be set.
        api_key: Sent as a bearer token, for a proxy before the server.
        clock: The caller's clock.

    Raises:
        ConfigurationInvalid: The key cannot stand in an HTTP header.
    """

    def __init__(
        self, endpoint: Endpoint, *, api_key: str | None = None, clock: Clock = monotonic
    ) -> None:
        assert endpoint.url is not None
        assert endpoint.prompt_template is not None
        self._endpoint = endpoint
        self._clock = clock
        self._turns = TURN_FORMATS[endpoint.prompt_template]
        model = f"{base_of(endpoint.url)}/v2/models/{quote(endpoint.model_id)}"
        self._url = f"{model}/{'generate_stream' if endpoint.stream else 'generate'}"
        self._connection = Connection(endpoint, api_key=api_key)
        self._refused = RefusedFields(endpoint.drop)

    async def chat(self, request: ChatRequest) -> Completion:
        """One reply, whole; see `Backend.chat`."""
        check_offers(request, PROVIDER)
        # The server does not say that it refused a field: only the known ones can be left out.
        sampling, dropped = self._refused.without(_sampling(request, stop=self._turns.stop))
        fields = {
            "text_input": prompt_text(self._turns, request.conversation),
            "parameters": _parameters(sampling, stream=self._endpoint.stream),
        }
        async with (
            Exchange(self._connection) as exchange,
            TimeLimits(self._endpoint, timeout_s=request.timeout_s) as limits,
        ):
            progress = ReplyInProgress(request, clock=self._clock, arrived=limits.token_arrived)
            reply = _OutputReader(
                request, progress, endpoint=self._endpoint, connection=self._connection
            )
            response = await exchange.post(self._url, fields, on_sent=progress.sent)
            if self._endpoint.stream:
                async for data in event_data(response.chunks()):
                    reply.add(data)
            else:
                reply.add_whole(await response.read())
            return reply.completion(dropped, attempts=exchange.requests)

    async def embed(self, request: EmbedRequest) -> Embeddings:
        """Not offered; see `Backend.embed`."""
        raise NotOffered(
            "Triton's generate protocol does not embed; ask an endpoint of another backend",
            endpoint=request.model,
        )

    async def aclose(self) -> None:
        """Closes the connections; a call that is under way is cut off."""
        await self._connection.aclose()


def _room(request: ChatRequest) -> int:
    return request.max_output_tokens or UNSTATED_ROOM_TOKENS


def _sampling(request: ChatRequest, *, stop: tuple[str, ...]) -> dict[str, object]:
    """The request's settings, by the names of vLLM's `SamplingParams`."""
    fields: dict[str, object] = {
        "max_tokens": _room(request),
        "temperature": request.temperature,
        **request.cutoffs,
        "stop": [*request.stop, *stop],
    }
    if request.frequency_penalty:
        fields["frequency_penalty"] = request.frequency_penalty
    if request.seed is not None:
        fields["seed"] = request.seed
    if request.top_logprobs is not None:
        fields["logprobs"] = request.top_logprobs
    return fields


def _parameters(sampling: dict[str, object], *, stream: bool) -> dict[str, object]:
    return {
        # Without it, even a stream is one piece.
        "stream": stream,
        "exclude_input_in_output": True,
        "return_finish_reason": True,
        "return_num_input_tokens": True,
        "return_num_output_tokens": True,
        "return_logprobs": "logprobs" in sampling,
        # As one text, since a parameter of its own cannot be a list, as the stop texts are.
        "sampling_parameters": orjson.dumps(sampling).decode(),
    }


class _Logprob(BaseModel):
    logprob: float
    decoded_token: str | None = None


class _Output(BaseModel):
    """One event of a stream, with the text since the event before it; or a whole reply."""

    error: str | None = None
    model_name: str | None = None
    text_output: str | None = None
    finish_reason: str | None = None
    """The text `None` until the model has finished."""
    num_input_tokens: int | None = None
    num_output_tokens: int | None = None
    logprobs: Json[list[dict[str, _Logprob]] | None] | None = None
    """By token id: the chosen token first, then the likeliest."""


class _OutputReader:
    """Reads the outputs of one reply."""

    def __init__(
        self,
        request: ChatRequest,
        progress: ReplyInProgress,
        *,
        endpoint: Endpoint,
        connection: Connection,
    ) -> None:
        self._request = request
        self._progress = progress
        self._endpoint = endpoint
        self._connection = connection
        self._last: _Output | None = None
        self._output_tokens: int | None = None

    def add(self, data: bytes) -> None:
        """Takes in one event."""
        text, logprobs = self._read(data)
        self._progress.add(text, logprobs=logprobs)

    def add_whole(self, body: bytes) -> None:
        """Takes in a reply that was not streamed."""
        text, logprobs = self._read(body)
        self._progress.add(logprobs=logprobs)
        self._progress.add_whole(text)

    def completion(self, dropped: tuple[str, ...], *, attempts: int) -> Completion:
        """The completion, once the HTTP body has ended."""
        if self._last is None:
            raise self._connection.cut("it ended before it began")
        said = self._last.finish_reason
        ended = self._reached_limit() if said is None else finish_reason(said)
        if ended is None:
            raise self._connection.cut(
                f"the server ended it unfinished, with the finish reason '{said}'"
            )
        return self._progress.completion(
            finish_reason=ended,
            usage=self._usage(),
            model_id=self._last.model_name or self._endpoint.model_id,
            dropped=dropped,
            attempts=attempts,
        )

    def _read(self, data: bytes) -> tuple[str, tuple[TokenLogprob, ...]]:
        try:
            output = _Output.model_validate_json(data)
        except ValidationError as error:
            raise self._connection.misread(data, error) from error
        if output.error is not None:
            # The status was sent with the first output, before the error.
            raise self._connection.refusal(data)
        if output.text_output is None:
            raise ServerError(
                f"the reply has an unexpected part: {data[:200]!r}",
                endpoint=self._endpoint.tag,
            )
        self._last = output
        if output.num_output_tokens is not None:
            self._output_tokens = (self._output_tokens or 0) + output.num_output_tokens
        alternatives = self._request.top_logprobs or 0
        logprobs = (_token_logprob(token, alternatives) for token in output.logprobs or () if token)
        return output.text_output, tuple(logprobs)

    def _reached_limit(self) -> FinishReason:
        """The finish reason, for a server that sends none."""
        reached = (self._output_tokens or 0) >= _room(self._request)
        return "length" if reached else "stop"

    def _usage(self) -> Usage | None:
        input_tokens = self._last.num_input_tokens if self._last else None
        if input_tokens is None or self._output_tokens is None:
            return None
        return Usage(
            input_tokens=input_tokens, output_tokens=self._output_tokens, cached_tokens=None
        )


def _token_logprob(tokens: dict[str, _Logprob], alternatives: int) -> TokenLogprob:
    known = [(one.decoded_token or "", one.logprob) for one in tokens.values()]
    likeliest = sorted(known, key=lambda one: -one[1])
    token, logprob = known[0]
    return TokenLogprob(token=token, logprob=logprob, top=tuple(likeliest[:alternatives]))


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFormat:
    """How a prompt marks the turns of a conversation."""

    header: Callable[[Role], str]
    """What goes before a turn."""
    end: str
    """What goes after it."""
    stop: tuple[str, ...]
    """Texts at which the model's own turn is over."""
    strips: bool = False
    """Whether blanks around a turn are dropped."""


TURN_FORMATS: Mapping[PromptTemplate, TurnFormat] = {
    "chatml": TurnFormat(
        header=lambda role: f"<|im_start|>{role}\n", end="<|im_end|>\n", stop=("<|im_end|>",)
    ),
    "llama3": TurnFormat(
        header=lambda role: f"<|start_header_id|>{role}<|end_header_id|>\n\n",
        end="<|eot_id|>",
        stop=("<|eot_id|>",),
        strips=True,
    ),
    # For models that were never trained on conversations: they go on with the other side's turn.
    "plain": TurnFormat(
        header=lambda role: f"{role.capitalize()}:\n", end="\n\n", stop=("\nUser:", "\nSystem:")
    ),
}


def prompt_text(turns: TurnFormat, messages: Sequence[Message]) -> str:
    """The conversation, and then the header of the turn that is asked for."""
    told = (
        turns.header(message.role)
        + (message.content.strip() if turns.strips else message.content)
        + turns.end
        for message in messages
    )
    return "".join(told) + turns.header("assistant")


# --- the two front ends ----------------------------------------------------------------------


def _connect(endpoint: Endpoint, access: Access) -> TritonWire:
    return TritonWire(endpoint, api_key=access.api_key, clock=access.clock)


async def _facts(pages: ServerPages) -> ServerFacts:
    index = await pages.ask(f"{pages.url}/v2/repository/index", post={"ready": True})
    return ServerFacts(models=names(parsed(index), "name"))


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
        """Has it loaded."""
        async with self.in_time("load"):
            if await self._is_there():
                return
            async with self.or_else(self._let_go):
                await self._do("load", {})

    async def unload(self) -> None:
        """Waits until the calls under way have ended."""
        async with self.in_time("unload"):
            if not await self._is_gone():
                await self._let_go()

    async def report(self) -> HostReport:
        """Whether a version of it is ready."""
        return HostReport(resident=await self._is_there())

    async def _let_go(self) -> None:
        await self._do("unload", {"parameters": {"unload_dependents": True}})
        await until(self._is_gone)

    async def _do(self, what: str, body: object) -> None:
        answer = await self.post(f"{self._path}/{what}", body)
        if _NOT_EXPLICIT.search(answer.body):
            raise self.switched_off("Triton", needs=_EXPLICIT)
        if answer.status != 200:
            raise self.failure(answer, doing=what)

    async def _is_there(self) -> bool:
        return "READY" in await self._states()

    async def _is_gone(self) -> bool:
        return {"READY", "UNLOADING"}.isdisjoint(await self._states())

    async def _states(self) -> frozenset[str]:
        """Those of its versions: `READY`, `UNAVAILABLE`, `LOADING`, `UNLOADING`."""
        answer = await self.post("/v2/repository/index", {})
        if answer.status != 200:
            raise self.refusal(answer)
        if not isinstance(answer.json, list):
            raise self.misread(answer)
        return frozenset(
            str(row.get("state"))
            for row in answer.json
            if isinstance(row, Mapping) and row.get("name") == self._model
        )


class TritonOpenAIHost(TritonHost):
    """The same by the OpenAI front end (python/openai, 2.73).

    An unload is answered when the calls under way have ended.
    """

    def __init__(self, endpoint: Endpoint, access: Access) -> None:
        super().__init__(endpoint, access)
        self._path = f"/v1/models/{quote(endpoint.model_id, safe='')}"

    async def _let_go(self) -> None:
        await self._do("unload", None)

    async def _is_gone(self) -> bool:
        return not await self._is_there()

    async def _states(self) -> frozenset[str]:
        answer = await self.get("/v1/models")
        match self.fields(answer):
            case {"data": list(rows)}:
                listed = (row for row in rows if isinstance(row, Mapping))
                is_there = any(row.get("id") == self.endpoint.model_id for row in listed)
                return frozenset({"READY"} if is_there else ())
        raise self.misread(answer)


REMEDIES: Remedies = {
    Aim.ENFORCE_SCHEMAS: (
        "reach the model by an engine's own server, such as vLLM's: Triton takes no schema",
    ),
}

PROVIDER = Provider(
    title="Triton",
    remedies=REMEDIES,
    host=lambda endpoint, access, _: TritonHost(endpoint, access),
    connect=_connect,
    facts=_facts,
    tools=NEVER,
    images=NEVER,
    health="/v2/health/ready",
)

# 2.73. Its vLLM backend alone gives log probabilities and embeds. Every reply ends with "stop", one
# that the token limit cut included.
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
    logprobs="the vLLM backend",
    embeds="the vLLM backend",
    embeds_one_by_one=True,
    health="/health/ready",
)
