"""Batches in shards: which rows each has, and one output of all."""

import asyncio
import csv
import json
import random

import pyarrow.parquet
import pytest
from golden import assert_shown
from hypothesis import given
from hypothesis import strategies as st
from session_runs import settings_of

from harness import Pipeline
from harness.errors import InvalidInput
from harness.session.batch import Batch
from harness.session.batch_files import merge_shards, state_of
from harness.session.batch_rows import BatchRows, Shard

ROWS = [{"id": f"r{n}", "text": f"text {n}"} for n in range(40)]


def shout_pipeline(fails=()):
    shout = Pipeline("shout")

    @shout.node
    def loud(text: str) -> str:
        if text in fails:
            raise ValueError(f"{text} is bad")
        return text.upper()

    return shout


def shards(of):
    return [Shard(number=number, of=of) for number in range(1, of + 1)]


def run_shard(shard, tmp_path, *, rows=ROWS, output="out.jsonl", fails=(), **how):
    table = BatchRows(shout_pipeline(fails), rows, shard=shard, bad_rows="skip")
    path = shard.path(tmp_path / output)
    batch = Batch(table, settings=settings_of(tmp_path), output=path, **how)
    return asyncio.run(batch.run())


def merge(tmp_path, *, rows=ROWS, output="out.jsonl"):
    return merge_shards(BatchRows(shout_pipeline(), rows, bad_rows="skip"), tmp_path / output)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


# --- which rows -------------------------------------------------------------------------------


ROW = st.fixed_dictionaries({"text": st.text(max_size=3)}, optional={"id": st.text(max_size=2)})


@given(st.lists(ROW, min_size=1, max_size=30), st.integers(1, 7), st.randoms())
def test_each_row_is_in_one_shard_in_any_order_of_the_table(rows, of, chance):
    pipeline = shout_pipeline()

    def divided(table):
        """Of each shard, what its rows hold; all rows are refused in a table without one."""
        parts = [BatchRows(pipeline, table, shard=s, bad_rows="skip") for s in shards(of)]
        names = [name for part in parts for name in part.given]
        places = [failure.place for part in parts for failure in part.refused]
        return parts, names, places

    try:
        whole = BatchRows(pipeline, rows, bad_rows="skip")
    except InvalidInput:
        return
    parts, names, places = divided(rows)
    assert sorted(names) == sorted(whole.given)
    assert sorted(places) == sorted(failure.place for failure in whole.refused)
    assert len({part.identity["table"] for part in parts}) == 1

    if any("id" in row for row in rows):
        return  # of rows with the same id, the first counts
    shuffled = random.Random(chance.random()).sample(rows, len(rows))
    others, _, _ = divided(shuffled)
    assert [{*part.given} for part in parts] == [{*part.given} for part in others]


def test_a_table_with_ids_is_the_same_in_any_order_and_others_are_not():
    pipeline = shout_pipeline()

    def table(rows):
        return BatchRows(pipeline, rows, bad_rows="skip").identity["table"]

    assert table(ROWS) == table(ROWS[::-1])
    assert len({table(rows) for rows in (ROWS, ROWS[1:], [*ROWS[1:], {**ROWS[0], "text": "x"}],
                                         [*ROWS[1:], {**ROWS[0], "id": "x"}])}) == 4  # fmt: skip


def test_shards_are_of_about_one_size():
    rows = [{"text": f"text {n}"} for n in range(2000)]
    sizes = [len(BatchRows(shout_pipeline(), rows, shard=shard).given) for shard in shards(5)]
    assert sum(sizes) == 2000
    assert 340 < min(sizes) <= max(sizes) < 460


