"""An emulated vLLM that sleeps, as of 0.32: entrypoints/serve/dev, v1/engine/core.py.

The answers of its pages were recorded from that version, on a CPU.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from servers.controlled import GIB, Controlled, no_such_page, query
from servers.emulated import Answer, Asked

OUT_OF_MEMORY = {
    "error": {
        "message": "CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62",
        "type": "InternalServerError",
        "param": None,
        "code": 500,
    }
}


@dataclass
class SleepingVllm(Controlled):
    """A vLLM and its model."""

    dev_mode: bool = field(default=True, kw_only=True)
    """VLLM_SERVER_DEV_MODE=1: without it there are no such pages."""
    sleep_mode: bool = field(default=True, kw_only=True)
    """`--enable-sleep-mode`: without it, it sleeps and keeps its memory."""
    has_room: bool = field(default=True, kw_only=True)
    """Whether there is memory to wake up into."""
    share_bytes: int = field(default=20 * GIB, kw_only=True)
    is_asleep: bool = field(default=False, kw_only=True)
    calls_ended: asyncio.Event = field(default_factory=asyncio.Event, kw_only=True)
    """While it is cleared, calls are under way, for which `mode=wait` waits."""
    _has_memory: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        self.calls_ended.set()
        self._has_memory = not self.is_asleep

    @property
    def gpu_bytes(self) -> int:
        """What it takes of its GPU."""
        return self.share_bytes if self._has_memory else 0

    async def act(self, asked: Asked, path: str, answer: Answer) -> None:
        """Does what is asked, and answers."""
        match asked.method, path:
            case _ if not self.dev_mode:
                await no_such_page(answer)
            case "GET", "/is_sleeping":
                await answer.json({"is_sleeping": self.is_asleep})
            case "GET", "/server_info":
                config = {"model_config": {"enable_sleep_mode": self.sleep_mode}}
                as_text = query(asked).get("config_format", "text") == "text"
                await answer.json({"vllm_config": str(config) if as_text else config})
            case "POST", "/sleep":
                await self._sleep(query(asked), answer)
            case "POST", "/wake_up":
                await self._wake(answer)
            case _:
                await no_such_page(answer)

    async def _sleep(self, how: dict[str, str], answer: Answer) -> None:
        assert how.get("mode", "abort") == "wait", "that would cut calls off"
        self.is_asleep = True  # paused: it takes no calls from here on
        await self.calls_ended.wait()
        if self.is_asleep and self._has_memory and self.sleep_mode:
            self.log.append("unload")
            self._has_memory = False
        await answer.json({"status": "sleeping", "level": int(how.get("level", "1"))})

    async def _wake(self, answer: Answer) -> None:
        if not self._has_memory:
            if not self.has_room:
                await answer.json(OUT_OF_MEMORY, status=500)
                return
            self.log.append("load")
            self._has_memory = True
        self.is_asleep = False
        await answer.json({"status": "awake", "tags": None})
