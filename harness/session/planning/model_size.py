"""How large an endpoint's model is, found out without loading it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.errors import HarnessError
from harness.hardware import Footprint
from harness.inference import Endpoint
from harness.residency import Tenant
from harness.session.opened_endpoint import open_endpoint
from harness.session.tenancy import file_footprint, is_managed, tenant_of
from harness.trace import monotonic


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """What could be found out; nothing of a model that is not the budget's."""

    tenant: Tenant | None = None
    """What the budget would know of it."""
    footprint: Footprint | None = None
    """The parts of a model from a file."""
    error: HarnessError | None = None
    """Why no more is known."""


async def size_up(endpoint: Endpoint, environment: Mapping[str, str]) -> ModelSize:
    """Finds out how large an endpoint's model is.

    A server is asked only if its model is the budget's, and nobody has said how large it is.

    Args:
        endpoint: As written down.
        environment: Holds the keys that it names.
    """
    if not is_managed(endpoint):
        return ModelSize()
    footprint = None
    try:
        footprint = file_footprint(endpoint)
        return ModelSize(tenant=await _tenant(endpoint, environment), footprint=footprint)
    except HarnessError as error:
        return ModelSize(footprint=footprint, error=error)


async def _tenant(endpoint: Endpoint, environment: Mapping[str, str]) -> Tenant:
    opened = open_endpoint(
        endpoint,
        environment=environment,
        cached=False,
        clock=monotonic,
    )
    assert opened.host is not None
    try:
        return await tenant_of(endpoint, opened.host)
    finally:
        await opened.host.aclose()
        await opened.backend.aclose()
