"""How long a draft may become, by which the cost of judging it is told beforehand."""

from harness.rubric import Draft
from harness.wiggum import lengthened


def test_a_draft_is_lengthened_by_more_than_its_tokens_usually_are():
    draft = Draft(text="It is so.", task="Say it.", sources=("It is so.",))

    longest = lengthened(draft, tokens=100)

    # English has four characters a token.
    assert len(longest.text) >= len(draft.text) + 400
    assert longest.text.startswith(draft.text)
    assert (longest.task, longest.sources) == (draft.task, draft.sources)


def test_a_draft_that_nothing_is_added_to_stays_as_it_is():
    draft = Draft(text="It is so.", task="Say it.")
    assert lengthened(draft, tokens=0) == draft
