"""How batches end: by `sys.exit`, after a retry, beside another one, on a disk that is full."""

import asyncio
import json
import sys

import pytest
from session_runs import Calls, refused, settings_of

from harness import Evaluation, Pipeline, Timeout
from harness.session.batch_files import only_writer
from harness.trace import NodeOutput

ROWS = [{"id": f"{n}", "task": f"t{n}"} for n in range(12)]


def batch(pipeline, rows, tmp_path, **how):
    """Runs it into a file of the test's folder."""
    output = how.pop("output", tmp_path / "out.jsonl")
    settings = how.pop("settings", None) or settings_of(tmp_path)
    return asyncio.run(pipeline.batch(rows, output=output, settings=settings, **how))


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def manifest(tmp_path):
    return json.loads((tmp_path / "out.jsonl.batch").read_text())


def exits_plainly(task: str) -> str:
    if task == "t7":
        sys.exit(0)
    return task.upper()


async def exits_later(task: str) -> str:
    await asyncio.sleep(0)
    return exits_plainly(task)


@pytest.mark.parametrize("function", [exits_plainly, exits_later])
@pytest.mark.parametrize("timeout", [None, Timeout(total_s=60)], ids=["", "in a time"])
def test_a_row_that_calls_sys_exit_fails_alone(tmp_path, function, timeout):
    leaves = Pipeline("leaves")
    leaves.node(name="first", timeout=timeout)(function)
    leaves.node(name="second", timeout=timeout)(function)

    @leaves.node
    def both(first: str, second: str) -> str:
        return first + second

    done = batch(leaves, ROWS, tmp_path)

    assert (len(done.outputs), len(lines(tmp_path / "out.jsonl"))) == (11, 11)
    (failed,) = lines(tmp_path / "out.jsonl.failures.jsonl")
    assert (failed["id"], failed["code"]) == ("7", "run.left")
    assert "exits_plainly called sys.exit(0)" in failed["reason"]


def test_a_scorer_that_calls_sys_exit_fails_its_row_alone(tmp_path):
    says = Pipeline("says")
    says.node(lambda task: task, name="text")

    def picky(output: str) -> float:
        if output == "t7":
            sys.exit(3)
        return 1.0

    evaluation = Evaluation(says, ROWS, scorers=[picky])
    done = evaluation.run(settings=settings_of(tmp_path), output=tmp_path / "out.jsonl")

    assert (done.scored, done.run.stopped_by) == (11, None)
    assert [failure.code for failure in done.failures] == ["run.left"]


def test_rows_whose_result_was_skipped_are_told_and_fail_once_on_error_says_so(tmp_path):
    def made(on_error, refused="t7"):
        def first(task: str) -> str:
            assert task != refused
            return task

        picky = Pipeline("picky", on_error=on_error)
        picky.node(first)
        picky.node(lambda first: first, name="second")
        return batch(picky, ROWS, tmp_path)

    skipped, failed, mended = made("skip"), made("fail"), made("fail", refused="")
    (warning,) = skipped.run.warnings
    assert "'picky/second' was skipped, as in rows[7]" in warning.message
    assert [done.outputs.get("7", "") for done in (skipped, failed, mended)] == [None, "", "t7"]
    assert ([row.id for row in failed.failures], failed.run.warnings) == (["7"], ())


# --- a retry ----------------------------------------------------------------------------------


def every_fourth(calls, mended=None):
    """A pipeline that refuses every fourth row, except those that are `mended`."""
    mended = mended or Calls()
    picky = Pipeline("picky")

    @picky.node
    def text(task: str) -> str:
        if calls.note(task) and int(task[1:]) % 4 == 0 and task not in mended.made:
            raise ValueError("refused")
        return task

    return picky


def test_a_retry_counts_the_rows_that_have_an_output_into_the_share_of_failures(tmp_path):
    rows = [{"id": f"{n}", "task": f"t{n}"} for n in range(200)]
    batch(every_fourth(Calls()), rows, tmp_path)
    first = manifest(tmp_path)
    calls = Calls()

    again = batch(every_fourth(calls), rows, tmp_path)

    assert (first["done"], first["failed"], first["complete"]) == (150, 50, True)
    assert (len(calls.made), again.run.stopped_by) == (50, None)
    assert manifest(tmp_path) == first


def test_a_retry_that_ends_early_keeps_what_is_known_of_rows_that_it_did_not_try(tmp_path):
    calls, mended = Calls(), Calls()
    picky = every_fourth(calls, mended)
    rows = [{"id": f"{n}", "task": f"t{n}"} for n in range(40)]
    batch(picky, rows, tmp_path, max_failures=None)
    failed = lines(tmp_path / "out.jsonl.failures.jsonl")
    mended.note("t0")
    calls.made.clear()

    again = batch(picky, rows[::-1], tmp_path, max_failures=2, max_parallel=1)

    assert again.run.limit == "failures"
    assert len(calls.made) < len(failed)
    assert len({failure.id for failure in again.failures}) == len(again.failures)
    done, not_done = {*again.outputs}, {failure.id for failure in again.failures}
    assert (done | not_done, done & not_done) == ({row["id"] for row in rows}, set())
    assert {line["id"] for line in lines(again.failures_file)} == not_done
    assert manifest(tmp_path)["complete"]
    places = {failure.id: failure.line for failure in again.failures}
    assert places == {name: 40 - int(name) for name in not_done}, "where they are now"


