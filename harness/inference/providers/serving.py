"""How a model is to be served, in words of no server; and what a provider's file makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What a server is started with."""

    model: str
    """Its file, folder or name, as the server takes it."""
    context_tokens: int
    """Of one sequence: its prompt and its reply."""
    sequences: int = 1
    """Answered at once by one replica."""
    kv_bits: Literal[16, 8, 4] = 16
    """Of each element of the KV cache."""
    on_gpu: bool = True
    gpu_layers: int | None = None
    """Layers on the GPU, the others being the processor's; None for all."""
    tensor_parallel: int = 1
    """GPUs that each layer is divided over."""
    pipeline_parallel: int = 1
    """GPUs, or machines, that the layers are dealt out to."""
    replicas: int = 1
    gpu_share: float | None = None
    """Of the GPU's memory that the server may take, from 0 to 1; None for its default."""
    batch_tokens: int | None = None
    """Of prompts, computed at once; None for the server's default."""
    draft: str | None = None
    """A small model that drafts for speculative decoding, or `ngram` to draft from the prompt; None
    for none."""
    shares_prefixes: bool = True
    """Whether prompts begin alike, so that a prefix cache pays."""
    max_queue: int | None = None
    """Calls that may wait in the server; None for any number."""
    threads: int | None = None
    """Of the processor; None for the server's default."""
    port: int | None = None
    """None for the server's usual one."""


class Setting(NamedTuple):
    """One flag of a command line or one line of `harness.toml`, and its reason."""

    text: str
    """`--max-num-seqs 16`; of a command's first setting, the program and the model."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A server's command line, and the endpoint that calls it."""

    command: tuple[Setting, ...]
    """Joined by spaces it is what a shell takes; empty where nothing is started by hand. Variables
    of the environment come first, as `NAME=value`."""
    endpoint: tuple[Setting, ...]
    """Lines of `harness.toml` under the endpoint's head."""
    missing: tuple[str, ...] = ()
    """What the server has no setting for, a phrase for each."""
