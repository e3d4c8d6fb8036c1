"""A pipeline's run: what it gives back and leaves, what a node may ask of it, and how it ends."""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from contextlib import suppress
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field
from sample_runs import load_run
from session_runs import (
    BAD,
    GOOD,
    SOURCE,
    fail,
    idle,
    line_of,
    lines_of,
    pipeline_of,
    refused,
    run,
    settings_of,
    spans_of,
)

from harness import Journal, Pipeline, Retry, Run, ScriptedBackend, Timeout, stream
from harness.analysis import report_of
from harness.errors import InvalidInput, NodeFailed, ServerError, StreamCut
from harness.inference import Limits
from harness.session import own_loop, run_to_its_end
from harness.testing import Judge


@pytest.fixture
def settings(tmp_path):
    return settings_of(tmp_path)


def answering():
    async def text(run: Run, task: str) -> str:
        return (await run.wiggum(task, sources=[SOURCE], rubric="answer")).text

    return pipeline_of(text, name="answering")


def answer(settings, *replies, **backends):
    backends = {"producer": ScriptedBackend(list(replies)), **backends}
    result = run(answering(), settings, {"task": "cold starts?"}, backends=backends)
    return result, [request.messages[-1].content for request in backends["producer"].requests]


def echo():
    """Answers with the prompt, in capitals."""
    return {"producer": ScriptedBackend(lambda request: request.messages[0].content.upper())}


def test_a_pipeline_is_a_graph_of_networkx_with_the_figures_of_a_run(settings):
    async def text(run: Run, task: str) -> str:
        return await run.chat("producer", task)

    pipeline = pipeline_of(text, name="two")

    @pipeline.node
    def length(text: str, task: str) -> int:
        return len(text)

    result = run(pipeline, settings, {"task": "a"}, backends=echo())

    assert [*pipeline.graph().edges] == [("text", "length")]
    nodes = pipeline.graph(Journal(result.files.journal)).nodes
    assert [(name, nodes[name]["status"], nodes[name]["calls"]) for name in nodes] == [
        ("text", "done", 1),
        ("length", "done", 0),
    ]
    assert nodes["text"]["busy_ns"] > 0
    assert nodes["length"]["is_critical"]


# --- what a run gives, and leaves ---------------------------------------------------------------


def test_a_run_gives_every_output_and_the_last_as_its_result(settings):
    async def question(run: Run, task: str) -> str:
        return await run.chat("planner", f"ask about {task}")

    async def answer(run: Run, question: str) -> str:
        return await run.chat("producer", question)

    result = run(pipeline_of(question, answer), settings, {"task": "tea"}, backends=echo())
    assert result.outputs == {"question": "ASK ABOUT TEA", "answer": "ASK ABOUT TEA"}
    assert (result.result, result.passed) == ("ASK ABOUT TEA", None)  # nothing was judged
    assert [model.calls for model in result.models] == [2]


def test_a_run_leaves_a_journal_a_timeline_and_a_line_in_the_audit_log(settings):
    result, (prompt,) = answer(settings, GOOD)
    record = load_run(result.files.journal)
    assert record.ended.status == "ok"
    assert [output.node for output in record.outputs] == ["text"]
    assert json.loads(result.files.chrome_trace.read_text())["traceEvents"]
    line = line_of(result)
    assert (line["run_id"], line["task"], line["final"]) == (result.run_id, "cold starts?", "PASS")
    assert (line["producer_model"], line["evaluator_model"]) == ("producer", None)
    verdict = result.loops[0].best.verdict
    assert line["wiggum_scores"] == [verdict.composite]
    assert verdict.unjudged == ("relevance",)
    (chat,) = spans_of(result, "chat")
    assert record.contents[chat["reply_sha256"]] == GOOD
    assert SOURCE in record.contents[chat["prompt_sha256"]]
    # The producer is told what its draft will be measured by.
    assert "The whole text has 20 to 90 words." in prompt
    assert prompt.index(SOURCE) < prompt.index("cold starts?")


def test_a_draft_that_fails_is_revised_and_the_best_round_comes_back(settings):
    result, (_, revision) = answer(settings, BAD, GOOD)
    (loop,) = result.loops
    assert [one.verdict.passed for one in loop.rounds] == [False, True]
    assert (result.result, loop.stop_reason) == (GOOD, "passed")
    assert "900 is not in the sources" in revision


