"""`harness rubric score` on many drafts: tables, files that keep scores, and what is summed up."""

from __future__ import annotations

import csv
import json
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from command import NOBODY, harness, serving
from judging import DRAFTS, SCORES, Judge, alone, calls_of, judged
from judging import RUBRIC as RUBRIC_OF_JUDGE

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


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("answers.csv", 'id,draft\nempty,\n"",\n'),
        ("answers.jsonl", '{"id": "empty", "draft": ""}\n'),
    ],
)
def test_an_answer_without_a_word_is_a_draft(tmp_path: Path, name: str, table: str) -> None:
    (tmp_path / "notes.yaml").write_text(RUBRIC_OF_JUDGE)
    (tmp_path / name).write_text(table)
    done = alone("score", "notes.yaml", name, "--checks-only", "--json", cwd=tmp_path)

    (draft,) = done.json["drafts"]
    assert (done.exit_code, draft["id"], draft["score.length"]) == (0, "empty", 0)


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


def test_a_draft_that_has_changed_is_judged_again_and_its_old_row_goes(table: Path) -> None:
    given = ("score", "notes.yaml", "drafts.jsonl", "--output", "out.jsonl", "--json")
    judged(*given, cwd=table)
    before = (table / "drafts.jsonl").read_text()
    (table / "drafts.jsonl").write_text(before.replace("Write fair.md.", "Write it better."))

    done, calls = judged(*given, cwd=table)

    assert calls == 1
    assert {one["id"]: one for one in kept(table / "out.jsonl")} == {
        one["id"]: one for one in done.json["drafts"]
    }
    (table / "drafts.jsonl").write_text(before)
    assert judged(*given, cwd=table)[1] == 0, "the journal still has it"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(("--samples", "2"), "its code changed: 'samples'", id="samples"),
        pytest.param(("--checks-only",), "its code changed: 'checks_only'", id="no evaluator"),
        pytest.param("weight: 3", "its code changed: 'rubric'", id="rubric"),
        pytest.param("pass_at: 8", "its code changed: 'rubric'", id="threshold"),
    ],
)
def test_what_scores_by_something_else_scores_again_and_says_what_changed(
    table: Path, change: str | tuple[str, ...], reason: str
) -> None:
    given = ("score", "notes.yaml", "drafts.jsonl", "--output", "out.csv")
    judged(*given, cwd=table)
    text = (table / "notes.yaml").read_text()
    if isinstance(change, str):
        (table / "notes.yaml").write_text(text.replace(change, f"{change[:-1]}2"))

    done, _ = judged(*given, *(change if isinstance(change, tuple) else ()), cwd=table)

    assert f"3 calls of 'scores' were made again: {reason}" in done.text
    assert not any(row["outdated"] for row in kept(table / "out.csv"))
    (table / "notes.yaml").write_text(text)
    assert judged(*given, cwd=table)[1] == 0, "replies to the same requests are used again"


