"""Compares the speed of models with the limits of their memory and processor.

Each token reads all active weights once, and the KV cache of its sequence; n sequences decoded
together share the reading of the weights. So memory allows each of them `bandwidth / (weights + n *
cache)` tokens a second. The processor's limit is the speed of reading prompts, times decoding's
share of the cores.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.trace import events
from harness.trace.calls import Call, answered_by_model
from harness.trace.intervals import length_ns, mean_depths

MACHINE = "machine"  # the device of models that are in the machine's own memory

Bound = Literal["bandwidth", "compute", "neither", "unknown"]

LEAST_OUTPUT_TOKENS = 16  # shorter replies have no speed

_LEAST_PROMPT_TOKENS = 16
_LEAST_PROMPT_TOKENS_OF_GPU = 512
# A limit decides the speed from this share of it on: no machine reaches it whole, and a reply that
# is written alone computes less quickly than a prompt.
AT_LIMIT = 0.5
# Nothing passes a limit: if a share is larger, the limit was measured at a worse moment.
_MOST_SHARE = 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedLimit:
    """How quickly a model wrote, and could have; all in tokens a second of one reply."""

    model: str
    device: str  # `machine`, `gpu0`, …
    calls: int  # the figures are medians of so many calls
    at_once: float  # how many replies were written together, on average
    tokens_per_s: float
    weight_bytes: int
    cache_bytes: float  # the size of a sequence's KV cache in the middle of its reply
    memory_bytes_per_s: float
    memory_source: str
    memory_limit: float
    compute_limit: float | None  # None if no prompt was long enough to tell
    memory_share: float  # the speed as a share of what memory allows, from 0 to 1
    compute_share: float | None
    bound: Bound

    def with_weights(self, size: int) -> float:
        """Tokens a second of one reply if the weights had `size` bytes."""
        # If computing is the limit, other weights change nothing.
        if self.bound == "compute":
            return self.tokens_per_s
        token_s = 1 / self.tokens_per_s + (size - self.weight_bytes) / self.memory_bytes_per_s
        least_s = (size + self.at_once * self.cache_bytes) / self.memory_bytes_per_s
        return 1 / max(token_s, least_s)


def speed_limits_of(calls: Iterable[Call], recorded: events.Events) -> tuple[SpeedLimit, ...]:
    """The limits of the models that are wholly on one device whose speed is known."""
    machines = [m for m in recorded[events.MachineEvent] if m.memory_bytes_per_s > 0]
    devices = {machine.device or MACHINE: machine for machine in machines}
    endpoints = {endpoint.model: endpoint for endpoint in recorded[events.EndpointEvent]}
    weights_by_model = {weights.model: weights for weights in recorded[events.WeightsEvent]}
    limits = []
    for model, replies in answered_by_model(calls).items():
        weights = weights_by_model.get(model)
        device = devices.get(weights.device or MACHINE) if weights else None
        if weights is not None and device is not None:
            share = _decoding_share(device, endpoints.get(model))
            limits.append(_limit(replies, weights, device, share))
    return tuple(limit for limit in limits if limit is not None)


def _decoding_share(device: events.MachineEvent, endpoint: events.EndpointEvent | None) -> float:
    """The part of the processor that writes replies."""
    if device.cores is None:
        return 1.0
    cores = max(1, device.cores)
    if endpoint is not None and endpoint.threads is not None:
        return min(endpoint.threads, cores) / cores
    # By default, the embedded engine leaves one core to others, and a server takes all.
    is_server = endpoint is not None and endpoint.url
    return (cores if is_server else max(1, cores - 1)) / cores


def _limit(
    calls: Sequence[Call],
    weights: events.WeightsEvent,
    device: events.MachineEvent,
    decoding_share: float,
) -> SpeedLimit | None:
    timed = [
        call
        for call in calls
        if call.phase_ns("decode") > 0
        and "decode" not in call.unreliable
        and (call.decode_tokens or 0) >= LEAST_OUTPUT_TOKENS
    ]
    weight_bytes = weights.active_bytes or 0
    if not timed or weight_bytes <= 0:
        return None
    # For each call: its cache, the replies written together, its speed, and what memory allows.
    caches = [_cache_bytes(call, weights.token_bytes) for call in timed]
    concurrency = concurrency_of(calls)
    counts = [concurrency[call.id] for call in timed]
    rates = [(c.decode_tokens or 0) * 1e9 / c.phase_ns("decode") for c in timed]
    memory_rates = [
        device.memory_bytes_per_s / (weight_bytes + round(count) * cache_bytes)
        for cache_bytes, count in zip(caches, counts, strict=True)
    ]
    memory_share = statistics.median(r / m for r, m in zip(rates, memory_rates, strict=True))
    # On a GPU, short prompts are bound by reading the weights.
    least_tokens = _LEAST_PROMPT_TOKENS if device.cores is not None else _LEAST_PROMPT_TOKENS_OF_GPU
    prompt_rate = _prompt_tokens_per_s(calls, least_tokens=least_tokens)
    compute_rate = compute_share = None
    if prompt_rate is not None:
        # A token costs as much computing in a reply as in a prompt. Prompts are read with all
        # cores, replies written with this share of them.
        compute_rate = prompt_rate * decoding_share
        # All replies written together share the processor: their rates add up.
        compute_share = statistics.median(
            rate * count / compute_rate for rate, count in zip(rates, counts, strict=True)
        )
    at_once = statistics.fmean(counts)
    return SpeedLimit(
        model=weights.model,
        device=weights.device or MACHINE,
        calls=len(timed),
        at_once=at_once,
        tokens_per_s=statistics.median(rates),
        weight_bytes=weight_bytes,
        cache_bytes=statistics.median(caches),
        memory_bytes_per_s=float(device.memory_bytes_per_s),
        memory_source=device.source,
        memory_limit=statistics.median(memory_rates),
        compute_limit=None if compute_rate is None else compute_rate / at_once,
        memory_share=memory_share,
        compute_share=compute_share,
        bound=_bound(memory_share, compute_share or 0.0),
    )


def computed_tokens(call: Call) -> int:
    """Tokens of its prompt that were read, and not served from a cache."""
    return (call.input_tokens or 0) - (call.cached_tokens or 0)


def concurrency_of(calls: Sequence[Call]) -> Mapping[int, float]:
    """Span id of a call → the mean number of replies under way during its own, that one included.

    Calls without a decode phase are left out.
    """
    answered = [call for call in calls if call.phase_ns("decode") > 0]
    # A call decodes in one stretch.
    depths = mean_depths([call.phases["decode"][0] for call in answered])
    return {call.id: depth for call, depth in zip(answered, depths, strict=True)}


def _bound(memory_share: float, compute_share: float) -> Bound:
    if max(memory_share, compute_share) > _MOST_SHARE:
        return "unknown"
    if max(memory_share, compute_share) < AT_LIMIT:
        return "neither"
    return "bandwidth" if memory_share >= compute_share else "compute"


def _cache_bytes(call: Call, token_bytes: int) -> int:
    """The bytes of the sequence's cache in the middle of the call's reply.

    `token_bytes` is the size of one token's cache, and 0 if unknown.
    """
    read, written = call.input_tokens or 0, call.output_tokens or 0
    # The size that was computed for this very prompt is more exact.
    if call.prompt_kv_bytes and read:
        token_bytes = call.prompt_kv_bytes // read
    return round(token_bytes * (read + written / 2))


def _prompt_tokens_per_s(calls: Sequence[Call], *, least_tokens: int) -> float | None:
    """How quickly prompts of at least so many tokens were read; None if there were none."""
    read = [c for c in calls if computed_tokens(c) >= least_tokens and "prefill" in c.phases]
    reading_ns = length_ns(part for call in read for part in call.phases["prefill"])
    return sum(map(computed_tokens, read)) * 1e9 / reading_ns if reading_ns else None
