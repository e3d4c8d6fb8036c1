"""Judging a revision anew only where it changed, until it would pass."""

import asyncio

import pytest
from scripted_loops import (
    PARTED,
    RUBRIC,
    World,
    run_loop,
    scores,
    verdict_of,
)

from harness.rubric import Draft, Rescore
from harness.trace import Instant
from harness.wiggum import LoopLimits, LoopPolicy, Round
from harness.wiggum.loop import rescore_of

CHANGED = LoopPolicy(rescore="changed")
BASE = Round(number=1, draft=PARTED.text, verdict=verdict_of([3, 8], PARTED, None))
CLEAR, USEFUL = BASE.verdict.scores


@pytest.mark.parametrize(
    ("text", "sections"),
    [
        pytest.param("# One\n\nNew.\n\n# Two\n\nSome more.\n", {0}, id="a section"),
        pytest.param(f"{PARTED.text}\n# Three\n\nNew.\n", {2}, id="a section more"),
        pytest.param("# One\n\nNew.\n\n# Two\n\nNew.\n", None, id="every section"),
        pytest.param("# One\n\nText number 1.\n", None, id="a section less"),
        pytest.param("All new.", None, id="no headings"),
        pytest.param(f"{PARTED.text}\n# Two\n\nSome more.\n", {1, 2}, id="a section twice: either"),
    ],
)
def test_what_changed_is_told_by_its_sections(text, sections):
    draft = Draft(text=text, task="Write.")

    rescore = rescore_of(draft, BASE, [CLEAR])

    # Where every dimension was revised, all is judged anew.
    assert rescore_of(draft, BASE, [CLEAR, USEFUL]) is None
    if sections is None:
        assert rescore is None
    else:
        assert rescore == Rescore(
            base=BASE.verdict, dimensions=frozenset({"clear"}), sections=frozenset(sections)
        )


class Judged:
    """A world whose evaluator says one thing of a draft first, and then another."""

    def __init__(self, *second: tuple[float, float]) -> None:
        self._said = iter([(3, 8), *second])
        self.world = World(
            lambda number, _candidate: f"# One\n\nText number {number}.",
            lambda _text: scores(*next(self._said), section=0),
        )

    def run(self, sink=None, **limits):
        limits = LoopLimits(**{"max_rounds": 2, **limits})
        return asyncio.run(
            run_loop(self.world, first=PARTED, limits=limits, policy=CHANGED, sink=sink)
        )


@pytest.mark.parametrize(
    ("second", "passed"),
    [
        pytest.param((9, 9), True, id="it passes as a whole"),
        pytest.param((9, 2), False, id="it does not pass as a whole"),
    ],
)
def test_what_would_pass_is_judged_as_a_whole_and_that_counts(second, passed):
    records = []
    judged = Judged((9, 1), second)

    result = judged.run(records.append)

    assert len(judged.world.evaluated) == 3
    assert result.rounds[1].verdict.vector == dict(
        zip((d.name for d in RUBRIC.dimensions), second, strict=True)
    )
    assert result.rounds[1].verdict.carried == ()
    assert result.passed == passed
    (rescored,) = (r for r in records if isinstance(r, Instant) and r.name == "rescored")
    assert rescored.attributes == {"composite": 8.5, "carried": ["useful"]}


def test_no_revision_is_begun_whose_full_evaluation_might_not_fit():
    ends = set()
    for max_tokens in range(200, 3_000, 50):
        judged = Judged((9, 1), (9, 9))
        result = judged.run(max_tokens=max_tokens)
        ends.add((result.stop_reason, len(judged.world.evaluated)))

    assert ends == {("budget", 1), ("passed", 3)}
