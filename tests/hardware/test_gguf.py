"""Reading GGUF headers: real, synthetic, split, cut and mutated."""

import os
import struct
import time
import tracemalloc

import pytest
from gguf_writer import (
    BOOL,
    F32,
    I32,
    SMALL,
    STRING,
    TENSOR_BYTES,
    TENSORS,
    U16,
    U32,
    header,
    string,
    value,
)

from harness.errors import ModelFileInvalid
from harness.hardware import (
    GgufHeader,
    LayerCache,
    Loading,
    Weights,
    file_type_name,
    gguf_footprint,
    gguf_header_from_values,
    read_gguf_header,
)
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
    start = time.perf_counter()
    model = read_gguf_header(demo_model)
    print(f"{demo_model.name}: {1e3 * (time.perf_counter() - start):.1f} ms")

    assert model == GgufHeader(
        architecture="llama",
        name="Smollm2 135M 8k Lc100K Mix1 Ep2",
        file_type=3,
        tensor_bytes=96_576_768,  # gguf-py 0.19 sums the same; llama.cpp prints 92.10 MiB
        file_bytes=demo_model.stat().st_size,
        block_count=30,
        context_length=8192,
        embedding_length=576,
        feed_forward_length=1536,
        recurrent_length=0,
        expert_count=0,
        expert_used_count=0,
        head_count=9,
        vocabulary_size=49_152,
        caches=(LayerCache(heads=3, key_length=64, value_length=64),) * 30,
        exact_caches=True,
        weights=Weights(
            input_bytes=30_081_024,
            layer_bytes=(2_216_448,) * 30,
            output_bytes=2304,
            shared_bytes=30_081_024,  # the vocabulary's matrix is used at both ends
            expert_bytes=0,
            draft_bytes=0,
        ),
    )
    assert file_type_name(model.file_type) == "Q4_1"


@pytest.mark.parametrize("version", [2, 3])
def test_a_synthetic_header_is_read(write, version):
    path = write(version=version)
    assert read_gguf_header(path) == GgufHeader(
        architecture="llama",
        name="Tiny",
        file_type=15,
        tensor_bytes=TENSOR_BYTES,
        file_bytes=path.stat().st_size,
        block_count=2,
        context_length=2048,
        embedding_length=64,
        feed_forward_length=128,
        recurrent_length=0,
        expert_count=0,
        expert_used_count=0,
        head_count=4,
        vocabulary_size=3,
        caches=(LayerCache(heads=2, key_length=16, value_length=16),) * 2,
        exact_caches=True,
        weights=Weights(
            input_bytes=384,
            layer_bytes=(256 + 288, 0),
            output_bytes=0,
            shared_bytes=384,
            expert_bytes=0,
            draft_bytes=0,
        ),
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param(
            {"llama.attention.head_count_kv": (I32, [0, 2])},
            {"head_count_kv": (0, 2)},
            id="an array has one value for each layer",
        ),
        pytest.param(
            {"llama.attention.head_count": (U32, [8, 4]), "llama.attention.head_count_kv": None},
            {"head_count": 8, "head_count_kv": (8, 4), "key_length": 8},
            id="key-value heads default to the heads",
        ),
        pytest.param(
            {"llama.attention.key_length": (U32, 24), "llama.attention.value_length": (U32, 32)},
            {"key_length": 24, "value_length": 32},
            id="widths of heads go before the default",
        ),
        pytest.param(
            {"llama.attention.head_count": None, "llama.attention.head_count_kv": None},
            {"head_count": 0, "head_count_kv": (0, 0), "key_length": 0, "value_length": 0},
            id="a model without attention has no heads",
        ),
        pytest.param(
            {"llama.expert_used_count": (U32, 8), "llama.expert_feed_forward_length": (U32, 48)},
            {"expert_used_count": 8, "feed_forward_length": 384},
            id="experts of their own width",
        ),
        pytest.param(
            {"llama.expert_used_count": (U32, 2)},
            {"expert_used_count": 2, "feed_forward_length": 256},
            id="experts as wide as the dense layer",
        ),
        pytest.param(
            {"llama.feed_forward_length": (I32, [64, 96])},
            {"feed_forward_length": 96},
            id="the widest feed-forward layer",
        ),
        pytest.param(
            {"tokenizer.ggml.tokens": None, "llama.vocab_size": (U32, 77)},
            {"vocabulary_size": 77},
            id="the vocabulary as a number",
        ),
        pytest.param(
            {"tokenizer.ggml.tokens": None}, {"vocabulary_size": 0}, id="no vocabulary at all"
        ),
        pytest.param(
            {"general.name": None, "general.file_type": None},
            {"name": "m", "file_type": 1024},
            id="no name and no file type",
        ),
    ],
)
def test_keys_mean_what_llama_cpp_takes_them_for(write, changes, expected):
    values = {key: pair for key, pair in (SMALL | changes).items() if pair is not None}
    model = read_gguf_header(write(values))
    assert {field: getattr(model, field) for field in expected} == expected


