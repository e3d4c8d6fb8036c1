"""Who produces and who evaluates, and that they are not the same model."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import ConfigurationInvalid, SameModel
from harness.inference import Endpoint
from harness.session.roles import Roles


def served(tag: str, model_id: str = "", *, port: int = 8000) -> Endpoint:
    return Endpoint(tag=tag, url=f"http://127.0.0.1:{port}/v1", model_id=model_id or tag)


def roles(*endpoints: Endpoint, **assigned: str) -> Roles:
    return Roles({endpoint.tag: endpoint for endpoint in endpoints}, assigned)


def test_a_role_is_played_by_the_endpoint_it_is_given_to() -> None:
    assert roles(served("a"), served("b"), producer="b").model("producer") == "b"


def test_a_role_is_played_by_the_endpoint_that_bears_its_name() -> None:
    both = roles(served("producer", "qwen"), served("evaluator", "llama"))
    assert both.model("producer") == "producer"
    assert both.model("evaluator") == "evaluator"


def test_the_only_endpoint_produces() -> None:
    assert roles(served("a")).model("producer") == "a"


def test_the_only_endpoint_beside_the_evaluators_produces() -> None:
    assert roles(served("a"), served("b"), evaluator="b").model("producer") == "a"


def test_any_other_role_falls_to_the_producer() -> None:
    assert roles(served("a")).model("planner") == "a"


def test_nobody_evaluates_unless_named() -> None:
    assert roles(served("a"), served("b"), producer="a").evaluator is None


def test_an_unclear_producer_is_an_error_with_its_remedy() -> None:
    with pytest.raises(
        ConfigurationInvalid, match=r"role 'producer' \(endpoints: a, b\).*\[roles\]"
    ):
        roles(served("a"), served("b")).model("producer")


def test_a_role_given_to_an_unknown_endpoint_suggests_the_nearest() -> None:
    with pytest.raises(ConfigurationInvalid, match="did you mean 'qwen'"):
        roles(served("qwen"), producer="qwem")


@pytest.mark.parametrize(
    ("producer", "evaluator"),
    [
        pytest.param(served("p", "qwen2.5:7b"), served("e", "qwen2.5:7b"), id="one name"),
        pytest.param(served("p", "m", port=1), served("e", "m", port=2), id="two addresses"),
        pytest.param(served("p", "Qwen/Qwen2.5-7B"), served("e", "qwen2.5-7b"), id="namespace"),
        pytest.param(served("p", "qwen:latest"), served("e", "qwen"), id="latest"),
    ],
)
def test_one_model_under_two_tags_may_not_judge_itself(
    producer: Endpoint, evaluator: Endpoint
) -> None:
    with pytest.raises(SameModel, match=r"producer 'p' .* and evaluator 'e' .*give the role"):
        roles(producer, evaluator, producer="p", evaluator="e")


def test_one_endpoint_may_not_hold_both_roles() -> None:
    with pytest.raises(SameModel):
        roles(served("a"), producer="a", evaluator="a")


def test_two_copies_of_one_file_are_one_model(tmp_path: Path) -> None:
    first, second = tmp_path / "a.gguf", tmp_path / "b.gguf"
    first.write_bytes(b"GGUF" + bytes(3000))
    second.write_bytes(first.read_bytes())
    with pytest.raises(SameModel):
        roles(
            Endpoint(tag="a", path=first),
            Endpoint(tag="b", path=second),
            producer="a",
            evaluator="b",
        )


def test_different_models_may() -> None:
    assert roles(served("p", "qwen"), served("e", "llama"), producer="p", evaluator="e").evaluator
