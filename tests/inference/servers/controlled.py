"""What emulated servers share whose model is loaded and let go by pages of theirs."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

from servers.emulated import Answer, Asked, Emulated

GIB = 1 << 30


@dataclass
class Controlled(Emulated):
    """A server that holds memory, which is counted and not taken.

    `log` has what it did, in order, such as `load m` and `unload m`.
    """

    log: list[str] = field(default_factory=list, kw_only=True)
    instead: dict[str, tuple[int, object]] = field(default_factory=dict, kw_only=True)
    """By path, a status and a body that are answered whatever is asked."""
    silent: set[str] = field(default_factory=set, kw_only=True)
    """Paths that are never answered."""

    keeps_waiting: asyncio.Event = field(default_factory=asyncio.Event, kw_only=True)
    """Set once it has a client that it does not answer."""

    async def respond(self, asked: Asked, answer: Answer) -> None:
        """Answers one request."""
        path = asked.path.partition("?")[0]
        if path in self.silent:
            await self.hold(answer)
        elif path in self.instead:
            status, body = self.instead[path]
            await answer.json(body, status=status)
        else:
            await self.act(asked, path, answer)

    @abstractmethod
    async def act(self, asked: Asked, path: str, answer: Answer) -> None:
        """Does what is asked, and answers."""

    async def hold(self, answer: Answer) -> None:
        """Keeps a client waiting until it hangs up."""
        self.keeps_waiting.set()
        await answer.hold()

    def posted(self) -> list[str]:
        """The paths of what was posted, in order."""
        return [one.path for one in self.asked if one.method == "POST"]


def query(asked: Asked) -> dict[str, str]:
    """What stands behind the question mark."""
    return dict(parse_qsl(asked.path.partition("?")[2]))


async def no_such_page(answer: Answer) -> None:
    """What FastAPI says."""
    await answer.json({"detail": "Not Found"}, status=404)


async def empty(answer: Answer, *, status: int = 200) -> None:
    """An answer without a body."""
    await answer.start("text/plain", status=status)
    await answer.end()
