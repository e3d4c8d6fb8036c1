"""Doors beside `chat` and `run`: a reply's text, a run's events, and a call from a plain script."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from session_runs import Calls, instants_of, pipeline_of, refused, run, settings_of, spans_of

import harness
from harness import NodeFailed, Run, RunEvent, ScriptedBackend
from harness.errors import ReplyCut, StreamCut
from harness.graph import Retry
from harness.inference import Endpoint, ScriptedReply
from harness.log import log_warning
from harness.rubric import Dimension, Rubric
from harness.session.result import _Observer
from harness.testing import Judge, Script
from harness.trace import SpanEnded, SpanStarted
from harness.trace.records import Piece

RUBRIC = Rubric(
    id="note",
    title="Note",
    repeats=1,
    pass_at=8,
    dimensions=(Dimension(name="clear", judge="Is it clear?"),),
)


@pytest.fixture
def settings(tmp_path):
    return settings_of(tmp_path)


def listened(pipeline, settings, *, backends, **how):
    """All events of a run, and its result."""

    async def main():
        async with pipeline.events(settings=settings, backends=backends, **how) as events:
            return [event async for event in events], events.result

    return asyncio.run(main())


def of(kind, events):
    return [one for one in events if one.kind == kind]


# --- the text of one reply ------------------------------------------------------------------------


def test_a_node_streams_a_reply_and_a_resumed_run_gets_a_known_one_whole(settings) -> None:
    heard = Calls()

    async def text(run: Run) -> str:
        stream = run.stream("producer", "Say something.", temperature=0.5)
        heard.note([piece async for piece in stream])
        return stream.completion.text + await run.ask("Is it good?")

    pipeline = pipeline_of(text)
    run(pipeline, settings, backends={"producer": ScriptedBackend(["Tea."])})
    result = run(
        pipeline,
        settings,
        resume="latest",
        answers={"text": " Yes."},
        backends={"producer": ScriptedBackend([])},
    )

    assert result.result == "Tea. Yes."
    assert heard.made == [["Tea."], ["Tea."]]
    assert result.replies_used_again == 1


def test_a_reply_that_was_cut_is_given_and_then_refused_as_chat_refuses_it(settings) -> None:
    async def text(run: Run, on_cut: str) -> str:
        heard = ""
        try:
            async for piece in run.stream("producer", "Say something.", on_cut=on_cut):
                heard += piece
        except ReplyCut as error:
            heard += f" ({error.told_chars})"
        return heard

    cut = ScriptedReply(text="Some", finish_reason="length")
    for on_cut, said in (("keep", "Some"), ("error", "Some (4)")):
        backends = {"producer": ScriptedBackend([cut])}
        result = run(pipeline_of(text), settings, {"on_cut": on_cut}, backends=backends)
        assert result.result == said


def test_a_reader_that_leaves_frees_the_place_of_its_call(settings) -> None:
    class Endless(ScriptedBackend):
        async def chat(self, request):
            if request.on_text is None:
                return await super().chat(request)
            request.on_text("One")
            await asyncio.Event().wait()
            raise AssertionError

    async def text(run: Run) -> str:
        async for _ in run.stream("producer", "Say something."):
            break
        return await run.chat("producer", "And now?")

    result = run(pipeline_of(text), settings, backends={"producer": Endless(["Two."])})
    assert result.result == "Two."
    assert [one.get("finish_reason") for one in spans_of(result, "chat")] == [None, "stop"]


def test_one_line_streams_or_asks_from_a_plain_script(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    endpoint = Endpoint(tag="m", backend="scripted")
    settings = settings_of(tmp_path, endpoints={"m": endpoint})
    monkeypatch.setattr(harness.session.models, "connect", lambda *_: ScriptedBackend(["Tea."]))

    async def streamed():
        with refused("pipeline.event-loop-running"):
            harness.chat_sync("m", "What?", settings=settings)
        return [piece async for piece in harness.stream("m", "What?", settings=settings)]

    assert asyncio.run(streamed()) == ["Tea."]
    assert harness.chat_sync("m", "What?", settings=settings).text == "Tea."


# --- the events of a run --------------------------------------------------------------------------


async def parts(run: Run) -> list[str]:
    return ["tea", "milk"]


async def note(run: Run, parts: str) -> str:
    log_warning("it is late", code="test.late")
    return await run.chat("producer", f"Note on {parts}")


async def text(run: Run, note: list[str]) -> str:
    return (await run.wiggum("Write.", rubric=RUBRIC)).text


def whole():
    pipeline = pipeline_of(parts)
    pipeline.node(each={"parts": "parts"})(note)
    pipeline.node(text)
    return pipeline


def script():
    replies = {"note": "A note.", "text": ["A draft.", "A better one."]}
    return Script({**replies, "evaluator": Judge([6, 9])})


def test_a_run_tells_its_nodes_texts_rounds_and_warnings_and_last_its_result(settings) -> None:
    events, result = listened(whole(), settings, backends=script().backends)

    begun = {(one.node, one.attempt) for one in of("node started", events)}
    assert begun == {("parts", 1), ("note[0]", 1), ("note[1]", 1), ("text", 1)}
    ended = {one.node: (one.status, one.output) for one in of("node ended", events)}
    assert ended["parts"] == ("done", ["tea", "milk"])
    assert ended["text"] == ("done", "A better one.")
    pieces = [one for one in of("text", events) if one.role == "producer"]
    assert [one.text for one in pieces if one.node == "text"] == ["A draft.", "A better one."]
    assert len({one.call for one in pieces}) == len(pieces) == 4
    assert [(one.round, one.composite) for one in of("round", events)] == [(1, 6), (2, 9)]
    verdicts = [(one.scores, one.passed) for one in of("verdict", events)]
    assert verdicts == [({"clear": 6}, False), ({"clear": 9}, True)]
    late = {"code": "test.late", "message": "it is late"}
    assert RunEvent(kind="warning", node="note[1]", **late) in events
    assert RunEvent(kind="loop ended", node="text", stop_reason="passed", round=2) in events
    assert events[-1] == RunEvent(kind="done", result=result)
    huge = replace(result, outputs={"text": 2**64})
    assert '{"text":"18446744073709551616"}' in RunEvent(kind="done", result=huge).as_json()
    # In the order in which things happened.
    assert [one.kind for one in events if one.node == "text"] == [
        "node started",
        *["text", "text", "verdict", "round"] * 2,
        "loop ended",
        "node ended",
    ]


def test_every_event_is_a_line_of_json(settings) -> None:
    events, result = listened(whole(), settings, backends=script().backends)
    said = [json.loads(one.as_json()) for one in events]
    assert said[-1]["kind"] == "done"
    assert said[-1]["result"]["run_id"] == result.run_id
    assert said[-1]["result"]["outputs"]["text"] == "A better one."
    assert {"kind": "node started", "node": "note[1]", "attempt": 1} in said


def test_the_journal_of_a_run_that_is_listened_to_is_that_of_any_other(settings) -> None:
    _, heard = listened(whole(), settings, backends=script().backends)
    unheard = run(whole(), settings, backends=script().backends)
    for result in (heard, unheard):
        assert len(spans_of(result, "chat")) == 6
        assert len(instants_of(result, "round")) == 2
    names = [
        {json.loads(line)["kind"] for line in result.files.journal.read_text().splitlines()}
        for result in (heard, unheard)
    ]
    assert names[0] == names[1]


class Breaking(ScriptedBackend):
    """Breaks off in the middle of its first reply."""

    async def chat(self, request):
        if not self.requests and request.on_text:
            self.requests.append(request)
            request.on_text("Half a")
            raise StreamCut("gone", endpoint="producer")
        return await super().chat(request)


def test_listening_takes_no_further_attempt_from_a_call(settings) -> None:
    events, result = listened(
        pipeline_of(note, name="notes"),
        settings,
        backends={"producer": Breaking(["A note."])},
        parts="tea",
    )
    assert result.result == "A note."
    pieces = of("text", events)
    assert [one.text for one in pieces] == ["Half a", "A note."]
    assert pieces[0].call != pieces[1].call


def test_attempts_failures_skips_questions_and_reuse_are_told(settings) -> None:
    gate = Calls()

    async def fails(run: Run) -> str:
        if gate.note("call") == 1:
            raise ZeroDivisionError
        return await run.ask("Is it good?")

    def after(fails: str) -> str:
        return fails

    def never() -> str:
        return ""

    pipeline = pipeline_of(fails, after, retry=Retry(attempts=2, first_delay_s=0))
    pipeline.node(when=lambda: False)(never)
    events, result = listened(pipeline, settings, backends={"producer": ScriptedBackend([])})

    assert result.status == "waiting"
    told = [(one.kind, one.status) for one in events if one.node == "fails"]
    assert told == [
        ("node started", None),
        ("node ended", "failed"),
        ("node started", None),
        ("question", None),
        ("node ended", "waiting"),
    ]
    assert RunEvent(kind="node started", node="fails", attempt=2) in events
    (asked,) = of("question", events)
    assert (asked.key, asked.text, asked.form) == ("fails/ask", "Is it good?", "a text")
    assert ("never", "skipped") in {(one.node, one.status) for one in of("node ended", events)}

    events, result = listened(
        pipeline,
        settings,
        backends={"producer": ScriptedBackend([])},
        resume="latest",
        answers={"fails": "Yes."},
    )
    assert result.outputs["after"] == "Yes."


def test_a_run_that_fails_raises_after_its_last_event(settings) -> None:
    def fails() -> str:
        raise ZeroDivisionError

    events = []

    async def main():
        backends = {"producer": ScriptedBackend([])}
        async for event in pipeline_of(fails).events(settings=settings, backends=backends):
            events.append(event)  # noqa: PERF401 - those before the error too

    with pytest.raises(NodeFailed):
        asyncio.run(main())
    last = events[-1]
    assert (last.status, last.error) == ("failed", "ZeroDivisionError")


def test_a_run_that_is_left_is_cancelled_and_can_be_resumed(settings) -> None:
    class Hanging(ScriptedBackend):
        async def chat(self, request):
            request.on_text("Once")
            await asyncio.Event().wait()
            raise AssertionError

    pipeline = pipeline_of(parts, name="story")

    @pipeline.node
    async def story(run: Run, parts: list[str]) -> str:
        return await run.chat("producer", str(parts))

    async def main():
        async for event in pipeline.events(settings=settings, backends={"producer": Hanging([])}):
            if event.kind == "text":
                break
        await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})

    asyncio.run(main())
    result = run(
        pipeline, settings, resume="latest", backends={"producer": ScriptedBackend(["upon."])}
    )
    assert result.result == "upon."
    assert result.reused == ("parts",)


def test_a_slow_reader_holds_up_nothing_and_learns_what_it_missed(settings) -> None:
    def many() -> list[int]:
        return list(range(1_500))

    def each(many: int) -> int:
        return many

    pipeline = pipeline_of(many, name="many")
    pipeline.node(each={"many": "many"})(each)

    async def main():
        async with pipeline.events(
            settings=settings, backends={"producer": ScriptedBackend([])}
        ) as events:
            await anext(events)
            await asyncio.wait([events._task])
            return [event async for event in events]

    missed, *others = asyncio.run(main())
    assert missed.kind == "missed"
    assert missed.missed > 1_000
    assert len(others) == 1_000
    assert others[-1].result.status == "finished"


def test_the_pieces_of_calls_side_by_side_are_joined_each_with_its_own() -> None:
    told = {}

    class Reader:
        def put(self, event, *, key=None):
            told.setdefault(key, []).append(event.text)

    observe = _Observer(Reader())
    for call in (1, 2):
        observe(SpanStarted(call, None, "chat", 0, {"model": "m", "role": "producer"}))
    for call, text_ in ((1, "a"), (2, "b"), (1, "c")):
        observe(Piece(call, text_))
    observe(SpanEnded(1, 1))
    assert told == {1: ["a", "c"], 2: ["b"]}
