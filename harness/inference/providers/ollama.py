"""Ollama over its own protocol.

Its OpenAI-compatible protocol ignores how long a model should stay loaded and how long a context it
should have, and reports no times.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ValidationError

from harness.errors import InferenceError, LoadFailed, ModelNotFound, NotOffered, ServerError
from harness.hardware import Footprint, Loading, gguf_footprint, gguf_header_from_values
from harness.inference.completion import Completion, Embeddings, TokenLogprob, Usage, as_vectors
from harness.inference.endpoint import Endpoint
from harness.inference.model_identity import ModelMetadata, metadata_from
from harness.inference.model_names import packing
from harness.inference.providers.counters import Reading
from harness.inference.providers.http import Connection, Exchange, json_lines, root_of
from harness.inference.providers.ollama_keep_alive import BASE_S, IdleGaps
from harness.inference.providers.openai_wire import (
    WireLogprob,
    WireLogprobs,
    WireToolCall,
    finish_reason,
    token_logprobs,
    wire_fields,
)
from harness.inference.providers.pages import P, Page, ServerFacts, ServerPages
from harness.inference.providers.provider import (
    ALWAYS,
    Access,
    Aim,
    Counters,
    Host,
    HostReport,
    Provider,
    remedies,
)
from harness.inference.providers.server_host import Answer, ServerHost, until
from harness.inference.providers.serving import Launch, Serving, Setting, launched
from harness.inference.refused_fields import RefusedFields
from harness.inference.reply_in_progress import ReplyInProgress, ServerTimings
from harness.inference.request import ChatRequest, EmbedRequest, Message, called_names
from harness.inference.time_limits import TimeLimits
from harness.trace import Clock, monotonic

_NUM_CTX = re.compile(r"^num_ctx\s+(\d+)\s*$", re.MULTILINE)
_CONTEXT_TOKENS = 4096
"""Ollama's default below 23 GiB of GPU memory, for a model whose Modelfile and endpoint set none.
With more GPU memory it takes more: set context_tokens there."""
_FIRST_STEPS_S = 0.05
_DEFAULT_PLACES = ("registry.ollama.ai/", "library/")
_BLOB = re.compile(r"^(FROM|ADAPTER)\s.*(sha256-[0-9a-f]{64})", re.MULTILINE)
"""In a Modelfile: the digests of its weights."""


class OllamaWire:
    """A server that speaks `POST <url>/api/chat`.

    Args:
        endpoint: Where it is and what its model is called there; `url` must be set, and may end in
            the `/v1` that other protocols need.
        api_key: Sent as a bearer token, for a proxy that wants one.
        clock: The caller's clock.

    Raises:
        ConfigurationInvalid: The key cannot stand in an HTTP header.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        api_key: str | None = None,
        clock: Clock = monotonic,
    ) -> None:
        assert endpoint.url is not None
        self._endpoint = endpoint
        self._clock = clock
        self._gaps = IdleGaps()
        self._root = root_of(endpoint.url)
        self._connection = Connection(endpoint, api_key=api_key)
        self._refused = RefusedFields(endpoint.drop)

    async def chat(self, request: ChatRequest) -> Completion:
        """One reply, whole; see `Backend.chat`."""
        wanted = wire_fields(request, self._endpoint.model_id, stream=False)
        async with (
            Exchange(self._connection) as exchange,
            TimeLimits(self._endpoint, timeout_s=request.timeout_s) as limits,
        ):
            with self._gaps.noted(self._clock):
                while True:
                    allowed, dropped = self._refused.without(wanted)
                    kept_s = self._gaps.keep_alive_s
                    fields = _chat_fields(allowed, request, self._endpoint, kept_s=kept_s)
                    try:
                        completion = await self._chat(request, fields, limits, exchange)
                    except ServerError as error:
                        if not self._refused.learn(error, allowed):
                            raise
                    else:
                        return replace(completion, dropped=dropped, attempts=exchange.requests)

    async def embed(self, request: EmbedRequest) -> Embeddings:
        """One vector per text; see `Backend.embed`."""
        asked: dict[str, object] = {"input": list(request.texts), "truncate": False}
        async with TimeLimits(self._endpoint, timeout_s=request.timeout_s):
            with self._gaps.noted(self._clock):
                fields = _model_fields(self._endpoint, kept_s=self._gaps.keep_alive_s)
                body = await self._ask_to_embed(fields | asked)
        try:
            reply = OllamaEmbeddings.model_validate_json(body)
        except ValidationError as error:
            raise ServerError(
                f"the server was asked for embeddings and sent something else: {body[:200]!r}",
                endpoint=self._endpoint.tag,
            ) from error
        tag, count = self._endpoint.tag, len(request.texts)
        return Embeddings(
            vectors=as_vectors(reply.embeddings, endpoint=tag, count=count),
            input_tokens=reply.prompt_eval_count,
            model_id=reply.model or self._endpoint.model_id,
        )

    async def aclose(self) -> None:
        """Closes the connections; a call that is under way is cut off."""
        await self._connection.aclose()

    async def _chat(
        self,
        request: ChatRequest,
        fields: Mapping[str, object],
        limits: TimeLimits,
        exchange: Exchange,
    ) -> Completion:
        progress = ReplyInProgress(request, clock=self._clock, arrived=limits.token_arrived)
        response = await exchange.post(f"{self._root}/api/chat", fields, on_sent=progress.sent)
        lines = json_lines(response.chunks())
        began = False
        async for data in lines:
            line = self._parse(data)
            text, thought = line.message.content or "", line.message.thinking or ""
            calls = [call.piece for call in line.message.tool_calls]
            if line.done and not began:  # all in one line: no first token was seen
                progress.add(logprobs=line.tokens)
                progress.add_whole(text, reasoning=thought, calls=calls)
            else:
                progress.add(text, reasoning=thought, logprobs=line.tokens, calls=calls)
            began = True
            if line.done:
                break
        else:
            raise self._connection.cut(
                "it ended without `done: true`, as Ollama's replies do when a model says the same "
                "token over and over; a frequency_penalty may keep it from that"
            )
        exchange.came_to_its_end(lines)
        return self._completion(line, progress)

    def _parse(self, data: bytes) -> OllamaLine:
        try:
            line = OllamaLine.model_validate_json(data)
        except ValidationError as error:
            raise self._connection.misread(data, error) from error
        if line.error is not None:
            raise self._connection.refusal(data)
        return line

    def _completion(self, last: OllamaLine, progress: ReplyInProgress) -> Completion:
        ended = finish_reason(last.done_reason or "")
        if ended is None:
            raise self._connection.cut(f"its done_reason is {last.done_reason!r}")
        return progress.completion(
            finish_reason=ended,
            usage=last.usage,
            model_id=last.model or self._endpoint.model_id,
            reported=last.timings,
        )

    async def _ask_to_embed(self, fields: Mapping[str, object]) -> bytes:
        try:
            async with Exchange(self._connection) as exchange:
                return await exchange.ask(f"{self._root}/api/embed", fields)
        except ServerError as error:
            if error.status not in {404, 405, 501}:
                raise
            raise NotOffered(
                f"Ollama does not embed with '{self._endpoint.model_id}' ({error}); pull a model "
                "that is made for it",
                endpoint=self._endpoint.tag,
            ) from error


