"""Pages on which servers describe themselves, requested one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import httpx
import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from harness.inference.endpoint import Endpoint
from harness.inference.providers.http import Connection, base_of, root_of

_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """The facts about a server, found without calling a model; None if not reported."""

    reachable: bool | None = None
    """Whether anything answers at its address; None if it was not asked."""
    ready: bool | None = None
    """Whether it reports that it is ready."""
    models: tuple[str, ...] | None = None
    """The names it serves, or could load."""
    context_tokens: int | None = None
    """Prompt and reply of one call, together."""
    slots: int | None = None
    """Calls that it answers at once."""
    metrics: bool | None = None
    """Whether its counters can be read; None for a kind that has none."""


class Page(BaseModel):
    """The part of a page that is read."""

    model_config = ConfigDict(frozen=True, protected_namespaces=())


P = TypeVar("P", bound=Page)


class ServerPages:
    """The pages of one server.

    The endpoint's `url` must be set.

    Attributes:
        url: The endpoint's address, with its `/v1` if it has one.
        root: The server's address.
        answered: Whether it has answered at all.

    Raises:
        ConfigurationInvalid: The key cannot stand in an HTTP header.
    """

    def __init__(self, endpoint: Endpoint, *, api_key: str | None) -> None:
        assert endpoint.url is not None
        self.endpoint = endpoint
        self.url = base_of(endpoint.url)
        self.root = root_of(endpoint.url)
        self.answered = False
        self._connection = Connection(endpoint, api_key=api_key)

    @property
    def model_id(self) -> str:
        """The model that is asked about."""
        return self.endpoint.model_id

    async def fetch(
        self, url: str, *, params: Mapping[str, str] | None = None, post: object = None
    ) -> bytes | None:
        """A page; None for anything but a success.

        `post` is sent as JSON, if the page is not just fetched.

        Raises:
            httpx.RequestError: Nothing answers.
        """
        method = "GET" if post is None else "POST"
        response = await self._connection.client.request(method, url, params=params, json=post)
        self.answered = True
        return response.content if response.status_code == 200 else None

    async def page(
        self,
        shape: type[P],
        url: str,
        *,
        params: Mapping[str, str] | None = None,
        post: object = None,
    ) -> P | None:
        """A page as a value; None if it is refused, or of another shape. Raises as `fetch`."""
        body = await self.fetch(url, params=params, post=post)
        try:
            return None if body is None else shape.model_validate_json(body)
        except ValidationError:
            return None

    async def ask(self, url: str, *, post: object = None, of_model: bool = False) -> bytes | None:
        """A page; None if it does not come within five seconds.

        Args:
            url: Its address.
            post: As for `fetch`.
            of_model: Whether to name the model: a router has a page for each.
        """
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                params = {"model": self.model_id} if of_model else None
                return await self.fetch(url, params=params, post=post)
        except (httpx.RequestError, TimeoutError):
            return None

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._connection.aclose()


# --- JSON of unknown shape: None for whatever is not as expected ------------------------------


def parsed(body: bytes | None) -> object:
    """A page's JSON."""
    try:
        return None if body is None else orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def at(value: Any, *keys: str, model_id: str = "") -> Any:  # noqa: ANN401
    """The value at the end of these keys; in a list of models, the way goes through the model's."""
    for key in keys:
        if isinstance(value, list):
            value = _entry(value, model_id)
        value = value.get(key) if isinstance(value, dict) else None
    return value


def rows(value: object) -> list[Any]:
    """A list, or an empty one."""
    return value if isinstance(value, list) else []


def names(listed: object, key: str) -> tuple[str, ...] | None:
    """The values of a key in a list's rows; None if it is no list."""
    if not isinstance(listed, list):
        return None
    return tuple(name for row in listed if isinstance(name := at(row, key), str))


def whole(value: object) -> int | None:
    """An integer."""
    return value if isinstance(value, int) else None


def _entry(models: list[Any], model_id: str) -> object:
    """The model's entry; the only one, since some servers accept any name for their model."""
    named = [model for model in models if at(model, "id") == model_id]
    return (named or (models if len(models) == 1 else [None]))[0]


class _Row(Protocol):
    @property
    def id(self) -> str: ...


R = TypeVar("R", bound=_Row)


def row_of(listed: Iterable[R], model_id: str | None) -> R | None:
    """The row of a model; None if it is not listed."""
    return next((row for row in listed if row.id == model_id), None)
