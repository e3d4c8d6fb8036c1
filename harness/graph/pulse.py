"""When a call last showed a sign of life, and which of its time does not count."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Literal

Doing = Literal["rest", "call", "sent"]
"""`rest`: it waits as it is meant to, and so shows no sign of life. `call`: it asks a model, and
rests, as in a queue of ours, until a request is with a server: `sent`."""


class Pulse:
    """Of one call of a node. What is told to it is told to those that it is nested in as well.

    Args:
        around: That of the call that it is nested in.
    """

    def __init__(self, around: Pulse | None = None) -> None:
        self._around = around
        # A plain function beats from its thread, where no loop is running.
        self._now_s = asyncio.get_running_loop().time
        self._beat_s = self._now_s()
        # How many of each are under way.
        self._now: Counter[Doing] = Counter()
        self._asks = 0
        self._asked_from_s = 0.0
        self._asked_s = 0.0

    def beat(self) -> None:
        """A sign of life."""
        self._beat_s = self._now_s()
        if self._around is not None:
            self._around.beat()

    @contextmanager
    def doing(self, what: Doing) -> Iterator[None]:
        """While it does that; see `Doing`."""
        self._now[what] += 1
        self._beat_s = self._now_s()
        try:
            with nullcontext() if self._around is None else self._around.doing(what):
                yield
        finally:
            self._now[what] -= 1
            self._beat_s = self._now_s()

    @contextmanager
    def ask(self) -> Iterator[None]:
        """While it waits for a person: that is not its own time."""
        if not self._asks:
            self._asked_from_s = self._now_s()
        self._asks += 1
        try:
            with nullcontext() if self._around is None else self._around.ask():
                yield
        finally:
            self._asks -= 1
            self._beat_s = self._now_s()
            if not self._asks:
                self._asked_s += self._beat_s - self._asked_from_s

    @property
    def alive_s(self) -> float:
        """When nothing was wrong with it at the latest, by the loop's clock."""
        now = self._now
        waits = self._asks or now["rest"] or (now["call"] and not now["sent"])
        return self._now_s() if waits else self._beat_s

    @property
    def is_asking(self) -> bool:
        """Whether it waits for a person."""
        return self._asks > 0

    @property
    def asked_s(self) -> float:
        """How long it has waited for a person, in seconds."""
        return self._asked_s + (self._now_s() - self._asked_from_s if self._asks else 0.0)
