"""Every host of a server whose model is loaded and let go, beside a server for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from servers.llama_router import LlamaRouter, Routed
from servers.ollama_residency import GIB, Pulled, ResidentOllama
from servers.triton_repository import TritonRepository
from servers.vllm_sleeping import SleepingVllm

from harness.errors import InferenceError
from harness.inference import Endpoint
from harness.inference.providers.http import Access
from harness.inference.providers.registry import connect, host_of
from harness.inference.providers.server_host import in_time

PATIENCE_S = 60.0
"""For what happens at once or never."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of server."""

    backend: str
    there: Callable[..., Any]
    """Makes a server that has the model in memory."""
    gone: Callable[..., Any]
    """Makes one that has not."""
    load_page: str
    unload_page: str
    model_id: str = "m"
    fields: Mapping[str, Any] = field(default_factory=dict)
    never_answers: str = "silent"
    """The server's setting for pages that keep their client waiting."""
    no_room: str = "CUDA out of memory. Tried to allocate 20.00 GiB"
    """What it says when it has none."""


def ollama(*names, **how):
    """An Ollama with models of 3 GiB, 2 of them on its GPU."""
    models = {name: Pulled(size_bytes=3 * GIB, gpu_bytes=2 * GIB) for name in names or ("m:1b",)}
    return ResidentOllama(**({"models": models} | how))


def router(*names, **how):
    """A llama-server that routes to these models."""
    return LlamaRouter(**({"models": {name: Routed() for name in names or ("m",)}} | how))


KINDS = {
    "llamacpp": Kind(
        backend="llamacpp",
        there=lambda **how: router(models={"m": Routed(status="loaded")}, **how),
        gone=router,
        load_page="/models/load",
        unload_page="/models/unload",
        no_room="model limit reached, try again later",
    ),
    "ollama": Kind(
        backend="ollama",
        there=lambda **how: ollama(loaded=("m:1b",), **how),
        gone=ollama,
        load_page="/api/chat",
        unload_page="/api/generate",
        model_id="m:1b",
    ),
    "vllm": Kind(
        backend="vllm",
        there=SleepingVllm,
        gone=lambda **how: SleepingVllm(is_asleep=True, **how),
        load_page="/wake_up",
        unload_page="/sleep",
    ),
    "triton": Kind(
        backend="triton",
        there=lambda **how: TritonRepository(ready={"m"}, **how),
        gone=TritonRepository,
        load_page="/v2/repository/models/m/load",
        unload_page="/v2/repository/models/m/unload",
        fields={"prompt_template": "chatml"},
    ),
    "triton-openai": Kind(
        backend="triton-openai",
        there=lambda **how: TritonRepository(ready={"m"}, **how),
        gone=TritonRepository,
        load_page="/v1/models/m/load",
        unload_page="/v1/models/m/unload",
    ),
}


def endpoint_at(root, kind, **fields):
    said = {
        "tag": "writer",
        "backend": kind.backend,
        "url": f"{root}/v1" if kind.backend == "llamacpp" else root,
        "model_id": kind.model_id,
        "manage": True,
        **kind.fields,
    }
    return Endpoint.model_validate(said | fields)


@asynccontextmanager
async def calls_to(root, kind, **fields):
    """What calls the server's model."""
    backend = connect(endpoint_at(root, kind, **fields), Access())
    try:
        yield backend
    finally:
        await backend.aclose()


@asynccontextmanager
async def host_at(root, kind, **fields):
    """A host, as the session makes it."""
    async with calls_to(root, kind, **fields) as backend:
        endpoint = endpoint_at(root, kind, **fields)
        host = host_of(endpoint, backend, Access())
        try:
            async with asyncio.timeout(PATIENCE_S):
                yield host
        finally:
            await host.aclose()


async def outcome(work):
    """What came of it: `there` or `gone` for a report, `done`, or the error."""
    try:
        result = await work
    except InferenceError as error:
        return error
    return "done" if result is None else "there" if result.resident else "gone"


def ask(kind, server, *actions, **fields):
    """What comes of each of these actions of a host, one after another."""

    async def main():
        async with server, host_at(server.root, kind, **fields) as host:
            limit_s = fields.get("load_timeout_s", PATIENCE_S)
            return [await outcome(limited(host, action, limit_s)) for action in actions]

    return asyncio.run(main())


async def limited(host, action, limit_s):
    """What a host does in the time that its caller gives it."""
    async with in_time("writer", limit_s, action):
        return await getattr(host, action)()


def cancel(kind, server, begun, *, then=lambda: None, **fields):
    """Breaks a load off once it has begun; the report afterwards."""

    async def main():
        async with server, host_at(server.root, kind, **fields) as host:
            loading = asyncio.create_task(host.load())
            await begun()
            loading.cancel()
            then()
            await asyncio.wait([loading])
            assert loading.cancelled()
            return await outcome(host.report())

    return asyncio.run(main())