_OPTIONS = {
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "frequency_penalty")},
    "seed": "seed",
    "stop": "stop",
    "max_tokens": "num_predict",
}
"""Fields of OpenAI's protocol that are options here, and their names."""
_BESIDE_OPTIONS = ("logprobs", "top_logprobs", "tools")


def _chat_fields(
    allowed: Mapping[str, object], request: ChatRequest, endpoint: Endpoint, *, kept_s: float
) -> dict[str, object]:
    """The fields of a chat call, from those of OpenAI's protocol that may be sent."""
    options = {name: allowed[said] for said, name in _OPTIONS.items() if said in allowed}
    fields = _model_fields(endpoint, options, kept_s=kept_s) | {
        "stream": endpoint.stream,
        # Ollama silently cuts a text that is too long unless it is told not to: `truncate` is for
        # the prompt, `shift` for a context that fills up while the reply is written.
        "truncate": False,
        "shift": False,
        "messages": _messages(request.conversation, tag=endpoint.tag),
    }
    fields |= {name: allowed[name] for name in _BESIDE_OPTIONS if name in allowed}
    if request.reply_schema is not None:
        fields["format"] = request.reply_schema
    return fields


def _messages(messages: Sequence[Message], *, tag: str) -> list[dict[str, object]]:
    """A conversation: calls have no ids here, and their arguments are objects."""
    names = called_names(messages)
    said: list[dict[str, object]] = []
    for message in messages:
        one: dict[str, object] = {"role": message.role, "content": message.content}
        if message.images:
            if any(image.url for image in message.images):
                raise NotOffered("Ollama takes no addresses of images; give bytes", endpoint=tag)
            one["images"] = [image.encoded for image in message.images]
        if message.tool_calls:
            one["tool_calls"] = [
                {"function": {"name": call.name, "arguments": call.as_object()}}
                for call in message.tool_calls
            ]
        if message.answers is not None:
            one["tool_name"] = names.get(message.answers, message.answers)
        said.append(one)
    return said


