"""The servers that speak OpenAI's chat protocol, each in its own words: a row per `WireName`.

By their own code and documentation, of the versions that the rows name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from servers.openai_server import (
    CACHED_TOKENS,
    CONTEXT_TOKENS,
    LONG_PROMPT_TOKENS,
    MODEL,
    Complaint,
    Dialect,
)

from harness.inference.endpoint import WireName

Format = Mapping[str, Any]
"""A request's `response_format`."""

_MODELS = {"object": "list", "data": [{"id": MODEL, "object": "model"}]}
_MODELS_WITH_LENGTH = {
    "object": "list",
    "data": [{"id": MODEL, "object": "model", "max_model_len": CONTEXT_TOKENS}],
}


# --- the shapes of an error ------------------------------------------------------------------


def _nested(complaint: Complaint) -> object:
    error = {"message": complaint.message, "type": complaint.kind, "code": complaint.code}
    return {"error": error | dict(complaint.more)}


def _flat(complaint: Complaint) -> object:
    more = {"type": complaint.kind, "code": complaint.status}
    return {"object": "error", "message": complaint.message, **more}


def _flat_in_error(complaint: Complaint) -> object:
    return {"error": _flat(complaint)}


def _json_in_json(complaint: Complaint) -> object:
    return json.dumps({"object": "error", "message": complaint.message, "code": None})


def _detail(complaint: Complaint) -> object:
    return {"detail": complaint.message}


def _tgi(complaint: Complaint) -> object:
    return {"error": complaint.message, "error_type": complaint.kind}


def _tgi_event(complaint: Complaint) -> object:
    # Whatever it is, as far as a stream is told.
    return {"error": {"message": complaint.message, "http_status_code": 422}}


def _tabby(complaint: Complaint) -> object:
    return _nested(complaint) if complaint.code else _detail(complaint)


def _tabby_event(complaint: Complaint) -> object:
    return {"error": {"message": complaint.message, "trace": None}}


def _lm_studio(complaint: Complaint) -> object:
    return _nested(complaint) if complaint.code else {"error": complaint.message}


# --- where a schema is looked for ------------------------------------------------------------


def _in_wrapper(said: Format) -> object:
    """A schema without OpenAI's wrapper is taken, and no notice of it."""
    return said.get("json_schema", {}).get("schema")


def _in_value(said: Format) -> object:
    return said.get("value", {}).get("schema")


def _beside_type(said: Format) -> object:
    # What is in `json_schema` is taken for the schema; a wrapper there demands nothing.
    unwrapped = said.get("json_schema", {})
    return said.get("schema") or (unwrapped if "properties" in unwrapped else None)


def _raw(said: Format) -> object:
    schema = said.get("json_schema", {})
    return schema if "properties" in schema else None


def _as_text(said: Format) -> object:
    schema = said.get("schema")
    return json.loads(schema) if isinstance(schema, str) else None


def _nowhere(said: Format) -> object:
    return None


# --- the servers -----------------------------------------------------------------------------

_OPENAI_OVERFLOW = Complaint(
    status=400,
    message=f"This model's maximum context length is {CONTEXT_TOKENS} tokens. However, your "
    f"messages resulted in {LONG_PROMPT_TOKENS} tokens. Please reduce the length of the messages.",
    kind="invalid_request_error",
    code="context_length_exceeded",
)

_VLLM_OVERFLOW = (
    f"This model's maximum context length is {CONTEXT_TOKENS} tokens. However, your prompt "
    f"contains at least {CONTEXT_TOKENS + 1} input tokens, which exceeds this limit even without "
    "any output tokens. Please reduce the length of the input prompt. "
    f"(parameter=input_tokens, value={CONTEXT_TOKENS + 1})"
)
"""It does not count further than it has to."""
_VLLM = Dialect(
    # Seen live.
    version="0.32.0",
    body=_nested,
    event=_nested,
    done_after_error=True,
    schema=_in_wrapper,
    first_delta={"role": "assistant", "content": ""},
    finish="last token",
    no_tools=Complaint(
        status=400,
        message='"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to '
        "be set",
        code=400,
    ),
    # Null without --enable-prompt-tokens-details and --enable-per-request-metrics.
    usage={"prompt_tokens_details": None},
    beside_usage={"metrics": None},
    thought="reasoning",
    overflow=Complaint(status=400, message=_VLLM_OVERFLOW, code=400),
    unknown_model=Complaint(
        status=404,
        message=f"The model `{MODEL}` does not exist. Valid aliases: another.",
        kind="NotFoundError",
        code=404,
    ),
    counts={"/tokenize": lambda _asked, count: {"count": count}},
    pages={"/health": None, "/v1/models": _MODELS_WITH_LENGTH},
)

