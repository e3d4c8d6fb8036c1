"""The models of a session, opened side by side and closed together."""

import asyncio
import traceback
from dataclasses import dataclass

import pytest
from servers.openai_dialects import DIALECTS
from servers.openai_server import MODEL, OpenAIServer
from structlog.testing import capture_logs

from harness import Pipeline, Run, load_run
from harness.errors import ConfigurationInvalid, ModelFileInvalid
from harness.inference import ChatRequest, Endpoint, ScriptedBackend, as_messages
from harness.session import Settings, open_shim
from harness.session.models import describe_endpoints, open_models
from harness.trace import CounterSet, Instant, Tracer

NOBODY = "http://127.0.0.1:9/v1"
"""The discard port, which nothing listens at."""
KEYLESS = {"url": NOBODY, "api_key_env": "NO_SUCH_KEY"}


class Closing(ScriptedBackend):
    """Says that it was closed, and fails to, if told so."""

    def __init__(self, closed, tag, error=None):
        super().__init__([])
        self.closed, self.tag, self.error = closed, tag, error

    async def aclose(self):
        self.closed.append(self.tag)
        if self.error:
            raise self.error


@pytest.fixture(autouse=True)
def _no_key(monkeypatch):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)


def endpoints_of(**tables):
    return {tag: Endpoint.model_validate({"tag": tag, **table}) for tag, table in tables.items()}


def opened(endpoints, *, required=(), backends=None, settings=None, **how):
    return open_models(
        endpoints,
        settings=settings or Settings(),
        environment={},
        required=required,
        backends=backends,
        tracer=how.pop("tracer", Tracer()),
        **how,
    )


def request(tag, **fields):
    return ChatRequest(model=tag, messages=as_messages("Hello."), **fields)


# --- what is wrong is said ---------------------------------------------------------------------


def test_a_tag_that_does_not_exist_is_named_before_anything_is_called():
    async def main():
        async with open_shim("smal", settings=Settings(endpoints=endpoints_of(small=KEYLESS))):
            pytest.fail("it opened")

    with pytest.raises(ConfigurationInvalid, match="called 'smal'; did you mean 'small'"):
        asyncio.run(main())


def test_of_an_unusable_endpoint_every_call_says_the_same_and_leaves_nothing_behind():
    async def main():
        depths = []
        async with opened(endpoints_of(small=KEYLESS)) as models:
            for _ in range(3):
                with pytest.raises(ConfigurationInvalid, match="NO_SUCH_KEY") as caught:
                    await models.shim.chat(request("small"))
                depths.append(len(traceback.extract_tb(caught.value.__traceback__)))
        return depths

    assert len(set(asyncio.run(main()))) == 1


TABLES = {
    "main": {"url": NOBODY, "fallback": ["spare"]},
    "idle": {"url": NOBODY, "fallback": ["other"]},
    "spare": KEYLESS,
    "other": KEYLESS,
}


def test_an_unusable_fallback_of_a_required_endpoint_is_warned_of_and_of_another_not():
    warnings = []

    async def main():
        endpoints = endpoints_of(**TABLES)
        async with opened(endpoints, required={"main"}, warn=warnings.append):
            pass

    asyncio.run(main())
    (warning,) = warnings
    assert str(warning).startswith(
        "'spare' cannot stand in for 'main': endpoint 'spare' takes its key"
    )


def test_without_a_run_the_log_warns_of_it():
    async def main():
        async with open_shim("main", settings=Settings(endpoints=endpoints_of(**TABLES))):
            pass

    with capture_logs() as logs:
        asyncio.run(main())
    (line,) = logs
    assert line["log_level"] == "warning"
    assert "'spare' cannot stand in for 'main'" in line["event"]


def test_in_a_run_its_record_and_its_result_warn_of_it(tmp_path):
    pipeline = Pipeline("idle")

    @pipeline.node
    def step(run: Run) -> str:
        return run.id

    settings = Settings(
        traces=tmp_path, endpoints=endpoints_of(**TABLES), roles={"producer": "main"}
    )
    with capture_logs():
        result = asyncio.run(pipeline.run_async({}, settings=settings))
    (warning,) = map(str, result.warnings)
    assert "'spare' cannot stand in for 'main'" in warning
    instants = load_run(result.files.journal).instants
    assert [one.attributes["message"] for one in instants if one.name == "warning"] == [warning]


