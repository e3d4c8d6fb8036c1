"""Quantization: how GGUF files and KV caches pack numbers, and how coarse a role's model may be.

From llama.cpp b11434: `ggml_type` and its block sizes (ggml/include/ggml.h, ggml-common.h),
`llama_ftype` (include/llama.h).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, get_args

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
KvBits = Literal[16, 8]

CACHE_TYPES: Final[dict[KvBits, Literal["f16", "q8_0"]]] = {16: "f16", 8: "q8_0"}
"""Nominal bits → llama.cpp's type of cache. With scales, 8 bits are 8.5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFormat:
    """A tensor type: blocks of elements, each block of the same size."""

    name: str  # the name as ggml writes it: `F16`, `Q4_K`
    block_elements: int  # a row is a whole number of blocks
    block_bytes: int  # scales included

    def row_bytes(self, elements: int) -> int:
        """Bytes of a row, exactly; raises ValueError unless it is a whole number of blocks."""
        blocks, rest = divmod(elements, self.block_elements)
        if rest:
            raise ValueError(
                f"a row of {elements} elements is not a whole number of {self.name} blocks "
                f"({self.block_elements} elements each)"
            )
        return blocks * self.block_bytes


# The missing numbers (4, 5, 31-33, 36-38) were withdrawn from the format.
TENSOR_FORMATS: Final[dict[int, BlockFormat]] = {
    number: BlockFormat(name=name, block_elements=elements, block_bytes=size)
    for number, name, elements, size in (
        (0, "F32", 1, 4), (1, "F16", 1, 2), (2, "Q4_0", 32, 18), (3, "Q4_1", 32, 20),
        (6, "Q5_0", 32, 22), (7, "Q5_1", 32, 24), (8, "Q8_0", 32, 34), (9, "Q8_1", 32, 36),
        (10, "Q2_K", 256, 84), (11, "Q3_K", 256, 110), (12, "Q4_K", 256, 144),
        (13, "Q5_K", 256, 176), (14, "Q6_K", 256, 210), (15, "Q8_K", 256, 292),
        (16, "IQ2_XXS", 256, 66), (17, "IQ2_XS", 256, 74), (18, "IQ3_XXS", 256, 98),
        (19, "IQ1_S", 256, 50), (20, "IQ4_NL", 32, 18), (21, "IQ3_S", 256, 110),
        (22, "IQ2_S", 256, 82), (23, "IQ4_XS", 256, 136), (24, "I8", 1, 1), (25, "I16", 1, 2),
        (26, "I32", 1, 4), (27, "I64", 1, 8), (28, "F64", 1, 8), (29, "IQ1_M", 256, 56),
        (30, "BF16", 1, 2), (34, "TQ1_0", 256, 54), (35, "TQ2_0", 256, 66), (39, "MXFP4", 32, 17),
        (40, "NVFP4", 64, 36), (41, "Q1_0", 128, 18), (42, "Q2_0", 64, 18),
    )
}  # fmt: skip

CACHE_FORMATS: Final[dict[CacheType, BlockFormat]] = {
    name: next(block for block in TENSOR_FORMATS.values() if block.name.lower() == name)
    for name in get_args(CacheType)
}
"""The formats of KV caches, by llama.cpp's names (`-ctk`, `-ctv`)."""

_FILE_TYPES: Final[dict[int, str]] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K",
    11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S",
    17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS",
    23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M",
    30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4_MOE", 39: "NVFP4",
    40: "Q1_0", 41: "Q2_0",
}  # fmt: skip
UNKNOWN_FILE_TYPE: Final = 1024
"""llama.cpp's number for a file that does not say (`LLAMA_FTYPE_GUESSED`)."""


def file_type_name(file_type: int) -> str:
    """The name of a `general.file_type`, such as `Q4_K_M`, or `unknown`."""
    return _FILE_TYPES.get(file_type, "unknown")


# The fewest nominal bits of a weight. Below an evaluator's (Q8_0) scores are too noisy for the
# loop, whatever the rubric. A producer may be at Q4_K_M, since the loop corrects it.
ROLE_FLOORS: Final = {"evaluator": 8.0, "judge": 8.0, "code": 5.5, "coder": 5.5}


def role_floor(role: str) -> float:
    """The fewest bits for a role: `judge-b` and `judge2` are a `judge`; an unlisted role has 4."""
    return ROLE_FLOORS.get(role.partition("-")[0].rstrip("0123456789"), 4.0)


def label_bits(label: str) -> float | None:
    """The nominal bits of a weight, by the name of its quantization; None if unknown."""
    # They are the number before BPW, as in `4.25BPW`, or else the first number, as in `Q4_K_M` and
    # `W4A16`. But the number in `EXL2` is the version of ExLlama's format.
    unversioned = re.sub(r"EXL\d", "", label.upper())
    number = re.search(r"\d+(?:[._]\d+)?(?=[-_]?BPW)|\d+", unversioned)
    if number is not None:
        return float(number[0].replace("_", "."))
    # Both have 4 bits if their names have no number.
    return 4.0 if label.upper() in {"AWQ", "GPTQ"} else None


def weight_bits(label: str) -> float:
    """Bits of a weight in safetensors by its label, 4 bits with their scales; 16 if unknown."""
    bits = label_bits(label) or 16
    if bits != 4:
        return bits
    # With scales: NVFP4 has one for 16 weights, MXFP4 for 32, AWQ also a zero for 128.
    return 4.5 if "NVFP4" in label.upper() else 4.25


def is_below_evaluator_floor(packing: int | str | None) -> bool:
    """Whether a file type or label (`Q4_K_M`, `AWQ`) is coarser than an evaluator's floor."""
    label = file_type_name(packing) if isinstance(packing, int) else packing
    # Models that come in MXFP4 were trained in it.
    if label is None or "MXFP4" in label.upper():
        return False
    bits = label_bits(label)
    return bits is not None and bits < ROLE_FLOORS["evaluator"]
