"""`harness rubric score` on many drafts: tables, files that keep scores, and what is summed up."""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from command import NOBODY, harness
from judging import DRAFTS, SCORES, judged
from loopback_judge import RUBRIC, draft, loopback_judge, score_of

ROWS = [
    {"id": name, "draft": text, "task": f"Write {name}.", "sources": [f"Source of {name}."]}
    for name, text in DRAFTS.items()
]


@pytest.fixture
def table(drafts: Path) -> Path:
    """A folder with the drafts in a table too."""
    (drafts / "drafts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return drafts


def kept(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of scores, whatever it is."""
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            return list(csv.DictReader(file))
    return [json.loads(line) for line in path.read_text().splitlines()]


# --- rows ------------------------------------------------------------------------------------


def test_each_row_is_judged_by_its_own_task_and_sources(table: Path) -> None:
    prompts: list[str] = []

    def score(prompt: str) -> float:
        prompts.append(prompt)
        return 9.0

    given = ("drafts.jsonl", "--task", "All the same.", "--json")
    done, _ = judged("score", "notes.yaml", *given, cwd=table, score=score)

    assert [one["id"] for one in done.json["drafts"]] == list(DRAFTS)
    for row in ROWS:
        (prompt,) = (one for one in prompts if row["draft"].strip() in one)
        assert (row["task"] in prompt, row["sources"][0] in prompt) == (True, True)
        assert "All the same." not in prompt


def test_a_bad_row_is_told_and_skipped_and_the_exit_code_says_so(table: Path) -> None:
    with (table / "drafts.jsonl").open("a") as file:
        file.write(
            '{"id": 4\n{"id": 5, "text": "No draft."}\n{"id": "good.md", "draft": "Twice."}\n'
        )
        file.write('{"id": 6, "path": "none.md"}\n')

    done, calls = judged("score", "notes.yaml", "drafts.jsonl", "--json", cwd=table)

    assert (done.exit_code, calls) == (1, 3)
    errors = {one["code"]: one for one in done.json["drafts"] if one["error"]}
    assert set(errors) == {"row.not-json", "row.no-draft", "row.id-twice", "file.unreadable"}
    assert errors["row.no-draft"]["id"] == "drafts.jsonl:5"
    assert all(one["passed"] is None for one in errors.values())


def test_each_row_of_a_missing_file_is_told_with_its_line(table: Path) -> None:
    with (table / "drafts.jsonl").open("a") as file:
        file.write('{"path": "none.md"}\n{"path": "none.md"}\n')

    done, _ = judged("score", "notes.yaml", "drafts.jsonl", "--json", cwd=table)

    bad = [(one["id"], one["code"]) for one in done.json["drafts"] if one["error"]]
    assert bad == [(f"drafts.jsonl:{line}", "file.unreadable") for line in (4, 5)]


@pytest.mark.parametrize("sources", ["5", "true", '{"a": "b"}', '[["a"]]'])
def test_sources_are_a_text_or_a_list_of_texts(table: Path, sources: str) -> None:
    with (table / "drafts.jsonl").open("a") as file:
        file.write(f'{{"draft": "New.", "sources": {sources}}}\n')

    done, calls = judged("score", "notes.yaml", "drafts.jsonl", "--json", cwd=table)

    assert (done.exit_code, calls) == (1, 3)
    assert [one["code"] for one in done.json["drafts"] if one["error"]] == ["row.sources-not-texts"]


def test_a_table_without_any_draft_is_not_usable(table: Path) -> None:
    (table / "drafts.jsonl").write_text('{"text": "No draft."}\n')

    done, calls = judged("score", "notes.yaml", "drafts.jsonl", "--json", cwd=table)

    assert (done.exit_code, done.code, calls) == (2, "row.no-draft", 0)


# --- scores that are kept --------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_what_is_in_the_output_is_not_judged_again(table: Path, ending: str) -> None:
    given = ("notes.yaml", "drafts.jsonl", "--output", f"out.{ending}", "--json")
    first, calls = judged("score", *given, cwd=table, at={"fair.md": "I would rather not."})
    assert (first.exit_code, calls) == (1, 3)
    assert {row["id"] for row in kept(table / f"out.{ending}")} == {"good.md", "poor.md"}

    second, calls = judged("score", *given, cwd=table)

    assert (second.exit_code, calls) == (0, 1)
    assert [one["composite"] for one in second.json["drafts"]] == [9.3, 7.8, 4.8]
    rows = {row["id"]: row for row in kept(table / f"out.{ending}")}
    assert {name: float(row["score.clear"]) for name, row in rows.items()} == SCORES
    # All that is known of a draft is known of one that was judged before.
    again = {one["id"]: one for one in first.json["drafts"] if not one["error"]}
    for one in second.json["drafts"]:
        assert again.get(one["id"], one) == one


def test_a_draft_that_has_changed_is_judged_again(table: Path) -> None:
    given = ("notes.yaml", "drafts.jsonl", "--output", "out.jsonl")
    judged("score", *given, cwd=table)
    text = (table / "drafts.jsonl").read_text()
    (table / "drafts.jsonl").write_text(text.replace("Write fair.md.", "Write it better."))

    _, calls = judged("score", *given, cwd=table)

    assert calls == 1
    assert len(kept(table / "out.jsonl")) == 4


@pytest.mark.parametrize(
    ("change", "named"),
    [
        pytest.param(("--samples", "2"), "samples", id="samples"),
        pytest.param(("--checks-only",), "evaluator", id="evaluator"),
        pytest.param((), "rubric_sha256", id="rubric"),
    ],
)
def test_scores_by_something_else_are_not_mixed_in(
    table: Path, change: tuple[str, ...], named: str
) -> None:
    given = ("score", "notes.yaml", "drafts.jsonl", "--output", "out.csv", "--json")
    judged(*given, cwd=table)
    if not change:
        text = (table / "notes.yaml").read_text()
        (table / "notes.yaml").write_text(text.replace("pass_at: 8", "pass_at: 7"))

    done, calls = judged(*given, *change, cwd=table)

    assert (done.exit_code, done.code, calls) == (2, "row.output-other-run", 0)
    assert named in done.stderr
    assert len(kept(table / "out.csv")) == 3


def test_after_ctrl_c_the_same_command_goes_on(table: Path) -> None:
    given = ("notes.yaml", "drafts.jsonl", "--output", "out.csv", "--max-parallel", "1")
    at = {"fair.md": int(signal.SIGINT)}

    first, _ = judged("score", *given, cwd=table, at=at)

    assert first.exit_code == 130
    assert "out.csv" in first.stderr
    second, calls = judged("score", *given, cwd=table)
    assert (second.exit_code, calls) == (0, 2)
    assert [row["id"] for row in kept(table / "out.csv")] == list(DRAFTS)


def test_a_dead_judge_ends_the_batch_at_once(table: Path) -> None:
    dead = {"evaluator": {"url": f"{NOBODY}/v1", "model_id": "judge"}}
    given = ("rubric", "score", "notes.yaml", "drafts.jsonl", "--max-parallel", "1", "--json")

    done = harness(*given, cwd=table, endpoints=dead)

    assert (done.exit_code, done.code) == (1, "call.unreachable")


def test_a_judge_that_fails_on_all_is_not_asked_about_each(drafts: Path) -> None:
    rows = [{"id": n, "draft": f"{DRAFTS['fair.md']} {n}"} for n in range(30)]
    rows[:0] = [{"id": "first", "draft": DRAFTS["good.md"]}]
    (drafts / "drafts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = ("notes.yaml", "drafts.jsonl", "--max-parallel", "1", "--json")

    done, calls = judged("score", *given, cwd=drafts, at={"fair.md": "No."})

    assert (done.exit_code, calls) == (1, 6)
    assert done.json["stopped"]
    assert [bool(one["error"]) for one in done.json["drafts"]] == [False] + [True] * 5


# --- samples ---------------------------------------------------------------------------------


def test_every_sample_is_kept_and_their_mean_counts(table: Path) -> None:
    points = iter([9.0, 8.0, 4.0])
    given = ("notes.yaml", "good.md", "--samples", "3", "--output", "out.jsonl", "--json")

    done, calls = judged("score", *given, cwd=table, score=lambda _: next(points))

    (one,) = done.json["drafts"]
    assert (calls, one["score.clear"]) == (3, [9.0, 8.0, 4.0])
    assert one["scores"][1]["score"] == 7.0
    assert [each["scores"] for each in one["judges"]["each"]] == [{"clear": p} for p in (9, 8, 4)]
    assert kept(table / "out.jsonl")[0]["score.clear"] == [9.0, 8.0, 4.0]


# --- what is said ----------------------------------------------------------------------------


def many(directory: Path, count: int) -> None:
    rows = [{"id": f"d{n}", "draft": list(DRAFTS.values())[n % 3] + f" {n}."} for n in range(count)]
    (directory / "many.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_many_drafts_are_summed_up_and_shown_one_by_one_if_that_is_asked_for(drafts: Path) -> None:
    many(drafts, 60)
    given = ("notes.yaml", "many.jsonl", "--pass-at", "7", "--output", "out.jsonl")

    done, _ = judged("score", *given, cwd=drafts)

    assert done.stdout.count("\n") < 40
    assert "20 of 60 passed (33%; needed: 8); 20 lie within 0.5 of that." in done.text
    assert "at 7: 40 of 60." in done.text
    assert done.stderr.count("drafts judged") == 20
    detailed, calls = judged("score", *given, "--verbose", cwd=drafts)
    assert (detailed.text.count("Composite"), calls) == (60, 0)


# --- kills -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_killed_at_any_time_it_goes_on_with_no_row_lost_and_none_judged_for_nothing(
    tmp_path: Path,
) -> None:
    count, parallel, kills = 500, 16, 8
    (tmp_path / "notes.yaml").write_text(RUBRIC)
    with (tmp_path / "drafts.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", "draft"], *([n, draft(n)] for n in range(count))])
    command = [sys.executable, "-m", "harness", "rubric", "score", "notes.yaml", "drafts.csv"]
    options = ["--output", "out.csv", "--max-parallel", str(parallel)]
    chance = random.Random(1)
    with loopback_judge(0.05) as (endpoints, seen):
        environment = {**os.environ, "HARNESS_ENDPOINTS": endpoints}

        def start() -> subprocess.Popen[bytes]:
            quiet = subprocess.DEVNULL
            return subprocess.Popen(
                [*command, *options], cwd=tmp_path, env=environment, stdout=quiet, stderr=quiet
            )

        for number in range(kills):
            with start() as running:
                # As soon as some more are judged, in the midst of others.
                wanted = min(count - 40, sum(seen().values()) + chance.randint(5, 45))
                while sum(seen().values()) < wanted and running.poll() is None:
                    time.sleep(chance.uniform(0.01, 0.05))
                assert running.poll() is None, number
                running.kill()
        with start() as last:
            assert last.wait() == 0
        asked = seen()

    rows = kept(tmp_path / "out.csv")
    assert sorted(int(row["id"]) for row in rows) == list(range(count))
    assert all(float(row["composite"]) == score_of(int(row["id"])) for row in rows)
    assert sum(asked.values()) - count <= kills * parallel
