"""Which endpoint's model plays which role."""

from __future__ import annotations

import pytest

from harness.errors import ConfigurationInvalid
from harness.inference import Endpoint
from harness.session.roles import Roles


def served(tag: str) -> Endpoint:
    return Endpoint(tag=tag, url="http://127.0.0.1:8000/v1")


def roles(*tags: str, **assigned: str | tuple[str, ...]) -> Roles:
    return Roles({tag: served(tag) for tag in tags}, assigned)


def test_a_role_is_played_by_the_endpoint_it_is_given_to() -> None:
    assert roles("a", "b", producer="b").model("producer") == "b"


def test_a_role_is_played_by_the_endpoint_that_bears_its_name() -> None:
    both = roles("producer", "evaluator")
    assert both.model("producer") == "producer"
    assert both.model("evaluator") == "evaluator"


def test_the_only_endpoint_produces() -> None:
    assert roles("a").model("producer") == "a"


def test_the_only_endpoint_beside_the_evaluators_produces() -> None:
    assert roles("a", "b", evaluator="b").model("producer") == "a"
    assert roles("a", "b", "c", evaluator=("b", "c")).model("producer") == "a"


def test_any_other_role_falls_to_the_producer() -> None:
    assert roles("a").model("planner") == "a"


def test_nobody_evaluates_unless_named() -> None:
    assert roles("a", "b", producer="a").evaluator is None


def test_an_unclear_producer_is_an_error_with_its_remedy() -> None:
    with pytest.raises(
        ConfigurationInvalid, match=r"role 'producer' \(endpoints: a, b\).*\[roles\]"
    ):
        roles("a", "b").model("producer")


@pytest.mark.parametrize("tags", ["qwem", ("llama", "qwem")], ids=["named", "in the pool"])
def test_a_role_given_to_an_unknown_endpoint_suggests_the_nearest(
    tags: str | tuple[str, ...],
) -> None:
    with pytest.raises(ConfigurationInvalid, match="did you mean 'qwen'"):
        roles("qwen", "llama", evaluator=tags)


def test_of_a_pool_nobody_evaluates_until_one_is_drawn() -> None:
    pooled = roles("a", "b", "c", evaluator=(" b ", "", "c"))
    assert pooled.pool == ("b", "c")
    assert pooled.evaluator is None
    drawn = pooled.with_evaluators("c")
    assert (drawn.evaluators, drawn.model("evaluator")) == (("c",), "c")
    assert drawn.in_use == {"a", "c"}


def test_of_a_panel_all_are_needed_and_a_pipeline_that_asks_the_role_reaches_the_first() -> None:
    panel = roles("a", "b", "c", evaluator=("b", "c")).with_evaluators("b", "c")
    assert panel.evaluators == ("b", "c")
    assert panel.model("evaluator") == "b"
    assert panel.in_use == {"a", "b", "c"}
    assert panel.producer == "a"


@pytest.mark.parametrize("name", ["short", "b"], ids=["by role", "by tag"])
def test_a_setting_may_mean_a_model_by_its_role_or_its_tag(name: str) -> None:
    assert roles("a", "b", producer="a", short="b").named(name, setting="x.y") == "b"


def test_a_setting_that_means_nobody_suggests_the_nearest_and_is_not_the_producer() -> None:
    with pytest.raises(ConfigurationInvalid, match=r"x\.y is 'shrot'.*did you mean 'short'"):
        roles("a", "b", producer="a", short="b").named("shrot", setting="x.y")


def test_a_draw_makes_no_producer_of_the_pools_other_members() -> None:
    pooled = roles("a", "b", evaluator=("a", "b"))
    assert pooled.producer is None
    assert pooled.with_evaluators("a").producer is None


def test_only_the_evaluator_is_drawn() -> None:
    with pytest.raises(ConfigurationInvalid, match="'planner' is given to several endpoints"):
        roles("a", "b", planner=("a", "b"))
