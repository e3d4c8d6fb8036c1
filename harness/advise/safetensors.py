"""Models in folders of safetensors: their shape and size, and their footprint in vLLM.

Keys of a configuration have the names that vLLM 0.32 accepts
(`transformers_utils/model_arch_config_convertor.py`).
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import orjson

from harness.errors import InvalidInput, ModelFileInvalid
from harness.hardware.footprint import Footprint
from harness.hardware.gguf_caches import LayerCache, layer_token_bytes
from harness.hardware.quantization import BlockFormat, KvBits, weight_bits

CACHE_FORMATS: Final[dict[KvBits, BlockFormat]] = {
    # As in the computation, which is in 16 bits also for models of 32.
    16: BlockFormat(name="F16", block_elements=1, block_bytes=2),
    8: BlockFormat(name="FP8", block_elements=1, block_bytes=1),
}
"""Elements of a KV cache, by their bits."""
_BLOCK_TOKENS: Final = 16
_BATCH_TOKENS: Final = 8192
_COMPUTED_BYTES: Final = 2
_LOGIT_BYTES: Final = 4
_MAX_LAYERS: Final = 4096

# These have the keys of latent attention, but cache full keys and values.
_LATENT_NOT_CACHED: Final = frozenset({"minicpm3", "plm"})
_WINDOWED: Final = frozenset({"sliding_attention", "chunked_attention"})
_ONE_HEAD: Final = frozenset({"falcon", "gpt_bigcode", "RefinedWeb", "RefinedWebModel"})
_DELTA: Final = "linear_attention"  # a gated delta net, as in Qwen 3-Next
# Signs of other recurrent layers. There is no common way to say which layers are.
_RECURRENT: Final = frozenset({"attn_layer_period", "hybrid_override_pattern", "ssm_cfg"})
_ENCODER: Final = ("bert", "roberta")
_HEADS: Final = ("num_attention_heads", "n_head", "num_heads", "n_heads")
_EXPERTS: Final = ("num_local_experts", "num_experts", "n_routed_experts")
_EXPERTS_USED: Final = ("num_experts_per_tok", "num_experts_per_token", "moe_topk")
_UNGATED: Final = frozenset(
    {"bloom", "falcon", "gpt2", "gpt_bigcode", "gpt_neox", "gptj", "opt", "phi", "starcoder2"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetensorsModel:
    """A language model's shape and size."""

    architecture: str
    """`model_type`, such as `llama`; empty if the configuration does not say."""
    name: str
    """The name of its folder."""
    dtype: str | None
    """Of its weights before quantization, such as `bfloat16`."""
    quantization: str | None
    """Such as `awq` or `gptq-4bit`; None if not quantized."""
    parameters: int
    """As the configuration describes them, norms and biases left out: within 2 %."""
    active_parameters: int
    """Those that one token is multiplied with: without the input's table and idle experts."""
    expert_share: float
    """Of a layer's experts, those that one token uses; 1 for a dense model."""
    tensor_bytes: int
    """Over all files; estimated by `configured_model`."""
    expert_bytes: int = 0
    """The part of them that is experts which a router chooses."""
    input_bytes: int = 0
    """The part that only looks tokens up; 0 if it is the output's matrix too."""
    fine_parameters: int = 0
    """Those that stay in 16 bits whatever the quantization: tables and routers."""
    heads: int = 0
    """Of queries; 0 if unknown. GPUs divide them evenly."""
    context_length: int
    """Tokens the model was trained for; 0 if the configuration does not say."""
    embedding_length: int
    feed_forward_length: int
    """Inner width of a layer for one token; with experts, the sum over those it uses."""
    vocabulary_size: int
    """0 if the configuration does not say."""
    caches: tuple[LayerCache, ...]
    """What each layer keeps of the tokens it has seen."""
    exact_caches: bool
    """Whether the configuration describes every layer's cache; `caches` has full keys and values
    for the others, which is usually too much."""


def read_safetensors_model(folder: Path) -> SafetensorsModel:
    """Reads a model's `config.json`, and the headers of its files.

    Raises:
        ModelFileInvalid: A file is missing, cut or damaged, or it is no language model.
    """
    model = configured_model(folder / "config.json")
    return replace(model, tensor_bytes=sum(map(tensor_bytes, _tensor_files(folder))))


