"""Progress of a task as an async iterator, and the text of a reply as one."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, Generic, Self, TypeVar

from harness.errors import HarnessError, InvalidInput
from harness.inference.completion import Completion

T = TypeVar("T")
R = TypeVar("R")

_PIECES: Final = "pieces"  # the one key of all pieces of a text, so that those that wait are joined


class ItemQueue(Generic[T]):
    """A queue of items for one reader in an event loop; any thread may `put` them.

    `join` makes one item of two with the same key. If more than `most` items wait, the oldest are
    dropped, and the reader gets `missed(number of dropped items)` in their place.
    """

    def __init__(
        self, join: Callable[[T, T], T], *, most: int = 1, missed: Callable[[int], T] | None = None
    ) -> None:
        self.news = asyncio.Event()
        self.loop: asyncio.AbstractEventLoop | None = None
        self._join = join
        self._most = most
        self._missed = missed
        self._waiting: OrderedDict[object, T] = OrderedDict()
        self._dropped = 0
        self._lock = threading.Lock()

    def put(self, item: T, *, key: object = None) -> None:
        """Adds an item; joins it to the item with the same key, if that still waits."""
        with self._lock:
            is_first = not self._waiting
            if key in self._waiting:
                item = self._join(self._waiting[key], item)
            # A new object is a key that no other item has.
            self._waiting[object() if key is None else key] = item
            if len(self._waiting) > self._most:
                self._waiting.popitem(last=False)
                self._dropped += 1
        if is_first and self.loop is not None:
            self.loop.call_soon_threadsafe(self.news.set)

    def get(self) -> T | None:
        """Takes out the oldest item; None if no item waits, and the next one sets `news`."""
        with self._lock:
            if self._dropped and self._missed is not None:
                dropped, self._dropped = self._dropped, 0
                return self._missed(dropped)
            if self._waiting:
                return self._waiting.popitem(last=False)[1]
            self.news.clear()
            return None


class Stream(Generic[T, R]):
    """The items that a task puts into a queue, by `async for`; the first one starts the task.

    The task is cancelled when reading stops: by `aclose` or the end of an `async with`, when the
    reader is cancelled while it waits, or when the last reference to the stream goes, as after a
    `break` out of `async for piece in run.stream(…)`. Only the last does not wait for the task.
    """

    _task: asyncio.Task[R] | None = None

    def __init__(self, main: Callable[[], Coroutine[Any, Any, R]], queue: ItemQueue[T]) -> None:
        self._main = main  # it must not refer to the stream, or the last reference would never go
        self._queue = queue
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if self._closed:
            raise StopAsyncIteration
        if self._task is None:
            self._queue.loop = asyncio.get_running_loop()
            self._task = asyncio.create_task(self._main())
            self._task.add_done_callback(partial(_wake, self._queue.news))
        while (item := self._queue.get()) is None:
            if self._task.done():
                # Raises the task's error to the reader, now that all items are read.
                self._task.result()
                raise StopAsyncIteration
            try:
                await self._queue.news.wait()
            except asyncio.CancelledError:
                await self.aclose()
                raise
        return item

    async def aclose(self) -> None:
        """Cancels the task, if it has not ended, and waits for it."""
        self._closed = True
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        task = self._task
        if task is not None and not task.done() and not task.get_loop().is_closed():
            # Any thread may drop the last reference.
            task.get_loop().call_soon_threadsafe(task.cancel)

    @property
    def result(self) -> R:
        """What the task returned, after the last item.

        Raises:
            InvalidInput: There are items to come.
            HarnessError: As the stream has raised.
        """
        if self._task is None or not self._task.done() or self._task.cancelled():
            raise InvalidInput(
                "the stream has not ended; read it to the end first", code="stream.not-ended"
            )
        return self._task.result()


def _wake(news: asyncio.Event, task: asyncio.Task[Any]) -> None:
    news.set()
    if not task.cancelled():
        task.exception()  # else asyncio logs the error of a stream that is read no further


class TextStream(Stream[str, Completion]):
    """The text of a reply, piece by piece: `async for piece in run.stream("producer", …)`.

    Pieces that arrive before the reader asks are joined into one. A failed call raises when the
    next piece is asked for; the error's `told_chars` counts the characters given before.
    """

    def __init__(self, ask: Callable[..., Coroutine[Any, Any, Completion]]) -> None:
        queue = ItemQueue[str](str.__add__)
        super().__init__(partial(_ask_with_queue, ask, queue), queue)

    @property
    def completion(self) -> Completion:
        """The whole reply, after the last piece; see `result`."""
        return self.result


def text_stream(
    ask: Callable[..., Coroutine[Any, Any, Any]], *arguments: object, **options: object
) -> TextStream:
    """The stream of a `chat` that is called with these arguments."""
    if "returns" in options:
        raise TypeError(
            "a stream yields text, and takes no returns=; await chat(…, returns=…) gives a value "
            "of the type"
        )
    return TextStream(partial(ask, *arguments, returns=Completion, **options))


async def _ask_with_queue(
    ask: Callable[..., Coroutine[Any, Any, Completion]], queue: ItemQueue[str]
) -> Completion:
    """Runs `ask`, whose pieces go into the queue; notes on its error how much text came before."""
    chars = 0

    def hear(text: str) -> None:
        nonlocal chars
        chars += len(text)
        queue.put(text, key=_PIECES)

    try:
        return await ask(on_text=hear)
    except HarnessError as error:
        if chars:
            error.told_chars = chars
            error.add_note(f"the stream had given {chars} characters of the reply before")
        raise
