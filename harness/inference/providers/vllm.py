"""vLLM, from version 0.32 of its code.

Its grammars for JSON allow white space without end, and small models then run on in it, unless it
is started with `--structured-outputs-config`, as `_launch` does.
"""

from __future__ import annotations

from harness.inference.model_identity import ModelMetadata
from harness.inference.providers.counters import (
    ACCEPTED,
    CACHED,
    DRAFTED,
    GENERATED,
    KV_CACHE,
    PREEMPTIONS,
    PROMPT,
    RUNNING,
    WAITING,
    prometheus,
)
from harness.inference.providers.openai_wire import nested_schema
from harness.inference.providers.pages import Page, ServerPages, at, row_of
from harness.inference.providers.provider import (
    Aim,
    ContextReport,
    Counters,
    Extras,
    HostReport,
    Provider,
    ms_as_ns,
    remedies,
)
from harness.inference.providers.server_host import ServerHost, until
from harness.inference.providers.serving import Launch, Serving, Setting, launched, name_of, quoted
from harness.inference.reply_in_progress import ServerTimings

TIMES_SWITCH = "--enable-per-request-metrics"
_JSON = """--structured-outputs-config '{"backend": "xgrammar", "disable_any_whitespace": true}'"""
_CACHED_SWITCH = "--enable-prompt-tokens-details"
_SLEEP_SWITCH = "--enable-sleep-mode, and VLLM_SERVER_DEV_MODE=1 in its environment"
_NO_SUCH_PAGE = 404


def times(extras: Extras) -> ServerTimings | None:
    """The reply's `metrics`. The first token's time counts from when the queue was over."""
    if not extras.metrics:
        return None
    return ServerTimings(
        queue_ns=ms_as_ns(extras.metrics.get("queue_time_ms")),
        prefill_ns=ms_as_ns(extras.metrics.get("time_to_first_token_ms")),
        decode_ns=ms_as_ns(extras.metrics.get("generation_time_ms")),
    )


class _Model(Page):
    id: str
    root: str | None = None
    """What was loaded; `id` may be made up (`--served-model-name`)."""
    parent: str | None = None
    """Of an adapter, the model that it is applied to."""


class _Models(Page):
    data: tuple[_Model, ...]


async def _served(pages: ServerPages) -> ModelMetadata | None:
    listed = await pages.page(_Models, f"{pages.url}/models")
    models = listed.data if listed else ()
    row = row_of(models, pages.model_id)
    if row is None:
        return None
    # An adapter's parent is listed beside it, by the name it is served under.
    base = row_of(models, row.parent)
    return ModelMetadata(
        path=row.root, base_models=tuple(filter(None, [base.root if base else row.parent]))
    )


class VllmHost(ServerHost):
    """Sleep mode, which gives back the GPU memory of the one model that the server started with.

    From entrypoints/serve/dev/sleep. Asleep, the weights are in the machine's memory and the KV
    cache is nowhere (level 1). A call to a sleeping server waits; it does not fail. The server
    gives back its share of the GPU (`--gpu-memory-utilization`) less some hundred MiB that its
    process keeps, and does not report how much.
    """

    async def load(self) -> None:
        """Wakes the server."""
        async with self.in_time("wake"):
            if not await self._is_asleep():
                return
            async with self.or_else(self._sleep):
                await self._wake()
                await until(self._is_awake)

    async def unload(self) -> None:
        """Has the server end its calls and sleep."""
        async with self.in_time("let go of"):
            if await self._is_asleep():
                return
            await self._check_sleep_mode()
            # One that is on its way to sleep takes no calls: else it is known to be awake.
            async with self.or_else(self._wake):
                await self._sleep()

    async def report(self) -> HostReport:
        """Whether it is awake."""
        return HostReport(resident=not await self._is_asleep())

    async def _is_asleep(self) -> bool:
        answer = await self.get("/is_sleeping")
        if answer.status == _NO_SUCH_PAGE:
            raise self.switched_off("vLLM", needs=_SLEEP_SWITCH)
        match self.fields(answer):
            case {"is_sleeping": bool(asleep)}:
                return asleep
        raise self.misread(answer)

    async def _is_awake(self) -> bool:
        return not await self._is_asleep()

    async def _check_sleep_mode(self) -> None:
        """Makes sure that sleep gives memory back.

        Without `--enable-sleep-mode` vLLM goes to sleep all the same, and keeps its memory.
        """
        answer = await self.get("/server_info", params={"config_format": "json"})
        if at(answer.json, "vllm_config", "model_config", "enable_sleep_mode") is False:
            raise self.switched_off("vLLM", needs=_SLEEP_SWITCH)

    async def _sleep(self) -> None:
        # `wait`, since calls of others may be under way; ours are not, when a model is let go.
        answer = await self.post("/sleep", params={"level": "1", "mode": "wait"})
        if answer.status != 200:
            raise self.failure(answer, doing="let go of")

    async def _wake(self) -> None:
        answer = await self.post("/wake_up")
        if answer.status != 200:
            raise self.failure(answer, doing="wake")


