"""The text of a reply as it arrives, and what becomes of a call whose reader leaves."""

from __future__ import annotations

import asyncio
import threading

import pytest

from harness import ScriptedBackend
from harness.errors import InvalidInput, StreamCut
from harness.inference.stream import ItemQueue, Stream, TextStream

PIECES = ("It is ", "8 to 15 s", ".")


class Model:
    """Tells its pieces one by one, and then gives a reply, or an error, or nothing ever."""

    def __init__(self, *pieces, error=None, hangs=False):
        self.pieces, self.error, self.hangs = pieces or PIECES, error, hangs
        self.at_once = self.left = 0

    async def ask(self, *, on_text):
        self.at_once += 1
        try:
            for piece in self.pieces:
                on_text(piece)
                await asyncio.sleep(0.001)
            if self.hangs:
                await asyncio.Event().wait()
            if self.error is not None:
                raise self.error
            return await ScriptedBackend(["".join(self.pieces)]).chat(REQUEST)
        finally:
            await asyncio.sleep(0)  # as closing a connection takes a moment
            self.at_once -= 1


class _Request:
    model, messages, tools, on_piece, on_text = "m", (), (), None, None


REQUEST = _Request()


def test_the_pieces_come_as_they_arrive_and_then_the_whole_reply_is_there() -> None:
    async def main():
        stream = TextStream(Model().ask)
        with pytest.raises(InvalidInput) as early:
            stream.completion  # noqa: B018
        assert early.value.code == "stream.not-ended"
        pieces = [piece async for piece in stream]
        return pieces, stream.completion.text

    assert asyncio.run(main()) == (list(PIECES), "".join(PIECES))


def test_what_arrives_while_nobody_reads_is_one_piece() -> None:
    async def main():
        stream = TextStream(Model().ask)
        pieces = [await anext(stream)]
        await asyncio.sleep(0.02)
        return [*pieces, *[piece async for piece in stream]]

    assert asyncio.run(main()) == ["It is ", "8 to 15 s."]


def test_an_error_is_raised_where_the_next_piece_is_due_and_says_what_was_told() -> None:
    async def main(model):
        heard = []
        try:
            async for piece in TextStream(model.ask):
                heard += [piece]
        except StreamCut as error:
            return "".join(heard), error

    heard, error = asyncio.run(main(Model(error=StreamCut("gone", endpoint="m"))))
    assert (len(heard), error.told_chars) == (16, 16)
    assert "given 16 characters" in error.__notes__[0]

    model = Model(error=StreamCut("gone", endpoint="m"))
    model.pieces = ()
    assert asyncio.run(main(model))[1].told_chars == 0


async def leave_by_break(model):
    async for _ in TextStream(model.ask):
        break


async def leave_the_block(model):
    async with TextStream(model.ask) as stream:
        await anext(stream)
        assert model.at_once == 1
    assert model.at_once == 0
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def be_cancelled(model):
    stream = TextStream(model.ask)
    await anext(stream)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(stream), 0.02)
    assert model.at_once == 0


async def raise_inside(model):
    async def read():
        async for _ in TextStream(model.ask):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await read()


@pytest.mark.parametrize("leave", [leave_by_break, leave_the_block, be_cancelled, raise_inside])
def test_a_reader_that_leaves_ends_the_call(leave) -> None:
    async def main():
        model = Model("It is ", hangs=True)
        await leave(model)
        await asyncio.sleep(0.01)
        return model.at_once

    assert asyncio.run(main()) == 0


def test_a_stream_that_is_never_read_asks_nothing() -> None:
    async def main():
        model = Model()
        async with TextStream(model.ask):
            pass
        return model.at_once

    assert asyncio.run(main()) == 0


def test_a_slow_reader_misses_the_oldest_and_is_told_how_many() -> None:
    told = ItemQueue[str](str.__add__, most=3, missed=lambda number: f"{number} missed")

    async def main():
        thread = threading.Thread(target=lambda: [told.put(str(n)) for n in range(10)])
        thread.start()
        thread.join()  # nobody reads meanwhile

    async def read():
        return [item async for item in Stream(main, told)]

    assert asyncio.run(read()) == ["7 missed", "7", "8", "9"]
