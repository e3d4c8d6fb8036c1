"""The servers that speak OpenAI's chat protocol: a row each.

To add one, write its row, its name in `endpoint.WireName`, and its dialect in the contract tests.
The sources of every entry are the servers' own code and documentation, by the versions named.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.inference.endpoint import WireName
from harness.inference.message import Message
from harness.inference.wire.profile import (
    ALWAYS,
    NEVER,
    ContextReport,
    Fields,
    LoadControl,
    Offer,
    Profile,
    TokenCounting,
    nested_schema,
    raw_schema,
    schema_as_text,
    schema_as_value,
    schema_beside_type,
)


def _as_wire(messages: tuple[Message, ...]) -> list[dict[str, str]]:
    return [{"role": m.role, "content": m.content} for m in messages]


def _conversation(model_id: str, messages: tuple[Message, ...]) -> Fields:
    return {"model": model_id, "messages": _as_wire(messages)}


def _key(name: str) -> Any:  # noqa: ANN401 - a reader of JSON
    return lambda reply: int(reply[name])


_VLLM = Profile(
    # 0.32
    title="vLLM",
    schema=nested_schema,
    cached_tokens=Offer(given=False, switch="--enable-prompt-tokens-details"),
    timings=Offer(given=False, switch="--enable-per-request-metrics"),
    counting=TokenCounting(path="/tokenize", body=_conversation, count=_key("count")),
    embeds=Offer(given=False, switch="a model that embeds, or --convert embed"),
    context=ContextReport(path="/v1/models", keys=("data", "max_model_len")),
    load_control=LoadControl(
        load="/wake_up",
        unload="/sleep?level=1",
        needs="--enable-sleep-mode, and VLLM_SERVER_DEV_MODE=1 in its environment",
    ),
    metrics="/metrics",
)

_ROWS: Mapping[WireName, Profile] = {
    "openai": Profile(
        title="any OpenAI-compatible server",
        schema=nested_schema,
        counts_usage=False,
        embeds=ALWAYS,
        health=None,
    ),
    "llamacpp": Profile(
        # b11434; router mode, which is llama-server started without a model, included
        title="llama-server",
        schema=nested_schema,
        cached_tokens=ALWAYS,
        timings=ALWAYS,
        counting=TokenCounting(
            path="/v1/chat/completions/input_tokens",
            body=_conversation,
            count=_key("input_tokens"),
        ),
        embeds=Offer(given=False, switch="--embeddings"),
        context=ContextReport(path="/props", keys=("default_generation_settings", "n_ctx")),
        load_control=LoadControl(
            load="/models/load",
            unload="/models/unload",
            needs="router mode: start it without a model",
        ),
        metrics="/metrics",
        metrics_switch="--metrics",
    ),
    "vllm": _VLLM,
    "sglang": Profile(
        # 0.5.23. `/health` generates a token. `/tokenize` takes a text, not a conversation.
        title="SGLang",
        schema=nested_schema,
        cached_tokens=Offer(given=False, switch="--enable-cache-report"),
        embeds=Offer(given=False, switch="--is-embedding"),
        context=ContextReport(path="/v1/models", keys=("data", "max_model_len")),
        load_control=LoadControl(
            load="/resume_memory_occupation",
            unload="/release_memory_occupation",
            needs="--enable-memory-saver",
        ),
        metrics="/metrics",
        metrics_switch="--enable-metrics",
        health="/model_info",
    ),
    "tgi": Profile(
        # 3.3.7. Its timing headers come only with replies that are not streamed.
        title="Text Generation Inference",
        schema=schema_as_value,
        timings=Offer(given=False, switch="stream = false"),
        counting=TokenCounting(
            path="/chat_tokenize",
            body=_conversation,
            count=lambda reply: len(_dig(reply, "tokenize_response")),
        ),
        context=ContextReport(path="/info", keys=("max_total_tokens",)),
        metrics="/metrics",
    ),
    "tensorrt-llm": Profile(
        # trtllm-serve 1.2. It refuses every field that it does not know, and enforces a schema only
        # with `guided_decoding_backend` in its configuration: without, it takes no notice.
        title="TensorRT-LLM",
        schema=schema_beside_type,
        cached_tokens=ALWAYS,
        load_control=LoadControl(
            load="/resume_memory", unload="/release_memory", needs="--enable_sleep_mode"
        ),
        metrics="/prometheus/metrics",
        metrics_switch="return_perf_metrics: true and enable_iter_perf_stats: true",
    ),
    "tabbyapi": Profile(
        # e632af41 (2026-08). Replies that are not streamed come without usage.
        title="TabbyAPI (ExLlama)",
        schema=raw_schema,
        timings=ALWAYS,
        counting=TokenCounting(
            path="/v1/token/encode",
            body=lambda _model_id, messages: {"text": _as_wire(messages)},
            count=_key("length"),
        ),
        embeds=Offer(given=False, switch="embedding_model_name"),
        context=ContextReport(path="/v1/model", keys=("parameters", "max_seq_len")),
        load_control=LoadControl(
            load="/v1/model/load", unload="/v1/model/unload", needs="the admin key"
        ),
    ),
    "mlc": Profile(
        # 79d603f0 (2026-07)
        title="MLC LLM",
        schema=schema_as_text,
        embeds=Offer(given=False, switch="--embedding-model"),
        metrics=None,
        health=None,
    ),
    "triton-openai": Profile(
        # 2.73. Log probabilities and embeddings with its vLLM backend only; every reply ends with
        # "stop", one that the token limit cut included.
        title="Triton's OpenAI front end",
        schema=None,
        structured="ignored",
        counts_usage=False,
        logprobs=Offer(given=False, switch="the vLLM backend"),
        embeds=Offer(given=False, switch="the vLLM backend"),
        embeds_one_by_one=True,
        load_control=LoadControl(
            load="/v1/models/{model}/load",
            unload="/v1/models/{model}/unload",
            needs="--model-control-mode=explicit",
        ),
        health="/health/ready",
    ),
    "lmstudio": Profile(
        # 0.4.21. It takes `logprobs` without a word, and has none.
        title="LM Studio",
        schema=nested_schema,
        logprobs=NEVER,
        embeds=ALWAYS,
        context=ContextReport(path="/api/v0/models", keys=("data", "loaded_context_length")),
        health=None,
    ),
    # Both start a container for the first call: a worker that runs vLLM, unless it was changed.
    "runpod": Profile(title="RunPod", schema=nested_schema, health=None),
    "modal": Profile(title="Modal", schema=nested_schema, counts_usage=False, health=None),
}

PROFILES: Mapping[str, Profile] = dict(_ROWS.items())
"""By `Endpoint.backend`."""


def _dig(reply: Any, name: str) -> Any:  # noqa: ANN401 - JSON
    return reply[name]
