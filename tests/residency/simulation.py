"""The loads and waits that a list of calls would meet, decided by the policy.

The policy is asked exactly when the budget asks it: a call comes, a call ends, a move is over, or
the time has come that a wait named. One move is under way at a time, and of a load that must make
room only the first eviction is carried out before the policy is asked again. A server answers as
many calls side by side as it has slots; calls granted beyond them wait there. Nothing fails here,
and a model takes what its tenant says.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter
from typing import Final, Literal

from harness.residency.ledger import (
    NOTHING_KNOWN,
    BudgetState,
    Decision,
    Device,
    Forecast,
    Grant,
    Ledger,
    LoadModel,
    Resident,
    Strand,
    Tenant,
    UnloadModel,
    Wait,
    WaitingCall,
    check_fits,
)
from harness.residency.load_policy import decide

Policy = Callable[[BudgetState], Decision]

Known = Literal["full", "arrived", "none"]
"""The jobs that the policy knows: all; those that have arrived, with what comes after them; or only
the calls that wait."""

_UNLOAD_S: Final = 0.1
_DECISIONS_A_JOB: Final = 100
"""A policy that decides more often goes round in circles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A call that will be made."""

    id: str
    model: str
    """Its tag."""
    call_s: float
    """Once it is granted."""
    after: tuple[str, ...] = ()
    """Ids of the jobs that end before it comes."""
    arrives_s: float = 0.0
    """It comes no earlier than this, counted from the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun:
    """How a run went."""

    makespan_s: float
    loads_of: Mapping[str, int]
    """By tag, of the models that were loaded."""
    waits_s: Mapping[str, float]
    """By job, from its coming to its being granted."""
    unfinished: tuple[str, ...]
    """Jobs that the policy let wait for ever; empty as a rule."""
    decisions: int

    @property
    def loads(self) -> int:
        """Of all models together."""
        return sum(self.loads_of.values())

    @property
    def longest_wait_s(self) -> float:
        """Of all calls."""
        return max(self.waits_s.values(), default=0.0)


def simulate(
    jobs: Sequence[Job],
    *,
    devices: Iterable[Device],
    tenants: Iterable[Tenant],
    policy: Policy = decide,
    max_wait_s: float = 60.0,
    forecast: Known = "full",
    resident: Collection[str] = (),
    unload_s: float = _UNLOAD_S,
) -> SimulatedRun:
    """Plays the jobs through. Equal arguments give equal runs.

    Args:
        jobs: The calls; of those that come at one moment, in the order in which they come.
        devices: `machine` is one of them.
        tenants: The models.
        policy: Decides; told no more than the budget would tell it.
        max_wait_s: How long a call may be put off in favor of others.
        forecast: What the policy is told of the jobs.
        resident: Models that are in memory at the start.
        unload_s: What unloading a model takes.

    Raises:
        DoesNotFit: A model has no room, whatever goes.
    """
    world = _World(
        jobs,
        devices={device.name: device for device in devices},
        tenants={tenant.model: tenant for tenant in tenants},
        policy=policy,
        max_wait_s=max_wait_s,
        known=forecast,
        unload_s=unload_s,
    )
    return world.run(resident)


