"""What sets one server apart from another that speaks the same protocol, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import orjson

from harness.inference.metrics.server_metrics import Reading
from harness.inference.request import JsonSchema, Message
from harness.inference.wire.reported_times import TimesPlace

Fields = Mapping[str, object]
"""Part of a request's JSON."""


Switch = str | None
"""What makes a server tell or do something: the flag or setting that turns it on, `ALWAYS` or
`NEVER`."""
ALWAYS: Final = ""
NEVER: Final = None

UNSTATED_ROOM_TOKENS: Final = 1024
"""Room of a call that states none, at a server that would take it for 16 tokens, as vLLM's
`SamplingParams` behind Triton does, and does not tell the length of its context."""


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
    """Path of the POST request, with `{model}` for its name; below the server's root."""
    unload: str
    """Likewise."""
    needs: str
    """What the server must have been started with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextReport:
    """Where a server says how long a context it serves."""

    path: str
    """Below the server's root."""
    keys: tuple[str | int, ...]
    """The way through the reply's JSON to the number, or to a list of models as `/v1/models` has
    it, followed by the key in the model's entry."""
    slots: str | None = None
    """Where the same page says how many calls it answers side by side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """A server's counters."""

    path: str
    """Below its root."""
    read: Callable[[bytes], tuple[Reading, ...]]
    """What is read from the page. Raises ValueError for what is none of its kind."""
    switch: Switch = ALWAYS
    """What turns them on."""
    pause_s: float = 0.0
    """The least time between two looks at them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One server's ways."""

    title: str
    """What people call it."""

    schema: Callable[[JsonSchema], Fields] | None = None
    """The fields that carry a reply's schema; None when it has no place for one."""
    enforces: Switch = ALWAYS
    """What makes it hold replies to their schema, where it has a place for one."""
    room_tokens: int | None = None
    """Sent with a call that states no room; None where the server then takes what its context
    leaves."""
    continues: Fields | None = None
    """What makes it go on with a last message of the assistant's; None where it would answer."""
    refuses: frozenset[str] = frozenset()
    """Fields of ours that it answers with an error, or takes and does not mean."""
    counts_usage: bool = True
    """Whether a reply without its usage is not whole."""
    cached_tokens: Switch = NEVER
    """What makes it tell how much of a prompt came out of its cache."""
    progress: Fields = field(default_factory=dict)
    """What asks it to tell how far it has read a prompt. One that tells between two batches also
    notices there that its client has gone."""
    times: TimesPlace | None = None
    """Where it says how long the call waited, or its prompt took."""
    timings: Switch = NEVER
    """What makes it say so."""
    logprobs: Switch = ALWAYS
    """What makes it give log probabilities of the reply's tokens."""
    counting: TokenCounting | None = None
    """How it counts tokens."""
    embeds: Switch = NEVER
    """What makes it embed."""
    embeds_one_by_one: bool = False
    """Whether it takes one text at a time."""
    side_by_side: str = ""
    """What says how many calls it answers side by side, where it can be set."""
    context: ContextReport | None = None
    """How long a context it serves."""
    load_control: LoadControl | None = None
    """How its models are loaded and unloaded."""
    metrics: Metrics | None = None
    """Its counters; None when it has none that we read."""
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
