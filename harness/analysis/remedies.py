"""What to change, for each kind of server, down to the flag.

As of llama.cpp b11434, vLLM 0.32, Ollama 0.33, SGLang 0.5.23, TGI 3.3.7, TensorRT-LLM 1.2, TabbyAPI
and MLC LLM of mid 2026, and the settings of this version's harness.toml. The other backends have
nothing to start them with that is known here: a managed API, or any server that speaks OpenAI's
protocol.
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

WHERE: Mapping[str, str] = {
    # Without its path the table is refused, and a built-in model has no table yet to add to.
    "embedded": "under [endpoints.{tag}] in harness.toml, which needs path too ({file}): ",
    "llama-cpp-python": "under [endpoints.{tag}] in harness.toml: ",
    "llamacpp": "start llama-server with ",
    "vllm": "start vLLM with ",
    "ollama": "start Ollama with ",
    "sglang": "start SGLang with ",
    "tgi": "start text-generation-launcher with ",
    "tensorrt-llm": "start trtllm-serve with ",
    "tabbyapi": "in TabbyAPI's config.yml: ",
    "mlc": "start mlc_llm serve with ",
}
"""By backend: where its settings are."""

_WHERE_PATH_CHANGES: Mapping[Aim, str] = {
    "keep it loaded": "under [endpoints.{tag}] in harness.toml, in place of path: ",
    "write faster": "under [endpoints.{tag}] in harness.toml: ",
}
"""For an embedded model, what is about the path itself."""

MOVES: Mapping[Aim, Mapping[str, tuple[str, ...]]] = {
    "keep it loaded": {
        "embedded": ('backend = "llamacpp", and the url of a llama-server: it outlives the run',),
        "llamacpp": ("--sleep-idle-seconds -1; in a router's preset, load-on-startup",),
        "ollama": ("OLLAMA_KEEP_ALIVE=-1 (5m by default), and load ahead: ollama run {tag} ''",),
        "llama-cpp-python": (
            'backend = "llamacpp", and the url of a llama-server in place of path: it goes on',
        ),
    },
    "let both stay": {
        "embedded": ("a lower context_tokens ({context_tokens}) or slots ({slots})",),
        "llamacpp": ("--models-max 2 or more, if both fit",),
        "ollama": ("OLLAMA_MAX_LOADED_MODELS=2 or more, if both fit",),
        "llama-cpp-python": ("a lower context_tokens ({context_tokens})",),
    },
    "answer more at once": {
        "embedded": ("more slots ({slots}); each takes room for {context_tokens} tokens",),
        "llamacpp": ("a larger -np, and a -c larger by as much: it is divided between them",),
        "vllm": ("a larger --max-num-seqs",),
        "ollama": ("a larger OLLAMA_NUM_PARALLEL (1 by default)",),
        "llama-cpp-python": ('backend = "embedded", which answers several calls side by side',),
        "tensorrt-llm": ("a larger --max_batch_size",),
    },
    "bound the queue": {
        "vllm": ("--data-parallel-size for replicas, or --max-num-queued-reqs to refuse early",),
        "ollama": ("a smaller OLLAMA_MAX_QUEUE, to refuse early what cannot be served soon",),
        "sglang": ("--dp-size for replicas, or --max-queued-requests to refuse early",),
    },
    "read prompts faster": {
        "embedded": ("more threads ({threads}), to one less than there are cores at most",),
        "llamacpp": ("all layers on the GPU (-ngl all), and -b 2048 -ub 2048",),
        "vllm": ("a larger --max-num-batched-tokens, and no --no-enable-chunked-prefill",),
        "ollama": ("the model whole on the GPU: ollama ps tells",),
        "llama-cpp-python": ("more threads ({threads}), to one less than there are cores at most",),
        "tensorrt-llm": ("a larger --max_num_tokens, and --enable_chunked_prefill",),
    },
    "spread prefill": {
        "tensorrt-llm": ("--enable_chunked_prefill, so that one long prompt holds up nobody",),
        "tgi": ("a smaller --max-batch-prefill-tokens",),
        "vllm": ("--long-prefill-token-threshold, so that one long prompt holds up nobody",),
        "llamacpp": ("a smaller -b, so that one long prompt holds up the others for less long",),
    },
    "keep prefixes": {
        "embedded": ("more slots ({slots}): each keeps the prefix of its last prompt",),
        "llamacpp": ("no --no-cache-prompt, and -np or --cache-ram for all prefixes in use",),
        "vllm": ("no --no-enable-prefix-caching, and a larger --gpu-memory-utilization",),
        "ollama": ("OLLAMA_NUM_PARALLEL as large as the number of prefixes in use",),
        "sglang": (
            "no --disable-radix-cache, and --enable-hierarchical-cache --hicache-ratio for more",
        ),
        "tgi": ("PREFIX_CACHING=1 in its environment",),
        "tensorrt-llm": ("enable_block_reuse: true under kv_cache_config in its --config",),
        "mlc": ("--prefix-cache-mode radix",),
    },
    "more room for KV": {
        "embedded": ("a lower context_tokens ({context_tokens}) or slots ({slots})",),
        "llamacpp": ("-ctk q8_0 -ctv q8_0 -fa on, which halves the cache, or a larger -c",),
        "vllm": (
            "--kv-cache-dtype fp8, which halves the cache for less than 1 % loss",
            "a smaller --max-model-len or --max-num-seqs, which cap what calls can take",
            "a larger --gpu-memory-utilization, or --tensor-parallel-size",
        ),
        "ollama": ("OLLAMA_FLASH_ATTENTION=1 OLLAMA_KV_CACHE_TYPE=q8_0",),
        "sglang": (
            "--kv-cache-dtype fp8_e5m2, which halves the cache",
            "a larger --mem-fraction-static, or --tp-size",
        ),
        "tgi": (
            "--kv-cache-dtype fp8_e5m2, which halves the cache",
            "a larger --cuda-memory-fraction, or --num-shard",
        ),
        "tensorrt-llm": (
            "dtype: fp8 under kv_cache_config in its --config, which halves the cache",
            "a larger --free_gpu_memory_fraction (0.9 by default), or --tp_size",
        ),
        "tabbyapi": ("cache_mode: Q8, which halves the cache",),
    },
    "write faster": {
        "embedded": ("the path of a smaller quantization (Q4_K_M for a producer)",),
        "llamacpp": ("-md DRAFT.gguf --spec-type draft-simple, the draft of the same family",),
        "vllm": (
            "--spec-method ngram --spec-tokens 4, or a draft model of the same family",
            "--tensor-parallel-size, which splits the weights over GPUs",
        ),
        "ollama": ("the model whole on the GPU: ollama ps tells",),
        "sglang": (
            "--speculative-algorithm NGRAM, or EAGLE3 with --speculative-draft-model-path",
            "--tp-size, which splits the weights over GPUs",
        ),
        "tgi": ("--speculate 3", "--num-shard, which splits the weights over GPUs"),
        "tensorrt-llm": (
            "decoding_type: NGram and max_draft_len: 4 under speculative_config in its --config",
            "--tp_size, which splits the weights over GPUs",
        ),
        "tabbyapi": ("draft_mode: ngram, or mtp for a model that has it",),
        "mlc": (
            "--speculative-mode small_draft, and the draft under --additional-models",
            '--overrides "tensor_parallel_shards=2", which splits the weights over GPUs',
        ),
    },
    "compute faster": {
        "embedded": (
            (
                "threads one less than there are cores ({threads}), for they wait spinning, and "
                "with a core too few are ten times slower"
            ),
        ),
        "llamacpp": ("-t one less than there are cores, where it computes on the processor",),
        "ollama": ("the model whole on the GPU: ollama ps tells",),
    },
    "fit at start": {
        "embedded": ("a lower context_tokens ({context_tokens}) or slots ({slots})",),
        "llamacpp": ("a smaller -c, or fewer layers on the GPU: -ngl",),
        "vllm": ("a lower --gpu-memory-utilization (0.92 by default), or --tensor-parallel-size",),
        "llama-cpp-python": ("a lower context_tokens ({context_tokens})",),
        "sglang": ("a lower --mem-fraction-static, or --tp-size",),
        "tgi": ("--num-shard, or --quantize",),
        "tensorrt-llm": ("a lower --free_gpu_memory_fraction (0.9 by default), or --tp_size",),
        "tabbyapi": ("cache_mode: Q8, which halves the cache",),
        "mlc": ('--overrides "tensor_parallel_shards=2"',),
        "ollama": ("a smaller OLLAMA_CONTEXT_LENGTH or OLLAMA_NUM_PARALLEL",),
    },
    "fit later": {
        "embedded": ("a lower context_tokens ({context_tokens})",),
        "llamacpp": ("a smaller -c, and -ctk q8_0 -ctv q8_0 -fa on",),
        "vllm": ("a smaller --max-model-len or --max-num-seqs",),
        "ollama": ("a smaller OLLAMA_CONTEXT_LENGTH",),
        "llama-cpp-python": ("a lower context_tokens ({context_tokens})",),
        "sglang": ("a lower --mem-fraction-static",),
        "tgi": ("a smaller --max-total-tokens or --max-batch-prefill-tokens",),
        "tensorrt-llm": ("a smaller --max_seq_len or --max_batch_size",),
        "tabbyapi": ("cache_mode: Q8, which halves the cache",),
    },
    "longer context": {
        "embedded": ("a higher context_tokens ({context_tokens})",),
        "llamacpp": ("a larger -c: -np divides it",),
        "vllm": ("a larger --max-model-len",),
        "ollama": ("a larger OLLAMA_CONTEXT_LENGTH",),
        "llama-cpp-python": ("a higher context_tokens ({context_tokens})",),
        "tgi": ("a larger --max-total-tokens",),
        "tensorrt-llm": (
            "a larger --max_seq_len, and --max_num_tokens or --enable_chunked_prefill",
        ),
    },
    "draft better": {
        "llamacpp": (
            "a draft of the same family (-md), or a smaller --spec-draft-n-max (3 by default)",
            "a --spec-draft-p-min above 0 (the default): less likely tokens are not drafted",
        ),
        "vllm": ("a smaller --spec-tokens, or --spec-method eagle3 with a head for this model",),
        "sglang": (
            "a smaller --speculative-num-draft-tokens, or EAGLE3 with a head for this model",
        ),
        "tgi": ("a smaller --speculate",),
        "tensorrt-llm": ("a smaller max_draft_len under speculative_config in its --config",),
        "tabbyapi": ("draft_mode: disabled, or a draft of the same family",),
        "mlc": ("--speculative-mode disable, or a draft of the same family",),
    },
}


def moves(aim: Aim, server: Server) -> tuple[str, ...]:
    """What can be changed at a server; nothing for a kind that offers no such thing."""
    found = MOVES[aim].get(server.backend, ())
    if not found:
        return ()
    where = WHERE[server.backend]
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
        for move in found
    )
