"""What one call of a node still asks, as it goes on."""

from __future__ import annotations

import pytest

from harness.session.course import Course, Plan, Rounds, Stretch


def one(*models: str) -> Stretch:
    return Stretch(models=models)


def by_turns(*models: str) -> Stretch:
    return Stretch(models=models, comes_again=True)


def rounds(
    most: int, *, usual: int | None = None, drafts: bool = True, judges: tuple[str, ...] = ("e",)
) -> Rounds:
    return Rounds(
        drafting=(one("p"),) if drafts else (),
        evaluation=(one(*judges),) if judges else (),
        revision=(one("p"),),
        most=most,
        usual=usual,
    )


def course(*parts: Stretch | Rounds) -> Course:
    return Course(Plan(parts=parts))


def steps_of(course: Course, *steps: str) -> list[str]:
    """What is ahead after each step: `+a` for a call of a that begins, `-a` for one that ends."""
    seen = []
    for step in steps:
        (course.asks if step[0] == "+" else course.answered)(step[1:])
        seen.append(" ".join(course.ahead))
    return seen


@pytest.mark.parametrize(
    ("parts", "steps", "ahead"),
    [
        pytest.param(
            [one("a"), one("b")],
            ["+a", "-a", "+b", "-b"],
            ["a b", "a b", "b", "b"],
            id="a stretch lasts until the next begins",
        ),
        pytest.param(
            [one("a"), one("b")],
            ["+x", "+a", "-a", "+x", "+y", "+b"],
            ["x a b", "a b", "a b", "x b", "y b", "b"],
            id="what nobody foresaw",
        ),
        pytest.param(
            [by_turns("a", "b", "c"), one("d")],
            ["+a", "-a", "+b", "+a", "+c", "+d"],
            ["a b c d", "a b c d", "b c a d", "a b c d", "c a b d", "d"],
            id="by turns, and once more",
        ),
        pytest.param(
            [one("a", "b", "c"), one("d")],
            ["+a", "+b", "+c", "-b", "-a", "-c", "+d"],
            ["a b c d", "a b c d", "a b c d", "a c d", "c d", "c d", "d"],
            id="side by side, until each has ended",
        ),
    ],
)
def test_what_lies_behind_is_dropped(
    parts: list[Stretch], steps: list[str], ahead: list[str]
) -> None:
    assert steps_of(course(*parts), *steps) == ahead


# --- revise loops ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("planned", "ahead", "perhaps"),
    [
        pytest.param(rounds(2), "p e p e", "", id="all rounds"),
        pytest.param(rounds(3, usual=1), "p e", "e p", id="the usual rounds"),
        pytest.param(rounds(2, drafts=False), "e p e", "", id="with a draft"),
        pytest.param(rounds(2, judges=("e", "f")), "p e f p e f", "", id="judged by a panel"),
    ],
)
def test_a_loop_is_expected_to_take_its_usual_rounds(
    planned: Rounds, ahead: str, perhaps: str
) -> None:
    ahead_of_it = course(planned, one("z"))
    assert " ".join(ahead_of_it.ahead) == f"{ahead} z".strip()
    assert " ".join(sorted(ahead_of_it.perhaps)) == perhaps


def test_a_loop_that_ends_early_asks_nothing_more() -> None:
    it = course(one("a"), rounds(5), one("z"))
    it.asks("a")
    loop = it.begin_loop(rounds(3))
    assert steps_of(it, "+p", "-p", "+e") == ["p e p e p e z", "p e p e p e z", "e p e p e z"]
    it.end_loop(loop)
    assert it.ahead == ("z",)


def test_a_loop_that_outlives_what_is_usual_is_expected_to_take_one_round_more() -> None:
    it = course(one("z"))
    loop = it.begin_loop(rounds(3, usual=1))
    assert steps_of(it, "+p", "+e") == ["p e z", "e z"]
    assert it.perhaps == {"p", "e"}
    assert steps_of(it, "+p", "+e") == ["p e z", "e z"]
    assert it.perhaps == {"p", "e"}
    assert steps_of(it, "+p") == ["p e z"]
    assert it.perhaps == set()
    assert steps_of(it, "+e", "+p") == ["e z", "p e z"]  # repaired, say: and no round more
    it.end_loop(loop)
    assert it.ahead == ("p", "z")  # which is asked until another is


@pytest.mark.parametrize("first_to_end", [0, 1])
def test_of_loops_side_by_side_none_is_left_behind(first_to_end: int) -> None:
    it = course(rounds(2), rounds(2), one("z"))
    loops = [it.begin_loop(rounds(2)) for _ in range(2)]
    steps_of(it, "+p", "+p", "+e", "+e")
    it.end_loop(loops.pop(first_to_end))
    it.end_loop(loops.pop())
    assert it.ahead[-1:] == ("z",)
    assert steps_of(it, "+z") == ["z"]


def test_a_further_attempt_begins_from_the_beginning() -> None:
    it = course(one("a"), rounds(2))
    before = it.ahead
    steps_of(it, "+a", "+p")
    loop = it.begin_loop(rounds(1))
    it.begin_anew()
    assert it.ahead == before
    it.end_loop(loop)  # the earlier attempt's
    assert it.ahead == before
    assert steps_of(it, "+a") == ["a p e p e"]


# --- what was not foreseen ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "steps", "was_surprised"),
    [
        pytest.param([one("a"), one("b")], ["+a", "-a", "+b"], False, id="in order"),
        pytest.param([by_turns("a", "b")], ["+b", "+a"], False, id="by turns"),
        pytest.param([rounds(3)], ["+p", "-p", "+e", "-e", "+p"], False, id="a loop"),
        pytest.param([one("a")], ["+b"], True, id="one that was not expected"),
        pytest.param([one("a"), one("b")], ["+b", "-b", "+a"], True, id="one that came before"),
    ],
)
def test_a_model_that_is_asked_out_of_its_turn_is_noticed(
    parts: list[Stretch | Rounds], steps: list[str], *, was_surprised: bool
) -> None:
    it = course(*parts)
    steps_of(it, *steps)
    assert it.was_surprised is was_surprised
