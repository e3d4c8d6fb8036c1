"""How weights are packed, what each packing is good for, and which is too coarse for a judge."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from harness.hardware.quantisation import file_type_name

_GB: Final = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """A packing that people choose between, with sizes as they are published."""

    bits_per_weight: float
    """As it is called; on disk scales come on top, and some tensors take more."""
    size_7b_bytes: int
    """A model of 7 billion parameters."""
    size_13b_bytes: int
    """A model of 13 billion parameters."""
    least_loss: float
    """Of quality against FP16, at best, as a share."""
    most_loss: float
    """And at worst."""
    meant_for: str
    """Who should use it."""


def _format(
    bits: float, gb_7b: float, gb_13b: float, loss: tuple[float, float], meant_for: str
) -> WeightFormat:
    return WeightFormat(
        bits_per_weight=bits,
        size_7b_bytes=round(gb_7b * _GB),
        size_13b_bytes=round(gb_13b * _GB),
        least_loss=loss[0],
        most_loss=loss[1],
        meant_for=meant_for,
    )


WEIGHT_FORMATS: Final[dict[str, WeightFormat]] = {
    "F16": _format(16, 14.0, 26.0, (0, 0), "evaluators on vLLM, highest fidelity"),
    "Q8_0": _format(8, 7.7, 14.4, (0.001, 0.003), "evaluators, as the lowest"),
    "Q5_K_M": _format(5.5, 5.3, 9.8, (0.005, 0.01), "good producers on 8 GB; code"),
    "Q4_K_M": _format(4.5, 4.4, 8.1, (0.01, 0.025), "producers"),
    "Q3_K_M": _format(3.5, 3.5, 6.4, (0.04, 0.08), "nothing if it can be helped; no evaluator"),
}
"""By the name of the file type, best first."""

EVALUATOR_FLOOR: Final = "Q8_0"
"""The coarsest packing of an evaluator: below it the noise of its scores poisons the loop, and no
rubric mends that. A producer may be at Q4_K_M, since the loop corrects it."""


def label_bits(label: str) -> float | None:
    """The bits of a weight, by the name of its packing; None for one that does not say.

    A label: `Q4_K_M` takes more than its 4, since scales and some tensors take more.
    """
    number = re.search(r"\d+(?:[._]\d+)?(?=[-_]?BPW)|\d+", label.upper())
    if number is not None:
        return float(number[0].replace("_", "."))
    # Both are of 4 bits unless they say otherwise.
    return 4.0 if label.upper() in {"AWQ", "GPTQ"} else None


def is_below_evaluator_floor(packing: int | str | None) -> bool:
    """Whether weights are known to be packed more coarsely than an evaluator's should be.

    MXFP4 is not: the models that come in it were trained in it.

    Args:
        packing: `general.file_type` of a GGUF, or a label such as `Q4_K_M`, `AWQ` or `4-bit`; None
            when it is not known.
    """
    label = file_type_name(packing) if isinstance(packing, int) else packing
    if label is None or "MXFP4" in label.upper():
        return False
    bits = label_bits(label)
    return bits is not None and bits < WEIGHT_FORMATS[EVALUATOR_FLOOR].bits_per_weight
