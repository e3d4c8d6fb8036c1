"""What holds of every host of a server."""

import asyncio

import pytest
from server_hosts import KINDS, host_at

from harness.errors import EndpointUnreachable, InferenceError, LoadFailed
from harness.residency.host import HostReport

THERE, GONE = HostReport(resident=True), HostReport(resident=False)

every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@every_kind
def test_a_model_is_let_go_and_loaded_again(kind):
    async def main():
        server = kind.there()
        async with server, host_at(server.root, kind) as host:
            reports = [await host.report()]
            await host.unload()
            reports.append(await host.report())
            await host.load()
            reports.append(await host.report())
            return reports, server

    reports, server = asyncio.run(main())

    assert reports == [THERE, GONE, THERE]
    assert [entry.split()[0] for entry in server.log if "weights" not in entry] == [
        "unload",
        "load",
    ]


@every_kind
def test_loading_a_model_that_is_there_asks_for_nothing(kind):
    async def main():
        server = kind.there()
        async with server, host_at(server.root, kind) as host:
            await host.load()
            return server

    server = asyncio.run(main())

    assert kind.load_page not in [one.path for one in server.asked]
    assert server.log == []


@every_kind
def test_letting_go_of_a_model_that_is_gone_asks_for_nothing(kind):
    async def main():
        server = kind.gone()
        async with server, host_at(server.root, kind) as host:
            await host.unload()
            return server

    server = asyncio.run(main())

    assert kind.unload_page not in [one.path.partition("?")[0] for one in server.asked]
    assert server.log == []


@every_kind
@pytest.mark.parametrize("what", ["load", "unload", "report"])
def test_a_server_that_is_not_there_cannot_be_reached(kind, what):
    async def main():
        async with kind.there() as server:
            root = server.root
        async with host_at(root, kind) as host:
            with pytest.raises(EndpointUnreachable, match=root.removeprefix("http://")):
                await getattr(host, what)()

    asyncio.run(main())


@every_kind
def test_a_load_that_takes_too_long_fails_and_leaves_nothing(kind):
    async def main():
        server = kind.gone(**{kind.never_answers: {kind.load_page}})
        async with server, host_at(server.root, kind, load_timeout_s=0.2) as host:
            with pytest.raises(LoadFailed, match=r"in 0\.2 s; raise load_timeout_s") as caught:
                await host.load()
            assert caught.value.endpoint == "writer"
            assert not caught.value.out_of_memory
            return await host.report()

    assert asyncio.run(main()) == GONE


@every_kind
def test_letting_go_that_takes_too_long_fails(kind):
    async def main():
        server = kind.there(**{kind.never_answers: {kind.unload_page}})
        async with server, host_at(server.root, kind, load_timeout_s=0.2) as host:
            with pytest.raises(LoadFailed, match=r"in 0\.2 s; raise load_timeout_s"):
                await host.unload()

    asyncio.run(main())


@every_kind
@pytest.mark.parametrize("what", ["load", "unload", "report"])
def test_an_answer_of_another_kind_of_server_is_an_error(kind, what):
    async def main():
        server = kind.there()
        pages = ("/is_sleeping", "/ready", "/memory_status", "/v1/model", "/v1/models")
        server.instead = dict.fromkeys((*pages, "/v2/repository/index"), (418, {"a": "teapot"}))
        async with server, host_at(server.root, kind) as host:
            with pytest.raises(InferenceError, match="418"):
                await getattr(host, what)()

    asyncio.run(main())


@pytest.mark.parametrize(
    "kind",
    [KINDS["sglang"], KINDS["tensorrt-llm"], KINDS["tabbyapi"]],
    ids=["sglang", "tensorrt-llm", "tabbyapi"],
)
def test_a_key_that_was_read_with_its_newline_is_shown_without(kind):
    key = kind.control_key or "boss"

    async def main():
        server = kind.there(**({} if kind.control_key else {"admin_key": key}))
        async with server, host_at(server.root, kind, control_key=f"{key}\n") as host:
            await host.unload()
            return await host.report()

    assert asyncio.run(main()) == GONE


@every_kind
def test_a_load_without_room_says_so_and_leaves_nothing(kind):
    async def main():
        server = kind.gone()
        said = {"error": {"message": "CUDA out of memory. Tried to allocate 20.00 GiB"}}
        server.instead = {kind.load_page: (500, said)}
        async with server, host_at(server.root, kind) as host:
            with pytest.raises(LoadFailed, match="CUDA out of memory") as caught:
                await host.load()
            assert caught.value.out_of_memory

    asyncio.run(main())
