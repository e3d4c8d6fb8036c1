"""An emulated SGLang with a memory saver, as of 0.5.23.

From srt/entrypoints/http_server.py, srt/managers/scheduler_components/weight_updater.py and
torch_memory_saver's `pause`. What it is asked at the wrong moment ends it, as there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from servers.controlled import GIB, Controlled, empty, no_such_page
from servers.emulated import Answer, Asked

MODEL_PATH = "/models/qwen"


@dataclass
class SavingSglang(Controlled):
    """An SGLang and its model."""

    memory_saver: bool = field(default=True, kw_only=True)
    """`--enable-memory-saver`."""
    cpu_backup: bool = field(default=False, kw_only=True)
    """`--enable-weights-cpu-backup`."""
    admin_key: str = field(default="", kw_only=True)
    """`--admin-api-key`."""
    has_ready: bool = field(default=True, kw_only=True)
    busy_for: int = field(default=0, kw_only=True)
    """For how many looks after it was paused something still runs."""
    unanswered: set[str] = field(default_factory=set, kw_only=True)
    """Paths that are seen to, and never answered."""
    share_bytes: int = field(default=20 * GIB, kw_only=True)
    is_paused: bool = field(default=False, kw_only=True)
    is_released: bool = field(default=False, kw_only=True)
    weights_are_good: bool = field(default=True, kw_only=True)
    has_died: bool = field(default=False, kw_only=True)

    @property
    def gpu_bytes(self) -> int:
        """What it takes of its GPU."""
        return 0 if self.is_released and self.memory_saver else self.share_bytes

    async def act(self, asked: Asked, path: str, answer: Answer) -> None:
        """Does what is asked, and answers."""
        bearer = f"Bearer {self.admin_key}"
        if (
            asked.method == "POST"
            and self.admin_key
            and asked.headers.get("authorization") != bearer
        ):
            await answer.json({"error": "Unauthorized"}, status=401)
            return
        match asked.method, path:
            case "GET", "/ready" if self.has_ready:
                await empty(answer, status=503 if self.is_paused else 200)
            case "GET", "/ping":
                await empty(answer)
            case "GET", "/server_info":
                flags = {
                    "enable_memory_saver": self.memory_saver,
                    "enable_weights_cpu_backup": self.cpu_backup,
                }
                await answer.json({"model_path": MODEL_PATH, **flags, "version": "0.5.23"})
            case "GET", "/model_info":
                await answer.json({"model_path": MODEL_PATH, "weight_version": "default"})
            case "POST", _:
                await self._act(asked, path, answer)
            case _:
                await no_such_page(answer)

    async def _act(self, asked: Asked, path: str, answer: Answer) -> None:
        match path:
            case "/pause_generation":
                assert asked.body == {"mode": "retract"}, "else calls would be cut off"
                self.is_paused = True
                await answer.json({"message": "Generation paused successfully.", "status": "ok"})
            case "/continue_generation":
                self.is_paused = False
                if path in self.unanswered:
                    await self.hold(answer)
                await answer.json({"message": "Generation continued successfully.", "status": "ok"})
            case "/flush_cache":
                idle = self._look_whether_idle()
                await empty(answer, status=200 if idle else 400)
            case "/release_memory_occupation":
                if self.is_released or self.busy_for or not self.is_paused:
                    self._die(answer)
                self.log.append("unload")
                self.is_released = True
                self.weights_are_good = self.cpu_backup or not self.memory_saver
                await self._answer_null(path, answer)
            case "/resume_memory_occupation":
                if not self.is_released:
                    self._die(answer)
                self.log.append("load")
                self.is_released = False
                await self._answer_null(path, answer)
            case "/update_weights_from_disk":
                await self._read_weights(asked, answer)
            case _:
                await no_such_page(answer)

    async def _answer_null(self, path: str, answer: Answer) -> None:
        if path in self.unanswered:
            await self.hold(answer)
        await answer.json(None)

    def _look_whether_idle(self) -> bool:
        if self.busy_for:
            self.busy_for -= 1
            return False
        return True

    async def _read_weights(self, asked: Asked, answer: Answer) -> None:
        if asked.body.get("model_path") != MODEL_PATH:
            said = {"success": False, "message": "Failed to get weights iterator"}
            await answer.json(said, status=400)
            return
        self.log.append("read weights")
        self.weights_are_good = True
        await answer.json({"success": True, "message": "Succeeded", "num_paused_requests": 0})

    def _die(self, answer: Answer) -> None:
        self.has_died = True
        self._server.close()
        answer.drop()
