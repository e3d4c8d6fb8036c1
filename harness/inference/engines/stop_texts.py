"""Texts that end a reply, found in it while it arrives."""

from __future__ import annotations

from collections.abc import Sequence


class StopTexts:
    """A text that ends before the first of some texts in it, however it is cut into pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.found = False

    def feed(self, piece: str) -> str:
        """What the piece adds to the text, less what may be the start of a stop."""
        held = self._held + piece
        found = [at for stop in self._stops if (at := held.find(stop)) >= 0]
        self.found = bool(found)
        if found:
            self._held = ""
            return held[: min(found)]
        starts = (
            at for at in range(len(held)) if any(s.startswith(held[at:]) for s in self._stops)
        )
        told = next(starts, len(held))
        self._held = held[told:]
        return held[:told]

    def rest(self) -> str:
        """What is still held back, once nothing follows."""
        return self._held
