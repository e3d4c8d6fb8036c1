"""What is said of a rubric that breaks a rule: a code and a line for each mistake."""

import random

import pytest
from golden import assert_shown
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import RubricInvalid
from harness.files import shipped_directory
from harness.rubric import advice_on, load_rubric, read_rubric

BODY = "dimensions:\n- name: a\n  judge: Good?\n"
JUDGED = f"title: T\n{BODY}"


def checked(*lines: str) -> str:
    """A rubric whose one dimension has these lines; the first of them is line 4."""
    return "title: T\ndimensions:\n- name: a\n" + "".join(f"  {line}\n" for line in lines)


def judged(*lines: str) -> str:
    """The same for a judged dimension: the first of the lines is line 5."""
    return JUDGED + "".join(f"  {line}\n" for line in lines)


CAP = "- { at_most: 5, when: it is dull }"
BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{of}'] * 10)}]\n" for of, name in ("ab", "bc", "cd")
)


def row(content, mistake):
    """What stands in the file; the line and the code of its mistake."""
    line, code = mistake.split()
    return content, int(line), f"rubric.{code}"


FIELDS = {
    "misspelt": row(f"titel: T\n{BODY}", "1 unknown-field"),
    "misspelt, of a dimension": row(judged("wieght: 2"), "5 unknown-field"),
    "a text that a comma cut": row(
        judged("caps:", "- { at_most: 5, when: it has no source, no number }"), "6 unknown-field"
    ),
    "filled in on loading": row(f"id: mine\n{JUDGED}", "1 field-filled-in"),
    "no title": row(f"purpose: x\n{BODY}", "1 field-missing"),
    "no name": row("title: T\ndimensions:\n- judge: Good?\n", "3 field-missing"),
    "twice": row(judged("weight: 2", "judge: Bad?"), "6 duplicate-field"),
    "of a check that has none": row(
        checked("checks: [{ check: finished, min: 3 }]"), "4 unknown-field"
    ),
}
CHECKS = {
    "misspelt": row(
        checked("checks:", "- { check: finished }", "- { check: wrods, min: 3 }"), "6 unknown-check"
    ),
    "no name": row(checked("checks:", "- min: 3"), "5 check-unnamed"),
    "a name that is missing": row(checked("checks: [{ check: }]"), "4 nothing-given"),
    "only a name": row(checked("checks:", "- words"), "5 name-for-fields"),
    "and a judge": row(judged("checks: [{ check: finished }]"), "3 checks-or-judge"),
    "min above max": row(
        checked("checks:", "- { check: finished }", "- check: words", "  min: 9", "  max: 3"),
        "6 range-upside-down",
    ),
    "a phrase that is a number": row(
        checked("checks:", "- check: excludes", "  phrases:", "  - maybe", "  - 1984"), "8 not-text"
    ),
    "no function": row(
        checked("checks:", "- { check: function, call: polite }"), "5 call-malformed"
    ),
    "gate without a floor": row(
        checked("checks: [{ check: finished }]", "gate: true"), "5 gate-without-floor"
    ),
    "a cap that only a reader could judge": row(
        checked("checks: [{ check: finished }]", "caps:", CAP), "6 cap-without-judge"
    ),
    "a share above 1": row(
        checked("checks:", "- { check: grounded_sentences, overlap: 60 }"), "5 out-of-range"
    ),
    "no list of phrases": row(
        checked("checks:", "- check: excludes", "  phrases: TODO"), "6 not-a-list"
    ),
}
VALUES = {
    "title with nothing behind it": row(f"title:\n{BODY}", "1 nothing-given"),
    "judge with nothing behind it": row(
        checked("judge:", "checks: [{ check: finished }]"), "4 nothing-given"
    ),
    "floor with nothing behind it": row(judged("floor:"), "5 nothing-given"),
    "extends with nothing behind it": row(f"extends:\n{JUDGED}", "1 nothing-given"),
    "judge without a question": row(checked("judge: '  '"), "4 text-empty"),
    "weight of 0": row(judged("weight: 0"), "5 out-of-range"),
    "floor off the scale": row(judged("floor: 11"), "5 off-scale"),
    "anchor without a score": row(judged("anchors:", "  good: x"), "6 anchor-without-score"),
    "threshold off the scale": row(f"pass_at: 80\n{JUDGED}", "1 off-scale"),
    "cap when a check": row(
        judged("caps:", "- { at_most: 5, when: { check: finished } }"), "6 not-text"
    ),
    "scale upside down": row(f"scale:\n  min: 5\n  max: 1\n{JUDGED}", "1 scale-upside-down"),
    "comma for a point": row(f"title: T\npass_at: 8,5\n{BODY}", "2 decimal-comma"),
    "yes for true": row(judged("needs_sources: perhaps"), "5 not-true-or-false"),
    "unknown choice": row(f"judge: jont\n{JUDGED}", "1 unknown-choice"),
    "name that is none": row(
        "title: T\ndimensions:\n- judge: Good?\n  name: Use of sources\n", "4 name-malformed"
    ),
    "duplicate dimension": row(
        JUDGED + "- name: b\n  judge: Good?\n- judge: Bad?\n  name: a\n", "8 duplicate-dimension"
    ),
    "all optional": row(judged("optional: true"), "2 all-optional"),
    "no dimensions": row("title: T\ndimensions: []\n", "2 list-empty"),
    "dimensions by name": row("title: T\ndimensions:\n  a:\n    judge: Good?\n", "2 not-a-list"),
    "nothing to leave out of": row(f"without: [a]\n{JUDGED}", "1 without-extends"),
    "scale off its steps": row(f"scale: {{ min: 0, step: 3 }}\n{JUDGED}", "1 scale-steps"),
    "two rubrics to extend": row(f"extends: [qa, brief]\n{JUDGED}", "1 not-text"),
    "dimensions that are names": row("title: T\ndimensions:\n- clear\n", "3 not-fields"),
    "cap with both": row(
        judged("caps:", "- { at_most: 5, when: dull, unless: { check: finished } }"),
        "6 when-or-unless",
    ),
}
FILES = {
    "empty": row("", "1 no-fields"),
    "prose": row("Be strict.\n", "1 no-fields"),
    "binary": row(b"title: T\n\x89PNG\r\n\x1a\n", "2 not-utf-8"),
    "list in itself": row("title: T\ndimensions: &all [*all]\n", "1 too-deep"),
    "aliases of aliases": row(BOMB, "1 too-many-values"),
    "key that is a list": row("title: T\n[a]: b\n", "2 name-not-plain"),
    "control character": row("title: T\npurpose: \x00\n", "2 control-character"),
    "no such character": row('title: "\\U00110000"\n', "1 no-such-character"),
    "a tag": row("title: T\ndimensions: !!bool x\n", "2 yaml-first-character"),
    "a tag of text": row(f"title: !!str 8\n{BODY}", "1 yaml-first-character"),
    "a tag of their own": row(
        f"title: T\nscale: !mine {{ max: 5 }}\n{BODY}", "2 yaml-first-character"
    ),
}
YAML = {
    "colon in a text": row("title: T\npurpose: for: people\n", "2 yaml-colon"),
    "tab": row("title: T\ndimensions:\n\t- name: a\n", "3 yaml-tab"),
    "quote never closed": row("title: T\npurpose: 'x\ndimensions:\n", "2 yaml-quotation"),
    "quote that ends at another": row(
        'title: T\npurpose: "For all\ndimensions:\n- name: a\n  judge: "Good?"\n',
        "5 yaml-behind-value",
    ),
    "two documents": row("title: T\n---\ntitle: U\n", "2 yaml-invalid"),
    "text from >=": row(checked("judge: >= 3 of them?"), "4 yaml-first-character"),
    "text from a bracket": row(checked("judge: [How] good?"), "4 yaml-behind-value"),
    "backslash in double quotes": row(checked('judge: "A \\d?"'), "4 yaml-invalid"),
    "bracket never closed": row(
        checked("checks:", "- { check: words, min: 3", "- { check: finished }"), "5 yaml-brackets"
    ),
    "question between braces": row(
        "title: T\ndimensions:\n- { name: a, judge: Good? }\n", "3 yaml-brackets"
    ),
    "indented too little": row(f"{JUDGED} weight: 2\n", "5 yaml-indentation"),
}
KINDS = {"field": FIELDS, "check": CHECKS, "value": VALUES, "file": FILES, "YAML": YAML}
MISTAKES = {f"{kind}: {name}": row for kind, rows in KINDS.items() for name, row in rows.items()}


