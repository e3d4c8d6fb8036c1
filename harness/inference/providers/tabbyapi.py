"""TabbyAPI, which serves ExLlama, from commit e632af41 (August 2026).

Its replies that are not streamed have no usage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import orjson

from harness.errors import LoadFailed, ModelNotFound
from harness.inference.endpoint import Endpoint
from harness.inference.model_identity import ModelMetadata
from harness.inference.providers.pages import Page, ServerPages, row_of
from harness.inference.providers.provider import (
    ALWAYS,
    Access,
    Aim,
    ContextReport,
    Extras,
    Fields,
    HostReport,
    Provider,
    remedies,
    s_as_ns,
)
from harness.inference.providers.server_host import Answer, ServerHost
from harness.inference.providers.serving import (
    Launch,
    Serving,
    Setting,
    launched,
    name_of,
    quoted,
)
from harness.inference.reply_in_progress import ServerTimings
from harness.inference.request import JsonSchema

_NOTHING_LOADED = 503


def _schema(schema: JsonSchema) -> Fields:
    # The schema stands where others have a name and the schema.
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def times(extras: Extras) -> ServerTimings | None:
    """Fields of the usage, in seconds."""
    prefill_ns = s_as_ns(extras.usage.get("prompt_time"))
    if prefill_ns is None:
        return None
    return ServerTimings(
        prefill_ns=prefill_ns, decode_ns=s_as_ns(extras.usage.get("completion_time"))
    )


class _Model(Page):
    id: str


class _Models(Page):
    data: tuple[_Model, ...]


async def _served(pages: ServerPages) -> ModelMetadata | None:
    loaded = await pages.page(_Model, f"{pages.root}/v1/model")
    if loaded is None:
        return None
    if loaded.id != pages.model_id:
        # It may load a listed model when a call names it: then the loaded one tells nothing.
        listed = await pages.page(_Models, f"{pages.url}/models")
        if listed and row_of(listed.data, pages.model_id):
            return None
    return ModelMetadata(path=loaded.id)


class TabbyApiHost(ServerHost):
    """A folder of models, of which the server holds one at a time.

    From endpoints/core/router.py and common/model.py. Loading a model unloads the one before.
    """

    def __init__(self, endpoint: Endpoint, access: Access) -> None:
        # The admin key opens all pages.
        super().__init__(endpoint, replace(access, api_key=access.api_key or access.control_key))
        self._headers = {"x-admin-key": self.control_key} if self.control_key else {}

    async def load(self) -> None:
        """Has it loaded, in place of whatever is there."""
        async with self.in_time("load"):
            if await self._loaded() == self.endpoint.model_id:
                return
            # A load that its client has left stays in memory until it is unloaded.
            async with self.or_else(self._unload):
                page = await self._ask_to_load()
                if page.status == 200:
                    self._check_loaded(page)
            if page.status != 200:
                # It has not begun, and what was there still is: maybe another model.
                raise self._refused(page)

    async def unload(self) -> None:
        """Has it let go, unless another is there.

        Calls under way are cut off.
        """
        async with self.in_time("let go of"):
            if await self._loaded() == self.endpoint.model_id:
                await self._unload()

    async def report(self) -> HostReport:
        """Whether the model that is there is this one."""
        return HostReport(resident=await self._loaded() == self.endpoint.model_id)

    async def _loaded(self) -> str | None:
        """The name of the model that is there, if one is."""
        page = await self.get("/v1/model")
        if page.status == _NOTHING_LOADED:
            return None
        match self.fields(page):
            case {"id": str(name)}:
                return name
        raise self.misread(page)

    async def _ask_to_load(self) -> Answer:
        # The field was called `name` until 2024.
        name = self.endpoint.model_id
        return await self.post(
            "/v1/model/load", {"model_name": name, "name": name}, headers=self._headers
        )

    def _check_loaded(self, page: Answer) -> None:
        # It tells of every module, of a draft model's too, which comes first.
        status: object = None
        for event in _events(page.body):
            if "error" in event:
                raise self.failure(_as_page(event), doing="load")
            status = event.get("status")
        if status != "finished":
            raise LoadFailed(
                f"TabbyAPI stopped in the middle of loading '{self.endpoint.model_id}'; its log "
                "says why",
                endpoint=self.endpoint.tag,
            )

    def _refused(self, page: Answer) -> Exception:
        if b"Could not find the model path" in page.body:
            return ModelNotFound(
                f"TabbyAPI has no folder '{self.endpoint.model_id}' in its model_dir; set the "
                "endpoint's model_id to the name of one",
                endpoint=self.endpoint.tag,
            )
        return self.failure(page, doing="load")

    async def _unload(self) -> None:
        page = await self.post("/v1/model/unload", headers=self._headers)
        if page.status not in {200, _NOTHING_LOADED}:
            raise self.failure(page, doing="let go of")


def _events(body: bytes) -> Iterator[Mapping[str, object]]:
    """What a stream of events said, whole; lines of other kinds keep the connection alive."""
    for line in body.splitlines():
        if line.startswith(b"data:"):
            try:
                event = orjson.loads(line[5:])
            except orjson.JSONDecodeError:
                continue
            if isinstance(event, Mapping):
                yield event


def _as_page(event: Mapping[str, object]) -> Answer:
    return Answer(status=500, body=orjson.dumps(event))


REMEDIES = remedies(
    "in TabbyAPI's config.yml: ",
    {
        Aim.MORE_KV_ROOM: "cache_mode: Q8, which halves the cache",
        Aim.WRITE_FASTER: "draft_mode: ngram, or mtp for a model that has it",
        Aim.FIT_AT_START: "cache_mode: Q8, which halves the cache",
        Aim.FIT_LATER: "cache_mode: Q8, which halves the cache",
        Aim.DRAFT_BETTER: "draft_mode: disabled, or a draft of the same family",
    },
)


def _launch(serving: Serving) -> Launch:
    cells = serving.context_tokens * serving.sequences
    return launched(
        serving,
        f"python main.py --model-name {quoted(name_of(serving.model))}",
        {
            "context_tokens": f"--max-seq-len {serving.context_tokens}",
            "sequences": f"--max-batch-size {serving.sequences} --cache-size {cells}",
            "kv_bits": "--cache-mode Q8",
            "tensor_parallel": "--tensor-parallel true",
            "port": f"--port {serving.port}",
        },
        Setting("--disable-auth true", "only this machine reaches it; else api_key_env is needed"),
        backend="tabbyapi",
        port=5000,
    )


PROVIDER = Provider(
    title="TabbyAPI (ExLlama)",
    remedies=REMEDIES,
    launch=_launch,
    host=lambda endpoint, access, _: TabbyApiHost(endpoint, access),
    served=_served,
    schema=_schema,
    times=times,
    timings=ALWAYS,
    embeds="embedding_model_name",
    context=ContextReport(path="/v1/model", keys=("parameters", "max_seq_len")),
    holds_one_model=True,
)
