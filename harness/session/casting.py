"""Casting: which model plays which role in a run, checked before it begins, and its warnings."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from itertools import combinations

from harness.errors import ConfigurationInvalid, Notice
from harness.inference import (
    Endpoint,
    Limits,
    ModelMetadata,
    Spent,
    relation_of,
    served_metadata,
    tells_model,
)
from harness.log import log_notice, warnings_heard_by
from harness.session.fallbacks import check_fallbacks
from harness.session.roles import Roles
from harness.session.separation import (
    ComparedModels,
    EvaluatorDraw,
    EvaluatorPanel,
    EvaluatorPool,
    Separation,
    evaluator_pool,
)
from harness.session.settings import Settings
from harness.session.trust import api_key_of
from harness.trace import Tracer


class Casting:
    """The roles of one run.

    Args:
        endpoints: By tag.
        settings: Assign the roles, and say how different the models must be.

    Raises:
        ConfigurationInvalid: A role, a fallback or the pool of evaluators is wrong, or a panel has
            no pool.
        SameModel: Producer and evaluator, or endpoints that can answer for them, are one model.
        SameFamily: They are of one family, and the settings refuse that.
        ModelFileInvalid: A file that must be compared cannot be read.

    Attributes:
        roles: A pool has no evaluators until they are chosen.
        models: The models behind the tags.
        draw: How the evaluator was drawn; None before, or without a draw.
        panel: Evaluators that judge together; None before, or without a panel.
        summarizer: Tag of the endpoint that shortens drafts for the evaluator; None if code does.
        separation: How different producer and evaluators are, as far as known; None unless there
            are both.
        warnings: The run's, so far.
    """

    def __init__(self, endpoints: Mapping[str, Endpoint], settings: Settings) -> None:
        check_fallbacks(endpoints)
        rules = settings.separation
        self.roles = Roles(endpoints, settings.roles)
        self.models = ComparedModels(endpoints, same_family=rules.same_family)
        self.draw: EvaluatorDraw | None = None
        self.panel: EvaluatorPanel | None = None
        self.summarizer = self._summarizer(settings.evaluation.summarizer)
        self.separation: Separation | None = None
        self.warnings: list[Notice] = []
        self._rules = rules
        self._combine = settings.evaluation.panel
        producer, evaluator = self.roles.producer, self.roles.evaluator
        if self.roles.pool is not None:
            self._pool(self.roles.pool)
        elif self._combine is not None:
            raise ConfigurationInvalid(
                f"panel = '{self._combine}' under [evaluation] needs a pool of evaluators; write "
                'evaluator = ["…", "…"] under [roles] in harness.toml, or leave panel out',
                code="roles.panel-without-pool",
            )
        elif producer is not None and evaluator is not None:
            self.models.refuse_kin(producer, evaluator)

    @property
    def required(self) -> frozenset[str]:
        """Tags of the endpoints that this run needs for certain."""
        return self.roles.in_use | ({self.summarizer} if self.summarizer else frozenset())

    async def ask_servers(self, tracer: Tracer, *, environment: Mapping[str, str]) -> None:
        """Asks servers which models they serve, if there are models to compare.

        Where a server does not answer within seconds, the settings count.

        Args:
            tracer: The run's.
            environment: Holds the API keys that endpoints name.
        """
        producer, judges = self.roles.producer, self._judges()
        if producer is None or not judges:
            return
        reachable = self.models.reachable(producer, *judges)
        asked = [endpoint for endpoint in reachable if tells_model(endpoint)]
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

    def choose_evaluators(self, tracer: Tracer, *, task: str, run_id: str) -> None:
        """If there is a pool: draws one evaluator from it, or takes all of them as a panel.

        Models that their servers have shown to be too close to the producer's are left out.

        Args:
            tracer: The run's.
            task: The run's task: the seed, if the settings have none.
            run_id: The seed of a run without a task.

        Raises:
            ConfigurationInvalid: The pool is empty.
        """
        if self.roles.pool is None:
            return
        pool = self._pool(self.roles.pool)
        if self._combine is not None:
            self.panel = pool.seat(self._combine)
            self.roles = self.roles.with_evaluators(*self.panel.members)
            tracer.instant(
                "evaluator panel",
                evaluators=self.panel.members,
                combine=self.panel.combine,
                excluded=dict(self.panel.excluded),
            )
            return
        seed = self._rules.pool_seed or task or run_id
        self.draw = pool.draw(seed, pool_hash=self._rules.pool_hash)
        self.roles = self.roles.with_evaluators(self.draw.evaluator)
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
                tracer.instant(
                    "separation",
                    relation=kinship.relation,
                    producer=self._described(producer),
                    evaluator=self._described(tag),
                )
                for warning in self.models.warnings(kinship):
                    self.warn(warning, tracer)
        for warning in (*self._on_panel(), *self._on_summarizer()):
            self.warn(warning, tracer)

    def warn(self, notice: Notice, tracer: Tracer) -> None:
        """Adds a warning to the log, the timeline, and the result."""
        self.warnings.append(notice)
        with warnings_heard_by(tracer.warned):
            log_notice(notice.message, code=notice.code)

    def _pool(self, tags: tuple[str, ...]) -> EvaluatorPool:
        return evaluator_pool(tags, producer=self.roles.producer, models=self.models)

    def _on_panel(self) -> Iterator[Notice]:
        if self.panel is None:
            return
        if len(self.panel.members) == 1:
            yield Notice(
                code="panel.single-evaluator",
                message=f"the panel has one evaluator, '{self.panel.members[0]}': the pool has no "
                "other, or no other that may judge",
            )
        for one, other in combinations(self.panel.members, 2):
            if relation_of(self.models.identity(one), self.models.identity(other)) == "same":
                yield Notice(
                    code="panel.same-model",
                    message=f"'{one}' and '{other}' on the panel are the same model, so its "
                    "judgement counts twice; leave one of them out of the pool",
                )

    def _on_summarizer(self) -> Iterator[Notice]:
        producer, summarizer = self.roles.producer, self.summarizer
        if producer is None or summarizer is None:
            return
        mine, its = self.models.identity(producer), self.models.identity(summarizer)
        if relation_of(mine, its) == "same":
            yield Notice(
                code="summarizer.same-model",
                message=f"the summarizer '{summarizer}' is the producer's model: it shortens its "
                "own drafts for the evaluator, and may leave out their faults; choose another",
            )

    def _summarizer(self, named: str | None) -> str | None:
        return None if named is None else self.roles.named(named, setting="evaluation.summarizer")

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


async def _word_on(endpoint: Endpoint, environment: Mapping[str, str]) -> ModelMetadata | None:
    try:
        api_key = api_key_of(endpoint, environment)
    except ConfigurationInvalid:
        return None  # the first call says so
    return await served_metadata(endpoint, api_key=api_key)


def warn_of_no_price(limits: Limits, spent: Spent, *, casting: Casting, tracer: Tracer) -> None:
    """Says, once, that a limit to the cost was none, since no price was known."""
    if limits.max_cost_usd is None or spent.cost_usd is not None or not spent.unpriced_calls:
        return
    notice = Notice(
        code="limits.cost-unbounded",
        message=f"{limits.said('cost')} bounded nothing: no call's price is known; "
        "write usd_per_million_input_tokens and usd_per_million_output_tokens under "
        "the endpoints",
    )
    if notice not in casting.warnings:
        casting.warn(notice, tracer)
