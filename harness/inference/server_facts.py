"""What a server says of itself when it is asked: whether it is ready, its models, its context."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import httpx
import orjson

from harness.inference.endpoint import Endpoint
from harness.inference.wire.pages import ServerPages
from harness.inference.wire.profile import Profile
from harness.inference.wire.profiles import PROFILES

_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What is known of a server without calling a model; None for what it does not say."""

    reachable: bool | None = None
    """Whether anything answers at its address; None where nobody asked."""
    ready: bool | None = None
    """Whether it says that it is ready; None for a kind that has no page for that."""
    models: tuple[str, ...] | None = None
    """The names it serves, or could load."""
    context_tokens: int | None = None
    """Prompt and reply of one call, together."""
    slots: int | None = None
    """Calls that it answers side by side."""
    metrics: bool | None = None
    """Whether its counters can be read; None for a kind that has none."""


async def server_facts(endpoint: Endpoint, *, api_key: str | None = None) -> ServerFacts:
    """Asks the server of an endpoint. What it does not tell within seconds is None, not an error.

    Ask once the model has been called: some know its context only when it is loaded.

    Args:
        endpoint: Its `url` must be set, and be that of a server: litellm's providers are not asked.
        api_key: Sent as a bearer token.

    Raises:
        ConfigurationInvalid: The key cannot stand in an HTTP header.
    """
    server = _Server(endpoint, api_key=api_key)
    profile = PROFILES[endpoint.backend]
    try:
        ready = None
        if profile.health:
            ready = await server.ask(server.root + profile.health) is not None
        match endpoint.backend:
            case "ollama":
                facts = await _ollama(server)
            case "triton":
                facts = await _triton(server)
            case _:
                facts = await _of_profile(server, profile)
        return replace(facts, reachable=server.answered, ready=ready)
    finally:
        await server.aclose()


def slots_source(
    endpoint: Endpoint, *, api_key: str | None = None
) -> Callable[[], Awaitable[int | None]] | None:
    """Asks a server how many calls it answers side by side; None for one that has no such page.

    Of a model that the budget loads it is not asked: a router would load it for the question.
    """
    profile = PROFILES.get(endpoint.backend)
    page = None if profile is None else profile.context
    if page is None or page.slots is None or endpoint.manage:
        return None

    async def ask() -> int | None:
        server = _Server(endpoint, api_key=api_key)
        try:
            told = _parsed(await server.ask(server.root + page.path, of_model=True))
        finally:
            await server.aclose()
        return _whole(_at(told, str(page.slots))) or None

    return ask


async def _of_profile(server: _Server, profile: Profile) -> ServerFacts:
    listed = _parsed(await server.ask(f"{server.url}/models"))
    models = _names(_at(listed, "data"), "id")
    metrics = context_tokens = slots = None
    if profile.metrics:
        metrics = await server.ask(server.root + profile.metrics.path, of_model=True) is not None
    if profile.context:
        told = _parsed(await server.ask(server.root + profile.context.path, of_model=True))
        context_tokens = _whole(_at(told, *profile.context.keys, model_id=server.model_id))
        slots = _whole(_at(told, profile.context.slots)) if profile.context.slots else None
    return ServerFacts(models=models, context_tokens=context_tokens, slots=slots, metrics=metrics)


async def _ollama(server: _Server) -> ServerFacts:
    pulled = _parsed(await server.ask(f"{server.root}/api/tags"))
    loaded = _parsed(await server.ask(f"{server.root}/api/ps"))
    contexts = {
        _at(model, "name"): _whole(_at(model, "context_length"))
        for model in _rows(_at(loaded, "models"))
    }
    name = server.model_id
    return ServerFacts(
        models=_names(_at(pulled, "models"), "name"),
        context_tokens=contexts.get(name) or contexts.get(f"{name}:latest"),
        metrics=loaded is not None,
    )


async def _triton(server: _Server) -> ServerFacts:
    index = await server.ask(f"{server.url}/v2/repository/index", post={"ready": True})
    return ServerFacts(models=_names(_parsed(index), "name"))


class _Server(ServerPages):
    """A server that need not answer."""

    async def ask(self, url: str, *, post: object = None, of_model: bool = False) -> bytes | None:
        """What stands there; None for nothing, or nothing that is for us.

        Args:
            url: The page.
            post: What is sent, where the page is not just fetched.
            of_model: Whether to say of which model: llama-server's router has a page for each.
        """
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                params = {"model": self.model_id} if of_model else None
                return await self.fetch(url, params=params, post=post)
        except (httpx.RequestError, TimeoutError):
            return None


# --- JSON of unknown shape: whatever is not as expected is None ------------------------------


def _parsed(body: bytes | None) -> object:
    try:
        return None if body is None else orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def _at(value: Any, *keys: str | int, model_id: str = "") -> Any:  # noqa: ANN401
    """What lies at the end of these keys; through a list of models, by the model's entry."""
    for key in keys:
        if isinstance(value, list):
            value = _entry(value, model_id)
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _entry(models: list[Any], model_id: str) -> object:
    """The model's entry; the only one, where a server does not care what its model is called."""
    named = [model for model in models if _at(model, "id") == model_id]
    return (named or (models if len(models) == 1 else [None]))[0]


def _rows(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _names(rows: object, key: str) -> tuple[str, ...] | None:
    if not isinstance(rows, list):
        return None
    return tuple(name for row in rows if isinstance(name := _at(row, key), str))


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None