def test_an_evaluator_model_judges_what_checks_cannot(settings):
    reply = json.dumps({"relevance": {"reason": "Nothing is missing.", "score": 9}})
    evaluator = ScriptedBackend([reply])
    result, _ = answer(settings, GOOD, evaluator=evaluator)
    verdict = result.loops[0].best.verdict
    assert (verdict.vector["relevance"], verdict.evaluator, verdict.unjudged) == (
        9,
        "evaluator",
        (),
    )
    assert evaluator.requests[0].role == "evaluator"


class Point(BaseModel):
    x: int


def test_replies_come_back_in_the_type_asked_for(settings):
    async def model(run: Run) -> Point:
        return await run.chat("producer", "a point", returns=Point)

    async def words(run: Run, model: Point) -> list[str]:
        kind = Annotated[list[Literal["a", "b"]], Field(max_length=2)]
        return list(await run.chat("producer", f"{model.x}", returns=kind))

    backend = ScriptedBackend(['{"x": 3}', '{"answer": ["a", "b"]}'])
    result = run(pipeline_of(model, words), settings, backends={"producer": backend})
    assert result.outputs == {"model": Point(x=3), "words": ["a", "b"]}
    assert backend.requests[1].reply_schema is not None


def test_requests_carry_the_sampling_that_was_asked_for(settings):
    sampling = {"temperature": 0.7, "seed": 3, "stop": ["\n"], "max_output_tokens": 9}

    async def step(run: Run) -> str:
        return await run.chat("producer", "x", **sampling)

    backend = ScriptedBackend(["y"])
    run(pipeline_of(step), settings, backends={"producer": backend})
    (request,) = backend.requests
    assert (request.temperature, request.seed, request.stop) == (0.7, 3, ("\n",))
    assert request.max_output_tokens == 9


def test_a_failed_run_leaves_its_record_too(settings):
    refusal = ServerError("HTTP 400: no", endpoint="producer", status=400)
    failed = fail(
        answering(), settings, {"task": "t"}, backends={"producer": ScriptedBackend([refusal])}
    )
    assert (failed.node, failed.__cause__) == ("text", refusal)
    (line,) = lines_of(settings)
    assert line["final"] == "ERROR"
    assert "HTTP 400" in line["error"]
    record = load_run(settings.traces / f"{line['run_id']}.jsonl")
    statuses = {span.status for span in record.spans if span.name != "client lag"}
    assert statuses == {"error"}


def test_several_failures_are_one_error_that_says_how_many(settings):
    def bad(item: int) -> int:
        return item // 0

    def beside() -> str:
        return "there"

    pipeline = Pipeline("bad")
    pipeline.node(each={"item": "items"})(bad)
    pipeline.node(beside)
    failed = fail(pipeline, settings, {"items": [1, 2, 3]})
    assert "and 2 more nodes failed" in str(failed)
    assert isinstance(failed.__cause__, ZeroDivisionError)
    result = failed.result
    assert [one.node for one in result.failures] == ["bad[0]", "bad[1]", "bad[2]"]
    assert (result.status, dict(result.outputs)) == ("failed", {"beside": "there"})
    (line,) = lines_of(settings)
    assert (line["final"], line["error"].count("2 more")) == ("ERROR", 1)


def test_a_cancelled_run_closes_its_record(settings):
    async def wait() -> str:
        await asyncio.get_running_loop().create_future()
        return "never"

    async def cancel():
        started, loop = asyncio.Event(), asyncio.get_running_loop()
        running = pipeline_of(wait).run_async(
            {},
            settings=settings,
            backends={"producer": ScriptedBackend([])},
            # Observers are called from the thread that writes the journal.
            observers=[lambda _record: loop.call_soon_threadsafe(started.set)],
        )
        task = asyncio.create_task(running)
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert [line["final"] for line in lines_of(settings)] == ["INTERRUPTED"]


# --- mistakes ----------------------------------------------------------------------------------


def misnamed():
    async def text(context: Run) -> str: ...

    return pipeline_of(text)


def needing(role):
    async def text(run: Run) -> str:
        return await run.chat(role, "x")

    return pipeline_of(text, models=[role])


A = {"tag": "a", "url": "http://h/v1"}
KEYLESS, FILELESS = {**A, "api_key_env": "NO_SUCH_KEY"}, {"tag": "a", "path": "missing.gguf"}
MISTAKES = {
    "no nodes": (Pipeline("empty"), {}, "pipeline.empty"),
    "a run by another name": (misnamed(), {}, "pipeline.run-parameter-misnamed"),
    "no input": (answering(), {}, "pipeline.input-missing"),
    "a role without a model": (needing("evaluator"), {}, "roles.unassigned"),
    "a misspelt role": (idle(), {"roles": {"evaluater": "producer"}}, "roles.misspelt"),
    "a node that misspells one": (needing("evalutor"), {}, "roles.misspelt"),
    "a missing key": (idle(), {"endpoints": {"a": KEYLESS}}, "endpoint.key-not-set"),
    "a missing file": (idle(), {"endpoints": {"a": FILELESS}}, "model.file-invalid"),
    "an unknown embedder": (idle(), {"memory": {"embedder": "w"}}, "memory.embedder-unknown"),
    "an unknown reranker": (idle(), {"memory": {"rerank": "w"}}, "memory.reranker-unknown"),
}