# --- one output -------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_a_merge_has_what_the_batch_would_have_in_the_order_of_the_table(tmp_path, ending):
    rows = [*ROWS[::-1], {"id": "=1+1", "text": "=SUM(A1)", "note": "a\tb"}]
    output = f"out.{ending}"
    runs = [run_shard(s, tmp_path, rows=rows, output=output).run.run_id for s in shards(3)]

    merged = merge(tmp_path, rows=rows, output=output)

    assert (merged.shards, merged.rows, merged.done, merged.failed) == (3, 41, 41, 0)
    assert merged.runs == runs
    whole = tmp_path / f"whole.{ending}"
    table = BatchRows(shout_pipeline(), rows)
    asyncio.run(Batch(table, settings=settings_of(tmp_path), output=whole).run())

    def read(path):
        if ending == "jsonl":
            return lines(path)
        if ending == "csv":
            with path.open(newline="") as file:
                return list(csv.DictReader(file))
        return pyarrow.parquet.read_table(path).to_pylist()

    together = read(tmp_path / output)
    assert [row["id"].lstrip("'") for row in together] == [row["id"] for row in rows]
    assert {row.pop("run") for row in together} == set(runs)
    expected = {row["id"]: row for row in read(whole)}
    for row in together:
        assert {**row, "row": 0} == {**expected[row["id"]], "row": 0}
    if ending == "csv":
        assert (tmp_path / output).read_text().splitlines()[0] == (
            whole.read_text().splitlines()[0] + ",run"
        )
    assert merge(tmp_path, rows=rows, output=output) == merged  # again, over its own output


def test_failures_are_joined_too(tmp_path):
    rows = [*ROWS, {"id": "none"}]
    for shard in shards(2):
        run_shard(shard, tmp_path, rows=rows, fails={"text 3", "text 4"})

    merged = merge(tmp_path, rows=rows)

    assert (merged.rows, merged.done, merged.failed) == (41, 38, 3)
    together = tmp_path / "out.jsonl.failures.jsonl"
    failures = lines(together)
    assert {failure["id"] for failure in failures} == {"r3", "r4", "none"}
    assert {failure["run"] for failure in failures} <= {*merged.runs}
    for shard in shards(2):
        run_shard(shard, tmp_path, rows=ROWS)
    assert merge(tmp_path).failed == 0
    assert not together.exists()


def test_a_shard_without_rows_is_complete(tmp_path):
    done = [run_shard(shard, tmp_path, rows=ROWS[:2]).rows for shard in shards(7)]
    assert sorted(done)[-3:] != [0, 0, 0]
    assert 0 in done
    assert merge(tmp_path, rows=ROWS[:2]).done == 2


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_empty_shards_of_tables_are_complete(tmp_path, ending):
    for shard in shards(5):
        run_shard(shard, tmp_path, rows=ROWS[:1], output=f"out.{ending}")
    assert merge(tmp_path, rows=ROWS[:1], output=f"out.{ending}").done == 1


def test_a_manifest_says_what_is_complete(tmp_path):
    shard = Shard(number=1, of=2)
    state, during = state_of(shard.path(tmp_path / "out.jsonl")), []
    fails = {"text 3", "text 4", "text 5", "text 6"}
    watch = [lambda _: during.append(json.loads(state.read_text())) if state.exists() else None]
    done = run_shard(shard, tmp_path, fails=fails, observers=watch)
    manifest = json.loads(state.read_text())
    states = {(of["run"], of["complete"], "done" in of) for of in during}
    assert states == {(done.run.run_id, False, False)}, "so a kill leaves it"
    assert (manifest["run"], manifest["shard"], manifest["complete"]) == (
        done.run.run_id,
        "1/2",
        True,
    )
    assert (manifest["rows"], manifest["done"]) == (done.rows, len(done.outputs))
    assert manifest["failed"] == len(done.failures) > 0


# --- refused ----------------------------------------------------------------------------------


def refused(tmp_path, **how):
    with pytest.raises(InvalidInput) as caught:
        merge(tmp_path, **how)
    return caught.value


def assert_told(case, error, tmp_path):
    assert_shown("batch merge", case, str(error), masks={str(tmp_path): "/here"})