def test_failures_of_rows_that_are_gone_or_mended_are_forgotten(tmp_path):
    batch(every_fourth(Calls()), ROWS, tmp_path)

    fewer = batch(every_fourth(Calls()), ROWS[:8], tmp_path)
    assert [failure.id for failure in fewer.failures] == ["0", "4"]
    mended = Calls()
    mended.made = ["t0", "t4"]
    whole = batch(every_fourth(Calls(), mended), ROWS[:8], tmp_path)
    assert (whole.failures, (tmp_path / "out.jsonl.failures.jsonl").exists()) == ((), False)


# --- others that write the same output ------------------------------------------------------------


def slow():
    """A pipeline whose rows take a moment."""
    pipeline = Pipeline("slow")

    @pipeline.node
    async def text(task: str) -> str:
        await asyncio.sleep(0.05)
        return task

    return pipeline


@pytest.mark.parametrize("name", ["out.jsonl", "new/out.csv", "out.parquet"])
def test_of_two_batches_into_one_output_at_once_the_second_is_refused(tmp_path, name):
    how = {"settings": settings_of(tmp_path), "output": tmp_path / name}

    async def main():
        batches = [slow().batch(ROWS[:n], **how) for n in (3, 5)]
        return await asyncio.gather(*batches, return_exceptions=True)

    done, error = asyncio.run(main())

    assert (len(done.outputs), error.code) == (3, "row.output-locked")
    left = {path.name for path in (tmp_path / name).parent.iterdir()} - {"traces", "new"}
    assert left == {how["output"].name, f"{how['output'].name}.batch"}
    assert len(asyncio.run(slow().batch(ROWS[:5], **how)).outputs) == 5


def test_an_output_that_is_being_written_is_no_output_of_a_run_that_is_gone(tmp_path):
    batch(slow(), ROWS[:3], tmp_path)
    (tmp_path / "elsewhere").mkdir()

    with only_writer(tmp_path / "out.jsonl"), refused("row.output-locked"):
        batch(slow(), ROWS, tmp_path, settings=settings_of(tmp_path / "elsewhere"))
    with refused("batch.run-gone") as caught:
        batch(slow(), ROWS, tmp_path, settings=settings_of(tmp_path / "elsewhere"))

    for folder in (tmp_path / "traces", tmp_path / "elsewhere" / "traces"):
        assert str(folder) in str(caught.value)
    assert "delete" not in str(caught.value), "it is not gone"


def test_an_output_of_a_merge_says_so(tmp_path):
    (tmp_path / "out.jsonl").write_text('{"id": "1"}\n')
    (tmp_path / "out.jsonl.batch").write_text('{"shards": 2, "complete": true}\n')

    with refused("batch.state-invalid") as caught:
        batch(slow(), ROWS, tmp_path)
    assert "--merge; run its 2 shards" in str(caught.value)


# --- files that cannot be written -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv", "out.parquet"])
def test_an_output_whose_folder_cannot_be_written_is_refused_before_anything_runs(tmp_path, name):
    (tmp_path / "file").touch()
    calls = Calls()

    with refused("file.unwritable"):
        batch(every_fourth(calls), ROWS, tmp_path, output=tmp_path / "file" / name)
    assert calls.made == []


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv", "out.parquet"])
def test_a_link_as_output_stays_one(tmp_path, name):
    (tmp_path / "there").mkdir()
    for _ in range(2):  # it dangles, and then it does not
        (tmp_path / name).unlink(missing_ok=True)
        (tmp_path / name).symlink_to(tmp_path / "there" / f"{name}.data")
        (tmp_path / f"{name}.batch").unlink(missing_ok=True)
        (tmp_path / "there" / f"{name}.data").unlink(missing_ok=True)
        batch(slow(), ROWS[:3], tmp_path, output=tmp_path / name)
        batch(slow(), ROWS[:4], tmp_path, output=tmp_path / name)
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / "there" / f"{name}.data").stat().st_size


def test_a_disk_that_is_full_at_the_end_stops_a_batch_that_goes_on_later(tmp_path):
    output = tmp_path / "out.jsonl"
    manifest_path = tmp_path / "out.jsonl.batch"

    def fill(record):
        # In place of a full disk: what the manifest is renamed to cannot be replaced.
        if isinstance(record, NodeOutput) and manifest_path.is_file():
            manifest_path.unlink()
            manifest_path.mkdir()

    done = batch(slow(), ROWS[:3], tmp_path, observers=[fill])

    assert (done.run.status, done.run.limit, len(done.outputs)) == ("stopped", "output", 3)
    assert "out.jsonl.batch: cannot be written" in done.run.stopped_by
    assert len(lines(output)) == 3
