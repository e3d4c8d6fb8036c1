"""Advice: what is said of a rubric that can be used, and of which rubrics nothing is."""

import itertools

import pytest

from harness.rubric import Dimension, DimensionScore, Rubric, Scale, reach_verdict
from harness.rubric.checks import Finished
from harness.rubric.files import advice_on, read_rubric

QUIET = """\
title: T
pass_at: 8
focus_below: 7
dimensions:
- name: whole
  floor: 6
  weight: 2
  checks:
  - { check: finished }
- name: clear
  judge: How clear is it?
  anchors:
    9: All of it.
    6: Most of it.
    3: Little of it.
  caps:
  - { at_most: 5, when: it is one long paragraph }
"""


@pytest.fixture
def advice(tmp_path):
    """The advice on a rubric with this content, as lines and texts."""

    def advise(content):
        (tmp_path / "mine.yaml").write_text(content)
        found = read_rubric("mine", directory=tmp_path)
        return [(one.line, one.message) for one in advice_on(found.rubric, found.written)]

    return advise


def changed(*changes: tuple[str, str]) -> str:
    content = QUIET
    for before, after in changes:
        assert before in content, before
        content = content.replace(before, after)
    return content


CHECKED = (
    "title: T\n{0}dimensions:\n- name: a\n  checks: [{{ check: finished }}]\n"
    "- name: b\n  checks: [{{ check: no_repetition }}]\n"
)
WHOLE = "scale: { step: 1 }\n"
JUDGE = "  judge: How clear is it?\n"
ANCHORS = "  anchors:\n    9: All of it.\n    6: Most of it.\n    3: Little of it.\n"

