"""`harness rubric shift` and `drift`: the same drafts, by another evaluator or at another time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from command import Done, harness, serving
from judging import DRAFTS, RUBRIC, Judge, by_draft, judged

FIRST, OTHER = "first", "other"


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """A directory with a rubric and three drafts."""
    (tmp_path / "notes.yaml").write_text(RUBRIC)
    for name, text in DRAFTS.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@contextmanager
def two_judges(
    other: Callable[[str], float], names: tuple[str, str] = (FIRST, OTHER), **more: Any
) -> Iterator[tuple[Callable[..., Done], list[Judge]]]:
    """A command that knows two evaluators; the second gives other scores."""
    with ExitStack() as stack:
        judges = [stack.enter_context(serving(Judge())), Judge(score=other, **more)]
        stack.enter_context(serving(judges[1]))
        endpoints = {
            tag: {"url": f"{judge.root}/v1", "model_id": name, "structured": "enforced"}
            for tag, name, judge in zip((FIRST, OTHER), names, judges, strict=True)
        }

        def run(*arguments: str, cwd: Path) -> Done:
            return harness("rubric", *arguments, cwd=cwd, endpoints=endpoints)

        yield run, judges


SHIFT = ("shift", "notes.yaml", *DRAFTS, "--role", f"evaluator={FIRST}", "--against", OTHER)


def kinder(prompt: str) -> float:
    return by_draft(prompt) + 0.5


def test_an_evaluator_that_scores_higher_is_seen_without_labels(notes: Path) -> None:
    with two_judges(kinder) as (run, judges):
        done = run(*SHIFT, "--json", cwd=notes)
        asked = [len(judge.asked) for judge in judges]
    found = done.json

    assert done.exit_code == 0
    assert asked == [3, 3]
    assert found["evaluators"] == [FIRST, OTHER]
    clear = found["moved"]["clear"]
    assert clear["offset"] == {"value": 0.5, "low": 0.5, "high": 0.5}
    assert (clear["higher"], clear["drafts"]) == ("second", 3)
    assert "length" not in found["moved"]
    assert found["passed"] == [1, 2]
    assert found["flipped"] == [
        {"id": "fair.md", "composites": [7.8, 8.1], "passed": [False, True]}
    ]
    same = found["same_rate"]
    assert (same["threshold"]["value"], same["passed"], same["flipped"]) == (8.2, 1, 0)


def test_two_quantizations_of_one_model_are_compared_without_a_word_of_a_producer(
    notes: Path,
) -> None:
    # Neither is the other's producer, although there are no further endpoints.
    names = ("llama3.1:8b-instruct-q8_0", "llama3.1:8b-instruct-q4_K_M")
    with two_judges(kinder, names=names) as (run, _):
        done = run(*SHIFT, cwd=notes)

    assert done.exit_code == 0
    assert "producer" not in done.stderr
    assert "Q4_K_M" in done.stderr


def test_what_is_said_stands_in_words_for_people(notes: Path) -> None:
    with two_judges(lambda _: 7) as (run, _):
        text = run(*SHIFT, cwd=notes).text

    for part in (
        "3 drafts in 3 groups",
        f"{OTHER} gave all drafts the same in clear",
        "Passed at 8: 1 and 0 of 3; 1 decided otherwise.",
        "good.md: 9.3 → 7.8, no longer passes",
    ):
        assert part in text


def test_what_was_kept_is_not_judged_again(notes: Path) -> None:
    with two_judges(kinder) as (run, judges):
        once = run(*SHIFT, "--output", "kept", "--json", cwd=notes)
        again = run(*SHIFT, "--output", "kept", "--json", cwd=notes)
        asked = [len(judge.asked) for judge in judges]

    assert once.json["moved"] == again.json["moved"]
    assert asked == [3, 3]
    assert {one.name for one in (notes / "kept").iterdir()} == {"first.jsonl", "other.jsonl"}


def test_a_draft_that_one_evaluator_cannot_judge_is_told_and_left_out(notes: Path) -> None:
    with two_judges(kinder, at={"poor.md": "too long for this model"}) as (run, _):
        done = run(*SHIFT, "--json", cwd=notes)

    assert done.exit_code == 1
    assert done.json["drafts"] == 2
    assert [one["id"] for one in done.json["failed"]] == ["poor.md"]


@pytest.mark.parametrize(
    ("more", "code"),
    [
        (("--against", FIRST), "shift.same-evaluator"),
        (("--against", "nobody"), "roles.endpoint-unknown"),
        (("--role", "evaluator=nobody"), "roles.endpoint-unknown"),
    ],
)
def test_a_mistake_is_answered_before_anyone_is_asked(
    notes: Path, more: tuple[str, str], code: str
) -> None:
    given = [one for pair in zip(SHIFT[-4::2], SHIFT[-3::2], strict=True) for one in pair]
    options = {given[0]: given[1], given[2]: given[3]} | {more[0]: more[1]}
    flat = [one for pair in options.items() for one in pair]
    with two_judges(kinder) as (run, judges):
        done = run(*SHIFT[:-4], *flat, "--json", cwd=notes)

    assert (done.exit_code, done.code) == (2, code)
    assert not any(judge.asked for judge in judges)


# --- drift -----------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_drift_is_told_from_what_score_kept(notes: Path, ending: str) -> None:
    since = f"scores.{ending}"
    judged("score", "notes.yaml", *DRAFTS, "--output", since, "--samples", "2", cwd=notes)
    (notes / "poor.md").write_text("Another text, which says something else altogether.\n")
    drift = ("drift", "notes.yaml", "good.md", "fair.md", "poor.md", "--since", since, "--json")
    done, asked = judged(*drift, cwd=notes, score=kinder)
    found = done.json

    assert done.exit_code == 0
    assert asked == 4  # two drafts, twice each, as before; one has changed
    assert found["drafts"] == 2
    assert found["moved"]["clear"]["offset"]["value"] == 0.5
    assert found["passed"] == [1, 2]
    assert found["evaluators"] == ["evaluator, then", "evaluator, now"]


def test_scores_by_another_rubric_tell_no_drift(notes: Path) -> None:
    judged("score", "notes.yaml", *DRAFTS, "--output", "scores.jsonl", cwd=notes)
    (notes / "notes.yaml").write_text(RUBRIC.replace("Is it clear?", "Is it brief?"))
    drift = ("drift", "notes.yaml", *DRAFTS, "--since", "scores.jsonl", "--json")
    done, asked = judged(*drift, cwd=notes)

    assert (done.exit_code, done.code, asked) == (2, "row.scores-unusable", 0)
