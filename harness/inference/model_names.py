"""Model names, taken apart: which weights a name stands for, in every way of writing it.

One set of weights goes by many names: `qwen2.5:7b-instruct-q4_K_M` in Ollama,
`Qwen/Qwen2.5-7B-Instruct-AWQ` in vLLM, `Qwen2.5-7B-Instruct-Q8_0.gguf` as a file. What is left of
each, when namespace, packaging and quantization are taken off, is a set of words: those of the
three are the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

_SEPARATORS = re.compile(r"[\s_:@,()\[\]-]+")
_PATH = re.compile(r"[/\\]|--")  # Hugging Face's cache: models--Qwen--Qwen2.5-7B/snapshots/<hash>

_FILE_ENDING = re.compile(r"(?:-\d{5}-of-\d{5})?\.(?:gguf|ggml|bin|safetensors|nemo|engine)$")
_BEDROCK = re.compile(
    r"^(?:(?:us|eu|apac|jp|au|ca|global)\.)?(?:ai21|amazon|anthropic|cohere|deepseek|meta|mistral"
    r"|openai|qwen)\.(?=[a-z])|-v?\d+:\d+$"
)
_SNAPSHOT = re.compile(r"(?<!\d)(20\d\d)-?([01]\d)-?([0-3]\d)(?!\d)")

_QUANTIZATION = re.compile(
    r"(?<![a-z0-9])(?:"
    r"i?q\d(?:[-_](?:k|nl|[01](?![\d.]))(?:[-_](?:xxs|xs|s|m|l|xl))?|[-_](?:xxs|xs|s|m|nl))?"
    r"|tq\d[-_]\d"
    r"|q\df\d+(?:[-_]\d)?"  # MLC
    r"|w\d+a\d+"
    r"|(?:bf|fp|f|nf|int|uint|mxfp|mxint|nvfp)(?:4|6|8|16|32)(?:[-_]moe)?"
    r"|\d+[-_]?bits?"
    r"|\d+(?:[._]\d+)?[-_]?bpw"
    r"|awq|gptq"
    r")(?![a-z0-9])"
)

# Who made it, who packed it, and how: nothing of which weights it is.
_NOT_OF_WEIGHTS = re.compile(
    r"meta|google|microsoft|nvidia|openai|ibm|mistralai|ai|hf|org|thudm|zai|coherelabs|cohereforai"
    r"|c4ai|tiiuae|allenai|huggingfacetb|amd|apple|unsloth|bartowski|mradermacher|lmstudio|thebloke"
    r"|neuralmagic|redhatai|gguf|ggml|mlx|mlc|onnx|bnb|exl[23]|imatrix|imat|i1|ud|qat|dwq|marlin"
    r"|quanti[sz]ed|dynamic|compressed|tensors|\d+g|g\d+|actorder|h[68]|latest|free"
)

_CONVERSATIONAL = frozenset({"instruct", "it", "chat", "inst"})
"""What answers a conversation has been trained to, be it said or not: Ollama's `qwen2.5:7b` is
`Qwen2.5-7B-Instruct`. A `base` model says so."""

_SAYS_NOTHING = re.compile(
    r"default|models?|local|llm|main|test|weights|checkpoints?|snapshots?|hub|cache|data|repository"
    r"|workspace|app|tmp|custom|none|null|unknown|any|assistant|served|base"
    r"|\d+|[0-9a-f]{12,}"  # a number, a commit
)

_KQUANT_SIZE = re.compile(r" - (S|M|L)(?:mall|edium|arge)")
"""llama.cpp's words: `Q4_K - Medium`."""

_SIZE = re.compile(r"[ae]?\d+(?:\.\d+)?[bm]|\d+x\d+(?:\.\d+)?[bm]")

