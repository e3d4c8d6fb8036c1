"""SGLang, from version 0.5.23 of its code.

Its `/health` generates a token.
"""

from __future__ import annotations

from collections.abc import Mapping

from harness.errors import LoadFailed
from harness.inference.endpoint import Endpoint
from harness.inference.model_identity import ModelMetadata
from harness.inference.providers.counters import (
    ACCEPTANCE,
    CACHED,
    GENERATED,
    KV_CACHE,
    PREEMPTIONS,
    PROMPT,
    RUNNING,
    WAITING,
    prometheus,
)
from harness.inference.providers.openai_wire import nested_schema
from harness.inference.providers.pages import Page, ServerPages
from harness.inference.providers.provider import (
    Access,
    Aim,
    ContextReport,
    Counters,
    HostReport,
    Provider,
    remedies,
)
from harness.inference.providers.server_host import ServerHost, until
from harness.inference.providers.serving import Launch, Serving, Setting, launched, name_of, quoted

_MEMORY_SAVER = "--enable-memory-saver"
_NO_SUCH_PAGE = 404
_NOT_READY = 503


class _ModelInfo(Page):
    model_path: str


async def _served(pages: ServerPages) -> ModelMetadata | None:
    info = await pages.page(_ModelInfo, f"{pages.root}/model_info")
    return None if info is None else ModelMetadata(path=info.model_path)


class SglangHost(ServerHost):
    """The memory saver, which gives back the GPU memory of the server's one model.

    From srt/entrypoints/http_server.py and srt/managers. Its two pages do not look before they act:
    giving memory back during a call, giving it back twice, or taking it while it is there ends the
    server. No page tells whether it was given back. So the server is paused first, which `/ready`
    tells and which keeps calls waiting: a paused server is one whose model is out. Nothing else may
    pause it, as trainers do.

    The weights are thrown away unless the server keeps a copy (`--enable-weights-cpu-backup`): they
    are read from its disk again. Older versions answer before the memory is back.
    """

    def __init__(self, endpoint: Endpoint, access: Access) -> None:
        super().__init__(endpoint, access)
        # The server's `--admin-api-key`.
        key = self.control_key
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    async def load(self) -> None:
        """Has the server take its memory again, and go on.

        Without room for it, the server ends: then it cannot be reached.
        """
        async with self.in_time("load"):
            if not await self._is_paused():
                return
            reload = await self._reload_request()
            await self._take()
            # It may go on already, and calls of others run.
            async with self.or_else(self._let_go):
                if reload:
                    await self._do("/update_weights_from_disk", reload, doing="load")
                await self._go_on()

    async def unload(self) -> None:
        """Has the server pause, and give its memory back.

        Calls of others are put off until it is loaded again.
        """
        async with self.in_time("let go of"):
            if await self._is_paused():
                return
            await self._check_memory_saver()
            async with self.or_else(self._go_on):
                await self._pause()
            # From here on its memory may be gone, whatever it answers: it stays paused.
            await self._release()

    async def report(self) -> HostReport:
        """Whether it takes calls."""
        return HostReport(resident=not await self._is_paused())

    async def _is_paused(self) -> bool:
        ready = await self.get("/ready")
        if ready.status == 200:
            return False
        if ready.status == _NO_SUCH_PAGE:
            raise LoadFailed(
                f"SGLang at {self.root} has no page /ready, from which to know whether "
                "its memory was given back: use 0.5.23 or newer, or set manage to false",
                code="server.too-old",
                endpoint=self.endpoint.tag,
            )
        if ready.status != _NOT_READY:
            raise self.refusal(ready)
        # Not ready is also one that starts or has broken; only a paused one says that it is well.
        healthy = await self.get("/ping")
        if healthy.status != 200:
            raise self.refusal(healthy)
        return True

    async def _is_idle(self) -> bool:
        # It empties its cache only when nothing runs, and else says so, unlike the page that
        # gives the memory back.
        page = await self.post("/flush_cache", headers=self._headers)
        if page.status in {200, 400}:
            return page.status == 200
        raise self.failure(page, doing="let go of")

    async def _check_memory_saver(self) -> None:
        """Makes sure that memory is given back: without it, the page answers and does nothing."""
        if (await self._server_info()).get("enable_memory_saver") is not True:
            raise self.switched_off("SGLang", needs=_MEMORY_SAVER)

    async def _reload_request(self) -> Mapping[str, object] | None:
        """The request that makes it read the weights again; None if it kept them."""
        if (await self._server_info()).get("enable_weights_cpu_backup") is True:
            return None
        page = await self.get("/model_info")
        match self.fields(page):
            case {"model_path": str(path)}:
                return {"model_path": path}
        raise self.misread(page)

    async def _server_info(self) -> Mapping[str, object]:
        return self.fields(await self.get("/server_info"))

    async def _take(self) -> None:
        """Has it take its memory again."""
        # Without an answer it may have it all the same.
        async with self.or_else(self._release):
            page = await self.post("/resume_memory_occupation", {}, headers=self._headers)
        if page.status != 200:
            # Not to be given back: it has not got it.
            raise self.failure(page, doing="load")

    async def _let_go(self) -> None:
        await self._pause()
        await self._release()

    async def _pause(self) -> None:
        await self._do("/pause_generation", {"mode": "retract"}, doing="let go of")
        await until(self._is_idle)

    async def _release(self) -> None:
        await self._do("/release_memory_occupation", {}, doing="let go of")

    async def _go_on(self) -> None:
        await self._do("/continue_generation", {}, doing="load")

    async def _do(self, path: str, body: Mapping[str, object], *, doing: str) -> None:
        page = await self.post(path, body, headers=self._headers)
        if page.status != 200:
            raise self.failure(page, doing=doing)


