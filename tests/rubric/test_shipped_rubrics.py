"""The rubrics that ship: each can be used as it stands."""

import pytest

from harness.rubric import Draft, advice_on, load_rubric, read_rubric

SHIPPED = ["answer", "brief", "code", "qa", "research", "summary", "synthesis"]
SIX = ["relevance", "completeness", "depth", "specificity", "structure", "groundedness"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Away from the checkout, whose own `rubrics` are those that ship."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", SHIPPED)
def test_each_says_what_it_is_for_and_what_scores_look_like_and_needs_no_advice(name):
    found = read_rubric(name)

    assert (found.rubric.id, bool(found.rubric.title and found.rubric.purpose)) == (name, True)
    assert advice_on(found.rubric, found.written) == ()
    for dimension in found.rubric.judged:
        anchors = sorted(dimension.anchors)
        assert (len(anchors) >= 4, anchors[0] <= 3, anchors[-1] >= 9) == (True, True, True)


def test_these_can_be_used_without_an_evaluator():
    alone = [name for name in SHIPPED if all(d.optional for d in load_rubric(name).judged)]

    assert alone == ["answer", "brief", "qa", "summary"]


def test_synthesis_has_the_six_dimensions_with_equal_weights_and_the_caps():
    rubric = load_rubric("synthesis")

    assert [d.name for d in rubric.dimensions] == SIX
    assert {d.weight for d in rubric.dimensions} == {1}
    assert (rubric.scale.step, rubric.pass_at) == (0.5, 8)
    assert [d.name for d in rubric.dimensions if d.caps] == SIX[1:]
    assert [d.name for d in rubric.dimensions if d.needs_sources] == ["groundedness"]


def shares(rubric: str, name: str, text: str, sources: tuple[str, ...] = ()) -> dict[str, float]:
    """What each check of a dimension, or of its caps, finds in a draft."""
    draft = Draft(text=text, task="Write it.", sources=sources)
    dimension = next(d for d in load_rubric(rubric).dimensions if d.name == name)
    checks = (*dimension.checks, *(cap.unless for cap in dimension.caps if cap.unless))
    return {check.check: check.grade(draft).share for check in checks}


CODE = """\
The function adds up what it is given.

```python
def total(prices):
    return sum(prices)
```
"""


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        pytest.param("", "", {}, id="whole"),
        pytest.param("sum(prices)", "sum(prices", {"python": 0}, id="does not parse"),
        pytest.param("    return sum(prices)", "    pass", {"no_stubs": 0}, id="stub"),
        pytest.param("sum(prices)", "0  # TODO", {"no_stubs": 0}, id="placeholder"),
        pytest.param("    return sum(prices)\n```\n", "", {"python": 0, "finished": 0}, id="torn"),
    ],
)
def test_the_gate_of_code_shuts_on_what_is_not_written_out(before, after, found):
    whole = {"python": 1, "no_stubs": 1, "finished": 1}

    assert shares("code", "whole", CODE.replace(before, after)) == whole | found


@pytest.mark.parametrize(
    ("text", "numbers", "names"),
    [
        ("It took 8 s, says Ada Lovelace.", 1, 1),
        ("It took 9 s, says Ada Lovelace.", 0, 1),
        ("It took 8 s, says Alan Turing.", 1, 0),
    ],
)
def test_research_looks_every_number_and_name_up_in_the_sources(text, numbers, names):
    found = shares("research", "evidence", text, ("Ada Lovelace measured 8 s.",))

    assert found == {"grounded_numbers": numbers, "grounded_names": names}
