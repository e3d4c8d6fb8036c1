"""Guests of the keep-alive budget: what may go at any moment and come back when there is room.

When a model leaves, the next call to it waits for seconds. When a guest leaves, no call waits: a
search, for example, goes by words alone while its vectors are out.
"""

from __future__ import annotations

from typing import Protocol

from harness.errors import InvalidInput
from harness.inference import to_its_end
from harness.log import log_warning
from harness.residency.ledger import GuestEntry
from harness.trace import Tracer, describe


class Guest(Protocol):
    """Something in memory beside the models, and less urgent.

    It may be used from any thread, and be evicted meanwhile.
    """

    @property
    def name(self) -> str:
        """Unique in the budget; stands in the trace."""
        ...

    @property
    def resident_bytes(self) -> int:
        """What it takes now. 0 from `evict` to `restore`."""
        ...

    @property
    def needed_bytes(self) -> int:
        """What it takes when it is back, with room to grow."""
        ...

    def evict(self, reason: str) -> None:
        """Gives its memory back at once, also while it is used.

        Args:
            reason: For users that must do without it.
        """
        ...

    def restore(self) -> None:
        """Comes back; called in a thread. When it raises, nothing stays in memory."""
        ...


class Guests:
    """The guests of one budget: evicts and restores them, and says so in the trace.

    Args:
        tracer: Sees them go and come back.
    """

    def __init__(self, *, tracer: Tracer) -> None:
        self._tracer = tracer
        self._guests: dict[str, Guest] = {}
        self._out: set[str] = set()
        self._unable: set[str] = set()

    def add(self, guest: Guest) -> None:
        """Admits a guest.

        Raises:
            InvalidInput: Another has its name.
        """
        if guest.name in self._guests:
            raise InvalidInput(
                f"the budget has a guest '{guest.name}' already; dismiss that one first",
                code="budget.guest-name-taken",
            )
        self._guests[guest.name] = guest

    def remove(self, guest: Guest) -> None:
        """Forgets it; one that is out stays out."""
        del self._guests[guest.name]
        self._out.discard(guest.name)
        self._unable.discard(guest.name)

    def entries(self) -> tuple[GuestEntry, ...]:
        """What each of them takes at the moment."""
        return tuple(
            GuestEntry(
                name=name,
                resident_bytes=guest.resident_bytes,
                needed_bytes=guest.needed_bytes,
                is_out=name in self._out,
            )
            for name, guest in self._guests.items()
        )

    def evict(self, name: str, *, reason: str) -> None:
        """Makes it give its memory back at once."""
        guest = self._guests[name]
        freed_bytes = guest.resident_bytes
        guest.evict(reason)
        self._out.add(name)
        self._tracer.instant("evict", guest=name, reason=reason, bytes=freed_bytes)

    def can_return(self, name: str) -> bool:
        """Whether its last return succeeded, or models have moved since."""
        return name not in self._unable

    def models_moved(self) -> None:
        """Guests that could not come back may try again."""
        self._unable.clear()

    async def restore(self, name: str) -> None:
        """Brings it back; one that cannot come stays out."""
        guest = self._guests[name]
        try:
            with self._tracer.span(
                "restore",
                track=f"guest {name}",
                guest=name,
                need_bytes=guest.needed_bytes,
                reason="there is room again",
            ) as span:
                await to_its_end(guest.restore)
                span.set(bytes=guest.resident_bytes)
        except Exception as error:  # noqa: BLE001 - the run goes on without it
            log_warning(
                "a guest could not come back",
                code="budget.guest-not-back",
                guest=name,
                error=describe(error),
            )
            self._unable.add(name)
        else:
            self._out.discard(name)

    def __len__(self) -> int:
        return len(self._guests)
