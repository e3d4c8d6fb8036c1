"""How quickly a model can answer on a device, and what that costs: one function for each formula.

Decoding reads all weights that a token passes for each token, and the KV cache of each sequence;
prefill multiplies each prompt token with all of them. The first is bound by the memory's bandwidth,
the second by the processor. GB are 10**9 bytes, rates are per second, money is dollars.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from harness.errors import InvalidInput
from harness.hardware.device import Device
from harness.hardware.model_shape import KvBits, ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """What a server on a device reaches of the limits: learned by a measurement."""

    bandwidth: float = 1.0
    """Share of the memory's."""
    compute: float = 1.0
    """Share of the processor's."""
    overhead_s: float = 0.0
    """Of each step, whatever its size: launching kernels, sampling, scheduling."""


CEILING: Final = Factors()
"""Upper bounds. No machine reaches them; one that is far slower has another bottleneck."""

USUAL: Final = Factors(bandwidth=0.6, compute=0.5)
"""What to expect before anything is measured. Decoding of one sequence reached 0.27 (H100) to 0.81
(L4) of the bandwidth: the faster the memory, the less (J. Chen, "Memory-bound but not
bandwidth-limited", arXiv, 2026-05-28). For compute a half is a guess."""


# --- decode ---------------------------------------------------------------------------------------


def step_bytes(weight_bytes: int, *, sequences: int, tokens: int, token_bytes: int) -> int:
    """Bytes moved for one token of each sequence: weights + sequences * tokens * bytes of a token.

    With experts, only the weights of active ones count. A token's bytes are those in the KV cache.
    """
    return weight_bytes + sequences * tokens * token_bytes


def move_s(size: float, *, bytes_per_s: float) -> float:
    """Seconds to move so many bytes, at least: size / bandwidth."""
    return size / _positive(bytes_per_s, "a bandwidth")


def decode_limit_tokens_per_s(weight_bytes: int, *, kv_bytes: int = 0, bytes_per_s: float) -> float:
    """Tokens a second of one request, at most: bandwidth / (weight bytes + KV bytes)."""
    return bytes_per_s / _positive(weight_bytes + kv_bytes, "a step's bytes")


def batch_weight_bytes(model: ModelShape, sequences: int) -> int:
    """Weights that a step of so many sequences reads: each brings its own choice of experts.

    An expert stays idle with (1 - k/E)**B, if choices are independent: W - (W - A) * (1 - k/E)**(B
    - 1), for A bytes of one token and W of all experts. A dense model reads A whatever B.
    """
    idle = (1 - model.expert_share) ** (sequences - 1) if model.expert_share < 1 else 1.0
    return round(model.passed_bytes - (model.passed_bytes - model.active_bytes) * idle)


def step_s(
    model: ModelShape,
    device: Device,
    *,
    tokens: int,
    sequences: int = 1,
    kv_bits: KvBits = 16,
    factors: Factors = CEILING,
) -> float:
    """Seconds for one token of each of B sequences: the ITL.

    max((weights + B * KV bytes) / bandwidth, 2 * N * B / F) + overhead, for N active parameters and
    F operations a second. `tokens` are those of each sequence so far.
    """
    moved = batch_weight_bytes(model, sequences)
    moved += sequences * model.sequence_kv_bytes(tokens, kv_bits)
    moving_s = move_s(moved, bytes_per_s=device.memory_bytes_per_s * factors.bandwidth)
    computing_s = 0.0
    if device.flops_per_s:
        flops = device.flops_per_s * factors.compute
        computing_s = 2 * model.active_parameters * sequences / flops
    return max(moving_s, computing_s) + factors.overhead_s


def decode_tokens_per_s(
    model: ModelShape,
    device: Device,
    *,
    tokens: int,
    sequences: int = 1,
    kv_bits: KvBits = 16,
    factors: Factors = CEILING,
) -> float:
    """Tokens a second of all B sequences together: B / `step_s`."""
    one_s = step_s(
        model, device, tokens=tokens, sequences=sequences, kv_bits=kv_bits, factors=factors
    )
    return sequences / one_s


