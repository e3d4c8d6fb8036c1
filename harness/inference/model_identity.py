"""The identity of an endpoint's model, and how two models are related.

Two tags, two addresses or two files can lead to one model, which would then judge its own text.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Literal

import httpx2

from harness.errors import ModelFileInvalid
from harness.hardware import is_below_evaluator_floor
from harness.inference.endpoint import Endpoint
from harness.inference.model_names import (
    ModelName,
    declared_family,
    family_of,
    family_of_architecture,
    first_family,
    parse_model_name,
    same_weights,
)

_BASE_MODEL = re.compile(r"general\.base_model\.\d+\.name")
_SAMPLE_BYTES = 1 << 20

Relation = Literal["same", "family", "unknown", "different"]
"""`same`: the same weights, however packed. `family`: other sizes, generations or distillates.
`unknown`: the family of one of them is not known."""

IdentitySource = Literal["file header", "file name", "server", "name", "scripted"]
"""The source of an identity: the file's header or name, the server's answer, or the name that the
endpoint asks for. A scripted backend has no model, only a tag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelIdentity:
    """The known facts about an endpoint's model."""

    called: str
    """Its name for a reader: from its endpoint or server, or the name of its file."""
    source: IdentitySource
    names: tuple[ModelName, ...] = ()
    """Names that identify its weights, best first; empty if none does."""
    family: str | None = None
    """The models that its weights descend from; None if unknown."""
    quantization: str | None = None
    """How its weights are packed; None if unknown."""
    fingerprint: str | None = None
    """The digest of its file, or of its weights if the server tells it."""
    servers: frozenset[str] = frozenset()
    """The addresses it is served at, each in one spelling."""
    served: str | None = None
    """The name of the model by its server; if that is a path, its last part that is a name."""

    @property
    def weights(self) -> str | None:
        """The name of its weights, without quantization: `qwen-2.5-7b-instruct`."""
        return self.names[0].weights if self.names else None

    @property
    def tells_weights(self) -> bool:
        """Whether a name shows a family or a size, which a made-up name does not."""
        return any(name.has_size or family_of(name) for name in self.names)

    def shares_server(self, model: ModelIdentity) -> bool:
        """Whether one server may answer for both."""
        return not self.servers.isdisjoint(model.servers)

    @property
    def low_bit(self) -> bool:
        """Whether its weights are known to have fewer bits than those of `Q8_0`."""
        return is_below_evaluator_floor(self.quantization)


def model_identity(endpoint: Endpoint, metadata: ModelMetadata | None = None) -> ModelIdentity:
    """Which model an endpoint calls, as far as that is known without a call.

    `metadata` is from its file or its server. Raises `ModelFileInvalid`.
    """
    if endpoint.backend == "scripted":
        return ModelIdentity(
            called=endpoint.tag, source="scripted", fingerprint=f"scripted {endpoint.tag}"
        )
    report = metadata or ModelMetadata()
    # A header's name without a size may stand for a whole generation: "LLaMA v2".
    stated = [name for name in map(parse_model_name, report.names) if name.has_size]
    if endpoint.path is not None:
        own_name = parse_model_name(endpoint.path.name)
        # For a file called `model.gguf`, a folder above it may have the name.
        if not own_name.words:
            own_name = parse_model_name(str(endpoint.path))
        candidates = [*stated, own_name]
        source: IdentitySource = "file header" if metadata else "file name"
    else:
        own_name = parse_model_name(endpoint.model_id)
        candidates = [parse_model_name(report.path or ""), *stated]
        # An alias without a size, such as `gpt-4`, counts only where the server says nothing.
        if own_name.has_size or not any(name.words for name in candidates):
            candidates.append(own_name)
        source = "server" if metadata else "name"
    names = tuple(name for name in candidates if name.words)
    # An alias says little of the weights, but may say the family.
    with_alias = (*names, own_name)
    return ModelIdentity(
        called=endpoint.model_id if endpoint.path is None else endpoint.path.name,
        source=source,
        names=names,
        # The name that a person has written down overrules every other source.
        family=declared_family(endpoint.family)
        or first_family(map(parse_model_name, report.base_models))
        or first_family((*map(parse_model_name, report.names), *with_alias))
        or family_of_architecture(report.architecture),
        quantization=report.quantization
        or next((name.quantization for name in with_alias if name.quantization), None),
        fingerprint=_fingerprint(endpoint, report),
        servers=frozenset(server_address(url) for url in (endpoint.url, *endpoint.urls) if url),
        served=_served(report) if endpoint.path is None else None,
    )


def served_identity(endpoint: Endpoint, model_id: str) -> ModelIdentity:
    """The model that answered a call, by the name in the reply."""
    named = {"backend": "openai", "path": None, "model_id": model_id}
    return model_identity(endpoint.model_copy(update=named), ModelMetadata())


