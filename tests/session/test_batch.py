"""A pipeline over many rows: what is written of them, and how a batch goes on."""

import asyncio
import json

import pytest
from servers.llama_router import LlamaRouter, Routed
from session_runs import ONE_QUESTION, Calls, settings_of

from harness import Limits, Pipeline, Run, ScriptedBackend, load_run
from harness.errors import InvalidInput
from harness.session.batch import Batch

ROWS = [{"id": name, "task": name} for name in ("one", "two", "three")]


def words_pipeline(calls, *, ending="", fails=()):
    """Two nodes, the first of which asks a model; some tasks fail in the second."""
    words = Pipeline("words")

    @words.node
    async def asked(run: Run, task: str) -> str:
        return await run.chat("producer", task)

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


def outputs(path):
    return {one["id"]: one["output"] for one in lines(path)}


def test_each_row_has_a_line_with_its_inputs_and_its_output(tmp_path):
    table = tmp_path / "tasks.csv"
    table.write_text("id,task,times,note\na,tea,2,hot\nb,milk,,\n")

    done = batch(words_pipeline(Calls()), table, tmp_path)

    assert done.outputs == {"a": "TEATEA", "b": "MILK"}
    assert sorted(lines(tmp_path / "out.jsonl"), key=lambda one: one["row"]) == [
        {
            "row": 0,
            "id": "a",
            "file": str(table),
            "line": 2,
            "inputs": {"id": "a", "task": "tea", "times": "2", "note": "hot"},
            "output": "TEATEA",
        },
        {
            "row": 1,
            "id": "b",
            "file": str(table),
            "line": 3,
            "inputs": {"id": "b", "task": "milk"},
            "output": "MILK",
        },
    ]
    assert not (tmp_path / "out.jsonl.failures.jsonl").exists()


def test_all_rows_are_one_run(tmp_path):
    done = batch(words_pipeline(Calls()), ROWS, tmp_path)

    assert done.run.spent.calls == 3
    assert load_run(done.run.files.journal).started.name == "batch words"
    assert (
        len(list((tmp_path / "traces").glob("*.jsonl"))) == 2
    )  # the journal, and the list of runs


def test_a_failed_row_stops_no_other_and_is_tried_again(tmp_path):
    calls = Calls()
    first = batch(words_pipeline(calls, fails={"two"}), ROWS, tmp_path)
    failed = lines(tmp_path / "out.jsonl.failures.jsonl")

    assert first.run.status == "failed"
    assert outputs(tmp_path / "out.jsonl") == {"one": "ONE", "three": "THREE"}
    assert [(one["id"], one["file"], one["line"], one["row"]) for one in failed] == [
        ("two", "inputs", 2, 1)
    ]
    assert "two is bad" in failed[0]["reason"]

    calls.made.clear()
    again = batch(words_pipeline(calls, fails={"two"}), ROWS, tmp_path)
    assert (calls.made, again.kept) == (["two"], 2)
    assert len(lines(tmp_path / "out.jsonl.failures.jsonl")) == 1


def test_a_batch_that_is_finished_runs_nothing(tmp_path):
    calls = Calls()
    batch(words_pipeline(calls), ROWS, tmp_path)
    backend = echo()

    again = batch(words_pipeline(calls), ROWS, tmp_path, backend=backend)

    assert again.run.had_finished
    assert len(calls.made) == 3
    assert len(lines(tmp_path / "out.jsonl")) == 3


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


def test_a_changed_node_is_called_again_and_those_before_it_are_not(tmp_path):
    calls, backend = Calls(), echo()
    batch(words_pipeline(calls), ROWS, tmp_path, backend=backend)
    before = len(backend.requests)
    changed = words_pipeline(calls, ending="!")

    foreseen = asyncio.run(
        Batch(
            changed, ROWS, output=tmp_path / "out.jsonl", settings=settings_of(tmp_path)
        ).rehearsal()
    )
    assert (foreseen.kept, foreseen.new, dict(foreseen.nodes)) == (0, 0, {"words/made": 3})
    assert "its code changed" in foreseen.again["rows[0]"]

    batch(changed, ROWS, tmp_path, backend=backend)
    assert len(backend.requests) == before
    assert outputs(tmp_path / "out.jsonl") == {"one": "ONE!", "two": "TWO!", "three": "THREE!"}


