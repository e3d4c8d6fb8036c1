"""Separation: that no model judges its own output, nor, unless allowed, that of its family.

What counts is the model that an endpoint leads to, not its tag, and every model that can answer for
it: a producer whose fallback is the evaluator's model would one day be judged by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from harness.errors import ModelFileInvalid, Notice, SameFamily, SameModel
from harness.hardware import file_type_name
from harness.hardware.gguf_file import read_gguf_file
from harness.inference import (
    Endpoint,
    ModelIdentity,
    ModelMetadata,
    Relation,
    metadata_from,
    model_identity,
    relation_of,
)
from harness.session.fallbacks import Chain, chains_from
from harness.session.roles import EVALUATOR, PRODUCER
from harness.session.settings import SameFamilyRule

_CLOSEST_FIRST: tuple[Relation, ...] = ("same", "family", "unknown", "different")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kinship:
    """What a producer and an evaluator are to each other: the closest two of all they can reach."""

    relation: Relation
    """Of the last models of the two chains."""
    producer: Chain
    """From the producer's endpoint to the one that can answer for it."""
    evaluator: Chain
    """The same of the evaluator's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Separation:
    """How far apart a run's models were."""

    producer: str
    """Tag of the producer's endpoint."""
    evaluators: Mapping[str, Relation]
    """By the tag of each evaluator's endpoint, at least one: what its model is to the producer's.
    `family` only where the settings allow it; `unknown` where no family could be told; never
    `same`."""

    @property
    def relation(self) -> Relation:
        """The closest of them."""
        return min(self.evaluators.values(), key=_CLOSEST_FIRST.index)