def refused(path, content) -> RubricInvalid:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(RubricInvalid) as caught:
        load_rubric(path)
    return caught.value


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_answered_by_its_line_and_what_is_allowed(tmp_path, case):
    content, line, code = MISTAKES[case]
    error = refused(tmp_path / "essay.yaml", content)

    (problem,) = error.problems
    assert (problem.path, problem.line) == (tmp_path / "essay.yaml", line)
    assert problem.code == error.code == code
    assert str(error) == str(problem) == f"{problem.path}:{line}: {problem.message}"
    assert_shown("rubric mistakes", case, problem.message)


@pytest.mark.parametrize(("name", "code"), [("none.yaml", "not-found"), ("", "unreadable")])
def test_what_is_no_file_is_no_rubric(tmp_path, name, code):
    with pytest.raises(RubricInvalid) as caught:
        load_rubric(tmp_path / name)
    assert (caught.value.code, caught.value.path) == (f"rubric.{code}", tmp_path / name)


MANY = """\
titel: Essay
scale: { min: 0, max: 10 }
pass_at: 90
dimensions:
- name: length
  wieght: 2
  checks:
  - { check: wrods, min: 9 }
- name: Clear
  judge: Good?
- name: useful
  floor: 11
  judge: Good?
  anchors: { 90: x, 5: y, 0.5: z }
- name: useful
  judge:
  feedback:
- name: dull
  optional: maybe
  judge: Dull?
"""


