import asyncio

import pytest
from server_hosts import KINDS, host_at
from servers.triton_repository import TritonRepository

from harness.errors import LoadFailed
from harness.residency.host import HostReport

KSERVE, OPENAI = KINDS["triton"], KINDS["triton-openai"]
THERE, GONE = HostReport(resident=True), HostReport(resident=False)

either_front_end = pytest.mark.parametrize("kind", [KSERVE, OPENAI], ids=["kserve", "openai"])


def run(server, kind, *actions, **fields):
    """Has a host do these things; its report afterwards."""

    async def main():
        async with server, host_at(server.root, kind, **fields) as host:
            for action in actions:
                await getattr(host, action)()
            return await host.report()

    return asyncio.run(main())


@either_front_end
def test_other_models_are_left_as_they_are(kind):
    server = TritonRepository(ready={"m", "tokens"})

    run(server, kind, "unload")

    assert server.ready == {"tokens"}


@either_front_end
def test_a_server_that_decides_itself_what_it_loads_says_how_to_start_it(kind):
    async def main():
        for ready, action in (set(), "load"), ({"m"}, "unload"):
            server = TritonRepository(explicit=False, ready=ready)
            async with server, host_at(server.root, kind) as host:
                with pytest.raises(LoadFailed, match="--model-control-mode=explicit"):
                    await getattr(host, action)()

    asyncio.run(main())


@either_front_end
def test_a_model_that_is_not_in_the_repository_cannot_be_loaded(kind):
    async def main():
        server = TritonRepository(models={})
        async with server, host_at(server.root, kind) as host:
            with pytest.raises(LoadFailed, match="failed to load 'm'"):
                await host.load()
            return await host.report()

    assert asyncio.run(main()) == GONE


@either_front_end
@pytest.mark.parametrize(
    ("said", "out_of_memory"),
    [
        ("failed to load 'm' version 1: Internal: CUDA out of memory", True),
        ("failed to load 'm' version 1: Not found: no model.plan", False),
    ],
    ids=["no room", "no file"],
)
def test_a_load_that_fails_says_why(kind, said, out_of_memory):
    async def main():
        server = TritonRepository(fails=said)
        async with server, host_at(server.root, kind) as host:
            with pytest.raises(LoadFailed, match="version 1") as caught:
                await host.load()
            return caught.value.out_of_memory, await host.report()

    assert asyncio.run(main()) == (out_of_memory, GONE)


@either_front_end
def test_a_load_that_is_cancelled_is_taken_out_of_memory(kind):
    async def main():
        server = TritonRepository()
        server.may_load.clear()
        async with server, host_at(server.root, kind) as host:
            loading = asyncio.create_task(host.load())
            await server.loading.wait()
            loading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await loading
            return await host.report(), server.log

    assert asyncio.run(main()) == (GONE, ["load m", "unload m"])


def test_what_an_ensemble_is_made_of_comes_and_goes_with_it():
    server = TritonRepository()

    assert run(server, KSERVE, "load", model_id="chain") == THERE
    assert server.ready == {"chain", "m", "tokens"}

    assert run(server, KSERVE, "unload", model_id="chain") == GONE
    assert server.ready == set()


def test_unloading_waits_until_the_calls_under_way_have_ended():
    server = TritonRepository(ready={"m"}, leaves_after=3)

    run(server, KSERVE, "unload")

    looks = [one for one in server.asked if one.path == "/v2/repository/index"]
    assert server.unloading == {"m": 0}
    assert len(looks) >= 5


def test_an_endpoint_that_names_a_version_is_of_the_model_with_all_of_them():
    server = TritonRepository()

    assert run(server, KSERVE, "load", model_id="m/versions/1") == THERE
    assert server.log == ["load m"]
