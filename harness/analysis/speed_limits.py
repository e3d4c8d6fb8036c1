"""How quick models were, against what memory and processor of the machine allow.

A token reads all active weights once, and the KV cache of its sequence; sequences that are written
together share the reading of the weights. So memory allows `bandwidth / (weights + n * cache)`
tokens a second for each of n. The processor allows no more in all than it reads of prompts, whose
tokens cost as much computing each, by the share of the cores that decoding has.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.hardware.speed import decode_limit_tokens_per_s, step_bytes
from harness.trace.calls import Call, Interval
from harness.trace.intervals import length_ns, mean_depths
from harness.trace.records import Instant

Bound = Literal["bandwidth", "compute", "neither"]

LEAST_OUTPUT_TOKENS = 16
"""Shorter replies have no speed."""

AT_LIMIT = 0.5
"""From this share of a limit on, it is what decides: no machine reaches it whole, and a reply that
is written alone computes less quickly than a prompt."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that models were computed on."""

    memory_bytes_per_s: float
    source: str
    """How that is known: `measured`."""
    cores: int

    @classmethod
    def of(cls, instant: Instant) -> Machine | None:
        """By the instant `machine`; None if that is damaged."""
        speed, cores = (instant.attributes.get(name) for name in ("memory_bytes_per_s", "cores"))
        if not isinstance(speed, int | float) or not isinstance(cores, int) or speed <= 0:
            return None
        return cls(float(speed), str(instant.attributes.get("source")), max(1, cores))


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedLimit:
    """How quickly a model wrote, and could have; all in tokens a second of one reply."""

    model: str
    calls: int
    """Those it is the median of."""
    at_once: float
    """How many replies were written together, on average."""
    tokens_per_s: float
    weight_bytes: int
    memory_bytes_per_s: float
    memory_source: str
    memory_limit: float
    compute_limit: float | None
    """None if no prompt was long enough to tell."""
    memory_share: float
    """Of what memory allows, from 0 to 1."""
    compute_share: float | None
    bound: Bound


def speed_limits_of(
    calls: Iterable[Call], instants: Mapping[str, Sequence[Instant]]
) -> tuple[SpeedLimit, ...]:
    """Of the models that this machine's processor computed.

    Args:
        calls: The run's.
        instants: By name; those called `weights`, `machine` and `endpoint` count.
    """
    machines = list(filter(None, map(Machine.of, instants["machine"])))
    if not machines:
        return ()
    threads = {
        one.attributes.get("model"): one.attributes.get("threads") for one in instants["endpoint"]
    }
    weights = {
        one.attributes.get("model"): one.attributes.get("active_bytes")
        for one in instants["weights"]
    }
    by_model: dict[str, list[Call]] = {}
    for call in calls:
        if call.status == "ok" and not call.from_cache:
            by_model.setdefault(call.model, []).append(call)
    found = (
        _limit(model, of_model, size, threads.get(model), machines[-1])
        for model, of_model in by_model.items()
        if isinstance(size := weights.get(model), int) and size > 0
    )
    return tuple(one for one in found if one is not None)


def _limit(
    model: str, calls: Sequence[Call], weight_bytes: int, threads: object, machine: Machine
) -> SpeedLimit | None:
    timed = [call for call in calls if _has_speed(call)]
    if not timed:
        return None
    company = mean_depths([call.phases["decode"][0] for call in timed])
    rates = [_tokens_per_s(call) for call in timed]
    memory = [
        decode_limit_tokens_per_s(
            step_bytes(weight_bytes, sequences=round(n), tokens=1, token_bytes=_cache_bytes(call)),
            bytes_per_s=machine.memory_bytes_per_s,
        )
        for call, n in zip(timed, company, strict=True)
    ]
    # A model that is not told otherwise leaves one core to others.
    usual = max(1, machine.cores - 1)
    decoding_cores = min(threads if isinstance(threads, int) else usual, machine.cores)
    reading = _prompt_tokens_per_s(calls)
    computed = None if reading is None else reading * decoding_cores / machine.cores
    memory_share = statistics.median(r / m for r, m in zip(rates, memory, strict=True))
    compute_share = (
        None
        if computed is None
        else statistics.median(r * n / computed for r, n in zip(rates, company, strict=True))
    )
    at_once = statistics.fmean(company)
    return SpeedLimit(
        model=model,
        calls=len(timed),
        at_once=at_once,
        tokens_per_s=statistics.median(rates),
        weight_bytes=weight_bytes,
        memory_bytes_per_s=machine.memory_bytes_per_s,
        memory_source=machine.source,
        memory_limit=statistics.median(memory),
        compute_limit=None if computed is None else computed / at_once,
        memory_share=memory_share,
        compute_share=compute_share,
        bound=_bound(memory_share, compute_share or 0.0),
    )


def _bound(memory_share: float, compute_share: float) -> Bound:
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


def _cache_bytes(call: Call) -> int:
    """Of its sequence, in the middle of its reply."""
    prompt_bytes, asked = call.count("prompt_kv_bytes"), call.count("input_tokens")
    if not prompt_bytes or not asked:
        return 0
    return round(prompt_bytes * (1 + (call.count("output_tokens") or 0) / 2 / asked))


def _prompt_tokens_per_s(calls: Sequence[Call]) -> float | None:
    """How quickly prompts were read; None if hardly any was."""
    read = 0
    reading: list[Interval] = []
    for call in calls:
        computed = (call.count("input_tokens") or 0) - (call.count("cached_tokens") or 0)
        if computed >= LEAST_OUTPUT_TOKENS and "prefill" in call.phases:
            read += computed
            reading += call.phases["prefill"]
    return read * 1e9 / length_ns(reading) if read else None
