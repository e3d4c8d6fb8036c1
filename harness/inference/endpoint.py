"""Endpoints: which model is reached where, as a person writes it down.

One entry of `[endpoints.<tag>]` in `harness.toml`, or of the JSON object in `HARNESS_ENDPOINTS`:
`{"<tag>": {"url": "http://…/v1", "model_id": "<served name>", "backend": "vllm"}}`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

import httpx
from pydantic import BaseModel, ConfigDict, Field, model_validator

BackendName = Literal["openai", "vllm", "llamacpp", "ollama", "embedded", "litellm", "scripted"]
"""`openai`, `vllm`, `llamacpp` (llama-server) and `ollama` (its `/v1`) speak one wire protocol;
`embedded` is llama.cpp inside this process; `litellm` is any provider that litellm knows;
`scripted` is an object handed over in Python."""


class Endpoint(BaseModel):
    """A model and the way to it."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=()
    )

    tag: str = Field(min_length=1)
    """The name that pipelines and roles use."""
    backend: BackendName = "openai"
    """How it is spoken to."""
    url: str | None = None
    """Base address, with its `/v1` where the server has one."""
    model_id: str = ""
    """The name the server knows the model by; the tag when left out."""
    path: Path | None = None
    """The GGUF file of an embedded model."""
    context_tokens: int = Field(default=4096, ge=256)
    """Context of one call, prompt and reply together, for an embedded model."""
    slots: int = Field(default=4, ge=1, le=64)
    """Calls that an embedded model answers side by side."""
    threads: int | None = Field(default=None, ge=1)
    """Processor threads of an embedded model; all cores but one when left out. llama.cpp's threads
    wait for each other spinning: give it a core that something else wants, and it is ten times
    slower, not twice."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the key; the key itself is never in a file."""
    timeout_s: float = Field(default=300.0, gt=0)
    """Longest that one call may take."""
    usd_per_hour: float | None = Field(default=None, ge=0)
    """What the machine costs that serves it, for the report; of two endpoints on one machine, only
    one should have it."""
    usd_per_million_input_tokens: float | None = Field(default=None, ge=0)
    """What a provider charges; litellm knows its providers' prices."""
    usd_per_million_output_tokens: float | None = Field(default=None, ge=0)
    """What a provider charges."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, values: object) -> object:
        if not isinstance(values, dict):
            return values
        filled = dict(values)
        filled.setdefault("backend", "openai" if filled.get("path") is None else "embedded")
        filled.setdefault("model_id", filled.get("tag", ""))
        return filled

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.backend == "embedded":
            if self.path is None:
                raise ValueError("an embedded endpoint needs 'path', the GGUF file to load")
            if self.url is not None:
                raise ValueError("'url' is for a server; an embedded endpoint has 'path' alone")
        elif self.path is not None:
            raise ValueError("'path' is for backend 'embedded'; a server needs 'url'")
        elif self.url is not None:
            _check_address(self.url)
        elif self.backend not in {"litellm", "scripted"}:
            raise ValueError(
                f"backend '{self.backend}' needs 'url', such as http://127.0.0.1:8000/v1"
            )
        return self


def _check_address(url: str) -> None:
    try:
        address = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"url '{url}' is not an address: {error}") from error
    if address.scheme not in {"http", "https"} or not address.host:
        raise ValueError(f"url '{url}' must start with http:// or https:// and a host")
    if address.port is not None and address.port > 65535:
        raise ValueError(f"url '{url}': ports end at 65535")
