"""Guests of the keep-alive budget: what may go at any moment and come back when there is room.

A model that leaves makes the next call wait for seconds. A guest that leaves makes nobody wait:
who needs it does without meanwhile, as a search does by words alone while vectors are out.
"""

from __future__ import annotations

from typing import Protocol


class Guest(Protocol):
    """Something in memory beside the models, and less urgent than they are.

    It may be used from any thread, and be evicted in the middle of it.
    """

    @property
    def name(self) -> str:
        """What it is called in the trace; no other guest of the budget has that name."""
        ...

    @property
    def resident_bytes(self) -> int:
        """What it takes now. 0 from `evict` to `restore`."""
        ...

    @property
    def needed_bytes(self) -> int:
        """What it will take when it is back, with its own room to grow."""
        ...

    def evict(self, reason: str) -> None:
        """Gives its memory back, at once: waits for nobody who uses it.

        Args:
            reason: What it can tell those who have to do without.
        """
        ...

    def restore(self) -> None:
        """Comes back; called in a thread. When it raises, nothing stays in memory."""
        ...
