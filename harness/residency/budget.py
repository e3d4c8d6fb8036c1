"""The keep-alive budget: models come into memory when used and leave when room is needed."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

from harness.hardware import format_bytes
from harness.residency.guest import Guest
from harness.residency.guests import Guests
from harness.residency.ledger import (
    Grant,
    Ledger,
    Load,
    Resident,
    Wait,
    admit,
    outgrown,
    returning,
)
from harness.trace import Span, Tracer

_A_MODEL, _A_GUEST = "another model", "a guest"


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

    It may have guests beside the models, which give way to them. Guests grow by themselves: what
    they take is asked again whenever a call begins, and one that has outgrown the budget goes then.
    A guest that is out comes back inside of `opened`, when models or guests have left it room.

    Args:
        capacity_bytes: All that models and guests may take together.
        tenants: By tag.
        tracer: Sees loads, evictions and waits.
    """

    def __init__(
        self, *, capacity_bytes: int, tenants: Mapping[str, Tenant], tracer: Tracer
    ) -> None:
        self._models = Ledger(capacity_bytes=capacity_bytes)
        self._tenants = dict(tenants)
        self._guests = Guests(tracer=tracer)
        self._tracer = tracer
        self._uses = itertools.count(1)
        # Held while models come and go, or a guest comes back: one at a time. The end of a call
        # never waits for it, nor, unless another call waits for room, does a call to a resident
        # model.
        self._moving = asyncio.Lock()
        self._what_moves = _A_MODEL
        self._lease_ended = asyncio.Event()
        # Then all others queue behind it: calls that overlap would else keep their model in memory,
        # and the one that waits out of it, for ever.
        self._waits_for_room = False
        # Set when there may be room for a guest that is out.
        self._room_was_made = asyncio.Event()

    @property
    def ledger(self) -> Ledger:
        """What is resident at the moment."""
        return replace(self._models, guests=self._guests.entries())

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Brings guests back while the block runs, and closes the budget at its end."""
        group = asyncio.TaskGroup()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.aclose)
            # Not `async with group`: what goes wrong in the block would leave it in an exception
            # group.
            await group.__aenter__()
            stack.push_async_callback(group.__aexit__, None, None, None)
            stack.callback(group.create_task(self._bring_guests_back()).cancel)
            yield

    def admit_guest(self, guest: Guest) -> None:
        """Counts a guest in; without room for it, it goes at once.

        Raises:
            InvalidInput: Another guest has its name.
        """
        self._guests.add(guest)
        self.recount_guests()

    def recount_guests(self) -> None:
        """Looks what they take now: worthwhile when one has grown or shrunk, and no call begins."""
        self._evict_the_outgrown()
        self._room_was_made.set()
        self._report()

    async def dismiss_guest(self, guest: Guest) -> None:
        """Counts it no more; one that is out stays out. Afterwards nobody brings it back."""
        async with self._moving:
            self._guests.remove(guest)
        self.recount_guests()

    @asynccontextmanager
    async def lease(self, model: str) -> AsyncIterator[None]:
        """Keeps a model resident inside the block, loading it first if need be.

        Whoever holds a lease must not ask for another: it could wait for itself.

        Raises:
            DoesNotFit: It is larger than the whole budget.
            ModelFileInvalid: It cannot be loaded.
        """
        if self._models.find(model) is None or self._waits_for_room:
            moving = self._moving.locked()
            with self._queue(f"{self._what_moves} is on the move") if moving else nullcontext():
                await self._moving.acquire()
            try:
                await self._make_resident(model)
                self._count_use(model, leases=+1)
            finally:
                self._waits_for_room = False
                self._room_was_made.set()
                self._moving.release()
        else:
            self._count_use(model, leases=+1)
        try:
            self._evict_the_outgrown()
            yield
        finally:
            self._count_use(model, leases=-1)
            self._lease_ended.set()

    async def aclose(self) -> None:
        """Unloads every model, even when an unload fails; no lease may be held."""
        async with AsyncExitStack() as stack:
            for resident in self._models.residents:
                stack.push_async_callback(self._unload, resident.model, reason="end of run")

    async def _make_resident(self, model: str) -> None:
        need_bytes = self._tenants[model].need_bytes
        while True:
            match admit(self.ledger, model, need_bytes):
                case Grant():
                    return
                case Load(evict=(), guests=()):
                    await self._load(model, need_bytes)
                    return
                case Load(guests=(guest, *_)):
                    self._evict_guest(guest, reason=f"room for {model}")
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
        self._models = self._models.with_resident(
            Resident(model=model, need_bytes=need_bytes, leases=0, last_used=0)
        )
        self._report()

    async def _unload(self, model: str, *, reason: str) -> None:
        # Out of the ledger first, so that no new call is let in while it goes.
        self._models = self._models.without(model)
        with self._tracer.span("unload", track=f"model {model}", model=model, reason=reason):
            self._tracer.instant("evict", model=model, reason=reason)
            await self._tenants[model].host.unload()
        self._report()

    def _evict_the_outgrown(self) -> None:
        if self._guests:
            room = format_bytes(self._models.capacity_bytes - self._models.model_bytes)
            for guest in outgrown(self.ledger):
                self._evict_guest(guest, reason=f"the models leave only {room}")

    def _evict_guest(self, guest: str, *, reason: str) -> None:
        self._guests.evict(guest, reason=reason)
        self._report()

    async def _bring_guests_back(self) -> None:
        while True:
            await self._room_was_made.wait()
            async with self._moving:
                self._room_was_made.clear()
                self._what_moves = _A_GUEST
                for guest in returning(self.ledger):
                    await self._guests.restore(guest)
                    self._evict_the_outgrown()
                    self._report()
                self._what_moves = _A_MODEL

    def _count_use(self, model: str, *, leases: int) -> None:
        resident = self._models.find(model)
        assert resident is not None, "a leased model is never evicted"
        self._models = self._models.with_resident(
            replace(resident, leases=resident.leases + leases, last_used=next(self._uses))
        )

    def _queue(self, reason: str) -> Span:
        return self._tracer.span("queue", source="measured", reason=reason)

    def _report(self) -> None:
        self._tracer.counter(
            "resident",
            self.ledger.resident_bytes,
            unit="bytes",
            track="server keep-alive budget",
        )
