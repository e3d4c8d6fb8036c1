"""What Ollama knows of a model that was pulled, loaded or not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from harness.errors import ModelNotFound, ServerError
from harness.residency.hosts.control import Control, Page

_NUM_CTX: Final = re.compile(r"^num_ctx\s+(\d+)\s*$", re.MULTILINE)
_DEFAULT_PLACES: Final = ("registry.ollama.ai/", "library/")
_Reply = TypeVar("_Reply", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class PulledModel:
    """A model as `/api/show` and `/api/tags` describe it."""

    model_info: Mapping[str, object]
    """The header of its GGUF file: values by key, such as `llama.block_count`."""
    file_bytes: int | None
    """Its size on disk, with what belongs to it; None for one that is not listed."""
    context_tokens: int | None
    """The context that its Modelfile sets, which holds unless a call says another."""


async def ask_pulled(control: Control) -> PulledModel:
    """Asks what the endpoint's model is.

    Raises:
        ModelNotFound: It was never pulled.
        InferenceError: The server cannot be asked.
    """
    fields: dict[str, object] = {"model": control.endpoint.model_id}
    shown = _read(_Shown, await control.post("/api/show", fields), control)
    if _is_cut(shown.model_info):
        shown = _read(_Shown, await control.post("/api/show", fields | {"verbose": True}), control)
    tags = _read(_Tags, await control.get("/api/tags"), control)
    sizes = [tag.size for tag in tags.models if same_model(tag.name, control.endpoint.model_id)]
    num_ctx = _NUM_CTX.search(shown.parameters)
    return PulledModel(
        model_info=shown.model_info,
        file_bytes=sizes[0] if sizes else None,
        context_tokens=int(num_ctx[1]) if num_ctx else None,
    )


def same_model(one: str, other: str) -> bool:
    """Whether Ollama takes two names for the same: `M` is `registry.ollama.ai/library/m:latest`."""
    return _whole_name(one) == _whole_name(other)


def _whole_name(name: str) -> str:
    whole = name.lower()
    for place in _DEFAULT_PLACES:
        whole = whole.removeprefix(place)
    return whole if ":" in whole.rpartition("/")[2] else f"{whole}:latest"


def never_pulled(page: Page, control: Control) -> ModelNotFound:
    """What it means that Ollama does not know the model."""
    model_id = control.endpoint.model_id
    return ModelNotFound(
        f"Ollama does not have '{model_id}' ({page.said}); get it: ollama pull {model_id}",
        endpoint=control.endpoint.tag,
    )


def _is_cut(model_info: Mapping[str, object]) -> bool:
    """Whether long arrays were left out that memory depends on.

    Those are what differs from layer to layer, and the vocabulary where its size stands nowhere
    else. The whole answer is some megabytes.
    """
    prefix = f"{model_info.get('general.architecture')}."
    if f"{prefix}vocab_size" not in model_info:
        return True
    return any(value in (None, []) for key, value in model_info.items() if key.startswith(prefix))


class _Shown(BaseModel):
    """The reply of `/api/show`."""

    model_config = ConfigDict(protected_namespaces=())

    model_info: dict[str, object] = {}
    parameters: str = ""


class _Tag(BaseModel):
    """A model that was pulled."""

    name: str
    size: int


class _Tags(BaseModel):
    """The reply of `/api/tags`."""

    models: list[_Tag]


def _read(kind: type[_Reply], page: Page, control: Control) -> _Reply:
    if page.status != 200:
        error = control.refusal(page)
        raise never_pulled(page, control) if isinstance(error, ModelNotFound) else error
    try:
        return kind.model_validate_json(page.body)
    except ValidationError as error:
        raise ServerError(
            f"the server at {control.root} was asked about '{control.endpoint.model_id}', and does "
            f"not answer as Ollama does: {page.body[:200]!r}",
            endpoint=control.endpoint.tag,
        ) from error
