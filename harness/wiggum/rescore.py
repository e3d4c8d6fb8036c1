"""Judging a revision anew only where it changed, until it would pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from harness.compress import sections_of
from harness.rubric import DimensionScore, Draft, Evaluator, Rescore, Verdict
from harness.trace import Tracer
from harness.wiggum.meter import Meter
from harness.wiggum.round import Round


def rescore_of(draft: Draft, base: Round, focus: Sequence[DimensionScore]) -> Rescore | None:
    """What of a draft is to be judged anew; None for all of it.

    All, where sections do not tell what changed: there are no headings, every section is another,
    none is, or some are gone. All too where the base has no judged score to keep.
    """
    before, after = sections_of(base.draft), draft.sections
    if not any(section.level for section in after):
        return None
    old, new = Counter(s.text.strip() for s in before), Counter(s.text.strip() for s in after)
    fresh = new - old
    changed = [index for index, section in enumerate(after) if section.text.strip() in fresh]
    gone = len(before) > len(after)
    if not changed or gone or len(changed) == len(after):
        return None
    revised = frozenset(score.name for score in focus)
    kept = [s for s in base.verdict.scores if s.source == "judged" and s.name not in revised]
    if not kept:
        return None
    return Rescore(base=base.verdict, dimensions=revised, sections=frozenset(changed))


async def evaluate_changed(
    evaluator: Evaluator, draft: Draft, rescore: Rescore, *, meter: Meter, tracer: Tracer
) -> Verdict:
    """The verdict on what changed, or on the whole draft if by that one it would pass.

    Only the full evaluation accepts a draft: a score that is carried over may be another's by now.

    Raises:
        EvaluationFailed: No verdict could be reached.
        InferenceError: The evaluator could not be asked.
        LimitReached: The loop's limits left no room for it.
    """
    # Room for the full evaluation is kept while the other one may repeat itself.
    with meter.holding(tokens=evaluator.most_tokens(draft)):
        verdict = await evaluator.evaluate(draft, rescore=rescore)
    if not verdict.passed:
        return verdict
    tracer.instant("rescored", composite=verdict.composite, carried=list(verdict.carried))
    return await evaluator.evaluate(draft)
