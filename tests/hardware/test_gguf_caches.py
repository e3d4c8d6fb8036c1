"""Which cache each layer has: what llama.cpp logs for models of every kind, and its rules."""

from collections import Counter
from dataclasses import replace

import pytest
from logged_memory import MIB, exact_bytes, logged_memory
from tiny_models import MODELS, write_model

from harness.hardware import Loading, gguf_header_from_values, read_gguf_header
from harness.hardware.footprint import layer_cache_bytes, prompt_kv_bytes
from harness.hardware.gguf_caches import LayerCache
from harness.hardware.gguf_file import read_gguf_file

# --- as llama.cpp has it ---------------------------------------------------------------------

SLOTS = 32
CONTEXT_TOKENS = 1024  # more than what a window of the tiny models takes
BOUNDED = {"falcon-h1", "jamba", "kimi-linear", "lfm2", "mamba2", "nemotron_h", "rwkv7"}
"""Kinds of which an upper bound is known, so near to what is taken."""


@pytest.mark.parametrize(
    "architecture",
    [pytest.param(one, marks=() if one == "gemma3" else pytest.mark.slow) for one in MODELS],
)
def test_the_caches_of_every_kind_of_model_are_those_that_llama_cpp_makes(tmp_path, architecture):
    path = write_model(tmp_path / "m.gguf", architecture)
    logged = logged_memory(path, context_tokens=CONTEXT_TOKENS, slots=SLOTS)

    model = read_gguf_header(path)
    assert model.exact_caches is (architecture not in BOUNDED)
    least = model.weights.loaded_bytes
    most = sum(read_gguf_file(path).tensors.values())  # it maps what lies between, too
    assert round(least / MIB, 2) <= logged.model_mib <= round(most / MIB, 2)
    keeping = [cache for cache in model.caches if cache.heads]
    windows = Counter(cache.window_tokens for cache in keeping)
    assert sorted(windows.values()) == sorted(c.layers for c in logged.caches if c.layers)

    states = sum(cache.state_elements for cache in model.caches)
    cached_bytes = sum(
        layer_cache_bytes(model, Loading(context_tokens=CONTEXT_TOKENS, slots=SLOTS))
    )
    assert cached_bytes - 4 * SLOTS * states == sum(
        exact_bytes(cache.cells, mib)
        for cache in logged.caches
        for mib in (cache.keys_mib, cache.values_mib)
    )
    state_mib = 4 * SLOTS * states / MIB
    logged_mib = logged.states.inputs_mib + logged.states.states_mib if logged.states else 0
    if architecture in BOUNDED:
        assert logged_mib - 0.01 <= state_mib
    else:  # two figures, each of them rounded
        assert state_mib == pytest.approx(logged_mib, abs=0.01)


# --- rules -----------------------------------------------------------------------------------

PLAIN = {
    "block_count": 8,
    "context_length": 8192,
    "embedding_length": 64,
    "feed_forward_length": 128,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
}
FULL = LayerCache(heads=2, key_length=16, value_length=16)


def told(architecture, **keys):
    """A header with more than the plain keys, in which `__` stands for a dot."""
    keys = PLAIN | {key.replace("__", "."): value for key, value in keys.items()}
    return gguf_header_from_values(
        {"general.architecture": architecture}
        | {f"{architecture}.{key}": value for key, value in keys.items()},
        name="a model",
        tensor_bytes=1000,
    )


def windows(model):
    """The window of each layer, or a dot."""
    return " ".join(str(cache.window_tokens or ".") for cache in model.caches)


@pytest.mark.parametrize(
    ("architecture", "keys", "expected"),
    [
        pytest.param("llama", {}, ". . . . . . . .", id="none"),
        pytest.param("gemma3", {"window": 9}, "9 9 9 9 9 . 9 9", id="the last of six sees all"),
        pytest.param("gemma2", {}, "4096 . " * 4, id="a window without a key"),
        pytest.param("cohere2moe", {"window": 9}, ". 9 9 9 . 9 9 9", id="the first of four"),
        pytest.param("gemma3", {"window": 9, "pattern": 2}, "9 . " * 4, id="a period in the key"),
        pytest.param("gemma3", {"window": 9, "pattern": 0}, "9 " * 8, id="all"),
        pytest.param(
            "gpt-oss",
            {"window": 9, "pattern": [True, True, False, False]},
            "9 9 . . . . . .",
            id="a pattern, ending early",
        ),
        pytest.param("llama4", {}, "8192 8192 8192 . " * 2, id="chunks"),
        pytest.param("smallthinker", {"window": 9}, ". 4096 4096 4096 " * 2, id="a fixed length"),
        pytest.param("exaone4", {"window": 9}, ". " * 8, id="not in small sizes"),
        pytest.param("phi3", {"window": 9}, ". " * 8, id="ignored"),
    ],
)
def test_layers_have_the_windows_of_their_architecture(architecture, keys, expected):
    names = {"window": "attention__sliding_window", "pattern": "attention__sliding_window_pattern"}
    model = told(architecture, **{names.get(key, key): value for key, value in keys.items()})
    assert windows(model) == expected.strip()
    assert model.exact_caches