def weights_per_sequence(weight_bytes: int, *, sequences: int) -> float:
    """Bytes of weights moved for each token of a batch: weights / sequences."""
    return weight_bytes / _positive(sequences, "a batch")


GAIN_PER_DOUBLING: Final = ((0.8, 0.9), (0.4, 0.5), (0.2, 0.3), (0.1, 0.15), (0.05, 0.1))
"""Least and most gain of throughput, as seen, when a batch doubles from 1 to 2, to 4, and on."""


def batching_gain(sequences: int) -> tuple[float, float]:
    """How many times the throughput of one a batch usually has, least and most.

    By `GAIN_PER_DOUBLING`, whole doublings; from 32 on it is taken to be saturated.
    """
    least = most = 1.0
    for low, high in GAIN_PER_DOUBLING[: sequences.bit_length() - 1]:
        least, most = least * (1 + low), most * (1 + high)
    return least, most


def saturation(
    model: ModelShape, device: Device, *, tokens: int, kv_bits: KvBits = 16, least_gain: float = 0.1
) -> int:
    """The batch from which doubling it gains less than `least_gain`, by the limits; 2**16 at most.

    There the KV caches or the processor cost what the weights' reading did.
    """
    sequences = 1
    while sequences < 1 << 16:
        now, twice = (
            decode_tokens_per_s(model, device, tokens=tokens, sequences=count, kv_bits=kv_bits)
            for count in (sequences, 2 * sequences)
        )
        if twice < (1 + least_gain) * now:
            break
        sequences *= 2
    return sequences


# --- prefill, and requests ------------------------------------------------------------------------


def prefill_tokens_per_s(
    model: ModelShape, device: Device, *, factors: Factors = CEILING
) -> float | None:
    """Prompt tokens a second: F / (2 * N), for F operations a second and N active parameters.

    As in Kaplan et al. 2020, "Scaling laws for neural language models", section 2.1; attention
    itself is left out, which long prompts notice. None if the processor's speed is unknown.
    """
    if device.flops_per_s is None:
        return None
    return device.flops_per_s * factors.compute / (2 * model.active_parameters)


def prefill_s(
    model: ModelShape, device: Device, *, tokens: int, cached: int = 0, factors: Factors = CEILING
) -> float | None:
    """Seconds to read a prompt, without what a prefix cache has of it; weights are read once.

    None if the processor's speed is unknown.
    """
    rate = prefill_tokens_per_s(model, device, factors=factors)
    if rate is None:
        return None
    reading_s = move_s(
        model.active_bytes, bytes_per_s=device.memory_bytes_per_s * factors.bandwidth
    )
    return max((tokens - cached) / rate, reading_s) + factors.overhead_s


def ttft_s(prefill_s: float, step_s: float, *, queue: float = 0) -> float:
    """Seconds to the first token, after so many prompts before it: (queue + 1) * prefill + step."""
    return (queue + 1) * prefill_s + step_s


def mean_queue(rate_per_s: float, prefill_s: float) -> float:
    """Prompts that one finds before it when they come at random: rho / (2 * (1 - rho)).

    For rho = rate * prefill (Pollaczek-Khinchine, service of constant length); infinite from 1 on.
    """
    rho = rate_per_s * prefill_s
    return rho / (2 * (1 - rho)) if rho < 1 else float("inf")


def requests_per_s(step_s: float, prefill_s: float, *, sequences: int, output_tokens: int) -> float:
    """Requests a second with B always under way: 1 / (prefill + output * step / B).

    Prompts and steps share one processor.
    """
    return 1 / (prefill_s + output_tokens * step_s / sequences)


def mixed_itl_s(step_s: float, prefill_s: float, *, sequences: int, output_tokens: int) -> float:
    """The ITL when others' prompts are read meanwhile: step + (B - 1) * prefill / output tokens."""
    return step_s + (sequences - 1) * prefill_s / _positive(output_tokens, "a reply")


def goodput(tokens_within_targets: float, seconds: float) -> float:
    """Tokens a second of the requests that met their targets."""
    return tokens_within_targets / _positive(seconds, "a time")


