"""The models of a session: opened side by side, called through all the layers, closed together."""

from __future__ import annotations

import asyncio
import socket
import traceback
from dataclasses import dataclass

import pytest
from pydantic import BaseModel
from servers.emulated import TEXT
from servers.openai_dialects import DIALECTS
from servers.openai_server import MODEL, OpenAIServer
from session_runs import codes, idle, instants_of, pipeline_of, refused, run, settings_of
from structlog.testing import capture_logs

from harness import Run, chat, embed, open_shim
from harness.errors import EndpointUnreachable, NodeFailed
from harness.inference import ChatRequest, Endpoint, Message, ScriptedBackend, as_messages
from harness.session import Settings
from harness.session.models import describe_endpoints, open_models
from harness.session.settings import demo_endpoint
from harness.session.tenancy import check_managed, kv_bytes_of
from harness.trace import CounterSet, Instant, Tracer

ANSWER = "".join(TEXT)
NOBODY = "http://127.0.0.1:9/v1"
"""The discard port, which nothing listens at."""
KEYLESS = {"url": NOBODY, "api_key_env": "NO_SUCH_KEY"}


@pytest.fixture(autouse=True)
def _no_key(monkeypatch):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)


def endpoints_of(**tables):
    return {tag: Endpoint.model_validate({"tag": tag, **table}) for tag, table in tables.items()}


def vllm(url, **fields):
    return {"url": url, "backend": "vllm", "model_id": MODEL, **fields}


def settings(tmp_path, tables, **fields):
    return settings_of(tmp_path, endpoints=endpoints_of(**tables), **fields)


def request(tag="main", prompt="Tell me of Kraków.", **fields):
    return ChatRequest(model=tag, messages=as_messages(prompt), **fields)


def serving(use, *, server=None):
    """What comes of a use of a server."""

    async def main():
        async with server or OpenAIServer(dialect=DIALECTS["vllm"]) as there:
            return await use(there)

    return asyncio.run(main())


