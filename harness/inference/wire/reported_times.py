"""Where servers of the OpenAI wire say how long a call waited, was read and was written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from harness.inference.reply_in_progress import ServerTimings
from harness.inference.wire.openai_reply import LlamaTimings, VllmMetrics, WireUsage

_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TimesTold:
    """All that may tell of times in one reply."""

    timings: LlamaTimings | None = None
    """Of the last chunk that had them."""
    metrics: VllmMetrics | None = None
    """Likewise."""
    usage: WireUsage | None = None
    """Likewise."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """By lower-case name."""


TimesPlace = Callable[[TimesTold], ServerTimings | None]
"""Reads a server's times from their place; None where there is nothing."""


def llama_timings(told: TimesTold) -> ServerTimings | None:
    """`timings`, which is llama-server's."""
    if told.timings is None:
        return None
    return ServerTimings(
        prefill_ns=_ns(told.timings.prompt_ms, _NS_PER_MS),
        decode_ns=_ns(told.timings.predicted_ms, _NS_PER_MS),
    )


def vllm_metrics(told: TimesTold) -> ServerTimings | None:
    """`metrics`, which is vLLM's."""
    if told.metrics is None:
        return None
    return ServerTimings(
        queue_ns=_ns(told.metrics.queue_time_ms, _NS_PER_MS),
        decode_ns=_ns(told.metrics.generation_time_ms, _NS_PER_MS),
    )


def tabby_usage(told: TimesTold) -> ServerTimings | None:
    """Within `usage`, which is TabbyAPI's way."""
    if told.usage is None or told.usage.prompt_time is None:
        return None
    return ServerTimings(
        prefill_ns=_ns(told.usage.prompt_time, _NS_PER_S),
        decode_ns=_ns(told.usage.completion_time, _NS_PER_S),
    )


def tgi_headers(told: TimesTold) -> ServerTimings | None:
    """Headers, which is TGI's way.

    They do not tell prefill from decode: the time per token is all of the inference, divided by the
    tokens.
    """
    try:
        waited_ms = float(told.headers["x-validation-time"]) + float(told.headers["x-queue-time"])
    except (KeyError, ValueError):
        return None
    return ServerTimings(queue_ns=_ns(waited_ms, _NS_PER_MS))


def anywhere(told: TimesTold) -> ServerTimings | None:
    """For a server of a kind that is not known."""
    return llama_timings(told) or vllm_metrics(told) or tabby_usage(told) or tgi_headers(told)


def _ns(value: float | None, unit_ns: int) -> int | None:
    return None if value is None else max(0, round(value * unit_ns))
