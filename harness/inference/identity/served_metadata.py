"""What a server says it really serves, whatever it calls it.

llama-server takes no notice of the name it is asked for, vLLM's `--served-model-name` is made up,
and a bare tag of Ollama's hides how the weights are packed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

from harness.errors import ConfigurationInvalid
from harness.inference.endpoint import BackendName, Endpoint
from harness.inference.identity.metadata import ModelMetadata, metadata_from
from harness.inference.identity.model_name import parse_model_name
from harness.inference.wire.pages import ServerPages

_TIMEOUT_S = 2.0

_KQUANT_SIZE = re.compile(r" - (S|M|L)(?:mall|edium|arge)")
"""llama.cpp's words: `Q4_K - Medium`."""

_BLOB = re.compile(r"^(FROM|ADAPTER)\s.*(sha256-[0-9a-f]{64})", re.MULTILINE)
"""In the Modelfile that Ollama shows: what its weights are, by content."""


async def served_metadata(
    endpoint: Endpoint, *, api_key: str | None = None, timeout_s: float = _TIMEOUT_S
) -> ModelMetadata | None:
    """Asks an endpoint's server what is behind the endpoint's `model_id`. Nothing is loaded for it.

    None, never an error, when the server does not tell: the first call will say what is wrong.

    Args:
        endpoint: Only one of `TELLING_BACKENDS` is asked.
        api_key: Sent as a bearer token.
        timeout_s: Longest that it may take in all.
    """
    asked = _ASKED_OF.get(endpoint.backend)
    if asked is None:
        return None
    try:
        server = _Server(endpoint, api_key=api_key)
    except ConfigurationInvalid:
        return None
    try:
        async with asyncio.timeout(timeout_s):
            told = await asked(server)
    except (httpx.RequestError, TimeoutError):
        return None
    finally:
        await server.aclose()
    return None if told == ModelMetadata() else told


# --- by kind of server -----------------------------------------------------------------------


async def _llamacpp(server: _Server) -> ModelMetadata | None:
    # A router hands this on to the model's own server, and would start that one for it.
    params = {"model": server.model_id, "autoload": "false"}
    props = await server.page(_Props, f"{server.root}/props", params=params)
    if props is not None and props.model_path:
        return ModelMetadata(path=props.model_path, quantisation=_packing(props.model_ftype))
    # A router lists what it has not started; a proxy often passes on what is below /v1 alone.
    models = await server.listed()
    row = _named(models, server.model_id) or (models[0] if len(models) == 1 else None)
    if row is None:
        return None
    return ModelMetadata(
        path=row.path or (row.id if row.id != server.model_id else None),
        quantisation=_packing(row.meta.ftype if row.meta else ""),
    )


async def _vllm(server: _Server) -> ModelMetadata | None:
    models = await server.listed()
    row = _named(models, server.model_id)
    if row is None:
        return None
    # An adapter's parent is listed beside it, by the name it is served under.
    base = _named(models, row.parent)
    return ModelMetadata(
        path=row.root, base_models=tuple(filter(None, [base.root if base else row.parent]))
    )


async def _sglang(server: _Server) -> ModelMetadata | None:
    info = await server.page(_ModelInfo, f"{server.root}/model_info")
    return None if info is None else ModelMetadata(path=info.model_path)


async def _tgi(server: _Server) -> ModelMetadata | None:
    info = await server.page(_Info, f"{server.root}/info")
    if info is None:
        return None
    return ModelMetadata(path=info.model_id, fingerprint=info.model_sha)


async def _tabbyapi(server: _Server) -> ModelMetadata | None:
    loaded = await server.page(_Row, f"{server.root}/v1/model")
    if loaded is None:
        return None
    # Told to, it loads what it lists when a call names it: what is loaded now says nothing of that.
    if loaded.id != server.model_id and _named(await server.listed(), server.model_id):
        return None
    return ModelMetadata(path=loaded.id)


