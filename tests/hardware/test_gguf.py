"""Reading GGUF headers: real, synthetic, split, cut and mutated."""

import struct

import pytest
from gguf_writer import I32, SMALL, STRING, TENSOR_BYTES, TENSORS, U16, U32, header, string, value

from harness.errors import ModelFileInvalid
from harness.hardware import (
    Loading,
    file_type_name,
    gguf_footprint,
    gguf_header_from_values,
    read_gguf_header,
)
from harness.hardware.gguf import Weights
from harness.hardware.gguf_caches import LayerCache
from harness.hardware.gguf_file import read_gguf_file


@pytest.fixture
def write(tmp_path):
    """Write a model and return its path."""

    def write(values=SMALL, tensors=TENSORS, *, room=TENSOR_BYTES, name="m.gguf", version=3):
        path = tmp_path / name
        path.write_bytes(header(values, tensors, version=version) + bytes(room))
        return path

    return write


# --- what is read ----------------------------------------------------------------------------


def test_the_real_header_is_read(demo_model):
    model = read_gguf_header(demo_model)

    assert (model.architecture, file_type_name(model.file_type)) == ("llama", "Q4_1")
    assert model.weights.loaded_bytes == 96_576_768  # gguf-py 0.19 sums the same
    assert (model.block_count, model.context_length, model.head_count) == (30, 8192, 9)
    assert (model.embedding_length, model.feed_forward_length) == (576, 1536)
    assert model.vocabulary_size == 49_152
    assert model.caches == (LayerCache(heads=3, key_length=64, value_length=64),) * 30
    assert model.exact_caches
    assert model.weights == Weights(
        input_bytes=30_081_024,
        layer_bytes=(2_216_448,) * 30,
        output_bytes=2304,
        shared_bytes=30_081_024,  # the vocabulary's matrix is used at both ends
        expert_bytes=0,
    )


KV = "llama.attention.head_count_kv"
HEADS, FEED = "llama.attention.head_count", "llama.feed_forward_length"
TOKENS = "tokenizer.ggml.tokens"


def changed(changes):
    """The small model's values but for these; None leaves one out."""
    return {key: pair for key, pair in (SMALL | changes).items() if pair is not None}


def layers(*heads, length):
    return tuple(LayerCache(heads=n, key_length=length, value_length=length) for n in heads)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({KV: (I32, [0, 2])}, {"caches": layers(0, 2, length=16)}),  # one for each layer
        ({HEADS: (U32, [8, 4]), KV: None}, {"head_count": 8, "caches": layers(8, 4, length=8)}),
        ({HEADS: None, KV: None}, {"head_count": 0, "caches": (LayerCache(),) * 2}),
        (
            {"llama.expert_used_count": (U32, 8), "llama.expert_feed_forward_length": (U32, 48)},
            {"expert_used_count": 8, "feed_forward_length": 384},
        ),
        ({FEED: (I32, [64, 96])}, {"feed_forward_length": 96}),
        ({TOKENS: None, "llama.vocab_size": (U32, 77)}, {"vocabulary_size": 77}),
        ({"general.name": None, "general.file_type": None}, {"name": "m", "file_type": 1024}),
    ],
    ids=[
        "an array has one value for each layer",
        "key-value heads default to the heads",
        "a model without attention has no heads",
        "experts of their own width",
        "the widest feed-forward layer",
        "the vocabulary as a number",
        "no name and no file type",
    ],
)
def test_keys_mean_what_llama_cpp_takes_them_for(write, changes, expected):
    model = read_gguf_header(write(changed(changes)))
    assert {field: getattr(model, field) for field in expected} == expected


def test_what_a_server_tells_of_a_header_leads_to_the_same_figures(demo_model):
    model = read_gguf_header(demo_model)
    values = {key: value.content for key, value in read_gguf_file(demo_model).values.items()}
    assert values["tokenizer.ggml.tokens"] is None  # as Ollama leaves arrays out
    told = gguf_header_from_values(values, name="m", tensor_bytes=model.weights.loaded_bytes)
    assert told.caches == model.caches
    assert (told.name, told.file_type, told.exact_caches) == (model.name, model.file_type, True)
    case = {"context_tokens": 4096, "slots": 2, "cache_type_k": "q8_0"}
    ours, theirs = gguf_footprint(model, Loading(**case)), gguf_footprint(told, Loading(**case))
    assert (theirs.weights_bytes, theirs.kv_bytes) == (ours.weights_bytes, ours.kv_bytes)
    assert theirs.compute_bytes == pytest.approx(ours.compute_bytes, rel=0.05)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"llama.block_count": None}, "llama.block_count"),
        ({"general.architecture": 7}, "general.architecture"),
    ],
)
def test_what_a_server_must_tell_is_named(changes, key):
    values = {key: content for key, (_, content) in SMALL.items()} | changes
    with pytest.raises(ModelFileInvalid, match=f"'{key}'"):
        gguf_header_from_values(values, name="a model", tensor_bytes=1)


