"""Separation: no model judges its own output, nor, unless allowed, its family's.

Models are compared, not tags. A pool of evaluators leaves out those that are too close to the
producer. Then one of the others is drawn, the same for the same seed, settings and models, or all
of them judge together as a panel.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product

from harness.errors import (
    ConfigurationInvalid,
    ModelFileInvalid,
    Notice,
    SameFamily,
    SameModel,
    did_you_mean,
)
from harness.hardware import file_type_name
from harness.hardware.gguf_file import read_gguf_file
from harness.inference import Endpoint, ModelMetadata
from harness.inference.model_identity import (
    ModelIdentity,
    Relation,
    metadata_from,
    model_identity,
    relation_of,
    serve_alike,
)
from harness.inference.providers.registry import provider_of, served_metadata
from harness.rubric.verdict import Combine
from harness.session.settings import SameFamilyRule
from harness.session.trust import api_key_of
from harness.trace import Tracer, events

_CLOSEST_FIRST: tuple[Relation, ...] = ("same", "family", "unknown", "different")

Chain = tuple[str, ...]
"""Tags from a role's endpoint to the one that answers: one tag, or two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kinship:
    """The closest relation of a model that can produce and one that can evaluate."""

    relation: Relation
    """The relation of the last models of the two chains."""
    producer: Chain
    """From the producer's endpoint to the one that answers for it."""
    evaluator: Chain


@dataclass(frozen=True, slots=True, kw_only=True)
class Separation:
    """How different a run's producer and evaluators were."""

    producer: str
    evaluators: Mapping[str, Relation]
    """By the tag of each evaluator's endpoint, at least one: the relation of its model to the
    producer's. `family` only if the settings allow it; `unknown` if a family is not known; never
    `same`."""

    @property
    def relation(self) -> Relation:
        """The closest relation."""
        return min(self.evaluators.values(), key=_CLOSEST_FIRST.index)


