"""A pipeline over many rows: what is written of them, and how a batch goes on."""

import asyncio
import csv
import json

import pyarrow.parquet
import pytest
from sample_runs import load_run
from servers.llama_router import LlamaRouter, Routed
from session_runs import BAD, GOOD, SOURCE, Calls, pipeline_of, refused, settings_of

from harness import Limits, Pipeline, Run, ScriptedBackend
from harness.errors import CallTimeout, InvalidInput
from harness.session.batch import Batch
from harness.session.batch_rows import BatchRows
from harness.trace.secrets import REDACTED

ANSWERED = [{"role": "producer", "endpoint": "producer", "model": "producer"}]
ROWS = [{"id": name, "task": name} for name in ("one", "two", "three")]


def words_pipeline(calls, *, ending="", fails=(), prompt="{task}"):
    """Two nodes, the first of which asks a model; some tasks fail in the second."""
    words = Pipeline("words")

    @words.node
    async def asked(run: Run, task: str) -> str:
        return await run.chat("producer", prompt.format(task=task))

    @words.node
    def made(asked: str, task: str, times: int = 1) -> str:
        if calls.note(task) and task in fails:
            raise ValueError(f"{task} is bad")
        return asked * times + ending

    return words


def echo():
    """A model that says what it is told, in capitals."""
    return ScriptedBackend(lambda request: request.messages[-1].content.upper())


def batch(pipeline, rows, tmp_path, *, backend=None, output="out.jsonl", **how):
    """Runs it into a file of the test's folder."""
    return asyncio.run(
        pipeline.batch(
            rows,
            output=tmp_path / output,
            settings=how.pop("settings", None) or settings_of(tmp_path),
            backends={"producer": backend or echo()},
            **how,
        )
    )


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def table(path):
    """The lines of an output of any kind."""
    if path.suffix == ".jsonl":
        return lines(path)
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            return list(csv.DictReader(file))
    return pyarrow.parquet.read_table(path).to_pylist()


def outputs(path):
    return {one["id"]: one["output"] for one in lines(path)}


def test_each_row_has_a_line_with_its_inputs_and_its_output(tmp_path):
    table = tmp_path / "tasks.csv"
    table.write_text("id,task,times,note\na,tea,2,hot\nb,milk,,\n")

    done = batch(words_pipeline(Calls()), table, tmp_path)

    assert done.outputs == {"a": "TEATEA", "b": "MILK"}
    tea, milk = {"id": "a", "task": "tea", "times": "2", "note": "hot"}, {"id": "b", "task": "milk"}
    both = {"file": str(table), "models": ANSWERED}
    assert sorted(lines(tmp_path / "out.jsonl"), key=lambda one: one["row"]) == [
        {"row": 0, "id": "a", "line": 2, "inputs": tea, "output": "TEATEA", **both},
        {"row": 1, "id": "b", "line": 3, "inputs": milk, "output": "MILK", **both},
    ]
    assert not (tmp_path / "out.jsonl.failures.jsonl").exists()


def test_all_rows_are_one_run(tmp_path):
    done = batch(words_pipeline(Calls()), ROWS, tmp_path)

    assert done.run.spent.calls == 3
    assert load_run(done.run.files.journal).started.name == "batch words"
    assert len([*(tmp_path / "traces").glob("*.jsonl")]) == 2  # the journal, and the list of runs


def test_a_failed_row_stops_no_other_and_is_tried_again(tmp_path):
    calls = Calls()
    first = batch(words_pipeline(calls, fails={"two"}), ROWS, tmp_path)
    (failed,) = lines(tmp_path / "out.jsonl.failures.jsonl")

    assert first.run.status == "failed"
    assert outputs(tmp_path / "out.jsonl") == {"one": "ONE", "three": "THREE"}
    assert [failed[key] for key in ("id", "file", "line", "row")] == ["two", "inputs", 2, 1]
    assert "two is bad" in failed["reason"]

    calls.made.clear()
    again = batch(words_pipeline(calls, fails={"two"}), ROWS, tmp_path)
    assert (calls.made, again.kept) == (["two"], 2)
    assert len(lines(tmp_path / "out.jsonl.failures.jsonl")) == 1


