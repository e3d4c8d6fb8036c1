"""Casting: which model plays which role in a run, checked before the run, with warnings."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from harness.errors import ConfigurationInvalid, Notice, SameFamily, SameModel
from harness.inference import ChatRequest, Completion, Endpoint, Meter, ModelMetadata
from harness.inference.model_identity import (
    ModelIdentity,
    relation_of,
    serve_alike,
    served_identity,
)
from harness.inference.providers.registry import provider_of, served_metadata
from harness.log import log_notice, warnings_heard_by
from harness.session.roles import EVALUATOR, PRODUCER, Roles
from harness.session.separation import (
    ComparedModels,
    EvaluatorPool,
    Separation,
    chains_from,
    check_fallbacks,
    drawn_evaluator,
    evaluator_pool,
    refusal,
)
from harness.session.settings import Settings
from harness.session.trust import api_key_of
from harness.trace import Tracer, events


class Casting:
    """The roles of one run. Evaluators are compared with the producer once they are to judge.

    Raises:
        ConfigurationInvalid: A role or a fallback is wrong, or a panel has no pool.

    Attributes:
        roles: A pool has no evaluators until they are chosen.
        models: The models behind the tags.
        tracer: The run's, once it has one; before, nothing is recorded.
        pool: The evaluators that one was drawn from, or that judge together; None before, or
            without a pool.
        separation: How far producer and evaluators differ, as far as known; None unless there are
            both.
        warnings: The run's, so far.
    """

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        settings: Settings,
        *,
        produces: bool = True,
        models: ComparedModels | None = None,
    ) -> None:
        check_fallbacks(endpoints)
        rules = settings.separation
        self.roles = Roles(endpoints, settings.roles, produces=produces)
        self.models = models or ComparedModels(endpoints, same_family=rules.same_family)
        self.tracer = Tracer()
        self.pool: EvaluatorPool | None = None
        self.separation: Separation | None = None
        self.warnings: list[Notice] = []
        self._rules = rules
        self._combine = settings.evaluation.panel
        self._seating = asyncio.Lock()
        self._are_seated = False
        if self.roles.pool is None and self._combine is not None:
            raise ConfigurationInvalid(
                f"panel = '{self._combine}' under [evaluation] needs a pool of evaluators; write "
                'evaluator = ["…", "…"] under [roles] in harness.toml, or leave panel out',
                code="roles.panel-without-pool",
            )

    def check(self) -> None:
        """Refuses evaluators that the settings alone show to be wrong.

        Raises:
            ConfigurationInvalid: The pool of evaluators is empty.
            SameModel: Producer and evaluator, or endpoints that can answer for them, are one model.
            SameFamily: They are of one family, and the settings refuse that.
            ModelFileInvalid: A file that must be compared cannot be read.
        """
        producer, evaluator = self.roles.producer, self.roles.evaluator
        if self.roles.pool is not None:
            self._pool(self.roles.pool)
        elif producer is not None and evaluator is not None:
            self.models.refuse_kin(producer, evaluator)

    async def seat(self, *, environment: Mapping[str, str], task: str) -> None:
        """Readies the evaluators to judge, once; raises as the steps of it do."""
        async with self._seating:
            if not self._are_seated:
                self.check()
                await self.ask_servers(environment=environment)
                self.choose_evaluators(task=task)
                self.begin()
                self._are_seated = True

    async def ask_servers(self, *, environment: Mapping[str, str], judges: bool = True) -> None:
        """Asks servers which models they serve, if there are models or replicas to compare.

        Without `judges`, only replicas are compared.

        If a server does not answer within seconds, the settings count.

        Raises:
            ConfigurationInvalid: Replicas of an endpoint serve different models.
        """
        producer, tags = self.roles.producer, self._judges() if judges else ()
        reachable = self.models.reachable(producer, *tags) if producer and tags else ()
        in_use = [self.models.endpoints[tag] for tag in sorted(self.roles.in_use)]
        compared = {
            endpoint.tag: endpoint
            for endpoint in (*reachable, *in_use)
            if endpoint.urls or endpoint in reachable
        }
        async with self.models.asking:  # runs that share them wait for what one is told
            to_ask = [
                endpoint
                for tag, endpoint in compared.items()
                if provider_of(endpoint).served and tag not in self.models.asked
            ]
            if to_ask:
                await self._ask(to_ask, environment)
                self.models.asked |= {endpoint.tag for endpoint in to_ask}

    async def _ask(self, to_ask: Sequence[Endpoint], environment: Mapping[str, str]) -> None:
        with self.tracer.span(events.AskServers([endpoint.tag for endpoint in to_ask])) as span:
            async with asyncio.TaskGroup() as group:
                answers = [
                    (endpoint, name, group.create_task(word_on(replica, environment)))
                    for endpoint in to_ask
                    for name, replica in endpoint.replicas.items()
                ]
            metadata: dict[str, ModelMetadata] = {}
            for endpoint, name, answer in answers:
                word = answer.result()
                if word is not None:
                    first = metadata.setdefault(endpoint.tag, word)
                    if not serve_alike(first, word):
                        raise ConfigurationInvalid(
                            f"the replica {name} of endpoint '{endpoint.tag}' serves another model "
                            "than the first that answered; give it an endpoint of its own",
                            code="endpoint.replicas-differ",
                        )
            span.set(told=list(metadata))
        self.models.take_word(metadata)

    def choose_evaluators(self, *, task: str) -> None:
        """If there is a pool: draws one evaluator from it, or takes all of them as a panel.

        Models that turned out to be too close to the producer's are left out. The seed is that of
        the settings, else the run's task, else its id.

        Raises:
            ConfigurationInvalid: The pool is empty.
        """
        if self.roles.pool is None:
            return
        pool = self._pool(self.roles.pool)
        excluded = dict(pool.excluded)
        if self._combine is not None:
            members = tuple(dict.fromkeys(pool.members))
            self.pool = replace(pool, members=members, combine=self._combine)
            self.roles = self.roles.with_evaluators(*members)
            self.tracer.instant(events.EvaluatorPanel(members, self._combine, excluded))
            return
        seed = self._rules.pool_seed or task or self.tracer.run_id
        drawn = drawn_evaluator(pool.members, seed)
        self.pool = replace(pool, drawn=drawn, seed=seed)
        self.roles = self.roles.with_evaluators(drawn)
        event = events.EvaluatorDrawn(
            drawn, seed=self.tracer.excerpt(seed), pool=pool.members, excluded=excluded
        )
        self.tracer.instant(event)

    def begin(self) -> None:
        """Records the models of producer and evaluators, and warns.

        Raises:
            SameModel: Producer and an evaluator, or endpoints that can answer for them, are one
                model.
            SameFamily: They are of one family, and the settings refuse that.
        """
        producer, evaluators = self.roles.producer, self.roles.evaluators
        if producer is not None and evaluators:
            kinships = {tag: self.models.refuse_kin(producer, tag) for tag in evaluators}
            self.separation = Separation(
                producer=producer,
                evaluators={tag: kinship.relation for tag, kinship in kinships.items()},
            )
            for tag, kinship in kinships.items():
                described = self._described(producer), self._described(tag)
                self.tracer.instant(events.Separation(kinship.relation, *described))
                for warning in self.models.warnings(kinship):
                    self.warn(warning)
        for warning in (doubt for tag in evaluators for doubt in self.models.doubts(tag)):
            self.warn(warning)
        for warning in self._on_panel():
            self.warn(warning)

    def model(self, role: str) -> str:
        """Tag of the endpoint that a call for a role asks.

        Warns, once, if `[roles]` leaves the role to the producer's model.

        Raises:
            ConfigurationInvalid: No model plays it, or the role is misspelt.
        """
        tag = self.roles.model(role)
        if self.roles.lacks(role):
            notice = Notice(
                code="roles.played-by-producer",
                message=f"no model plays '{role}', so the producer's model does; name one under "
                "[roles] in harness.toml",
            )
            if notice not in self.warnings:
                self.warn(notice)
        return tag

    def warn(self, notice: Notice) -> None:
        """Adds a warning to the log, the timeline, and the result."""
        self.warnings.append(notice)
        with warnings_heard_by(self.tracer.warned):
            log_notice(notice.message, code=notice.code)

    def _pool(self, tags: tuple[str, ...]) -> EvaluatorPool:
        return evaluator_pool(tags, producer=self.roles.producer, models=self.models)

    def _on_panel(self) -> Iterator[Notice]:
        if self.pool is None or self.pool.combine is None:
            return
        if len(self.pool.members) == 1:
            yield Notice(
                code="panel.single-evaluator",
                message=f"the panel has one evaluator, '{self.pool.members[0]}': the pool has no "
                "other, or no other that may judge",
            )
        for first, second in combinations(self.pool.members, 2):
            if relation_of(self.models.identity(first), self.models.identity(second)) == "same":
                yield Notice(
                    code="panel.same-model",
                    message=f"'{first}' and '{second}' on the panel are the same model, so its "
                    "judgement counts twice; leave one of them out of the pool",
                )

    def _judges(self) -> tuple[str, ...]:
        """Tags of the models that may evaluate."""
        if self.roles.pool is not None:
            return self._pool(self.roles.pool).members
        return self.roles.evaluators

    def _described(self, tag: str) -> dict[str, object]:
        identity = self.models.identity(tag)
        return {
            "model": tag,
            "weights": identity.weights,
            "family": identity.family,
            "quantization": identity.quantization,
            "source": identity.source,
        }


async def word_on(endpoint: Endpoint, environment: Mapping[str, str]) -> ModelMetadata | None:
    """The model that an endpoint's server says it has; None without an answer, or a key."""
    try:
        api_key = api_key_of(endpoint, environment)
    except ConfigurationInvalid:
        return None  # the first call says so
    return await served_metadata(endpoint, api_key=api_key)


