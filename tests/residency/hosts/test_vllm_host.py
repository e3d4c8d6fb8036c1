import asyncio

import pytest
from server_hosts import KINDS, host_at
from servers.vllm_sleeping import SleepingVllm

from harness.errors import LoadFailed, ServerError
from harness.residency.host import HostReport

VLLM = KINDS["vllm"]
THERE, GONE = HostReport(resident=True), HostReport(resident=False)


def test_asleep_it_has_given_its_share_of_the_gpu_back():
    async def main():
        server = SleepingVllm()
        async with server, host_at(server.root, VLLM) as host:
            await host.unload()
            asleep = server.gpu_bytes
            await host.load()
            return asleep, server

    asleep, server = asyncio.run(main())

    assert (asleep, server.gpu_bytes) == (0, server.share_bytes)
    # Level 2 would throw the weights away.
    assert "/sleep?level=1&mode=wait" in server.posted()


@pytest.mark.parametrize("what", ["load", "unload", "report"])
def test_without_the_pages_of_its_development_mode_it_says_how_to_start_it(what):
    async def main():
        server = SleepingVllm(dev_mode=False)
        async with server, host_at(server.root, VLLM) as host:
            with pytest.raises(LoadFailed, match="VLLM_SERVER_DEV_MODE=1") as caught:
                await getattr(host, what)()
            assert "--enable-sleep-mode" in str(caught.value)

    asyncio.run(main())


def test_one_that_would_sleep_and_keep_its_memory_is_not_put_to_sleep():
    async def main():
        server = SleepingVllm(sleep_mode=False)
        async with server, host_at(server.root, VLLM) as host:
            with pytest.raises(LoadFailed, match="--enable-sleep-mode"):
                await host.unload()
            return await host.report(), server

    report, server = asyncio.run(main())

    assert report == THERE
    assert server.posted() == []


def test_a_version_that_does_not_tell_its_configuration_is_believed():
    async def main():
        server = SleepingVllm(instead={"/server_info": (404, {"detail": "Not Found"})})
        async with server, host_at(server.root, VLLM) as host:
            await host.unload()
            return await host.report()

    assert asyncio.run(main()) == GONE


def test_it_sleeps_once_the_calls_of_others_have_ended():
    async def main():
        server = SleepingVllm()
        server.calls_ended.clear()
        async with server, host_at(server.root, VLLM) as host:
            async with asyncio.TaskGroup() as group:
                unloading = group.create_task(host.unload())
                await server.going_to_sleep.wait()
                before = server.gpu_bytes, unloading.done()
                server.calls_ended.set()
            return before, server

    before, server = asyncio.run(main())

    assert before == (server.share_bytes, False)
    assert server.gpu_bytes == 0


def test_one_whose_calls_do_not_end_is_left_awake():
    async def main():
        server = SleepingVllm()
        server.calls_ended.clear()
        async with server, host_at(server.root, VLLM, load_timeout_s=0.2) as host:
            with pytest.raises(LoadFailed, match="could not let go of its model"):
                await host.unload()
            return await host.report(), server

    report, server = asyncio.run(main())

    assert report == THERE
    assert server.log == []


def test_without_room_to_wake_up_into_it_sleeps_on():
    async def main():
        server = SleepingVllm(is_asleep=True, has_room=False)
        async with server, host_at(server.root, VLLM) as host:
            with pytest.raises(LoadFailed, match="CUDA Error: out of memory") as caught:
                await host.load()
            return caught.value.out_of_memory, await host.report(), server.gpu_bytes

    assert asyncio.run(main()) == (True, GONE, 0)


def test_a_load_that_is_cancelled_leaves_it_asleep():
    async def main():
        server = SleepingVllm(is_asleep=True, silent={"/wake_up"})
        async with server, host_at(server.root, VLLM) as host:
            loading = asyncio.create_task(host.load())
            await server.keeps_waiting.wait()
            loading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await loading
            return await host.report(), server.gpu_bytes

    assert asyncio.run(main()) == (GONE, 0)


def test_a_server_that_breaks_when_asked_is_an_error_in_its_own_words():
    async def main():
        server = SleepingVllm()
        server.instead["/is_sleeping"] = (500, {"error": {"message": "EngineCore died"}})
        async with server, host_at(server.root, VLLM) as host:
            with pytest.raises(ServerError, match="EngineCore died"):
                await host.report()

    asyncio.run(main())
