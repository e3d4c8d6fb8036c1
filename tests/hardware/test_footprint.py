"""Footprints, against published figures and against what llama.cpp itself reports."""

from __future__ import annotations

from dataclasses import replace

import pytest
from logged_memory import MIB, MOST_WITH_A_DOUBT, exact_bytes, logged_memory

from harness.errors import InvalidInput
from harness.hardware import (
    Footprint,
    Loading,
    format_bytes,
    gguf_footprint,
    gguf_header_from_values,
    parse_bytes,
    read_gguf_header,
)
from harness.hardware.footprint import compute_bytes, layer_cache_bytes, prompt_kv_bytes
from harness.hardware.gguf import GgufHeader, even_weights
from harness.hardware.gguf_caches import LayerCache


def model(
    *, layers, width, feed_forward, heads_kv, head=128, vocabulary=32_000, experts=0, recurrent=0
):
    return GgufHeader(
        architecture="llama",
        name="a model",
        file_type=15,
        parameters=0,
        block_count=layers,
        context_length=131_072,
        embedding_length=width,
        feed_forward_length=feed_forward,
        recurrent_length=0,
        expert_count=experts,
        expert_used_count=experts,
        head_count=heads_kv,
        vocabulary_size=vocabulary,
        caches=(LayerCache(heads=heads_kv, key_length=head, value_length=head),) * layers,
        exact_caches=True,
        weights=even_weights(0, layers=layers),
    )


def shaped(layers, heads_kv, head):
    return model(layers=layers, heads_kv=heads_kv, head=head, width=4096, feed_forward=0)


# --- KV cache: published figures -------------------------------------------------------------


@pytest.mark.parametrize(
    ("cache_type", "mib"), [("f16", "90.0"), ("q8_0", "47.8"), ("q4_0", "25.3")]
)
def test_4096_tokens_of_the_demo_model_take_what_llama_cpp_allocates(demo_model, cache_type, mib):
    loading = Loading(context_tokens=4096, cache_type_k=cache_type, cache_type_v=cache_type)
    cache_bytes = sum(layer_cache_bytes(read_gguf_header(demo_model), loading))
    assert f"{cache_bytes / MIB:.1f}" == mib


# --- KV cache: rules -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("context_tokens", "slots", "cells"),
    [
        pytest.param(1, 1, 256, id="at least 256"),
        pytest.param(257, 1, 512, id="one more is padded"),
        pytest.param(1000, 3, 3072, id="each slot is padded by itself"),
        pytest.param(4096, 4, 16_384, id="slots multiply"),
    ],
)
def test_every_slot_has_its_context_padded_to_256(context_tokens, slots, cells):
    one = shaped(1, 1, 64)
    needed = sum(layer_cache_bytes(one, Loading(context_tokens=context_tokens, slots=slots)))
    assert needed == prompt_kv_bytes(one, Loading(context_tokens=1), cells)