@dataclass(eq=False)
class ComparedModels:
    """The models behind endpoints, for one run or for all runs of a session."""

    endpoints: Mapping[str, Endpoint]
    same_family: SameFamilyRule
    _identities: dict[str, ModelIdentity] = field(default_factory=dict)
    # Tags of the endpoints whose servers were asked, whether or not they answered.
    _asked: set[str] = field(default_factory=set)
    # Runs of a session share these models: while one asks, the others wait for the answers.
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock)

    def identity(self, tag: str) -> ModelIdentity:
        """The model of an endpoint."""
        # A file is read when it is first compared. A served model goes by its name until its server
        # is asked.
        if tag not in self._identities:
            endpoint = self.endpoints[tag]
            self._identities[tag] = model_identity(endpoint, _file_metadata(endpoint))
        return self._identities[tag]

    def reachable(self, *tags: str) -> tuple[Endpoint, ...]:
        """The endpoints that can answer for these tags, each once."""
        chains = [chain for tag in tags for chain in chains_from(tag, self.endpoints)]
        answering = dict.fromkeys(chain[-1] for chain in chains)
        return tuple(self.endpoints[tag] for tag in answering)

    async def ask_servers(
        self, endpoints: Iterable[Endpoint], *, environment: Mapping[str, str], tracer: Tracer
    ) -> None:
        """Asks servers which models they have, once per endpoint; refuses replicas that differ."""
        async with self._asking:
            to_ask = {
                endpoint.tag: endpoint
                for endpoint in endpoints
                if provider_of(endpoint).served and endpoint.tag not in self._asked
            }
            if not to_ask:
                return
            with tracer.span(events.AskServers([*to_ask])) as span:
                metadata = await _reported_models(to_ask.values(), environment)
                span.set(told=list(metadata))
            self.use_reports(metadata)
            # A server that did not answer in time is not asked again: then the settings say which
            # model it has.
            self._asked |= to_ask.keys()

    def use_reports(self, metadata_by_tag: Mapping[str, ModelMetadata]) -> None:
        """Identifies the models of these tags by what their servers report, from now on."""
        for tag, metadata in metadata_by_tag.items():
            self._identities[tag] = model_identity(self.endpoints[tag], metadata)

    def kinship(self, producer: str, evaluator: str) -> Kinship:
        """The closest relation of a model that may answer for one tag and one for the other."""
        # Fallbacks count: a producer whose fallback is the evaluator's model could judge itself.
        chains = product(
            chains_from(producer, self.endpoints), chains_from(evaluator, self.endpoints)
        )
        pairs = [
            Kinship(
                relation=self._relation(producing[-1], judging[-1]),
                producer=producing,
                evaluator=judging,
            )
            for producing, judging in chains
        ]
        return min(pairs, key=lambda pair: _CLOSEST_FIRST.index(pair.relation))

    def _relation(self, first: str, second: str) -> Relation:
        if first == second:  # also if nothing tells which model it is
            return "same"
        return relation_of(self.identity(first), self.identity(second))

    def objection(self, kinship: Kinship) -> str | None:
        """Why the two may not judge each other, as the end of a sentence; None if they may."""
        if kinship.relation == "same":
            return f"are the same model{self._reporters(kinship)}"
        if kinship.relation == "family" and self.same_family == "refuse":
            family = self.identity(kinship.producer[-1]).family
            return f"are of one family ({family}){self._reporters(kinship)}"
        return None

    def refuse_kin(self, producer: str, evaluator: str) -> Kinship:
        """The relation of the two, if one may judge the other; else raises `refusal`."""
        kinship = self.kinship(producer, evaluator)
        objection = self.objection(kinship)
        if objection is not None:
            both = (
                f"producer {self._description(kinship.producer)} and evaluator "
                f"{self._description(kinship.evaluator)} {objection}"
            )
            raise refusal(both, kinship.relation)
        return kinship

    def warnings(self, kinship: Kinship) -> Iterator[Notice]:
        """A warning if a family is unknown, so that the two may be of one."""
        if kinship.relation == "unknown":
            tags = {kinship.producer[-1], kinship.evaluator[-1]}
            silent = sorted(tag for tag in tags if self.identity(tag).family is None)
            yield Notice(
                code="separation.family-unknown",
                message=f"producer '{kinship.producer[-1]}' and evaluator "
                f"'{kinship.evaluator[-1]}' may be of one family: the family of "
                f"{' and '.join(repr(tag) for tag in silent)} is unknown; set family in the "
                "endpoint's table",
            )

    def doubts(self, evaluator: str) -> Iterator[Notice]:
        """Warnings about what makes an evaluator's scores doubtful, whoever the producer is."""
        for chain in chains_from(evaluator, self.endpoints):
            identity = self.identity(chain[-1])
            if identity.low_bit:
                yield Notice(
                    code="separation.evaluator-low-bit",
                    message=f"evaluator '{chain[-1]}' is quantized to {identity.quantization}: "
                    "below Q8_0 an evaluator's scores shift, and a rubric's thresholds do not; "
                    "judge with Q8_0 or better, or set the thresholds by this model's own scores",
                )

    def _reporters(self, kinship: Kinship) -> str:
        """The end of a sentence: whose servers report these models; empty if none does."""
        reporting = [
            role
            for role, chain in (("producer", kinship.producer), ("evaluator", kinship.evaluator))
            if self.identity(chain[-1]).source == "server"
        ]
        if len(reporting) == 2:
            return ", as their servers say"
        return f", as the {reporting[0]}'s server says" if reporting else ""

    def _description(self, chain: Chain) -> str:
        endpoint = self.endpoints[chain[-1]]
        details = endpoint.model_id if endpoint.path is None else str(endpoint.path)
        if endpoint.url:
            details += f" at {endpoint.url}"
        if endpoint.path is None and (served := self.identity(chain[-1]).served):
            details += f", serving {served}"
        return f"'{chain[0]}' ({details}{_route(chain)})"


def _route(chain: Chain) -> str:
    """The fallbacks of a chain, for a message; empty without any."""
    return f", by the fallbacks {' -> '.join(chain)}" if len(chain) > 1 else ""


def refusal(what: str, relation: Relation) -> SameModel | SameFamily:
    """The error for a producer and an evaluator that are too close; `what` begins its message."""
    if relation == "same":
        return SameModel(
            f"{what}, and a model must not judge its own output; give the role 'evaluator' to an "
            "endpoint with another model, under [roles] in harness.toml or as a tag in "
            "HARNESS_ENDPOINTS, or to none, to use a rubric's checks alone"
        )
    return SameFamily(
        f"{what}, and a model favors texts of its own family; give the role 'evaluator' to a "
        'model of another family, or set same_family = "allow" under [separation] in harness.toml: '
        "every result will then say so"
    )


async def model_reported_by(
    endpoint: Endpoint, environment: Mapping[str, str]
) -> ModelMetadata | None:
    """The model that an endpoint's server reports; None without an answer, or without its key."""
    try:
        api_key = api_key_of(endpoint, environment)
    except ConfigurationInvalid:
        return None  # the first call raises this
    return await served_metadata(endpoint.filled_in(environment), api_key=api_key)


