"""TabbyAPI, which serves ExLlama, from commit e632af41 (August 2026).

Its replies that are not streamed have no usage.
"""

from __future__ import annotations

from harness.inference.json_text import at, row_of, text_at
from harness.inference.model_identity import ModelMetadata
from harness.inference.providers.provider import (
    ALWAYS,
    ContextReport,
    Extras,
    Provider,
    remedies,
    s_as_ns,
)
from harness.inference.providers.server_host import ServerPages
from harness.inference.reply_in_progress import ServerTimings


def times(extras: Extras) -> ServerTimings | None:
    """Fields of the usage, in seconds."""
    prefill_ns = s_as_ns(extras.usage.get("prompt_time"))
    if prefill_ns is None:
        return None
    return ServerTimings(
        prefill_ns=prefill_ns, decode_ns=s_as_ns(extras.usage.get("completion_time"))
    )


async def _served(pages: ServerPages) -> ModelMetadata | None:
    loaded = text_at(await pages.json("/v1/model"), "id")
    # It may load a listed model when a call names it: then the loaded one tells nothing.
    if loaded and loaded != pages.model_id:
        listed = at(await pages.json(f"{pages.v1}/models"), "data")
        loaded = "" if row_of(listed, pages.model_id) else loaded
    return ModelMetadata(path=loaded) if loaded else None


PROVIDER = Provider(
    title="TabbyAPI (ExLlama)",
    remedies=remedies(
        "in TabbyAPI's config.yml: ",
        more_kv_room="cache_mode: Q8, which halves the cache",
        write_faster="draft_mode: ngram, or mtp for a model that has it",
        fit_at_start="cache_mode: Q8, which halves the cache",
        fit_later="cache_mode: Q8, which halves the cache",
    ),
    served=_served,
    # The schema stands where others have a name and the schema.
    schema=lambda schema: {"response_format": {"type": "json_schema", "json_schema": schema}},
    times=times,
    timings=ALWAYS,
    embeds="embedding_model_name",
    context=ContextReport(path="/v1/model", keys=("parameters", "max_seq_len")),
)
