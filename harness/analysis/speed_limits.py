"""Compares the speed of models with the limits of their memory and processor.

Each token reads all active weights once, and the KV cache of its sequence; n sequences decoded
together share the reading of the weights. So memory allows each of them `bandwidth / (weights + n *
cache)` tokens a second. A token costs as much computing in decoding as in a prompt, so the speed of
reading prompts, times decoding's share of the cores, is the processor's limit. On a GPU only long
prompts show that limit: short ones are bound by reading the weights.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.trace.calls import Call, Interval
from harness.trace.intervals import length_ns, mean_depths
from harness.trace.records import Instant

_MACHINE = "machine"

Bound = Literal["bandwidth", "compute", "neither", "unknown"]

LEAST_OUTPUT_TOKENS = 16
"""Shorter replies have no speed."""

_LEAST_PROMPT_TOKENS = 16
_LEAST_PROMPT_TOKENS_OF_GPU = 512

_LEAST_TIMED = 3
_LEAST_SPREAD = 1.5
"""The most company, by the least. Less of it tells more of the prompts that others were reading."""
_MOST_ERROR = 0.1
"""Of a token's time: how wrong the cost of one more reply may be (its standard error)."""

AT_LIMIT = 0.5
"""From this share of a limit on, it is what decides: no machine reaches it whole, and a reply that
is written alone computes less quickly than a prompt."""

_MOST_SHARE = 1.05
"""Nothing passes a limit: a larger share tells that the limit was measured at a worse moment."""


