"""What to change, for each kind of server, down to the flag.

As of llama.cpp b11434, vLLM 0.32, Ollama 0.33, SGLang 0.5.23, TGI 3.3.7, TensorRT-LLM 1.2, TabbyAPI
and MLC LLM of mid 2026, and the settings of this version's harness.toml. Managed APIs, and servers
known only to speak OpenAI's protocol, have no settings here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from harness.analysis.facts import Server

Aim = Literal[
    "keep it loaded",
    "let both stay",
    "answer more at once",
    "bound the queue",
    "read prompts faster",
    "keep prefixes",
    "more room for KV",
    "write faster",
    "compute faster",
    "fit at start",
    "fit later",
    "longer context",
    "spread prefill",
    "draft better",
]
"""What a change is for."""

Moves = Mapping[Aim, str | tuple[str, ...]]
"""What a server offers for an aim; `{tag}` and the like are filled in for the endpoint."""

_EMBEDDED: Moves = {
    "keep it loaded": 'backend = "llamacpp", and the url of a llama-server: it outlives the run',
    "let both stay": "a lower context_tokens ({context_tokens}) or slots ({slots})",
    "answer more at once": "more slots ({slots}); each takes room for {context_tokens} tokens",
    "read prompts faster": "more threads ({threads}), to one less than there are cores at most",
    "keep prefixes": "more slots ({slots}): each keeps the prefix of its last prompt",
    "more room for KV": "a lower context_tokens ({context_tokens}) or slots ({slots})",
    "write faster": "the path of a smaller quantization (Q4_K_M for a producer)",
    "compute faster": "threads one less than there are cores ({threads}), for they wait "
    "spinning, and with a core too few are ten times slower",
    "fit at start": "a lower context_tokens ({context_tokens}) or slots ({slots})",
    "fit later": "a lower context_tokens ({context_tokens})",
    "longer context": "a higher context_tokens ({context_tokens})",
}

_LLAMA_CPP_PYTHON: Moves = {
    "keep it loaded": 'backend = "llamacpp", and the url of a llama-server in place '
    "of path: it goes on",
    "let both stay": "a lower context_tokens ({context_tokens})",
    "answer more at once": 'backend = "embedded", which answers several calls side by side',
    "read prompts faster": "more threads ({threads}), to one less than there are cores at most",
    "fit at start": "a lower context_tokens ({context_tokens})",
    "fit later": "a lower context_tokens ({context_tokens})",
    "longer context": "a higher context_tokens ({context_tokens})",
}

_LLAMACPP: Moves = {
    "keep it loaded": "--sleep-idle-seconds -1; in a router's preset, load-on-startup",
    "let both stay": "--models-max 2 or more, if both fit",
    "answer more at once": "a larger -np, and a -c larger by as much: it is divided between them",
    "read prompts faster": "all layers on the GPU (-ngl all), and -b 2048 -ub 2048",
    "spread prefill": "a smaller -b, so that one long prompt holds up the others for less long",
    "keep prefixes": "no --no-cache-prompt, and -np or --cache-ram for all prefixes in use",
    "more room for KV": "-ctk q8_0 -ctv q8_0 -fa on, which halves the cache, or a larger -c",
    "write faster": "-md DRAFT.gguf --spec-type draft-simple, the draft of the same family",
    "compute faster": "-t one less than there are cores, where it computes on the processor",
    "fit at start": "a smaller -c, or fewer layers on the GPU: -ngl",
    "fit later": "a smaller -c, and -ctk q8_0 -ctv q8_0 -fa on",
    "longer context": "a larger -c: -np divides it",
    "draft better": (
        "a draft of the same family (-md), or a smaller --spec-draft-n-max (3 by default)",
        "a --spec-draft-p-min above 0 (the default): less likely tokens are not drafted",
    ),
}

_VLLM: Moves = {
    "answer more at once": "a larger --max-num-seqs",
    "bound the queue": "--data-parallel-size for replicas, or --max-num-queued-reqs to refuse "
    "early",
    "read prompts faster": "a larger --max-num-batched-tokens, and no --no-enable-chunked-prefill",
    "spread prefill": "--long-prefill-token-threshold, so that a long prompt holds up no others",
    "keep prefixes": "no --no-enable-prefix-caching, and a larger --gpu-memory-utilization",
    "more room for KV": (
        "--kv-cache-dtype fp8, which halves the cache for less than 1 % loss",
        "a smaller --max-model-len or --max-num-seqs, which cap what calls can take",
        "a larger --gpu-memory-utilization, or --tensor-parallel-size",
    ),
    "write faster": (
        "--spec-method ngram --spec-tokens 4, or a draft model of the same family",
        "--tensor-parallel-size, which splits the weights over GPUs",
    ),
    "fit at start": "a lower --gpu-memory-utilization (0.92 by default), or --tensor-parallel-size",
    "fit later": "a smaller --max-model-len or --max-num-seqs",
    "longer context": "a larger --max-model-len",
    "draft better": "a smaller --spec-tokens, or --spec-method eagle3 with a head for this model",
}

_OLLAMA: Moves = {
    "keep it loaded": "OLLAMA_KEEP_ALIVE=-1 (5m by default), and load ahead: ollama run {tag} ''",
    "let both stay": "OLLAMA_MAX_LOADED_MODELS=2 or more, if both fit",
    "answer more at once": "a larger OLLAMA_NUM_PARALLEL (1 by default)",
    "bound the queue": "a smaller OLLAMA_MAX_QUEUE, to refuse early what cannot be served soon",
    "read prompts faster": "the model whole on the GPU: ollama ps tells",
    "keep prefixes": "OLLAMA_NUM_PARALLEL as large as the number of prefixes in use",
    "more room for KV": "OLLAMA_FLASH_ATTENTION=1 OLLAMA_KV_CACHE_TYPE=q8_0",
    "write faster": "the model whole on the GPU: ollama ps tells",
    "compute faster": "the model whole on the GPU: ollama ps tells",
    "fit at start": "a smaller OLLAMA_CONTEXT_LENGTH or OLLAMA_NUM_PARALLEL",
    "fit later": "a smaller OLLAMA_CONTEXT_LENGTH",
    "longer context": "a larger OLLAMA_CONTEXT_LENGTH",
}

_SGLANG: Moves = {
    "bound the queue": "--dp-size for replicas, or --max-queued-requests to refuse early",
    "keep prefixes": "no --disable-radix-cache, and --enable-hierarchical-cache "
    "--hicache-ratio for more",
    "more room for KV": (
        "--kv-cache-dtype fp8_e5m2, which halves the cache",
        "a larger --mem-fraction-static, or --tp-size",
    ),
    "write faster": (
        "--speculative-algorithm NGRAM, or EAGLE3 with --speculative-draft-model-path",
        "--tp-size, which splits the weights over GPUs",
    ),
    "fit at start": "a lower --mem-fraction-static, or --tp-size",
    "fit later": "a lower --mem-fraction-static",
    "draft better": "a smaller --speculative-num-draft-tokens, or EAGLE3 with a head for "
    "this model",
}

_TGI: Moves = {
    "spread prefill": "a smaller --max-batch-prefill-tokens",
    "keep prefixes": "PREFIX_CACHING=1 in its environment",
    "more room for KV": (
        "--kv-cache-dtype fp8_e5m2, which halves the cache",
        "a larger --cuda-memory-fraction, or --num-shard",
    ),
    "write faster": ("--speculate 3", "--num-shard, which splits the weights over GPUs"),
    "fit at start": "--num-shard, or --quantize",
    "fit later": "a smaller --max-total-tokens or --max-batch-prefill-tokens",
    "longer context": "a larger --max-total-tokens",
    "draft better": "a smaller --speculate",
}

_TENSORRT_LLM: Moves = {
    "answer more at once": "a larger --max_batch_size",
    "read prompts faster": "a larger --max_num_tokens, and --enable_chunked_prefill",
    "spread prefill": "--enable_chunked_prefill, so that a long prompt holds up no others",
    "keep prefixes": "enable_block_reuse: true under kv_cache_config in its --config",
    "more room for KV": (
        "dtype: fp8 under kv_cache_config in its --config, which halves the cache",
        "a larger --free_gpu_memory_fraction (0.9 by default), or --tp_size",
    ),
    "write faster": (
        "decoding_type: NGram and max_draft_len: 4 under speculative_config in its --config",
        "--tp_size, which splits the weights over GPUs",
    ),
    "fit at start": "a lower --free_gpu_memory_fraction (0.9 by default), or --tp_size",
    "fit later": "a smaller --max_seq_len or --max_batch_size",
    "longer context": "a larger --max_seq_len, and --max_num_tokens or --enable_chunked_prefill",
    "draft better": "a smaller max_draft_len under speculative_config in its --config",
}

_TABBYAPI: Moves = {
    "more room for KV": "cache_mode: Q8, which halves the cache",
    "write faster": "draft_mode: ngram, or mtp for a model that has it",
    "fit at start": "cache_mode: Q8, which halves the cache",
    "fit later": "cache_mode: Q8, which halves the cache",
    "draft better": "draft_mode: disabled, or a draft of the same family",
}

_MLC: Moves = {
    "keep prefixes": "--prefix-cache-mode radix",
    "write faster": (
        "--speculative-mode small_draft, and the draft under --additional-models",
        '--overrides "tensor_parallel_shards=2", which splits the weights over GPUs',
    ),
    "fit at start": '--overrides "tensor_parallel_shards=2"',
    "draft better": "--speculative-mode disable, or a draft of the same family",
}

REMEDIES: Mapping[str, tuple[str, Moves]] = {
    "embedded": (
        "under [endpoints.{tag}] in harness.toml, which needs path too ({file}): ",
        _EMBEDDED,
    ),
    "llama-cpp-python": ("under [endpoints.{tag}] in harness.toml: ", _LLAMA_CPP_PYTHON),
    "llamacpp": ("start llama-server with ", _LLAMACPP),
    "vllm": ("start vLLM with ", _VLLM),
    "ollama": ("start Ollama with ", _OLLAMA),
    "sglang": ("start SGLang with ", _SGLANG),
    "tgi": ("start text-generation-launcher with ", _TGI),
    "tensorrt-llm": ("start trtllm-serve with ", _TENSORRT_LLM),
    "tabbyapi": ("in TabbyAPI's config.yml: ", _TABBYAPI),
    "mlc": ("start mlc_llm serve with ", _MLC),
}
"""By backend: the words before each of its moves, and the moves."""

_WHERE_PATH_CHANGES: Mapping[Aim, str] = {
    "keep it loaded": "under [endpoints.{tag}] in harness.toml, in place of path: ",
    "write faster": "under [endpoints.{tag}] in harness.toml: ",
}
"""For an embedded model, about the path itself. For its other moves the table has to get a `path`,
which a built-in model's does not have yet."""

