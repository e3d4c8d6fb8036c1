"""Packings of weights, and which are too coarse for an evaluator."""

import pytest

from harness.hardware import WEIGHT_FORMATS, is_below_evaluator_floor, label_bits

GB = 10**9


@pytest.mark.parametrize(
    ("packing", "below"),
    [
        pytest.param(0, False, id="F32"),
        pytest.param(1, False, id="F16"),
        pytest.param(7, False, id="Q8_0"),
        pytest.param(15, True, id="Q4_K_M"),
        pytest.param(17, True, id="Q5_K_M"),
        pytest.param(18, True, id="Q6_K"),
        pytest.param(19, True, id="IQ2_XXS"),
        pytest.param(32, False, id="BF16"),
        pytest.param(38, False, id="MXFP4, as it was trained"),
        pytest.param(1024, False, id="a file that does not say"),
        pytest.param(None, False, id="not known"),
        ("Q8_0", False),
        ("q4_k_m", True),
        ("F16", False),
        ("AWQ", True),
        ("gptq-4bit", True),
        ("fp8", False),
        ("W8A8", False),
        ("4.25bpw", True),
        ("MXFP4_MOE", False),
        ("dynamic", False),
    ],
)
def test_an_evaluator_should_not_be_packed_more_coarsely_than_q8_0(packing, below):
    assert is_below_evaluator_floor(packing) is below


@pytest.mark.parametrize(
    ("label", "bits"),
    [
        ("Q4_K_M", 4),
        ("Q8_0", 8),
        ("IQ3_XXS", 3),
        ("TQ1_0", 1),
        ("F16", 16),
        ("BF16", 16),
        ("FP8", 8),
        ("W4A16", 4),
        ("GPTQ-INT8", 8),
        ("AWQ", 4),
        ("GPTQ", 4),
        ("4BIT", 4),
        ("4.25BPW", 4.25),
        ("Q4F16_1", 4),
        ("6_5bpw", 6.5),
        ("MARLIN", None),
    ],
)
def test_a_label_says_how_many_bits_a_weight_has(label, bits):
    assert label_bits(label) == bits


@pytest.mark.parametrize(
    ("name", "size_7b_gb", "size_13b_gb"),
    [
        ("F16", 14.0, 26.0),
        ("Q8_0", 7.7, 14.4),
        ("Q5_K_M", 5.3, 9.8),
        ("Q4_K_M", 4.4, 8.1),
        ("Q3_K_M", 3.5, 6.4),
    ],
)
def test_sizes_are_those_that_are_published_and_not_below_what_the_bits_take(
    name, size_7b_gb, size_13b_gb
):
    packing = WEIGHT_FORMATS[name]
    assert packing.size_7b_bytes == size_7b_gb * GB
    assert packing.size_13b_bytes == size_13b_gb * GB
    assert packing.size_7b_bytes >= 7 * GB * packing.bits_per_weight / 8
    assert packing.least_loss <= packing.most_loss
