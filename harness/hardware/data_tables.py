"""Tables of devices, figures, models, prices and so on: CSV files in the folder `tables`.

Each row has its source and date. A user's own table adds rows, and replaces those of its names.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt, ValidationError

from harness.errors import InvalidInput, did_you_mean
from harness.files import read_text
from harness.hardware.device import DeviceSpec
from harness.hardware.model_shape import ModelShape, Packing, parse_parameters, shape_by_hand


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
    link: str = ""

    @property
    def device(self) -> DeviceSpec:
        """What it describes."""
        return DeviceSpec(
            name=self.name,
            memory_bytes=round((self.memory_gib or 0) * 2**30),
            memory_bytes_per_s=self.bandwidth_gb_s * 1e9,
            flops_per_s=self.tflops and self.tflops * 1e12,
            link=self.link,
            is_gpu=self.kind == "gpu",
            source=f"{self.source}, {self.date}",
        )


@dataclass(frozen=True, slots=True)
class Figure:
    """What to expect, its upper bound (None for a figure that is no speed), and how it is found."""

    name: str
    value: float
    ceiling: float | None
    unit: str
    formula: str


class FigureRow(Row):
    """What is advised on: its formula, with `{…}` where the numbers go."""

    unit: str = ""
    formula: str

    def filled(self, value: float, ceiling: float | None, said: Mapping[str, object]) -> Figure:
        """The figure, with these numbers in its formula."""
        return Figure(self.name, value, ceiling, self.unit, self.formula.format(**said))


class ModelRow(Row):
    """A known model, whose layers are usual for its size."""

    parameters: str
    active_parameters: str = ""
    layers: PositiveInt
    kv_heads: PositiveInt
    head_dim: PositiveInt


class PriceRow(Row):
    """A device's by the hour or by its price and power, or a managed model's by the tokens."""

    kind: Literal["owned", "rented", "managed"]
    parameters: str = ""
    device: str = ""
    usd_per_hour: PositiveFloat | None = None
    usd: PositiveFloat | None = None
    watts: PositiveFloat | None = None
    usd_per_million_input: PositiveFloat | None = None
    usd_per_million_output: PositiveFloat | None = None


class QuantizationRow(Row):
    """A packing of weights; losses are shares of quality against 16 bits."""

    packing: Packing
    bits: PositiveFloat
    """Of a weight in a file, scales and finer tensors included."""
    nominal_bits: PositiveFloat
    least_loss: float | None = None
    most_loss: float | None = None
    gb_7b: PositiveFloat | None = None
    gb_13b: PositiveFloat | None = None
    meant_for: str


class RuntimeRow(Row):
    """A server, for whom it is, and what speaks against it."""

    backend: str
    packing: str
    device: Literal["any", "cpu", "gpu"]
    least_users: PositiveInt
    most_users: PositiveInt | None = None
    unloads: bool = False
    """Whether harness can have it load a model and let it go."""
    why: str
    against: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """All of them, rows by name."""

    devices: Mapping[str, DeviceRow]
    figures: Mapping[str, FigureRow]
    models: Mapping[str, ModelRow]
    prices: Mapping[str, PriceRow]
    quantizations: Mapping[str, QuantizationRow]
    runtimes: Mapping[str, RuntimeRow]

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

    def runtime(self, name: str) -> RuntimeRow | None:
        """By its name or its backend, in any case; None if there is none."""
        rows = self.runtimes.values()
        return next((row for row in rows if name.lower() in {row.backend, row.name.lower()}), None)

    def like(self, memory_bytes: int) -> DeviceSpec:
        """The slowest GPU of those nearest in size."""
        gpus = [row.device for row in self.devices.values() if row.kind == "gpu"]
        return min(
            gpus, key=lambda one: (abs(one.memory_bytes - memory_bytes), one.memory_bytes_per_s)
        )

    def product(self, name: str) -> DeviceSpec | None:
        """The GPU that a driver calls so; None if it is not in the table."""
        rows = self.devices.values()
        found = (row for row in rows if row.product and f" {row.product} " in f" {name} ")
        return next((row.device for row in found), None)

    def shape(self, size: str, quantization: QuantizationRow) -> ModelShape:
        """A model of the table, or one like that of the nearest size, such as `7B`.

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
                f"file, a folder of safetensors, one of --tables models, or a size: harness advise "
                f"{like}",
                code="advise.model-unknown",
            ) from error
        row = known or min(
            (one for one in self.models.values() if not one.active_parameters),
            key=lambda one: abs(parse_parameters(one.parameters) - count),
        )
        return shape_by_hand(
            row.parameters if known else size,
            layers=row.layers,
            kv_heads=row.kv_heads,
            head_dim=row.head_dim,
            bits=quantization.bits,
            active=row.active_parameters,
            quantization=quantization.name,
            packing=quantization.packing,
        )


_KINDS: Final[dict[str, type[Row]]] = {
    "devices": DeviceRow,
    "figures": FigureRow,
    "models": ModelRow,
    "prices": PriceRow,
    "quantizations": QuantizationRow,
    "runtimes": RuntimeRow,
}


def read_tables(own: Mapping[str, Path] | None = None) -> Tables:
    """The packaged tables, with the rows of a user's own.

    Raises:
        InvalidInput: There is no such table, or a row is not usable: file, line and remedy.
    """
    own = own or {}
    replaceable = _KINDS.keys() - {"figures"}  # formulas have names for the numbers in them
    for name in own.keys() - replaceable:
        raise InvalidInput(
            f"'{name}' is not a table of rows to add; {did_you_mean(name, replaceable)}",
            code="advise.table-unknown",
        )
    tables: dict[str, Any] = {}
    for name, kind in _KINDS.items():
        packaged = files("harness.hardware").joinpath("tables", f"{name}.csv")
        tables[name] = _rows(packaged.read_text(encoding="utf-8"), kind, f"{name}.csv")
        if name in own:
            tables[name] |= _rows(read_text(f"table '{name}'", own[name]), kind, str(own[name]))
    return Tables(**tables)


def _rows(text: str, kind: type[Row], path: str) -> dict[str, Row]:
    reader = csv.DictReader(io.StringIO(text))
    rows = {}
    for values in reader:
        try:
            row = kind.model_validate({str(key): one for key, one in values.items() if one})
        except ValidationError as error:
            first, columns = error.errors()[0], ", ".join(kind.model_fields)
            where = f"{path}:{reader.line_num}: {'.'.join(map(str, first['loc']))}"
            raise InvalidInput(
                f"{where}: {first['msg']}; the columns are {columns}",
                code="advise.table-row",
            ) from error
        rows[row.name] = row
    return rows