class ComparedModels:
    """The endpoints of a run by what they are; a file is read when it is first compared.

    Of a served model no more is known than its name, until its server's word is taken.

    Args:
        endpoints: By tag.
        same_family: Whether relatives may judge each other.
    """

    def __init__(self, endpoints: Mapping[str, Endpoint], *, same_family: SameFamilyRule) -> None:
        self.endpoints = endpoints
        self.same_family = same_family
        self._identities: dict[str, ModelIdentity] = {}

    def identity(self, tag: str) -> ModelIdentity:
        """Which model an endpoint leads to.

        Raises:
            ModelFileInvalid: Its file cannot be read.
        """
        if tag not in self._identities:
            endpoint = self.endpoints[tag]
            self._identities[tag] = model_identity(endpoint, _file_metadata(endpoint))
        return self._identities[tag]

    def reachable(self, *tags: str) -> tuple[Endpoint, ...]:
        """All that can answer for these, each once."""
        chains = (chain for tag in tags for chain in chains_from(tag, self.endpoints))
        return tuple(self.endpoints[tag] for tag in dict.fromkeys(chain[-1] for chain in chains))

    def take_word(self, said: Mapping[str, ModelMetadata]) -> None:
        """Goes by what servers say of their models from here on.

        Args:
            said: By tag.
        """
        for tag, metadata in said.items():
            self._identities[tag] = model_identity(self.endpoints[tag], metadata)

    def kinship(self, producer: str, evaluator: str) -> Kinship:
        """The closest relation of any two models that the two can reach."""
        pairs = [
            Kinship(
                relation=self._relation(mine[-1], theirs[-1]),
                producer=mine,
                evaluator=theirs,
            )
            for mine in chains_from(producer, self.endpoints)
            for theirs in chains_from(evaluator, self.endpoints)
        ]
        return min(pairs, key=lambda pair: _CLOSEST_FIRST.index(pair.relation))

    def objection(self, kinship: Kinship) -> str | None:
        """What is against it and who says so, as the end of a sentence; None when nothing is."""
        if kinship.relation == "same":
            return f"are the same model{self._whose_word(kinship)}"
        if kinship.relation == "family" and self.same_family == "refuse":
            family = self.identity(kinship.producer[-1]).family
            return f"are of one family ({family}){self._whose_word(kinship)}"
        return None

    def refuse_kin(self, producer: str, evaluator: str) -> Kinship:
        """The relation of the two, where nothing is against it.

        Raises:
            SameModel: They, or those that can answer for them, are one model.
            SameFamily: They are relatives, and the settings refuse those.
        """
        kinship = self.kinship(producer, evaluator)
        objection = self.objection(kinship)
        if objection is not None:
            both = (
                f"producer {self._whereabouts(kinship.producer)} and evaluator "
                f"{self._whereabouts(kinship.evaluator)} {objection}"
            )
            raise refusal(both, kinship.relation)
        return kinship

    def warnings(self, kinship: Kinship) -> Iterator[Notice]:
        """What is to be kept in mind about scores that come of it."""
        if kinship.relation == "unknown":
            both = {chain[-1] for chain in (kinship.producer, kinship.evaluator)}
            silent = sorted(tag for tag in both if self.identity(tag).family is None)
            yield Notice(
                code="separation.family-unknown",
                message=f"whether producer '{kinship.producer[-1]}' and evaluator "
                f"'{kinship.evaluator[-1]}' are of one family is not known: nothing tells the "
                f"family of {' and '.join(repr(tag) for tag in silent)}; write it down as family "
                "in the endpoint's table",
            )
        for chain in chains_from(kinship.evaluator[0], self.endpoints):
            identity = self.identity(chain[-1])
            if identity.low_bit:
                yield Notice(
                    code="separation.evaluator-low-bit",
                    message=f"evaluator '{chain[-1]}' is quantised to {identity.quantisation}: "
                    "below Q8_0 a judge's scores shift against those of the unquantised model, "
                    "and a rubric's thresholds do not shift with them; judge with Q8_0 or better, "
                    "or set the thresholds by this model's own scores",
                )

    def _relation(self, one: str, other: str) -> Relation:
        return "same" if one == other else relation_of(self.identity(one), self.identity(other))

    def _whose_word(self, kinship: Kinship) -> str:
        """Who says so, where it is not the settings alone, as the end of a sentence."""
        said = [
            role
            for role, chain in ((PRODUCER, kinship.producer), (EVALUATOR, kinship.evaluator))
            if self.identity(chain[-1]).source == "server"
        ]
        if len(said) == 2:
            return ", by the word of their servers"
        return f", by the word of the {said[0]}'s server" if said else ""

    def _whereabouts(self, chain: Chain) -> str:
        endpoint = self.endpoints[chain[-1]]
        if endpoint.path is not None:
            place = str(endpoint.path)
        else:
            place = f"{endpoint.model_id} at {endpoint.url}" if endpoint.url else endpoint.model_id
            served = self.identity(chain[-1]).served
            place += f", serving {served}" if served else ""
        way = f", by the fallbacks {' -> '.join(chain)}" if len(chain) > 1 else ""
        return f"'{chain[0]}' ({place}{way})"


def refusal(what: str, relation: Relation) -> SameModel | SameFamily:
    """The error for two roles that must not be played by these models.

    Args:
        what: Who is what, as the sentence begins.
        relation: `same` or `family`.
    """
    if relation == "same":
        return SameModel(
            f"{what}, and a model does not judge its own output; give the role 'evaluator' to an "
            "endpoint with another model, under [roles] in harness.toml or as a tag in "
            "HARNESS_ENDPOINTS, or give it to none to use a rubric's checks alone"
        )
    return SameFamily(
        f"{what}, and a model favours what its relatives write; give the role 'evaluator' to a "
        "model of another family, or allow it, for every result to say so, with same_family = "
        '"allow" under [separation] in harness.toml'
    )


def _file_metadata(endpoint: Endpoint) -> ModelMetadata | None:
    if endpoint.path is None:
        return None
    try:
        file = read_gguf_file(endpoint.path)
    except ModelFileInvalid:
        return None  # whoever loads it says what is wrong with it
    keys = {key: value.content for key, value in file.values.items()}
    file_type = keys.get("general.file_type")
    quantisation = file_type_name(file_type) if isinstance(file_type, int) else "unknown"
    return metadata_from(keys, quantisation=None if quantisation == "unknown" else quantisation)
