"""Text Generation Inference, from version 3.3.7 of its code."""

from __future__ import annotations

from harness.inference.json_text import text_at
from harness.inference.model_identity import ModelMetadata
from harness.inference.providers.counters import prometheus
from harness.inference.providers.openai_wire import ONLY_TOP_P
from harness.inference.providers.provider import (
    ContextReport,
    Counters,
    Extras,
    Fields,
    Provider,
    ms_as_ns,
    remedies,
)
from harness.inference.providers.server_host import ServerPages
from harness.inference.reply_in_progress import ServerTimings
from harness.inference.request import JsonSchema


def _schema(schema: JsonSchema) -> Fields:
    # OpenAI's form is refused with 422, "missing field `value`".
    value = {"name": "reply", "schema": schema}
    return {"response_format": {"type": "json_schema", "value": value}}


def times(extras: Extras) -> ServerTimings | None:
    """Headers, which only replies that are not streamed have.

    They do not separate prefill from decode: the time per token is the whole inference, divided by
    the tokens.
    """
    validation_ns = ms_as_ns(extras.headers.get("x-validation-time"))
    queue_ns = ms_as_ns(extras.headers.get("x-queue-time"))
    if validation_ns is None or queue_ns is None:
        return None
    return ServerTimings(queue_ns=validation_ns + queue_ns)


async def _served(pages: ServerPages) -> ModelMetadata | None:
    info = await pages.json("/info")
    path, revision = text_at(info, "model_id"), text_at(info, "model_sha")
    return ModelMetadata(path=path, fingerprint=revision or None) if path else None


PROVIDER = Provider(
    title="Text Generation Inference",
    remedies=remedies(
        "start text-generation-launcher with ",
        spread_prefill="a smaller --max-batch-prefill-tokens",
        keep_prefixes="PREFIX_CACHING=1 in its environment",
        more_kv_room=(
            "--kv-cache-dtype fp8_e5m2, which halves the cache",
            "a larger --cuda-memory-fraction, or --num-shard",
        ),
        write_faster=("--speculate 3", "--num-shard, which splits the weights over GPUs"),
        fit_at_start="--num-shard, or --quantize",
        fit_later="a smaller --max-total-tokens or --max-batch-prefill-tokens",
        longer_context="a larger --max-total-tokens",
    ),
    served=_served,
    schema=_schema,
    refuses=ONLY_TOP_P,
    times=times,
    timings="stream = false",
    context=ContextReport(path="/info", keys=("max_total_tokens",)),
    counters=Counters(
        path="/metrics",
        read=prometheus(
            running="tgi_batch_current_size",
            waiting="tgi_queue_size",
            # It has no totals of tokens, but histograms of tokens per request, which have sums.
            prompt="tgi_request_input_length_sum",
            generated="tgi_request_generated_tokens_sum",
            from_the_start=False,
        ),
    ),
)
