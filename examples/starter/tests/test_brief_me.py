"""The pipeline on scripted replies: no model and no network is needed."""

from brief_me import brief_me
from harness.testing import Script, run_pipeline

DRAFT = "A cold start takes 40 s."
BETTER = (
    "A cold start is the time until a model is in memory. It takes 8 to 15 s for a 13B model, "
    "and keeping the model loaded between calls removes it."
)


def test_a_draft_that_is_short_and_wrong_is_revised() -> None:
    result = run_pipeline(brief_me, Script({"producer": [DRAFT, BETTER]}))

    assert result.outputs["text"] == BETTER
