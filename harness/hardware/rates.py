"""How quickly a model can answer on a device, and what that costs: one function for each formula.

Decoding reads, for each token, all weights that it passes and the KV cache of its sequence; prefill
multiplies each prompt token with all of them. The first is bound by the memory's bandwidth, the
second by the processor. GB are 10**9 bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from harness.errors import InvalidInput
from harness.hardware.device import DeviceSpec
from harness.hardware.model_shape import ModelShape
from harness.hardware.quantization import KvBits


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """What a server on a device reaches of the limits: learned by a measurement."""

    bandwidth: float = 1.0
    """Share of the memory's."""
    compute: float = 1.0
    """Share of the processor's."""
    cache: float | None = None
    """Of KV caches, the bandwidth's share; None for the weights'. On a CPU attention costs more."""


CEILING: Final = Factors()
"""Upper bounds. No machine reaches them; one that is far slower has another bottleneck."""

USUAL: Final = Factors(bandwidth=0.6, compute=0.5)
"""What to expect before anything is measured. Decoding of one sequence reached 0.27 (H100) to 0.81
(L4) of the bandwidth: the faster the memory, the less (J. Chen, "Memory-bound but not
bandwidth-limited", arXiv, 2026-05-28). For compute a half is a guess."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The speed of a model on a device."""

    model: ModelShape
    device: DeviceSpec
    kv_bits: KvBits = 16
    factors: Factors = CEILING

    def weight_bytes(self, sequences: int) -> int:
        """Weights that a step of B sequences reads: each brings its own choice of experts.

        W - (W - A) * (1 - k/E)**(B - 1), for A bytes of one token and W of all experts, if choices
        are independent. A dense model reads A whatever B.
        """
        model = self.model
        idle = (1 - model.expert_share) ** (sequences - 1) if model.expert_share < 1 else 1.0
        return round(model.passed_bytes - (model.passed_bytes - model.active_bytes) * idle)

    def step_s(self, *, tokens: int, sequences: int = 1) -> float:
        """Seconds for one token of each of B sequences of so many tokens so far: the ITL.

        max((weights + B * KV bytes) / bandwidth, 2 * N * B / F), for N active parameters and F
        operations a second. On a CPU it is their sum: the cores that compute are those that wait
        for the memory.
        """
        factors, device = self.factors, self.device
        cache_bytes = sequences * self.model.sequence_kv_bytes(tokens, self.kv_bits)
        moved = self.weight_bytes(sequences) / factors.bandwidth
        moved += cache_bytes / (factors.cache or factors.bandwidth)
        moving_s = moved / device.memory_bytes_per_s
        rate = self.prefill_tokens_per_s()
        computing_s = sequences / rate if rate else 0.0
        return max(moving_s, computing_s) if device.is_gpu else moving_s + computing_s

    def decode_tokens_per_s(self, *, tokens: int, sequences: int = 1) -> float:
        """Tokens a second of all B sequences together: B / `step_s`."""
        return sequences / self.step_s(tokens=tokens, sequences=sequences)

    def prefill_tokens_per_s(self, tokens: int = 0) -> float | None:
        """Tokens a second of a prompt of so many: F / `prompt_flops`; None if F is unknown."""
        flops = self.device.flops_per_s
        return flops and flops * self.factors.compute / prompt_flops(self.model, tokens)

    def prefill_s(self, tokens: int, *, cached: int = 0) -> float | None:
        """Seconds to read a prompt, without what a prefix cache has of it; weights are read once.

        None if the processor's speed is unknown.
        """
        rate, factors = self.prefill_tokens_per_s(tokens + cached), self.factors
        if rate is None:
            return None
        reading_s = self.model.active_bytes / (self.device.memory_bytes_per_s * factors.bandwidth)
        return max((tokens - cached) / rate, reading_s)

    def saturation(self, *, tokens: int) -> int:
        """The batch from which doubling it gains less than a tenth; 2**16 at most.

        There the KV caches or the processor cost what the weights' reading did.
        """
        for sequences in (1 << power for power in range(16)):
            one, two = (self.step_s(tokens=tokens, sequences=n * sequences) for n in (1, 2))
            if 2 * one < 1.1 * two:
                return sequences
        return 1 << 16