@pytest.mark.parametrize(("pipeline", "tables", "code"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_stops_a_run_before_any_node_starts(tmp_path, pipeline, tables, code):
    with refused(code):
        run(pipeline, settings_of(tmp_path, **tables))
    if code not in {"endpoint.key-not-set", "model.file-invalid"}:  # which a record tells of
        assert not (tmp_path / "traces").exists()


def test_a_mistake_inside_a_node_is_its_cause(settings):
    async def step(run: Run) -> object:
        return await run.wiggum("t", rubric="breif", draft="x")

    assert fail(pipeline_of(step), settings).__cause__.code.startswith("rubric.")


def test_a_traces_directory_that_cannot_be_written_is_a_mistake_in_the_settings(settings):
    settings.traces.write_text("a file stands in the way")
    with refused("config.traces-unwritable") as caught:
        run(answering(), settings, {"task": "t"})
    assert "HARNESS_TRUST has to allow one outside" in str(caught.value)


def test_an_endpoint_that_no_role_needs_may_be_unusable_until_it_is_called(tmp_path):
    async def step(run: Run, role: str) -> str:
        return await run.chat(role, "x")

    spare = {"spare": {"tag": "spare", "path": "missing.gguf"}}
    settings = settings_of(tmp_path, endpoints=spare, roles={"producer": "writer"})
    for role in ("producer", "spare"):
        how = {"backends": {"writer": ScriptedBackend(["y"])}}
        if role == "producer":
            assert run(pipeline_of(step), settings, {"role": role}, **how).result == "y"
        else:
            failed = fail(pipeline_of(step), settings, {"role": role}, **how)
            assert failed.__cause__.code == "model.file-invalid"


def test_run_says_what_to_write_where_an_event_loop_runs_already():
    async def notebook():
        with refused("pipeline.event-loop-running"):
            answering().run(task="t")

    asyncio.run(notebook())


# --- nesting and mapping -----------------------------------------------------------------------


def inner():
    async def loud(run: Run, word: str) -> str:
        return await run.chat("producer", word)

    def joined(loud: list[str]) -> str:
        return " ".join(loud)

    pipeline = Pipeline("inner")
    pipeline.node(each={"word": "words"})(loud)
    pipeline.node(joined)
    return pipeline


def test_a_node_calls_another_pipeline_with_the_same_models_and_record(settings):
    async def both(run: Run) -> list[str]:
        first = await run.call(inner(), words=["a"])
        second = await run.call(inner(), words=["b", "c"])
        assert first.outputs == {"loud": ["A"], "joined": "A"}
        return [str(first.result), str(second.result)]

    result = run(pipeline_of(both), settings, backends=echo())
    assert result.result == ["A", "B C"]
    nodes = {one.node for one in load_run(result.files.journal).outputs}
    assert {"both/inner/joined", "both/inner#2/joined"} <= nodes
    assert [model.calls for model in result.models] == [3]


def test_a_node_maps_over_what_it_finds_out(settings):
    async def found(run: Run) -> list[str]:
        async def asked(run: Run, item: str) -> str:
            return await run.chat("producer", item)

        return await run.map(asked, ["a", "b", "c"], max_parallel=2)

    result = run(pipeline_of(found), settings, backends=echo())
    assert result.result == ["A", "B", "C"]
    labels = {one["label"] for one in spans_of(result, "node")}
    assert labels == {"found", "found/asked[0]", "found/asked[1]", "found/asked[2]"}


def test_a_failure_says_how_often_the_node_was_called(settings):
    def bad() -> int:
        raise ConnectionError("gone")

    failed = fail(pipeline_of(bad, retry=Retry(3, first_delay_s=0)), settings)
    assert str(failed).endswith("(called 3 times)")
    assert "ConnectionError: gone" in str(failed)


# --- signs of life ----------------------------------------------------------------------------


class Trickle(ScriptedBackend):
    """Lets a piece come every 200 s of the event loop's clock, which it sets forward."""

    async def chat(self, request):
        loop = asyncio.get_running_loop()
        for n in range(1, 7):
            loop.time = lambda ahead_s=200 * n: time.monotonic() + ahead_s
            for _ in range(9):  # turns of the loop in which what is due ends
                await asyncio.sleep(0)
            if request.on_piece:
                request.on_piece()
        return await super().chat(request)


async def asks(run: Run) -> str:
    return await run.chat("producer", "x")


async def loops(run: Run) -> str:
    return (await run.wiggum("t", sources=[SOURCE], rubric="answer", max_rounds=1)).text


def beats(run: Run) -> str:
    run.beat()  # from its thread
    return "text"


@pytest.mark.parametrize("node", [asks, loops, beats])
def test_every_piece_of_a_reply_is_a_sign_of_life(settings, node):
    pipeline = pipeline_of(node, timeout=Timeout(idle_s=300))
    assert run(pipeline, settings, backends={"producer": Trickle(["text"])}).result == "text"


def test_a_reply_of_which_nothing_comes_is_none(settings):
    pipeline = pipeline_of(asks, timeout=Timeout(idle_s=0.05))
    silent = ScriptedBackend(["text"], delay_s=600)
    failed = fail(pipeline, settings, backends={"producer": silent})
    assert (failed.__cause__.code, failed.__cause__.limit) == ("node.timeout", "idle_s")


def test_who_only_watches_does_not_keep_a_call_from_being_tried_again(settings):
    class Cut(ScriptedBackend):
        async def chat(self, request):
            if request.on_piece:
                request.on_piece()
            if not self.requests:
                self.requests.append(request)
                raise StreamCut("cut", endpoint="producer")
            return await super().chat(request)

    pipeline = pipeline_of(asks, timeout=Timeout(idle_s=60))
    assert run(pipeline, settings, backends={"producer": Cut(["whole"])}).result == "whole"


# --- the door into the event loop ---------------------------------------------------------------


async def stubborn() -> str:
    """Goes on however often it is cancelled."""
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)


def test_a_pipeline_returns_although_a_node_ignores_its_time_limit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(own_loop, "_GRACE_S", 0.01)
    began_s = time.monotonic()
    with pytest.raises(NodeFailed) as caught:
        pipeline_of(stubborn, timeout=Timeout(total_s=0.05)).run()
    assert time.monotonic() - began_s < 50
    assert caught.value.__cause__.limit == "total_s"
    assert caught.value.result.files.journal.is_file()


def test_ctrl_c_that_cancels_nothing_leaves_the_coroutine_its_time_to_clean_up(monkeypatch):
    monkeypatch.setattr(own_loop, "_GRACE_S", 0.01)
    ended = []

    def interrupt():
        # As a handler has it that is not the runner's: in the background there is none of its own.
        raise KeyboardInterrupt

    async def main():
        asyncio.get_running_loop().call_soon(interrupt)
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.1)
            ended.append(True)

    with pytest.raises(KeyboardInterrupt):
        run_to_its_end(main())
    assert ended == [True]


