"""What holds of every host of a server, and which host each backend has."""

import asyncio

import pytest
from server_hosts import KINDS, ask, cancel, host_at, outcome, router
from servers.llama_router import Routed
from servers.ollama_residency import Pulled
from servers.triton_repository import TritonRepository
from servers.vllm_sleeping import SleepingVllm

from harness.errors import (
    AuthenticationFailed,
    ConfigurationInvalid,
    EndpointUnreachable,
    InferenceError,
    LoadFailed,
    ModelNotFound,
)
from harness.inference import Endpoint
from harness.inference.endpoint import FILE_BACKENDS, MANAGED_BACKENDS
from harness.inference.providers import PROVIDERS
from harness.inference.providers.http import Access
from harness.inference.providers.registry import connect, host_of

every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
EVERYTHING = ("load", "unload", "report")


def paths(server):
    return {one.path.partition("?")[0] for one in server.asked}


@every_kind
def test_a_model_is_let_go_and_loaded_again(kind):
    server = kind.there()
    outcomes = ask(kind, server, "report", "unload", "report", "load", "report")
    assert outcomes == ["there", "done", "gone", "done", "there"]
    moves = [entry.split()[0] for entry in server.log if "weights" not in entry]
    assert moves == ["unload", "load"]


@every_kind
def test_what_is_so_already_is_not_asked_for(kind):
    there, gone = kind.there(), kind.gone()
    assert ask(kind, there, "load") == ask(kind, gone, "unload") == ["done"]
    assert kind.backend == "ollama" or kind.load_page not in paths(there)
    assert kind.unload_page not in paths(gone)
    assert there.log == gone.log == []


@every_kind
def test_a_server_that_is_not_there_cannot_be_reached(kind):
    async def main():
        async with kind.there() as server:
            root = server.root
        async with host_at(root, kind) as host:
            return root, [await outcome(getattr(host, action)()) for action in EVERYTHING]

    root, errors = asyncio.run(main())
    assert [type(error) for error in errors] == [EndpointUnreachable] * 3
    assert all(root.removeprefix("http://") in str(error) for error in errors)


def test_what_a_server_says_is_read_up_to_a_limit():
    kind = KINDS["vllm"]
    (error,) = ask(kind, kind.there(), "report", max_reply_bytes=1)
    assert (error.code, error.max_reply_bytes) == ("call.reply-too-large", 1)


@every_kind
def test_a_load_that_takes_too_long_fails_and_leaves_nothing(kind):
    server = kind.gone(**{kind.never_answers: {kind.load_page}})
    error, report = ask(kind, server, "load", "report", load_timeout_s=0.3)
    assert (error.code, report) == ("model.load-timeout", "gone")
    assert not error.out_of_memory


@every_kind
def test_letting_go_that_takes_too_long_fails(kind):
    server = kind.there(**{kind.never_answers: {kind.unload_page}})
    [error] = ask(kind, server, "unload", load_timeout_s=0.3)
    assert error.code == "model.load-timeout"


@every_kind
def test_a_load_that_is_cancelled_leaves_nothing(kind):
    server = kind.gone()
    if hasattr(server, "may_load"):  # it loads on, whether or not anybody waits
        server.may_load.clear()
        begun = server.loading
    else:
        server = kind.gone(**{kind.never_answers: {kind.load_page}})
        begun = server.keeps_waiting
    assert cancel(kind, server, begun.wait) == "gone"


STATUS_PAGES = ("/is_sleeping", "/v1/models", "/api/ps")


@every_kind
def test_an_answer_of_another_kind_of_server_is_an_error(kind):
    server = kind.there()
    pages = (*STATUS_PAGES, "/models", "/v2/repository/index")
    server.instead = dict.fromkeys(pages, (418, {"a": "teapot"}))
    for error in ask(kind, server, *EVERYTHING):
        assert isinstance(error, InferenceError)
        assert "418" in str(error)


@every_kind
def test_a_load_without_room_says_so(kind):
    server = kind.gone(instead={kind.load_page: (500, {"error": {"message": kind.no_room}})})
    error, report = ask(kind, server, "load", "report")
    assert (type(error), error.out_of_memory, report) == (LoadFailed, True, "gone")
    assert kind.no_room in str(error)


