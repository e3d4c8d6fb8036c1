"""The models of a budget: which are in memory, who uses them, and what was learned about them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import structlog

from harness.errors import HarnessError
from harness.inference import MACHINE
from harness.residency.host import Host, HostReport
from harness.residency.ledger import Device, Need, Resident, Tenant
from harness.trace import Tracer, describe

_log = structlog.get_logger(__name__)

_LOOK_EVERY_S = 10.0
"""Between two looks whether a model is still where the ledger has it."""
_REPORT_TIMEOUT_S = 5.0
_FORGETTING = 0.95
"""How much of the longest call's length still counts after another one."""


class Residents:
    """Holds what the ledger says of models against what their hosts say.

    Args:
        tenants: The models.
        hosts: What loads them, by tag.
        devices: The memory there is, by name.
        tracer: Sees what hosts have lost.
        changed: Called when a model was lost.

    Attributes:
        tenants: By tag, with what was learned.
        failed: Models whose last load, or unload, went wrong.
    """

    def __init__(
        self,
        tenants: Iterable[Tenant],
        *,
        hosts: Mapping[str, Host],
        devices: Mapping[str, Device],
        tracer: Tracer,
        changed: Callable[[], None],
    ) -> None:
        self.tenants = {tenant.model: tenant for tenant in tenants}
        self.failed: frozenset[str] = frozenset()
        self._estimates = dict(self.tenants)
        self._hosts = dict(hosts)
        self._devices = devices
        self._tracer = tracer
        self._changed = changed
        self._there: dict[str, Resident] = {}
        self._leases: Counter[str] = Counter()
        self._kv_tokens: Counter[str] = Counter()
        self._in_doubt: set[str] = set()
        self._doubt = asyncio.Event()

    @property
    def entries(self) -> Mapping[str, Resident]:
        """What is in memory, by tag."""
        return self._there

    def host(self, model: str) -> Host:
        """What loads a model."""
        return self._hosts[model]

    # --- uses -------------------------------------------------------------------------------------

    def begin_use(self, model: str, *, kv_tokens: int) -> None:
        """A call has been granted the model."""
        self._leases[model] += 1
        self._kv_tokens[model] += kv_tokens
        self._recount(model)

    def end_use(
        self,
        model: str,
        *,
        kv_tokens: int,
        call_s: float | None = None,
        now_ns: int | None = None,
    ) -> None:
        """A call has ended.

        Args:
            model: Which it used.
            kv_tokens: As at its beginning.
            call_s: How long it took; None for one that was given up before it began.
            now_ns: The time, since when the model may be idle; None for as before.
        """
        self._leases[model] -= 1
        self._kv_tokens[model] -= kv_tokens
        self._recount(model, idle_since_ns=now_ns)
        if call_s is not None:
            tenant = self.tenants[model]
            # The longest one, slowly forgotten.
            self.tenants[model] = replace(tenant, call_s=max(call_s, _FORGETTING * tenant.call_s))

    def _recount(self, model: str, *, idle_since_ns: int | None = None) -> None:
        resident = self._there.get(model)
        if resident is not None:  # else its host lost it meanwhile
            self._there[model] = replace(
                resident,
                leases=self._leases[model],
                kv_tokens=self._kv_tokens[model],
                idle_since_ns=resident.idle_since_ns if idle_since_ns is None else idle_since_ns,
            )

    # --- coming and going -------------------------------------------------------------------------

    def came(self, model: str, report: HostReport | None, *, load_s: float | None = None) -> None:
        """A model is in memory now.

        Args:
            model: Which.
            report: What its host says of it, which goes before any estimate.
            load_s: How long loading took; None for one that was there already.
        """
        tenant, estimate = self.tenants[model], self._estimates[model]
        need = _said_need(estimate, report, self._devices) or estimate.need
        self.tenants[model] = replace(
            tenant, need=need, load_s=tenant.load_s if load_s is None else load_s
        )
        self._there[model] = Resident(
            model=model,
            need=need,
            leases=self._leases[model],
            kv_tokens=self._kv_tokens[model],
            idle_since_ns=self._tracer.now_ns(),
        )
        self.failed -= {model}

    def went(self, model: str) -> Resident:
        """A model is on its way out: nobody is lent it any more."""
        return self._there.pop(model)

    def kept(self, resident: Resident) -> None:
        """A model that should have gone is still there."""
        self._there[resident.model] = resident
        self.note_failure(resident.model)

    def note_failure(self, model: str) -> None:
        """From now on it is moved only where a call wants it."""
        self.failed |= {model}

    def found_too_large(self, model: str, free: Need) -> bool:
        """Takes down that a model did not fit into what was free.

        Args:
            model: Which.
            free: What was free, by device, when it was tried.

        Returns:
            Whether it may fit when others have gone.
        """
        tenant = self.tenants[model]
        more = {
            device: min(max(bytes_, free[device] + 1), self._devices[device].room_bytes)
            for device, bytes_ in tenant.need.items()
        }
        self.tenants[model] = replace(tenant, need=more)
        return any(more[device] > free[device] for device in more)

    # --- what hosts say ---------------------------------------------------------------------------

    async def report(self, model: str) -> HostReport | None:
        """What the model's host says; None where it says nothing."""
        try:
            async with asyncio.timeout(_REPORT_TIMEOUT_S):
                return await self._hosts[model].report()
        except TimeoutError:
            _log.debug("a host does not say what it holds", model=model)
        except HarnessError as error:
            _log.debug("a host does not say what it holds", model=model, error=describe(error))
        return None

    async def adopt(self) -> None:
        """Takes down what was in memory before anybody asked for it."""
        models = list(self._hosts)
        reports = await asyncio.gather(*map(self.report, models))
        for model, report in zip(models, reports, strict=True):
            if report is not None and report.resident:
                self.came(model, report)

    def look_at(self, model: str) -> None:
        """Has it looked up soon whether a model is still there."""
        self._in_doubt.add(model)
        self._doubt.set()

    async def watch(self) -> None:
        """Looks from time to time, and at once where there is doubt, what hosts have lost."""
        while True:
            try:
                async with asyncio.timeout(_LOOK_EVERY_S):
                    await self._doubt.wait()
                models = sorted(self._in_doubt)
            except TimeoutError:
                models = sorted(self._there)
            self._doubt.clear()
            self._in_doubt.clear()
            for model in models:
                await self._look(model)

    async def _look(self, model: str) -> None:
        before = self._there.get(model)
        if before is None:
            return
        report = await self.report(model)
        there = self._there.get(model)
        if report is None or report.resident or there is None or there.need is not before.need:
            return  # it is there, nobody knows, or it has gone and come since
        del self._there[model]
        self._tracer.instant("evict", model=model, reason="its server has let it go, or has died")
        self._changed()


def _said_need(
    tenant: Tenant, report: HostReport | None, devices: Mapping[str, Device]
) -> Need | None:
    """What a model takes by its host's word; None where that says nothing.

    Never more than a device has room for: it has found room, and is to find it again.
    """
    if report is None or report.total_bytes is None:
        return None
    gpus = [device for device in tenant.need if device != MACHINE]
    if len(tenant.need) == 1:
        (device,) = tenant.need
        on_gpu = report.total_bytes if report.gpu_bytes is None else report.gpu_bytes
        said = {device: on_gpu if gpus else report.total_bytes}
    elif len(gpus) == 1 and report.gpu_bytes is not None:
        said = {gpus[0]: report.gpu_bytes, MACHINE: report.total_bytes - report.gpu_bytes}
    else:
        return None
    return {
        device: min(max(bytes_, 0), devices[device].room_bytes) for device, bytes_ in said.items()
    }
