"""A provider that another distribution adds is a backend by its name."""

from __future__ import annotations

from pathlib import Path

import pytest
from installed import Distribution
from pydantic import ValidationError

from harness.analysis.observed import Server
from harness.errors import ConfigurationInvalid
from harness.inference import Endpoint
from harness.inference.providers import Aim, provider_named
from harness.inference.providers.openai_wire import OpenAIWire
from harness.inference.providers.registry import connect, host_of, loading_of, provider_of
from harness.metrics import model_attributes
from harness.session.endpoint_check import controlled
from harness.session.tenancy import is_managed
from harness.trace.events import EndpointEvent

URL = "http://127.0.0.1:9/v1"
MODULE = """
from harness.hardware import Loading
from harness.inference.providers.provider import Provider, remedies

NUMBER = 3
PROVIDER = Provider(
    title="our gateway",
    telemetry_name="acme",
    remedies=remedies("start it with ", longer_context="--context 8192"),
    side_by_side=True,
    host=lambda endpoint, access, backend: (endpoint.tag, backend),
)
ENGINE = Provider(
    title="our engine",
    connect=lambda endpoint, access: endpoint.path.name,
    host=PROVIDER.host,
    loading=lambda endpoint: Loading(context_tokens=endpoint.context_tokens, slots=endpoint.slots),
)
"""


@pytest.fixture
def gateway(distribution: Distribution, tmp_path: Path) -> None:
    (tmp_path / "added.py").write_text(MODULE)
    names = {"gateway": "PROVIDER", "engine": "ENGINE", "number": "NUMBER"}
    points = "".join(f"{name} = added:{value}\n" for name, value in names.items())
    distribution("gateways", f"[harness.providers]\n{points}")


@pytest.mark.usefixtures("gateway")
def test_an_endpoint_of_an_installed_provider_is_reached_by_it() -> None:
    endpoint = Endpoint(tag="writer", backend="gateway", url=URL)
    assert provider_of(endpoint).title == "our gateway"
    assert isinstance(connect(endpoint), OpenAIWire)


@pytest.mark.usefixtures("gateway")
def test_an_installed_provider_loads_models_at_its_server_and_from_files() -> None:
    managed = Endpoint(tag="writer", backend="gateway", url=URL, manage=True, keep_alive="5m")
    loaded = Endpoint(tag="judge", backend="engine", path=Path("judge.gguf"), slots=2, threads=4)
    assert (is_managed(managed), is_managed(loaded)) == (True, True)
    assert controlled(["writer"], {"writer": managed}) == [managed]
    assert host_of(managed, connect(managed))[0] == "writer"
    assert host_of(loaded, connect(loaded)) == ("judge", "judge.gguf")
    assert loading_of(loaded).slots == 2
    with pytest.raises(ConfigurationInvalid, match="loads no file; leave path out of 'writer'"):
        loading_of(Endpoint(tag="writer", backend="gateway", path=Path("writer.gguf")))


@pytest.mark.usefixtures("gateway")
def test_a_journal_that_names_an_installed_provider_is_read_by_its_particulars() -> None:
    assert Server(model="writer", backend="gateway", slots=3).places == 3
    assert Server(model="writer", backend="gateway").remedies(Aim.LONGER_CONTEXT) == (
        "start it with --context 8192",
    )
    assert Server(model="judge", backend="engine").is_in_process
    event = EndpointEvent(model="writer", backend="gateway")
    assert model_attributes("writer", event)["gen_ai.provider.name"] == "acme"
    assert provider_named("uninstalled").title == "uninstalled"


@pytest.mark.usefixtures("gateway")
def test_what_is_installed_as_a_provider_and_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationInvalid, match="is int, which does not fit") as caught:
        connect(Endpoint(tag="writer", backend="number", url=URL))
    assert caught.value.code == "plugin.broken"


@pytest.mark.usefixtures("gateway")
def test_a_backend_that_nobody_has_installed_is_a_mistake_that_names_the_nearest() -> None:
    with pytest.raises(ValidationError, match="did you mean 'gateway'"):
        Endpoint(tag="writer", backend="gatewy", url=URL)
