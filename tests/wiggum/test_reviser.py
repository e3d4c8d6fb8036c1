"""How the next draft is made from what failed in the last: what is asked for, and what stays."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from harness.compress import sections_of
from harness.errors import CallTimeout, ReplyInvalid
from harness.inference import ScriptedBackend
from harness.inference.request import most_prompt_tokens
from harness.rubric import DimensionScore, Draft, Finding, Verdict
from harness.wiggum import Reviser, Round
from harness.wiggum.prompts import FailedDraft, RevisionPrompts
from harness.wiggum.ratchet import Finalist, Selection

TEXT = """\
# Parts

It has two pa

# Notes

It is old, and this is long.

# Notes

TODO
"""


def draft(text: str = TEXT, *sources: str) -> Draft:
    return Draft(text=text, task="Say how the clock works.", sources=sources)


def failed(*findings: Finding, name: str = "form", reason: str = "") -> DimensionScore:
    """A dimension that did not reach its line."""
    told = reason or "; ".join(finding.message for finding in findings)
    return DimensionScore(name=name, score=3, source="checked", reason=told, findings=findings)


def at(index: int, message: str = "too short") -> Finding:
    """A finding about a section of `TEXT`."""
    return Finding(message, ("Parts", "Notes", "Notes")[index], index)


def rounds_of(text: str, *vectors: dict[str, float]) -> list[Round]:
    """The rounds so far, all with this text: one, unless there are more scores."""
    return [
        Round(
            number=number,
            draft=text,
            verdict=Verdict(
                rubric="essay",
                rubric_sha256="5eed",
                scores=tuple(
                    DimensionScore(name=name, score=points, source="judged", reason="")
                    for name, points in vector.items()
                ),
                composite=3,
                passed=False,
            ),
        )
        for number, vector in enumerate(vectors or ({"form": 3.0},), start=1)
    ]


def revision(ask, given_draft: Draft, *focus: DimensionScore, rounds=None, **fields) -> Selection:
    reviser = Reviser(ask=ask, model="writer", **{"max_output_tokens": 100, **fields})
    rounds = rounds or rounds_of(given_draft.text)
    return asyncio.run(reviser.revise(FailedDraft(given_draft, focus, rounds)))


def revise(backend, given_draft: Draft, *focus: DimensionScore, **fields) -> str:
    return revision(backend.chat, given_draft, *focus, **fields).best.text


def prompts(backend: ScriptedBackend) -> list[str]:
    return [request.messages[-1].content for request in backend.requests]


def always(reply: str) -> ScriptedBackend:
    return ScriptedBackend(lambda _request: reply)


@pytest.mark.parametrize(
    ("reply", "section", "after"),
    [
        pytest.param("It has two parts.", 0, "It has two parts.", id="as it is"),
        pytest.param("# Parts\n\nIt has two parts.", 0, "It has two parts.", id="its heading"),
        pytest.param("It runs.", 2, "It runs.", id="the second of two with one title"),
    ],
)
def test_only_the_criticized_section_is_written_again(reply, section, after):
    backend = always(reply)

    text = revise(backend, draft(), failed(at(section)))

    assert text == TEXT.replace(("It has two pa", "", "TODO")[section], after)
    (request,) = backend.requests
    assert (request.model, request.role, request.seed) == ("writer", "producer", 2)
    assert (request.temperature > 0, request.reply_schema) == (True, None)


def test_every_finding_reaches_the_call_for_its_section_and_no_other():
    backend = always("Here is the revised section:\n\n```markdown\nIt runs.\n```")

    text = revise(
        backend,
        draft(),
        failed(at(0, "too short"), at(1, "too long"), at(2, "a placeholder")),
        # Of a draft that had two more sections before it: found by its title.
        failed(Finding("the number 7", "Parts", 2), name="grounded"),
    )

    remarks = ("too short", "the number 7", "too long", "a placeholder")
    told = [[remark for remark in remarks if remark in prompt] for prompt in prompts(backend)]
    assert told == [["too short", "the number 7"], ["too long"], ["a placeholder"]]
    assert "It has two pa" in prompts(backend)[0]
    assert [section.body.strip() for section in sections_of(text)] == ["It runs."] * 3


FRAGMENTS = [
    *(
        "# One\n",
        "# One\n\n",
        "## Two words\n\n",
        "Underlined\n===\n",
        "no line end",
        "\n",
        "   \n",
    ),
    *("A sentence. Another one.\n", "A paragraph\nof two lines.\n\n", "- item\n- item\n\n"),
    *("```python\n# not a heading\n```\n", "| a | b |\n|---|---|\n| 1 | 2 |\n\n", "<!-- x -->\n\n"),
]


@given(text=st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join), data=st.data())
def test_what_was_not_criticized_stays_as_it_was_byte_for_byte(text, data):
    before = sections_of(text)
    assume(any(section.level for section in before))
    criticized = data.draw(st.sets(st.integers(0, len(before) - 1), min_size=1))
    findings = [Finding("too short", before[index].title, index) for index in criticized]

    after = sections_of(revise(always("New *text*."), draft(text), failed(*findings)))

    assert len(after) == len(before)
    for index, (old, new) in enumerate(zip(before, after, strict=True)):
        if index in criticized:
            assert new.title == old.title
            assert new.body.strip() == "New *text*."
        else:
            assert new == old


WHOLE = [
    pytest.param([failed(at(0), Finding("too few sections"))], id="one with and one without"),
    pytest.param([failed(reason="hard to follow")], id="no finding at all"),
    pytest.param([failed(Finding("too short", "Gone", 7))], id="a section that is not there"),
]


@pytest.mark.parametrize("focus", WHOLE)
def test_what_concerns_the_whole_leads_to_one_call_for_the_sections_that_it_changes(focus):
    backend = always("Gladly:\n\n# Parts\n\nIt has two parts.\n")

    result = revision(backend.chat, draft(), *focus)

    after = TEXT.replace("It has two pa\n", "It has two parts.\n")
    assert result == Selection(finalists=(Finalist(text=after),), how="edits")
    (prompt,) = prompts(backend)
    assert TEXT.strip() in prompt
    assert "Say how the clock works." in prompt


def test_a_section_that_is_missing_can_be_added():
    reply = "# Notes\n\nIt is old, and this is long.\n\n# Use\n\nWind it up.\n"

    text = revise(always(reply), draft(), failed(Finding("say how it is used")))

    assert [section.title for section in sections_of(text)] == ["Parts", "Notes", "Use", "Notes"]
    assert text.replace("# Use\n\nWind it up.\n\n", "") == TEXT


@pytest.mark.parametrize(
    ("text", "mode", "replies"),
    [
        pytest.param(TEXT, "sections", ["It has two parts."], id="no section is returned"),
        pytest.param(TEXT, "sections", ["# Parts\n\n" + "- " * 150 + "x"], id="it does not fit"),
        pytest.param("It has two pa", "sections", [], id="there are no headings"),
        pytest.param(TEXT, "whole", [], id="it is asked for"),
    ],
)
def test_the_whole_is_written_again_where_sections_cannot_be(text, mode, replies):
    backend = ScriptedBackend([*replies, "# All new\n\nIt has two parts.\n"])

    result = revision(backend.chat, draft(text), failed(reason="dull"), mode=mode)

    assert result == Selection(finalists=(Finalist(text="# All new\n\nIt has two parts."),))
    assert all(text.strip() in prompt for prompt in prompts(backend))


@given(text=st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join), data=st.data())
def test_what_was_not_returned_stays_as_it_was_byte_for_byte(text, data):
    before = sections_of(text)
    titles = [section.title for section in before]
    choices = [i for i, t in enumerate(titles) if t and titles.count(t) == 1]
    assume(choices)
    index = data.draw(st.sampled_from(choices))

    after = sections_of(
        revise(always(f"# {titles[index]}\n\nNew *text*.\n"), draft(text), failed(reason="dull"))
    )

    assert [section.title for section in after] == titles
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        assert new.body.strip() == "New *text*." if number == index else new == old


def test_sections_are_asked_for_at_the_same_time():
    class Meeting:
        """A backend that answers when three calls are under way."""

        def __init__(self) -> None:
            self.backend = always("New.")
            self.barrier = asyncio.Barrier(3)

        async def chat(self, request):
            async with asyncio.timeout(10):
                await self.barrier.wait()
            return await self.backend.chat(request)

    assert revise(Meeting(), draft(), failed(at(0), at(1), at(2))).count("New.") == 3


@pytest.mark.parametrize(
    ("remark", "shown"),
    [
        pytest.param(
            'no source says this: "This is usual."',
            "What is good in a text about Parts:\nIt has two hands.\n",
            id="without the sentence that a remark quotes",
        ),
        pytest.param(
            "vague",
            "An earlier version of a text about Parts:\nIt has two hands. This is usual.\n",
            id="whole, where no remark quotes it",
        ),
    ],
)
def test_a_section_is_shown_for_what_is_good_in_it(remark, shown):
    backend = always("Again.")
    text = "# Parts\n\nIt has two hands. This is usual.\n"

    revise(backend, draft(text), failed(Finding(remark, "Parts", 0)))

    (prompt,) = prompts(backend)
    assert shown in prompt
    assert prompt.count("is usual") == 1


@pytest.mark.parametrize(
    ("body", "most", "room"),
    [
        pytest.param("A stub.", 512, 256, id="a stub may become a paragraph"),
        pytest.param("word " * 160, 512, 400, id="twice its length, at some four bytes a token"),
        pytest.param("word " * 2_000, 512, 512, id="never more than was allowed"),
    ],
)
def test_a_section_is_given_room_for_twice_its_length(body, most, room):
    backend = ScriptedBackend(["Again."])
    text = f"# Parts\n\n{body.strip()}\n"
    finding = Finding("too vague", "Parts", 0)
    revise(backend, draft(text), failed(finding), max_output_tokens=most)
    assert backend.requests[0].max_output_tokens == pytest.approx(room, abs=2)


@pytest.mark.parametrize("mode", ["sections", "whole"])
@pytest.mark.parametrize(
    ("given", "room"),
    # Four characters a token are usual in English, two are few.
    [pytest.param(None, 2502, id="as much as it needs"), pytest.param(100, 100, id="what it has")],
)
def test_a_long_draft_is_given_room_for_all_of_it_unless_the_room_is_stated(given, room, mode):
    backend = always("New.")

    text = "# A\n\n" + "It is so. " * 500
    revise(backend, draft(text), failed(reason="x"), max_output_tokens=given, mode=mode)

    assert {asked.max_output_tokens for asked in backend.requests} == {room}


@pytest.mark.parametrize("reply", ["", " \n\t", "It has […] parts."])
@pytest.mark.parametrize(
    "focus", [failed(at(0), at(1)), failed(reason="x")], ids=["sections", "all"]
)
def test_an_empty_or_shortened_reply_is_no_revision(reply, focus):
    assert revise(always(reply), draft(), focus) == ""


def test_a_section_without_a_reply_stays_as_it_is():
    text = revise(ScriptedBackend(["", "It is old."]), draft(), failed(at(0), at(1)))

    assert text == TEXT.replace("It is old, and this is long.", "It is old.")


@pytest.mark.parametrize(
    ("replies", "error"),
    [
        pytest.param(["New.", "# Notes\n", "New."], ReplyInvalid, id="a heading alone"),
        pytest.param(
            ["New.", CallTimeout("slow", endpoint="writer"), "New."], CallTimeout, id="slow"
        ),
    ],
)
def test_one_section_that_cannot_be_had_fails_the_revision(replies, error):
    with pytest.raises(error) as caught:
        revise(ScriptedBackend(replies), draft(), failed(at(0), at(1), at(2)))
    assert caught.value.endpoint == "writer"


@pytest.mark.parametrize("focus", [failed(at(0)), failed(reason="x")], ids=["section", "all"])
def test_a_reply_that_the_token_limit_cut_loses_what_it_was_cut_in(focus):
    backend = always("# Parts\n\nIt has two parts. The fir")

    async def cut(request):
        return replace(await backend.chat(request), finish_reason="length")

    text = revision(cut, draft(), focus).best.text

    assert text == TEXT.replace("It has two pa\n", "It has two parts.\n")


@pytest.mark.parametrize(
    ("text", "focus"),
    [
        pytest.param(TEXT, failed(at(0)), id="a section"),
        pytest.param(TEXT, failed(reason="x"), id="the sections that change"),
        pytest.param("Text.", failed(reason="x"), id="the whole"),
    ],
)
def test_every_call_is_told_the_task_all_that_the_rubric_asks_and_short_sources(text, focus):
    backend = always("# Parts\n\nBetter.")
    sources = ("The clock has two parts.", "It was built in 1987.")

    told = RevisionPrompts(requirements=("Be short", "Is it clear?"))
    revise(backend, draft(text, *sources), focus, prompts=told)

    (prompt,) = prompts(backend)
    for told in ("Say how the clock works.", "Be short", "Is it clear?", *sources):
        assert told in prompt


@pytest.mark.parametrize("focus", [failed(at(0)), failed(reason="x")], ids=["section", "all"])
def test_how_the_rounds_were_scored_is_told_from_the_second_on(focus):
    backend = always("# Parts\n\nBetter.")
    vectors = ({"relevance": 6.0, "depth": 5.5}, {"relevance": 7.0, "depth": 4.0})

    for count in (1, 2):
        revise(backend, draft(), focus, rounds=rounds_of(TEXT, *vectors[:count]))

    first, second = prompts(backend)
    assert "round 1" not in first
    assert "- round 1: relevance 6, depth 5.5\n- round 2: relevance 7, depth 4\n" in second
    assert [request.seed for request in backend.requests] == [2, 3]


# --- drafts that are too long to be shown ------------------------------------------------------

LONG = "".join(
    f"# Part {number}\n\n" + f"Part {number} weighs {number + 9} grams. " * 20 + "\n\n"
    for number in range(20)
)


def test_only_what_a_long_draft_was_shown_in_full_can_be_written_again():
    everything = "".join(f"# Part {number}\n\nIt weighs a gram.\n\n" for number in range(20))
    backend = always(everything)
    sections = sections_of(LONG)

    focus = failed(Finding("too long", "Part 3", 3), Finding("say more of part 7"))
    result = revision(backend.chat, draft(LONG), focus, prompts=RevisionPrompts(shorten_over=3_000))

    assert result.how == "edits"
    (prompt,) = prompts(backend)
    shown = [n for n, section in enumerate(sections) if section.text in prompt]
    after = sections_of(result.best.text)
    assert [n for n in range(20) if after[n] != sections[n]] == shown
    assert 3 in shown
    assert 0 < len(shown) < 10
    assert all(f"'Part {n}'" in prompt for n in shown)


def test_the_section_nearest_to_the_findings_is_shown_even_if_there_is_no_room_for_it():
    text = LONG + "# Prices\n\n" + "The price of tea is high. " * 200
    backend = always("# Prices\n\nTea costs a lot.")

    focus = failed(Finding("say who pays the price of the tea"))
    result = revision(backend.chat, draft(text), focus, prompts=RevisionPrompts(shorten_over=3_000))

    assert result.best.text.strip() == f"{LONG}# Prices\n\nTea costs a lot."


# --- what it takes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "focus"),
    [
        pytest.param(TEXT, failed(at(0), at(2)), id="sections"),
        pytest.param(TEXT, failed(reason="x"), id="edits, and then the whole"),
        pytest.param("Text.", failed(reason="x"), id="the whole"),
    ],
)
def test_what_a_revision_takes_at_most_is_what_its_calls_take_at_most(text, focus):
    backend = always("Better.")
    reviser = Reviser(ask=backend.chat, model="writer", max_output_tokens=100)

    rounds = rounds_of(text)
    failed_draft = FailedDraft(draft(text), [focus], rounds)
    most, written = reviser.most_tokens(failed_draft)
    assert backend.requests == []
    asyncio.run(reviser.revise(failed_draft))

    prompts = [most_prompt_tokens(request) for request in backend.requests]
    rooms = [request.max_output_tokens for request in backend.requests]
    assert most == sum(prompts) + sum(rooms)
    assert written == sum(rooms)
