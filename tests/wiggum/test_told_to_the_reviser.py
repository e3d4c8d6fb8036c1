"""What the reviser is told and shown, and what is kept of its reply."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.compress import sections_of
from harness.rubric import DimensionScore, Draft, Finding
from harness.wiggum.loop import lengthened
from harness.wiggum.prompts import cited, faults_of, located, nearest_sources, place_of
from harness.wiggum.reply_text import text_in, without_broken_end

# --- what is said against a draft ----------------------------------------------------------------

SECTIONS = sections_of("# Parts\n\nTwo.\n\n# Notes\n\nOld.\n\n# Notes\n\nLong.\n")


def score(source, *messages: str, section: int | None = 0, reason: str = "") -> DimensionScore:
    title = None if section is None else SECTIONS[section].title
    findings = tuple(Finding(message, title, section) for message in messages)
    return DimensionScore(name=source, score=3, source=source, reason=reason, findings=findings)


FAULTS = [f"fault {n}" for n in range(9)]
CHECKED = [f"number {n} is not in the sources" for n in range(9)]


@pytest.mark.parametrize(
    ("focus", "told"),
    [
        pytest.param(
            [score("checked", *CHECKED), score("judged", *FAULTS)],
            {0: (*CHECKED[:4], *FAULTS)},
            id="of checks the first, of evaluators all",
        ),
        pytest.param(
            [score("checked", "cut", "cut"), score("judged", "cut")], {0: ("cut",)}, id="each once"
        ),
        pytest.param(
            [score("checked", *FAULTS, section=2), score("checked", *FAULTS)],
            {0: tuple(FAULTS[:4]), 2: tuple(FAULTS[:4])},
            id="each section has a measure of its own",
        ),
        pytest.param([score("judged", "cut", section=None)], {}, id="of the whole"),
        pytest.param([score("judged", "cut"), score("checked")], {}, id="one without"),
    ],
)
def test_remarks_are_told_at_their_sections_unless_one_concerns_the_whole(focus, told):
    assert located(focus, SECTIONS) == told


@pytest.mark.parametrize(
    ("finding", "place"),
    [
        pytest.param(Finding("cut", "Notes", 2), 2, id="as it says"),
        pytest.param(Finding("cut", "Parts", 2), 0, id="another has its title now"),
        pytest.param(Finding("cut", "Notes", 0), None, id="two have its title"),
        pytest.param(Finding("cut", None, 9), None, id="a number beyond the end"),
        pytest.param(Finding("cut"), None, id="the whole"),
    ],
)
def test_a_finding_is_at_the_section_that_has_its_number_and_title(finding, place):
    assert place_of(finding, SECTIONS) == place


def test_everything_is_listed_with_the_reason_of_each_dimension_and_its_sections_cited():
    focus = [
        score("judged", "say more", section=2, reason="dull"),
        score("checked", "cut", reason="Parts: cut"),
        score("judged", section=None),
    ]

    assert faults_of(focus) == (
        "judged: dull",
        "judged (in 'Notes'): say more",
        "checked: Parts: cut",
        "judged: 3, which is too low",
    )
    assert cited(focus, SECTIONS) == (0, 2)


# --- which sources are shown ---------------------------------------------------------------------

CLOCK = "A clock has a spring and an escapement."
SPRING = "A spring drives a clock with its escapement and pendulum."
TOKEI = "この時計はばねと振り子で動く。"
ABOUT = "clock spring pendulum 時計の振り子"
BREAD = "Bread is made from flour, water, salt and yeast."


@pytest.mark.parametrize(
    ("sources", "limit_chars", "shown"),
    [
        pytest.param([BREAD, CLOCK], 100, f"{BREAD}\n\n{CLOCK}", id="all that fit as they come"),
        pytest.param([BREAD, "x" * 90, CLOCK], 100, f"{CLOCK}\n\n{BREAD}", id="else by nearness"),
        pytest.param([BREAD, CLOCK], 80, CLOCK, id="only those that fit"),
        pytest.param([CLOCK, "x" * 90, BREAD], 100, f"{CLOCK}\n\n{BREAD}", id="not one too long"),
        pytest.param(["Same.", "Same."], 100, "Same.", id="each once"),
        pytest.param([BREAD, TOKEI], 60, TOKEI, id="no blanks between words"),
    ],
)
def test_sources_are_shown_whole_and_of_too_many_the_nearest_first(sources, limit_chars, shown):
    assert nearest_sources(sources, to=[ABOUT], limit_chars=limit_chars) == shown


def test_of_a_nearest_source_that_is_too_long_the_nearest_passages_are_shown():
    filler = "Nothing is said here. " * 50
    sources = [BREAD, filler + SPRING + filler]

    shown = nearest_sources(sources, to=["clock spring pendulum"], limit_chars=400)

    assert (SPRING in shown, BREAD in shown, len(shown) <= 400) == (True, False, True)


# --- what is kept of a reply ---------------------------------------------------------------------

TABLE = "It is.\n\n| a | b |\n|---|---|\n| 1 | 2 |"


@pytest.mark.parametrize(
    ("reply", "kept"),
    [
        pytest.param("It has two parts. The first", "It has two parts.", id="mid-sentence"),
        pytest.param("It has two parts. So it is.", "It has two parts. So it is.", id="at an end"),
        pytest.param("So it is. See https://exa", "So it is.", id="in an address"),
        pytest.param("One.\n\n- Two.\n- Thr", "One.\n\n- Two.", id="in a list"),
        pytest.param("It has two", "It has two", id="the only sentence"),
        pytest.param("So:\n\n```sh\nls\ncd /tm", "So:\n\n```sh\nls\n```", id="in code"),
        pytest.param("~~~~\na\n~~~\nb\nc", "~~~~\na\n~~~\nb\n~~~~", id="a shorter fence inside"),
        pytest.param("```\na\n```\nIt is. And", "```\na\n```\nIt is.", id="after code"),
        pytest.param(
            "- So:\n  ```\n  a\n  b\n  c", "- So:\n  ```\n  a\n  b\n  ```", id="in an item"
        ),
        pytest.param("- So:\n  ```\n  a\n  ```", "- So:\n  ```\n  a\n  ```", id="after an item's"),
        pytest.param("- ```a``` is. And", "- ```a``` is.", id="after code in a line"),
        pytest.param(f"{TABLE}\n| 3", TABLE, id="in a table"),
    ],
)
def test_a_cut_reply_loses_what_it_was_cut_in(reply, kept):
    assert without_broken_end(reply) == kept


PIECES = ["```\n", "```sh\n", "~~~\n", "  ```\n", "a = 1\n", "It is so. ", "And\n", "\n\n", "- x\n"]


@given(reply=st.lists(st.sampled_from([*PIECES, "|a|\n"]), max_size=10).map("".join))
def test_what_stands_behind_a_cut_reply_stays_what_it_is(reply):
    kept = without_broken_end(reply.strip())

    # No fence is open that would take in a heading behind it.
    assert sections_of(f"{kept}\n\n# Next\n")[-1].title == "Next"


def test_a_draft_is_lengthened_by_more_than_its_tokens_usually_are():
    draft = Draft(text="It is so.", task="Say it.", sources=("It is so.",))

    longest = lengthened(draft, tokens=100)

    # English has four characters a token.
    assert len(longest.text) >= len(draft.text) + 400
    assert longest.text.startswith(draft.text)
    assert (longest.task, longest.sources) == (draft.task, draft.sources)
    assert lengthened(draft, tokens=0) == draft


SECTION = "## Notes\n\nOld.\n"
REPLIES = {
    "a fence": ("```markdown\nNew.\n```", SECTION, "New."),
    "a fence without a label": ("~~~\n## Notes\n\nNew.\n~~~", SECTION, "## Notes\n\nNew."),
    "a courtesy, a fence that was cut": ("Sure! Here it is:\n\n```md\nNew", SECTION, "New"),
    "another language": ("So soll es sein:\n\n## Notes\n\nNeu.", SECTION, "## Notes\n\nNeu."),
    "code, as before": ("```md\n# B\n```", "## X\n\n```md\n# A\n```", "```md\n# B\n```"),
}
WHOLE = [
    "```\nx = 1\n```",
    "So:\n\n```md\n# A\n```",
    "Here are the steps:\n\n- one",
    "The updated version 2.1 of the scheduler brings three changes:\n\n- faster start",
    "A.\n\n## B\n\nC.",
]


@pytest.mark.parametrize(
    ("reply", "before", "text"), [*REPLIES.values(), *((text, SECTION, text) for text in WHOLE)]
)
def test_what_stands_around_a_text_is_left_out(reply, before, text):
    assert text_in(reply, before=before) == text
