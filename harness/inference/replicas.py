"""Which replica of an endpoint answers a call: pure functions of loads and health.

Calls that begin alike go to one replica, by rendezvous hashing (Thaler and Ravishankar 1998), so
that its prefix cache serves them. No replica takes far more than the others: loads are bounded
(Mirrokni, Thorup and Zadimoghaddam 2018, "Consistent Hashing with Bounded Loads"). A far quicker
one takes calls from a slower one. The gate keeps the loads and acts.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.errors import CallTimeout, HarnessError
from harness.inference.request import ChatRequest, Request
from harness.inference.retry import another_may_answer

LEEWAY = 1.25
"""How many times the mean load a replica takes at most, rounded up: `c` in the paper."""
QUICKER = 1.5
"""How many times as long a replica's calls take if another counts as quicker: calls differ in
length, and so do the means of equal replicas."""
FULL_KV = 0.9
"""The share of its KV cache from which a server is close to putting calls off."""

_PREFIX_CHARS = 2048
"""Of a text that does not say what other calls share: how much of it stands for the prefix."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0

ReplicaReason = Literal["prefix", "load", "failed over"]
"""Why a replica got a call: it is the one for calls that begin alike; that one had too many calls
or no place; that one is left out, or has failed the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """A replica at the moment of a choice."""

    under_way: int = 0
    """Our calls that it has been sent."""
    waiting: int = 0
    """Our calls that wait and would go to it first."""
    has_place: bool = True
    is_out: bool = False
    """Whether it is left out, since it failed."""
    server_waiting: float = 0.0
    """Requests that wait in its server, whoever sent them, as last sampled."""
    kv_share: float = 0.0
    """How much of its KV cache is in use, from 0 to 1, as last sampled."""
    call_s: float | None = None
    """How long its latest calls took; before one has ended, how long the first one takes already.
    None before any."""

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


def most_for_one(loads: Collection[float]) -> int:
    """The bound: what one of so many may have of the sum of these loads."""
    return math.ceil(LEEWAY * sum(loads) / len(loads))


def choice(
    order: Sequence[int],
    states: Sequence[ReplicaState],
    *,
    tried: Collection[int] = (),
    has_waited: bool = False,
) -> tuple[int, ReplicaReason] | None:
    """The replica for a call, and why; None to wait.

    Args:
        order: As `preference` gave it. The call is in the first one's `waiting`.
        states: By place.
        tried: Those that have failed the call.
        has_waited: Whether there was no place for it before.
    """
    untried = [one for one in order if one not in tried] or order
    usable = [one for one in untried if not states[one].is_out] or untried
    home = usable[0]
    calm = [one for one in usable if not _is_pressed(one, usable, states)]
    is_new = int(home != order[0])  # of the load of its home, where it does not wait
    bound = most_for_one([states[one].load + is_new * (one == home) for one in usable])
    stays = home in calm and states[home].load + is_new <= bound
    # While it may wait at home, only one that does nothing, or a quicker one, takes it from there.
    most = 0 if stays else bound - 1
    quick = _quicker(home, calm, states)
    fit = [one for one in calm if one != home and (states[one].load <= most or one in quick)]
    others = [one for one in fit if states[one].has_place]
    if not states[home].has_place and not others:
        return None
    number = home if states[home].has_place and (stays or not others) else others[0]
    quick = _quicker(number, calm, states)
    free = [one for one in quick if has_waited and states[one].has_place]
    # Where it would begin, it may end later than where it has waited.
    if free and _drained_s(quick, usable, states) < (states[number].call_s or 0.0):
        number = free[0]
    return number, "failed over" if is_new else "prefix" if number == home else "load"


def _quicker(one: int, among: Sequence[int], states: Sequence[ReplicaState]) -> list[int]:
    """The replicas that are quicker than this one and have no calls of their own waiting.

    Those whose calls are shorter seem quicker. They take others' calls only when they could idle.
    """
    most_s = (states[one].call_s or 0.0) / QUICKER
    idle = [other for other in among if not states[other].waiting]
    return [other for other in idle if 0.0 < (states[other].call_s or 0.0) <= most_s]


def _drained_s(
    quick: Sequence[int], usable: Sequence[int], states: Sequence[ReplicaState]
) -> float:
    """When these would have answered their calls and all that wait."""
    left = sum(states[o].under_way for o in quick) + sum(states[o].waiting for o in usable)
    return left / sum(max(states[o].under_way, 1) / (states[o].call_s or 1.0) for o in quick)


def _is_pressed(one: int, usable: Sequence[int], states: Sequence[ReplicaState]) -> bool:
    """Whether a server's own queue or KV cache is fuller than the others'."""
    most = most_for_one([states[other].server_waiting for other in usable])
    least_kv = min(states[other].kv_share for other in usable)
    return states[one].server_waiting > most or states[one].kv_share >= FULL_KV > least_kv


def is_replicas_fault(error: HarnessError) -> bool:
    """Whether another replica may do better: a call that used up all its time says nothing."""
    used_up = isinstance(error, CallTimeout) and error.limit == "timeout_s"
    return another_may_answer(error) and not used_up


def pause_s(failures: int) -> float:
    """How long a replica is left out after so many failures in a row."""
    return float(min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** (failures - 1)))