def efficiency(goodput: float, throughput: float) -> float:
    """Goodput / throughput: the share of the work that was in time."""
    return goodput / _positive(throughput, "a throughput")


# --- what fits ------------------------------------------------------------------------------------


def sequences_that_fit(
    capacity_bytes: int, *, weight_bytes: int, overhead_bytes: int, sequence_bytes: int
) -> int:
    """(capacity - weights - overhead) / KV bytes of a sequence, whole ones."""
    room = capacity_bytes - weight_bytes - overhead_bytes
    return max(int(room // _positive(sequence_bytes, "a sequence's bytes")), 0)


Fit = Literal["whole", "cache spills", "partly", "not at all"]
"""On the GPU is everything; or the weights but not all of the KV cache, slower at long contexts; or
some layers, 5 to 10 times slower; or there is not enough memory in both together."""


def fit(
    *, weight_bytes: int, kv_bytes: int, overhead_bytes: int, gpu_bytes: int, machine_bytes: int
) -> Fit:
    """How a model fits, by the bytes free on the GPU and in the machine."""
    over = weight_bytes + kv_bytes + overhead_bytes - gpu_bytes
    if over <= 0:
        return "whole"
    if over > machine_bytes:
        return "not at all"
    return "cache spills" if over <= kv_bytes else "partly"


def load_limit_s(file_bytes: int, *, bytes_per_s: tuple[float, ...]) -> float:
    """Seconds to load a model, at least: file / the slowest on the way, such as disk and PCIe."""
    return move_s(file_bytes, bytes_per_s=min(bytes_per_s))


# --- speculative decoding -------------------------------------------------------------------------

LEAST_ACCEPTANCE: Final = 0.55
"""Below 0.5 to 0.6 it is worse than nothing, whatever the formula: checking a draft costs too."""


def speculative_speedup(acceptance: float, *, drafted: int, cost: float) -> float:
    """(1 - a**(k + 1)) / ((1 - a) * (k * c + 1)), for k tokens drafted and a draft step of cost c.

    Leviathan et al. 2023, "Fast inference from transformers via speculative decoding", theorem 3.8.
    The cost is a share of the large model's step: of its active bytes.
    """
    kept = drafted + 1 if acceptance == 1 else (1 - acceptance ** (drafted + 1)) / (1 - acceptance)
    return kept / (drafted * cost + 1)


def break_even_acceptance(*, drafted: int, cost: float) -> float | None:
    """The acceptance from which it pays, `LEAST_ACCEPTANCE` or more; None if it never does.

    `speculative_speedup` rises with the acceptance.
    """
    for percent in range(100):
        if speculative_speedup(percent / 100, drafted=drafted, cost=cost) >= 1:
            return max(percent / 100, LEAST_ACCEPTANCE)
    return None


# --- money ----------------------------------------------------------------------------------------


def usd_per_million_tokens(usd_per_hour: float, *, tokens_per_s: float, busy: float = 1.0) -> float:
    """$/hour / (tokens/s * 3600) * 10**6; an hour that is only partly busy costs as much."""
    return usd_per_hour / _positive(tokens_per_s * busy * 3600, "tokens of an hour") * 10**6


def usd_per_day(usd_per_hour: float) -> float:
    """24 hours, idle ones included."""
    return 24 * usd_per_hour


def owned_usd_per_hour(
    price_usd: float, *, years: float, watts: float = 0, usd_per_kwh: float = 0
) -> float:
    """Price / hours of its life, and its power."""
    return price_usd / (_positive(years, "a life") * 365 * 24) + watts / 1000 * usd_per_kwh


def break_even_tokens_per_day(usd_per_day: float, *, managed_usd_per_million: float) -> float:
    """Tokens a day from which a device of a fixed cost overtakes a price by the token."""
    return usd_per_day / _positive(managed_usd_per_million, "a price") * 10**6


def _positive(number: float, what: str) -> float:
    if number <= 0:
        raise InvalidInput(
            f"{what} of {number:g} says nothing; give more than 0", code="model.not-positive"
        )
    return number