def _model_fields(
    endpoint: Endpoint, options: Mapping[str, object] | None = None, *, kept_s: float = BASE_S
) -> dict[str, object]:
    """The fields of every request that may load the model; `options` are those of the call.

    A model that the budget manages stays for `kept_s` after it, unless its endpoint says otherwise.

    Ollama loads a model again when a request has another context (`num_ctx`), so every request has
    the endpoint's, or none. Without a `keep_alive`, Ollama's own setting holds.
    """
    chosen = dict(options or {})
    if "context_tokens" in endpoint.model_fields_set:
        chosen["num_ctx"] = endpoint.context_tokens
    kept = endpoint.keep_alive
    if kept is None and endpoint.manage:
        kept = kept_s
    fields: dict[str, object] = {"model": endpoint.model_id}
    if chosen:
        fields["options"] = chosen
    if kept is not None:
        fields["keep_alive"] = kept
    return fields


class OllamaMessage(BaseModel):
    """The part of the reply that a line adds."""

    content: str | None = None
    thinking: str | None = None
    tool_calls: list[WireToolCall] = []


class OllamaLine(BaseModel):
    """One line of a stream, or a whole reply. Counts and durations come with the last one.

    Ollama leaves out numbers that are zero.
    """

    model: str | None = None
    message: OllamaMessage = OllamaMessage()
    logprobs: list[WireLogprob] | None = None
    done: bool = False
    done_reason: str | None = None
    load_duration: int | None = None
    """Some milliseconds if the model was already loaded."""
    prompt_eval_count: int | None = None
    """The whole prompt; up to 0.30 without its cached part, and sometimes missing."""
    prompt_eval_cached_count: int | None = None
    """Since 0.33."""
    prompt_eval_duration: int | None = None
    """For the part of the prompt that was not cached."""
    eval_count: int | None = None
    eval_duration: int | None = None
    error: object = None
    """If set, the line has nothing else."""

    @property
    def tokens(self) -> tuple[TokenLogprob, ...]:
        """Its log probabilities, in the shape of OpenAI's."""
        return token_logprobs(WireLogprobs(content=self.logprobs))

    @property
    def usage(self) -> Usage | None:
        """Tokens in and out; only the last line has them."""
        if self.prompt_eval_count is None:
            return None
        return Usage(
            input_tokens=self.prompt_eval_count,
            output_tokens=self.eval_count or 0,
            cached_tokens=self.prompt_eval_cached_count,
        )

    @property
    def timings(self) -> ServerTimings:
        """Where the time went; only the last line tells."""
        return ServerTimings(
            load_ns=self.load_duration,
            prefill_ns=self.prompt_eval_duration,
            decode_ns=self.eval_duration,
        )