_CACHED_SWITCH = "--enable-cache-report"
_METRICS_SWITCH = "--enable-metrics"

REMEDIES = remedies(
    "start SGLang with ",
    {
        Aim.BOUND_QUEUE: "--dp-size for replicas, or --max-queued-requests to refuse early",
        Aim.KEEP_PREFIXES: "no --disable-radix-cache, and --enable-hierarchical-cache "
        "--hicache-ratio for more",
        Aim.MORE_KV_ROOM: (
            "--kv-cache-dtype fp8_e5m2, which halves the cache",
            "a larger --mem-fraction-static, or --tp-size",
        ),
        Aim.WRITE_FASTER: (
            "--speculative-algorithm NGRAM, or EAGLE3 with --speculative-draft-model-path",
            "--tp-size, which splits the weights over GPUs",
        ),
        Aim.FIT_AT_START: "a lower --mem-fraction-static, or --tp-size",
        Aim.FIT_LATER: "a lower --mem-fraction-static",
        Aim.DRAFT_BETTER: "a smaller --speculative-num-draft-tokens, or EAGLE3 with a head for "
        "this model",
    },
)


def _launch(serving: Serving) -> Launch:
    name = name_of(serving.model)
    return launched(
        serving,
        f"python -m sglang.launch_server --model-path {quoted(serving.model)}",
        {
            "context_tokens": f"--context-length {serving.context_tokens}",
            "sequences": f"--max-running-requests {serving.sequences}",
            "kv_bits": "--kv-cache-dtype fp8_e5m2",
            "on_gpu": "--device cpu",
            "tensor_parallel": f"--tp-size {serving.tensor_parallel}",
            "replicas": f"--dp-size {serving.replicas}",
            "gpu_share": f"--mem-fraction-static {serving.gpu_share}",
            "port": f"--port {serving.port}",
        },
        Setting(f"--served-model-name {quoted(name)}", "the name that calls use"),
        Setting(_CACHED_SWITCH, "replies tell how much of a prompt was cached"),
        Setting(_METRICS_SWITCH, "it counts its calls, waiting ones too, and its tokens"),
        backend="sglang",
        port=30000,
    )


PROVIDER = Provider(
    title="SGLang",
    remedies=REMEDIES,
    launch=_launch,
    host=lambda endpoint, access, _: SglangHost(endpoint, access),
    served=_served,
    schema=nested_schema,
    tools="--tool-call-parser NAME",
    continues={"continue_final_message": True},
    cached_tokens=_CACHED_SWITCH,
    embeds="--is-embedding",
    health="/model_info",
    context=ContextReport(path="/v1/models", keys=("data", "max_model_len")),
    counters=Counters(
        path="/metrics",
        read=prometheus(
            ("sglang:num_running_reqs", RUNNING),
            ("sglang:num_queue_reqs", WAITING),
            ("sglang:token_usage", KV_CACHE),
            ("sglang:num_retracted_requests_total", PREEMPTIONS),
            ("sglang:prompt_tokens_total", PROMPT),  # tokens are added when a reply ends
            ("sglang:cached_tokens_total", CACHED),  # by where they were cached
            ("sglang:generation_tokens_total", GENERATED),
            ("sglang:spec_accept_rate", ACCEPTANCE),
            from_the_start=False,
        ),
        switch=_METRICS_SWITCH,
    ),
    holds_one_model=True,
)
