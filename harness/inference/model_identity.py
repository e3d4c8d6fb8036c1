"""Which model an endpoint really is, and what two of them are to each other.

Two tags, two addresses or two files can lead to one model, and then one of them does not judge the
other. What is known is compared, nothing is guessed: names that say nothing make no two models the
same, nor different.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal

import httpx

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

Relation = Literal["same", "family", "unknown", "different"]
"""The same weights, however packed; relatives, such as sizes, generations and distillates; not
known, since one of them tells no family; strangers."""

IdentitySource = Literal["file header", "file name", "server", "name", "scripted"]
"""Where it is known from: the file's own word or its name, the server's word, or the name that the
endpoint asks for. A scripted backend is no model: its tag is all there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelIdentity:
    """What is known of the model behind an endpoint."""

    called: str
    """Its name for a reader, as its endpoint or its server gives it; of a file, its last part."""
    source: IdentitySource
    """Where the rest is known from."""
    names: tuple[ModelName, ...] = ()
    """The names that tell which weights it is, best first; none when all it has say nothing."""
    family: str | None = None
    """What its weights descend from; None when that is not known."""
    quantization: str | None = None
    """How its weights are packed; None when that is not known."""
    fingerprint: str | None = None
    """Of its file, or of its weights by its server's word."""
    server: str | None = None
    """The address it is served at, the same however it was written."""
    served: str | None = None
    """What its server says it serves; of a path, the last part that says something."""

    @property
    def weights(self) -> str | None:
        """The name of its weights, without quantization: `qwen-2.5-7b-instruct`."""
        return self.names[0].weights if self.names else None

    @property
    def tells_weights(self) -> bool:
        """Whether its names say more than a made up one does: a family, or a size."""
        return any(name.has_size or family_of(name) for name in self.names)

    @property
    def low_bit(self) -> bool:
        """Whether its weights are known to have fewer bits than those of `Q8_0`.

        MXFP4 is not counted: the models that come in it were trained in it.
        """
        return is_below_evaluator_floor(self.quantization)


def model_identity(endpoint: Endpoint, metadata: ModelMetadata | None = None) -> ModelIdentity:
    """What an endpoint's model is, as far as can be told without calling it.

    Args:
        endpoint: As written down; its `family` goes before every other word on it.
        metadata: Of its file, or what its server says of it.

    Raises:
        ModelFileInvalid: Its file cannot be read.
    """
    if endpoint.backend == "scripted":
        return ModelIdentity(
            called=endpoint.tag, source="scripted", fingerprint=f"scripted {endpoint.tag}"
        )
    said = metadata or ModelMetadata()
    # A name without a size may stand in a header for a whole generation: "LLaMA v2".
    stated = [name for name in map(parse_model_name, said.names) if name.has_size]
    if endpoint.path is not None:
        own = parse_model_name(endpoint.path.name)
        if not own.words:
            own = parse_model_name(str(endpoint.path))
        names = (*stated, own)
        source: IdentitySource = "file header" if metadata else "file name"
    else:
        own = parse_model_name(endpoint.model_id)
        told = [name for name in (parse_model_name(said.path or ""), *stated) if name.words]
        # An alias, such as `gpt-4` for whatever it is, does not go beside the server's own word.
        names = (*told, own) if own.has_size or not told else tuple(told)
        source = "server" if metadata else "name"
    names = tuple(name for name in names if name.words)
    return ModelIdentity(
        called=endpoint.model_id if endpoint.path is None else endpoint.path.name,
        source=source,
        names=names,
        family=declared_family(endpoint.family)
        or first_family(map(parse_model_name, said.base_models))
        or first_family((*map(parse_model_name, said.names), *names, own))
        or family_of_architecture(said.architecture),
        quantization=said.quantization
        or next((name.quantization for name in (*names, own) if name.quantization), None),
        fingerprint=file_fingerprint(endpoint.path) if endpoint.path else _told(endpoint, said),
        server=_address(endpoint),
        served=_served(said) if endpoint.path is None else None,
    )


