import asyncio
from contextlib import asynccontextmanager

import pytest
from servers.emulated import TEXT
from servers.ollama import OllamaServer
from servers.ollama_residency import GIB, Pulled, ResidentOllama

from harness.errors import (
    EndpointUnreachable,
    InferenceError,
    LoadFailed,
    ModelNotFound,
    Overloaded,
    ServerError,
)
from harness.inference import ChatRequest, EmbedRequest, Endpoint, as_messages
from harness.inference.wire.ollama import OllamaWire
from harness.residency.host import HostReport
from harness.residency.hosts.ollama import OllamaHost

REQUEST = ChatRequest(model="writer", messages=as_messages("Write."))
PATIENCE_S = 10.0
"""For what happens at once or never."""


def an_endpoint(server, **fields):
    said = {"tag": "writer", "backend": "ollama", "url": server.root, "model_id": "m:1b"} | fields
    return Endpoint.model_validate(said)


@asynccontextmanager
async def host_of(server, *, observed=None, **fields):
    host = OllamaHost(an_endpoint(server, **fields), keep_alive=observed)
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield host
    finally:
        await host.aclose()


@asynccontextmanager
async def wire_to(server, **fields):
    wire = OllamaWire(an_endpoint(server, **fields))
    try:
        yield wire
    finally:
        await wire.aclose()


def ollama(*names, **how):
    models = {name: Pulled(size_bytes=3 * GIB, gpu_bytes=2 * GIB) for name in names or ("m:1b",)}
    return ResidentOllama(**({"models": models} | how))


def requests(server):
    """What the server was asked, without the questions what is loaded."""
    return [(one.path, one.body) for one in server.asked if one.path != "/api/ps"]


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
        async with ollama() as server, host_of(server) as host:
            before = await host.report()
            await host.load()
            during = await host.report()
            await host.unload()
            after = await host.report()
            return before, during, after, server.log

    before, during, after, log = asyncio.run(main())

    assert before == after == HostReport(resident=False)
    assert during == HostReport(resident=True, total_bytes=3 * GIB, gpu_bytes=2 * GIB)
    assert log == ["load m:1b", "unload m:1b"]


def test_what_is_sent_is_what_ollama_documents_byte_for_byte():
    async def main():
        async with ollama() as server, host_of(server, context_tokens=8192) as host:
            await host.load()
            await host.unload()
            return [(one.method, one.path, one.body) for one in server.asked]

    asked = asyncio.run(main())

    assert asked == [
        ("GET", "/api/ps", None),
        (
            "POST",
            "/api/chat",
            {"model": "m:1b", "options": {"num_ctx": 8192}, "messages": [], "shift": False},
        ),
        ("GET", "/api/ps", None),
        ("POST", "/api/generate", {"model": "m:1b", "keep_alive": 0}),
        ("GET", "/api/ps", None),
    ]


def test_the_key_is_sent_as_a_bearer_token():
    async def main():
        async with ollama() as server:
            host = OllamaHost(an_endpoint(server), api_key="secret")
            await host.load()
            await host.aclose()
            return {one.headers.get("authorization") for one in server.asked}

    assert asyncio.run(main()) == {"Bearer secret"}


@pytest.mark.parametrize(
    ("fields", "observed", "sent"),
    [
        ({}, None, None),
        ({}, lambda: 96.0, 96.0),
        ({"keep_alive": "10m"}, lambda: 96.0, "10m"),
    ],
    ids=["nothing is said", "what was observed", "the entry's own"],
)
def test_a_load_says_how_long_the_model_stays_as_calls_do(fields, observed, sent):
    async def main():
        async with ollama() as server, host_of(server, observed=observed, **fields) as host:
            await host.load()
            [(_, body)] = requests(server)
            return body.get("keep_alive")

    assert asyncio.run(main()) == sent


@pytest.mark.parametrize("fields", [{}, {"context_tokens": 2048}], ids=["no context", "a context"])
def test_calls_find_the_runner_that_was_loaded_for_them(fields):
    async def main():
        async with (
            ollama() as server,
            host_of(server, **fields) as host,
            wire_to(server, **fields) as wire,
        ):
            await host.load()
            completion = await wire.chat(REQUEST)
            return completion.text, server.log

    text, log = asyncio.run(main())

    assert text == "".join(TEXT)
    assert log == ["load m:1b"]


