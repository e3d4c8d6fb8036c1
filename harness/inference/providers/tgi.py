"""Text Generation Inference, from version 3.3.7 of its code."""

from __future__ import annotations

from harness.inference.model_identity import ModelMetadata
from harness.inference.providers.counters import GENERATED, PROMPT, RUNNING, WAITING, prometheus
from harness.inference.providers.openai_wire import ONLY_TOP_P
from harness.inference.providers.pages import Page, ServerPages
from harness.inference.providers.provider import (
    Aim,
    ContextReport,
    Counters,
    Extras,
    Fields,
    Provider,
    ms_as_ns,
    remedies,
)
from harness.inference.providers.serving import Launch, Serving, Setting, launched, quoted
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


class _Info(Page):
    model_id: str
    model_sha: str | None = None


async def _served(pages: ServerPages) -> ModelMetadata | None:
    info = await pages.page(_Info, f"{pages.root}/info")
    if info is None:
        return None
    return ModelMetadata(path=info.model_id, fingerprint=info.model_sha)


REMEDIES = remedies(
    "start text-generation-launcher with ",
    {
        Aim.SPREAD_PREFILL: "a smaller --max-batch-prefill-tokens",
        Aim.KEEP_PREFIXES: "PREFIX_CACHING=1 in its environment",
        Aim.MORE_KV_ROOM: (
            "--kv-cache-dtype fp8_e5m2, which halves the cache",
            "a larger --cuda-memory-fraction, or --num-shard",
        ),
        Aim.WRITE_FASTER: ("--speculate 3", "--num-shard, which splits the weights over GPUs"),
        Aim.FIT_AT_START: "--num-shard, or --quantize",
        Aim.FIT_LATER: "a smaller --max-total-tokens or --max-batch-prefill-tokens",
        Aim.LONGER_CONTEXT: "a larger --max-total-tokens",
        Aim.DRAFT_BETTER: "a smaller --speculate",
    },
)


def _launch(serving: Serving) -> Launch:
    return launched(
        serving,
        f"text-generation-launcher --model-id {quoted(serving.model)}",
        {
            "context_tokens": f"--max-total-tokens {serving.context_tokens}",
            "sequences": f"--max-batch-size {serving.sequences}",
            "kv_bits": "--kv-cache-dtype fp8_e5m2",
            "tensor_parallel": f"--num-shard {serving.tensor_parallel}",
            "gpu_share": f"--cuda-memory-fraction {serving.gpu_share}",
            "port": f"--port {serving.port}",
        },
        Setting("PREFIX_CACHING=1", "the part in which prompts begin alike is read once"),
        Setting("--hostname 127.0.0.1", "for this machine alone"),
        backend="tgi",
        port=3000,
    )


PROVIDER = Provider(
    title="Text Generation Inference",
    remedies=REMEDIES,
    launch=_launch,
    served=_served,
    schema=_schema,
    refuses=ONLY_TOP_P,
    times=times,
    timings="stream = false",
    context=ContextReport(path="/info", keys=("max_total_tokens",)),
    counters=Counters(
        path="/metrics",
        read=prometheus(
            ("tgi_batch_current_size", RUNNING),
            ("tgi_queue_size", WAITING),
            # It has no totals of tokens, but histograms of tokens per request, which have sums.
            ("tgi_request_input_length_sum", PROMPT),
            ("tgi_request_generated_tokens_sum", GENERATED),
            from_the_start=False,
        ),
    ),
)
