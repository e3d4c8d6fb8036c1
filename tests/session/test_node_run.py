"""What a node may ask of its run: nesting, mapping, signs of life; and what a run needs of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from harness import Limits, NodeFailed, Pipeline, Retry, Run, ScriptedBackend, Settings, Timeout
from harness.errors import ConfigurationInvalid, InvalidInput, PipelineInvalid, StreamCut
from harness.inference import Backend, ChatRequest, Completion, Endpoint
from harness.session import RunResult
from harness.trace import load_run


def run(
    pipeline: Pipeline,
    tmp_path: Path,
    inputs: dict[str, object] | None = None,
    *,
    settings: Settings | None = None,
    **backends: Backend,
) -> RunResult:
    return asyncio.run(
        pipeline.run_async(
            inputs or {},
            settings=settings or Settings(traces=tmp_path),
            backends=backends or {"producer": ScriptedBackend([])},
        )
    )


def inner() -> Pipeline:
    pipeline = Pipeline("inner")

    @pipeline.node(each={"word": "words"})
    async def loud(run: Run, word: str) -> str:
        return await run.chat("producer", word)

    @pipeline.node
    def joined(loud: list[str]) -> str:
        return " ".join(loud)

    return pipeline


def test_a_node_calls_another_pipeline_with_the_same_models_and_record(tmp_path: Path) -> None:
    outer = Pipeline("outer")

    @outer.node
    async def both(run: Run) -> list[str]:
        first = await run.call(inner(), words=["a"])
        second = await run.call(inner(), words=["b", "c"])
        assert first.outputs == {"loud": ["A"], "joined": "A"}
        return [str(first.result), str(second.result)]

    result = run(outer, tmp_path, producer=ScriptedBackend(lambda r: r.messages[0].content.upper()))
    assert result.result == ["A", "B C"]
    nodes = [one.node for one in load_run(result.files.journal).outputs]
    assert "both/inner/joined" in nodes
    assert "both/inner#2/joined" in nodes
    assert [model.calls for model in result.models] == [3]


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        pytest.param({"wrds": ["a"]}, "did you mean 'words'", id="unknown"),
        pytest.param({}, "needs 'words'", id="missing"),
    ],
)
def test_a_nested_pipelines_inputs_are_checked(
    tmp_path: Path, inputs: dict[str, object], said: str
) -> None:
    outer = Pipeline("outer")

    @outer.node
    async def call(run: Run) -> object:
        return (await run.call(inner(), **inputs)).result

    with pytest.raises(NodeFailed, match=said) as caught:
        run(outer, tmp_path)
    assert isinstance(caught.value.__cause__, PipelineInvalid)


def test_a_node_maps_over_what_it_finds_out(tmp_path: Path) -> None:
    pipeline = Pipeline("dynamic")

    @pipeline.node
    async def found(run: Run) -> list[str]:
        async def asked(run: Run, item: str) -> str:
            return await run.chat("producer", item)

        return await run.map(asked, ["a", "b", "c"], parallel=2)

    result = run(
        pipeline, tmp_path, producer=ScriptedBackend(lambda r: r.messages[0].content.upper())
    )
    assert result.result == ["A", "B", "C"]
    labels = {str(one.attributes["label"]) for one in load_run(result.files.journal).spans
              if one.name == "node"}  # fmt: skip
    assert labels == {"found", "found/asked[0]", "found/asked[1]", "found/asked[2]"}


@pytest.mark.parametrize("place", ["a node", "nested"])
def test_a_failure_says_how_often_the_node_was_called(tmp_path: Path, place: str) -> None:
    fails, outer = Pipeline("fails"), Pipeline("outer")

    @fails.node(retry=Retry(3, first_delay_s=0))
    def bad() -> int:
        raise ConnectionError("gone")

    @outer.node
    async def calls(run: Run) -> object:
        return (await run.call(fails)).result

    with pytest.raises(
        NodeFailed, match=r"bad' failed: ConnectionError: gone .*\(called 3 times\)$"
    ):
        run(fails if place == "a node" else outer, tmp_path)


def test_several_failures_are_one_error_that_says_how_many(tmp_path: Path) -> None:
    pipeline = Pipeline("bad")

    @pipeline.node(each={"item": "items"})
    def bad(item: int) -> int:
        return item // 0

    @pipeline.node
    def beside() -> str:
        return "there"

    with pytest.raises(
        NodeFailed, match=r"node 'bad\[0\]' failed: .*\(and 2 more nodes failed\)"
    ) as caught:
        run(pipeline, tmp_path, {"items": [1, 2, 3]})
    result = caught.value.result
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert [one.node for one in result.failures] == ["bad[0]", "bad[1]", "bad[2]"]
    assert (result.status, dict(result.outputs)) == ("failed", {"beside": "there"})
    (line,) = [json.loads(one) for one in (tmp_path / "runs.jsonl").read_text().splitlines()]
    assert line["final"] == "ERROR"
    assert "and 2 more nodes failed" in line["error"]


def test_a_last_node_that_gave_nothing_leaves_no_other_ones_output_as_the_result(
    tmp_path: Path,
) -> None:
    pipeline = Pipeline("skipped", limits=Limits(max_calls=50))

    @pipeline.node
    def first() -> str:
        return "first"

    @pipeline.node(when=lambda first: first == "another")
    def last(first: str) -> str:
        return f"{first}, last"

    result = run(pipeline, tmp_path)
    assert (result.status, result.result) == ("finished", None)
    assert [(one.node, one.reason) for one in result.skips] == [("last", "its when= was not true")]


# --- signs of life ----------------------------------------------------------------------------


class Trickle(ScriptedBackend):
    """Lets a piece come now and then, or none."""

    def __init__(self, pieces: int, *, every_s: float) -> None:
        super().__init__(["text"])
        self._pieces = pieces
        self._every_s = every_s

    async def chat(self, request: ChatRequest) -> Completion:
        for _ in range(self._pieces):
            await asyncio.sleep(self._every_s)
            if request.on_piece:
                request.on_piece()
        return await super().chat(request)


def waiting_for(model_calls: str, *, idle_s: float = 0.4) -> Pipeline:
    pipeline = Pipeline("idle", timeout=Timeout(idle_s=idle_s))

    @pipeline.node
    async def text(run: Run) -> str:
        if model_calls == "loop":
            source = "It takes 8 s or so to read the weights."
            return (await run.wiggum("t", sources=[source], rubric="answer", max_rounds=1)).text
        return await run.chat("producer", "x")

    return pipeline


@pytest.mark.parametrize("model_calls", ["chat", "loop"])
def test_every_piece_of_a_reply_is_a_sign_of_life(tmp_path: Path, model_calls: str) -> None:
    result = run(waiting_for(model_calls), tmp_path, producer=Trickle(8, every_s=0.1))
    assert result.result == "text"


def test_a_reply_of_which_nothing_comes_is_none(tmp_path: Path) -> None:
    with pytest.raises(NodeFailed, match=r"showed no sign of life for idle_s = 0\.4 s"):
        run(waiting_for("chat"), tmp_path, producer=Trickle(1, every_s=600))


def test_who_only_watches_does_not_keep_a_call_from_being_tried_again(tmp_path: Path) -> None:
    class Cut(ScriptedBackend):
        async def chat(self, request: ChatRequest) -> Completion:
            if request.on_piece:
                request.on_piece()
            if not self.requests:
                self.requests.append(request)
                raise StreamCut("cut", endpoint="producer")
            return await super().chat(request)

    result = run(waiting_for("chat", idle_s=60), tmp_path, producer=Cut(["whole"]))
    assert result.result == "whole"


def test_a_plain_function_beats_from_its_thread(tmp_path: Path) -> None:
    pipeline = Pipeline("thread")

    @pipeline.node(timeout=Timeout(idle_s=60))
    def step(run: Run) -> str:
        run.beat()
        return "beaten"

    assert run(pipeline, tmp_path).result == "beaten"


# --- what a run needs of its nodes ------------------------------------------------------------


def needing(*roles: str) -> Pipeline:
    pipeline = Pipeline("needing")

    @pipeline.node(models=roles)
    async def text(run: Run) -> str:
        return await run.chat(roles[0], "x")

    return pipeline


@pytest.mark.parametrize(
    ("settings", "roles", "said"),
    [
        pytest.param({}, ("evaluator",), r"node 'text' .* needs 'evaluator': no model", id="judge"),
        pytest.param(
            {"endpoints": {"a": Endpoint(tag="a", path=Path("missing.gguf"))}},
            ("a",),
            r"missing\.gguf",
            id="unusable",
        ),
    ],
)
def test_a_role_that_a_node_needs_has_a_usable_model_before_anything_starts(
    tmp_path: Path, settings: dict[str, object], roles: tuple[str, ...], said: str
) -> None:
    chosen = Settings(traces=tmp_path / "traces", **settings)  # type: ignore[arg-type]
    backend = ScriptedBackend(["x"])
    with pytest.raises(Exception, match=said) as caught:
        run(needing(*roles), tmp_path, settings=chosen, writer=backend)
    assert not isinstance(caught.value, NodeFailed)
    assert backend.requests == []


def test_a_role_without_a_model_leaves_no_files(tmp_path: Path) -> None:
    settings = Settings(traces=tmp_path / "traces")
    with pytest.raises(ConfigurationInvalid, match="no model plays the role 'evaluator'"):
        run(needing("evaluator"), tmp_path, settings=settings, writer=ScriptedBackend([]))
    assert not (tmp_path / "traces").exists()


def test_no_calls_at_once_are_refused_when_the_pipeline_is_made() -> None:
    with pytest.raises(InvalidInput, match="parallel_calls=0 would let no call begin"):
        Pipeline("none", parallel_calls=0)


def test_only_so_many_calls_are_under_way_at_once(tmp_path: Path) -> None:
    pipeline, under_way, most = Pipeline("many", parallel_calls=3), [0], [0]

    @pipeline.node(each={"item": "items"})
    async def step(item: int) -> int:
        under_way[0] += 1
        most[0] = max(most[0], under_way[0])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        under_way[0] -= 1
        return item

    assert run(pipeline, tmp_path, {"items": list(range(20))}).result == list(range(20))
    assert most == [3]


def test_a_pipeline_with_a_mistake_does_not_begin(tmp_path: Path) -> None:
    pipeline = Pipeline("mistaken")

    @pipeline.node
    def number() -> int:
        return 3

    @pipeline.node
    def text(number: str) -> str:
        return number

    with pytest.raises(PipelineInvalid, match="make the annotations agree"):
        run(pipeline, tmp_path, settings=Settings(traces=tmp_path / "traces"))
    assert not (tmp_path / "traces").exists()
