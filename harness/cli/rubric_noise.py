"""`harness rubric noise`: measures how far an evaluator's scores scatter."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.cli.consoles import failures_told, json_object, log_to_stderr, results, write_json
from harness.cli.process import FAILED
from harness.cli.rubric_batch import Given, name_of, not_judged, of_drafts, score_drafts
from harness.errors import ConfigurationInvalid, HarnessError, InvalidInput
from harness.rubric import Noise, Rubric, Verdict, measured_noise, write_noise
from harness.session import RowFailure
from harness.session.models import known_endpoints
from harness.session.roles import Roles


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    run_id: str
    journal: Path
    rubric: Rubric
    failures: Sequence[RowFailure]
    """Why drafts were not judged."""
    verdicts: Mapping[str, Verdict]
    noise: Noise
    file: Path
    """Where the noise is kept."""


@click.command(short_help="Measure how far an evaluator's scores scatter.")
@of_drafts
@click.option(
    "--repeats",
    type=click.IntRange(min=2, max=100),
    default=5,
    show_default=True,
    help="Judgings of each draft.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def noise(*, read: Callable[[], Given], repeats: int, as_json: bool) -> None:
    """Judge DRAFTS by RUBRIC several times, and keep how far the scores scatter.

    The result is written beside the rubric. From then on, a draft with a score so near the
    threshold that chance could decide is judged again, and a loop ignores gains within the noise.
    Exit codes: 0 it was measured, 1 a draft could not be judged, 2 invalid input, 130 interrupted,
    143 terminated.
    """
    log_to_stderr()
    with failures_told(as_json=as_json):
        measured = _measure(read(), repeats)
    if as_json:
        write_json(json_object(_noise_as_json(measured)))
    else:
        _print_measured(measured, results())
    if measured.failures:
        sys.exit(FAILED)


def _measure(given: Given, repeats: int) -> _Measured:
    rubric, settings = given.rubric, given.settings
    if not rubric.judged:
        raise InvalidInput(
            f"code scores every dimension of rubric '{rubric.id}', so its scores have no noise",
            code="noise.nothing-judged",
        )
    cast = Roles(known_endpoints(settings), settings.roles, produces=False)
    if not (cast.evaluators or cast.pool):
        raise ConfigurationInvalid(
            "no evaluator is configured, so there is no noise to measure; name one under "
            "[roles] in harness.toml, or with --role evaluator=TAG",
            code="config.no-evaluator",
        )
    scored = score_drafts(given, samples=repeats, output=None, verb="noise")
    scored.refuse_stopped()
    verdicts, failures = scored.verdicts, scored.result.failures
    if not verdicts:
        raise HarnessError(failures[0].reason, code=failures[0].code)
    _refuse_unasked(rubric, verdicts)
    found = measured_noise(scored.evaluator, [*map(_composites, verdicts.values())])
    return _Measured(
        run_id=scored.result.run.run_id,
        journal=scored.result.run.files.journal,
        rubric=rubric,
        noise=found,
        file=write_noise(found, rubric, directory=given.chosen.directory),
        verdicts=verdicts,
        failures=failures,
    )


def _composites(verdict: Verdict) -> Sequence[float]:
    """Of each time that a draft was judged; of none, where no model was asked about it."""
    return verdict.judges.composites if verdict.judges else ()


def _refuse_unasked(rubric: Rubric, verdicts: Mapping[str, Verdict]) -> None:
    """Raises if the model was not asked about any draft."""
    if any(one.judges for one in verdicts.values()):
        return
    if gates := sorted({gate for one in verdicts.values() for gate in one.gates}):
        raise InvalidInput(
            f"no draft passed the gate {' and '.join(gates)} of rubric '{rubric.id}', so no model "
            "judged them; measure with drafts that pass it",
            code="noise.gate-shut",
        )
    names = ", ".join(dimension.name for dimension in rubric.judged)
    raise InvalidInput(
        f"the judged dimensions of rubric '{rubric.id}' ({names}) need sources; give them with "
        "--sources",
        code="noise.no-sources",
    )


def _print_measured(measured: _Measured, console: Console) -> None:
    table = Table(title="Composites of each judgement", title_justify="left")
    table.add_column("draft", overflow="fold")
    table.add_column("composites")
    for column in ("mean", "deviation", "would pass"):
        table.add_column(column, justify="right")
    for name, verdict in measured.verdicts.items():
        composites = _composites(verdict) or [verdict.composite]
        share = verdict.judges.pass_share if verdict.judges else None
        table.add_row(
            Text(name),
            "  ".join(str(composite) for composite in composites),
            f"{statistics.fmean(composites):.2f}",
            f"{statistics.stdev(composites):.2f}" if len(composites) > 1 else "-",
            f"{verdict.passed if share is None else share:.0%}",
        )
    console.print(table)
    for line in not_judged(measured.failures):
        console.print(line, style="yellow")
    for line in meaning(measured.noise, measured.rubric):
        console.print(line)
    console.print(f"Kept in {measured.file}, for runs with this rubric and evaluator.")
    console.print(f"The run's journal: {measured.journal}", style="dim", soft_wrap=True)


def meaning(found: Noise, rubric: Rubric) -> Iterator[str]:
    """What the measured noise means for a reader of scores, in sentences."""
    deviation, pass_at, repeats = found.deviation, rubric.pass_at, rubric.repeats
    yield (
        f"One judgement by {found.evaluator} has a standard deviation of {deviation:.2f} points "
        f"({found.judgements} judgements, {found.drafts} draft{'' if found.drafts == 1 else 's'})."
    )
    if found.is_frozen:
        yield (
            "Every draft got the same composite every time, good or bad: that is no judgement. "
            "Look at its reasons, add anchors, or choose another model."
        )
        return
    if found.between is not None and found.between <= deviation:
        yield (
            f"The drafts' own means differ by no more than that ({found.between:.2f}): by this "
            "rubric, the evaluator does not tell these drafts apart. Sharpen the anchors, ask with "
            "'judge: split', or choose another model."
        )
    if deviation == 0:
        yield "All judgements of a draft were equal: one is enough."
        return
    yield (
        f"Two composites of one draft lie up to {found.repeatability:.2g} apart in 95 of 100 "
        "cases: a smaller difference between drafts, or between rounds, means nothing."
    )
    safe = found.safe_above(pass_at)
    needed = f"must have a mean of {safe:.3g}"
    if safe > rubric.scale.max:
        needed = f"would need a mean of {safe:.3g}, and the scale ends at {rubric.scale.max:g}"
    yield f"To be failed less than once in 20 times, a draft {needed}."
    repeated = found.safe_above(pass_at, times=repeats)
    if repeats > 1 and repeated <= rubric.scale.max:
        yield (
            f"Near the threshold a draft is judged up to {repeats} times (repeats): then "
            f"{repeated:.3g} is enough for that."
        )


def _noise_as_json(measured: _Measured) -> dict[str, object]:
    found = measured.noise
    drafts: list[dict[str, object]] = [
        {"draft": name, "composites": _composites(verdict), "error": None}
        for name, verdict in measured.verdicts.items()
    ]
    drafts += [
        {"draft": name_of(one), "composites": [], "error": one.reason} for one in measured.failures
    ]
    return {
        "run_id": measured.run_id,
        "journal": str(measured.journal),
        "rubric": measured.rubric.id,
        "rubric_sha256": measured.rubric.sha256,
        **found.model_dump(),
        "repeatability": found.repeatability,
        "is_frozen": found.is_frozen,
        "drafts": drafts,
        "file": str(measured.file),
    }
