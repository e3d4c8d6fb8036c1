"""What a draft says, held against its sources; and what counts as a number."""

import pytest
from graded import draft, found, messages
from hypothesis import given
from hypothesis import strategies as st

from harness.rubric.checks import GroundedNames, GroundedNumbers, GroundedSentences
from harness.rubric.draft import Draft, by_section

NUMBERS = {
    "with and without a comma": ("1,024 or 1024 bytes", []),
    "with and without a zero": ("0.5 or 0.50, or 2.0", []),
    "a fraction that is not there": ("half, or 0.3", ["0.3"]),
    "from the task": ("in 2026.", []),
    "another version": ("Python 3.11.9", ["3.11.9"]),
    "commas between numbers": ("layers 2,50,3, and 3", []),
    "a comma behind a number": ("1,024, and 7", ["7"]),
    "the marks of a list": ("1. a\n2. b\n77) c\n", []),
    "references": ("So it is.[44] And so.[^45]", []),
    "a heading": ("# Top 99\n\n2 servers", []),
    "every occurrence": ("2 of 9, 9 of 2", ["9", "9"]),
    "ranges and units": ("2\u201350 ms, 2-50 ms, 2x", []),
    "in addresses with Windows line ends": ("[a][b]\r\n\r\n[b]: http://x/7\r\n'99'\r\n\r\nSo.", []),
    "in code": ("```\nport = 8080\n```\n", ["8080"]),
}
SHARES = {"a comma behind a number": 0.5, "every occurrence": 0.5}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_stands_in_the_sources_or_the_task(name):
    text, unknown = NUMBERS[name]
    source = "Three servers have 1,024 bytes, 2 to 50 ms, 0.50 and 50 percent. Python 3.11.2."

    grade = GroundedNumbers().grade(draft(text, source, task="A report for 2026"))

    assert grade.share == (SHARES.get(name, 0) if unknown else 1)
    assert {code.partition("@")[0] for code in found(grade)} <= {"number-not-in-sources"}
    assert [f.message.split()[2] for f in grade.findings] == unknown


@pytest.mark.parametrize(
    ("text", "share"),
    [
        pytest.param("Servers load models.", 1, id="word for word"),
        pytest.param("Servers bake bread.", 0, id="one word of three"),
        pytest.param("The server\u2019s cache-hit rates", 1, id="apostrophes and hyphens"),
        pytest.param("Servers evict weights.", 0, id="from two sources"),
        pytest.param("```\nimport bread\n```\n", 1, id="code is not a sentence"),
    ],
)
def test_a_sentence_rests_on_one_source(text, share):
    sources = ("Servers load models. The server has cache hit rates.", "Weights get evicted.")

    grade = GroundedSentences(overlap=0.6).grade(draft(text, *sources))

    assert (grade.share, found(grade)) == (share, [] if share else ["not-in-sources@0"])
    assert share or f'"{text}"' in messages(grade)


@pytest.mark.parametrize(
    ("text", "share"),
    [
        pytest.param("the judge should not be below 8 bits", 1, id="but for case and marks"),
        pytest.param("The judge should be below 8 bits.", 0, id="a word left out"),
        pytest.param("The judge should not be below 4 bits.", 0, id="a word of another sentence"),
        pytest.param("A writer may have 4 bits.", 1, id="up to a mark"),
        pytest.param("The judge should not be.", 0, id="broken off"),
        pytest.param("Judge.", 1, id="a single word"),
    ],
)
def test_a_text_that_quotes_has_the_words_side_by_side_in_one_sentence(text, share):
    source = "The judge should not be below 8 bits. A writer may have 4 bits, and be below 4 bits."

    grade = GroundedSentences(verbatim=0.95).grade(draft(text, source))

    assert grade.share == share


@pytest.mark.parametrize("check", [GroundedNumbers(), GroundedNames(), GroundedSentences()])
@pytest.mark.parametrize("sources", [(), ("", " \n")], ids=["none", "blank"])
def test_without_sources_nothing_is_judged(check, sources):
    grade = check.grade(draft("Servers load 99 models, says Ada.", *sources, task="A report"))

    assert (bool(grade.unjudged), grade.findings) == (True, ())


