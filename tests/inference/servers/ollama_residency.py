"""An emulated Ollama that loads models and lets them go, as of 0.33: server/sched.go, routes.go.

Its memory is counted, not taken. Requests wait for each other as they do there: those for a loaded
model go ahead, all others are seen to one by one. `log` has what it did, in order: `load a:latest`,
`unload a:latest`. It answers calls as `OllamaServer` does.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

from servers.emulated import Answer, Asked
from servers.ollama import SENT_AT, OllamaServer, _json, _refuse
from servers.waiting import Bell, unless_gone

GIB = 1 << 30
DEFAULT_CONTEXT_TOKENS = 4096
_RUNNER_OPTIONS = ("num_ctx", "num_batch", "num_gpu", "main_gpu", "use_mmap", "num_thread")
_ARRAYS_SHOWN = 5
"""Longer ones are left out of `/api/show`, unless it is asked to be verbose."""

_loaded_in_ns: ContextVar[int] = ContextVar("_loaded_in_ns", default=0)
T = TypeVar("T")


@dataclass(kw_only=True)
class Pulled:
    """A model that was pulled."""

    size_bytes: int = GIB
    """What it takes in memory."""
    gpu_bytes: int | None = None
    """How much of that is on a GPU; None for all."""
    file_bytes: int = GIB
    embeds: bool = False
    fails: str | None = None
    """What its runner says instead of loading."""
    model_info: dict[str, Any] = field(default_factory=dict)
    parameters: str = ""


@dataclass(kw_only=True)
class Runner:
    """A model that is loaded, on its way in, or on its way out."""

    name: str
    options: dict[str, Any]
    """What it was started with: a request with others wants another runner."""
    slots: asyncio.Semaphore
    uses: int = 0
    is_to_go: bool = False
    """Whether it ends with the last call that uses it."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def suits(self, options: dict[str, Any]) -> bool:
        """Whether a request with these can use it."""
        return self.options == options


class Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, error: str) -> None:
        super().__init__(error)
        self.status = status


