"""What is kept for later: what models answered, what was remembered, outputs for other runs."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from contextlib import closing, nullcontext
from dataclasses import replace

import pytest
from session_runs import Calls, codes, fail, pipeline_of, run, settings_of

from harness import Cache, Default, Limits, Pipeline, Run, ScriptedBackend, ToolCall
from harness.errors import ServerError
from harness.graph import NodeCall, Retry
from harness.graph.reuse import OUTPUT_CACHE
from harness.inference import ScriptedReply
from harness.session import rehearse
from harness.session.batch import Batch
from harness.session.batch_rows import BatchRows
from harness.session.resume import read_earlier_run, remembered_in
from harness.trace import Journal
from harness.trace.run_list import find_journal
from harness.trace.secrets import REDACTED

SECRET = 'k3y "of" many parts'


@pytest.fixture
def settings(tmp_path):
    return settings_of(tmp_path)


# --- what models said to nodes that had not ended ----------------------------------------------


class Sampled(ScriptedBackend):
    """Says something new whenever it is asked; hangs at some prompts, as long as it is told to."""

    def __init__(self, *, refuses_at=()):
        super().__init__(self._say)
        self.hangs_at = ""
        self.refuses_at = refuses_at
        self._said = 0

    @property
    def prompts(self):
        return [request.messages[-1].content for request in self.requests]

    async def chat(self, request):
        if self.hangs_at and self.hangs_at in request.messages[-1].content:
            self.reached.set()
            await asyncio.Event().wait()
        return await super().chat(request)

    def _say(self, request):
        self._said += 1
        if self._said in self.refuses_at:
            return ServerError("no", endpoint="producer")
        said = f"{request.messages[-1].content} {self._said}"
        if not said.startswith("call:"):
            return said
        call = ToolCall("a", "look", json.dumps({"key": said.removeprefix("call:")}))
        return ScriptedReply(text="I look.", tool_calls=(call,))


def finish(pipeline, model, settings, **how):
    return run(pipeline, settings, resume="latest", backends={"producer": model}, **how)


def cut_off(pipeline, model, settings, *, at, resume=None):
    """A run that is ended from outside when the model is asked for something."""

    async def main():
        model.hangs_at, model.reached = at, asyncio.Event()
        running = asyncio.create_task(
            pipeline.run_async({}, resume=resume, settings=settings, backends={"producer": model})
        )
        await model.reached.wait()
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()

    asyncio.run(main())
    model.hangs_at = ""


def asking(*prompts):
    """A node that asks, one after the other, for samples."""

    async def said(run: Run) -> list[str]:
        return [await run.chat("producer", prompt, temperature=1.0) for prompt in prompts]

    return pipeline_of(said)


def kept_file(settings):
    return next(settings.traces.glob("*.replies"), None)


def test_what_was_sampled_is_not_asked_again_over_any_number_of_parts(settings):
    model, pipeline = Sampled(), asking("one", "two", "three")
    cut_off(pipeline, model, settings, at="two")
    kept = kept_file(settings)
    assert kept.stat().st_mode & 0o777 == 0o600, "for its owner alone"
    cut_off(pipeline, model, settings, at="three", resume="latest")
    result = finish(pipeline, model, settings)
    assert result.result == ["one 1", "two 2", "three 3"]
    assert model.prompts == ["one", "two", "three"]
    assert (result.parts, result.spent.calls) == (3, 5)  # two of them were cut off
    assert result.replies_used_again == 2
    assert list(settings.traces.glob(f"{kept.name}*")) == []


async def together(run: Run) -> list[str]:
    both = await asyncio.gather(*(run.chat("producer", "same", temperature=1.0) for _ in range(2)))
    return [*both, await run.chat("producer", "last")]


async def stubborn(run: Run) -> list[str]:
    try:
        first = await run.chat("producer", "one", temperature=1.0)
    except ServerError:
        first = await run.chat("producer", "one", temperature=1.0)
    return [first, await run.chat("producer", "last")]


@pytest.mark.parametrize("node", [together, stubborn], ids=["the same", "after one that failed"])
def test_each_call_keeps_its_own_reply(settings, node):
    model, pipeline = Sampled(refuses_at={1} if node is stubborn else ()), pipeline_of(node)
    cut_off(pipeline, model, settings, at="last")
    asked, said = len(model.requests), model._said
    *earlier, last = finish(pipeline, model, settings).result
    assert earlier == ([f"one {said}"] if node is stubborn else ["same 1", "same 2"])
    assert last == f"last {said + 1}"
    assert model.prompts[asked:] == ["last"]


class FirstIsLast(Sampled):
    """Answers its first call after the second."""

    began = 0

    async def chat(self, request):
        self.began += 1
        if self.began == 1:
            self.second = asyncio.Event()
            await self.second.wait()
        completion = await super().chat(request)
        self.second.set()
        return completion


def test_of_calls_made_together_each_has_the_reply_it_had_whichever_came_first(settings):
    async def said(run: Run) -> list[str]:
        async def twice(number: int) -> str:
            first = await run.chat("producer", "same", temperature=1.0)
            return await run.chat("producer", f"{number} of {first}:")

        return [*await asyncio.gather(twice(1), twice(2)), await run.chat("producer", "last")]

    model, pipeline = FirstIsLast(), pipeline_of(said)
    cut_off(pipeline, model, settings, at="last")
    asked = len(model.requests)
    finish(pipeline, model, settings)
    assert model.prompts[asked:] == ["last"]


def test_a_reply_that_came_when_the_run_was_ended_is_not_asked_for_again(settings):
    class EndsItsRun(Sampled):
        async def chat(self, request):
            await asyncio.sleep(0)
            completion = await super().chat(request)
            if len(self.requests) == 1:
                self.running.cancel()
            return completion

    async def main():
        run = pipeline.run_async({}, settings=settings, backends={"producer": model})
        model.running = asyncio.create_task(run)
        await asyncio.wait([model.running])
        assert model.running.cancelled()

    model, pipeline = EndsItsRun(), asking("one", "two")
    asyncio.run(main())
    assert finish(pipeline, model, settings).result == ["one 1", "two 2"]
    assert model.prompts == ["one", "two"]


def test_a_node_that_asks_a_person_does_not_ask_the_model_again(settings):
    async def said(run: Run) -> str:
        text = await run.chat("producer", "Write.", temperature=1.0)
        return f"{text}: {await run.ask(f'Ship {text}?', returns=bool)}"

    model, pipeline = Sampled(), pipeline_of(said)
    assert run(pipeline, settings, backends={"producer": model}).status == "waiting"
    result = finish(pipeline, model, settings, answers={"said": "yes"})
    assert (result.result, model.prompts) == ("Write. 1: True", ["Write."])


def refusing(*endings, temperature=1.0):
    """A node that cannot use replies with these endings; others are others' code."""

    async def said(run: Run, task: str = "Write.") -> str:
        text = await run.chat("producer", task, temperature=temperature)
        if text.endswith(endings):
            raise ValueError("not this one")
        return text

    return said


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_same_code_does_not_get_the_replies_again_that_failed_it(settings, temperature):
    model = Sampled()
    pipeline = pipeline_of(refusing("1", "2", temperature=temperature), retry=Retry(1))
    fail(pipeline, settings, backends={"producer": model})
    fail(pipeline, settings, backends={"producer": model}, resume="latest")
    assert len(model.prompts) == 2
    assert finish(pipeline, model, settings).result == "Write. 3"
    # A greedy model would say the same once more.
    asked = [(request.temperature, request.seed) for request in model.requests]
    assert asked == ([(0, None), (0.3, 1), (0.3, 2)] if not temperature else [(1, None)] * 3)


