"""Going on with a run: what is done again, what is not, and what is said about it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from harness import Pipeline, Run, ScriptedBackend, Settings, load_run
from harness.errors import InvalidInput, NodeFailed, RunLimitReached, ServerError
from harness.graph import Question, Retry
from harness.inference import Backend, ChatRequest
from harness.session import RunResult, read_earlier_run
from harness.session.resume_answers import match_answers
from harness.session.settings import TraceSettings
from harness.trace import Journal, Record
from harness.wiggum import Limits

GOOD = (
    "A cold start takes 8 to 15 s from disk. Keeping the model loaded between calls removes it, "
    "so the next call begins at once and needs less than 0.2 s."
)
SOURCE = GOOD + " The server must read the weights from disk."


@dataclass
class Runs:
    """Runs of pipelines into one directory."""

    traces: Path
    settings: Settings

    def start(
        self,
        pipeline: Pipeline,
        inputs: Mapping[str, object] | None = None,
        *,
        resume: str | Path | None = None,
        answers: Mapping[str, object] | None = None,
        limits: Limits | None = None,
        **backends: Backend,
    ) -> RunResult:
        return asyncio.run(
            pipeline.run_async(
                inputs or {},
                resume=resume,
                answers=answers,
                limits=limits,
                settings=self.settings,
                backends=backends or {"producer": ScriptedBackend([])},
            )
        )

    def fail(self, pipeline: Pipeline, inputs: Mapping[str, object] | None = None) -> RunResult:
        """The result of a run that fails."""
        with pytest.raises(NodeFailed) as caught:
            self.start(pipeline, inputs)
        assert isinstance(caught.value.result, RunResult)
        return caught.value.result

    @property
    def journal(self) -> Path:
        """That of the only run."""
        (path,) = (one for one in self.traces.glob("2*.jsonl") if "." not in one.stem)
        return path

    def audit(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in (self.traces / "runs.jsonl").read_text().splitlines()]


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(traces=tmp_path / "traces", settings=Settings(traces=tmp_path / "traces"))


class Calls:
    """What nodes did, and what they are to do; no part of their code, as a list would be."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def note(self, call: str) -> int:
        """Takes it down; says how many there are."""
        self.made.append(call)
        return len(self.made)


def chain(calls: Calls, *, ending: str = "!", fails: bool = False) -> Pipeline:
    """Three steps, the last of which can fail."""
    pipeline = Pipeline("chain")

    @pipeline.node
    def words(text: str) -> list[str]:
        calls.note("words")
        return text.split()

    @pipeline.node(each={"word": "words"})
    def loud(word: str) -> str:
        calls.note(f"loud {word}")
        return word.upper()

    @pipeline.node
    def joined(loud: list[str]) -> str:
        calls.note("joined")
        if fails:
            raise ValueError("not today")
        return " ".join(loud) + ending

    return pipeline


def test_what_was_done_is_not_done_again(runs: Runs) -> None:
    calls = Calls()
    failed = runs.fail(chain(calls, fails=True), {"text": "a b"})
    assert failed.status == "failed"
    assert failed.outputs == {"words": ["a", "b"], "loud": ["A", "B"]}
    assert calls.made == ["words", "loud a", "loud b", "joined"]

    calls.made.clear()
    # The mended code is in the one function alone.
    result = runs.start(chain(calls), resume=failed.run_id)
    assert calls.made == ["joined"]
    assert (result.status, result.result) == ("finished", "A B!")
    assert set(result.reused) == {"words", "loud[0]", "loud[1]"}
    assert (result.run_id, result.parts) == (failed.run_id, 2)
    assert Journal(runs.journal).ended is not None
    assert Journal(runs.journal).ended.status == "ok"


def test_inputs_that_are_not_given_anew_are_as_they_were(runs: Runs) -> None:
    calls = Calls()
    runs.fail(chain(calls, fails=True), {"text": "a b"})
    calls.made.clear()
    result = runs.start(chain(calls), {"text": "b c"}, resume="latest")
    assert result.result == "B C!"
    assert calls.made == ["words", "loud b", "loud c", "joined"]
    assert [(one.node, one.reason) for one in result.reruns] == [
        ("words", "its input 'text' changed"),
        ("loud[0]", "its input 'word' changed"),
        ("loud[1]", "its input 'word' changed"),
    ]
    calls.made.clear()
    assert runs.start(chain(calls), resume="latest").result == "B C!"
    assert calls.made == []