class _World:
    def __init__(
        self,
        jobs: Sequence[Job],
        *,
        devices: Mapping[str, Device],
        tenants: dict[str, Tenant],
        policy: Policy,
        max_wait_s: float,
        known: Known,
        unload_s: float,
    ) -> None:
        for model in dict.fromkeys(job.model for job in jobs):
            check_fits(model, tenants, devices)
        self._jobs = {job.id: job for job in jobs}
        self._devices = devices
        self._tenants = tenants
        self._policy = policy
        self._max_wait_ns = _ns(max_wait_s)
        self._known = known
        self._unload_ns = _ns(unload_s)
        self._chains = _Chains(jobs)
        self._most_decisions = _DECISIONS_A_JOB * (len(jobs) + len(tenants))

        self._now_ns = 0
        self._order = itertools.count()
        self._coming: list[tuple[int, int, Callable[[], None]]] = []
        self._alarm_ns: int | None = None
        self._residents: dict[str, Resident] = {}
        self._moving: Resident | None = None
        self._waiting: dict[int, tuple[WaitingCall, Job]] = {}
        self._granted_ns: dict[str, int] = {}
        self._in_server: defaultdict[str, deque[Job]] = defaultdict(deque)
        self._ids = itertools.count(1)
        self._unmet = {job.id: set(job.after) for job in jobs}
        self._followers: dict[str, list[Job]] = {job.id: [] for job in jobs}
        for job in jobs:
            for before in dict.fromkeys(job.after):
                self._followers[before].append(job)

        self._unfinished = dict.fromkeys(self._jobs)
        self._ended_ns = 0
        self._decisions = 0
        self._loads: Counter[str] = Counter()
        self._waits_s: dict[str, float] = {}

    def run(self, resident: Collection[str]) -> SimulatedRun:
        """Goes on until all has ended, or nothing more will."""
        for model in resident:
            self._residents[model] = Resident(model=model, need=self._tenants[model].need)
        for job in self._jobs.values():
            if not job.after:
                self._expect(job)
        while self._unfinished and self._decisions < self._most_decisions:
            self._consider()
            if not self._go_on():
                break
        return SimulatedRun(
            makespan_s=self._ended_ns / 1e9,
            loads_of=dict(self._loads),
            waits_s=self._waits_s,
            unfinished=tuple(self._unfinished),
            decisions=self._decisions,
        )

    def _go_on(self) -> bool:
        """Lets time pass until something happens; False if nothing ever will."""
        next_ns = self._coming[0][0] if self._coming else None
        if self._alarm_ns is not None and (next_ns is None or self._alarm_ns < next_ns):
            # A wait until a time that is over would make no time pass.
            self._now_ns = max(self._alarm_ns, self._now_ns + 1)
            return True
        if next_ns is None:
            return False
        self._now_ns, _, happen = heapq.heappop(self._coming)
        happen()
        return True

    # --- calls ------------------------------------------------------------------------------------

    def _expect(self, job: Job) -> None:
        self._at(max(_ns(job.arrives_s), self._now_ns), lambda: self._come(job))

    def _come(self, job: Job) -> None:
        call = WaitingCall(id=next(self._ids), model=job.model, since_ns=self._now_ns)
        self._waiting[call.id] = call, job

    def _grant(self, number: int) -> None:
        call, job = self._waiting.pop(number)
        self._waits_s[job.id] = (self._now_ns - call.since_ns) / 1e9
        one = self._residents[job.model]
        self._residents[job.model] = replace(one, leases=one.leases + 1)
        self._granted_ns[job.id] = self._now_ns
        slots = self._tenants[job.model].slots
        if slots is None or one.leases < slots:
            self._begin(job)
        else:
            self._in_server[job.model].append(job)

    def _begin(self, job: Job) -> None:
        self._at(self._now_ns + _ns(job.call_s), lambda: self._end(job))

    def _end(self, job: Job) -> None:
        one, tenant = self._residents[job.model], self._tenants[job.model]
        call_s = (self._now_ns - self._granted_ns[job.id]) / 1e9
        self._residents[job.model] = replace(one, leases=one.leases - 1, idle_since_ns=self._now_ns)
        self._tenants[job.model] = tenant.after_call(call_s)
        if self._in_server[job.model]:
            self._begin(self._in_server[job.model].popleft())
        del self._unfinished[job.id]
        self._ended_ns = self._now_ns
        self._chains.ended(job.id)
        for follower in self._followers[job.id]:
            self._unmet[follower.id].remove(job.id)
            if not self._unmet[follower.id]:
                self._expect(follower)

    # --- moves ------------------------------------------------------------------------------------

    def _bring_in(self, move: LoadModel) -> None:
        assert self._moving is None, "one move at a time"
        self._moving = Resident(model=move.model, need=self._tenants[move.model].need)
        self._loads[move.model] += 1
        ledger = self._ledger()
        for device in ledger.devices:
            assert ledger.free_bytes(device) >= 0, f"'{move.model}' has no room on '{device}'"
        load_ns = _ns(self._tenants[move.model].load_s)
        self._at(self._now_ns + load_ns, self._came)

    def _came(self) -> None:
        assert self._moving is not None
        self._residents[self._moving.model] = replace(
            self._moving, since_ns=self._now_ns, idle_since_ns=self._now_ns
        )
        self._moving = None

    def _take_out(self, model: str) -> None:
        assert self._moving is None, "one move at a time"
        self._moving = self._residents.pop(model)
        assert not self._moving.leases, f"'{model}' is in use"
        self._at(self._now_ns + self._unload_ns, self._went)

    def _went(self) -> None:
        self._moving = None

    # --- decisions --------------------------------------------------------------------------------

    def _consider(self) -> None:
        """Asks the policy until there is nothing to do but wait."""
        while self._decisions < self._most_decisions:
            self._decisions += 1
            match self._policy(self._state()):
                case Grant(calls=calls):
                    for number in calls:
                        self._grant(number)
                case Wait(until_ns=until_ns):
                    self._alarm_ns = until_ns
                    return
                case LoadModel(evict=(victim, *_)):
                    # One; then the policy is asked again: another model may have become idle.
                    self._take_out(victim)
                case LoadModel() as move:
                    self._bring_in(move)
                case UnloadModel(model=model):
                    self._take_out(model)

    def _state(self) -> BudgetState:
        return BudgetState(
            now_ns=self._now_ns,
            ledger=self._ledger(),
            tenants=dict(self._tenants),
            waiting=tuple(call for call, _ in self._waiting.values()),
            forecast=self._forecast(),
            max_wait_ns=self._max_wait_ns,
        )

    def _ledger(self) -> Ledger:
        residents = dict(self._residents)
        return Ledger(devices=self._devices, residents=residents, moving=self._moving)

    def _forecast(self) -> Forecast:
        match self._known:
            case "full":
                return self._chains.forecast()
            case "arrived":
                return self._chains.forecast_at(self._now_ns / 1e9)
            case "none":
                return NOTHING_KNOWN

    def _at(self, at_ns: int, happen: Callable[[], None]) -> None:
        heapq.heappush(self._coming, (at_ns, next(self._order), happen))


