"""The second look at separation: what the servers say they served.

llama-server answers with the model it has, whatever it is asked for, so that two endpoints with two
names can turn out to be one model. Of a server that did not say so when the run began, or that has
been given another model since, only a reply tells.
"""

from __future__ import annotations

from dataclasses import replace

from harness.errors import Notice, SameFamily, SameModel
from harness.inference import (
    ChatRequest,
    Completion,
    ModelIdentity,
    relation_of,
    served_identity,
)
from harness.session.casting import Casting
from harness.session.fallbacks import chains_from
from harness.session.roles import EVALUATOR, PRODUCER
from harness.session.separation import Separation, refusal
from harness.trace import Tracer

_STAND_INS = frozenset({"gpt", "gpt-3.5-turbo"})
"""What local servers call any model, to please OpenAI's clients."""


class ServedModels:
    """Compares the models that replies name. A `Watch` of the client.

    A name counts when it tells a family or a size. `default`, a file called `model.gguf`, or a made
    up alias say nothing across two servers; at one address, any name does, if both replies bear it.
    A name that an endpoint asks for says nothing new: it was looked at before the run. A reply of a
    fallback is the fallback's, and what is written down of the endpoint before it does not count.

    Args:
        casting: What is known before the first call; told when relatives are found, where those
            are allowed.
        tracer: The run's.
    """

    def __init__(self, *, casting: Casting, tracer: Tracer) -> None:
        self._casting = casting
        self._tracer = tracer
        # By the tag that was asked, then by the tag that answered and the name it gave.
        self._seen: dict[str, dict[tuple[str, str], ModelIdentity]] = {}
        self._refusal: SameModel | SameFamily | None = None

    def look_at(self, request: ChatRequest, completion: Completion) -> None:
        """Compares the model that answered with the other role's.

        Raises:
            SameModel: Producer and evaluator turn out to be one model.
            SameFamily: The same of relatives, where they are refused.
        """
        separation = self._casting.separation
        if separation is not None and request.role in (PRODUCER, EVALUATOR):
            self._look_at(request, completion, separation)
            self.before()

    def before(self) -> None:
        """Raises what was found in any call so far: a loop takes an error for a failed round."""
        if self._refusal is not None:
            raise self._refusal

    def _look_at(
        self, request: ChatRequest, completion: Completion, separation: Separation
    ) -> None:
        models = self._casting.models

        # 1. Is it news?
        tag, model_id = completion.endpoint or request.model, completion.model_id
        endpoint = models.endpoints[tag]
        asked_for = {tag, endpoint.model_id}
        seen = self._seen.setdefault(request.model, {})
        if model_id in asked_for | _STAND_INS or (tag, model_id) in seen:
            return
        found = served_identity(endpoint, model_id)
        seen[tag, model_id] = found

        # 2. Is it what the other role is played by?
        what = f"{request.role} '{tag}' was answered by '{model_id}'"
        judges = request.role == EVALUATOR
        other_role = PRODUCER if judges else EVALUATOR
        for other_tag in (separation.producer,) if judges else separation.evaluators:
            theirs = chains_from(other_tag, models.endpoints)
            known = [models.identity(chain[-1]) for chain in theirs]
            evaluator = request.model if judges else other_tag
            for other in (*known, *self._seen.get(other_tag, {}).values()):
                self._compare(found, other, what, other_role, evaluator=evaluator)

    def _compare(
        self,
        found: ModelIdentity,
        other: ModelIdentity,
        what: str,
        other_role: str,
        *,
        evaluator: str,
    ) -> None:
        at_one_address = found.server is not None and found.server == other.server
        if not found.tells_weights and not at_one_address:
            return
        relation = relation_of(found, other)
        both = f"{what}; it and the {other_role}'s '{other.called}'"
        if relation == "same":
            self._refusal = refusal(f"{both} are the same model", relation)
        elif relation == "family" and self._casting.models.same_family == "refuse":
            self._refusal = refusal(f"{both} are of one family ({found.family})", relation)
        elif relation == "family":
            self._allow(evaluator, f"{both} are of one family ({found.family})")

    def _allow(self, evaluator: str, message: str) -> None:
        separation = self._casting.separation
        if separation is not None and separation.evaluators.get(evaluator) != "family":
            evaluators = {**separation.evaluators, evaluator: "family"}
            self._casting.separation = replace(separation, evaluators=evaluators)
            notice = Notice(code="separation.family-served", message=message)
            self._casting.warn(notice, self._tracer)
