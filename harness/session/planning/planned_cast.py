"""Who is there in a run, and what for: those who play roles, stand in, or are in memory anyway."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.inference import Endpoint
from harness.residency import Tenant
from harness.session.casting import Casting
from harness.session.evaluator_pool import evaluator_pool
from harness.session.settings import Settings
from harness.session.tenancy import is_managed
from harness.trace import Tracer


@dataclass(frozen=True, slots=True, kw_only=True)
class Judges:
    """Who evaluates, or may come to."""

    tags: tuple[str, ...]
    """Their endpoints; none where nobody does."""
    is_drawn: bool = False
    """Whether one of them will be drawn when a run begins, nobody knows which."""

    def seated(self, tenants: Mapping[str, Tenant]) -> tuple[str, ...]:
        """Those to count with: of those who may be drawn, the largest, so that it is not worse."""
        if not self.is_drawn:
            return self.tags
        return (max(self.tags, key=lambda tag: tenants[tag].need_bytes if tag in tenants else 0),)


def judges_of(casting: Casting, settings: Settings) -> Judges:
    """Who evaluates in a run with these settings; of a pool with a seed of its own, who is drawn.

    Raises:
        ConfigurationInvalid: Nobody of the pool may.
    """
    pool = casting.roles.pool
    if pool is None:
        return Judges(tags=casting.roles.evaluators)
    if settings.evaluation.panel is None and settings.separation.pool_seed is None:
        members = evaluator_pool(pool, producer=casting.roles.producer, models=casting.models)
        return Judges(tags=tuple(dict.fromkeys(members.members)), is_drawn=True)
    casting.choose_evaluators(Tracer(), task="", run_id="")
    return Judges(tags=casting.roles.evaluators)


@dataclass(slots=True)
class Purpose:
    """What an endpoint is there for."""

    roles: list[str] = field(default_factory=list)
    """Those in which the pipeline asks it."""
    others: list[str] = field(default_factory=list)
    """What else, in words."""


def purposes(
    players: Mapping[str, tuple[str, ...]],
    casting: Casting,
    settings: Settings,
    endpoints: Mapping[str, Endpoint],
) -> dict[str, Purpose]:
    """What each endpoint is there for, that a run needs or has in memory; those asked first."""
    found: dict[str, Purpose] = {}

    def of(tag: str) -> Purpose:
        return found.setdefault(tag, Purpose())

    for role, tags in players.items():
        for tag in tags:
            of(tag).roles.append(role)
    if casting.summariser is not None:
        of(casting.summariser).others.append("shortens drafts")
    for role, named in settings.roles.items():
        if isinstance(named, str) and role not in players:
            of(named).others.append(f"is '{role}', which nothing asks")
    for tag, endpoint in endpoints.items():
        if tag in casting.required or (endpoint.pin and is_managed(endpoint)):
            of(tag)
    for tag in tuple(found):
        for fallback in endpoints[tag].fallback:
            of(fallback).others.append(f"stands in for '{tag}'")
    return found