def prompt_flops(model: ModelShape, tokens: int) -> float:
    """Operations for each token of a prompt: 2 * N + 2 * layers * tokens * width.

    The second part is attention. As in Kaplan et al. 2020, "Scaling laws for neural language
    models", section 2.1, whose N = 12 * layers * width**2 gives the width.
    """
    n, layers = model.active_parameters, max(model.layers, 1)
    return 2 * n + 2 * layers * tokens * math.sqrt(n / (12 * layers))


GAIN_PER_DOUBLING: Final = ((0.8, 0.9), (0.4, 0.5), (0.2, 0.3), (0.1, 0.15), (0.05, 0.1))
"""Least and most gain of throughput, as seen, when a batch doubles from 1 to 2, to 4, and on."""


def batching_gain(sequences: int) -> tuple[float, float]:
    """How many times the throughput of one a batch was seen to have, least and most.

    By `GAIN_PER_DOUBLING`, whole doublings; from 32 on it is saturated.
    """
    gains = GAIN_PER_DOUBLING[: sequences.bit_length() - 1]
    return math.prod(1 + low for low, _ in gains), math.prod(1 + high for _, high in gains)


def ttft_s(prefill_s: float, step_s: float, *, queue: float = 0) -> float:
    """Seconds to the first token, after so many prompts before it: (queue + 1) * prefill + step."""
    return (queue + 1) * prefill_s + step_s


def mean_queue(rate_per_s: float, prefill_s: float) -> float:
    """Prompts that one finds before it when they come at random: rho / (2 * (1 - rho)).

    For rho = rate * prefill (Pollaczek-Khinchine, service of constant length); infinite from 1 on.
    """
    rho = rate_per_s * prefill_s
    return rho / (2 * (1 - rho)) if rho < 1 else math.inf


def requests_per_s(step_s: float, prefill_s: float, *, sequences: int, output_tokens: int) -> float:
    """Requests a second with B always under way: 1 / (prefill + output * step / B).

    Prompts and steps share one processor.
    """
    return 1 / (prefill_s + output_tokens * step_s / sequences)


def mixed_itl_s(step_s: float, prefill_s: float, *, sequences: int, output_tokens: int) -> float:
    """The ITL when others' prompts are read meanwhile: step + (B - 1) * prefill / output tokens."""
    return step_s + (sequences - 1) * prefill_s / output_tokens


def sequences_that_fit(
    capacity_bytes: int, *, weight_bytes: int, overhead_bytes: int, sequence_bytes: int
) -> int:
    """(capacity - weights - overhead) / KV bytes of a sequence, whole ones."""
    room = capacity_bytes - weight_bytes - overhead_bytes
    return max(int(room // _positive(sequence_bytes, "a sequence's bytes")), 0)


def load_limit_s(file_bytes: int, *, bytes_per_s: tuple[float, ...]) -> float:
    """Seconds to load a model, at least: file / the slowest on the way, such as disk and PCIe."""
    return file_bytes / _positive(min(bytes_per_s), "a bandwidth")


LEAST_ACCEPTANCE: Final = 0.55
"""Below 0.5 to 0.6 of its tokens accepted, a draft of a tenth of the model's size costs more than
it brings. By Leviathan et al. 2023, "Fast inference from transformers via speculative decoding",
theorem 3.8, it would pay from less; but checking a draft costs too."""


def usd_per_million_tokens(usd_per_hour: float, *, tokens_per_s: float, busy: float = 1.0) -> float:
    """$/hour / (tokens/s * 3600) * 10**6; an hour that is only partly busy costs as much."""
    return usd_per_hour / _positive(tokens_per_s * busy * 3600, "tokens of an hour") * 10**6


def owned_usd_per_hour(
    price_usd: float, *, years: float, watts: float, usd_per_kwh: float
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
