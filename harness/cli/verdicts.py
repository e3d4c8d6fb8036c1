"""Verdicts in words and tables for people, and as JSON for scripts."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.cli.tables import listed, table
from harness.rubric import DimensionScore, Rubric, Verdict
from harness.rubric.verdict import ECHO


def print_scores(name: str, verdict: Verdict, rubric: Rubric, console: Console) -> None:
    """Prints one draft's scores and their reasons."""
    rows = Table(title=Text(name, style="bold"), title_justify="left")
    rows.add_column("dimension", no_wrap=True)
    rows.add_column("score", justify="right", no_wrap=True)
    rows.add_column("weight", justify="right")
    rows.add_column("why not more", ratio=1)
    weights = {dimension.name: dimension.weight for dimension in rubric.dimensions}
    for score in verdict.scores:
        reasons = "\n".join(why_not_more(score))
        rows.add_row(score.name, _on_scale(score, rubric), f"{weights[score.name]:g}", reasons)
    console.print(rows)


def _on_scale(score: DimensionScore, rubric: Rubric) -> str:
    """A score; on a scale that is not the rubric's, with its maximum, or as `pass` or `fail`."""
    scale = rubric.scale_of(score.name)
    if scale is rubric.scale:
        return points(score)
    if scale.is_pass_fail and score.score in {scale.min, scale.max}:
        return "pass" if score.score == scale.max else "fail"
    return f"{points(score)} of {scale.max:g}"


def with_scores(rows: Table, verdicts: Mapping[str, Verdict]) -> Table:
    """Adds the columns of scores to a table; `verdicts` is first cell of a row → verdict."""
    # A draft that a gate stopped lacks the dimensions that others have.
    names = dict.fromkeys(name for verdict in verdicts.values() for name in verdict.vector)
    for name in (*names, "composite"):
        rows.add_column(name, justify="right")
    for first_cell, verdict in verdicts.items():
        scores = {score.name: points(score) for score in verdict.scores}
        cells = (scores.get(name, "-") for name in names)
        rows.add_row(first_cell, *cells, str(verdict.composite))
    return rows


# Drafts that are named as lowest, and as highest.
_EXTREMES = 3


def print_summary(
    verdicts: Mapping[str, Verdict], rubric: Rubric, console: Console, *, decided: bool
) -> None:
    """Prints statistics of many drafts; `decided` says whether passing is known."""
    count = len(verdicts)
    composites = {name: verdict.composite for name, verdict in verdicts.items()}
    figures = ("mean", "deviation", "lowest", "median", "highest", "under floor")
    rows = table(f"{count:,} drafts by '{rubric.id}'", "dimension", *figures)
    for dimension in rubric.dimensions:
        name, floor = dimension.name, dimension.floor
        scores = [v.vector[name] for v in verdicts.values() if name in v.vector]
        rows.add_row(
            name if len(scores) == count else f"{name} ({len(scores):,} of {count:,})",
            *(_figures(scores) if scores else ["-"] * 5),
            "" if floor is None else f"{sum(score < floor for score in scores):,}",
        )
    rows.add_row("composite", *_figures([*composites.values()]), "")
    console.print(rows)
    if decided:
        passed = sum(verdict.passed for verdict in verdicts.values())
        near = sum(abs(c - rubric.pass_at) <= rubric.repeat_within for c in composites.values())
        console.print(
            f"{passed:,} of {count:,} passed ({passed / count:.0%}; needed: {rubric.pass_at:g}); "
            f"{near:,} lie within {rubric.repeat_within:g} of that."
        )
    else:
        console.print("Of the checks alone; who passes is unknown until a model judges the rest.")
    if gated := sum(bool(v.gates) for v in verdicts.values()):
        console.print(f"{gated:,} stopped by a gate.")
    if incomplete := sum(bool(v.missing) for v in verdicts.values()):
        console.print(f"{incomplete:,} failed, since not all dimensions were scored.")
    ranked = [
        f"{name} ({composites[name]})" for name in sorted(composites, key=composites.__getitem__)
    ]
    console.print(f"Lowest: {listed(ranked[:_EXTREMES])}.")
    console.print(f"Highest: {listed(ranked[::-1][:_EXTREMES])}.")


def _figures(scores: Sequence[float]) -> Iterator[str]:
    yield f"{statistics.fmean(scores):.2f}"
    yield f"{statistics.stdev(scores):.2f}" if len(scores) > 1 else "-"
    for figure in (min(scores), statistics.median(scores), max(scores)):
        yield f"{figure:g}"


