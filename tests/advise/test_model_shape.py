"""What is known of a model, from a GGUF, a folder of safetensors, or a `config.json`."""

import json

import pytest
from gguf_writer import SMALL, TENSOR_BYTES, TENSORS, header

from harness.advise.data_tables import quantization_of
from harness.advise.model_shape import parse_parameters, read_model_shape
from harness.errors import ModelFileInvalid
from harness.hardware import Loading, gguf_footprint, read_gguf_header
from harness.hardware.gguf_caches import LayerCache

LLAMA_8B = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14_336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "max_position_embeddings": 131_072, "vocab_size": 128_256, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.fixture
def write(tmp_path):
    """Write a model's folder, of files with contents or of sizes alone, and return its path."""

    def write(config=LLAMA_8B, files=None):
        (tmp_path / "config.json").write_text(json.dumps(config))
        for name, content in (files or {}).items():
            with (tmp_path / name).open("wb") as file:
                if isinstance(content, int):
                    file.truncate(content)
                else:
                    file.write(content)
        return tmp_path

    return write


# --- what is read ----------------------------------------------------------------------------


def test_a_model_is_read(write):
    quantized = LLAMA_8B | {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    folder = write(quantized, files={"model.safetensors": 5_000_000_000})
    model = read_model_shape(folder)
    assert (model.family, model.title, model.quantization) == ("llama", folder.name, "GPTQ-4BIT")
    assert model.weight_bytes == 5_000_000_000
    assert (model.layers, model.context_limit) == (32, 131_072)
    assert model.compute_bytes == 2 * (3 * 14_336 + 5 * 4096)
    assert model.caches == (LayerCache(heads=8, key_length=128, value_length=128),) * 32
    assert model.exact_caches


@pytest.mark.parametrize(
    "settings", [{}, {"quant_method": "exl2", "bits": 2.4}], ids=["none", "EXL2"]
)
def test_files_of_a_packing_that_the_configuration_does_not_tell_are_read(write, settings):
    packed = LLAMA_8B | {"quantization_config": settings}
    folder = write(packed, files={"model.safetensors": 2_600_000_000})
    assert read_model_shape(folder).weight_bytes == 2_600_000_000


def test_only_the_files_of_the_index_are_counted(write):
    places = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    files = dict.fromkeys((*places.values(), "consolidated.safetensors"), 8_000_000_000)
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    folder = write(files=files | {"model.safetensors.index.json": json.dumps(index).encode()})
    assert read_model_shape(folder).weight_bytes == 16_000_000_000


SHAPE = {"num_hidden_layers": 8, "hidden_size": 64, "num_attention_heads": 4}


LATENT = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
NOT_CACHED = {"model_type": "minicpm3", "qk_rope_head_dim": 8, "qk_nope_head_dim": 16}
GPT_2 = {"n_layer": 8, "n_embd": 64, "n_head": 4}
GROUPS = ("num_key_value_heads", "n_head_kv", "num_kv_heads")
GROUPS += ("multi_query_group_num", "num_attention_groups")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        pytest.param(SHAPE, (4, 16, 16), id="as many key-value heads as heads"),
        pytest.param(SHAPE | {"head_dim": 24}, (4, 24, 24), id="heads of their own width"),
        *(pytest.param(SHAPE | {name: 2}, (2, 16, 16), id=name) for name in GROUPS),
        pytest.param(GPT_2, (4, 16, 16), id="as GPT-2 has it"),
        pytest.param(
            {"model_type": "llava", "hidden_size": 7, "text_config": SHAPE},
            (4, 16, 16),
            id="the text part of a model of more",
        ),
        pytest.param(
            SHAPE | {"model_type": "falcon", "multi_query": True}, (1, 16, 16), id="one head"
        ),
        pytest.param(SHAPE | LATENT, (1, 576, 0), id="a latent"),
        pytest.param(SHAPE | LATENT | NOT_CACHED, (4, 24, 24), id="a latent that is not cached"),
    ],
)
def test_heads_go_by_many_names(write, config, expected):
    model = read_model_shape(write(config))
    heads, key_length, value_length = expected
    full = LayerCache(heads=heads, key_length=key_length, value_length=value_length)
    assert model.caches == (full,) * 8
    assert model.exact_caches


MIXED = ["sliding_attention", "full_attention"] * 4


LINEAR = ["linear_attention", "full_attention"] * 4
WINDOW = {"sliding_window": 9}


@pytest.mark.parametrize(
    ("keys", "expected", "exact"),
    [
        pytest.param(WINDOW | {"layer_types": MIXED}, "9 . " * 4, True, id="a list"),
        pytest.param(WINDOW | {"use_sliding_window": False}, ". " * 8, True, id="switched off"),
        pytest.param(WINDOW | {"sliding_window_pattern": 4}, "9 9 9 . " * 2, True, id="a period"),
        pytest.param(WINDOW | {"model_type": "mistral"}, "9 " * 8, True, id="all of them"),
        pytest.param(WINDOW, ". " * 8, False, id="who knows which"),
        pytest.param({"layer_types": LINEAR}, ". " * 8, False, id="states of an unknown size"),
        pytest.param({"mamba_d_state": 16}, ". " * 8, False, id="recurrent beside attention"),
    ],
)
def test_windows_are_those_of_the_configuration(write, keys, expected, exact):
    model = read_model_shape(write(SHAPE | keys))
    assert " ".join(str(c.window_tokens or ".") for c in model.caches) == expected.strip()
    assert model.exact_caches is exact


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (None, None),
        ({"quant_method": "awq", "bits": 4}, "AWQ-4BIT"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "BITSANDBYTES-4BIT"),
        ({"quant_algo": "NVFP4"}, "NVFP4"),
        ({"config_groups": {"a": {"weights": {"num_bits": 8, "type": "float"}}}}, "FP8"),
        ({}, "QUANTIZED"),
    ],
)
def test_a_quantization_is_named(write, settings, name):
    folder = write(SHAPE | {"quantization_config": settings})
    assert read_model_shape(folder).quantization == name