# --- split models ----------------------------------------------------------------------------


def split(number, count):
    return {"split.no": (U16, number), "split.count": (U16, count)}


def test_the_parts_of_a_split_model_are_summed(write):
    first = write(SMALL | split(0, 3), [], room=0, name="big-00001-of-00003.gguf")
    for number in (1, 2):
        write(split(number, 3), name=f"big-0000{number + 1}-of-00003.gguf")
    model = read_gguf_header(first)
    assert model.weights.loaded_bytes == 2 * TENSOR_BYTES
    assert model.block_count == 2


@pytest.mark.parametrize(
    ("number", "name", "told"),
    [
        pytest.param(0, "big-00001-of-00002.gguf", "big-00002-of-00002.gguf", id="a part missing"),
        pytest.param(1, "big-00002-of-00002.gguf", "part 2 of 2", id="not the first"),
        pytest.param(0, "renamed.gguf", "-00001-of-00002.gguf", id="renamed"),
    ],
)
def test_a_split_model_is_named_by_its_first_part_and_whole(write, number, name, told):
    with pytest.raises(ModelFileInvalid) as caught:
        read_gguf_header(write(SMALL | split(number, 2), name=name))
    assert told in str(caught.value)


# --- what is refused -------------------------------------------------------------------------


PREAMBLE = b"GGUF" + struct.pack("<I", 3)


@pytest.mark.parametrize(
    ("data", "offset"),
    [
        pytest.param(b"", 0, id="empty"),
        pytest.param(b"vers", 0, id="an LFS pointer"),
        pytest.param(b"GGUF\1\0\0\0", 8, id="version 1"),
        pytest.param(header({"k" * 70_000: (U32, 1)}), 32, id="a long key"),
        pytest.param(PREAMBLE + struct.pack("<QQ", 2**40, 1), 24, id="too many tensors"),
        pytest.param(
            PREAMBLE + struct.pack("<QQ", 0, 2) + 2 * (string("key") + value(U32, 1)),
            54,
            id="the same key twice",
        ),
    ],
)
def test_a_file_that_is_no_gguf_is_refused_at_a_byte(tmp_path, data, offset):
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelFileInvalid) as caught:
        read_gguf_header(path)
    assert (caught.value.path, caught.value.offset) == (path, offset)


@pytest.mark.parametrize(
    ("key", "pair", "problem"),
    [
        ("llama.block_count", None, "is missing"),
        ("llama.block_count", (U32, 0), "is 0"),
        ("llama.block_count", (U32, 2**32 - 1), "is 4,294,967,295"),
        ("llama.embedding_length", (I32, -1), "is not a count"),
        (KV, (U32, [1]), "is not a count, or not one for each layer"),
        ("general.architecture", (U32, 1), "is not a text"),
        ("general.architecture", (STRING, "clip"), "is missing"),
    ],
)
def test_a_key_that_is_missing_or_makes_no_sense_is_named(write, key, pair, problem):
    with pytest.raises(ModelFileInvalid) as caught:
        read_gguf_header(write(changed({key: pair})))
    named = "clip.block_count" if pair == (STRING, "clip") else key
    assert f"'{named}' {problem}" in str(caught.value)


@pytest.mark.parametrize(
    ("tensor", "problem"),
    [
        pytest.param(("t", (32,), 999), "type 999", id="a type to come"),
        pytest.param(("t", (100,), 12), "100 elements", id="no whole blocks"),
        pytest.param(("t", (1,) * 5, 0), "5 dimensions", id="five dimensions"),
        pytest.param(("t", (2**40,), 0), "bytes of tensors", id="beyond the end"),
        pytest.param(TENSORS[0], "a second time", id="the same tensor twice"),
    ],
)
def test_a_tensor_that_cannot_be_is_refused(write, tensor, problem):
    with pytest.raises(ModelFileInvalid, match=problem):
        read_gguf_header(write(SMALL, [*TENSORS, tensor]))


def test_every_cut_is_refused_where_it_was_made(rewrite):
    whole = header(SMALL) + bytes(TENSOR_BYTES)
    for size in range(1, len(whole), 3):
        path = rewrite(whole[:size])
        with pytest.raises(ModelFileInvalid) as caught:
            read_gguf_header(path)
        assert caught.value.offset is not None
        assert caught.value.offset <= size
