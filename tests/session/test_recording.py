"""What a run's record holds, and what it must not."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from harness import Pipeline, Run, ScriptedBackend, Settings, load_run
from harness.errors import ConfigurationInvalid, NodeFailed
from harness.inference import Backend, ChatRequest, Endpoint, as_messages
from harness.session import load_settings, open_session
from harness.session.secrets import known_secrets, secret_variables
from harness.session.settings import TraceSettings
from harness.trace import AUDIT_LOG, RunRecord
from harness.trace.secrets import REDACTED
from tests.inference.loopback import Loopback, Reply

SECRET = "hunter2-hunter2-hunter2"
PROMPT, REPLY = "What is kept of an unusual prompt?", "An unusual reply."

BAD = "Cold starts are slow."
GOOD = (
    "A cold start takes 8 to 15 s from disk. Keeping the model loaded between calls removes it, "
    "so the next call begins at once and needs less than 0.2 s."
)


def run(pipeline: Pipeline, settings: Settings, **backends: Backend) -> RunRecord:
    inputs: dict[str, object] = {"task": PROMPT}
    result = asyncio.run(pipeline.run_async(inputs, settings=settings, backends=backends))
    return load_run(result.files.journal)


def asking() -> Pipeline:
    pipeline = Pipeline("asking")

    @pipeline.node
    async def answer(run: Run, task: str) -> str:
        return await run.chat("producer", task)

    return pipeline


def loop() -> Pipeline:
    pipeline = Pipeline("loop")

    @pipeline.node
    async def text(run: Run, task: str) -> str:
        return (await run.wiggum(task, sources=[GOOD], rubric="answer", max_rounds=2)).text

    return pipeline


def test_arrows_lead_from_draft_to_verdict_to_revision_and_on(tmp_path: Path) -> None:
    record = run(loop(), Settings(traces=tmp_path), producer=ScriptedBackend([BAD, GOOD]))

    titles = {span.id: str(span.attributes.get("label", span.name)) for span in record.spans}
    arrows = [(flow.name, titles[flow.source], titles[flow.target]) for flow in record.flows]
    assert [arrow for arrow in arrows if arrow[0] != "call"] == [
        ("draft", "draft", "evaluate round 1"),
        ("verdict", "evaluate round 1", "revise for round 2"),
        ("draft", "revise for round 2", "evaluate round 2"),
    ]
    assert [arrow[1:] for arrow in arrows if arrow[0] == "call"] == [
        ("draft", "chat producer"),
        ("revise for round 2", "chat producer"),
    ]


def test_scores_are_counters_on_the_track_of_their_node(tmp_path: Path) -> None:
    record = run(loop(), Settings(traces=tmp_path), producer=ScriptedBackend([BAD, GOOD]))

    spans = {span.id: span for span in record.spans}
    composites = [counter for counter in record.counters if counter.name == "composite"]
    assert len(composites) == 2
    assert {spans[counter.span or 0].name for counter in composites} == {"evaluate"}


def test_the_record_begins_with_the_models_it_will_name(tmp_path: Path) -> None:
    endpoint = Endpoint(
        tag="producer", url="http://127.0.0.1:1/v1", backend="vllm", usd_per_hour=2.5
    )
    settings = Settings(traces=tmp_path, endpoints={"producer": endpoint})

    with pytest.raises(NodeFailed):
        run(asking(), settings)

    (journal,) = tmp_path.glob("2*.jsonl")
    (described,) = [one for one in load_run(journal).instants if one.name == "endpoint"]
    assert described.attributes == {
        "model": "producer",
        "backend": "vllm",
        "url": "http://127.0.0.1:1/v1",
        "model_id": "producer",
        "usd_per_hour": 2.5,
    }


def files_with(text: str, directory: Path) -> list[str]:
    return [
        path.name
        for path in directory.rglob("*")
        if path.is_file() and text.encode() in path.read_bytes()
    ]


@pytest.mark.parametrize("content", ["hash", "none"])
def test_a_run_that_is_to_keep_no_texts_keeps_none(tmp_path: Path, content: str) -> None:
    settings = Settings(traces=tmp_path, trace=TraceSettings.model_validate({"content": content}))

    record = run(asking(), settings, producer=ScriptedBackend([REPLY]))

    assert files_with(PROMPT, tmp_path) == []
    assert files_with(REPLY, tmp_path) == []
    (chat,) = [span for span in record.spans if span.name == "chat"]
    assert ("prompt_sha256" in chat.attributes) is (content == "hash")


def test_a_run_keeps_its_texts_unless_told_otherwise(tmp_path: Path) -> None:
    record = run(asking(), Settings(traces=tmp_path), producer=ScriptedBackend([REPLY]))

    assert REPLY in record.contents.values()
    assert [output.value for output in record.outputs] == [REPLY]


def test_a_loop_that_is_to_keep_no_texts_keeps_no_findings(tmp_path: Path) -> None:
    settings = Settings(traces=tmp_path, trace=TraceSettings(content="none"))

    run(loop(), settings, producer=ScriptedBackend([BAD, GOOD]))

    for text in (BAD, GOOD, PROMPT, "is too short"):
        assert files_with(text, tmp_path) == []


def test_a_key_that_a_server_echoes_reaches_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_KEY", SECRET)
    body = json.dumps({"error": {"message": f"Incorrect API key provided: {SECRET}"}}).encode()

    async def main() -> None:
        refusal = Reply(status=401, headers=(("content-type", "application/json"),), steps=(body,))
        async with Loopback([refusal]) as server:
            endpoint = Endpoint(tag="producer", url=server.url, api_key_env="THE_KEY")
            settings = Settings(traces=tmp_path, endpoints={"producer": endpoint})
            inputs: dict[str, object] = {"task": f"my key is {SECRET}"}
            with pytest.raises(NodeFailed, match="Incorrect API key"):
                await asking().run_async(inputs, settings=settings)

    asyncio.run(main())

    assert len(list(tmp_path.iterdir())) == 5
    assert files_with(SECRET, tmp_path) == []
    assert "runs.jsonl" in files_with("[redacted]", tmp_path)


def test_what_is_secret_is_told_by_names_and_addresses() -> None:
    endpoint = Endpoint(
        tag="a", url="https://me:p%40ss-word@example.org/v1?api_key=in-the-url", api_key_env="MINE"
    )
    environment = {
        "MINE": "one-secret",
        "ALSO": "another-secret",
        "OPENAI_API_KEY": "third-secret",
        "HF_TOKEN": "fourth-secret",
        "HOME": "/home/me",
    }

    assert known_secrets([endpoint], environment=environment, named=["ALSO"]) == {
        "one-secret",
        "another-secret",
        "third-secret",
        "fourth-secret",
        "p%40ss-word",
        "p@ss-word",
        "bWU6cEBzcy13b3Jk",
        "in-the-url",
    }


@pytest.mark.parametrize(
    ("url", "secrets"),
    [
        pytest.param("http://host:80/v1?model=a&empty_key=", set(), id="none"),
        pytest.param(
            "https://mytoken12345@host/v1",
            {"mytoken12345", "bXl0b2tlbjEyMzQ1Og==", "bXl0b2tlbjEyMzQ1Og"},
            id="a name alone",
        ),
        pytest.param("https://:p%3Aw@h", {"p%3Aw", "p:w", "OnA6dw==", "OnA6dw"}, id="no name"),
        pytest.param(
            "https://h?Sig=a%2Fb%2bc+d&sv=1", {"a%2Fb%2bc+d", "a/b+c+d", "a/b+c d"}, id="as written"
        ),
    ],
)
def test_what_is_secret_in_an_address_is_known_as_it_is_written_and_sent(
    url: str, secrets: set[str]
) -> None:
    endpoint = Endpoint(tag="a", url=url)

    assert known_secrets([endpoint], environment={}, named=()) == secrets


def test_a_secret_variable_that_is_not_set_is_told_of() -> None:
    with capture_logs() as logs:
        known_secrets([], environment={"ALSO": "another-secret"}, named=["ALSO", "ALOS"])

    assert [log["variable"] for log in logs] == ["ALOS"]


def test_variables_that_somebody_calls_secret_are_known_by_name() -> None:
    endpoints = [Endpoint(tag="a", url="http://h", api_key_env="MINE")]

    assert secret_variables(endpoints, named=["ALSO"]) == ("ALSO", "MINE")


def test_the_audit_log_names_a_draft_by_the_hash_that_the_journal_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", SECRET)
    drafts = [f"{BAD} {SECRET}", f"{GOOD} {SECRET}"]

    record = run(loop(), Settings(traces=tmp_path), producer=ScriptedBackend(drafts))

    (line,) = (tmp_path / AUDIT_LOG).read_text().splitlines()
    rounds = json.loads(line)["loops"][0]["rounds"]
    texts = [record.contents[one["content_sha256"]] for one in rounds]
    assert texts == [f"{BAD} {REDACTED}", f"{GOOD} {REDACTED}"]
    assert files_with(SECRET, tmp_path) == []


def test_a_server_is_sampled_while_the_run_is_on(tmp_path: Path) -> None:
    metrics = b"vllm:num_requests_running 3.0\nvllm:num_requests_waiting 7.0\n"

    async def main() -> Path:
        asked, gone = asyncio.Semaphore(0), asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while await reader.readuntil(b"\r\n\r\n"):
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(metrics))
                    writer.write(metrics)
                    asked.release()
            except (asyncio.IncompleteReadError, ConnectionError):
                writer.close()
                gone.set()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            endpoint = Endpoint(tag="producer", url=f"http://127.0.0.1:{port}/v1", backend="vllm")
            settings = Settings(
                traces=tmp_path,
                endpoints={"producer": endpoint},
                trace=TraceSettings(sample_ms=1),
            )
            async with open_session(settings, name="x", environment={}) as session:
                request = ChatRequest(model="producer", messages=as_messages("Hello."))
                call = asyncio.create_task(session.shim.chat(request))
                # The call; and the second question, which comes when the answer to the first has
                # been written down.
                for _ in range(3):
                    await asked.acquire()
                call.cancel()
                path = session.trace.journal_path
            await gone.wait()
        return path

    counters = load_run(asyncio.run(main())).counters
    assert {("running", 3.0, "server producer"), ("waiting", 7.0, "server producer")} <= {
        (counter.name, counter.value, counter.track) for counter in counters
    }


def test_a_node_can_show_its_own_work(tmp_path: Path) -> None:
    pipeline = Pipeline("parsing")

    @pipeline.node
    def parse(run: Run) -> int:
        with run.span("parse rows", rows=7):
            run.counter("rows", 7, unit="rows")
        return 7

    backends: dict[str, Backend] = {"p": ScriptedBackend([])}
    result = asyncio.run(
        pipeline.run_async({}, settings=Settings(traces=tmp_path), backends=backends)
    )

    record = load_run(result.files.journal)
    spans = {span.name: span for span in record.spans}
    assert spans["parse rows"].parent == spans["node"].id
    assert spans["parse rows"].attributes == {"rows": 7}
    assert [(one.name, one.span) for one in record.counters] == [("rows", spans["parse rows"].id)]


def test_another_process_joins_by_the_runs_invitation(tmp_path: Path) -> None:
    pipeline = Pipeline("joined")
    child = (
        "import sys; from harness import JoinedTrace\n"
        "with JoinedTrace(sys.argv[1]) as trace:\n"
        "    with trace.span('worked elsewhere'): pass\n"
    )

    @pipeline.node
    async def delegate(run: Run) -> int | None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", child, run.invitation()
        )
        return await process.wait()

    result = asyncio.run(
        pipeline.run_async(
            {}, settings=Settings(traces=tmp_path), backends={"p": ScriptedBackend([])}
        )
    )

    assert result.result == 0
    spans = {span.name: span for span in load_run(result.files.journal).spans}
    assert spans["worked elsewhere"].parent == spans["node"].id
    assert result.files.chrome_trace is not None
    assert b"worked elsewhere" in result.files.chrome_trace.read_bytes()


def test_another_process_that_joins_writes_none_of_the_runs_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline("joined")
    variables = {"MY_TOKEN": "a" + SECRET, "NAMED": "b" + SECRET, "OF_ENDPOINT": "c" + SECRET}
    child = (
        "import os, sys; from harness import JoinedTrace\n"
        "with JoinedTrace(sys.argv[1]) as trace:\n"
        f"    trace.instant('said', values=[os.environ[one] for one in {list(variables)}])\n"
    )
    invitations = []

    @pipeline.node
    async def delegate(run: Run) -> int | None:
        invitations.append(run.invitation())
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", child, invitations[0])
        return await process.wait()

    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    endpoint = Endpoint(tag="p", url="http://127.0.0.1:1/v1", api_key_env="OF_ENDPOINT")
    settings = Settings(
        traces=tmp_path, endpoints={"p": endpoint}, trace=TraceSettings(secrets=("NAMED",))
    )
    result = asyncio.run(pipeline.run_async({}, settings=settings))

    assert result.result == 0
    (said,) = [one for one in load_run(result.files.journal).instants if one.name == "said"]
    assert said.attributes == {"values": [REDACTED] * 3}
    assert files_with(SECRET, tmp_path) == []
    assert SECRET not in invitations[0]


def test_settings_of_the_record_are_read_and_mistakes_named(tmp_path: Path) -> None:
    path = tmp_path / "harness.toml"
    path.write_text('[trace]\ncontent = "hash"\ndurability = "sync"\ntimelines = ["perfetto"]\n')
    settings = load_settings(path, environment={}).trace
    assert (settings.content, settings.durability) == ("hash", "sync")

    path.write_text('[trace]\ncontent = "some"\n')
    with pytest.raises(ConfigurationInvalid, match=r"harness\.toml:2: trace\.content: .*'full'"):
        load_settings(path, environment={})

    path.write_text("[trace]\nsample = 5\n")
    with pytest.raises(ConfigurationInvalid, match="did you mean 'sample_ms'"):
        load_settings(path, environment={})


def test_only_the_timelines_that_were_asked_for_are_written(tmp_path: Path) -> None:
    settings = Settings(traces=tmp_path, trace=TraceSettings(timelines=("perfetto",)))

    run(asking(), settings, producer=ScriptedBackend(lambda _request: REPLY))

    assert {path.suffix for path in tmp_path.glob("2*")} == {".jsonl", ".pftrace"}