def test_what_is_not_complete_is_named(tmp_path):
    first, second, third = shards(3)
    run_shard(first, tmp_path)
    bad = {row["text"] for row in ROWS}
    run_shard(second, tmp_path, fails=bad, max_failures=0, max_parallel=1)
    error = refused(tmp_path)
    assert error.code == "batch.shards-incomplete"
    assert_told("incomplete", error, tmp_path)
    assert not (tmp_path / "out.jsonl").exists()

    run_shard(second, tmp_path)
    run_shard(third, tmp_path)
    state = state_of(third.path(tmp_path / "out.jsonl"))
    state.write_text(json.dumps({"run": json.loads(state.read_text())["run"]}))  # it was killed
    assert_told("killed", refused(tmp_path), tmp_path)
    run_shard(third, tmp_path)
    assert merge(tmp_path).done == 40


def test_a_shard_whose_manifest_is_lost_is_made_anew_by_the_advice(tmp_path):
    for shard in shards(2):
        run_shard(shard, tmp_path)
    shard = Shard(number=2, of=2)
    path = shard.path(tmp_path / "out.jsonl")
    state_of(path).unlink()
    assert_told("a manifest is lost", refused(tmp_path), tmp_path)
    with pytest.raises(InvalidInput) as caught:
        run_shard(shard, tmp_path)
    assert_told("its shard again", caught.value, tmp_path)
    path.unlink()
    run_shard(shard, tmp_path)
    assert merge(tmp_path).done == 40


def test_shards_of_another_table_are_named_and_run_again_make_only_what_is_new(tmp_path):
    for shard in shards(2):
        run_shard(shard, tmp_path)
    more = [*ROWS, {"id": "new", "text": "new"}]
    assert_told("another table", refused(tmp_path, rows=more), tmp_path)
    done = [run_shard(shard, tmp_path, rows=more) for shard in shards(2)]
    assert [result.kept for result in done] != [0, 0]
    assert sum(result.kept for result in done) == 40
    assert merge(tmp_path, rows=more).done == 41


def test_an_output_that_was_changed_is_named(tmp_path):
    for shard in shards(2):
        run_shard(shard, tmp_path)
    path = Shard(number=1, of=2).path(tmp_path / "out.jsonl")
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1:]))
    assert_told("an output was changed", refused(tmp_path), tmp_path)
    run_shard(Shard(number=1, of=2), tmp_path)
    assert merge(tmp_path).done == 40


def test_failures_that_were_left_behind_are_named_and_made_again(tmp_path):
    fails = [row["text"] for row in ROWS[:4]]
    for shard in shards(2):
        run_shard(shard, tmp_path, fails=fails)
    left = next(tmp_path.glob("out.*-of-2.jsonl.failures.jsonl"))
    left.unlink()
    assert refused(tmp_path).code == "batch.shards-incomplete"
    for shard in shards(2):
        run_shard(shard, tmp_path, fails=fails)
    assert merge(tmp_path).failed == 4


def test_it_is_clear_which_shards_are_meant(tmp_path):
    error = refused(tmp_path)
    assert error.code == "batch.shards-unclear"
    assert_told("no shards", error, tmp_path)
    for shard in shards(2):
        run_shard(shard, tmp_path)
    run_shard(Shard(number=1, of=3), tmp_path)
    assert_told("shards of two batches", refused(tmp_path), tmp_path)


def test_the_output_of_a_batch_is_not_replaced(tmp_path):
    for shard in shards(2):
        run_shard(shard, tmp_path)
    (tmp_path / "out.jsonl").write_text('{"id":"mine"}\n')
    assert refused(tmp_path).code == "batch.output-not-merged"
    assert (tmp_path / "out.jsonl").read_text() == '{"id":"mine"}\n'
    (tmp_path / "out.jsonl").unlink()
    merge(tmp_path)
    table = BatchRows(shout_pipeline(), ROWS)
    with pytest.raises(InvalidInput, match="made by --merge") as caught:
        Batch(table, settings=settings_of(tmp_path), output=tmp_path / "out.jsonl")
    assert caught.value.code == "batch.state-invalid"
