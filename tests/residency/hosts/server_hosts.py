"""Every host of a server whose model is loaded and let go, beside a server for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from servers.controlled import Controlled
from servers.sglang_memory import SavingSglang
from servers.tabby_models import ADMIN_KEY, API_KEY, TabbyServer
from servers.tensorrt_llm_parking import KEY, ParkingTensorRtLlm
from servers.triton_repository import TritonRepository
from servers.vllm_sleeping import SleepingVllm

from harness.inference import Endpoint, connect
from harness.residency.hosts import host_of
from harness.trace import monotonic

PATIENCE_S = 10.0
"""For what happens at once or never."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of server."""

    backend: str
    there: Callable[..., Controlled]
    """Makes a server that has the model in memory."""
    gone: Callable[..., Controlled]
    """Makes one that has not."""
    load_page: str
    unload_page: str
    model_id: str = "m"
    api_key: str | None = None
    control_key: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    never_answers: str = "silent"
    """The server's setting for pages that keep their client waiting."""


KINDS = {
    "vllm": Kind(
        backend="vllm",
        there=SleepingVllm,
        gone=lambda **how: SleepingVllm(is_asleep=True, **how),
        load_page="/wake_up",
        unload_page="/sleep",
    ),
    "sglang": Kind(
        backend="sglang",
        there=SavingSglang,
        gone=lambda **how: SavingSglang(
            is_paused=True, is_released=True, weights_are_good=False, **how
        ),
        load_page="/resume_memory_occupation",
        unload_page="/release_memory_occupation",
        never_answers="unanswered",
    ),
    "tensorrt-llm": Kind(
        backend="tensorrt-llm",
        there=ParkingTensorRtLlm,
        gone=lambda **how: ParkingTensorRtLlm(state="parked", **how),
        load_page="/resume_memory",
        unload_page="/release_memory",
        control_key=KEY,
    ),
    "tabbyapi": Kind(
        backend="tabbyapi",
        there=lambda **how: TabbyServer(loaded="qwen", **how),
        gone=TabbyServer,
        load_page="/v1/model/load",
        unload_page="/v1/model/unload",
        model_id="qwen",
        api_key=API_KEY,
        control_key=ADMIN_KEY,
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


def endpoint_at(url, kind, **fields):
    said = {
        "tag": "writer",
        "backend": kind.backend,
        "url": url,
        "model_id": kind.model_id,
        "manage": True,
        **kind.fields,
    }
    return Endpoint.model_validate(said | fields)


@asynccontextmanager
async def host_at(url, kind, *, control_key="", **fields):
    """A host, as the session makes it."""
    endpoint = endpoint_at(url, kind, **fields)
    backend = connect(endpoint, api_key=kind.api_key, clock=monotonic)
    key = kind.control_key if control_key == "" else control_key
    host = host_of(endpoint, backend, api_key=kind.api_key, control_key=key)
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield host
    finally:
        await host.aclose()
        await backend.aclose()