def test_changed_code_is_run_again_with_what_it_reaches_and_nothing_else(runs: Runs) -> None:
    calls = Calls()
    first = runs.start(chain(calls), {"text": "a b"})
    calls.made.clear()
    result = runs.start(chain(calls, ending="?"), resume=first.run_id)
    assert result.result == "A B?"
    assert calls.made == ["joined"]
    assert [(one.node, one.reason) for one in result.reruns] == [("joined", "its code changed")]


def test_a_finished_run_is_not_begun_again_and_gives_its_result(runs: Runs) -> None:
    calls = Calls()
    first = runs.start(chain(calls), {"text": "a b"})
    files = {path: path.read_bytes() for path in runs.traces.iterdir()}
    again = runs.start(chain(calls), resume=first.run_id)
    assert calls.made.count("words") == 1
    assert (again.result, again.outputs, again.parts) == ("A B!", first.outputs, 1)
    assert set(again.reused) == {"words", "loud[0]", "loud[1]", "joined"}
    assert again.files == first.files
    assert {path: path.read_bytes() for path in runs.traces.iterdir()} == files


def test_a_run_can_be_resumed_again_and_again(runs: Runs) -> None:
    calls = Calls()
    pipeline, replies = Pipeline("flaky"), iter(["", "", "", "", "", "done"])

    @pipeline.node
    async def paid(run: Run) -> str:
        return await run.chat("producer", "x")

    @pipeline.node
    def flaky(paid: str) -> str:
        calls.note(paid)
        return next(replies) or str(1 / 0)

    backend = ScriptedBackend(["worth it"])
    with pytest.raises(NodeFailed):
        runs.start(pipeline, producer=backend)
    for part in range(1, 5):
        with pytest.raises(NodeFailed) as caught:
            runs.start(pipeline, resume="latest", producer=backend)
        assert caught.value.result.parts == part + 1
    result = runs.start(pipeline, resume="latest", producer=backend)
    assert (result.result, result.parts, len(calls.made)) == ("done", 6, 6)
    assert len(backend.requests) == 1
    assert (result.spent.calls, result.spent.output_tokens) == (1, 2)
    assert [line["final"] for line in runs.audit()] == ["ERROR"] * 5 + ["PASS"]


def test_python_runs_resume_too_and_an_input_of_that_name_stays_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    calls = Calls()
    first = chain(calls).run(text="a")
    assert chain(calls).run(resume=first.run_id).result == "A!"
    assert calls.made.count("words") == 1

    pipeline = Pipeline("cv")

    @pipeline.node
    def read(resume: str) -> str:
        return f"read {resume}"

    assert pipeline.run(resume="a life").result == "read a life"
    with pytest.raises(InvalidInput, match="there is no run 'x'"):
        chain(calls).run(resume="x")


# --- what cannot be resumed -------------------------------------------------------------------


@pytest.mark.parametrize("content", ["hash", "none"])
def test_a_run_without_texts_cannot_be_resumed_and_says_what_would(
    tmp_path: Path, content: Literal["hash", "none"]
) -> None:
    settings = Settings(traces=tmp_path, trace=TraceSettings(content=content))
    runs = Runs(traces=tmp_path, settings=settings)
    runs.fail(chain(Calls(), fails=True), {"text": "a"})
    with pytest.raises(InvalidInput, match=r'need content = "full" under \[trace\]'):
        runs.start(chain(Calls()), resume="latest")


def test_another_pipelines_run_is_refused(runs: Runs) -> None:
    runs.fail(chain(Calls(), fails=True), {"text": "a"})
    other = chain(Calls())
    other.name = "other"
    with pytest.raises(InvalidInput, match="a run of the pipeline 'chain', and not of 'other'"):
        runs.start(other, resume="latest")