def configured_model(path: Path) -> SafetensorsModel:
    """Reads a `config.json` alone: bytes are parameters * bits / 8, by `weight_bits`.

    Raises:
        ModelFileInvalid: It is missing, damaged, or no language model's.
    """
    config = read_model_config(path)
    layers = config.count("num_hidden_layers", "n_layer", "num_layers", "n_layers")
    # A small configuration must not be able to allocate much memory.
    if not 0 < layers <= _MAX_LAYERS:
        raise config.unusable("num_hidden_layers", f"is {layers:,}, not 1 to {_MAX_LAYERS:,}")
    width = config.count("hidden_size", "n_embd", "d_model")
    caches, exact = _caches(config, layers=layers, width=width)
    counts = _parameters(config, caches, width)
    dtype, quantization = _dtype(config), _quantization(config)
    bits = weight_bits(quantization or dtype or "")
    # A model in MXFP4 has only its experts in it.
    rest_bits = 16 if quantization == "mxfp4" else bits
    fine = counts.tables + counts.routers
    sizes = {
        "experts": counts.experts * bits / 8,
        "others": (counts.attention + counts.dense) * rest_bits / 8,
        "fine": fine * max(bits, 16) / 8,
    }
    return SafetensorsModel(
        architecture=str(config.get("model_type") or ""),
        name=path.resolve().parent.name,
        dtype=dtype,
        quantization=quantization,
        parameters=counts.all,
        active_parameters=counts.active,
        expert_share=counts.share,
        tensor_bytes=round(sum(sizes.values())),
        expert_bytes=round(sizes["experts"]),
        input_bytes=round((counts.tables - counts.output) * max(bits, 16) / 8),
        fine_parameters=fine,
        heads=config.count(*_HEADS, default=0),
        context_length=config.count(
            "max_position_embeddings", "n_positions", "seq_length", "max_seq_len", default=0
        ),
        embedding_length=width,
        feed_forward_length=_feed_forward_length(config, width),
        vocabulary_size=config.count("vocab_size", default=0),
        caches=caches,
        exact_caches=exact and not _is_of_another_kind(config),
    )