@pytest.mark.parametrize(("error", "asked"), [(ValueError, ["Write."] * 3), (OSError, ["Write."])])
def test_of_a_group_of_errors_its_reason_decides_about_other_replies(settings, error, asked):
    async def said(run: Run) -> str:
        text = await run.chat("producer", "Write.", temperature=1.0)

        async def checked() -> None:
            raise error("not this one")

        async with asyncio.TaskGroup() as group:
            group.create_task(checked())
        return text

    model, pipeline = Sampled(), pipeline_of(said)
    for resume in (None, "latest", "latest"):
        fail(pipeline, settings, backends={"producer": model}, resume=resume)
    assert model.prompts == asked


def test_a_failure_in_a_journal_of_an_earlier_version_is_tried_once_more(settings, monkeypatch):
    model, pipeline = Sampled(), pipeline_of(refusing("1"))
    with monkeypatch.context() as earlier:
        earlier.setattr(NodeCall, "_note_failure", lambda _call, _span: nullcontext())
        fail(pipeline, settings, backends={"producer": model})
    # It does not say of which code it was.
    assert finish(pipeline_of(refusing("7")), model, settings).result == "Write. 1"
    assert len(model.prompts) == 1


def test_mended_code_gets_the_last_replies_again_even_if_it_fails_once_more(settings):
    model, parts = Sampled(), [("1", "2"), ("1", "2"), ("2", "3"), ()]
    for number, endings in enumerate(parts[:-1]):
        resume = "latest" if number else None
        pipeline = pipeline_of(refusing(*endings))
        fail(pipeline, settings, backends={"producer": model}, resume=resume)
    assert len(model.prompts) == 2
    assert finish(pipeline_of(refusing("7")), model, settings).result == "Write. 2"
    assert len(model.prompts) == 2


