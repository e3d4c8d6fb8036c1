"""Going on with a run: what is done again, what is not, and what is said about it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator

import pytest
from pydantic import BaseModel
from session_runs import (
    BAD,
    GOOD,
    SOURCE,
    Calls,
    Charging,
    codes,
    fail,
    instants_of,
    line_of,
    pipeline_of,
    refused,
    run,
    settings_of,
    spans_of,
)

from harness import Pipeline, Run, ScriptedBackend, ScriptedReply, ToolCall
from harness.analysis import report_of
from harness.errors import (
    AuthenticationFailed,
    CallTimeout,
    EndpointUnreachable,
    InvalidInput,
    NodeFailed,
    ReplyFiltered,
    ServerError,
)
from harness.graph import Default, Question, Retry
from harness.inference import Limits
from harness.session import read_earlier_run, rehearse
from harness.session.resume import match_answers, question_named
from harness.trace import Journal
from harness.wiggum import recorded_loops


@pytest.fixture
def settings(tmp_path):
    return settings_of(tmp_path)


def resume(pipeline, settings, inputs=None, *, says=None, **how):
    """Goes on with the latest run; a producer says this."""
    if says is not None:
        how["backends"] = {"producer": ScriptedBackend(says)}
    return run(pipeline, settings, inputs, resume="latest", **how)


def journal_of(settings):
    """That of the only run."""
    (path,) = (one for one in settings.traces.glob("2*.jsonl") if "." not in one.stem)
    return path


def chain(calls, *, ending="!", fails=False):
    """Three steps, the last of which can fail."""

    def words(text: str) -> list[str]:
        calls.note("words")
        return text.split()

    def loud(word: str) -> str:
        calls.note(f"loud {word}")
        return word.upper()

    def joined(loud: list[str]) -> str:
        calls.note("joined")
        if fails:
            raise ValueError("not today")
        return " ".join(loud) + ending

    pipeline = pipeline_of(words, name="chain")
    pipeline.node(each={"word": "words"})(loud)
    pipeline.node(joined)
    return pipeline


RUBRIC = """
title: Own
purpose: Short.
pass_at: 8
dimensions:
  - { name: length, checks: [{ check: words, min: 1, max: 9 }] }
