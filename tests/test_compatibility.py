"""What earlier versions left on disk is read by this one: `compatibility/` has a folder for each.

`make.py` in each folder wrote it. Where a later version calls or judges something again on purpose,
as after a change of its own prompts, that version's expectation is changed here, and the changelog
says it.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import MemoryStore, ScriptedBackend, Settings, load_rubric, load_settings, rounds_from
from harness.analysis import report_of
from harness.rubric import load_noise
from harness.rubric.calibration.calibration_files import Calibration
from harness.testing import Judge, Script
from harness.trace import TIMELINES, Journal, list_runs
from harness.trace.run_trace import TimelineFormat

VERSIONS = sorted(Path(__file__).with_name("compatibility").iterdir())
TASK = "How long is a cold start?"
LOADING = "A cold start takes 8 to 15 s, since the weights are read from the disk."
ANSWER = "A cold start takes 8 to 15 s; a model kept loaded, 0.2 s."
OUTPUTS = {
    "questions": ["How long does it take?", "What avoids it?"],
    "findings": ["8 to 15 s.", "Keeping the model loaded."],
    "passages": [LOADING, "A model that is kept loaded begins to answer within 0.2 s."],
    "estimate": "About 10 s.",
    "answer": ANSWER,
}
FINISHED, KILLED = True, False


@pytest.fixture(params=VERSIONS, ids=lambda path: path.name)
def project(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """The working directory: a copy of what a version made, its pipelines importable."""
    shutil.copytree(request.param, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("brief", "tickets", "qa"):
        sys.modules.pop(name, None)


def of_file(name: str) -> Any:
    """What a file of the project defines under the file's name."""
    return getattr(importlib.import_module(name), name)


def settings() -> Settings:
    trace = {"timelines": [], "sample_ms": 0}
    return Settings.model_validate({"memory": {"path": "memory"}, "trace": trace, "seed": 7})


def run_of_brief(*, ended: bool) -> Path:
    """The journal of the only such run."""
    journals = [Journal(path) for path in Path("traces").glob("2*.jsonl")]
    (journal,) = (
        journal
        for journal in journals
        if journal.started.name == "brief" and (journal.ended is not None) is ended
    )
    return journal.path


def lines(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_a_version_keeps_less_than_300_kb_and_names_no_machine(project: Path) -> None:
    contents = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}

    assert sum(map(len, contents.values())) < 300_000
    assert [path for path, content in contents.items() if b"/tmp/" in content] == []


def test_a_finished_run_has_its_outputs_rounds_and_figures(project: Path) -> None:
    journal = run_of_brief(ended=FINISHED)
    script = Script({"evaluator": Judge(9)})
    result = of_file("brief").run(resume=journal, settings=settings(), backends=script.backends)

    assert (result.had_finished, result.result, result.outputs) == (True, ANSWER, OUTPUTS)
    assert script.requests == ()
    rounds = rounds_from(Journal(journal))
    assert [(one.draft == ANSWER, one.verdict.composite) for one in rounds] == [
        (False, 5.5),
        (True, 9.3),
    ]
    report = report_of(Journal(journal))
    assert (report.status, report.calls.calls, report.calls.input_tokens) == ("ok", 9, 889)
    assert [loop.stop_reason for loop in report.loops] == ["passed"]


def test_a_killed_run_calls_only_what_its_journal_lacks(project: Path) -> None:
    script = Script({"evaluator": Judge(9)})
    result = of_file("brief").run(
        resume=run_of_brief(ended=KILLED), settings=settings(), backends=script.backends
    )

    assert (result.outputs, result.parts, result.warnings) == (OUTPUTS, 2, ())
    # The second draft was written before the kill, and not judged.
    assert [request.role for request in script.requests] == ["evaluator"]
    assert sorted(result.reused) == [
        *("estimate", "findings[0]", "findings[1]", "passages", "questions")
    ]
    (loop,) = result.loops
    assert [one.verdict.composite for one in loop.rounds] == [5.5, 9.3]


@pytest.mark.parametrize("form", TIMELINES)
def test_each_journal_becomes_a_timeline(project: Path, form: TimelineFormat) -> None:
    ending, write = TIMELINES[form]
    for journal in Path("traces").glob("2*.jsonl"):
        timeline = journal.with_suffix(ending)
        write(Journal(journal), timeline)
        assert timeline.stat().st_size > 1000


