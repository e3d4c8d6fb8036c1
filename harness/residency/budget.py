"""The keep-alive budget: models come into memory when used and leave when room is needed."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

from harness.residency.ledger import Grant, Ledger, Load, Resident, Wait, admit
from harness.trace import Span, Tracer


class Host(Protocol):
    """Something that can bring a model into memory and take it out again."""

    async def load(self) -> None:
        """Makes the model resident; when it raises or is cancelled, nothing stays in memory."""
        ...

    async def unload(self) -> None:
        """Gives its memory back, even when it raises or is cancelled."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A model that the budget decides about."""

    host: Host
    """Loads and unloads it."""
    need_bytes: int
    """What it takes while resident."""


class KeepAliveBudget:
    """Lends models to calls and sees to it that what is resident fits.

    Args:
        capacity_bytes: All that models may take together.
        tenants: By tag.
        tracer: Sees loads, evictions and waits.
    """

    def __init__(
        self, *, capacity_bytes: int, tenants: Mapping[str, Tenant], tracer: Tracer
    ) -> None:
        self._ledger = Ledger(capacity_bytes=capacity_bytes)
        self._tenants = dict(tenants)
        self._tracer = tracer
        self._uses = itertools.count(1)
        # Held while models come and go: one at a time. The end of a call never waits for it, nor,
        # unless another call waits for room, does a call to a resident model.
        self._moving = asyncio.Lock()
        self._lease_ended = asyncio.Event()
        # Then all others queue behind it: calls that overlap would else keep their model in memory,
        # and the one that waits out of it, for ever.
        self._waits_for_room = False

    @property
    def ledger(self) -> Ledger:
        """What is resident at the moment."""
        return self._ledger

    @asynccontextmanager
    async def lease(self, model: str) -> AsyncIterator[None]:
        """Keeps a model resident inside the block, loading it first if need be.

        Whoever holds a lease must not ask for another: it could wait for itself.

        Raises:
            DoesNotFit: It is larger than the whole budget.
            ModelFileInvalid: It cannot be loaded.
        """
        if self._ledger.find(model) is None or self._waits_for_room:
            moving = self._moving.locked()
            with self._queue("another model is on the move") if moving else nullcontext():
                await self._moving.acquire()
            try:
                await self._make_resident(model)
                self._count_use(model, leases=+1)
            finally:
                self._waits_for_room = False
                self._moving.release()
        else:
            self._count_use(model, leases=+1)
        try:
            yield
        finally:
            self._count_use(model, leases=-1)
            self._lease_ended.set()

    async def aclose(self) -> None:
        """Unloads everything, even when an unload fails; no lease may be held."""
        async with AsyncExitStack() as stack:
            for resident in self._ledger.residents:
                stack.push_async_callback(self._unload, resident.model, reason="end of run")

    async def _make_resident(self, model: str) -> None:
        need_bytes = self._tenants[model].need_bytes
        while True:
            match admit(self._ledger, model, need_bytes):
                case Grant():
                    return
                case Load(evict=()):
                    await self._load(model, need_bytes)
                    return
                case Load(evict=(idle, *_)):
                    # One, then decide again: while it goes, a call may take up the next.
                    await self._unload(idle, reason=f"room for {model}")
                case Wait():
                    self._waits_for_room = True
                    with self._queue("no room until a call ends"):
                        self._lease_ended.clear()
                        await self._lease_ended.wait()

    async def _load(self, model: str, need_bytes: int) -> None:
        with self._tracer.span("load", model=model, need_bytes=need_bytes, source="measured"):
            await self._tenants[model].host.load()
        self._ledger = self._ledger.with_resident(
            Resident(model=model, need_bytes=need_bytes, leases=0, last_used=0)
        )
        self._report()

    async def _unload(self, model: str, *, reason: str) -> None:
        # Out of the ledger first, so that no new call is let in while it goes.
        self._ledger = self._ledger.without(model)
        with self._tracer.span("unload", track=f"model {model}", model=model, reason=reason):
            self._tracer.instant("evict", model=model, reason=reason)
            await self._tenants[model].host.unload()
        self._report()

    def _count_use(self, model: str, *, leases: int) -> None:
        resident = self._ledger.find(model)
        assert resident is not None, "a leased model is never evicted"
        self._ledger = self._ledger.with_resident(
            replace(resident, leases=resident.leases + leases, last_used=next(self._uses))
        )

    def _queue(self, reason: str) -> Span:
        return self._tracer.span("queue", source="measured", reason=reason)

    def _report(self) -> None:
        self._tracer.counter(
            "resident",
            self._ledger.resident_bytes,
            unit="bytes",
            track="server keep-alive budget",
        )