# --- caches of sequences ---------------------------------------------------------------------


def test_a_cache_has_keys_and_values_of_each_token(write):
    model = read_model_shape(write())
    whole = model.sequence_kv_bytes(1000)
    assert whole == 1000 * 131_072  # 32 layers * 8 heads * 2 * 128 * 2 bytes
    assert model.sequence_kv_bytes(1000, 8) == whole / 2


def test_a_window_takes_no_more_than_itself_and_what_is_computed_at_once(write):
    model = read_model_shape(write(SHAPE | {"sliding_window": 1024, "layer_types": MIXED}))
    short, long = (model.sequence_kv_bytes(n, beside=8192) for n in (1024, 65_536))
    assert short == 8 * 1024 * 256
    assert long == 4 * 65_536 * 256 + 4 * (1024 + 8192) * 256


def test_a_state_is_kept_beside_keys_and_values(write):
    delta = {"layer_types": LINEAR, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
    delta |= {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4}
    model = read_model_shape(write(SHAPE | delta))
    state = 4 * (3 * (2 * 16 + 32) + 32 * 8)
    assert model.sequence_kv_bytes(16) == 4 * 16 * 256 + 4 * state
    assert model.exact_caches


@pytest.mark.parametrize("left_out", [["lm_head"], ["re:.*self_attn.*"], True])
def test_attention_that_is_not_quantized_stays_in_16_bits(tmp_path, left_out):
    settings = {"quant_method": "fp8", "modules_to_not_convert": left_out}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA_8B | {"quantization_config": settings}))
    attention, fine = 32 * 2 * 4096 * 40 * 128, 128_256 * 4096
    shape = read_model_shape(path)
    expected = fine + attention * ("self_attn" in str(left_out))
    assert shape.weight_bytes - shape.parameters == shape.fine_parameters == expected


def test_a_gguf_is_known_to_the_byte(demo_model):
    shape = read_model_shape(demo_model)
    assert shape.parameters == pytest.approx(134.5e6, rel=0.001)
    assert (shape.layers, shape.quantization, shape.packing) == (30, "Q4_1", "gguf")
    assert shape.output_parameters == 49_152 * 576  # the input's table again
    loading = Loading(context_tokens=4096, cache_type_k="q8_0", cache_type_v="q8_0")
    expected = gguf_footprint(read_gguf_header(demo_model), loading)
    assert shape.weight_bytes == expected.weights_bytes
    assert shape.sequence_kv_bytes(4096, 8) == expected.kv_bytes
    # An allowance, for the longest context.
    assert expected.compute_bytes <= 512 * shape.compute_bytes < 1.5 * expected.compute_bytes
    assert shape.sequence_kv_bytes(1, 8) == 23_040 // 2 * 34 // 32
    finer = shape.quantized(quantization_of("Q8_0"))
    assert finer.weight_bytes == pytest.approx(134.5e6 * 8.5 / 8, rel=0.001)
    assert finer.active_bytes / finer.weight_bytes == pytest.approx(
        shape.active_bytes / shape.weight_bytes
    )


# --- what is refused -------------------------------------------------------------------------


def test_files_that_hold_no_model_are_refused(write):
    folder = write(files={"model.safetensors": b"version https://git-lfs"})
    with pytest.raises(ModelFileInvalid, match="download all files") as caught:
        read_model_shape(folder)
    assert caught.value.path == folder


@pytest.mark.parametrize("tensors", [[], TENSORS[:1]], ids=["none", "the input's table"])
def test_a_file_that_is_only_a_vocabulary_is_refused(tmp_path, tensors):
    path = tmp_path / "vocabulary.gguf"
    path.write_bytes(header(SMALL, tensors) + bytes(TENSOR_BYTES))
    with pytest.raises(ModelFileInvalid, match="only tables"):
        read_model_shape(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_hidden_layers", None),
        ("num_hidden_layers", 10**9),
        ("hidden_size", "64"),
        ("hidden_size", 0),
        ("num_attention_heads", 0),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused_with_the_key(write, key, value):
    folder = write(LLAMA_8B | {key: value})
    with pytest.raises(ModelFileInvalid, match=f"config.json: '{key}' is"):
        read_model_shape(folder)


def test_what_is_missing_is_named(tmp_path, write):
    def told():
        with pytest.raises(ModelFileInvalid) as caught:
            read_model_shape(tmp_path)
        return caught.value.path.relative_to(tmp_path).name

    assert told() == "config.json"
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    assert read_model_shape(tmp_path).layers == 32  # the configuration alone
    index = {"weight_map": {"a": "gone.safetensors"}}
    write(files={"model.safetensors.index.json": json.dumps(index).encode()})
    assert told() == "gone.safetensors"


@pytest.mark.parametrize("name", ["../other.safetensors", "/etc/passwd"])
def test_an_index_leads_nowhere_else(write, name):
    index = {"weight_map": {"a": name}}
    folder = write(files={"model.safetensors.index.json": json.dumps(index).encode()})
    with pytest.raises(ModelFileInvalid, match="cannot be opened"):
        read_model_shape(folder)


@pytest.mark.parametrize("size", ["8", "B", "0B", "eight"])
def test_a_size_has_a_count_and_a_unit(size):
    assert not parse_parameters(size)
