"""Triton's model repository, through both of its front ends, as of 2.73.

From docs/protocol/extension_model_repository.md, the core's model_repository_manager.cc, and
python/openai/openai_frontend with its tests of model management.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field

from servers.controlled import Controlled, no_such_page
from servers.emulated import Answer, Asked
from servers.waiting import unless_gone

_KSERVE = re.compile(r"/v2/repository/models/([^/]+)/(load|unload)")
_OPENAI = re.compile(r"/v1/models/([^/]+)/(load|unload)")


@dataclass
class TritonRepository(Controlled):
    """A Triton server with these models in its repository."""

    models: dict[str, tuple[str, ...]] = field(
        default_factory=lambda: {"m": (), "tokens": (), "chain": ("m", "tokens")}, kw_only=True
    )
    """By name, the models that it is made of."""
    explicit: bool = field(default=True, kw_only=True)
    """`--model-control-mode=explicit`."""
    fails: str = field(default="", kw_only=True)
    """What is wrong with every load."""
    ready: set[str] = field(default_factory=set, kw_only=True)
    unloading: dict[str, int] = field(default_factory=dict, kw_only=True)
    """For how many more looks a model is on its way out."""
    leaves_after: int = field(default=0, kw_only=True)
    """For how many looks every model is on its way out."""
    may_load: asyncio.Event = field(default_factory=asyncio.Event, kw_only=True)
    loading: asyncio.Event = field(default_factory=asyncio.Event, kw_only=True)

    def __post_init__(self) -> None:
        self.may_load.set()

    async def act(self, asked: Asked, path: str, answer: Answer) -> None:
        """Does what is asked, and answers."""
        if (asked.method, path) == ("POST", "/v2/repository/index"):
            await answer.json(self._index(only_ready=(asked.body or {}).get("ready", False)))
        elif (asked.method, path) == ("GET", "/v1/models"):
            rows = [{"id": name, "object": "model", "created": 1} for name in sorted(self.ready)]
            await answer.json({"object": "list", "data": rows})
        elif asked.method == "POST" and (found := _KSERVE.fullmatch(path)):
            await self._by_kserve(found[1], found[2], asked, answer)
        elif asked.method == "POST" and (found := _OPENAI.fullmatch(path)):
            await self._by_openai(found[1], found[2], answer)
        else:
            await no_such_page(answer)

    async def _by_kserve(self, name: str, what: str, asked: Asked, answer: Answer) -> None:
        if not self.explicit:
            said = "explicit model load / unload is not allowed if polling is enabled"
            await answer.json({"error": said}, status=503)
        elif what == "load" and (name not in self.models or self.fails):
            said = self.fails or f"failed to load '{name}', failed to poll from model repository"
            await answer.json({"error": said}, status=400)
        elif what == "load":
            await self._load(name, answer)
            await answer.json({})
        else:
            together = (asked.body or {}).get("parameters", {}).get("unload_dependents", False)
            self._unload(name, *(self.models.get(name, ()) if together else ()))
            await answer.json({})

    async def _by_openai(self, name: str, what: str, answer: Answer) -> None:
        if not self.explicit:
            said = "Model load/unload requires --model-control-mode=explicit"
            await answer.json({"detail": said}, status=400)
        elif what == "load" and name in self.ready:
            await answer.json({"detail": f"Model '{name}' is already loaded"}, status=400)
        elif what == "load" and (name not in self.models or self.fails):
            await answer.json({"detail": self.fails or f"failed to load '{name}'"}, status=500)
        elif what == "load":
            await self._load(name, answer)
            row = {"id": name, "object": "model", "created": 1}
            await answer.json({**row, "owned_by": "Triton Inference Server"})
        elif name not in self.ready:
            await answer.json({"detail": f"Unknown model: {name}"}, status=400)
        else:
            self._unload(name)
            await answer.json({"status": "success", "model": name})

    async def _load(self, name: str, answer: Answer) -> None:
        self.loading.set()
        for one in (name, *self.models[name]):
            self.log.append(f"load {one}")
        # It loads to the end, though its client has gone.
        self.ready |= {name, *self.models[name]}
        await unless_gone(answer, self.may_load.wait())

    def _unload(self, *names: str) -> None:
        for name in names:
            if name in self.ready:
                self.log.append(f"unload {name}")
                self.ready.discard(name)
                self.unloading[name] = self.leaves_after

    def _index(self, *, only_ready: bool) -> list[dict[str, str]]:
        rows = []
        for name in self.models:
            if name in self.ready:
                rows.append({"name": name, "version": "1", "state": "READY"})
            elif only_ready:
                continue
            elif self.unloading.get(name, 0) > 0:
                self.unloading[name] -= 1
                rows.append({"name": name, "version": "1", "state": "UNLOADING"})
            elif name in self.unloading:
                row = {"name": name, "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}
                rows.append(row)
            else:
                rows.append({"name": name})
        return rows
