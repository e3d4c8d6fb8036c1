"""One call to a model, as every backend receives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.inference.message import Message

JsonSchema = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """What is asked of which model, and how."""

    model: str
    """The endpoint's tag."""
    messages: tuple[Message, ...]
    """The conversation; what stays the same between calls first, for the prefix cache."""
    role: str | None = None
    """What the model is used as (`producer`, `evaluator`, …); for the trace alone."""
    max_output_tokens: int = 512
    """Where generation is cut; the reply's finish reason is then `length`."""
    temperature: float = 0.0
    """0 is greedy."""
    frequency_penalty: float = 0.0
    """From 0 to 2; how much a token's every use so far speaks against using it again."""
    seed: int | None = None
    """Makes sampling repeatable where the server can."""
    stop: tuple[str, ...] = ()
    """Texts that end generation when they appear."""
    reply_schema: JsonSchema | None = None
    """JSON Schema that the reply must match, enforced by servers that can."""
