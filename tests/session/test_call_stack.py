"""The shim as a session puts it together: what its settings promise, call by call."""

import asyncio
import socket
from dataclasses import dataclass

import pytest
from pydantic import BaseModel
from servers.emulated import JSON_TEXT, TEXT
from servers.openai_dialects import DIALECTS
from servers.openai_server import MODEL, OpenAIServer

from harness import (
    ChatRequest,
    Endpoint,
    Pipeline,
    Run,
    Settings,
    chat,
    count_tokens,
    embed,
    open_shim,
)
from harness.errors import (
    ConfigurationInvalid,
    EndpointUnreachable,
    InvalidInput,
    NodeFailed,
    NotOffered,
)
from harness.inference import as_messages
from harness.trace import Tracer
from harness.trace.records import Instant, SpanEnded, SpanRecord

ANSWER = "".join(TEXT)


class City(BaseModel):
    city: str
    owls: int


def vllm(scenario="reply"):
    return OpenAIServer(scenario, dialect=DIALECTS["vllm"])


def endpoint(tag, url, **fields):
    return Endpoint.model_validate(
        {"tag": tag, "url": url, "backend": "vllm", "model_id": MODEL, **fields}
    )


def settings(tmp_path, *endpoints, **fields):
    by_tag = {one.tag: one for one in endpoints}
    return Settings.model_validate({"endpoints": by_tag, "traces": tmp_path, **fields})


def request(tag="main", prompt="Tell me of Kraków.", **fields):
    return ChatRequest(model=tag, messages=as_messages(prompt), **fields)


