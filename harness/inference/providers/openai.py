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
    ContextReport,
    Extras,
    Fields,
    Provider,
)
from harness.inference.reply_in_progress import ServerTimings
from harness.inference.request import JsonSchema


def _times(extras: Extras) -> ServerTimings | None:
    readers = (llamacpp.times, vllm.times, tabbyapi.times, tgi.times)
    return next((told for reader in readers if (told := reader(extras))), None)


PROVIDER = Provider(
    title="any OpenAI-compatible server",
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


MLC = Provider(
    title="MLC LLM",
    schema=_mlc_schema,
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
    times=vllm.times,
    timings=vllm.TIMES_SWITCH,
    health=None,
)

MODAL = Provider(
    title="Modal",
    schema=nested_schema,
    counts_usage=False,
    times=vllm.times,
    timings=vllm.TIMES_SWITCH,
    health=None,
)
