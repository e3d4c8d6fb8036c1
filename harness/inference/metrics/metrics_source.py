"""Asks servers what they say about themselves, over connections of its own.

Never in the way of a call, and never an error: a server that does not answer is asked less often,
and what it does not offer is not asked for again.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import httpx

from harness.inference.backend import Backend
from harness.inference.endpoint import Endpoint
from harness.inference.engines.embedded import EmbeddedLlamaCpp
from harness.inference.metrics.server_metrics import Reading, RunTotals, slot_readings
from harness.inference.wire.body import BodyTooLong
from harness.inference.wire.connection import bearer, http_client, root_of
from harness.inference.wire.profiles import PROFILES
from harness.log import log_warning

_TIMEOUT_S = 1.0
_LARGEST_BYTES = 4_000_000
_SHORTEST_RETRY_S = 0.5
_LONGEST_RETRY_S = 5.0
_NOT_OFFERED = {404, 405, 501}

Parser = Callable[[bytes], tuple[Reading, ...]]
Address = Callable[[], AbstractContextManager[str | None]]
"""Gives a server's address, without a path, that holds for as long as the block lasts; None while
there is no server."""


def metrics_source(
    endpoint: Endpoint, backend: Backend, *, api_key: str | None = None
) -> MetricsSource | None:
    """Where the server of an endpoint can be asked; None for a kind that offers nothing.

    Args:
        endpoint: Says what kind of server it is, and where.
        backend: What `connect` has made of it.
        api_key: Sent as a bearer token.

    Raises:
        ConfigurationInvalid: The key cannot stand in an HTTP header.
    """
    if isinstance(backend, EmbeddedLlamaCpp):
        # Only this one is asked for its slots: llama-server wakes for that question from its
        # sleep, and does not tell whether its slots share one context.
        llama_server = PROFILES["llamacpp"].metrics
        assert llama_server is not None
        return MetricsSource(
            backend.address,
            {llama_server.path: llama_server.read, "/slots": slot_readings},
            tag=endpoint.tag,
            pause_s=llama_server.pause_s,
        )
    profile = PROFILES.get(endpoint.backend)
    if endpoint.url is None or profile is None or profile.metrics is None:
        return None
    root = root_of(endpoint.url)
    return MetricsSource(
        lambda: nullcontext(root),
        {profile.metrics.path: profile.metrics.read},
        tag=endpoint.tag,
        pause_s=profile.metrics.pause_s,
        url=endpoint.url,
        api_key=bearer(api_key, endpoint=endpoint.tag),
    )


class MetricsSource:
    """One server, to be asked again and again; not from two tasks at once.

    Args:
        address: The server's, as it is when it is asked.
        paths: What it is asked for, and what reads the answer.
        tag: The endpoint's.
        pause_s: The least pause that this kind of server needs.
        url: Of a server that was there before the run: its totals do not start at 0.
        api_key: Sent as a bearer token, as `bearer` gave it.
    """

    def __init__(
        self,
        address: Address,
        paths: Mapping[str, Parser],
        *,
        tag: str,
        pause_s: float = 0.0,
        url: str | None = None,
        api_key: str | None = None,
    ) -> None:
        self.pause_s = pause_s
        """How long to wait, at the least, between the end of a read and the next."""
        self._usual_pause_s = pause_s
        self._address = address
        self._paths = dict(paths)
        self._tag = tag
        self._known = None if url is None else root_of(url)
        self._totals = RunTotals()
        self._last: tuple[Reading, ...] = ()
        # One limit for the whole of a read is below.
        self._client = http_client(
            url, api_key=api_key, timeout=httpx.Timeout(None), max_reply_bytes=_LARGEST_BYTES
        )

    async def read(self) -> tuple[Reading, ...]:
        """What the server says now, totals counted since the run began.

        Nothing when it does not answer within a second, or has nothing to say. Never raises.
        """
        with self._address() as address:
            if address is None:
                return self._at_rest()
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    answers = [await self._ask(address, path) for path in tuple(self._paths)]
            except (httpx.HTTPError, TimeoutError):
                pause_s = max(_SHORTEST_RETRY_S, self._usual_pause_s, 2 * self.pause_s)
                self.pause_s = min(_LONGEST_RETRY_S, pause_s)
                return ()
        self.pause_s = self._usual_pause_s
        self._last = tuple(itertools.chain.from_iterable(answers))
        fresh, self._known = address != self._known, address
        return self._totals.counted(self._last, fresh=fresh)

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._client.aclose()

    async def _ask(self, address: str, path: str) -> tuple[Reading, ...]:
        try:
            response = await self._client.get(address + path)
            if response.status_code in _NOT_OFFERED:
                del self._paths[path]
                return ()
            return self._paths[path](response.raise_for_status().content)
        except (ValueError, BodyTooLong) as error:
            del self._paths[path]
            log_warning(
                "a server's counters cannot be read",
                code="metrics.unreadable",
                endpoint=self._tag,
                path=path,
                error=str(error),
            )
            return ()

    def _at_rest(self) -> tuple[Reading, ...]:
        """A server that has been shut down runs nothing and holds nothing."""
        self.pause_s = 0.0
        return tuple(replace(r, value=0.0) for r in self._last if not r.total)