@pytest.mark.parametrize("output", ["out.jsonl", "out.csv"])
@pytest.mark.parametrize("loss", ["last line", "half a line", "all"])
def test_an_output_that_lost_lines_is_mended_from_the_journal(tmp_path, output, loss):
    calls, path = Calls(), tmp_path / output
    batch(words_pipeline(calls), ROWS, tmp_path, output=output)
    whole = path.read_bytes()
    kept = {
        "last line": whole[: whole[:-1].rfind(b"\n") + 1],
        "half a line": whole[:-9],
        "all": b"",
    }
    path.write_bytes(kept[loss])

    batch(words_pipeline(calls), ROWS, tmp_path, output=output)

    assert sorted(path.read_bytes().splitlines()) == sorted(whole.splitlines())
    assert len(calls.made) == 3


def test_an_output_can_be_parquet(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    batch(words_pipeline(Calls()), ROWS, tmp_path, output="out.parquet")
    found = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert {one["inputs.id"]: one["output"] for one in found} == {
        "one": "ONE",
        "two": "TWO",
        "three": "THREE",
    }


def test_mistakes_of_the_first_hundred_rows_are_told_before_anything_runs(tmp_path):
    table = tmp_path / "tasks.jsonl"
    table.write_text('{"task": "tea"}\n{"times": 3}\n{"task": "tea", "times": "often"}\n{"task"\n')
    calls = Calls()

    with pytest.raises(InvalidInput) as refused:
        batch(words_pipeline(calls), table, tmp_path)

    assert refused.value.code == "batch.rows-mistaken"
    assert [f"{table}:{n}" in str(refused.value) for n in (1, 2, 3, 4)] == [False, True, True, True]
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


def test_a_mistake_further_down_fails_its_row_alone(tmp_path):
    rows = [*({"task": f"task {n}"} for n in range(100)), {"times": 1}]

    done = batch(words_pipeline(Calls()), rows, tmp_path)

    assert len(done.outputs) == 100
    assert [(one.id, one.row) for one in done.failures] == [("inputs:101", None)]


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


def test_a_question_to_a_person_fails_its_row(tmp_path):
    asks = Pipeline("asks")

    @asks.node
    async def ship(run: Run, task: str) -> str:
        return await run.ask("Ship?") if task == "two" else task

    done = batch(asks, ROWS, tmp_path)
    assert [(one.id, "Ship?" in one.reason) for one in done.failures] == [("two", True)]
    assert len(done.outputs) == 2


def judge(request):
    """Scores by the length of what it reads."""
    good = "TEA" in request.messages[-1].content
    return json.dumps({"relevance": {"reason": "So it is.", "score": 9 if good else 3}})


def test_a_rubric_scores_each_output_and_only_once(tmp_path):
    (tmp_path / "one.yaml").write_text(ONE_QUESTION)
    rows = [{"id": f"{drink} {n}", "task": drink} for n in range(4) for drink in ("tea", "milk")]
    settings = settings_of(tmp_path, rubrics=tmp_path, roles={"evaluator": "evaluator"})
    evaluator = ScriptedBackend(judge)
    how = {"output": tmp_path / "out.csv", "settings": settings}
    backends = {"producer": echo(), "evaluator": evaluator}
    pipeline = words_pipeline(Calls())

    asyncio.run(pipeline.batch(rows, backends=backends, **how))
    done = asyncio.run(pipeline.batch(rows, evaluate="one", backends=backends, **how))
    asked = len(evaluator.requests)
    again = asyncio.run(pipeline.batch(rows, evaluate="one", backends=backends, **how))

    assert done.kept == 8
    assert done.scores == again.scores
    assert len(evaluator.requests) == asked == 8
    assert (done.scores.scored, done.scores.passed) == (8, 4)
    low, high = done.scores.mean_within
    assert low < done.scores.mean < high
    assert done.scores.passed_within == pytest.approx((0.2152, 0.7848), abs=1e-3)
    assert "score.relevance" in (tmp_path / "out.csv").read_text().partition("\n")[0]


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        pytest.param(
            lambda p: (p / "out.jsonl.batch").unlink(), "batch.output-foreign", id="no state"
        ),
        pytest.param(
            lambda p: (p / "out.jsonl.batch").write_text("{"), "batch.state-invalid", id="bad"
        ),
        pytest.param(
            lambda p: [one.unlink() for one in (p / "traces").glob("2*.jsonl")],
            "batch.run-gone",
            id="no journal",
        ),
    ],
)
def test_an_output_that_the_batch_cannot_know_is_left_alone(tmp_path, spoil, code):
    batch(words_pipeline(Calls()), ROWS, tmp_path)
    before = (tmp_path / "out.jsonl").read_bytes()
    spoil(tmp_path)

    with pytest.raises(InvalidInput) as refused:
        batch(words_pipeline(Calls()), ROWS, tmp_path)

    assert refused.value.code == code
    assert (tmp_path / "out.jsonl").read_bytes() == before


