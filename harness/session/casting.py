"""Casting: who plays which role in a run, checked before it begins, and what is said about it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import structlog

from harness.errors import ConfigurationInvalid
from harness.inference import TELLING_BACKENDS, Endpoint, ModelMetadata, served_metadata
from harness.session.evaluator_pool import EvaluatorDraw, EvaluatorPool, evaluator_pool
from harness.session.fallbacks import check_fallbacks
from harness.session.models import api_key_of
from harness.session.roles import Roles
from harness.session.separation import ComparedModels, Separation
from harness.session.settings import Settings
from harness.trace import Tracer

_log = structlog.get_logger(__name__)


class Casting:
    """The roles of one run.

    Args:
        endpoints: By tag.
        settings: Say who plays what, and how different they must be.

    Raises:
        ConfigurationInvalid: A role, a fallback or the pool of evaluators cannot be made sense of.
        SameModel: Producer and evaluator, or those that can answer for them, are one model.
        SameFamily: They are relatives, and the settings refuse those.
        ModelFileInvalid: A file that must be compared cannot be read.

    Attributes:
        roles: Who plays what; of a pool, nobody evaluates until one is drawn.
        models: What is behind the tags.
        draw: How the evaluator was drawn; None when it was named, or not yet.
        separation: How far apart producer and evaluator are, as far as is known by now; None when
            there are not both.
        warnings: What is to be kept in mind about the run.
    """

    def __init__(self, endpoints: Mapping[str, Endpoint], settings: Settings) -> None:
        check_fallbacks(endpoints)
        rules = settings.separation
        self.roles = Roles(endpoints, settings.roles)
        self.models = ComparedModels(endpoints, same_family=rules.same_family)
        self.draw: EvaluatorDraw | None = None
        self.separation: Separation | None = None
        self.warnings: list[str] = []
        self._rules = rules
        producer, evaluator = self.roles.producer, self.roles.evaluator
        if self.roles.pool is not None:
            self._pool(self.roles.pool)
        elif producer is not None and evaluator is not None:
            self.models.refuse_kin(producer, evaluator)

    async def ask_servers(self, tracer: Tracer, *, environment: Mapping[str, str]) -> None:
        """Has servers say what they serve, where there are models to be told apart.

        Of a pool, those of all members that the settings leave in it are asked. What a server does
        not say within seconds is taken from the settings.

        Args:
            tracer: The run's.
            environment: Holds the API keys that endpoints name.
        """
        producer, judges = self.roles.producer, self._judges()
        if producer is None or not judges:
            return
        reachable = self.models.reachable(producer, *judges)
        asked = [endpoint for endpoint in reachable if endpoint.backend in TELLING_BACKENDS]
        if not asked:
            return
        with tracer.span("ask servers", models=[endpoint.tag for endpoint in asked]) as span:
            async with asyncio.TaskGroup() as group:
                answers = {
                    endpoint.tag: group.create_task(_word_on(endpoint, environment))
                    for endpoint in asked
                }
            said = {tag: word for tag, answer in answers.items() if (word := answer.result())}
            span.set(told=list(said))
        self.models.take_word(said)

    def draw_evaluator(self, tracer: Tracer, *, task: str, run_id: str) -> None:
        """Draws the evaluator, if it is to be drawn from a pool.

        Whom the servers' word shows to be the producer's model, or its kin, is not in the draw.

        Args:
            tracer: The run's.
            task: What the run is for: the seed, when the settings have none.
            run_id: The seed of a run without a task.

        Raises:
            ConfigurationInvalid: Nobody is left to draw.
        """
        if self.roles.pool is None:
            return
        seed = self._rules.pool_seed or task or run_id
        self.draw = self._pool(self.roles.pool).draw(seed, pool_hash=self._rules.pool_hash)
        self.roles = self.roles.with_evaluator(self.draw.evaluator)
        tracer.instant(
            "evaluator drawn",
            evaluator=self.draw.evaluator,
            seed=tracer.excerpt(seed),
            pool_hash=self.draw.pool_hash,
            pool=self.draw.pool,
            pool_sha256=self.draw.pool_sha256,
            excluded=dict(self.draw.excluded),
        )

    def begin(self, tracer: Tracer) -> None:
        """Says at the head of the record who is who.

        Args:
            tracer: The run's.

        Raises:
            SameModel: Producer and evaluator, or those that can answer for them, are one model.
            SameFamily: They are relatives, and the settings refuse those.
        """
        producer, evaluator = self.roles.producer, self.roles.evaluator
        if producer is None or evaluator is None:
            return
        kinship = self.models.refuse_kin(producer, evaluator)
        self.separation = Separation(
            producer=producer, evaluator=evaluator, relation=kinship.relation
        )
        tracer.instant(
            "separation",
            relation=kinship.relation,
            producer=self._described(producer),
            evaluator=self._described(evaluator),
        )
        for warning in self.models.warnings(kinship):
            self.warn(warning, tracer)

    def warn(self, message: str, tracer: Tracer) -> None:
        """Tells whoever reads the log, the timeline, or the result."""
        self.warnings.append(message)
        tracer.instant("warning", message=message)
        _log.warning(message)

    def _pool(self, tags: tuple[str, ...]) -> EvaluatorPool:
        """Those of the tags that may evaluate, by what is known by now."""
        return evaluator_pool(tags, producer=self.roles.producer, models=self.models)

    def _judges(self) -> tuple[str, ...]:
        """Who may come to evaluate."""
        if self.roles.pool is not None:
            return self._pool(self.roles.pool).members
        return () if self.roles.evaluator is None else (self.roles.evaluator,)

    def _described(self, tag: str) -> dict[str, object]:
        identity = self.models.identity(tag)
        return {
            "model": tag,
            "weights": identity.weights,
            "family": identity.family,
            "quantisation": identity.quantisation,
            "source": identity.source,
        }


async def _word_on(endpoint: Endpoint, environment: Mapping[str, str]) -> ModelMetadata | None:
    try:
        api_key = api_key_of(endpoint, environment)
    except ConfigurationInvalid:
        return None  # whoever calls it says so
    return await served_metadata(endpoint, api_key=api_key)