SOURCE = (
    "И Бэббидж. Ada Lovelace wrote to the Babbage family. PyTorch has a GPU and `max_rounds`. vLLM."
)


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        pytest.param("It was Ada Lovelace.", [], id="a name of the source"),
        pytest.param("It was Ada King.", ["Ada King"], id="one word of two"),
        pytest.param("It was Lovelace, of Babbage's family.", [], id="with an apostrophe"),
        pytest.param("We had GPUs.", [], id="several of them"),
        pytest.param("However, it was so. Nobody knew.", [], id="first words tell nothing"),
        pytest.param("The Zuse machine and the Zuse family", ["Zuse"], id="once a section"),
        pytest.param("# Zuse\n\nIt is so.", [], id="headings have capitals of their own"),
        pytest.param("So it is: The rest follows.", [], id="a capital behind a colon"),
        pytest.param("You MUST NOT do it.", [], id="words said loudly"),
        pytest.param("It is in Figure 3 and Section 4.", [], id="numbered things"),
        pytest.param("By `max_rounds` and `max_seconds`.", ["`max_seconds`"], id="identifiers"),
        pytest.param("By `pip install zuse`.", [], id="commands are not identifiers"),
        pytest.param("See [the page](https://Zuse.example/Z3).", [], id="addresses are not names"),
        pytest.param("It ran on the\nKonrad Zuse\nMachine.", ["Konrad Zuse Machine"], id="lines"),
        pytest.param("It was Grace Hopper, Alan Kay.", ["Grace Hopper", "Alan Kay"], id="two"),
        pytest.param("我们用PyTorch和TensorFlow。", ["TensorFlow"], id="within another script"),
        pytest.param("Это Бэббиджа и Петрова.", ["Петрова"], id="with endings"),
        pytest.param("È dell\u2019Ada; da noi a Zuse.", ["Zuse"], id="with an article written on"),
    ],
)
def test_a_name_stands_in_the_sources(text, unknown):
    grade = GroundedNames().grade(draft(text, SOURCE))

    assert {code.partition("@")[0] for code in found(grade)} <= {"name-not-in-sources"}
    assert len(grade.findings) == len(unknown)
    assert all(f" {name} " in f.message for f, name in zip(grade.findings, unknown, strict=True))


def test_the_share_of_names_is_that_of_the_names_in_each_section():
    grade = GroundedNames().grade(draft("# A\n\nAn Ada, a Zuse.\n\n# B\n\nAn Ada.", SOURCE))

    assert grade.share == pytest.approx(2 / 3)
    assert found(grade) == ["name-not-in-sources@0"]


def test_names_may_come_from_the_task_or_be_allowed():
    graded = draft("On the Zuse of Turing, `cafe\u0301_x`.", SOURCE, task="Turing's `caf\u00e9_x`")

    assert GroundedNames(allowed=("Zuse",)).grade(graded).findings == ()
    assert len(GroundedNames().grade(graded).findings) == 1


