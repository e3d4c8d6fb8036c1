"""llama-server, from llama.cpp b11434.

Started without a model, it is a router: it starts a llama-server of its own for each model.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from harness.errors import LoadFailed, ModelNotFound
from harness.inference.json_text import at, row_of, rows, text_at
from harness.inference.model_identity import ModelMetadata
from harness.inference.model_names import packing
from harness.inference.providers.counters import Counters, prometheus
from harness.inference.providers.http import Page
from harness.inference.providers.openai_wire import nested_schema
from harness.inference.providers.provider import (
    ALWAYS,
    ContextReport,
    HostReport,
    Provider,
    remedies,
    times_in,
)
from harness.inference.providers.server_host import ServerHost, ServerPages, until

_METRICS_SWITCH: Final = "--metrics"
_FULL: Final = re.compile(r"model limit reached", re.IGNORECASE)
_ALREADY: Final = "already running"
_NOT_THERE: Final = "not running"
# States of a model without a process that has it in memory.
_GONE: Final = frozenset({"unloaded", "downloading", "downloaded"})
_STATES: Final = _GONE | {"loading", "loaded", "sleeping"}


times = times_in("timings", prefill="prompt_ms", decode="predicted_ms")

# --- the model that it serves ------------------------------------------------------------------


async def _served(pages: ServerPages) -> ModelMetadata | None:
    # A router passes this question on to the model's own server, which `autoload` would start.
    params = pages.of_model | {"autoload": "false"}
    props = await pages.json("/props", params=params)
    if path := text_at(props, "model_path"):
        return ModelMetadata(path=path, quantization=packing(text_at(props, "model_ftype")))
    # Asked second, for models that a router has not started, which it lists with their files, and
    # for a proxy that passes on only pages below /v1.
    models = rows(at(await pages.json(f"{pages.v1}/models"), "data"))
    row = row_of(models, pages.model_id) or (models[0] if len(models) == 1 else None)
    if row is None:
        return None
    name = text_at(row, "id")
    return ModelMetadata(
        path=text_at(row, "path") or (name if name != pages.model_id else None),
        quantization=packing(text_at(row, "meta", "ftype")),
    )


# --- its counters ----------------------------------------------------------------------------

COUNTERS = Counters(
    path="/metrics",
    read=prometheus(
        running="llamacpp:requests_processing",
        waiting="llamacpp:requests_deferred",
        # The first sample counts only computed tokens, so the cached ones have to be added.
        prompt=("llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total"),
        cached="llamacpp:prompt_tokens_cached_total",
        generated="llamacpp:tokens_predicted_total",  # added when a reply ends
    ),
    switch=_METRICS_SWITCH,
    # llama-server notices that a client has gone only after a second without a question. If it was
    # asked more often, it would read the prompts of cancelled calls to their ends.
    pause_s=1.1,
)

# --- loading and unloading ------------------------------------------------------------------


class RouterHost(ServerHost):
    """One model of a router (tools/server/server-models.cpp)."""

    async def load(self) -> None:
        """Has the router load the model, and waits until the model's llama-server can answer."""
        before = await self._status()
        if before["value"] == "loaded":
            return
        if before["value"] == "sleeping":
            # Its process is there without its weights, and only a call would wake it.
            await self.unload()
        fields = {"model": self.endpoint.model_id}
        request = asyncio.ensure_future(self.ask("POST", "/models/load", fields))
        try:
            async with self.or_else(partial(self._undo_load, request)):
                # Shielded: cancelled, it would load the model all the same, after `_undo_load`.
                self._check_accepted(await asyncio.shield(request))
                await until(self._is_loaded)
        finally:
            request.cancel()

    async def unload(self) -> None:
        """Has the router unload the model, and waits until the model's process has ended."""
        if await self._is_gone():
            return
        # Calls under way are cut off, some only after 10 s, the router's `stop-timeout`.
        page = await self.ask("POST", "/models/unload", {"model": self.endpoint.model_id})
        if page.status != 200 and not _says(page, _NOT_THERE):
            raise self.failure(page, doing="unload")
        await until(self._is_gone)

    async def report(self) -> HostReport:
        """The report of `/models`, which has no sizes."""
        # A model that sleeps has given its memory back, and its next call loads it again.
        return HostReport(resident=(await self._status())["value"] == "loaded")

    def _check_accepted(self, page: Page) -> None:
        """Raises unless the router's answer says that it loads the model, or has it."""
        if page.status == 200 or _says(page, _ALREADY):
            return
        if page.status == 404:  # its body, "File Not Found", does not speak of the model
            raise ModelNotFound(
                f"the router does not know '{self.endpoint.model_id}'; set the endpoint's model_id "
                f"to a name that GET {self.root}/models lists"
            )
        if _FULL.search(page.text):  # it counts models, not memory
            raise LoadFailed(
                f"the router has as many models loaded as it may, and all are in use "
                f"({page.text}); start it with a higher --models-max, since the budget decides "
                "what fits",
                code="server.model-limit",
                out_of_memory=True,
            )
        raise self.failure(page, doing="load")

    async def _is_loaded(self) -> bool:
        """Whether the load that was requested has ended; raises if it failed."""
        status = await self._status()
        if status["value"] in {"loaded", "sleeping"}:
            return True
        if status["value"] == "loading":
            return False
        ended = f", with exit code {status.get('exit_code')}" if status.get("failed") else ""
        raise LoadFailed(
            f"the router was asked to load '{self.endpoint.model_id}', and has it "
            f"{status['value']}{ended}; its log says why. With an exit code, there is mostly not "
            "enough memory for the model and its context"
        )

    async def _undo_load(self, request: asyncio.Future[Page]) -> None:
        """Undoes an abandoned load, unless another client began it."""
        if (await request).status == 200:
            await self.unload()

    async def _is_gone(self) -> bool:
        return (await self._status())["value"] in _GONE

    async def _status(self) -> Mapping[str, Any]:
        """The model's status; `unloaded` if the router does not list the model."""
        page = await self.ask("GET", "/models")
        if page.status != 200:
            raise self.refusal(page)
        models = at(page.json, "data")
        # Other servers list models without a status.
        states = {text_at(model, "status", "value") for model in rows(models)}
        if not isinstance(models, list) or not states <= _STATES:
            raise LoadFailed(
                f"the llama-server at {self.root} is no router, so it cannot be told to "
                "load and unload: start it without a model (--models-dir DIR, not -m), or leave "
                f"`manage` out of endpoint '{self.endpoint.tag}'",
                code="server.not-manageable",
            )
        for model in models:
            if self.endpoint.model_id in [at(model, "id"), *rows(at(model, "aliases"))]:
                status: Mapping[str, Any] = model["status"]
                return status
        return {"value": "unloaded"}


