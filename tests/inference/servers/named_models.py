"""A server that answers any model's name with that name, and what it was asked."""

from __future__ import annotations

from servers.emulated import Answer, Asked, Emulated


class NamedModels(Emulated):
    """Speaks OpenAI's protocol, without streams.

    Attributes:
        reports: What it says it serves.
        failing: Names of models that it cannot load.
        reply: What all of them say in place of their names.
    """

    def __init__(self, *, reports: str = "", reply: str = "") -> None:
        super().__init__()
        self.reply = reply
        self.reports = reports
        self.failing: set[str] = set()

    @property
    def url(self) -> str:
        """Its base address."""
        return f"{self.root}/v1"

    @property
    def chats(self) -> list[Asked]:
        """The requests for replies."""
        return [one for one in self.asked if one.path.endswith("/chat/completions")]

    async def respond(self, asked: Asked, answer: Answer) -> None:
        """Answers one request."""
        if asked.path.endswith("/models"):
            model = {"id": self.reports, "object": "model", "root": self.reports}
            await answer.json({"object": "list", "data": [model] if self.reports else []})
        elif not asked.path.endswith("/chat/completions"):
            await answer.json({"error": {"message": "Not Found"}}, status=404)
        elif asked.body["model"] in self.failing:
            await answer.json({"error": {"message": "cannot load"}}, status=500)
        else:
            model = asked.body["model"]
            said = self.reply or f"{model}: {asked.body['messages'][-1]['content'][:40]}"
            await answer.json(
                {
                    "id": "1",
                    "object": "chat.completion",
                    "model": model,
                    "choices": [
                        {
                            "index": 0,
                            "message": {"role": "assistant", "content": said},
                            "finish_reason": "stop",
                        }
                    ],
                    "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12},
                }
            )
