"""Tensor types, cache types and the names of file types."""

import pytest

from harness.errors import InvalidInput
from harness.hardware import file_type_name
from harness.hardware.quantisation import TENSOR_FORMATS, cache_format


@pytest.mark.parametrize(
    ("file_type", "name"),
    [
        (0, "F32"),
        (1, "F16"),
        (3, "Q4_1"),
        (7, "Q8_0"),
        (15, "Q4_K_M"),
        (17, "Q5_K_M"),
        (18, "Q6_K"),
        (32, "BF16"),
        (38, "MXFP4_MOE"),
        (5, "unknown"),  # withdrawn from the format
        (1024, "unknown"),  # the file does not say
        (10**6, "unknown"),
    ],
)
def test_a_file_type_has_the_name_people_know(file_type, name):
    assert file_type_name(file_type) == name


@pytest.mark.parametrize(
    ("name", "bits_per_element"),
    [  # as llama.cpp prints them
        ("F16", 16),
        ("Q8_0", 8.5),
        ("Q6_K", 6.5625),
        ("Q5_K", 5.5),
        ("Q4_K", 4.5),
        ("Q3_K", 3.4375),
        ("Q2_K", 2.625),
        ("IQ4_XS", 4.25),
        ("IQ3_XXS", 3.0625),
        ("IQ3_S", 3.4375),
        ("IQ2_XXS", 2.0625),
        ("IQ2_XS", 2.3125),
        ("IQ1_S", 1.5625),
        ("IQ1_M", 1.75),
        ("TQ1_0", 1.6875),
        ("TQ2_0", 2.0625),
        ("MXFP4", 4.25),
        ("NVFP4", 4.5),
        ("Q1_0", 1.125),
        ("Q2_0", 2.25),
    ],
)
def test_a_tensor_type_takes_its_published_bits(name, bits_per_element):
    block = next(block for block in TENSOR_FORMATS.values() if block.name == name)
    assert 8 * block.block_bytes / block.block_elements == bits_per_element


@pytest.mark.parametrize(
    ("cache_type", "row_bytes"),
    [
        ("f32", 256),
        ("f16", 128),
        ("bf16", 128),
        ("q8_0", 68),
        ("q5_1", 48),
        ("q5_0", 44),
        ("q4_1", 40),
        ("q4_0", 36),
        ("iq4_nl", 36),
    ],
)
def test_a_cached_head_of_64_elements_takes_exact_bytes(cache_type, row_bytes):
    assert cache_format(cache_type).row_bytes(64) == row_bytes


def test_an_unknown_cache_type_is_refused_with_the_nearest_one():
    with pytest.raises(InvalidInput, match="'q8' is not a KV cache type; did you mean 'q8_0'"):
        cache_format("q8")


def test_a_row_that_is_not_whole_blocks_has_no_size():
    with pytest.raises(ValueError, match="80 elements is not a whole number of Q8_0 blocks"):
        cache_format("q8_0").row_bytes(80)
