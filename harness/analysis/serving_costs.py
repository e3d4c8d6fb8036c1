"""What serving a model costs, by the hour and by the token, beside a managed one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from harness.analysis.serving_load import Load
from harness.hardware.data_tables import Figure, Tables
from harness.hardware.device import DeviceSpec
from harness.hardware.footprint import format_count
from harness.hardware.model_shape import parse_parameters
from harness.hardware.rates import (
    break_even_tokens_per_day,
    owned_usd_per_hour,
    usd_per_million_tokens,
)


def usd_per_hour_of(device: DeviceSpec, tables: Tables) -> dict[str, float]:
    """Of one such device, rented and owned, where the table has it."""
    found: dict[str, float] = {}
    for row in tables.prices.values():
        if row.device == device.name and row.usd:
            power = {"watts": row.watts or 0.0, "usd_per_kwh": 0.3}
            found[row.kind] = owned_usd_per_hour(row.usd, years=3, **power)
        elif row.device == device.name and row.usd_per_hour:
            found[row.kind] = row.usd_per_hour
    return found


def costs(
    load: Load,
    figures: Mapping[str, Figure],
    hours: Mapping[str, float],
    tables: Tables,
    *,
    parameters: int,
    replicas: int,
) -> dict[str, Figure]:
    """Of an hour of each kind, busy or not; tokens are of replies with their prompts."""
    goodput = figures.get("goodput")
    most = replicas * ((goodput and goodput.value) or figures["decode together"].value)
    busy = 1.0 if load.rate_per_s is None else min(load.rate_per_s * load.output_tokens / most, 1)
    managed = []
    for row in tables.prices.values():
        if row.usd_per_million_input and row.usd_per_million_output:
            asked = row.usd_per_million_input * load.prompt_tokens / load.output_tokens
            far = abs(parse_parameters(row.parameters or "999B") - parameters)
            managed.append((far, asked + row.usd_per_million_output, row.name))
    _, price, like = min(managed)
    found = {}
    for kind, hour in hours.items():
        said = {
            "hour": f"{hour:.3g}",
            "busy_rate": f"{most:.3g}",
            "busy": f"{busy:.0%}",
            "load": load,
            "managed": f"{like}, ${price:.3g}; at most {format_count(most * 86_400)}tokens a day",
        }
        million = usd_per_million_tokens(hour, tokens_per_s=most, busy=busy)
        values = {"a million tokens": million, "a day": 24 * hour}
        if load.calls:
            values["such a run"] = million * load.calls * load.output_tokens / 1e6
        values["pays from"] = break_even_tokens_per_day(24 * hour, managed_usd_per_million=price)
        for title, value in values.items():
            name = f"{kind}: {title}"
            found[name] = replace(tables.figures[title].filled(value, None, said), name=name)
    return found
