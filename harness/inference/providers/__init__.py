"""Servers and engines: a file for each, and what they share."""

from harness.inference.providers.counters import MetricsSource, Reading
from harness.inference.providers.litellm import APIS_WITH_ONE_KEY, MANAGED_APIS
from harness.inference.providers.pages import ServerFacts
from harness.inference.providers.provider import Access, Aim, Host, HostReport, Provider
from harness.inference.providers.registry import (
    PROVIDERS,
    connect,
    host_of,
    loading_of,
    metrics_source,
    provider_of,
    served_metadata,
    server_facts,
    slots_source,
    tells_model,
    tool_knowledge,
)

__all__ = [
    "APIS_WITH_ONE_KEY",
    "MANAGED_APIS",
    "PROVIDERS",
    "Access",
    "Aim",
    "Host",
    "HostReport",
    "MetricsSource",
    "Provider",
    "Reading",
    "ServerFacts",
    "connect",
    "host_of",
    "loading_of",
    "metrics_source",
    "provider_of",
    "served_metadata",
    "server_facts",
    "slots_source",
    "tells_model",
    "tool_knowledge",
]
