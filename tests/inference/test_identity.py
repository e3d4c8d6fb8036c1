import os

import pytest

from harness.errors import ModelFileInvalid
from harness.inference import Endpoint, model_identity

MIB = 1 << 20


def of_file(path):
    return model_identity(Endpoint(tag=path.name, path=path))


def of_name(model_id, url="http://127.0.0.1:8000/v1"):
    return model_identity(Endpoint(tag="tag", url=url, model_id=model_id))


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(bytes(range(256)) * (3 * MIB // 256))
    return path


def test_copies_and_links_of_a_file_are_the_same_model(model, tmp_path):
    copy, link, other_name = (tmp_path / name for name in ("copy", "link", "other name"))
    copy.write_bytes(model.read_bytes())
    link.symlink_to(model)
    os.link(model, other_name)

    assert len({of_file(path) for path in (model, copy, link, other_name)}) == 1


@pytest.mark.parametrize("at", [0, MIB - 1, 2 * MIB, 3 * MIB - 1])
def test_a_byte_in_the_first_or_last_mebibyte_makes_another_model(model, tmp_path, at):
    changed = bytearray(model.read_bytes())
    changed[at] ^= 1
    other = tmp_path / "other.gguf"
    other.write_bytes(changed)

    assert of_file(other) != of_file(model)


def test_a_cut_file_is_another_model(tmp_path):
    # All of one value, so that only the size tells them apart.
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.write_bytes(bytes(4 * MIB))
    cut.write_bytes(bytes(3 * MIB))

    assert of_file(whole) != of_file(cut)


def test_a_file_shorter_than_the_samples_has_an_identity_too(tmp_path):
    short, other = tmp_path / "short", tmp_path / "other"
    short.write_bytes(b"a")
    other.write_bytes(b"b")

    assert of_file(short) != of_file(other)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ModelFileInvalid, match=r"missing\.gguf: cannot be read") as caught:
        of_file(tmp_path / "missing.gguf")

    assert caught.value.path == tmp_path / "missing.gguf"


@pytest.mark.parametrize(
    "model_id",
    [
        "qwen2.5-7b",
        "Qwen2.5-7B",
        "Qwen/Qwen2.5-7B",
        "registry.local/qwen/qwen2.5-7b",
        "qwen2.5-7b:latest",
        "Qwen2.5-7B:LATEST",
        "/models/qwen2.5-7b/",
    ],
)
def test_a_served_model_is_the_same_whatever_namespace_tag_and_case(model_id):
    assert of_name(model_id) == "served qwen2.5-7b"


def test_a_served_model_is_the_same_at_another_address():
    assert of_name("qwen", url="http://a/v1") == of_name("qwen", url="https://b:9/v1")


@pytest.mark.parametrize("other", ["qwen2.5-7b", "qwen2.5-14b", "qwen2.5-7b:q4", "latest"])
def test_other_names_are_other_models(other):
    assert of_name(other) != of_name("qwen2.5-7b:q8")


def test_a_file_and_a_served_name_are_never_the_same_model(model):
    assert of_file(model) != of_name("model.gguf")
