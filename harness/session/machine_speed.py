"""What a report needs to compare a run's speed with what the machine allows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from pydantic import BaseModel, ValidationError

from harness.files import whole_file
from harness.hardware import read_gguf_header
from harness.hardware.memory_speed import core_count, memory_bytes_per_s
from harness.inference import MACHINE, Endpoint
from harness.trace import Tracer
from harness.trace.clock import boot_id

KEPT = ".machine.json"
"""The file, beside the runs, that keeps what was measured until the machine is started again."""


@asynccontextmanager
async def machine_speed_recorded(
    endpoints: Iterable[Endpoint], *, directory: Path, tracer: Tracer
) -> AsyncIterator[None]:
    """Records the weights of the models that are computed by this machine's own processor.

    When the block ends well, the speed of the memory is recorded too. To measure it takes a third
    of a second: by then no call disturbs it, and it disturbs none.

    Args:
        endpoints: Those that can be used.
        directory: Where runs land.
        tracer: Gets the instants `weights` and `machine`.
    """
    local = {one.tag: one.path for one in endpoints if one.path and one.device == MACHINE}
    if not tracer.run_id:
        local.clear()
    for tag, path in local.items():
        tracer.instant("weights", model=tag, active_bytes=read_gguf_header(path).active_bytes)
    yield
    if local:
        speed = await asyncio.to_thread(_speed_of_memory, directory / KEPT)
        tracer.instant("machine", **speed.model_dump(exclude={"boot_id"}), source="measured")


class _Machine(BaseModel):
    boot_id: str | None
    memory_bytes_per_s: int
    cores: int


def _speed_of_memory(path: Path) -> _Machine:
    """As it was measured since the machine was started, or now."""
    with suppress(OSError, ValidationError):
        kept = _Machine.model_validate_json(path.read_bytes())
        if kept.boot_id == boot_id() is not None and kept.cores == core_count():
            return kept
    found = _Machine(
        boot_id=boot_id(), memory_bytes_per_s=round(memory_bytes_per_s()), cores=core_count()
    )
    with suppress(OSError), whole_file(path) as file:
        file.write(found.model_dump_json().encode())
    return found
