import asyncio
import socket
import threading
import time

import pytest
import virtual_time


def test_a_timer_takes_its_time_on_the_loops_clock_and_none_on_the_wall():
    async def main():
        loop = asyncio.get_running_loop()
        order = []

        async def wake(after_s):
            await asyncio.sleep(after_s)
            order.append((after_s, loop.time()))

        await asyncio.gather(*map(wake, (3600.0, 0.5, 2**20, 0.0)))
        return order

    begun = time.monotonic()
    order = virtual_time.run(main())

    assert order == [(0.0, 0.0), (0.5, 0.5), (3600.0, 3600.0), (2**20, float(2**20))]
    assert time.monotonic() - begun < 60


def test_a_timeout_comes_at_its_moment():
    async def main():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(7.0):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert virtual_time.run(main()) == 7.0


def in_a_thread(work):
    """A future of what a thread does that ends when it has done it."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def settle():
        work()
        loop.call_soon_threadsafe(done.set_result, None)

    threading.Thread(target=settle).start()
    return done


def test_no_time_passes_while_a_thread_is_at_work():
    async def main():
        loop = asyncio.get_running_loop()
        timer = loop.create_future()
        may_end = threading.Event()
        thread = in_a_thread(may_end.wait)
        loop.call_later(5.0, timer.set_result, None)
        loop.call_soon(may_end.set)
        await thread
        thread_ended_at = loop.time()
        await timer
        return thread_ended_at, loop.time()

    assert virtual_time.run(main()) == (0.0, 5.0)


def test_a_thread_that_does_not_end_is_refused_beside_a_timer():
    async def main():
        await asyncio.to_thread(int)
        await asyncio.sleep(1.0)

    with pytest.raises(RuntimeError, match=r"nothing has happened for 0\.01 s"):
        virtual_time.run(main(), patience_s=0.01)


def test_a_loop_in_which_nothing_can_happen_says_so():
    async def main():
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match=r"nothing has happened for 0\.01 s"):
        virtual_time.run(main(), patience_s=0.01)


def test_a_timer_beside_a_socket_is_refused():
    async def main():
        one, other = socket.socketpair()
        with one, other:
            one.settimeout(0)
            async with asyncio.timeout(1.0):
                await asyncio.get_running_loop().sock_recv(one, 1)

    with pytest.raises(RuntimeError, match="a socket or a pipe"):
        virtual_time.run(main())