# --- tried again -------------------------------------------------------------------------------


def tried_again(tmp_path, replies, *, nested=False, **options):
    """What a writer was asked in the attempts of a node, and the run."""
    writer = ScriptedBackend(replies)

    async def number(run: Run) -> int:
        return await run.chat("producer", "How many owls?", returns=int, **options)

    async def nests(run: Run) -> list[int]:
        async def inner(run: Run, item: int) -> int:
            return await number(run)

        return await run.map(inner, [1])

    pipeline = pipeline_of(nests if nested else number, retry=Retry(3, first_delay_s=0))
    settings = settings_of(tmp_path, roles={"producer": "writer"})
    return writer.requests, run(pipeline, settings, backends={"writer": writer})


@pytest.mark.parametrize("nested", [False, True])
def test_a_further_attempt_tells_the_model_what_was_wrong_with_each_reply(tmp_path, nested):
    wrong = ["many", '{"answer": "many"}', '{"answer": 3}']
    requests, result = tried_again(tmp_path, wrong, nested=nested)

    assert result.result == ([3] if nested else 3)
    sampled = [(one.temperature, one.seed) for one in requests]
    assert sampled == [(0, None)] * 3, "each request is another one already"
    first, second, third = (one.messages for one in requests)
    assert (second[:1], third[:3]) == (first, second)
    assert (second[1].content, third[3].content) == (wrong[0], wrong[1])
    assert "answer" in third[4].content
    assert len(spans_of(result, "chat")) == 3
    assert result.retries == {"nests" if nested else "number": 2}
    assert report_of(Journal(result.files.journal)).retries == 2