# --- what the policy is told ----------------------------------------------------------------------


class _Chains:
    """Jobs folded into strands: one after another where nothing branches off between them."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._head: dict[str, str] = {}
        self._left: dict[str, list[Job]] = {}
        self._after: dict[str, frozenset[str]] = {}
        self._strands: dict[str, Strand] = {}
        by_id = {job.id: job for job in jobs}
        followers = Counter(before for job in jobs for before in job.after)
        for id_ in TopologicalSorter({job.id: job.after for job in jobs}).static_order():
            job = by_id[id_]
            head = self._continued(job, followers) or id_
            self._head[id_] = head
            self._left.setdefault(head, []).append(job)
            if head == id_:
                self._after[id_] = frozenset(self._head[before] for before in job.after)
        for head in self._left:
            self._fold(head)

    def ended(self, id_: str) -> None:
        """A job is no longer expected."""
        head = self._head[id_]
        self._left[head] = [job for job in self._left[head] if job.id != id_]
        self._fold(head)

    def forecast(self) -> Forecast:
        """All that has not ended; nothing else will come."""
        return Forecast(strands=tuple(self._strands.values()), is_complete=True)

    def forecast_at(self, now_s: float) -> Forecast:
        """What has arrived and not ended; a job has not arrived before those it comes after."""
        known: dict[str, Strand] = {}
        for head, strand in self._strands.items():  # each after its predecessors
            unended = self._after[head] & self._strands.keys()
            if self._left[head][0].arrives_s <= now_s and unended <= known.keys():
                known[head] = strand
        return Forecast(strands=tuple(known.values()))

    def _continued(self, job: Job, followers: Counter[str]) -> str | None:
        """The head of the chain that a job goes on, if it alone follows there."""
        if len(job.after) != 1 or followers[job.after[0]] != 1:
            return None
        head = self._head[job.after[0]]
        return head if job.arrives_s <= self._left[head][0].arrives_s else None

    def _fold(self, head: str) -> None:
        left = self._left[head]
        if left:
            self._strands[head] = Strand(
                name=head, uses=_stretches(job.model for job in left), after=self._after[head]
            )
        else:
            self._strands.pop(head, None)


def _stretches(models: Iterable[str]) -> tuple[str, ...]:
    """Each stretch of one model once."""
    return tuple(model for model, _ in itertools.groupby(models))


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