@pytest.mark.parametrize("is_own", [True, False], ids=["its own run", "the run around it"])
@pytest.mark.parametrize("how", ["map", "call", "retry"])
def test_a_failed_call_inside_another_is_made_with_other_replies_too(settings, how, is_own):
    refuses = refusing("2", temperature=0.0)

    async def outer(run: Run) -> list[str]:
        around = run

        async def step(run: Run, item: str) -> str:
            return await refuses(run if is_own else around, item)

        first = await run.chat("producer", "First.")
        if how != "call":
            retry = Retry(2, first_delay_s=0) if how == "retry" else None
            return [first, *await run.map(step, ["a"], retry=retry)]
        inner = Pipeline("inner")
        inner.node(each={"item": "items"})(step)
        return [first, *(await run.call(inner, items=["a"])).result]

    model, pipeline = Sampled(), pipeline_of(outer)
    if how != "retry":
        fail(pipeline, settings, backends={"producer": model})
    resume = None if how == "retry" else "latest"
    done = run(pipeline, settings, backends={"producer": model}, resume=resume)
    asked = [(request.temperature, request.seed) for request in model.requests]
    assert (done.result, asked) == (["First. 1", "a 3"], [(0, None), (0, None), (0.3, 1)])


def test_a_batch_and_its_dry_run_ask_for_other_replies_for_a_failed_row(settings, tmp_path):
    model = Sampled()

    def begun(*endings):
        rows = BatchRows(pipeline_of(refusing(*endings), name="written"), [{"task": "Write."}])
        how = {"settings": settings, "output": tmp_path / "out.jsonl"}
        return Batch(rows, backends={"producer": model}, **how)

    asyncio.run(begun("1").run())
    mended, same = (asyncio.run(begun(ending).rehearsal()) for ending in ("7", "1"))
    assert (mended.again, mended.rows_again, mended.new) == ((), 1, 0)
    (again,) = same.again
    assert (again.node, again.calls, same.rows_again, same.new) == ("rows[0]", 1, 1, 0)

    asyncio.run(begun("1").run())
    assert json.loads((tmp_path / "out.jsonl").read_text())["output"] == "Write. 2"
    assert len(model.prompts) == 2


@pytest.mark.parametrize("is_mended", [False, True])
def test_a_node_gets_its_replies_again_if_its_code_is_mended_or_a_file_was_missing(
    settings, tmp_path, is_mended
):
    error = KeyError if is_mended else FileNotFoundError
    bad = tmp_path / "bad"
    bad.touch()

    async def said(run: Run) -> list:
        replies = [await run.chat("producer", text) for text in ("one", "two")]
        if bad.exists():
            raise error(bad)
        return replies

    model, pipeline = Sampled(), pipeline_of(said)
    fail(pipeline, settings, backends={"producer": model})
    bad.unlink()
    if is_mended:
        error = LookupError
    assert finish(pipeline, model, settings).result == ["one 1", "two 2"]
    assert model.prompts == ["one", "two"]


