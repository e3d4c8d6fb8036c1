"""What a run's record holds, and what it must not."""

from __future__ import annotations

import asyncio
import json
import traceback

import pytest
from loopback import Loopback, Reply
from sample_runs import load_run
from servers.emulated import event
from session_runs import GOOD, fail, instants_of, line_of, pipeline_of, run, settings_of
from structlog.testing import capture_logs

from harness import Run, ScriptedBackend
from harness.errors import NodeFailed
from harness.inference import Endpoint
from harness.session.trust import known_secrets, warn_of_secrets

SECRET = "hunter2-hunter2-hunter2"
PROMPT, REPLY = "What is kept of an unusual prompt?", "An unusual reply."
BAD = "Cold starts are slow."


async def answer(run: Run, task: str) -> str:
    return await run.chat("producer", task)


async def text(run: Run, task: str) -> str:
    return (await run.wiggum(task, sources=[GOOD], rubric="answer", max_rounds=2)).text


def recorded(node, tmp_path, *replies, **trace):
    backends = {"producer": ScriptedBackend(list(replies))}
    settings = settings_of(tmp_path, trace=trace)
    return run(pipeline_of(node), settings, {"task": PROMPT}, backends=backends)


def files_with(text, directory):
    files = [path for path in directory.rglob("*") if path.is_file()]
    return [path.name for path in files if text.encode() in path.read_bytes()]


def test_arrows_lead_from_draft_to_verdict_to_revision_and_scores_are_counted(tmp_path):
    record = load_run(recorded(text, tmp_path, BAD, GOOD).files.journal)
    titles = {span.id: str(span.attributes.get("label", span.name)) for span in record.spans}
    arrows = [(flow.name, titles[flow.source], titles[flow.target]) for flow in record.flows]
    assert [arrow for arrow in arrows if arrow[0] != "call"] == [
        ("draft", "draft", "evaluate round 1"),
        ("verdict", "evaluate round 1", "revise for round 2"),
        ("draft", "revise for round 2", "evaluate round 2"),
    ]
    assert [arrow[1:] for arrow in arrows if arrow[0] == "call"] == [
        ("draft", "text · producer"),
        ("revise for round 2", "text · producer"),
    ]
    composites = [one.span for one in record.counters if one.name == "composite"]
    assert [titles[span].split()[0] for span in composites] == ["evaluate"] * 2


def test_the_record_begins_with_the_models_it_will_name(tmp_path):
    table = {"url": "http://127.0.0.1:1/v1", "backend": "vllm", "usd_per_hour": 2.5}
    settings = settings_of(tmp_path, endpoints={"producer": {"tag": "producer", **table}})
    failed = fail(pipeline_of(answer), settings, {"task": "t"})
    (described,) = instants_of(failed.result, "endpoint")
    assert described == {"model": "producer", "model_id": "producer", **table}


@pytest.mark.parametrize(("content", "is_hashed"), [("hash", True), ("none", False)])
def test_a_run_that_is_to_keep_no_texts_keeps_none(tmp_path, content, is_hashed):
    result = recorded(answer, tmp_path / "a", REPLY, content=content)
    recorded(text, tmp_path / "b", BAD, GOOD, content=content)
    for words in (PROMPT, REPLY, BAD, GOOD, "is too short"):
        assert files_with(words, tmp_path) == []
    (chat,) = [one for one in load_run(result.files.journal).spans if one.name == "chat"]
    assert ("prompt_sha256" in chat.attributes) is is_hashed


def test_only_the_timelines_that_were_asked_for_are_written(tmp_path):
    recorded(answer, tmp_path, REPLY, timelines=("perfetto",))
    assert {path.suffix for path in (tmp_path / "traces").glob("2*")} == {".jsonl", ".pftrace"}


# --- secrets -----------------------------------------------------------------------------------


def test_a_key_that_a_server_echoes_reaches_no_file(tmp_path, monkeypatch):
    monkeypatch.setenv("THE_KEY", SECRET)
    body = json.dumps({"error": {"message": f"Incorrect API key provided: {SECRET}"}}).encode()

    async def main():
        refusal = Reply(status=401, headers=(("content-type", "application/json"),), steps=(body,))
        async with Loopback([refusal]) as server:
            endpoint = Endpoint(tag="producer", url=server.url, api_key_env="THE_KEY")
            settings = settings_of(tmp_path, endpoints={"producer": endpoint})
            inputs = {"task": f"my key is {SECRET}"}
            with pytest.raises(NodeFailed):
                await pipeline_of(answer).run_async(inputs, settings=settings)

    asyncio.run(main())
    assert len(list((tmp_path / "traces").iterdir())) == 4
    assert files_with(SECRET, tmp_path) == []
    assert "runs.jsonl" in files_with("[redacted]", tmp_path)