def test_rows_are_told_in_the_order_of_the_table_though_they_ended_in_another(tmp_path):
    ended = []

    def late_first(*, fails):
        words, turns = Pipeline("words"), [asyncio.Event() for _ in "0123"]
        turns[3].set()

        @words.node
        async def made(task: str) -> str:
            await turns[int(task) + 1].wait()
            ended.append(task)
            turns[int(task)].set()
            if fails:
                raise ValueError(task)
            return task

        return words

    table = [{"id": name, "task": name} for name in "012"]
    failed = batch(late_first(fails=True), table, tmp_path, max_failures=None)
    batch(late_first(fails=False), table, tmp_path)
    foreseen = foreseen_of(words_pipeline(Calls()), tmp_path, table)

    assert ended == ["2", "1", "0"] * 2
    assert [failure.id for failure in failed.failures] == ["0", "1", "2"]
    assert [remake.node for remake in foreseen.again] == ["rows[0]", "rows[1]", "rows[2]"]


def test_a_batch_that_is_finished_runs_nothing(tmp_path):
    calls = Calls()
    batch(words_pipeline(calls), ROWS, tmp_path)
    assert batch(words_pipeline(calls), ROWS, tmp_path).run.had_finished
    assert (len(calls.made), len(lines(tmp_path / "out.jsonl"))) == (3, 3)


def test_rows_are_known_by_what_they_hold(tmp_path):
    calls = Calls()
    batch(words_pipeline(calls), ROWS, tmp_path)
    calls.made.clear()

    changed = [ROWS[2], {"id": "four", "task": "four"}, {"id": "one", "task": "uno"}]
    done = batch(words_pipeline(calls), changed, tmp_path)

    assert sorted(calls.made) == ["four", "uno"]
    assert done.kept == 1
    assert outputs(tmp_path / "out.jsonl") == {"three": "THREE", "four": "FOUR", "one": "UNO"}
    assert batch(words_pipeline(calls), ROWS, tmp_path).kept == 3  # nothing is forgotten


def test_two_rows_without_an_id_may_hold_the_same(tmp_path):
    rows = [{"task": "tea"}, {"task": "tea"}]
    assert batch(words_pipeline(Calls()), rows, tmp_path).rows == 2
    assert len(lines(tmp_path / "out.jsonl")) == 2
    assert batch(words_pipeline(Calls()), rows, tmp_path).kept == 2


def foreseen_of(pipeline, tmp_path, rows=ROWS):
    made = Batch(
        BatchRows(pipeline, rows),
        output=tmp_path / "out.jsonl",
        settings=settings_of(tmp_path),
        backends={"producer": echo()},
    )
    return asyncio.run(made.rehearsal())


def test_a_changed_node_is_called_again_and_those_before_it_are_not(tmp_path):
    calls, backend = Calls(), echo()
    batch(words_pipeline(calls), ROWS, tmp_path, backend=backend)
    before = len(backend.requests)
    changed = words_pipeline(calls, ending="!")

    foreseen = foreseen_of(changed, tmp_path)
    assert (foreseen.kept, foreseen.new, dict(foreseen.nodes)) == (0, 0, {"words/made": 3})
    assert "its code changed" in foreseen.again[0].reason

    batch(changed, ROWS, tmp_path, backend=backend)
    assert len(backend.requests) == before
    assert outputs(tmp_path / "out.jsonl") == {"one": "ONE!", "two": "TWO!", "three": "THREE!"}


def test_calls_within_a_call_that_is_kept_are_not_foreseen(tmp_path):
    def outer(ending):
        pipeline = Pipeline("outer")

        @pipeline.node
        async def inner(run: Run, task: str) -> str:
            return (await run.call(words_pipeline(Calls()), task=task)).result

        pipeline.node(lambda inner: inner + ending, name="last")
        return pipeline

    batch(outer(""), ROWS, tmp_path)
    foreseen = foreseen_of(outer("!"), tmp_path)

    assert dict(foreseen.nodes) == {"outer/last": 3}
    assert [again.calls for again in foreseen.again] == [0, 0, 0]


def test_what_a_row_took_is_what_it_took_the_last_time(tmp_path):
    took = []
    for prompt in ("{task} or so", "{task}", "{task}, if not the word before it", "{task}?"):
        foreseen = foreseen_of(words_pipeline(Calls(), prompt=prompt), tmp_path)
        took.append([(one.calls, one.input_tokens) for one in foreseen.again])
        done = batch(words_pipeline(Calls(), prompt=prompt), ROWS, tmp_path)
        assert (done.kept, len(done.outputs)) == (0, 3)
    after = foreseen_of(words_pipeline(Calls(), prompt="none"), tmp_path)

    assert [calls for part in took[1:] for calls, _ in part] == [1] * 9
    assert [(one.calls, one.input_tokens) for one in after.again] == took[2]
    assert took[1] != took[2]


