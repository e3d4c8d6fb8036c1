"""The models of a budget: which are in memory, how many calls use them, loads and unloads."""

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
from harness.residency.ledger import Device, Ledger, LoadModel, Need, Resident, Tenant, UnloadModel
from harness.trace import Span, Tracer, describe, events

# Hosts are asked so often which models they have in memory.
_COMPARE_EVERY_S = 10.0
_REPORT_TIMEOUT_S = 5.0
_BEFORE_A_PREFETCH_S = 0.05


@dataclass(kw_only=True, eq=False)
class Residents:
    """Keeps the ledger's entries of models, and performs loads and unloads one after another.

    The entries are compared with the hosts' reports. The trace records why a model was loaded or
    unloaded.
    """

    tenants: dict[str, Tenant]  # tag → the tenant, with the facts learned about it
    hosts: Mapping[str, Host]
    devices: Mapping[str, Device]
    tracer: Tracer
    load_began: Callable[[str], None]  # called with the model of a load that begins
    changed: Callable[[], None]  # called when a move has ended, or a report changed the entries
    refuse: Callable[[str, Exception], None]  # called with a model that cannot be loaded, and why

    def __post_init__(self) -> None:
        self.moving: Resident | None = None
        self._estimates = dict(self.tenants)
        self._in_memory: dict[str, Resident] = {}
        self._failed: set[str] = set()
        # Apart from the entries, since a host may lose a model while calls use it.
        self._leases: Counter[str] = Counter()
        self._moves: Counter[str] = Counter()
        self._in_doubt: set[str] = set()
        self._has_doubt = asyncio.Event()
        self._move: LoadModel | UnloadModel | None = None
        self._has_move = asyncio.Event()
        # The model that is being loaded, and the span of its load.
        self._load: tuple[str, Span] | None = None
        self._unload: asyncio.Task[Exception | None] | None = None

    @property
    def entries(self) -> Mapping[str, Resident]:
        """Tag → the model in memory, with the calls that use it."""
        return {
            model: replace(resident, leases=self._leases[model])
            for model, resident in self._in_memory.items()
        }

    @property
    def failed(self) -> frozenset[str]:
        """Models whose last load or unload failed."""
        return frozenset(self._failed)

    # --- uses -------------------------------------------------------------------------------------

    def begin_use(self, model: str) -> None:
        """Notes that a call has been granted the model."""
        self._leases[model] += 1

    def end_use(self, model: str, *, began_ns: int | None, now_ns: int) -> None:
        """Notes that a call has ended; `began_ns` is None if it was given up before it began."""
        self._leases[model] -= 1
        if began_ns is None:
            return
        self.tenants[model] = self.tenants[model].after_call((now_ns - began_ns) / 1e9)
        if model in self._in_memory:  # its host may have lost it meanwhile
            self._in_memory[model] = replace(self._in_memory[model], idle_since_ns=now_ns)

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
            # The entry is removed before the model is unloaded, so that no call is granted it.
            case LoadModel(evict=(victim, *_)) | UnloadModel(model=victim):
                self.moving = self._in_memory.pop(victim)
            case LoadModel(model=model):
                self.moving = Resident(model=model, need=self.tenants[model].need)
        self._moves[self.moving.model] += 1
        self._has_move.set()

    async def work(self) -> None:
        """Performs the moves that `begin` starts, one by one, until cancelled."""
        while True:
            await self._has_move.wait()
            self._has_move.clear()
            assert self._move is not None
            await self._perform(self._move)
            self._end_move()
            self.changed()

    def _end_move(self) -> None:
        self._move = self._load = self.moving = None

    async def unload_all(self, *, but: Collection[str], reason: str) -> None:
        """Unloads all models except `but`, also if one of them cannot be unloaded."""
        # `work` has been cancelled, perhaps during a move, which ends here.
        if self._move is not None:
            is_unloaded = self._unload is not None and await self._unload is None
            if self.moving is not None and not is_unloaded:
                # Whether its load has ended or not, it is unloaded with the others.
                self._in_memory[self.moving.model] = self.moving
            self._end_move()
        for model in [name for name in self._in_memory if name not in but]:
            del self._in_memory[model]
            await self._unload_host(model, reason=reason)

    async def _perform(self, move: LoadModel | UnloadModel) -> None:
        """Performs one step of a move, and refuses a model that cannot be loaded."""
        if isinstance(move, UnloadModel):
            await self._unload_moving(move.reason)
            return
        if not move.evict:
            await self._load_model(move)
            return
        # Only one model is evicted before the policy is asked again: another may have become idle.
        reason = f"room for {move.model}: {move.reason}"
        error = await self._unload_moving(reason, room_for=move.model)
        if error is not None:
            self._failed.add(move.model)
            no_room = LoadFailed(
                f"'{move.model}' has no room: '{move.evict[0]}' is in its place and could not be "
                f"unloaded ({error})",
                code="model.not-unloaded",
                endpoint=move.model,
            )
            self.refuse(move.model, no_room)

    async def _unload_moving(self, reason: str, *, room_for: str | None = None) -> Exception | None:
        """Unloads the moving model; if it stays in memory, adds it again and returns the error."""
        resident = self.moving
        assert resident is not None
        unload = self._unload_host(resident.model, reason=reason, room_for=room_for)
        # Shielded, and awaited by `unload_all`, which would only have to begin it again.
        self._unload = asyncio.create_task(unload)
        error = await asyncio.shield(self._unload)
        self._unload = None
        if error is None:
            return None
        report = await self._report(resident.model)
        if report is not None and not report.resident:
            return None  # the model is unloaded nonetheless
        self._in_memory[resident.model] = resident
        self._failed.add(resident.model)
        return error

    async def _unload_host(
        self, model: str, *, reason: str, room_for: str | None = None
    ) -> Exception | None:
        """Unloads a model whose entry was removed; returns the error if that failed."""
        tenant = self.tenants[model]
        self.tracer.instant(events.Evict(model=model, reason=reason, room_for=room_for))
        try:
            unload = events.UnloadEvent(track=f"model {model}", model=model, reason=reason)
            with self.tracer.span(unload), errors_of(model):
                async with in_time(model, tenant.load_timeout_s, "let go of"):
                    await self.hosts[model].unload()
        except Exception as error:  # noqa: BLE001 - the model's entry depends on it, whatever it is
            log_warning(
                "a model could not be unloaded",
                code="budget.model-not-unloaded",
                model=model,
                error=describe(error),
            )
            return error
        return None

    async def _load_model(self, move: LoadModel) -> None:
        """Loads a model and adds its entry, or refuses its calls."""
        model, tenant = move.model, self.tenants[move.model]
        if move.is_prefetch:
            # Lets calls that were just granted go out first: an engine in this process blocks the
            # event loop while it loads.
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
            self._note_failed_load(model, error)
            return
        load_s = (self.tracer.now_ns() - began_ns) / 1e9
        report = await self._report(model)
        if report is not None and not report.resident:
            # Counts as loaded: a call may make the server load it again, or say why it cannot.
            report = None
            log_warning(
                "a model was gone as soon as it was loaded: other programs use its server, and its "
                "calls wait for theirs",
                code="budget.server-shared",
                model=model,
            )
        self._add(model, report, load_s=load_s)

    def _note_failed_load(self, model: str, error: Exception) -> None:
        """Refuses a model, or raises its need if it lacked only memory."""
        log_warning(
            "a model could not be loaded",
            code="budget.model-not-loaded",
            model=model,
            error=describe(error),
        )
        out_of_memory = isinstance(error, LoadFailed) and error.out_of_memory
        # If others can be evicted for it, its calls go on waiting.
        if not (out_of_memory and self._note_too_large(model)):
            self._failed.add(model)
            self.refuse(model, error)

    # --- entries ----------------------------------------------------------------------------------

    def _add(self, model: str, report: HostReport | None, *, load_s: float | None = None) -> None:
        """Adds a model that is in memory now; `load_s` is None if the budget did not load it."""
        tenant = self.tenants[model]
        # The host's report overrides the estimate.
        need = self._reported_need(model, report) or tenant.need
        self.tenants[model] = replace(
            tenant, need=need, load_s=tenant.load_s if load_s is None else load_s
        )
        self._in_memory[model] = Resident(
            model=model,
            need=need,
            since_ns=self.tracer.now_ns(),
            idle_since_ns=self.tracer.now_ns(),
        )
        self._failed.discard(model)

    def _note_too_large(self, model: str) -> bool:
        """Raises the need of a model that did not fit; whether it may fit if others are evicted."""
        tenant = self.tenants[model]
        ledger = Ledger(devices=self.devices, residents=self._in_memory)
        free = {device: ledger.free_bytes(device) for device in tenant.need}
        larger = {
            # More than was free, or it would be tried again in the same room.
            device: min(max(bytes_, free[device] + 1), self._most_room_bytes(model, device))
            for device, bytes_ in tenant.need.items()
        }
        may_fit = any(larger[device] > free[device] for device in larger)
        # Else the old estimate stays, since other programs may have taken the memory.
        need = larger if may_fit else self._estimates[model].need
        self.tenants[model] = replace(tenant, need=need)
        return may_fit

    # --- reports of hosts -------------------------------------------------------------------------

    async def _report(self, model: str) -> HostReport | None:
        """The report of the model's host; None if it gives none."""
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
        # All hosts at once, since each that does not answer takes its whole time limit.
        models = list(self.hosts)
        reports = await asyncio.gather(*map(self._report, models))
        for model, report in zip(models, reports, strict=True):
            if report is not None and report.resident:
                self.tracer.instant(events.Adopt(model, "it was in memory already"))
                self._add(model, report)

    def doubt(self, model: str) -> None:
        """Makes `watch` compare a model's entry with its host at once."""
        self._in_doubt.add(model)
        self._has_doubt.set()

    async def watch(self) -> None:
        """Compares all entries with the hosts from time to time, and doubtful ones at once."""
        while True:
            try:
                async with asyncio.timeout(_COMPARE_EVERY_S):
                    await self._has_doubt.wait()
                models = sorted(self._in_doubt)
            except TimeoutError:
                models = sorted(self.hosts)
            self._has_doubt.clear()
            self._in_doubt.clear()
            await asyncio.gather(*map(self._compare, models))

    async def _compare(self, model: str) -> None:
        """Corrects a model's entry by its host's report, unless the model is moving."""
        if self.moving is not None and self.moving.model == model:
            return
        moves = self._moves[model]
        report = await self._report(model)
        # If the model moved while its host was asked, the report is out of date.
        if report is None or self._moves[model] != moves:
            return
        if report.resident and model not in self._in_memory:
            self.tracer.instant(events.Adopt(model, "its server has loaded it unasked"))
            self._add(model, report)
        elif report.resident:
            need = self._reported_need(model, report)
            if need is None or need == self._in_memory[model].need:
                return
            self.tenants[model] = replace(self.tenants[model], need=need)
            self._in_memory[model] = replace(self._in_memory[model], need=need)
        elif model in self._in_memory:
            del self._in_memory[model]
            reason = "its server has let it go, or has died"
            self.tracer.instant(events.Evict(model=model, reason=reason))
        else:
            return
        self.changed()

    def _reported_need(self, model: str, report: HostReport | None) -> Need | None:
        """The bytes that a model takes by its host's report; None if it does not say them."""
        if report is None or report.total_bytes is None:
            return None
        devices = self._estimates[model].need
        gpus = [device for device in devices if device != MACHINE]
        if len(gpus) == 1 and report.gpu_bytes is not None:
            # Layers that had no room on the GPU are in the machine's memory.
            bytes_by_device = {
                gpus[0]: report.gpu_bytes,
                MACHINE: report.total_bytes - report.gpu_bytes,
            }
        elif len(devices) == 1:
            bytes_by_device = dict.fromkeys(devices, report.total_bytes)
        else:
            return None
        return {
            # At most what the model can ever have, or it could not be loaded again. At least 1
            # byte, or it would not be evicted for others that do not fit beside it.
            device: max(min(bytes_, self._most_room_bytes(model, device)), 1)
            for device, bytes_ in bytes_by_device.items()
            if bytes_ > 0 or device in devices
        }

    def _most_room_bytes(self, model: str, device: str) -> int:
        """The bytes of a device that a model can have after all possible evictions."""
        pinned = (t for t in self.tenants.values() if t.pin and t.model != model)
        return self.devices[device].room_bytes - sum(t.need.get(device, 0) for t in pinned)