async def _reported_models(
    endpoints: Iterable[Endpoint], environment: Mapping[str, str]
) -> dict[str, ModelMetadata]:
    """Tag → the model that its server reports; refuses replicas that serve different models."""
    replicas = [
        (endpoint.tag, name, replica)
        for endpoint in endpoints
        for name, replica in endpoint.replicas.items()
    ]
    answers = await asyncio.gather(
        *(model_reported_by(replica, environment) for *_, replica in replicas)
    )
    reported: dict[str, ModelMetadata] = {}
    for (tag, name, _), metadata in zip(replicas, answers, strict=True):
        if metadata is None:
            continue
        first = reported.setdefault(tag, metadata)
        if not serve_alike(first, metadata):
            raise ConfigurationInvalid(
                f"the replica {name} of endpoint '{tag}' serves another model than the first that "
                "answered; give it an endpoint of its own",
                code="endpoint.replicas-differ",
            )
    return reported


def _file_metadata(endpoint: Endpoint) -> ModelMetadata | None:
    """What a model's GGUF file says of it; None without a readable file."""
    if endpoint.path is None:
        return None
    try:
        file = read_gguf_file(endpoint.path)
    except ModelFileInvalid:
        return None  # loading the model says what is wrong with the file
    keys = {key: value.content for key, value in file.values.items()}
    file_type = keys.get("general.file_type")
    quantization = file_type_name(file_type) if isinstance(file_type, int) else "unknown"
    return metadata_from(keys, quantization=None if quantization == "unknown" else quantization)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatorPool:
    """Several evaluators, of which one is drawn, or which judge every draft together as a panel."""

    members: tuple[str, ...]
    """The tags of those that may judge, in the order of the settings; at least one."""
    excluded: Mapping[str, str]
    """Tag → why it may not judge."""
    drawn: str | None = None
    """The member that was drawn; None for a panel."""
    seed: str | None = None
    """The seed of the draw; None for a panel."""
    combine: Combine | None = None
    """How the judgements of a panel become one."""


def drawn_evaluator(members: tuple[str, ...], seed: str) -> str:
    """Draws a member; equal members and seeds give the same one."""
    # MD5 since the pattern's published code draws by it: the same seed, the same evaluator.
    number = hashlib.md5(seed.encode("utf-8", "replace"), usedforsecurity=False).hexdigest()
    return members[int(number, 16) % len(members)]


def evaluator_pool(
    tags: tuple[str, ...], *, producer: str | None, models: ComparedModels
) -> EvaluatorPool:
    """A pool of the tags that may evaluate the producer's output; refused if it is empty."""
    objections = {tag: _objection_to(tag, producer, models) for tag in tags}
    excluded = {tag: reason for tag, reason in objections.items() if reason is not None}
    members = tuple(tag for tag in tags if tag not in excluded)
    if not members:
        reasons = "; ".join(f"'{tag}': {reason}" for tag, reason in excluded.items())
        raise ConfigurationInvalid(
            f"the pool of evaluators is empty{': ' if reasons else ''}{reasons}; under [roles] in "
            "harness.toml, give evaluator endpoints with models of other families than the "
            "producer's",
            code="roles.pool-empty",
        )
    return EvaluatorPool(members=members, excluded=excluded)


def _objection_to(evaluator: str, producer: str | None, models: ComparedModels) -> str | None:
    """Why an evaluator may not judge the producer's output; None if it may."""
    if producer is None:
        return None  # no producer is known that it could be too close to
    if evaluator == producer:
        return "is the producer"
    kinship = models.kinship(producer, evaluator)
    objection = models.objection(kinship)
    if objection is None:
        return None
    routes = _route(kinship.producer) + _route(kinship.evaluator)
    return f"it and the producer '{producer}' {objection}{routes}"


def check_fallbacks(endpoints: Mapping[str, Endpoint]) -> None:
    """Raises `ConfigurationInvalid` for a fallback that is no endpoint."""
    for tag, endpoint in endpoints.items():
        for fallback in endpoint.fallback:
            if fallback not in endpoints:
                raise ConfigurationInvalid(
                    f"endpoint '{tag}' falls back on '{fallback}', which is not an endpoint; "
                    + did_you_mean(fallback, endpoints),
                    code="endpoint.fallback-unknown",
                )


def chains_from(tag: str, endpoints: Mapping[str, Endpoint]) -> tuple[Chain, ...]:
    """A chain to each endpoint that can answer for this one, which itself is the first."""
    # A fallback's own fallbacks are not asked, since two endpoints may stand in for each other.
    return ((tag,), *((tag, fallback) for fallback in endpoints[tag].fallback))
