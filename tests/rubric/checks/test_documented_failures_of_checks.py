"""Failures that others have documented, and that ours must not have; the numbers are theirs."""

import pytest
from check_drafts import draft, found

from harness.rubric.checks import Finished, Items, Language, NoStubs, ParsesAsPython

ENGLISH = (
    "Keep the model resident between two calls, and its weights need not be loaded again. "
    "A request that waits for a load waits for some ten seconds."
)
GERMAN = (
    "Bleibt das Modell zwischen zwei Aufrufen im Speicher, so müssen seine Gewichte nicht erneut "
    "geladen werden. Eine Anfrage, die auf das Laden wartet, wartet etwa zehn Sekunden."
)


def test_failure_20_an_output_in_the_wrong_language_does_not_pass():
    in_english = f"# Residency\n\n{ENGLISH}\n\n```python\nwarte_auf_das_laden(zehn_sekunden)\n```\n"

    assert Language(code="en").grade(draft(in_english)).share == 1
    # The heading, the code and the terms are English all the same.
    wrong = Language(code="en").grade(draft(in_english.replace(ENGLISH, GERMAN)))
    assert wrong.share == 0
    assert found(wrong) == [("this reads as 'de'; write it in 'en'", 0)]


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("def load(model):\n    pass", id="pass"),
        pytest.param("def load(model):\n    '''Loads it.'''\n    ...", id="dots"),
        pytest.param("def load(model):\n    raise NotImplementedError", id="not implemented"),
        pytest.param("def load(model):\n    # TODO: load it\n    return model", id="a comment"),
        pytest.param("prepare_model()\nload_weights()\nrun_inference()", id="calls of nothing"),
    ],
)
def test_failure_21_placeholder_code_does_not_pass(code):
    whole = "def load(model):\n    return open(model).read()\n\nload('a')"

    assert NoStubs().grade(draft(f"# A\n\n```python\n{whole}\n```\n")).share == 1
    grade = NoStubs().grade(draft(f"# A\n\n```python\n{whole}\n```\n\n# B\n\n```py\n{code}\n```\n"))
    assert grade.share == 0.5
    assert {index for _, index in found(grade)} == {1}


CUT = (
    "# A\n\nIt is so.\n\n# B\n\nRun this:\n\n"
    "```python\nfor model in models:\n    load(model)\n```\n"
)


@pytest.mark.parametrize("end", range(CUT.index("Run this") + 3, len(CUT) - 5))
def test_failure_24_a_draft_that_a_token_limit_cut_is_not_finished(end):
    # Wherever in the last section it was cut: in mid-sentence, in the code, in its closing fence.
    assert Finished().grade(draft(CUT)).share == 1

    grade = Finished().grade(draft(CUT[:end]))

    assert grade.share == 0.5
    assert [index for _, index in found(grade)] == [1]


def test_failure_24_code_that_was_cut_does_not_parse_either():
    cut = CUT[: CUT.index("    load") + 10]

    assert ParsesAsPython().grade(draft(CUT)).share == 1
    assert found(ParsesAsPython().grade(draft(cut)))[0][1] == 1


FIVE = [f"Step {n}, which is done" for n in range(5)]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("\n".join(f"{n + 1}. {step}" for n, step in enumerate(FIVE)), id="plain"),
        pytest.param("\n".join(f"1. {step}" for step in FIVE), id="all of one number"),
        pytest.param("\n\n".join(f"{n + 1}) {step}" for n, step in enumerate(FIVE)), id="apart"),
        pytest.param(
            "\n".join(
                f"{n + 1}. {step}\n   1. a part\n   - another" for n, step in enumerate(FIVE)
            ),
            id="with lists inside",
        ),
        pytest.param(
            "\n".join(
                f"{n + 1}. {step}\n\n   ```sh\n   1. no item\n   ```" for n, step in enumerate(FIVE)
            ),
            id="with code inside",
        ),
        pytest.param(
            "- not\n- numbered\n\n" + "\n".join(f"{n + 1}. {step}" for n, step in enumerate(FIVE)),
            id="beside bullets",
        ),
    ],
)
def test_failure_26_five_items_are_five_however_they_are_written(text):
    # A count that is wrong sends a good draft back, and what comes back is worse.
    grade = Items(kind="numbered", min=5, max=5).grade(
        draft(f"# A\n\n{ENGLISH}\n\n# B\n\n{text}\n")
    )

    assert grade.share == 1
    assert grade.findings == ()


def test_failure_26_one_item_too_few_costs_its_share_and_touches_one_section():
    text = f"# A\n\n{ENGLISH}\n\n# B\n\n" + "\n".join(f"1. {step}" for step in FIVE[:4])

    grade = Items(kind="numbered", min=5, max=5).grade(draft(text))

    assert grade.share == 0.8
    assert found(grade) == [("4 numbered list items in all; at least 5 are needed", 1)]
