"""The evaluator pool: who may be drawn, and who is."""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest

from harness.errors import ConfigurationInvalid
from harness.inference import Endpoint
from harness.session.evaluator_pool import EvaluatorPool, evaluator_pool
from harness.session.separation import ComparedModels
from harness.session.settings import SameFamilyRule

MODELS = {
    "qwen": "qwen2.5:7b",
    "qwen-q8": "Qwen2.5-7B-Instruct-Q8_0.gguf",
    "qwen3": "qwen3:8b",
    "llama": "llama3.1:8b",
    "mistral": "mistral:7b",
    "gemma": "gemma3:4b",
}


def pool_of(
    *tags: str, producer: str | None = "qwen", same_family: SameFamilyRule = "refuse", **more: str
) -> EvaluatorPool:
    endpoints = {
        tag: Endpoint(
            tag=tag,
            url="http://127.0.0.1:8000/v1",
            model_id=model_id,
            fallback=(more[tag],) if tag in more else (),
        )
        for tag, model_id in MODELS.items()
    }
    models = ComparedModels(endpoints, same_family=same_family)
    return evaluator_pool(tags, producer=producer, models=models)


def pool(*members: str) -> EvaluatorPool:
    return EvaluatorPool(members=members, excluded={})


def test_the_producer_its_model_and_its_family_are_excluded_each_with_its_reason() -> None:
    found = pool_of("qwen", "llama", "qwen-q8", "qwen3", "mistral")
    assert found.members == ("llama", "mistral")
    assert found.excluded == {
        "qwen": "is the producer",
        "qwen-q8": "it and the producer 'qwen' are the same model",
        "qwen3": "it and the producer 'qwen' are of one family (qwen)",
    }


def test_relatives_stay_where_they_are_allowed_the_producers_model_does_not() -> None:
    assert pool_of("qwen-q8", "qwen3", "llama", same_family="allow").members == ("qwen3", "llama")


def test_whoever_falls_back_on_the_producer_is_excluded() -> None:
    found = pool_of("llama", "mistral", llama="qwen")
    assert found.members == ("mistral",)
    assert "by the fallbacks llama -> qwen" in found.excluded["llama"]


def test_without_a_producer_nobody_is_excluded() -> None:
    assert pool_of("qwen", "qwen3", producer=None).members == ("qwen", "qwen3")


def test_an_empty_pool_says_why_each_was_excluded() -> None:
    with pytest.raises(ConfigurationInvalid) as caught:
        pool_of("qwen", "qwen3")
    assert "'qwen': is the producer; 'qwen3': it and the producer" in str(caught.value)
    with pytest.raises(ConfigurationInvalid, match=r"pool of evaluators is empty; under \[roles\]"):
        pool_of()


# --- the draw --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seed", "drawn"),
    # By `md5sum` and `bc`: c146…6136 % 3 = 2 for the first.
    [("task-1", "c"), ("Schreibe über Tee.", "c"), ("0", "b"), ("2", "a")],
)
def test_a_draw_by_modulo_is_the_md5_of_the_seed_modulo_the_pool(seed: str, drawn: str) -> None:
    assert pool("a", "b", "c").draw(seed, pool_hash="modulo").evaluator == drawn


def test_a_draw_knows_what_it_was_drawn_from() -> None:
    excluded = {"p": "is the producer"}
    draw = EvaluatorPool(members=("a", "b"), excluded=excluded).draw("x", pool_hash="modulo")
    assert (draw.seed, draw.pool, draw.excluded) == ("x", ("a", "b"), excluded)
    assert draw.pool_sha256 == hashlib.sha256(b"a\nb").hexdigest()


@pytest.mark.parametrize("pool_hash", ["modulo", "rendezvous"])
def test_every_member_is_drawn_about_as_often(pool_hash: str) -> None:
    drawn = Counter(
        pool("a", "b", "c").draw(f"task {n}", pool_hash=pool_hash).evaluator  # type: ignore[arg-type]
        for n in range(3000)
    )
    # Six standard deviations of a binomial with n = 3000, p = 1/3.
    assert all(abs(count - 1000) < 6 * 25.8 for count in drawn.values())
    assert len(drawn) == 3


def test_by_rendezvous_a_member_more_takes_only_its_share_and_the_order_does_not_matter() -> None:
    def draws(*members: str) -> list[str]:
        return [
            pool(*members).draw(f"task {n}", pool_hash="rendezvous").evaluator for n in range(500)
        ]

    before, after = draws("a", "b", "c"), draws("d", "c", "b", "a")
    assert {new for old, new in zip(before, after, strict=True) if old != new} == {"d"}
    assert 60 < sum(old != new for old, new in zip(before, after, strict=True)) < 190
