"""Which model an endpoint leads to, and what two of them are to each other."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import ModelFileInvalid
from harness.inference import Endpoint, ModelMetadata
from harness.inference.model_identity import (
    metadata_from,
    model_identity,
    relation_of,
    served_identity,
    server_address,
)
from harness.inference.model_names import family_of, family_of_architecture, parse_model_name

MIB = 1 << 20


def served(model_id, *, url="http://127.0.0.1:8000/v1", family=None):
    return model_identity(Endpoint(tag="tag", url=url, model_id=model_id, family=family))


def related(one, other):
    """Two served models, by their names, at two addresses."""
    return relation_of(
        served(one, url="http://127.0.0.1:1/v1"), served(other, url="http://127.0.0.1:2/v1")
    )


PAIRS = [
    # One model, however it is packed and wherever it is served.
    ("qwen2.5:7b-instruct-q4_K_M", "Qwen2.5-7B-Instruct-Q8_0.gguf", "same"),
    ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "unsloth/Qwen2.5-7B-Instruct-bnb-4bit", "same"),
    ("qwen2.5:7b", "Qwen/Qwen2.5-7B-Instruct", "same"),
    ("qwen3:8b", "hf.co/bartowski/Qwen_Qwen3-8B-GGUF:Q4_K_M", "same"),
    ("llama3.1:8b", "meta-llama/Meta-Llama-3.1-8B-Instruct", "same"),
    ("llama3.1:8b", "meta.llama3-1-8b-instruct-v1:0", "same"),
    ("gemma3:4b", "google/gemma-3-4b-it-qat-q4_0-gguf", "same"),
    ("deepseek-r1:7b", "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "same"),
    ("smollm2:135m", "SmolLM2-135M-Instruct.Q4_1.gguf", "same"),
    ("claude-3-5-sonnet-20241022", "us.anthropic.claude-3-5-sonnet-20241022-v2:0", "same"),
    ("gpt-4o", "openai/gpt-4o-2024-08-06", "same"),
    ("our-judge", "registry.local/team/our-judge:latest", "same"),
    # Relatives: sizes, generations, variants, releases, distillates.
    ("qwen2.5:7b", "qwen2.5:14b", "family"),
    ("qwen2.5:7b", "qwen3:8b", "family"),
    ("Qwen3-4B", "Qwen3-4B-Instruct-2507", "family"),
    ("QwQ-32B", "qwen2.5:32b", "family"),
    ("llama3.1:8b", "atla/selene-mini", "family"),
    ("qwen2.5:14b", "deepseek-r1:14b", "family"),
    ("gemma-3-4b-it", "gemma-3-4b-pt", "family"),
    ("gpt-4", "gpt-4-0613", "family"),
    ("claude-3-5-sonnet-20240620", "claude-3-5-sonnet-20241022", "family"),
    # Strangers.
    ("qwen2.5:7b", "llama3.1:8b", "different"),
    ("deepseek-r1:7b", "deepseek-r1:671b", "different"),
    ("tinyllama:1.1b", "llama3.2:1b", "different"),
    # Not known: nothing tells the family of one of them.
    ("qwen2.5:7b", "our-judge", "unknown"),
    ("our-judge", "our-writer", "unknown"),
    ("default", "default", "unknown"),
    ("/models/model.gguf", "/models/model.gguf", "unknown"),
]


@pytest.mark.parametrize(("one", "other", "relation"), PAIRS)
def test_names_tell_what_two_models_are_to_each_other(one, other, relation):
    # It does not matter which is named first.
    assert (related(one, other), related(other, one)) == (relation, relation)


WORDS = st.sampled_from(
    ("qwen2.5", "Llama-3.1", "mistral", "gemma3", "our", "model", "default", "instruct", "it")
) | st.sampled_from(("base", "7b", "14B", "8x7b", "v0.2", "vl", "chat", "2"))
JOINED = st.builds(
    lambda parts, separator: separator.join(parts),
    st.lists(WORDS, min_size=1, max_size=4),
    st.sampled_from("-_:/ "),
)
PACKINGS = st.sampled_from(["-Q4_K_M.gguf", "-AWQ", ":q8_0", "-GPTQ-Int4", "-FP8", "-IQ2_XS", ""])


@given(one=JOINED, other=JOINED, packing=PACKINGS)
def test_packing_never_changes_what_two_models_are_to_each_other(one, other, packing):
    assert related(one + packing, other) == related(one, other) == related(other, one + packing)


# --- names that say nothing ------------------------------------------------------------------


def test_of_one_server_even_a_name_that_says_nothing_is_one_model():
    assert relation_of(served("default"), served("default")) == "same"
    assert relation_of(served("default"), served("model")) == "unknown"


@pytest.mark.parametrize(
    ("backend", "url"),
    [
        ("openai", "http://localhost:8080/v1"),
        ("openai", "http://[::1]:8080/v1/"),
        ("openai", "http://0.0.0.0:8080/v1"),
        ("openai", "http://[::]:8080/v1"),
        ("ollama", "http://127.0.0.1:8080"),
    ],
)
def test_one_server_by_another_spelling_is_the_same_server(backend, url):
    endpoint = Endpoint(tag="other", backend=backend, url=url, model_id="default")

    one = served("default", url="http://127.0.0.1:8080/v1")
    assert relation_of(one, model_identity(endpoint)) == "same"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("https://Host.example/v1", "HTTPS://host.example:443", True),
        ("http://h/openai/v1", "http://h/openai/", True),
        ("http://h/openai/v1", "http://h/v1", False),
        ("http://h:8080", "http://h:8081", False),
        ("http://h/v1?deployment=a", "http://h/v1?deployment=b", False),
    ],
)
def test_addresses_lead_to_one_server_or_to_two(one, other, same):
    assert (server_address(one) == server_address(other)) is same


def test_an_endpoint_says_its_family_where_its_name_does_not_or_lies():
    ours = served("our-judge", family="Qwen2.5")

    assert relation_of(ours, served("qwen3:8b")) == "family"
    assert relation_of(ours, served("llama3.1:8b")) == "different"
    assert relation_of(served("qwen-killer-7b", family="ours"), served("qwen3:8b")) == "different"


def test_a_scripted_backend_is_its_tag_and_no_relative_of_anything():
    scripted = model_identity(Endpoint(tag="qwen2.5:7b", backend="scripted"))
    other = model_identity(Endpoint(tag="writer", backend="scripted"))

    assert relation_of(scripted, scripted) == "same"
    assert relation_of(scripted, other) == "different"
    assert relation_of(scripted, served("qwen2.5:7b")) == "different"
    assert (scripted.family, scripted.low_bit) == (None, False)


# --- files -----------------------------------------------------------------------------------


def of_file(path, **header):
    metadata = ModelMetadata(**header) if header else None
    return model_identity(Endpoint(tag=path.name, path=path), metadata)


def file_of(directory, name, data=b"a"):
    path = directory / name
    path.write_bytes(data)
    return path


@pytest.fixture
def model(tmp_path):
    return file_of(tmp_path, "model.gguf", bytes(range(256)) * (3 * MIB // 256))


def test_copies_and_links_of_a_file_are_the_same_model(model, tmp_path):
    copy = file_of(tmp_path, "copy", model.read_bytes())
    link, other_name = tmp_path / "link", tmp_path / "other name"
    link.symlink_to(model)
    os.link(model, other_name)

    for path in (copy, link, other_name):
        assert relation_of(of_file(path), of_file(model)) == "same"


@pytest.mark.parametrize("at", [0, MIB - 1, 2 * MIB, 3 * MIB - 1])
def test_a_byte_in_the_first_or_last_mebibyte_makes_another_file(model, tmp_path, at):
    changed = bytearray(model.read_bytes())
    changed[at] ^= 1
    assert relation_of(of_file(file_of(tmp_path, "other", changed)), of_file(model)) == "unknown"


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ModelFileInvalid) as caught:
        of_file(tmp_path / "missing.gguf")

    assert caught.value.path == tmp_path / "missing.gguf"


def test_a_file_and_a_server_of_its_name_are_the_same_model(tmp_path):
    path = file_of(tmp_path, "Qwen2.5-7B-Instruct-Q8_0.gguf")

    assert relation_of(of_file(path), served("qwen2.5:7b-instruct-q4_K_M")) == "same"


def test_two_packings_of_a_model_are_known_by_their_headers_whatever_the_files_are_called(tmp_path):
    small, large = file_of(tmp_path, "model.gguf"), file_of(tmp_path, "judge.gguf", b"b")
    one = of_file(small, names=("Qwen2.5 7B Instruct",), quantization="Q4_K_M")
    other = of_file(large, names=("Qwen2.5 7B Instruct",), quantization="Q8_0")

    assert relation_of(one, other) == "same"
    assert (one.weights, one.quantization, one.source) == (
        "qwen-2.5-7b-instruct",
        "Q4_K_M",
        "file header",
    )
    assert (one.low_bit, other.low_bit) == (True, False)


def test_a_file_answers_to_its_headers_name_and_to_its_own(tmp_path):
    # So is SmolLM2's: "Smollm2 135M 8k Lc100K Mix1 Ep2" in the header.
    path = file_of(tmp_path, "SmolLM2-135M-Instruct.Q4_1.gguf")
    file = of_file(path, names=("Smollm2 135M 8k Lc100K Mix1 Ep2",), architecture="llama")

    assert relation_of(file, served("smollm2:135m")) == "same"
    assert file.family == "smollm"


@pytest.mark.parametrize(
    ("header", "family"),
    [
        ({"base_models": ("Llama 3.1 8B Instruct",), "names": ("Judge 8B",)}, "llama"),
        ({"names": ("Judge 8B",), "architecture": "qwen2"}, "qwen"),
        ({"names": ("Judge 8B",), "architecture": "llama"}, None),
    ],
)
def test_a_header_tells_the_family_where_the_name_does_not(tmp_path, header, family):
    path = file_of(tmp_path, "judge.gguf")

    assert of_file(path, **header).family == family


def test_metadata_are_read_under_ggufs_keys():
    metadata = metadata_from(
        {
            "general.architecture": "llama",
            "general.name": "Selene 1 Mini",
            "general.basename": "Selene-1-Mini",
            "general.size_label": "8B",
            "general.finetune": "Instruct",
            "general.base_model.count": 1,
            "general.base_model.0.name": "Llama 3.1 8B Instruct",
            "general.base_model.0.organization": "Meta",
            "general.languages": None,
        },
        quantization="Q6_K",
    )

    assert metadata == ModelMetadata(
        names=("Selene 1 Mini", "Selene-1-Mini-8B-Instruct"),
        base_models=("Llama 3.1 8B Instruct",),
        architecture="llama",
        quantization="Q6_K",
    )
    assert metadata_from({}, quantization=None) == ModelMetadata()


# --- quantization, and what servers answer ---------------------------------------------------


@pytest.mark.parametrize(
    ("model_id", "low_bit"),
    [
        ("qwen2.5:7b-instruct-q4_K_M", True),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", True),
        ("Qwen2.5-7B-Instruct-Q8_0.gguf", False),
        ("RedHatAI/Qwen2.5-7B-Instruct-FP8-dynamic", False),
        ("gpt-oss-20b-MXFP4.gguf", False),
        ("qwen2.5:7b", False),
    ],
)
def test_fewer_bits_than_q8_0_are_few(model_id, low_bit):
    assert served(model_id).low_bit is low_bit


@pytest.mark.parametrize(
    ("model_id", "tells"),
    [
        ("Qwen2.5-7B-Instruct", True),
        ("our-judge-8b", True),
        ("our-judge", False),
        ("/models/model.gguf", False),
    ],
)
def test_a_reply_tells_weights_if_its_name_has_a_family_or_a_size(model_id, tells):
    endpoint = Endpoint(tag="judge", url="http://127.0.0.1:1/v1", family="ours")
    identity = served_identity(endpoint, model_id)

    assert identity.tells_weights is tells
    assert (identity.family, identity.source) == ("ours", "server")


# --- names of models, as servers, repositories and files have them --------------------------------

QWEN = "qwen-2.5-7b-instruct"


@pytest.mark.parametrize(
    ("text", "weights", "quantization"),
    [
        ("qwen2.5:7b-instruct-q4_K_M", QWEN, "Q4_K_M"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", QWEN, "GPTQ-INT4"),
        ("Qwen3-4B-Instruct-2507-UD-Q4_K_XL.gguf", "qwen-3-4b-instruct-2507", "Q4_K_XL"),
        ("mlx-community/Qwen3-30B-A3B-4bit-DWQ", "qwen-3-30b-a3b", "4BIT"),
        (
            "neuralmagic/Meta-Llama-3.1-8B-Instruct-quantized.w4a16",
            "llama-3.1-8b-instruct",
            "W4A16",
        ),
        ("Meta-Llama-3.1-70B-Instruct-Q8_0-00001-of-00003.gguf", "llama-3.1-70b-instruct", "Q8_0"),
        ("accounts/fireworks/models/llama-v3p1-8b-instruct", "llama-3.1-8b-instruct", None),
        ("turboderp/Llama-3.1-8B-Instruct-exl2:4.25bpw", "llama-3.1-8b-instruct", "4.25BPW"),
        ("D:\\models\\llama-2-7b-chat.Q5_K_S.gguf", "llama-2-7b-chat", "Q5_K_S"),
        ("registry.local:5000/team/phi3.5:3.8b-fp16", "phi-3.5-3.8b", "FP16"),
        ("us.anthropic.claude-3-5-sonnet-20241022-v2:0", "claude-3.5-sonnet", None),
        ("openai/gpt-4o-2024-08-06", "gpt-4o", None),
        ("gpt-4-0613", "gpt-4-0613", None),
    ],
)
def test_a_name_is_its_weights_and_their_packing(text, weights, quantization):
    name = parse_model_name(text)

    assert (name.weights, name.quantization) == (weights, quantization)


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("/models/Qwen2.5-7B-Instruct-GGUF/ggml-model-q4_k_m.gguf", QWEN),
        ("/hub/models--Qwen--Qwen2.5-7B-Instruct/snapshots/a09a35458c702b33eeacc393d1030632", QWEN),
        ("/home/alice/model-1.gguf", ""),
    ],
)
def test_a_file_without_a_name_has_that_of_its_folder_if_that_is_a_models(text, weights):
    assert parse_model_name(text).weights == weights


# --- families ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "family"),
    [
        ("Qwen/QwQ-32B", "qwen"),
        ("meta-llama/Llama-Guard-3-8B", "llama"),
        ("google/codegemma-7b-it", "gemma"),
        ("anthropic/claude-sonnet-4-5", "claude"),
        # Trained anew, for all the likeness of the names.
        ("TinyLlama-1.1B-Chat-v1.0", "tinyllama"),
        ("my-finetune-7b", None),
        # Derived from another's weights.
        ("deepseek-r1:14b", "qwen"),
        ("deepseek-r1:671b", "deepseek"),
        ("nvidia/Llama-3.1-Nemotron-70B-Instruct-HF", "llama"),
        ("atla/selene-mini", "llama"),
        ("NousResearch/Hermes-2-Pro-Mistral-7B", "mistral"),
        ("tokyotech-llm/Gemma-2-Llama-Swallow-9b-it-v0.1", "gemma"),
        ("prometheus-eval/prometheus-7b-v2.0", "mistral"),
    ],
)
def test_a_name_tells_the_family_that_its_weights_are_from(text, family):
    assert family_of(parse_model_name(text)) == family


@pytest.mark.parametrize(
    ("architecture", "family"),
    [
        ("qwen3moe", "qwen"),
        ("gemma3n", "gemma"),
        ("chatglm", "glm"),
        ("llama4", "llama"),
        ("llama", None),
        (None, None),
    ],
)
def test_an_architecture_tells_a_family_unless_many_share_it(architecture, family):
    assert family_of_architecture(architecture) == family
