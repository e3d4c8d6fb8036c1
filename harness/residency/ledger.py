"""The policy's input (models in memory, waiting calls, forecast) and its possible decisions.

A forecast may be wrong: an expected use that does not come costs another model some seconds in
memory, and an unexpected use costs an unprepared load.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from harness.errors import DoesNotFit
from harness.hardware import format_bytes
from harness.inference import MACHINE

Need = Mapping[str, int]
"""Bytes by device."""

# The share of the longest call's length that still counts after another call.
_FORGETTING = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Memory that models share."""

    name: str  # `machine`, `gpu0`, …
    capacity_bytes: int  # bytes that the budget may use, including the reserve
    reserve_bytes: int = 0  # kept free for memory that is not counted

    @property
    def room_bytes(self) -> int:
        """Bytes that all models together may take: the capacity less the reserve."""
        return self.capacity_bytes - self.reserve_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A model of the budget, resident or not, with its known facts."""

    model: str
    need: Need  # the bytes of weights, KV cache and compute buffers
    load_s: float = 1.0  # measured, or else expected
    call_s: float = 0.0  # seconds of a call, a high estimate; 0 while unknown
    is_split: bool = False  # whether several devices compute it; the slowest sets its speed
    slots: int | None = None  # calls that it answers at once; None for any number
    load_timeout_s: float = 600.0  # the timeout of loading, and of unloading
    pin: bool = False  # whether it is loaded at the start and stays
    priority: int = 0
    """A model with a higher priority is loaded before others, and evicted after them."""

    @property
    def need_bytes(self) -> int:
        """The bytes that it takes, on all devices together."""
        return sum(self.need.values())

    def after_call(self, call_s: float) -> Tenant:
        """The tenant after a call: `call_s` is the longest one, slowly forgotten."""
        return replace(self, call_s=max(call_s, _FORGETTING * self.call_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """A model that is in memory."""

    model: str
    need: Need
    leases: int = 0  # calls that use it now
    since_ns: int = 0
    idle_since_ns: int = 0
    """When its last call ended, or its load if there was no call; meaningless with leases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The models that the budget holds in memory."""

    devices: Mapping[str, Device]  # name → device; `machine` is always among them
    residents: Mapping[str, Resident] = field(default_factory=dict)  # tag → model
    moving: Resident | None = None  # the model on its way in or out; its bytes are taken

    def taken_bytes(self, device: str) -> int:
        """Bytes of the models there, including the moving one."""
        occupants = [*self.residents.values(), *([self.moving] if self.moving else [])]
        return sum(occupant.need.get(device, 0) for occupant in occupants)

    def free_bytes(self, device: str) -> int:
        """Below 0 if too much is taken."""
        return self.devices[device].room_bytes - self.taken_bytes(device)

    def has_room(self, need: Need, *, evicted: Iterable[str] = ()) -> bool:
        """Whether a model with this need fits once these residents are evicted."""
        freed = [self.residents[model].need for model in evicted]
        return all(
            size <= self.free_bytes(device) + sum(other.get(device, 0) for other in freed)
            for device, size in need.items()
        )


# --- forecast, waiting calls and decisions --------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Strand:
    """Models that are used one after another, such as by one call of a node."""

    name: str  # unique in the forecast
    uses: tuple[str, ...]
    """Tags, the present or next one first. Calls of one model in a row count as one use."""
    after: frozenset[str] = frozenset()
    """Names of the strands that must end before this one begins. A strand that is not in the
    forecast has ended."""

    def of_run(self, run: str) -> Strand:
        """The strand with names that are unique among several runs."""
        after = frozenset(f"{run} {name}" for name in self.after)
        return replace(self, name=f"{run} {self.name}", after=after)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The expected uses."""

    strands: tuple[Strand, ...] = ()
    """They run in parallel, except for `after`; their order means nothing."""
    is_complete: bool = False
    """Whether no other model will be called, so that others can be unloaded."""

    @property
    def models(self) -> frozenset[str]:
        """The models that are still to be called."""
        return frozenset(itertools.chain.from_iterable(strand.uses for strand in self.strands))

    def expects(self, model: str) -> bool:
        """Whether the model is still to be called."""
        # Not by `models`, which makes a set of all: this is asked at each call.
        return any(model in strand.uses for strand in self.strands)


