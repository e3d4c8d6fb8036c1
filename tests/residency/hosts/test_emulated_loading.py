"""The emulated servers that load models, held to what the real ones document.

Whoever counts loads with them relies on it.
"""

import asyncio
import itertools
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

import pytest
from servers.emulated import TEXT
from servers.llama_router import LlamaRouter, Routed
from servers.ollama_residency import GIB, Pulled, ResidentOllama

from harness.errors import Overloaded, ServerError
from harness.inference import ChatRequest, Endpoint, as_messages
from harness.inference.wire.ollama import OllamaWire
from harness.inference.wire.openai import OpenAIWire
from harness.residency.hosts.control import Control

REQUEST = ChatRequest(model="a", messages=as_messages("Write."))


def ollama(*names, room_for=1, **how):
    models = {name: Pulled(size_bytes=2 * GIB) for name in names}
    return ResidentOllama(**({"models": models, "memory_bytes": room_for * 2 * GIB} | how))


def router(*names, room_for=1, **how):
    return LlamaRouter(models={name: Routed() for name in names}, models_max=room_for, **how)


def an_endpoint(server, name, **fields):
    backend = "ollama" if isinstance(server, ResidentOllama) else "llamacpp"
    url = server.root if backend == "ollama" else f"{server.root}/v1"
    return Endpoint.model_validate(
        {"tag": name, "backend": backend, "url": url, "model_id": name} | fields
    )


@asynccontextmanager
async def wire_to(server, name, **fields):
    kind = OllamaWire if isinstance(server, ResidentOllama) else OpenAIWire
    wire = kind(an_endpoint(server, name, **fields))
    try:
        yield wire
    finally:
        await wire.aclose()


async def chat(server, name, **fields):
    async with wire_to(server, name, **fields) as wire:
        return await wire.chat(REQUEST)


EITHER = pytest.mark.parametrize("kind", [ollama, router], ids=["Ollama", "llama-server's router"])


@EITHER
def test_a_pipeline_without_a_plan_loads_as_often_as_it_changes_models(kind):
    """Eight drafts at once, each written and judged twice, with room for one model of two."""

    async def draft(server):
        for _round in range(2):
            await chat(server, "writer:1b")
            await chat(server, "judge:1b")

    async def main():
        server = kind("writer:1b", "judge:1b", load_s=0.01, reply_s=0.001)
        async with server:
            async with asyncio.TaskGroup() as group:
                for _ in range(8):
                    group.create_task(draft(server))
            return server

    server = asyncio.run(main())

    assert 4 <= server.loads <= 32
    assert server.unloads == server.loads - 1
    assert len(server.resident) == 1
    loads = [entry for entry in server.log if entry.startswith("load")]
    assert all(one != next_one for one, next_one in itertools.pairwise(loads))


@EITHER
def test_models_that_fit_are_loaded_once(kind):
    async def main():
        async with kind("a:1b", "b:1b", room_for=2) as server:
            for name in ("a:1b", "b:1b") * 4:
                await chat(server, name)
            return server.log

    assert asyncio.run(main()) == ["load a:1b", "load b:1b"]


@EITHER
def test_what_is_said_is_streamed_in_words_or_sent_whole(kind):
    async def main():
        async with kind("a:1b", says=lambda _body: '{"score": 7, "why": "ü"}') as server:
            replies = [await chat(server, "a:1b", stream=stream) for stream in (True, False)]
            return [reply.text for reply in replies]

    assert asyncio.run(main()) == ['{"score": 7, "why": "ü"}'] * 2


@EITHER
def test_a_call_that_is_given_up_while_its_model_loads_leaves_the_server_working(kind):
    async def main():
        server = kind("a:1b", "b:1b")
        server.may_load.clear()
        async with server:
            call = asyncio.create_task(chat(server, "a:1b"))
            await server.loading.wait()
            call.cancel()
            await asyncio.wait([call])
            server.may_load.set()
            return (await chat(server, "b:1b")).text, server.resident

    assert asyncio.run(main()) == ("".join(TEXT), ["b:1b"])


# --- Ollama ----------------------------------------------------------------------------------


def ollama_log(*calls, **how):
    """What an Ollama with three models does for some calls, each the model's name and settings."""

    async def main():
        async with ollama("a", "b", "c", **how) as server:
            for name, fields in calls:
                await chat(server, name, **fields)
            return [entry.removesuffix(":latest") for entry in server.log]

    return asyncio.run(main())


def test_another_context_loads_a_model_anew():
    log = ollama_log(("a", {}), ("a", {"context_tokens": 512}), ("a", {"context_tokens": 512}))

    assert log == ["load a", "unload a", "load a"]


@pytest.mark.parametrize(
    ("kept", "gone"),
    [
        (("10m", "5m"), "b"),
        (("5m", "10m"), "a"),
        (("5m", "5m"), "a"),
        ((-1, "10h"), "b"),
    ],
    ids=["the shortest", "whichever", "by name, if they are equal", "for ever is longest"],
)
def test_the_one_with_the_shortest_keep_alive_goes_first(kept, gone):
    calls = [(name, {"keep_alive": how_long}) for name, how_long in zip("ab", kept, strict=True)]

    log = ollama_log(*calls, ("c", {}), room_for=2)

    assert log == ["load a", "load b", f"unload {gone}", "load c"]


def test_there_are_never_more_than_its_setting_says():
    log = ollama_log(("a", {}), ("b", {}), ("c", {}), room_for=3, max_loaded=2)

    assert log == ["load a", "load b", "unload a", "load c"]