@pytest.mark.parametrize("output", ["out.jsonl", "out.csv", "out.parquet"])
def test_old_outputs_stay_in_the_file_and_are_marked_until_they_are_replaced(tmp_path, output):
    batch(words_pipeline(Calls()), ROWS, tmp_path, output=output)
    path, changed = tmp_path / output, words_pipeline(Calls(), prompt="{task}?")

    stopped = batch(changed, ROWS, tmp_path, output=output, limits=Limits(max_calls=4))
    halfway = {one["id"]: (one["output"], one.get("outdated") or "") for one in table(path)}
    batch(changed, ROWS, tmp_path, output=output, limits=Limits(max_calls=9))
    replaced = {one["id"]: (one["output"], one.get("outdated") or "") for one in table(path)}

    assert stopped.run.status == "stopped"
    assert halfway.keys() == replaced.keys() == {"one", "two", "three"}
    old = [text for text, outdated in halfway.values() if outdated]
    new = [text for text, outdated in halfway.values() if not outdated]
    assert (len(old), len(new)) == (2, 1)
    assert all(text.endswith("?") for text in new)
    assert not any(text.endswith("?") for text in old)
    assert all("its code changed" in outdated for _, outdated in halfway.values() if outdated)
    assert set(stopped.outputs.values()) == set(new)  # figures are of these alone
    assert replaced == {name: (f"{name.upper()}?", "") for name in ("one", "two", "three")}


def test_a_request_that_a_changed_pipeline_makes_again_has_its_reply_already(tmp_path):
    backend = echo()
    batch(words_pipeline(Calls()), ROWS, tmp_path, backend=backend)

    changed = words_pipeline(Calls(), prompt="{task!s}")  # other code, the same words
    done = batch(changed, ROWS, tmp_path, backend=backend)

    assert (done.kept, done.run.replies_used_again, len(backend.requests)) == (0, 3, 3)


@pytest.mark.parametrize("output", ["out.jsonl", "out.csv"])
@pytest.mark.parametrize("loss", ["last line", "half a line", "all"])
def test_an_output_that_lost_lines_is_mended_from_the_journal(tmp_path, output, loss):
    calls, path = Calls(), tmp_path / output
    batch(words_pipeline(calls), ROWS, tmp_path, output=output)
    whole = path.read_bytes()
    end = {"last line": whole[:-1].rfind(b"\n") + 1, "half a line": -9, "all": 0}[loss]
    path.write_bytes(whole[:end])

    batch(words_pipeline(calls), ROWS, tmp_path, output=output)

    assert sorted(path.read_bytes().splitlines()) == sorted(whole.splitlines())
    assert len(calls.made) == 3


@pytest.mark.parametrize("output", ["out.jsonl", "out.csv", "out.parquet"])
def test_no_file_of_a_batch_holds_a_secret_of_its_table(tmp_path, monkeypatch, output):
    monkeypatch.setenv("TABLE_PASSWORD", "hunter2-of-the-table")
    settings = settings_of(tmp_path, trace={"secrets": ["TABLE_PASSWORD"]})
    rows = [{"id": "a", "task": "tea", "note": "hunter2-of-the-table"}]

    batch(words_pipeline(Calls()), rows, tmp_path, output=output, settings=settings)

    (line,) = table(tmp_path / output)
    inputs = line.get("inputs") or {"note": line["inputs.note"]}
    assert "hunter2" not in str(line)
    assert inputs["note"] == REDACTED


def test_mistakes_of_rows_are_told_before_anything_runs(tmp_path):
    table = tmp_path / "tasks.jsonl"
    table.write_text('{"task": "tea"}\n{"times": 3}\n{"task": "tea", "times": "often"}\n{"task"\n')
    calls = Calls()

    with refused("batch.rows-mistaken") as caught:
        batch(words_pipeline(calls), table, tmp_path)

    assert [f"{table}:{n}" in str(caught.value) for n in (1, 2, 3, 4)] == [False, True, True, True]
    assert not calls.made
    assert not (tmp_path / "traces").exists()


def test_a_mistake_of_all_rows_is_told_once_with_what_to_give(tmp_path):
    table = tmp_path / "tasks.csv"
    table.write_text("times,note\n" + "1,a\n2,b\n" * 4)

    with pytest.raises(InvalidInput) as refused:
        batch(words_pipeline(Calls()), table, tmp_path)

    (line,) = str(refused.value).splitlines()[1:]
    assert line.startswith(f"  {table}:2, {table}:3, {table}:4 and 5 more: ")
    assert "--set task=" in line


