"""Ollama over its own protocol.

Its OpenAI-compatible protocol ignores keep-alive times and context lengths, and reports no times.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from harness.errors import ModelNotFound, NotOffered
from harness.hardware import Footprint, Loading, gguf_footprint, gguf_header_from_values
from harness.inference.completion import Completion, Embeddings, Usage, as_vectors
from harness.inference.endpoint import Endpoint
from harness.inference.json_text import at, names, rows, text_at, whole
from harness.inference.model_identity import ModelMetadata, metadata_from
from harness.inference.model_names import packing
from harness.inference.providers.http import Access, HttpBackend, Page
from harness.inference.providers.openai_wire import wire_fields
from harness.inference.providers.provider import ALWAYS, LEVELS, HostReport, Provider, remedies
from harness.inference.providers.server_host import ServerFacts, ServerHost, ServerPages, until
from harness.inference.providers.wire_reply import call_pieces, divided, proper_end, text_in
from harness.inference.reply_in_progress import ReplyInProgress, ServerTimings, as_count
from harness.inference.request import SAMPLING, ChatRequest, EmbedRequest, Message, called_names
from harness.inference.time_limits import time_limits

_NUM_CTX = re.compile(r"^num_ctx\s+(\d+)\s*$", re.MULTILINE)
# Ollama's default below 23 GiB of GPU memory, for a model whose Modelfile and endpoint set none.
# With more GPU memory it takes more: set context_tokens there.
_CONTEXT_TOKENS = 4096
# How long a managed model stays after a call. The budget unloads it sooner; a killed run cannot.
# Ollama unloads an idle model anyway when another needs its room.
_KEEP_ALIVE_S = 1800.0
# What Ollama puts before a model's name that lacks it.
_DEFAULT_PREFIXES = ("registry.ollama.ai/", "library/")
# A Modelfile's lines that name files by digest: the weights, and adapters on top of them.
_BLOB = re.compile(r"^(FROM|ADAPTER)\s.*(sha256-[0-9a-f]{64})", re.MULTILINE)


class OllamaWire(HttpBackend):
    """A server that speaks `POST <url>/api/chat`; see `HttpBackend`."""

    def __init__(self, endpoint: Endpoint, access: Access) -> None:
        super().__init__(endpoint, access)
        # The endpoint's address may end in the `/v1` that other protocols need.
        self._url = f"{self._connection.root}/api/chat"

    def _fields(self, request: ChatRequest) -> dict[str, object]:
        fields = wire_fields(request, self._endpoint.model_id, stream=False)
        if (effort := request.reasoning_effort) is not None:
            del fields["reasoning_effort"]
            fields["think"] = effort != "none" and LEVELS.get(effort, effort)
        return fields

    async def embed(self, request: EmbedRequest) -> Embeddings:
        """One vector per text; see `Backend.embed`."""
        fields: dict[str, object] = {"input": list(request.texts), "truncate": False}
        async with time_limits(self._endpoint, timeout_s=request.timeout_s):
            reply = await self._connection.ask_to_embed(
                f"{self._connection.root}/api/embed",
                _model_fields(self._endpoint) | fields,
                server=f"Ollama's '{self._endpoint.model_id}'",
                remedy="pull an embedding model",
            )
        return Embeddings(
            vectors=as_vectors(rows(at(reply, "embeddings")), count=len(request.texts)),
            input_tokens=as_count(at(reply, "prompt_eval_count")),
            model_id=text_at(reply, "model") or self._endpoint.model_id,
        )

    def _body(self, fields: dict[str, object], request: ChatRequest) -> dict[str, object]:
        options = {name: fields[key] for key, name in _OPTIONS.items() if key in fields}
        body = _model_fields(self._endpoint, options) | {
            "stream": self._endpoint.stream,
            # Ollama silently cuts a text that is too long unless it is told not to: `truncate` is
            # for the prompt, `shift` for a context that fills up while the reply is written.
            "truncate": False,
            "shift": False,
            "messages": _messages(request.conversation, self._endpoint),
        }
        body |= {name: fields[name] for name in _BESIDE_OPTIONS if name in fields}
        return body if request.reply_schema is None else body | {"format": request.reply_schema}

    async def _read(self, values: AsyncIterator[Any], progress: ReplyInProgress) -> Completion:
        is_first = True
        async for value in values:
            if (part := self._part(value)) is None:
                continue
            text, thought = divided(at(part, "message", "content"))
            thought += text_in(at(part, "message", "thinking"))
            calls = call_pieces(at(part, "message"))
            # Only the last part has the counts. In older versions it has no reason.
            is_last = bool(part.get("done")) or bool(part.get("done_reason"))
            progress.add(text, reasoning=thought, calls=calls, is_whole=is_last and is_first)
            is_first = False
            if is_last:
                return self._completion(part, progress)
        raise self._connection.cut(
            "it ended without `done: true`, as Ollama's replies do when a model says the same "
            "token over and over; a frequency_penalty may keep it from that"
        )

    def _completion(self, last: Mapping[str, Any], progress: ReplyInProgress) -> Completion:
        """The completion of a reply with this last part."""
        input_tokens = as_count(last.get("prompt_eval_count"))
        output_tokens = as_count(last.get("eval_count"))
        # Before 0.1.40 there was no reason: a reply with counts had come to its end.
        finish_word = last.get("done_reason") or ("" if output_tokens is None else "stop")
        usage = None
        # Up to 0.30 the count is without the cached part, and sometimes missing.
        if input_tokens is not None:
            usage = Usage(
                input_tokens=input_tokens,
                output_tokens=output_tokens or 0,  # Ollama leaves out numbers that are zero
                cached_tokens=as_count(last.get("prompt_eval_cached_count")),  # since 0.33
            )
        completion = progress.completion(
            finish_reason=proper_end(text_in(finish_word)),
            usage=usage,
            model_id=text_in(last.get("model")) or self._endpoint.model_id,
            reported=ServerTimings(
                load_ns=as_count(last.get("load_duration")),
                prefill_ns=as_count(last.get("prompt_eval_duration")),
                decode_ns=as_count(last.get("eval_duration")),
            ),
        )
        # Sent back with the turn: templates of models that think between calls have a place for it.
        extra = {"thinking": completion.reasoning} if completion.reasoning else {}
        return replace(completion, extra=extra)


_SAME_OPTIONS = (*SAMPLING, "temperature", "frequency_penalty", "seed", "stop")
# Field of OpenAI's protocol → the name of the option that Ollama has for it.
_OPTIONS = {name: name for name in _SAME_OPTIONS} | {"max_tokens": "num_predict"}
_BESIDE_OPTIONS = ("tools", "think")


def _messages(messages: Sequence[Message], endpoint: Endpoint) -> list[dict[str, object]]:
    """A conversation as JSON for Ollama: calls have no ids, and their arguments are objects."""
    names = called_names(messages)
    turns: list[dict[str, object]] = []
    for message in messages:
        # Its extras mean something only to the server that they came from.
        if message.source not in {None, endpoint.source}:
            message = message.without_extras  # noqa: PLW2901
        turn = {**message.extra, "role": message.role, "content": message.content}
        if message.images:
            if any(image.url for image in message.images):
                raise NotOffered("Ollama takes no addresses of images; give bytes")
            turn["images"] = [image.encoded for image in message.images]
        if message.tool_calls:
            turn["tool_calls"] = [
                {
                    **call.extra,
                    "function": {"name": call.sendable.name, "arguments": call.as_object()},
                }
                for call in message.tool_calls
            ]
        if message.answers is not None:
            turn["tool_name"] = names.get(message.answers, message.answers)
        turns.append(turn)
    return turns


def _model_fields(
    endpoint: Endpoint, options: Mapping[str, object] | None = None
) -> dict[str, object]:
    """The fields of every request that may load the model; `options` are those of the call."""
    all_options = dict(options or {})
    # Ollama loads a model again for another context, so every request has the endpoint's, or none.
    if "context_tokens" in endpoint.model_fields_set:
        all_options["num_ctx"] = endpoint.context_tokens
    keep_alive = endpoint.keep_alive
    if keep_alive is None and endpoint.manage:
        keep_alive = _KEEP_ALIVE_S
    options = all_options or None
    fields = {"model": endpoint.model_id, "options": options, "keep_alive": keep_alive}
    # Without `keep_alive`, Ollama's own setting applies.
    return {name: value for name, value in fields.items() if value is not None}


# --- its pages -------------------------------------------------------------------------------


def _normal_name(name: str) -> str:
    """One spelling for all names of a model: `M`, `m:latest`, `registry.ollama.ai/library/m`."""
    normal = name.lower()
    for prefix in _DEFAULT_PREFIXES:
        normal = normal.removeprefix(prefix)
    return normal if ":" in normal.rpartition("/")[2] else f"{normal}:latest"


async def _facts(pages: ServerPages) -> ServerFacts:
    pulled = await pages.json("/api/tags")
    loaded = await pages.json("/api/ps")
    return ServerFacts(
        models=names(at(pulled, "models"), "name"),
        context_tokens=whole(at(_entry(loaded, pages.model_id), "context_length")),
    )


def _entry(listed: object, model_id: str) -> Any:  # noqa: ANN401 - JSON
    """The model's entry in a list of pulled models (`/api/tags`) or of loaded ones (`/api/ps`)."""
    name = _normal_name(model_id)
    models = rows(at(listed, "models"))
    return next((model for model in models if _normal_name(text_at(model, "name")) == name), None)