def test_a_run_that_was_cut_off_between_attempts_makes_them_again_with_the_same_replies(settings):
    attempts = 0

    async def said(run: Run) -> str:
        nonlocal attempts
        attempts += 1
        text = await run.chat("producer", f"Attempt {attempts}.", temperature=1.0)
        if attempts == 1:
            raise ValueError("the first attempt fails")
        return text

    model, pipeline = Sampled(), pipeline_of(said, retry=Retry(2, first_delay_s=0.001))
    cut_off(pipeline, model, settings, at="Attempt 2.")
    attempts = 0  # as in a new process
    assert finish(pipeline, model, settings).result == "Attempt 2. 2"
    assert model.prompts == ["Attempt 1.", "Attempt 2."]


def test_an_error_of_another_kind_is_no_fault_of_the_replies_until_it_comes_again(settings):
    async def said(run: Run) -> str:
        text = await run.chat("producer", "Write.", temperature=1.0)
        if text.endswith("1"):
            raise RuntimeError("another service says no")
        return text

    model, pipeline = Sampled(), pipeline_of(said)
    fail(pipeline, settings, backends={"producer": model})
    fail(pipeline, settings, backends={"producer": model}, resume="latest")
    assert model.prompts == ["Write."]
    assert finish(pipeline, model, settings).result == "Write. 2"


def test_a_rehearsal_names_the_replies_that_are_asked_for_again(settings):
    async def said(run: Run) -> str:
        await run.chat("producer", "Write.")
        raise ValueError

    model, pipeline = Sampled(), pipeline_of(said)

    def foreseen():
        earlier = read_earlier_run(find_journal("latest", lambda: settings.traces))
        return asyncio.run(rehearse(pipeline, {}, earlier, settings=settings)).made_again

    fail(pipeline, settings, backends={"producer": model})
    for _ in range(2):
        (remake,) = foreseen()
        assert (remake.node, remake.calls) == ("said", 1)
        assert "asks for others" in remake.reason
        fail(pipeline, settings, backends={"producer": model}, resume="latest")

    async def mended(run: Run) -> str:
        return await run.chat("producer", "Write.")

    mended.__name__ = "said"
    pipeline = pipeline_of(mended)
    assert foreseen() == ()


@pytest.mark.parametrize("reason", ["length", "content_filter", "tool_calls"])
def test_a_node_that_failed_of_a_reply_that_was_not_whole_asks_again(settings, reason):
    class Cut(Sampled):
        async def chat(self, request):
            completion = await super().chat(request)
            if self.requests[2 if reason == "tool_calls" else 1 :]:
                return completion
            text = "" if reason == "tool_calls" else "W"
            return replace(completion, finish_reason=reason, text=text)

    async def said(run: Run) -> str:
        return await run.chat("producer", "Write.")

    model, pipeline = Cut(), pipeline_of(said)
    fail(pipeline, settings, backends={"producer": model})
    reply = finish(pipeline, model, settings).result
    assert reply == ("Write. 3" if reason == "tool_calls" else "Write. 2")


@pytest.mark.parametrize("trace", [{"content": "hash"}, {"durability": "exit"}], ids=str)
def test_nothing_is_kept_where_a_run_leaves_nothing_else_to_go_on_from(tmp_path, trace):
    settings = settings_of(tmp_path, trace=trace)
    cut_off(asking("one", "two"), Sampled(), settings, at="two")
    assert kept_file(settings) is None


@pytest.mark.parametrize(
    ("said", "is_kept"),
    [
        pytest.param(f"It is {SECRET}.", False, id="a variable's value"),
        pytest.param("password=hunter2hunter2", False, id="what looks like one"),
        pytest.param("call:password=hunter2hunter2", False, id="what a tool is called with"),
        pytest.param("@cache\ndef key(): ...  # key: value", True, id="code without one"),
    ],
)
def test_a_reply_that_holds_a_secret_is_not_kept(settings, monkeypatch, *, said, is_kept):
    monkeypatch.setenv("MY_API_KEY", SECRET)
    model, pipeline = Sampled(), asking(said, "two")
    cut_off(pipeline, model, settings, at="two")
    file = kept_file(settings)
    kept = file.read_bytes() if file else b""
    assert b"hunter2" not in kept
    assert b"of many" not in kept
    finish(pipeline, model, settings)
    assert model.prompts == ([said, "two"] if is_kept else [said, said, "two"])


