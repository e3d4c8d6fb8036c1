"""Models that Ollama loads, keeps and lets go: https://docs.ollama.com/api.

Its scheduler (server/sched.go) starts a runner for each model. A request with other runner options
than the one that is there (`num_ctx`, and whether the context may be shifted) has it started anew:
a load must say what calls say.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Final

from pydantic import BaseModel, ValidationError

from harness.errors import InferenceError, LoadFailed, ModelNotFound, ServerError
from harness.inference import Endpoint
from harness.inference.wire.ollama_request import context_option, keep_alive_field
from harness.residency.host import HostReport
from harness.residency.hosts.control import Control, Page
from harness.residency.hosts.ollama_pulled import (
    PulledModel,
    ask_pulled,
    never_pulled,
    same_model,
)
from harness.residency.hosts.patience import FIRST_PAUSE_S, until

_NO_ROOM: Final = re.compile(
    r"out of (?:device )?memory|requires more system memory|too large for system"
    r"|(?:cuda|hip)Malloc failed|failed to allocate|unable to allocate|allocation failed"
    r"|not enough memory|insufficient memory|out_?of_?(?:device_?)?memory",
    re.IGNORECASE,
)
"""What runners say without memory: `IsOutOfMemory` of llm/status.go, and the scheduler's own."""


class OllamaHost:
    """One model of an Ollama server.

    Args:
        endpoint: Where it is and what the model is called there; `url` must be set.
        api_key: Sent as a bearer token, for a proxy that wants one.
        keep_alive: The seconds that calls ask the model to stay for; see `OllamaWire`.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        api_key: str | None = None,
        keep_alive: Callable[[], float | None] | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._keep_alive = keep_alive or (lambda: None)
        self._control = Control(endpoint, api_key=api_key)

    async def load(self) -> None:
        """Has it loaded, as calls will want it; see `Host.load`.

        Raises:
            ModelNotFound: It was never pulled.
            LoadFailed: It cannot be loaded, or not in time.
            InferenceError: The server cannot be asked, or has too much to do.
        """
        async with self._control.in_time("load"):
            if await self._find() is not None:
                await self._ask_to_load()
                return
            async with self._control.or_else(self._take_back):
                await self._ask_to_load()

    async def unload(self) -> None:
        """Has it let go, and waits until its runner has ended; see `Host.unload`.

        Raises:
            LoadFailed: The server keeps it, for as long as another client uses it.
            InferenceError: The server cannot be asked.
        """
        async with self._control.in_time("unload"):
            await until(self._is_gone)

    async def report(self) -> HostReport:
        """What `/api/ps` says; see `Host.report`.

        Its sizes are what the runner said it allocated. A model that is still being loaded is
        listed, too.

        Raises:
            InferenceError: The server cannot be asked.
        """
        running = await self._find()
        if running is None:
            return HostReport(resident=False)
        if not running.size:
            return HostReport(resident=True)
        return HostReport(resident=True, total_bytes=running.size, gpu_bytes=running.size_vram)

    async def pulled(self) -> PulledModel:
        """What it is, before it is loaded.

        Raises:
            ModelNotFound: It was never pulled.
            LoadFailed: The server does not say so in time.
            InferenceError: The server cannot be asked.
        """
        async with self._control.in_time("describe"):
            return await ask_pulled(self._control)

    async def aclose(self) -> None:
        """Closes the connections; the model stays as it is."""
        await self._control.aclose()

    async def _ask_to_load(self) -> None:
        fields: dict[str, object] = {"model": self._endpoint.model_id}
        if options := context_option(self._endpoint):
            fields["options"] = options
        fields |= keep_alive_field(self._endpoint, self._keep_alive())
        if self._endpoint.embeddings:
            page = await self._control.post("/api/embed", fields | {"input": []})
            if page.status != 200:
                raise self._failure(page)
            return
        # Without `shift`, the first call, which has it, would find the wrong runner.
        page = await self._control.post("/api/chat", fields | {"messages": [], "shift": False})
        if page.status != 200:
            raise self._failure(page)
        self._check_loaded(page)

    def _check_loaded(self, page: Page) -> None:
        reply = page.json
        reason = reply.get("done_reason") if isinstance(reply, Mapping) else None
        if reason == "unload":
            raise LoadFailed(
                f"endpoint '{self._endpoint.tag}' has keep_alive 0, which is to unload: leave "
                "keep_alive out, since the budget decides how long the model stays",
                code="endpoint.keep-alive-zero",
                endpoint=self._endpoint.tag,
            )
        if reason != "load":
            raise LoadFailed(
                f"Ollama was asked to load '{self._endpoint.model_id}' and answered something "
                f"else: {page.body[:200]!r}",
                code="server.misread",
                endpoint=self._endpoint.tag,
            )

    def _failure(self, page: Page) -> InferenceError:
        """Why it is not loaded."""
        model_id, tag = self._endpoint.model_id, self._endpoint.tag
        error = self._control.refusal(page)
        if _NO_ROOM.search(page.said):
            return LoadFailed(
                f"Ollama has no room for '{model_id}' ({page.said}); let other models go, lower "
                "context_tokens, or use a smaller quantisation",
                endpoint=tag,
                out_of_memory=True,
            )
        if isinstance(error, ModelNotFound):
            return never_pulled(page, self._control)
        if b"does not support chat" in page.body:
            return LoadFailed(
                f"'{model_id}' does not chat ({page.said}); is it there to embed? Then set "
                "embeddings = true",
                code="endpoint.only-embeds",
                endpoint=tag,
            )
        if isinstance(error, ServerError):
            return LoadFailed(f"Ollama could not load '{model_id}': {page.said}", endpoint=tag)
        return error

    async def _is_gone(self) -> bool:
        """Whether it is; if not, it is asked to go, again if somebody else has called it since."""
        if await self._find() is None:
            # Some versions would load it in order to unload it.
            return True
        fields = {"model": self._endpoint.model_id, "keep_alive": 0}
        page = await self._control.post("/api/generate", fields)
        if page.status != 200:
            raise LoadFailed(
                f"Ollama keeps '{self._endpoint.model_id}': {page.said}",
                code="model.not-unloaded",
                endpoint=self._endpoint.tag,
            )
        return False

    async def _take_back(self) -> None:
        """Clears up after a load that nobody waits for any more."""
        await until(self._is_gone)
        # Ollama aborts a load whose client has gone, and lists it only after its first steps.
        await asyncio.sleep(FIRST_PAUSE_S)
        await until(self._is_gone)

    async def _find(self) -> _Running | None:
        """The model's entry among those that are loaded."""
        page = await self._control.get("/api/ps")
        if page.status != 200:
            raise self._control.refusal(page)
        try:
            listed = _Listed.model_validate_json(page.body)
        except ValidationError as error:
            raise ServerError(
                f"the server at {self._control.root} was asked which models it has loaded, and "
                f"does not answer as Ollama does: {page.body[:200]!r}",
                endpoint=self._endpoint.tag,
            ) from error
        model_id = self._endpoint.model_id
        return next((one for one in listed.models if same_model(one.name, model_id)), None)


class _Running(BaseModel):
    """A model that is loaded."""

    name: str
    size: int = 0
    """All that its runner has allocated; 0 while that is not known."""
    size_vram: int = 0
    """How much of it is on GPUs."""


class _Listed(BaseModel):
    """The reply of `/api/ps`."""

    models: list[_Running]