DIALECTS: Mapping[WireName, Dialect] = {
    "openai": Dialect(
        version="OpenAI's API of 2026-10",
        body=_nested,
        event=_nested,
        done_after_error=False,
        schema=_in_wrapper,
        first_delta={"role": "assistant", "content": "", "refusal": None},
        null_usage=True,
        usage={
            "prompt_tokens_details": {"cached_tokens": CACHED_TOKENS},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
        overflow=_OPENAI_OVERFLOW,
        unknown_model=Complaint(
            status=404,
            message=f"The model `{MODEL}` does not exist or you do not have access to it.",
            kind="invalid_request_error",
            code="model_not_found",
        ),
        overload=Complaint(
            status=429,
            message="Rate limit reached for requests",
            kind="requests",
            code="rate_limit_exceeded",
            headers=(("retry-after", "7"),),
        ),
    ),
    "llamacpp": Dialect(
        version="b11549",
        body=_nested,
        event=_nested,
        done_after_error=False,
        schema=_in_wrapper,
        first_delta={"role": "assistant", "content": None},
        usage={"prompt_tokens_details": {"cached_tokens": CACHED_TOKENS}},
        beside_usage={"timings": {"prompt_ms": 30.0, "predicted_ms": 18.5}},
        overflow=Complaint(
            status=400,
            message=f"request ({LONG_PROMPT_TOKENS} tokens) exceeds the available context size "
            f"({CONTEXT_TOKENS} tokens), try increasing it",
            kind="exceed_context_size_error",
            code=400,
            more={"n_prompt_tokens": LONG_PROMPT_TOKENS, "n_ctx": CONTEXT_TOKENS},
        ),
        counts={"/v1/chat/completions/input_tokens": lambda _asked, count: {"input_tokens": count}},
        pages={
            "/health": {"status": "ok"},
            "/props": {"default_generation_settings": {"n_ctx": CONTEXT_TOKENS}, "total_slots": 4},
            "/v1/models": _MODELS,
        },
    ),
    "vllm": _VLLM,
    "sglang": Dialect(
        version="0.5.23",
        body=_flat,
        event=_flat_in_error,
        done_after_error=True,
        schema=_in_wrapper,
        first_delta={"role": "assistant", "content": "", "reasoning_content": None},
        usage={"prompt_tokens_details": None, "reasoning_tokens": 0},
        overflow=Complaint(
            status=400,
            message=f"The input ({LONG_PROMPT_TOKENS} tokens) is longer than the model's context "
            f"length ({CONTEXT_TOKENS} tokens).",
            told_late=True,
        ),
        pages={
            "/health": None,
            "/model_info": {"model_path": MODEL, "is_generation": True},
            "/v1/models": _MODELS_WITH_LENGTH,
        },
    ),
    "tgi": Dialect(
        version="3.3.7",
        body=_tgi,
        event=_tgi_event,
        done_after_error=True,
        schema=_in_value,
        finish="last token",
        thought="<think>",
        calls="one",
        overflow=Complaint(
            status=422,
            message=f"Input validation error: `inputs` tokens + `max_new_tokens` must be <= "
            f"{CONTEXT_TOKENS}. Given: {LONG_PROMPT_TOKENS} `inputs` tokens and 512 "
            "`max_new_tokens`",
            kind="validation",
            told_late=True,
        ),
        overload=Complaint(
            status=429, message="Model is overloaded", kind="overloaded", told_late=True
        ),
        embeds="nothing",
        counts={"/chat_tokenize": lambda _asked, count: {"tokenize_response": [{"id": 1}] * count}},
        pages={
            "/health": None,
            "/info": {"model_id": MODEL, "max_total_tokens": CONTEXT_TOKENS, "version": "3.3.7"},
            "/v1/models": _MODELS,
        },
    ),
    "tensorrt-llm": Dialect(
        version="1.2.1",
        body=_flat,
        event=_flat_in_error,
        done_after_error=False,
        schema=_beside_type,
        knows="messages model frequency_penalty presence_penalty logprobs top_logprobs max_tokens "
        "response_format seed stop stream stream_options temperature top_p top_k min_p "
        "tools tool_choice",
        first_delta={"role": "assistant", "content": ""},
        usage={"prompt_tokens_details": {"cached_tokens": CACHED_TOKENS}},
        overflow=Complaint(
            status=400,
            message=f"The sum of prompt length ({LONG_PROMPT_TOKENS}), query length (0) should "
            f"not exceed max_num_tokens ({CONTEXT_TOKENS})",
        ),
        embeds="nothing",
        pages={"/health": None, "/v1/models": _MODELS},
    ),
    "tabbyapi": Dialect(
        version="e632af41 (2026-08)",
        body=_tabby,
        event=_tabby_event,
        done_after_error=False,
        schema=_raw,
        calls="whole",
        finish="usage chunk",
        usage={"prompt_time": 0.03, "completion_time": 0.02},
        counts_usage="streamed",
        overflow=Complaint(
            status=400,
            message=f"Prompt length {LONG_PROMPT_TOKENS} exceeds the available context size of "
            f"{CONTEXT_TOKENS} tokens",
            kind="invalid_request_error",
            code="context_length_exceeded",
        ),
        counts={"/v1/token/encode": lambda _asked, count: {"length": count}},
        pages={
            "/health": {"status": "healthy", "issues": []},
            "/v1/model": {"id": MODEL, "parameters": {"max_seq_len": CONTEXT_TOKENS}},
            "/v1/models": _MODELS,
        },
    ),
    "mlc": Dialect(
        version="79d603f0 (2026-07)",
        body=_json_in_json,
        event=_flat_in_error,
        done_after_error=False,
        schema=_as_text,
        thought="<think>",
        usage={"extra": None},
        overflow=Complaint(
            status=400,
            message=f"Request prompt has {LONG_PROMPT_TOKENS} tokens in total, larger than the "
            f"model input length limit {CONTEXT_TOKENS}.",
        ),
        unknown_model=Complaint(
            status=400, message=f'The requested model "{MODEL}" is not served.'
        ),
        pages={"/v1/models": _MODELS},
    ),
    "triton-openai": Dialect(
        version="2.73",
        body=_detail,
        event=None,
        done_after_error=False,
        schema=_nowhere,
        knows="messages model frequency_penalty presence_penalty logprobs top_logprobs max_tokens "
        "response_format seed stop stream stream_options temperature top_p "
        "tools tool_choice",
        first_delta={"role": "assistant", "content": "", "function_call": None},
        cut_by_limit="stop",
        thought="<think>",
        overflow=Complaint(status=500, message=_VLLM_OVERFLOW, told_late=True),
        unknown_model=Complaint(status=400, message=f"Unknown model: {MODEL}"),
        overload=Complaint(status=500, message="Exceeds maximum queue size"),
        embeds="one text",
        pages={"/health/ready": None, "/v1/models": _MODELS},
    ),
    "lmstudio": Dialect(
        version="0.4.21",
        body=_lm_studio,
        event=_lm_studio,
        done_after_error=False,
        schema=_in_wrapper,
        overflow=Complaint(
            status=400,
            message="The number of tokens to keep from the initial prompt is greater than the "
            f"context length (n_keep: {LONG_PROMPT_TOKENS}>= n_ctx: {CONTEXT_TOKENS}). Try to load "
            "the model with a larger context length, or provide a shorter input",
            told_late=True,
        ),
        unknown_model=Complaint(
            status=400,
            message=f'Invalid model identifier "{MODEL}". Please specify a valid downloaded model',
            kind="invalid_request_error",
            code="model_not_found",
        ),
        pages={
            "/api/v0/models": {
                "object": "list",
                "data": [{"id": MODEL, "loaded_context_length": CONTEXT_TOKENS}],
            },
            "/v1/models": _MODELS,
        },
    ),
    "runpod": replace(_VLLM, version="worker-vllm"),
    "modal": replace(_VLLM, version="vLLM in a container"),
}
