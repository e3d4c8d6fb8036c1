"""Every check on drafts short enough to count by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from harness.compress import sections_of
from harness.rubric import Draft, Finding
from harness.rubric.checks import (
    CHECKS,
    Check,
    Excludes,
    Finished,
    GroundedNumbers,
    GroundedSentences,
    NoRepetition,
    Sections,
    SectionWords,
    Words,
)


def draft(text: str, *sources: str, task: str = "") -> Draft:
    return Draft(text=text, task=task, sources=sources)


def found(grade) -> list[tuple[str, int | None]]:
    """What the findings say, and about which section."""
    return [(finding.message, finding.section_index) for finding in grade.findings]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        pytest.param("", 0, id="nothing"),
        pytest.param(" - \n* \n", 0, id="only marks"),
        pytest.param("One two, three.", 3, id="a sentence"),
        pytest.param("# One\n\ntwo", 2, id="headings count"),
        pytest.param("don't, don\u2019t, state-of-the-art", 3, id="apostrophes and hyphens"),
        pytest.param("1,024 tokens, 3.14, 50 %, v2.0.1", 5, id="numbers are one word each"),
        pytest.param("and/or, e.g. `max_rounds`", 3, id="marks inside a word"),
        pytest.param("on\u2014and off", 3, id="a dash parts words"),
        pytest.param(
            "na\u00efve \u043c\u0438\u0440 \u0391\u03b8\u03ae\u03bd\u03b1", 3, id="other scripts"
        ),
        pytest.param("| a | b |\n|---|---|\n| 1 | 2 |\n", 4, id="cells of a table"),
        pytest.param("```python\nx = 1\n```\n", 3, id="code and its language"),
    ],
)
def test_words_are_counted_as_people_count_them(text, count):
    grade = Words(max=1000).grade(draft(text))
    short = Words(min=1000).grade(draft(text))

    assert grade.share == 1
    assert short.share == count / 1000
    assert found(short) == [(f"{count} words in all; at least 1000 are needed", None)]


@pytest.mark.parametrize(
    ("bounds", "share", "message"),
    [
        pytest.param({"min": 8}, 0.5, "4 words in all; at least 8 are needed", id="half of it"),
        pytest.param({"min": 4}, 1, None, id="as many as needed"),
        pytest.param({"max": 4}, 1, None, id="as many as allowed"),
        pytest.param({"max": 3}, 2 / 3, "4 words in all; at most 3 are allowed", id="one more"),
        pytest.param({"max": 2}, 0, "4 words in all; at most 2 are allowed", id="twice as many"),
        pytest.param({"max": 1}, 0, "4 words in all; at most 1 are allowed", id="far too many"),
        pytest.param({"min": 2, "max": 5}, 1, None, id="between"),
    ],
)
def test_a_count_falls_off_with_its_distance_from_the_range(bounds, share, message):
    grade = Words(**bounds).grade(draft("one two three four"))

    assert grade.share == pytest.approx(share)
    assert grade.findings == ((Finding(message),) if message else ())


@pytest.mark.parametrize(
    ("text", "count"),
    [
        pytest.param("", 0, id="nothing"),
        pytest.param("Only text.", 0, id="no headings"),
        pytest.param("Intro.\n\n# A\nx\n\nB\n---\ny\n", 2, id="both kinds of headings"),
        pytest.param("# A\n# A\n", 2, id="the same title twice, both empty"),
        pytest.param("# Title\n\n## A\nx\n\n## B\ny\n", 2, id="a title is not a section"),
        pytest.param("# A\nx\n\n## B\ny\n", 2, id="a heading with a text of its own is one"),
        pytest.param("# A\n\n```\n# not one\n```\n", 1, id="a comment in code is none"),
        pytest.param("# A\n\n- x\n  # not one\n\n> # nor this\n", 1, id="nor one in a list"),
    ],
)
def test_sections_are_headings_but_for_titles(text, count):
    assert Sections(min=10).grade(draft(text)).share == count / 10
    assert found(Sections(min=10).grade(draft(text))) == [
        (f"{count} sections; at least 10 are needed", None)
    ]


@pytest.mark.parametrize(
    ("text", "share", "findings"),
    [
        pytest.param("", 0, [("there is no text", None)], id="nothing"),
        pytest.param("one two three four", 1, [], id="without headings the draft is the section"),
        pytest.param(
            "one",
            0.25,
            [("1 words in this section; at least 4 are needed", 0)],
            id="too short, without headings",
        ),
        pytest.param(
            "Here you are.\n\n# A\none two three four\n", 1, [], id="an introduction is no section"
        ),
        pytest.param("# T\n\n## A\none two three four\n", 1, [], id="nor is a title"),
        pytest.param(
            "# A\n\n# B\none two three four\n",
            0.5,
            [("0 words in this section; at least 4 are needed", 0)],
            id="an empty section is one",
        ),
        pytest.param(
            "# A\none two\n\n# A\none two three four five six seven eight\n",
            0.5 * (0.5 + 0.4),
            [
                ("2 words in this section; at least 4 are needed", 0),
                ("8 words in this section; at most 5 are allowed", 1),
            ],
            id="two sections with one title",
        ),
    ],
)
def test_every_section_has_its_words(text, share, findings):
    grade = SectionWords(min=4, max=5).grade(draft(text))

    assert grade.share == pytest.approx(share)
    assert found(grade) == findings


def test_a_draft_without_text_is_not_too_long():
    assert SectionWords(max=5).grade(draft("")).share == 1


BREAKS_OFF = "the last sentence breaks off; finish it"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("It is.", id="a full stop"),
        pytest.param("Is it?!", id="other stops"),
        pytest.param("So it goes\u2026", id="an ellipsis"),
        pytest.param('He said "yes."', id="a stop in quotes"),
        pytest.param("It is. (So *he* **said.**)", id="closing marks"),
        pytest.param("It is so.[3][^a] ", id="references"),
        pytest.param("\u662f\u3002", id="a Chinese stop"),
        pytest.param("Two ways:\n\n- by day\n- by night", id="a list without stops"),
        pytest.param("- Go by day.\n- Go by night.", id="a list with stops"),
        pytest.param("1. only this", id="a list of one"),
        pytest.param("| a | b |\n|---|---|\n| 1 | 2 |", id="a table"),
        pytest.param("Run it:\n\n```sh\nls\n```", id="code"),
        pytest.param("````\n```\n````", id="a fence that shows a fence"),
        pytest.param("~~~\n```\n~~~~", id="a fence of tildes"),
        pytest.param("Run it:\n\n    ls", id="indented code"),
        pytest.param("> So it is.", id="a quotation"),
        pytest.param("See [it].\n\n[it]: http://example.org", id="a link definition"),
        pytest.param("It is.\n\n---", id="a rule"),
        pytest.param("It is.\n\n<!-- to do -->", id="a comment"),
    ],
)
def test_a_text_is_finished_when_it_ends_as_texts_do(text):
    grade = Finished().grade(draft(f"# A\n\n{text}\n\n# B\n\nIt is.\n"))

    assert grade.share == 1
    assert grade.findings == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("It is", BREAKS_OFF, id="mid-sentence"),
        pytest.param("It is. And then,", BREAKS_OFF, id="after a comma"),
        pytest.param("There are two ways:", BREAKS_OFF, id="a colon that nothing follows"),
        pytest.param("- Go by day.\n- Go by", BREAKS_OFF, id="an item unlike the one before"),
        pytest.param("```sh\nls\n```\n\nThen go", BREAKS_OFF, id="after code"),
        pytest.param("> So it", BREAKS_OFF, id="a quotation"),
        pytest.param("", "this section has no text", id="a heading and no more"),
        pytest.param("```sh\nls", "a code fence is never closed", id="an open fence"),
        pytest.param("```", "a code fence is never closed", id="only the fence"),
        pytest.param("````\n```", "a code fence is never closed", id="a fence too short"),
    ],
)
def test_a_text_that_breaks_off_is_not_finished(text, message):
    grade = Finished().grade(draft(f"# A\n\nIt is.\n\n# B\n\n{text}"))

    assert grade.share == 0.5
    assert found(grade) == [(message, 1)]


@pytest.mark.parametrize(
    ("text", "share", "findings"),
    [
        pytest.param("", 0, [("there is no text", None)], id="nothing"),
        pytest.param(" \n\t\n", 0, [("there is no text", None)], id="blank"),
        pytest.param("# T\n\n## A\n\nIt is.\n", 1, [], id="a title"),
        pytest.param(
            "# A\n\nTwo ways:\n\n## B\n\nIt is.\n", 1, [], id="a colon before subsections"
        ),
        pytest.param(
            "# A\n# B\n\n## C\n",
            0,
            [("this section has no text", 0), ("this section has no text", 2)],
            id="headings only",
        ),
    ],
)
def test_headings_want_a_text_unless_they_are_titles(text, share, findings):
    grade = Finished().grade(draft(text))

    assert grade.share == share
    assert found(grade) == findings


@pytest.mark.parametrize(
    ("phrase", "text", "said"),
    [
        pytest.param("TODO", "A todo.", True, id="in any case"),
        pytest.param("TODO", "A mastodon.", False, id="not within a word"),
        pytest.param("AI", "They said so.", False, id="nor a short one"),
        pytest.param("as an AI", "... as an\nAI, I ...", True, id="across lines"),
        pytest.param("[insert", "[Insert name]", True, id="with a mark at its start"),
        pytest.param("Question:", "**Question:** why", True, id="with a mark at its end"),
        pytest.param("C++ (old)", "In C++ (old) it", True, id="not as a pattern"),
        pytest.param(
            "\u4e0d\u77e5\u9053",
            "\u6211\u4e0d\u77e5\u9053\u3002",
            True,
            id="where words are not parted",
        ),
        pytest.param("AI", "\u4eba\u5de5AI\u5f88\u597d", True, id="Latin within another script"),
        pytest.param("TODO", "```\n# TODO\n```", True, id="in code"),
    ],
)
def test_a_phrase_is_found_as_a_reader_would_find_it(phrase, text, said):
    grade = Excludes(phrases=(phrase,)).grade(draft(f"# A\n\n{text}\n\n# B\n\nFine.\n"))

    assert grade.share == (0.5 if said else 1)
    assert found(grade) == ([(f'remove "{phrase}"', 0)] if said else [])


def test_all_phrases_of_a_section_make_one_finding():
    grade = Excludes(phrases=("x", "y")).grade(draft("y and x"))

    assert found(grade) == [('remove "x", "y"', 0)]


def test_a_phrase_in_a_heading_concerns_the_whole_draft():
    grade = Excludes(phrases=("TODO",)).grade(draft("# A\n\nx\n\n# TODO: name\n\ny\n"))

    assert grade.share == 0.5
    assert grade.findings == (Finding('remove "TODO" from the heading "TODO: name"'),)


def test_a_draft_without_text_says_nothing_that_is_excluded():
    assert Excludes(phrases=("x",)).grade(draft("")).share == 1


@pytest.mark.parametrize(
    ("text", "share", "repeated"),
    [
        pytest.param("", 1, [], id="nothing"),
        pytest.param("It is so here. It was not so.", 1, [], id="different"),
        pytest.param("It is so here. IT IS SO, HERE!", 0.5, [0], id="the same in capitals"),
        pytest.param("# A\n\nIt is so.\n\n# A\n\nIt is so.\n", 0.5, [1], id="in two sections"),
        pytest.param("It doesn't run. It doesn\u2019t run.", 0.5, [0], id="another apostrophe"),
        pytest.param("Caf\u00e9s are open. Cafe\u0301s are open.", 0.5, [0], id="another code"),
        pytest.param("We run it now. Run it now we.", 0.5, [0], id="another order"),
        pytest.param("We run it at 8. We run it at 9.", 1, [], id="other numbers"),
        pytest.param("We run 1,000 of it. We run 1000 of it.", 0.5, [0], id="the same number"),
        pytest.param("1. Run the tests.\n2. Run the tests.\n", 0.5, [0], id="items of a list"),
        pytest.param("- Not known.\n- Not known.\n", 1, [], id="two words"),
        pytest.param("```\na b c\n```\n\n```\na b c\n```\n", 1, [], id="code"),
        pytest.param("| a b c |\n|---|\n| a b c |\n| a b c |\n", 1, [], id="a table"),
    ],
)
def test_nothing_is_said_twice(text, share, repeated):
    grade = NoRepetition().grade(draft(text))

    assert grade.share == share
    assert [finding.section_index for finding in grade.findings] == repeated
    assert all("this was said before: " in finding.message for finding in grade.findings)


@pytest.mark.parametrize(
    ("similarity", "share"),
    [
        pytest.param(0.75, 0.5, id="at the limit"),
        pytest.param(0.76, 1, id="below it"),
    ],
)
def test_sentences_repeat_each_other_from_a_share_of_common_words_on(similarity, share):
    # Three words of four in all.
    grade = NoRepetition(similarity=similarity).grade(draft("It is here. It is here now."))

    assert grade.share == share


@pytest.mark.parametrize(
    ("text", "share", "unknown"),
    [
        pytest.param("", 1, [], id="nothing"),
        pytest.param("No number at all.", 1, [], id="no number"),
        pytest.param("1,024 or 1024 bytes", 1, [], id="with and without a comma"),
        pytest.param("0.5 or 0.50, or 2.0", 1, [], id="with and without a zero"),
        pytest.param("50% and 50 %", 1, [], id="a percentage"),
        pytest.param("half, or 0.3", 0, ["0.3"], id="a fraction that is not there"),
        pytest.param("3 servers", 1, [], id="in words in the source"),
        pytest.param("in 2026.", 1, [], id="from the task"),
        pytest.param("Python 3.11.2", 1, [], id="a version"),
        pytest.param("Python 3.11.9", 0, ["3.11.9"], id="another version"),
        pytest.param("layers 2,50, and 3", 1, [], id="commas between numbers"),
        pytest.param("1,024, and 7", 0.5, ["7"], id="a comma behind a number"),
        pytest.param("1. a\n2. b\n77) c\n", 1, [], id="the marks of a list"),
        pytest.param("So it is.[44] And so.[^45]", 1, [], id="references"),
        pytest.param("# Top 99\n\n2 servers", 1, [], id="a heading"),
        pytest.param("2 of 9, 9 of 2", 0.5, ["9", "9"], id="every occurrence"),
        pytest.param("\u0665\u0660 %", 1, [], id="other digits"),
        pytest.param("2\u201350 ms, 2-50 ms, 2x", 1, [], id="ranges and units"),
        pytest.param("```\nport = 8080\n```\n", 0, ["8080"], id="in code"),
        pytest.param("9" * 5000, 0, ["9" * 5000], id="a very long one"),
    ],
)
def test_a_number_stands_in_the_sources_or_the_task(text, share, unknown):
    source = "Three servers have 1,024 bytes, 2 ms, 0.50 and 50 percent. Python 3.11.2."

    grade = GroundedNumbers().grade(draft(text, source, task="A report for 2026"))

    assert grade.share == share
    assert [finding.message for finding in grade.findings] == [
        f"the number {number} is not in the sources" for number in unknown
    ]


@pytest.mark.parametrize(
    ("text", "share", "messages"),
    [
        pytest.param("", 1, [], id="nothing"),
        pytest.param("Servers load models.", 1, [], id="word for word"),
        pytest.param("SERVERS load: models!", 1, [], id="in capitals"),
        pytest.param("It is so. Is it?", 1, [], id="only short words"),
        pytest.param(
            "Servers bake bread.",
            0,
            ['no source says this: "Servers bake bread."'],
            id="one word of three",
        ),
        pytest.param("Servers load bread.", 1, [], id="two words of three"),
        pytest.param("The server\u2019s cache-hit rates", 1, [], id="apostrophes and hyphens"),
        pytest.param("Servers evict weights.", 0, ["no source says this: "], id="from two sources"),
        pytest.param("```\nimport bread\n```\n", 1, [], id="code is not a sentence"),
        pytest.param("# Bread\n\nServers load models.", 1, [], id="nor is a heading"),
    ],
)
def test_a_sentence_rests_on_one_source(text, share, messages):
    sources = ("Servers load models. The server has cache hit rates.", "Weights get evicted.")

    grade = GroundedSentences(overlap=0.6).grade(draft(text, *sources))

    assert grade.share == share
    assert len(grade.findings) == len(messages)
    for finding, message in zip(grade.findings, messages, strict=True):
        assert finding.message.startswith(message)
        assert finding.section_index == 0


def test_without_sources_no_sentence_rests_on_one():
    assert GroundedSentences().grade(draft("Servers load models.")).share == 0


def test_a_long_sentence_is_quoted_by_its_start():
    sentence = "word " * 100 + "end."

    (finding,) = GroundedSentences().grade(draft(sentence)).findings

    assert finding.message.endswith('word\u2026"')
    assert len(finding.message) < 120


EVERY_CHECK: tuple[Check, ...] = (
    Words(min=3, max=9),
    Sections(min=1, max=2),
    SectionWords(min=2, max=5),
    Finished(),
    Excludes(phrases=("a", "[")),
    NoRepetition(similarity=0.5),
    GroundedNumbers(),
    GroundedSentences(),
)


def test_every_check_is_tried_on_any_text():
    assert {type(check) for check in EVERY_CHECK} == set(CHECKS.values())


@settings(derandomize=True, deadline=None, max_examples=300)
@given(
    text=st.one_of(
        st.text(max_size=80),
        st.text(alphabet="#-=`~>*|: \t\n\r\x0c\u2028a1.,[]()<!\ud800", max_size=60),
        st.lists(
            st.sampled_from(
                ["# A\n", "## A\n", "a b 1,0 2.\n", "a b 1,0 2.\n\n", "- a\n", "1. a\n", "```\n"]
            ),
            max_size=10,
        ).map("".join),
    ),
    source=st.text(alphabet="ab 12.,\n", max_size=20),
)
def test_a_check_gives_a_share_and_sections_that_are_there_for_any_text(text, source):
    graded = draft(text, source, task="1")
    sections = sections_of(text)
    for check in EVERY_CHECK:
        grade = check.grade(graded)

        assert 0 <= grade.share <= 1
        assert (grade.share == 1) == (not grade.findings), check
        for finding in grade.findings:
            assert finding.message
            if finding.section_index is not None:
                assert finding.section == sections[finding.section_index].title


@pytest.mark.parametrize("name", CHECKS, ids=CHECKS)
def test_a_check_goes_by_its_own_name(name):
    (check,) = (check for check in EVERY_CHECK if check.check == name)

    assert type(check) is CHECKS[name]
    assert check.requirement.endswith(".")


@pytest.mark.parametrize(
    ("check", "requirement"),
    [
        pytest.param(Words(min=3), "at least 3", id="no max"),
        pytest.param(Words(max=3), "at most 3", id="no min"),
        pytest.param(Words(min=2, max=3), "2 to 3", id="both"),
    ],
)
def test_a_range_is_said_in_words(check, requirement):
    assert check.requirement == f"The whole text has {requirement} words."


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: NoRepetition(similarity=0), id="similarity of 0"),
        pytest.param(lambda: GroundedSentences(overlap=1.1), id="overlap above 1"),
        pytest.param(lambda: Excludes(phrases=()), id="no phrases"),
        pytest.param(lambda: Words(min=-1), id="fewer than none"),
        pytest.param(lambda: Words(max=0), id="at most none"),
    ],
)
def test_a_parameter_that_makes_no_sense_is_refused(make):
    with pytest.raises(ValidationError):
        make()
