"""What a call passes on its way to a model, from the outermost to the backend.

fallback    another endpoint, when this one cannot answer
retry       again, for what may pass
trace       a span for each attempt
cache       the reply of the same call, made before
schema      what becomes of a reply's schema, found out once
limit       so many calls at one time
lease       the model in memory, for embedded ones
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from harness.inference import (
    Backend,
    Cached,
    CallCache,
    Endpoint,
    FallingBack,
    Limited,
    Retrying,
    RetryPolicy,
    SchemaKeeping,
    SchemaKnowledge,
    Timed,
    Traced,
)
from harness.residency import KeepAliveBudget, Leased
from harness.trace import Tracer


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all endpoints of a session have in common."""

    tracer: Tracer
    """Sees every call."""
    budget: KeepAliveBudget | None
    """Lends embedded models; None without one."""
    cache: CallCache | None
    """Knows earlier calls; None when it is off."""


def call_stack(
    backend: Backend,
    endpoint: Endpoint,
    shared: Shared,
    *,
    leased: bool,
    identity: str | None,
    schemas: SchemaKnowledge | None = None,
    slots: Callable[[], Awaitable[int | None]] | None = None,
) -> Backend:
    """One endpoint's stack, fallback apart.

    Args:
        backend: Answers.
        endpoint: Says what it needs.
        shared: As above.
        leased: Whether its model is the budget's.
        identity: What its replies are cached by; None for never.
        schemas: What its model's server does with schemas, where other stacks are to know it too.
        slots: Finds out how many calls its server answers side by side.
    """
    tracer = shared.tracer
    backend = Timed(backend, endpoint=endpoint)
    if leased:
        assert shared.budget is not None
        backend = Leased(
            backend,
            budget=shared.budget,
            model=endpoint.tag,
            context_tokens=endpoint.context_tokens if endpoint.path is not None else None,
        )
    if endpoint.max_concurrency is not None or slots is not None:
        backend = Limited(
            backend, max_concurrency=endpoint.max_concurrency, slots=slots, tracer=tracer
        )
    if endpoint.backend != "scripted":
        backend = SchemaKeeping(
            backend, tracer=tracer, known=schemas or SchemaKnowledge(endpoint.structured)
        )
    if shared.cache is not None and identity is not None:
        backend = Cached(backend, cache=shared.cache, identity=identity, clock=tracer.now_ns)
    return Retrying(
        Traced(backend, tracer=tracer),
        policy=RetryPolicy(),
        timeout_s=endpoint.timeout_s,
        randomness=random.Random(),  # noqa: S311 - jitter is no secret
        tracer=tracer,
    )


def with_fallbacks(
    stacks: Mapping[str, Backend], endpoints: Mapping[str, Endpoint], *, tracer: Tracer
) -> dict[str, Backend]:
    """Every stack, with those that stand in for it; they alone, so that no chain is endless."""
    return {
        tag: FallingBack(
            stack,
            others={other: stacks[other] for other in endpoints[tag].fallback},
            tracer=tracer,
        )
        if endpoints[tag].fallback
        else stack
        for tag, stack in stacks.items()
    }