@pytest.mark.parametrize("place", [5, 110])
def test_a_mistaken_row_stops_the_batch_or_fails_alone_wherever_it_stands(tmp_path, place):
    rows: list[dict[str, object]] = [{"task": f"task {n}"} for n in range(120)]
    rows[place] = {"times": 1}
    calls = Calls()

    with refused("batch.rows-mistaken"):
        batch(words_pipeline(calls), rows, tmp_path)
    assert calls.made == []

    done = batch(words_pipeline(calls), rows, tmp_path, bad_rows="skip")
    assert len(done.outputs) == 119
    assert [(one.id, one.row) for one in done.failures] == [(f"inputs:{place + 1}", None)]


def test_texts_of_a_folder_are_inputs_by_their_files(tmp_path):
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "a.md").write_text("tea")
    (folder / "b.md").write_text("milk")
    calls = Calls()

    for _ in range(2):
        done = batch(words_pipeline(calls), folder, tmp_path, every={"task": "@{path}"})
    assert {*done.outputs.values()} == {"TEA", "MILK"}

    (folder / "a.md").write_text("coffee")
    calls.made.clear()
    batch(words_pipeline(calls), folder, tmp_path, every={"task": "@{path}"})
    assert calls.made == ["coffee"]


def test_columns_stand_in_inputs_of_every_row(tmp_path):
    rows = [{"drink": "tea", "who": "Ada"}]
    done = batch(words_pipeline(Calls()), rows, tmp_path, every={"task": "{drink} for {who}"})
    assert [*done.outputs.values()] == ["TEA FOR ADA"]

    with pytest.raises(InvalidInput, match="it has no 'whom'"):
        batch(words_pipeline(Calls()), rows, tmp_path, every={"task": "{whom}"})


def test_a_larger_sample_goes_on_from_a_smaller_one(tmp_path):
    rows = [{"task": f"task {n}"} for n in range(20)]
    small = batch(words_pipeline(Calls()), rows, tmp_path, sample=5, seed=3)
    large = batch(words_pipeline(Calls()), rows, tmp_path, sample=8, seed=3)
    assert (small.rows, large.rows, large.kept) == (5, 8, 5)


def test_limits_are_those_of_the_whole_batch(tmp_path):
    first = batch(words_pipeline(Calls()), ROWS, tmp_path, limits=Limits(max_calls=2))
    assert (first.run.status, len(first.outputs), first.failures) == ("stopped", 2, ())
    again = batch(words_pipeline(Calls()), ROWS, tmp_path, limits=Limits(max_calls=3))
    assert (again.run.status, again.kept, again.run.spent.calls) == ("finished", 2, 3)


def revised_and_told():
    """A loop, and a node behind it that asks the model again."""

    async def text(run: Run, task: str) -> str:
        return (await run.wiggum(task, sources=[SOURCE], rubric="answer")).text

    async def told(run: Run, text: str) -> str:
        return await run.chat("producer", f"Tell: {text}")

    return pipeline_of(text, told)


@pytest.mark.parametrize("output", ["out.jsonl", "out.csv", "out.parquet"])
def test_a_row_whose_loop_goes_on_keeps_what_it_had_until_it_has_more(tmp_path, output):
    down, rows = CallTimeout("too slow"), ROWS[:1]
    commands = [  # the model's replies, the row's output, whether its loop goes on again
        ([BAD, down, "before"], "before", 1),
        ([down], "before", 1),  # the draft is the same, so the node behind it is not called
        ([GOOD, down], "before", 1),  # the node behind it fails
        (["after"], "after", 0),
        ([], "after", 0),
    ]
    for replies, expected, goes_on in commands:
        backend = ScriptedBackend(replies)
        done = batch(revised_and_told(), rows, tmp_path, backend=backend, output=output)
        assert (done.run.status, done.outputs, done.failures) == ("finished", {"one": expected}, ())
        assert (len(backend.requests), done.failures_file) == (len(replies), None)
        assert [warning.code for warning in done.run.warnings] == ["loop.cut"] * goes_on
        assert done.not_passed == (expected == "before")
        (line,) = table(tmp_path / output)
        assert (line["output"], line.get("outdated", "")) == (expected, "")
        assert not (tmp_path / f"{output}.failures.jsonl").exists()