def test_a_file_that_is_none_is_told_and_the_run_goes_on(settings):
    model, pipeline = Sampled(), asking("one", "two")
    cut_off(pipeline, model, settings, at="two")
    kept_file(settings).write_text('{"neither": "ours"}\n' * 3)
    result = finish(pipeline, model, settings)
    assert result.result == ["one 2", "two 3"]
    assert codes(result.warnings) == ["resume.replies-not-kept"]


# --- what nodes remembered ---------------------------------------------------------------------

TEA = "# Tea\n\nSteep it for three minutes.\n\n# Bread\n\nLet it rise.\n"


def recalled_after(settings, *documents, failures=1):
    """Runs a pipeline that remembers these, and recalls them once it has failed so often."""
    calls, before = Calls(), Calls()

    async def kept(run: Run) -> int:
        for document in documents:
            how = {"title": "Kitchen", "source": "book", "quality": 9.0, "metadata": {"shelf": 3}}
            before.made.extend(await run.remember(document, **how))
        return len(documents)

    async def found(run: Run, kept: int) -> list[str]:
        if calls.note("recalled") <= failures:
            raise ValueError("not yet")
        hits = await run.recall("steep tea, and let bread rise", limit=9, where={"run": run.id})
        passages = [hit.passage for hit in hits]
        assert all(one in before.made for one in passages)
        return sorted(f"{one.title}|{one.source}" for one in passages)

    pipeline = pipeline_of(kept, found)
    for part in range(failures):
        fail(pipeline, settings, resume="latest" if part else None)
    result = run(pipeline, settings, resume="latest")
    (journal,) = (one for one in settings.traces.glob("2*.jsonl") if "." not in one.stem)
    return result, remembered_in(Journal(journal))[0]


def test_what_a_finished_node_remembered_is_recalled_in_every_later_part(settings):
    result, recorded = recalled_after(settings, TEA, "Green tea is less hot.", failures=2)
    assert result.result == ["Bread|book", "Kitchen|book", "Tea|book"]
    assert result.warnings == ()
    # What is kept again is recorded anew, for the part after that: each document counts once.
    assert len(recorded) == 2


@pytest.mark.parametrize(
    "secret",
    ["k3y-of-many-parts", "k3y-of-many-parts-and-more"[: len(REDACTED)]],
    ids=["a secret", "one as long as what stands for it"],
)
def test_a_document_with_a_secret_is_told_to_be_missing_and_the_others_are_there(
    settings, monkeypatch, secret
):
    monkeypatch.setenv("MY_API_KEY", secret)
    result, _ = recalled_after(settings, TEA, f"# Safe\n\nThe tea is behind {secret}.")
    assert result.result == ["Bread|book", "Tea|book"]
    (warning,) = result.warnings
    assert (warning.code, warning.message[:2]) == ("resume.documents-lost", "1 ")


def test_a_memory_that_outlives_its_runs_is_not_filled_again(tmp_path):
    result, recorded = recalled_after(
        settings_of(tmp_path, memory={"path": tmp_path / "memory"}), TEA
    )
    assert (result.result, recorded) == (["Bread|book", "Tea|book"], [])


# --- outputs that hold over many runs -----------------------------------------------------------


def counted(calls, cache, *, ending="!"):
    def loud(word: str) -> str:
        calls.note(word)
        return word.upper() + ending

    return pipeline_of(loud, cache=cache)