def test_a_load_that_says_less_than_calls_do_is_one_too_many():
    """The emulation is strict: that is what the load's `shift` is for."""

    async def main():
        async with ollama() as server, host_of(server) as host, wire_to(server) as wire:
            page = await host._control.post("/api/chat", {"model": "m:1b", "messages": []})
            assert page.json["done_reason"] == "load"
            await wire.chat(REQUEST)
            return server.log

    assert asyncio.run(main()) == ["load m:1b", "unload m:1b", "load m:1b"]


def test_a_model_that_embeds_is_loaded_for_it():
    async def main():
        server = ollama(models={"m:1b": Pulled(embeds=True)})
        async with (
            server,
            host_of(server, embeddings=True, context_tokens=512) as host,
            wire_to(server, embeddings=True, context_tokens=512) as wire,
        ):
            await host.load()
            await wire.embed(EmbedRequest(model="writer", texts=("a text",)))
            first = requests(server)[0]
            await host.unload()
            return first, server.log

    first, log = asyncio.run(main())

    assert first == ("/api/embed", {"model": "m:1b", "options": {"num_ctx": 512}, "input": []})
    assert log == ["load m:1b", "unload m:1b"]


def test_a_model_that_is_loaded_already_is_not_loaded_again():
    async def main():
        async with ollama() as server, host_of(server) as host:
            await host.load()
            await host.load()
            return server.log

    assert asyncio.run(main()) == ["load m:1b"]


@pytest.mark.parametrize(
    ("asked", "listed"),
    [
        ("m", "m:latest"),
        ("m:latest", "m:latest"),
        ("M", "m:latest"),
        ("library/m", "m:latest"),
        ("registry.ollama.ai/library/m:latest", "m:latest"),
        ("hf.co/who/M-GGUF:Q4_K_M", "hf.co/who/m-gguf:q4_k_m"),
        ("localhost:5000/who/m", "localhost:5000/who/m:latest"),
    ],
)
def test_a_model_is_known_by_every_name_that_ollama_takes(asked, listed):
    async def main():
        entry = {"name": listed, "model": listed, "size": 7, "size_vram": 0}
        server = ollama(instead={"/api/ps": (200, {"models": [entry]})})
        async with server, host_of(server, model_id=asked) as host:
            return await host.report()

    assert asyncio.run(main()) == HostReport(resident=True, total_bytes=7, gpu_bytes=0)


def test_a_model_of_another_tag_is_another_model():
    async def main():
        async with (
            ollama("m:1b", "m:7b") as server,
            host_of(server) as one,
            host_of(server, model_id="m:7b") as other,
        ):
            await one.load()
            return await other.report()

    assert asyncio.run(main()) == HostReport(resident=False)


def test_sizes_are_not_told_before_they_are_known():
    async def main():
        entry = {"name": "m:1b", "size": 0, "size_vram": 0}
        server = ollama(instead={"/api/ps": (200, {"models": [entry]})})
        async with server, host_of(server) as host:
            return await host.report()

    assert asyncio.run(main()) == HostReport(resident=True)


# --- what goes wrong -------------------------------------------------------------------------


def test_a_model_that_was_never_pulled_is_not_found():
    error = raised_by_load(ollama(), model_id="absent")

    assert isinstance(error, ModelNotFound)
    assert "ollama pull absent" in str(error)


def test_so_is_one_that_is_to_embed():
    error = raised_by_load(ollama(), model_id="absent", embeddings=True)

    assert isinstance(error, ModelNotFound)
    assert "ollama pull absent" in str(error)


OUT_OF_MEMORY = [
    "llama-server process has terminated: exit status 1: failed to allocate buffer of size 19192",
    "llama-server process has terminated: exit status 1: cudaMalloc failed: out of memory",
    "error loading model: unable to allocate CPU buffer",
    "ggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory",
    "model requires more system memory (44.0 GiB) than is available (7.6 GiB)",
]