@pytest.mark.parametrize(
    ("window", "slots", "cells"),
    [
        pytest.param(1000, 1, 1536, id="padded"),
        pytest.param(1024, 4, 4 * (1024 + 512), id="each slot"),
        pytest.param(10_000, 4, 4 * 8192, id="no more than the context"),
    ],
)
def test_a_window_takes_its_cells(window, slots, cells):
    model = replace(told("llama"), caches=(replace(FULL, window_tokens=window),))
    cached_bytes = sum(layer_cache_bytes(model, Loading(context_tokens=8192, slots=slots)))
    assert cached_bytes == cells * 2 * 2 * 32


def test_layers_with_windows_may_have_heads_of_another_width():
    model = told(
        "gemma4",
        attention__sliding_window=9,
        attention__sliding_window_pattern=[True, False] * 4,
        attention__key_length=32,
        attention__value_length=32,
        attention__key_length_swa=8,
        attention__value_length_swa=4,
        attention__shared_kv_layers=6,
    )
    assert model.caches == (
        LayerCache(heads=2, key_length=8, value_length=4, window_tokens=9),
        LayerCache(heads=2, key_length=32, value_length=32),
        *[LayerCache()] * 6,  # which use those of the first two
    )


def test_latent_attention_caches_one_latent_and_no_values():
    model = told(
        "deepseek2",
        block_count=61,
        attention__head_count=128,
        attention__head_count_kv=1,
        attention__kv_lora_rank=512,
        attention__key_length=576,
        attention__value_length=512,
        attention__key_length_mla=192,
        attention__value_length_mla=128,
    )
    assert prompt_kv_bytes(model, Loading(context_tokens=1), 1) == 61 * 576 * 2 == 70_272
    assert model.exact_caches


MAMBA = {"ssm__inner_size": 128, "ssm__state_size": 16, "ssm__conv_kernel": 4}
SOME = {"attention__head_count_kv": [0, 2] * 4}


def test_recurrent_layers_keep_a_state_that_does_not_grow():
    model = told("qwen35", **MAMBA)
    elements = 3 * 128 + 16 * 128
    assert model.caches == (*[LayerCache(state_elements=elements)] * 3, FULL) * 2
    assert model.exact_caches
    for context_tokens in (1024, 65_536):
        cached_bytes = sum(layer_cache_bytes(model, Loading(context_tokens=context_tokens)))
        assert cached_bytes == 2 * context_tokens * 2 * 2 * 32 + 6 * 4 * elements


@pytest.mark.parametrize(
    ("architecture", "keys", "elements"),
    [
        pytest.param("mamba", MAMBA, 3 * 128 + 16 * 128, id="Mamba"),
        pytest.param(
            "falcon-h1",
            MAMBA | {"ssm__group_count": 2},
            3 * (128 + 2 * 2 * 16) + 16 * 128,
            id="both in each layer",
        ),
        pytest.param("lfm2", SOME | {"shortconv__l_cache": 3}, 64 * 2, id="short convolutions"),
        pytest.param("rwkv7", {"wkv__head_size": 32}, 64 * 2 + 64 * 32, id="RWKV"),
        pytest.param(
            "kimi-linear",
            SOME | {"kda__head_dim": 8, "ssm__conv_kernel": 4},
            3 * 3 * 4 * 8 + 8 * 8 * 4,
            id="Kimi",
        ),
    ],
)
def test_of_other_recurrent_kinds_layers_without_heads_are_taken_to_have_a_state(
    architecture, keys, elements
):
    model = told(architecture, **keys)
    assert not model.exact_caches
    heads = keys.get("attention__head_count_kv", [2] * 8)
    assert [cache.heads for cache in model.caches] == heads
    # If all layers attend, all recur, too.
    states = [elements if not count or all(heads) else 0 for count in heads]
    assert [cache.state_elements for cache in model.caches] == states


def test_a_layer_of_nemotron_has_one_part_alone():
    parts = {"attention__head_count_kv": [0, 2] * 4, "feed_forward_length": [0, 0, 128, 0] * 2}
    model = told("nemotron_h", **MAMBA | parts)
    assert [cache.state_elements > 0 for cache in model.caches] == [True, *[False] * 3] * 2
    assert [cache.heads for cache in model.caches] == [0, 2] * 4


def test_layers_that_only_draft_keep_nothing_and_are_not_loaded():
    model = told("glm4moe", nextn_predict_layers=2)
    assert model.caches == (FULL,) * 6 + (LayerCache(),) * 2
    assert model.exact_caches


@pytest.mark.parametrize(
    ("architecture", "keys", "elements"),
    [
        pytest.param("newest", {"attention__sliding_window": 9}, 2 * 32, id="windows somewhere"),
        pytest.param("newest", {"ssm__state_size": 16}, 2 * 32, id="states"),
        pytest.param("gemma4", {"attention__sliding_window": 9}, 2 * 32, id="no pattern"),
        pytest.param(
            "gemma3",
            {"attention__sliding_window": 9, "attention__sliding_window_pattern": None},
            2 * 32,
            id="a pattern was left out",
        ),
        pytest.param("lfm2", {"attention__head_count_kv": None}, 4 * 32, id="heads were left out"),
        pytest.param(
            "minimax-m3", {"attention__indexer__key_length": 8}, 2 * 32 + 8 + 16, id="an index"
        ),
        pytest.param("nanbeige", {"num_loops": 3}, 3 * 2 * 32, id="layers gone through again"),
    ],
)
def test_what_is_not_known_is_taken_to_be_large_and_said(architecture, keys, elements):
    model = told(architecture, **keys)
    assert not model.exact_caches
    assert prompt_kv_bytes(model, Loading(context_tokens=1), 1) == 8 * 2 * elements
