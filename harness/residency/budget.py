"""The keep-alive budget: asks the policy at each change, and carries out its decision."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace

from harness.errors import DoesNotFit, InferenceError, LoadFailed
from harness.inference import MACHINE, Host
from harness.inference.waiting import PlaceWaiter, WaitingLine
from harness.residency.ledger import (
    NOTHING_KNOWN,
    BudgetState,
    Device,
    Forecast,
    Grant,
    Ledger,
    Tenant,
    Wait,
    WaitingCall,
    check_fits,
)
from harness.residency.load_policy import decide, why_it_waits
from harness.residency.residents import Residents
from harness.trace import Tracer, events

MAX_WAIT_S = 60.0
"""Longest time that a call waits in favor of others, by default."""


@dataclass(slots=True, kw_only=True, eq=False)
class _BudgetWaiter(PlaceWaiter[WaitingCall]):
    call: WaitingCall
    awaits_load: bool = False  # whether its span is one of waiting for a load


@dataclass(slots=True, kw_only=True)
class _RunShare:
    """A run that the budget serves."""

    lend: Callable[[int], None]  # see `KeepAliveBudget.serving`
    max_parallel: int | None
    lent: int = 0  # the last argument of `lend`
    forecast: Forecast = NOTHING_KNOWN
    was_surprised: bool = False  # by a call that a complete forecast did not have


class KeepAliveBudget:
    """Lends models to calls, and decides which of them are in memory.

    Args:
        devices: The memory that there is, with `machine` among it.
        hosts: Tag → what loads and unloads the model.
        max_wait_s: The longest time that a call waits in favor of others, if calls and loads take
            no longer than before.
        stay_loaded: Tags of models that other servers keep in memory when the budget closes.
        outlives_runs: Whether another run may follow those that the budget serves.

    Raises `DoesNotFit` if pinned models do not fit beside each other.
    """

    def __init__(
        self,
        *,
        devices: Iterable[Device],
        tenants: Iterable[Tenant],
        hosts: Mapping[str, Host],
        tracer: Tracer,
        max_wait_s: float = MAX_WAIT_S,
        stay_loaded: Collection[str] = (),
        outlives_runs: bool = False,
    ) -> None:
        self._devices = {device.name: device for device in devices}
        self._tracer = tracer
        self._max_wait_ns = round(max_wait_s * 1e9)
        self._residents = Residents(
            tenants={tenant.model: tenant for tenant in tenants},
            hosts=hosts,
            devices=self._devices,
            tracer=tracer,
            load_began=self._note_load,
            changed=self._note_change,
            refuse=self._refuse,
        )
        self._stay_loaded = frozenset(stay_loaded)
        self._outlives_runs = outlives_runs
        self._runs: dict[str, _RunShare] = {}
        # (run, node) → its calls that have a model now.
        self._leases: Counter[tuple[str, str] | None] = Counter()
        self._waiting = WaitingLine[_BudgetWaiter, WaitingCall](
            tracer=tracer, serve=self._consider, why=self._why, take_back=self._end
        )
        self._ids = itertools.count(1)
        self._alarm: asyncio.TimerHandle | None = None
        self._is_open = False
        for model, tenant in self._residents.tenants.items():
            if tenant.pin:
                check_fits(model, self._residents.tenants, self._devices)

    @property
    def ledger(self) -> Ledger:
        """The models in memory now, and the one on its way in or out."""
        return Ledger(
            devices=self._devices, residents=self._residents.entries, moving=self._residents.moving
        )

    @property
    def tenants(self) -> Mapping[str, Tenant]:
        """The models by tag, with the facts learned about them."""
        return self._residents.tenants

    @property
    def forecast(self) -> Forecast:
        """The uses that all runs expect."""
        # A forecast is complete only if no other run can call models, now or later.
        if len(self._runs) == 1 and not self._outlives_runs:
            return next(iter(self._runs.values())).forecast
        forecasts = [share.forecast.strands for share in self._runs.values()]
        return Forecast(strands=tuple(itertools.chain.from_iterable(forecasts)))

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Lends models inside the block, and unloads at its end the models it loaded.

        Models that servers already had in memory stay.
        """
        # Before any decision, since models that servers have loaded already take room.
        await self._residents.adopt()
        group = asyncio.TaskGroup()
        # Not `async with`, which would wrap an error of the block in an exception group.
        await group.__aenter__()
        tasks = [
            group.create_task(self._residents.work()),
            group.create_task(self._residents.watch()),
        ]
        self._is_open = True
        try:
            self._note_change()
            yield
        finally:
            # First, so that no report of the cancelled tasks begins another move.
            self._is_open = False
            if self._alarm is not None:
                self._alarm.cancel()
            for task in tasks:
                task.cancel()
            try:
                await group.__aexit__(None, None, None)
            finally:
                self._refuse_all()
                await self._residents.unload_all(but=self._stay_loaded, reason="end of run")
                self._report()

    @contextmanager
    def serving(
        self, run: str, *, lend: Callable[[int], None], max_parallel: int | None
    ) -> Iterator[None]:
        """Serves a run inside the block.

        If there is no room for all models, `lend` is called with the number of nodes that wait for
        a model not in memory: the run may execute as many others in their places. `max_parallel`
        is how many nodes it executes at most, without lent places.
        """
        self._runs[run] = _RunShare(lend=lend, max_parallel=max_parallel)
        try:
            yield
        finally:
            del self._runs[run]
            if self._runs:
                self._consider()

    def expect(self, forecast: Forecast, *, run: str) -> None:
        """Replaces the forecast of a run; does nothing if the run is not served."""
        if (share := self._runs.get(run)) is None:
            return
        # Named here, and not in `forecast`, which is asked for at each call.
        share.forecast = Forecast(
            strands=tuple(strand.of_run(run) for strand in forecast.strands),
            is_complete=forecast.is_complete and not share.was_surprised,
        )
        self._consider()

    @asynccontextmanager
    async def lease(self, model: str) -> AsyncIterator[None]:
        """Keeps a model resident inside the block; loads it first if needed.

        A holder of a lease must not ask for another: it could wait for itself. Raises `DoesNotFit`,
        or the error of loading the model.
        """
        assert self._is_open, "a budget lends nothing outside of its block"
        # At each call, since a host's report may have made this or a pinned model larger.
        check_fits(model, self._residents.tenants, self._devices)
        run, node = self._tracer.current_run, self._tracer.current_node
        call = WaitingCall(
            id=next(self._ids),
            model=model,
            since_ns=self._tracer.now_ns(),
            node=None if node is None else (run, node),
        )
        share = self._runs.get(run)
        if share and share.forecast.is_complete and not share.forecast.expects(model):
            # A forecast that has left out this model may also leave out others.
            share.was_surprised = True
            share.forecast = replace(share.forecast, is_complete=False)
        waiter = _BudgetWaiter(rank=(call.id,), call=call)
        self._waiting.join(waiter)
        await self._waiting.place_of(waiter)
        began_ns = self._tracer.now_ns()
        try:
            yield
        except InferenceError:
            # The server may have died, or unloaded the model.
            self._residents.doubt(model)
            raise
        finally:
            self._end(call, began_ns=began_ns)

    # --- calls ------------------------------------------------------------------------------------

    def _why(self, waiter: _BudgetWaiter) -> events.Happening:
        """What a call waits for, as the event of its wait; notes whether that is a load."""
        load = self._residents.load_of(waiter.call.model)
        waiter.awaits_load = load is not None
        if load is not None:
            # The load has a span of its own; this one is the call's share of it.
            return events.LoadEvent(source="measured", waits_for=load)
        place, reason = why_it_waits(waiter.call, self._state())
        return events.Queue(source="measured", place_of=place, reason=reason)

    def _end(self, call: WaitingCall, *, began_ns: int | None = None) -> None:
        """Notes that a call no longer needs its model. `began_ns` is None if it never began."""
        # `-=` removes a node with 0 leases, which `_state` must not count.
        self._leases -= Counter([call.node])
        self._residents.end_use(call.model, began_ns=began_ns, now_ns=self._tracer.now_ns())
        self._consider()

    def _note_load(self, model: str) -> None:
        """Lets the spans of calls that wait for a model show that its load has begun."""
        for waiter in self._waiting:
            if waiter.call.model == model:
                waiter.changed.set()

    def _refuse(self, model: str, error: Exception) -> None:
        """Ends the wait of all calls for a model, which raise the error."""
        for waiter in self._waiting:
            if waiter.call.model == model:
                self._waiting.settle(waiter, refusal=error)

    def _refuse_what_cannot_fit(self) -> None:
        """Raises `DoesNotFit` in the waiting calls for models that turned out never to fit."""
        for model in {waiter.call.model for waiter in self._waiting}:
            try:
                check_fits(model, self._residents.tenants, self._devices)
            except DoesNotFit as error:
                self._refuse(model, error)

    def _refuse_all(self) -> None:
        for model in {waiter.call.model for waiter in self._waiting}:
            error = LoadFailed("the memory budget was closed", code="budget.closed", endpoint=model)
            self._refuse(model, error)

    # --- decisions --------------------------------------------------------------------------------

    def _state(self) -> BudgetState:
        tenants = self._residents.tenants
        limits = [share.max_parallel for share in self._runs.values()]
        max_parallel = None if None in limits else sum(filter(None, limits))
        nodes = (waiter.call.node for waiter in self._waiting)
        # More nodes than that call models if some were lent a place. A model whose slots are
        # unknown still gets no more calls at one time than it would without them.
        if max_parallel and len({*nodes, *self._leases}) > max_parallel:
            tenants = {
                model: replace(tenant, slots=tenant.slots or max_parallel)
                for model, tenant in tenants.items()
            }
        return BudgetState(
            now_ns=self._tracer.now_ns(),
            ledger=self.ledger,
            tenants=tenants,
            waiting=tuple(waiter.call for waiter in self._waiting),
            forecast=self.forecast,
            max_wait_ns=self._max_wait_ns,
            failed=self._residents.failed,
        )

    def _consider(self) -> None:
        """Asks the policy until there is nothing to do but wait."""
        while self._is_open:
            state = self._state()
            match decide(state):
                case Grant(calls=calls):
                    # Settling a waiter takes it out: these are the waiters of this moment.
                    for waiter in self._waiting:
                        if waiter.call.id in calls:
                            self._leases[waiter.call.node] += 1
                            self._residents.begin_use(waiter.call.model)
                            self._waiting.settle(waiter, waiter.call)
                case Wait(until_ns=until_ns):
                    self._ask_again_at(until_ns, state.now_ns)
                    self._lend_places(state)
                    return
                case move:
                    # Asked again at once: calls to other models may be granted meanwhile. Then the
                    # policy waits for the move.
                    self._residents.begin(move)

    def _lend_places(self, state: BudgetState) -> None:
        """Lets each run start a further node for each that waits for a model to be loaded."""
        residents, is_crowded = state.ledger.residents, state.is_crowded
        # Without calls outside of nodes, which take none of a pipeline's places.
        nodes = {call.node for call in state.waiting if call.model not in residents}
        waiting_nodes = Counter(run for run, _ in filter(None, nodes))
        for run, share in self._runs.items():
            # So many further nodes can begin, so that each load serves more of them.
            lent = waiting_nodes[run] if is_crowded else 0
            if lent != share.lent:
                share.lent = lent
                share.lend(lent)

    def _note_change(self) -> None:
        """Notes a change of the models in memory."""
        self._refuse_what_cannot_fit()
        self._report()
        self._consider()
        for waiter in self._waiting:
            if waiter.awaits_load and self._residents.load_of(waiter.call.model) is None:
                # The model is loaded, and the call waits for its turn from now on.
                waiter.changed.set()

    def _ask_again_at(self, until_ns: int | None, now_ns: int) -> None:
        """Sets the timer at which the policy is asked again, in place of an earlier one.

        No timer is set if `until_ns` is None: each change asks the policy anyway.
        """
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if until_ns is not None:
            loop = asyncio.get_running_loop()
            # A moment later, since a timer may fire too early.
            delay_s = max(until_ns - now_ns, 0) / 1e9 + 0.001
            self._alarm = loop.call_later(delay_s, self._consider)

    def _report(self) -> None:
        ledger = self.ledger
        for device in self._devices:
            name = "resident" if device == MACHINE else f"resident {device}"
            taken_bytes = ledger.taken_bytes(device)
            self._tracer.counter(name, taken_bytes, unit="bytes", track="server keep-alive budget")