def test_an_output_of_another_run_will_do_where_code_and_inputs_are_the_same(settings):
    calls = Calls()
    for _ in range(2):
        run(counted(calls, None), settings, {"word": "a"})
    assert not (settings.traces / OUTPUT_CACHE).exists()
    calls.made.clear()
    first = run(counted(calls, Cache()), settings, {"word": "a"})
    again = run(counted(calls, Cache()), settings, {"word": "a"})
    assert (calls.made, again.result, again.reused) == (["a"], "A!", ("loud",))
    assert first.run_id != again.run_id
    assert run(counted(calls, Cache()), settings, {"word": "b"}).result == "B!"
    assert run(counted(calls, Cache(), ending="?"), settings, {"word": "a"}).result == "A?"
    assert calls.made == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("max_age_s", "age_s", "is_found"), [(None, 1e9, True), (600.0, 500, True), (600.0, 700, False)]
)
def test_an_output_is_found_until_it_is_too_old(settings, *, max_age_s, age_s, is_found):
    calls = Calls()
    run(counted(calls, Cache()), settings, {"word": "a"})
    with closing(sqlite3.connect(settings.traces / OUTPUT_CACHE)) as store, store:
        store.execute(
            "UPDATE reply SET text = json_set(text, '$.stored_s', text ->> '$.stored_s' - ?) "
            "WHERE text LIKE '{%'",
            (age_s,),
        )
    run(counted(calls, Cache(max_age_s=max_age_s)), settings, {"word": "a"})
    assert calls.made == (["a"] if is_found else ["a", "a"])


# --- loops of attempts that were repeated --------------------------------------------------------


@pytest.fixture
def good(tmp_path):
    """A rubric that a text passes if it has the word `good`."""
    path = tmp_path / "good.yaml"
    check = "{check: contains_all, phrases: [good]}"
    path.write_text(f"title: Good\npass_at: 8\ndimensions: [{{name: words, checks: [{check}]}}]\n")
    return path


def insisting(rubric):
    async def text(run: Run) -> str:
        loop = await run.wiggum("Write.", rubric=rubric, max_rounds=1)
        if not loop.passed:
            raise ValueError("not good enough")
        return loop.text

    return text


def test_a_run_passes_if_the_loop_of_a_further_attempt_does(settings, good):
    pipeline = pipeline_of(insisting(good), retry=Retry(2, first_delay_s=0))
    result = run(pipeline, settings, backends={"producer": ScriptedBackend(["bad", "good"])})
    assert (result.result, result.passed, len(result.loops)) == ("good", True, 1)
    assert run(pipeline, settings, resume="latest").passed


def test_a_loop_whose_text_failed_its_node_begins_again_when_the_run_is_resumed(settings, good):
    pipeline = pipeline_of(insisting(good))
    backends = {"producer": ScriptedBackend(["bad", "good"])}
    fail(pipeline, settings, backends=backends)
    result = run(pipeline, settings, resume="latest", backends=backends)
    assert (result.result, result.passed) == ("good", True)
    assert run(pipeline, settings, resume="latest").passed


# --- a cache gives no output in which a person, the memory or a limit had a part ------------------


def test_a_cache_asks_the_person_of_each_run(settings):
    async def ok(run: Run) -> bool:
        return await run.ask("Publish?", returns=bool)

    results = [
        run(pipeline_of(ok, cache=Cache()), settings, asker=lambda _, answer=answer: answer).result
        for answer in ("yes", "no")
    ]
    assert results == [True, False]


def test_a_cache_remembers_and_recalls_in_each_run(settings):
    async def kept(run: Run) -> str:
        await run.remember("# Otters\n\nThey float.", title="Otters", source="here")
        return "kept"

    async def found(run: Run, kept: str) -> int:
        return len(await run.recall("What do otters do?", limit=1))

    pipeline = pipeline_of(kept, cache=Cache())
    pipeline.node(found)
    assert [run(pipeline, settings).result for _ in range(2)] == [1, 1]


def test_a_cache_gives_no_loop_that_a_limit_cut_short(settings, good):
    async def text(run: Run) -> str:
        return (await run.wiggum("Write.", rubric=good, max_rounds=2)).text

    pipeline = pipeline_of(text, cache=Cache())
    says = {"producer": ScriptedBackend(["bad", "bad", "good"])}
    cut = run(pipeline, settings, backends=says, limits=Limits(max_calls=1))
    assert [loop.stop_reason for loop in cut.loops] == ["budget"]
    assert run(pipeline, settings, backends=says).result == "good"
    assert run(pipeline, settings).result == "good", "a loop that ended by itself is kept"


