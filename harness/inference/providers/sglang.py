"""SGLang, from version 0.5.23 of its code.

Its `/health` generates a token.
"""

from __future__ import annotations

from harness.inference.json_text import text_at
from harness.inference.model_identity import ModelMetadata
from harness.inference.providers.counters import prometheus
from harness.inference.providers.openai_wire import nested_schema
from harness.inference.providers.provider import ContextReport, Counters, Provider, remedies
from harness.inference.providers.server_host import ServerPages


async def _served(pages: ServerPages) -> ModelMetadata | None:
    path = text_at(await pages.json("/model_info"), "model_path")
    return ModelMetadata(path=path) if path else None


_CACHED_SWITCH = "--enable-cache-report"
_METRICS_SWITCH = "--enable-metrics"

PROVIDER = Provider(
    title="SGLang",
    remedies=remedies(
        "start SGLang with ",
        bound_queue="--dp-size for replicas, or --max-queued-requests to refuse early",
        keep_prefixes="no --disable-radix-cache, and --enable-hierarchical-cache "
        "--hicache-ratio for more",
        more_kv_room=(
            "--kv-cache-dtype fp8_e5m2, which halves the cache",
            "a larger --mem-fraction-static, or --tp-size",
        ),
        write_faster=(
            "--speculative-algorithm NGRAM, or EAGLE3 with --speculative-draft-model-path",
            "--tp-size, which splits the weights over GPUs",
        ),
        fit_at_start="a lower --mem-fraction-static, or --tp-size",
        fit_later="a lower --mem-fraction-static",
    ),
    served=_served,
    schema=nested_schema,
    tools="--tool-call-parser NAME",
    continues={"continue_final_message": True},
    cached_tokens=_CACHED_SWITCH,
    embeds="--is-embedding",
    health="/model_info",
    context=ContextReport(path="/v1/models", keys=("data", "max_model_len")),
    counters=Counters(
        path="/metrics",
        read=prometheus(
            running="sglang:num_running_reqs",
            waiting="sglang:num_queue_reqs",
            kv_cache="sglang:token_usage",
            preemptions="sglang:num_retracted_requests_total",
            prompt="sglang:prompt_tokens_total",  # tokens are added when a reply ends
            cached="sglang:cached_tokens_total",  # by where they were cached
            generated="sglang:generation_tokens_total",
            acceptance="sglang:spec_accept_rate",
            from_the_start=False,
        ),
        switch=_METRICS_SWITCH,
    ),
)
