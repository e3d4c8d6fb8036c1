"""What a server says of itself when it is asked: its models, its context, whether it counts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import orjson

from harness.errors import EndpointUnreachable
from harness.inference.endpoint import Endpoint
from harness.inference.wire.connection import Connection
from harness.inference.wire.profile import ContextReport
from harness.inference.wire.profiles import PROFILES

_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What is known of a server without calling a model; None for what it does not say."""

    models: tuple[str, ...] | None = None
    """The names it serves, or could load."""
    context_tokens: int | None = None
    """Prompt and reply of one call, together."""
    metrics: bool | None = None
    """Whether its counters can be read; None for a kind that has none."""


async def server_facts(endpoint: Endpoint, *, api_key: str | None = None) -> ServerFacts:
    """Asks the server of an endpoint.

    Args:
        endpoint: Its `url` must be set.
        api_key: Sent as a bearer token.

    Raises:
        EndpointUnreachable: Nothing answers there.
        ConfigurationInvalid: The key cannot stand in an HTTP header.
    """
    assert endpoint.url is not None
    connection = Connection(endpoint, api_key=api_key)
    root = endpoint.url.rstrip("/").removesuffix("/v1")
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            return await _ask(connection.client, endpoint, root)
    except (httpx.RequestError, TimeoutError) as error:
        raise EndpointUnreachable(
            f"nothing answers at {root} ({error or type(error).__name__}); is the server running, "
            "and is the endpoint's url right?",
            endpoint=endpoint.tag,
        ) from error
    finally:
        await connection.aclose()


async def _ask(client: httpx.AsyncClient, endpoint: Endpoint, root: str) -> ServerFacts:
    if endpoint.backend == "ollama":
        return await _ask_ollama(client, endpoint, root)
    if endpoint.backend == "triton":
        index = await client.post(f"{root}/v2/repository/index", json={"ready": True})
        return ServerFacts(models=_names(_json(index), "name"))
    profile = PROFILES[endpoint.backend]
    listed = _json(await client.get(f"{endpoint.url}/models"))
    return ServerFacts(
        models=_names(listed.get("data") if isinstance(listed, dict) else None, "id"),
        context_tokens=await _context(client, profile.context, root, endpoint.model_id),
        metrics=await _answers(client, root + profile.metrics) if profile.metrics else None,
    )


async def _ask_ollama(client: httpx.AsyncClient, endpoint: Endpoint, root: str) -> ServerFacts:
    tags = _json(await client.get(f"{root}/api/tags"))
    loaded = _json(await client.get(f"{root}/api/ps"))
    names = {endpoint.model_id, f"{endpoint.model_id}:latest"}
    contexts = [
        model.get("context_length") for model in _rows(loaded, "models") if model["name"] in names
    ]
    return ServerFacts(
        models=_names(_rows(tags, "models"), "name"),
        # Only of a loaded model: how long it will be is for the server to decide.
        context_tokens=contexts[0] if contexts else None,
        metrics=True,
    )


async def _context(
    client: httpx.AsyncClient, report: ContextReport | None, root: str, model_id: str
) -> int | None:
    if report is None:
        return None
    found = _json(await client.get(root + report.path))
    for key in report.keys:
        if isinstance(found, list):
            # One entry per model; servers of one model may not care what it is called.
            named = [row for row in found if row.get("id") == model_id]
            found = (named or found or [{}])[0]
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, int) else None


async def _answers(client: httpx.AsyncClient, url: str) -> bool:
    return (await client.get(url)).status_code == 200


def _json(response: httpx.Response) -> Any:  # noqa: ANN401 - JSON
    try:
        return orjson.loads(response.content) if response.status_code == 200 else None
    except orjson.JSONDecodeError:
        return None


def _rows(said: Any, key: str) -> list[Mapping[str, Any]]:  # noqa: ANN401 - JSON
    rows = said.get(key) if isinstance(said, dict) else None
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _names(rows: Any, key: str) -> tuple[str, ...] | None:  # noqa: ANN401 - JSON
    if not isinstance(rows, list):
        return None
    return tuple(str(row[key]) for row in rows if isinstance(row, dict) and key in row)