def test_every_mistake_is_reported_in_the_order_of_the_lines(tmp_path):
    error = refused(tmp_path / "essay.yaml", MANY)

    assert [(p.line, p.code.removeprefix("rubric.")) for p in error.problems] == [
        (1, "unknown-field"),
        (6, "unknown-field"),
        (8, "unknown-check"),
        (9, "name-malformed"),
        (16, "nothing-given"),
        (17, "nothing-given"),
        (19, "not-true-or-false"),
    ]
    assert str(error).startswith(str(error.problems[0]))
    assert "6 more" in str(error)


# --- whatever a file holds, it is a rubric, or is said not to be, with a line --------------------

SHIPPED = {path.stem: path.read_text() for path in shipped_directory("rubrics").glob("*.yaml")}
VALUES_OF_ALL_KINDS = [
    *("", "~", "true", "no", "-1", "0", "1e9", ".nan", "-.inf", "8,5", "text", "'text'", "[]"),
    *("{}", "[1, 2]", "{ a: 1 }", "*a", "&a", "!x y", "% a", "a: b", "- a", "|", ">", "'", '"'),
    *("\t", "synthesis", "[[[]]]", "{ check: words }", "2026-01-31", "99999999999999999999"),
]


def is_rubric(path, content) -> bool:
    """Whether it is one; where not, every problem has its place and says something."""
    path.write_bytes(content)
    try:
        found = read_rubric(str(path))
    except RubricInvalid as error:
        problems = error.problems
    else:
        advice = advice_on(found.rubric, found.written)
        assert all(one.line and one.code and one.what and one.remedy for one in advice)
        return True
    lines = [problem.line for problem in problems]
    assert lines == sorted(line for line in lines if line is not None)
    assert 1 <= lines[0] <= lines[-1] <= len(content.decode("utf-8", "replace").splitlines()) + 1
    assert all(problem.path == path and problem.message for problem in problems)
    return False


def mangled(lines: list[str], rng: random.Random) -> list[str]:
    """The lines after one accident of those that happen in an editor."""
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    line = lines[at]
    name, colon, value = line.partition(":")
    letter = rng.choice("aeiou_-:#[]{}*&!|>'\"%@ \t")
    spot = rng.randrange(len(name) + 1)
    instead = rng.choice(
        [
            [],
            [line, lines[other]],
            [f"{name}{colon} {rng.choice(VALUES_OF_ALL_KINDS)}"],
            [name[:spot] + letter + name[spot + 1 :] + colon + value],
            [" " * rng.randrange(1, 4) + line],
            [line[rng.randrange(1, 4) :]],
            [line[: rng.randrange(len(line) + 1)]],
        ]
    )
    return [*lines[:at], *instead, *lines[at + 1 :]] or [""]


@given(st.sampled_from(sorted(SHIPPED)), st.randoms(use_true_random=False), st.integers(1, 3))
def test_a_rubric_after_accidents(tmp_path_factory, name, rng, times):
    lines = SHIPPED[name].splitlines()
    for _ in range(times):
        lines = mangled(lines, rng)

    is_rubric(tmp_path_factory.getbasetemp() / "changed.yaml", "\n".join([*lines, ""]).encode())


@given(
    st.one_of(
        st.binary(max_size=60),
        st.text("title: dmensioa-[]{}\n'\"#|>&*!%@`?,~0.5\t", max_size=80).map(str.encode),
    )
)
def test_whatever_a_file_holds_it_is_said_not_to_be_a_rubric(tmp_path_factory, content):
    assert not is_rubric(tmp_path_factory.getbasetemp() / "any.yaml", content)
