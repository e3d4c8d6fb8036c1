"""Model names: the weights that a name stands for, in any spelling.

One set of weights goes by many names: `qwen2.5:7b-instruct-q4_K_M` in Ollama,
`Qwen/Qwen2.5-7B-Instruct-AWQ` in vLLM, `Qwen2.5-7B-Instruct-Q8_0.gguf` as a file. Without
namespace, packaging and quantization, each of the three is the same set of words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

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

# Words that names may leave out: Ollama's `qwen2.5:7b` is `Qwen2.5-7B-Instruct`. Others say `base`.
_CONVERSATIONAL = frozenset({"instruct", "it", "chat", "inst"})
_KQUANT_SIZE = re.compile(r" - (S|M|L)(?:mall|edium|arge)")  # llama.cpp's words: `Q4_K - Medium`
_SIZE = re.compile(r"[ae]?\d+(?:\.\d+)?[bm]|\d+x\d+(?:\.\d+)?[bm]")

# A family, a version and a variant in one word. `r1`, `k2` and `o3` do not match.
_FUSED = re.compile(
    r"""
    ([a-z]{2,}?)?               # the qwen of qwen2.5vl
    v?                          # of v0.3
    (\d+(?:\.\d+)*[a-z]??)      # 2.5; also the 4o of gpt-4o
    ([a-z]{2,})?                # vl
    """,
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelName:
    """The parts of a model's name."""

    words: tuple[str, ...]
    """The words that identify the weights, in the order of the name, each once: `qwen`, `2.5`,
    `7b`. Empty for a name such as `default`."""
    snapshot: str | None
    """The day of the release, `20241022`, if the name has one."""
    quantization: str | None
    """How the weights are packed, such as `Q4_K_M` or `AWQ`, if the name says so."""

    @property
    def weights(self) -> str:
        """The words as one name: `qwen-2.5-7b-instruct`."""
        return "-".join(self.words)

    @property
    def has_size(self) -> bool:
        """Whether it gives the number of parameters."""
        return any(_SIZE.fullmatch(word) for word in self.words)


def parse_model_name(text: str) -> ModelName:
    """The parts of the name of a served model, a repository or a file, which may have a path."""
    folders = [part for part in _PATH.split(text.strip().lower()) if part]
    last = folders.pop() if folders else ""
    name = _parse_part(last)
    if name.words:
        return name
    # For a file called `ggml-model-q8_0.gguf`, the nearest folder whose name has a size names it.
    for folder in reversed(folders):
        above = _parse_part(folder)
        if above.has_size:
            return replace(above, quantization=name.quantization or above.quantization)
    return name


def packing(text: str) -> str | None:
    """The quantization in a server's words: `Q4_K_M` for `Q4_K - Medium`; None for `unknown`."""
    return parse_model_name(_KQUANT_SIZE.sub(r"_\1", text)).quantization


def same_weights(first: ModelName, second: ModelName) -> bool:
    """Whether two names stand for the same weights, however packed."""
    mine, theirs = (set(name.words) - _CONVERSATIONAL for name in (first, second))
    # A name without a date may lead to any dated release of its model.
    dates = {first.snapshot, second.snapshot} - {None}
    return bool(mine) and mine == theirs and len(dates) < 2


def _parse_part(part: str) -> ModelName:
    """The parts of the name in one part of a path."""
    name = _BEDROCK.sub("", _FILE_ENDING.sub("", part))
    # Dates and packings are taken out before words are made, since they do not identify weights.
    date = _SNAPSHOT.search(name)
    name = _SNAPSHOT.sub("-", name)
    packings = [match[0].upper() for match in _QUANTIZATION.finditer(name)]
    words = tuple(dict.fromkeys(_words(_QUANTIZATION.sub("-", name))))
    if all(_pattern("blank").fullmatch(word) for word in set(words) - _CONVERSATIONAL):
        words = ()
    return ModelName(
        words=_full_words().get(frozenset(words) - _CONVERSATIONAL, words),
        snapshot="".join(date.groups()) if date else None,
        quantization="-".join(packings) or None,
    )


def _words(name: str) -> Iterator[str]:
    """The words of a name: `llama3-1` and `Llama-3.1` both are `llama`, `3.1`."""
    # `mistral-7b.-` is left of `mistral-7b.Q4_K_M`.
    dashed = "-".join(filter(None, (part.strip(".") for part in _SEPARATORS.split(name))))
    dashed = re.sub(r"(?<=\d)p(?=\d)", ".", dashed)  # Fireworks: llama-v3p1
    dashed = re.sub(r"(?<![\d.])(\d)-(\d)(?![\d.a-z])", r"\1.\2", dashed)  # claude-3-5, llama3-1
    dashed = re.sub(r"\.(?=[a-z])", "-", dashed)  # gpt-4.1.mini
    for word in filter(None, dashed.split("-")):
        if _pattern("around").fullmatch(word):
            continue
        fused = None if _SIZE.fullmatch(word) else _FUSED.fullmatch(word)  # no size is split
        yield from filter(None, fused.groups()) if fused else (word,)


# Architectures in GGUF files that several families share: Mistral's, Yi's and SmolLM's is `llama`.
_SHARED_ARCHITECTURES = frozenset({"llama", "deepseek2", "gpt2", "gptneox", "mamba", "mamba2"})


@cache
def _table(kind: str) -> Mapping[str, list[str]]:
    """One of the tables of `model_families.tsv`."""
    lines = files("harness.inference").joinpath("model_families.tsv").read_text(encoding="utf-8")
    rows = (line.split("\t") for line in lines.splitlines() if line.startswith(f"{kind}\t"))
    return {key: words.split() for _, key, words in rows}


@cache
def _pattern(kind: str) -> re.Pattern[str]:
    return re.compile("|".join(word for words in _table(kind).values() for word in words))


@cache
def _full_words() -> Mapping[frozenset[str], tuple[str, ...]]:
    """The words of a short name → the words of the whole name."""
    return {frozenset(short.split()): tuple(words) for short, words in _table("short").items()}


def family_of(name: ModelName) -> str | None:
    """The family of a model with this name; None if the name does not tell."""
    # The separators around it make sure that only whole words match.
    words = f"-{name.weights}-"
    for table in (_table("named"), _table("derived")):
        for family, members in table.items():
            if any(f"-{member}-" in words for member in members):
                return family
    return None


def family_of_architecture(architecture: str | None) -> str | None:
    """The family of a GGUF file's `general.architecture`; None if several families share it."""
    if architecture is None or architecture in _SHARED_ARCHITECTURES:
        return None
    return family_of(parse_model_name(architecture))


def first_family(names: Iterable[ModelName]) -> str | None:
    """The family of the first name that has one."""
    return next((family for family in map(family_of, names) if family), None)


def declared_family(text: str | None) -> str | None:
    """The family that an endpoint's `family` means: the table's name for it, or else its text."""
    if text is None or not text.strip():
        return None
    return family_of(parse_model_name(text)) or text.strip().lower()
