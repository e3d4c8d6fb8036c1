"""What all parts of one run of a graph share, nested graphs included."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from harness.graph.earlier import Earlier
from harness.graph.executor import Executor
from harness.graph.outcome import NodeFailure, NodeSkip, Question, Rerun
from harness.graph.places import Places
from harness.trace import Tracer

if TYPE_CHECKING:
    from harness.graph.node_call import NodeCall

Answers = Mapping[tuple[str, str], object]
"""What was answered, by the key and the text of the question."""

Asker = Callable[[Question], Awaitable[object | None]]
"""Asks a person at once; None when nobody is there."""

GRACE_S = 1.0
"""How long a call that was cancelled may take to end before it is left behind, in seconds."""


class OutputCache(Protocol):
    """Outputs of nodes over many runs."""

    async def find(self, key: str, *, max_age_s: float | None) -> bytes | None:
        """The output of this key, as JSON, if there is one that is not too old."""
        ...

    def keep(self, key: str, value: bytes) -> None:
        """Stores an output, soon."""
        ...


class Watcher(Protocol):
    """Told how far a run is, of the graph itself and not of what is nested in its nodes."""

    def begins(self, node: str, item: int | None) -> None:
        """A call is made: of an item, or of a node that is not mapped."""
        ...

    def ends(self, node: str, item: int | None) -> None:
        """An item has an outcome, or a node as a whole, whether it was called or not."""
        ...

    def counts(self, node: str, total: int) -> None:
        """It has turned out how many items a mapped node has."""
        ...


@dataclass(slots=True, kw_only=True)
class Log:
    """What is to be said of a run when it is over; grows on the way."""

    skips: list[NodeSkip] = field(default_factory=list)
    """What was left out."""
    failed_inside: list[NodeFailure] = field(default_factory=list)
    """What failed in nested graphs, whatever became of their callers."""
    reused: dict[str, None] = field(default_factory=dict)
    """Whose outputs earlier parts of the run had, or a cache; as keys: each once."""
    reruns: dict[Rerun, None] = field(default_factory=dict)
    """What was made again, and why; as keys."""
    renamed: dict[str, str] = field(default_factory=dict)
    """Those of the reused that had another label in the earlier parts, with that."""
    codes: set[str] = field(default_factory=set)
    """The digests of code whose parts stand in the journal."""
    left_behind: set[asyncio.Task[object]] = field(default_factory=set)
    """Calls that did not end when they were cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Surroundings of every call."""

    run_of: Callable[[NodeCall], object]
    """Makes what a node that takes a `run` receives."""
    tracer: Tracer
    """Sees every call, and its output."""
    executor: Executor
    """Makes the calls."""
    places: Places
    """How many calls may be under way in all."""
    earlier: Earlier | None
    """What earlier parts of the run gave; None in its first part."""
    cache: OutputCache | None
    """What earlier runs gave."""
    answers: dict[tuple[str, str], object]
    """What people answered so far, as `Answers`; grows."""
    asker: Asker | None
    """Reaches a person at once."""
    log: Log = field(default_factory=Log)
    """What is to be said at the end."""
