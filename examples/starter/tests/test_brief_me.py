"""The pipeline on scripted replies: no model and no network is needed."""

from brief_me import brief_me
from harness.testing import Script, run_pipeline

DRAFT = "A cold start takes 40 s."
BETTER = (
    "A cold 13B model takes 8 to 15 s from disk, against less than 0.2 s when warm. "
    "Keeping the model loaded between calls removes the cold start."
)


def test_a_draft_that_is_short_and_wrong_is_revised() -> None:
    result = run_pipeline(brief_me, Script({"producer": [DRAFT, *[BETTER] * 4]}))

    assert result.outputs["text"] == BETTER
