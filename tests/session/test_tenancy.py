"""What the budget is told of a model."""

import asyncio

from harness.inference import Endpoint, connect
from harness.residency.hosts import host_of
from harness.residency.hosts.patience import CLEARING_UP_S
from harness.session.tenancy import tenant_of
from harness.trace import monotonic


def test_the_budget_waits_longer_than_a_host_that_clears_up_after_a_load():
    endpoint = Endpoint(
        tag="writer",
        backend="vllm",
        url="http://127.0.0.1:9/v1",
        manage=True,
        need_bytes=1,
        load_timeout_s=20,
    )

    async def main():
        backend = connect(endpoint, api_key=None, clock=monotonic)
        host = host_of(endpoint, backend, api_key=None, control_key=None)
        try:
            return await tenant_of(endpoint, host)
        finally:
            await host.aclose()
            await backend.aclose()

    assert asyncio.run(main()).load_timeout_s > 20 + CLEARING_UP_S