def safetensors_footprint(
    model: SafetensorsModel,
    *,
    context_tokens: int,
    sequences: int = 1,
    element: BlockFormat = CACHE_FORMATS[16],
    batch_tokens: int = _BATCH_TOKENS,
) -> Footprint:
    """The memory that a model needs in a server such as vLLM, over all its GPUs together.

    Need is not use: such a server takes a share of its GPU when it starts, and uses the surplus as
    a cache for more sequences. Compute bytes are an allowance: the widths of the
    feed-forward layer, in 16 bits, and the logits. They were not compared with the server's own
    measurement. CUDA graphs and the process itself are not counted.

    Args:
        model: The model.
        context_tokens: Tokens of each sequence; the cache comes in blocks of 16.
        sequences: How many are served at once.
        element: Of the cache.
        batch_tokens: Tokens computed at once (`--max-num-batched-tokens`).

    Raises:
        InvalidInput: A number is below 1, or a head is not a whole number of the format's blocks.
    """
    if min(context_tokens, sequences, batch_tokens) < 1:
        raise InvalidInput(
            f"{sequences} sequences of {context_tokens} tokens, {batch_tokens} at once, serve "
            "nothing; give 1 or more of each",
            code="model.nothing-served",
        )
    kv_bytes = 0
    for layer in model.caches:
        tokens = context_tokens
        if layer.window_tokens is not None:
            # A batch is kept beside the window, and may begin within a block.
            tokens = min(tokens, layer.window_tokens - 1 + batch_tokens + _BLOCK_TOKENS)
        blocks = -(-tokens // _BLOCK_TOKENS)
        token_bytes = layer_token_bytes(layer, keys=element, values=element, model=model.name)
        kv_bytes += sequences * blocks * _BLOCK_TOKENS * token_bytes
    widths = 3 * model.feed_forward_length + 5 * model.embedding_length
    return Footprint(
        kv_is_exact=model.exact_caches,
        weights_bytes=model.tensor_bytes,
        kv_bytes=kv_bytes,
        compute_bytes=batch_tokens * _COMPUTED_BYTES * widths
        + _LOGIT_BYTES * sequences * model.vocabulary_size,
    )


def _tensor_files(folder: Path) -> list[Path]:
    """The files that the index names; without an index the only one, or all there are."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        content = read_json(index.read_bytes(), path=index)
        places = content.get("weight_map") if isinstance(content, dict) else None
        if not isinstance(places, dict) or not places:
            raise ModelFileInvalid("it has no 'weight_map'", path=index, offset=0)
        return [_beside(index, name) for name in sorted(set(map(str, places.values())))]
    single = folder / "model.safetensors"
    found = [single] if single.is_file() else sorted(folder.glob("*.safetensors"))
    if not found:
        raise ModelFileInvalid(
            "has no .safetensors file; download all files of the model into it", path=folder
        )
    return found


def _beside(index: Path, name: str) -> Path:
    if Path(name).name != name or not name.endswith(".safetensors"):
        at = max(index.read_bytes().find(name.encode(errors="replace")), 0)
        raise ModelFileInvalid(
            f"'{name}' is not the name of a .safetensors file beside it", path=index, offset=at
        )
    return index.with_name(name)


def _is_of_another_kind(config: ModelConfig) -> bool:
    """Whether it is an encoder, or some layers are recurrent."""
    names = config.values.keys() | config.whole.keys()
    if any(name in _RECURRENT or name.startswith("mamba_") for name in names):
        return True
    model_type = str(config.get("model_type") or "")
    return model_type.endswith(_ENCODER)


def _caches(config: ModelConfig, *, layers: int, width: int) -> tuple[tuple[LayerCache, ...], bool]:
    full = _full_cache(config, width)
    kinds = config.get("layer_types", "layers_block_type")
    window = config.count("sliding_window", "attention_chunk_size", default=0)
    if window == 0 or config.get("use_sliding_window") is False:
        window = 0
    narrow = LayerCache(
        heads=full.heads,
        key_length=full.key_length,
        value_length=full.value_length,
        window_tokens=window or None,
    )
    interval = config.count("full_attention_interval", default=0)
    if kinds is None and interval:
        kinds = [_DELTA if (n + 1) % interval else "full_attention" for n in range(layers)]
    if isinstance(kinds, list) and len(kinds) == layers:
        of_kind = dict.fromkeys(_WINDOWED, narrow) | {"full_attention": full, "attention": full}
        if _DELTA in kinds and (state := _delta(config)):
            of_kind[_DELTA] = LayerCache(state_elements=state)
        return (
            tuple(of_kind.get(kind, full) for kind in _texts(kinds)),
            all(kind in of_kind for kind in _texts(kinds)),
        )
    if not window:
        return (full,) * layers, kinds is None
    if config.get("model_type") == "mistral":
        return (narrow,) * layers, True
    period = config.get("sliding_window_pattern", "_sliding_window_pattern")
    if type(period) is int and period > 0:
        return tuple(
            full if number % period == period - 1 else narrow for number in range(layers)
        ), True
    return (full,) * layers, False


def _full_cache(config: ModelConfig, width: int) -> LayerCache:
    model_type = config.get("model_type")
    rank = config.count("kv_lora_rank", default=0)
    if rank and model_type not in _LATENT_NOT_CACHED:
        return LayerCache(heads=1, key_length=rank + config.count("qk_rope_head_dim", default=0))
    heads = config.count(*_HEADS)
    if heads == 0:
        raise config.unusable("num_attention_heads", "is 0; such models are not known here")
    default_heads = heads
    if model_type in _ONE_HEAD and config.get("multi_query") is True:
        default_heads = heads if config.get("new_decoder_architecture") is True else 1
    length = config.count("head_dim", "attention_head_dim", default=width // heads)
    if rank:
        length = config.count("qk_nope_head_dim") + config.count("qk_rope_head_dim")
    heads_kv = config.count(
        "num_key_value_heads", "n_head_kv", "num_kv_heads", "multi_query_group_num",
        "num_attention_groups", default=default_heads,
    )  # fmt: skip
    return LayerCache(heads=heads_kv, key_length=length, value_length=length)


def _feed_forward_length(config: ModelConfig, width: int) -> int:
    dense, expert = _inner_lengths(config, width)
    return max(dense, config.count(*_EXPERTS_USED, default=0) * expert)


def _inner_lengths(config: ModelConfig, width: int) -> tuple[int, int]:
    """Of a dense layer, and of one expert."""
    dense = config.count("intermediate_size", "ffn_hidden_size", "n_inner", default=4 * width)
    return dense, config.count("moe_intermediate_size", default=dense)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parameters:
    """How many a configuration has of each kind; norms and biases are left out."""

    attention: int
    dense: int
    """Feed-forward without a choice, shared experts included."""
    experts: int
    share: float
    """Of the experts that one token uses."""
    routers: int
    tables: int
    output: int
    """The part of the tables that makes logits."""

    @property
    def all(self) -> int:
        return self.attention + self.dense + self.experts + self.routers + self.tables

    @property
    def active(self) -> int:
        """Those that one token is multiplied with."""
        used = round(self.experts * self.share)
        return self.attention + self.dense + used + self.routers + self.output


def _parameters(config: ModelConfig, caches: Sequence[LayerCache], width: int) -> _Parameters:
    """By kind: feed-forward has 3 matrices, or without a gate 2, of width * inner length."""
    layers = len(caches)
    dense_length, expert_length = _inner_lengths(config, width)
    inner = (2 if config.get("model_type") in _UNGATED else 3) * width
    experts = config.count(*_EXPERTS, default=0)
    used = min(config.count(*_EXPERTS_USED, default=0), experts)
    shared = config.count("shared_expert_intermediate_size", default=0)
    shared = shared or config.count("n_shared_experts", default=0) * expert_length
    step = config.count("decoder_sparse_step", default=1) or 1
    first = config.count("first_k_dense_replace", default=0)
    sparse = len(range(first, layers, step)) if experts else 0
    table = config.count("vocab_size", default=0) * width
    return _Parameters(
        attention=sum(_attention(config, cache, width) for cache in caches),
        dense=inner * ((layers - sparse) * dense_length + sparse * shared),
        experts=inner * sparse * experts * expert_length,
        share=used / experts if experts else 1.0,
        routers=sparse * experts * width,
        tables=table if config.get("tie_word_embeddings") is not False else 2 * table,
        output=table,
    )


def _attention(config: ModelConfig, cache: LayerCache, width: int) -> int:
    """Parameters of a layer's attention: queries, keys, values and output, or those of a latent."""
    if not cache.heads and cache.state_elements:
        keys, values = _delta_widths(config)
        return width * (2 * keys + 3 * values)
    heads = config.count(*_HEADS)
    rank = config.count("kv_lora_rank", default=0)
    if not rank:
        head = cache.key_length or width // heads
        return 2 * width * (heads + cache.heads) * head
    rope, value = config.count("qk_rope_head_dim", default=0), config.count("v_head_dim", default=0)
    key = config.count("qk_nope_head_dim", default=0) + rope
    query_rank = config.count("q_lora_rank", default=0)
    queries = query_rank * (width + heads * key) if query_rank else width * heads * key
    latent = width * (rank + rope) + rank * heads * (key - rope + value)
    return queries + latent + heads * value * width


def _delta_widths(config: ModelConfig) -> tuple[int, int]:
    def width_of(part: str) -> int:
        count = config.count(f"linear_num_{part}_heads", default=0)
        return count * config.count(f"linear_{part}_head_dim", default=0)

    return width_of("key"), width_of("value")


def _delta(config: ModelConfig) -> int:
    """Elements of a delta net's state: its last inputs, and keys * values of each head."""
    keys, values = _delta_widths(config)
    last = config.count("linear_conv_kernel_dim", default=1) - 1
    return last * (2 * keys + values) + values * config.count("linear_key_head_dim", default=0)


def _dtype(config: ModelConfig) -> str | None:
    dtype = config.get("dtype", "torch_dtype")
    return str(dtype).removeprefix("torch.") if isinstance(dtype, str) else None


def _quantization(config: ModelConfig) -> str | None:
    settings = config.get("quantization_config", "compression_config")
    if not isinstance(settings, dict):
        return None
    groups = settings.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else ():  # compressed-tensors
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict) and type(weights.get("num_bits")) is int:
            return f"{'fp' if weights.get('type') == 'float' else 'int'}{weights['num_bits']}"
    method = settings.get("quant_algo") or settings.get("quant_method") or "quantized"
    bits = settings.get("bits") or (4 if settings.get("load_in_4bit") is True else None)
    return f"{method}-{bits}bit" if type(bits) is int else str(method)


