"""TensorRT-LLM's trtllm-serve, from version 1.2 of its code.

It refuses every field that it does not know, and ignores a schema that it does not enforce.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Final

from harness.errors import ConfigurationInvalid, LoadFailed
from harness.inference.endpoint import Endpoint
from harness.inference.providers.counters import (
    CACHED,
    GENERATED,
    KV_CACHE,
    PROMPT,
    RUNNING,
    WAITING,
    prometheus,
)
from harness.inference.providers.provider import (
    ALWAYS,
    Access,
    Aim,
    Counters,
    Fields,
    HostReport,
    Provider,
    remedies,
)
from harness.inference.providers.server_host import Answer, ServerHost, until
from harness.inference.providers.serving import Launch, Serving, Setting, launched, quoted
from harness.inference.request import JsonSchema

_SLEEP_MODE = (
    "--enable_sleep_mode (PyTorch backend), and TRTLLM_RUNTIME_CONTROL_API_KEY in its environment"
)
_NO_SUCH_PAGE = 404
_ON_THE_MOVE = 409
_BAD_SIGNATURE = 401


def _schema(schema: JsonSchema) -> Fields:
    # Up to 1.2.1 at least, it takes OpenAI's wrapper for the schema itself, and says nothing.
    return {"response_format": {"type": "json", "schema": schema}}


class TensorRtLlmHost(ServerHost):
    """The memory checkpoint, which gives back the GPU memory of the server's one model.

    From docs/source/features/sleep-wakeup.md, a prototype of 2026. Parked, the weights are in the
    machine's memory and the KV cache is nowhere. The server ends the calls under way before it
    parks, and refuses calls until it runs again.

    Raises:
        ConfigurationInvalid: There is no control key.
    """

    def __init__(self, endpoint: Endpoint, access: Access) -> None:
        super().__init__(endpoint, access)
        if not self.control_key:
            raise ConfigurationInvalid(
                f"endpoint '{endpoint.tag}' is to be loaded and let go, for which TensorRT-LLM "
                "wants a key: set control_key_env to the name of the variable that holds the "
                "server's TRTLLM_RUNTIME_CONTROL_API_KEY, or set manage to false",
                code="endpoint.control-key-missing",
            )
        self._key = self.control_key

    async def load(self) -> None:
        """Has the server take its memory again."""
        async with self.in_time("load"):
            if await self._state() == "running":
                return
            async with self.or_else(self._park):
                await until(self._has_resumed)

    async def unload(self) -> None:
        """Has the server end its calls and give its memory back."""
        async with self.in_time("let go of"):
            await self._park()

    async def report(self) -> HostReport:
        """Whether it takes calls."""
        return HostReport(resident=await self._state() == "running")

    async def _park(self) -> None:
        await until(self._has_parked)

    async def _has_parked(self) -> bool:
        return await self._moved("parked", path="/release_memory", doing="let go of")

    async def _has_resumed(self) -> bool:
        return await self._moved("running", path="/resume_memory", doing="load")

    async def _moved(self, wanted: str, *, path: str, doing: str) -> bool:
        """Whether it is where it should be; if it stands still elsewhere, it is told to move."""
        state = await self._state()
        if state == wanted:
            return True
        if state == "failed":
            raise LoadFailed(
                f"TensorRT-LLM at {self.root} failed to move its memory; start it again",
                code="server.broken",
                endpoint=self.endpoint.tag,
            )
        if state in {"running", "parked"}:
            page = await self._ask("POST", path)
            if page.status not in {200, _ON_THE_MOVE}:
                raise self.failure(page, doing=doing)
        return False

    async def _state(self) -> str:
        """`running`, `parking`, `parked`, `waking` or `failed`."""
        page = await self._ask("GET", "/memory_status")
        if page.status == _NO_SUCH_PAGE:
            raise self.switched_off("TensorRT-LLM", needs=_SLEEP_MODE)
        if page.status != 200:
            raise self.failure(page, doing="tell of")
        match page.json:
            case {"state": str(state)}:
                return state
        raise self.misread(page)

    async def _ask(self, method: str, path: str) -> Answer:
        page = await self._send(method, path, signed_headers(self._key, method=method, path=path))
        if page.status == _BAD_SIGNATURE:
            page = await self._send(method, path, early_signed_headers(self._key))
        return page

    async def _send(self, method: str, path: str, headers: Mapping[str, str]) -> Answer:
        if method == "GET":
            return await self.get(path, headers=headers)
        return await self.post(path, headers=headers)


# Requests to the control pages are signed: HMAC-SHA256 with a shared key, from
# tensorrt_llm/serve/runtime_control_auth.py. The signature changed in 2026: at first it covered the
# body alone, then also the page, the time and a nonce, so that no request can be sent twice.

_SIGNATURE: Final = "x-trtllm-runtime-control-auth"
_TIMESTAMP: Final = "x-trtllm-runtime-control-timestamp"
_NONCE: Final = "x-trtllm-runtime-control-nonce"


def signed_headers(
    key: str,
    *,
    method: str,
    path: str,
    body: bytes = b"",
    now_s: Callable[[], float] = time.time,
    nonce: Callable[[], str] = lambda: secrets.token_hex(16),
) -> Mapping[str, str]:
    """The headers of one request; they are good for one, and for five minutes.

    Args:
        key: The server's `TRTLLM_RUNTIME_CONTROL_API_KEY`.
        method: `GET` or `POST`.
        path: The page, from its slash on, without a query.
        body: As it is sent; empty for none.
        now_s: Seconds since 1970.
        nonce: 32 hexadecimal digits, others each time.
    """
    timestamp, once = str(int(now_s())), nonce()
    signed = f"trtllm-runtime-control-v1\n{method}\n{path}\n{timestamp}\n{once}\n".encode() + body
    return {_SIGNATURE: _signature(key, signed), _TIMESTAMP: timestamp, _NONCE: once}


def early_signed_headers(key: str, *, body: bytes = b"") -> Mapping[str, str]:
    """The same for servers of the first versions, which sign the body alone."""
    return {_SIGNATURE: _signature(key, body)}


def _signature(key: str, signed: bytes) -> str:
    return "sha256=" + hmac.new(key.encode(), signed, hashlib.sha256).hexdigest()


REMEDIES = remedies(
    "start trtllm-serve with ",
    {
        Aim.ANSWER_MORE_AT_ONCE: "a larger --max_batch_size",
        Aim.READ_PROMPTS_FASTER: "a larger --max_num_tokens, and --enable_chunked_prefill",
        Aim.SPREAD_PREFILL: "--enable_chunked_prefill, so that a long prompt holds up no others",
        Aim.KEEP_PREFIXES: "enable_block_reuse: true under kv_cache_config in its --config",
        Aim.MORE_KV_ROOM: (
            "dtype: fp8 under kv_cache_config in its --config, which halves the cache",
            "a larger --free_gpu_memory_fraction (0.9 by default), or --tp_size",
        ),
        Aim.WRITE_FASTER: (
            "decoding_type: NGram and max_draft_len: 4 under speculative_config in its --config",
            "--tp_size, which splits the weights over GPUs",
        ),
        Aim.FIT_AT_START: "a lower --free_gpu_memory_fraction (0.9 by default), or --tp_size",
        Aim.FIT_LATER: "a smaller --max_seq_len or --max_batch_size",
        Aim.LONGER_CONTEXT: "a larger --max_seq_len, and --max_num_tokens or "
        "--enable_chunked_prefill",
        Aim.DRAFT_BETTER: "a smaller max_draft_len under speculative_config in its --config",
        Aim.ENFORCE_SCHEMAS: "guided_decoding_backend in its --config",
    },
)


def _launch(serving: Serving) -> Launch:
    return launched(
        serving,
        f"trtllm-serve {quoted(serving.model)}",
        {
            "context_tokens": f"--max_seq_len {serving.context_tokens}",
            "sequences": f"--max_batch_size {serving.sequences}",
            "kv_bits": "--set kv_cache_config.dtype=fp8",
            "tensor_parallel": f"--tp_size {serving.tensor_parallel}",
            "gpu_share": f"--free_gpu_memory_fraction {serving.gpu_share}",
            "port": f"--port {serving.port}",
        },
        Setting("--set guided_decoding_backend=xgrammar", "replies are held to a schema"),
        Setting("--set return_perf_metrics=true", "it counts tokens and times"),
        Setting("--set enable_iter_perf_stats=true", "it counts its calls, waiting ones too"),
        backend="tensorrt-llm",
        port=8000,
    )


PROVIDER = Provider(
    title="TensorRT-LLM",
    remedies=REMEDIES,
    launch=_launch,
    host=lambda endpoint, access, _: TensorRtLlmHost(endpoint, access),
    schema=_schema,
    tools="--tool_parser NAME",
    requires_calls=False,
    enforces="guided_decoding_backend in its configuration",
    cached_tokens=ALWAYS,
    counters=Counters(
        path="/prometheus/metrics",
        read=prometheus(
            ("trtllm_num_requests_running", RUNNING),
            ("trtllm_num_active_requests", RUNNING),  # its name in another release
            ("trtllm_num_requests_waiting", WAITING),
            ("trtllm_server_queue_length", WAITING),  # likewise
            ("trtllm_kv_cache_utilization", KV_CACHE),
            ("trtllm_prompt_tokens_total", PROMPT),
            ("trtllm_prompt_cached_tokens_total", CACHED),
            ("trtllm_generation_tokens_total", GENERATED),
            from_the_start=False,
        ),
        switch="return_perf_metrics: true and enable_iter_perf_stats: true",
    ),
    holds_one_model=True,
)