@pytest.mark.parametrize("said", OUT_OF_MEMORY, ids=range(len(OUT_OF_MEMORY)))
def test_what_ollama_says_without_memory_is_told_as_that(said):
    error = raised_by_load(ollama(models={"m:1b": Pulled(fails=said)}))

    assert isinstance(error, LoadFailed)
    assert error.out_of_memory
    assert "no room for 'm:1b'" in str(error)
    assert said in str(error)


def test_a_model_larger_than_the_machine_has_no_room():
    error = raised_by_load(ollama(models={"m:1b": Pulled(size_bytes=44 * GIB)}))

    assert isinstance(error, LoadFailed)
    assert error.out_of_memory
    assert "requires more system memory (44.0 GiB)" in str(error)


def test_another_failure_is_told_in_ollamas_words():
    said = "error loading model: unknown model architecture: 'new'"

    error = raised_by_load(ollama(models={"m:1b": Pulled(fails=said)}))

    assert type(error) is LoadFailed
    assert not error.out_of_memory
    assert said in str(error)
    assert error.endpoint == "writer"


def test_a_model_that_only_embeds_is_told_apart():
    error = raised_by_load(ollama(models={"m:1b": Pulled(embeds=True)}))

    assert type(error) is LoadFailed
    assert "embeddings = true" in str(error)


