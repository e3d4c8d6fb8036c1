"""Names of models, taken apart: real ones, as servers, repositories and files have them."""

import pytest

from harness.inference.identity.model_name import parse_model_name

QWEN = "qwen-2.5-7b-instruct"


@pytest.mark.parametrize(
    ("text", "weights", "quantisation"),
    [
        ("qwen2.5:7b-instruct-q4_K_M", QWEN, "Q4_K_M"),
        ("Qwen2.5-7B-Instruct-Q8_0.gguf", QWEN, "Q8_0"),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", QWEN, "AWQ"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", QWEN, "GPTQ-INT4"),
        ("unsloth/Qwen2.5-7B-Instruct-unsloth-bnb-4bit", QWEN, "4BIT"),
        ("RedHatAI/Qwen2.5-7B-Instruct-FP8-dynamic", QWEN, "FP8"),
        ("Qwen2.5 7B Instruct", QWEN, None),
        ("/models/Qwen2.5-7B-Instruct/", QWEN, None),
        ("hf.co/bartowski/Qwen_Qwen3-8B-GGUF:Q4_K_M", "qwen-3-8b", "Q4_K_M"),
        ("Qwen3-4B-Instruct-2507-UD-Q4_K_XL.gguf", "qwen-3-4b-instruct-2507", "Q4_K_XL"),
        ("mlx-community/Qwen3-30B-A3B-4bit-DWQ", "qwen-3-30b-a3b", "4BIT"),
        ("qwen2.5vl:7b", "qwen-2.5-vl-7b", None),
        (
            "neuralmagic/Meta-Llama-3.1-8B-Instruct-quantized.w4a16",
            "llama-3.1-8b-instruct",
            "W4A16",
        ),
        (
            "Meta-Llama-3.1-70B-Instruct-Q8_0-00001-of-00003.gguf",
            "llama-3.1-70b-instruct",
            "Q8_0",
        ),
        ("meta.llama3-1-8b-instruct-v1:0", "llama-3.1-8b-instruct", None),
        ("accounts/fireworks/models/llama-v3p1-8b-instruct", "llama-3.1-8b-instruct", None),
        ("turboderp/Llama-3.1-8B-Instruct-exl2:4.25bpw", "llama-3.1-8b-instruct", "4.25BPW"),
        ("Llama-3-8B-Instruct-q4f16_1-MLC", "llama-3-8b-instruct", "Q4F16_1"),
        ("D:\\models\\llama-2-7b-chat.Q5_K_S.gguf", "llama-2-7b-chat", "Q5_K_S"),
        ("Mixtral-8x7B-Instruct-v0.1.i1-Q4_K_M.gguf", "mixtral-8x7b-instruct-0.1", "Q4_K_M"),
        ("google_gemma-3-4b-it-IQ3_XXS.gguf", "gemma-3-4b-it", "IQ3_XXS"),
        ("gemma-3-4b-it-qat-q4_0-gguf", "gemma-3-4b-it", "Q4_0"),
        ("google/gemma-3n-E4B-it", "gemma-3n-e4b-it", None),
        ("gpt-oss-20b-MXFP4.gguf", "gpt-oss-20b", "MXFP4"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm-2-135m-instruct", "Q4_1"),
        ("registry.local:5000/team/phi3.5:3.8b-fp16", "phi-3.5-3.8b", "FP16"),
        ("deepseek-r1:7b", "deepseek-r1-distill-qwen-7b", None),
        ("claude-sonnet-4-5-20250929", "claude-sonnet-4.5", None),
        ("vertex_ai/claude-3-5-sonnet@20241022", "claude-3.5-sonnet", None),
        ("us.anthropic.claude-3-5-sonnet-20241022-v2:0", "claude-3.5-sonnet", None),
        ("openai/gpt-4o-2024-08-06", "gpt-4o", None),
        ("openai.gpt-oss-20b-1:0", "gpt-oss-20b", None),
        ("gpt-4-0613", "gpt-4-0613", None),
        ("llama3:latest", "llama-3", None),
    ],
)
def test_a_name_is_its_weights_and_their_packing(text, weights, quantisation):
    name = parse_model_name(text)

    assert (name.weights, name.quantisation) == (weights, quantisation)
    assert name.text == text


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("/models/Qwen2.5-7B-Instruct-GGUF/ggml-model-q4_k_m.gguf", QWEN),
        ("/hub/models--Qwen--Qwen2.5-7B-Instruct/snapshots/a09a35458c702b33eeacc393d1030632", QWEN),
        ("/srv/llms/model.gguf", ""),
        ("/home/alice/model-1.gguf", ""),
    ],
)
def test_a_file_without_a_name_has_that_of_its_folder_if_that_is_a_models(text, weights):
    assert parse_model_name(text).weights == weights


@pytest.mark.parametrize(
    "text",
    ["", "default", "model", "models/model", "local-model", "LLM:latest", "chat", "model-2", "0"],
)
def test_a_name_that_says_nothing_has_no_words(text):
    assert parse_model_name(text).words == ()


@pytest.mark.parametrize(
    ("text", "day"),
    [
        ("claude-3-5-sonnet-20241022", "20241022"),
        ("gpt-4o-2024-08-06", "20240806"),
        ("gpt-4o", None),
        ("qwen3-4b-instruct-2507", None),
    ],
)
def test_a_providers_date_is_no_word(text, day):
    assert parse_model_name(text).snapshot == day


@pytest.mark.parametrize(
    ("text", "has_size"),
    [("qwen2.5:0.5b", True), ("mixtral:8x7b", True), ("gemma3n:e4b", True), ("gpt-4o", False)],
)
def test_a_size_is_found(text, has_size):
    assert parse_model_name(text).has_size is has_size
