"""How the next draft is made from what failed in the last: what is asked for, and what stays."""

import asyncio
import re
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from harness.compress import sections_of
from harness.errors import CallTimeout, ReplyInvalid
from harness.inference import ChatRequest, ScriptedBackend
from harness.rubric import Dimension, DimensionScore, Draft, Evaluator, Finding, Rubric
from harness.rubric.checks import Excludes, Finished, SectionWords
from harness.wiggum import Reviser

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


def revise(backend, given_draft: Draft, *focus: DimensionScore, max_output_tokens: int = 100):
    reviser = Reviser(
        ask=backend.chat, model="writer", requirements=(), max_output_tokens=max_output_tokens
    )
    return asyncio.run(reviser.revise(given_draft, focus, round_number=2))


def prompts(backend: ScriptedBackend) -> list[str]:
    return [request.messages[-1].content for request in backend.requests]


def always(reply: str) -> ScriptedBackend:
    return ScriptedBackend(lambda _request: reply)


def test_only_the_criticised_section_is_written_again():
    backend = always("It has two parts.")

    text = revise(backend, draft(), failed(at(0)))

    assert text == TEXT.replace("It has two pa\n", "It has two parts.\n")
    assert len(backend.requests) == 1


def test_of_two_sections_with_one_title_the_criticised_one_is_written_again():
    text = revise(always("It runs."), draft(), failed(at(2)))

    assert text == TEXT.replace("TODO", "It runs.")


def test_sections_with_one_title_get_each_its_own_findings():
    def reply(request: ChatRequest) -> str:
        asked = request.messages[-1].content
        assert ("too long" in asked) != ("a placeholder" in asked)
        return "It is old." if "too long" in asked else "It runs."

    text = revise(
        ScriptedBackend(reply), draft(), failed(at(1, "too long"), at(2, "a placeholder"))
    )

    assert text == TEXT.replace("It is old, and this is long.", "It is old.").replace(
        "TODO", "It runs."
    )


def test_what_the_checks_find_leads_to_the_sections_they_found_it_in():
    checks = (SectionWords(min=2, max=5), Finished(), Excludes(phrases=("TODO",)))
    rubric = Rubric(title="Essay", dimensions=(Dimension(name="form", checks=checks),))
    evaluator = Evaluator(rubric, ask=ScriptedBackend([]).chat, model=None)
    verdict = asyncio.run(evaluator.evaluate(draft()))
    backend = always("It runs.")

    text = revise(backend, draft(), *verdict.scores)

    assert [section.body.strip() for section in sections_of(text)] == ["It runs."] * 3
    first, second, third = prompts(backend)
    assert "the last sentence breaks off" in first
    assert "7 words in this section; at most 5 are allowed" in second
    assert 'remove "TODO"' in third


FRAGMENTS = [
    "# One\n",
    "# One\n\n",
    "## Two words\n\n",
    "Underlined\n===\n",
    "A sentence. Another one.\n",
    "A paragraph\nof two lines.\n\n",
    "- item\n- item\n\n",
    "```python\n# not a heading\n```\n",
    "| a | b |\n|---|---|\n| 1 | 2 |\n\n",
    "<!-- comment -->\n\n",
    "\n",
    "   \n",
    "no line end",
]


@settings(derandomize=True, deadline=None, max_examples=150)
@given(text=st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join), data=st.data())
def test_what_was_not_criticised_stays_as_it_was_byte_for_byte(text, data):
    before = sections_of(text)
    assume(any(section.level for section in before))
    criticised = data.draw(st.sets(st.integers(0, len(before) - 1), min_size=1))
    findings = [Finding("too short", before[index].title, index) for index in criticised]

    after = sections_of(revise(always("New *text*."), draft(text), failed(*findings)))

    assert len(after) == len(before)
    for index, (old, new) in enumerate(zip(before, after, strict=True)):
        if index in criticised:
            assert new.title == old.title
            assert new.body.strip() == "New *text*."
        else:
            assert new == old


@pytest.mark.parametrize(
    ("text", "focus"),
    [
        pytest.param(TEXT, [failed(Finding("too few sections"))], id="a finding without section"),
        pytest.param(
            TEXT, [failed(at(0), Finding("too few sections"))], id="one with and one without"
        ),
        pytest.param(TEXT, [failed(reason="hard to follow")], id="no finding at all"),
        pytest.param(
            TEXT,
            [failed(at(0)), failed(name="clear", reason="hard to follow")],
            id="one dimension without findings",
        ),
        pytest.param("It has two pa", [failed(Finding("too short", "", 0))], id="no headings"),
    ],
)
def test_what_sections_alone_cannot_mend_is_written_again_as_a_whole(text, focus):
    backend = always("# All new\n\nIt has two parts.\n")

    assert revise(backend, draft(text), *focus) == "# All new\n\nIt has two parts."
    (prompt,) = prompts(backend)
    assert text.strip() in prompt
    assert "Say how the clock works." in prompt


def test_every_finding_reaches_the_call_for_its_section():
    backend = always("New.")

    revise(
        backend,
        draft(),
        failed(at(0, "too short"), at(1, "too long")),
        failed(at(0, "the number 7 is not in the sources"), name="grounded"),
    )

    first, second = prompts(backend)
    assert "too short" in first
    assert "the number 7 is not in the sources" in first
    assert "too long" not in first
    assert "It has two pa" in first
    assert "too long" in second
    assert "too short" not in second


