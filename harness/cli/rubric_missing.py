"""Missing scores of labeled drafts: made and kept as by `harness rubric score`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.cli.consoles import say
from harness.cli.project_files import settings_for_calls
from harness.cli.rubric_batch import Given, ScoredDrafts, as_file_name, score_drafts
from harness.errors import ConfigurationInvalid, InvalidInput
from harness.rows import Row
from harness.rubric import ChosenRubric, Rubric, at_any_threshold
from harness.rubric.calibration.labels import COMPOSITE, Labeled
from harness.rubric.calibration.tuning import unscored
from harness.rubric.scoring import samples_of
from harness.session import RowFailure
from harness.session.batch_rows import DraftRows
from harness.session.roles import Roles


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """Labeled drafts, with the scores that they lacked."""

    drafts: Sequence[Labeled]
    failures: Sequence[RowFailure] = ()
    """Why a draft still has none."""
    kept: Path | None = None
    """The file of scores; None if nothing was asked."""


def completed(
    drafts: Sequence[Labeled],
    chosen: ChosenRubric,
    *,
    labels: Path,
    samples: int | None,
    output: Path | None,
    max_parallel: int,
    config: Path | None,
    roles: Mapping[str, str],
) -> Completed:
    """The drafts, after the evaluator has judged those without scores.

    `samples` is how often each is judged, as near the threshold if None; scores are kept in
    `output`, beside the labels if None.

    Raises:
        ConfigurationInvalid: No draft has scores, and there is no evaluator.
        InvalidInput: Others were judged by another evaluator.
        HarnessError: The evaluator cannot be asked.
    """
    rubric = chosen.rubric
    waiting = unscored(drafts, rubric)
    if not waiting:
        return Completed(drafts=drafts)
    settings = settings_for_calls(config, roles=roles, produces=False)
    cast = Roles(settings.endpoints, settings.roles)
    scored = [one for one in drafts if _scored_in(one, rubric)]
    needed = [dimension.name for dimension in rubric.judged if not dimension.optional]
    if not (cast.pool or cast.evaluators):
        if scored or not needed:
            return Completed(drafts=drafts)
        raise ConfigurationInvalid(
            f"no draft has a score for {', '.join(needed)}, and no evaluator is configured to give "
            "it; name one under [roles] in harness.toml, or with --role evaluator=TAG, or give "
            f"scores yourself, in columns such as 'score.{needed[0]}'",
            code="tune.no-scores",
        )
    others = {one.evaluator for one in scored} - {"", *cast.calibrated}
    if others and cast.pool is None:
        raise InvalidInput(
            f"{len(waiting)} drafts have no scores, and the others were scored by "
            f"{', '.join(sorted(others))}, not by {cast.evaluator}: such scores do not compare. "
            "Name that one with --role evaluator=TAG, or remove the columns of scores to score "
            "all drafts again",
            code="tune.other-evaluator",
            path=labels,
        )
    # The threshold has no part in scores, so the file is the same with each.
    times, version = samples or rubric.repeats, min(at_any_threshold(rubric))[:8]
    by = f"{rubric.id}-{version}-{as_file_name(cast.evaluator or 'pool')}-{times}"
    place = output or labels.with_name(f"{labels.stem}.{by}.jsonl")
    say(
        f"{len(waiting)} drafts have no scores in {labels}: they are in {place}, or come into it, "
        f"each judged {times} times",
        err=True,
    )
    rows = {name: Row(fields={"id": name}, path=labels) for name in waiting}
    given = Given(
        settings=settings,
        chosen=chosen,
        rows=DraftRows(drafts=waiting, rows=rows),
        max_parallel=max_parallel,
    )
    scores = score_drafts(given, samples=times, output=place)
    scores.refuse_stopped()
    filled = [_filled(one, scores) for one in drafts]
    return Completed(drafts=filled, failures=scores.result.failures, kept=place)


def _scored_in(one: Labeled, rubric: Rubric) -> set[str]:
    """The scores of the evaluator's that it has."""
    return one.scores.keys() & {COMPOSITE, *(dimension.name for dimension in rubric.judged)}


def _filled(one: Labeled, scores: ScoredDrafts) -> Labeled:
    """With the scores that it lacks, if the batch has them."""
    verdict = scores.verdicts.get(one.id)
    if verdict is None or verdict.judges is None:
        return one
    given = {name: tuple(scores) for name, scores in samples_of(verdict.judges).items()}
    return one.model_copy(update={"scores": {**given, **one.scores}, "evaluator": scores.evaluator})