# A rubric; the line and the whole of what is said; and the nearest rubric of which it is not said.
CASES = {
    "weights that are all the same": (
        changed((JUDGE, f"  weight: 2\n{JUDGE}")),
        7,
        (
            "every dimension has weight 2, which is as if none had any; leave 'weight' out, or "
            "give more to what matters more"
        ),
        changed((JUDGE, f"  weight: 1\n{JUDGE}"), ("weight: 2", "weight: 1")),
    ),
    "a weight that moves nothing": (
        changed(("weight: 2", "weight: 101")).replace(JUDGE, f"{JUDGE}  weight: 1\n"),
        12,
        (
            "between its worst and its best score, dimension 'clear' moves the composite by less "
            "than 0.1; give it more weight, or a floor, or leave it out"
        ),
        changed(("weight: 2", "weight: 99")).replace(JUDGE, f"{JUDGE}  weight: 1\n"),
    ),
    "a threshold that every draft reaches": (
        changed(("pass_at: 8", "pass_at: 0"), ("focus_below: 7", "focus_below: -0")).replace(
            "floor: 6\n", "optional: false\n"
        ),
        2,
        "every draft reaches 0; raise pass_at",
        changed(("pass_at: 8", "pass_at: 7")),
    ),
    "a threshold that every draft reaches, and floors": (
        changed(("pass_at: 8", "pass_at: 0"), ("focus_below: 7", "focus_below: 0")),
        2,
        "every draft reaches 0, so the floors alone decide; raise pass_at",
        changed(("pass_at: 8", "pass_at: 7")),
    ),
    "a threshold that no model's scores reach": (
        changed(("pass_at: 8", "pass_at: 10")),
        2,
        (
            "only a draft with the full score in every dimension reaches 10, which models hardly "
            "give; lower pass_at; 9 of 10 is strict"
        ),
        CHECKED.format("pass_at: 10\n"),
    ),
    "a threshold below the floors": (
        changed((JUDGE, f"  floor: 6.5\n{JUDGE}"), ("floor: 6\n", "floor: 9\n")).replace(
            "at_most: 5", "at_most: 8"
        ),
        2,
        (
            "a draft with every dimension at its floor has 8.2, so pass_at 8 decides nothing; "
            "raise pass_at, or lower the floors"
        ),
        changed((JUDGE, f"  floor: 6.5\n{JUDGE}"), ("floor: 6\n", "floor: 8\n")).replace(
            "at_most: 5", "at_most: 8"
        ),
    ),
    "a threshold between two tenths": (
        changed(("pass_at: 8", "pass_at: 8.25")),
        2,
        (
            "no composite lies between 8.25 and 8.3, so a draft passes from 8.3 on; write 8.3, or "
            "a smaller step"
        ),
        changed(("pass_at: 8", "pass_at: 8.2")),
    ),
    "a threshold just above a tenth": (
        changed(("pass_at: 8", "pass_at: 8.21")),
        2,
        (
            "no composite lies between 8.21 and 8.3, so a draft passes from 8.3 on; write 8.3, or "
            "a smaller step"
        ),
        changed(("pass_at: 8", "pass_at: 8.3")),
    ),
    "a threshold between two composites of checks": (
        CHECKED.format(f"{WHOLE}pass_at: 8.1\n"),
        3,
        (
            "no composite lies between 8.1 and 8.5, so a draft passes from 8.5 on; write 8.5, or a "
            "smaller step"
        ),
        CHECKED.format(f"{WHOLE}pass_at: 8.5\n"),
    ),
    "a focus above the threshold": (
        changed(("focus_below: 7", "focus_below: 9")),
        3,
        (
            "focus_below 9 is above pass_at 8: revisions also work on dimensions that are good "
            "enough to pass; set focus_below to 8 or less"
        ),
        changed(("focus_below: 7", "focus_below: 8")),
    ),
    "a threshold below the focus that nobody wrote": (
        changed(("pass_at: 8", "pass_at: 6.5"), ("focus_below: 7\n", "")),
        2,
        (
            "focus_below 7 is above pass_at 6.5: revisions also work on dimensions that are good "
            "enough to pass; set focus_below to 6.5 or less"
        ),
        changed(("pass_at: 8", "pass_at: 7"), ("focus_below: 7\n", "")),
    ),
    "a focus that nothing is in": (
        changed(("focus_below: 7", "focus_below: 0")),
        3,
        (
            "no score is below 0, so a revision always works on the two lowest dimensions; raise "
            "focus_below, usually to a little below pass_at"
        ),
        changed(("focus_below: 7", "focus_below: 1")),
    ),
    "a focus below every floor": (
        changed((JUDGE, f"  floor: 5\n{JUDGE}"), ("focus_below: 7", "focus_below: 5")),
        3,
        (
            "every dimension has a floor of 5 or more, and what is under its floor is revised "
            "anyway: focus_below 5 changes nothing; raise focus_below above the floors, or leave "
            "it out"
        ),
        changed((JUDGE, f"  floor: 4.5\n{JUDGE}"), ("focus_below: 7", "focus_below: 5")).replace(
            "at_most: 5", "at_most: 6"
        ),
    ),
    "a floor that nothing is under": (
        changed(("floor: 6", "floor: 0")),
        6,
        "no score is below 0, so this floor changes nothing; raise it",
        changed(("floor: 6", "floor: 0.5")),
    ),
    "a floor above the threshold": (
        changed((JUDGE, f"  floor: 9\n{JUDGE}"), ("at_most: 5", "at_most: 9")),
        11,
        (
            "the floor 9 is above pass_at 8: a draft whose dimensions all score 8 has the "
            "composite, and fails for 'clear'; lower it to 8 or less"
        ),
        changed((JUDGE, f"  floor: 8\n{JUDGE}"), ("at_most: 5", "at_most: 9")),
    ),
    "a floor between two steps": (
        changed(("floor: 6", "floor: 6.2")),
        6,
        "scores go in steps of 0.5, so this floor is in effect 6.5; write 6.5",
        changed(("floor: 6", "floor: 6.5")),
    ),
    "a floor just below a step": (
        changed(("floor: 6", "floor: 6.4")),
        6,
        "scores go in steps of 0.5, so this floor is in effect 6.5; write 6.5",
        changed(("floor: 6", "floor: 7")),
    ),
    "a cap at the top": (
        changed(("at_most: 5", "at_most: 10")),
        17,
        "no score is above 10, so this cap changes nothing; lower at_most",
        changed(("at_most: 5", "at_most: 9.5")),
    ),
    "a cap under the floor": (
        changed((JUDGE, f"  floor: 6\n{JUDGE}")),
        18,
        (
            "the cap 5 is under the floor 6: where it applies, the draft fails; raise it to 6 or "
            "more, unless that is meant"
        ),
        changed((JUDGE, f"  floor: 5\n{JUDGE}")),
    ),
    "judging where nothing is judged": (
        CHECKED.format("judge: split\n"),
        2,
        "no dimension is judged by a model, so 'judge' changes nothing; leave it out",
        CHECKED.format(""),
    ),
    "repeats where nothing is judged": (
        CHECKED.format("repeats: 5\n"),
        2,
        "no dimension is judged by a model, so 'repeats' changes nothing; leave it out",
        CHECKED.format(""),
    ),
    "nothing to split": (
        f"judge: split\n{QUIET}",
        1,
        "one dimension is judged, so there is nothing to split; leave 'judge: split' out",
        f"judge: split\n{QUIET}- name: useful\n{JUDGE}{ANCHORS}",
    ),
    "near the threshold, and no second judgement": (
        f"repeats: 1\nrepeat_within: 1\n{QUIET}",
        2,
        (
            "with 'repeats: 1' a draft is judged once, however near the threshold it is; leave "
            "'repeat_within' out, or raise 'repeats'"
        ),
        f"repeats: 2\nrepeat_within: 1\n{QUIET}",
    ),
    "nothing without sources": (
        f"title: T\ndimensions:\n- name: a\n{JUDGE}{ANCHORS}  needs_sources: true\n",
        2,
        (
            "every dimension needs sources, so nothing can be said of a draft without any; add a "
            "dimension that needs none"
        ),
        (
            f"title: T\ndimensions:\n- name: a\n{JUDGE}{ANCHORS}  needs_sources: true\n"
            f"- name: b\n{JUDGE}{ANCHORS}"
        ),
    ),
    "names that look alike": (
        f"{QUIET}- name: clearer\n{JUDGE}{ANCHORS}",
        18,
        "the names 'clear' and 'clearer' are easily taken for each other; rename one of them",
        f"{QUIET}- name: clarity\n{JUDGE}{ANCHORS}",
    ),
    "a forbidden phrase in an anchor": (
        changed(("{ check: finished }", "{ check: excludes, phrases: [Most of] }")),
        14,
        (
            "this anchor says 'Most of', which 'excludes' forbids: a revision may take the words "
            "from it; say it in other words"
        ),
        changed(("{ check: finished }", "{ check: excludes, phrases: [Most off] }")),
    ),
    "a text that ends before a number sign": (
        changed(("How clear is it?", "How clear is rule #3 in it?")),
        11,
        (
            "the text ends before '#3 in it?', which counts as a comment; put the text in quotes, "
            "or a space behind the '#'"
        ),
        changed(("How clear is it?", "How clear is it? # C#, mostly")),
    ),
    "quotes that are none to YAML": (
        changed(("{ check: finished }", "{ check: excludes, phrases: [„TODO“] }")),
        9,
        (
            "the quotes of '„TODO“' are looked for with it: to YAML, only \" and ' are quotes; "
            'write "TODO", unless that is meant'
        ),
        changed(("{ check: finished }", "{ check: excludes, phrases: ['TODO', „, so “he”] }")),
    ),
    "quotes that a comma cuts in two": (
        changed(("{ check: finished }", "{ check: headings, titles: [„Now, then“] }")),
        9,
        (
            "the quotes of 'then“' are looked for with it: to YAML, only \" and ' are quotes; "
            'write "then", unless that is meant'
        ),
        changed(("{ check: finished }", '{ check: headings, titles: ["Now, then"] }')),
    ),
    "a pattern that says nothing to people": (
        changed(("{ check: finished }", "{ check: regex, pattern: '[0-9]{4}' }")),
        9,
        (
            "this pattern has no meaning in words, so whoever writes is told the pattern; add "
            "'meaning', such as 'meaning: a year in brackets'"
        ),
        changed(("{ check: finished }", "{ check: regex, pattern: '[0-9]{4}', meaning: a year }")),
    ),
    "anchors that nobody reads": (
        changed(("  weight: 2\n", f"  weight: 2\n{ANCHORS}")),
        8,
        (
            "'whole' is checked by code, so nobody reads its 'anchors'; leave it out, or have the "
            "dimension judged"
        ),
        QUIET,
    ),
    "feedback that nobody reads": (
        changed(("  weight: 2\n", "  weight: 2\n  feedback: Say where.\n")),
        8,
        (
            "'whole' is checked by code, so nobody reads its 'feedback'; leave it out, or have the "
            "dimension judged"
        ),
        changed((JUDGE, f"{JUDGE}  feedback: Say where.\n")),
    ),
    "a threshold that nobody wrote for this scale": (
        CHECKED.format("scale: { min: 0, max: 100, step: 1 }\nfocus_below: 70\n"),
        2,
        (
            "pass_at, unless given, is 8, in the lower half of the scale 0 to 100; write pass_at, "
            "such as 80"
        ),
        CHECKED.format("scale: { min: 0, max: 100, step: 1 }\nfocus_below: 7\npass_at: 8\n"),
    ),
    "a focus that nobody wrote for this scale": (
        CHECKED.format("scale: { min: 0, max: 100, step: 1 }\npass_at: 80\n"),
        2,
        (
            "focus_below, unless given, is 7, in the lower half of the scale 0 to 100; write "
            "focus_below, such as 70"
        ),
        CHECKED.format("scale: { max: 10 }\n"),
    ),
    "no anchors": (
        changed((ANCHORS, "")),
        11,
        (
            "'clear' has no anchors: small models then give nearly the same score to everything; "
            "say what a good, a middling and a poor text look like: { 9: …, 6: …, 3: … }"
        ),
        QUIET,
    ),
    "a yes or no without anchors": (
        changed((ANCHORS, ""), ("How clear is it?", "Look at it. Is it clear?")),
        11,
        (
            "'clear' asks for a yes or no, and no anchor says what lies between; ask 'How well …', "
            "or add anchors: { 9: …, 6: …, 3: … }"
        ),
        changed(("How clear is it?", "Look at it. Is it clear?")),
    ),
    "one anchor": (
        changed((ANCHORS, "  anchors: { 8: Good }\n")),
        12,
        (
            "'clear' has one anchor, so nothing says what another score looks like; add anchors "
            "for a good, a middling and a poor text"
        ),
        changed((ANCHORS, "  anchors: { 8: Good, 2: Bad }\n")),
    ),
    "anchors at the upper end": (
        changed((ANCHORS, "  anchors: { 8: Good, 9.5: Better }\n")),
        12,
        (
            "all anchors of 'clear' are in the upper half of the scale; add one that says what a "
            "poor text looks like"
        ),
        changed((ANCHORS, "  anchors: { 8: Good, 5: Middling }\n")),
    ),
    "anchors at the lower end": (
        changed((ANCHORS, "  anchors: { 1: Bad, 3: Poor }\n")),
        12,
        (
            "all anchors of 'clear' are in the lower half of the scale; add one that says what a "
            "good text looks like"
        ),
        changed((ANCHORS, "  anchors: { 1: Bad, 6: Fair }\n")),
    ),
    "an anchor between two steps": (
        changed(("6: Most", "6.25: Most")),
        14,
        (
            "scores go in steps of 0.5, so the evaluator cannot give 6.25; move the anchor to a "
            "score that it can give"
        ),
        changed(("6: Most", "6.5: Most")),
    ),
    "groundedness without sources": (
        changed(("name: clear", "name: groundedness")),
        10,
        (
            "'groundedness' is also judged where there are no sources to judge it by; add "
            "'needs_sources: true'"
        ),
        changed(("name: clear", "name: groundedness\n  needs_sources: true")),
    ),
}


