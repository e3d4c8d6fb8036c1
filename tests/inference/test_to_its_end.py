import asyncio
import threading

import pytest

from harness.inference import to_its_end


def test_what_it_raises_comes_out():
    def fails():
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        asyncio.run(to_its_end(fails))


@pytest.mark.parametrize("error", [None, OSError("no space")], ids=["well", "failing"])
def test_a_cancellation_waits_for_its_end_and_is_not_lost(error):
    under_way, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work():
        under_way.set()
        assert may_end.wait(10)
        ended.set()
        if error is not None:
            raise error

    async def main():
        task = asyncio.create_task(to_its_end(work))
        assert await asyncio.to_thread(under_way.wait, 10)
        task.cancel()
        await asyncio.wait([task], timeout=0)
        assert not task.done()

        may_end.set()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await task
        assert ended.is_set()
        assert cancelled.value.__cause__ is error

    asyncio.run(main())
