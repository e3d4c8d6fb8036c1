"""Servers that speak OpenAI's protocol and need no more than a few lines each.

`openai` stands for any server whose kind is not known: it looks for times wherever some server
reports them, and relies on none.
"""

from __future__ import annotations

import orjson

from harness.inference.model_identity import ModelMetadata
from harness.inference.model_names import packing
from harness.inference.providers import llamacpp, tabbyapi, tgi, vllm
from harness.inference.providers.openai_wire import ONLY_TOP_P, nested_schema
from harness.inference.providers.pages import Page, ServerPages, row_of
from harness.inference.providers.provider import (
    ALWAYS,
    NEVER,
    Aim,
    ContextReport,
    Extras,
    Fields,
    Provider,
    Remedies,
    remedies,
)
from harness.inference.providers.serving import Launch, Serving, launched, quoted
from harness.inference.reply_in_progress import ServerTimings
from harness.inference.request import JsonSchema


def _times(extras: Extras) -> ServerTimings | None:
    readers = (llamacpp.times, vllm.times, tabbyapi.times, tgi.times)
    return next((told for reader in readers if (told := reader(extras))), None)


REMEDIES: Remedies = {
    Aim.ENFORCE_SCHEMAS: (
        "say what server it is, with backend under [endpoints.{tag}]: some take a schema elsewhere",
    ),
}

PROVIDER = Provider(
    title="any OpenAI-compatible server",
    remedies=REMEDIES,
    schema=nested_schema,
    counts_usage=False,
    times=_times,
    embeds=ALWAYS,
    health=None,
)

# --- MLC LLM, 79d603f0 (2026-07) ----------------------------------------------------------------


def _mlc_schema(schema: JsonSchema) -> Fields:
    text = orjson.dumps(schema).decode()
    return {"response_format": {"type": "json_object", "schema": text}}


def _mlc_launch(serving: Serving) -> Launch:
    engine = f"context_window_size={serving.context_tokens};max_num_sequence={serving.sequences}"
    if serving.tensor_parallel > 1:
        engine += f";tensor_parallel_shards={serving.tensor_parallel}"
    return launched(
        serving,
        f"mlc_llm serve {quoted(serving.model)} --mode server",
        {
            "context_tokens": "",  # with the next
            "tensor_parallel": "",
            "sequences": f'--overrides "{engine}"',
            "port": f"--port {serving.port}",
        },
        backend="mlc",
        port=8000,
        model_id=serving.model,
    )


MLC = Provider(
    title="MLC LLM",
    launch=_mlc_launch,
    remedies=remedies(
        "start mlc_llm serve with ",
        {
            Aim.KEEP_PREFIXES: "--prefix-cache-mode radix",
            Aim.WRITE_FASTER: (
                "--speculative-mode small_draft, and the draft under --additional-models",
                '--overrides "tensor_parallel_shards=2", which splits the weights over GPUs',
            ),
            Aim.FIT_AT_START: '--overrides "tensor_parallel_shards=2"',
            Aim.DRAFT_BETTER: "--speculative-mode disable, or a draft of the same family",
        },
    ),
    schema=_mlc_schema,
    # It refuses conversations in which a tool was called.
    tools=NEVER,
    refuses=ONLY_TOP_P,
    embeds="--embedding-model",
    health=None,
)

# --- LM Studio 0.4.21 ----------------------------------------------------------------------------


class _Model(Page):
    id: str
    arch: str = ""
    quantization: str = ""


class _Models(Page):
    data: tuple[_Model, ...]


async def _lmstudio_served(pages: ServerPages) -> ModelMetadata | None:
    models = await pages.page(_Models, f"{pages.root}/api/v0/models")
    row = row_of(models.data if models else (), pages.model_id)
    if row is None:
        return None
    return ModelMetadata(architecture=row.arch or None, quantization=packing(row.quantization))


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

MODAL = Provider(
    title="Modal",
    schema=nested_schema,
    tools=vllm.PROVIDER.tools,
    counts_usage=False,
    times=vllm.times,
    timings=vllm.TIMES_SWITCH,
    health=None,
)
