"""Words of the loop in a draft: what prompts say, what checks found, talk of the revision."""

import pytest

from harness.inference import Completion
from harness.rubric import Draft, Evaluator, Rubric
from harness.rubric.checks.echo import echoes
from harness.wiggum.prompts import RevisionPrompts

TOLD = RevisionPrompts(requirements=("Every sentence rests on the sources.",)).told
FOUND = ("the last sentence breaks off; finish it", 'no source says this: "Bread rises."')
TASK = "Say in two sentences what a cold start is."
SOURCE = "A cold start loads the model."

ECHOES = {
    "a label for the old answer": "The previous answer was:\n- A cold start is slow.",
    "an offer": "I'll provide a rewritten version with my edits.",
    "nothing to add": "Since the context adds nothing, we will return the original summary:",
    "about the old answer": "The existing summary is clear and needs no more of the context.",
    "an order": "Return original summary.",
    "no change": "No changes needed to the original summary.",
    "a heading": "## Revised Output\n\nA cold start is slow.",
    "a list of changes": "**Key Changes Made:**\n\n- shorter",
    "a wrapper": "Sure! Here is the corrected text:\n\nA cold start is slow.",
    "a score": "Score: 8/10\n\nA cold start is slow.",
    "a line of the prompt": "Use only the words of the text above.",
    "a label of the prompt": "What was wrong with the earlier version: it was long.",
    "a requirement": "Every sentence rests on the sources.",
    "a finding": "It is slow. The last sentence breaks off; finish it.",
    "the beginning of a finding": "No source says this: it is slow.",
    "the task": "Say in two sentences what a cold start is.",
}


def draft(text, *, task=TASK, source=SOURCE):
    return Draft(text=text, task=task, sources=(source,), told=(*TOLD, *FOUND))


@pytest.mark.parametrize("text", ECHOES.values(), ids=ECHOES)
def test_words_of_the_loop_are_found(text):
    assert [one.code for one in echoes(draft(text))] == ["check.echo"]


@pytest.mark.parametrize(
    "text",
    [
        "Here are the things we should do before lunch:\n\n- load the model",
        "The original text of the treaty is in Latin, and the revised version in French.",
        "The final section of the bridge was opened in May.",
        "A team scored 8 of 10 points.\n\nRating: 4/5\n\nRound 2: 3",
        "We have released the updated version. I'll send you the final version by Monday.",
        "# Say in two sentences what a cold start is\n\nA load.",
        "We read the answer twice, and no change came of it.",
    ],
)
def test_a_text_about_texts_is_no_echo(text):
    assert echoes(draft(text)) == ()


def test_what_task_or_source_say_is_no_echo():
    said = "The previous answer was: no. Use only the words of the text above."

    assert echoes(draft(said, source=f"It reads so: {said}")) == ()
    assert echoes(draft(said, task=f"Proofread this: {said}", source="")) == ()


async def nobody(_request) -> Completion:
    raise AssertionError("no model is asked")


def test_a_draft_with_an_echo_fails_whatever_its_scores():
    words = {"check": "words", "max": 30}
    rubric = Rubric(title="Short", dimensions=[{"name": "length", "checks": [words]}])
    clean, echo = (
        Evaluator(rubric, ask=nobody).checked(draft(text))
        for text in ("A cold start loads the model.", "The previous answer was: it loads.")
    )

    assert clean.rank == (True, True, 10)
    assert echo.rank == (False, False, 5)
    assert [one.name for one in echo.short] == ["no-echo"]