class OllamaEmbeddings(BaseModel):
    """The reply of `/api/embed`."""

    model: str | None = None
    embeddings: list[list[float]]
    prompt_eval_count: int | None = None


# --- its pages -------------------------------------------------------------------------------


class _Model(Page):
    """A model in the list of pulled ones (`/api/tags`) or of loaded ones (`/api/ps`)."""

    name: str
    size: int = 0
    """On disk with all that belongs to it; if it is loaded, all memory that its runner has
    allocated, 0 while that is unknown."""
    size_vram: int = 0
    """The part of a loaded model's memory that is on GPUs."""
    context_length: int | None = None
    """Of a loaded model."""


class _Models(Page):
    models: list[_Model]

    def find(self, model_id: str) -> _Model | None:
        return next((one for one in self.models if same_model(one.name, model_id)), None)


class _Details(Page):
    family: str = ""
    parent_model: str = ""
    quantization_level: str = ""


class _Shown(Page):
    """The reply of `/api/show`."""

    details: _Details = _Details()
    model_info: Mapping[str, Any] = {}
    modelfile: str = ""
    parameters: str = ""


def same_model(one: str, other: str) -> bool:
    """Whether Ollama takes two names for the same: `M` is `registry.ollama.ai/library/m:latest`."""
    return _whole_name(one) == _whole_name(other)


def _whole_name(name: str) -> str:
    whole = name.lower()
    for place in _DEFAULT_PLACES:
        whole = whole.removeprefix(place)
    return whole if ":" in whole.rpartition("/")[2] else f"{whole}:latest"


async def _facts(pages: ServerPages) -> ServerFacts:
    pulled = _models(await pages.ask(f"{pages.root}/api/tags"))
    loaded = _models(await pages.ask(f"{pages.root}/api/ps"))
    model = loaded.find(pages.model_id) if loaded else None
    return ServerFacts(
        models=tuple(one.name for one in pulled.models) if pulled else None,
        context_tokens=model.context_length if model else None,
        metrics=loaded is not None,
    )


def _models(body: bytes | None) -> _Models | None:
    try:
        return None if body is None else _Models.model_validate_json(body)
    except ValidationError:
        return None


async def _served(pages: ServerPages) -> ModelMetadata | None:
    shown = await pages.page(_Shown, f"{pages.root}/api/show", post={"model": pages.model_id})
    if shown is None:
        return None
    details = shown.details
    told = metadata_from(shown.model_info, quantization=packing(details.quantization_level))
    blobs = _BLOB.findall(shown.modelfile)
    base_models = (*told.base_models, *filter(None, [details.parent_model]))
    if any(kind == "ADAPTER" for kind, _ in blobs):
        # Then the names are those of the weights below the adapter.
        told, base_models = replace(told, names=()), (*told.names, *base_models)
    return replace(
        told,
        base_models=base_models,
        architecture=told.architecture or details.family or None,
        fingerprint=" ".join(digest for _, digest in blobs) or None,
    )


def _readings(body: bytes) -> tuple[Reading, ...]:
    models = _Models.model_validate_json(body).models
    return (
        Reading(name="resident", unit="bytes", value=sum(m.size for m in models)),
        Reading(name="resident on GPU", unit="bytes", value=sum(m.size_vram for m in models)),
    )


# --- loading and unloading -------------------------------------------------------------------


