"""What a changed evaluation would repeat: foreseen, and made."""

import asyncio
import json

import pytest
from session_runs import settings_of

from harness import Evaluation, Pipeline, ScriptedBackend
from harness.rubric import load_rubric
from harness.rubric.noise import is_judged_enough
from harness.rubric.verdict import Judges, Verdict

RUBRIC = """\
title: Clear
purpose: {purpose}
pass_at: {pass_at}
{more}
dimensions:
  - name: clear
    judge: Is it clear?
"""
ROWS = [{"id": str(n), "task": f"Text {n}."} for n in range(6)]


class Judged:
    """Outputs that a model judges, all with a score."""

    def __init__(self, folder):
        self.folder = folder
        self.judge = ScriptedBackend(
            lambda _: json.dumps({"clear": {"reason": "Short.", "issues": [], "score": self.score}})
        )
        self.score = 9

    def batch(self, pass_at, *, purpose="P", more=""):
        rubric = RUBRIC.format(purpose=purpose, pass_at=pass_at, more=more)
        (self.folder / "clear.yaml").write_text(rubric)
        says = Pipeline("says")
        says.node(lambda task: task, name="text")
        settings = settings_of(self.folder, rubrics=self.folder, roles={"evaluator": "evaluator"})
        return Evaluation(says, ROWS, rubric="clear").batch(
            settings,
            output=self.folder / "out.jsonl",
            backends={"evaluator": self.judge, "producer": ScriptedBackend([])},
        )

    def foreseen(self, *how, **more):
        """Calls and tokens of what would be made again."""
        again = asyncio.run(self.batch(*how, **more).rehearsal()).again
        return sum(r.calls for r in again), sum(r.input_tokens for r in again)

    def made(self, *how, **more):
        """Calls of the judge that are made."""
        before = len(self.judge.requests)
        asyncio.run(self.batch(*how, **more).run())
        return len(self.judge.requests) - before


@pytest.fixture
def judged(tmp_path):
    return Judged(tmp_path)


@pytest.mark.parametrize("pass_at", [7.5, 7, 9, 9.5])
def test_another_threshold_repeats_no_judgement_and_none_is_foreseen(judged, pass_at):
    assert judged.made(8) == 6
    assert judged.foreseen(pass_at) == (0, 0)
    assert judged.made(pass_at) == 0


def test_what_judgements_took_is_known_after_another_threshold_used_them_again(judged):
    judged.made(8)
    first = judged.foreseen(8, purpose="Q")
    judged.made(7.5)
    judged.made(7)

    assert judged.foreseen(7, purpose="Q") == first
    assert (first[0], first[1] > 100) == (6, True)
    assert judged.made(7, purpose="Q") == 6


def test_a_threshold_and_something_else_that_change_together_are_foreseen(judged):
    judged.made(8)
    assert judged.foreseen(7.5, purpose="Q")[0] == 6
    assert judged.made(7.5, purpose="Q") == 6


@pytest.mark.parametrize(("pass_at", "calls"), [(6, 0), (9.3, 6)], ids=["far", "near"])
def test_judgements_near_a_new_threshold_are_foreseen_to_be_repeated(judged, pass_at, calls):
    assert judged.made(7, more="repeats: 3") == 6
    assert judged.foreseen(pass_at, more="repeats: 3")[0] == calls
    assert judged.made(pass_at, more="repeats: 3") >= calls


@pytest.mark.parametrize(
    ("judges", "is_enough"),
    [
        (None, True),
        ({"composites": (5.0,)}, True),
        ({"composites": (7.9,)}, False),
        ({"composites": (5.0, 6.0)}, False),
        ({"composites": (7.9, 7.9, 7.9)}, True),
        ({"composites": (5.0,), "borderline": False}, False),
        ({}, False),
    ],
)
def test_in_doubt_a_verdict_may_need_a_further_judgement(tmp_path, judges, is_enough):
    path = tmp_path / "clear.yaml"
    path.write_text(RUBRIC.format(purpose="P", pass_at=8, more="repeats: 3"))
    composite = (judges or {}).get("composites", (5.0,))[0]
    verdict = Verdict(
        rubric="clear",
        rubric_sha256="",
        scores=(),
        composite=composite,
        passed=False,
        judges=judges if judges is None else Judges(evaluators=("e",), prompt_sha256="", **judges),
    )
    assert is_judged_enough(verdict, load_rubric(path, directory=tmp_path)) is is_enough
