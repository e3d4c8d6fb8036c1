"""Counters of model servers: their names, Prometheus text, and reading them in a run.

A quantity has the same name for every server.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import isfinite

import httpx2

from harness.errors import InferenceError, ReplyTooLarge
from harness.inference.endpoint import Endpoint
from harness.inference.providers.http import HttpConnection
from harness.log import log_warning

_TIMEOUT_S = 1.0
_LARGEST_BYTES = 4_000_000
_SHORTEST_RETRY_S = 0.5
_LONGEST_RETRY_S = 5.0
_NOT_OFFERED = {404, 405, 501}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A quantity at one moment."""

    name: str
    unit: str  # a `share` lies between 0 and 1
    value: float = 0.0
    is_total: bool = False  # whether it only ever counts up, from the server's start

    def of(self, *samples: float) -> Reading:
        """The same quantity with the value of these samples: their maximum for a share, or sum."""
        return replace(self, value=max(samples) if self.unit == "share" else sum(samples))


Parser = Callable[[bytes], tuple[Reading, ...]]
"""Reads a page of counters; raises ValueError for a page of another kind."""

METRICS: Mapping[str, Reading] = {
    "running": Reading(name="running", unit="requests"),
    "waiting": Reading(name="waiting", unit="requests"),
    "kv_cache": Reading(name="KV cache", unit="share"),
    "preemptions": Reading(name="preempted", unit="requests", is_total=True),
    "prompt": Reading(name="prompt", unit="tokens", is_total=True),
    "cached": Reading(name="cached prompt", unit="tokens", is_total=True),
    "generated": Reading(name="generated", unit="tokens", is_total=True),
    "drafted": Reading(name="drafted", unit="tokens", is_total=True),
    "accepted": Reading(name="accepted drafts", unit="tokens", is_total=True),
    # For servers without totals of drafts: the recent share, over all replies.
    "acceptance": Reading(name="drafts accepted", unit="share"),
}

_SAMPLE = re.compile(
    r"""
    ^ ([a-zA-Z_:][\w:]*)                                            # the name
    (?: [ \t]*\{ (?: [^"}\n] | "(?:[^"\\\n]|\\.)*" )* \} [ \t]*    # labels; anything in quotes
      | [ \t]+ )
    (\S+)                                                          # the value; a time may follow
    """,
    re.MULTILINE | re.VERBOSE,
)
_PROMETHEUS = re.compile(r"\s*(?:\#|[a-zA-Z_:][\w:]*[ \t{]|$)")  # the beginning of such a text


