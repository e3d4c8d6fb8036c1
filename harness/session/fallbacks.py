"""Which endpoints can answer for which."""

from __future__ import annotations

from collections.abc import Mapping

from harness.errors import ConfigurationInvalid, did_you_mean
from harness.inference import Endpoint

Chain = tuple[str, ...]
"""Tags from a role's endpoint to the one that answers: one tag, or two."""


def check_fallbacks(endpoints: Mapping[str, Endpoint]) -> None:
    """Holds every fallback against the endpoints there are.

    Raises:
        ConfigurationInvalid: One does not exist.
    """
    for tag, endpoint in endpoints.items():
        for fallback in endpoint.fallback:
            if fallback not in endpoints:
                raise ConfigurationInvalid(
                    f"endpoint '{tag}' falls back on '{fallback}', and no endpoint is called that; "
                    + did_you_mean(fallback, endpoints),
                    code="endpoint.fallback-unknown",
                )


def chains_from(tag: str, endpoints: Mapping[str, Endpoint]) -> tuple[Chain, ...]:
    """One chain to every endpoint that can answer for this one, itself first.

    A fallback's own fallbacks are not among them: two endpoints may stand in for each other.
    """
    return ((tag,), *((tag, fallback) for fallback in endpoints[tag].fallback))
