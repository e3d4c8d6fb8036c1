"""Servers that speak OpenAI's protocol and need no more than a few lines each.

`openai` stands for any other server: it looks for times wherever some server reports them, and
relies on none.
"""

from __future__ import annotations

import re
from dataclasses import replace

import httpx2
import orjson

from harness.inference.endpoint import Endpoint
from harness.inference.json_text import at, row_of, text_at
from harness.inference.model_identity import ModelMetadata
from harness.inference.model_names import packing
from harness.inference.providers import llamacpp, tabbyapi, tgi, vllm
from harness.inference.providers.openai_wire import ONLY_TOP_P, nested_schema, openai_schema
from harness.inference.providers.provider import (
    ALWAYS,
    NEVER,
    ContextReport,
    Extras,
    Fields,
    Provider,
    by_template,
    remedies,
)
from harness.inference.providers.server_host import ServerPages
from harness.inference.reply_in_progress import ServerTimings
from harness.inference.request import Effort, JsonSchema


def _times(extras: Extras) -> ServerTimings | None:
    readers = (llamacpp.times, vllm.times, tabbyapi.times, tgi.times)
    return next((told for reader in readers if (told := reader(extras))), None)


_OFF_BY_TYPE = re.compile(
    r"(^|\.)(deepseek\.com|z\.ai|bigmodel\.cn|moonshot\.(ai|cn)|volces\.com|anthropic\.com)$"
)
_BY_SWITCH = re.compile(r"(^|\.)(aliyuncs\.com|siliconflow\.(cn|com))$")


def _thinking(endpoint: Endpoint, effort: Effort) -> Fields:
    """By the host, as its documentation of 2026 has it.

    A server without a domain is somebody's own, and its template decides.
    """
    host = httpx2.URL(endpoint.url or "").host
    if _OFF_BY_TYPE.search(host):
        off = {"thinking": {"type": "disabled"}}
        return off if effort == "none" else {"reasoning_effort": effort}
    if _BY_SWITCH.search(host):
        return {"enable_thinking": effort != "none"}
    if host.endswith("openrouter.ai"):
        return {"reasoning": {"enabled": False} if effort == "none" else {"effort": effort}}
    if "." not in host or host.replace(".", "").isdigit():
        return {"reasoning_effort": effort, **by_template(effort)}
    return {"reasoning_effort": effort}


PROVIDER = Provider(
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
    health=None,
)

# --- MLC LLM, 79d603f0 (2026-07) ----------------------------------------------------------------


def _mlc_schema(schema: JsonSchema) -> Fields:
    text = orjson.dumps(schema).decode()
    return {"response_format": {"type": "json_object", "schema": text}}


MLC = Provider(
    title="MLC LLM",
    remedies=remedies(
        "start mlc_llm serve with ",
        keep_prefixes="--prefix-cache-mode radix",
        write_faster=(
            "--speculative-mode small_draft, and the draft under --additional-models",
            '--overrides "tensor_parallel_shards=2", which splits the weights over GPUs',
        ),
        fit_at_start='--overrides "tensor_parallel_shards=2"',
    ),
    schema=_mlc_schema,
    # It refuses conversations in which a tool was called.
    tools=NEVER,
    thinking=None,
    refuses=ONLY_TOP_P,
    embeds="--embedding-model",
    health=None,
)

# --- LM Studio 0.4.21 ----------------------------------------------------------------------------


async def _lmstudio_served(pages: ServerPages) -> ModelMetadata | None:
    row = row_of(at(await pages.json("/api/v0/models"), "data"), pages.model_id)
    if row is None:
        return None
    packed = packing(text_at(row, "quantization"))
    return ModelMetadata(architecture=text_at(row, "arch") or None, quantization=packed)


LMSTUDIO = Provider(
    title="LM Studio",
    refuses_tools=True,  # it has a way of its own to tell any model
    served=_lmstudio_served,
    schema=nested_schema,
    # Its pages on OpenAI's protocol do not mention `min_p`. It accepts `logprobs`, and has none.
    refuses=frozenset({"min_p"}),
    logprobs=NEVER,
    embeds=ALWAYS,
    context=ContextReport(path="/api/v0/models", keys=("data", "loaded_context_length")),
    health=None,
)

# --- RunPod and Modal ------------------------------------------------------------------------
# Both start a container for the first call: a worker that runs vLLM, unless it was changed. They
# are not asked what they serve: that alone would start one.

RUNPOD = Provider(
    title="RunPod",
    schema=nested_schema,
    tools="ENABLE_AUTO_TOOL_CHOICE=true and TOOL_CALL_PARSER=NAME",
    times=vllm.times,
    timings=vllm.TIMES_SWITCH,
    health=None,
)

MODAL = replace(RUNPOD, title="Modal", tools=vllm.PROVIDER.tools, counts_usage=False)