def test_the_list_of_runs_says_how_each_ended(project: Path) -> None:
    ends = sorted((run.pipeline, run.final) for run in list_runs(Path("traces")))

    assert ends == [
        *(("batch tickets", "ERROR"), ("brief", "KILLED"), ("brief", "PASS")),
        ("evaluate qa", "DONE"),
    ]


def test_a_batch_goes_on_with_its_failed_row_alone(project: Path) -> None:
    producer = ScriptedBackend([])
    before = lines("out.jsonl")
    assert [(line["id"], line["code"]) for line in lines("out.jsonl.failures.jsonl")] == [
        ("t3", "KeyError")
    ]
    queues = {"Invoice": "another", "Login": "another", "Parcel": "lost"}
    Path("queues.json").write_text(json.dumps(queues))
    done = asyncio.run(
        of_file("tickets").batch(
            "tickets.csv", output="out.jsonl", settings=settings(), backends={"producer": producer}
        )
    )

    # Nor is the model asked again: its reply for that row is kept.
    assert (done.kept, done.failures, producer.requests) == (2, (), [])
    (new,) = lines("out.jsonl")[len(before) :]
    assert (new["id"], new["output"]) == ("t3", "lost")
    assert lines("out.jsonl")[: len(before)] == before


def test_an_evaluation_is_scored_again_without_a_call(project: Path) -> None:
    qa = of_file("qa")
    producer = ScriptedBackend([])
    options = {"settings": settings(), "backends": {"producer": producer}}
    kept = qa.run(output="evaluations/qa.jsonl", **options)
    Path("rubrics/right.yaml").write_text(
        Path("rubrics/right.yaml").read_text().replace("match: number", "match: equal")
    )
    again = qa.run(output="evaluations/qa.jsonl", **options)

    assert producer.requests == []
    assert (kept.kept, kept.scored, again.scored) == (6, 6, 6)
    assert (kept.score("right").mean, again.score("right").mean) == (pytest.approx(20 / 3),) * 2
    assert kept.score("near").mean == pytest.approx(2.9 / 3)


@pytest.mark.parametrize("mode", ["lexical", "vector"])
def test_a_search_of_its_memory_finds_the_passage(project: Path, mode: Any) -> None:
    with MemoryStore.open("memory") as store:
        (hit,) = store.search("weights read from disk", limit=1, mode=mode)

    assert (hit.text, hit.passage.source, hit.passage.quality) == (LOADING, "handbook", 8)


def test_a_tuned_rubric_is_the_same_and_its_threshold_holds(project: Path) -> None:
    rubric = load_rubric("notes")
    calibration = Calibration.read(rubric, Path("rubrics"))
    noise, why_not = load_noise(rubric, "evaluator", directory=Path("rubrics"))

    assert calibration is not None
    assert calibration.differences(rubric, "evaluator") == ()
    assert (rubric.pass_at, calibration.at.accepted, calibration.at.wrong) == (7.8, 60, 0)
    assert (noise is not None and round(noise.deviation, 2), why_not) == (0.54, "")


def test_its_labels_give_the_same_threshold_and_are_no_further_look(project: Path) -> None:
    pytest.importorskip("scipy", reason="scipy is not installed")
    command = [sys.executable, "-m", "harness", "rubric", "tune", "notes", "labels.csv", "--json"]
    done = subprocess.run(command, check=True, capture_output=True)
    tuned = json.loads(done.stdout)

    assert (tuned["drafts"], tuned["named"]["threshold"], tuned["aim"]["looks"]) == (80, 7.8, 1)
    assert (tuned["outdated"], tuned["ignored_columns"]) == ([], [])


def test_all_settings_have_the_values_that_they_had(project: Path) -> None:
    recorded = json.loads(Path("settings/values.json").read_text())
    read = load_settings(Path("settings/harness.toml"), environment={})

    assert part_of(read.model_dump(mode="json", by_alias=True), recorded) == recorded


def part_of(values: Any, like: Any) -> Any:
    """The values of the keys that `like` has: a later version may have more."""
    if not (isinstance(values, dict) and isinstance(like, dict)):
        return values
    return {key: part_of(values[key], like[key]) for key in like if key in values}
