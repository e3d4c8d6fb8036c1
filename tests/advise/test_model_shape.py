"""What the arithmetic knows of a model, from each place it can be read from."""

import json

import pytest

from harness.advise.model_shape import read_model_shape, shape_by_hand
from harness.errors import InvalidInput
from harness.hardware import Loading, gguf_footprint, read_gguf_header

LLAMA_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "vocab_size": 128_256,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
MIXTRAL = LLAMA_8B | {
    "model_type": "mixtral",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32_000,
}
QWEN_30B = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151_936,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
SMOL = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49_152,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


@pytest.mark.parametrize(
    ("config", "parameters", "active", "token_kv"),
    [
        pytest.param(LLAMA_8B, 8.03e9, 7.5e9, 131_072, id="Llama 3.1 8B"),
        pytest.param(MIXTRAL, 46.7e9, 12.8e9, 131_072, id="Mixtral 8x7B"),
        pytest.param(QWEN_30B, 30.5e9, 3.05e9, 98_304, id="Qwen3 30B-A3B"),
        pytest.param(SMOL, 134.5e6, 134.5e6, 23_040, id="SmolLM2 135M"),
    ],
)
def test_a_configuration_alone_says_how_large_a_model_is(
    tmp_path, config, parameters, active, token_kv
):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    for given in (path, tmp_path):
        shape = read_model_shape(given)
        assert shape.parameters == pytest.approx(parameters, rel=0.02)
        assert shape.active_parameters == pytest.approx(active, rel=0.02)
        assert shape.weight_bytes == 2 * shape.parameters
        assert shape.token_kv_bytes() == token_kv
        assert (shape.quantization, shape.packing) == ("BF16", "safetensors")


def test_a_gguf_is_known_to_the_byte(demo_model):
    shape = read_model_shape(demo_model)
    assert shape.parameters == pytest.approx(134.5e6, rel=0.001)
    assert (shape.layers, shape.quantization, shape.packing) == (30, "Q4_1", "gguf")
    loading = Loading(context_tokens=4096, slots=2, cache_type_k="q8_0", cache_type_v="q8_0")
    assert shape.footprint(context_tokens=4096, sequences=2, kv_bits=8) == gguf_footprint(
        read_gguf_header(demo_model), loading
    )
    assert shape.token_kv_bytes(8) == 23_040 // 2 * 34 // 32
    finer = shape.quantized("Q8_0", packing="gguf", bits=8.5)
    assert finer.weight_bytes == pytest.approx(134.5e6 * 8.5 / 8, rel=0.001)
    assert finer.active_bytes / finer.weight_bytes == pytest.approx(
        shape.active_bytes / shape.weight_bytes
    )
    assert finer.footprint(context_tokens=4096).weights_bytes == finer.weight_bytes


def test_a_size_that_is_none_is_refused():
    for size in ("8", "B", "0B", "eight"):
        with pytest.raises(InvalidInput) as caught:
            shape_by_hand(size, layers=1, kv_heads=1, head_dim=1)
        assert caught.value.code == "model.size-unreadable"
