"""How many rounds loops usually take, by the audit log."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path

import pytest
from scripted_judge import judge

from harness import Pipeline, Run, ScriptedBackend, Settings
from harness.session.usual_rounds import NOTHING_USUAL, usual_rounds
from harness.trace import AUDIT_LOG

numbers = itertools.count()


def line(
    *loops: tuple[str, int], pipeline: str = "brief", final: str = "PASS", run_id: str | None = None
) -> str:
    """A line as far as it is read: loops by their rubric and number of rounds."""
    return json.dumps(
        {
            "run_id": run_id or f"run {next(numbers)}",
            "pipeline": pipeline,
            "final": final,
            "loops": [
                {"rubric": rubric, "rounds": [{"round": n + 1} for n in range(rounds)]}
                for rubric, rounds in loops
            ],
        }
    )


def log_of(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / AUDIT_LOG
    path.write_text("".join(f"{one}\n" for one in lines), encoding="utf-8")
    return path


def usual(tmp_path: Path, *lines: str) -> int | None:
    return usual_rounds(log_of(tmp_path, *lines), "brief").any_rubric


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        pytest.param([], None, id="no runs"),
        pytest.param([2], 2, id="one"),
        pytest.param([1, 3, 1], 1, id="the middle"),
        pytest.param([1, 2], 2, id="the higher of two in the middle"),
        pytest.param([5] * 30 + [1] * 20, 1, id="the last twenty runs"),
        pytest.param([5] * 30 + [1] * 9, 5, id="not fewer"),
    ],
)
def test_the_median_of_the_last_runs_is_usual(
    tmp_path: Path, rounds: list[int], expected: int | None
) -> None:
    assert usual(tmp_path, *(line(("brief", one)) for one in rounds)) == expected


def test_loops_with_the_same_rubric_tell_more(tmp_path: Path) -> None:
    path = log_of(tmp_path, *(line(("notes", 1), ("notes", 1), ("brief", 4)) for _ in range(3)))
    found = usual_rounds(path, "brief")
    assert [found.of("notes"), found.of("brief"), found.of("other"), found.of(None)] == [1, 4, 1, 1]


def test_what_does_not_tell_is_left_out(tmp_path: Path) -> None:
    assert usual(
        tmp_path,
        line(("brief", 2)),
        line(("brief", 9), pipeline="other"),
        *(line(("brief", 9), final=final) for final in ("ERROR", "WAITING", "STOPPED")),
        line(("brief", 0)),  # its rounds could not be had
        line(),
        '{"run_id": "of the series"}',
        '{"run_id": "damaged", "pipe',
        "",
    ) == 2  # fmt: skip


def test_of_a_run_that_was_resumed_the_last_line_counts(tmp_path: Path) -> None:
    lines = [line(("brief", rounds), run_id="one") for rounds in (1, 1, 1, 3)]
    assert usual(tmp_path, *lines) == 3
    assert usual(tmp_path, *lines, line(("brief", 1), run_id="one", final="ERROR")) is None


def test_of_a_long_log_the_end_is_read(tmp_path: Path) -> None:
    lines = [line(("brief", 9), run_id=f"{n:0100000}") for n in range(20)]
    assert usual(tmp_path, *lines, line(("brief", 1)), line(("brief", 1))) == 9
    assert usual(tmp_path, *lines, *(line(("brief", 1)) for _ in range(9))) == 1


def test_a_log_that_cannot_be_read_is_no_fault(tmp_path: Path) -> None:
    assert usual_rounds(tmp_path / "none.jsonl", "brief") == NOTHING_USUAL
    assert usual_rounds(tmp_path, "brief") == NOTHING_USUAL
    unfinished = tmp_path / "unfinished.jsonl"
    unfinished.write_text(line(("brief", 2)), encoding="utf-8")  # somebody is writing it
    assert usual_rounds(unfinished, "brief") == NOTHING_USUAL


def test_the_log_of_real_runs_can_be_read(tmp_path: Path) -> None:
    pipeline = Pipeline("essays")

    @pipeline.node
    async def text(run: Run) -> str:
        return (await run.wiggum("Write.", rubric="answer", max_rounds=2)).text

    for _ in range(2):
        drafts = iter(f"Draft {n}." for n in range(9))
        asyncio.run(
            pipeline.run_async(
                {},
                settings=Settings(traces=tmp_path),
                backends={
                    "producer": ScriptedBackend(lambda _request, drafts=drafts: next(drafts)),
                    "evaluator": judge(3.0, 4.0),
                },
            )
        )
    found = usual_rounds(tmp_path / AUDIT_LOG, "essays")
    assert found.of("answer") == found.any_rubric == 2
