"""That no model judges itself, nor its relatives, over whatever chain of fallbacks."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from harness.errors import ModelFileInvalid, SameFamily, SameModel
from harness.inference import Endpoint, ModelMetadata
from harness.session.separation import ComparedModels
from harness.session.settings import SameFamilyRule


def served(
    tag: str, model_id: str = "", *, port: int = 8000, fallback: str = "", family: str | None = None
) -> Endpoint:
    return Endpoint(
        tag=tag,
        url=f"http://127.0.0.1:{port}/v1",
        model_id=model_id or tag,
        fallback=tuple(fallback.split()),
        family=family,
    )


def compared(*endpoints: Endpoint, same_family: SameFamilyRule = "refuse") -> ComparedModels:
    return ComparedModels({one.tag: one for one in endpoints}, same_family=same_family)


def gguf(path: Path, **texts: str | int) -> Path:
    """A GGUF file without tensors, whose `general.` keys say this."""
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, len(texts))
    for name, value in texts.items():
        key = f"general.{name}".encode()
        data += struct.pack("<Q", len(key)) + key
        if isinstance(value, int):
            data += struct.pack("<II", 4, value)
        else:
            data += struct.pack("<IQ", 8, len(value.encode())) + value.encode()
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("producer", "evaluator"),
    [
        pytest.param(served("p", "qwen2.5:7b"), served("e", "qwen2.5:7b"), id="one name"),
        pytest.param(served("p", "m", port=1), served("e", "m", port=2), id="two addresses"),
        pytest.param(served("p", "Qwen/Qwen2.5-7B"), served("e", "qwen2.5-7b"), id="namespace"),
        pytest.param(served("p", "qwen:latest"), served("e", "qwen"), id="latest"),
        pytest.param(served("p", "default"), served("e", "default"), id="one server"),
        pytest.param(
            served("p", "qwen2.5:7b-instruct-q4_K_M"),
            served("e", "Qwen/Qwen2.5-7B-Instruct-AWQ", port=2),
            id="another quantisation",
        ),
    ],
)
@pytest.mark.parametrize("same_family", ["refuse", "allow"])
def test_one_model_under_two_tags_may_not_judge_itself_whatever_is_allowed(
    producer: Endpoint, evaluator: Endpoint, same_family: SameFamilyRule
) -> None:
    models = compared(producer, evaluator, same_family=same_family)
    with pytest.raises(SameModel, match=r"producer 'p' .* and evaluator 'e' .*give the role"):
        models.refuse_kin("p", "e")


@pytest.mark.parametrize(
    "endpoint",
    [
        Endpoint(tag="a", backend="scripted"),
        Endpoint(tag="a", backend="litellm", model_id="azure/default"),
    ],
    ids=["scripted", "a name that says nothing, at no address"],
)
def test_one_endpoint_may_not_hold_both_roles(endpoint: Endpoint) -> None:
    with pytest.raises(SameModel):
        compared(endpoint).refuse_kin("a", "a")


def test_two_copies_of_one_file_are_one_model(tmp_path: Path) -> None:
    first, second = tmp_path / "a.gguf", tmp_path / "b.gguf"
    first.write_bytes(b"GGUF" + bytes(3000))
    second.write_bytes(first.read_bytes())
    with pytest.raises(SameModel, match=str(first)):
        compared(Endpoint(tag="a", path=first), Endpoint(tag="b", path=second)).refuse_kin("a", "b")


def test_a_file_is_known_by_its_header(tmp_path: Path) -> None:
    path = gguf(
        tmp_path / "judge.gguf",
        architecture="qwen2",
        name="Qwen2.5 7B Instruct",
        file_type=15,
    )
    models = compared(Endpoint(tag="file", path=path), served("server", "qwen2.5:7b"))
    identity = models.identity("file")
    assert (identity.weights, identity.family) == ("qwen-2.5-7b-instruct", "qwen")
    assert (identity.quantisation, identity.source) == ("Q4_K_M", "file header")
    with pytest.raises(SameModel):
        models.refuse_kin("server", "file")


def test_a_file_type_that_is_unknown_is_no_quantisation(tmp_path: Path) -> None:
    path = gguf(tmp_path / "model.gguf", architecture="llama", file_type=1024)
    assert compared(Endpoint(tag="file", path=path)).identity("file").quantisation is None


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    models = compared(served("p"), Endpoint(tag="e", path=tmp_path / "missing.gguf"))
    with pytest.raises(ModelFileInvalid, match=r"missing\.gguf"):
        models.refuse_kin("p", "e")


def test_relatives_are_refused_with_the_setting_that_allows_them() -> None:
    models = compared(served("p", "qwen2.5:7b"), served("e", "DeepSeek-R1-Distill-Qwen-14B"))
    with pytest.raises(SameFamily, match=r"of one family \(qwen\).*same_family = \"allow\""):
        models.refuse_kin("p", "e")


def test_relatives_may_judge_each_other_where_that_is_allowed_and_it_is_said() -> None:
    models = compared(served("p", "qwen2.5:7b"), served("e", "qwen3:8b"), same_family="allow")
    assert models.refuse_kin("p", "e").relation == "family"


def test_different_models_may() -> None:
    kinship = compared(served("p", "qwen"), served("e", "llama")).refuse_kin("p", "e")
    assert (kinship.relation, kinship.producer, kinship.evaluator) == ("different", ("p",), ("e",))


# --- the word of servers ---------------------------------------------------------------------


def told(*endpoints: Endpoint, **paths: str) -> ComparedModels:
    """Their servers say they loaded these."""
    models = compared(*endpoints)
    models.take_word({tag: ModelMetadata(path=path) for tag, path in paths.items()})
    return models


def test_two_made_up_names_over_one_file_are_one_model_and_it_is_said_who_says_so() -> None:
    models = told(
        served("p", "our-writer", port=1),
        served("e", "our-judge", port=2),
        p="/home/ann/our-own.gguf",
        e="/srv/our-own.gguf",
    )
    with pytest.raises(SameModel) as caught:
        models.refuse_kin("p", "e")
    assert str(caught.value).startswith(
        "producer 'p' (our-writer at http://127.0.0.1:1/v1, serving our-own.gguf) and evaluator "
        "'e' (our-judge at http://127.0.0.1:2/v1, serving our-own.gguf) are the same model, by the "
        "word of their servers, and a model does not judge its own output; give the role"
    )


def test_a_servers_word_is_held_against_a_name_too() -> None:
    models = told(served("p", "gpt-4"), served("e", "qwen2.5:7b"), p="Qwen/Qwen2.5-7B-Instruct")
    with pytest.raises(SameModel, match="the same model, by the word of the producer's server,"):
        models.refuse_kin("p", "e")


def test_relatives_by_their_servers_word_are_refused() -> None:
    models = told(
        served("p", "our-writer"), served("e", "our-judge"), p="Qwen/Qwen3-8B", e="/m/Qwen2.5-7B"
    )
    with pytest.raises(SameFamily, match=r"one family \(qwen\), by the word of their servers"):
        models.refuse_kin("p", "e")


def test_one_alias_for_two_models_keeps_them_apart_when_the_servers_say_more() -> None:
    both = (served("p", "gpt-4", port=1), served("e", "gpt-4", port=2))
    with pytest.raises(SameModel):
        compared(*both).refuse_kin("p", "e")
    models = told(*both, p="Qwen/Qwen3-8B", e="/models/Llama-3.1-8B-Instruct")
    assert models.refuse_kin("p", "e").relation == "different"


def test_what_an_endpoint_says_of_its_family_goes_before_its_servers_word() -> None:
    models = told(
        served("p", "our-writer"), served("e", "our-judge", family="qwen"), p="Qwen/Qwen3-8B", e="m"
    )
    with pytest.raises(SameFamily):
        models.refuse_kin("p", "e")


def test_all_that_can_answer_for_the_two_can_be_reached() -> None:
    models = compared(
        served("p", fallback="x e"), served("e", fallback="z"), *map(served, ["x", "z", "other"])
    )
    assert [one.tag for one in models.reachable("p", "e")] == ["p", "x", "e", "z"]


# --- fallbacks -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("endpoints", "error", "said"),
    [
        pytest.param(
            (served("p", "qwen2.5:7b", fallback="e"), served("e", "llama3.1:8b")),
            SameModel,
            "p -> e",
            id="the producer falls back on the evaluator",
        ),
        pytest.param(
            (
                served("p", "qwen2.5:7b", fallback="x y"),
                served("x", "mistral:7b"),
                served("y", "gemma3:4b"),
                served("e", "llama3.1:8b", fallback="z"),
                served("z", "google/gemma-3-4b-it", port=2),
            ),
            SameModel,
            r"p -> y\).*e -> z",
            id="both fall back on one model",
        ),
        pytest.param(
            (
                served("p", "qwen2.5:7b"),
                served("e", "llama3.1:8b", fallback="z"),
                served("z", "qwen3:8b"),
            ),
            SameFamily,
            "e -> z",
            id="the evaluator falls back on a relative",
        ),
    ],
)
def test_no_fallback_may_join_the_two(
    endpoints: tuple[Endpoint, ...], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=f"by the fallbacks .*{said}"):
        compared(*endpoints).refuse_kin("p", "e")


def test_the_closest_of_all_that_can_be_reached_is_what_the_two_are_to_each_other() -> None:
    models = compared(
        served("p", "qwen2.5:7b", fallback="x y"),
        served("x", "our-writer"),
        served("y", "llama3.2:3b"),
        served("e", "llama3.1:8b"),
        same_family="allow",
    )
    kinship = models.refuse_kin("p", "e")
    assert (kinship.relation, kinship.producer) == ("family", ("p", "y"))


# --- warnings --------------------------------------------------------------------------------


def warnings(*endpoints: Endpoint) -> list[str]:
    models = compared(*endpoints)
    return [str(one) for one in models.warnings(models.kinship("p", "e"))]


def test_a_family_that_nothing_tells_is_a_warning_with_its_remedy() -> None:
    (warning,) = warnings(served("p", "our-writer"), served("e", "llama3.1:8b"))
    assert "nothing tells the family of 'p'; write it down as family" in warning
    (warning,) = warnings(served("p", "default", port=1), served("e", "default", port=2))
    assert "'e' and 'p'" in warning
    assert not warnings(served("p", "our-writer", family="ours"), served("e", "llama3.1:8b"))


def test_a_judge_of_few_bits_is_a_warning_a_producer_of_few_is_none() -> None:
    few, many = "llama3.1:8b-instruct-q4_K_M", "qwen2.5:7b-instruct-q8_0"
    (warning,) = warnings(served("p", many), served("e", few))
    assert "'e' is quantised to Q4_K_M: below Q8_0" in warning
    assert not warnings(served("p", few), served("e", many))


def test_a_judges_fallback_of_few_bits_is_a_warning_too() -> None:
    (warning,) = warnings(
        served("p", "qwen2.5:7b"),
        served("e", "llama3.1:8b", fallback="z"),
        served("z", "TheBloke/Mistral-7B-Instruct-v0.2-AWQ"),
    )
    assert "evaluator 'z' is quantised to AWQ" in warning


def test_scripted_backends_are_no_models_and_no_matter_of_warnings() -> None:
    scripted = [Endpoint(tag=tag, backend="scripted") for tag in ("p", "e")]
    assert not warnings(*scripted)
    assert not warnings(scripted[0], served("e", "our-judge"))
