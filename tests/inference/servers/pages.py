"""A server that has pages, and no model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from servers.emulated import Answer, Asked, Emulated


@dataclass
class Pages(Emulated):
    """Has a page for some paths: JSON, bytes, or a status to refuse with."""

    pages: Mapping[str, object] = field(default_factory=dict)

    async def respond(self, asked: Asked, answer: Answer) -> None:
        """Answers one request."""
        page = self.pages.get(asked.path.partition("?")[0], 404)
        if self.scenario == "silent":
            await answer.hold()
        elif isinstance(page, int):
            await answer.json({"error": "no"}, status=page)
        elif isinstance(page, bytes):
            await answer.page(page)
        else:
            await answer.json(page)
