"""What a draft says, held against its sources."""

import pytest
from check_drafts import draft, found
from pydantic import ValidationError

from harness.rubric.checks import GroundedNames, GroundedNumbers, GroundedSentences


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


@pytest.mark.parametrize("check", [GroundedNumbers(), GroundedNames(), GroundedSentences()])
@pytest.mark.parametrize("sources", [(), ("", " \n")], ids=["none", "blank"])
def test_without_sources_nothing_is_judged(check, sources):
    grade = check.grade(draft("Servers load 99 models, says Ada.", *sources, task="A report"))

    assert grade.unjudged == "there are no sources"
    assert grade.findings == ()


def test_a_long_sentence_is_quoted_by_its_start():
    sentence = "word " * 100 + "end."

    (finding,) = GroundedSentences().grade(draft(sentence, "A source.")).findings

    assert finding.message.endswith('word\u2026"')
    assert len(finding.message) < 120


SOURCE = "Ada Lovelace wrote to the Babbage family. PyTorch has a GPU and `max_rounds`. vLLM v2."


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        pytest.param("", [], id="nothing"),
        pytest.param("It was Ada Lovelace.", [], id="a name of the source"),
        pytest.param("It was ada.", [], id="no capitals, no name"),
        pytest.param("It was Ada King.", ["Ada King"], id="one word of two"),
        pytest.param("It was Lovelace, of Babbage's family.", [], id="with an apostrophe"),
        pytest.param("We had GPUs.", [], id="several of them"),
        pytest.param("We had TPUs.", ["TPUs"], id="several of others"),
        pytest.param("However, it was so. Nobody knew.", [], id="first words tell nothing"),
        pytest.param("Nginx runs.", [], id="not even names"),
        pytest.param("PyTorch runs. JAX runs.", ["JAX"], id="unless they look like names"),
        pytest.param("The Zuse machine and the Zuse family", ["Zuse"], id="once a section"),
        pytest.param("# A\n\nThe Zuse.\n\n# B\n\nThe Zuse.", ["Zuse", "Zuse"], id="in each"),
        pytest.param("# Zuse\n\nIt is so.", [], id="headings have capitals of their own"),
        pytest.param("- **Key Benefit**: it runs.", [], id="labels do too"),
        pytest.param("- Main Idea: it runs.", [], id="in plain letters"),
        pytest.param("* **Key Benefit** of it", [], id="behind an asterisk"),
        pytest.param("So it is: The rest follows.", [], id="a capital behind a colon"),
        pytest.param('She said "Nothing is" and (Perhaps) left.', [], id="or quotation mark"),
        pytest.param("I think I'm right, as I was.", [], id="the word I"),
        pytest.param("You MUST NOT do it.", [], id="words said loudly"),
        pytest.param("YOU SEE A ZUSE", [], id="everything said loudly"),
        pytest.param("Why This Matters For You", [], id="a title"),
        pytest.param("It is in Figure 3 and Section 4.", [], id="numbered things"),
        pytest.param("By `max_rounds` and `max_seconds`.", ["`max_seconds`"], id="identifiers"),
        pytest.param("By `Max_Rounds`.", ["`Max_Rounds`"], id="have a case"),
        pytest.param("By `pip install zuse`.", [], id="commands are not identifiers"),
        pytest.param("By `x`, `3.14` and `-`.", [], id="nor are marks and numbers"),
        pytest.param("See [the page](https://Zuse.example/Z3).", [], id="addresses are not names"),
        pytest.param("A\n\n```py\nZuse()\n```\n", [], id="nor is code"),
        pytest.param("It ran on the\nKonrad Zuse\nMachine.", ["Konrad Zuse Machine"], id="lines"),
        pytest.param(
            "It was Grace Hopper, Alan Turing.", ["Grace Hopper", "Alan Turing"], id="two"
        ),
    ],
)
def test_a_name_stands_in_the_sources(text, unknown):
    grade = GroundedNames().grade(draft(text, SOURCE))

    assert [finding.message for finding in grade.findings] == [
        f"the name {name} is not in the sources" for name in unknown
    ]


def test_the_share_of_names_is_that_of_the_names_in_each_section():
    grade = GroundedNames().grade(draft("# A\n\nAn Ada, a Zuse.\n\n# B\n\nAn Ada.", SOURCE))

    assert grade.share == pytest.approx(2 / 3)
    assert found(grade) == [("the name Zuse is not in the sources", 0)]


def test_names_may_come_from_the_task_or_be_allowed():
    graded = draft("On the Zuse of Turing.", SOURCE, task="About Turing")

    assert GroundedNames(allowed=("Zuse",)).grade(graded).findings == ()
    assert len(GroundedNames().grade(graded).findings) == 1


@pytest.mark.parametrize("overlap", [0, 1.1])
def test_an_overlap_is_a_share_above_0(overlap):
    with pytest.raises(ValidationError):
        GroundedSentences(overlap=overlap)
