"""A pipeline's run: what it gives back and what it leaves, on a scripted model."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from harness import Pipeline, Run, ScriptedBackend, Settings, load_run
from harness.errors import (
    ConfigurationInvalid,
    InvalidInput,
    ModelFileInvalid,
    NodeFailed,
    PipelineInvalid,
    ReplyInvalid,
    RubricInvalid,
    SameModel,
    ServerError,
)
from harness.inference import Backend, ChatRequest, Endpoint
from harness.session import RunResult

GOOD = (
    "A cold start takes 8 to 15 s from disk. Keeping the model loaded between calls removes it, "
    "so the next call begins at once and needs less than 0.2 s."
)
SOURCE = GOOD + " The server must read the weights from disk."


class Point(BaseModel):
    x: int


def run(
    pipeline: Pipeline,
    tmp_path: Path,
    inputs: dict[str, object] | None = None,
    *,
    settings: Settings | None = None,
    **backends: Backend,
) -> RunResult:
    chosen = settings or Settings(traces=tmp_path / "traces")
    return asyncio.run(pipeline.run_async(inputs or {}, settings=chosen, backends=backends))


def audit(tmp_path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (tmp_path / "traces/runs.jsonl").read_text().splitlines()]


def answering(*, evaluator: bool = False) -> Pipeline:
    pipeline = Pipeline("answering")

    @pipeline.node
    async def text(run: Run, task: str) -> str:
        return (await run.wiggum(task, sources=[SOURCE], rubric="answer")).text

    return pipeline


def test_a_run_gives_every_output_and_the_last_as_its_result(tmp_path: Path) -> None:
    pipeline = Pipeline("chain")

    @pipeline.node
    async def question(run: Run, task: str) -> str:
        return await run.chat("planner", f"ask about {task}")

    @pipeline.node
    async def answer(run: Run, question: str) -> str:
        return await run.chat("producer", question)

    result = run(
        pipeline,
        tmp_path,
        {"task": "tea"},
        producer=ScriptedBackend(lambda r: r.messages[0].content),
    )
    assert result.outputs == {"question": "ask about tea", "answer": "ask about tea"}
    assert result.result == "ask about tea"
    assert result.passed
    assert [model.calls for model in result.models] == [2]


def test_a_pipeline_without_nodes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineInvalid, match="pipeline 'empty' has no nodes; add one"):
        run(Pipeline("empty"), tmp_path)


def test_limits_of_another_form_are_refused_with_the_form_to_write() -> None:
    limits: Any = {"max_calls": 3}
    with pytest.raises(InvalidInput, match=r"limits={'max_calls': 3} .* Limits\(max_calls=9\)"):
        Pipeline("limited", limits=limits)


def test_a_node_that_calls_its_run_otherwise_is_told_its_name(tmp_path: Path) -> None:
    pipeline = Pipeline("named")

    @pipeline.node
    async def text(context: Run) -> str: ...

    message = "node 'text' takes the run as 'context', .* receives it is called 'run'"
    with pytest.raises(PipelineInvalid, match=message) as refused:
        run(pipeline, tmp_path)
    assert refused.value.path == Path(__file__)


def test_a_run_leaves_a_journal_a_timeline_and_a_line_in_the_audit_log(tmp_path: Path) -> None:
    result = run(answering(), tmp_path, {"task": "cold starts?"}, producer=ScriptedBackend([GOOD]))

    record = load_run(result.files.journal)
    assert record.ended is not None
    assert record.ended.status == "ok"
    assert [output.node for output in record.outputs] == ["text"]
    assert json.loads(result.files.chrome_trace.read_text())["traceEvents"]
    (line,) = audit(tmp_path)
    assert line["run_id"] == result.run_id
    assert line["task"] == "cold starts?"
    assert line["producer_model"] == "producer"
    assert line["evaluator_model"] is None
    assert line["final"] == "PASS"
    assert line["wiggum_scores"] == [result.loops[0].best.verdict.composite]


def test_prompts_and_replies_can_be_found_in_the_journal_by_their_hash(tmp_path: Path) -> None:
    result = run(answering(), tmp_path, {"task": "t"}, producer=ScriptedBackend([GOOD]))
    record = load_run(result.files.journal)
    call = next(span for span in record.spans if span.name == "chat")
    assert record.contents[str(call.attributes["reply_sha256"])] == GOOD
    assert SOURCE in record.contents[str(call.attributes["prompt_sha256"])]


def test_the_producer_is_told_what_its_draft_will_be_measured_by(tmp_path: Path) -> None:
    producer = ScriptedBackend([GOOD])
    run(answering(), tmp_path, {"task": "cold starts?"}, producer=producer)
    prompt = producer.requests[0].messages[-1].content
    assert "The whole text has 20 to 90 words." in prompt
    assert prompt.index(SOURCE) < prompt.index("cold starts?")


def test_a_draft_that_fails_is_revised_and_the_best_round_comes_back(tmp_path: Path) -> None:
    producer = ScriptedBackend(["It takes 900 years.", GOOD])
    result = run(answering(), tmp_path, {"task": "t"}, producer=producer)
    (loop,) = result.loops
    assert [one.verdict.passed for one in loop.rounds] == [False, True]
    assert result.result == GOOD
    assert loop.stop_reason == "passed"
    assert "900 is not in the sources" in producer.requests[1].messages[-1].content


def test_an_evaluator_model_judges_what_checks_cannot(tmp_path: Path) -> None:
    reply = json.dumps({"relevance": {"reason": "Nothing is missing.", "score": 9}})
    evaluator = ScriptedBackend([reply])
    result = run(
        answering(), tmp_path, {"task": "t"}, producer=ScriptedBackend([GOOD]), evaluator=evaluator
    )
    verdict = result.loops[0].best.verdict
    assert verdict.vector["relevance"] == 9
    assert verdict.evaluator == "evaluator"
    assert verdict.unjudged == ()
    assert evaluator.requests[0].role == "evaluator"


def test_without_an_evaluator_the_verdict_says_what_was_not_judged(tmp_path: Path) -> None:
    result = run(answering(), tmp_path, {"task": "t"}, producer=ScriptedBackend([GOOD]))
    assert result.loops[0].best.verdict.unjudged == ("relevance",)


def test_replies_come_back_in_the_type_asked_for(tmp_path: Path) -> None:
    pipeline = Pipeline("typed")

    @pipeline.node
    async def model(run: Run) -> Point:
        return await run.chat("producer", "a point", returns=Point)

    @pipeline.node
    async def words(run: Run, model: Point) -> list[str]:
        kind = Annotated[list[Literal["a", "b"]], Field(max_length=2)]
        return list(await run.chat("producer", f"{model.x}", returns=kind))

    backend = ScriptedBackend(['{"x": 3}', '{"answer": ["a", "b"]}'])
    result = run(pipeline, tmp_path, producer=backend)
    assert result.outputs == {"model": Point(x=3), "words": ["a", "b"]}
    assert backend.requests[1].reply_schema is not None


def test_what_is_remembered_can_be_recalled(tmp_path: Path) -> None:
    pipeline = Pipeline("remembering")

    @pipeline.node
    async def kept(run: Run) -> int:
        return len(await run.remember("# Tea\n\nSteep it.\n\n# Bread\n\nLet it rise.\n"))

    @pipeline.node
    async def found(run: Run, kept: int) -> str:
        (hit,) = await run.recall("how long does bread rise", limit=1)
        return f"{kept} {hit.passage.title}"

    result = run(pipeline, tmp_path, producer=ScriptedBackend([]))
    assert result.result == "2 Bread"
    assert "recall" in {span.name for span in load_run(result.files.journal).spans}


def test_a_configured_memory_outlives_the_run(tmp_path: Path) -> None:
    settings = Settings.model_validate(
        {"traces": tmp_path / "traces", "memory": {"path": tmp_path / "memory"}}
    )
    writing, reading = Pipeline("writing"), Pipeline("reading")

    @writing.node
    async def kept(run: Run) -> int:
        return len(await run.remember("Rye needs a long proof."))

    @reading.node
    async def found(run: Run) -> list[str]:
        return [hit.passage.text for hit in await run.recall("rye")]

    run(writing, tmp_path, settings=settings, producer=ScriptedBackend([]))
    result = run(reading, tmp_path, settings=settings, producer=ScriptedBackend([]))
    assert result.result == ["Rye needs a long proof."]


def test_a_failed_run_leaves_its_record_too(tmp_path: Path) -> None:
    refusal = ServerError("HTTP 400: no", endpoint="producer", status=400)
    with pytest.raises(NodeFailed, match="node 'text' failed: producer: HTTP 400"):
        run(answering(), tmp_path, {"task": "t"}, producer=ScriptedBackend([refusal]))
    (line,) = audit(tmp_path)
    assert line["final"] == "ERROR"
    assert "HTTP 400" in str(line["error"])
    record = load_run(tmp_path / "traces" / f"{line['run_id']}.jsonl")
    assert {span.status for span in record.spans} == {"error"}


def test_a_cancelled_run_closes_its_record(tmp_path: Path) -> None:
    pipeline = Pipeline("slow")

    @pipeline.node
    async def wait(run: Run) -> str:
        await asyncio.get_running_loop().create_future()
        return "never"

    async def cancel() -> None:
        started, loop = asyncio.Event(), asyncio.get_running_loop()
        task = asyncio.create_task(
            pipeline.run_async(
                {},
                settings=Settings(traces=tmp_path / "traces"),
                backends={"producer": ScriptedBackend([])},
                # Observers are called from the thread that writes the journal.
                observers=[lambda _record: loop.call_soon_threadsafe(started.set)],
            )
        )
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    (line,) = audit(tmp_path)
    assert line["final"] == "ERROR"


def _no_rubric(run: Run) -> object:
    return run.wiggum("t", rubric="breif", draft="x")


def _empty_document(run: Run) -> object:
    return run.remember("  \n")


def _cut_reply(run: Run) -> object:
    return run.chat("producer", "x", returns=list[str])


@pytest.mark.parametrize(
    ("call", "cause", "said"),
    [
        pytest.param(_no_rubric, RubricInvalid, "did you mean 'brief'", id="rubric"),
        pytest.param(_empty_document, InvalidInput, "nothing to remember", id="document"),
        pytest.param(_cut_reply, ReplyInvalid, "does not match the type", id="reply"),
    ],
)
def test_a_mistake_inside_a_node_is_its_cause(
    tmp_path: Path, call: object, cause: type[Exception], said: str
) -> None:
    pipeline = Pipeline("mistaken")

    @pipeline.node
    async def step(run: Run) -> object:
        return await call(run)  # type: ignore[operator]

    with pytest.raises(NodeFailed, match=said) as caught:
        run(pipeline, tmp_path, producer=ScriptedBackend(["not json"]))
    assert isinstance(caught.value.__cause__, cause)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        pytest.param({"roles": {"producer": "x"}}, ConfigurationInvalid, id="unknown endpoint"),
        pytest.param(
            {
                "endpoints": {"a": Endpoint(tag="a", url="http://h/v1")},
                "roles": {"producer": "a", "evaluator": "a"},
            },
            SameModel,
            id="one model for both",
        ),
        pytest.param(
            {"roles": {"evaluater": "a"}, "endpoints": {"a": Endpoint(tag="a", url="http://h/v1")}},
            ConfigurationInvalid,
            id="misspelt role",
        ),
        pytest.param(
            {"endpoints": {"a": Endpoint(tag="a", url="http://h", api_key_env="NO_SUCH_KEY")}},
            ConfigurationInvalid,
            id="missing key",
        ),
        pytest.param(
            {"endpoints": {"a": Endpoint(tag="a", path=Path("missing.gguf"))}},
            ModelFileInvalid,
            id="missing file",
        ),
    ],
)
def test_wrong_settings_stop_a_run_before_any_node_starts(
    tmp_path: Path, settings: dict[str, object], error: type[Exception]
) -> None:
    started = []
    pipeline = Pipeline("never")

    @pipeline.node
    def step() -> None:
        started.append(True)

    with pytest.raises(error):
        run(pipeline, tmp_path, settings=Settings(traces=tmp_path / "traces", **settings))  # type: ignore[arg-type]
    assert not started


def test_wrong_inputs_leave_no_files(tmp_path: Path) -> None:
    with pytest.raises(PipelineInvalid, match="did you mean 'task'"):
        run(answering(), tmp_path, {"tsk": "t"}, producer=ScriptedBackend([]))
    assert not (tmp_path / "traces").exists()


def test_a_traces_directory_that_cannot_be_written_is_a_mistake_in_the_settings(
    tmp_path: Path,
) -> None:
    (tmp_path / "traces").write_text("a file stands in the way")
    with pytest.raises(ConfigurationInvalid, match=r"set traces in harness\.toml"):
        run(answering(), tmp_path, {"task": "t"}, producer=ScriptedBackend([]))


def test_scripted_requests_carry_the_sampling_that_was_asked_for(tmp_path: Path) -> None:
    pipeline = Pipeline("sampling")

    @pipeline.node
    async def step(run: Run) -> str:
        return await run.chat(
            "producer", "x", temperature=0.7, seed=3, stop=["\n"], max_output_tokens=9
        )

    backend = ScriptedBackend(["y"])
    run(pipeline, tmp_path, producer=backend)
    request: ChatRequest = backend.requests[0]
    assert (request.temperature, request.seed, request.stop) == (0.7, 3, ("\n",))
    assert request.max_output_tokens == 9


def test_an_endpoint_that_no_role_needs_may_be_unusable_until_it_is_called(tmp_path: Path) -> None:
    pipeline = Pipeline("careful")

    @pipeline.node
    async def step(run: Run, role: str) -> str:
        return await run.chat(role, "x")

    settings = Settings(
        traces=tmp_path / "traces",
        endpoints={"spare": Endpoint(tag="spare", path=Path("missing.gguf"))},
        roles={"producer": "writer"},
    )
    backends = {"writer": ScriptedBackend(["y"])}
    assert (
        run(pipeline, tmp_path, {"role": "producer"}, settings=settings, **backends).result == "y"
    )
    with pytest.raises(NodeFailed, match=r"missing\.gguf"):
        run(pipeline, tmp_path, {"role": "spare"}, settings=settings, **backends)


def test_run_says_what_to_write_where_an_event_loop_runs_already() -> None:
    async def notebook() -> None:
        with pytest.raises(InvalidInput, match=r"await pipeline\.run_async"):
            answering().run(task="t")

    asyncio.run(notebook())