def test_an_input_that_held_a_secret_has_to_be_given_again(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "hunter2-hunter2")
    runs.settings = runs.settings.model_copy(
        update={"trace": TraceSettings(secrets=("MY_API_KEY",))}
    )
    calls = Calls()
    runs.fail(chain(calls, fails=True), {"text": "say hunter2-hunter2"})
    assert b"hunter2-hunter2" not in runs.journal.read_bytes()
    with pytest.raises(InvalidInput, match=r"a secret was left out of it\); give it again: --set"):
        runs.start(chain(calls), resume="latest")
    calls.made.clear()
    result = runs.start(chain(calls), {"text": "say hunter2-hunter2"}, resume="latest")
    assert result.result == "SAY HUNTER2-HUNTER2!"
    # What the journal does not hold whole is made again; in capitals it is no secret.
    assert calls.made == ["words", "joined"]


def test_a_run_that_is_still_going_cannot_be_resumed(runs: Runs) -> None:
    pipeline = Pipeline("itself")

    @pipeline.node
    async def again(run: Run) -> str:
        await pipeline.run_async({}, resume=run.id, settings=runs.settings)
        return "never"

    with pytest.raises(NodeFailed, match="the run is still going"):
        runs.start(pipeline)


def test_a_run_that_was_killed_before_it_began_says_so(runs: Runs) -> None:
    first = runs.start(chain(Calls()), {"text": "a"})
    line = runs.journal.read_bytes().splitlines(keepends=True)[0]
    runs.journal.write_bytes(line)
    with pytest.raises(InvalidInput, match="run the pipeline anew"):
        runs.start(chain(Calls()), resume=first.run_id)


# --- persons ----------------------------------------------------------------------------------


def asking(calls: Calls) -> Pipeline:
    pipeline = Pipeline("asking")

    @pipeline.node
    async def ship(run: Run) -> str:
        calls.note("asked")
        return "shipped" if await run.ask("Ship this?", returns=bool) else "kept"

    @pipeline.node
    def beside() -> str:
        calls.note("beside")
        return "done"

    @pipeline.node
    def told(ship: str) -> str:
        return f"{ship}."

    return pipeline


def test_a_question_lets_everything_else_go_on_and_the_run_waits(runs: Runs) -> None:
    calls = Calls()
    waiting = runs.start(asking(calls))
    assert (waiting.status, waiting.result) == ("waiting", None)
    assert waiting.outputs == {"beside": "done"}
    (question,) = waiting.questions
    assert (question.key, question.text, question.form) == ("ship/ask", "Ship this?", "yes or no")
    assert not waiting.passed
    ended = load_run(runs.journal).ended
    assert ended is not None
    assert ended.status == "waiting"
    assert [line["final"] for line in runs.audit()] == ["WAITING"]


@pytest.mark.parametrize(
    ("answers", "outcome"),
    [
        pytest.param({"ship/ask": "yes"}, "shipped.", id="by key, as typed"),
        pytest.param({"ship": "no"}, "kept.", id="by node"),
        pytest.param({"ship": True}, "shipped.", id="as a value"),
    ],
)
def test_an_answer_lets_the_run_go_on(
    runs: Runs, answers: Mapping[str, object], outcome: str
) -> None:
    calls = Calls()
    runs.start(asking(calls))
    result = runs.start(asking(calls), resume="latest", answers=answers)
    assert (result.status, result.result) == ("finished", outcome)
    assert calls.made.count("beside") == 1
    assert read_earlier_run(runs.journal).questions == ()


def test_of_a_long_question_a_refusal_says_the_first_line() -> None:
    asked = Question(key="ship/ask", node="ship", text="Ship this?\n\nA draft", form="yes or no")
    with pytest.raises(InvalidInput, match=r"'ship/ask' \(Ship this\?\): 'perhaps' is not"):
        match_answers({"ship": "perhaps"}, [asked])


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        pytest.param({"ship": "perhaps"}, "'perhaps' is not yes or no", id="of another kind"),
        pytest.param({"shop/ask": "yes"}, "did you mean 'ship/ask'", id="misspelt"),
    ],
)
def test_an_answer_that_is_none_is_refused_before_anything_runs(
    runs: Runs, answers: Mapping[str, object], said: str
) -> None:
    calls = Calls()
    runs.start(asking(calls))
    calls.made.clear()
    with pytest.raises(InvalidInput, match=said):
        runs.start(asking(calls), resume="latest", answers=answers)
    assert calls.made == []


def test_a_run_that_is_resumed_without_an_answer_waits_on(runs: Runs) -> None:
    runs.start(asking(Calls()))
    again = runs.start(asking(Calls()), resume="latest")
    assert [one.key for one in again.questions] == ["ship/ask"]
    assert (
        runs.start(asking(Calls()), resume="latest", answers={"ship": "yes"}).result == "shipped."
    )


