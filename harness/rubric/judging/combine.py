"""Several judgements of one draft, made one."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.rubric.finding import Finding
from harness.rubric.verdict import Combine, DimensionScore, half_up

_AVERAGES: Mapping[Combine, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "median": statistics.median,
    "majority": statistics.median,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Opinion:
    """One evaluator's judgement of all that was asked."""

    evaluator: str
    """Tag of its endpoint."""
    scores: tuple[DimensionScore, ...]
    """In the order asked."""


def combined(opinions: Sequence[Opinion], how: Combine) -> tuple[DimensionScore, ...]:
    """The scores that several opinions come to, of the same dimensions in the same order.

    The reason is that of whoever scored lowest; the findings are those of all, each once.
    """
    if len(opinions) == 1:
        return opinions[0].scores
    by_dimension = zip(*(opinion.scores for opinion in opinions), strict=True)
    return tuple(_one_of(scores, how) for scores in by_dimension)


def _one_of(scores: Sequence[DimensionScore], how: Combine) -> DimensionScore:
    values = [score.score for score in scores]
    lowest = min(scores, key=lambda score: score.score)
    return replace(
        lowest,
        score=half_up(_AVERAGES[how](values), 0.01),
        findings=_each_once(finding for score in scores for finding in score.findings),
        spread=statistics.stdev(values),
        capped=tuple(dict.fromkeys(rule for score in scores for rule in score.capped)),
        from_logprobs=all(score.from_logprobs for score in scores),
    )


def _each_once(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The same words about the same section are one finding, whatever the case and punctuation."""
    kept: dict[tuple[int | None, str], Finding] = {}
    for finding in findings:
        said = " ".join(re.findall(r"\w+", finding.message.casefold()))
        kept.setdefault((finding.section_index, said), finding)
    return tuple(kept.values())