async def _lmstudio(server: _Server) -> ModelMetadata | None:
    models = await server.page(_Models, f"{server.root}/api/v0/models")
    row = _named(models.data if models else (), server.model_id)
    if row is None:
        return None
    return ModelMetadata(architecture=row.arch or None, quantisation=_packing(row.quantization))


async def _ollama(server: _Server) -> ModelMetadata | None:
    shown = await server.page(_Shown, f"{server.root}/api/show", post={"model": server.model_id})
    if shown is None:
        return None
    details = shown.details
    told = metadata_from(shown.model_info, quantisation=_packing(details.quantization_level))
    blobs = _BLOB.findall(shown.modelfile)
    base_models = (*told.base_models, *filter(None, [details.parent_model]))
    if any(kind == "ADAPTER" for kind, _ in blobs):
        # Then the rest is said of the weights below the adapter.
        told, base_models = replace(told, names=()), (*told.names, *base_models)
    return replace(
        told,
        base_models=base_models,
        architecture=told.architecture or details.family or None,
        fingerprint=" ".join(digest for _, digest in blobs) or None,
    )


# RunPod's and Modal's workers are not asked: that alone would start one.
_ASKED_OF: Mapping[BackendName, Callable[[_Server], Awaitable[ModelMetadata | None]]] = {
    "llamacpp": _llamacpp,
    "vllm": _vllm,
    "sglang": _sglang,
    "tgi": _tgi,
    "tabbyapi": _tabbyapi,
    "lmstudio": _lmstudio,
    "ollama": _ollama,
}

TELLING_BACKENDS: frozenset[BackendName] = frozenset(_ASKED_OF)
"""Servers that say what they serve."""


# --- their pages -----------------------------------------------------------------------------


class _Page(BaseModel):
    model_config = ConfigDict(frozen=True, protected_namespaces=())


class _Props(_Page):
    model_path: str = ""
    model_ftype: str = ""


class _Meta(_Page):
    ftype: str = ""


class _Row(_Page):
    """A model in a list, with what each server adds."""

    id: str
    path: str | None = None
    """Where llama-server's router has its file."""
    meta: _Meta | None = None
    """llama-server's."""
    root: str | None = None
    """What vLLM loaded."""
    parent: str | None = None
    """What vLLM applies it to, if it is an adapter."""
    arch: str = ""
    """LM Studio's."""
    quantization: str = ""
    """LM Studio's."""


class _Models(_Page):
    data: tuple[_Row, ...]


class _ModelInfo(_Page):
    model_path: str


class _Info(_Page):
    model_id: str
    model_sha: str | None = None


class _Details(_Page):
    family: str = ""
    parent_model: str = ""
    quantization_level: str = ""


class _Shown(_Page):
    details: _Details = _Details()
    model_info: Mapping[str, Any] = {}
    modelfile: str = ""


_P = TypeVar("_P", bound=_Page)


class _Server(ServerPages):
    """A server that is asked for pages of a known shape."""

    async def page(
        self,
        shape: type[_P],
        url: str,
        *,
        params: Mapping[str, str] | None = None,
        post: object = None,
    ) -> _P | None:
        """What stands there; None when it is refused, or not as expected."""
        body = await self.fetch(url, params=params, post=post)
        try:
            return None if body is None else shape.model_validate_json(body)
        except ValidationError:
            return None

    async def listed(self) -> tuple[_Row, ...]:
        """What it lists in OpenAI's way."""
        models = await self.page(_Models, f"{self.url}/models")
        return models.data if models else ()


def _named(rows: Iterable[_Row], model_id: str | None) -> _Row | None:
    return next((row for row in rows if row.id == model_id), None)


def _packing(said: str) -> str | None:
    """`Q4_K_M` of what a server calls it: `Q4_K - Medium`, `all F32`, `4bit`, `unknown`."""
    return parse_model_name(_KQUANT_SIZE.sub(r"_\1", said)).quantisation