async def _served(pages: ServerPages) -> ModelMetadata | None:
    """What `/api/show` tells of the model's identity; None if it tells nothing."""
    page = await pages.json("/api/show", post={"model": pages.model_id})
    if not isinstance(page, dict):
        return None
    packed = packing(text_at(page, "details", "quantization_level"))
    metadata = metadata_from(page.get("model_info") or {}, quantization=packed)
    blobs = _BLOB.findall(text_at(page, "modelfile"))
    parent = text_at(page, "details", "parent_model")
    base_models = (*metadata.base_models, *filter(None, [parent]))
    if any(kind == "ADAPTER" for kind, _ in blobs):
        # The names are of the weights below the adapter: as its own, they would make it its base.
        base_models = (*metadata.names, *base_models)
        metadata = replace(metadata, names=())
    return replace(
        metadata,
        base_models=base_models,
        architecture=metadata.architecture or text_at(page, "details", "family") or None,
        fingerprint=" ".join(digest for _, digest in blobs) or None,
    )


# --- loading and unloading -------------------------------------------------------------------


class OllamaHost(ServerHost):
    """One model, loaded and unloaded by Ollama's scheduler (server/sched.go)."""

    async def load(self) -> None:
        """Loads the model with the options that calls will have."""
        # A model that is there already belongs to another client: it stays if this load fails.
        if await self._listed() is not None:
            await self._ask_to_load()
            return
        async with self.or_else(self._undo_load):
            await self._ask_to_load()

    async def unload(self) -> None:
        """Unloads the model, and waits until its runner has ended."""
        await until(self._ask_to_unload)

    async def report(self) -> HostReport:
        """The report of `/api/ps`, which also lists a model that is still being loaded."""
        running = await self._listed()
        if running is None:
            return HostReport(resident=False)
        total_bytes = whole(running.get("size"))
        # 0 while it is unknown what its runner has allocated.
        if not total_bytes:
            return HostReport(resident=True)
        gpu_bytes = whole(running.get("size_vram")) or 0
        return HostReport(resident=True, total_bytes=total_bytes, gpu_bytes=gpu_bytes)

    async def footprint(self) -> Footprint | None:
        """The memory that the model will take, by its file's header; None without its size."""
        # Verbose, since otherwise values that differ by layer are left out.
        fields = {"model": self.endpoint.model_id, "verbose": True}
        page = self._read(await self.ask("POST", "/api/show", fields))
        size_bytes = whole(at(await self._listed("/api/tags"), "size"))
        if not size_bytes:
            return None
        header = gguf_header_from_values(
            page.get("model_info") or {}, name=self.endpoint.model_id, tensor_bytes=size_bytes
        )
        return gguf_footprint(header, Loading(context_tokens=self._context_tokens(page)))

    def _context_tokens(self, page: object) -> int:
        if "context_tokens" in self.endpoint.model_fields_set:
            return self.endpoint.context_tokens
        in_modelfile = _NUM_CTX.search(text_at(page, "parameters"))
        return int(in_modelfile[1]) if in_modelfile else _CONTEXT_TOKENS

    async def _ask_to_load(self) -> None:
        fields = _model_fields(self.endpoint)
        if self.endpoint.embeddings:
            page = await self.ask("POST", "/api/embed", fields | {"input": []})
        else:
            # With `shift` as calls have it: other runner options would start the runner again.
            page = await self.ask("POST", "/api/chat", fields | {"messages": [], "shift": False})
        if page.status != 200:
            error = self.failure(page, doing="load")
            raise self._never_pulled(page) if isinstance(error, ModelNotFound) else error
        # With a keep_alive of 0 the reason is "unload".
        if not self.endpoint.embeddings and self.fields(page).get("done_reason") != "load":
            raise self.misread(page)

    async def _ask_to_unload(self) -> bool:
        """Asks Ollama to unload the model; True, without a request to unload, if it is not loaded.

        To be repeated until it returns True: another client may have called the model meanwhile.
        """
        if await self._listed() is None:
            # Not asked again, since some versions would load it in order to unload it.
            return True
        fields = {"model": self.endpoint.model_id, "keep_alive": 0}
        page = await self.ask("POST", "/api/generate", fields)
        if page.status != 200:
            raise self.failure(page, doing="unload")
        return False

    async def _undo_load(self) -> None:
        await until(self._ask_to_unload)
        # Ollama aborts a load whose client has gone, and may list it only a moment later.
        await asyncio.sleep(0.05)
        await until(self._ask_to_unload)

    async def _listed(self, path: str = "/api/ps") -> Any:  # noqa: ANN401 - JSON
        """The model's entry on a page of models, here the loaded ones; None if it is not listed."""
        answer = await self.ask("GET", path)
        listed = self._read(answer).get("models")
        if not isinstance(listed, list) or not all(text_at(model, "name") for model in listed):
            raise self.misread(answer)
        return _entry(answer.json, self.endpoint.model_id)

    def _read(self, answer: Page) -> Mapping[str, Any]:
        try:
            return self.fields(answer)
        except ModelNotFound as error:
            raise self._never_pulled(answer) from error

    def _never_pulled(self, answer: Page) -> ModelNotFound:
        model_id = self.endpoint.model_id
        return ModelNotFound(
            f"Ollama does not have '{model_id}' ({answer.text}); get it: ollama pull {model_id}"
        )


