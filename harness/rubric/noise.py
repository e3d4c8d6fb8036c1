"""The noise of an evaluator: how much its composites vary when it judges one draft several times.

It is measured once for a rubric and an evaluator, and kept beside the rubric in `essay.noise.json`.
Within the noise of the threshold, a single judgement decides nothing (`is_undecided`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.errors import InvalidInput
from harness.files import write_whole
from harness.rubric.rubric import Rubric
from harness.rubric.verdict import Verdict

_MODEL = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class Noise(BaseModel):
    """The noise of one evaluator by one rubric."""

    model_config = _MODEL

    evaluator: str = Field(min_length=1)
    """Tag of its endpoint; all tags of a panel, as in `Verdict.evaluator`."""
    deviation: float = Field(ge=0)
    """Standard deviation of one draft's composites, pooled over the drafts."""
    drafts: int = Field(ge=1)
    judgements: int = Field(ge=2)
    """The number of judgements of all drafts together."""
    between: float | None = Field(default=None, ge=0)
    """Standard deviation of the drafts' mean composites; None for a single draft."""

    @property
    def is_frozen(self) -> bool:
        """Whether all drafts got the same composite every time."""
        # Then nothing was judged: drafts differ.
        return self.deviation == 0 and self.between == 0

    @property
    def repeatability(self) -> float:
        """The greatest distance of two composites of one draft, in 95 % of the cases."""
        # The repeatability limit of ISO 5725-6, 2.8 standard deviations.
        return NormalDist().inv_cdf(0.975) * math.sqrt(2) * self.deviation


class RubricRecord(BaseModel):
    """A file beside a rubric, which the program writes and reads again."""

    model_config = _MODEL
    kind: ClassVar[str]

    @classmethod
    def path(cls, rubric: Rubric, directory: Path) -> Path:
        """Where the file is; `directory` is mostly the folder of the rubric's own file."""
        return directory / f"{rubric.id}.{cls.kind}.json"

    @classmethod
    def read(cls, rubric: Rubric, directory: Path) -> Self | None:
        """The record of this rubric; None if there is none."""
        path = cls.path(rubric, directory)
        return cls.read_file(path) if path.exists() else None

    @classmethod
    def read_file(cls, path: Path) -> Self:
        """The record in a file that exists; raises `InvalidInput` if it is of another kind."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except ValidationError as error:
            raise InvalidInput(
                f"this is no file of the {cls.kind} of a rubric ({error.errors()[0]['msg']}); move "
                "it away",
                code="rubric.record-invalid",
                path=path,
            ) from error

    def write(self, rubric: Rubric, directory: Path) -> None:
        """Writes the record, whole or not at all."""
        write_whole(self.path(rubric, directory), self.model_dump_json().encode() + b"\n")


class _Measured(RubricRecord):
    kind = "noise"

    rubric_sha256: str
    measured: tuple[Noise, ...]


def measured_noise(evaluator: str, composites: Sequence[Sequence[float]]) -> Noise:
    """The noise of an evaluator; `composites` has a list for each draft, of all its judgements."""
    # A draft that was judged once does not show how its composite varies.
    repeated = [draft for draft in composites if len(draft) > 1]
    if not repeated:
        raise InvalidInput(
            "noise is measured on drafts that were judged twice or more, and there are none",
            code="noise.nothing-repeated",
        )
    means = [statistics.fmean(draft) for draft in repeated]
    return Noise(
        evaluator=evaluator,
        deviation=pooled_deviation(repeated),
        drafts=len(repeated),
        judgements=sum(len(draft) for draft in repeated),
        between=statistics.stdev(means) if len(means) > 1 else None,
    )


def pooled_deviation(groups: Sequence[Sequence[float]]) -> float:
    """The standard deviation within groups of two values or more, each around its own mean."""
    # A group counts by its degrees of freedom: one value of it is spent on its mean.
    squares = sum((len(group) - 1) * statistics.variance(group) for group in groups)
    return math.sqrt(squares / sum(len(group) - 1 for group in groups))


def load_noise(rubric: Rubric, evaluator: str, *, directory: Path) -> tuple[Noise | None, str]:
    """The noise of this evaluator by this rubric; if it cannot be used, None and the reason.

    The reason is empty if nothing was measured.
    """
    path = _Measured.path(rubric, directory)
    if (file := _Measured.read(rubric, directory)) is None:
        return None, ""
    again = "measure it again with 'harness rubric noise'"
    if file.rubric_sha256 != rubric.sha256:
        return None, f"{path} is of another version of the rubric; {again}"
    measurement = next((noise for noise in file.measured if noise.evaluator == evaluator), None)
    if measurement is None:
        evaluators = ", ".join(noise.evaluator for noise in file.measured)
        return None, f"{path} is of other evaluators ({evaluators}), not of '{evaluator}'; {again}"
    return measurement, ""


def write_noise(noise: Noise, rubric: Rubric, *, directory: Path) -> Path:
    """Adds a measurement to the rubric's file, in place of an earlier one of this evaluator."""
    file = _Measured.read(rubric, directory)
    # `load_noise` would refuse what was measured by another version of the rubric.
    stored = file.measured if file and file.rubric_sha256 == rubric.sha256 else ()
    remaining = [measurement for measurement in stored if measurement.evaluator != noise.evaluator]
    _Measured(rubric_sha256=rubric.sha256, measured=(*remaining, noise)).write(rubric, directory)
    return _Measured.path(rubric, directory)