NOTHING_KNOWN = Forecast()


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingCall:
    """A call that has not been granted its model."""

    id: int  # unique in the budget; later calls have higher ones
    model: str
    since_ns: int
    node: tuple[str, str] | None = None  # the run and the node that make it


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetState:
    """All that a decision depends on: equal states make equal decisions."""

    now_ns: int
    ledger: Ledger
    tenants: Mapping[str, Tenant]  # tag → model
    waiting: tuple[WaitingCall, ...] = ()  # the oldest first
    forecast: Forecast = NOTHING_KNOWN  # may include some of the waiting calls, or none
    max_wait_ns: int = 60_000_000_000  # how long a call may be put off in favor of others
    failed: frozenset[str] = frozenset()
    """Models whose last load or unload failed. They are moved only for a call."""

    @property
    def is_crowded(self) -> bool:
        """Whether models must take turns: there is no room for all at once."""
        return any(
            sum(tenant.need.get(name, 0) for tenant in self.tenants.values()) > device.room_bytes
            for name, device in self.ledger.devices.items()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """These calls may begin."""

    calls: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadModel:
    """Load a model, after others were evicted."""

    model: str
    evict: tuple[str, ...] = ()  # the models to evict first, which are idle
    reason: str
    is_prefetch: bool = False  # whether no call waits for it yet


@dataclass(frozen=True, slots=True, kw_only=True)
class UnloadModel:
    """Unload a model, without another to load."""

    model: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Wait for a change, or until this time."""

    until_ns: int | None = None  # None if only a change matters


Decision = Grant | LoadModel | UnloadModel | Wait


# --- which models can ever fit, and where ---------------------------------------------------------


def check_fits(model: str, tenants: Mapping[str, Tenant], devices: Mapping[str, Device]) -> None:
    """Raises `DoesNotFit`, which shows the arithmetic, if a model never fits beside pinned ones."""
    tenant = tenants[model]
    for name, need_bytes in tenant.need.items():
        device = devices[name]
        pinned = {
            other.model: other.need[name]
            for other in tenants.values()
            if other.pin and other.model != model and name in other.need
        }
        room_bytes = device.room_bytes - sum(pinned.values())
        if need_bytes <= room_bytes:
            continue
        parts = [format_bytes(device.capacity_bytes)]
        if device.reserve_bytes:
            parts.append(f"less {format_bytes(device.reserve_bytes)} in reserve")
        parts += [f"less {format_bytes(size)} of pinned '{m}'" for m, size in pinned.items()]
        leaves = f", which leaves {format_bytes(max(room_bytes, 0))}" if len(parts) > 1 else ""
        raise DoesNotFit(
            f"model '{model}' needs {format_bytes(need_bytes)}, and the whole budget of '{name}' "
            f"is {' '.join(parts)}{leaves}; {_remedy(device, pinned)}",
            model=model,
            need_bytes=need_bytes,
            capacity_bytes=device.capacity_bytes,
        )


def _remedy(device: Device, pinned: Collection[str]) -> str:
    """What a person can change so that a model fits on a device."""
    remedies = ["lower its context_tokens or slots", "use a smaller quantization"]
    if pinned:
        remedies.append("leave out a pin")
    if device.reserve_bytes:
        remedies.append("lower the reserve")
    table = "[budget]" if device.name == MACHINE else f"[budget.devices.{device.name}]"
    return f"{', '.join(remedies)}, or raise capacity under {table}"


def place(
    models: Mapping[str, Callable[[str], Need]],
    devices: Mapping[str, Device],
    *,
    needs_taken: Iterable[Need],
) -> dict[str, str]:
    """Model → its device: in turn, the GPU with the most free bytes if it fits, else `machine`.

    `models` has for each model a function from a device to the need there.
    """
    taken = [*needs_taken]
    free_bytes = {
        name: device.room_bytes - sum(need.get(name, 0) for need in taken)
        for name, device in devices.items()
    }
    # On a GPU, all its models stay side by side; in the machine's memory they take turns.
    free_bytes[MACHINE] = devices[MACHINE].room_bytes
    # Sorted by name, since the first of GPUs with equal room wins, and a set's order may change.
    gpus = sorted(devices.keys() - {MACHINE})
    places: dict[str, str] = {}
    for model, need_on in models.items():
        places[model] = MACHINE
        for gpu in sorted(gpus, key=lambda name: free_bytes[name], reverse=True):
            need = need_on(gpu)
            if all(size <= free_bytes[device] for device, size in need.items()):
                free_bytes[gpu] -= need.get(gpu, 0)
                places[model] = gpu
                break
    return places
