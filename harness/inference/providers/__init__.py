"""Servers and engines: a file for each, and what they share."""

from harness.inference.providers.litellm import APIS_WITH_ONE_KEY, MANAGED_APIS
from harness.inference.providers.provider import Aim, Provider
from harness.inference.providers.registry import PROVIDERS, provider_named

__all__ = ["APIS_WITH_ONE_KEY", "MANAGED_APIS", "PROVIDERS", "Aim", "Provider", "provider_named"]
