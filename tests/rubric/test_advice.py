"""Advice: what is said of a rubric that can be used, and of which rubrics nothing is."""

import pytest

from harness.rubric import Dimension, Rubric, advice_on, read_rubric

JUDGE = "  judge: How clear is it?\n"
ANCHORS = "  anchors:\n    9: All of it.\n    6: Most of it.\n    3: Little of it.\n"
CHECK = "{ check: finished }"
QUIET = f"""\
title: T
pass_at: 8
focus_below: 7
dimensions:
- name: whole
  floor: 6
  weight: 2
  checks:
  - {CHECK}
- name: clear
{JUDGE}{ANCHORS}  caps:
  - {{ at_most: 5, when: it is one long paragraph }}
"""


def changed(changes: str | dict[str, str]) -> str:
    """The quiet rubric after these changes; or a rubric of its own, as it is."""
    if isinstance(changes, str):
        return changes
    content = QUIET
    for before, after in changes.items():
        assert before in content, before
        content = content.replace(before, after)
    return content


def case(of, nearest, expected):
    """A rubric; the nearest one that gives no cause; the line, the code and facts of the advice."""
    return changed(of), changed(nearest), expected


EXCLUDING = (
    "title: T\ndimensions:\n- name: a\n  weight: 9\n  checks: [{ check: finished }]\n- name: b\n"
    "  checks:\n  - { check: excludes, phrases: [as an AI] }\n"
)
LANGUAGES = "title: T\nlanguage: ja\ndimensions:\n- name: a\n  checks: [{ check: words, max: 9 }]\n"
UNLESS = "unless: { check: words, max: 9 }"
CONTRADICTIONS = {
    "a check that does not judge the language": case(
        LANGUAGES, LANGUAGES.replace("ja", "ko"), (5, "check-not-for-language", "ja")
    ),
    "a cap by such a check": case(
        {"title: T": "title: T\nlanguage: th", "when: it is one long paragraph": UNLESS},
        {"title: T": "title: T\nlanguage: hi", "when: it is one long paragraph": UNLESS},
        (18, "check-not-for-language", "by 'when'"),
    ),
    "a phrase that must not occur, and may": case(
        EXCLUDING, f"{EXCLUDING}  floor: 10\n", (8, "must-not-outvoted", "9")
    ),
    "anchors from 1 to 5 on a scale from 0 to 10": case(
        {"9: All": "5: All", "6: Most": "3: Most", "3: Little": "1: Little"},
        {"9: All": "8: All"},
        (12, "anchors-of-another-scale", "5"),
    ),
}
JUDGING = {"no anchors": case({ANCHORS: ""}, QUIET, (11, "no-anchors", "'clear'"))}
CASES = CONTRADICTIONS | JUDGING


@pytest.fixture
def advice(tmp_path):
    """The advice on a rubric of this content, which may extend `base`."""

    def advise(content, base=QUIET):
        (tmp_path / "base.yaml").write_text(base)
        (tmp_path / "mine.yaml").write_text(content)
        found = read_rubric("mine", directory=tmp_path)
        return advice_on(found.rubric, found.written)

    return advise


@pytest.mark.parametrize(("of", "nearest", "expected"), CASES.values(), ids=CASES)
def test_advice_has_its_line_and_is_given_where_it_is_true_alone(advice, of, nearest, expected):
    line, code, *says = expected
    messages = [a.message for a in advice(of) if (a.line, a.code) == (line, f"rubric.{code}")]

    assert any(all(fact in message for fact in says) for message in messages)
    assert advice(nearest) == ()


@pytest.mark.parametrize(
    ("mine", "base", "places"),
    [
        pytest.param(
            f"extends: base\ndimensions:\n- name: short\n{JUDGE}",
            changed({ANCHORS: ""}),
            [("base", 11, "rubric.no-anchors"), ("mine", 4, "rubric.no-anchors")],
            id="each in the file that it stands in",
        )
    ],
)
def test_advice_names_what_its_author_would_change(advice, mine, base, places):
    assert [(one.path.stem, one.line, one.code) for one in advice(mine, base)] == places


def test_a_rubric_made_in_code_is_advised_without_lines():
    rubric = Rubric(title="T", dimensions=(Dimension(name="a", judge="Is it good?"),))

    (advice,) = advice_on(rubric)
    assert (advice.path, advice.line, advice.code) == (None, None, "rubric.no-anchors")