def test_an_answer_whose_form_only_the_run_can_tell_is_asked_for_again(runs: Runs) -> None:
    pipeline = Pipeline("counting")

    @pipeline.node
    async def counts(run: Run) -> int:
        return sum(await run.ask("How many of each?", returns=dict[str, int]).values())

    @pipeline.node
    async def total(run: Run) -> int:
        answer: dict[str, int] = await run.ask("How many of each?", returns=dict[str, int])
        return sum(answer.values())

    del pipeline.nodes["counts"]
    runs.start(pipeline)
    again = runs.start(pipeline, resume="latest", answers={"total": '{"a": "many"}'})
    assert again.status == "waiting"
    assert "is not JSON of" in again.questions[0].problem
    result = runs.start(pipeline, resume="latest", answers={"total": '{"a": 2, "b": 3}'})
    assert result.result == 5


def test_an_answer_is_kept_although_the_part_that_it_was_given_to_failed(runs: Runs) -> None:
    pipeline, errors = Pipeline("late"), iter([True, False])

    @pipeline.node
    async def ship(run: Run) -> str:
        answer = await run.ask("Which?", returns=str)
        if next(errors):
            raise ValueError("after the answer")
        return answer

    runs.start(pipeline)
    with pytest.raises(NodeFailed, match="after the answer"):
        runs.start(pipeline, resume="latest", answers={"ship": "this one"})
    assert runs.start(pipeline, resume="latest").result == "this one"


def test_an_asker_is_asked_at_once_and_until_the_answer_can_be_one(runs: Runs) -> None:
    asked: list[Question] = []

    async def asker(question: Question) -> str:
        asked.append(question)
        return "maybe" if len(asked) == 1 else "y"

    result = asyncio.run(
        asking(Calls()).run_async(
            {}, asker=asker, settings=runs.settings, backends={"producer": ScriptedBackend([])}
        )
    )
    assert result.result == "shipped."
    assert [one.problem for one in asked] == ["", "'maybe' is not yes or no"]


def test_answers_need_a_run_that_asked(runs: Runs) -> None:
    with pytest.raises(InvalidInput, match="say which one to resume"):
        runs.start(asking(Calls()), answers={"ship": "yes"})


# --- limits -----------------------------------------------------------------------------------


def test_at_a_limit_the_rest_is_given_and_a_resume_goes_on_within_a_higher_one(
    runs: Runs,
) -> None:
    pipeline = Pipeline("pricey", limits=Limits(max_calls=2))

    @pipeline.node(each={"topic": "topics"})
    async def texts(run: Run, topic: str) -> str:
        return await run.chat("producer", topic)

    @pipeline.node
    def count(topics: list[str]) -> int:
        return len(topics)

    @pipeline.node
    def all_texts(texts: list[str]) -> str:
        return " ".join(texts)

    backend = ScriptedBackend(lambda request: request.messages[0].content)
    topics = {"topics": ["a", "b", "c"]}
    stopped = runs.start(pipeline, topics, producer=backend)
    assert stopped.status == "stopped"
    assert stopped.outputs == {"count": 3}
    assert stopped.stopped_by is not None
    assert "max_calls = 2" in stopped.stopped_by
    assert {one.node for one in stopped.skips} == {"texts[2]", "all_texts"}
    assert [line["final"] for line in runs.audit()] == ["STOPPED"]
    ended = load_run(runs.journal).ended
    assert ended is not None
    assert (ended.status, (ended.error or "").split(":")[0]) == ("stopped", "RunLimitReached")

    still = runs.start(pipeline, resume="latest", producer=backend)
    assert (still.status, len(backend.requests)) == ("stopped", 2)
    result = runs.start(pipeline, resume="latest", limits=Limits(max_calls=3), producer=backend)
    assert (result.status, result.result) == ("finished", "a b c")
    assert (result.spent.calls, len(backend.requests)) == (3, 3)