def test_of_an_encoder_no_table_is_needed_at_the_output(write):
    as_encoder = {key.replace("llama", "bert"): value for key, value in SMALL.items()}
    as_encoder["general.architecture"] = (STRING, "bert")

    chats, encodes = read_gguf_header(write()), read_gguf_header(write(as_encoder))

    assert (chats.has_output, encodes.has_output) == (True, False)
    assert (chats.weights.shared_bytes, encodes.weights.shared_bytes) == (384, 0)
    assert chats.weights.loaded_bytes == encodes.weights.loaded_bytes


def test_long_values_are_stepped_over(write):
    path = write(
        {
            "tokenizer.huggingface.json": (STRING, "x" * 10**6),
            "tokenizer.ggml.token_type": (I32, [1] * 10**5),
            "tokenizer.ggml.merges": (STRING, ["a b"] * 10**5),
            "a.flag": (BOOL, True),
        }
        | SMALL
    )
    tracemalloc.start()
    assert read_gguf_header(path).name == "Tiny"
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 500_000


def test_what_a_server_tells_of_a_header_leads_to_the_same_figures(demo_model):
    model = read_gguf_header(demo_model)
    values = {key: value.content for key, value in read_gguf_file(demo_model).values.items()}
    assert values["tokenizer.ggml.tokens"] is None  # as Ollama leaves arrays out
    told = gguf_header_from_values(values, name="smollm2:135m", tensor_bytes=model.tensor_bytes)
    assert told.caches == model.caches
    assert (told.name, told.file_type, told.exact_caches) == (model.name, model.file_type, True)
    case = {"context_tokens": 4096, "slots": 2, "cache_type_k": "q8_0"}
    ours, theirs = gguf_footprint(model, Loading(**case)), gguf_footprint(told, Loading(**case))
    assert (theirs.weights_bytes, theirs.kv_bytes) == (ours.weights_bytes, ours.kv_bytes)
    assert theirs.compute_bytes == pytest.approx(ours.compute_bytes, rel=0.05)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"llama.block_count": None}, "a model: 'llama.block_count' is not a count"),
        ({"llama.attention.head_count": None}, "was left out; ask the server for all there is"),
        ({"general.architecture": 7}, "'general.architecture' is not a text"),
    ],
)
def test_what_a_server_must_tell_is_named(changes, message):
    values = {key: content for key, (_, content) in SMALL.items()} | changes
    with pytest.raises(ModelFileInvalid, match=message):
        gguf_header_from_values(values, name="a model", tensor_bytes=1)


# --- split models ----------------------------------------------------------------------------


def split(number, count):
    return {"split.no": (U16, number), "split.count": (U16, count)}


def test_the_parts_of_a_split_model_are_summed(write):
    first = write(SMALL | split(0, 3), [], room=0, name="big-00001-of-00003.gguf")
    parts = [
        write(split(number, 3), name=f"big-0000{number + 1}-of-00003.gguf") for number in (1, 2)
    ]
    model = read_gguf_header(first)
    assert model.tensor_bytes == 2 * TENSOR_BYTES
    assert model.file_bytes == sum(path.stat().st_size for path in [first, *parts])
    assert model.block_count == 2


def test_a_missing_part_is_named(write):
    first = write(SMALL | split(0, 2), name="big-00001-of-00002.gguf")
    with pytest.raises(ModelFileInvalid, match=r"big-00002-of-00002\.gguf.*all parts") as caught:
        read_gguf_header(first)
    assert caught.value.path.name == "big-00002-of-00002.gguf"


@pytest.mark.parametrize(
    ("number", "name", "message"),
    [
        pytest.param(1, "big-00002-of-00002.gguf", "part 2 of 2; name part 1", id="not the first"),
        pytest.param(0, "renamed.gguf", r"must end in '-00001-of-00002\.gguf'", id="renamed"),
    ],
)
def test_a_split_model_is_named_by_its_first_part(write, number, name, message):
    with pytest.raises(ModelFileInvalid, match=message):
        read_gguf_header(write(SMALL | split(number, 2), name=name))


