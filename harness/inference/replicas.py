"""Which replica of an endpoint answers a call: pure functions of loads and health.

Calls that begin alike go to one replica, by rendezvous hashing (Thaler and Ravishankar 1998), so
that its prefix cache serves them. No replica takes far more than the others: loads are bounded
(Mirrokni, Thorup and Zadimoghaddam 2018, "Consistent Hashing with Bounded Loads"). The gate keeps
the loads and acts. How quick or full the servers are is a router's business.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.inference.request import ChatRequest, Request

LEEWAY = 1.25
"""How many times the mean load a replica takes at most, rounded up: `c` in the paper."""

_PREFIX_CHARS = 2048
"""Of a text that does not say what other calls share: how much of it stands for the prefix."""

ReplicaReason = Literal["prefix", "load", "failed over"]
"""Why a replica got a call: it is the one for calls that begin alike; that one had too many calls
or no place; that one is left out, or has failed the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """A replica at the moment of a choice."""

    under_way: int = 0
    waiting: int = 0
    """Our calls that wait and would go to it first."""
    has_place: bool = True
    is_out: bool = False
    """Whether it is left out, since it failed."""
    is_down: bool = False
    """Whether it gets no call at all now: it did not answer, and is not to be tried again yet."""

    @property
    def load(self) -> int:
        """Our calls, sent or not."""
        return self.under_way + self.waiting


def stable_prefix(request: Request) -> str:
    """The beginning that a call shares with those that should be answered by the same replica.

    It ends where the first message says that other calls differ (`Message.shared_chars`): an
    evaluator's rubric and sources are in it, the draft is not. Else it is the system prompt and
    the first 2,048 characters of what follows, which stay the same while a conversation grows.
    """
    if not isinstance(request, ChatRequest):
        return request.texts[0][:_PREFIX_CHARS]
    parts = []
    for message in request.messages:
        if message.shared_chars:
            parts.append(message.content[: message.shared_chars[0]])
            break
        if message.role != "system":
            parts.append(message.content[:_PREFIX_CHARS])
            break
        parts.append(message.content)
    return "\n".join(parts)


def preference(prefix: str, names: Sequence[str]) -> tuple[int, ...]:
    """The replicas by their places in `names`, the one for this prefix first.

    One more name moves only those prefixes that come to it.
    """
    digest = hashlib.sha256(prefix.encode("utf-8", "replace")).digest()
    weights = [hashlib.sha256(digest + name.encode()).digest() for name in names]
    return tuple(sorted(range(len(names)), key=lambda one: weights[one], reverse=True))


def most_for_one(loads: Collection[int]) -> int:
    """The bound: what one of so many may have of the sum of these loads."""
    return math.ceil(LEEWAY * sum(loads) / len(loads))


def choice(
    order: Sequence[int], states: Sequence[ReplicaState], *, tried: Collection[int] = ()
) -> tuple[int, ReplicaReason] | None:
    """The replica for a call, and why; None to wait.

    Args:
        order: As `preference` gave it. The call is in the first one's `waiting`.
        states: By place.
        tried: Those that have failed the call.
    """
    up = [number for number in order if not states[number].is_down]
    if not up:
        return None
    untried = [number for number in up if number not in tried] or up
    usable = [one for one in untried if not states[one].is_out] or untried
    home = usable[0]
    is_new = int(home != order[0])  # of the load of its home, where it does not wait
    bound = most_for_one([states[one].load + is_new * (one == home) for one in usable])
    stays = states[home].load + is_new <= bound
    # While it may wait at home, only one that does nothing takes it from there.
    most = 0 if stays else bound - 1
    spare = [one for one in usable[1:] if states[one].has_place and states[one].load <= most]
    if states[home].has_place and (stays or not spare):
        return home, "failed over" if is_new else "prefix"
    if not spare:
        return None
    return spare[0], "failed over" if is_new else "load"