def relation_of(first: ModelIdentity, second: ModelIdentity) -> Relation:
    """How two models are related, in either order."""
    if _are_same(first, second):
        return "same"
    if "scripted" in {first.source, second.source}:
        return "different"
    # An uninformative name proves neither that two models are the same nor that they differ.
    if first.family is None or second.family is None:
        return "unknown"
    return "family" if first.family == second.family else "different"


def serve_alike(first: ModelMetadata, second: ModelMetadata) -> bool:
    """Whether two servers have the same model, by their own reports."""
    if first.fingerprint is not None and first.fingerprint == second.fingerprint:
        return True
    if len({first.quantization, second.quantization} - {None}) > 1:
        return False
    mine, theirs = (
        [name for name in map(parse_model_name, (report.path or "", *report.names)) if name.words]
        for report in (first, second)
    )
    alike = any(same_weights(*pair) for pair in product(mine, theirs))
    return alike or _served(first) == _served(second)


def _are_same(first: ModelIdentity, second: ModelIdentity) -> bool:
    if first.fingerprint is not None and first.fingerprint == second.fingerprint:
        return True
    if first.shares_server(second) and first.called == second.called:
        return True  # even if the name says nothing of the weights
    return any(same_weights(*pair) for pair in product(first.names, second.names))


def _fingerprint(endpoint: Endpoint, report: ModelMetadata) -> str | None:
    """A text that only these weights have: their digest, or the server's address and their path."""
    if endpoint.path is not None:
        return file_fingerprint(endpoint.path)
    if report.fingerprint is not None or report.path is None or endpoint.url is None:
        return report.fingerprint
    return f"{server_address(endpoint.url)} {report.path}"


def _served(report: ModelMetadata) -> str | None:
    """The model's name in records, by its server's report: its path comes first."""
    if report.path is None:
        return report.names[0] if report.names else report.fingerprint
    # Records must not show folders of the server's machine.
    last = re.split(r"[/\\]", report.path.rstrip("/\\"))[-1]
    return last if parse_model_name(last).words else parse_model_name(report.path).weights or last


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMetadata:
    """The identity of a model by its file or server."""

    names: tuple[str, ...] = ()
    """Its name, and its basename, size, version and fine-tune joined to one."""
    base_models: tuple[str, ...] = ()
    """The models it was made from."""
    architecture: str | None = None
    """How llama.cpp computes it; many families share `llama`."""
    quantization: str | None = None
    """How most of its weights are packed, such as `Q4_K_M`."""
    path: str | None = None
    """A file or a folder on the server's machine, or the name of a repository."""
    fingerprint: str | None = None
    """The digest of its weights, if the server tells it; models that share it are the same."""


def metadata_from(keys: Mapping[str, object], *, quantization: str | None) -> ModelMetadata:
    """The metadata in a GGUF header; `quantization` is the meaning of its `general.file_type`."""

    def text(key: str) -> str:
        value = keys.get(f"general.{key}")
        return value.strip() if isinstance(value, str) else ""

    parts = [text(key) for key in ("basename", "size_label", "version", "finetune")]
    composed = "-".join(filter(None, parts)) if parts[0] else ""
    return ModelMetadata(
        names=tuple(filter(None, (text("name"), composed))),
        base_models=tuple(
            value
            for key, value in keys.items()
            if _BASE_MODEL.fullmatch(key) and isinstance(value, str)
        ),
        architecture=text("architecture") or None,
        quantization=quantization,
    )


def file_fingerprint(path: Path) -> str:
    """A file's size and the digest of its first and last MiB: copies and links share it."""
    try:
        with path.open("rb") as file:
            digest = hashlib.sha256(file.read(_SAMPLE_BYTES))
            size = file.seek(0, 2)
            file.seek(max(0, size - _SAMPLE_BYTES))
            digest.update(file.read())
    except OSError as error:
        raise ModelFileInvalid(f"cannot be read ({error.strerror})", path=path) from error
    return f"{size}-{digest.hexdigest()[:16]}"


# Many servers print one of the last two when they listen on every address.
_THIS_MACHINE = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0", "::"})  # noqa: S104 - not bound to
_OWN_PORT = {"http": 80, "https": 443}


def is_here(url: str) -> bool:
    """Whether an address always leads to this machine itself."""
    return httpx2.URL(url).host in _THIS_MACHINE


@lru_cache(maxsize=1024)
def server_address(url: str) -> str:
    """The same text for every spelling of one server's address."""
    address = httpx2.URL(url)  # scheme and host in lower case
    host = "localhost" if is_here(url) else address.host
    port = "" if address.port in (None, _OWN_PORT.get(address.scheme)) else f":{address.port}"
    path = address.path.rstrip("/").removesuffix("/v1").rstrip("/")
    query = f"?{address.query.decode()}" if address.query else ""
    return f"{address.scheme}://{host}{port}{path}{query}"
