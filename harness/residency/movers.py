"""What brings models into memory and takes them out: one move at a time, each to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from harness.errors import LoadFailed
from harness.inference import MACHINE
from harness.log import log_warning
from harness.residency.guests import Guests
from harness.residency.ledger import Need, Resident
from harness.residency.residents import Residents
from harness.residency.state import Load, State, Unload
from harness.trace import Tracer, describe

_BEFORE_A_PREFETCH_S = 0.05

NOTHING_REFUSED: Mapping[str, Exception] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """A guest is to come back."""

    guest: str
    """Which."""


Move = Load | Unload | Restore


class Movers:
    """Performs what was decided, and says in the trace what it does and why.

    Args:
        residents: The models.
        guests: The guests.
        tracer: Sees every move.
        load_began: Told of which model a load has begun.
        settled: Told when a move is over, and by tag why models will not come.
    """

    def __init__(
        self,
        residents: Residents,
        *,
        guests: Guests,
        tracer: Tracer,
        load_began: Callable[[str], None],
        settled: Callable[[Mapping[str, Exception]], None],
    ) -> None:
        self._residents = residents
        self._guests = guests
        self._tracer = tracer
        self._load_began = load_began
        self._settled = settled
        self._move: Move | None = None
        self._free: Need = {}
        self._begun = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._load: tuple[str, int] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a move is under way."""
        return self._move is not None

    def load_of(self, model: str) -> int | None:
        """The span of a model's load, while it is being loaded."""
        return self._load[1] if self._load is not None and self._load[0] == model else None

    async def no_guest_returns(self) -> None:
        """Returns when no guest is on its way back."""
        while isinstance(self._move, Restore):
            await self._idle.wait()

    def begin(self, move: Move, state: State) -> None:
        """Sets out on a move; none may be under way."""
        assert self._move is None, "one move at a time"
        self._move = move
        if not isinstance(move, Restore):
            self._guests.models_moved()
        self._residents.begin_move(self._what_moves(move, state))
        # The guests that go for it take nothing any more when it is tried.
        ledger = state.ledger.without_guests(move.guests if isinstance(move, Load) else ())
        self._free = {device: ledger.free_bytes(device) for device in ledger.devices}
        if isinstance(move, Load) and not move.evict:
            for guest in move.guests:
                self._guests.evict(guest, reason=f"room for {move.model}")
        self._idle.clear()
        self._begun.set()

    async def work(self) -> None:
        """Performs moves, as long as it is not cancelled."""
        while True:
            await self._begun.wait()
            self._begun.clear()
            assert self._move is not None
            refused = await self._perform(self._move)
            self._end_move()
            self._settled(refused)

    def _end_move(self) -> None:
        self._move = self._load = None
        self._residents.end_move()
        self._idle.set()

    async def unload_all(self, *, but: Collection[str], reason: str) -> None:
        """Unloads every model, those left out that stay; goes on when one cannot be unloaded.

        Once nobody works any more: a move that was broken off is over.
        """
        if self._move is not None:
            if not isinstance(self._move, Restore) and self._residents.moving is not None:
                # Wherever it is now: it is unloaded with the others.
                self._residents.kept(self._residents.moving)
            self._end_move()
        for model in [name for name in self._residents.entries if name not in but]:
            self._residents.went(model)
            await self._unload_host(model, reason=reason)

    def _what_moves(self, move: Move, state: State) -> Resident:
        match move:
            case Load(evict=(victim, *_)) | Unload(model=victim):
                return self._residents.went(victim)
            case Load():
                return Resident(model=move.model, need=state.tenants[move.model].need)
            case Restore():
                # It is counted as a guest as soon as it grows.
                return Resident(model=move.guest, need={MACHINE: 0})

    async def _perform(self, move: Move) -> Mapping[str, Exception]:
        match move:
            case Load(evict=(_, *_)):
                # One, and then it is decided anew: meanwhile another may have become idle.
                return await self._make_room(move)
            case Load():
                return await self._bring_in(move)
            case Unload():
                await self._take_out(move.reason)
            case Restore():
                await self._guests.restore(move.guest)
        return NOTHING_REFUSED

    async def _make_room(self, move: Load) -> Mapping[str, Exception]:
        error = await self._take_out(f"room for {move.model}: {move.reason}")
        if error is None:
            return NOTHING_REFUSED
        self._residents.note_failure(move.model)
        return {
            move.model: LoadFailed(
                f"'{move.model}' has no room: '{move.evict[0]}' is in its place and could not be "
                f"unloaded ({error})",
                code="model.not-unloaded",
                endpoint=move.model,
            )
        }

    async def _take_out(self, reason: str) -> Exception | None:
        """Unloads what is moving; what it says, if it stays."""
        resident = self._residents.moving
        assert resident is not None
        error = await self._unload_host(resident.model, reason=reason)
        if error is None:
            return None
        report = await self._residents.report(resident.model)
        if report is not None and not report.resident:
            return None  # it has gone all the same
        self._residents.kept(resident)
        return error

    async def _unload_host(self, model: str, *, reason: str) -> Exception | None:
        tenant = self._residents.tenants[model]
        self._tracer.instant("evict", model=model, reason=reason)
        try:
            with self._tracer.span("unload", track=f"model {model}", model=model, reason=reason):
                async with asyncio.timeout(tenant.load_timeout_s):
                    await self._residents.host(model).unload()
        except Exception as error:  # noqa: BLE001 - whatever it is, the ledger must know of it
            log_warning(
                "a model could not be unloaded",
                code="budget.model-not-unloaded",
                model=model,
                error=describe(error),
            )
            return error
        return None

    async def _bring_in(self, move: Load) -> Mapping[str, Exception]:
        model, tenant = move.model, self._residents.tenants[move.model]
        host = self._residents.host(model)
        if move.is_prefetch:
            # Calls that were just granted go out first: while an engine of this process loads,
            # nothing else in it moves.
            await asyncio.sleep(_BEFORE_A_PREFETCH_S)
        began_ns = self._tracer.now_ns()
        try:
            with self._tracer.span(
                "load",
                track=f"model {model}",
                model=model,
                need_bytes=tenant.need_bytes,
                reason=move.reason,
                prefetch=move.is_prefetch,
                source="measured",
            ) as span:
                self._load = model, span.id
                self._load_began(model)
                async with asyncio.timeout(tenant.load_timeout_s):
                    await host.load()
        except TimeoutError:
            return self._cannot_come(
                model,
                LoadFailed(
                    f"'{model}' was not loaded after {tenant.load_timeout_s:g} s; raise "
                    "load_timeout_s if it needs longer",
                    code="model.load-timeout",
                    endpoint=model,
                ),
            )
        except Exception as error:  # noqa: BLE001 - who waits for it is told, whatever it is
            return self._cannot_come(model, error)
        load_s = (self._tracer.now_ns() - began_ns) / 1e9
        report = await self._residents.report(model)
        if report is not None and not report.resident:
            return self._cannot_come(
                model,
                LoadFailed(
                    f"'{model}' was loaded, and is not there",
                    code="model.unloaded-meanwhile",
                    endpoint=model,
                ),
            )
        self._residents.came(model, report, load_s=load_s)
        return NOTHING_REFUSED

    def _cannot_come(self, model: str, error: Exception) -> Mapping[str, Exception]:
        log_warning(
            "a model could not be loaded",
            code="budget.model-not-loaded",
            model=model,
            error=describe(error),
        )
        out_of_memory = isinstance(error, LoadFailed) and error.out_of_memory
        if out_of_memory and self._residents.found_too_large(model, self._free):
            return NOTHING_REFUSED  # it takes more than was thought; others may make room
        self._residents.note_failure(model)
        return {model: error}