def prometheus(**samples_of: str | tuple[str, ...]) -> Parser:
    """Makes a parser of Prometheus text that skips NaN and infinities.

    `samples_of` maps keys of `METRICS` to one or more names of samples.
    """
    names_by_key = {
        key: (names,) if isinstance(names, str) else names for key, names in samples_of.items()
    }
    wanted = {name for names in names_by_key.values() for name in names}

    def readings(body: bytes) -> tuple[Reading, ...]:
        text = body.decode(errors="replace")
        # Name → its values, one for each set of labels, such as one for each engine.
        values_by_name: dict[str, list[float]] = {}
        for name, value in _SAMPLE.findall(text):
            if name in wanted:
                values_by_name.setdefault(name, []).append(float(value))
        # SGLang has none of its samples before its first call.
        if not values_by_name and not _PROMETHEUS.match(text):
            raise ValueError(f"none of {', '.join(sorted(wanted))} in it")
        page: list[Reading] = []
        for key, names in names_by_key.items():
            values = [value for name in names for value in values_by_name.get(name, ())]
            if finite := [*filter(isfinite, values)]:
                page.append(METRICS[key].of(*finite))
        return tuple(page)

    return readings


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Where a server reports its counters."""

    path: str  # below the server's root
    read: Parser
    switch: str | None = ""  # how to make it report them; see `Switch` of `provider`
    pause_s: float = 0.0  # the least time between the end of a read and the next


class MetricsSource:
    """The counters of one server, read again and again by one task."""

    def __init__(
        self,
        endpoint: Endpoint,
        counters: Counters,
        *,
        api_key: str | None,
        address: Callable[[], str | None] | None = None,
    ) -> None:
        self.pause_s = counters.pause_s
        self._counters = counters
        self._is_offered = True  # False once its page is missing, or of another kind
        bounded = endpoint.model_copy(update={"max_reply_bytes": _LARGEST_BYTES})
        self._connection = HttpConnection(bounded, api_key=api_key)
        # Gives the address of a server that the run starts, None while it does not run.
        self._address = address or (lambda: self._connection.root)
        self._last_address = None if address else self._connection.root
        self._totals = RunTotals()
        self._last: tuple[Reading, ...] = ()

    async def read(self) -> tuple[Reading, ...]:
        """The counters now, with totals since the run began; empty if the server does not answer.

        Never raises.
        """
        if (address := self._address()) is None:
            # A server that has been shut down runs nothing and holds nothing.
            self.pause_s = 0.0
            return tuple(replace(r, value=0.0) for r in self._last if not r.is_total)
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                self._last = await self._ask(address)
        except (httpx2.HTTPError, InferenceError, TimeoutError):
            pause_s = max(_SHORTEST_RETRY_S, self._counters.pause_s, 2 * self.pause_s)
            self.pause_s = min(_LONGEST_RETRY_S, pause_s)
            return ()
        self.pause_s = self._counters.pause_s
        is_new_server = address != self._last_address
        self._last_address = address
        return self._totals.counted(self._last, fresh=is_new_server)

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._connection.client.aclose()

    async def _ask(self, address: str) -> tuple[Reading, ...]:
        """Reads the page; one that is missing or of another kind is not asked for again."""
        if not self._is_offered:
            return ()
        try:
            page = await self._connection.fetch("GET", address + self._counters.path)
            if page.status == 200:
                return self._counters.read(page.body)
            if page.status not in _NOT_OFFERED:
                raise self._connection.refusal(page.body, status=page.status)
        except (ValueError, ReplyTooLarge) as error:
            log_warning(
                "a server's counters cannot be read",
                code="metrics.unreadable",
                endpoint=self._connection.endpoint.tag,
                path=self._counters.path,
                error=str(error),
            )
        self._is_offered = False
        return ()


class RunTotals:
    """Counts totals from the beginning of the run: the server may have run for days before."""

    def __init__(self) -> None:
        self._was_read = False
        self._last_values: dict[str, float] = {}  # name → the server's total at the last read
        self._grown: dict[str, float] = {}  # name → its growth since the run began

    def counted(self, readings: Iterable[Reading], *, fresh: bool) -> tuple[Reading, ...]:
        """The readings, with totals since the run began, and the share of cached prompts.

        `fresh` says whether the server was started since the last readings.
        """
        since_start = [self._since_run_began(reading, fresh=fresh) for reading in readings]
        self._was_read = True
        return (*since_start, *self._cache_hits())

    def _since_run_began(self, reading: Reading, *, fresh: bool) -> Reading:
        if not reading.is_total:
            return reading
        name, value = reading.name, reading.value
        # The first read counts from now. A total that appears later was 0 until then.
        last = self._last_values.get(name, 0.0 if self._was_read else value)
        if fresh or value < last:  # the server was started again
            last = 0.0
        self._last_values[name] = value
        self._grown[name] = self._grown.get(name, 0.0) + value - last
        return replace(reading, value=self._grown[name])

    def _cache_hits(self) -> tuple[Reading, ...]:
        """The cached share of all prompts of the run; empty if the server does not count them."""
        # Of the whole run, since the share is right only when a prompt ends, and not in between:
        # llama.cpp counts cached tokens when a prompt begins, the others as they are computed.
        prompt = self._grown.get(METRICS["prompt"].name)
        cached = self._grown.get(METRICS["cached"].name)
        if not prompt or cached is None:
            return ()
        return (Reading(name="prefix cache hits", unit="share", value=cached / prompt),)
