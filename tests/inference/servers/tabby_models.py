"""An emulated TabbyAPI that loads models and lets them go, as of August 2026.

From endpoints/core/router.py, endpoints/core/utils/model.py, common/model.py and common/auth.py.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field

from servers.controlled import Controlled, no_such_page
from servers.emulated import Answer, Asked
from servers.waiting import unless_gone

API_KEY, ADMIN_KEY = "an-api-key", "an-admin-key"
NO_ROOM = "Insufficient VRAM on GPU 0 for model and cache."
NO_PATH = "Could not find the model path for load. Check model name or config.yml?"


@dataclass
class TabbyServer(Controlled):
    """A server with a folder of models."""

    folders: tuple[str, ...] = field(default=("qwen", "llama"), kw_only=True)
    loaded: str | None = field(default=None, kw_only=True)
    auth: bool = field(default=True, kw_only=True)
    """Not `disable_auth`."""
    fails: str = field(default="", kw_only=True)
    """What is wrong with every load."""
    breaks_off: bool = field(default=False, kw_only=True)
    """Whether the telling of a load ends in the middle."""
    may_load: asyncio.Event = field(default_factory=asyncio.Event, kw_only=True)
    loading: asyncio.Event = field(default_factory=asyncio.Event, kw_only=True)

    def __post_init__(self) -> None:
        self.may_load.set()

    async def act(self, asked: Asked, path: str, answer: Answer) -> None:
        """Does what is asked, and answers."""
        if self.auth and (complaint := _complaint(asked)):
            await answer.json({"detail": complaint}, status=401)
            return
        match asked.method, path:
            case "GET", "/v1/model" if self.loaded is not None:
                card = {"id": self.loaded, "object": "model", "owned_by": "tabbyAPI"}
                await answer.json({**card, "parameters": {"max_seq_len": 4096}})
            case "POST", "/v1/model/unload" if self.loaded is not None:
                self._let_go()
                await answer.json(None)
            case ("GET", "/v1/model") | ("POST", "/v1/model/unload"):
                await answer.json({"detail": "No models are currently loaded."}, status=503)
            case "POST", "/v1/model/load":
                await self._load(asked.body.get("model_name"), answer)
            case _:
                await no_such_page(answer)

    async def _load(self, name: str | None, answer: Answer) -> None:
        if name not in self.folders:
            said = NO_PATH if name else "A model name was not provided for load."
            await answer.json({"detail": said}, status=400)
            return
        await answer.start("text/event-stream; charset=utf-8")
        if self.loaded == name:
            await answer.send(_event(2, "finished"))
            await answer.end()
            return
        self._let_go()
        await answer.send(_event(1, "processing"))
        await answer.send(b": ping - 2026-11-22 08:00:00+00:00\r\n\r\n")
        self.log.append(f"load {name}")
        self.loaded = name  # what its client leaves behind stays in memory
        self.loading.set()
        await unless_gone(answer, self.may_load.wait())
        if self.fails:
            self._let_go()
            error = {"error": {"message": self.fails, "trace": None}}
            await answer.send(b"data: " + json.dumps(error).encode() + b"\r\n\r\n")
        elif not self.breaks_off:
            await answer.send(_event(2, "finished"))
        await answer.end()

    def _let_go(self) -> None:
        if self.loaded is not None:
            self.log.append(f"unload {self.loaded}")
        self.loaded = None


def _complaint(asked: Asked) -> str:
    bearer = asked.headers.get("authorization", "").removeprefix("Bearer ")
    if asked.method == "GET":
        key = asked.headers.get("x-api-key") or bearer
        return "" if key in {API_KEY, ADMIN_KEY} else "Invalid API key"
    key = asked.headers.get("x-admin-key") or bearer
    return "" if key == ADMIN_KEY else "Invalid admin key"


def _event(module: int, status: str) -> bytes:
    event = {"model_type": "model", "module": module, "modules": 2, "status": status}
    return b"data: " + json.dumps(event).encode() + b"\r\n\r\n"
