"""Packings of tensors, weights and caches, and which are too coarse for an evaluator."""

import pytest

from harness.hardware import file_type_name, is_below_evaluator_floor
from harness.hardware.quantization import CACHE_FORMATS, TENSOR_FORMATS, label_bits


def test_a_file_type_has_the_name_people_know():
    assert [*map(file_type_name, (1, 15, 38))] == ["F16", "Q4_K_M", "MXFP4_MOE"]
    # 5 was withdrawn from the format; by 1024, the file does not say.
    assert [*map(file_type_name, (5, 1024))] == ["unknown", "unknown"]


BITS_PER_ELEMENT = """
F16=16 Q8_0=8.5 Q6_K=6.5625 Q5_K=5.5 Q4_K=4.5 Q3_K=3.4375 Q2_K=2.625 Q1_0=1.125 Q2_0=2.25
IQ4_XS=4.25 IQ3_XXS=3.0625 IQ3_S=3.4375 IQ2_XXS=2.0625 IQ2_XS=2.3125 IQ1_S=1.5625 IQ1_M=1.75
TQ1_0=1.6875 TQ2_0=2.0625 MXFP4=4.25 NVFP4=4.5
"""  # as llama.cpp prints them
HEAD_BYTES = "f32=256 f16=128 bf16=128 q8_0=68 q5_1=48 q5_0=44 q4_1=40 q4_0=36 iq4_nl=36"


def published(rows):
    return [(name, float(number)) for name, number in (row.split("=") for row in rows.split())]


@pytest.mark.parametrize(("name", "bits"), published(BITS_PER_ELEMENT))
def test_a_tensor_type_takes_its_published_bits(name, bits):
    [block] = [block for block in TENSOR_FORMATS.values() if block.name == name]
    assert 8 * block.block_bytes / block.block_elements == bits


@pytest.mark.parametrize(("name", "row_bytes"), published(HEAD_BYTES))
def test_a_cached_head_of_64_elements_takes_exact_bytes(name, row_bytes):
    assert CACHE_FORMATS[name].row_bytes(64) == row_bytes


# --- of evaluators ----------------------------------------------------------------------------

FINE_ENOUGH = [0, 1, 7, 32, "Q8_0", "F16", "fp8", "W8A8"]
AS_TRAINED_OR_UNKNOWN = [38, "MXFP4_MOE", 1024, None, "dynamic"]
TOO_COARSE = [15, 17, 18, 19, "q4_k_m", "AWQ", "gptq-4bit", "4.25bpw"]


def test_an_evaluator_should_not_be_packed_more_coarsely_than_q8_0():
    assert not any(map(is_below_evaluator_floor, FINE_ENOUGH + AS_TRAINED_OR_UNKNOWN))
    assert all(map(is_below_evaluator_floor, TOO_COARSE))


@pytest.mark.parametrize(
    ("bits", "labels"),
    [
        (16, "F16 BF16"),
        (8, "Q8_0 FP8 GPTQ-INT8"),
        (6.5, "6_5bpw"),
        (4, "EXL2-4.0bpw exl3_4bpw"),
        (4, "Q4_K_M W4A16 AWQ GPTQ 4BIT Q4F16_1"),
        (None, "MARLIN exl2"),
    ],
)
def test_a_label_says_how_many_bits_a_weight_has(bits, labels):
    assert {label_bits(label) for label in labels.split()} == {bits}