def test_keys_and_values_are_counted_by_their_own_width_and_type():
    uneven = replace(
        shaped(2, 3, 64),
        caches=(LayerCache(heads=3, key_length=64, value_length=128), LayerCache()),
    )
    loading = Loading(context_tokens=1, cache_type_k="q8_0", cache_type_v="q4_0")
    needed = prompt_kv_bytes(uneven, loading, 1)
    assert needed == 3 * (64 // 32 * 34) + 3 * (128 // 32 * 18)


@pytest.mark.parametrize(("whole_windows", "held"), [(False, 300 + 100), (True, 300 + 300)])
def test_a_prompt_takes_of_a_window_no_more_than_it_holds(whole_windows, held):
    layer = LayerCache(heads=1, key_length=64, value_length=64)
    model = replace(shaped(2, 1, 64), caches=(layer, replace(layer, window_tokens=100)))
    loading = Loading(context_tokens=4096, whole_windows=whole_windows)
    assert prompt_kv_bytes(model, loading, 300) == held * 2 * 64 * 2


def test_a_cache_type_whose_blocks_do_not_fit_the_heads_is_refused():
    with pytest.raises(InvalidInput) as caught:
        gguf_footprint(shaped(32, 32, 80), Loading(context_tokens=4096, cache_type_k="q8_0"))
    assert caught.value.code == "model.cache-type-does-not-fit"


# --- compute buffers -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "context_tokens", "slots", "compute_mib", "output_mib"),
    [  # "compute buffer size" and "output buffer size" of llama.cpp b11549, dry loads on a CPU
        pytest.param("32 4096 14336 8 128256 0", 4096, 1, 128.02, 0.49, id="Llama 3.1 8B"),
        pytest.param(
            "32 4096 14336 8 128256 0", 8192, 4, 132.02, 1.96, id="Llama 3.1 8B, four slots"
        ),
        pytest.param("80 8192 28672 8 128256 0", 32_768, 1, 280.02, 0.49, id="Llama 3.1 70B, long"),
        pytest.param("32 4096 11008 32 32000 0", 4096, 1, 108.52, 0.12, id="Llama 2 7B"),
        pytest.param("28 1024 3072 8 151936 0", 4096, 1, 32.02, 0.58, id="Qwen 3 0.6B"),
        pytest.param("32 3072 8192 32 32064 0", 1024, 1, 79.02, 0.12, id="Phi 3 mini"),
        pytest.param("34 2560 10240 4 262144 0", 32_768, 1, 118.53, 1.00, id="Gemma 3 4B, long"),
        pytest.param("32 4096 28672 8 32000 2", 4096, 1, 212.02, 0.12, id="Mixtral 8x7B"),
        pytest.param("24 2880 11520 8 201088 4", 32_768, 1, 128.40, 0.77, id="gpt-oss 20B"),
    ],
)
def test_the_compute_allowance_is_just_above_what_llama_cpp_reserves(
    shape, context_tokens, slots, compute_mib, output_mib
):
    layers, width, feed_forward, heads_kv, vocabulary, experts = map(int, shape.split())
    shape = model(
        layers=layers,
        width=width,
        feed_forward=feed_forward,
        heads_kv=heads_kv,
        vocabulary=vocabulary,
        experts=experts,
    )
    allowance = compute_bytes(shape, Loading(context_tokens=context_tokens, slots=slots)) / MIB
    assert 0.4 < allowance - compute_mib - output_mib < 2.0


@pytest.mark.parametrize(
    ("keys", "context_tokens", "slots", "logged_mib"),
    [  # compute and output buffers of llama.cpp b11549, for models with these widths
        pytest.param("mamba 2560 0 5120 16 0 160", 2048, 4, 76.49, id="Mamba 2.8B, four slots"),
        pytest.param("mamba2 2560 0 5120 128 1 80", 2048, 4, 86.91, id="Mamba 2 2.7B, four slots"),
        pytest.param("jamba 2560 8192 5120 16 0 160", 512, 1, 75.89, id="Jamba 3B"),
        pytest.param("falcon-h1 2048 4096 3072 256 1 48", 2048, 4, 76.28, id="Falcon H1, 4 slots"),
        pytest.param("qwen35 2560 9216 4096 128 16 32", 4096, 1, 83.02, id="Qwen 3.5 4B"),
    ],
)
def test_recurrent_models_are_allowed_no_less_than_llama_cpp_reserves(
    keys, context_tokens, slots, logged_mib
):
    architecture, *numbers = keys.split()
    names = ("embedding_length", "feed_forward_length", "ssm.inner_size", "ssm.state_size",
             "ssm.group_count", "ssm.time_step_rank")  # fmt: skip
    header = gguf_header_from_values(
        {f"{architecture}.{name}": int(number) for name, number in zip(names, numbers, strict=True)}
        | {
            "general.architecture": architecture,
            f"{architecture}.block_count": 4,
            f"{architecture}.context_length": 32_768,
            f"{architecture}.attention.head_count": 0,
            f"{architecture}.ssm.conv_kernel": 4,
        },
        name="a model",
        tensor_bytes=0,
    )
    allowance = compute_bytes(header, Loading(context_tokens=context_tokens, slots=slots)) / MIB
    assert logged_mib < allowance < 7 / 6 * logged_mib


# --- the whole -------------------------------------------------------------------------------


