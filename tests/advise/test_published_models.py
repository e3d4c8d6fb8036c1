"""Models whose sizes are published, computed from their `config.json` alone.

Each row: what is computed, what is published, and where; within 2 %, all parameters within 3 %
(cards round them), and bytes of a cache exactly. Configurations and cards are as published, not
read again here; the logs of vLLM were.
"""

import json

import pytest

from harness.advise.model_shape import read_model_shape

FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
MXFP4 = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head", "model.embed_tokens"],
}
LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14_336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "vocab_size": 128_256, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
LLAMA_70B = LLAMA | {
    "hidden_size": 8192, "intermediate_size": 28_672, "num_hidden_layers": 80,
    "num_attention_heads": 64,
}  # fmt: skip
LLAMA_405B = LLAMA | {
    "hidden_size": 16_384, "intermediate_size": 53_248, "num_hidden_layers": 126,
    "num_attention_heads": 128,
}  # fmt: skip
MISTRAL = LLAMA | {"model_type": "mistral", "vocab_size": 32_000, "sliding_window": 4096}
MIXTRAL = LLAMA | {
    "model_type": "mixtral", "vocab_size": 32_000, "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip
GEMMA_3_27B = {
    "model_type": "gemma3_text", "hidden_size": 5376, "intermediate_size": 21_504,
    "num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128,
    "vocab_size": 262_208, "sliding_window": 1024, "sliding_window_pattern": 6,
    "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN_30B = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144,
    "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
    "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
    "vocab_size": 151_936, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip
QWEN_235B = QWEN_30B | {
    "hidden_size": 4096, "intermediate_size": 12_288, "moe_intermediate_size": 1536,
    "num_hidden_layers": 94, "num_attention_heads": 64,
}  # fmt: skip
QWEN_NEXT = {
    "model_type": "qwen3_next", "hidden_size": 2048, "intermediate_size": 5120,
    "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "num_experts": 512,
    "num_experts_per_tok": 10, "num_hidden_layers": 48, "num_attention_heads": 16,
    "num_key_value_heads": 2, "head_dim": 256, "full_attention_interval": 4,
    "linear_num_key_heads": 16, "linear_key_head_dim": 128, "linear_num_value_heads": 32,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "vocab_size": 151_936,
    "decoder_sparse_step": 1, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
DEEPSEEK = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18_432,
    "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "first_k_dense_replace": 3, "num_hidden_layers": 61,
    "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "vocab_size": 129_280, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "quantization_config": FP8,
}  # fmt: skip
KIMI_K2 = DEEPSEEK | {
    "n_routed_experts": 384, "first_k_dense_replace": 1, "num_attention_heads": 64,
    "num_key_value_heads": 64, "vocab_size": 163_840, "model_type": "kimi_k2",
}  # fmt: skip
GPT_OSS_20B = {
    "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880,
    "num_local_experts": 32, "num_experts_per_tok": 4, "num_hidden_layers": 24,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201_088,
    "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 12,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "quantization_config": MXFP4,
}  # fmt: skip
GPT_OSS_120B = GPT_OSS_20B | {
    "num_local_experts": 128, "num_hidden_layers": 36,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
}  # fmt: skip

# Parameters and active ones in 10^9, weights in GiB (None: not published), the precision, and the
# cache of one token in full layers, in bytes.
CASES = {
    "Llama 3.1 8B (card; a log of vLLM, 10517)": (
        LLAMA,
        8.03,
        None,
        14.99,
        "BF16",
        131_072,
    ),
    "Llama 3.1 70B (model card)": (LLAMA_70B, 70.6, None, None, "BF16", 327_680),
    "Llama 3.1 405B (model card)": (LLAMA_405B, 405.9, None, None, "BF16", 516_096),
    "Mistral 7B v0.1 (arXiv 2310.06825)": (MISTRAL, 7.24, None, None, "BF16", 131_072),
    "Mixtral 8x7B (arXiv 2401.04088)": (MIXTRAL, 46.7, 12.9, None, "BF16", 131_072),
    "Gemma 3 27B, text (arXiv 2503.19786)": (GEMMA_3_27B, 27.0, None, None, "BF16", 507_904),
    "Qwen3 30B-A3B (model card)": (QWEN_30B, 30.5, None, None, "BF16", 98_304),
    "Qwen3 235B-A22B (model card)": (QWEN_235B, 235, 22, None, "BF16", 192_512),
    "Qwen3-Next 80B-A3B (model card)": (QWEN_NEXT, 80, None, None, "BF16", 24_576),
    "DeepSeek-V3 (model card)": (DEEPSEEK, 671, 37, None, "FP8", 70_272),
    "Kimi K2 (model card: 1 T)": (KIMI_K2, 1000, 32, None, "FP8", 70_272),
    "gpt-oss-20b (model card)": (GPT_OSS_20B, 20.91, 3.61, 12.8, "MXFP4", 49_152),
    "gpt-oss-120b (model card)": (GPT_OSS_120B, 116.83, 5.13, 60.8, "MXFP4", 73_728),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_configuration_says_what_is_published_of_its_model(tmp_path, case):
    config, parameters, active, gib, precision, token_kv = case
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    shape = read_model_shape(path)
    assert shape.parameters / 1e9 == pytest.approx(parameters, rel=0.03)
    if active:
        assert shape.active_parameters / 1e9 == pytest.approx(active, rel=0.02)
    if gib:
        assert shape.weight_bytes / 2**30 == pytest.approx(gib, rel=0.02)
    assert (shape.quantization, shape.token_kv_bytes()) == (precision, token_kv)


# As vLLM logged it on start: the room on one GPU in GiB, and the tokens in it. Issues of
# vllm-project/vllm; blocks of 16 tokens.
VLLM_LOGS = {
    "Llama 3.1 8B on an RTX 3090: 3.81 GiB, 1,952 blocks (10517)": (LLAMA, 3.81, 1, 1952 * 16),
    "Llama 3.1 8B on an RTX 3090: 2.89 GiB, 1,478 blocks (10517)": (LLAMA, 2.89, 1, 1478 * 16),
    "Qwen3 235B, TP 4 on H100s: 8.11 GiB (21348)": (QWEN_235B, 8.11, 4, 178_880),
}


@pytest.mark.parametrize("case", VLLM_LOGS.values(), ids=VLLM_LOGS)
def test_tokens_of_a_cache_follow_from_its_room(tmp_path, case):
    config, gib, ranks, tokens = case
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    shape = read_model_shape(path).on_rank(ranks)
    assert gib * 2**30 / shape.token_kv_bytes() == pytest.approx(tokens, rel=0.015)


def test_windows_and_states_end_what_a_sequence_takes(tmp_path):
    path = tmp_path / "config.json"

    def sequence_bytes(config, tokens):
        path.write_text(json.dumps(config))
        return read_model_shape(path).sequence_kv_bytes(tokens)

    # Every sixth layer of Gemma 3 sees all, from the sixth on: ten of 62.
    layer = 2 * 16 * 128 * 2
    assert sequence_bytes(GEMMA_3_27B, 32_768) == layer * (10 * 32_768 + 52 * 1024)
    # Three of four layers of Qwen3-Next keep a state: its last three inputs, and 32 * 128 * 128.
    state = 4 * (3 * (2 * 2048 + 4096) + 32 * 128 * 128)
    assert sequence_bytes(QWEN_NEXT, 1) == 36 * state + 24_576
    assert sequence_bytes(GPT_OSS_120B, 4096) == 18 * 2048 * (4096 + 128)