READINGS = {  # in a draft, in its source, and whether that is the same number
    "a decimal comma": ("2,5 cm", "2.5 cm", True),
    "the digits the other way": ("2,5 cm", "5,2 cm", False),
    "thousands with a stop": ("1.200", "1200", True),
    "the same, or a fraction": ("1.200", "1.2", True),
    "a fraction": ("1.25", "125", False),
    "thousands with a blank": ("12 000", "12,000", True),
    "thousands with a narrow blank": ("12\u202f000", "12000", True),
    "a year before a number": ("in 2024 300 people", "300 people, 2024", True),
    "a blank between two": ("5 300", "5 of 300", True),
    "two marks": ("1.024,5", "1,024.5", True),
    "an apostrophe": ("1'000.50", "1000.5", True),
    "millions": ("1.000.000", "1,000,000", True),
    "lakhs": ("1,00,000", "100000", True),
    "another sign": ("-5 degrees", "5 degrees", False),
    "a sign apart from its number": ("-\u200b5 degrees", "5 degrees", False),
    "the sign in a word": ("falls by 5", "changes by \u22125", True),
    "a range": ("10-12", "10 to 12", True),
    "a name with a number": ("COVID-19", "19", True),
    "a version": ("3.11.2", "3.11.20", False),
    "a date the other way": ("3.4.2024", "4.3.2024", False),
    "digits of another script": ("\u0663\u066b\u0665", "3.5", True),
    "a list of numbers": ("1,2,3", "3, 2 and 1", True),
    "a list with another": ("1,2,4", "3, 2 and 1", False),
    "a leading zero": ("0,001", "1", False),
    "read as another number shows": ("1.2", "1.200 or 2,5", False),
    "a percent sign": ("50 %", "50 people", False),
    "a percent sign in words": ("50 %", "50 Prozent", True),
    "a percent sign of a range": ("50 %", "50 to 60 %", True),
    "another unit of money": ("$5", "5 €", False),
    "a model's size": ("7B", "7 billion", True),
    "degrees of an unnamed scale": ("20 °C", "20°", True),
    "money in millions": ("$5m", "$5 million", True),
    "another unit": ("5 km", "5 m", False),
    "a unit spelled out": ("5 km", "5 kilometers", True),
    "millions in words": ("3 Mio.", "3,000,000", True),
    "millions of another size": ("3 million", "3 billion", False),
    "ten thousands": ("1万", "10,000", True),
    "a date": ("3.4.2024", "2024-04-03", True),
    "another date": ("2024-04-03", "2024-03-04", False),
    "a date in words": ("3.4.2024", "3 April 2024", True),
    "a date in Chinese": ("2024年4月3日", "2024-04-03", True),
    "the end of a date": (".5.2024", ".5.2024", True),
}


@pytest.mark.parametrize(("said", "source", "same"), READINGS.values(), ids=READINGS)
def test_numbers_are_compared_by_what_they_may_amount_to(said, source, same):
    assert GroundedNumbers().grade(draft(f"It is {said} then.", f"It was {source}.")).share == same


@given(st.text(alphabet="0123,,,. -'\u202f\u066b", max_size=40))
def test_a_number_is_known_where_it_stands(text):
    assert GroundedNumbers().grade(draft(f"x{text}", f"x{text}")).share == 1


BY_SECTION = {"Loading": "A cold model takes 8 seconds to load.", "Cache": "Prefixes stay cached."}


@pytest.mark.parametrize(
    ("body", "codes"),
    [
        pytest.param("A cold model takes 8 seconds to load.", [], id="its own source"),
        pytest.param("Prefixes stay cached.", ["source-of-another-section@0"], id="another's"),
        pytest.param("Bread rises in ovens.", ["not-in-sources@0"], id="no source"),
    ],
)
def test_a_section_rests_on_the_sources_that_belong_to_it(body, codes):
    sources, headings = by_section(BY_SECTION)
    text = f"## Loading\n\n{body}\n\n## Cache\n\nPrefixes stay cached.\n"

    grade = GroundedSentences().grade(
        Draft(text=text, task="", sources=sources, source_sections=headings)
    )

    assert found(grade) == codes


def test_a_number_of_another_sections_source_is_in_none():
    sources, headings = by_section(BY_SECTION)
    draft = Draft(text="# Cache\n\n8 of 8.\n", task="", sources=sources, source_sections=headings)

    assert found(GroundedNumbers().grade(draft)) == ["number-not-in-sources@0"] * 2


# Shapes that readers of entity checks and of NER report as wrongly found.
@pytest.mark.parametrize(
    ("text", "source", "share"),
    [
        ("We met the US team of the DOJ.", "United States. The Department of Justice.", 1),
        ("We met the United States team.", "The US team.", 0),
        ("The U.S. and J.R.R. Tolkien met.", "The US met J. R. R. Tolkien.", 1),
        ("We met the IMF.", "Invest more. Find the money.", 0),
        ("We met the MDC.", "The Ministry of Defence (Copenhagen).", 0),
        ("We met JFK.", "John F. Kennedy.", 1),
        ("We met the ATF.", "The Bureau of Alcohol, Tobacco and Firearms.", 1),
        ("We met Dr. Smith and Mr. Bell.", "Smith met Bell.", 1),
        ("We saw NATO-led forces.", "NATO has some.", 1),
        ("We met Jean-Luc.", "Jean was there.", 0),
        ("Its President Michel Aoun spoke.", "The president spoke.", 0),
    ],
)
def test_initials_and_titles_are_told_from_invented_names(text, source, share):
    assert GroundedNames().grade(draft(text, source)).share == share