def test_limits_that_a_run_was_given_hold_for_its_further_parts(runs: Runs) -> None:
    pipeline = Pipeline("pricey")

    @pipeline.node
    async def one(run: Run) -> str:
        return await run.chat("producer", "1")

    @pipeline.node
    async def two(run: Run, one: str) -> str:
        return await run.chat("producer", "2")

    backend = ScriptedBackend(["1", "2"])
    runs.start(pipeline, limits=Limits(max_calls=1), producer=backend)
    assert runs.start(pipeline, resume="latest", producer=backend).status == "stopped"
    more = Limits(max_calls=2)
    assert runs.start(pipeline, resume="latest", limits=more, producer=backend).result == "2"


def test_when_the_time_is_over_a_loop_still_gives_the_best_that_it_has(runs: Runs) -> None:
    pipeline, replies = Pipeline("slow", limits=Limits(max_seconds=0.5)), iter(["It takes 900 y."])

    class Slow(ScriptedBackend):
        async def chat(self, request: ChatRequest) -> object:  # type: ignore[override]
            if len(self.requests) == 1:
                await asyncio.sleep(60)
            return await super().chat(request)

    @pipeline.node
    async def text(run: Run) -> str:
        return (await run.wiggum("t", sources=[SOURCE], rubric="answer")).text

    result = runs.start(pipeline, producer=Slow(replies))
    assert result.result == "It takes 900 y."
    assert result.loops[0].stop_reason == "budget"


def test_what_goes_on_when_the_time_is_over_is_stopped(runs: Runs) -> None:
    pipeline = Pipeline("endless", limits=Limits(max_seconds=0.1))

    @pipeline.node
    async def endless() -> str:
        await asyncio.sleep(60)
        return "never"

    result = runs.start(pipeline)
    assert (result.status, result.result) == ("stopped", None)
    assert [one.node for one in result.skips] == ["endless"]


# --- loops ------------------------------------------------------------------------------------


def looping(calls: Calls) -> Pipeline:
    """A loop in a node that fails behind it, until it may finish."""
    pipeline = Pipeline("looping")

    @pipeline.node
    async def text(run: Run, task: str) -> str:
        result = await run.wiggum(task, sources=[SOURCE], rubric="answer", max_rounds=3)
        if not calls.made:
            raise ValueError("behind the loop")
        return result.text

    @pipeline.node
    def told(text: str) -> str:
        if len(calls.made) < 2:
            raise ValueError("behind the node")
        return text

    return pipeline


def test_a_loop_goes_on_behind_the_rounds_that_it_had(runs: Runs) -> None:
    refusal = ServerError("HTTP 400: no", endpoint="producer", status=400)
    pipeline = Pipeline("cut off")

    @pipeline.node
    async def text(run: Run, task: str) -> str:
        result = await run.wiggum(task, sources=[SOURCE], rubric="answer", max_rounds=3)
        if result.stop_reason == "producer_failed":
            raise ValueError(result.stop_detail)
        return result.text

    with pytest.raises(NodeFailed, match="HTTP 400"):
        runs.start(
            pipeline, {"task": "t"}, producer=ScriptedBackend(["It takes 900 years.", refusal])
        )
    second = ScriptedBackend([GOOD])
    result = runs.start(pipeline, resume="latest", producer=second)
    assert result.result == GOOD
    assert len(second.requests) == 1  # the revision: the draft was written before
    assert [one.draft for one in result.loops[0].rounds] == ["It takes 900 years.", GOOD]
    assert result.loops[0].spent.calls == 2


def test_a_loop_that_had_ended_asks_nobody_again(runs: Runs) -> None:
    calls = Calls()
    with pytest.raises(NodeFailed, match="behind the loop"):
        runs.start(looping(calls), {"task": "t"}, producer=ScriptedBackend([GOOD]))
    calls.made += ["loop", "node"]
    nobody = ScriptedBackend([])
    assert runs.start(looping(calls), resume="latest", producer=nobody).result == GOOD
    assert nobody.requests == []


def test_of_several_parts_the_one_that_came_furthest_counts(runs: Runs) -> None:
    calls = Calls()
    replies = ["It takes 900 years.", GOOD]
    with pytest.raises(NodeFailed):
        runs.start(looping(calls), {"task": "t"}, producer=ScriptedBackend(replies))
    with pytest.raises(NodeFailed):
        runs.start(looping(calls), resume="latest")
    # As if the second part had been killed while it wrote the rounds down again.
    part = runs.journal.with_suffix(".1.jsonl")
    lines = part.read_bytes().splitlines(keepends=True)
    first = next(n for n, line in enumerate(lines) if b'"name":"round"' in line)
    part.write_bytes(b"".join(lines[: first + 1]))
    calls.made += ["loop", "node"]
    result = runs.start(looping(calls), resume="latest")
    assert [len(loop.rounds) for loop in result.loops] == [2]
    assert result.result == GOOD


