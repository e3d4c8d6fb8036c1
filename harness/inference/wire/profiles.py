"""What sets servers apart: a row each, and nowhere else.

To add one that speaks OpenAI's chat protocol takes three steps: its name in `endpoint.WireName`,
its row here, and its dialect in the contract tests (`tests/inference/servers/openai_dialects.py`),
whose trials it then has to pass. `tests/inference/test_profiles.py` misses whichever is left out,
and holds every row against its dialect. Of a server that says what it has loaded,
`identity.served_metadata` knows where.

The sources of every entry are the servers' own code and documentation, by the versions named.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from harness.inference.endpoint import BackendName, WireName
from harness.inference.metrics.server_metrics import (
    LLAMA_CPP,
    SGLANG,
    TENSORRT_LLM,
    TGI,
    VLLM,
    ollama_readings,
    prometheus_readings,
)
from harness.inference.request import Message
from harness.inference.wire.openai_request import wire_messages
from harness.inference.wire.profile import (
    ALWAYS,
    NEVER,
    UNSTATED_ROOM_TOKENS,
    ContextReport,
    Fields,
    LoadControl,
    Metrics,
    Profile,
    TokenCounting,
    nested_schema,
    raw_schema,
    schema_as_text,
    schema_as_value,
    schema_beside_type,
)
from harness.inference.wire.reported_times import (
    anywhere,
    llama_timings,
    tabby_usage,
    tgi_headers,
    vllm_metrics,
)


def _conversation(model_id: str, messages: tuple[Message, ...]) -> Fields:
    return {"model": model_id, "messages": wire_messages(messages)}


def _key(name: str) -> Any:  # noqa: ANN401 - a reader of JSON
    return lambda reply: int(reply[name])


_ONLY_TOP_P = frozenset({"top_k", "min_p"})
"""What servers refuse, or take and do not mean, that have no more than OpenAI's own fields."""

_VLLM = Profile(
    # 0.32
    title="vLLM",
    schema=nested_schema,
    continues={"continue_final_message": True, "add_generation_prompt": False},
    cached_tokens="--enable-prompt-tokens-details",
    times=vllm_metrics,
    timings="--enable-per-request-metrics",
    counting=TokenCounting(path="/tokenize", body=_conversation, count=_key("count")),
    embeds="a model that embeds, or --convert embed",
    context=ContextReport(path="/v1/models", keys=("data", "max_model_len")),
    load_control=LoadControl(
        load="/wake_up",
        unload="/sleep?level=1",
        needs="--enable-sleep-mode, and VLLM_SERVER_DEV_MODE=1 in its environment",
    ),
    metrics=Metrics(path="/metrics", read=partial(prometheus_readings, table=VLLM)),
)

