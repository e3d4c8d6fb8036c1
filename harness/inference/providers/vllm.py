"""vLLM, from version 0.32 of its code.

Its JSON grammars allow endless white space, which small models then write, unless it is started
with `--structured-outputs-config {"backend": "xgrammar", "disable_any_whitespace": true}`.
"""

from __future__ import annotations

from harness.inference.json_text import at, row_of, text_at
from harness.inference.model_identity import ModelMetadata
from harness.inference.providers.counters import Counters, prometheus
from harness.inference.providers.openai_wire import nested_schema
from harness.inference.providers.provider import (
    ContextReport,
    HostReport,
    Provider,
    remedies,
    times_in,
)
from harness.inference.providers.server_host import ServerHost, ServerPages, until

TIMES_SWITCH = "--enable-per-request-metrics"
_CACHED_SWITCH = "--enable-prompt-tokens-details"
_SLEEP_SWITCH = "--enable-sleep-mode, and VLLM_SERVER_DEV_MODE=1 in its environment"


times = times_in(
    "metrics",
    queue="queue_time_ms",
    prefill="time_to_first_token_ms",  # vLLM counts it from the end of the queue
    decode="generation_time_ms",
)


async def _served(pages: ServerPages) -> ModelMetadata:
    models = at(await pages.json(f"{pages.v1}/models"), "data")
    row = row_of(models, pages.model_id)
    # An adapter has a parent, which is listed beside it by the name it is served under. The `root`
    # is what was loaded; the name may be made up (`--served-model-name`).
    parent = text_at(row, "parent")
    base = text_at(row_of(models, parent), "root") or parent
    return ModelMetadata(path=text_at(row, "root") or None, base_models=(base,) if base else ())


class VllmHost(ServerHost):
    """Sleep mode, which gives back the GPU memory of the one model that the server started with.

    From entrypoints/serve/dev/sleep. Asleep, the weights are in the machine's memory and the KV
    cache is nowhere (level 1). A call to a sleeping server waits; it does not fail. The server
    gives back its share of the GPU (`--gpu-memory-utilization`) less some hundred MiB that its
    process keeps, and does not report how much.
    """

    async def load(self) -> None:
        """Wakes the server, unless it is awake."""
        if await self._is_awake():
            return
        async with self.or_else(self._sleep):
            await self._wake()
            await until(self._is_awake)

    async def unload(self) -> None:
        """Has the server end its calls and sleep."""
        if not await self._is_awake():
            return
        await self._check_sleep_mode()
        # After a failure it is woken: on its way to sleep it counts as awake, and takes no calls.
        async with self.or_else(self._wake):
            await self._sleep()

    async def report(self) -> HostReport:
        """Whether it is awake."""
        return HostReport(resident=await self._is_awake())

    async def _is_awake(self) -> bool:
        answer = await self.ask("GET", "/is_sleeping")
        if answer.status == 404:
            raise self.switched_off("vLLM", needs=_SLEEP_SWITCH)
        match self.fields(answer):
            case {"is_sleeping": bool(asleep)}:
                return not asleep
        raise self.misread(answer)

    async def _check_sleep_mode(self) -> None:
        """Makes sure that sleep gives memory back."""
        # Without `--enable-sleep-mode` vLLM goes to sleep all the same, and keeps its memory.
        answer = await self.ask("GET", "/server_info", params={"config_format": "json"})
        if at(answer.json, "vllm_config", "model_config", "enable_sleep_mode") is False:
            raise self.switched_off("vLLM", needs=_SLEEP_SWITCH)

    async def _sleep(self) -> None:
        # `wait`, since calls of other clients may be under way. This run has none when it unloads.
        answer = await self.ask("POST", "/sleep", params={"level": "1", "mode": "wait"})
        if answer.status != 200:
            raise self.failure(answer, doing="unload")

    async def _wake(self) -> None:
        answer = await self.ask("POST", "/wake_up")
        if answer.status != 200:
            raise self.failure(answer, doing="load")


PROVIDER = Provider(
    title="vLLM",
    remedies=remedies(
        "start vLLM with ",
        answer_more_at_once="a larger --max-num-seqs",
        bound_queue="--data-parallel-size for replicas, or --max-num-queued-reqs to refuse early",
        read_prompts_faster="a larger --max-num-batched-tokens, and no --no-enable-chunked-prefill",
        spread_prefill="--long-prefill-token-threshold, so that a long prompt holds up no others",
        keep_prefixes="no --no-enable-prefix-caching, and a larger --gpu-memory-utilization",
        more_kv_room=(
            "--kv-cache-dtype fp8, which halves the cache for less than 1 % loss",
            "a smaller --max-model-len or --max-num-seqs, which cap what calls can take",
            "a larger --gpu-memory-utilization, or --tensor-parallel-size",
        ),
        write_faster=(
            "--spec-method ngram --spec-tokens 4, or a draft model of the same family",
            "--tensor-parallel-size, which splits the weights over GPUs",
        ),
        fit_at_start="a lower --gpu-memory-utilization (0.92 by default) or --tensor-parallel-size",
        fit_later="a smaller --max-model-len or --max-num-seqs",
        longer_context="a larger --max-model-len",
    ),
    host=lambda endpoint, access, _: VllmHost(endpoint, access),
    served=_served,
    schema=nested_schema,
    tools="--enable-auto-tool-choice --tool-call-parser NAME",
    continues={"continue_final_message": True, "add_generation_prompt": False},
    cached_tokens=_CACHED_SWITCH,
    times=times,
    timings=TIMES_SWITCH,
    embeds="a model that embeds, or --convert embed",
    context=ContextReport(path="/v1/models", keys=("data", "max_model_len")),
    counters=Counters(
        path="/metrics",
        read=prometheus(
            running="vllm:num_requests_running",
            waiting="vllm:num_requests_waiting",
            kv_cache="vllm:kv_cache_usage_perc",  # 0 to 1, despite its name
            preemptions="vllm:num_preemptions_total",
            prompt="vllm:prompt_tokens_total",
            cached="vllm:prompt_tokens_cached_total",
            generated="vllm:generation_tokens_total",
            drafted="vllm:spec_decode_num_draft_tokens_total",
            accepted="vllm:spec_decode_num_accepted_tokens_total",
        ),
    ),
    holds_one_model=True,
)