def test_a_loop_about_something_else_begins_anew(runs: Runs) -> None:
    calls = Calls()
    with pytest.raises(NodeFailed):
        runs.start(looping(calls), {"task": "t"}, producer=ScriptedBackend([GOOD]))
    calls.made += ["loop", "node"]
    backend = ScriptedBackend([GOOD])
    runs.start(looping(calls), {"task": "another"}, resume="latest", producer=backend)
    assert len(backend.requests) == 1


def test_a_loop_whose_draft_held_a_secret_begins_anew_with_a_warning(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "removes it, so the")
    runs.settings = runs.settings.model_copy(
        update={"trace": TraceSettings(secrets=("MY_API_KEY",))}
    )
    calls = Calls()
    with pytest.raises(NodeFailed):
        runs.start(looping(calls), {"task": "t"}, producer=ScriptedBackend([GOOD]))
    calls.made += ["loop", "node"]
    backend = ScriptedBackend([GOOD])
    result = runs.start(looping(calls), resume="latest", producer=backend)
    assert result.result == GOOD
    assert any("a loop of node 'text' begins anew" in one for one in map(str, result.warnings))


def test_whether_a_resumed_run_passed_counts_the_loops_that_it_did_not_repeat(runs: Runs) -> None:
    calls = Calls()
    calls.note("loop")
    bad = ["It takes 900 years.", "It takes 901 years."]  # which scores the same: a cycle
    with pytest.raises(NodeFailed, match="behind the node"):
        runs.start(looping(calls), {"task": "t"}, producer=ScriptedBackend(bad))
    calls.note("node")
    result = runs.start(looping(calls), resume="latest")
    assert (result.status, result.loops, len(result.earlier_loops)) == ("finished", (), 1)
    assert not result.earlier_loops[0].passed
    assert not result.passed
    line = runs.audit()[-1]
    assert (line["final"], line["wiggum_rounds"]) == ("FAIL", 2)
    again = runs.start(looping(calls), resume="latest")
    assert not again.passed


# --- nested, mapped, retried ------------------------------------------------------------------


def test_what_a_nested_pipeline_had_done_is_not_done_again(runs: Runs) -> None:
    calls = Calls()
    inner = Pipeline("inner")

    @inner.node(each={"word": "words"})
    def long(word: str) -> str:
        calls.note(word)
        return word * 2

    @inner.node
    def end(long: list[str]) -> str:
        return "".join(long)

    def length(word: str) -> int:
        return len(word)

    outer, errors = Pipeline("outer"), iter([True, False])

    @outer.node
    async def nested(run: Run) -> str:
        called = await run.call(inner, words=["a", "b"])
        lengths = await run.map(length, ["aa", "bb"], name="lengths")
        if next(errors):
            raise ValueError("behind it")
        return f"{called.result} {lengths}"

    runs.fail(outer)
    result = runs.start(outer, resume="latest")
    assert result.result == "aabb [2, 2]"
    assert calls.made == ["a", "b"]
    assert set(result.reused) == {
        "nested/inner/long[0]",
        "nested/inner/long[1]",
        "nested/inner/end",
        "nested/lengths[0]",
        "nested/lengths[1]",
    }


def test_what_a_second_attempt_had_done_is_found_by_the_first_of_a_resumed_run(
    runs: Runs,
) -> None:
    calls, tries = Calls(), Calls()
    pipeline = Pipeline("tries")

    def paid(item: str) -> str:
        if calls.note(item) == 2:
            raise ValueError("the first attempt's second item")
        return item

    @pipeline.node(retry=Retry(2, first_delay_s=0))
    async def many(run: Run) -> list[str]:
        done = await run.map(paid, ["a", "b"], parallel=1)
        if tries.note("behind all items") == 1:
            raise ValueError("the second attempt")
        return done

    with pytest.raises(NodeFailed, match="the second attempt"):
        runs.start(pipeline)
    assert calls.made == ["a", "b", "b"]
    assert runs.start(pipeline, resume="latest").result == ["a", "b"]
    assert len(calls.made) == 3