REMEDIES = remedies(
    "start vLLM with ",
    {
        Aim.ANSWER_MORE_AT_ONCE: "a larger --max-num-seqs",
        Aim.BOUND_QUEUE: "--data-parallel-size for replicas, or --max-num-queued-reqs to refuse "
        "early",
        Aim.READ_PROMPTS_FASTER: "a larger --max-num-batched-tokens, and no "
        "--no-enable-chunked-prefill",
        Aim.SPREAD_PREFILL: "--long-prefill-token-threshold, so that a long prompt holds up no "
        "others",
        Aim.KEEP_PREFIXES: "no --no-enable-prefix-caching, and a larger --gpu-memory-utilization",
        Aim.MORE_KV_ROOM: (
            "--kv-cache-dtype fp8, which halves the cache for less than 1 % loss",
            "a smaller --max-model-len or --max-num-seqs, which cap what calls can take",
            "a larger --gpu-memory-utilization, or --tensor-parallel-size",
        ),
        Aim.WRITE_FASTER: (
            "--spec-method ngram --spec-tokens 4, or a draft model of the same family",
            "--tensor-parallel-size, which splits the weights over GPUs",
        ),
        Aim.FIT_AT_START: "a lower --gpu-memory-utilization (0.92 by default), or "
        "--tensor-parallel-size",
        Aim.FIT_LATER: "a smaller --max-model-len or --max-num-seqs",
        Aim.LONGER_CONTEXT: "a larger --max-model-len",
        Aim.DRAFT_BETTER: "a smaller --spec-tokens, or --spec-method eagle3 with a head for this "
        "model",
    },
)


def _launch(serving: Serving) -> Launch:
    name = name_of(serving.model)
    return launched(
        serving,
        f"vllm serve {quoted(serving.model)}",
        {
            "context_tokens": f"--max-model-len {serving.context_tokens}",
            "sequences": f"--max-num-seqs {serving.sequences}",
            "kv_bits": "--kv-cache-dtype fp8",
            "on_gpu": "",  # by another wheel, its build for the processor
            "tensor_parallel": f"--tensor-parallel-size {serving.tensor_parallel}",
            "replicas": f"--data-parallel-size {serving.replicas}",
            "gpu_share": f"--gpu-memory-utilization {serving.gpu_share}",
            "port": f"--port {serving.port}",
        },
        Setting(f"--served-model-name {quoted(name)}", "the name that calls use"),
        Setting("--host 127.0.0.1", "for this machine alone; its default lets others in"),
        Setting(_CACHED_SWITCH, "replies tell how much of a prompt was cached"),
        Setting(TIMES_SWITCH, "replies tell how long they queued and their prompts took"),
        Setting(_JSON, "small models run on in the white space that its grammar allows"),
        backend="vllm",
        port=8000,
    )


PROVIDER = Provider(
    title="vLLM",
    remedies=REMEDIES,
    launch=_launch,
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
            ("vllm:num_requests_running", RUNNING),
            ("vllm:num_requests_waiting", WAITING),
            ("vllm:kv_cache_usage_perc", KV_CACHE),  # 0 to 1, despite its name
            ("vllm:num_preemptions_total", PREEMPTIONS),
            ("vllm:prompt_tokens_total", PROMPT),
            ("vllm:prompt_tokens_cached_total", CACHED),
            ("vllm:generation_tokens_total", GENERATED),
            ("vllm:spec_decode_num_draft_tokens_total", DRAFTED),
            ("vllm:spec_decode_num_accepted_tokens_total", ACCEPTED),
        ),
    ),
    holds_one_model=True,
)
