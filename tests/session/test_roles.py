"""Which endpoints' models play which role: by name, by fallback, out of a pool, in a plan."""

from __future__ import annotations

import pytest
from session_runs import refused

from harness import Pipeline, Run
from harness.inference import Endpoint
from harness.log import warnings_heard_by
from harness.session.demand import check_roles, models_of
from harness.session.roles import Roles, roles_with_backends
from harness.session.separation import (
    ComparedModels,
    chains_from,
    check_fallbacks,
    drawn_evaluator,
    evaluator_pool,
)


def served(tag, **fields):
    return Endpoint.model_validate({"tag": tag, "url": "http://127.0.0.1:8000/v1", **fields})


def roles(*tags, **assigned):
    return Roles({tag: served(tag) for tag in tags}, assigned)


PLAYED = {
    "who it is given to": (roles("a", "b", producer="b"), "producer", "b"),
    "who bears its name": (roles("producer", "evaluator"), "evaluator", "evaluator"),
    "the only one beside a pool": (roles("a", "b", "c", evaluator=("b", "c")), "producer", "a"),
    "the producer, for want of others": (roles("a"), "planner", "a"),
    "the producer, where others have models": (roles("a", "b", producer="a"), "reader", "a"),
    "one nearly named like another": (roles("a", "planner2", producer="a"), "planner2", "planner2"),
}


@pytest.mark.parametrize(("cast", "role", "tag"), PLAYED.values(), ids=PLAYED)
def test_a_role_is_played_by_one_endpoint(cast, role, tag):
    assert cast.model(role) == tag


