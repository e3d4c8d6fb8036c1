"""A client in front of a test's own backends, with no more in between than the test asks for."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from harness.inference import NOTHING, Backend, Client, Endpoint, Limits, Meter, Spent
from harness.inference.client import Route
from harness.inference.gate import Gate
from harness.inference.health import RetryPolicy
from harness.trace import Clock, Tracer, monotonic

AT_ONCE = RetryPolicy(base_s=0.0)
ONCE = RetryPolicy(max_attempts=1)


def client_of(
    backend: Backend,
    *,
    tag: str = "m",
    tracer: Tracer | None = None,
    gate: Mapping[str, Any] | None = None,
    line: Mapping[str, Any] | None = None,
    replicas: tuple[Backend, ...] = (),
    others: Mapping[str, Backend] | None = None,
    retry: RetryPolicy = ONCE,
    timeout_s: float = math.inf,
    **fields: Any,
) -> Client:
    """A client of one model, and of those that may stand in for it.

    Args:
        backend: Answers.
        tag: The model's.
        tracer: Sees the calls.
        gate: Fields of its gate, and of its endpoint that the gate reads.
        line: Fields of its route.
        replicas: Its further backends.
        others: By tag, in the order in which they stand in.
        retry: Its endpoint's, and theirs.
        timeout_s: The same.
        fields: Of the client.
    """
    tracer = tracer or Tracer()

    def way(name: str, to: tuple[Backend, ...], fallback: tuple[str, ...], **more: Any) -> Route:
        fields = dict(gate or {})
        names = ("max_parallel", "max_queue", "max_outage_s")
        settings = {name: fields.pop(name) for name in names if name in fields}
        endpoint = Endpoint(
            tag=name,
            backend="scripted",
            retry=retry,
            timeout_s=timeout_s,
            fallback=fallback,
            **settings,
        )
        made = Gate(endpoint=endpoint, tracer=tracer, **fields)
        return Route(endpoint=endpoint, backends=to, gate=made, **more)

    lines = {tag: way(tag, (backend, *replicas), tuple(others or ()), **(line or {}))}
    lines |= {name: way(name, (to,), ()) for name, to in (others or {}).items()}
    return Client(routes=lines, tracer=tracer, **{"randomness": random.Random(7), **fields})


def priced(**prices: float) -> Endpoint:
    """An endpoint with these prices."""
    return Endpoint(tag="priced", backend="scripted", **prices)


def meter_of(
    limits: Limits,
    clock: Clock,
    *,
    prices: Mapping[str, Any] | None = None,
    before: Spent = NOTHING,
    tracer: Tracer | None = None,
) -> Meter:
    """The meter of a run that begins now."""
    return Meter(
        limits=limits, endpoints=prices or {}, before=before, tracer=tracer or Tracer(clock=clock)
    )


@contextmanager
def in_a_loop(
    ask: Any,
    limits: Limits | None = None,
    *,
    of_run: Limits | None = None,
    prices: Mapping[str, Any] | None = None,
    clock: Clock = monotonic,
    tags: tuple[str, ...] = ("m", "writer", "judge"),
) -> Iterator[tuple[Any, Meter]]:
    """Calls that this function answers, and the meter of the loop that they are made in."""
    tracer = Tracer(clock=clock)
    run = meter_of(of_run or Limits(), clock, prices=prices, tracer=tracer)
    backend: Any = SimpleNamespace(chat=ask)
    lines = {tag: client_of(backend, tag=tag, tracer=tracer).routes[tag] for tag in tags}
    client = Client(routes=lines, tracer=tracer, meter=run)
    with run.loop(limits or Limits()) as meter:
        yield client.chat, meter
