"""Whatever happens to a rubric that ships, it is a rubric or is said not to be, with a line."""

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import RubricInvalid
from harness.rubric import load_rubric_file
from harness.rubric.files import RubricFile, advice_on, read_rubric
from harness.shipped import shipped_directory

SHIPPED = {path.stem: path.read_text() for path in shipped_directory("rubrics").glob("*.yaml")}
VALUES = [
    *(
        "",
        "~",
        "true",
        "no",
        "-1",
        "0",
        "1e9",
        ".nan",
        "-.inf",
        "8,5",
        "text",
        "'text'",
        "[]",
        "{}",
    ),
    *("[1, 2]", "{ a: 1 }", "*a", "&a", "!x y", "% a", "a: b", "- a", "|", ">", "'", '"', "\t"),
    *("synthesis", "[[[]]]", "{ check: words }", "2026-01-31", "99999999999999999999"),
]


def lines_of(name):
    return SHIPPED[name].splitlines()


def delete(rng, lines):
    del lines[rng.randrange(len(lines))]


def swap(rng, lines):
    one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]


def repeat(rng, lines):
    lines.insert(rng.randrange(len(lines)), rng.choice(lines))


def garble_value(rng, lines):
    at = rng.randrange(len(lines))
    name, colon, _ = lines[at].partition(":")
    lines[at] = f"{name}{colon} {rng.choice(VALUES)}"


def garble_name(rng, lines):
    at = rng.randrange(len(lines))
    name, colon, value = lines[at].partition(":")
    letters = list(name)
    if letters:
        letters[rng.randrange(len(letters))] = rng.choice("aeiou_-:#[]{}*&!|>'\"%@ \t")
    lines[at] = "".join(letters) + colon + value


def indent(rng, lines):
    at = rng.randrange(len(lines))
    lines[at] = " " * rng.randrange(1, 4) + lines[at]


def outdent(rng, lines):
    at = rng.randrange(len(lines))
    lines[at] = lines[at][rng.randrange(1, 4) :]


def cut(rng, lines):
    at = rng.randrange(len(lines))
    lines[at] = lines[at][: rng.randrange(len(lines[at]) + 1)]


MUTATIONS = (delete, swap, repeat, garble_value, garble_name, indent, outdent, cut)


def mutated(name, seed, times):
    rng, lines = random.Random(seed), lines_of(name)
    for _ in range(times):
        rng.choice(MUTATIONS)(rng, lines)
        if not lines:
            break
    return "\n".join(lines) + "\n"


def read(path: Path, content: str) -> RubricFile | RubricInvalid:
    path.write_text(content)
    try:
        return read_rubric(str(path))
    except RubricInvalid as error:
        return error


def check(path: Path, content: str) -> bool:
    """Whether it is a rubric; where not, that every problem has its place and says something."""
    found = read(path, content)
    if isinstance(found, RubricFile):
        advice = advice_on(found.rubric, found.written)
        assert all(one.line is not None and one.what and one.remedy for one in advice)
        return True
    lines = [problem.line for problem in found.problems]
    assert lines == sorted(line for line in lines if line is not None)
    assert 1 <= lines[0] <= lines[-1] <= content.count("\n") + 1
    assert all(problem.path == path and problem.message for problem in found.problems)
    return False


@settings(derandomize=True, deadline=None, max_examples=300)
@given(
    name=st.sampled_from(sorted(SHIPPED)),
    seed=st.integers(0, 2**32),
    times=st.integers(1, 3),
)
def test_a_rubric_that_was_changed_at_random(tmp_path_factory, name, seed, times):
    path = tmp_path_factory.getbasetemp() / "changed.yaml"
    check(path, mutated(name, seed, times))


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_a_rubric_with_any_one_line_deleted(tmp_path, name):
    lines = lines_of(name)
    kept = [
        check(tmp_path / "cut.yaml", "\n".join(lines[:at] + lines[at + 1 :]) + "\n")
        for at in range(len(lines))
    ]

    # Comments and optional fields may go; what a dimension is scored by may not.
    assert any(kept)
    assert not all(kept)


FULL = """\
title: T
purpose: P
extends: synthesis
without: [depth]
preset: book
scale: { min: 0, max: 10, step: 0.5 }
pass_at: 8
focus_below: 7
judge: joint
repeats: 3
repeat_within: 0.5
shorten: { evaluate_over: 6000, revise_over: 5000, cap: 20000 }
dimensions:
- name: length
  weight: 2
  floor: 6
  gate: true
  checks: [{ check: finished }]
- name: clear
  judge: How clear is it?
  anchors: { 9: Very, 6: Rather, 3: Hardly }
  feedback: Say where.
  caps: [{ at_most: 5, when: it is long }, { at_most: 5, unless: { check: finished } }]
  needs_sources: true
  optional: true
"""


@pytest.mark.parametrize("value", VALUES)
def test_any_value_in_the_place_of_any_other(tmp_path, value):
    path = tmp_path / "mine.yaml"
    assert check(path, FULL)
    for at, line in enumerate(FULL.splitlines()):
        name, _, _ = line.partition(": ")
        lines = FULL.splitlines()
        lines[at] = f"{name}: {value}"
        check(path, "\n".join(lines) + "\n")


@settings(derandomize=True, deadline=None, max_examples=200)
@given(
    content=st.one_of(
        st.binary(max_size=60),
        st.text(max_size=60).map(lambda text: text.encode("utf-8", "replace")),
        st.text("title: dmensioa-[]{}\n'\"#|>&*!%@`?,~0.5\t", max_size=80).map(str.encode),
    )
)
def test_whatever_a_file_holds_it_is_a_rubric_or_is_said_not_to_be(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(content)
    with pytest.raises(RubricInvalid) as caught:
        load_rubric_file(path)
    assert all(problem.line for problem in caught.value.problems)
