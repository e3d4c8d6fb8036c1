"""What holds of every check, whatever the text."""

import itertools
import random
import time
from pathlib import Path

import pytest
from graded import draft
from hypothesis import given
from hypothesis import strategies as st

from harness.compress import sections_of
from harness.rubric import Finding
from harness.rubric.checks import (
    CHECKS,
    Characters,
    Check,
    ContainsAll,
    ContainsAny,
    Excludes,
    Finished,
    Function,
    Grade,
    GroundedNames,
    GroundedNumbers,
    GroundedSentences,
    Headings,
    Items,
    Json,
    Language,
    NoRepetition,
    NoStubs,
    ParsesAsPython,
    Regex,
    Sections,
    SectionWords,
    Target,
    Words,
    mean_of,
)

OWN = """
def count(draft):
    share = 1 / (1 + len(draft.sections))
    return share, ["fewer sections"] if share < 1 else []
"""


@pytest.fixture(scope="module")
def every_check(tmp_path_factory) -> tuple[Check, ...]:
    own: Path = tmp_path_factory.mktemp("own") / "own.py"
    own.write_text(OWN, encoding="utf-8")
    return (
        Words(min=3, max=9),
        Characters(max=900),
        Sections(min=1, max=2),
        SectionWords(min=2, max=5),
        Items(min=1, max=2, kind="numbered"),
        Items(max=1, scope="section"),
        Target(match="includes"),
        Headings(titles=("A", "B")),
        Finished(),
        ContainsAll(phrases=("a", "[")),
        ContainsAny(phrases=("b", "1")),
        Excludes(phrases=("a", "[")),
        NoRepetition(similarity=0.5),
        Language(code="en"),
        Json(against={"type": "object"}),
        ParsesAsPython(),
        NoStubs(),
        GroundedNumbers(),
        GroundedNames(),
        GroundedSentences(),
        Function(call=f"{own}:count"),
        Regex(pattern=r"\w ", max=2),
        Regex(pattern="[ab]", scope="section"),
    )


TEXT = st.one_of(
    st.text(max_size=80),
    st.text(alphabet="#-=`~>*|: \t\n\r\x0c\u2028a1.,[]()<!\ud800", max_size=60),
    st.lists(
        st.sampled_from(
            [
                *("# A\n", "## A\n", "#### B\n", "a b 1,0 2.\n", "a b 1,0 2.\n\n", "- a\n"),
                *("1. a\n", "```\n", "```python\n", "```json\n", "{}\n", "def f(): ...\n", "> "),
                *("  ", "f()\n", "# TODO\n", "An Ada B. `x_y`\n", "Es ist ein sehr langer Satz. "),
            ]
        ),
        max_size=14,
    ).map("".join),
)


def assert_sound(check: Check, text: str, source: str) -> None:
    grade = check.grade(draft(text, source, task="1"))
    sections = sections_of(text)

    assert 0 <= grade.share <= 1, check
    assert (grade.share == 1) == (not grade.findings), check
    assert not (grade.unjudged and grade.findings), check
    for finding in grade.findings:
        assert finding.message
        if finding.section_index is not None:
            assert finding.section == sections[finding.section_index].title


@given(text=TEXT, source=st.text(alphabet="ab 12.,\n", max_size=20))
def test_a_check_gives_a_share_and_sections_that_are_there_for_any_text(every_check, text, source):
    for check in every_check:
        if not isinstance(check, Regex):  # each starts a process
            assert_sound(check, text, source)


def test_a_check_goes_by_its_own_name_says_what_it_requires_and_describes_its_parameters(
    every_check,
):
    assert {type(check) for check in every_check} == set(CHECKS.values())
    for check in every_check:
        schema = type(check).model_json_schema()
        described = {name for name, said in schema["properties"].items() if "description" in said}

        assert CHECKS[check.check] is type(check)
        assert check.requirement.endswith(".")
        assert schema["description"]
        assert described | {"check"} == schema["properties"].keys()


LONG = {
    "prose": "The GPU of Ada Lovelace ran 1,024 steps in mode `max_steps`, so it was told. ",
    "lists": "1. Do one thing\n2. Then the other\n   - with 3 parts\n\n",
    "python": "```python\ndef f(a):\n    return a + 1\n\nf(2)\nf(3)\n```\n\n",
    "code in lists": "- So:\n\n  ```python\n  x = 1\n  ```\n\n",
    "one name": "Ada-",
    "numbers": "1,234,",
    "blank lines": "\n",
    "backticks": "`",
    "brackets": "[[1",
    "quotes": "> ",
    "fences": "```\n",
    "many words": "",
}


def long_text(kind: str) -> str:
    if kind == "many words":  # no two sentences alike, and all of the same few words
        drawn = random.Random(0)
        words = ["".join(pair) for pair in itertools.product("abcdefghij", repeat=2)]
        said = (f"It is {' '.join(drawn.sample(words, 4))}." for _ in range(3_000))
        return " ".join(said)[:50_000]
    return (LONG[kind] * 50_000)[:50_000]


@pytest.mark.slow
@pytest.mark.parametrize("kind", LONG)
def test_no_text_takes_a_check_long(kind, every_check):
    # What grows with the square of the length takes many times the limit for a text like this;
    # what does not is far below it. In time of this process, which other load adds little to.
    Language(code="en").grade(draft(LONG["prose"] * 3))  # loads its model
    graded = draft(long_text(kind), "A source of 3 words.")
    assert graded.sentences is not None
    assert graded.fences is not None
    taken = {}
    for check in every_check:
        before = time.process_time()
        check.grade(graded)
        taken[check.check] = time.process_time() - before

    assert {name: seconds for name, seconds in taken.items() if seconds > 10} == {}


def test_a_mean_is_of_what_was_judged():
    wrong = Finding("wrong")

    assert mean_of([Grade(1.0), Grade(0.5, (wrong,))]) == Grade(0.75, (wrong,))
    assert mean_of([Grade(1.0, unjudged="why"), Grade(0.5, (wrong,))]) == Grade(0.5, (wrong,))
    assert mean_of([Grade(1.0, unjudged="a"), Grade(1.0, unjudged="a")]).unjudged == "a"
    assert mean_of([Grade(1.0, unjudged="a"), Grade(1.0, unjudged="b")]).unjudged == "a; b"