# --- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "offset", "message"),
    [
        pytest.param(b"", 0, "is empty.*download it again", id="empty"),
        pytest.param(b"vers", 0, "begins with b'vers', not b'GGUF'.*LFS", id="an LFS pointer"),
        pytest.param(b"GGUF", 4, "4 bytes should follow, 0 do", id="nothing but the magic"),
        pytest.param(b"GGUF\1\0\0\0", 8, "version 1 is not 2 or 3", id="version 1"),
        pytest.param(b"GGUF\0\0\0\3", 8, "not 2 or 3 in little-endian", id="big-endian"),
        pytest.param(
            header({"k" * 70_000: (U32, 1)}), 32, "name of 70,000 bytes is too long", id="long key"
        ),
        pytest.param(
            b"GGUF" + struct.pack("<IQQ", 3, 2**40, 1),
            24,
            "1,099,511,627,776 tensors and 1 keys",
            id="more tensors than there can be",
        ),
        pytest.param(
            b"GGUF" + struct.pack("<IQQ", 3, 1, 2**63),
            24,
            "1 tensors and 9,223,372,036,854,775,808",
            id="more keys than there can be",
        ),
        pytest.param(
            b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + 2 * (string("key") + value(U32, 1)),
            54,
            "the key 'key' comes a second time",
            id="the same key twice",
        ),
    ],
)
def test_a_file_that_is_no_gguf_is_refused(tmp_path, data, offset, message):
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelFileInvalid, match=message) as caught:
        read_gguf_header(path)
    assert caught.value.path == path
    assert caught.value.offset == offset


def test_a_missing_file_is_refused_with_its_path_and_a_remedy(tmp_path):
    path = tmp_path / "none.gguf"
    with pytest.raises(
        ModelFileInvalid, match=r"none\.gguf: cannot be opened.*give the path"
    ) as caught:
        read_gguf_header(path)
    assert caught.value.offset is None


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "m.gguf")
    with pytest.raises(ModelFileInvalid, match="is a pipe"):
        read_gguf_header(tmp_path / "m.gguf")


def test_a_directory_is_refused(tmp_path):
    with pytest.raises(ModelFileInvalid, match="cannot be opened"):
        read_gguf_header(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"llama.block_count": None}, r"'llama\.block_count' is missing; name the file of a lang"),
        ({"llama.block_count": (U32, 0)}, r"'llama\.block_count' is 0, not 1 to"),
        (
            {"llama.block_count": (U32, 2**32 - 1)},
            r"'llama\.block_count' is 4,294,967,295, not 1 to",
        ),
        ({"llama.block_count": (F32, 2.0)}, r"'llama\.block_count' is not a count"),
        ({"llama.block_count": (BOOL, True)}, r"'llama\.block_count' is not a count"),
        ({"llama.embedding_length": (I32, -1)}, r"'llama\.embedding_length' is not a count"),
        ({"llama.attention.head_count_kv": (U32, [1])}, "not one for each layer"),
        ({"general.architecture": (U32, 1)}, r"'general\.architecture' is not a text"),
        ({"general.architecture": (STRING, "clip")}, r"'clip\.block_count' is missing"),
    ],
)
def test_a_key_that_is_missing_or_makes_no_sense_is_named(write, changes, message):
    values = {key: pair for key, pair in (SMALL | changes).items() if pair is not None}
    with pytest.raises(ModelFileInvalid, match=message):
        read_gguf_header(write(values))


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        pytest.param(("t", (32,), 31), "tensor 't' is of type 31", id="a type of long ago"),
        pytest.param(("t", (32,), 999), "tensor 't' is of type 999.*update", id="a type to come"),
        pytest.param(("t", (100,), 12), "100 elements.*Q4_K blocks", id="no whole blocks"),
        pytest.param(("t", (1,) * 5, 0), "tensor 't' has 5 dimensions", id="five dimensions"),
        pytest.param(("t", (2**40,), 0), "bytes of tensors should follow", id="beyond the end"),
        pytest.param(TENSORS[0], "comes a second time", id="the same tensor twice"),
    ],
)
def test_a_tensor_that_cannot_be_is_refused(write, tensor, message):
    with pytest.raises(ModelFileInvalid, match=message):
        read_gguf_header(write(SMALL, [*TENSORS, tensor]))


def test_every_cut_is_refused_where_it_was_made(rewrite):
    whole = header(SMALL) + bytes(TENSOR_BYTES)
    for size in range(1, len(whole)):
        path = rewrite(whole[:size])
        with pytest.raises(ModelFileInvalid) as caught:
            read_gguf_header(path)
        assert caught.value.offset is not None
        assert caught.value.offset <= size