# Names of Ollama's library that leave out what they are.
_SHORT_FOR = {
    frozenset(short.split()): tuple(words.split())
    for short, words in {
        "deepseek r1 1.5b": "deepseek r1 distill qwen 1.5b",
        "deepseek r1 7b": "deepseek r1 distill qwen 7b",
        "deepseek r1 8b": "deepseek r1 0528 qwen 3 8b",
        "deepseek r1 14b": "deepseek r1 distill qwen 14b",
        "deepseek r1 32b": "deepseek r1 distill qwen 32b",
        "deepseek r1 70b": "deepseek r1 distill llama 70b",
    }.items()
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelName:
    """A name, taken apart."""

    text: str
    """As it was given."""
    words: tuple[str, ...]
    """What tells weights apart, in the order of the name, each once: `qwen`, `2.5`, `7b`. Empty for
    a name such as `default`, which says nothing of them."""
    snapshot: str | None
    """The day of the release, `20241022`, where a provider dates its models."""
    quantization: str | None
    """How the weights are packed, such as `Q4_K_M` or `AWQ`, where the name says it."""

    @property
    def weights(self) -> str:
        """The words as one name: `qwen-2.5-7b-instruct`."""
        return "-".join(self.words)

    @property
    def has_size(self) -> bool:
        """Whether it says how many parameters there are."""
        return any(_SIZE.fullmatch(word) for word in self.words)


def parse_model_name(text: str) -> ModelName:
    """Takes a name apart: a served model's, a repository's, or a file's, with its path or without.

    A file that is called `ggml-model-q8_0.gguf` takes the name of the folder it lies in, if that
    looks like a model's.
    """
    folders = [part for part in _PATH.split(text.strip().lower()) if part]
    last = folders.pop() if folders else ""
    name = _parse_part(text, last)
    if name.words:
        return name
    for folder in reversed(folders):
        found = _parse_part(text, folder)
        if found.has_size:
            return replace(found, quantization=name.quantization or found.quantization)
    return name


def packing(said: str) -> str | None:
    """`Q4_K_M` of what a server calls it: `Q4_K - Medium`, `all F32`, `4bit`, `unknown`."""
    return parse_model_name(_KQUANT_SIZE.sub(r"_\1", said)).quantization


def same_weights(one: ModelName, other: ModelName) -> bool:
    """Whether two names stand for the same weights, however packed.

    A name without a date may lead to any dated release of its model.
    """
    mine, theirs = (set(name.words) - _CONVERSATIONAL for name in (one, other))
    dates = {one.snapshot, other.snapshot} - {None}
    return bool(mine) and mine == theirs and len(dates) < 2


def _parse_part(text: str, part: str) -> ModelName:
    rest = _FILE_ENDING.sub("", part)
    rest = _BEDROCK.sub("", _BEDROCK.sub("", rest))
    date = _SNAPSHOT.search(rest)
    rest = _SNAPSHOT.sub("-", rest)
    packings = [found[0].upper() for found in _QUANTIZATION.finditer(rest)]
    words = tuple(dict.fromkeys(_words(_QUANTIZATION.sub("-", rest))))
    if all(_SAYS_NOTHING.fullmatch(word) for word in set(words) - _CONVERSATIONAL):
        words = ()
    return ModelName(
        text=text,
        words=_SHORT_FOR.get(frozenset(words) - _CONVERSATIONAL, words),
        snapshot="".join(date.groups()) if date else None,
        quantization="-".join(packings) or None,
    )


def _words(name: str) -> Iterator[str]:
    """The words of a name, however it is written: `llama3-1` and `Llama-3.1` are `llama`, `3.1`."""
    dashed = "-".join(filter(None, (part.strip(".") for part in _SEPARATORS.split(name))))
    dashed = re.sub(r"(?<=\d)p(?=\d)", ".", dashed)  # Fireworks: llama-v3p1
    dashed = re.sub(r"(?<![\d.])(\d)-(\d)(?![\d.a-z])", r"\1.\2", dashed)  # claude-3-5, llama3-1
    dashed = re.sub(r"\.(?=[a-z])", "-", dashed)
    for word in filter(None, dashed.split("-")):
        if _NOT_OF_WEIGHTS.fullmatch(word):
            continue
        if _SIZE.fullmatch(word):
            yield word
            continue
        # qwen2.5vl is qwen, 2.5, vl; r1, k2 and o3 are words of their own; v0.3 is 0.3.
        split = re.fullmatch(r"([a-z]{2,}?)?v?(\d+(?:\.\d+)*[a-z]??)([a-z]{2,})?", word)
        yield from filter(None, split.groups()) if split else (word,)


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