"""


def test_what_was_done_is_not_done_again(settings):
    calls = Calls()
    failed = fail(chain(calls, fails=True), settings, {"text": "a b"}).result
    assert failed.status == "failed"
    assert failed.outputs == {"words": ["a", "b"], "loud": ["A", "B"]}
    assert calls.made == ["words", "loud a", "loud b", "joined"]

    calls.made.clear()
    # The mended code is in the one function alone.
    result = run(chain(calls), settings, resume=failed.run_id)
    assert calls.made == ["joined"]
    assert (result.status, result.result) == ("finished", "A B!")
    assert set(result.reused) == {"words", "loud[0]", "loud[1]"}
    assert (result.run_id, result.parts) == (failed.run_id, 2)
    assert Journal(journal_of(settings)).ended.status == "ok"


class Patch(BaseModel):
    name: str = ""
    inner: list[Patch] = []


def test_fields_that_nobody_set_stay_so_in_inputs_outputs_and_items(settings):
    runs = []

    async def items(given: Patch) -> AsyncIterator[Patch]:
        yield Patch(inner=[given, Patch()])

    def kept(given: Patch) -> dict[str, list[Patch]]:
        return {"all": [Patch(name=""), given]}

    def seen(given: Patch, items: list[Patch], kept: dict[str, list[Patch]]) -> str:
        dumps = [part.model_dump(exclude_unset=True) for part in (given, *items, *kept["all"])]
        runs.append(dumps)
        if len(runs) == 1:
            raise OSError("not today")
        return ""

    pipeline = pipeline_of(items, kept, seen, name="unset")
    fail(pipeline, settings, {"given": Patch(name="a")})
    resume(pipeline, settings)

    assert runs[0] == runs[1]
    assert runs[0] == [{"name": "a"}, {"inner": [{"name": "a"}, {}]}, {"name": ""}, {"name": "a"}]


def test_what_changed_is_run_again_with_what_it_reaches_and_nothing_else(settings):
    calls = Calls()
    fail(chain(calls, fails=True), settings, {"text": "a b"})
    calls.made.clear()
    result = resume(chain(calls), settings, {"text": "b c"})
    assert result.result == "B C!"
    assert calls.made == ["words", "loud b", "loud c", "joined"]
    assert [(one.node, one.reason) for one in result.reruns] == [
        ("words", "its input 'text' changed"),
        ("loud[0]", "its input 'word' changed"),
        ("loud[1]", "its input 'word' changed"),
    ]
    calls.made.clear()
    changed = resume(chain(calls, ending="?"), settings)
    assert (changed.result, calls.made) == ("B C?", ["joined"])
    assert [(one.node, one.reason) for one in changed.reruns] == [
        ("joined", "its code changed: 'ending'")
    ]


def test_a_finished_run_is_not_begun_again_and_gives_its_result(settings):
    calls = Calls()
    first = run(chain(calls), settings, {"text": "a b"})
    files = {path: path.read_bytes() for path in settings.traces.iterdir()}
    again = resume(chain(calls), settings)
    assert calls.made.count("words") == 1
    assert (again.result, again.outputs, again.parts) == ("A B!", first.outputs, 1)
    assert set(again.reused) == {"words", "loud[0]", "loud[1]", "joined"}
    assert again.files == first.files
    assert {path: path.read_bytes() for path in settings.traces.iterdir()} == files


def test_python_runs_resume_too_and_an_input_of_that_name_stays_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    calls = Calls()
    first = chain(calls).run(text="a")
    assert chain(calls).run(resume=first.run_id).result == "A!"
    assert calls.made.count("words") == 1

    def read(resume: str) -> str:
        return f"read {resume}"

    assert pipeline_of(read).run({"resume": "a life"}).result == "read a life"
    with refused("pipeline.input-is-option"):
        pipeline_of(read).run(resume="a life")
    with pytest.raises(InvalidInput, match="'x'"):
        chain(calls).run(resume="x")
    with refused("resume.not-a-run"):
        chain(calls).run(resume=3)


# --- what cannot be resumed -------------------------------------------------------------------


def test_a_run_without_texts_cannot_be_resumed(tmp_path):
    settings = settings_of(tmp_path, trace={"content": "hash"})
    fail(chain(Calls(), fails=True), settings, {"text": "a"})
    with refused("resume.no-texts"):
        resume(chain(Calls()), settings)


def test_another_pipelines_run_is_refused(settings):
    fail(chain(Calls(), fails=True), settings, {"text": "a"})
    other = chain(Calls())
    other.name = "other"
    with refused("resume.other-pipeline") as caught:
        resume(other, settings)
    assert caught.value.path == journal_of(settings)


def test_an_input_that_held_a_secret_has_to_be_given_again(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_API_KEY", "hunter2-hunter2")
    settings, calls = settings_of(tmp_path, trace={"secrets": ("MY_API_KEY",)}), Calls()
    fail(chain(calls, fails=True), settings, {"text": "say hunter2-hunter2"})
    assert b"hunter2-hunter2" not in journal_of(settings).read_bytes()
    with refused("resume.input-lost"):
        resume(chain(calls), settings)
    calls.made.clear()
    result = resume(chain(calls), settings, {"text": "say hunter2-hunter2"})
    assert result.result == "SAY HUNTER2-HUNTER2!"
    # What the journal does not hold whole is made again; in capitals it is no secret.
    assert calls.made == ["words", "joined"]


def test_a_run_that_is_still_going_cannot_be_resumed(settings):
    async def again(run: Run) -> str:
        await pipeline.run_async({}, resume=run.id, settings=settings)
        return "never"

    pipeline = pipeline_of(again)
    assert "still going" in str(fail(pipeline, settings))


def test_a_run_that_was_killed_before_it_began_says_so(settings):
    run(chain(Calls()), settings, {"text": "a"})
    journal = journal_of(settings)
    journal.write_bytes(journal.read_bytes().splitlines(keepends=True)[0])
    with refused("resume.never-began"):
        resume(chain(Calls()), settings)


def test_a_run_whose_last_lines_were_lost_repeats_only_what_they_said(settings):
    calls = Calls()
    run(chain(calls), settings, {"text": "a b"})
    journal = journal_of(settings)
    lines = journal.read_bytes().splitlines(keepends=True)
    is_output = [b'"node":"joined"' in line and b"value" in line for line in lines]
    last = is_output.index(True)
    journal.write_bytes(b"".join(lines[:last]) + lines[last][:20])
    calls.made.clear()
    assert (resume(chain(calls), settings).result, calls.made) == ("A B!", ["joined"])


# --- persons ----------------------------------------------------------------------------------


def asking(calls):
    async def ship(run: Run) -> str:
        calls.note("asked")
        return "shipped" if await run.ask("Ship this?", returns=bool) else "kept"

    def beside() -> str:
        calls.note("beside")
        return "done"

    def told(ship: str) -> str:
        return f"{ship}."

    return pipeline_of(ship, beside, told)


def test_a_question_lets_everything_else_go_on_and_the_run_waits(settings):
    waiting = run(asking(Calls()), settings)
    assert (waiting.status, waiting.result, waiting.passed) == ("waiting", None, False)
    assert waiting.outputs == {"beside": "done"}
    (question,) = waiting.questions
    assert (question.key, question.text, question.form) == ("ship/ask", "Ship this?", "yes or no")
    assert Journal(journal_of(settings)).ended.status == "waiting"
    assert line_of(waiting)["final"] == "WAITING"


@pytest.mark.parametrize(
    ("answers", "outcome"),
    [({"ship/ask": "yes"}, "shipped."), ({"ship": "no"}, "kept."), ({"ship": True}, "shipped.")],
    ids=["by key, as typed", "by node", "as a value"],
)
def test_an_answer_lets_the_run_go_on(settings, answers, outcome):
    calls = Calls()
    run(asking(calls), settings)
    without = resume(asking(calls), settings)
    assert [one.key for one in without.questions] == ["ship/ask"]
    result = resume(asking(calls), settings, answers=answers)
    assert (result.status, result.result) == ("finished", outcome)
    assert calls.made.count("beside") == 1
    assert read_earlier_run(journal_of(settings)).questions == ()


def question(key, text="Ship this?\n\nA draft"):
    return Question(key=key, node=key.split("/")[0], text=text, form="yes or no")


SHIP, BOTH = [question("ship/ask")], [question("ship/ask"), question("ship/ask#2")]


@pytest.mark.parametrize(
    ("answers", "asked", "code", "said"),
    [
        pytest.param({"ship": "perhaps"}, SHIP, "answer.invalid", "Ship this?)", id="another kind"),
        pytest.param(
            {"sip/ask": "y"}, SHIP, "answer.question-unknown", "'ship/ask'", id="misspelt"
        ),
        pytest.param({"ship": "y"}, BOTH, "answer.several-asked", "ship/ask#2", id="two of one"),
        pytest.param({"ship": "y"}, [], "answer.none-asked", "--answer", id="no question"),
    ],
)
def test_an_answer_that_is_none_is_refused(answers, asked, code, said):
    with refused(code) as caught:
        match_answers(answers, asked)
    assert said in str(caught.value)
    assert "A draft" not in str(caught.value)


def test_an_answer_may_name_its_question_by_the_text():
    assert question_named("Ship this?\n\nA draft", SHIP) == SHIP[0]
    with refused("answer.several-asked"):
        question_named("Ship this?\n\nA draft", BOTH)


def test_an_answer_without_a_name_is_for_the_only_question():
    assert question_named("", SHIP) == SHIP[0]
    with refused("answer.several-asked"):
        question_named("", BOTH)


def test_an_answer_that_is_none_is_refused_before_anything_runs(settings):
    calls = Calls()
    with refused("answer.without-run"):
        run(asking(calls), settings, answers={"ship": "yes"})
    assert calls.made == []
    run(asking(calls), settings)
    calls.made.clear()
    with refused("answer.invalid"):
        resume(asking(calls), settings, answers={"ship": "perhaps"})
    assert calls.made == []


def test_an_answer_whose_form_only_the_run_can_tell_is_asked_for_again(settings):
    async def total(run: Run) -> int:
        answer: dict[str, int] = await run.ask("How many of each?", returns=dict[str, int])
        return sum(answer.values())

    pipeline = pipeline_of(total)
    run(pipeline, settings)
    again = resume(pipeline, settings, answers={"total": '{"a": "many"}'})
    assert again.status == "waiting"
    assert again.questions[0].problem
    assert resume(pipeline, settings, answers={"total": '{"a": 2, "b": 3}'}).result == 5


def test_a_corrected_answer_is_kept_although_its_part_failed_before_the_question(
    settings, monkeypatch
):
    async def total(run: Run) -> int:
        if "DISK_FULL" in os.environ:
            raise OSError("the disk is full")
        return sum((await run.ask("How many of each?", returns=dict[str, int])).values())

    pipeline = pipeline_of(total)
    run(pipeline, settings)
    resume(pipeline, settings, answers={"total": '{"a": "many"}'})
    monkeypatch.setenv("DISK_FULL", "1")
    fail(pipeline, settings, resume="latest", answers={"total": '{"a": 2}'})
    monkeypatch.delenv("DISK_FULL")
    assert resume(pipeline, settings).result == 2


def test_the_answer_to_a_question_with_a_secret_is_found(settings, monkeypatch):
    monkeypatch.setenv("A_API_KEY", "sk-abcdefgh12345678XYZ")

    async def use(run: Run) -> str:
        return await run.ask("May I use sk-abcdefgh12345678XYZ?")

    pipeline = pipeline_of(use)
    assert run(pipeline, settings).status == "waiting"
    assert resume(pipeline, settings, answers={"use": "yes"}).result == "yes"


def test_a_question_of_a_task_waits_whoever_awaits_the_task(settings):
    async def outer(run: Run) -> list[str]:
        tasks = []

        async def begin(item: str) -> None:
            tasks.append(asyncio.create_task(run.ask(f"{item}?")))

        await run.map(begin, ["a", "b"])
        return list(await asyncio.gather(*tasks))

    result = run(pipeline_of(outer), settings)
    assert (result.status, result.questions[0].text) == ("waiting", "a?")


def test_questions_asked_side_by_side_wait_together(settings):
    async def both(run: Run) -> str:
        return " ".join(await asyncio.gather(run.ask("One?"), run.ask("Two?")))

    pipeline = pipeline_of(both)
    waiting = run(pipeline, settings)
    assert [question.text for question in waiting.questions] == ["One?", "Two?"]
    answers = {question.key: question.text[:3] for question in waiting.questions}
    assert resume(pipeline, settings, answers=answers).result == "One Two"


def test_an_answer_is_kept_although_the_part_that_it_was_given_to_failed(settings):
    errors = iter([True, False])

    async def ship(run: Run) -> str:
        answer = await run.ask("Which?", returns=str)
        if next(errors):
            raise ValueError("after the answer")
        return answer

    pipeline = pipeline_of(ship)
    run(pipeline, settings)
    fail(pipeline, settings, resume="latest", answers={"ship": "this one"})
    assert resume(pipeline, settings).result == "this one"


def test_an_asker_is_asked_at_once_and_until_the_answer_can_be_one(settings):
    asked = []

    def asker(question):
        asked.append(question)
        return "maybe" if len(asked) == 1 else "y"

    assert run(asking(Calls()), settings, asker=asker).result == "shipped."
    assert [bool(one.problem) for one in asked] == [False, True]


# --- limits -----------------------------------------------------------------------------------


def test_at_a_limit_the_rest_is_given_and_a_resume_goes_on_within_a_higher_one(settings):
    async def texts(run: Run, topic: str) -> str:
        return await run.chat("producer", topic)

    def count(topics: list[str]) -> int:
        return len(topics)

    def all_texts(texts: list[str]) -> str:
        return " ".join(texts)

    pipeline = Pipeline("pricey", limits=Limits(max_calls=2))
    pipeline.node(each={"topic": "topics"})(texts)
    pipeline.node(count)
    pipeline.node(all_texts)
    backend = ScriptedBackend(lambda request: request.messages[0].content)
    how = {"backends": {"producer": backend}}
    stopped = run(pipeline, settings, {"topics": ["a", "b", "c"]}, **how)
    assert (stopped.status, stopped.outputs) == ("stopped", {"count": 3})
    assert "max_calls = 2" in stopped.stopped_by
    assert {one.node for one in stopped.skips} == {"texts[2]", "all_texts"}
    assert line_of(stopped)["final"] == "STOPPED"
    ended = Journal(journal_of(settings)).ended
    assert (ended.status, ended.error.split(":")[0]) == ("stopped", "RunLimitReached")

    still = resume(pipeline, settings, **how)
    assert (still.status, len(backend.requests)) == ("stopped", 2)
    result = resume(pipeline, settings, limits=Limits(max_calls=3), **how)
    assert (result.status, result.result) == ("finished", "a b c")
    assert (result.spent.calls, len(backend.requests)) == (3, 3)


def test_a_loop_that_a_limit_of_the_run_ended_goes_on_with_more_room(settings):
    async def start(run: Run) -> str:
        return await run.chat("producer", "Begin.")

    async def text(run: Run, start: str) -> str:
        told = await run.chat("producer", f"{start}?")
        return (await run.wiggum(told, sources=[SOURCE], rubric="answer")).text

    async def last(text: str) -> str:
        return text.upper()

    pipeline = pipeline_of(start, text, last)
    backend = ScriptedBackend(["a", "b", BAD, GOOD])
    how = {"backends": {"producer": backend}}
    cut = run(pipeline, settings, limits=Limits(max_calls=3), **how)
    assert (cut.status, cut.result, len(backend.requests)) == ("finished", BAD.upper(), 3)
    assert cut.loops[0].stop_reason == "budget"
    assert [one.code for one in cut.warnings if one.code == "loop.cut"] == ["loop.cut"]

    same = resume(pipeline, settings, **how)  # without more room, nothing is lost
    assert (same.status, same.result, len(backend.requests)) == ("finished", BAD.upper(), 3)
    more = resume(pipeline, settings, limits=Limits(max_calls=9), **how)
    assert (more.status, more.result, len(backend.requests)) == ("finished", GOOD.upper(), 4)
    assert ([one.passed for one in more.loops], more.spent.calls) == ([True], 4)
    assert more.reused == ("start",)
    again = resume(pipeline, settings, **how)
    assert (again.had_finished, again.result) == (True, GOOD.upper())


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        pytest.param(CallTimeout("too slow", endpoint="producer"), 1, id="time-out"),
        pytest.param(EndpointUnreachable("no", code="call.certificate-refused"), 1, id="no server"),
        pytest.param(ServerError("HTTP 400: no", status=400), 0, id="refused prompt"),
        pytest.param(AuthenticationFailed("HTTP 401: no"), 0, id="refused key"),
        pytest.param(ReplyFiltered("no", text="", finish_reason="content_filter"), 0, id="filter"),
    ],
)
def test_a_loop_that_a_failed_call_ended_goes_on_if_the_call_may_succeed_later(
    settings, error, asked
):
    async def text(run: Run) -> str:
        return (await run.wiggum("t", sources=[SOURCE], rubric="answer", max_seconds=900)).text

    first = run(
        pipeline_of(text), settings, backends={"producer": ScriptedBackend([BAD, error, error])}
    )
    assert (first.status, first.result) == ("finished", BAD)
    assert codes(first.warnings).count("loop.cut") == asked
    again = ScriptedBackend([error] * asked)
    still = resume(pipeline_of(text), settings, backends={"producer": again})
    assert (still.result, len(again.requests), still.had_finished) == (BAD, asked, not asked)
    backend = ScriptedBackend([GOOD] * asked)
    result = resume(pipeline_of(text), settings, backends={"producer": backend})
    assert (result.result, len(backend.requests)) == (GOOD if asked else BAD, asked)
    assert resume(pipeline_of(text), settings).had_finished


def test_a_loop_with_limits_of_its_own_stays_as_it_ended(settings):
    async def text(run: Run) -> str:
        return (await run.wiggum("t", sources=[SOURCE], rubric="answer", max_cost_usd=0.3)).text

    pipeline = pipeline_of(text, limits=Limits(max_cost_usd=9))
    backend = Charging([BAD])
    done = run(pipeline, settings, backends={"producer": backend})
    assert (done.loops[0].stop_reason, done.warnings) == ("budget", ())
    again = resume(pipeline, settings, backends={"producer": backend})
    assert (again.had_finished, len(backend.requests)) == (True, 1)


def test_limits_that_a_run_was_given_hold_for_its_further_parts(settings):
    async def one(run: Run) -> str:
        return await run.chat("producer", "1")

    async def two(run: Run, one: str) -> str:
        return await run.chat("producer", "2")

    pipeline, says = pipeline_of(one, two), ["1", "2"]
    run(
        pipeline, settings, limits=Limits(max_calls=1), backends={"producer": ScriptedBackend(says)}
    )
    assert resume(pipeline, settings, says=says).status == "stopped"
    assert resume(pipeline, settings, limits=Limits(max_calls=2), says=["2"]).result == "2"


def test_when_the_time_is_over_a_loop_still_gives_the_best_that_it_has(settings):
    class Slow(ScriptedBackend):
        async def chat(self, request):
            if len(self.requests) == 1:
                await asyncio.sleep(60)
            return await super().chat(request)

    async def text(run: Run) -> str:
        return (await run.wiggum("t", sources=[SOURCE], rubric="answer")).text

    pipeline = pipeline_of(text, limits=Limits(max_seconds=1))
    result = run(pipeline, settings, backends={"producer": Slow([BAD])})
    assert result.result == BAD
    assert result.loops[0].stop_reason == "budget"


# --- loops ------------------------------------------------------------------------------------


def looping(calls):
    """A loop in a node that fails behind it, until it may finish."""

    async def text(run: Run, task: str) -> str:
        result = await run.wiggum(task, sources=[SOURCE], rubric="answer", max_rounds=3)
        if not calls.made:
            raise RuntimeError("behind the loop")
        return result.text

    def told(text: str) -> str:
        if len(calls.made) < 2:
            raise RuntimeError("behind the node")
        return text

    return pipeline_of(text, told)


def fail_behind_a_loop(settings, *drafts, calls=None):
    backends = {"producer": ScriptedBackend(list(drafts))}
    return fail(looping(calls or Calls()), settings, {"task": "t"}, backends=backends)


def free():
    """Nothing fails any more."""
    calls = Calls()
    calls.made = ["loop", "node"]
    return calls


def test_a_loop_goes_on_behind_the_rounds_that_it_had(settings):
    async def text(run: Run, task: str) -> str:
        result = await run.wiggum(task, sources=[SOURCE], rubric="answer", max_rounds=3)
        if result.stop_reason == "producer_failed":
            raise ValueError(result.stop_detail)
        return result.text

    refusal = ServerError("HTTP 400: no", endpoint="producer", status=400)
    backends = {"producer": ScriptedBackend([BAD, refusal])}
    fail(pipeline_of(text), settings, {"task": "t"}, backends=backends)
    second = ScriptedBackend([GOOD])
    result = resume(pipeline_of(text), settings, backends={"producer": second})
    assert result.result == GOOD
    assert len(second.requests) == 1  # the revision: the draft was written before
    assert [one.draft for one in result.loops[0].rounds] == [BAD, GOOD]
    assert result.loops[0].spent.calls == 2


AGAIN = r"{sources}\n\n{task}\n\n{draft}\n\n{findings}"


@pytest.mark.parametrize(
    ("changed", "replies"),
    [
        pytest.param(f'whole: "{AGAIN}"', [GOOD], id="producer's"),
        pytest.param("judge_system: Sei streng.", [GOOD], id="evaluator's"),
    ],
)
def test_a_loop_goes_on_with_other_prompts_unless_they_are_the_evaluators(
    settings, tmp_path, changed, replies
):
    prompts, rubric = tmp_path / "prompts.yaml", tmp_path / "own.yaml"
    rubric.write_text("title: Own\nextends: answer\nprompts: prompts.yaml\n")

    async def text(run: Run, task: str) -> str:
        result = await run.wiggum(task, sources=[SOURCE], rubric=rubric)
        if result.stop_reason == "producer_failed":
            raise ValueError(result.stop_detail)
        return result.text

    prompts.write_text("opening: Anfang\n")
    refusal = ServerError("HTTP 400: no", endpoint="producer", status=400)
    backends = {"producer": ScriptedBackend([BAD, refusal])}
    fail(pipeline_of(text), settings, {"task": "t"}, backends=backends)
    prompts.write_text(changed)
    second = ScriptedBackend(replies)
    result = resume(pipeline_of(text), settings, backends={"producer": second})

    assert (result.result, len(second.requests)) == (GOOD, len(replies))
    told = [span["prompts_sha256"] for span in spans_of(result, "wiggum")]
    assert (len(set(told)), told[-1]) == (2, result.loops[0].rubric.prompts.sha256)


@pytest.mark.parametrize(
    ("task", "asked"), [("t", 0), ("another", 1)], ids=["that had ended", "about something else"]
)
def test_only_a_loop_about_something_else_begins_anew(settings, task, asked):
    fail_behind_a_loop(settings, GOOD)
    backend = ScriptedBackend([GOOD])
    result = resume(looping(free()), settings, {"task": task}, backends={"producer": backend})
    assert (result.result, len(backend.requests)) == (GOOD, asked)


def test_of_several_parts_the_one_that_came_furthest_counts(settings):
    calls = Calls()
    fail_behind_a_loop(settings, BAD, GOOD, calls=calls)
    fail(looping(calls), settings, resume="latest")
    # As if the second part had been killed while it wrote the rounds down again.
    part = journal_of(settings).with_suffix(".1.jsonl")
    lines = part.read_bytes().splitlines(keepends=True)
    first = next(n for n, line in enumerate(lines) if b'"name":"round"' in line)
    part.write_bytes(b"".join(lines[: first + 1]))
    result = resume(looping(free()), settings)
    assert [len(loop.rounds) for loop in result.loops] == [2]
    assert result.result == GOOD


def test_rounds_of_a_part_that_was_killed_count_behind_those_of_one_whose_loop_ended(settings):
    refusal = ServerError("HTTP 400: no", endpoint="producer", status=400)
    calls = Calls()
    fail_behind_a_loop(settings, BAD, refusal, calls=calls)
    backends = {"producer": ScriptedBackend(["It takes 901 years."])}
    fail(looping(calls), settings, resume="latest", backends=backends)
    # As if the second part had been killed behind its second round.
    part = journal_of(settings).with_suffix(".1.jsonl")
    lines = part.read_bytes().splitlines(keepends=True)
    _, second = (n for n, line in enumerate(lines) if b'"name":"round"' in line)
    part.write_bytes(b"".join(lines[: second + 1]))
    (loop,) = recorded_loops(Journal(journal_of(settings)))
    assert (len(loop.rounds), loop.stop_reason) == (2, None)


def test_a_loop_whose_draft_held_a_secret_begins_anew_with_a_warning(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_API_KEY", "removes it, so the")
    settings = settings_of(tmp_path, trace={"secrets": ("MY_API_KEY",)})
    fail_behind_a_loop(settings, GOOD)
    result = resume(looping(free()), settings, says=[GOOD])
    assert (result.result, codes(result.warnings)) == (GOOD, ["resume.loop-anew"])
    assert [one["code"] for one in instants_of(result, "warning")] == ["resume.loop-anew"]


def test_whether_a_resumed_run_passed_counts_the_loops_that_it_did_not_repeat(settings):
    calls = Calls()
    calls.note("loop")
    # They score the same: a cycle.
    fail_behind_a_loop(settings, BAD, "It takes 901 years.", calls=calls)
    result = resume(looping(free()), settings)
    assert (result.status, result.loops, len(result.earlier_loops)) == ("finished", (), 1)
    assert not result.earlier_loops[0].passed
    assert not result.passed
    line = line_of(result)
    assert (line["final"], len(line["wiggum_scores"])) == ("FAIL", 2)
    assert not resume(looping(free()), settings).passed


# --- nested, mapped, retried ------------------------------------------------------------------


def test_what_a_nested_pipeline_had_done_is_not_done_again(settings):
    calls, errors = Calls(), iter([True, False])

    def long(word: str) -> str:
        calls.note(word)
        return word * 2

    def end(long: list[str]) -> str:
        return "".join(long)

    inner = Pipeline("inner")
    inner.node(each={"word": "words"})(long)
    inner.node(end)

    def length(word: str) -> int:
        return len(word)

    async def nested(run: Run) -> str:
        called = await run.call(inner, words=["a", "b"])
        lengths = await run.map(length, ["aa", "bb"], name="lengths")
        if next(errors):
            raise ValueError("behind it")
        return f"{called.result} {lengths}"

    fail(pipeline_of(nested), settings)
    result = resume(pipeline_of(nested), settings)
    assert (result.result, calls.made) == ("aabb [2, 2]", ["a", "b"])
    inside = ("inner/long[0]", "inner/long[1]", "inner/end", "lengths[0]", "lengths[1]")
    assert set(result.reused) == {f"nested/{one}" for one in inside}


def test_what_a_second_attempt_had_done_is_found_by_the_first_of_a_resumed_run(settings):
    calls, tries = Calls(), Calls()

    def paid(item: str) -> str:
        if calls.note(item) == 2:
            raise ValueError("the first attempt's second item")
        return item

    async def many(run: Run) -> list[str]:
        done = await run.map(paid, ["a", "b"], max_parallel=1)
        if tries.note("behind all items") == 1:
            raise ValueError("the second attempt")
        return done

    pipeline = pipeline_of(many, retry=Retry(2, first_delay_s=0))
    fail(pipeline, settings)
    assert calls.made == ["a", "b", "b"]
    assert resume(pipeline, settings).result == ["a", "b"]
    assert len(calls.made) == 3


# --- nodes of another name -----------------------------------------------------------------------


def renames(calls, *names):
    """A node for each of these names, all of one code, and one behind them that fails once."""

    def asked(word: str) -> str:
        calls.note(word)
        return word.upper()

    def last(words: list[str]) -> str:
        if "fails" not in calls.made:
            calls.note("fails")
            raise OSError(words)
        return "done"

    pipeline = Pipeline("one")
    for name in names:
        pipeline.node(name=name, each={"word": "words"})(asked)
    pipeline.node(last)
    return pipeline


def test_a_node_that_was_renamed_is_recognized_and_said_once(settings):
    calls = Calls()
    fail(renames(calls, "asked"), settings, {"words": ["tea", "milk"]})

    result = resume(renames(calls, "question"), settings)

    assert (calls.made, result.outputs["question"]) == (["tea", "milk", "fails"], ["TEA", "MILK"])
    assert set(result.reused) == {"question[0]", "question[1]"}
    assert codes(result.warnings) == ["resume.node-renamed"]
    # Of a run with nothing left to do, too.
    assert codes(resume(renames(calls, "question"), settings).warnings) == ["resume.node-renamed"]


@pytest.mark.parametrize("names", [("asked", "again"), ("this", "that")])
def test_no_output_stands_for_two_nodes_of_the_same_code(settings, names):
    calls = Calls()
    fail(renames(calls, "asked"), settings, {"words": ["tea"]})

    result = resume(renames(calls, *names), settings)

    assert len(calls.made) == 2 + len({*names} - {"asked"})
    assert codes(result.warnings) == []


# --- rehearsed -----------------------------------------------------------------------------------


def rehearsed(pipeline, settings, inputs):
    """What the latest run would make again, find again, and call for the first time."""
    earlier = read_earlier_run(journal_of(settings))
    return asyncio.run(rehearse(pipeline, inputs, earlier, settings=settings))


def test_a_rehearsal_foresees_renamed_nodes_and_lists_new_ones(settings):
    calls = Calls()
    fail(renames(calls, "asked"), settings, {"words": ["tea"]})
    pipeline = renames(calls, "question")
    pipeline.node(lambda question: question, name="further")
    pipeline.node(lambda words: words, name="unwanted", when=lambda words: not words)

    found = rehearsed(pipeline, settings, {})

    assert (found.made_again, found.renamed) == ((), {"question": "asked"})
    assert found.new == ("further",)
    assert rehearsed(pipeline, settings, {"words": ["milk"]}).renamed == {}


@pytest.mark.parametrize("policy", [{"on_error": "skip"}, {"on_error": Default("TEA")}, {}])
def test_in_a_rehearsal_no_call_fails_so_no_policy_stands_in_for_it(settings, policy):
    def pipeline(ending):
        def loud(word: str) -> str:
            return word.upper() + ending

        def longer(loud: str) -> str:
            return loud * 2

        def quiet(word: str) -> str:
            return word.lower()

        made = Pipeline("one", fail_fast=True)
        made.node(**policy)(loud)
        for node in (longer, quiet):
            made.node(node)
        return made

    run(pipeline(""), settings, {"word": "tea"})

    found = rehearsed(pipeline("!"), settings, {})

    assert [(one.node, one.reason.partition(":")[0]) for one in found.made_again] == [
        ("loud", "its code changed"),
        ("longer", "what it takes is made again"),
    ]


def test_the_critical_path_of_a_resumed_run_is_of_all_its_parts(settings):
    calls = Calls()
    fail(chain(calls, fails=True), settings, {"text": "a b"})
    resume(chain(calls), settings)

    steps = report_of(Journal(journal_of(settings))).critical_path.steps

    assert [one.node.partition("[")[0] for one in steps] == ["words", "loud", "joined", "joined"]
    assert len(calls.made) == 5


def mapped(inner, *, own_run):
    """A pipeline whose node maps `inner(run, item)`, by its own `run` or the one around it."""
    pipeline = Pipeline("mapped")

    async def work(run, item):
        output = await inner(run, item)
        if item != "A" and "DISK_FULL" in os.environ:
            raise OSError("the disk is full")
        return output

    @pipeline.node
    async def node(run: Run) -> list[str]:
        async def closed_over(item: str) -> str:
            return await work(run, item)

        async def given(item: str, run: Run) -> str:
            return await work(run, item)

        return await run.map(given if own_run else closed_over, ["A", "B", "C"], name="f")

    return pipeline


sub = Pipeline("sub")


@sub.node
async def chat(run: Run, text: str) -> str:
    return await run.chat("producer", text)


async def calls_a_pipeline(run, item):
    return (await run.call(sub, text=f"Say {item}.")).result


async def has_an_agent(run, item):
    return (await run.agent("producer", f"Say {item}.", tools=[say])).text


def say(word: str) -> str:
    """Says a word."""
    WORDS.append(word)
    return word


WORDS: list[str] = []


def agent_reply(request):
    if request.messages[-1].role == "tool":
        return "done"
    word = request.messages[0].content[4]
    return ScriptedReply(tool_calls=(ToolCall("1", "say", json.dumps({"word": word})),))


@pytest.mark.parametrize("own_run", [True, False])
@pytest.mark.parametrize(
    ("inner", "reply"), [(calls_a_pipeline, ["Said."] * 3), (has_an_agent, agent_reply)]
)
def test_steps_of_a_mapped_function_are_its_own_whoever_gave_it_its_run(
    tmp_path, monkeypatch, inner, reply, own_run
):
    monkeypatch.setenv("DISK_FULL", "1")
    pipeline = mapped(inner, own_run=own_run)
    how = {"settings": settings_of(tmp_path)}
    WORDS.clear()
    with pytest.raises(NodeFailed):
        pipeline.run(backends={"producer": ScriptedBackend(reply)}, **how)
    assert sorted(WORDS) == (["A", "B", "C"] if inner is has_an_agent else [])
    monkeypatch.delenv("DISK_FULL")
    WORDS.clear()

    second = ScriptedBackend([])
    result = pipeline.run(resume="latest", backends={"producer": second}, **how)

    assert (result.status, WORDS, second.requests) == ("finished", [], [])


@pytest.mark.parametrize("own_run", [True, False])
def test_a_mapped_function_asks_another_model_again_whoever_gave_it_its_run(tmp_path, own_run):
    pipeline = mapped(lambda run, item: run.chat("producer", item), own_run=own_run)
    backends = {tag: ScriptedBackend([tag] * 3) for tag in ("one", "two")}
    outputs = [
        pipeline.run(
            settings=settings_of(tmp_path, roles={"producer": tag}),
            backends=backends,
            resume="latest" if tag == "two" else None,
        ).result
        for tag in backends
    ]
    assert outputs == [["one"] * 3, ["two"] * 3]
