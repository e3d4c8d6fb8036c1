"""What is particular to Ollama's host."""

import asyncio

import pytest
from server_hosts import KINDS, ask, calls_to, cancel, host_at, ollama
from servers.emulated import TEXT
from servers.ollama import OllamaServer
from servers.ollama_residency import GIB, Pulled

from harness.errors import InferenceError, LoadFailed, ModelNotFound, ServerError
from harness.hardware import Loading, gguf_footprint, gguf_header_from_values
from harness.inference import ChatRequest, EmbedRequest, as_messages
from harness.inference.providers.provider import HostReport

OLLAMA = KINDS["ollama"]
REQUEST = ChatRequest(model="writer", messages=as_messages("Write."))
GONE = HostReport(resident=False)


def paused(*names, **how):
    """An Ollama whose loads wait."""
    server = ollama(*names, **how)
    server.may_load.clear()
    return server


def requests(server):
    """What the server was asked, without the questions what is loaded."""
    return [(one.path, one.body) for one in server.asked if one.path != "/api/ps"]


def report_of(server, **fields):
    async def main():
        async with server, host_at(server.root, OLLAMA, **fields) as host:
            return await host.report()

    return asyncio.run(main())


# --- loading --------------------------------------------------------------------------------------


def test_what_is_sent_is_what_ollama_documents_byte_for_byte():
    server = ollama()
    ask(OLLAMA, server, "load", "unload", context_tokens=8192)
    fields = {
        "model": "m:1b",
        "options": {"num_ctx": 8192},
        "keep_alive": 1800.0,
        "messages": [],
        "shift": False,
    }
    assert [(one.method, one.path, one.body) for one in server.asked] == [
        ("GET", "/api/ps", None),
        ("POST", "/api/chat", fields),
        ("GET", "/api/ps", None),
        ("POST", "/api/generate", {"model": "m:1b", "keep_alive": 0}),
        ("GET", "/api/ps", None),
    ]


@pytest.mark.parametrize(
    ("fields", "sent"),
    [({}, 1800.0), ({"keep_alive": "10m"}, "10m")],
    ids=["as calls do", "the entry's own"],
)
def test_a_load_says_how_long_the_model_stays_as_calls_do(fields, sent):
    server = ollama()
    ask(OLLAMA, server, "load", **fields)
    [(_, body)] = requests(server)
    assert body.get("keep_alive") == sent


@pytest.mark.parametrize(
    ("embeds", "fields"),
    [
        (False, {}),
        (False, {"context_tokens": 2048}),
        (True, {"embeddings": True, "context_tokens": 512}),
    ],
    ids=["no context", "a context", "embeds"],
)
def test_calls_find_the_runner_that_was_loaded_for_them(embeds, fields):
    async def main():
        server = ollama(models={"m:1b": Pulled(embeds=embeds)})
        async with (
            server,
            host_at(server.root, OLLAMA, **fields) as host,
            calls_to(server.root, OLLAMA, **fields) as wire,
        ):
            await host.load()
            if embeds:
                await wire.embed(EmbedRequest(model="writer", texts=("a text",)))
            else:
                assert (await wire.chat(REQUEST)).text == "".join(TEXT)
            return server

    server = asyncio.run(main())
    assert server.log == ["load m:1b"]
    if embeds:
        body = {"model": "m:1b", "options": {"num_ctx": 512}, "keep_alive": 1800.0, "input": []}
        assert requests(server)[0] == ("/api/embed", body)


@pytest.mark.parametrize(
    ("asked", "listed"),
    [
        ("m", "m:latest"),
        ("M", "m:latest"),
        ("registry.ollama.ai/library/m:latest", "m:latest"),
        ("hf.co/who/M-GGUF:Q4_K_M", "hf.co/who/m-gguf:q4_k_m"),
        ("localhost:5000/who/m", "localhost:5000/who/m:latest"),
    ],
)
def test_a_model_is_known_by_every_name_that_ollama_takes(asked, listed):
    entry = {"name": listed, "model": listed, "size": 7, "size_vram": 0}
    server = ollama(instead={"/api/ps": (200, {"models": [entry]})})
    told = HostReport(resident=True, total_bytes=7, gpu_bytes=0)
    assert report_of(server, model_id=asked) == told


def test_sizes_are_told_once_they_are_known():
    whole = HostReport(resident=True, total_bytes=3 * GIB, gpu_bytes=2 * GIB)
    assert report_of(ollama(loaded=("m:1b",))) == whole

    entry = {"name": "m:1b", "size": 0, "size_vram": 0}
    server = ollama(instead={"/api/ps": (200, {"models": [entry]})})
    assert report_of(server) == HostReport(resident=True)


# --- what goes wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        "llama-server process has terminated: exit status 1: cudaMalloc failed: out of memory",
        "model requires more system memory (44.0 GiB) than is available (7.6 GiB)",
    ],
    ids=["CUDA", "machine"],
)
def test_what_ollama_says_without_memory_is_told_as_that(said):
    [error] = ask(OLLAMA, ollama(models={"m:1b": Pulled(fails=said)}), "load")
    assert (type(error), error.out_of_memory) == (LoadFailed, True)
    assert said in str(error)