@pytest.mark.parametrize(
    ("output", "model_id", "weight", "reason"),
    [
        pytest.param("out.jsonl", "judge", 2, "its code changed: 'rubric'", id="rubric"),
        pytest.param("out.csv", "other", 3, "its model for 'evaluator' changed", id="evaluator"),
    ],
)
def test_old_scores_stay_marked_until_they_are_replaced_and_count_as_none(
    table: Path, output: str, model_id: str, weight: int, reason: str
) -> None:
    rows = [{**row, "accept": "yes"} for row in ROWS]
    (table / "drafts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = ("score", "notes.yaml", "drafts.jsonl", "--output", output, "--max-parallel", "1")
    judged(*given, cwd=table)
    rubric = RUBRIC_OF_JUDGE.replace("weight: 3", f"weight: {weight}")
    (table / "notes.yaml").write_text(rubric)

    judged(*given, cwd=table, model_id=model_id, at={"fair.md": int(signal.SIGINT)})

    outdated = {row["id"]: row.get("outdated") or "" for row in kept(table / output)}
    assert {name: reason in told for name, told in outdated.items()} == {
        "good.md": False,
        "fair.md": True,
        "poor.md": True,
    }
    tuned = alone("tune", "notes.yaml", output, "--json", cwd=table).json
    assert (tuned["ignored_columns"], tuned["outdated"], tuned["drafts"]) == ([], [], 1)
    label = ("label", "notes.yaml", "drafts.jsonl", "--scores", output, "--above", "0")
    assert "1 of 1 drafts" in alone(*label, "--output", "labels.jsonl", cwd=table).stdout


def two_judges(stack: ExitStack, cwd: Path) -> Callable[..., tuple[list[float], int]]:
    """A command that knows two evaluators; what it gives, and how many requests they got."""
    servers = {tag: Judge(score=lambda _, n=n: n) for tag, n in (("first", 9.0), ("other", 4.0))}
    for server in servers.values():
        stack.enter_context(serving(server))
    endpoints = {
        tag: {"url": f"{one.root}/v1", "model_id": tag, "structured": "enforced"}
        for tag, one in servers.items()
    }

    def score(tag: str) -> tuple[list[float], int]:
        before = sum(map(calls_of, servers.values()))
        given = ("score", "notes.yaml", *DRAFTS, "--role", f"evaluator={tag}")
        more = ("--output", "out.jsonl", "--json")
        done = harness("rubric", *given, *more, cwd=cwd, endpoints=endpoints)
        rows = {one["id"]: one for one in kept(cwd / "out.jsonl")}
        assert [rows[one["id"]] for one in done.json["drafts"]] == done.json["drafts"]
        assert {one["evaluator"] for one in done.json["drafts"]} == {tag}
        calls = sum(map(calls_of, servers.values())) - before
        return [one["score.clear"] for one in done.json["drafts"]], calls

    return score


def test_two_judges_with_one_output_each_give_their_own_scores_and_are_asked_once(
    drafts: Path,
) -> None:
    with ExitStack() as stack:
        score = two_judges(stack, drafts)
        turns = [score(tag) for tag in ("first", "other", "first", "other", "first")]

    assert [scores for scores, _ in turns] == [[9.0] * 3, [4.0] * 3] * 2 + [[9.0] * 3]
    assert [asked for _, asked in turns] == [3, 3, 0, 0, 0]


def test_a_file_of_scores_whose_run_is_not_known_is_left_alone(table: Path) -> None:
    given = ("score", "notes.yaml", "drafts.jsonl", "--output", "out.csv", "--json")
    judged(*given, cwd=table)
    (table / "out.csv.batch").unlink()
    before = (table / "out.csv").read_bytes()

    done, calls = judged(*given, cwd=table)

    assert (done.exit_code, done.code, calls) == (2, "batch.output-foreign", 0)
    assert (table / "out.csv").read_bytes() == before


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
    dead = {"evaluator": {"url": f"{NOBODY}/v1", "model_id": "judge", "retry": {"base_s": 0.01}}}
    given = ("rubric", "score", "notes.yaml", "drafts.jsonl", "--max-parallel", "1", "--json")

    done = harness(*given, cwd=table, endpoints=dead)

    assert (done.exit_code, done.code) == (1, "call.unreachable")


@pytest.mark.parametrize(
    ("most", "asked"), [pytest.param((), 21, id="default"), (("--max-failures", "5"), 7)]
)
def test_a_judge_that_fails_on_all_is_not_asked_about_each(
    drafts: Path, most: tuple[str, ...], asked: int
) -> None:
    rows = [{"id": n, "draft": f"{DRAFTS['fair.md']} {n}"} for n in range(30)]
    rows[:0] = [{"id": "first", "draft": DRAFTS["good.md"]}]
    (drafts / "drafts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = ("notes.yaml", "drafts.jsonl", "--max-parallel", "1", "--json", "--output", "out.csv")

    done, calls = judged("score", *given, *most, cwd=drafts, at={"fair.md": "No."})

    assert (done.exit_code, calls) == (3, asked)
    assert "--max-failures" in done.json["stopped"]
    assert [one.get("code") for one in done.json["drafts"]] == [None] + ["call.server-error"] * (
        asked - 1
    )
    failures = kept(drafts / "out.csv.failures.jsonl")
    assert [one["code"] for one in failures] == ["call.server-error"] * (asked - 1)


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
    given = ("notes.yaml", "many.jsonl", "--output", "out.jsonl")

    done, _ = judged("score", *given, cwd=drafts)

    assert done.stdout.count("\n") < 40
    assert "20 of 60 passed (33%; needed: 8); 20 lie within 0.5 of that." in done.text
    detailed, calls = judged("score", *given, "--verbose", cwd=drafts)
    assert (detailed.text.count("Composite"), calls) == (60, 0)