def served_identity(endpoint: Endpoint, model_id: str) -> ModelIdentity:
    """What answered an endpoint's call, by the name that the server gave it."""
    name = parse_model_name(model_id)
    return ModelIdentity(
        called=model_id,
        source="server",
        names=(name,) if name.words else (),
        family=declared_family(endpoint.family) or first_family([name]),
        quantization=name.quantization,
        server=_address(endpoint),
    )


def relation_of(one: ModelIdentity, other: ModelIdentity) -> Relation:
    """What two models are to each other; the same whichever is named first."""
    if _are_same(one, other):
        return "same"
    if "scripted" in {one.source, other.source}:
        return "different"
    if one.family is None or other.family is None:
        return "unknown"
    return "family" if one.family == other.family else "different"


def _are_same(one: ModelIdentity, other: ModelIdentity) -> bool:
    if one.fingerprint is not None and one.fingerprint == other.fingerprint:
        return True
    if one.server is not None and one.server == other.server and one.called == other.called:
        return True  # whatever it is called
    return any(same_weights(*pair) for pair in product(one.names, other.names))


def _address(endpoint: Endpoint) -> str | None:
    return None if endpoint.url is None else server_address(endpoint.url)


def _told(endpoint: Endpoint, said: ModelMetadata) -> str | None:
    """What tells the weights apart: by content, or, at one address, by where they lie."""
    if said.fingerprint is not None or said.path is None:
        return said.fingerprint
    return f"{_address(endpoint)} {said.path}"


def _served(said: ModelMetadata) -> str | None:
    if said.path is None:
        return next(iter((*said.names, *filter(None, [said.fingerprint]))), None)
    # A record must not show where it lies on its server's machine.
    last = re.split(r"[/\\]", said.path.rstrip("/\\"))[-1]
    return last if parse_model_name(last).words else parse_model_name(said.path).weights or last


_BASE_MODEL = re.compile(r"general\.base_model\.\d+\.name")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMetadata:
    """A model, by its own word."""

    names: tuple[str, ...] = ()
    """What it calls itself: by its name, and by basename, size, version and fine-tune together."""
    base_models: tuple[str, ...] = ()
    """What it was made from."""
    architecture: str | None = None
    """How llama.cpp computes it; many families share `llama`."""
    quantization: str | None = None
    """How most of its weights are packed, such as `Q4_K_M`."""
    path: str | None = None
    """What its server loaded: a file or a folder there, or a repository's name."""
    fingerprint: str | None = None
    """Of its weights, where its server tells one: whatever else has it is the same model."""


def metadata_from(keys: Mapping[str, object], *, quantization: str | None) -> ModelMetadata:
    """The metadata that stand under GGUF's keys; what is no text there is left out.

    Args:
        keys: By name, as in a file's header or in Ollama's `model_info`.
        quantization: What `general.file_type` stands for, or what the server calls it.
    """

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


_SAMPLE_BYTES = 1 << 20


def file_fingerprint(path: Path) -> str:
    """A file's size and the digest of its first and last MiB: copies and links share it.

    Raises:
        ModelFileInvalid: The file cannot be read.
    """
    try:
        with path.open("rb") as file:
            digest = hashlib.sha256(file.read(_SAMPLE_BYTES))
            size = file.seek(0, 2)
            file.seek(max(0, size - _SAMPLE_BYTES))
            digest.update(file.read())
    except OSError as error:
        raise ModelFileInvalid(f"cannot be read ({error.strerror})", path=path) from error
    return f"{size}-{digest.hexdigest()[:16]}"


_THIS_MACHINE = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})  # noqa: S104 - not bound to
"""The last is what many servers print when they listen on every address."""
_OWN_PORT = {"http": 80, "https": 443}


def server_address(url: str) -> str:
    """The same text for every spelling of one server's address.

    Scheme and host are written small, this machine has one name, and what goes without saying is
    left out: the scheme's own port, and the path below which a server speaks OpenAI's protocol.
    """
    address = httpx.URL(url)  # it writes scheme and host small
    host = "localhost" if address.host in _THIS_MACHINE else address.host
    port = "" if address.port in (None, _OWN_PORT.get(address.scheme)) else f":{address.port}"
    path = address.path.rstrip("/").removesuffix("/v1").rstrip("/")
    query = f"?{address.query.decode()}" if address.query else ""
    return f"{address.scheme}://{host}{port}{path}{query}"