def test_every_reason_reaches_the_call_for_the_whole():
    backend = always("New.")

    revise(
        backend,
        draft(),
        failed(name="clear", reason="hard to follow"),
        failed(at(0, "too short"), Finding("too few sections")),
    )

    (prompt,) = prompts(backend)
    for reason in ("hard to follow", "too short", "too few sections"):
        assert reason in prompt


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

    async def together():
        reviser = Reviser(ask=Meeting().chat, model="writer", requirements=(), max_output_tokens=9)
        return await reviser.revise(draft(), [failed(at(0), at(1), at(2))], round_number=2)

    assert asyncio.run(together()).count("New.") == 3


def test_a_call_says_who_is_asked_as_what_and_how_a_run_repeats():
    backend = always("New.")

    revise(backend, draft(), failed(at(0), at(1)))

    for request in backend.requests:
        assert (request.model, request.role, request.seed) == ("writer", "producer", 2)
        assert request.temperature > 0
        assert request.reply_schema is None


@pytest.mark.parametrize(
    ("text", "focus", "at_least"),
    [
        pytest.param(TEXT, failed(at(0)), 100, id="a section"),
        pytest.param("# A\n\nIt is so.\n", failed(reason="x"), 100, id="a short draft"),
        # Four characters a token are usual in English, two are few.
        pytest.param("# A\n\n" + "It is so. " * 500, failed(reason="x"), 2000, id="a long draft"),
    ],
)
def test_a_reply_has_room_for_what_is_written_again(text, focus, at_least):
    backend = always("New.")

    revise(backend, draft(text), focus, max_output_tokens=100)

    assert backend.requests[0].max_output_tokens >= at_least


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param("\n\nIt has two parts.\n\n", id="blank lines"),
        pytest.param("# Parts\n\nIt has two parts.", id="with its heading"),
        pytest.param("## parts\nIt has two parts.", id="with its heading, smaller"),
    ],
)
def test_a_section_keeps_its_heading_and_its_space(reply):
    text = revise(always(reply), draft(), failed(at(0)))

    assert text == TEXT.replace("It has two pa\n", "It has two parts.\n")


@pytest.mark.parametrize(
    "reply", [pytest.param("", id="nothing"), pytest.param(" \n\t", id="white space")]
)
@pytest.mark.parametrize(
    "focus", [pytest.param(failed(at(0)), id="section"), pytest.param(failed(reason="x"), id="all")]
)
def test_an_empty_reply_is_no_revision(reply, focus):
    with pytest.raises((ReplyInvalid, ExceptionGroup)) as caught:
        revise(always(reply), draft(), focus)

    (error,) = getattr(caught.value, "exceptions", (caught.value,))
    assert isinstance(error, ReplyInvalid)
    assert error.text == reply
    assert "the revision is empty" in str(error)


def test_a_reply_of_a_heading_alone_is_no_revision():
    with pytest.raises(ReplyInvalid, match="cannot be put back") as caught:
        revise(always("# Parts\n"), draft(), failed(at(0)))

    assert caught.value.endpoint == "writer"
    assert caught.value.text == "# Parts"


def test_a_failed_call_for_one_section_fails_the_revision():
    replies = ["New.", CallTimeout("30 s without a token", endpoint="writer"), "New."]

    with pytest.raises(CallTimeout, match="30 s without a token"):
        revise(ScriptedBackend(replies), draft(), failed(at(0), at(1), at(2)))


def test_a_short_source_is_shown_whole():
    backend = always("New.")

    revise(backend, draft(TEXT, "The clock has two parts.", "It was built in 1987."), failed(at(0)))

    assert "The clock has two parts." in prompts(backend)[0]
    assert "It was built in 1987." in prompts(backend)[0]


@pytest.mark.parametrize(
    ("focus", "near"),
    [
        pytest.param(failed(at(0)), "Its two parts are a spring and an escapement.", id="section"),
        pytest.param(failed(reason="x"), "The clock works by a spring.", id="whole"),
    ],
)
def test_of_long_sources_the_nearest_sentences_are_shown_word_for_word(focus, near):
    filler = " ".join(f"Filler says nothing, item {number}." for number in range(300))
    backend = always("New.")

    revise(backend, draft(TEXT, f"{filler} {near} {filler}"), focus)

    (prompt,) = prompts(backend)
    assert near in prompt
    assert len(prompt) < 8_000 < len(filler)
    shown = set(re.findall(r"Filler says[^.]*\.", prompt))
    assert shown <= set(re.findall(r"Filler says[^.]*\.", filler))


@pytest.mark.parametrize(
    ("reply", "kept"),
    [
        pytest.param("It has two parts. The first", "It has two parts.", id="mid-sentence"),
        pytest.param("One.\n\n- Two.\n- Thr", "One.\n\n- Two.", id="in a list"),
        pytest.param("It has two", "It has two", id="the only sentence"),
        pytest.param("So:\n\n```sh\nls. Then", "So:\n\n```sh\nls. Then", id="in code"),
    ],
)
def test_a_reply_that_the_token_limit_cut_loses_its_broken_sentence(reply, kept):
    backend = always(reply)

    async def cut(request):
        return replace(await backend.chat(request), finish_reason="length")

    reviser = Reviser(ask=cut, model="writer", requirements=(), max_output_tokens=9)
    revised = asyncio.run(reviser.revise(draft(), [failed(reason="x")], round_number=2))

    assert revised == kept


def test_a_whole_rewrite_is_reminded_of_everything_the_rubric_asks():
    writer = ScriptedBackend(["Better."])
    reviser = Reviser(
        ask=writer.chat, model="writer", requirements=["Be short."], max_output_tokens=9
    )
    fault = DimensionScore(name="clear", score=2, source="judged", reason="It is not clear.")

    asyncio.run(reviser.revise(Draft(text="Text.", task="t"), [fault], round_number=2))

    assert "Be short." in writer.requests[0].messages[-1].content
