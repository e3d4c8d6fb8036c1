"""What was seen of an endpoint when it was tried out, and what follows from it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from harness.errors import Notice
from harness.inference import Completion, Endpoint, StructuredMode, provider_of
from harness.inference.providers.provider import NEVER, Switch


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointCheck:
    """What was seen of an endpoint; None for what could not be seen."""

    tag: str
    """The endpoint's."""
    backend: str
    """How it is spoken to."""
    model_id: str
    """What the model is called there."""
    reachable: bool | None = None
    """Whether there is a server; None where it was not tried."""
    error: Notice | None = None
    """Why it cannot be used, and what would mend it."""
    models: tuple[str, ...] | None = None
    """What its server serves."""
    context_tokens: int | None = None
    """Prompt and reply of one call, together."""
    slots: int | None = None
    """Calls that it says it answers side by side."""
    at_once: int | None = None
    """Calls that were made at once, to see how many it does."""
    side_by_side: int | None = None
    """Of those, how many were being answered at one moment."""
    structured: StructuredMode | None = None
    """What became of a reply's schema."""
    timings: bool | None = None
    """Whether it tells where a call's time went."""
    cached_tokens: bool | None = None
    """Whether it tells how much of a prompt came out of its prefix cache."""
    logprobs: bool | None = None
    """Whether it gives log probabilities."""
    counts_tokens: bool | None = None
    """Whether it counts the tokens of a prompt."""
    embeds: bool | None = None
    """Whether it embeds."""
    metrics: bool | None = None
    """Whether its counters can be read."""
    dropped: tuple[str, ...] = ()
    """Fields that it refuses."""
    ttft_ms: float | None = None
    """From sending a short prompt to the first token, the model being loaded."""
    tokens_per_s: float | None = None
    """Of one call's decoding."""
    unload: str | None = None
    """How its server is told to unload its model; None where that is not known."""
    advice: tuple[Notice, ...] = ()
    """What to change, there or here."""


_TOO_SHORT_NS = 100_000_000
"""Replies shorter than this may have missed each other by chance."""


def most_at_once(completions: Collection[Completion]) -> int | None:
    """How many replies were being written at one moment; None where that cannot be told.

    Two may seem to meet where one begins as the other ends: each is taken to be shorter than it
    was. And those of a fast server may miss each other by chance: if short ones did not all meet,
    that says nothing.
    """
    changes = []
    shortest_ns = _TOO_SHORT_NS
    for completion in completions:
        if completion.first_token_ns is None or not completion.phases:
            return None
        begun_ns, ended_ns = completion.first_token_ns, completion.phases[-1].end_ns
        shortest_ns = min(shortest_ns, ended_ns - begun_ns)
        margin_ns = (ended_ns - begun_ns) // 8
        changes += [(begun_ns + margin_ns, 1), (ended_ns - margin_ns, -1)]
    running = most = 0
    for _, change in sorted(changes):
        running += change
        most = max(most, running)
    if shortest_ns < _TOO_SHORT_NS and most < len(completions):
        return None
    return most or None


def advice_on(check: EndpointCheck, endpoint: Endpoint) -> Iterator[Notice]:
    """What to change, at the server or in the endpoint's settings; a line each."""
    if not _lists(check.models, endpoint.model_id):
        yield Notice(
            code="endpoint.model-not-listed",
            message=f"it lists no model '{endpoint.model_id}', and answered all the same: "
            "whatever it serves, it may be another",
        )
    yield from _on_schemas(check, endpoint)
    if check.side_by_side == 1:
        remedy = "max_parallel = 1 makes them wait here, where it shows"
        if setting := provider_of(endpoint).side_by_side:
            remedy = f"{setting} is how many it answers; or {remedy}"
        yield Notice(
            code="endpoint.one-at-a-time",
            message=f"it answers one call at a time, and others wait there without a word; "
            f"{remedy}",
        )
    for field, what in (
        ("timings", "where a call's time went"),
        ("cached_tokens", "how much of a prompt came out of its cache"),
        ("logprobs", "log probabilities"),
        ("metrics", "its counters"),
    ):
        switch = _switch(endpoint, field)
        if getattr(check, field) is False and switch:
            yield Notice(code="endpoint.switch-off", message=f"{switch} makes it tell {what}")


def _on_schemas(check: EndpointCheck, endpoint: Endpoint) -> Iterator[Notice]:
    if check.structured is None:
        return
    if endpoint.structured not in {None, check.structured}:
        yield Notice(
            code="endpoint.structured-differs",
            message=f"structured = '{endpoint.structured}' is written down for it, "
            f"and it was seen to be '{check.structured}'",
        )
    if check.structured == "ignored":
        enforces = provider_of(endpoint).enforces
        remedy = f"; {enforces} changes that" if enforces else ""
        yield Notice(
            code="endpoint.ignores-schemas",
            message=f"it takes no notice of schemas: what comes is for the model to decide{remedy}",
        )


def way_to_unload(endpoint: Endpoint) -> str | None:
    """How an endpoint's server is told to give its model's memory back, and to load it again."""
    control = provider_of(endpoint).load_control
    if control is None:
        return None
    unload, load = (path.format(model=endpoint.model_id) for path in (control.unload, control.load))
    return f"POST {unload} unloads its model, POST {load} loads it; that needs {control.needs}"


def _switch(endpoint: Endpoint, field: str) -> Switch:
    provider = provider_of(endpoint)
    if field == "metrics":
        return provider.counters.switch if provider.counters else NEVER
    switch: Switch = getattr(provider, field)
    return switch


def _lists(models: tuple[str, ...] | None, model_id: str) -> bool:
    """Whether a model is among those that are listed, if any are."""
    # A tag or a version may be left out on one side.
    name = model_id.partition("/versions/")[0]
    return not models or bool({name, f"{name}:latest", name.removesuffix(":latest")} & {*models})
