"""Every published figure of sizes, speed and money, against the formula it goes with."""

import math
from dataclasses import replace

import pytest
from shapes import shape_by_hand

from harness.advise.data_tables import DeviceSpec, device_by_hand, known_shape, quantization_of
from harness.advise.rates import (
    Factors,
    Rates,
    mean_queue,
    mixed_itl_s,
    requests_per_s,
    usd_per_million_tokens,
)

GB, GIB = 10**9, 2**30
H100 = DeviceSpec(
    name="h100",
    memory_bytes=80 * GIB,
    memory_bytes_per_s=3350 * GB,
    flops_per_s=989.4e12,
    source="test",
)
EVEN = {"layers": 32, "kv_heads": 32, "head_dim": 128}
SEVEN = shape_by_hand("7B", **EVEN)
SEVENTY = {"layers": 80, "head_dim": 128}
WITHOUT_GROUPS = shape_by_hand("70B", **SEVENTY, kv_heads=64, bits=8)
GROUPED = shape_by_hand("70B", **SEVENTY, kv_heads=8, bits=8)
MIXTURE = shape_by_hand("8B", **EVEN, active="2B", bits=8)


def on(model, device=H100, **how):
    return Rates(model=model, device=device, **how)


def gb(size, bits):
    return shape_by_hand(size, **EVEN, bits=bits).weight_bytes / GB


# Figures of the documents that the project started from, by their sections; the last ones are by
# hand. A source's slip is in the id, and the right figure in the row.
FIGURES = {
    "1: 7B at 16 bits, GB": (gb("7B", 16), 14.0),
    "1: 13B at 16 bits, GB": (gb("13B", 16), 26.0),
    "1: 70B at 16 bits, GB": (gb("70B", 16), 140),
    "1: 70B at 8 bits, GB": (gb("70B", 8), 70),
    "1: 70B at 4 bits, GB": (gb("70B", 4), 35),
    "2: KV bytes of a token, 32 layers of 32 heads of 128": (SEVEN.sequence_kv_bytes(1), 524_288),
    "2: KV of 8,192 tokens, GiB": (SEVEN.sequence_kv_bytes(8192) / GIB, 4),
    "2: 70B without groups, KV bytes of a token": (WITHOUT_GROUPS.sequence_kv_bytes(1), 2_621_440),
    "2: 70B with 8 KV heads for 64, an eighth": (GROUPED.sequence_kv_bytes(1), 327_680),
    "3: KV in 8 bits is half": (SEVEN.sequence_kv_bytes(1, 8) / SEVEN.sequence_kv_bytes(1), 0.5),
    "3: 2 of 8 experts, bytes of one token": (on(MIXTURE).weight_bytes(1), 2 * GB),
    "3: all experts are in memory": (MIXTURE.weight_bytes, 8 * GB),
    "4: $8.42/h at 1,000 tokens/s": (usd_per_million_tokens(8.42, tokens_per_s=1000), 2.34),
    "4: half idle costs twice": (
        usd_per_million_tokens(8.42, tokens_per_s=1000, busy=0.5),
        2 * 2.339,
    ),
    "prefill of 7B at 989.4 TFLOP/s, tokens/s": (on(SEVEN).prefill_tokens_per_s(), 70_671),
    "prefill of 7,067 tokens, half of them cached, s": (
        on(SEVEN).prefill_s(7067, cached=3533),
        0.0569,  # 0.05 for the products, the rest for attention to 7,067 tokens
    ),
    "prefill of 4,096 tokens of 7B, times one token's (Kaplan et al.)": (
        on(SEVEN).prefill_tokens_per_s() / on(SEVEN).prefill_tokens_per_s(4096),
        1.08,
    ),
    "a short prompt takes as long as the weights": (on(SEVEN).prefill_s(1), 14 / 3350),
    "queue at half load": (mean_queue(1, 0.5), 0.5),
    "queue at full load": (mean_queue(2, 0.5), math.inf),
    "requests of 100 tokens, 10 at once": (
        requests_per_s(0.02, 0.1, sequences=10, output_tokens=100),
        1 / 0.3,
    ),
    "ITL beside nine prompts": (mixed_itl_s(0.02, 0.1, sequences=10, output_tokens=100), 0.029),
}


@pytest.mark.parametrize(("found", "published"), FIGURES.values(), ids=FIGURES)
def test_a_published_figure_follows_from_its_formula(found, published):
    assert found == pytest.approx(published, rel=0.005)


def test_what_a_machine_reaches_of_the_limits_changes_them():
    slower = on(GROUPED, factors=Factors(bandwidth=0.5, compute=0.25))
    at = {"tokens": 1000, "sequences": 4}
    limit_s = on(GROUPED).step_s(**at)
    assert slower.step_s(**at) == pytest.approx(2 * limit_s)
    assert slower.prefill_tokens_per_s() == on(GROUPED).prefill_tokens_per_s() / 4


def test_a_processor_computes_after_it_has_read():
    cpu = replace(H100, is_gpu=False)
    at = {"tokens": 1000, "sequences": 4}
    computing_s = 4 / on(GROUPED).prefill_tokens_per_s()
    assert on(GROUPED, device=cpu).step_s(**at) == pytest.approx(
        on(GROUPED).step_s(**at) + computing_s
    )