def decision(verdict: Verdict, rubric: Rubric) -> str:
    """Whether a draft passed, or why not, as the end of a sentence."""
    if verdict.passed:
        return f"passed (needed: {rubric.pass_at:g})"
    judges = verdict.judges
    reasons = []
    if judges is not None and judges.combine == "majority" and judges.pass_share is not None:
        share = f"{judges.pass_share:.0%}"
        reasons.append(f"{share} of the judgements pass it, and more than half must")
    elif verdict.composite < rubric.pass_at:
        reasons.append(f"needed: {rubric.pass_at:g}")
    floors = {dimension.name: dimension.floor for dimension in rubric.dimensions}
    reasons += [
        "it has words of the loop's own prompts"
        if name == ECHO
        else f"{name} {verdict.vector[name]:g} is below its floor {floors[name]:g}"
        for name in verdict.below_floor
    ]
    if verdict.missing:
        reasons.append(f"not all dimensions scored: {listed(verdict.missing)}")
    # Without any other reason, a loop's draft failed because its reply was cut.
    return f"not passed ({', and '.join(reasons) or 'its reply was cut'})"


def remarks(
    verdict: Verdict, rubric: Rubric, *, unasked: str = "no evaluator model is configured"
) -> Iterator[str]:
    """Sentences: what was not judged and why (`unasked`, if no model was), and who judged."""
    if verdict.gates:
        yield (
            f"The gate {listed(verdict.gates)} is shut, so no model was asked; the composite is "
            "of the checks alone."
        )
    yield from _unjudged(verdict, rubric, unasked)
    yield from _about_judges(verdict)


def why_not_more(score: DimensionScore) -> Iterator[str]:
    """Lines that say what kept a dimension from a higher score."""
    if score.own_reason:
        yield score.own_reason
    for finding in score.own_findings:
        where = f"“{finding.section}”: " if finding.section else ""
        yield where + finding.message
    for cap in score.capped:
        yield f"held down: {cap}"
    for cap in score.open_caps:
        yield f"not held down: {cap}"


def points(score: DimensionScore) -> str:
    """A score; after several judgements, with their standard deviation."""
    spread = f" ±{score.spread:.2g}" if score.spread is not None else ""
    return f"{score.score:g}{spread}"


def passes_at(verdict: Verdict, pass_at: float) -> bool:
    """Whether a draft would pass with another threshold, by its scores."""
    # A panel voted by the rubric's own threshold; for another, its combined scores decide.
    stopped = verdict.below_floor or verdict.gates or verdict.missing
    return verdict.composite >= pass_at and not stopped


def verdict_as_json(verdict: Verdict) -> dict[str, object]:
    """A verdict, for scripts."""
    names = ("composite", "passed", "below_floor", "gates", "unjudged", "unjudged_reasons")
    return {
        **{name: getattr(verdict, name) for name in (*names, "missing", "compressed")},
        "scores": [asdict(score) for score in verdict.scores],
        "judges": asdict(verdict.judges) if verdict.judges else None,
    }


def _unjudged(verdict: Verdict, rubric: Rubric, unasked: str) -> Iterator[str]:
    """Sentences on the dimensions without a score; `unasked` says why no evaluator was asked."""
    checked = {dimension.name for dimension in rubric.checked}
    needs_sources = {dimension.name for dimension in rubric.judged if dimension.needs_sources}
    for name in verdict.unjudged:
        if name in checked:
            # Older files have no reasons.
            why = verdict.unjudged_reasons.get(name, "without sources or enough text to check")
            yield f"Not scored: {name}: {why}."
    names = [name for name in verdict.unjudged if name not in checked]
    if not names or verdict.gates:
        return  # a gate that kept the evaluators from being asked has a line of its own
    if verdict.judges is not None:
        yield f"Not judged, since there are no sources to judge it by: {listed(names)}."
    elif needs_sources.issuperset(names):
        yield f"Not judged, since {unasked}, or there are no sources: {listed(names)}."
    else:
        yield (
            f"Not judged, since {unasked}: {listed(names)}. The scores above are the rubric's own "
            "deterministic checks."
        )


def _about_judges(verdict: Verdict) -> Iterator[str]:
    judges = verdict.judges
    if judges is None:
        return
    evaluators = listed(judges.evaluators)
    if judges.judgements == 1:
        yield f"Judged by {evaluators}."
    else:
        # After a vote of the majority, scores are the medians.
        kind = "medians" if judges.combine == "majority" else judges.combine
        parts = [f"The {kind} of {judges.judgements} judgements by {evaluators}"]
        if judges.spread is not None:
            parts.append(f"spread {judges.spread:.2f}")
        if judges.pass_share is not None:
            parts.append(f"{judges.pass_share:.0%} of them would pass it")
        yield f"{', '.join(parts)}."
    if judges.borderline:
        yield "Borderline: by the evaluator's measured noise, chance may have decided."
    for reason in dict.fromkeys(judges.absent):
        yield f"Asked without an answer, so not counted: {reason}"
    for whose, shortened, choice in (
        ("", judges.shortened, "picked sentences"),
        (" of the sources", judges.sources_shortened, "nearest to what the draft says"),
    ):
        if shortened is not None:
            size = f"{shortened.after_chars:,} of {shortened.before_chars:,} characters{whose}"
            yield f"The evaluator saw {size}, {choice}: such scores do not compare with others."