PROVIDER = Provider(
    title="Ollama",
    remedies=remedies(
        "start Ollama with ",
        keep_loaded="OLLAMA_KEEP_ALIVE=-1 (5m by default), and load ahead: ollama run {model} ''",
        let_both_stay="OLLAMA_MAX_LOADED_MODELS=2 or more, if both fit",
        answer_more_at_once="a larger OLLAMA_NUM_PARALLEL (1 by default)",
        bound_queue="a smaller OLLAMA_MAX_QUEUE, to refuse early what cannot be served soon",
        read_prompts_faster="the model whole on the GPU: ollama ps tells",
        keep_prefixes="OLLAMA_NUM_PARALLEL as large as the number of prefixes in use",
        more_kv_room="OLLAMA_FLASH_ATTENTION=1 OLLAMA_KV_CACHE_TYPE=q8_0",
        write_faster="the model whole on the GPU: ollama ps tells",
        compute_faster="the model whole on the GPU: ollama ps tells",
        fit_at_start="a smaller OLLAMA_CONTEXT_LENGTH or OLLAMA_NUM_PARALLEL",
        fit_later="a smaller OLLAMA_CONTEXT_LENGTH",
        longer_context="a larger OLLAMA_CONTEXT_LENGTH",
    )
    | remedies(
        "",
        enforce_schemas="use a newer Ollama, or a model that does not think aloud: some that do "
        "ignore a schema",
    ),
    connect=OllamaWire,
    host=lambda endpoint, access, _: OllamaHost(endpoint, access),
    footprint=lambda _, host: cast("OllamaHost", host).footprint(),
    facts=_facts,
    served=_served,
    refuses_tools=True,
    requires_calls=False,
    cached_tokens="an Ollama newer than 0.33.2",
    timings=ALWAYS,
    embeds=ALWAYS,
    side_by_side=True,
)