@dataclass
class ResidentOllama(OllamaServer):
    """Ollama, with these models pulled; names without a tag are `:latest`."""

    models: dict[str, Pulled] = field(default_factory=dict)
    loaded: tuple[str, ...] = ()
    """Models that are there from the beginning, as calls want them."""
    num_parallel: int = 1
    """OLLAMA_NUM_PARALLEL: calls that a model answers side by side."""
    load_s: float = 0.0
    """What a load takes, once `may_load` is set."""
    reply_s: float = 0.0
    """What a call takes until its first token."""
    notices: bool = True
    """Whether it aborts what a client that has hung up was waiting for."""
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
        self.models = {whole(name): model for name, model in self.models.items()}
        self.may_load.set()
        self._arrivals = Bell()
        self._running = {
            name: Runner(
                name=name,
                options={"num_ctx": DEFAULT_CONTEXT_TOKENS, "shift": False},
                slots=asyncio.Semaphore(self.num_parallel),
            )
            for name in map(whole, self.loaded)
        }
        self._turn = asyncio.Lock()

    @property
    def loads(self) -> int:
        """Loads that were begun."""
        return sum(entry.startswith("load ") for entry in self.log)

    @property
    def resident(self) -> list[str]:
        """The models that `/api/ps` lists."""
        return list(self._running)

    async def until_asked(self, path: str, *, times: int = 1) -> None:
        """Waits for so many requests for a page."""
        while sum(asked.path == path for asked in self.asked) < times:
            await self._arrivals.rung()

    async def respond(self, asked: Asked, answer: Answer) -> None:
        """Answers one request."""
        self._arrivals.ring()
        if asked.path in self.silent:
            await answer.hold()
        if asked.path in self.instead:
            status, body = self.instead[asked.path]
            await _json(answer, body, status=status)
            return
        try:
            match asked.method, asked.path:
                case "POST", "/api/chat" | "/api/generate" | "/api/embed":
                    await self._use(asked, answer)
                case "GET", "/api/ps":
                    await _json(answer, {"models": [*map(self._process, self._running.values())]})
                case "GET", "/api/tags":
                    tags = [_tag(name, model) for name, model in self.models.items()]
                    await _json(answer, {"models": tags})
                case "POST", "/api/show":
                    await _json(answer, _shown(self._pulled(asked.body), asked.body))
                case _:
                    await super().respond(asked, answer)
        except Refused as refused:
            await _refuse(answer, refused.status, str(refused))

    # --- requests ----------------------------------------------------------------------------

    async def _use(self, asked: Asked, answer: Answer) -> None:
        body, path = asked.body, asked.path
        model, is_empty = self._pulled(body, path), not body.get(_CONTENT[path])
        is_to_go = _is_nothing(body.get("keep_alive"))
        if path != "/api/embed":
            if is_empty and is_to_go:
                if (runner := self._running.get(whole(body["model"]))) is not None:
                    self._expire(runner)
                await _json(answer, _empty_reply(body, path, "unload"))
                return
            if model.embeds:
                what = path.removeprefix("/api/")
                raise Refused(400, f'"{body["model"]}" does not support {what}')
        began = asyncio.get_running_loop().time()
        runner = await self._wait(answer, self._runner(body, is_to_go=is_to_go))
        _loaded_in_ns.set(round((asyncio.get_running_loop().time() - began) * 1e9))
        try:
            if is_empty:
                await _json(answer, _empty_reply(body, path, "load"))
                return
            await self._wait(answer, runner.slots.acquire())
            try:
                await self._wait(answer, asyncio.sleep(self.reply_s))
                await self._generate(asked, answer)
            finally:
                runner.slots.release()
        finally:
            self._release(runner)

    async def _wait(self, answer: Answer, work: Coroutine[Any, Any, T]) -> T:
        return await (unless_gone(answer, work) if self.notices else work)

    def _pulled(self, body: Any, path: str = "") -> Pulled:
        name = body["model"]
        if whole(name) in self.models:
            return self.models[whole(name)]
        if path == "/api/embed":
            raise Refused(404, f'model "{name}" not found, try pulling it first')
        raise Refused(404, f"model '{name}' not found")

    def _last(self, pieces: list[dict[str, Any]]) -> dict[str, Any]:
        # Times that were spent: longer ones would be cut where the call's phases are told.
        times = {
            "load_duration": _loaded_in_ns.get(),
            "prompt_eval_duration": round(self.reply_s * 1e9),
            "eval_duration": 1_000 * len(pieces),
        }
        return super()._last(pieces) | times | {"total_duration": sum(times.values())}

    def _process(self, runner: Runner) -> dict[str, Any]:
        model = self.models[runner.name]
        gpu_bytes = model.size_bytes if model.gpu_bytes is None else model.gpu_bytes
        return {
            "name": runner.name,
            "model": runner.name,
            "size": model.size_bytes,
            "digest": "sha256:0",
            "details": _DETAILS,
            "expires_at": SENT_AT,
            "size_vram": gpu_bytes,
            "context_length": runner.options.get("num_ctx", DEFAULT_CONTEXT_TOKENS),
        }

    # --- the scheduler -----------------------------------------------------------------------

    async def _runner(self, body: Any, *, is_to_go: bool) -> Runner:
        """The runner that a request wants, in use by it."""
        name, said = whole(body["model"]), body.get("options", {})
        options = {key: said[key] for key in _RUNNER_OPTIONS if key in said}
        options.setdefault("num_ctx", DEFAULT_CONTEXT_TOKENS)
        options["shift"] = body.get("shift", True)
        runner = self._running.get(name)
        if runner is not None and runner.suits(options):
            return self._take(runner, is_to_go=is_to_go)
        async with self._turn:
            return self._take(await self._schedule(name, options), is_to_go=is_to_go)

    async def _schedule(self, name: str, options: dict[str, Any]) -> Runner:
        while True:
            runner = self._running.get(name)
            if runner is not None and runner.suits(options):
                return runner
            if runner is None:
                slots = asyncio.Semaphore(self.num_parallel)
                return await self._start(Runner(name=name, options=options, slots=slots))
            self._expire(runner)
            await runner.ended.wait()

    async def _start(self, runner: Runner) -> Runner:
        model = self.models[runner.name]
        self._running[runner.name] = runner
        runner.uses += 1  # by the load
        self.log.append(f"load {runner.name}")
        self.loading.set()
        try:
            await self.may_load.wait()
            await asyncio.sleep(self.load_s)
            if model.fails is not None:
                raise Refused(500, model.fails)
        except BaseException:
            del self._running[runner.name]
            self.log.append(f"abort {runner.name}")
            runner.ended.set()
            raise
        runner.uses -= 1
        return runner

    def _take(self, runner: Runner, *, is_to_go: bool) -> Runner:
        runner.uses += 1
        runner.is_to_go = runner.is_to_go or is_to_go
        return runner

    def _release(self, runner: Runner) -> None:
        runner.uses -= 1
        if runner.uses == 0 and runner.is_to_go:
            self._end(runner)

    def _expire(self, runner: Runner) -> None:
        """Ends it, at the end of the last call that uses it."""
        runner.is_to_go = True
        if runner.uses == 0:
            self._end(runner)

    def _end(self, runner: Runner) -> None:
        del self._running[runner.name]
        self.log.append(f"unload {runner.name}")
        runner.ended.set()


_CONTENT = {"/api/chat": "messages", "/api/generate": "prompt", "/api/embed": "input"}
"""The field that is empty in a request which only loads or unloads."""
_DETAILS = {"format": "gguf", "family": "llama", "parameter_size": "1B"}


def whole(name: str) -> str:
    """A name with its tag."""
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def _empty_reply(body: Any, path: str, reason: str) -> dict[str, Any]:
    if path == "/api/embed":
        return {"model": body["model"], "embeddings": []}
    said = {"message": {"role": "assistant", "content": ""}} if path == "/api/chat" else {}
    reply = {"model": body["model"], "created_at": SENT_AT, **said, "done": True}
    return reply | ({} if said else {"response": ""}) | {"done_reason": reason}


def _tag(name: str, model: Pulled) -> dict[str, Any]:
    return {
        "name": name,
        "model": name,
        "modified_at": SENT_AT,
        "size": model.file_bytes,
        "digest": "sha256:0",
        "details": _DETAILS,
    }


def _shown(model: Pulled, body: Any) -> dict[str, Any]:
    def cut(value: Any) -> Any:
        is_long = isinstance(value, list) and len(value) > _ARRAYS_SHOWN
        return [] if is_long and not body.get("verbose") else value

    return {
        "parameters": model.parameters,
        "template": "{{ .Prompt }}",
        "details": _DETAILS,
        "model_info": {key: cut(value) for key, value in model.model_info.items()},
        "capabilities": ["embedding"] if model.embeds else ["completion"],
        "modified_at": SENT_AT,
    }


def _is_nothing(keep_alive: Any) -> bool:
    """Whether it is 0, as a number or a Go duration such as "0s"."""
    return keep_alive is not None and not re.search("[1-9]", str(keep_alive))
