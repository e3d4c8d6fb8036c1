import asyncio

import pytest
from server_hosts import KINDS, host_at
from servers.tabby_models import NO_ROOM, TabbyServer

from harness.errors import AuthenticationFailed, LoadFailed, ModelNotFound
from harness.residency.host import HostReport

TABBY = KINDS["tabbyapi"]
THERE, GONE = HostReport(resident=True), HostReport(resident=False)


def run(server, *actions, **fields):
    """Has a host do these things; its report afterwards."""

    async def main():
        async with server, host_at(server.root, TABBY, **fields) as host:
            for action in actions:
                await getattr(host, action)()
            return await host.report()

    return asyncio.run(main())


def fail_to_load(server, *, error, match, **fields):
    """The error of a load, and the report afterwards."""

    async def main():
        async with server, host_at(server.root, TABBY, **fields) as host:
            with pytest.raises(error, match=match) as caught:
                await host.load()
            return caught.value, await host.report()

    return asyncio.run(main())


def test_a_load_takes_the_place_of_another_model():
    server = TabbyServer(loaded="llama")

    assert run(server, "load") == THERE
    assert server.log == ["unload llama", "load qwen"]


def test_a_model_is_not_there_when_another_is():
    assert run(TabbyServer(loaded="llama")) == GONE


def test_another_model_is_left_where_it_is():
    server = TabbyServer(loaded="llama")

    run(server, "unload")

    assert server.loaded == "llama"


def test_a_load_has_ended_when_all_of_its_parts_have():
    server = TabbyServer(has_draft=True)

    assert run(server, "load") == THERE
    assert server.loaded == "qwen"


def test_older_versions_are_told_the_name_as_they_want_it():
    assert run(TabbyServer(name_field="name"), "load") == THERE


def test_a_server_without_keys_is_shown_none():
    async def main():
        server = TabbyServer(auth=False)
        async with server, host_at(server.root, TABBY, control_key=None) as host:
            await host.load()
            return server

    server = asyncio.run(main())

    assert server.loaded == "qwen"
    assert not any("x-admin-key" in one.headers for one in server.asked)


@pytest.mark.parametrize("key", [None, "an-api-key"], ids=["none", "another"])
def test_without_the_admin_key_the_error_names_its_setting(key):
    error, report = fail_to_load(
        TabbyServer(), error=AuthenticationFailed, match="control_key_env", control_key=key
    )

    assert "an-api-key" not in str(error)
    assert report == GONE


def test_a_folder_that_is_not_there_is_a_model_that_is_not_found():
    error, _ = fail_to_load(
        TabbyServer(folders=("llama",)), error=ModelNotFound, match="no folder 'qwen'"
    )

    assert error.endpoint == "writer"


def test_a_load_that_is_refused_leaves_another_model_where_it_is():
    server = TabbyServer(folders=("llama",), loaded="llama")

    fail_to_load(server, error=ModelNotFound, match="no folder 'qwen'")

    assert (server.loaded, server.log) == ("llama", [])


@pytest.mark.parametrize(
    ("said", "out_of_memory"),
    [(NO_ROOM, True), ("Models quantized with 'exl2' require the exllamav2 backend", False)],
    ids=["no room", "wrong file"],
)
def test_a_load_that_fails_says_why_and_leaves_nothing(said, out_of_memory):
    error, report = fail_to_load(TabbyServer(fails=said), error=LoadFailed, match=said[:20])

    assert error.out_of_memory is out_of_memory
    assert report == GONE


def test_a_load_that_breaks_off_has_failed_and_leaves_nothing():
    server = TabbyServer(breaks_off=True)

    _, report = fail_to_load(server, error=LoadFailed, match="stopped in the middle")

    assert report == GONE
    assert server.log == ["load qwen", "unload qwen"]


def test_a_load_that_is_cancelled_is_taken_out_of_memory():
    async def main():
        server = TabbyServer()
        server.may_load.clear()
        async with server, host_at(server.root, TABBY) as host:
            loading = asyncio.create_task(host.load())
            await server.loading.wait()
            loading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await loading
            return await host.report(), server.log

    assert asyncio.run(main()) == (GONE, ["load qwen", "unload qwen"])