def test_caches_may_be_read_slower_than_weights():
    slower = on(GROUPED, factors=Factors(cache=0.1))
    cache_s = 4 * GROUPED.sequence_kv_bytes(1000) / H100.memory_bytes_per_s
    at = {"tokens": 1000, "sequences": 4}
    assert slower.step_s(**at) == pytest.approx(on(GROUPED).step_s(**at) + 9 * cache_s)


def test_a_large_batch_is_bound_by_the_processor_if_its_speed_is_known():
    unknown = on(GROUPED, device=replace(H100, flops_per_s=None))
    assert on(GROUPED).step_s(tokens=0, sequences=1000) == pytest.approx(140e12 / 989.4e12)
    assert unknown.step_s(tokens=0, sequences=1000) < 0.03
    assert unknown.prefill_s(1000) is None


def test_more_sequences_wake_more_experts_but_never_more_than_there_are():
    sizes = [on(MIXTURE).weight_bytes(count) for count in (1, 2, 4, 64)]
    assert sizes == sorted(sizes)
    assert sizes[1] == (8 - 6 * 0.75) * GB
    assert sizes[-1] == pytest.approx(8 * GB, rel=1e-6)
    assert on(SEVEN).weight_bytes(64) == SEVEN.active_bytes


def test_a_device_by_hand_has_what_was_given():
    alone = device_by_hand("24 GiB", bandwidth="1008 GB/s", tflops=20)
    assert (alone.memory_bytes_per_s, alone.flops_per_s) == (1008 * GB, 20e12)
    # What nobody gave is unknown, and no other device's.
    assert device_by_hand("24 GiB").flops_per_s is None
    assert not device_by_hand("24 GiB").memory_bytes_per_s


def test_fp8_and_quantized_gguf_have_operations_of_their_own():
    eight = replace(H100, fp8_flops_per_s=1979e12, has_int8=True)
    named = ("FP8", "AWQ", "MXFP4", "Q8_0", "MXFP4_MOE", "BF16", None)
    of_integers = 2 * 989.4e12
    assert [eight.flops_with(name) for name in named] == [
        *(1979e12, 989.4e12, 989.4e12, of_integers, of_integers, 989.4e12, 989.4e12)
    ]
    assert H100.flops_with("FP8") == 989.4e12
    assert H100.flops_with("Q8_0") == 989.4e12, "of one by hand"


def test_gpus_that_divide_layers_send_each_other_two_sums_of_each_layer():
    linked = replace(H100, link_bytes_per_s=32e9)
    rates = Rates(GROUPED, linked, tensor_parallel=8)
    width = (GROUPED.active_parameters / (12 * GROUPED.layers)) ** 0.5
    sent_bytes = 1000 * 2 * GROUPED.layers * width * 2 * (2 * 7 / 8)
    assert rates.sending_s(1000) == pytest.approx(sent_bytes / 32e9)
    assert replace(rates, tensor_parallel=1).sending_s(1000) == 0
    assert replace(rates, device=H100).sending_s(1000) == 0


def test_tables_stay_in_16_bits_when_a_model_is_quantized():
    shape = known_shape("Llama-3.1-8B").quantized(quantization_of("FP8"))
    table_bytes = 2 * 128_256 * 4096
    assert shape.weight_bytes - shape.passed_bytes == table_bytes
    assert shape.active_bytes == shape.passed_bytes


def test_gpus_that_divide_layers_share_the_reading_and_repeat_what_is_one_head():
    two, alone = on(GROUPED, tensor_parallel=2), on(GROUPED)
    at = {"tokens": 4000, "sequences": 8}
    assert two.step_s(**at) == pytest.approx(alone.step_s(**at) / 2)
    assert two.prefill_tokens_per_s() == 2 * alone.prefill_tokens_per_s()
    latent = shape_by_hand("70B", layers=61, kv_heads=1, head_dim=288)
    assert latent.on_rank(8).sequence_kv_bytes(1) == latent.sequence_kv_bytes(1) == 61 * 576 * 2
    # Eight heads on sixteen GPUs: each has one, so that all are there twice.
    assert GROUPED.on_rank(16).sequence_kv_bytes(1) * 16 == 2 * GROUPED.sequence_kv_bytes(1)
    # Ten on four: padded to twelve.
    padded = shape_by_hand("8B", layers=32, kv_heads=10, head_dim=128)
    assert padded.on_rank(4).sequence_kv_bytes(1) * 4 == padded.sequence_kv_bytes(1) * 12 // 10


def test_a_pipeline_makes_no_token_sooner_but_more_of_them():
    two, alone = on(GROUPED, stages=2), on(GROUPED)
    assert two.step_s(tokens=4000) == alone.step_s(tokens=4000)
    assert two.step_s(tokens=4000, sequences=8) == alone.step_s(tokens=4000, sequences=4)
    # llama.cpp's stages wait for one another.
    packed = replace(GROUPED, packing="gguf")
    waiting = on(packed, stages=2)
    assert waiting.step_s(tokens=4000, sequences=8) == on(packed).step_s(tokens=4000, sequences=8)