def nowhere():
    """An address where nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}/v1"


def chats(server):
    return [asked for asked in server.asked if asked.path.endswith("/chat/completions")]


# --- one call -----------------------------------------------------------------------------------


def test_one_line_asks_one_model(tmp_path):
    async def main():
        async with vllm() as server:
            heard = []
            chosen = settings(tmp_path, endpoint("main", server.url))
            completion = await chat("main", "Kraków?", on_text=heard.append, settings=chosen)
            return completion, heard

    completion, heard = asyncio.run(main())
    assert completion.text == ANSWER
    assert "".join(heard) == ANSWER


def test_an_answer_may_be_a_value(tmp_path):
    async def main():
        async with vllm() as server:
            chosen = settings(tmp_path, endpoint("main", server.url, structured="enforced"))
            return await chat("main", "Kraków?", returns=City, settings=chosen)

    assert asyncio.run(main()) == City(city="Kraków", owls=3)


def test_texts_are_embedded_and_prompts_counted(tmp_path):
    async def main():
        async with vllm() as server:
            chosen = settings(tmp_path, endpoint("main", server.url))
            vectors = (await embed("main", ["owl", "night"], settings=chosen)).vectors
            return vectors, await count_tokens("main", "Three little owls", settings=chosen)

    vectors, count = asyncio.run(main())
    assert vectors.shape[0] == 2
    assert vectors.dtype == "float32"
    assert count > 0


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda chosen: embed("main", [], settings=chosen), "at least one"),
        (lambda chosen: chat("main", [], settings=chosen), "there are no messages"),
        (lambda chosen: chat("main", "Hi", top_logprobs=21, settings=chosen), "0 to 20"),
        (lambda chosen: chat("main", "Hi", timeout_s=0, settings=chosen), "more than 0"),
    ],
    ids=["no texts", "no messages", "too many log probabilities", "no time"],
)
def test_a_call_that_means_nothing_is_refused_at_once(tmp_path, ask, says):
    with pytest.raises(InvalidInput, match=says):
        asyncio.run(ask(settings(tmp_path, endpoint("main", nowhere()))))


def test_what_a_server_has_not_is_named(tmp_path):
    async def main():
        chosen = settings(tmp_path, endpoint("main", nowhere(), backend="mlc"))
        with pytest.raises(NotOffered, match="MLC LLM does not count tokens"):
            await count_tokens("main", "Three", settings=chosen)

    asyncio.run(main())


# --- many calls -----------------------------------------------------------------------------------


def test_another_endpoint_stands_in_for_one_that_cannot_answer(tmp_path):
    records = []

    async def main():
        async with vllm() as server:
            chosen = settings(
                tmp_path,
                endpoint("main", nowhere(), fallback=["spare"]),
                endpoint("spare", server.url),
            )
            async with open_shim(settings=chosen, tracer=Tracer(records.append)) as shim:
                return await shim.chat(request())

    assert asyncio.run(main()).text == ANSWER
    (fallen,) = [r for r in records if isinstance(r, Instant) and r.name == "fallback"]
    assert fallen.attributes["model"] == "main"
    assert fallen.attributes["to"] == "spare"
    assert fallen.attributes["reason"] == "EndpointUnreachable"


def test_a_dead_endpoint_is_soon_not_asked_any_more(tmp_path):
    records = []

    async def main():
        chosen = settings(tmp_path, endpoint("main", nowhere()))
        async with open_shim(settings=chosen, tracer=Tracer(records.append)) as shim:
            for _ in range(5):
                with pytest.raises(EndpointUnreachable) as caught:
                    await shim.chat(request())
            return str(caught.value)

    assert "not asked, as it has been out of reach" in asyncio.run(main())
    opened = [r for r in records if isinstance(r, Instant) and r.name == "circuit opened"]
    assert len(opened) == 1


@dataclass
class Watched(OpenAIServer):
    """Knows how many requests it had at one time."""

    under_way: int = 0
    most: int = 0

    async def respond(self, asked, answer):
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await super().respond(asked, answer)
        self.under_way -= 1


def test_no_more_calls_are_under_way_than_an_endpoint_may_have(tmp_path):
    async def main():
        async with Watched(dialect=DIALECTS["vllm"]) as server:
            chosen = settings(tmp_path, endpoint("main", server.url, max_concurrency=2))
            async with open_shim(settings=chosen) as shim:
                async with asyncio.TaskGroup() as group:
                    for _ in range(12):
                        group.create_task(shim.chat(request()))
                return len(chats(server)), server.most

    assert asyncio.run(main()) == (12, 2)


@pytest.mark.parametrize(
    ("cache", "asked_in_one", "asked_in_two"),
    [(None, 2, 4), ("run", 1, 2), ("disk", 1, 1)],
)
def test_a_call_that_was_made_before_is_answered_by_the_cache(
    tmp_path, cache, asked_in_one, asked_in_two
):
    async def main():
        counts = []
        async with vllm() as server:
            chosen = settings(tmp_path, endpoint("main", server.url), cache=cache)
            for _ in range(2):
                async with open_shim(settings=chosen) as shim:
                    first = await shim.chat(request())
                    again = await shim.chat(request(role="evaluator"))
                    assert again.text == first.text == ANSWER
                    assert again.from_cache is (cache is not None)
                counts.append(len(chats(server)))
        return counts

    assert asyncio.run(main()) == [asked_in_one, asked_in_two]


def test_a_cached_reply_is_marked_and_its_tokens_are_not_counted_again(tmp_path):
    records = []

    async def main():
        async with vllm() as server:
            chosen = settings(tmp_path, endpoint("main", server.url), cache="run")
            async with open_shim(settings=chosen, tracer=Tracer(records.append)) as shim:
                await shim.chat(request())
                await shim.chat(request())

    asyncio.run(main())
    asked, cached = [r.attributes for r in records if isinstance(r, SpanEnded)]
    assert "from_cache" not in asked
    assert asked["output_tokens"] == len(TEXT)
    assert cached["from_cache"] is True
    assert "output_tokens" not in cached
    phases = {r.parent for r in records if isinstance(r, SpanRecord)}
    assert len(phases) == 1


def test_sampled_calls_are_cached_only_with_a_seed(tmp_path):
    async def main():
        async with vllm() as server:
            chosen = settings(tmp_path, endpoint("main", server.url), cache="run")
            async with open_shim(settings=chosen) as shim:
                for seed in (None, None, 7, 7):
                    await shim.chat(request(temperature=0.7, seed=seed))
            return [asked.body.get("seed") for asked in chats(server)]

    assert asyncio.run(main()) == [None, None, 7]


def test_what_becomes_of_a_schema_is_found_out_once_and_told_of_every_call(tmp_path):
    records = []

    async def main():
        async with vllm() as server:
            chosen = settings(tmp_path, endpoint("main", server.url))
            async with open_shim(settings=chosen, tracer=Tracer(records.append)) as shim:
                schema = City.model_json_schema()
                return [await shim.chat(request(reply_schema=schema)) for _ in range(2)]

    # This server's JSON is JSON, and never the probe's: it does not look at the schema's values.
    assert [reply.structured for reply in asyncio.run(main())] == ["advisory"] * 2
    assert "".join(JSON_TEXT) == '{"city": "Kraków", "owls": 3}'
    spans = [r.attributes.get("schema") for r in records if isinstance(r, SpanEnded)]
    assert spans == ["advisory"] * 3


def test_a_fallback_that_does_not_exist_is_named(tmp_path):
    async def main():
        chosen = settings(tmp_path, endpoint("main", nowhere(), fallback=["sapre"]))
        async with open_shim(settings=chosen):
            pytest.fail("it opened")

    with pytest.raises(ConfigurationInvalid, match="sapre"):
        asyncio.run(main())


# --- in a run -------------------------------------------------------------------------------------


def test_a_node_may_listen_embed_and_count(tmp_path):
    pipeline = Pipeline("asking")
    heard = []

    @pipeline.node
    async def answer(run: Run, task: str) -> str:
        return await run.chat("producer", task, on_text=heard.append)

    @pipeline.node
    async def size(run: Run, task: str) -> int:
        return await run.count_tokens("producer", task)

    @pipeline.node
    async def shape(run: Run, task: str) -> tuple[int, ...]:
        return (await run.embed("producer", [task, task])).vectors.shape

    async def main():
        async with vllm() as server:
            chosen = settings(tmp_path, endpoint("producer", server.url))
            return await pipeline.run_async({"task": "Kraków?"}, settings=chosen)

    outputs = asyncio.run(main()).outputs
    assert outputs["answer"] == "".join(heard).strip() == ANSWER.strip()
    assert outputs["size"] > 0
    assert outputs["shape"][0] == 2


def test_a_call_in_a_run_may_have_less_time_than_its_endpoint(tmp_path):
    pipeline = Pipeline("asking")

    @pipeline.node
    async def answer(run: Run, task: str) -> str:
        return await run.chat("producer", task, timeout_s=0.1)

    async def main():
        async with vllm("silent") as server:
            chosen = settings(tmp_path, endpoint("producer", server.url))
            with pytest.raises(NodeFailed, match=r"within timeout_s = 0\.1 s"):
                await pipeline.run_async({"task": "Kraków?"}, settings=chosen)

    asyncio.run(main())


def test_a_record_of_calls_without_a_pipeline_says_what_its_endpoints_are(tmp_path):
    records = []

    async def main():
        chosen = settings(tmp_path, endpoint("main", nowhere(), usd_per_hour=2.5))
        async with open_shim(settings=chosen, tracer=Tracer(records.append)):
            pass

    asyncio.run(main())
    (said,) = [r.attributes for r in records if isinstance(r, Instant) and r.name == "endpoint"]
    assert (said["model"], said["backend"], said["usd_per_hour"]) == ("main", "vllm", 2.5)
