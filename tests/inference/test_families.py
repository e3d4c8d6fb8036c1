"""Which family a model is of: by its name, its architecture, or its endpoint's word."""

import pytest

from harness.inference.identity.families import (
    declared_family,
    family_of,
    family_of_architecture,
)
from harness.inference.identity.model_name import parse_model_name


@pytest.mark.parametrize(
    ("text", "family"),
    [
        ("qwen2.5:7b", "qwen"),
        ("Qwen/QwQ-32B", "qwen"),
        ("Qwen3-Coder-30B-A3B-Instruct", "qwen"),
        ("codellama:13b", "llama"),
        ("meta-llama/Llama-Guard-3-8B", "llama"),
        ("mixtral:8x7b", "mistral"),
        ("mistralai/Codestral-22B-v0.1", "mistral"),
        ("google/codegemma-7b-it", "gemma"),
        ("phi4-mini", "phi"),
        ("command-r:35b", "cohere"),
        ("c4ai-command-r7b-12-2024", "cohere"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm"),
        ("gpt-oss:20b", "gpt"),
        ("o3-mini", "gpt"),
        ("anthropic/claude-sonnet-4-5", "claude"),
        ("gemini/gemini-2.5-flash", "gemini"),
        # Trained anew, for all the likeness of the names.
        ("TinyLlama-1.1B-Chat-v1.0", "tinyllama"),
        ("nova", None),
        ("my-finetune-7b", None),
        ("default", None),
    ],
)
def test_a_public_name_tells_its_family(text, family):
    assert family_of(parse_model_name(text)) == family


@pytest.mark.parametrize(
    ("text", "family"),
    [
        ("DeepSeek-R1-Distill-Qwen-7B", "qwen"),
        ("DeepSeek-R1-Distill-Llama-8B-GGUF", "llama"),
        ("deepseek-r1:14b", "qwen"),
        ("deepseek-r1:70b", "llama"),
        ("deepseek-r1:671b", "deepseek"),
        ("nvidia/Llama-3.1-Nemotron-70B-Instruct-HF", "llama"),
        ("nemotron-mini:4b", "nemotron"),
        ("nvidia/Mistral-NeMo-Minitron-8B-Base", "mistral"),
        ("atla/selene-mini", "llama"),
        ("AtlaAI/Selene-1-Mini-Llama-3.1-8B", "llama"),
        ("NousResearch/Hermes-2-Pro-Mistral-7B", "mistral"),
        ("tokyotech-llm/Gemma-2-Llama-Swallow-9b-it-v0.1", "gemma"),
        ("prometheus-eval/prometheus-7b-v2.0", "mistral"),
        ("Unbabel/M-Prometheus-7B", "qwen"),
        ("flowaicom/Flow-Judge-v0.1", "phi"),
        ("marco-o1", "qwen"),
    ],
)
def test_a_derived_model_is_of_the_family_that_its_weights_are_from(text, family):
    assert family_of(parse_model_name(text)) == family


@pytest.mark.parametrize(
    ("architecture", "family"),
    [
        ("qwen2", "qwen"),
        ("qwen3moe", "qwen"),
        ("gemma3n", "gemma"),
        ("phi3", "phi"),
        ("cohere2", "cohere"),
        ("chatglm", "glm"),
        ("llama4", "llama"),
        ("llama", None),
        ("deepseek2", None),
        (None, None),
    ],
)
def test_an_architecture_tells_a_family_unless_many_share_it(architecture, family):
    assert family_of_architecture(architecture) == family


@pytest.mark.parametrize(
    ("declared", "family"),
    [("Qwen2.5", "qwen"), (" llama ", "llama"), ("Ours", "ours"), ("gpt", "gpt"), ("  ", None)],
)
def test_what_an_endpoint_declares_is_put_in_the_tables_words(declared, family):
    assert declared_family(declared) == family
