"""What servers have to say beside their protocols: single pages, fetched one at a time."""

from __future__ import annotations

from collections.abc import Mapping

from harness.inference.endpoint import Endpoint
from harness.inference.wire.connection import Connection, base_of, root_of


class ServerPages:
    """The pages of one server.

    Args:
        endpoint: Where it is; `url` must be set.
        api_key: Sent as a bearer token.

    Raises:
        ConfigurationInvalid: The key cannot stand in an HTTP header.
    """

    def __init__(self, endpoint: Endpoint, *, api_key: str | None) -> None:
        assert endpoint.url is not None
        self.url = base_of(endpoint.url)
        """The endpoint's address, with its `/v1` if it has one."""
        self.root = root_of(endpoint.url)
        """The server's."""
        self.model_id = endpoint.model_id
        """What is asked about."""
        self.answered = False
        """Whether it has answered at all."""
        self._connection = Connection(endpoint, api_key=api_key)

    async def fetch(
        self, url: str, *, params: Mapping[str, str] | None = None, post: object = None
    ) -> bytes | None:
        """What stands there; None for anything but a success.

        Args:
            url: The page.
            params: Of the query.
            post: What is sent, where the page is not just fetched.

        Raises:
            httpx.RequestError: Nothing answers.
        """
        method = "GET" if post is None else "POST"
        response = await self._connection.client.request(method, url, params=params, json=post)
        self.answered = True
        return response.content if response.status_code == 200 else None

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._connection.aclose()
