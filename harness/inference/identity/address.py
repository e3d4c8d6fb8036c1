"""Which server an address leads to, however it is written."""

from __future__ import annotations

import httpx

_THIS_MACHINE = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})  # noqa: S104 - not bound to
"""The last is what many servers print when they listen on every address."""
_OWN_PORT = {"http": 80, "https": 443}


def server_address(url: str) -> str:
    """The same text for every spelling of one server's address.

    Scheme and host are written small, this machine has one name, and what goes without saying is
    left out: the scheme's own port, and the path below which a server speaks OpenAI's protocol.
    """
    address = httpx.URL(url)  # it writes scheme and host small
    host = "localhost" if address.host in _THIS_MACHINE else address.host
    port = "" if address.port in (None, _OWN_PORT.get(address.scheme)) else f":{address.port}"
    path = address.path.rstrip("/").removesuffix("/v1").rstrip("/")
    query = f"?{address.query.decode()}" if address.query else ""
    return f"{address.scheme}://{host}{port}{path}{query}"
