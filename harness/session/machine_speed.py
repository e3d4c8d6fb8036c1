"""Facts for comparing a run's speed with the limits of the machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from pydantic import BaseModel, ValidationError

from harness.errors import ModelFileInvalid
from harness.files import whole_file
from harness.hardware import Loading, prompt_kv_bytes, read_gguf_header
from harness.hardware.machine import core_count, memory_bytes_per_s, read_gpus
from harness.inference import MACHINE, Endpoint
from harness.trace import Tracer, events
from harness.trace.clock import boot_id

KEPT = ".machine.json"
"""The file beside the runs with measurements, valid until the machine restarts."""

FileOf = Callable[[Endpoint], Awaitable[Path | None]]


@asynccontextmanager
async def machine_speed_recorded(
    endpoints: Iterable[Endpoint], *, directory: Path, tracer: Tracer, file_of: FileOf
) -> AsyncIterator[None]:
    """Records, when the block ends well, the limits of models that are wholly on one device.

    Those are the weights of each, and the speed of the device's memory. A GPU's speed comes from
    its driver. The machine's is measured after all calls, in a third of a second.

    Args:
        endpoints: The usable endpoints. One with a URL counts if it names its model's `device`.
        directory: Where runs land.
        tracer: Gets the instants `weights` and `machine`.
        file_of: For endpoints with a URL.
    """
    yield
    if not tracer.run_id:
        return
    devices = set()
    for endpoint in endpoints:
        file = endpoint.path
        if file is None and endpoint.url and "device" in endpoint.model_fields_set:
            file = await file_of(endpoint)
        if file is None or endpoint.gpu_layers is not None or len(endpoint.shares) > 1:
            continue
        with suppress(ModelFileInvalid):
            header = read_gguf_header(file)
            loading = Loading(
                context_tokens=1,
                cache_type_k=endpoint.cache_type_k,
                cache_type_v=endpoint.cache_type_v,
            )
            weights = events.WeightsEvent(
                model=endpoint.tag,
                device=endpoint.device,
                active_bytes=header.active_bytes,
                token_bytes=prompt_kv_bytes(header, loading, 1) if header.exact_caches else 0,
            )
            tracer.instant(weights)
            devices.add(endpoint.device)
    if MACHINE in devices:
        speed = await asyncio.to_thread(_speed_of_memory, directory / KEPT)
        figures = speed.model_dump(exclude={"boot_id"})
        tracer.instant(events.MachineEvent(device=MACHINE, **figures, source="measured"))
    for gpu in read_gpus() if devices - {MACHINE} else ():
        if gpu.name in devices and gpu.memory_bytes_per_s:
            nominal = gpu.memory_bytes_per_s
            tracer.instant(
                events.MachineEvent(device=gpu.name, memory_bytes_per_s=nominal, source="nominal")
            )


class _MachineSpeed(BaseModel):
    boot_id: str | None
    memory_bytes_per_s: int
    cores: int


def _speed_of_memory(path: Path) -> _MachineSpeed:
    """The measurement since the machine's start, or a new one."""
    with suppress(OSError, ValidationError):
        measured = _MachineSpeed.model_validate_json(path.read_bytes())
        if measured.boot_id == boot_id() is not None and measured.cores == core_count():
            return measured
    machine = _MachineSpeed(
        boot_id=boot_id(), memory_bytes_per_s=round(memory_bytes_per_s()), cores=core_count()
    )
    with suppress(OSError), whole_file(path) as file:
        file.write(machine.model_dump_json().encode())
    return machine