def test_a_footprint_is_the_sum_of_its_parts_and_prints_them():
    needed = Footprint(weights_bytes=92 * MIB, kv_bytes=90 * MIB, compute_bytes=20 * MIB)
    assert needed.total_bytes == 202 * MIB
    assert str(needed) == "202.0 MiB (weights 92.0 MiB, KV cache 90.0 MiB, compute 20.0 MiB)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("context_tokens", "slots", "types"),
    [
        pytest.param(256, 1, "f16 f16", id="as small as can be"),
        pytest.param(1000, 3, "f16 f16", id="three slots, padded"),
        pytest.param(8192, 1, "q8_0 q4_0", id="quantized"),
        pytest.param(4096, 3, "q5_1 iq4_nl", id="quantized more"),
        pytest.param(2048, 1, "f32 bf16", id="not quantized"),
    ],
)
def test_a_footprint_is_what_llama_cpp_logs(demo_model, context_tokens, slots, types):
    cache_type_k, cache_type_v = types.split()
    case = {
        "context_tokens": context_tokens,
        "slots": slots,
        "cache_type_k": cache_type_k,
        "cache_type_v": cache_type_v,
    }
    logged = logged_memory(demo_model, **case)
    needed = gguf_footprint(read_gguf_header(demo_model), Loading(**case))

    assert round(needed.weights_bytes / MIB, 2) == logged.model_mib
    assert round(needed.kv_bytes / MIB, 2) == logged.kv_mib
    (cache,) = logged.caches
    if cache.cells > MOST_WITH_A_DOUBT:
        assert needed.kv_bytes == exact_bytes(cache.cells, cache.keys_mib) + exact_bytes(
            cache.cells, cache.values_mib
        )
    excess_mib = needed.compute_bytes / MIB - logged.compute_mib - logged.output_mib
    assert 0 < excess_mib < 3
    in_all_mib = logged.model_mib + logged.kv_mib + logged.compute_mib + logged.output_mib
    assert needed.total_bytes / MIB == pytest.approx(in_all_mib, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loading", "how", "share"),
    [
        pytest.param(
            Loading(context_tokens=4096, slots=4, micro_batch_tokens=128),
            {"batch_tokens": 128},
            1.4,
            id="as the embedded engine chats",
        ),
        pytest.param(
            Loading(context_tokens=4096, slots=4, computed_logits=512),
            {"batch_tokens": 512, "embeds": True},
            1.05,
            id="as it embeds: with room for the logits of a micro-batch",
        ),
    ],
)
def test_the_engines_settings_are_in_the_allowance(demo_model, loading, how, share):
    logged = logged_memory(demo_model, context_tokens=4096, slots=4, **how)
    header = read_gguf_header(demo_model)

    logged_mib = logged.compute_mib + logged.output_mib
    assert logged_mib < compute_bytes(header, loading) / MIB < share * logged_mib
    needed_mib = gguf_footprint(header, loading).total_bytes / MIB
    in_all_mib = logged.model_mib + logged.kv_mib + logged_mib
    assert needed_mib == pytest.approx(in_all_mib, rel=0.05)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        pytest.param(1023, "1023 B", id="below a KiB"),
        pytest.param(2**20 - 1, "1.0 MiB", id="rounds up into the next unit"),
        pytest.param(70 * 10**9, "65.2 GiB", id="70 GB are 65.2 GiB"),
        pytest.param(5000 * 2**40, "5000.0 TiB", id="the largest unit"),
    ],
)
def test_a_byte_count_is_written_in_binary_units(count, text):
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("size", "count"),
    [
        pytest.param(8_589_934_592, 8 * 2**30, id="a number"),
        pytest.param("8589934592", 8 * 2**30, id="a number as text"),
        pytest.param("8GB", 8 * 10**9, id="GB is 10**9"),
        pytest.param(" 512 mib ", 512 * 2**20, id="lower case, spaces around"),
        pytest.param("1.1 GB", 1_100_000_000, id="a fraction, exactly"),
        pytest.param("1.5 B", 1, id="a fraction of a byte is dropped"),
    ],
)
def test_a_size_that_a_person_wrote_is_read(size, count):
    assert parse_bytes(size) == count


@pytest.mark.parametrize(
    "size", ["", "eight GiB", "8 G", "-1 GiB", -1, "1e9 B", "1.5", "GiB", "8 iB", "٣ GiB", "³"]
)
def test_a_size_of_another_form_is_refused(size):
    with pytest.raises(ValueError, match="is not a size"):
        parse_bytes(size)