# --- killed -----------------------------------------------------------------------------------


def test_a_run_whose_last_lines_were_lost_repeats_only_what_they_said(runs: Runs) -> None:
    calls = Calls()
    first = runs.start(chain(calls), {"text": "a b"})
    lines = runs.journal.read_bytes().splitlines(keepends=True)
    last = next(
        n for n, line in enumerate(lines) if b'"node":"joined"' in line and b"value" in line
    )
    runs.journal.write_bytes(b"".join(lines[:last]) + lines[last][:20])
    calls.made.clear()
    result = runs.start(chain(calls), resume=first.run_id)
    assert (result.result, calls.made) == ("A B!", ["joined"])


def test_every_record_of_every_part_reaches_the_observers(runs: Runs) -> None:
    runs.fail(chain(Calls(), fails=True), {"text": "a"})
    seen: list[Record] = []
    asyncio.run(
        chain(Calls()).run_async(
            {}, resume="latest", settings=runs.settings, observers=[seen.append],
            backends={"producer": ScriptedBackend([])},
        )
    )  # fmt: skip
    assert [getattr(one, "name", "") for one in seen].count("reuse") == 2


def test_a_limit_is_no_failure(runs: Runs) -> None:
    pipeline = Pipeline("limited", limits=Limits(max_calls=1))

    @pipeline.node
    async def both(run: Run) -> str:
        await run.chat("producer", "1")
        try:
            return await run.chat("producer", "2")
        except RunLimitReached as error:
            return f"limit: {error.limit}"

    result = runs.start(pipeline, producer=ScriptedBackend(["1"]))
    assert (result.status, result.result) == ("finished", "limit: calls")


def test_a_run_that_goes_on_while_it_is_read_is_refused(runs: Runs) -> None:
    runs.fail(chain(Calls(), fails=True), {"text": "a"})
    earlier = read_earlier_run(runs.journal)
    earlier.check_unchanged()
    with runs.journal.open("ab") as file:
        file.write(b"{}\n")
    with pytest.raises(InvalidInput, match="was still going when it was read"):
        earlier.check_unchanged()


def test_an_input_that_has_no_form_in_json_has_to_be_given_again(runs: Runs) -> None:
    class Thing:
        pass

    calls, pipeline = Calls(), Pipeline("things")

    @pipeline.node
    def name(thing: object) -> str:
        calls.note("name")
        return type(thing).__name__

    @pipeline.node
    def fails(name: str) -> str:
        raise ValueError("no")

    runs.fail(pipeline, {"thing": Thing()})
    with pytest.raises(InvalidInput, match=r"it has no form in JSON\); give it again"):
        runs.start(pipeline, resume="latest")
    with pytest.raises(NodeFailed, match="no") as caught:
        runs.start(pipeline, {"thing": Thing()}, resume="latest")
    assert calls.made == ["name", "name"]
    assert [one.node for one in caught.value.result.reruns] == ["name"]


# --- what models said -------------------------------------------------------------------------


def test_a_node_that_failed_of_a_reply_asks_for_another(runs: Runs) -> None:
    pipeline = Pipeline("numbers")

    @pipeline.node
    async def number(run: Run) -> int:
        return await run.chat("producer", "a number", returns=int)

    with pytest.raises(NodeFailed, match="does not match the type"):
        runs.start(pipeline, producer=ScriptedBackend(["not a number"]))
    backend = ScriptedBackend(['{"answer": 3}'])
    assert runs.start(pipeline, resume="latest", producer=backend).result == 3


def test_a_node_that_failed_of_something_else_asks_nothing_again(runs: Runs) -> None:
    pipeline = Pipeline("two calls")

    @pipeline.node
    async def text(run: Run) -> str:
        first = await run.chat("producer", "first", temperature=0.8)
        return first + await run.chat("producer", "second")

    refusal = ServerError("HTTP 400: no", endpoint="producer", status=400)
    with pytest.raises(NodeFailed, match="HTTP 400"):
        runs.start(pipeline, producer=ScriptedBackend(["a", refusal]))
    backend = ScriptedBackend(["b"])
    assert runs.start(pipeline, resume="latest", producer=backend).result == "ab"
    assert [one.messages[0].content for one in backend.requests] == ["second"]
