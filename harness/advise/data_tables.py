"""Tables of devices, models, prices and quantizations: CSV files in the folder `tables`.

Each row has its source and date.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt

from harness.advise.device import DeviceSpec
from harness.advise.model_shape import ModelShape, Packing, parse_parameters, shape_by_hand
from harness.errors import InvalidInput, did_you_mean


class Row(BaseModel):
    """What every row has."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    source: str
    date: str


class DeviceRow(Row):
    """A GPU, a processor's memory, or what joins them."""

    kind: Literal["gpu", "cpu", "link"]
    product: str = ""
    """A part of the name that its driver gives it."""
    memory_gib: PositiveFloat | None = None
    bandwidth_gb_s: PositiveFloat
    tflops: PositiveFloat | None = None
    """Dense, of 16-bit factors summed in 32 bits."""
    fp8_tflops: PositiveFloat | None = None
    """Dense, of 8-bit factors; None if it has no such units."""

    @property
    def device(self) -> DeviceSpec:
        """What it describes."""
        return DeviceSpec(
            name=self.name,
            memory_bytes=round((self.memory_gib or 0) * 2**30),
            memory_bytes_per_s=self.bandwidth_gb_s * 1e9,
            flops_per_s=self.tflops and self.tflops * 1e12,
            fp8_flops_per_s=self.fp8_tflops and self.fp8_tflops * 1e12,
            is_gpu=self.kind == "gpu",
            source=f"{self.source}, {self.date}",
        )


class ModelRow(Row):
    """A known model, whose layers are usual for its size."""

    parameters: str
    active_parameters: str = ""
    fine_parameters: str
    """Those that stay in 16 bits whatever the quantization."""
    layers: PositiveInt
    width: PositiveInt
    heads: PositiveInt
    kv_heads: PositiveInt
    head_dim: PositiveInt
    quantization: str = ""
    """The one that it comes in; empty for 16 bits."""


class PriceRow(Row):
    """A device's by the hour, or a managed model's by the tokens."""

    kind: Literal["rented", "managed"]
    parameters: str = ""
    device: str = ""
    usd_per_hour: PositiveFloat | None = None
    usd_per_million_input: PositiveFloat | None = None
    usd_per_million_output: PositiveFloat | None = None


class QuantizationRow(Row):
    """A packing of weights."""

    packing: Packing
    bits: PositiveFloat
    """Of a weight in a file, scales and finer tensors included."""
    nominal_bits: PositiveFloat


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """All of them, rows by name."""

    devices: Mapping[str, DeviceRow]
    models: Mapping[str, ModelRow]
    prices: Mapping[str, PriceRow]
    quantizations: Mapping[str, QuantizationRow]

    def device(self, name: str) -> DeviceSpec:
        """One of the table.

        Raises:
            InvalidInput: There is none of that name.
        """
        if name not in self.devices:
            raise InvalidInput(
                f"'{name}' is not in the table of devices; {did_you_mean(name, self.devices)}, "
                "or give --memory and --bandwidth",
                code="advise.device-unknown",
            )
        return self.devices[name].device

    def quantization(self, name: str) -> QuantizationRow:
        """One of the table, in any case.

        Raises:
            InvalidInput: There is none of that name.
        """
        row = next((one for one in self.quantizations.values() if one.name == name.upper()), None)
        if row is None:
            known = did_you_mean(name, self.quantizations)
            raise InvalidInput(
                f"'{name}' is not a quantization; {known}", code="advise.quantization-unknown"
            )
        return row

    def product(self, name: str) -> DeviceSpec | None:
        """The GPU that a driver calls so; None if it is not in the table."""
        rows = self.devices.values()
        found = (row for row in rows if row.product and f" {row.product} " in f" {name} ")
        return next((row.device for row in found), None)

    def shape(self, size: str) -> ModelShape:
        """A model of the table as it comes, or one like that of the nearest size, such as `7B`.

        Raises:
            InvalidInput: It is no size and no name.
        """
        by_name = {row.name.lower(): row for row in self.models.values()}
        known = by_name.get(size.lower())
        try:
            count = parse_parameters(known.parameters if known else size)
        except InvalidInput as error:
            named = re.search(r"\d+(\.\d+)?[bm]\b", size.lower())
            like = named[0].upper() if named else "8B"
            raise InvalidInput(
                f"'{size}' is no file or folder here, and no model that is known; give a GGUF "
                "file, a folder of safetensors, a config.json, a name "
                f"({did_you_mean(size, self.models)}), or a size: harness advise {like}",
                code="advise.model-unknown",
            ) from error
        row = known or min(
            (one for one in self.models.values() if not one.active_parameters),
            key=lambda one: abs(parse_parameters(one.parameters) - count),
        )
        packed = self.quantization(row.quantization if known and row.quantization else "BF16")
        return shape_by_hand(
            row.parameters if known else size,
            title=row.name if known else size,
            layers=row.layers,
            width=row.width,
            fine=row.fine_parameters,
            heads=row.heads if known else 0,
            kv_heads=row.kv_heads,
            head_dim=row.head_dim,
            bits=packed.bits,
            active=row.active_parameters,
            quantization=packed.name,
        )


def read_tables() -> Tables:
    """The packaged tables."""
    return Tables(
        devices=_rows("devices", DeviceRow),
        models=_rows("models", ModelRow),
        prices=_rows("prices", PriceRow),
        quantizations=_rows("quantizations", QuantizationRow),
    )


_R = TypeVar("_R", bound=Row)


def _rows(name: str, kind: type[_R]) -> dict[str, _R]:
    text = files("harness.advise").joinpath("tables", f"{name}.csv").read_text(encoding="utf-8")
    cells = csv.DictReader(io.StringIO(text))
    rows = [kind.model_validate({key: one for key, one in row.items() if one}) for row in cells]
    return {row.name: row for row in rows}