ENFORCING: Mapping[str, str] = {
    "openai": "say what server it is: TGI, TabbyAPI, TensorRT-LLM and MLC look for a schema "
    "elsewhere than OpenAI's API does; backend under [endpoints.{tag}] in harness.toml",
    "ollama": "use a newer Ollama, or a model that does not think aloud: with some that do, it "
    "takes no notice of a schema",
    "tensorrt-llm": "start trtllm-serve with guided_decoding_backend in its --config",
    "triton": "reach the model by an engine's own server, such as vLLM's: Triton takes no schema",
    "triton-openai": "reach the model by an engine's own server, such as vLLM's: Triton takes no "
    "schema",
}
"""By backend, what may have schemas enforced; nothing more is known for the others."""


def moves(aim: Aim, server: Server) -> tuple[str, ...]:
    """What can be changed at a server; empty if it offers no such thing."""
    where, offered = REMEDIES.get(server.backend, ("", {}))
    found = offered.get(aim, ())
    if server.is_in_process and aim == "read prompts faster" and server.threads is None:
        return ()  # it has all that it should
    if server.backend == "embedded":
        where = _WHERE_PATH_CHANGES.get(aim, where)
    return tuple(
        (where + move).format(
            tag=server.tag,
            slots=server.slots,
            context_tokens=server.context_tokens,
            threads=f"now {server.threads}" if server.threads else "which is the default",
            file=f"to {server.file}" if server.file else "to its GGUF file",
        )
        for move in ((found,) if isinstance(found, str) else found)
    )