def test_a_server_with_too_much_to_do_says_so():
    async def main():
        server = ollama("m:1b", "other", "third", max_queue=1)
        server.may_load.clear()
        async with (
            server,
            host_of(server, model_id="other") as first,
            host_of(server, model_id="third") as second,
            host_of(server) as host,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(first.load())
            await server.loading.wait()
            waits = group.create_task(second.load())
            await server.until_asked("/api/chat", times=2)
            with pytest.raises(Overloaded, match="maximum pending requests exceeded"):
                await host.load()
            assert not waits.done()
            server.may_load.set()
        return server.log

    assert asyncio.run(main()) == ["load other:latest", "load third:latest"]


def test_a_keep_alive_of_nothing_would_unload_and_is_told_as_what_it_is():
    error = raised_by_load(ollama(), keep_alive="0s")

    assert type(error) is LoadFailed
    assert "leave keep_alive out" in str(error)


@pytest.mark.parametrize(
    "reply", [{"done_reason": "stop"}, ["load"], "load"], ids=["a reply", "a list", "a text"]
)
def test_an_answer_that_is_none_is_no_load(reply):
    error = raised_by_load(ollama(instead={"/api/chat": (200, reply)}))

    assert type(error) is LoadFailed
    assert "answered something else" in str(error)


def test_a_server_that_is_dead_is_unreachable():
    async def main():
        async with ollama() as server:
            pass
        async with host_of(server) as host:
            for ask in (host.load, host.unload, host.report, host.pulled):
                with pytest.raises(EndpointUnreachable, match="does not answer"):
                    await ask()

    asyncio.run(main())


def test_a_server_that_dies_while_it_loads_is_unreachable():
    async def main():
        server = ollama()
        server.may_load.clear()
        async with server, host_of(server) as host:
            loading = asyncio.create_task(host.load())
            await server.loading.wait()
            await server.__aexit__()
            with pytest.raises(EndpointUnreachable):
                await loading
            await server.__aenter__()

    asyncio.run(main())


@pytest.mark.parametrize(
    "page",
    [
        (200, "<h1>It works!</h1>"),
        (200, {"models": [{"size": 1}]}),
        (502, {"error": "bad gateway"}),
    ],
    ids=["no JSON object", "no names", "a gateway's error"],
)
def test_a_server_that_is_no_ollama_is_an_error(page):
    async def main():
        server = ollama(instead={"/api/ps": page})
        async with server, host_of(server) as host:
            for ask in (host.load, host.unload, host.report):
                with pytest.raises(ServerError):
                    await ask()
            return requests(server)

    assert asyncio.run(main()) == []


def test_a_version_without_the_page_is_an_error():
    async def main():
        async with OllamaServer() as server, host_of(server) as host:
            with pytest.raises(ServerError, match="404"):
                await host.report()

    asyncio.run(main())


# --- in time ---------------------------------------------------------------------------------


def test_a_load_that_hangs_is_given_up_and_nothing_is_left():
    async def main():
        server = ollama()
        server.may_load.clear()
        async with server, host_of(server, load_timeout_s=0.2) as host:
            with pytest.raises(LoadFailed, match=r"could not load its model in 0.2 s") as caught:
                await host.load()
            assert not caught.value.out_of_memory
            return server.resident, server.log

    assert asyncio.run(main()) == ([], ["load m:1b", "abort m:1b"])


def test_a_server_that_never_answers_is_given_up_in_time():
    async def main():
        async with ollama() as server, host_of(server, load_timeout_s=0.1) as host:
            server.silent |= {"/api/ps"}
            for ask in (host.load, host.unload):
                with pytest.raises(LoadFailed, match=r"in 0\.1 s"):
                    await ask()

    asyncio.run(main())


def test_a_load_that_is_cancelled_leaves_nothing():
    async def main():
        server = ollama()
        server.may_load.clear()
        async with server, host_of(server) as host:
            loading = asyncio.create_task(host.load())
            await server.loading.wait()
            loading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await loading
            server.may_load.set()
            return server.resident, server.log

    assert asyncio.run(main()) == ([], ["load m:1b", "abort m:1b"])


def test_nor_does_one_that_the_server_ends_although_nobody_waits():
    async def main():
        server = ollama(notices=False)
        server.may_load.clear()
        async with server, host_of(server) as host:
            loading = asyncio.create_task(host.load())
            await server.loading.wait()
            loading.cancel()
            # it is asked to go while it still comes
            await server.until_asked("/api/generate")
            server.may_load.set()
            with pytest.raises(asyncio.CancelledError):
                await loading
            return server.resident, server.log

    assert asyncio.run(main()) == ([], ["load m:1b", "unload m:1b"])


def test_a_load_that_fails_takes_nothing_out_that_was_there_before():
    async def main():
        async with (
            ollama() as server,
            host_of(server) as host,
            wire_to(server) as another_client,
        ):
            await another_client.chat(REQUEST)
            server.instead["/api/chat"] = (500, {"error": "boom"})
            with pytest.raises(LoadFailed, match="boom"):
                await host.load()
            return server.resident

    assert asyncio.run(main()) == ["m:1b"]


# --- letting go ------------------------------------------------------------------------------


def test_what_is_not_there_is_not_loaded_to_be_unloaded():
    async def main():
        async with ollama() as server, host_of(server) as host:
            await host.unload()
            return [one.path for one in server.asked], server.log

    assert asyncio.run(main()) == (["/api/ps"], [])


def test_a_model_is_gone_only_when_its_runner_has_ended():
    async def main():
        async with ollama(unload_s=0.3) as server, host_of(server) as host:
            await host.load()
            await host.unload()
            return server.resident, server.log

    assert asyncio.run(main()) == ([], ["load m:1b", "unload m:1b"])


def test_a_call_under_way_is_waited_for():
    async def main():
        async with ollama(reply_s=0.3) as server, host_of(server) as host, wire_to(server) as wire:
            await host.load()
            call = asyncio.create_task(wire.chat(REQUEST))
            await server.until_asked("/api/chat", times=2)
            await host.unload()
            return (await call).text, server.log

    text, log = asyncio.run(main())

    assert text == "".join(TEXT)
    assert log == ["load m:1b", "unload m:1b"]


def test_a_model_that_the_server_keeps_is_an_error_in_time():
    async def main():
        async with (
            ollama(reply_s=PATIENCE_S) as server,
            host_of(server, load_timeout_s=0.3) as host,
            wire_to(server) as wire,
        ):
            await host.load()
            call = asyncio.create_task(wire.chat(REQUEST))
            await server.until_asked("/api/chat", times=2)
            with pytest.raises(LoadFailed, match=r"could not unload its model in 0\.3 s"):
                await host.unload()
            call.cancel()
            await asyncio.wait([call])

    asyncio.run(main())


def test_a_server_that_refuses_to_let_go_is_an_error():
    async def main():
        async with ollama() as server, host_of(server) as host:
            await host.load()
            server.instead["/api/generate"] = (500, {"error": "boom"})
            with pytest.raises(LoadFailed, match=r"keeps 'm:1b'.*boom"):
                await host.unload()

    asyncio.run(main())


def test_a_model_that_others_took_out_is_seen_to_be_gone():
    async def main():
        async with ollama() as server, host_of(server) as host:
            await host.load()
            await server.evict("m:1b")
            return await host.report()

    assert asyncio.run(main()) == HostReport(resident=False)


def test_a_model_that_ollama_took_out_for_another_is_seen_to_be_gone():
    async def main():
        async with (
            ollama("m:1b", "other", memory_bytes=4 * GIB) as server,
            host_of(server) as one,
            host_of(server, model_id="other") as other,
        ):
            await one.load()
            await other.load()
            return await one.report(), server.log

    report, log = asyncio.run(main())

    assert report == HostReport(resident=False)
    assert log == ["load m:1b", "unload m:1b", "load other:latest"]


# --- before it is loaded ---------------------------------------------------------------------

HEADER = {"general.architecture": "llama", "llama.block_count": 8, "llama.vocab_size": 32000}


def pulled(model, **fields):
    async def main():
        server = ollama(models={"m:1b": model})
        async with server, host_of(server, **fields) as host:
            known = await host.pulled()
            return known, requests(server), server.log

    return asyncio.run(main())


def test_what_a_model_is_can_be_asked_before_it_is_loaded():
    model = Pulled(file_bytes=700, model_info=HEADER, parameters='stop    "x"\nnum_ctx    8192')

    known, asked, log = pulled(model)

    assert known.model_info == HEADER
    assert known.file_bytes == 700
    assert known.context_tokens == 8192
    assert asked == [("/api/show", {"model": "m:1b"}), ("/api/tags", None)]
    assert log == []


def test_a_modelfile_need_not_set_a_context():
    known, _, _ = pulled(Pulled(model_info=HEADER, parameters='stop "num_ctx 5"'))

    assert known.context_tokens is None


@pytest.mark.parametrize(
    "header",
    [
        HEADER | {"llama.attention.head_count_kv": [8, 8, 8, 8, 4, 4, 4, 4]},
        {"general.architecture": "llama", "tokenizer.ggml.tokens": ["a"] * 6},
    ],
    ids=["what differs from layer to layer", "a vocabulary told only by its tokens"],
)
def test_arrays_that_were_left_out_are_asked_for(header):
    known, asked, _ = pulled(Pulled(model_info=header))

    assert known.model_info == header
    assert asked[:2] == [
        ("/api/show", {"model": "m:1b"}),
        ("/api/show", {"model": "m:1b", "verbose": True}),
    ]


def test_arrays_that_memory_does_not_depend_on_are_not():
    header = HEADER | {"general.languages": ["de"] * 9, "tokenizer.ggml.tokens": ["a"] * 9}

    _, asked, _ = pulled(Pulled(model_info=header))

    assert [path for path, _ in asked] == ["/api/show", "/api/tags"]


def test_nothing_is_known_of_what_was_never_pulled():
    async def main():
        async with ollama() as server, host_of(server, model_id="absent") as host:
            with pytest.raises(ModelNotFound, match="ollama pull absent"):
                await host.pulled()

    asyncio.run(main())


def test_a_server_that_does_not_say_what_a_model_is_is_not_waited_for_for_ever():
    async def main():
        server = ollama(silent={"/api/show"})
        async with server, host_of(server, load_timeout_s=0.2) as host:
            with pytest.raises(LoadFailed, match=r"could not describe its model in 0\.2 s"):
                await host.pulled()

    asyncio.run(main())


@pytest.mark.parametrize(
    "page", [(200, []), (500, {"error": "boom"})], ids=["something else", "an error"]
)
def test_what_cannot_be_asked_is_an_error(page):
    async def main():
        server = ollama(instead={"/api/show": page})
        async with server, host_of(server) as host:
            with pytest.raises(ServerError):
                await host.pulled()

    asyncio.run(main())