def test_nothing_is_said_of_a_rubric_that_says_what_it_means(advice):
    assert advice(QUIET) == []


@pytest.mark.parametrize(("content", "line", "message", "without"), CASES.values(), ids=CASES)
def test_advice_has_its_line_and_is_given_where_it_is_true_alone(
    advice, content, line, message, without
):
    assert (line, message) in advice(content)
    assert message not in [said for _, said in advice(without)]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_nearest_rubric_without_that_fault_gives_no_cause_for_advice(advice, case):
    assert advice(case[3]) == []


def test_advice_on_what_is_taken_over_names_the_file_that_it_stands_in(tmp_path):
    (tmp_path / "base.yaml").write_text(changed((ANCHORS, "")))
    (tmp_path / "mine.yaml").write_text("extends: base\npass_at: 8.25\n")
    found = read_rubric("mine", directory=tmp_path)

    assert [
        (advice.path.stem, advice.line)
        for advice in advice_on(found.rubric, found.written)
        if advice.path
    ] == [("base", 11), ("mine", 2)]


def test_a_threshold_that_is_lowered_is_named_and_not_the_focus_of_the_rubric_below(tmp_path):
    (tmp_path / "mine.yaml").write_text("title: Mine\nextends: qa\npass_at: 6\n")
    found = read_rubric("mine", directory=tmp_path)

    (advice,) = advice_on(found.rubric, found.written)
    assert (advice.path, advice.line) == (tmp_path / "mine.yaml", 3)
    assert advice.remedy == "set focus_below to 6 or less"


