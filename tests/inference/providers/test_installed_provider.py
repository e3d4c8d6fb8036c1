"""A provider that another distribution adds is a backend by its name."""

from __future__ import annotations

from pathlib import Path

import pytest
from installed import Distribution
from pydantic import ValidationError

from harness.errors import ConfigurationInvalid
from harness.inference import Endpoint
from harness.inference.providers.openai_wire import OpenAIWire
from harness.inference.providers.registry import connect, provider_of

URL = "http://127.0.0.1:9/v1"


@pytest.fixture
def gateway(distribution: Distribution, tmp_path: Path) -> None:
    provider = "from harness.inference.providers.provider import Provider\n"
    provider += "PROVIDER = Provider(title='our gateway', strict_schemas=True)\n"
    (tmp_path / "added.py").write_text(provider + "NUMBER = 3\n")
    points = "[harness.providers]\ngateway = added:PROVIDER\nnumber = added:NUMBER\n"
    distribution("gateways", points)


@pytest.mark.usefixtures("gateway")
def test_an_endpoint_of_an_installed_provider_is_reached_by_it() -> None:
    endpoint = Endpoint(tag="writer", backend="gateway", url=URL)
    assert provider_of(endpoint).title == "our gateway"
    assert isinstance(connect(endpoint), OpenAIWire)


@pytest.mark.usefixtures("gateway")
def test_what_is_installed_as_a_provider_and_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationInvalid, match="is int, which does not fit") as caught:
        connect(Endpoint(tag="writer", backend="number", url=URL))
    assert caught.value.code == "plugin.broken"


@pytest.mark.usefixtures("gateway")
def test_a_backend_that_nobody_has_installed_is_a_mistake_that_names_the_nearest() -> None:
    with pytest.raises(ValidationError, match="did you mean 'gateway'"):
        Endpoint(tag="writer", backend="gatewy", url=URL)
