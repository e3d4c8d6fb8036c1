"""Models: how large they are, and how many bytes a token of their context takes.

They are read from a GGUF file, a folder of safetensors, or a `config.json` alone, whose keys have
the names that vLLM 0.32 accepts (`transformers_utils/model_arch_config_convertor.py`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import orjson

from harness.errors import ModelFileInvalid
from harness.hardware import quantization as formats
from harness.hardware.footprint import Loading, compute_bytes
from harness.hardware.gguf import read_gguf_header
from harness.hardware.gguf_caches import LayerCache, layer_token_bytes, state_bytes
from harness.hardware.gguf_file import MAX_LAYERS
from harness.hardware.quantization import CACHE_TYPES, BlockFormat, KvBits

Packing = Literal["gguf", "safetensors"]

PROMPT_TOKENS_AT_ONCE: Final[dict[Packing, int]] = {"gguf": 512, "safetensors": 8192}
"""The tokens of a server's batch: llama.cpp's and vLLM's."""
# The format of a KV cache in 8 bits for safetensors.
_FP8: Final = BlockFormat(name="FP8", block_elements=1, block_bytes=1)
_AGAIN: Final = "download all files of the model into one folder again"
_COUNT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([BM])", re.IGNORECASE | re.ASCII)


class Quantization(NamedTuple):
    """A format of weights."""

    name: str
    packing: Packing
    bits: float  # the mean bits of a weight in a file, with scales and finer tensors
    nominal_bits: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A model's size and shape."""

    title: str
    family: str  # its architecture, such as `llama`; empty if unknown
    quantization: str | None  # the format's name, such as `Q4_K_M` or `AWQ-4BIT`; None if unknown
    packing: Packing
    is_local: bool = True  # read from files; else known by name or size, and had in both packings
    parameters: int  # counted from the configuration without norms and biases: within 2 %
    active_parameters: int  # those that multiply one token: no idle expert, no input's table
    weight_bytes: int = 0  # this and the next two are computed by `with_bits`, or are a file's
    passed_bytes: int = 0  # of weights without the input's table, unless it is the output's too
    active_bytes: int = 0  # of weights that one token passes: with experts, only the ones it uses
    expert_share: float = 1.0  # the share of a layer's experts that one token uses; 1 if dense
    table_parameters: int = 0  # of the input's table; 0 if it is the output's table, too
    output_parameters: int = 0  # of the output's table, for a prompt's last token; 0 if unknown
    fine_parameters: int = 0  # those that safetensors leave in 16 bits, such as tables and routers
    heads: int = 0  # query heads, which GPUs divide evenly; 0 if unknown
    compute_bytes: int = 0  # of intermediate results, for each token computed at once: an allowance
    caches: tuple[LayerCache, ...]  # the cache of each layer
    exact_caches: bool  # whether the cache is known to the byte; else it is usually smaller
    context_limit: int | None = None  # the tokens that the model was trained for; None if unknown

    @property
    def layers(self) -> int:
        """How many layers the model has."""
        return len(self.caches)

    def sequence_kv_bytes(self, tokens: int, kv_bits: KvBits = 16, *, beside: int = 0) -> int:
        """The KV cache of one sequence of so many tokens; raises what `layer_token_bytes` does."""
        is_fp8 = kv_bits == 8 and self.packing == "safetensors"
        block = _FP8 if is_fp8 else formats.CACHE_FORMATS[CACHE_TYPES[kv_bits]]
        # The sum over layers of 2 * tokens * kv_heads * head_dim * bytes of an element, and of the
        # state of a recurrent layer. A windowed layer keeps `beside` tokens more than its window.
        return sum(
            min(tokens, (layer.window_tokens or tokens) + beside)
            * layer_token_bytes(layer, keys=block, values=block, model=self.title)
            + state_bytes(layer)
            for layer in self.caches
        )

    def quantized(self, to: Quantization) -> ModelShape:
        """The model with its weights in another quantization: an estimate."""
        return replace(self, quantization=to.name, packing=to.packing).with_bits(to.bits)

    def scaled(self, factor: float) -> ModelShape:
        """The model with so many times the parameters and bytes, in the same layers."""
        counts = ("parameters", "active_parameters", "table_parameters", "output_parameters")
        sizes = (*counts, "fine_parameters", "weight_bytes", "passed_bytes", "active_bytes")
        return replace(self, **{name: round(getattr(self, name) * factor) for name in sizes})

    def with_bits(self, bits: float) -> ModelShape:
        """The model with the sizes of weights of so many bits each: parameters * bits / 8.

        Of safetensors, tables, routers and often attention stay in at least 16 bits.
        """
        fine = self.fine_parameters if self.packing == "safetensors" else 0
        fine_bits = max(bits, 16) if fine else bits
        size = ((self.parameters - fine) * bits + fine * fine_bits) / 8
        passed = size - self.table_parameters * fine_bits / 8
        of_idle_experts = self.parameters - self.table_parameters - self.active_parameters
        return replace(
            self,
            weight_bytes=round(size),
            passed_bytes=round(passed),
            active_bytes=round(passed - of_idle_experts * bits / 8),
        )

    def on_rank(self, ranks: int) -> ModelShape:
        """The model with the part of each cache that one of `ranks` GPUs has (tensor parallel)."""
        # Key-value heads are divided among GPUs, and repeated if they are fewer. So a latent (MLA),
        # which counts as one head, is whole on each GPU.
        caches = (
            replace(c, heads=-(-c.heads // ranks), state_elements=-(-c.state_elements // ranks))
            for c in self.caches
        )
        return replace(self, caches=tuple(caches))


def parse_parameters(size: str) -> int | None:
    """The number of `7B` (7 * 10**9) or `135M` (135 * 10**6); None for any other text."""
    match = _COUNT.fullmatch(size.strip())
    return match and round(float(match[1]) * (10**9 if match[2].upper() == "B" else 10**6))


def read_model_shape(path: Path) -> ModelShape:
    """Reads a GGUF file, a folder of safetensors, or a `config.json`; raises `ModelFileInvalid`."""
    if path.is_dir():
        shape = read_model_shape(path / "config.json")
        size = _tensor_bytes(path, parameters=shape.parameters)
        # Files have weights that the configuration omits, such as norms; all tokens pass these.
        extra = 0 if size is None else size - shape.weight_bytes
        sizes = ("weight_bytes", "passed_bytes", "active_bytes")
        return replace(shape, **{name: getattr(shape, name) + extra for name in sizes})
    if path.suffix == ".json":
        return configured_shape(_json(path), path=path, title=path.resolve().parent.name)
    header = read_gguf_header(path)
    if header.weights.passed_bytes == header.weights.shared_bytes:
        raise ModelFileInvalid("it has only tables; name a language model's file", path=path)
    quantization = formats.file_type_name(header.file_type)
    weights = header.weights.loaded_bytes
    batch = PROMPT_TOKENS_AT_ONCE["gguf"]
    loading = Loading(context_tokens=header.context_length or batch, micro_batch_tokens=batch)
    return ModelShape(
        title=header.name,
        family=header.architecture,
        quantization=None if quantization == "unknown" else quantization,
        packing="gguf",
        parameters=header.parameters,
        # All tensors have about the same bits, so a share of the bytes is one of the parameters.
        active_parameters=round(header.parameters * header.active_bytes / weights),
        weight_bytes=weights,
        passed_bytes=header.weights.passed_bytes,
        active_bytes=header.active_bytes,
        table_parameters=round(header.parameters * (1 - header.weights.passed_bytes / weights)),
        output_parameters=header.vocabulary_size * header.embedding_length * header.has_output,
        expert_share=max(header.expert_used_count, 1) / max(header.expert_count, 1),
        heads=header.head_count,
        compute_bytes=-(-compute_bytes(header, loading) // batch),
        caches=header.caches,
        exact_caches=header.exact_caches,
        context_limit=header.context_length,
    )


def _tensor_bytes(folder: Path, *, parameters: int) -> int | None:
    """The bytes of the folder's files of tensors, of all that an index names; None without any."""
    index = folder / "model.safetensors.index.json"
    single = folder / "model.safetensors"
    paths = [single] if single.is_file() else sorted(folder.glob("*.safetensors"))
    weight_map = _json(index).get("weight_map") if index.is_file() else None
    if isinstance(weight_map, dict):
        # Only the file's name counts, so that an index cannot lead out of its folder.
        paths = [folder / Path(str(name)).name for name in sorted(set(weight_map.values()))]
    size = 0
    for path in paths:
        try:
            # A file's header, which counts as tensors here, is some thousandths of a percent.
            size += path.stat().st_size
        except OSError as error:
            problem = f"cannot be opened ({error.strerror}); {_AGAIN}"
            raise ModelFileInvalid(problem, path=path) from error
    # Less than a bit for each weight: a Git LFS pointer or a web page was saved in a file's place.
    if paths and size * 8 < parameters:
        problem = f"its files have {size:,} bytes for {parameters:,} weights; {_AGAIN}"
        raise ModelFileInvalid(problem, path=folder)
    return size if paths else None


def _json(path: Path) -> Mapping[str, Any]:
    try:
        values = orjson.loads(path.read_bytes())
    except OSError as error:
        problem = f"cannot be opened ({error.strerror}); {_AGAIN}"
        raise ModelFileInvalid(problem, path=path) from error
    except orjson.JSONDecodeError as error:
        problem = f"it is not JSON ({error.msg}); {_AGAIN}"
        raise ModelFileInvalid(problem, path=path, offset=error.pos) from error
    if not isinstance(values, dict):
        raise ModelFileInvalid("it is not a JSON object", path=path, offset=0)
    return values


# The tables in which multimodal models keep the shape of their language model.
_TEXT_PARTS: Final = ("text_config", "llm_config", "language_config")
_WINDOWED: Final = frozenset({"sliding_attention", "chunked_attention"})
_DELTA: Final = "linear_attention"  # a gated delta net, as in Qwen 3-Next
# Keys of models with other recurrent layers. No common key says which layers these are.
_RECURRENT: Final = frozenset({"attn_layer_period", "hybrid_override_pattern", "ssm_cfg"})
_HEADS: Final = ("num_attention_heads", "n_head", "num_heads", "n_heads")
_KV_HEADS: Final = (
    "num_key_value_heads", "n_head_kv", "num_kv_heads", "multi_query_group_num",
    "num_attention_groups",
)  # fmt: skip
_EXPERTS: Final = ("num_local_experts", "num_experts", "n_routed_experts")
_EXPERTS_USED: Final = ("num_experts_per_tok", "num_experts_per_token", "moe_topk")
# Their configurations have the keys of latent attention, but they cache full keys and values.
_LATENT_NOT_CACHED: Final = frozenset({"minicpm3", "plm"})
_UNGATED: Final = frozenset(
    {"bloom", "falcon", "gpt2", "gpt_bigcode", "gpt_neox", "gptj", "opt", "phi", "starcoder2"}
)


class _Config(NamedTuple):
    """A `config.json`. Its methods raise `ModelFileInvalid` for impossible values."""

    path: Path
    whole: Mapping[str, Any]
    part: Mapping[str, Any]  # the table that describes the language model, or the whole

    @property
    def kind(self) -> str:
        """The architecture, such as `llama`; empty if missing."""
        return str(self.get("model_type") or "")

    def get(self, *names: str) -> Any:  # noqa: ANN401 - whatever the JSON has
        """The value of the first of these names that is not missing or null."""
        values = (table.get(name) for table in (self.part, self.whole) for name in names)
        return next((value for value in values if value is not None), None)

    def count(self, *names: str, default: int | None = None) -> int:
        """The first of these names as a number from 0; if missing, `default`, or else an error."""
        value = self.get(*names)
        value = default if value is None else value
        if value is None:
            raise self.unusable(names[0], "is missing; name the folder of a language model")
        if type(value) is not int or value < 0:
            raise self.unusable(names[0], f"is {value!r}, not a count")
        return value

    def product(self, *names: str) -> int:
        """The product of counts that are 0 if missing."""
        return math.prod(self.count(name, default=0) for name in names)

    def unusable(self, name: str, problem: str) -> ModelFileInvalid:
        """The error for a missing or impossible value."""
        return ModelFileInvalid(f"'{name}' {problem}", path=self.path)


def configured_shape(values: Mapping[str, Any], *, path: Path, title: str) -> ModelShape:
    """The model that a `config.json` describes; raises `ModelFileInvalid`."""
    part = next((values[name] for name in _TEXT_PARTS if isinstance(values.get(name), dict)), None)
    config = _Config(path, values, part or values)
    layers = config.count("num_hidden_layers", "n_layer", "num_layers", "n_layers")
    # A small configuration must not be able to allocate much memory.
    if not 0 < layers <= MAX_LAYERS:
        raise config.unusable("num_hidden_layers", f"is {layers:,}, not 1 to {MAX_LAYERS:,}")
    width = config.count("hidden_size", "n_embd", "d_model")
    if not width:
        raise config.unusable("hidden_size", "is 0")
    caches, is_exact = _caches(config, layers=layers, width=width)

    # 1. Parameters by kind.
    ffn = _feed_forward(config, layers=layers, width=width)
    # Matrices from the width to a feed-forward layer's length and back, and that of its gate.
    matrices = (2 if config.kind in _UNGATED else 3) * width
    dense_layers = layers - ffn.sparse_layers
    dense = matrices * (dense_layers * ffn.dense_length + ffn.sparse_layers * ffn.shared_length)
    experts = matrices * ffn.sparse_layers * ffn.experts * ffn.expert_length
    routers = ffn.sparse_layers * ffn.experts * width
    attention = sum(_attention(config, cache, width) for cache in caches)
    output = config.product("vocab_size") * width
    # As transformers reads it, input and output share a table unless the configuration denies it.
    tables = output if config.get("tie_word_embeddings") is not False else 2 * output
    share = ffn.experts_used / ffn.experts if ffn.experts else 1.0
    always_active = attention + dense + routers

    # 2. Their format.
    dtype = str(config.get("dtype", "torch_dtype") or "").removeprefix("torch.")
    quantization, has_attention = _quantization(config)
    label = quantization or dtype.replace("bfloat", "BF").replace("float", "F") or None
    limits = ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len")
    longest = max(ffn.dense_length, ffn.experts_used * ffn.expert_length)
    shape = ModelShape(
        title=title,
        family=config.kind,
        quantization=label and label.upper(),
        packing="safetensors",
        parameters=always_active + experts + tables,
        active_parameters=always_active + round(experts * share) + output,
        expert_share=share,
        table_parameters=tables - output,
        output_parameters=output,
        fine_parameters=tables + routers + (0 if has_attention else attention),
        heads=config.count(*_HEADS, default=0),
        compute_bytes=2 * (3 * longest + 5 * width),  # as `footprint.compute_bytes`, in 16 bits
        caches=caches,
        exact_caches=is_exact,
        context_limit=config.count(*limits, default=0) or None,
    )
    return shape.with_bits(formats.weight_bits(quantization or dtype))


class _FeedForward(NamedTuple):
    """The feed-forward layers of a model; the sparse ones have experts. Lengths are in elements."""

    sparse_layers: int
    experts: int
    experts_used: int
    dense_length: int
    expert_length: int
    shared_length: int  # of the experts that all tokens use, together


def _feed_forward(config: _Config, *, layers: int, width: int) -> _FeedForward:
    lengths = ("intermediate_size", "ffn_hidden_size", "n_inner")
    dense_length = config.count(*lengths, default=4 * width)
    expert_length = config.count("moe_intermediate_size", default=dense_length)
    shared_length = config.product("shared_expert_intermediate_size")
    shared_length = shared_length or config.product("n_shared_experts") * expert_length
    # Llama 4 has one expert that is for all tokens.
    if llama_4_length := config.product("intermediate_size_mlp"):
        dense_length = llama_4_length
        shared_length = expert_length
    experts = config.count(*_EXPERTS, default=0)
    step = config.count("decoder_sparse_step", "interleave_moe_layer_step", default=1) or 1
    first_sparse = config.product("first_k_dense_replace")
    return _FeedForward(
        sparse_layers=len(range(first_sparse, layers, step)) if experts else 0,
        experts=experts,
        experts_used=min(config.count(*_EXPERTS_USED, default=0), experts),
        dense_length=dense_length,
        expert_length=expert_length,
        shared_length=shared_length,
    )


def _caches(config: _Config, *, layers: int, width: int) -> tuple[tuple[LayerCache, ...], bool]:
    """The cache of each layer, and whether the configuration describes them all."""
    full = _full_cache(config, width)
    window = config.count("sliding_window", "attention_chunk_size", default=0)
    # Qwen 2 gives the width of a window even if it has none.
    if config.get("use_sliding_window") is False:
        window = 0
    narrow = replace(full, window_tokens=window or None)
    kinds = config.get("layer_types", "layers_block_type")
    interval = config.product("full_attention_interval")
    if kinds is None and interval:
        kinds = [_DELTA if (n + 1) % interval else "full_attention" for n in range(layers)]
    if isinstance(kinds, list) and len(kinds) == layers:
        by_kind = dict.fromkeys(_WINDOWED, narrow) | {"full_attention": full, "attention": full}
        if _DELTA in kinds and (state := _delta_state(config)):
            by_kind[_DELTA] = LayerCache(state_elements=state)
        caches = [by_kind.get(str(kind)) for kind in kinds]
        return tuple(cache or full for cache in caches), None not in caches
    names = config.part.keys() | config.whole.keys()
    is_recurrent = any(name in _RECURRENT or name.startswith("mamba_") for name in names)
    if not window:
        return (full,) * layers, kinds is None and not is_recurrent and not full.index_length
    if config.kind == "mistral":  # every layer of which has the window
        return (narrow,) * layers, True
    period = config.get("sliding_window_pattern", "_sliding_window_pattern")
    if type(period) is not int or period < 1:
        return (full,) * layers, False
    # In Gemma 3, the last layer of each period sees all tokens.
    return tuple(full if n % period == period - 1 else narrow for n in range(layers)), True


def _full_cache(config: _Config, width: int) -> LayerCache:
    rank = config.product("kv_lora_rank")
    if rank and config.kind not in _LATENT_NOT_CACHED:
        return LayerCache(
            heads=1,
            key_length=rank + config.product("qk_rope_head_dim"),
            index_length=config.product("index_head_dim"),  # DeepSeek 3.2, at most
        )
    heads = config.count(*_HEADS)
    if heads == 0:
        raise config.unusable("num_attention_heads", "is 0; such models are not known here")
    length = config.count("head_dim", "attention_head_dim", default=width // heads)
    if rank:
        length = config.count("qk_nope_head_dim") + config.count("qk_rope_head_dim")
    # Falcon's newer architecture also has the key `multi_query`, and ignores it.
    has_one_head = config.get("multi_query") is True and not config.get("new_decoder_architecture")
    kv_heads = config.count(*_KV_HEADS, default=1 if has_one_head else heads)
    return LayerCache(heads=kv_heads, key_length=length, value_length=length)


def _attention(config: _Config, cache: LayerCache, width: int) -> int:
    """Parameters of a layer's attention: a delta net, or with full keys and values, or a latent."""
    if not cache.heads and cache.state_elements:
        keys, values = _delta_widths(config)
        return width * (2 * keys + 3 * values)
    heads, rank = config.count(*_HEADS), config.product("kv_lora_rank")
    if not rank:
        return 2 * width * (heads + cache.heads) * (cache.key_length or width // heads)
    rope, value = config.product("qk_rope_head_dim"), config.product("v_head_dim")
    key = config.product("qk_nope_head_dim") + rope
    query_rank = config.product("q_lora_rank")
    queries = query_rank * (width + heads * key) if query_rank else width * heads * key
    latent = width * (rank + rope) + rank * heads * (key - rope + value)
    return queries + latent + heads * value * width


def _delta_widths(config: _Config) -> tuple[int, int]:
    keys = config.product("linear_num_key_heads", "linear_key_head_dim")
    return keys, config.product("linear_num_value_heads", "linear_value_head_dim")


def _delta_state(config: _Config) -> int:
    """Elements of a delta net's state: the convolution's last inputs, and keys * values by head."""
    keys, values = _delta_widths(config)
    inputs = config.count("linear_conv_kernel_dim", default=1) - 1
    return inputs * (2 * keys + values) + values * config.product("linear_key_head_dim")


def _quantization(config: _Config) -> tuple[str | None, bool]:
    """The name of the quantization, and whether attention is quantized, too."""
    settings = config.get("quantization_config", "compression_config")
    if not isinstance(settings, dict):
        return None, True
    left_out = settings.get("modules_to_not_convert") or settings.get("ignore") or ()
    has_attention = "self_attn" not in str(left_out)
    groups = settings.get("config_groups")  # as compressed-tensors writes it
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict) and type(weights.get("num_bits")) is int:
            kind = "fp" if weights.get("type") == "float" else "int"
            return f"{kind}{weights['num_bits']}", has_attention
    method = settings.get("quant_algo") or settings.get("quant_method") or "quantized"
    bits = settings.get("bits") or (4 if settings.get("load_in_4bit") is True else None)
    return f"{method}-{bits}bit" if type(bits) is int else str(method), has_attention
