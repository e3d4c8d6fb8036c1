"""The tables that are packaged, and a user's own."""

import pytest

from harness.advise.data_tables import read_tables
from harness.errors import InvalidInput


@pytest.fixture(scope="module")
def tables():
    return read_tables()


def test_each_row_has_its_source_and_its_date(tables):
    rows = [row for name in tables.__slots__ for row in getattr(tables, name).values()]
    assert len(rows) > 50
    assert [row.name for row in rows if not row.source or not row.date] == []


# Of the documents that the project started from, section 1. Their 7B has 7.24 billion parameters,
# and their Q5_K_M is larger than the files.
@pytest.mark.parametrize(
    ("name", "gb_7b", "gb_13b"),
    [
        ("F16", 14.0, 26.0),
        ("Q8_0", 7.7, 14.4),
        ("Q5_K_M", 5.3, 9.8),
        ("Q4_K_M", 4.4, 8.1),
        ("Q3_K_M", 3.5, 6.4),
    ],
)
def test_a_published_size_follows_from_the_bits_of_its_weights(tables, name, gb_7b, gb_13b):
    bits = tables.quantization(name).bits
    assert bits * 7e9 / 8 == pytest.approx(gb_7b * 1e9, rel=0.065)
    assert bits * 13e9 / 8 == pytest.approx(gb_13b * 1e9, rel=0.065)


@pytest.mark.parametrize(
    ("name", "gb_s"),
    [
        ("ddr", 50),
        ("rtx-4090", 1008),
        ("a100-80gb", 2000),
        ("h100", 3350),
        ("pcie-4-x16-sustained", 20),
    ],
)
def test_bandwidths_are_as_published(tables, name, gb_s):
    assert tables.devices[name].device.memory_bytes_per_s == gb_s * 10**9


def test_a_gpu_is_known_by_what_its_driver_calls_it(tables):
    assert tables.product("NVIDIA H100 80GB HBM3") == tables.device("h100")
    assert tables.product("NVIDIA L40S").name == "l40s"
    assert tables.product("A card") is None


def test_a_model_is_known_by_name_or_takes_the_layers_of_one_of_its_size(tables):
    assert tables.shape("llama-3.1-8b").parameters == 8_030_000_000
    seven = tables.shape("7B")
    assert (seven.parameters, seven.layers, seven.packing) == (7 * 10**9, 32, "safetensors")
    assert tables.shape("Qwen3-30B-A3B").expert_share < 0.2
    deepseek = tables.shape("DeepSeek-V3")
    assert (deepseek.quantization, deepseek.token_kv_bytes()) == ("FP8", 61 * 576 * 2)


@pytest.mark.parametrize(
    ("model", "precision", "gib"),
    [("Llama-3.1-8B", "AWQ", 5.3), ("Llama-3.1-8B", "FP8", 8.46), ("Llama-3.1-70B", "AWQ", 37.1)],
)
def test_tables_and_routers_stay_in_16_bits(tables, model, precision, gib):
    """Sizes of hugging-quants/…-AWQ-INT4 and neuralmagic/…-FP8, not read again here."""
    row = tables.quantization(precision)
    shape = tables.shape(model).quantized(row.name, packing=row.packing, bits=row.bits)
    assert shape.weight_bytes / 2**30 == pytest.approx(gib, rel=0.03)


def test_an_unknown_device_is_told_with_the_nearest(tables):
    with pytest.raises(InvalidInput) as caught:
        tables.device("h10")
    assert caught.value.code == "advise.device-unknown"
    assert "did you mean 'h100'" in str(caught.value)