class OllamaHost(ServerHost):
    """One model, loaded and unloaded by Ollama's scheduler (server/sched.go).

    It starts a runner for each model. A request with other runner options than the runner has
    (`num_ctx`, and whether the context may be shifted) starts it again: a load must say what calls
    say.
    """

    async def load(self) -> None:
        """Loads it with the options that calls will have."""
        async with self.in_time("load"):
            if await self._find() is not None:
                await self._ask_to_load()
                return
            async with self.or_else(self._take_back):
                await self._ask_to_load()

    async def unload(self) -> None:
        """Unloads it, and waits until its runner has ended."""
        async with self.in_time("unload"):
            await until(self._is_gone)

    async def report(self) -> HostReport:
        """What `/api/ps` says.

        A model that is still being loaded is listed, too.
        """
        running = await self._find()
        if running is None:
            return HostReport(resident=False)
        if not running.size:
            return HostReport(resident=True)
        return HostReport(resident=True, total_bytes=running.size, gpu_bytes=running.size_vram)

    async def footprint(self) -> Footprint | None:
        """What it will take, as its file's header says; None if Ollama does not list its size."""
        async with self.in_time("describe"):
            # Verbose, since values that differ by layer are left out else.
            fields = {"model": self.endpoint.model_id, "verbose": True}
            shown = self._read(_Shown, await self.post("/api/show", fields))
            listed = self._read(_Models, await self.get("/api/tags")).find(self.endpoint.model_id)
        if listed is None or not listed.size:
            return None
        header = gguf_header_from_values(
            shown.model_info, name=self.endpoint.model_id, tensor_bytes=listed.size
        )
        return gguf_footprint(header, Loading(context_tokens=self._context_tokens(shown)))

    def _context_tokens(self, shown: _Shown) -> int:
        if "context_tokens" in self.endpoint.model_fields_set:
            return self.endpoint.context_tokens
        in_modelfile = _NUM_CTX.search(shown.parameters)
        return int(in_modelfile[1]) if in_modelfile else _CONTEXT_TOKENS

    async def _ask_to_load(self) -> None:
        fields = _model_fields(self.endpoint)
        if self.endpoint.embeddings:
            page = await self.post("/api/embed", fields | {"input": []})
        else:
            # Without `shift`, the first call, which has it, would find the wrong runner.
            page = await self.post("/api/chat", fields | {"messages": [], "shift": False})
        if page.status != 200:
            raise self._failure(page)
        # With a keep_alive of 0 it says that it has unloaded.
        if not self.endpoint.embeddings and self.fields(page).get("done_reason") != "load":
            raise self.misread(page)

    def _failure(self, page: Answer) -> InferenceError:
        """Why it is not loaded."""
        if b"does not support chat" in page.body:
            return LoadFailed(
                f"'{self.endpoint.model_id}' does not chat ({page.said}); is it there to embed? "
                "Then set embeddings = true",
                code="endpoint.only-embeds",
                endpoint=self.endpoint.tag,
            )
        error = self.failure(page, doing="load")
        return self._never_pulled(page) if isinstance(error, ModelNotFound) else error

    async def _is_gone(self) -> bool:
        """Whether it is; if not, asks it to go, once more if another client has called it since."""
        if await self._find() is None:
            # Some versions would load it in order to unload it.
            return True
        fields = {"model": self.endpoint.model_id, "keep_alive": 0}
        page = await self.post("/api/generate", fields)
        if page.status != 200:
            raise LoadFailed(
                f"Ollama keeps '{self.endpoint.model_id}': {page.said}",
                code="model.not-unloaded",
                endpoint=self.endpoint.tag,
            )
        return False

    async def _take_back(self) -> None:
        """Undoes an abandoned load."""
        await until(self._is_gone)
        # Ollama aborts a load whose client has gone, and lists it only after its first steps.
        await asyncio.sleep(_FIRST_STEPS_S)
        await until(self._is_gone)

    async def _find(self) -> _Model | None:
        """The model's entry in the list of loaded models."""
        return self._read(_Models, await self.get("/api/ps")).find(self.endpoint.model_id)

    def _read(self, shape: type[P], answer: Answer) -> P:
        if answer.status != 200:
            error = self.refusal(answer)
            raise self._never_pulled(answer) if isinstance(error, ModelNotFound) else error
        try:
            return shape.model_validate_json(answer.body)
        except ValidationError as error:
            raise self.misread(answer) from error

    def _never_pulled(self, answer: Answer) -> ModelNotFound:
        model_id = self.endpoint.model_id
        return ModelNotFound(
            f"Ollama does not have '{model_id}' ({answer.said}); get it: ollama pull {model_id}",
            endpoint=self.endpoint.tag,
        )


