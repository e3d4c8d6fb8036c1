import asyncio
from typing import get_args

import pytest
import structlog
from calls import PATIENCE_S
from servers.emulated import Emulated

from harness.inference import Endpoint, ScriptedBackend
from harness.inference.endpoint import WireName
from harness.inference.providers import PROVIDERS
from harness.inference.providers.registry import metrics_source

VLLM = b"vllm:num_requests_running 2\nvllm:generation_tokens_total %d\n"


class Counters(Emulated):
    """Answers with what a test puts into `answer`: a status and a body, or None for silence."""

    def __init__(self, status=200, body=VLLM % 0):
        super().__init__()
        self.answer = status, body

    async def respond(self, _asked, answer):
        if self.answer is None:
            await answer.hold()
        status, body = self.answer
        await answer.start("text/plain", status=status, headers=[("location", "/elsewhere")])
        if body:
            await answer.send(body)
        await answer.end()


def source_at(url, backend="vllm", api_key=None, **own):
    endpoint = Endpoint(tag="judge", backend=backend, url=url, **own)
    return metrics_source(endpoint, ScriptedBackend([]), api_key=api_key)


def reading(server, act, *, path="/v1/", **how):
    """What comes of an action with a source that asks a server."""

    async def main():
        async with server, asyncio.timeout(PATIENCE_S):
            source = source_at(server.root + path, **how)
            try:
                return await act(source)
            finally:
                await source.aclose()

    return asyncio.run(main())


async def values(source):
    return {reading.name: reading.value for reading in await source.read()}


# --- what is asked ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "path", "body", "readings"),
    [
        ("vllm", "/metrics", b"vllm:num_requests_running 2\n", {"running": 2}),
        ("llamacpp", "/metrics", b"llamacpp:requests_processing 2\n", {"running": 2}),
        ("sglang", "/metrics", b"sglang:num_running_reqs 2.0\n", {"running": 2}),
    ],
)
def test_each_kind_of_server_is_asked_in_its_own_way(backend, path, body, readings):
    server, own = Counters(body=body), {"headers": {"x-team": "blue"}, "query": {"v": "2"}}

    assert reading(server, values, backend=backend, api_key="secret\n", **own) == readings

    [asked] = server.asked
    assert (asked.method, asked.path) == ("GET", f"{path}?v=2")
    assert asked.headers["authorization"] == "Bearer secret"
    assert asked.headers["x-team"] == "blue"


@pytest.mark.parametrize("backend", ["openai", "ollama", *get_args(WireName)])
def test_counters_that_a_profile_names_are_read_and_no_others(backend):
    source = source_at("http://127.0.0.1:1/v1", backend)

    assert (source is not None) == (PROVIDERS[backend].counters is not None)


@pytest.mark.parametrize(
    ("backend", "answers", "readings"),
    [
        pytest.param(
            "sglang",
            (b"", b"sglang:num_queue_reqs 0\nsglang:prompt_tokens_total 31\n"),
            [{}, {"waiting": 0, "prompt": 31}],
            id="a server that was never called is asked again",
        ),
        pytest.param(
            "vllm",
            (VLLM % 5000, VLLM % 5010),
            [{"running": 2, "generated": 0}, {"running": 2, "generated": 10}],
            id="totals count from the first answer",
        ),
    ],
)
def test_one_answer_follows_another(backend, answers, readings):
    server = Counters()

    async def act(source):
        read = []
        for body in answers:
            server.answer = 200, body
            read.append(await values(source))
        return read

    assert reading(server, act, backend=backend) == readings


def test_llama_cpp_is_left_in_peace_for_more_than_a_second():
    async def pause_s(source):
        return source.pause_s

    assert reading(Counters(), pause_s, backend="llamacpp") > 1
    assert reading(Counters(), pause_s) == 0


# --- what does not answer --------------------------------------------------------------------


@pytest.mark.parametrize("status", [404, 501])
def test_what_a_server_does_not_offer_is_asked_for_once(status):
    server = Counters(status, b"")

    async def act(source):
        return [await source.read() for _ in range(3)], source.pause_s

    assert reading(server, act) == ([(), (), ()], 0)
    assert [asked.path for asked in server.asked] == ["/metrics"]


@pytest.mark.parametrize("status", [302, 503])
def test_a_server_that_refuses_is_asked_less_and_less_often(status):
    server = Counters(status)

    async def act(source):
        pauses = []
        for _ in range(6):
            assert await source.read() == ()
            pauses.append(source.pause_s)
        server.answer = 200, VLLM % 0
        return pauses, await values(source), source.pause_s

    pauses, read, pause_s = reading(server, act)
    assert pauses == [0.5, 1, 2, 4, 5, 5]
    assert (read["running"], pause_s) == (2, 0)
    assert len(server.asked) == 7


@pytest.mark.slow
def test_a_slow_server_is_given_up_for_now():
    server = Counters()
    server.answer = None

    async def act(source):
        assert await source.read() == ()
        assert source.pause_s == 0.5
        await server.hung_up.wait()
        server.answer = 200, VLLM % 0
        return await values(source)

    assert reading(server, act)["running"] == 2


@pytest.mark.parametrize(
    "body",
    [b"<html>Sign in</html>", b"vllm:num_requests_running x\n", VLLM % 0 + b"# \n" * 1_400_000],
    ids=["a page", "no number", "too long"],
)
def test_an_answer_that_cannot_be_read_is_told_once_and_not_asked_for_again(body):
    server = Counters(body=body)

    async def act(source):
        while not logs:  # a busy machine may need more than the second that a read waits
            assert await source.read() == ()
        times = len(server.asked)
        assert [await source.read() for _ in range(2)] == [(), ()]
        assert len(server.asked) == times

    with structlog.testing.capture_logs() as logs:
        reading(server, act)
    [log] = logs
    assert (log["log_level"], log["code"]) == ("warning", "metrics.unreadable")
    assert (log["endpoint"], log["path"]) == ("judge", "/metrics")
