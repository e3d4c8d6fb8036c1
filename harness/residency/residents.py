"""The models of a budget: which are in memory, the calls that use them, loads and unloads."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from harness.errors import EndpointUnreachable, LoadFailed, errors_of
from harness.inference import MACHINE, Host
from harness.inference.providers.provider import HostReport
from harness.inference.providers.server_host import in_time
from harness.log import log_debug, log_warning
from harness.residency.ledger import (
    Device,
    Ledger,
    LoadModel,
    Need,
    Resident,
    Tenant,
    UnloadModel,
)
from harness.trace import Span, Tracer, describe, events

_LOOK_EVERY_S = 10.0  # between two looks whether a model is still where the ledger has it
_REPORT_TIMEOUT_S = 5.0
_BEFORE_A_PREFETCH_S = 0.05
_LOADS = 3  # of a model that its server lets go at once, before its calls are sent all the same

_NO_ERRORS: Mapping[str, Exception] = {}


@dataclass(kw_only=True, eq=False)
class Residents:
    """Keeps the ledger's entries of models; loads and unloads them, one at a time, each to its end.

    The entries are compared with what hosts report. The trace says why a model came or went.
    """

    tenants: dict[str, Tenant]
    """Tag → the tenant, with what was learned of it."""
    hosts: Mapping[str, Host]
    devices: Mapping[str, Device]
    tracer: Tracer
    load_began: Callable[[str], None]
    """Called with the model of a load that begins."""
    changed: Callable[[Mapping[str, Exception]], None]
    """Called when a move is over, or other models are in memory than was thought, with the errors
    of models that will not come."""

    def __post_init__(self) -> None:
        self.moving: Resident | None = None
        self._estimates = dict(self.tenants)
        self._there: dict[str, Resident] = {}
        self._failed: set[str] = set()
        self._uncalled: set[str] = set()  # came, and no call has used it since
        self._wasted: set[str] = set()  # loaded ahead, and gone without a call
        # Apart from the entries: a host may lose a model while calls use it.
        self._leases: Counter[str] = Counter()
        self._moves: Counter[str] = Counter()
        self._in_doubt: set[str] = set()
        self._doubt = asyncio.Event()
        self._move: LoadModel | UnloadModel | None = None
        self._begun = asyncio.Event()
        self._load: tuple[str, Span] | None = None
        self._leaving: asyncio.Task[Exception | None] | None = None

    @property
    def entries(self) -> Mapping[str, Resident]:
        """Tag → the model in memory, with the calls that use it."""
        return {
            model: replace(resident, leases=self._leases[model])
            for model, resident in self._there.items()
        }

    @property
    def failed(self) -> frozenset[str]:
        """Models whose last load or unload failed, or that were loaded ahead and not used."""
        return frozenset(self._failed | self._wasted)

    # --- uses -------------------------------------------------------------------------------------

    def begin_use(self, model: str) -> None:
        """A call has been granted the model."""
        self._uncalled.discard(model)
        self._wasted.discard(model)
        self._leases[model] += 1

    def end_use(self, model: str, *, began_ns: int | None, now_ns: int) -> None:
        """A call has ended; `began_ns` is None for one that was given up before it began."""
        self._leases[model] -= 1
        if began_ns is None:
            return
        self.tenants[model] = self.tenants[model].after_call((now_ns - began_ns) / 1e9)
        if model in self._there:  # its host may have lost it meanwhile
            self._there[model] = replace(self._there[model], idle_since_ns=now_ns)

    def expect_other(self) -> None:
        """The forecast has changed: unused models may be loaded ahead again."""
        self._wasted.clear()

    # --- moves ------------------------------------------------------------------------------------

    def load_of(self, model: str) -> int | None:
        """The span of a model's load, while it is being loaded."""
        if self._load is None or self._load[0] != model:
            return None
        return self.tracer.id_of(self._load[1])

    def begin(self, move: LoadModel | UnloadModel) -> None:
        """Starts a move; none may be under way."""
        assert self._move is None, "one move at a time"
        self._move = move
        match move:
            # It leaves the ledger before it leaves the memory, so that no call gets it meanwhile.
            case LoadModel(evict=(victim, *_)) | UnloadModel(model=victim):
                self.moving = self._went(victim)
            case LoadModel(model=model):
                self.moving = Resident(model=model, need=self.tenants[model].need)
        self._moves[self.moving.model] += 1
        self._begun.set()

    async def work(self) -> None:
        """Performs the moves that `begin` starts, one by one, until cancelled."""
        while True:
            await self._begun.wait()
            self._begun.clear()
            assert self._move is not None
            refused = await self._perform(self._move)
            self._end_move()
            self.changed(refused)

    def _end_move(self) -> None:
        self._move = self._load = self.moving = None

    async def unload_all(self, *, but: Collection[str], reason: str) -> None:
        """Unloads the models that do not stay, also after one could not be unloaded."""
        # `work` has ended, so that a move which it left unfinished is over.
        if self._move is not None:
            has_gone = self._leaving is not None and await self._leaving is None
            if self.moving is not None and not has_gone:
                # Loaded or not, it is unloaded with the others.
                self._there[self.moving.model] = self.moving
            self._end_move()
        for model in [name for name in self._there if name not in but]:
            self._went(model)
            await self._unload_host(model, reason=reason)

    async def _perform(self, move: LoadModel | UnloadModel) -> Mapping[str, Exception]:
        if isinstance(move, UnloadModel):
            await self._take_out(move.reason)
            return _NO_ERRORS
        if not move.evict:
            return await self._bring_in(move)
        # Only one model is evicted before the policy is asked again: another may have become idle.
        error = await self._take_out(f"room for {move.model}: {move.reason}", room_for=move.model)
        if error is None:
            return _NO_ERRORS
        self._failed.add(move.model)
        no_room = LoadFailed(
            f"'{move.model}' has no room: '{move.evict[0]}' is in its place and could not be "
            f"unloaded ({error})",
            code="model.not-unloaded",
            endpoint=move.model,
        )
        return {move.model: no_room}

    async def _take_out(self, reason: str, *, room_for: str | None = None) -> Exception | None:
        """Unloads the moving model; returns the error if it stays."""
        resident = self.moving
        assert resident is not None
        # A cancelled unload would only begin again: `unload_all` waits for it.
        unload = self._unload_host(resident.model, reason=reason, room_for=room_for)
        self._leaving = asyncio.create_task(unload)
        error = await asyncio.shield(self._leaving)
        self._leaving = None
        if error is None:
            return None
        report = await self._report(resident.model)
        if report is not None and not report.resident:
            return None  # it has gone nonetheless
        self._there[resident.model] = resident
        self._failed.add(resident.model)
        return error

    async def _unload_host(
        self, model: str, *, reason: str, room_for: str | None = None
    ) -> Exception | None:
        tenant = self.tenants[model]
        self.tracer.instant(events.Evict(model=model, reason=reason, room_for=room_for))
        try:
            unload = events.UnloadEvent(track=f"model {model}", model=model, reason=reason)
            with self.tracer.span(unload), errors_of(model):
                async with in_time(model, tenant.load_timeout_s, "let go of"):
                    await self.hosts[model].unload()
        except Exception as error:  # noqa: BLE001 - whatever it is, the ledger must know
            log_warning(
                "a model could not be unloaded",
                code="budget.model-not-unloaded",
                model=model,
                error=describe(error),
            )
            return error
        return None

    async def _bring_in(self, move: LoadModel, *, loads: int = 1) -> Mapping[str, Exception]:
        model, tenant = move.model, self.tenants[move.model]
        if move.is_prefetch:
            # Calls that were just granted go out first: an engine in this process blocks it while
            # it loads.
            await asyncio.sleep(_BEFORE_A_PREFETCH_S)
        began_ns = self.tracer.now_ns()
        try:
            load = events.LoadEvent(
                track=f"model {model}",
                model=model,
                need_bytes=tenant.need_bytes,
                reason=move.reason,
                prefetch=move.is_prefetch,
                source="measured",
            )
            with self.tracer.span(load) as span, errors_of(model):
                self._load = model, span
                self.load_began(model)
                async with in_time(model, tenant.load_timeout_s, "load"):
                    await self.hosts[model].load()
        except Exception as error:  # noqa: BLE001 - the waiting calls raise it, whatever it is
            return self._cannot_come(model, error)
        load_s = (self.tracer.now_ns() - began_ns) / 1e9
        report = await self._report(model)
        if report is not None and not report.resident:
            if loads < _LOADS:
                return await self._bring_in(move, loads=loads + 1)
            # The call itself may make the server load the model, or say why it cannot.
            report = None
            log_warning(
                "a model was gone as soon as it was loaded: other programs use its server, and its "
                "calls wait for theirs",
                code="budget.server-shared",
                model=model,
                loads=loads,
            )
        self._came(model, report, load_s=load_s)
        return _NO_ERRORS

    def _cannot_come(self, model: str, error: Exception) -> Mapping[str, Exception]:
        log_warning(
            "a model could not be loaded",
            code="budget.model-not-loaded",
            model=model,
            error=describe(error),
        )
        out_of_memory = isinstance(error, LoadFailed) and error.out_of_memory
        if out_of_memory and self._found_too_large(model):
            return _NO_ERRORS  # it needs more than estimated; others may make room
        self._failed.add(model)
        return {model: error}

    # --- what has come or gone --------------------------------------------------------------------

    def _came(self, model: str, report: HostReport | None, *, load_s: float | None = None) -> None:
        """A model is in memory now; `load_s` is None if it was there already."""
        tenant = self.tenants[model]
        # The host's report overrides the estimate.
        need = self._said_need(model, report) or tenant.need
        self.tenants[model] = replace(
            tenant, need=need, load_s=tenant.load_s if load_s is None else load_s
        )
        self._there[model] = Resident(
            model=model,
            need=need,
            since_ns=self.tracer.now_ns(),
            idle_since_ns=self.tracer.now_ns(),
        )
        self._failed.discard(model)
        self._uncalled.add(model)

    def _went(self, model: str) -> Resident:
        """A model is on its way out: it is no longer lent."""
        if model in self._uncalled:
            # While the same is expected, loading it ahead again would be wasted again.
            self._wasted.add(model)
        return self._there.pop(model)

    def _found_too_large(self, model: str) -> bool:
        """Notes that a model did not fit into free bytes; whether it may once others have gone."""
        tenant, ledger = self.tenants[model], Ledger(devices=self.devices, residents=self._there)
        free = {device: ledger.free_bytes(device) for device in tenant.need}
        larger = {
            # More than was free, or it would be tried again in the same room.
            device: min(max(bytes_, free[device] + 1), self._most_room_bytes(model, device))
            for device, bytes_ in tenant.need.items()
        }
        may_fit = any(larger[device] > free[device] for device in larger)
        # Otherwise the old estimate stays: other programs may have taken its place.
        need = larger if may_fit else self._estimates[model].need
        self.tenants[model] = replace(tenant, need=need)
        return may_fit

    # --- what hosts say ---------------------------------------------------------------------------

    async def _report(self, model: str) -> HostReport | None:
        """The report of the model's host; None without one."""
        try:
            async with asyncio.timeout(_REPORT_TIMEOUT_S):
                return await self.hosts[model].report()
        except EndpointUnreachable as error:
            log_debug("a server is not there", model=model, error=describe(error))
            if not self._leases[model]:
                return HostReport(resident=False)  # what has died has nothing in memory
        except Exception as error:  # noqa: BLE001 - no call waits for the answer
            log_debug("a host does not say what it holds", model=model, error=describe(error))
        return None

    async def adopt(self) -> None:
        """Adds the models that were in memory from the start."""
        # All hosts at once: one that does not answer costs its time limit.
        models = list(self.hosts)
        reports = await asyncio.gather(*map(self._report, models))
        for model, report in zip(models, reports, strict=True):
            if report is not None and report.resident:
                self.tracer.instant(events.Adopt(model, "it was in memory already"))
                self._came(model, report)

    def look_at(self, model: str) -> None:
        """Asks a model's host soon whether the model is still there."""
        self._in_doubt.add(model)
        self._doubt.set()

    async def watch(self) -> None:
        """Compares with hosts from time to time, and at once if there is doubt."""
        while True:
            try:
                async with asyncio.timeout(_LOOK_EVERY_S):
                    await self._doubt.wait()
                models = sorted(self._in_doubt)
            except TimeoutError:
                models = sorted(self.hosts)
            self._doubt.clear()
            self._in_doubt.clear()
            await asyncio.gather(*map(self._look, models))

    async def _look(self, model: str) -> None:
        """Corrects a model's entry, unless the model moves: then it is about to change."""
        if self.moving is not None and self.moving.model == model:
            return
        moves = self._moves[model]
        report = await self._report(model)
        # If the model moved while its host was asked, the report is of the past.
        if report is None or self._moves[model] != moves:
            return
        if report.resident and model not in self._there:
            self.tracer.instant(events.Adopt(model, "its server has loaded it unasked"))
            self._came(model, report)
        elif report.resident:
            need = self._said_need(model, report)
            if need is None or need == self._there[model].need:
                return
            self.tenants[model] = replace(self.tenants[model], need=need)
            self._there[model] = replace(self._there[model], need=need)
        elif model in self._there:
            del self._there[model]
            reason = "its server has let it go, or has died"
            self.tracer.instant(events.Evict(model=model, reason=reason))
        else:
            return
        self.changed(_NO_ERRORS)

    def _said_need(self, model: str, report: HostReport | None) -> Need | None:
        """What a model takes by its host's report; None if that says nothing."""
        if report is None or report.total_bytes is None:
            return None
        devices = self._estimates[model].need
        gpus = [device for device in devices if device != MACHINE]
        if len(gpus) == 1 and report.gpu_bytes is not None:
            # The rest, which had no room on the GPU, is in the machine's memory.
            bytes_by_device = {
                gpus[0]: report.gpu_bytes,
                MACHINE: report.total_bytes - report.gpu_bytes,
            }
        elif len(devices) == 1:
            bytes_by_device = dict.fromkeys(devices, report.total_bytes)
        else:
            return None
        return {
            # At most what the model can ever have, or it could not come again; at least 1 byte, or
            # it would not go for others that do not fit beside it.
            device: max(min(bytes_, self._most_room_bytes(model, device)), 1)
            for device, bytes_ in bytes_by_device.items()
            if bytes_ > 0 or device in devices
        }

    def _most_room_bytes(self, model: str, device: str) -> int:
        """The most that a model can have of a device after all possible evictions."""
        pinned = (t for t in self.tenants.values() if t.pin and t.model != model)
        return self.devices[device].room_bytes - sum(t.need.get(device, 0) for t in pinned)
