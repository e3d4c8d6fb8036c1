"""From roles to the models that play them."""

from __future__ import annotations

import pytest

from harness.inference import Endpoint
from harness.session.cast import Cast
from harness.session.course import Plan, Rounds, Stretch
from harness.session.node_uses import Loop, NodeUses, Turn
from harness.session.roles import Roles
from harness.session.usual_rounds import UsualRounds

ENDPOINTS = {tag: Endpoint(tag=tag, backend="scripted") for tag in ("p", "q", "e", "f", "s", "v")}
ONE = Roles(ENDPOINTS, {"producer": "p", "planner": "p", "critic": "q", "evaluator": "e"})
PANEL = Roles(ENDPOINTS, {"producer": "p", "evaluator": ("e", "f")}).with_evaluators("e", "f")
NOBODY = Roles(ENDPOINTS, {})


def one(*models: str) -> Stretch:
    return Stretch(models=models)


def by_turns(*models: str) -> Stretch:
    return Stretch(models=models, comes_again=True)


@pytest.mark.parametrize(
    ("cast", "roles", "expected"),
    [
        pytest.param(Cast(roles=ONE), ["critic"], [one("q")], id="a role"),
        pytest.param(Cast(roles=ONE), ["q"], [one("q")], id="a tag"),
        pytest.param(Cast(roles=ONE), ["other"], [one("p")], id="the producer, for want of others"),
        pytest.param(Cast(roles=NOBODY), ["planner"], [], id="nobody"),
        pytest.param(Cast(roles=ONE), ["producer", "planner"], [one("p")], id="one model for two"),
        pytest.param(
            Cast(roles=ONE), ["critic", "evaluator"], [by_turns("q", "e")], id="two by turns"
        ),
        pytest.param(Cast(roles=ONE), ["evaluator"], [one("e")], id="the evaluator"),
        pytest.param(Cast(roles=PANEL), ["evaluator"], [one("e", "f")], id="a panel, side by side"),
        pytest.param(
            Cast(roles=ONE, summariser="s"),
            ["evaluator"],
            [one("e")],
            id="and not for certain who shortens for it",
        ),
        pytest.param(
            Cast(roles=PANEL, summariser="s"),
            ["producer", "evaluator"],
            [by_turns("p", "e", "f")],
            id="all by turns",
        ),
        pytest.param(Cast(roles=NOBODY), ["evaluator"], [], id="no evaluator"),
        pytest.param(Cast(roles=ONE, embedder="v"), ["memory"], [one("v")], id="memory"),
        pytest.param(Cast(roles=ONE), ["memory"], [], id="memory without an endpoint"),
    ],
)
def test_roles_are_asked_of_who_plays_them(
    cast: Cast, roles: list[str], expected: list[Stretch]
) -> None:
    uses = NodeUses(uses=(Turn(roles=tuple(roles)),), is_all=False)
    assert cast.plan_of(uses) == Plan(parts=tuple(expected), is_all=False)


P, E = (one("p"),), (one("e"),)
USUAL = UsualRounds(any_rubric=2, by_rubric={"brief": 1})


@pytest.mark.parametrize(
    ("cast", "loop", "rounds_before", "expected"),
    [
        pytest.param(
            Cast(roles=ONE),
            Loop(),
            0,
            Rounds(drafting=P, evaluation=E, revision=P, most=3),
            id="from a first draft on",
        ),
        pytest.param(
            Cast(roles=ONE),
            Loop(max_rounds=2, has_draft=True),
            0,
            Rounds(drafting=(), evaluation=E, revision=P, most=2),
            id="with a draft",
        ),
        pytest.param(
            Cast(roles=ONE, usual=USUAL),
            Loop(max_rounds=4, has_draft=True),
            1,
            Rounds(drafting=P, evaluation=E, revision=P, most=3, usual=1),
            id="behind an earlier round",
        ),
        pytest.param(
            Cast(roles=ONE, usual=USUAL),
            Loop(rubric="brief"),
            0,
            Rounds(drafting=P, evaluation=E, revision=P, most=3, usual=1),
            id="as usual with its rubric",
        ),
        pytest.param(
            Cast(roles=ONE),
            Loop(max_rounds=2),
            2,
            Rounds(drafting=P, evaluation=E, revision=P, most=0),
            id="behind all rounds",
        ),
        pytest.param(
            Cast(roles=PANEL, summariser="s"),
            Loop(),
            0,
            Rounds(drafting=P, evaluation=(one("e", "f"),), revision=P, most=3),
            id="by a panel",
        ),
    ],
)
def test_a_loop_goes_from_producer_to_evaluators_and_back(
    cast: Cast, loop: Loop, rounds_before: int, expected: Rounds
) -> None:
    assert cast.rounds_of(loop, rounds_before=rounds_before) == expected


def test_a_rubric_that_code_can_judge_takes_no_evaluator() -> None:
    rounds = Cast(roles=ONE).rounds_of(Loop(), is_judged=False)
    assert rounds == Rounds(drafting=P, evaluation=(), revision=P, most=3)