@dataclass(frozen=True, slots=True)
class _DeviceSpeed:
    """The memory and the processor that models ran on."""

    memory_bytes_per_s: float
    source: str
    """Its source: `measured`, or `nominal` for a figure from a GPU's driver."""
    cores: int | None
    """Of the machine's processor; None for a GPU."""

    @classmethod
    def of(cls, instant: Instant) -> _DeviceSpeed | None:
        """Read from an instant `machine`; None if damaged."""
        speed, cores = (instant.attributes.get(name) for name in ("memory_bytes_per_s", "cores"))
        if not isinstance(speed, int | float) or speed <= 0:
            return None
        source = str(instant.attributes.get("source"))
        return cls(float(speed), source, max(1, cores) if isinstance(cores, int) else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedLimit:
    """How quickly a model wrote, and could have; all in tokens a second of one reply."""

    model: str
    device: str
    """`machine`, `gpu0`, …"""
    calls: int
    """Those it is the median of."""
    at_once: float
    """How many replies were written together, on average."""
    tokens_per_s: float
    weight_bytes: int
    cache_bytes: float
    """Of the KV cache of a sequence, in the middle of its reply."""
    company_s: tuple[float, float] | None
    """How long a token of a reply alone takes, and how much longer for each other reply that is
    written meanwhile; None if all had about the same company."""
    memory_bytes_per_s: float
    memory_source: str
    memory_limit: float
    compute_limit: float | None
    """None if no prompt was long enough to tell."""
    memory_share: float
    """Of what memory allows, from 0 to 1."""
    compute_share: float | None
    bound: Bound

    def with_more_at_once(self, more: float) -> float | None:
        """Tokens a second of one reply, with so many more at once; None if the run does not tell.

        It tells if replies had more and less company: by how much each other one slows a reply
        down. Bytes and bandwidth would not say: an engine does more for each reply than read.
        """
        if self.company_s is None:
            return None
        least_s = (self.weight_bytes + (self.at_once + more) * self.cache_bytes) / (
            self.memory_bytes_per_s
        )
        alone_s, each_s = self.company_s
        return 1 / max(alone_s + (self.at_once + more - 1) * each_s, least_s)

    def with_weights(self, size: int) -> float:
        """Tokens a second of one reply, with weights of so many bytes in place of those read.

        They take longer or shorter to read, unless computing is the limit.
        """
        if self.bound == "compute":
            return self.tokens_per_s
        step_s = 1 / self.tokens_per_s + (size - self.weight_bytes) / self.memory_bytes_per_s
        least_s = (size + self.at_once * self.cache_bytes) / self.memory_bytes_per_s
        return 1 / max(step_s, least_s)


def speed_limits_of(
    calls: Iterable[Call], instants: Mapping[str, Sequence[Instant]]
) -> tuple[SpeedLimit, ...]:
    """Of the models that are wholly on one device whose speed is known.

    Of `instants`, those called `weights`, `machine` and `endpoint` count.
    """
    devices = {
        str(one.attributes.get("device", _MACHINE)): device
        for one in instants["machine"]
        if (device := _DeviceSpeed.of(one)) is not None
    }
    endpoints = {one.attributes.get("model"): one.attributes for one in instants["endpoint"]}
    weights = {one.attributes.get("model"): one.attributes for one in instants["weights"]}
    by_model: dict[str, list[Call]] = {}
    for call in calls:
        if call.status == "ok" and not call.from_cache:
            by_model.setdefault(call.model, []).append(call)
    found = []
    for model, of_model in by_model.items():
        said = weights.get(model, {})
        device = devices.get(str(said.get("device", _MACHINE)))
        if device is not None:
            share = _decoding_share(device, endpoints.get(model, {}))
            found.append(_limit(model, of_model, said, device, share))
    return tuple(one for one in found if one is not None)


def _decoding_share(device: _DeviceSpeed, endpoint: Mapping[str, object]) -> float:
    """The part of the processor that writes replies."""
    if device.cores is None:
        return 1.0
    threads = endpoint.get("threads")
    # An engine of ours that is not told otherwise leaves one core to others; a server takes all.
    usual = device.cores if endpoint.get("url") else max(1, device.cores - 1)
    return min(threads if isinstance(threads, int) else usual, device.cores) / device.cores


def _limit(
    model: str,
    calls: Sequence[Call],
    weights: Mapping[str, object],
    device: _DeviceSpeed,
    decoding_share: float,
) -> SpeedLimit | None:
    timed = [call for call in calls if _has_speed(call)]
    weight_bytes, token_bytes = weights.get("active_bytes"), weights.get("token_bytes")
    if not timed or not isinstance(weight_bytes, int) or weight_bytes <= 0:
        return None
    caches = [
        _cache_bytes(call, token_bytes if isinstance(token_bytes, int) else 0) for call in timed
    ]
    # Short replies are company too.
    writing = [call for call in calls if call.phases.get("decode")]
    depths = mean_depths([call.phases["decode"][0] for call in writing])
    depth_of = {call.id: depth for call, depth in zip(writing, depths, strict=True)}
    company = [depth_of[call.id] for call in timed]
    rates = [_tokens_per_s(call) for call in timed]
    memory = [
        device.memory_bytes_per_s / (weight_bytes + round(n) * cache_bytes)
        for cache_bytes, n in zip(caches, company, strict=True)
    ]
    least = _LEAST_PROMPT_TOKENS_OF_GPU if device.cores is None else _LEAST_PROMPT_TOKENS
    reading = _prompt_tokens_per_s(calls, least_tokens=least)
    computed = None if reading is None else reading * decoding_share
    memory_share = statistics.median(r / m for r, m in zip(rates, memory, strict=True))
    compute_share = (
        None
        if computed is None
        else statistics.median(r * n / computed for r, n in zip(rates, company, strict=True))
    )
    at_once = statistics.fmean(company)
    return SpeedLimit(
        model=model,
        device=str(weights.get("device", _MACHINE)),
        calls=len(timed),
        at_once=at_once,
        tokens_per_s=statistics.median(rates),
        weight_bytes=weight_bytes,
        cache_bytes=statistics.median(caches),
        company_s=_company_s(company, [1 / rate for rate in rates]),
        memory_bytes_per_s=device.memory_bytes_per_s,
        memory_source=device.source,
        memory_limit=statistics.median(memory),
        compute_limit=None if computed is None else computed / at_once,
        memory_share=memory_share,
        compute_share=compute_share,
        bound=_bound(memory_share, compute_share or 0.0),
    )


def _company_s(company: Sequence[float], steps_s: Sequence[float]) -> tuple[float, float] | None:
    """By a line through the replies; None where it leaves too much open."""
    if len(company) < _LEAST_TIMED or max(company) < _LEAST_SPREAD * min(company):
        return None
    mean = statistics.fmean(company)
    slope, base = statistics.linear_regression(company, steps_s)
    left = sum((step - base - slope * n) ** 2 for n, step in zip(company, steps_s, strict=True))
    variance = left / (len(company) - 2) / sum((n - mean) ** 2 for n in company)
    error_s = math.sqrt(variance)
    if slope < -error_s or error_s > _MOST_ERROR * statistics.median(steps_s):
        return None
    return base + slope, max(0.0, slope)


def _bound(memory_share: float, compute_share: float) -> Bound:
    if max(memory_share, compute_share) > _MOST_SHARE:
        return "unknown"
    if max(memory_share, compute_share) < AT_LIMIT:
        return "neither"
    return "bandwidth" if memory_share >= compute_share else "compute"


def _has_speed(call: Call) -> bool:
    return (
        call.phase_ns("decode") > 0
        and "decode" not in call.unreliable
        and (call.count("output_tokens") or 0) >= LEAST_OUTPUT_TOKENS
    )


def _tokens_per_s(call: Call) -> float:
    # The first token is there when decoding begins.
    return ((call.count("output_tokens") or 0) - 1) * 1e9 / call.phase_ns("decode")


def _cache_bytes(call: Call, token_bytes: int) -> int:
    """Of its sequence, in the middle of its reply."""
    asked, written = call.count("input_tokens") or 0, call.count("output_tokens") or 0
    prompt_bytes = call.count("prompt_kv_bytes")
    if prompt_bytes and asked:
        token_bytes = prompt_bytes // asked
    return round(token_bytes * (asked + written / 2))


def _prompt_tokens_per_s(calls: Sequence[Call], *, least_tokens: int) -> float | None:
    """How quickly prompts of some length were read; None if there were none."""
    read = 0
    reading: list[Interval] = []
    for call in calls:
        computed = (call.count("input_tokens") or 0) - (call.count("cached_tokens") or 0)
        if computed >= least_tokens and "prefill" in call.phases:
            read += computed
            reading += call.phases["prefill"]
    return read * 1e9 / length_ns(reading) if read else None
