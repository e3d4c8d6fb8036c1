"""What models answered to nodes that had not ended, kept for when their run is resumed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from harness import Pipeline, Run, ScriptedBackend, Settings
from harness.errors import InferenceError, NodeFailed, ServerError
from harness.graph import Retry
from harness.inference import ChatRequest, Completion
from harness.session import RunResult
from harness.session.settings import TraceSettings

SECRET = 'k3y "of" many parts'


class Sampled(ScriptedBackend):
    """Says something new whenever it is asked; hangs at some prompts, as long as it is told to."""

    def __init__(self) -> None:
        super().__init__(self._say)
        self.hangs_at = ""
        self.hanging, self.hang_at_once = 0, 1
        self.refuses_at: set[int] = set()
        self._said = 0
        self.reached = asyncio.Event()

    @property
    def prompts(self) -> list[str]:
        return [request.messages[-1].content for request in self.requests]

    async def chat(self, request: ChatRequest) -> Completion:
        if self.hangs_at and self.hangs_at in request.messages[-1].content:
            self.hanging += 1
            if self.hanging == self.hang_at_once:
                self.reached.set()
            await asyncio.Event().wait()
        return await super().chat(request)

    def _say(self, request: ChatRequest) -> str | InferenceError:
        self._said += 1
        if self._said in self.refuses_at:
            return ServerError("no", endpoint="producer")
        return f"{request.messages[-1].content} {self._said}"


def settings(traces: Path, **trace: object) -> Settings:
    return Settings(traces=traces, trace=TraceSettings.model_validate(trace))


def finish(
    pipeline: Pipeline,
    model: ScriptedBackend,
    traces: Path,
    *,
    resume: str | None = "latest",
    answers: Mapping[str, object] | None = None,
    **trace: object,
) -> RunResult:
    return asyncio.run(
        pipeline.run_async(
            {},
            resume=resume,
            answers=answers,
            settings=settings(traces, **trace),
            backends={"producer": model},
        )
    )


def cut_off(
    pipeline: Pipeline, model: Sampled, traces: Path, *, at: str, resume: bool = False, **trace: str
) -> None:
    """A run that is ended from outside when the model is asked for something."""

    async def main() -> None:
        model.hangs_at, model.hanging, model.reached = at, 0, asyncio.Event()
        running = asyncio.create_task(
            pipeline.run_async(
                {},
                resume="latest" if resume else None,
                settings=settings(traces, **trace),
                backends={"producer": model},
            )
        )
        await model.reached.wait()
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()

    asyncio.run(main())
    model.hangs_at = ""


def asking(prompts: Callable[[], list[str]]) -> Pipeline:
    """A node that asks, one after the other, for samples."""
    pipeline = Pipeline("asking")

    @pipeline.node
    async def said(run: Run) -> list[str]:
        return [await run.chat("producer", prompt, temperature=1.0) for prompt in prompts()]

    return pipeline


def kept_files(traces: Path) -> list[Path]:
    return sorted(traces.glob("*.replies.sqlite*"))


def test_what_was_sampled_is_not_asked_again_over_any_number_of_parts(tmp_path: Path) -> None:
    model, pipeline = Sampled(), asking(lambda: ["one", "two", "three"])
    cut_off(pipeline, model, tmp_path, at="two")
    cut_off(pipeline, model, tmp_path, at="three", resume=True)
    result = finish(pipeline, model, tmp_path)
    assert result.result == ["one 1", "two 2", "three 3"]
    assert model.prompts == ["one", "two", "three"]
    assert (result.parts, result.spent.calls) == (3, 5)  # two of them were cut off


def test_two_calls_that_are_the_same_each_keep_their_own_reply(tmp_path: Path) -> None:
    model, pipeline = Sampled(), Pipeline("twice")

    @pipeline.node
    async def said(run: Run) -> list[str]:
        both = await asyncio.gather(
            *(run.chat("producer", "same", temperature=1.0) for _ in range(2))
        )
        return [*both, await run.chat("producer", "last")]

    cut_off(pipeline, model, tmp_path, at="last")
    assert finish(pipeline, model, tmp_path).result == ["same 1", "same 2", "last 3"]
    assert model.prompts == ["same", "same", "last"]


def test_two_calls_of_one_node_each_keep_their_own_reply(tmp_path: Path) -> None:
    model, pipeline = Sampled(), Pipeline("mapped")

    model.hang_at_once = 2

    @pipeline.node
    def items() -> list[int]:
        return [0, 1]

    @pipeline.node(each={"item": "items"})
    async def said(run: Run, item: int) -> str:
        first = await run.chat("producer", "same", temperature=1.0)
        return first + await run.chat("producer", f", item {item}:")

    cut_off(pipeline, model, tmp_path, at="item")
    result = finish(pipeline, model, tmp_path).result
    assert isinstance(result, list)
    assert [one.split(",")[0] for one in result] == ["same 1", "same 2"]
    assert model.prompts.count("same") == 2


class FirstIsLast(Sampled):
    """Answers its first call after the second."""

    async def chat(self, request: ChatRequest) -> Completion:
        self.began = getattr(self, "began", 0) + 1
        if self.began == 1:
            self.second = asyncio.Event()
            await self.second.wait()
        completion = await super().chat(request)
        self.second.set()
        return completion


def test_of_calls_made_together_each_has_the_reply_it_had_whichever_came_first(
    tmp_path: Path,
) -> None:
    model, pipeline = FirstIsLast(), Pipeline("together")

    @pipeline.node
    async def said(run: Run) -> list[str]:
        async def twice(number: int) -> str:
            first = await run.chat("producer", "same", temperature=1.0)
            return await run.chat("producer", f"{number} of {first}:")

        return [*await asyncio.gather(twice(1), twice(2)), await run.chat("producer", "last")]

    cut_off(pipeline, model, tmp_path, at="last")
    asked = len(model.requests)
    finish(pipeline, model, tmp_path)
    assert model.prompts[asked:] == ["last"]


def test_a_call_that_failed_leaves_its_place_to_the_one_that_repeats_it(tmp_path: Path) -> None:
    model, pipeline = Sampled(), Pipeline("stubborn")
    model.refuses_at = {1}

    @pipeline.node
    async def said(run: Run) -> list[str]:
        try:
            first = await run.chat("producer", "one", temperature=1.0)
        except ServerError:
            first = await run.chat("producer", "one", temperature=1.0)
        return [first, await run.chat("producer", "two")]

    cut_off(pipeline, model, tmp_path, at="two")
    asked = len(model.requests)
    assert finish(pipeline, model, tmp_path).result == [f"one {asked}", f"two {asked + 1}"]
    assert model.prompts[asked:] == ["two"]


class EndsItsRun(Sampled):
    """Ends the run from outside at the moment at which it answers."""

    running: asyncio.Task[RunResult]

    async def chat(self, request: ChatRequest) -> Completion:
        completion = await super().chat(request)
        if len(self.requests) == 1:
            self.running.cancel()
        return completion


def test_a_reply_that_came_when_the_run_was_ended_is_not_asked_for_again(tmp_path: Path) -> None:
    model, pipeline = EndsItsRun(), asking(lambda: ["one", "two"])

    async def main() -> None:
        run = pipeline.run_async({}, settings=settings(tmp_path), backends={"producer": model})
        model.running = asyncio.create_task(run)
        await asyncio.wait([model.running])
        assert model.running.cancelled()

    asyncio.run(main())
    assert finish(pipeline, model, tmp_path).result == ["one 1", "two 2"]
    assert model.prompts == ["one", "two"]


def test_a_node_that_asks_a_person_does_not_ask_the_model_again(tmp_path: Path) -> None:
    model, pipeline = Sampled(), Pipeline("approved")

    @pipeline.node
    async def said(run: Run) -> str:
        text = await run.chat("producer", "Write.", temperature=1.0)
        return f"{text}: {await run.ask(f'Ship {text}?', returns=bool)}"

    waiting = finish(pipeline, model, tmp_path, resume=None)
    assert waiting.status == "waiting"
    result = finish(pipeline, model, tmp_path, answers={"said": "yes"})
    assert result.result == "Write. 1: True"
    assert model.prompts == ["Write."]


def test_a_node_that_failed_of_a_reply_asks_for_another(tmp_path: Path) -> None:
    model, pipeline = Sampled(), Pipeline("picky", retry=Retry(1))

    @pipeline.node
    async def said(run: Run) -> str:
        text = await run.chat("producer", "Write.", temperature=1.0)
        if text.endswith("1"):
            raise ValueError("not this one")
        return text

    with pytest.raises(NodeFailed):
        finish(pipeline, model, tmp_path, resume=None)
    assert finish(pipeline, model, tmp_path).result == "Write. 2"


def test_the_file_is_for_its_owner_alone_and_goes_when_the_run_is_finished(tmp_path: Path) -> None:
    model, pipeline = Sampled(), asking(lambda: ["one", "two"])
    cut_off(pipeline, model, tmp_path, at="two")
    (kept,) = kept_files(tmp_path)
    assert kept.stat().st_mode & 0o777 == 0o600
    finish(pipeline, model, tmp_path)
    assert kept_files(tmp_path) == []


@pytest.mark.parametrize(
    "trace",
    [
        pytest.param({"content": "hash"}, id="hashes of texts alone"),
        pytest.param({"content": "none"}, id="no texts"),
        pytest.param({"durability": "exit"}, id="nothing before the exit"),
    ],
)
def test_nothing_is_kept_where_a_run_leaves_nothing_else_to_go_on_from(
    tmp_path: Path, trace: dict[str, str]
) -> None:
    cut_off(asking(lambda: ["one", "two"]), Sampled(), tmp_path, at="two", **trace)
    assert kept_files(tmp_path) == []


@pytest.mark.parametrize(
    ("said", "is_kept"),
    [
        pytest.param(f"It is {SECRET}.", False, id="a variable's value"),
        pytest.param("password=hunter2hunter2", False, id="what looks like one"),
        pytest.param("@cache\ndef key(): ...  # key: value", True, id="code without one"),
    ],
)
def test_a_reply_that_holds_a_secret_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, said: str, is_kept: bool
) -> None:
    monkeypatch.setenv("MY_API_KEY", SECRET)
    model, pipeline = Sampled(), asking(lambda: [said, "two"])
    cut_off(pipeline, model, tmp_path, at="two")
    (kept,) = kept_files(tmp_path)
    assert b"hunter2" not in kept.read_bytes()
    assert b"of many" not in kept.read_bytes()
    finish(pipeline, model, tmp_path)
    assert model.prompts == ([said, "two"] if is_kept else [said, said, "two"])


def test_a_file_that_is_none_is_told_and_the_run_goes_on(tmp_path: Path) -> None:
    model, pipeline = Sampled(), asking(lambda: ["one", "two"])
    cut_off(pipeline, model, tmp_path, at="two")
    (kept,) = kept_files(tmp_path)
    kept.write_text("no database, and longer than the hundred bytes of a header. " * 3)
    result = finish(pipeline, model, tmp_path)
    assert result.result == ["one 2", "two 3"]
    assert any("ask again what it had asked" in one for one in map(str, result.warnings))
