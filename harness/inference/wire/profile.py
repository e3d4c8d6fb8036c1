"""What sets one server apart from another that speaks the same protocol, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import orjson

from harness.inference.completion import StructuredMode
from harness.inference.message import Message
from harness.inference.request import JsonSchema

Fields = Mapping[str, object]
"""Part of a request's JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Whether a server tells or does something, and what makes it."""

    given: bool
    """Whether it does as it is usually started."""
    switch: str = ""
    """The flag or setting that turns it on, if it is not on by itself; empty when there is none."""


ALWAYS = Offer(given=True)
NEVER = Offer(given=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCounting:
    """How a server counts the tokens of a conversation."""

    path: str
    """Below the server's root, not below `/v1`."""
    body: Callable[[str, tuple[Message, ...]], Fields]
    """From the model's name and the conversation, what is sent."""
    count: Callable[[object], int]
    """From the reply's JSON, the number. Raises LookupError or TypeError for what is not one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadControl:
    """How a server is told to load and unload a model."""

    load: str
    """Path of the request, with `{model}` for its name; below the server's root."""
    unload: str
    """Path of the request."""
    needs: str = ""
    """What the server must have been started with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextReport:
    """Where a server says how long a context it serves."""

    path: str
    """Below the server's root."""
    keys: tuple[str | int, ...]
    """The way through the reply's JSON to the number, or to a list of models as `/v1/models` has
    it, followed by the key in the model's entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One server's ways."""

    title: str
    """What people call it."""
    schema: Callable[[JsonSchema], Fields] | None
    """The fields that carry a reply's schema; None when it has no place for one."""
    structured: StructuredMode = "enforced"
    """What its documentation says becomes of it; what does, a probe tells."""
    refuses: frozenset[str] = frozenset()
    """Fields of ours that it answers with an error, or takes and does not mean."""
    counts_usage: bool = True
    """Whether a reply without its usage is not whole."""
    cached_tokens: Offer = NEVER
    """`usage.prompt_tokens_details.cached_tokens`."""
    timings: Offer = NEVER
    """How long the call waited, or its prompt took, in whatever place it says so."""
    logprobs: Offer = ALWAYS
    """Log probabilities of the reply's tokens."""
    counting: TokenCounting | None = None
    """How it counts tokens."""
    embeds: Offer = NEVER
    """`/v1/embeddings`."""
    embeds_one_by_one: bool = False
    """Whether it takes one text at a time."""
    context: ContextReport | None = None
    """How long a context it serves."""
    load_control: LoadControl | None = None
    """How its models are loaded and unloaded."""
    metrics: str | None = None
    """Path of its counters, below its root; None when it has none that we read."""
    metrics_switch: str = ""
    """The flag that turns them on."""
    health: str | None = "/health"
    """Path that answers 200 when it is ready, below its root."""


# --- where schemas go ------------------------------------------------------------------------


def nested_schema(schema: JsonSchema) -> Fields:
    """OpenAI's own form. llama-server takes a flat `schema` too, and silently ignores it."""
    return {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "reply", "schema": schema, "strict": True},
        }
    }


def schema_beside_type(schema: JsonSchema) -> Fields:
    """TensorRT-LLM's. At least up to 1.2.1 it takes OpenAI's wrapper for the schema, in silence."""
    return {"response_format": {"type": "json", "schema": schema}}


def schema_as_value(schema: JsonSchema) -> Fields:
    """TGI's: the other is refused with 422, "missing field `value`"."""
    value = {"name": "reply", "schema": schema}
    return {"response_format": {"type": "json_schema", "value": value}}


def raw_schema(schema: JsonSchema) -> Fields:
    """TabbyAPI's: where others have a name and the schema, the schema."""
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def schema_as_text(schema: JsonSchema) -> Fields:
    """MLC's: JSON in JSON."""
    text = orjson.dumps(schema).decode()
    return {"response_format": {"type": "json_object", "schema": text}}
