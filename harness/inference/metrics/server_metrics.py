"""What model servers say about themselves, read into counters. Parses only; asks nobody.

The same quantity has the same name whichever server it comes from.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import BaseModel, PositiveInt, TypeAdapter


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A quantity at one moment."""

    name: str
    """What it is, in words."""
    unit: str
    """What it is counted in; a `share` lies between 0 and 1."""
    value: float
    """How much of it there is."""
    total: bool = False
    """Whether it only ever counts up, from when the server began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A quantity as Prometheus text holds it: in one sample, or spread over several."""

    name: str
    """As in `Reading`."""
    unit: str
    """As in `Reading`."""
    combine: Literal["sum", "max"] = "sum"
    """How samples with different labels, such as a server's engines, make one value."""
    total: bool = False
    """As in `Reading`."""


_RUNNING = Metric(name="running", unit="requests")
_WAITING = Metric(name="waiting", unit="requests")
_KV_CACHE = Metric(name="KV cache", unit="share", combine="max")
_PREEMPTIONS = Metric(name="preempted", unit="requests", total=True)
_PROMPT = Metric(name="prompt", unit="tokens", total=True)
_CACHED = Metric(name="cached prompt", unit="tokens", total=True)
_GENERATED = Metric(name="generated", unit="tokens", total=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What a kind of server has of them, in Prometheus text."""

    rows: tuple[tuple[str, Metric], ...]
    """Names, and the quantity that each is, or is a part of."""
    from_the_start: bool = True
    """Whether they are there before the server's first call."""


VLLM = Table(
    rows=(
        ("vllm:num_requests_running", _RUNNING),
        ("vllm:num_requests_waiting", _WAITING),
        ("vllm:kv_cache_usage_perc", _KV_CACHE),  # 0 to 1, for all its name
        ("vllm:num_preemptions_total", _PREEMPTIONS),
        ("vllm:prompt_tokens_total", _PROMPT),
        ("vllm:prompt_tokens_cached_total", _CACHED),
        ("vllm:generation_tokens_total", _GENERATED),
    ),
)
SGLANG = Table(
    rows=(
        ("sglang:num_running_reqs", _RUNNING),
        ("sglang:num_queue_reqs", _WAITING),
        ("sglang:token_usage", _KV_CACHE),
        ("sglang:num_retracted_requests_total", _PREEMPTIONS),
        ("sglang:prompt_tokens_total", _PROMPT),  # as all tokens here, when a reply ends
        ("sglang:cached_tokens_total", _CACHED),  # by where they were cached
        ("sglang:generation_tokens_total", _GENERATED),
    ),
    from_the_start=False,
)
TGI = Table(
    rows=(
        ("tgi_batch_current_size", _RUNNING),
        ("tgi_queue_size", _WAITING),
        # It has no totals of tokens, but histograms of them per request, and these have sums.
        ("tgi_request_input_length_sum", _PROMPT),
        ("tgi_request_generated_tokens_sum", _GENERATED),
    ),
    from_the_start=False,
)
TENSORRT_LLM = Table(
    rows=(
        ("trtllm_num_requests_running", _RUNNING),
        ("trtllm_num_active_requests", _RUNNING),  # another release's name for it
        ("trtllm_num_requests_waiting", _WAITING),
        ("trtllm_server_queue_length", _WAITING),  # likewise
        ("trtllm_kv_cache_utilization", _KV_CACHE),
        ("trtllm_prompt_tokens_total", _PROMPT),
        ("trtllm_prompt_cached_tokens_total", _CACHED),
        ("trtllm_generation_tokens_total", _GENERATED),
    ),
    from_the_start=False,
)
LLAMA_CPP = Table(
    rows=(
        ("llamacpp:requests_processing", _RUNNING),
        ("llamacpp:requests_deferred", _WAITING),
        ("llamacpp:prompt_tokens_total", _PROMPT),  # those that were computed, and so
        ("llamacpp:prompt_tokens_cached_total", _PROMPT),  # these belong to them
        ("llamacpp:prompt_tokens_cached_total", _CACHED),
        ("llamacpp:tokens_predicted_total", _GENERATED),  # added when a reply ends
    ),
)

_SAMPLE = re.compile(
    r"""
    ^ ([a-zA-Z_:][\w:]*)                                            # the name
    (?: [ \t]*\{ (?: [^"}\n] | "(?:[^"\\\n]|\\.)*" )* \} [ \t]*    # labels; anything in quotes
      | [ \t]+ )
    (\S+)                                                          # the value; a time may follow
    """,
    re.MULTILINE | re.VERBOSE,
)
_PROMETHEUS = re.compile(r"\s*(?:\#|[a-zA-Z_:][\w:]*[ \t{]|$)")
"""How such a text begins."""


def prometheus_readings(body: bytes, table: Table) -> tuple[Reading, ...]:
    """What the table names, as far as the text has it. NaN and infinities are no values.

    Raises:
        ValueError: It has nothing of it though it should, or is no such text, or a value is no
            number.
    """
    text = body.decode(errors="replace")
    names = {name for name, _ in table.rows}
    samples: dict[str, list[float]] = {}
    for name, value in _SAMPLE.findall(text):
        if name in names:
            samples.setdefault(name, []).append(float(value))
    if not samples and (table.from_the_start or not _PROMETHEUS.match(text)):
        raise ValueError(f"none of {', '.join(sorted(names))} in it")
    values: dict[Metric, list[float]] = {}
    for name, metric in table.rows:
        values.setdefault(metric, []).extend(filter(math.isfinite, samples.get(name, ())))
    return tuple(
        Reading(
            name=metric.name,
            unit=metric.unit,
            value=sum(found) if metric.combine == "sum" else max(found),
            total=metric.total,
        )
        for metric, found in values.items()
        if found
    )


class _Slot(BaseModel):
    n_ctx: PositiveInt
    is_processing: bool
    n_prompt_tokens: int | None = None
    """In truth, prompt and reply so far; missing until the slot's first request."""


_SLOTS = TypeAdapter(list[_Slot])


def slot_readings(body: bytes) -> tuple[Reading, ...]:
    """How full the context of all slots is, from llama.cpp's `/slots`.

    Only what requests under way hold counts, as in vLLM: what earlier ones left behind gives way.
    It is right only where each slot has a context of its own. Where they share one
    (`--kv-unified`), each slot reports the whole of it, and nothing tells.

    Raises:
        ValueError: It is not what `/slots` answers.
    """
    slots = _SLOTS.validate_json(body)
    held = [slot.n_prompt_tokens for slot in slots if slot.is_processing]
    if not slots or None in held:
        return ()
    share = sum(filter(None, held)) / sum(slot.n_ctx for slot in slots)
    return (Reading(name=_KV_CACHE.name, unit=_KV_CACHE.unit, value=share),)


class _LoadedModel(BaseModel):
    size: int
    size_vram: int = 0


class _LoadedModels(BaseModel):
    models: list[_LoadedModel]


def ollama_readings(body: bytes) -> tuple[Reading, ...]:
    """What all loaded models take, from Ollama's `/api/ps`.

    Raises:
        ValueError: It is not what `/api/ps` answers.
    """
    models = _LoadedModels.model_validate_json(body).models
    return (
        Reading(name="resident", unit="bytes", value=sum(m.size for m in models)),
        Reading(name="resident on GPU", unit="bytes", value=sum(m.size_vram for m in models)),
    )


class RunTotals:
    """Lets totals begin at 0 with the run: the server may have served others for days.

    Adds what share of the run's prompt tokens came out of the prefix cache. Of the last interval
    that would mean little: llama.cpp counts cached tokens when a prompt begins, and the others as
    they are computed. Over the run it comes right whenever a prompt ends.
    """

    def __init__(self) -> None:
        self._asked = False
        self._seen: dict[str, float] = {}
        self._grown: dict[str, float] = {}

    def counted(self, readings: Iterable[Reading], *, fresh: bool) -> tuple[Reading, ...]:
        """The same readings, with totals since the run began.

        Args:
            readings: As the server counts.
            fresh: Whether the server has itself begun since the last ones.
        """
        since = [self._since(reading, fresh=fresh) for reading in readings]
        self._asked = True
        return (*since, *self._hits())

    def _since(self, reading: Reading, *, fresh: bool) -> Reading:
        if not reading.total:
            return reading
        name, now = reading.name, reading.value
        # Some totals appear only when there is something to count.
        seen = 0.0 if fresh else self._seen.get(name, 0.0 if self._asked else now)
        # A total that has fallen belongs to a server that began anew.
        self._grown[name] = self._grown.get(name, 0.0) + (now - seen if now >= seen else now)
        self._seen[name] = now
        return replace(reading, value=self._grown[name])

    def _hits(self) -> tuple[Reading, ...]:
        prompt, cached = self._grown.get(_PROMPT.name), self._grown.get(_CACHED.name)
        if not prompt or cached is None:
            return ()
        return (Reading(name="prefix cache hits", unit="share", value=cached / prompt),)
