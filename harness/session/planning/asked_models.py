"""Which models each node of a pipeline asks, and in which order, before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from harness.errors import ConfigurationInvalid
from harness.session.cast import Cast
from harness.session.course import Plan, Rounds, Stretch
from harness.session.node_uses import MEMORY, NodeUses
from harness.session.roles import EVALUATOR

Stages = tuple[tuple[str, ...], ...]
"""What one call of a node asks: tags, those side by side that are asked at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedModels:
    """What a pipeline's nodes ask."""

    by_node: Mapping[str, Stages]
    """By the node's name."""
    notes: tuple[str, ...]
    """What was not known, and what was taken instead."""


def players_of(uses: Mapping[str, NodeUses], cast: Cast) -> dict[str, tuple[str, ...]]:
    """By role, the tags of the models that play it, for all roles that nodes ask in.

    Nobody plays the evaluator where rubrics are checked by code alone, nor the memory's role where
    wordllama does.

    Raises:
        ConfigurationInvalid: A role has no model.
    """
    players: dict[str, tuple[str, ...]] = {}
    for node, one in uses.items():
        for role in one.roles:
            if role == EVALUATOR:
                players[role] = cast.roles.evaluators
            elif role == MEMORY:
                players[role] = (cast.embedder,) if cast.embedder else ()
            elif role not in players:
                players[role] = (_player(role, node, cast),)
    return players


def asked_models(uses: Mapping[str, NodeUses], cast: Cast, *, times: int) -> AskedModels:
    """What each call of the nodes asks of models.

    Args:
        uses: What the nodes ask, by role.
        cast: Who plays these roles.
        times: How often models by turns are taken to come, of which nobody knows how often.
    """
    plans = {node: cast.plan_of(one) for node, one in uses.items()}
    return AskedModels(
        by_node={node: tuple(_stages(plan, times=times)) for node, plan in plans.items()},
        notes=tuple(note for node, plan in plans.items() for note in _notes(node, plan, times)),
    )


def _player(role: str, node: str, cast: Cast) -> str:
    try:
        return cast.roles.model(role)
    except ConfigurationInvalid as error:
        raise ConfigurationInvalid(
            f"node '{node}' needs '{role}': {error}", code="roles.unassigned"
        ) from error


def _stages(plan: Plan, *, times: int) -> Iterator[tuple[str, ...]]:
    for part in plan.parts:
        if isinstance(part, Rounds):
            yield from _of_rounds(part)
        elif part.comes_again:
            yield from [(model,) for model in part.models] * times
        else:
            yield part.models


def _of_rounds(rounds: Rounds) -> Iterator[tuple[str, ...]]:
    further = (*rounds.revision, *rounds.evaluation) * (rounds.expected - 1)
    for stretch in (*rounds.drafting, *rounds.evaluation, *further):
        yield stretch.models


def _notes(node: str, plan: Plan, times: int) -> Iterator[str]:
    for part in plan.parts:
        if isinstance(part, Stretch) and part.comes_again:
            yield (
                f"node '{node}' asks {_listed(part.models)} by turns, nobody knows how often: it "
                f"is taken to be {times} times"
            )
    if not plan.is_all:
        yield (
            f"not all that node '{node}' asks could be read from its source; declare its roles "
            "with models=[…]"
        )


def _listed(tags: Iterable[str]) -> str:
    *others, last = (f"'{tag}'" for tag in tags)
    return f"{', '.join(others)} and {last}" if others else last
