"""`harness runs export`, as a person types it who wants to train a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import Done, harness

from harness import Pipeline, Run, ScriptedBackend, Settings
from harness.rubric import Rubric

RUBRIC = Rubric.model_validate(
    {
        "id": "long",
        "sha256": "5eed",
        "title": "Long",
        "pass_at": 9,
        "dimensions": [{"name": "long", "checks": [{"check": "words", "min": 6}]}],
    }
)


def write_run(
    project: Path, *drafts: str, content: str = "full", rubric: Rubric | str = RUBRIC
) -> str:
    """A run whose loop has these drafts; its id."""
    pipeline = Pipeline("essays")

    @pipeline.node
    async def text(run: Run) -> str:
        return (await run.wiggum("Write it.", rubric=rubric, sources=["A source."])).text

    trace = {"content": content, "timelines": ()}
    settings = Settings.model_validate({"traces": project / "traces", "trace": trace})
    backends = {"producer": ScriptedBackend(list(drafts))}
    return pipeline.run(settings=settings, backends=backends).run_id


WORSE, BETTER = "Three words only.", "Now it has six words, no less."


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with a run of two drafts, and one of a single draft."""
    write_run(tmp_path, WORSE, BETTER)
    write_run(tmp_path, BETTER)
    return tmp_path


def export(project: Path, *words: str, form: str = "dpo") -> Done:
    return harness("runs", "export", "--format", form, *words, cwd=project)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_pairs_of_all_runs_become_a_file_that_trainers_read(project: Path) -> None:
    done = export(project, "pairs.jsonl", "--json")

    (row,) = lines(project / "pairs.jsonl")
    assert (row["chosen"], row["rejected"]) == (
        [{"role": "assistant", "content": BETTER}],
        [{"role": "assistant", "content": WORSE}],
    )
    (said,) = row["prompt"]
    assert said["role"] == "user"
    assert "Write it." in said["content"]
    assert "A source." in said["content"]
    assert (row["evaluator"], row["producer_model"]) == ("checks", "producer")
    found = done.json
    assert (done.exit_code, found["rows"], found["runs"], found["loops"]) == (0, 1, 2, 2)


@pytest.mark.parametrize("form", ["sft", "dpo", "reward"])
def test_parquet_has_the_rows_of_json_lines_with_the_types_of_its_columns(
    project: Path, form: str
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    for name in ("rows.jsonl", "rows.parquet"):
        assert export(project, name, form=form).exit_code == 0

    table = parquet.read_table(project / "rows.parquet")
    assert table.to_pylist() == lines(project / "rows.jsonl")
    kinds = {field.name: str(field.type) for field in table.schema}
    assert {name for name, kind in kinds.items() if kind == "double"} <= {
        "score",
        "score_chosen",
        "score_rejected",
        "margin",
    }
    # pyarrow before 24 sorts the fields by name.
    assert kinds["prompt"] in {
        f"list<element: struct<{fields}>>"
        for fields in ("role: string, content: string", "content: string, role: string")
    }
    assert not table.column("prompt").null_count


def test_only_runs_that_are_named_count(project: Path) -> None:
    one = write_run(project, WORSE, f"{BETTER} Yes.")

    for named in (one, one[-6:], "latest", f"traces/{one}.jsonl"):
        found = export(project, "one.jsonl", named, "--json").json
        assert (found["runs"], [row["run"] for row in lines(project / "one.jsonl")]) == (1, [one])
    assert export(project, "one.jsonl", one, "latest", "--json").json["runs"] == 1


def test_drafts_that_passed_are_for_fine_tuning(project: Path) -> None:
    done = export(project, "good.jsonl", form="sft")

    (row,) = lines(project / "good.jsonl")
    assert row["completion"] == [{"role": "assistant", "content": BETTER}]
    assert "1 rows to good.jsonl" in done.text
    assert "Left out 1: duplicates." in done.text


def test_where_there_is_nothing_to_write_there_is_no_file_and_the_reason_is_told(
    tmp_path: Path,
) -> None:
    write_run(tmp_path, WORSE, BETTER, content="hash")

    done = export(tmp_path, "pairs.jsonl", "--json")

    assert (done.exit_code, done.json["rows"]) == (1, 0)
    assert done.json["left_out"]["texts-not-recorded"] == 1
    assert not (tmp_path / "pairs.jsonl").exists()
    assert 'set content = "full"' in export(tmp_path, "pairs.jsonl").text


def test_near_ties_are_a_matter_of_the_margin(project: Path) -> None:
    done = export(project, "pairs.jsonl", "--margin", "9", "--json")
    assert (done.exit_code, done.json["left_out"]["near-tie"]) == (1, 1)


def damage(project: Path) -> str:
    """Damages the journal of a further run; its id."""
    run = write_run(project, WORSE, f"{BETTER} Yes.")
    path = project / f"traces/{run}.jsonl"
    first, _, *rest = path.read_text().splitlines(keepends=True)
    path.write_text("".join([first, "nothing\n", *rest]))
    return run


def test_a_damaged_journal_is_left_out_of_all_and_an_error_if_it_is_named(project: Path) -> None:
    run = damage(project)

    every = export(project, "all.jsonl", "--json")
    named = export(project, "one.jsonl", run, "--json")

    assert (every.exit_code, every.json["rows"], every.json["left_out"]["run-unreadable"]) == (
        0,
        1,
        1,
    )
    assert run in every.stderr
    assert (named.exit_code, named.code) == (2, "journal.invalid")
    assert not (project / "one.jsonl").exists()


def test_a_file_that_cannot_be_finished_is_left_as_it_was(project: Path) -> None:
    (project / "pairs.jsonl").write_text("before")
    sound = write_run(project, WORSE, BETTER)

    done = export(project, "pairs.jsonl", sound, damage(project), "--json")

    assert (done.exit_code, done.code) == (2, "journal.invalid")
    assert (project / "pairs.jsonl").read_text() == "before"
    assert not list(project.glob(".*partial"))


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["pairs.csv"], "row.output-unknown"),
        (["traces/runs.jsonl/pairs.jsonl"], "file.unwritable"),
        (["traces/runs.jsonl"], "export.over-a-run"),
        (["pairs.jsonl", "no-such-run"], "run.not-found"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_what_cannot_be_written_or_found_is_refused(
    project: Path, words: list[str], code: str
) -> None:
    done = export(project, *words, "--json")
    assert (done.exit_code, done.code) == (2, code)


def test_a_run_is_not_written_over_if_the_words_come_in_the_wrong_order(project: Path) -> None:
    (journal, _) = sorted(path for path in (project / "traces").glob("2*.jsonl"))
    before = journal.read_bytes()

    done = export(project, str(journal), "pairs.jsonl", "--json")
    assert (done.code, journal.read_bytes()) == ("export.over-a-run", before)
    for words in (("trace", "export", "latest"), ("view", "latest")):
        done = harness(*words, "--output", str(journal), cwd=project)
        assert (done.exit_code, journal.read_bytes()) == (2, before), words
    drawn = journal.with_suffix(".json")
    for form, code in (("chrome", 0), ("perfetto", 2), ("chrome", 0)):
        words = "--format", form, "--output", drawn
        done = harness("trace", "export", "latest", *words, cwd=project)
        assert (done.exit_code, drawn.read_bytes()[:2]) == (code, b'{"'), done.stderr


def test_a_directory_without_runs_is_not_usable(tmp_path: Path) -> None:
    done = export(tmp_path, "pairs.jsonl", "--json")
    assert (done.exit_code, done.code) == (2, "run.none-yet")