def test_the_audit_log_has_scores_and_no_draft(tmp_path):
    result = recorded(text, tmp_path, BAD, GOOD)
    (loop,) = result.loops
    line = line_of(result)
    assert line["loops"][0]["scores"] == [one.verdict.composite for one in loop.rounds]
    assert (line["wiggum_scores"], line["stop_reason"]) == (line["loops"][0]["scores"], "passed")
    assert files_with(GOOD, tmp_path)
    assert not {name for name in files_with(GOOD, tmp_path) if name == "runs.jsonl"}


def test_what_is_secret_is_told_by_names():
    endpoint = Endpoint(tag="a", url="http://h/v1", api_key_env="MINE")
    secret = {"MINE": "one", "ALSO": "two", "OPENAI_API_KEY": "three", "HF_TOKEN": "four"}
    environment = {**secret, "HOME": "/home/me"}
    assert known_secrets([endpoint], environment=environment, named=["ALSO"]) == {*secret.values()}
    with capture_logs() as logs:
        warn_of_secrets([endpoint], environment=environment, named=["ALSO", "ALOS"])
    assert [log["code"] for log in logs] == ["trace.secret-not-set", "trace.secret-common"]
    assert logs[0]["variable"] == "ALOS"
    assert logs[1]["event"].startswith("ALSO, HF_TOKEN, MINE, OPENAI_API_KEY: ")


ADDRESSES = {
    "http://host:80/v1?model=a&empty_key=": set(),
    "https://mytoken12345@host/v1": {
        "mytoken12345", "bXl0b2tlbjEyMzQ1Og==", "bXl0b2tlbjEyMzQ1Og",
    },
    "https://:p%3Aw@h": {"p%3Aw", "p:w", "OnA6dw==", "OnA6dw"},
    "https://me:p%40ss-word@h/v1?api_key=in-the-url": {
        "p%40ss-word", "p@ss-word", "bWU6cEBzcy13b3Jk", "in-the-url",
    },
    "https://h?Sig=a%2Fb%2bc+d&sv=1": {"a%2Fb%2bc+d", "a/b+c+d", "a/b+c d"},
}  # fmt: skip


@pytest.mark.parametrize(("url", "secrets"), ADDRESSES.items())
def test_what_is_secret_in_an_address_is_known_as_it_is_written_and_sent(url, secrets):
    endpoint = Endpoint(tag="a", url=url)
    assert known_secrets([endpoint], environment={}, named=()) == secrets


# --- what else may be shown ----------------------------------------------------------------------


def test_a_node_can_show_its_own_work(tmp_path):
    def parse(run: Run) -> int:
        with run.span("parse rows", rows=7):
            run.counter("rows", 7, unit="rows")
        return 7

    result = run(pipeline_of(parse), settings_of(tmp_path))
    record = load_run(result.files.journal)
    spans = {span.name: span for span in record.spans}
    assert spans["parse rows"].parent == spans["node"].id
    assert spans["parse rows"].attributes == {"rows": 7}
    counted = [(one.name, one.span) for one in record.counters if one.span is not None]
    assert counted == [("rows", spans["parse rows"].id)]


def _stream(*chunks):
    return Reply(steps=tuple(event({"choices": [one]}) for one in chunks))


ECHOES = {
    "refused": Reply(
        status=401, steps=(b'{"error": {"message": "wrong key: %s"}}' % SECRET.encode(),)
    ),
    "an address": Reply(status=307, headers=(("location", f"http://127.0.0.1:1/?k={SECRET}"),)),
    "in the stream": Reply(steps=(event({"error": {"message": f"{SECRET} is over"}}),)),
    "odd part": _stream({"index": 0, "finish_reason": {"key": SECRET}, "delta": {"content": "x"}}),
    "cut in two": _stream({"index": SECRET, "delta": {"content": "x" * 95 + SECRET}}),
    "odd end": _stream({"index": 0, "finish_reason": f"stop {SECRET}", "delta": {"content": "x"}}),
}


@pytest.mark.parametrize("backend", ["openai", "litellm"])
@pytest.mark.parametrize("reply", ECHOES.values(), ids=ECHOES)
def test_an_error_in_python_quotes_no_key_that_a_server_echoes(
    tmp_path, monkeypatch, reply, backend
):
    monkeypatch.setenv("MY_KEY", SECRET)

    async def main():
        async with Loopback([reply]) as server:
            model = "openai/m" if backend == "litellm" else "m"
            one = {"url": server.url, "model_id": model, "api_key_env": "MY_KEY"}
            one |= {"backend": backend, "retry": {"max_attempts": 1}}
            settings = settings_of(tmp_path, endpoints={"producer": one})
            await pipeline_of(answer).run_async({"task": PROMPT}, settings=settings)

    with pytest.raises(NodeFailed) as failed:
        asyncio.run(main())
    shown = "".join(traceback.format_exception(failed.value))
    assert "ServerError" in shown or "AuthenticationFailed" in shown or "StreamCut" in shown
    assert "hunter2" not in shown
