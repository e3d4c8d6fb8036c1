"""How quickly a model can answer on a device: one function for each formula.

Decoding reads, for each token, all weights that it passes and the KV cache of its sequence; prefill
multiplies each prompt token with all of them. The first is bound by the memory's bandwidth, the
second by the processor. GPUs that divide a layer send each other its results. GB are 10**9 bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from harness.advise.data_tables import DeviceSpec
from harness.advise.model_shape import ModelShape
from harness.hardware.quantization import KvBits


class Factors(NamedTuple):
    """Shares of the limits that a server on a device reaches: learned by a measurement."""

    bandwidth: float = 1.0
    compute: float = 1.0
    cache: float | None = None  # of the bandwidth, for KV caches: lower on a CPU; None: as weights


# Factors of upper bounds. No machine reaches them; a far slower one has another bottleneck.
CEILING: Final = Factors()
# Decoding of one sequence reached 0.27 (H100) to 0.81 (L4) of the bandwidth: the faster the memory,
# the less (J. Chen, "Memory-bound but not bandwidth-limited", arXiv, 2026-05-28). For compute a
# half is a guess.
_USUAL: Final = Factors(bandwidth=0.6, compute=0.5)
# DeepSeek-V3 read 52,300 prompt tokens a second on eight H100s (lmsys.org, 2025-05-05, large-scale
# EP), 24 % of the operations: each of many small experts gets few tokens at once.
USUAL_OF_EXPERTS: Final = Factors(bandwidth=0.6, compute=0.24)
_MANY_EXPERTS: Final = 0.1  # a smaller share of experts for a token means many small experts


def usual_factors(model: ModelShape) -> Factors:
    """The factors to expect before anything is measured."""
    return USUAL_OF_EXPERTS if has_small_experts(model) else _USUAL


def has_small_experts(model: ModelShape) -> bool:
    """Whether a token uses less than a tenth of the experts."""
    return model.expert_share < _MANY_EXPERTS


@dataclass(frozen=True)
class Rates:
    """The speed of one copy of a model, whose layers are divided over GPUs or dealt to stages."""

    model: ModelShape
    device: DeviceSpec
    kv_bits: KvBits = 16
    tensor_parallel: int = 1
    stages: int = 1
    factors: Factors = CEILING

    @cached_property
    def on_rank(self) -> ModelShape:
        """The model with the caches of one of the GPUs that divide a layer."""
        return self.model.on_rank(self.tensor_parallel)

    @property
    def stages_at_once(self) -> int:
        """How many stages work at one moment, each on other sequences."""
        # vLLM's stages do; llama.cpp's wait for one another. Neither makes a single token faster.
        return self.stages if self.model.packing == "safetensors" else 1

    def weight_bytes(self, sequences: int) -> int:
        """Bytes of weights that a step of B sequences reads: each token chooses its experts.

        W - (W - A) * (1 - k/E)**(B - 1), for A bytes of one token and W of all experts, if choices
        are independent. A dense model reads A whatever B.
        """
        model = self.model
        idle = (1 - model.expert_share) ** (sequences - 1) if model.expert_share < 1 else 1.0
        return round(model.passed_bytes - (model.passed_bytes - model.active_bytes) * idle)

    def step_s(self, *, tokens: int, sequences: int = 1) -> float:
        """Seconds for one token of each of B sequences of so many tokens so far: the ITL.

        max((weights + B * KV bytes) / bandwidth, 2 * N * B / F), for N active parameters and F
        operations a second, both of one of the GPUs that divide a layer; on a CPU their sum. A
        pipeline's stages have B / stages sequences each.
        """
        factors = self.factors
        batch = -(-sequences // self.stages_at_once)
        cache_bytes = batch * self.on_rank.sequence_kv_bytes(tokens, self.kv_bits)
        # Divided by its share of the bandwidth, each part counts as if read at the full bandwidth.
        weighted_bytes = self.weight_bytes(batch) / self.tensor_parallel / factors.bandwidth
        weighted_bytes += cache_bytes / (factors.cache or factors.bandwidth)
        reading_s = weighted_bytes / self.device.memory_bytes_per_s
        rate = self.prefill_tokens_per_s()
        computing_s = batch / rate if rate else 0.0
        # A CPU's cores cannot compute while they wait for the memory.
        both_s = max(reading_s, computing_s) if self.device.is_gpu else reading_s + computing_s
        return both_s + self.sending_s(batch)

    def prefill_tokens_per_s(self, tokens: int = 0) -> float | None:
        """Tokens a second of a prompt of so many: F / `prompt_flops`; None if F is unknown."""
        flops = self.device.flops_with(self.model.quantization)
        if flops is None:
            return None
        rate = flops * self.factors.compute / prompt_flops(self.model, tokens)
        return rate * self.tensor_parallel

    def prefill_s(self, tokens: int, *, cached: int = 0) -> float | None:
        """Seconds to read a prompt without its cached part; None if that speed is unknown."""
        if (rate := self.prefill_tokens_per_s(tokens)) is None:
            return None
        # At least one token is computed, to make the first token of the reply.
        computed = max(tokens - cached, 1)
        # Weights are read once for all tokens.
        read_s = self.weight_bytes(computed) / self.tensor_parallel / self.device.memory_bytes_per_s
        return max(computed / rate, read_s / self.factors.bandwidth) + self.sending_s(computed)

    def sending_s(self, tokens: int) -> float:
        """Seconds in which GPUs that divide layers send each other the results of tokens.

        tokens * 2 * layers * 2 * (t - 1) / t * width * 2 bytes / link: two sums of all GPUs (ring
        all-reduce) for each layer, in 16 bits; 0 if the link is unknown. Latency is left out.
        """
        ranks, link = self.tensor_parallel, self.device.link_bytes_per_s
        if ranks == 1 or not link:
            return 0.0
        elements = tokens * 2 * self.model.layers * _width(self.model)
        return elements * 2 * (ranks - 1) / ranks * 2 / link


def prompt_flops(model: ModelShape, tokens: int) -> float:
    """Operations for each token of a prompt: 2 * N + 2 * layers * tokens * width.

    N is without the output's table, which only the last token passes. The second part is attention.
    As in Kaplan et al. 2020, "Scaling laws for neural language models", section 2.1.
    """
    n = model.active_parameters - model.output_parameters
    return 2 * n + 2 * model.layers * tokens * _width(model)


def _width(model: ModelShape) -> float:
    """The width by Kaplan's N = 12 * layers * width**2, for N active parameters."""
    return math.sqrt(model.active_parameters / (12 * max(model.layers, 1)))


def mean_queue(rate_per_s: float, prefill_s: float) -> float:
    """The mean number of prompts that wait if they come at random: rho / (2 * (1 - rho)).

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


def usd_per_million_tokens(usd_per_hour: float, *, tokens_per_s: float, busy: float = 1.0) -> float:
    """$/hour / (tokens/s * 3600) * 10**6; an hour that is only partly busy costs as much."""
    return usd_per_hour / (tokens_per_s * busy * 3600) * 10**6