@pytest.mark.parametrize(
    ("server", "fields", "code"),
    [
        (ollama(models={"m:1b": Pulled(embeds=True)}), {}, "model.load-failed"),
        (ollama(), {"keep_alive": "0s"}, "server.misread"),  # which is to unload
        (ollama(instead={"/api/chat": (200, {"done_reason": "stop"})}), {}, "server.misread"),
    ],
    ids=["only embeds", "keep_alive of nothing", "a reply"],
)
def test_a_load_that_is_none_says_what_it_is(server, fields, code):
    error, report = ask(OLLAMA, server, "load", "report", **fields)
    assert (type(error), error.code, report) == (LoadFailed, code, "gone")


@pytest.mark.parametrize(
    "server",
    [
        ollama(instead={"/api/ps": (200, "<h1>It works!</h1>")}),
        ollama(instead={"/api/ps": (200, {"models": [{"size": 1}]})}),
        OllamaServer(),
    ],
    ids=["no JSON object", "no names", "a version without the page"],
)
def test_a_server_that_is_no_ollama_is_an_error(server):
    errors = ask(OLLAMA, server, "load", "unload", "report")
    assert all(isinstance(error, LoadFailed | ServerError) for error in errors)
    assert requests(server) == []


# --- in time --------------------------------------------------------------------------------------


def test_a_cancelled_load_that_the_server_ends_although_nobody_waits_leaves_nothing():
    server = paused(notices=False)

    def finish():
        # it is asked to go while it still comes
        asked = asyncio.create_task(server.until_asked("/api/generate"))
        asked.add_done_callback(lambda _: server.may_load.set())

    assert cancel(OLLAMA, server, server.loading.wait, then=finish) == "gone"
    assert server.log == ["load m:1b", "unload m:1b"]


def test_a_load_that_fails_takes_nothing_out_that_was_there_before():
    server = OLLAMA.there(instead={"/api/chat": (500, {"error": "boom"})})
    error, report = ask(OLLAMA, server, "load", "report")
    assert (type(error), report) == (LoadFailed, "there")
    assert "boom" in str(error)


# --- letting go -----------------------------------------------------------------------------------


def test_a_call_under_way_is_waited_for():
    async def main():
        server = ollama(reply_s=0.2)
        async with (
            server,
            host_at(server.root, OLLAMA) as host,
            calls_to(server.root, OLLAMA) as wire,
        ):
            await host.load()
            call = asyncio.create_task(wire.chat(REQUEST))
            await server.until_asked("/api/chat", times=2)
            await host.unload()
            assert not server.resident
            return (await call).text

    assert asyncio.run(main()) == "".join(TEXT)


def test_a_server_that_refuses_to_let_go_is_an_error():
    [error] = ask(OLLAMA, OLLAMA.there(instead={"/api/generate": (500, {"error": "b"})}), "unload")
    assert error.code == "model.not-unloaded"


# --- before it is loaded --------------------------------------------------------------------------

HEADER = {
    "general.architecture": "llama",
    "llama.block_count": 8,
    "llama.vocab_size": 32000,
    "llama.embedding_length": 1024,
    "llama.attention.head_count": 8,
    "llama.attention.head_count_kv": [8, 8, 8, 8, 4, 4, 4, 4],
    "llama.context_length": 131072,
}


def sized_up(server, **fields):
    """What the model takes, or why that is not known."""

    async def main():
        async with server, host_at(server.root, OLLAMA, **fields) as host:
            try:
                return await host.footprint()
            except InferenceError as error:
                return error

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("parameters", "fields", "context_tokens"),
    [
        ('stop    "x"\nnum_ctx    8192', {}, 8192),
        ("num_ctx    8192", {"context_tokens": 512}, 512),
        ('stop "num_ctx 5"', {}, 4096),
    ],
    ids=["of its file", "of its endpoint", "of Ollama"],
)
def test_what_a_model_takes_can_be_asked_before_it_is_loaded(parameters, fields, context_tokens):
    model = Pulled(file_bytes=700, model_info=HEADER, parameters=parameters)
    server = ollama(models={"m:1b": model})

    footprint = sized_up(server, **fields)

    header = gguf_header_from_values(HEADER, name="m:1b", tensor_bytes=700)
    assert footprint == gguf_footprint(header, Loading(context_tokens=context_tokens))
    verbose = ("/api/show", {"model": "m:1b", "verbose": True})
    assert requests(server) == [verbose, ("/api/tags", None)]
    assert server.log == []


@pytest.mark.parametrize(
    ("server", "fields", "error", "code"),
    [
        (ollama(), {"model_id": "absent"}, ModelNotFound, "call.model-not-found"),
        (ollama(instead={"/api/show": (200, [])}), {}, LoadFailed, "server.misread"),
    ],
    ids=["never pulled", "something else"],
)
def test_what_cannot_be_known_is_an_error(server, fields, error, code):
    told = sized_up(server, **fields)
    assert (type(told), told.code) == (error, code)