def test_outputs_of_one_stem_are_two_batches(tmp_path):
    fails = words_pipeline(Calls(), fails={"two"})
    first = batch(fails, ROWS, tmp_path)
    second = batch(fails, ROWS, tmp_path, output="out.csv")

    assert second.kept == 0
    assert second.run.run_id != first.run.run_id
    assert second.failures_file == tmp_path / "out.csv.failures.jsonl"
    assert first.failures_file == tmp_path / "out.jsonl.failures.jsonl"
    assert len(lines(first.failures_file)) == 1


def test_an_output_of_another_pipeline_is_left_alone(tmp_path):
    batch(words_pipeline(Calls()), ROWS, tmp_path)
    other = Pipeline("other")
    other.node(lambda task: task, name="step")
    with pytest.raises(InvalidInput) as refused:
        batch(other, ROWS, tmp_path)
    assert refused.value.code == "batch.other-pipeline"


def test_secrets_are_in_no_file_of_a_batch(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_API_KEY", "plumeria-41-secret")
    same = ScriptedBackend(lambda request: request.messages[-1].content)
    batch(words_pipeline(Calls()), [{"task": "plumeria-41-secret"}], tmp_path, backend=same)
    (line,) = lines(tmp_path / "out.jsonl")
    assert "plumeria-41" not in json.dumps(line)


def test_a_row_whose_columns_are_no_inputs_is_refused_though_all_have_defaults(tmp_path):
    defaults = Pipeline("defaults")
    defaults.node(lambda task="tea": task, name="step")
    with pytest.raises(InvalidInput, match="--columns INPUT=COLUMN"):
        batch(defaults, [{"drink": "milk"}], tmp_path)
    done = batch(defaults, [{"drink": "milk"}], tmp_path, columns={"task": "drink"})
    assert [*done.outputs.values()] == ["milk"]


def test_an_input_of_every_row_must_be_one(tmp_path):
    with pytest.raises(InvalidInput) as refused:
        batch(words_pipeline(Calls()), ROWS, tmp_path, every={"tsak": "tea"})
    assert refused.value.code == "pipeline.unknown-input"


def test_a_rubric_that_needs_a_judge_is_refused_before_any_row_is_run(tmp_path):
    (tmp_path / "one.yaml").write_text(ONE_QUESTION)
    calls = Calls()
    with pytest.raises(InvalidInput, match="evaluator"):
        batch(
            words_pipeline(calls),
            ROWS,
            tmp_path,
            evaluate="one",
            settings=settings_of(tmp_path, rubrics=tmp_path),
        )
    assert not calls.made


def test_an_output_of_an_unknown_kind_is_refused_before_any_row_is_run(tmp_path):
    calls = Calls()
    with pytest.raises(InvalidInput) as refused:
        batch(words_pipeline(calls), ROWS, tmp_path, output="out.txt")
    assert (refused.value.code, calls.made) == ("row.output-unknown", [])


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