def nowhere():
    """An address where nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}/v1"


def chats(server):
    return [asked for asked in server.asked if asked.path.endswith("/chat/completions")]


def instants(records, name):
    return [one.attributes for one in records if isinstance(one, Instant) and one.name == name]


# --- one call -----------------------------------------------------------------------------------


class City(BaseModel):
    city: str
    owls: int


def test_one_line_asks_one_model(tmp_path):
    heard = []

    async def use(server):
        chosen = settings(tmp_path, {"main": vllm(server.url, structured="enforced")})
        said = await chat("main", "Kraków?", on_text=heard.append, settings=chosen)
        value = await chat("main", "Kraków?", returns=City, settings=chosen)
        vectors = (await embed("main", ["owl", "night"], settings=chosen)).vectors
        return said, value, vectors

    said, value, vectors = serving(use)
    assert said.text == "".join(heard) == ANSWER
    assert value == City(city="Kraków", owls=3)
    assert (vectors.shape[0], vectors.dtype) == (2, "float32")


def test_one_line_offers_tools_and_a_second_one_answers_their_calls(tmp_path):
    def nests(tree: str = "oak") -> int:
        """How many there are."""
        return 3

    async def use(server):
        chosen = settings(tmp_path, {"main": vllm(server.url, tools="native")})
        asked = await chat("main", "How many?", tools=[nests], settings=chosen)
        told = [
            {"role": "user", "content": "How many?"},
            Message("assistant", asked.text, tool_calls=asked.tool_calls),
            *({"role": "tool", "content": "3", "tool_call_id": one.id} for one in asked.tool_calls),
        ]
        return asked, await chat("main", told, tools=[nests], settings=chosen), chats(server)

    asked, said, requests = serving(use)
    assert {one.name for one in asked.tool_calls} == {"nests"}
    assert (asked.tools, said.text) == ("native", ANSWER)
    assert requests[0].body["tools"][0]["function"]["description"] == "How many there are."


# --- many calls -----------------------------------------------------------------------------------


def test_another_endpoint_stands_in_for_one_that_cannot_answer(tmp_path):
    records = []

    async def use(server):
        tables = {"main": vllm(nowhere(), fallback=["spare"]), "spare": vllm(server.url)}
        chosen = settings(tmp_path, tables)
        async with open_shim(settings=chosen, tracer=Tracer(records.append)) as shim:
            return await shim.chat(request())

    assert serving(use).text == ANSWER
    (fallen,) = instants(records, "fallback")
    assert (fallen["model"], fallen["to"]) == ("main", "spare")
    assert fallen["reason"] == "EndpointUnreachable"


def test_every_call_to_a_dead_endpoint_says_so(tmp_path):
    records = []

    async def main():
        chosen = settings(
            tmp_path, {"main": vllm(nowhere(), usd_per_hour=2.5, retry={"base_s": 0.01})}
        )
        async with open_shim(settings=chosen, tracer=Tracer(records.append)) as shim:
            for _ in range(5):
                with pytest.raises(EndpointUnreachable) as caught:
                    await shim.chat(request())
            return caught.value.code

    assert asyncio.run(main()) == "call.unreachable"
    (said,) = instants(records, "endpoint")
    assert (said["model"], said["backend"], said["usd_per_hour"]) == ("main", "vllm", 2.5)


@dataclass
class Watched(OpenAIServer):
    """Knows how many requests it had at one time, and has a page of counters."""

    under_way: int = 0
    most: int = 0

    async def respond(self, asked, answer):
        if asked.path == "/metrics":
            await answer.start("text/plain")
            await answer.send(b"vllm:num_requests_running 3.0\n")
            await answer.end()
            return
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await super().respond(asked, answer)
        self.under_way -= 1


def test_no_more_calls_are_under_way_than_an_endpoint_may_have(tmp_path):
    async def use(server):
        chosen = settings(tmp_path, {"main": vllm(server.url, max_parallel=2)})
        async with open_shim(settings=chosen) as shim:
            await asyncio.gather(*(shim.chat(request()) for _ in range(12)))
        return len(chats(server)), server.most

    assert serving(use, server=Watched(dialect=DIALECTS["vllm"])) == (12, 2)


@pytest.mark.parametrize(
    ("cache", "asked_in_one", "asked_in_two"), [(None, 2, 4), ("run", 1, 2), ("disk", 1, 1)]
)
def test_a_call_that_was_made_before_is_answered_by_the_cache(
    tmp_path, cache, asked_in_one, asked_in_two
):
    async def use(server):
        counts = []
        for _ in range(2):
            chosen = settings(tmp_path, {"main": vllm(server.url)}, cache=cache)
            async with open_shim(settings=chosen) as shim:
                first = await shim.chat(request())
                again = await shim.chat(request(role="evaluator"))
                assert again.text == first.text == ANSWER
                assert again.from_cache is (cache is not None)
            counts.append(len(chats(server)))
        return counts

    assert serving(use) == [asked_in_one, asked_in_two]


def test_cutoffs_of_sampling_reach_the_server_through_both_doors(tmp_path):
    cutoffs = {"top_p": 0.9, "top_k": 40, "min_p": 0.05}

    async def answer(run: Run, task: str) -> str:
        return await run.chat("producer", task, temperature=0.7, **cutoffs)

    async def use(server):
        chosen = settings(tmp_path, {"producer": vllm(server.url)})
        await chat("producer", "?", temperature=0.7, **cutoffs, settings=chosen)
        await pipeline_of(answer).run_async({"task": "?"}, settings=chosen)
        return [{name: one.body.get(name) for name in cutoffs} for one in chats(server)]

    assert serving(use) == [cutoffs, cutoffs]


def test_a_node_may_listen_and_embed(tmp_path):
    heard = []

    async def answer(run: Run, task: str) -> str:
        return await run.chat("producer", task, on_text=heard.append)

    async def shape(run: Run, task: str) -> tuple[int, ...]:
        return (await run.embed("producer", [task, task])).vectors.shape

    async def lone(run: Run) -> int:
        return len((await run.embed("producer", "one text")).vectors)

    async def use(server):
        chosen = settings(tmp_path, {"producer": vllm(server.url)})
        nodes = pipeline_of(answer, shape, lone)
        return await nodes.run_async({"task": "?"}, settings=chosen)

    outputs = serving(use).outputs
    assert outputs["answer"] == "".join(heard).strip() == ANSWER.strip()
    assert outputs["shape"][0] == 2
    assert outputs["lone"] == 1


def test_a_call_in_a_run_may_have_less_time_than_its_endpoint(tmp_path):
    async def answer(run: Run) -> str:
        return await run.chat("producer", "Kraków?", timeout_s=0.1)

    async def use(server):
        chosen = settings(tmp_path, {"producer": vllm(server.url)})
        with pytest.raises(NodeFailed) as caught:
            await pipeline_of(answer).run_async({}, settings=chosen)
        return caught.value.__cause__

    cause = serving(use, server=OpenAIServer("silent", dialect=DIALECTS["vllm"]))
    assert (cause.code, cause.limit) == ("call.timeout", "timeout_s")


# --- what is wrong is said ---------------------------------------------------------------------


def opened(endpoints, *, required=(), backends=None, tracer=None, **how):
    return open_models(
        endpoints,
        settings=Settings(),
        environment={},
        required=required,
        backends=backends,
        tracer=tracer or Tracer(),
        **how,
    )


async def opening(shim):
    async with shim:
        pytest.fail("it opened")


@pytest.mark.parametrize(
    ("tags", "table", "code"),
    [
        pytest.param(["smal"], KEYLESS, "endpoint.unknown", id="no such tag"),
        pytest.param(
            [], {**KEYLESS, "fallback": ["x"]}, "endpoint.fallback-unknown", id="fallback"
        ),
    ],
)
def test_a_tag_that_does_not_exist_is_named_before_anything_is_called(tags, table, code):
    with refused(code):
        asyncio.run(opening(open_shim(*tags, settings=Settings(endpoints=endpoints_of(a=table)))))


def test_of_an_unusable_endpoint_every_call_says_the_same_and_leaves_nothing_behind():
    async def main():
        depths = set()
        async with opened(endpoints_of(small=KEYLESS)) as models:
            client = models.client
            for _ in range(3):
                with refused("endpoint.key-not-set") as caught:
                    await client.chat(request("small"))
                depths.add(len(traceback.extract_tb(caught.value.__traceback__)))
        return depths

    assert len(asyncio.run(main())) == 1


RELYING = {
    "main": {"url": NOBODY, "fallback": ["spare"]},
    "idle": {"url": NOBODY, "fallback": ["other"]},
    "spare": KEYLESS,
    "other": KEYLESS,
}


def test_an_unusable_fallback_of_a_required_endpoint_is_warned_of_in_the_run_or_the_log(tmp_path):
    async def main():
        async with open_shim("main", settings=Settings(endpoints=endpoints_of(**RELYING))):
            pass

    with capture_logs() as logs:
        asyncio.run(main())
        result = run(idle(), settings(tmp_path, RELYING, roles={"producer": "main"}))
    assert codes(result.warnings) == ["endpoint.fallback-unusable"]
    assert "'spare' cannot stand in for 'main'" in result.warnings[0].message
    assert [log["code"] for log in logs] == ["endpoint.fallback-unusable"] * 2
    (said,) = instants_of(result, "warning")
    assert said["message"] == result.warnings[0].message


# --- what is opened is closed --------------------------------------------------------------------


class Closing(ScriptedBackend):
    """Says that it was closed, and fails to, if told so."""

    def __init__(self, closed, tag, error=None):
        super().__init__([])
        self.closed, self.tag, self.error = closed, tag, error

    async def aclose(self):
        self.closed.append(self.tag)
        if self.error:
            raise self.error


def test_every_backend_is_closed_even_when_one_fails_to():
    closed = []

    async def main():
        error = OSError("stuck")
        backends = {tag: Closing(closed, tag, error if tag == "b" else None) for tag in "abc"}
        endpoints = endpoints_of(**{tag: {"backend": "scripted"} for tag in backends})
        async with opened(endpoints, backends=backends):
            pass

    with pytest.raises(OSError, match="stuck"):
        asyncio.run(main())
    assert sorted(closed) == ["a", "b", "c"]


def test_what_was_opened_before_an_error_is_closed():
    closed = []
    endpoints = endpoints_of(first={"backend": "scripted"}, second=KEYLESS)
    with refused("endpoint.key-not-set"):
        backends = {"first": Closing(closed, "first")}
        asyncio.run(opening(opened(endpoints, backends=backends, required={"second"})))
    assert closed == ["first"]


# --- tags of one server --------------------------------------------------------------------------


def other_spelling(url):
    return url.replace("127.0.0.1", "LOCALHOST") + "/"


def test_one_server_is_sampled_once_however_its_address_is_written():
    async def use(server):
        tracks = asyncio.Queue()

        def take(record):
            if isinstance(record, CounterSet):
                tracks.put_nowait(record.track)

        endpoints = endpoints_of(a=vllm(server.url), b=vllm(other_spelling(server.url)))
        async with opened(endpoints, tracer=Tracer(take), sample_every_s=60.0) as models:
            client = models.client
            await client.chat(request("b"))
            async with asyncio.timeout(60):
                return await tracks.get()

    track = serving(use, server=Watched(dialect=DIALECTS["vllm"]))
    assert track == "server a", "the first of its tags, though the other was called"


@pytest.mark.parametrize("backend", ["vllm", "llamacpp"])
def test_a_server_of_one_model_is_managed_for_one(backend):
    table = {"backend": backend, "url": NOBODY, "manage": True, "need": 1}
    apart, unmanaged = {"url": "http://127.0.0.1:8/v1"}, {"manage": False, "need": None}
    for other in (apart, unmanaged, {}):
        both = endpoints_of(one=table, other=table | other).values()
        if other or backend == "llamacpp":  # a router of many models
            check_managed(both)
        else:
            with refused("budget.managed-twice"):
                check_managed(both)


def test_a_record_does_not_say_where_keys_are_kept():
    records = []
    endpoint = Endpoint(tag="writer", url=NOBODY, backend="sglang", api_key_env="A_KEY")

    describe_endpoints({"writer": endpoint}, Tracer(records.append))

    (said,) = records
    assert said.attributes["backend"] == "sglang"
    assert "api_key_env" not in said.attributes


def test_what_a_prompt_takes_of_the_cache_is_known_of_a_file_and_of_nothing_else() -> None:
    demo = demo_endpoint()
    assert demo is not None
    kv_bytes = kv_bytes_of(demo)

    assert kv_bytes is not None
    # 30 layers of 3 heads, each with a key and a value of 64 elements of 2 bytes.
    assert kv_bytes(1_000) == 1_000 * 30 * 3 * 2 * 64 * 2
    assert kv_bytes_of(Endpoint(tag="a", url="http://127.0.0.1:8000/v1")) is None