def warn_of_no_price(meter: Meter, casting: Casting) -> None:
    """Warns, once, that a cost limit had no effect because no price is known."""
    for scope in meter.chain:
        spent = scope.spent
        if scope.limits.max_cost_usd is None or spent.cost_usd is not None:
            continue
        notice = Notice(
            code="limits.cost-unbounded",
            message=f"{scope.limits.said('cost')} had no effect: no call's price is known; write "
            "usd_per_million_input_tokens and usd_per_million_output_tokens under the endpoints",
        )
        if spent.unpriced_calls and notice not in casting.warnings:
            casting.warn(notice)


_STAND_INS = frozenset({"gpt", "gpt-3.5-turbo"})
"""Names that local servers give any model, for OpenAI's clients."""


class ServedModels:
    """Compares the models that replies name. A `Watch` of the client.

    llama-server answers with the model it has, for any requested name, so two endpoints with two
    names can turn out to be one model. If a server did not report its model when the run began, or
    got another since, only a reply shows it.

    A name counts if it shows a family or a size. `default`, a file called `model.gguf`, or a
    made-up alias prove nothing across two servers; at one address, any name does, if both replies
    have it. A name that equals an endpoint's requested name is no news: it was checked before the
    run. A fallback's reply counts for the fallback, not for the endpoint before it.
    """

    def __init__(self, casting: Casting) -> None:
        self._casting = casting
        # By the tag that was asked, then by the tag that answered and the name it gave.
        self._seen: dict[str, dict[tuple[str, str], ModelIdentity]] = {}
        self._early: dict[tuple[str | None, ...], tuple[ChatRequest, Completion]] = {}
        self._refusal: SameModel | SameFamily | None = None

    def look_at(self, request: ChatRequest, completion: Completion) -> None:
        """Compares the model that answered with the other role's.

        Raises:
            SameModel: Producer and evaluator turn out to be one model.
            SameFamily: They are of one family, and the settings refuse that.
        """
        separation = self._casting.separation
        if request.role not in (PRODUCER, EVALUATOR):
            return
        if separation is None:  # nobody judges so far
            key = request.role, request.model, completion.endpoint, completion.model_id
            self._early.setdefault(key, (request, completion))
            return
        early, self._early = self._early, {}
        for asked_by, answered in (*early.values(), (request, completion)):
            self._look_at(asked_by, answered, separation)
        self.before()

    def before(self) -> None:
        """Raises the error found in any call so far: a loop takes it for a failed round."""
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
        identities = self._seen.setdefault(request.model, {})
        if model_id in asked_for | _STAND_INS or (tag, model_id) in identities:
            return
        identity = served_identity(endpoint, model_id)
        identities[tag, model_id] = identity

        # 2. Is it what the other role is played by?
        what = f"{request.role} '{tag}' was answered by '{model_id}'"
        judges = request.role == EVALUATOR
        other_role = PRODUCER if judges else EVALUATOR
        for other_tag in (separation.producer,) if judges else separation.evaluators:
            theirs = chains_from(other_tag, models.endpoints)
            identities_there = [models.identity(chain[-1]) for chain in theirs]
            evaluator = request.model if judges else other_tag
            for counterpart in (*identities_there, *self._seen.get(other_tag, {}).values()):
                self._compare(identity, counterpart, what, other_role, evaluator=evaluator)

    def _compare(
        self,
        identity: ModelIdentity,
        counterpart: ModelIdentity,
        what: str,
        other_role: str,
        *,
        evaluator: str,
    ) -> None:
        if not identity.tells_weights and not identity.shares_server(counterpart):
            return
        relation = relation_of(identity, counterpart)
        message = f"{what}; it and the {other_role}'s '{counterpart.called}' are "
        message += "the same model" if relation == "same" else f"of one family ({identity.family})"
        if relation == "same" or (
            relation == "family" and self._casting.models.same_family == "refuse"
        ):
            self._refusal = refusal(message, relation)
        elif relation == "family":
            self._allow(evaluator, message)

    def _allow(self, evaluator: str, message: str) -> None:
        separation = self._casting.separation
        if separation is not None and separation.evaluators.get(evaluator) != "family":
            evaluators = {**separation.evaluators, evaluator: "family"}
            self._casting.separation = replace(separation, evaluators=evaluators)
            notice = Notice(code="separation.family-served", message=message)
            self._casting.warn(notice)
