"""The tables that are packaged, and a user's own."""

from dataclasses import replace

import pytest

from harness.advise import data_tables
from harness.advise.data_tables import known_device, known_shape, product, quantization_of, rows
from harness.errors import InvalidInput
from harness.hardware.machine import Gpu

GPU = Gpu(name="gpu0", capacity_bytes=2**34, memory_bytes_per_s=None, product="A card")


@pytest.mark.parametrize("table", ["devices", "quantizations"])
def test_each_row_has_its_source_and_its_date(table):
    assert [row for row in rows(table) if not (row["source"] and row["date"])] == []
    assert all(row["price_source"] for row in rows(table) if row.get("usd_per_hour"))


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
def test_a_published_size_follows_from_the_bits_of_its_weights(name, gb_7b, gb_13b):
    bits = quantization_of(name).bits
    assert bits * 7e9 / 8 == pytest.approx(gb_7b * 1e9, rel=0.065)
    assert bits * 13e9 / 8 == pytest.approx(gb_13b * 1e9, rel=0.065)


def test_a_gpu_is_known_by_what_its_driver_calls_it():
    assert product("NVIDIA H100 80GB HBM3") == known_device("h100")
    assert known_device("L40S") == known_device("NVIDIA L40S") == known_device("l40s")
    for name in ("RTX 4090", "rtx4090", "NVIDIA GeForce RTX 4090"):
        assert known_device(name).name == "rtx-4090"
    assert known_device("NVIDIA A100-SXM4-80GB").name == "a100-80gb-sxm"
    assert product("NVIDIA L40S").name == "l40s"
    assert product("A card") is None


def test_a_model_is_known_by_name_or_takes_the_layers_of_one_of_its_size():
    assert known_shape("llama-3.1-8b").parameters == pytest.approx(8.03e9, rel=1e-4)
    seven = known_shape("7B")
    assert (seven.parameters, seven.layers, seven.packing) == (7 * 10**9, 32, "safetensors")
    for name in ("meta-llama/Llama-3.1-8B-Instruct", "llama3.1:8b", "Llama 3.1 8B"):
        assert known_shape(name).layers == 32
    assert known_shape("Qwen3-30B-A3B").expert_share < 0.2
    deepseek = known_shape("deepseek-ai/DeepSeek-V3-0324")
    assert (deepseek.quantization, deepseek.sequence_kv_bytes(1)) == ("FP8", 61 * 576 * 2)


@pytest.mark.parametrize(
    ("model", "precision", "gib"),
    [("Llama-3.1-8B", "AWQ", 5.3), ("Llama-3.1-8B", "FP8", 8.46), ("Llama-3.1-70B", "AWQ", 37.1)],
)
def test_tables_and_routers_stay_in_16_bits(model, precision, gib):
    """Sizes of hugging-quants/…-AWQ-INT4 and neuralmagic/…-FP8, not read again here."""
    shape = known_shape(model).quantized(quantization_of(precision))
    assert shape.weight_bytes / 2**30 == pytest.approx(gib, rel=0.03)


@pytest.mark.parametrize(
    ("gpus", "code", "message"),
    [
        ((), "advise.no-such-gpu", "not seen .*found: none"),
        ((GPU,), "advise.gpu-unknown", r"'gpu0' is unknown \(A card\); .*--bandwidth"),
        ((replace(GPU, memory_bytes_per_s=10**12),), None, ""),
    ],
)
def test_a_gpu_of_this_machine_is_missing_or_not_known_enough(monkeypatch, gpus, code, message):
    monkeypatch.setattr(data_tables, "read_gpus", lambda: gpus)
    if code is None:
        assert data_tables.this_gpu("gpu0").memory_bytes == 2**34
        return
    with pytest.raises(InvalidInput, match=message) as caught:
        data_tables.this_gpu("gpu0")
    assert caught.value.code == code


def test_an_unknown_device_is_told_with_the_nearest():
    with pytest.raises(InvalidInput, match="did you mean 'h100'") as caught:
        known_device("h10")
    assert caught.value.code == "advise.device-unknown"
