"""Whatever is wrong with a header, it is read or refused at a byte that is named, in little memory.

Some damaged headers of each kind, the same ones each time, and 500 in the slow tier; 20,000 new
ones with `HYPOTHESIS_PROFILE=nightly`.
"""

import contextlib
import os
import random
import secrets
import struct
import tracemalloc

import pytest
from gguf_writer import F32, I32, SMALL, STRING, TENSOR_BYTES, header
from mutations import mutated
from tiny_models import MODELS, write_model

from harness.errors import InvalidInput, ModelFileInvalid
from harness.hardware import (
    Loading,
    gguf_footprint,
    gguf_header_from_values,
    read_gguf_header,
    split_footprint,
)
from harness.hardware.gguf_file import read_gguf_file

NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
MANY = 20_000 if NIGHTLY else 500
some_or_many = pytest.mark.parametrize("tries", [200, pytest.param(MANY, marks=pytest.mark.slow)])
LEAST_ALLOWED_BYTES = 2**20


@pytest.fixture
def generator():
    seed = secrets.randbits(64) if NIGHTLY else 20261120
    print(f"seed {seed}")
    return random.Random(seed)


@contextlib.contextmanager
def little_memory(data):
    """Not more than the file has, or what any small program takes."""
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    yield
    _, peak = tracemalloc.get_traced_memory()
    assert peak - before < max(len(data), LEAST_ALLOWED_BYTES)


@pytest.fixture
def traced():
    tracemalloc.start()
    yield
    tracemalloc.stop()


def header_of(path):
    """A file's bytes without its tensors, and how many bytes these are."""
    file = read_gguf_file(path)
    data = path.read_bytes()
    last = list(file.tensors)[-1].encode()
    end = data.index(struct.pack("<Q", len(last)) + last, file.values_end) + 8 + len(last)
    (dimensions,) = struct.unpack_from("<I", data, end)
    end += 4 + 8 * dimensions + 4 + 8
    return data[:end], len(data) - end


@pytest.fixture(scope="module")
def headers(demo_model, tmp_path_factory):
    """Real and synthetic: each with the size of its tensors."""
    vocabulary = {
        "tokenizer.ggml.tokens": (STRING, [chr(97 + n % 26) * (n % 40) for n in range(3000)]),
        "tokenizer.ggml.scores": (F32, [0.0] * 3000),
        "tokenizer.ggml.token_type": (I32, [1] * 3000),
    }
    folder = tmp_path_factory.mktemp("models")
    return [
        header_of(demo_model),
        (header(SMALL), TENSOR_BYTES),
        (header(SMALL, version=2), TENSOR_BYTES),
        (header(SMALL | vocabulary), TENSOR_BYTES),
        *(header_of(write_model(folder / f"{name}.gguf", name)) for name in MODELS),
    ]


@some_or_many
@pytest.mark.usefixtures("traced")
def test_any_gguf_header_is_read_or_refused_at_a_byte(headers, generator, rewrite, tries):
    donors = [data for data, _ in headers]
    weights = [1, *[20] * (len(headers) - 1)]  # the real one has a megabyte and a half
    refused = 0
    for _ in range(tries):
        whole, tensor_bytes = generator.choices(headers, weights)[0]
        damaged = mutated(whole, generator, donors) + bytes(min(tensor_bytes, 2**16))
        path = rewrite(damaged, room=max(tensor_bytes - 2**16, 0))
        with little_memory(damaged):
            try:
                model = read_gguf_header(path)
            except ModelFileInvalid as error:
                assert error.offset is not None  # noqa: PT017 - most reads fail, as they should
                assert error.offset <= path.stat().st_size  # noqa: PT017
                refused += 1
                continue
        of_tensors = sum(read_gguf_file(path).tensors.values())
        assert model.weights.loaded_bytes <= of_tensors <= path.stat().st_size
        with contextlib.suppress(InvalidInput):  # heads of an odd width
            needed = gguf_footprint(model, Loading(context_tokens=4096))
            assert needed.total_bytes >= model.weights.loaded_bytes
            split = split_footprint(model, Loading(context_tokens=4096), gpu_layers=2)
            assert split.gpus[0].kv_bytes + split.machine.kv_bytes == needed.kv_bytes
    assert tries / 3 < refused < tries  # both outcomes were seen


@some_or_many
def test_whatever_a_server_tells_is_understood_or_refused(generator, headers, rewrite, tries):
    told = []
    for data, tensor_bytes in headers[1:]:
        file = read_gguf_file(rewrite(data, room=tensor_bytes))
        told.append({key: value.content for key, value in file.values.items()})
    nonsense = [None, -1, 0, 2**70, 1.5, "", "x", True, [], [None], [1, 2], ["x"], {}, {"a": 1}]
    refused = 0
    for _ in range(tries):
        values = dict(generator.choice(told))
        for key in generator.sample(list(values), 2):
            values[key] = generator.choice(nonsense)
        try:
            model = gguf_header_from_values(values, name="a model", tensor_bytes=1000)
        except ModelFileInvalid as error:
            assert "a model" in str(error)  # noqa: PT017 - many do not make sense
            refused += 1
            continue
        with contextlib.suppress(InvalidInput):
            assert gguf_footprint(model, Loading(context_tokens=4096)).total_bytes >= 1000
    assert 0 < refused < tries
