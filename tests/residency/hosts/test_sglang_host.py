import asyncio

import pytest
from server_hosts import KINDS, host_at
from servers.sglang_memory import SavingSglang

from harness.errors import AuthenticationFailed, InferenceError, LoadFailed, Overloaded
from harness.residency.host import HostReport

SGLANG = KINDS["sglang"]
THERE, GONE = HostReport(resident=True), HostReport(resident=False)


def gone(**how):
    return SavingSglang(is_paused=True, is_released=True, weights_are_good=False, **how)


def run(server, *actions, **fields):
    """Has a host do these things, and says what became of the server."""

    async def main():
        async with server, host_at(server.root, SGLANG, **fields) as host:
            for action in actions:
                await getattr(host, action)()
            return server

    return asyncio.run(main())


def fail(server, action, *, error, match, **fields):
    """The error of something that a host cannot do, and its report afterwards."""

    async def main():
        async with server, host_at(server.root, SGLANG, **fields) as host:
            with pytest.raises(error, match=match) as caught:
                await getattr(host, action)()
            return caught.value, await host.report()

    return asyncio.run(main())


def test_it_gives_its_memory_back_while_it_is_paused_and_goes_on_when_it_has_it_again():
    server = run(SavingSglang(), "unload")

    assert (server.gpu_bytes, server.is_paused) == (0, True)

    server = run(SavingSglang(), "unload", "load")

    assert (server.gpu_bytes, server.is_paused) == (server.share_bytes, False)
    assert server.posted() == [
        "/pause_generation",
        "/flush_cache",
        "/release_memory_occupation",
        "/resume_memory_occupation",
        "/update_weights_from_disk",
        "/continue_generation",
    ]


def test_weights_that_it_threw_away_are_read_again_before_it_goes_on():
    server = run(SavingSglang(), "unload")
    assert not server.weights_are_good

    server = run(SavingSglang(), "unload", "load")
    assert server.weights_are_good


def test_weights_that_it_kept_are_not_read_again():
    server = run(SavingSglang(cpu_backup=True), "unload", "load")

    assert server.weights_are_good
    assert "read weights" not in server.log


@pytest.mark.parametrize("times", [2, 3])
def test_what_it_must_be_asked_but_once_it_is_asked_once(times):
    server = run(SavingSglang(), *["unload"] * times, *["load"] * times)

    assert not server.has_died
    assert server.log == ["unload", "load", "read weights"]


def test_it_is_not_asked_for_its_memory_while_a_call_runs():
    server = run(SavingSglang(busy_for=2), "unload")

    assert not server.has_died
    assert server.posted() == [
        "/pause_generation",
        *["/flush_cache"] * 3,
        "/release_memory_occupation",
    ]


def test_one_whose_calls_do_not_end_goes_on():
    server = SavingSglang(busy_for=10**9)

    _, report = fail(
        server, "unload", error=LoadFailed, match="could not let go of", load_timeout_s=0.2
    )

    assert report == THERE
    assert (server.is_paused, server.log) == (False, [])


def test_one_without_the_memory_saver_is_left_as_it_is():
    server = SavingSglang(memory_saver=False)

    _, report = fail(server, "unload", error=LoadFailed, match="--enable-memory-saver")

    assert report == THERE
    assert server.posted() == []


def test_weights_that_cannot_be_read_again_leave_it_without_its_memory():
    server = gone()
    said = {"success": False, "message": "No such file: /models/qwen"}
    server.instead["/update_weights_from_disk"] = (400, said)

    error, report = fail(server, "load", error=LoadFailed, match="No such file: /models/qwen")

    assert not error.out_of_memory
    assert report == GONE
    assert (server.has_died, server.gpu_bytes) == (False, 0)


def test_a_load_that_is_cancelled_leaves_it_without_its_memory():
    async def main():
        server = gone(unanswered={"/resume_memory_occupation"})
        async with server, host_at(server.root, SGLANG) as host:
            loading = asyncio.create_task(host.load())
            await server.keeps_waiting.wait()
            loading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await loading
            return await host.report(), server

    report, server = asyncio.run(main())

    assert report == GONE
    assert (server.has_died, server.gpu_bytes) == (False, 0)


def test_a_load_that_is_cancelled_when_calls_run_again_pauses_it_before_it_lets_go():
    async def main():
        server = gone(unanswered={"/continue_generation"})
        async with server, host_at(server.root, SGLANG) as host:
            loading = asyncio.create_task(host.load())
            await server.keeps_waiting.wait()
            server.busy_for = 2
            loading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await loading
            return await host.report(), server

    report, server = asyncio.run(main())

    assert report == GONE
    assert (server.has_died, server.gpu_bytes) == (False, 0)


def test_one_that_refuses_to_take_its_memory_again_is_not_asked_to_give_it_back():
    server = gone()
    server.instead["/resume_memory_occupation"] = (502, {"error": "Bad gateway"})

    _, report = fail(server, "load", error=LoadFailed, match="Bad gateway")

    assert report == GONE
    assert (server.has_died, server.posted()) == (False, ["/resume_memory_occupation"])


def test_one_that_starts_or_has_broken_is_not_taken_for_paused():
    async def main():
        server = SavingSglang(is_healthy=False)
        async with server, host_at(server.root, SGLANG) as host:
            for action in (host.load, host.unload, host.report):
                with pytest.raises(Overloaded):
                    await action()
            return server

    assert asyncio.run(main()).posted() == []


def test_a_version_that_does_not_tell_whether_it_is_paused_is_not_touched():
    async def main():
        server = SavingSglang(has_ready=False)
        async with server, host_at(server.root, SGLANG) as host:
            for action in (host.load, host.unload, host.report):
                with pytest.raises(LoadFailed, match=r"use 0\.5\.23 or newer"):
                    await action()
            return server

    assert asyncio.run(main()).posted() == []


def test_its_admin_key_is_shown_where_it_is_wanted():
    server = run(SavingSglang(admin_key="boss"), "unload", "load", control_key="boss")

    assert server.log == ["unload", "load", "read weights"]


def test_a_wrong_admin_key_is_an_error_that_names_the_setting():
    async def main():
        server = SavingSglang(admin_key="boss")
        async with server, host_at(server.root, SGLANG, control_key="clerk") as host:
            with pytest.raises(AuthenticationFailed, match="control_key_env") as caught:
                await host.unload()
            assert "clerk" not in str(caught.value)
            return server

    server = asyncio.run(main())
    assert not server.is_paused


def test_a_server_without_room_ends_and_cannot_be_reached():
    class Full(SavingSglang):
        async def _act(self, asked, path, answer):
            if path == "/resume_memory_occupation":
                self._die(answer)
            await super()._act(asked, path, answer)

    async def main():
        server = Full(is_paused=True, is_released=True)
        async with server, host_at(server.root, SGLANG) as host:
            with pytest.raises(InferenceError, match="does not answer"):
                await host.load()

    asyncio.run(main())