# A mean lies within this many standard errors of the true one in about 95 of 100 cases. This saves
# calls; it is no test.
_DEVIATIONS = 2


def is_undecided(
    verdict: Verdict,
    judgements: Sequence[Sequence[Verdict]],
    rubric: Rubric,
    *,
    noise: float | None = None,
) -> bool:
    """Whether another judgement could turn the outcome: near the threshold, chance decides.

    `judgements` holds one list of verdicts for each judge; `noise` is the measured standard
    deviation of a composite for which each judge is heard once.
    """
    near = rubric.repeat_within if noise is None else _DEVIATIONS * noise
    # Grouped by judge, since a judge who is always more severe than another makes no noise.
    composites = [[verdict.composite for verdict in of_judge] for of_judge in judgements]
    half_width = _half_width(composites, near=near, is_measured=noise is not None)
    # Rounded, since 8.3 - 8 is more than 0.3 in floats.
    distance = abs(verdict.composite - rubric.pass_at)
    if half_width == 0 or round(distance - half_width, 9) > 0:
        return False
    for dimension in rubric.dimensions:
        name, floor = dimension.name, dimension.floor
        if floor is None or name not in verdict.vector:
            continue
        scores = [[rubric.shared(name, v.vector[name]) for v in judge] for judge in judgements]
        highest = rubric.shared(name, verdict.vector[name]) + _half_width(scores, near=near)
        # The draft fails by this floor, whatever its composite turns out to be.
        if round(highest - rubric.shared(name, floor), 9) < 0:
            return False
    return True


def is_judged_enough(verdict: Verdict, rubric: Rubric) -> bool:
    """Whether a verdict by another `pass_at` needs no further judgement by this one."""
    judges = verdict.judges
    if judges is None:
        return True
    # It is set if the noise of the evaluator was measured, which is not known here: in doubt, no.
    if judges.borderline is not None:
        return False
    if "repeats" not in rubric.model_fields_set or rubric.repeats == 1:
        return True
    times = len(judges.composites)
    distance = round(abs(verdict.composite - rubric.pass_at), 9)
    return times == rubric.repeats or (times == 1 and distance > rubric.repeat_within)


def _half_width(
    values: Sequence[Sequence[float]], *, near: float, is_measured: bool = False
) -> float:
    """Half the width of the interval around the mean of `values`, which has a list for each judge.

    It is `near` if each judge was heard once; `is_measured` says that this is measured noise.
    """
    expected = near / math.sqrt(max(map(len, values)))
    repeated = [of_judge for of_judge in values if len(of_judge) > 1]
    # Beside measured noise, these few values say nothing more.
    if is_measured or not repeated:
        return expected
    observed = _DEVIATIONS * pooled_deviation(repeated) / math.sqrt(sum(map(len, values)))
    # Two equal scores do not show that there is no noise: scores are coarse.
    return max(expected, observed)