IN_CODE = {
    "before the settings": (
        {"producer": "w", "planner": "w"}, ["producer"], {"producer": "producer", "planner": "w"},
    ),
    "beside them": ({"producer": "w"}, ["w", "planner"], {"producer": "w"}),
    "in place of a pool": (
        {"evaluator": ("a", "b")}, ["evaluator", "a"], {"evaluator": ("evaluator",)},
    ),
    "as the whole pool": (
        {"evaluator": ("evaluator", "a")}, ["evaluator", "a"], {"evaluator": ("evaluator", "a")},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("assigned", "backends", "cast"), IN_CODE.values(), ids=IN_CODE)
def test_a_backend_given_in_code_plays_the_role_that_it_is_called_by(assigned, backends, cast):
    assert roles_with_backends(assigned, backends) == cast


REFUSED = {
    "a producer that evaluates": (
        lambda: roles("a", evaluator="a").model("producer"),
        "roles.unassigned",
        "'a' evaluates",
    ),
    "an unclear producer": (lambda: roles("a", "b").model("producer"), "roles.unassigned", "a, b"),
    "one in the pool": (
        lambda: roles("qwen", evaluator=("qwen", "qwem")), "roles.endpoint-unknown", "'qwen'",
    ),
    "a misspelt evaluator": (
        lambda: roles("producer", "evaluator").model("evalutor"), "roles.misspelt", "'evaluator'?",
    ),
    "one like a role of the settings": (
        lambda: roles("a", "b", producer="a", translator="b").model("transaltor"),
        "roles.misspelt",
        "'translator'?",
    ),
    "several planners": (
        lambda: roles("a", "b", planner=("a", "b")), "roles.several-endpoints", "'planner'",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("ask", "code", "fact"), REFUSED.values(), ids=REFUSED)
def test_roles_that_mean_nobody_are_refused(ask, code, fact):
    with refused(code) as caught:
        ask()
    assert fact in str(caught.value)


def test_nobody_evaluates_unless_named_or_drawn():
    assert roles("a", "b", producer="a").evaluator is None
    pooled = roles("a", "b", "c", evaluator=(" b ", "", "c"))
    assert (pooled.pool, pooled.evaluator) == (("b", "c"), None)
    drawn = pooled.with_evaluators("c")
    assert (drawn.evaluators, drawn.model("evaluator")) == (("c",), "c")
    assert drawn.in_use == {"a", "c"}
    panel = pooled.with_evaluators("b", "c")
    assert (panel.evaluators, panel.model("evaluator"), panel.producer) == (("b", "c"), "b", "a")
    assert panel.in_use == {"a", "b", "c"}


# --- fallbacks -------------------------------------------------------------------------------


def test_records_of_an_evaluator_name_the_settings_that_change_its_judgements():
    judge = served("j", reasoning_effort="none", headers={"x-key": "secret"})

    assert Roles({"j": judge}, {"evaluator": "j"}).calibrated == ("j (reasoning_effort none)",)
    assert roles("j", evaluator="j").calibrated == ("j",)


def falling(**fallbacks):
    known = {tag: served(tag, fallback=names.split()) for tag, names in fallbacks.items()}
    check_fallbacks(known)
    return known


def test_an_endpoints_own_fallbacks_can_answer_for_it_and_no_others():
    known = falling(a="b c", b="a", c="d", d="")
    assert chains_from("a", known) == (("a",), ("a", "b"), ("a", "c"))
    assert chains_from("d", known) == (("d",),)


# --- the evaluator pool ------------------------------------------------------------------------

MODELS = {
    "qwen": "qwen2.5:7b",
    "qwen-q8": "Qwen2.5-7B-Instruct-Q8_0.gguf",
    "qwen3": "qwen3:8b",
    "llama": "llama3.1:8b",
    "mistral": "mistral:7b",
}


def pool_of(*tags, producer="qwen", same_family="refuse", **fallbacks):
    endpoints = {
        tag: served(tag, model_id=model, fallback=[fallbacks[tag]] if tag in fallbacks else [])
        for tag, model in MODELS.items()
    }
    models = ComparedModels(endpoints, same_family=same_family)
    return evaluator_pool(tags, producer=producer, models=models)


def test_the_producer_its_model_and_its_family_are_excluded_each_with_its_reason():
    pool = pool_of("qwen", "llama", "qwen-q8", "qwen3", "mistral")
    assert pool.members == ("llama", "mistral")
    assert pool.excluded == {
        "qwen": "is the producer",
        "qwen-q8": "it and the producer 'qwen' are the same model",
        "qwen3": "it and the producer 'qwen' are of one family (qwen)",
    }
    allowed = pool_of("qwen-q8", "qwen3", "llama", same_family="allow")
    assert allowed.members == ("qwen3", "llama")
    assert pool_of("qwen", "qwen3", producer=None).members == ("qwen", "qwen3")


def test_whoever_falls_back_on_the_producer_is_excluded():
    pool = pool_of("llama", "mistral", llama="qwen")
    assert pool.members == ("mistral",)
    assert "llama -> qwen" in pool.excluded["llama"]


def test_an_empty_pool_says_why_each_was_excluded():
    with refused("roles.pool-empty") as caught:
        pool_of("qwen", "qwen3")
    assert "'qwen': is the producer; 'qwen3': it and the producer" in str(caught.value)
    with refused("roles.pool-empty"):
        pool_of()


@pytest.mark.parametrize(
    ("seed", "drawn"),
    # By `md5sum` and `bc`: c146…6136 % 3 = 2 for the first.
    [("task-1", "c"), ("Schreibe über Tee.", "c"), ("0", "b"), ("2", "a")],
)
def test_a_draw_is_the_md5_of_the_seed_modulo_the_pool(seed, drawn):
    assert drawn_evaluator(("a", "b", "c"), seed) == drawn


# --- from roles to the models of a forecast ------------------------------------------------------

ENDPOINTS = {tag: Endpoint(tag=tag, backend="scripted") for tag in "pqefsv"}
ONE = Roles(ENDPOINTS, {"producer": "p", "planner": "p", "critic": "q", "evaluator": "e"})
PANEL = Roles(ENDPOINTS, {"producer": "p", "evaluator": ("e", "f")}).with_evaluators("e", "f")
ASKED = {
    "in order, each stretch of a model once": (ONE, ["planner", "producer", "critic"], "pq"),
    "the producer, when no other has the role": (ONE, ["other"], "p"),
    "nobody": (Roles(ENDPOINTS, {}), ["planner"], ""),
    "a panel": (PANEL, ["producer", "evaluator"], "pef"),
}


@pytest.mark.parametrize(("roles", "asked", "tags"), ASKED.values(), ids=ASKED)
def test_roles_are_asked_of_the_models_that_play_them(roles, asked, tags):
    assert models_of(asked, roles) == tuple(tags)


# --- slips --------------------------------------------------------------------------------------


def asks(*declared):
    """A pipeline whose nodes declare these roles; one more names a role in its code alone."""
    pipeline = Pipeline("asks")
    for role in declared:
        pipeline.node(lambda run: run, name=role, models=[role])

    @pipeline.node
    async def hidden(run: Run) -> str:
        async def inner() -> str:
            return await run.chat("critic", "Well?")

        return await inner()

    return pipeline


@pytest.mark.parametrize("role", ["producr", "evalutor", "planer", "raeder"])
def test_a_role_nearly_named_like_one_that_is_asked_is_refused(role):
    with refused("roles.misspelt"):
        check_roles([role], asks("reader"))


@pytest.mark.parametrize("role", ["producr", "evaluatr", "planer"])
def test_a_slip_is_refused_also_where_the_right_name_is_assigned(role):
    assigned = dict.fromkeys(("producer", "evaluator", "planner"), "a")
    with refused("roles.misspelt"):
        roles("a", "b", **assigned, **{role: "b"})
    assert roles("a", "b", producer="a", producer2="b").model("producer2") == "b"


def test_a_role_that_no_node_is_seen_to_ask_warns():
    heard = []
    with warnings_heard_by(lambda _, about: heard.append(about["code"]) or {}):
        check_roles(["reader", "critic", "producer", "evaluator"], asks("reader"))
        assert heard == []
        check_roles(["nope", "producer_b"], asks("reader"))
    assert heard == ["roles.not-asked"] * 2
