"""Servers that speak OpenAI's protocol, load no models on request, and need a page or less each.

`openai` stands for any other server: it reads times wherever these servers report them, if any.
"""

from __future__ import annotations

import re
from dataclasses import replace

import httpx2

from harness.inference.endpoint import Endpoint
from harness.inference.json_text import at, json_of, row_of, text_at
from harness.inference.model_identity import ModelMetadata
from harness.inference.model_names import packing
from harness.inference.providers import llamacpp, vllm
from harness.inference.providers.counters import Counters, prometheus
from harness.inference.providers.openai_wire import ONLY_TOP_P, nested_schema, openai_schema
from harness.inference.providers.provider import (
    ALWAYS,
    NEVER,
    ContextReport,
    Fields,
    Provider,
    by_template,
    remedies,
    times_in,
)
from harness.inference.providers.server_host import ServerPages
from harness.inference.providers.wire_reply import WireReply
from harness.inference.reply_in_progress import ServerTimings
from harness.inference.request import Effort


def _times(reply: WireReply) -> ServerTimings | None:
    """The times that any of these servers reports."""
    readers = (llamacpp.times, vllm.times, _tabby_times)
    return next(filter(None, (read(reply) for read in readers)), None)


# Hosts whose `thinking` has the type `disabled`, and hosts with `enable_thinking`.
_OFF_BY_TYPE = re.compile(
    r"(^|\.)(deepseek\.com|z\.ai|bigmodel\.cn|moonshot\.(ai|cn)|volces\.com|anthropic\.com)$"
)
_BY_SWITCH = re.compile(r"(^|\.)(aliyuncs\.com|siliconflow\.(cn|com))$")


def _thinking(endpoint: Endpoint, effort: Effort) -> Fields:
    """The fields for an effort, by the documentation of the endpoint's host in 2026."""
    host = httpx2.URL(endpoint.url or "").host
    if effort == "none" and _OFF_BY_TYPE.search(host):
        return {"thinking": {"type": "disabled"}}
    if _BY_SWITCH.search(host):
        return {"enable_thinking": effort != "none"}
    if host.endswith("openrouter.ai"):
        return {"reasoning": {"enabled": False} if effort == "none" else {"effort": effort}}
    # A server without a domain is no managed API: the template of its model decides.
    if "." not in host or host.replace(".", "").isdigit():
        return {"reasoning_effort": effort, **by_template(effort)}
    return {"reasoning_effort": effort}


OTHER = Provider(
    title="any OpenAI-compatible server",
    remedies=remedies(
        "",
        enforce_schemas="say what server it is, with backend under [endpoints.{tag}]: some take a "
        "schema elsewhere",
    ),
    schema=openai_schema,
    strict_schemas=True,
    thinking=_thinking,
    counts_usage=False,
    times=_times,
    embeds=ALWAYS,
)

# --- SGLang, from version 0.5.23 of its code ------------------------------------------------------


async def _sglang_served(pages: ServerPages) -> ModelMetadata:
    return ModelMetadata(path=text_at(await pages.json("/model_info"), "model_path") or None)


SGLANG = Provider(
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
    served=_sglang_served,
    schema=nested_schema,
    tools="--tool-call-parser NAME",
    continues={"continue_final_message": True},
    cached_tokens="--enable-cache-report",
    embeds="--is-embedding",
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
        ),
        switch="--enable-metrics",
    ),
)

# --- Text Generation Inference, from version 3.3.7 of its code ------------------------------------


async def _tgi_served(pages: ServerPages) -> ModelMetadata | None:
    info = await pages.json("/info")
    path, revision = text_at(info, "model_id"), text_at(info, "model_sha")
    return ModelMetadata(path=path, fingerprint=revision or None) if path else None


TGI = Provider(
    title="Text Generation Inference",
    served=_tgi_served,
    # OpenAI's form is refused with 422, "missing field `value`".
    schema=lambda schema: {
        "response_format": {"type": "json_schema", "value": {"name": "reply", "schema": schema}}
    },
    refuses=ONLY_TOP_P,
    context=ContextReport(path="/info", keys=("max_total_tokens",)),
)

# --- TensorRT-LLM's trtllm-serve, from version 1.2 of its code ------------------------------------

# It refuses every field that it does not know, and ignores a schema that it does not enforce.
TENSORRT_LLM = Provider(
    title="TensorRT-LLM",
    # Up to 1.2.1 at least, it takes OpenAI's wrapper for the schema itself, and says nothing.
    schema=lambda schema: {"response_format": {"type": "json", "schema": schema}},
    tools="--tool_parser NAME",
    requires_calls=False,
    enforces="guided_decoding_backend in its configuration",
    cached_tokens=ALWAYS,
)

# --- TabbyAPI, which serves ExLlama, from commit e632af41 (August 2026) ---------------------------


_tabby_times = times_in("usage", "s", prefill="prompt_time", decode="completion_time")


async def _tabby_served(pages: ServerPages) -> ModelMetadata | None:
    loaded = text_at(await pages.json("/v1/model"), "id")
    if loaded and loaded != pages.model_id:
        listed = at(await pages.json(f"{pages.v1}/models"), "data")
        if row_of(listed, pages.model_id):
            # TabbyAPI may load this model for a call that names it, in place of the loaded one.
            return None
    return ModelMetadata(path=loaded) if loaded else None


# Its replies that are not streamed have no usage.
TABBYAPI = Provider(
    title="TabbyAPI (ExLlama)",
    served=_tabby_served,
    # The schema stands where others have a name and the schema.
    schema=lambda schema: {"response_format": {"type": "json_schema", "json_schema": schema}},
    times=_tabby_times,
    timings=ALWAYS,
    embeds="embedding_model_name",
    context=ContextReport(path="/v1/model", keys=("parameters", "max_seq_len")),
)

# --- MLC LLM, 79d603f0 (2026-07) ----------------------------------------------------------------

MLC = Provider(
    title="MLC LLM",
    schema=lambda schema: {
        "response_format": {"type": "json_object", "schema": json_of(schema).decode()}
    },
    # It refuses conversations in which a tool was called.
    tools=NEVER,
    thinking=None,
    refuses=ONLY_TOP_P,
    embeds="--embedding-model",
)

# --- LM Studio 0.4.21 ----------------------------------------------------------------------------


async def _lmstudio_served(pages: ServerPages) -> ModelMetadata:
    row = row_of(at(await pages.json("/api/v0/models"), "data"), pages.model_id)
    packed = packing(text_at(row, "quantization"))
    return ModelMetadata(architecture=text_at(row, "arch") or None, quantization=packed)


LMSTUDIO = Provider(
    title="LM Studio",
    refuses_tools=True,  # it has a way of its own to tell any model
    served=_lmstudio_served,
    schema=nested_schema,
    # Its pages on OpenAI's protocol do not mention `min_p`.
    refuses=frozenset({"min_p"}),
    embeds=ALWAYS,
    context=ContextReport(path="/api/v0/models", keys=("data", "loaded_context_length")),
)

# --- RunPod and Modal ------------------------------------------------------------------------
# Both start a container for the first call: a worker that runs vLLM, unless it was changed. They
# have no `served`, since that question alone would start a container.

RUNPOD = Provider(
    title="RunPod",
    schema=nested_schema,
    tools="ENABLE_AUTO_TOOL_CHOICE=true and TOOL_CALL_PARSER=NAME",
    times=vllm.times,
    timings=vllm.TIMES_SWITCH,
)

MODAL = replace(RUNPOD, title="Modal", tools=vllm.PROVIDER.tools, counts_usage=False)
