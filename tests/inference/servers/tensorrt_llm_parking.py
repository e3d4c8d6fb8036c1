"""An emulated trtllm-serve with `--enable_sleep_mode`, of 2026.

From TensorRT-LLM's docs/source/features/sleep-wakeup.md, its serve/runtime_control_auth.py and the
tests of its pages. How a request is signed is written down here a second time.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass, field
from typing import Literal

from servers.controlled import GIB, Controlled, no_such_page
from servers.emulated import Answer, Asked

KEY = "a-long-random-secret"
WORKER_FAILED = "CUDA_ERROR_OUT_OF_MEMORY: out of memory"


@dataclass
class ParkingTensorRtLlm(Controlled):
    """A TensorRT-LLM and its model."""

    sleep_mode: bool = field(default=True, kw_only=True)
    signs: Literal["request", "body"] = field(default="request", kw_only=True)
    """What is signed: in its first versions, the body alone."""
    share_bytes: int = field(default=20 * GIB, kw_only=True)
    state: str = field(default="running", kw_only=True)
    on_the_move_for: int = field(default=0, kw_only=True)
    """For how many looks it is `parking` or `waking`, once it was told to."""
    has_room: bool = field(default=True, kw_only=True)
    _moves_to: str = field(default="", kw_only=True)
    _nonces: set[str] = field(default_factory=set, kw_only=True)

    @property
    def gpu_bytes(self) -> int:
        """What it takes of its GPU."""
        return 0 if self.state == "parked" else self.share_bytes

    async def act(self, asked: Asked, path: str, answer: Answer) -> None:
        """Does what is asked, and answers."""
        if not self.sleep_mode:
            await no_such_page(answer)
        elif not self._is_signed(asked):
            await _refuse(answer, 401, "Invalid runtime control request authentication.")
        elif (asked.method, path) == ("GET", "/memory_status"):
            self._move()
            parked = ["kv_cache", "model", "model_weights"] if self.state == "parked" else []
            await answer.json({"state": self.state, "parked_tags": parked})
        elif (asked.method, path) == ("POST", "/release_memory"):
            await self._go("parked", by="parking", answer=answer)
        elif (asked.method, path) == ("POST", "/resume_memory"):
            await self._go("running", by="waking", answer=answer)
        else:
            await no_such_page(answer)

    async def _go(self, wanted: str, *, by: str, answer: Answer) -> None:
        if self.state not in {"running", "parked"}:
            said = f"Cannot change runtime memory while state is '{self.state}'."
            await _refuse(answer, 409, said)
            return
        if self.state != wanted:
            if wanted == "running" and not self.has_room:
                self.state = "failed"
                await _refuse(answer, 500, WORKER_FAILED)
                return
            self.log.append("load" if wanted == "running" else "unload")
            self.state, self._moves_to = by, wanted
            if not self.on_the_move_for:
                self.state = wanted
        await answer.json({"status": "success"})

    def _move(self) -> None:
        if self.state in {"parking", "waking"}:
            self.on_the_move_for -= 1
            if self.on_the_move_for <= 0:
                self.state = self._moves_to

    def _is_signed(self, asked: Asked) -> bool:
        assert asked.body is None, "these requests have no body"
        said = asked.headers.get("x-trtllm-runtime-control-auth", "")
        if self.signs == "body":
            return said == _signature(b"")
        time_s = asked.headers.get("x-trtllm-runtime-control-timestamp", "")
        nonce = asked.headers.get("x-trtllm-runtime-control-nonce", "")
        if not time_s.isdecimal() or not re.fullmatch("[0-9a-f]{32}", nonce):
            return False
        parts = ("trtllm-runtime-control-v1", asked.method, asked.path, time_s, nonce, "")
        if said != _signature("\n".join(parts).encode()) or nonce in self._nonces:
            return False
        self._nonces.add(nonce)
        return True


def _signature(text: bytes) -> str:
    return "sha256=" + hmac.new(KEY.encode(), text, hashlib.sha256).hexdigest()


async def _refuse(answer: Answer, status: int, message: str) -> None:
    await answer.json({"error": {"message": message}}, status=status)