def _texts(items: Iterable[object]) -> list[str]:
    return [item if isinstance(item, str) else "" for item in items]


_SIZE_BYTES: Final = 8
_MAX_JSON_BYTES: Final = 100_000_000  # the package's own limit
_DAMAGED: Final = "the file is cut or damaged, download it again"


def tensor_bytes(path: Path) -> int:
    """The bytes of a file's tensors: all that follows its header, by whose offsets it is whole.

    Raises:
        ModelFileInvalid: It is missing, is no safetensors file, or is cut.
    """
    try:
        with path.open("rb") as file:
            file_bytes = path.stat().st_size
            size = int.from_bytes(file.read(_SIZE_BYTES), "little")
            left = file_bytes - _SIZE_BYTES
            if left < 0 or size > min(left, _MAX_JSON_BYTES):
                raise ModelFileInvalid(
                    f"a header of {size:,} bytes should follow, {max(left, 0):,} bytes do; "
                    f"{_DAMAGED} (a web page or Git LFS pointer may have been saved in its place)",
                    path=path,
                    offset=0,
                )
            text = file.read(size)
    except OSError as error:
        raise ModelFileInvalid(
            f"cannot be opened ({error.strerror}); download all files of the model into one folder",
            path=path,
        ) from error
    header = read_json(text, path=path, offset=_SIZE_BYTES)
    try:
        ends = [about["data_offsets"][1] for key, about in header.items() if key != "__metadata__"]
        end, found = operator.index(max(ends, default=0)), left - size
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ModelFileInvalid(
            f"the header does not say where its tensors are; {_DAMAGED}",
            path=path,
            offset=_SIZE_BYTES,
        ) from error
    if end != found:
        said = f"{end:,} bytes of tensors should follow the header, {found:,} do; {_DAMAGED}"
        raise ModelFileInvalid(said, path=path, offset=file_bytes)
    return found


