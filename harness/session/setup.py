"""What settings and backends come to before anything is opened, and what runs share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Self

from harness.errors import ConfigurationInvalid, Notice, did_you_mean
from harness.graph.state import Use
from harness.inference import Backend, Endpoint, Meter
from harness.session.models import OpenModels, known_endpoints, open_models
from harness.session.passages import PassageStore
from harness.session.roles import EVALUATOR, Roles, with_backends
from harness.session.separation import ComparedModels
from harness.session.settings import OFFLINE_EMBEDDERS, MemorySettings, Settings
from harness.session.trust import check_store, known_secrets, warn_of_secrets
from harness.trace import Sink, TraceOptions, Tracer


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Settings and backends as a run uses them, or all runs of a session."""

    settings: Settings
    """Their roles as the backends play them."""
    endpoints: Mapping[str, Endpoint]
    compared: ComparedModels
    environment: Mapping[str, str]
    """Holds the API keys that endpoints name."""
    backends: Mapping[str, Backend] | None
    trace_options: TraceOptions
    facts: dict[str, Use | None] = field(default_factory=dict)
    """See `Surroundings`."""

    @classmethod
    def of(
        cls,
        settings: Settings,
        backends: Mapping[str, Backend] | None,
        environment: Mapping[str, str],
    ) -> Self:
        """The setup; warns of secrets that files would hold.

        Raises:
            NotTrusted: Credentials or passages may not be sent to the store of the memory.
        """
        endpoints, memory, trace = (
            known_endpoints(settings, backends),
            settings.memory,
            settings.trace,
        )
        check_store(memory.path, written_in=memory.written_in, environment=environment)
        warn_of_secrets(endpoints.values(), environment=environment, named=trace.secrets)
        roles = with_backends(settings.roles, backends or {})
        return cls(
            settings=settings.model_copy(update={"roles": roles}),
            endpoints=endpoints,
            compared=ComparedModels(endpoints, same_family=settings.separation.same_family),
            environment=environment,
            backends=backends,
            trace_options=TraceOptions(
                content=trace.content,
                durability=trace.durability,
                on_failure=trace.on_failure,
                timelines=trace.timelines,
                secrets=known_secrets(
                    endpoints.values(), environment=environment, named=trace.secrets
                ),
            ),
        )

    def required(self, roles: Roles, needed_roles: Mapping[str, str]) -> frozenset[str]:
        """Tags of the endpoints that must be usable.

        `needed_roles` are those that nodes declare, and which node does.

        Raises:
            ConfigurationInvalid: A role has no model, or the memory's endpoint does not exist.
        """
        tags = roles.in_use | models_for(needed_roles, roles)
        return tags | _models_of(self.settings.memory, self.endpoints)

    def opened(
        self,
        tracer: Tracer,
        *,
        required: Collection[str],
        warn: Callable[[Notice], None] | None = None,
    ) -> AbstractAsyncContextManager[OpenModels]:
        """See `open_models`."""
        return open_models(
            self.endpoints,
            settings=self.settings,
            environment=self.environment,
            backends=self.backends,
            required=required,
            tracer=tracer,
            sample_every_s=self.settings.trace.sample_ms / 1000,
            warn=warn,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedParts:
    """What the runs of a session have in common."""

    setup: Setup
    models: OpenModels
    store: PassageStore
    """Of use if it is kept; otherwise each run has its own."""
    observers: Sequence[Sink]
    """Of every run."""
    meter_of: Callable[[str | None], Meter]
    """By tenant, the scope that a run is inside of."""


def models_for(needed_roles: Mapping[str, str], roles: Roles) -> set[str]:
    """Tags of the models that play roles.

    Raises:
        ConfigurationInvalid: One has none.
    """
    tags = set()
    for role, who in needed_roles.items():
        if role == EVALUATOR and roles.pool is not None:
            continue  # chosen when the run begins
        try:
            tags.add(roles.model(role))
        except ConfigurationInvalid as error:
            raise ConfigurationInvalid(f"{who} needs '{role}': {error}", code=error.code) from error
    return tags


def _models_of(memory: MemorySettings, endpoints: Mapping[str, Endpoint]) -> set[str]:
    """The tags of the endpoints that embed and rank passages."""
    if (unknown := next((tag for tag in memory.models if tag not in endpoints), None)) is None:
        return set(memory.models)
    if unknown == memory.rerank:
        raise ConfigurationInvalid(
            f"[memory] rerank is '{unknown}', which is not an endpoint; "
            + did_you_mean(unknown, endpoints),
            code="memory.reranker-unknown",
        )
    raise ConfigurationInvalid(
        f"[memory] embedder is '{unknown}', which is not an endpoint; "
        + did_you_mean(unknown, [*OFFLINE_EMBEDDERS, *endpoints]),
        code="memory.embedder-unknown",
    )