NEW = "error loading model: unknown model architecture: 'new'"
NO_CUDA = "failed to load 'm' version 1: Internal: CUDA out of memory"


@pytest.mark.parametrize(
    ("kind", "server", "has_room", "said"),
    [
        ("vllm", SleepingVllm(is_asleep=True, has_room=False), False, "CUDA Error: out of memory"),
        ("triton", TritonRepository(fails=NO_CUDA), False, NO_CUDA),
        ("triton", TritonRepository(models={}), True, "failed to load 'm'"),
        ("triton-openai", TritonRepository(fails=NO_CUDA), False, NO_CUDA),
        ("llamacpp", router(models={"m": Routed(fails=1)}), True, "exit code 1"),
        ("ollama", KINDS["ollama"].gone(models={"m:1b": Pulled(fails=NEW)}), True, NEW),
    ],
)
def test_a_load_that_fails_says_why_and_leaves_nothing(kind, server, has_room, said):
    error, report = ask(KINDS[kind], server, "load", "report")
    assert (type(error), error.out_of_memory) == (LoadFailed, not has_room)
    assert said in str(error)
    assert report == "gone"


PLAIN = {"/models": (200, {"object": "list", "data": [{"id": "m", "object": "model"}]})}


@pytest.mark.parametrize(
    ("kind", "server", "actions", "needs"),
    [
        ("vllm", SleepingVllm(dev_mode=False), EVERYTHING, "VLLM_SERVER_DEV_MODE=1"),
        ("vllm", SleepingVllm(sleep_mode=False), ["unload"], "--enable-sleep-mode"),
        ("triton", TritonRepository(explicit=False), ["load"], "=explicit"),
        ("triton-openai", TritonRepository(explicit=False), ["load"], "=explicit"),
        ("llamacpp", router(instead=PLAIN), EVERYTHING, "--models-dir"),
    ],
)
def test_a_server_that_cannot_be_told_is_left_as_it_is(kind, server, actions, needs):
    for error in ask(KINDS[kind], server, *actions):
        assert error.code == "server.not-manageable"
        assert needs in str(error)
    assert server.log == []
    if kind == "vllm":
        assert server.posted() == []


def test_a_refused_key_is_told_by_its_variable_and_never_said():
    kind = KINDS["vllm"]
    server = kind.there(instead={kind.unload_page: (401, {"error": "not-the-key is not it"})})
    [error] = ask(kind, server, "unload")
    assert (type(error), server.log) == (AuthenticationFailed, [])
    assert "api_key_env" in str(error)


def test_a_model_that_the_server_does_not_have_is_not_found():
    absent = [
        *(
            ask(KINDS[name], KINDS[name].gone(), "load", model_id="n")
            for name in ("llamacpp", "ollama")
        ),
        ask(KINDS["ollama"], KINDS["ollama"].gone(), "load", model_id="n", embeddings=True),
    ]
    assert [type(error) for [error] in absent] == [ModelNotFound] * 3


# --- which host -----------------------------------------------------------------------------------


def made(backend):
    said = {"tag": "m", "backend": backend}
    said |= {"path": "m.gguf"} if backend in FILE_BACKENDS else {"url": "http://127.0.0.1:1/v1"}
    said |= {"prompt_template": "chatml"} if backend == "triton" else {}
    endpoint = Endpoint.model_validate(said)
    answers = connect(endpoint)
    return host_of(endpoint, answers, Access(api_key="key"))


def test_every_backend_whose_models_can_be_loaded_has_its_host():
    loadable = {name for name, provider in PROVIDERS.items() if provider.host is not None}
    assert loadable == FILE_BACKENDS | MANAGED_BACKENDS
    assert set(KINDS) == MANAGED_BACKENDS


@pytest.mark.parametrize("backend", ["openai", "tgi", "mlc", "sglang", "tensorrt-llm", "tabbyapi"])
def test_a_server_that_cannot_be_told_is_an_error(backend):
    with pytest.raises(ConfigurationInvalid) as caught:
        made(backend)
    assert caught.value.code == "endpoint.not-manageable"