def read_json(text: bytes, *, path: Path, offset: int = 0) -> Any:  # noqa: ANN401 - whatever it is
    """Parses JSON that begins at byte `offset` of a file.

    Raises:
        ModelFileInvalid: It is not JSON.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        # Its position counts characters, not bytes.
        read = len(error.doc[: error.pos].encode(errors="replace")) if error.doc else 0
        raise ModelFileInvalid(
            f"it is not JSON ({error.msg}); {_DAMAGED}", path=path, offset=offset + read
        ) from error


_TEXT_PARTS: Final = ("text_config", "llm_config", "language_config")
"""Where multimodal models keep the shape of their language model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A `config.json`. Its methods raise `ModelFileInvalid` for impossible values."""

    path: Path
    text: bytes
    whole: Mapping[str, Any]
    values: Mapping[str, Any]
    """The part that describes the language model: all of it, or one of its tables."""

    def get(self, *names: str) -> Any:  # noqa: ANN401 - whatever the JSON has
        """The value of the first of these names that has one; null counts as missing."""
        held = (values.get(name) for values in (self.values, self.whole) for name in names)
        return next((value for value in held if value is not None), None)

    def count(self, *names: str, default: int | None = None) -> int:
        """A whole number from 0, or `default` if there is one and it is missing."""
        value = self.get(*names)
        if value is None and default is not None:
            return default
        if value is None:
            raise self.unusable(names[0], "is missing; name the folder of a language model")
        if type(value) is not int or value < 0:
            raise self.unusable(names[0], f"is {value!r}, not a count")
        return value

    def unusable(self, name: str, problem: str) -> ModelFileInvalid:
        """The error for a missing or impossible value."""
        at = max(self.text.find(f'"{name}"'.encode()), 0)
        return ModelFileInvalid(f"'{name}' {problem}", path=self.path, offset=at)


def read_model_config(path: Path) -> ModelConfig:
    """Reads a model's `config.json`.

    Raises:
        ModelFileInvalid: It is missing, or it is not a JSON object.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ModelFileInvalid(
            f"cannot be opened ({error.strerror}); download all files of the model into one folder",
            path=path,
        ) from error
    whole = read_json(text, path=path)
    if not isinstance(whole, dict):
        raise ModelFileInvalid("it is not a JSON object", path=path, offset=0)
    part = next((whole[name] for name in _TEXT_PARTS if isinstance(whole.get(name), dict)), whole)
    return ModelConfig(path=path, text=text, whole=whole, values=part)