@pytest.mark.parametrize(
    ("options", "sampling"),
    [
        ({}, [(0, None), (0.3, 1), (0.3, 2)]),
        ({"seed": 7}, [(0, 7), (0.3, 8), (0.3, 9)]),
        ({"temperature": 0.7}, [(0.7, None)] * 3),
    ],
    ids=["greedy", "a seed of its own", "sampled"],
)
def test_a_node_that_cannot_use_its_reply_is_given_another(tmp_path, options, sampling):
    writer = ScriptedBackend(["many", "few", "3"])

    async def number(run: Run) -> int:
        return int(await run.chat("producer", "How many owls?", **options))

    pipeline = pipeline_of(number, retry=Retry(3, first_delay_s=0))
    settings = settings_of(tmp_path, roles={"producer": "writer"})
    assert run(pipeline, settings, backends={"writer": writer}).result == 3
    assert [(one.temperature, one.seed) for one in writer.requests] == sampling


# --- wrong options -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "remedy"),
    [
        ({"system": "Be brief."}, '"role": "system"'),
        ({"response_model": int}, "returns="),
        ({"max_tokens": 9}, "did you mean 'max_output_tokens'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_an_option_that_chat_does_not_have_is_answered_by_what_to_write(settings, wrong, remedy):
    async def chats(run: Run) -> str:
        return await run.chat("producer", "x", **wrong)

    failed = fail(pipeline_of(chats), settings)

    assert isinstance(failed.__cause__, TypeError)
    assert f"chat has no option '{next(iter(wrong))}'" in str(failed)
    assert remedy in str(failed)


def test_a_stream_of_values_is_refused_where_it_is_asked_for(settings):
    async def streams(run: Run) -> str:
        return "".join([piece async for piece in run.stream("producer", "x", returns=list[int])])

    failed = fail(pipeline_of(streams), settings)

    assert "await chat(…, returns=…)" in str(failed)
    with pytest.raises(TypeError, match="returns="):
        stream("producer", "x", returns=list[int])


# --- one signature for both doors -------------------------------------------------------------


def test_both_doors_take_the_same():
    assert list(inspect.signature(Pipeline.run).parameters.values()) == list(
        inspect.signature(Pipeline.run_async).parameters.values()
    )


def test_inputs_are_given_by_name_or_as_a_mapping_apart_from_options(tmp_path):
    def shout(task: str, limits: str = "none") -> str:
        return f"{task.upper()} {limits}"

    settings = settings_of(tmp_path)
    pipeline = pipeline_of(shout)
    assert pipeline.run({"limits": "50 km/h"}, task="tea", settings=settings).result == (
        "TEA 50 km/h"
    )
    assert asyncio.run(pipeline.run_async(task="tea", settings=settings)).result == "TEA none"
    limited = pipeline.run({"task": "tea"}, limits=Limits(max_calls=9), settings=settings)
    assert limited.result == "TEA none"


@pytest.mark.parametrize(
    ("inputs", "named", "code"),
    [
        pytest.param({"task": "a"}, {"task": "b"}, "pipeline.input-given-twice", id="twice"),
        pytest.param({}, {"limits": 3}, "pipeline.limits-invalid", id="limits"),
        pytest.param({}, {"resume": 3}, "resume.not-a-run", id="resume"),
        pytest.param({}, {"backends": "x"}, "pipeline.backends-invalid", id="backends"),
        pytest.param({}, {"backends": {"a": 3}}, "pipeline.backends-invalid", id="no backend"),
    ],
)
def test_an_option_or_input_that_is_none_is_refused(tmp_path, inputs, named, code):
    with refused(code):
        idle().run(inputs, settings=settings_of(tmp_path), **named)


def test_a_backend_that_is_none_is_named_by_its_tag_with_what_to_give(tmp_path):
    judge = Judge(9)
    backends = {"producer": ScriptedBackend(["Tea."]), "evaluator": judge}
    with pytest.raises(InvalidInput, match=r"backends\['evaluator'\] is <harness.testing.Judge"):
        idle().run(settings=settings_of(tmp_path), backends=backends)


def test_a_text_where_several_may_be_given_is_one_and_not_its_letters(tmp_path):
    async def ask(run: Run) -> None:
        await run.chat("producer", "Count.", stop="END")
        await run.wiggum("Why?", rubric="answer", sources=SOURCE, max_rounds=1)

    writer = ScriptedBackend(["1 2", GOOD])
    given = settings_of(tmp_path, roles={"producer": "writer"})
    run(pipeline_of(ask), given, backends={"writer": writer})
    count, draft = writer.requests
    assert count.stop == ("END",)
    assert SOURCE in draft.messages[-1].content
