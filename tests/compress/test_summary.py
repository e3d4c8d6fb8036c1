import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_documents import documents, headings

from harness.compress import condense, condense_by
from harness.errors import LimitReached

DOCUMENT = (
    "# Cats\n\n"
    + "Cats sleep for most of the day. " * 30
    + "\n\n## Food\n\n"
    + "They eat fish. " * 30
) + "\n\n# Dogs\n\nDogs bark at night, and then they st"
SUMMARY = "# Cats\n\nCats sleep.\n\n## Food\n\nThey eat fish.\n\n# Dogs\n"


def summarized(reply, document=DOCUMENT, **options):
    """What comes of a summarizer that gives or raises this, and the prompts that it was sent."""
    prompts = []

    async def summarize(prompt):
        prompts.append(prompt)
        if isinstance(reply, Exception):
            raise reply
        return reply

    options = {"budget_chars": 300, "keep_tail_chars": 20} | options
    return asyncio.run(condense_by(summarize, document, **options)), prompts


REPLIES = {
    "as asked": SUMMARY,
    "in a fence": f"```markdown\n{SUMMARY}```\n",
    "courtesy": f"Here is the shortened document:\n\n{SUMMARY}",
}


@pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES)
def test_a_summary_with_all_headings_is_used_and_the_end_is_verbatim(reply):
    result, (prompt,) = summarized(reply, focus="what cats eat")

    assert result.text == f"{SUMMARY}\nDogs bark at night, and then they st"
    assert (result.summarized, result.compressed, result.refused) == (True, True, None)
    assert (result.before_chars, result.after_chars) == (len(DOCUMENT), len(result.text))
    assert "# Dogs" in prompt
    assert "then they st" not in prompt
    assert "at most 262 characters" in prompt
    assert "what cats eat" in prompt


def test_without_an_end_to_keep_all_of_the_text_is_the_summarizers():
    reply = f"{SUMMARY}\nThey bark."

    assert summarized(reply, keep_tail_chars=0)[0].text == f"{reply}\n\n"


REFUSED = {
    "too long": (SUMMARY + "Dogs. " * 50, "summary.too-long"),
    "missing": ("# Cats\n\nSleep.\n\n# Dogs", "summary.lacks-heading"),
    "order": ("# Dogs\n\n# Cats\n\nSleep.\n\n## Food\n\nFish.", "summary.heading-out-of-order"),
    "added": (SUMMARY + "\nThey bark.\n\n# Birds\n", "summary.headings-of-its-own"),
    "only headings": ("# Cats\n\n## Food\n\n# Dogs", "summary.section-without-text"),
    "open fence": (SUMMARY + "\n```\ncode", "summary.left-open"),
    "limit": (LimitReached("no tokens left", limit="tokens"), "loop.limit-reached"),
}


@pytest.mark.parametrize(("reply", "code"), REFUSED.values(), ids=REFUSED)
def test_a_summary_that_cannot_be_used_is_refused_with_the_reason(reply, code):
    result, _ = summarized(reply)

    assert result.refused.code == code
    assert not result.summarized
    assert result.text == condense(DOCUMENT, budget_chars=300, keep_tail_chars=20).text


HOPELESS = {
    "one long paragraph last": "# Cats\n\nA cat.\n\n" + "They purr. " * 40,
    "headings": "# A long heading\n\nA cat.\n\n" * 20 + "The end.",
}


@pytest.mark.parametrize("document", HOPELESS.values(), ids=HOPELESS)
def test_no_model_is_asked_for_a_summary_that_could_not_be_within_the_budget(document):
    result, prompts = summarized("# Cats\n", document)

    assert prompts == []
    assert not result.summarized
    assert result.refused.code == "summary.no-room"


def test_a_fault_of_the_program_is_not_taken_for_a_refusal():
    with pytest.raises(ZeroDivisionError):
        summarized(ZeroDivisionError())


@given(documents, documents, st.integers(0, 200), st.integers(0, 30))
def test_whatever_a_summarizer_says_headings_and_budget_hold(document, reply, budget, tail):
    options = {"budget_chars": budget, "keep_tail_chars": tail}
    result, prompts = summarized(reply, document, **options)

    assert headings(result.text) == headings(document)
    if result.summarized:
        assert result.after_chars <= budget < result.before_chars
        assert result.text.endswith(document[len(document) - tail :])
    else:
        assert bool(prompts) == (
            result.refused is not None and result.refused.code != "summary.no-room"
        )
        assert result.text == condense(document, **options).text
