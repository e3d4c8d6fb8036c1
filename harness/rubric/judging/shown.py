"""What the evaluator is shown of a draft: all of it, or what is left when it is too long."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from harness.compress import Condensed, Summarise, condense, condense_around, condense_by
from harness.rubric.draft import Draft
from harness.rubric.judging.prompt import focus_of
from harness.rubric.rubric import Rubric
from harness.rubric.verdict import Shortened


@dataclass(frozen=True, slots=True)
class Shown:
    """A draft as the evaluator sees it."""

    text: str
    """Markdown."""
    shortened: Shortened | None = None
    """That this is not the whole."""


def shown(rubric: Rubric, draft: Draft, *, sections: Collection[int] = ()) -> Shown:
    """The draft, if it is too long without what says least.

    Args:
        rubric: Says how long is too long.
        draft: What is to be judged.
        sections: Those that are to be judged anew, which stay whole.
    """
    budget, focus = rubric.shorten.evaluate_over, focus_of(rubric, draft)
    if sections:
        condensed = condense_around(draft.text, sections=sections, budget_chars=budget, focus=focus)
    else:
        condensed = condense(
            draft.text, budget_chars=budget, cap_chars=rubric.shorten.cap, focus=focus
        )
    return Shown(condensed.text, _shortened(condensed))


async def shown_by(summarise: Summarise, rubric: Rubric, draft: Draft) -> Shown:
    """The same, with a model's summary of a draft that is too long, if it is of use."""
    condensed = await condense_by(
        summarise,
        draft.text,
        budget_chars=rubric.shorten.evaluate_over,
        cap_chars=rubric.shorten.cap,
        focus=focus_of(rubric, draft),
    )
    return Shown(condensed.text, _shortened(condensed))


def _shortened(condensed: Condensed) -> Shortened | None:
    if not condensed.compressed:
        return None
    return Shortened(
        before_chars=condensed.before_chars,
        after_chars=condensed.after_chars,
        summarised=condensed.summarised,
        refused=str(condensed.refused or ""),
    )
