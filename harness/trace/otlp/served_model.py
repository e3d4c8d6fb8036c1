"""The model behind a tag, in the words of OpenTelemetry's GenAI conventions and OpenInference."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple
from urllib.parse import urlsplit

from harness.trace.records import Attributes

# By backend, or litellm's prefix: what GenAI and OpenInference call the provider, where that is
# another name.
_PROVIDERS = {
    "azure": ("azure.ai.openai", "azure"),
    "azure_ai": ("azure.ai.inference", "azure"),
    "bedrock": ("aws.bedrock", "aws"),
    "embedded": ("llamacpp", "llamacpp"),
    "llama-cpp-python": ("llamacpp", "llamacpp"),
    "triton-openai": ("triton", "triton"),
    "gemini": ("gcp.gemini", "google"),
    "mistral": ("mistral_ai", "mistralai"),
    "vertex_ai": ("gcp.vertex_ai", "google"),
    "watsonx": ("ibm.watsonx.ai", "watsonx"),
    "xai": ("x_ai", "xai"),
}

IN_PROCESS = frozenset({"embedded", "llama-cpp-python", "scripted"})
"""Backends that are called without leaving the process."""


class ServedModel(NamedTuple):
    """Who answers to a model's tag."""

    tag: str
    """The name that calls use."""
    endpoint: Attributes
    """What the run's `endpoint` instant says of it; empty when there was none."""

    @property
    def backend(self) -> str | None:
        """How it is spoken to."""
        # What is at its default is not in the instant.
        return str(self.endpoint.get("backend", "openai")) if self.endpoint else None

    @property
    def model(self) -> str:
        """What the provider calls it."""
        model = str(self.endpoint.get("model_id") or self.tag)
        return model.partition("/")[2] or model if self.backend == "litellm" else model

    def attributes(self) -> dict[str, object]:
        """What both conventions want to know of it."""
        found: dict[str, object] = {
            "gen_ai.request.model": self.model,
            "llm.model_name": self.model,
        }
        if self.backend is not None:
            prefix, slash, _ = str(self.endpoint.get("model_id")).partition("/")
            provider = prefix if self.backend == "litellm" and slash else self.backend
            genai, openinference = _PROVIDERS.get(provider, (provider, provider))
            # `system` is what `provider.name` was called before; some viewers still read only that.
            found |= {"gen_ai.provider.name": genai, "gen_ai.system": genai}
            found["llm.provider"] = openinference
        with suppress(ValueError):  # an address that held a secret has a hole in it
            address = urlsplit(str(self.endpoint.get("url", "")))
            found |= {"server.address": address.hostname, "server.port": address.port}
        return found