def test_an_idle_one_goes_before_one_in_use():
    async def main():
        async with ollama("a", "b", "c", room_for=2, num_parallel=4) as server:
            await chat(server, "b", keep_alive="10m")
            server.reply_s = 0.2
            busy = asyncio.create_task(chat(server, "a", keep_alive="1m"))
            await server.until_asked("/api/chat", times=2)
            await chat(server, "c")
            await busy
            return server.log

    log = asyncio.run(main())

    assert log[2:] == ["unload b:latest", "load c:latest"]


def test_a_runner_without_memory_costs_all_others_theirs():
    """The scheduler thought that it would fit."""
    models = {
        "a": Pulled(size_bytes=2 * GIB),
        "b": Pulled(size_bytes=2 * GIB),
        "c": Pulled(size_bytes=4 * GIB, thought_bytes=1 * GIB),
    }

    log = ollama_log(("a", {}), ("b", {}), ("c", {}), models=models, memory_bytes=5 * GIB)

    assert log[:4] == ["load a", "load b", "load c", "abort c"]
    assert sorted(log[4:6]) == ["unload a", "unload b"]
    assert log[6:] == ["load c"]


def test_a_model_that_cannot_be_loaded_fails_the_call():
    async def main():
        async with ollama(models={"a": Pulled(size_bytes=9 * GIB)}) as server:
            with pytest.raises(ServerError, match="requires more system memory"):
                await chat(server, "a")

    asyncio.run(main())


def test_more_calls_than_may_wait_are_refused():
    async def main():
        server = ollama("a", "b", max_queue=1)
        server.may_load.clear()
        async with server:
            calls = [asyncio.create_task(chat(server, name)) for name in "ab"]
            await server.until_asked("/api/chat", times=2)
            with pytest.raises(Overloaded):
                await chat(server, "b")
            server.may_load.set()
            await asyncio.gather(*calls)
            # Those that need no load do not wait with them.
            return (await chat(server, "b")).text

    assert asyncio.run(main()) == "".join(TEXT)


def test_a_model_goes_when_its_time_is_over():
    async def main():
        async with ollama("a") as server:
            await chat(server, "a", keep_alive=0.05)
            runner = server._running["a:latest"]
            await runner.ended.wait()
            return server.log

    assert asyncio.run(main()) == ["load a:latest", "unload a:latest"]


@pytest.mark.parametrize(
    ("keep_alive", "left"),
    [
        (None, timedelta(minutes=5)),
        (90, timedelta(seconds=90)),
        ("1h30m", timedelta(hours=1.5)),
        ("-1m", timedelta(days=292 * 365)),
    ],
)
def test_a_model_is_listed_with_the_time_it_has_left(keep_alive, left):
    async def main():
        async with ollama("a") as server:
            await chat(server, "a", keep_alive=keep_alive)
            control = Control(an_endpoint(server, "a"))
            page = await control.get("/api/ps")
            await control.aclose()
            return page.json

    listed = asyncio.run(main())

    [model] = listed["models"]
    expires = datetime.fromisoformat(model["expires_at"])
    assert abs(expires - datetime.now(expires.tzinfo) - left) < timedelta(seconds=5)
    assert model["context_length"] == 4096


def test_a_model_that_is_loaded_keeps_its_time_unless_a_call_says_another():
    async def main():
        async with ollama("a") as server:
            await chat(server, "a", keep_alive=90)
            await chat(server, "a")
            return server._running["a:latest"].keep_alive_s

    assert asyncio.run(main()) == 90


def test_a_call_is_told_what_its_load_took():
    def load_ns(completion):
        return sum(one.end_ns - one.start_ns for one in completion.phases if one.name == "load")

    async def main():
        async with ollama("a", load_s=0.05) as server:
            return load_ns(await chat(server, "a")), load_ns(await chat(server, "a"))

    first_ns, second_ns = asyncio.run(main())

    assert first_ns > 40_000_000 > second_ns


# --- llama-server's router -------------------------------------------------------------------


def router_log(*names, **how):
    async def main():
        async with router("a", "b", "c", **how) as server:
            for name in names:
                await chat(server, name)
            return server.log

    return asyncio.run(main())


def test_the_least_recently_used_goes_first():
    log = router_log(*"abac", room_for=2)

    assert log == ["load a", "load b", "unload b", "load c"]


def test_no_limit_is_none():
    assert router_log(*"abcabc", room_for=0) == ["load a", "load b", "load c"]


def test_a_call_waits_for_a_model_in_use_to_be_done():
    async def main():
        async with router("a", "b", reply_s=0.05) as server:
            one = asyncio.create_task(chat(server, "a"))
            await server.until_answering("a")
            other = asyncio.create_task(chat(server, "b"))
            await asyncio.gather(one, other)
            return server.log

    assert asyncio.run(main()) == ["load a", "unload a", "load b"]


def test_a_model_that_sleeps_is_woken_by_its_next_call():
    async def main():
        async with router("a") as server:
            await chat(server, "a")
            server.fall_asleep("a")
            await chat(server, "a")
            return server.log

    assert asyncio.run(main()) == ["load a", "wake a"]


def test_without_autoload_a_call_loads_nothing():
    async def main():
        async with router("a", models_autoload=False) as server:
            with pytest.raises(ServerError, match="model is not loaded"):
                await chat(server, "a")
            return server.log

    assert asyncio.run(main()) == []


def test_a_call_to_a_model_that_cannot_be_loaded_fails():
    async def main():
        server = LlamaRouter(models={"a": Routed(fails=1)})
        async with server:
            with pytest.raises(ServerError, match="failed to load"):
                await chat(server, "a")

    asyncio.run(main())
