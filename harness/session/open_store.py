"""A memory store as the settings have it, for who has no run: the command line, a script."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread

from harness.errors import ConfigurationInvalid
from harness.memory import Embedder, MemoryStore, Progress
from harness.session.chat import open_shim
from harness.session.endpoint_embedder import EndpointEmbedder
from harness.session.settings import WORDLLAMA, MemorySettings, Settings


@contextmanager
def open_store(settings: Settings, *, progress: Progress | None = None) -> Iterator[MemoryStore]:
    """The store that `[memory]` tells of, open inside the block.

    Raises:
        ConfigurationInvalid: It has no path, or its embedder is no endpoint that can be used.
        MemoryStoreFailed: It cannot be read or made.
        InferenceError: The endpoint that embeds does not answer.
    """
    memory = settings.memory
    if memory.path is None:
        raise ConfigurationInvalid(
            "there is no store; say where: --store DIR, or path under [memory] in harness.toml",
            code="memory.no-store",
        )
    with ExitStack() as stack:
        embedder = None
        if memory.embedder != WORDLLAMA:
            embedder = stack.enter_context(_called_in_background(settings))
        yield stack.enter_context(
            opened_store(memory, memory.path, embedder=embedder, progress=progress)
        )


def opened_store(
    memory: MemorySettings,
    path: Path,
    *,
    embedder: Embedder | None,
    progress: Progress | None = None,
) -> MemoryStore:
    """The store in a directory, opened as `[memory]` says; raises as `MemoryStore.open` does."""
    return MemoryStore.open(
        path,
        embedder=embedder,
        language=memory.language,
        device=memory.device,
        merge=memory.merge,
        progress=progress,
    )


@contextmanager
def _called_in_background(settings: Settings) -> Iterator[EndpointEmbedder]:
    """The endpoint's embedder, with an event loop in a thread: work goes on in the caller's own."""
    opened: Future[tuple[EndpointEmbedder, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        over = asyncio.Event()
        tag = settings.memory.embedder
        async with open_shim(tag, settings=settings) as shim:
            embedder = await EndpointEmbedder.open(tag, ask=shim.embed)
            opened.set_result((embedder, asyncio.get_running_loop(), over))
            await over.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if opened.done():
                raise
            opened.set_exception(error)

    thread = Thread(target=run, name="embedding endpoint", daemon=True)
    thread.start()
    embedder, loop, over = opened.result()
    try:
        yield embedder
    finally:
        embedder.close()
        loop.call_soon_threadsafe(over.set)
        thread.join()
