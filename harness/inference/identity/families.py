"""Families: models whose weights descend from one another, distillates included.

A judge favours its own family's style. The table knows public names; what it cannot know, an
endpoint says itself, with `family`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from harness.inference.identity.model_name import ModelName, parse_model_name

# In order of precedence: of a name with words of two families, `DeepSeek-R1-Distill-Qwen-7B` or
# `Llama-3.1-Nemotron-70B`, the weights descend from the first of them here.
_NAMED_AFTER: Mapping[str, str] = {
    "gemma": "gemma codegemma shieldgemma medgemma paligemma",
    "qwen": "qwen qwq qvq codeqwen",
    "mistral": "mistral mixtral codestral ministral magistral devstral mathstral pixtral voxtral",
    "phi": "phi",
    "llama": "llama codellama vicuna alpaca",
    "tinyllama": "tinyllama",
    "smollm": "smollm",
    "yi": "yi",
    "internlm": "internlm",
    "stablelm": "stablelm",
    "falcon": "falcon",
    "granite": "granite",
    "glm": "glm chatglm codegeex",
    "cohere": "command-r command-r7b command-a aya cohere",
    "olmo": "olmo olmoe",
    "starcoder": "starcoder starcoder2",
    "baichuan": "baichuan",
    "exaone": "exaone",
    "minicpm": "minicpm",
    "hunyuan": "hunyuan",
    "ernie": "ernie",
    "kimi": "kimi moonlight",
    "minimax": "minimax abab",
    "deepseek": "deepseek",
    "claude": "claude",
    "gemini": "gemini",
    "grok": "grok",
    "jamba": "jamba",
    "lfm": "lfm",
    "rwkv": "rwkv",
    "nova": "nova-micro nova-lite nova-pro nova-premier",
}

# Derived models whose names do not say from what; looked at when no name above is in them.
_DERIVED: Mapping[str, str] = {
    "llama": (
        "selene tulu hermes-3 orca patronus-lynx lynx judgelm pandalm auto-j self-taught-evaluator "
        "root-judge prometheus-13b sonar nemotron-70b"
    ),
    "qwen": (
        "m-prometheus openthinker marco-o1 athene deepscaler deepcoder sky-t1 bespoke-stratos "
        "compassjudger con-j rise-judge reader-lm"
    ),
    "mistral": "prometheus zephyr openhermes starling neural-chat openchat notus",
    "phi": "flow-judge glider",
    "internlm": "minicheck",
    "nemotron": "nemotron minitron",
    # Last: o1 and o3 are also parts of other names.
    "gpt": "gpt chatgpt o1 o3 o4",
}

_SHARED_ARCHITECTURES = frozenset({"llama", "deepseek2", "gpt2", "gptneox", "mamba", "mamba2"})
"""Those of GGUF files that models of many families are converted to: Mistral's, Yi's and SmolLM's
are `llama`."""


def family_of(name: ModelName) -> str | None:
    """The family that a name tells; None when it tells none."""
    words = f"-{name.weights}-"
    for table in (_NAMED_AFTER, _DERIVED):
        for family, members in table.items():
            if any(f"-{member}-" in words for member in members.split()):
                return family
    return None


def family_of_architecture(architecture: str | None) -> str | None:
    """The family that a GGUF file's `general.architecture` tells; None when many share it."""
    if architecture is None or architecture in _SHARED_ARCHITECTURES:
        return None
    return family_of(parse_model_name(architecture))


def first_family(names: Iterable[ModelName]) -> str | None:
    """The family of the first name that tells one."""
    return next((family for family in map(family_of, names) if family), None)


def declared_family(text: str | None) -> str | None:
    """What an endpoint's `family` says, in the table's word for it where there is one."""
    if text is None or not text.strip():
        return None
    return family_of(parse_model_name(text)) or text.strip().lower()