async def _footprint(_endpoint: Endpoint, host: Host) -> Footprint | None:
    assert isinstance(host, OllamaHost)
    return await host.footprint()


def _connect(endpoint: Endpoint, access: Access) -> OllamaWire:
    return OllamaWire(endpoint, api_key=access.api_key, clock=access.clock)


REMEDIES = remedies(
    "start Ollama with ",
    {
        Aim.KEEP_LOADED: "OLLAMA_KEEP_ALIVE=-1 (5m by default), and load ahead: ollama run {tag} "
        "''",
        Aim.LET_BOTH_STAY: "OLLAMA_MAX_LOADED_MODELS=2 or more, if both fit",
        Aim.ANSWER_MORE_AT_ONCE: "a larger OLLAMA_NUM_PARALLEL (1 by default)",
        Aim.BOUND_QUEUE: "a smaller OLLAMA_MAX_QUEUE, to refuse early what cannot be served soon",
        Aim.READ_PROMPTS_FASTER: "the model whole on the GPU: ollama ps tells",
        Aim.KEEP_PREFIXES: "OLLAMA_NUM_PARALLEL as large as the number of prefixes in use",
        Aim.MORE_KV_ROOM: "OLLAMA_FLASH_ATTENTION=1 OLLAMA_KV_CACHE_TYPE=q8_0",
        Aim.WRITE_FASTER: "the model whole on the GPU: ollama ps tells",
        Aim.COMPUTE_FASTER: "the model whole on the GPU: ollama ps tells",
        Aim.FIT_AT_START: "a smaller OLLAMA_CONTEXT_LENGTH or OLLAMA_NUM_PARALLEL",
        Aim.FIT_LATER: "a smaller OLLAMA_CONTEXT_LENGTH",
        Aim.LONGER_CONTEXT: "a larger OLLAMA_CONTEXT_LENGTH",
    },
) | {
    Aim.ENFORCE_SCHEMAS: (
        "use a newer Ollama, or a model that does not think aloud: some that do ignore a schema",
    )
}


def _launch(serving: Serving) -> Launch:
    made = launched(
        serving,
        "ollama serve",
        {
            "context_tokens": f"OLLAMA_CONTEXT_LENGTH={serving.context_tokens}",
            "sequences": f"OLLAMA_NUM_PARALLEL={serving.sequences}",
            "kv_bits": "OLLAMA_FLASH_ATTENTION=1 OLLAMA_KV_CACHE_TYPE=q8_0",
            "port": f"OLLAMA_HOST=127.0.0.1:{serving.port}",
        },
        backend="ollama",
        port=11434,
        path="",
    )
    context = Setting(f"context_tokens = {serving.context_tokens}", "with another, it loads anew")
    keep = Setting("keep_alive = -1", "the model stays loaded; else five minutes")
    return replace(made, endpoint=(*made.endpoint, context, keep))


PROVIDER = Provider(
    title="Ollama",
    remedies=REMEDIES,
    launch=_launch,
    connect=_connect,
    host=lambda endpoint, access, _: OllamaHost(endpoint, access),
    footprint=_footprint,
    facts=_facts,
    served=_served,
    refuses_tools=True,
    requires_calls=False,
    cached_tokens="an Ollama newer than 0.33.2",
    timings=ALWAYS,
    embeds=ALWAYS,
    side_by_side="OLLAMA_NUM_PARALLEL in its environment",
    health="/",
    counters=Counters(path="/api/ps", read=_readings),
    takes_context=True,
)
