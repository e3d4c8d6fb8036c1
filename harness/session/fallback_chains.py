"""Which models a role can reach: its endpoint's, and all that answer in its place."""

from __future__ import annotations

from collections.abc import Mapping

from harness.errors import ConfigurationInvalid, did_you_mean
from harness.inference import Endpoint

Chain = tuple[str, ...]
"""Tags from a role's endpoint to the one that answers, each the fallback of the one before."""


def check_fallbacks(endpoints: Mapping[str, Endpoint]) -> None:
    """Holds every fallback against the endpoints there are.

    Raises:
        ConfigurationInvalid: One does not exist, or they lead back to where they began.
    """
    for tag, endpoint in endpoints.items():
        for fallback in endpoint.fallback:
            if fallback not in endpoints:
                raise ConfigurationInvalid(
                    f"endpoint '{tag}' falls back on '{fallback}', and no endpoint is called that; "
                    + did_you_mean(fallback, endpoints)
                )
    for tag in endpoints:
        _refuse_cycle((tag,), endpoints)


def chains_from(tag: str, endpoints: Mapping[str, Endpoint]) -> tuple[Chain, ...]:
    """One chain to every endpoint that can answer for this one, itself first.

    Fallbacks of fallbacks count: who wires them up decides how far they are followed.
    """
    chains: dict[str, Chain] = {tag: (tag,)}
    waiting = [tag]
    while waiting:
        last = waiting.pop(0)
        for fallback in endpoints[last].fallback:
            if fallback not in chains:
                chains[fallback] = (*chains[last], fallback)
                waiting.append(fallback)
    return tuple(chains.values())


def _refuse_cycle(chain: Chain, endpoints: Mapping[str, Endpoint]) -> None:
    for fallback in endpoints[chain[-1]].fallback:
        if fallback in chain:
            cycle = (*chain[chain.index(fallback) :], fallback)
            raise ConfigurationInvalid(
                f"the fallbacks {' -> '.join(cycle)} lead back to where they begin; "
                f"take '{fallback}' out of the fallback of endpoint '{chain[-1]}'"
            )
        _refuse_cycle((*chain, fallback), endpoints)