def test_a_cache_gives_no_reply_that_a_limit_cut_short(settings):
    def reply(request):
        words = min(request.max_output_tokens or 400, 400)
        reason = "stop" if words == 400 else "length"
        return ScriptedReply(text="word " * words, finish_reason=reason)

    async def text(run: Run) -> str:
        return await run.chat("producer", "Write much.", on_cut="keep")

    pipeline = pipeline_of(text, cache=Cache())
    says = {"producer": ScriptedBackend(reply)}
    cut = run(pipeline, settings, backends=says, limits=Limits(max_tokens=300))
    assert len(cut.result.split()) < 300
    assert len(run(pipeline, settings, backends=says).result.split()) == 400


@pytest.mark.parametrize("is_resumed", [False, True])
@pytest.mark.parametrize("on_error", [Default("less"), "skip"])
def test_a_cache_gives_no_output_in_which_a_policy_stands_for_a_failed_call(
    settings, monkeypatch, on_error, is_resumed
):
    inner = Pipeline("inner")

    @inner.node(on_error=on_error)
    async def words(run: Run) -> str:
        return await run.chat("producer", "Write.")

    async def text(run: Run) -> str:
        words = str((await run.call(inner)).outputs.get("words"))
        if "DISK_FULL" in os.environ:
            raise OSError("the disk is full")
        return words

    pipeline = pipeline_of(text, cache=Cache())
    down = {"producer": ScriptedBackend([ServerError("it is gone", endpoint="p", status=400)])}
    if is_resumed:
        monkeypatch.setenv("DISK_FULL", "1")
        fail(pipeline, settings, backends=down)
        monkeypatch.delenv("DISK_FULL")
    run(pipeline, settings, backends=down, resume="latest" if is_resumed else None)
    assert run(pipeline, settings, backends={"producer": ScriptedBackend(["all"])}).result == "all"


# --- failures that a policy stands for ------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "result"),
    [(Default("new"), "new!"), ("skip", None), (Default("old"), "old!")],
    ids=["another default", "skipped", "as before"],
)
def test_a_changed_on_error_counts_when_the_run_is_resumed(settings, now, result):
    calls = Calls()

    async def said() -> str:
        calls.note("said")
        raise RuntimeError("not now")

    async def shout(said: str) -> str:
        if len(calls.made) and not calls.may_end:
            raise RuntimeError("nor this")
        return f"{said}!"

    def made(on_error):
        pipeline = pipeline_of()
        pipeline.node(on_error=on_error)(said)
        pipeline.node(shout)
        return pipeline

    calls.may_end = False
    fail(made(Default("old")), settings)
    calls.may_end = True
    assert run(made(now), settings, resume="latest").result == result
    assert len(calls.made) == 1 + (now != Default("old"))


def test_what_a_called_pipeline_skips_is_left_out_of_its_result(settings):
    inner = pipeline_of(name="inner")

    @inner.node(each={"word": "words"}, on_error="skip")
    def upper(word: str) -> str:
        if word == "b":
            raise ValueError("not this one")
        return word.upper()

    async def outer(run: Run) -> list[str]:
        return (await run.call(inner, words=["a", "b", "c"])).result

    assert run(pipeline_of(outer), settings).result == ["A", "C"]
    done = asyncio.run(inner.batch([{"words": ["a", "b", "c"]}], settings=settings))
    assert [*done.outputs.values()] == [["A", "C"]]


# --- questions ------------------------------------------------------------------------------------


def test_a_question_stays_if_whoever_answers_never_says_what_was_asked_for(settings):
    asked = []

    async def ok(run: Run) -> bool:
        return await run.ask("Publish?", returns=bool)

    def asker(question):
        asked.append(question)
        return "maybe"

    result = run(pipeline_of(ok), settings, asker=asker)
    assert (result.status, len(asked)) == ("waiting", 10)
    assert run(pipeline_of(ok), settings, resume="latest", answers={"Publish?": "yes"}).result