def test_advice_on_two_values_of_the_rubric_below_names_that_one(tmp_path):
    (tmp_path / "base.yaml").write_text(changed(("focus_below: 7", "focus_below: 9")))
    (tmp_path / "mine.yaml").write_text("title: Mine\nextends: base\n")
    found = read_rubric("mine", directory=tmp_path)

    (advice,) = advice_on(found.rubric, found.written)
    assert (advice.path, advice.line) == (tmp_path / "base.yaml", 3)


def test_a_rubric_made_in_code_is_advised_without_lines():
    rubric = Rubric(title="T", dimensions=(Dimension(name="a", judge="Is it good?"),))

    (advice,) = advice_on(rubric)
    assert (advice.path, advice.line) == (None, None)


@pytest.mark.parametrize("step", [0.25, 0.5, 1, 2.5])
@pytest.mark.parametrize("weights", [(1,), (1, 1), (1, 2), (1, 1, 1), (1, 2, 4)])
def test_the_least_composite_that_passes_is_what_trying_all_scores_gives(step, weights):
    """Against the verdicts on every combination of scores."""
    scale = Scale(min=0, max=5, step=step)
    rubric = Rubric(
        title="T",
        scale=scale,
        pass_at=3.7,
        focus_below=3,
        dimensions=tuple(
            Dimension(name=f"{letter}{letter}", weight=weight, checks=(Finished(),))
            for letter, weight in zip("axq", weights, strict=False)
        ),
    )
    scores = [n * step for n in range(int(5 / step) + 1)]
    passing = {
        verdict.composite
        for combination in itertools.product(scores, repeat=len(weights))
        if (
            verdict := reach_verdict(
                rubric,
                [
                    DimensionScore(name=d.name, score=score, source="checked", reason="")
                    for d, score in zip(rubric.dimensions, combination, strict=True)
                ],
            )
        ).passed
    }
    said = [advice.message for advice in advice_on(rubric) if "no composite" in advice.message]

    least = min(passing)
    assert said == (
        []
        if least == 3.7
        else [
            (
                f"no composite lies between 3.7 and {least:g}, so a draft passes from {least:g} "
                f"on; write {least:g}, or a smaller step"
            )
        ]
    )
