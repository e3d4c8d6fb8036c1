"""TensorRT-LLM's trtllm-serve, from version 1.2 of its code.

It refuses every field that it does not know, and ignores a schema that it does not enforce.
"""

from __future__ import annotations

from harness.inference.providers.counters import prometheus
from harness.inference.providers.provider import ALWAYS, Counters, Provider, remedies

PROVIDER = Provider(
    title="TensorRT-LLM",
    remedies=remedies(
        "start trtllm-serve with ",
        answer_more_at_once="a larger --max_batch_size",
        read_prompts_faster="a larger --max_num_tokens, and --enable_chunked_prefill",
        spread_prefill="--enable_chunked_prefill, so that a long prompt holds up no others",
        keep_prefixes="enable_block_reuse: true under kv_cache_config in its --config",
        more_kv_room=(
            "dtype: fp8 under kv_cache_config in its --config, which halves the cache",
            "a larger --free_gpu_memory_fraction (0.9 by default), or --tp_size",
        ),
        write_faster=(
            "decoding_type: NGram and max_draft_len: 4 under speculative_config in its --config",
            "--tp_size, which splits the weights over GPUs",
        ),
        fit_at_start="a lower --free_gpu_memory_fraction (0.9 by default), or --tp_size",
        fit_later="a smaller --max_seq_len or --max_batch_size",
        longer_context="a larger --max_seq_len, and --max_num_tokens or --enable_chunked_prefill",
        enforce_schemas="guided_decoding_backend in its --config",
    ),
    # Up to 1.2.1 at least, it takes OpenAI's wrapper for the schema itself, and says nothing.
    schema=lambda schema: {"response_format": {"type": "json", "schema": schema}},
    tools="--tool_parser NAME",
    requires_calls=False,
    enforces="guided_decoding_backend in its configuration",
    cached_tokens=ALWAYS,
    counters=Counters(
        path="/prometheus/metrics",
        read=prometheus(
            # By their names in different releases.
            running=("trtllm_num_requests_running", "trtllm_num_active_requests"),
            waiting=("trtllm_num_requests_waiting", "trtllm_server_queue_length"),
            kv_cache="trtllm_kv_cache_utilization",
            prompt="trtllm_prompt_tokens_total",
            cached="trtllm_prompt_cached_tokens_total",
            generated="trtllm_generation_tokens_total",
            from_the_start=False,
        ),
        switch="return_perf_metrics: true and enable_iter_perf_stats: true",
    ),
)