def test_a_question_is_kept_although_the_node_gathers_what_was_raised(settings):
    async def both(run: Run) -> list[str]:
        asked = (run.ask("One?"), run.ask("Two?"))
        return [str(answer) for answer in await asyncio.gather(*asked, return_exceptions=True)]

    result = run(pipeline_of(both), settings)
    assert (result.status, {q.text for q in result.questions}) == ("waiting", {"One?", "Two?"})
    answers = {"One?": "1", "Two?": "2"}
    assert run(pipeline_of(both), settings, resume="latest", answers=answers).result == ["1", "2"]


def nested_once_more(rubric, *, mapped):
    """A node that fails once behind a loop in a call inside it."""
    calls = Calls()

    async def inner(run: Run) -> str:
        return (await run.wiggum("Write.", rubric=rubric, max_rounds=1)).text

    pipeline = pipeline_of(inner, name="inside")

    async def text(run: Run) -> str:
        async def written(number: int) -> str:
            return (await run.wiggum(f"Write {number}.", rubric=rubric, max_rounds=1)).text

        if mapped:
            (result,) = await run.map(written, [1])
        else:
            result = (await run.call(pipeline)).result
        calls.note("text")
        if len(calls.made) < 2:
            raise ValueError("once more")
        return result

    return text


@pytest.mark.parametrize("mapped", [False, True], ids=["called", "mapped"])
@pytest.mark.parametrize("said", ["bad", "good"])
def test_a_loop_whose_output_a_further_attempt_takes_again_still_counts(
    settings, good, said, mapped
):
    pipeline = pipeline_of(nested_once_more(good, mapped=mapped), retry=Retry(2, first_delay_s=0))
    result = run(pipeline, settings, backends={"producer": ScriptedBackend([said])})
    assert (result.result, result.passed, len(result.loops)) == (said, said == "good", 1)


def test_the_loop_of_a_call_inside_a_further_attempt_counts_in_place_of_its_first(settings, good):
    inside = pipeline_of(insisting(good), name="inside")

    async def calls_it(run: Run) -> str:
        return (await run.call(inside)).result

    pipeline = pipeline_of(calls_it, retry=Retry(2, first_delay_s=0))
    result = run(pipeline, settings, backends={"producer": ScriptedBackend(["bad", "good"])})
    assert (result.result, result.passed, len(result.loops)) == ("good", True, 1)


def test_loops_stand_in_the_order_they_ended_whatever_calls_they_are_of(settings, good):
    first, second = asyncio.Event(), asyncio.Event()

    async def ends_twice(run: Run) -> int:
        await run.wiggum("Write a.", rubric=good, max_rounds=1)
        first.set()
        await second.wait()
        await run.wiggum("Write c.", rubric=good, max_rounds=1)
        return 1

    async def ends_between(run: Run) -> int:
        await first.wait()
        await run.wiggum("Write b.", rubric=good, max_rounds=1)
        second.set()
        return 1

    backend = ScriptedBackend(lambda request: request.messages[-1].content.split()[1])
    result = run(pipeline_of(ends_twice, ends_between), settings, backends={"producer": backend})
    assert [loop.text for loop in result.loops] == ["a.", "b.", "c."]


def test_an_answer_about_one_draft_does_not_publish_another(settings):
    async def draft(topic: str) -> str:
        return f"about {topic}"

    async def ok(run: Run, draft: str) -> bool:
        return await run.ask("Publish?", returns=bool)

    async def out(draft: str, ok) -> str:
        return f"{ok} {draft}"

    pipeline = pipeline_of(draft, ok, out)
    run(pipeline, settings, {"topic": "tea"})
    first = run(pipeline, settings, resume="latest", answers={"ok/ask": "yes"})
    assert first.result == "True about tea"
    changed = run(pipeline, settings, {"topic": "war"}, resume="latest")
    assert (changed.status, len(changed.questions)) == ("waiting", 1)
    second = run(pipeline, settings, resume="latest", answers={"ok/ask": "no"})
    assert second.result == "False about war"
    again = run(pipeline, settings, {"topic": "tea"}, resume="latest")
    assert again.result == "True about tea"
