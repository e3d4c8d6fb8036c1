"""Several servers behind one endpoint: opened, asked, sampled, checked and trusted each."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

import pytest
from pydantic import ValidationError
from servers.emulated import TEXT
from servers.openai_dialects import DIALECTS
from servers.openai_server import MODEL, OpenAIServer
from session_runs import idle, pipeline_of, refused, settings_of, spans_of

from harness import Run
from harness.analysis.run_report import report_of
from harness.inference import ChatRequest, Endpoint, as_messages
from harness.session.endpoint_check import check_endpoints
from harness.session.models import open_endpoint, open_models
from harness.session.separation import ComparedModels
from harness.session.settings import Settings
from harness.session.trust import known_secrets
from harness.trace import CounterSet, Journal, Tracer, monotonic

ANSWER = "".join(TEXT)


@dataclass
class Counted(OpenAIServer):
    """Has a page of counters, and breaks connections once it is dead."""

    is_dead: bool = False
    key: str | None = None  # a gateway's, without which it refuses

    async def respond(self, asked, answer):
        if self.is_dead:
            answer.drop()
        if self.key and asked.headers.get("x-api-key") != self.key:
            await answer.page(b"{}", status=403)
            return
        if asked.path == "/metrics":
            await answer.page(b"vllm:num_requests_running 3.0\n", content_type="text/plain")
        else:
            await super().respond(asked, answer)

    @property
    def chats(self):
        return sum(asked.path.endswith("/chat/completions") for asked in self.asked)


def with_two(use, **said):
    """What comes of a use of two servers."""

    async def main():
        async with AsyncExitStack() as stack:
            dialect = replace(DIALECTS["vllm"], **said)
            servers = [await stack.enter_async_context(Counted(dialect=dialect)) for _ in range(2)]
            return await use(*servers)

    return asyncio.run(main())


def endpoint_of(*servers, **fields):
    values = {"tag": "m", "backend": "vllm", "model_id": MODEL}
    return Endpoint.model_validate(values | {"urls": [one.url for one in servers]} | fields)


KEYS = {"GATEWAY_KEY": "sk-gateway"}


async def many(server_a, server_b, *, tracer, count=24, die_after=None, **fields):
    """The texts of so many calls, four at one time; the first server dies on the way."""
    endpoint = endpoint_of(server_a, server_b, max_parallel=2, **fields)
    texts = []
    async with open_models(
        {"m": endpoint}, settings=Settings(), environment=KEYS, required={"m"}, tracer=tracer,
        sample_every_s=0.01,
    ) as opened:  # fmt: skip
        numbers = iter(range(count))

        async def work():
            for number in numbers:
                server_a.is_dead = die_after is not None and number >= die_after
                request = ChatRequest(model="m", messages=as_messages(f"Call {number}."))
                texts.append((await opened.client.chat(request)).text)

        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(work())
    return texts


@pytest.mark.parametrize("headers", [{}, {"x-api-key": "${GATEWAY_KEY}"}], ids=["open", "keyed"])
def test_calls_are_spread_and_each_server_has_its_counters(headers):
    tracks = set()

    def take(record):
        if isinstance(record, CounterSet):
            tracks.add(record.track)

    async def use(a, b):
        a.key = b.key = KEYS["GATEWAY_KEY"] if headers else None
        assert await many(a, b, tracer=Tracer(take), headers=headers) == 24 * [ANSWER]
        names = {f"server m {one.root.removeprefix('http://')}" for one in (a, b)}
        return a.chats, b.chats, names

    to_a, to_b, names = with_two(use)
    assert to_a + to_b == 24
    assert min(to_a, to_b) >= 6
    assert tracks == names


def test_no_call_is_lost_when_a_server_dies():
    async def use(a, b):
        return await many(a, b, tracer=Tracer(), die_after=10), a.chats

    texts, to_a = with_two(use)
    assert texts == 24 * [ANSWER]
    assert to_a < 20, "it was left out"


def test_the_record_and_the_report_say_which_replica_answered(tmp_path):
    async def ask(run: Run) -> str:
        for number in range(6):
            await run.chat("m", f"Call {number}.")
        return ""

    async def use(*servers):
        settings = settings_of(tmp_path, endpoints={"m": endpoint_of(*servers)})
        result = await pipeline_of(ask).run_async({}, settings=settings)
        return result, {one.root.removeprefix("http://") for one in servers}

    result, names = with_two(use)
    calls = spans_of(result, "chat")
    assert {one["replica"] for one in calls} <= names
    assert {one["replica_reason"] for one in calls} == {"prefix"}
    groups = report_of(Journal(result.files.journal)).replicas
    assert {one.name for one in groups} == {f"m {one['replica']}" for one in calls}
    assert sum(one.calls for one in groups) == 6


def test_replicas_that_serve_different_models_are_refused_when_a_run_begins(tmp_path):
    def models(root):
        return {"/v1/models": {"object": "list", "data": [{"id": MODEL, "root": root}]}}

    async def use(a, b):
        b.dialect = replace(b.dialect, pages=models("org/Other-7B"))
        settings = settings_of(tmp_path, endpoints={"m": endpoint_of(a, b)})
        await idle().run_async({}, settings=settings)

    with refused("endpoint.replicas-differ"):
        with_two(use, pages=models("org/One-7B"))


def test_a_key_goes_to_a_replica_only_if_it_may(tmp_path):
    environment = {"KEY": "sk", "HARNESS_ALLOW_KEYS": "KEY@127.0.0.1:1"}
    urls = ["http://127.0.0.1:1/v1", "http://127.0.0.1:2/v1"]
    cloned = Endpoint(tag="m", urls=urls, api_key_env="KEY").model_copy(
        update={"written_in": tmp_path}
    )
    with refused("trust.key-not-allowed"):
        open_endpoint(cloned, environment=environment, cached=False, clock=monotonic)


def test_credentials_in_every_address_are_secrets():
    one = Endpoint(tag="m", urls=["http://h/v1", "http://user:pass-word@g/v1"])
    assert "pass-word" in known_secrets([one], environment={}, named=())
    assert [*one.replicas] == ["h", "g"]


def test_a_model_at_one_of_the_replicas_is_the_same_model():
    urls = ["http://127.0.0.1:1/v1", "http://127.0.0.1:2/v1"]
    producer = Endpoint(tag="p", urls=urls, model_id="default")
    evaluator = Endpoint(tag="e", url="http://localhost:2", model_id="default")
    models = ComparedModels({"p": producer, "e": evaluator}, same_family="refuse")
    with refused("roles.same-model"):
        models.refuse_kin("p", "e")


def test_each_replica_is_tried_out():
    async def use(a, b):
        endpoint = endpoint_of(a, b)
        found = await check_endpoints(Settings(), {"m": endpoint}, environment={})
        return [(one.tag, one.reachable) for one in found], [*endpoint.replicas]

    checks, names = with_two(use)
    assert checks == [(f"m {name}", True) for name in names]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"url": "http://h/v1", "urls": ["http://g/v1"]}, "endpoint.url-and-urls"),
        ({"urls": ["http://h/v1", "h"]}, "endpoint.url-invalid"),
        ({"urls": ["http://h", "http://g"], "path": "x.gguf"}, "endpoint.url-and-path"),
        (
            {"urls": ["http://h", "http://g"], "backend": "vllm", "manage": True},
            "endpoint.urls-managed",
        ),
    ],
    ids=str,
)
def test_a_mistake_in_the_addresses_is_told(fields, code):
    with pytest.raises(ValidationError) as caught:
        Endpoint.model_validate({"tag": "m", **fields})
    assert code in {problem["ctx"]["error"].code for problem in caught.value.errors()}


def test_a_server_that_is_named_twice_is_one():
    endpoint = Endpoint(tag="m", urls=("http://h/v1", "http://h", "http://g"))
    assert [*endpoint.replicas] == ["h", "g"]
