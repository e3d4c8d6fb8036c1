"""An emulated llama-server in router mode, as of b11434: tools/server/server-models.cpp.

It has models, each of which gets a process of its own that is only counted, and ends one when there
are more than `models_max`. `log` has what it did, in order:
`load a`, `unload a`. It answers calls as the `llamacpp` dialect does, those of models that are
loaded (`--no-models-autoload`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from servers.emulated import Answer, Asked
from servers.openai_dialects import DIALECTS
from servers.openai_server import Complaint, Dialect, OpenAIServer, Refused
from servers.waiting import Bell, unless_gone

_EXIT_FAILURE = 1
"""Of a process that was killed, whatever by."""
_RUNNING = frozenset({"loading", "loaded", "sleeping"})


@dataclass(kw_only=True)
class Routed:
    """A model of the router's, and its process."""

    aliases: tuple[str, ...] = ()
    fails: int | None = None
    """The exit code that its process ends with instead of loading."""
    status: str = "unloaded"
    exit_code: int = 0
    is_stopping: bool = False
    coming_up: asyncio.Task[None] | None = None


def refused(status: int, message: str, kind: str) -> Refused:
    """What it says when it does not do what it is asked."""
    return Refused(Complaint(status=status, message=message, kind=kind, code=status))


def invalid(message: str) -> Refused:
    """What it says of a request that is wrong."""
    return refused(400, message, "invalid_request_error")


@dataclass
class LlamaRouter(OpenAIServer):
    """A router with these models."""

    dialect: Dialect = field(default=DIALECTS["llamacpp"], kw_only=True)
    models: dict[str, Routed] = field(default_factory=dict)
    models_max: int = 4
    """`--models-max`; 0 for no limit."""
    parallel: int = 4
    """`--parallel`: calls that a model answers side by side."""
    load_s: float = 0.0
    """What a load takes, once `may_load` is set."""
    unload_s: float = 0.0
    reply_s: float = 0.0
    """What a call takes until its first token."""
    instead: dict[str, tuple[int, object]] = field(default_factory=dict)
    """By path, a status and a body that are answered whatever is asked."""
    silent: set[str] = field(default_factory=set)
    """Paths that are never answered."""
    may_load: asyncio.Event = field(default_factory=asyncio.Event)
    """Loads wait while it is cleared."""
    loading: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once a load has begun."""
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.may_load.set()
        self._arrivals = Bell()
        self._changes = Bell()
        self._slots = {name: asyncio.Semaphore(self.parallel) for name in self.models}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def loads(self) -> int:
        """Loads that were begun."""
        return sum(entry.startswith("load ") for entry in self.log)

    async def until_asked(self, path: str, *, times: int = 1) -> None:
        """Waits for so many requests for a page."""
        while sum(asked.path == path for asked in self.asked) < times:
            await self._arrivals.rung()

    async def __aexit__(self, *error: object) -> None:
        await super().__aexit__(*error)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def respond(self, asked: Asked, answer: Answer) -> None:
        """Answers one request."""
        self._arrivals.ring()
        path = asked.path.partition("?")[0]
        try:
            if path in self.silent:
                await answer.hold()
            elif path in self.instead:
                status, body = self.instead[path]
                await answer.json(body, status=status)
            elif (asked.method, path) in {("GET", "/models"), ("GET", "/v1/models")}:
                await answer.json({"data": self._listed(), "object": "list"})
            elif (asked.method, path) == ("POST", "/models/load"):
                await self._load(asked.body["model"])
                await answer.json({"success": True})
            elif (asked.method, path) == ("POST", "/models/unload"):
                self._unload(asked.body["model"])
                await answer.json({"success": True})
            elif (asked.method, path) == ("GET", "/props"):
                await answer.json({"role": "router", "max_instances": self.models_max})
            elif asked.method == "POST":
                await self._pass_on(asked, answer)
            else:
                await super().respond(asked, answer)
        except Refused as told:
            await self._refuse(told.complaint, asked.body, answer)

    # --- requests ----------------------------------------------------------------------------

    async def _load(self, said: str) -> None:
        name = self._name(said)
        if name is None:
            # Its own words ("model is not found") do not come through: this is every 404's body.
            raise refused(404, "File Not Found", "not_found_error")
        if self.models[name].status in _RUNNING:
            raise invalid("model is already running")
        if not self._has_room() and (victim := self._victim()) is not None:
            self._stop(victim)
            await self._until(lambda: self.models[victim].status == "unloaded")
        if not self._has_room():
            raise refused(500, "model limit reached, try again later", "server_error")
        self._start(name)

    def _unload(self, said: str) -> None:
        name = self._name(said)
        if name is None:
            raise invalid("model is not found")
        if self.models[name].status not in _RUNNING:
            raise invalid("model is not running")
        self._stop(name)

    async def _pass_on(self, asked: Asked, answer: Answer) -> None:
        said = asked.body.get("model", "")
        name = self._name(said)
        if name is None:
            raise invalid(f"model '{said}' not found")
        if self.models[name].status != "loaded":
            raise invalid("model is not loaded")
        async with self._slots[name]:
            await unless_gone(answer, asyncio.sleep(self.reply_s))
            await super().respond(asked, answer)

    def _name(self, said: str) -> str | None:
        names = (n for n, model in self.models.items() if said == n or said in model.aliases)
        return next(names, None)

    def _listed(self) -> list[dict[str, Any]]:
        return [
            {
                "id": name,
                "aliases": list(model.aliases),
                "object": "model",
                "status": self._told(model),
            }
            for name, model in self.models.items()
        ]

    def _told(self, model: Routed) -> dict[str, Any]:
        told: dict[str, Any] = {"value": model.status, "args": ["llama-server"]}
        if model.status == "unloaded" and model.exit_code != 0:
            told |= {"exit_code": model.exit_code, "failed": True}
        return told

    # --- processes ---------------------------------------------------------------------------

    def _has_room(self) -> bool:
        running = sum(model.status in _RUNNING for model in self.models.values())
        return self.models_max == 0 or running < self.models_max

    def _victim(self) -> str | None:
        idle = [n for n, m in self.models.items() if m.status == "loaded" and not m.is_stopping]
        return idle[0] if idle else None

    def _start(self, name: str) -> None:
        model = self.models[name]
        self._become(name, "loading")
        self.log.append(f"load {name}")
        self.loading.set()
        model.coming_up = self._spawn(self._bring_up(name))

    async def _bring_up(self, name: str) -> None:
        model = self.models[name]
        await self.may_load.wait()
        await asyncio.sleep(self.load_s)
        if model.fails is None:
            self._become(name, "loaded")
        else:
            self._exit(name, model.fails)

    def _stop(self, name: str) -> None:
        model = self.models[name]
        if model.is_stopping:
            return
        model.is_stopping = True
        exit_code = 0
        if model.status == "loading":
            assert model.coming_up is not None
            model.coming_up.cancel()
            exit_code = _EXIT_FAILURE
        self._spawn(self._end(name, exit_code))

    async def _end(self, name: str, exit_code: int) -> None:
        await asyncio.sleep(self.unload_s)
        self.log.append(f"unload {name}")
        self._exit(name, exit_code)

    def _exit(self, name: str, exit_code: int) -> None:
        model = self.models[name]
        model.exit_code, model.is_stopping = exit_code, False
        self._become(name, "unloaded")

    def _become(self, name: str, status: str) -> None:
        self.models[name].status = status
        self._changes.ring()

    async def _until(self, it_is_so: Callable[[], bool]) -> None:
        while not it_is_so():
            await self._changes.rung()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