def _says(page: Page, words: str) -> bool:
    return page.status == 400 and words in page.text


PROVIDER = Provider(
    title="llama-server",
    remedies=remedies(
        "start llama-server with ",
        keep_loaded="--sleep-idle-seconds -1; in a router's preset, load-on-startup",
        let_both_stay="--models-max 2 or more, if both fit",
        answer_more_at_once="a larger -np, and a -c larger by as much: it is divided between them",
        read_prompts_faster="all layers on the GPU (-ngl all), and -b 2048 -ub 2048",
        spread_prefill="a smaller -b, so that one long prompt holds up the others for less long",
        keep_prefixes="no --no-cache-prompt, and -np or --cache-ram for all prefixes in use",
        more_kv_room=("-ctk q8_0 -ctv q8_0 -fa on, which halves the cache", "a larger -c"),
        write_faster="-md DRAFT.gguf --spec-type draft-simple, the draft of the same family",
        compute_faster="-t one less than there are cores, where it computes on the processor",
        fit_at_start="a smaller -c, or fewer layers on the GPU: -ngl",
        fit_later="a smaller -c, and -ctk q8_0 -ctv q8_0 -fa on",
        longer_context="a larger -c: -np divides it",
    ),
    host=lambda endpoint, access, _: RouterHost(endpoint, access),
    served=_served,
    schema=nested_schema,
    images="--mmproj FILE",
    continues={},
    progress={"return_progress": True},
    cached_tokens=ALWAYS,
    times=times,
    timings=ALWAYS,
    embeds="--embeddings",
    side_by_side=True,
    context=ContextReport(
        path="/props", keys=("default_generation_settings", "n_ctx"), slots="total_slots"
    ),
    counters=COUNTERS,
)