def test_a_row_whose_loop_goes_on_keeps_what_it_had_at_a_limit(tmp_path):
    down, pipeline, rows = CallTimeout("too slow"), revised_and_told(), ROWS[:1]
    batch(pipeline, rows, tmp_path, backend=ScriptedBackend([BAD, down, "before"]))
    limits, backend = Limits(max_calls=4), ScriptedBackend([GOOD])
    cut = batch(pipeline, rows, tmp_path, backend=backend, limits=limits)
    assert (cut.run.status, cut.outputs, cut.failures) == ("stopped", {"one": "before"}, ())
    limits, backend = Limits(max_calls=5), ScriptedBackend(["after"])
    more = batch(pipeline, rows, tmp_path, backend=backend, limits=limits)
    assert (more.run.status, more.outputs) == ("finished", {"one": "after"})


def test_a_question_to_a_person_fails_its_row(tmp_path):
    asks = Pipeline("asks")

    @asks.node
    async def ship(run: Run, task: str) -> str:
        return await run.ask("Ship?") if task == "two" else task

    done = batch(asks, ROWS, tmp_path)
    assert [(one.id, "Ship?" in one.reason) for one in done.failures] == [("two", True)]
    assert len(done.outputs) == 2


def test_a_row_whose_columns_are_no_inputs_is_refused_though_all_have_defaults(tmp_path):
    defaults = Pipeline("defaults")
    defaults.node(lambda task="tea": task, name="step")
    with pytest.raises(InvalidInput, match="--columns INPUT=COLUMN"):
        batch(defaults, [{"drink": "milk"}], tmp_path)
    done = batch(defaults, [{"drink": "milk"}], tmp_path, columns={"task": "drink"})
    assert [*done.outputs.values()] == ["milk"]


def test_an_input_of_every_row_must_be_one(tmp_path):
    with refused("pipeline.unknown-input"):
        batch(words_pipeline(Calls()), ROWS, tmp_path, every={"tsak": "tea"})


def test_an_output_of_an_unknown_kind_is_refused_before_any_row_is_run(tmp_path):
    calls = Calls()
    with refused("row.output-unknown"):
        batch(words_pipeline(calls), ROWS, tmp_path, output="out.txt")
    assert calls.made == []


def test_where_models_take_turns_each_load_serves_eight_times_as_many_rows(tmp_path):
    pipeline = Pipeline("turns")

    @pipeline.node
    async def draft(run: Run, task: str) -> str:
        return await run.chat("producer", task)

    @pipeline.node
    async def verdict(run: Run, draft: str) -> str:
        return await run.chat("critic", draft)

    async def main():
        async with LlamaRouter(models={"producer": Routed(), "critic": Routed()}) as server:
            one = {"backend": "llamacpp", "url": server.url, "manage": True, "need": "1 GiB"}
            settings = settings_of(
                tmp_path,
                endpoints={tag: {"tag": tag, **one} for tag in ("producer", "critic")},
                budget={"capacity": "1.5 GiB"},
            )
            rows = [{"task": f"row {number}"} for number in range(16)]
            done = await pipeline.batch(rows, max_parallel=2, settings=settings)
            return len(done.outputs), server.loads

    rows, loads = asyncio.run(main())
    assert rows == 16
    assert loads <= 4  # 16 if two rows at a time took turns


def test_a_row_that_has_no_json_is_refused_and_no_line_of_another_is_lost(tmp_path):
    pipeline = Pipeline("texts")

    @pipeline.node
    def keys(text: str) -> dict[int, str]:
        return {1: text}

    batch(pipeline, [{"text": "a"}], tmp_path)
    assert len(lines(tmp_path / "out.jsonl")) == 1
    for row in ({"text": "b", "extra": {1: "a"}}, {"text": "b", "id": 2**70}, {1: "a"}):
        with pytest.raises(InvalidInput, match="it has no JSON"):
            batch(pipeline, [row], tmp_path)
    with refused("pipeline.parallel-calls-not-positive"):
        batch(pipeline, [{"text": "a"}], tmp_path, max_parallel=0)
    with refused("batch.sample-not-positive"):
        batch(pipeline, [{"text": "a"}], tmp_path, sample=0)


@pytest.mark.parametrize("output", ["out.jsonl", "out.csv"])
def test_what_strict_json_lacks_is_in_the_file_as_any_reader_takes_it(tmp_path, output):
    pipeline = Pipeline("odd")

    @pipeline.node
    def values(text: str) -> list[object]:
        return [text, float("nan"), 2**64, "\ud800"]

    done = batch(pipeline, [{"text": "a"}], tmp_path, output=output)
    plain = ["a", None, str(2**64), "?"]
    assert [*done.outputs.values()] == [plain]
    (line,) = table(tmp_path / output)
    assert line["output"] == (
        plain if output == "out.jsonl" else json.dumps(plain, separators=(",", ":"))
    )