def test_a_managed_server_that_is_down_and_not_needed_is_warned_of_in_one_line():
    table = {"backend": "ollama", "url": NOBODY, "model_id": "m", "manage": True}

    async def main():
        async with opened(endpoints_of(idle=table)) as models:
            assert models.budget is None

    with capture_logs() as logs:
        asyncio.run(main())
    (line,) = logs
    assert (line["event"], line["endpoint"]) == ("a model is not the budget's", "idle")
    assert "does not answer" in line["error"]
    assert "exc_info" not in line


# --- what is opened is closed --------------------------------------------------------------------


def test_every_backend_is_closed_even_when_one_fails_to():
    closed = []

    async def main():
        backends = {
            "a": Closing(closed, "a"),
            "b": Closing(closed, "b", OSError("stuck")),
            "c": Closing(closed, "c"),
        }
        endpoints = endpoints_of(**{tag: {"backend": "scripted"} for tag in backends})
        async with opened(endpoints, backends=backends):
            pass

    with pytest.raises(OSError, match="stuck"):
        asyncio.run(main())
    assert sorted(closed) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("table", "error"),
    [(KEYLESS, ConfigurationInvalid), ({"path": "no-such.gguf"}, ModelFileInvalid)],
    ids=["no key", "no file"],
)
def test_what_was_opened_before_an_error_is_closed(table, error):
    closed = []

    async def main():
        endpoints = endpoints_of(first={"backend": "scripted"}, second=table)
        backends = {"first": Closing(closed, "first")}
        async with opened(endpoints, backends=backends, required={"second"}):
            pytest.fail("it opened")

    with pytest.raises(error):
        asyncio.run(main())
    assert closed == ["first"]


# --- tags of one server --------------------------------------------------------------------------


def other_spelling(url):
    return url.replace("127.0.0.1", "LOCALHOST") + "/"


@pytest.mark.parametrize(
    ("model_id", "chats"),
    [
        pytest.param(MODEL, 3, id="one model: one probe and two calls"),
        pytest.param("another", 4, id="two models: a probe for each"),
    ],
)
def test_tags_of_one_model_at_one_server_share_what_becomes_of_a_schema(model_id, chats):
    async def main():
        async with OpenAIServer(dialect=DIALECTS["vllm"]) as server:
            first = {"url": server.url, "backend": "vllm", "model_id": MODEL}
            second = {**first, "url": other_spelling(server.url), "model_id": model_id}
            async with opened(endpoints_of(a=first, b=second)) as models:
                for tag in "ab":
                    reply = await models.shim.chat(request(tag, reply_schema={"type": "object"}))
                    assert reply.structured == "advisory"
            return [one for one in server.asked if one.path.endswith("/chat/completions")]

    assert len(asyncio.run(main())) == chats


@dataclass
class Counting(OpenAIServer):
    """Has a page of counters beside its model."""

    async def respond(self, asked, answer):
        if asked.path != "/metrics":
            await super().respond(asked, answer)
            return
        await answer.start("text/plain")
        await answer.send(b"vllm:num_requests_running 3.0\n")
        await answer.end()


def test_one_server_is_sampled_once_however_its_address_is_written():
    async def main():
        tracks = asyncio.Queue()

        def take(record):
            if isinstance(record, CounterSet):
                tracks.put_nowait(record.track)

        async with Counting(dialect=DIALECTS["vllm"]) as server:
            first = {"url": server.url, "backend": "vllm", "model_id": MODEL}
            endpoints = endpoints_of(a=first, b={**first, "url": other_spelling(server.url)})
            async with opened(endpoints, tracer=Tracer(take), sample_every_s=60.0) as models:
                await models.shim.chat(request("b"))
                async with asyncio.timeout(60):
                    return await tracks.get()

    assert asyncio.run(main()) == "server a", "the first of its tags, though the other was called"


def test_a_record_does_not_say_where_keys_are_kept():
    records = []
    endpoint = Endpoint(
        tag="writer", url=NOBODY, backend="sglang", api_key_env="A_KEY", control_key_env="ANOTHER"
    )

    describe_endpoints({"writer": endpoint}, Tracer(records.append))

    (said,) = [one.attributes for one in records if isinstance(one, Instant)]
    assert said["backend"] == "sglang"
    assert not {"api_key_env", "control_key_env"} & said.keys()
