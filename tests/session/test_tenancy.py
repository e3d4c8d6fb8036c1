"""What the budget is told of a model."""

import asyncio

import pytest

from harness.errors import ConfigurationInvalid
from harness.inference import Endpoint, connect
from harness.residency.hosts import host_of
from harness.residency.hosts.control import CLEARING_UP_S
from harness.session.tenancy import check_managed, tenant_of
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


def server(tag, backend, url, **settings):
    return Endpoint.model_validate(
        {"tag": tag, "backend": backend, "url": url, "manage": True, "need": 1, **settings}
    )


@pytest.mark.parametrize("backend", ["vllm", "sglang", "tensorrt-llm", "tabbyapi"])
def test_a_server_of_one_model_is_managed_for_one(backend):
    one, other = (server(tag, backend, "http://127.0.0.1:9/v1") for tag in ("one", "other"))

    with pytest.raises(ConfigurationInvalid, match="'one' and 'other' are both managed at"):
        check_managed([one, other])


def test_servers_of_many_models_and_servers_apart_are_managed_for_all():
    router = "http://127.0.0.1:9/v1"

    check_managed([server(tag, "llamacpp", router) for tag in ("one", "other")])
    check_managed([server(str(port), "vllm", f"http://127.0.0.1:{port}/v1") for port in (8, 9)])
    unmanaged = {"manage": False, "need": None}
    check_managed([server("one", "vllm", router), server("two", "vllm", router, **unmanaged)])