_ROWS: Mapping[WireName, Profile] = {
    "openai": Profile(
        title="any OpenAI-compatible server",
        schema=nested_schema,
        counts_usage=False,
        times=anywhere,
        embeds=ALWAYS,
        health=None,
    ),
    "llamacpp": Profile(
        # b11434; router mode, which is llama-server started without a model, included
        title="llama-server",
        schema=nested_schema,
        continues={},
        progress={"return_progress": True},
        cached_tokens=ALWAYS,
        times=llama_timings,
        timings=ALWAYS,
        counting=TokenCounting(
            path="/v1/chat/completions/input_tokens",
            body=_conversation,
            count=_key("input_tokens"),
        ),
        embeds="--embeddings",
        side_by_side="--parallel",
        context=ContextReport(
            path="/props", keys=("default_generation_settings", "n_ctx"), slots="total_slots"
        ),
        load_control=LoadControl(
            load="/models/load",
            unload="/models/unload",
            needs="router mode: start it without a model",
        ),
        metrics=Metrics(
            path="/metrics",
            read=partial(prometheus_readings, table=LLAMA_CPP),
            switch="--metrics",
            # llama.cpp looks whether the client of a call has gone once it has had nothing to tell
            # anyone for a second. Asked more often, it would read the prompts of cancelled calls to
            # their ends.
            pause_s=1.1,
        ),
    ),
    "vllm": _VLLM,
    "sglang": Profile(
        # 0.5.23. `/health` generates a token. `/tokenize` takes a text, not a conversation.
        title="SGLang",
        schema=nested_schema,
        continues={"continue_final_message": True},
        cached_tokens="--enable-cache-report",
        embeds="--is-embedding",
        context=ContextReport(path="/v1/models", keys=("data", "max_model_len")),
        load_control=LoadControl(
            load="/resume_memory_occupation",
            unload="/release_memory_occupation",
            needs="--enable-memory-saver",
        ),
        metrics=Metrics(
            path="/metrics",
            read=partial(prometheus_readings, table=SGLANG),
            switch="--enable-metrics",
        ),
        health="/model_info",
    ),
    "tgi": Profile(
        # 3.3.7. Its timing headers come only with replies that are not streamed.
        title="Text Generation Inference",
        schema=schema_as_value,
        refuses=_ONLY_TOP_P,
        times=tgi_headers,
        timings="stream = false",
        counting=TokenCounting(
            path="/chat_tokenize",
            body=_conversation,
            count=lambda reply: len(_dig(reply, "tokenize_response")),
        ),
        context=ContextReport(path="/info", keys=("max_total_tokens",)),
        metrics=Metrics(path="/metrics", read=partial(prometheus_readings, table=TGI)),
    ),
    "tensorrt-llm": Profile(
        # trtllm-serve 1.2. It refuses every field that it does not know; of a schema that it does
        # not enforce it takes no notice.
        title="TensorRT-LLM",
        schema=schema_beside_type,
        enforces="guided_decoding_backend in its configuration",
        cached_tokens=ALWAYS,
        load_control=LoadControl(
            load="/resume_memory", unload="/release_memory", needs="--enable_sleep_mode"
        ),
        metrics=Metrics(
            path="/prometheus/metrics",
            read=partial(prometheus_readings, table=TENSORRT_LLM),
            switch="return_perf_metrics: true and enable_iter_perf_stats: true",
        ),
    ),
    "tabbyapi": Profile(
        # e632af41 (2026-08). Replies that are not streamed come without usage.
        title="TabbyAPI (ExLlama)",
        schema=raw_schema,
        times=tabby_usage,
        timings=ALWAYS,
        counting=TokenCounting(
            path="/v1/token/encode",
            body=lambda _model_id, messages: {"text": wire_messages(messages)},
            count=_key("length"),
        ),
        embeds="embedding_model_name",
        context=ContextReport(path="/v1/model", keys=("parameters", "max_seq_len")),
        load_control=LoadControl(
            load="/v1/model/load", unload="/v1/model/unload", needs="the admin key"
        ),
    ),
    "mlc": Profile(
        # 79d603f0 (2026-07)
        title="MLC LLM",
        schema=schema_as_text,
        refuses=_ONLY_TOP_P,
        embeds="--embedding-model",
        health=None,
    ),
    "triton-openai": Profile(
        # 2.73. Log probabilities and embeddings with its vLLM backend only; every reply ends with
        # "stop", one that the token limit cut included.
        title="Triton's OpenAI front end",
        room_tokens=UNSTATED_ROOM_TOKENS,
        refuses=_ONLY_TOP_P,
        counts_usage=False,
        logprobs="the vLLM backend",
        embeds="the vLLM backend",
        embeds_one_by_one=True,
        load_control=LoadControl(
            load="/v1/models/{model}/load",
            unload="/v1/models/{model}/unload",
            needs="--model-control-mode=explicit",
        ),
        health="/health/ready",
    ),
    "lmstudio": Profile(
        # 0.4.21. It takes `logprobs` without a word, and has none; of `min_p` its pages on OpenAI's
        # protocol do not speak.
        title="LM Studio",
        schema=nested_schema,
        refuses=frozenset({"min_p"}),
        logprobs=NEVER,
        embeds=ALWAYS,
        context=ContextReport(path="/api/v0/models", keys=("data", "loaded_context_length")),
        health=None,
    ),
    # Both start a container for the first call: a worker that runs vLLM, unless it was changed.
    "runpod": Profile(
        title="RunPod",
        schema=nested_schema,
        times=vllm_metrics,
        timings="--enable-per-request-metrics",
        health=None,
    ),
    "modal": Profile(
        title="Modal",
        schema=nested_schema,
        counts_usage=False,
        times=vllm_metrics,
        timings="--enable-per-request-metrics",
        health=None,
    ),
}

_OTHERS: Mapping[BackendName, Profile] = {
    # What is not said here, their own wires know.
    "ollama": Profile(
        title="Ollama",
        cached_tokens="an Ollama newer than 0.33.2",
        timings=ALWAYS,
        embeds=ALWAYS,
        side_by_side="OLLAMA_NUM_PARALLEL in its environment",
        metrics=Metrics(path="/api/ps", read=ollama_readings),
        health="/",
    ),
    "triton": Profile(
        title="Triton",
        load_control=LoadControl(
            load="/v2/repository/models/{model}/load",
            unload="/v2/repository/models/{model}/unload",
            needs="--model-control-mode=explicit",
        ),
        health="/v2/health/ready",
    ),
    "embedded": Profile(
        title="llama.cpp in this process",
        cached_tokens=ALWAYS,
        timings=ALWAYS,
        side_by_side="slots",
    ),
}

PROFILES: Mapping[str, Profile] = dict([*_ROWS.items(), *_OTHERS.items()])
"""By `Endpoint.backend`, of all but those that this package has nothing to say about."""


def _dig(reply: Any, name: str) -> Any:  # noqa: ANN401 - JSON
    return reply[name]
