"""Rubrics as people write them: named dimensions, each with a weight and a way to score it."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from harness.rubric.checks import AnyCheck

_MODEL = ConfigDict(
    frozen=True,
    extra="forbid",
    use_attribute_docstrings=True,
    str_strip_whitespace=True,
    allow_inf_nan=False,
)

FILLED_IN = frozenset({"id", "sha256"})
"""Fields of a rubric that loading fills in, and nobody writes."""

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]


class Scale(BaseModel):
    """The numbers a dimension may take: `min`, `min + step`, … `max`."""

    model_config = _MODEL

    min: float = 0
    """The worst score."""
    max: float = 10
    """The best score."""
    step: float = Field(default=0.5, gt=0)
    """Distance between two scores; anything finer is rounded half up."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.min >= self.max:
            raise ValueError(f"min {self.min:g} must be below max {self.max:g}")
        # As fractions of what was written: in floats, 0.3 is not three steps of 0.1.
        low, high, step = (Fraction(str(n)) for n in (self.min, self.max, self.step))
        if (high - low) % step:
            raise ValueError(
                f"no whole number of steps of {self.step:g} leads from {self.min:g} to {self.max:g}"
            )
        return self


class Dimension(BaseModel):
    """One thing that is scored, either by checks or by the evaluator model."""

    model_config = _MODEL

    name: Name
    """Lower-case letters, digits and underscores."""
    weight: float = Field(default=1, gt=0)
    """Its share of the composite, relative to the others."""
    floor: float | None = None
    """Below this score the draft fails, whatever its composite."""
    checks: tuple[AnyCheck, ...] = ()
    """Functions whose mean is the score."""
    judge: str | None = Field(default=None, min_length=1)
    """The question put to the evaluator model."""
    anchors: dict[float, str] = {}
    """What a given score looks like, for the evaluator model."""
    optional: bool = False
    """A judged dimension that is left out, and said to be, when there is no evaluator."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.checks) == (self.judge is not None):
            raise _mistake(
                f"dimension '{self.name}' needs either 'checks' or 'judge', and not both"
            )
        if self.optional and self.judge is None:
            raise _mistake(
                f"dimension '{self.name}' is checked by code, which is always there: "
                "'optional' is for judged dimensions",
                "optional",
            )
        return self

    @property
    def requirements(self) -> tuple[str, ...]:
        """What it asks of a draft, as an author is told."""
        return tuple(check.requirement for check in self.checks) or (str(self.judge).strip(),)


class Rubric(BaseModel):
    """What a draft is measured by."""

    model_config = _MODEL

    id: str = ""
    """The file's name without `.yaml`; filled in on loading."""
    sha256: str = ""
    """Digest of the file; filled in on loading."""
    title: str = Field(min_length=1)
    """For people."""
    purpose: str = ""
    """What kind of text it is for."""
    scale: Scale = Scale()
    """Shared by all dimensions."""
    pass_at: float = 8.0
    """The composite from which a draft passes."""
    focus_below: float = 7.0
    """Dimensions under this score are what a revision works on."""
    dimensions: tuple[Dimension, ...] = Field(min_length=1)
    """In the order they are reported."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        names: set[str] = set()
        for index, dimension in enumerate(self.dimensions):
            if dimension.name in names:
                raise _mistake(
                    f"dimension '{dimension.name}' stands more than once",
                    "dimensions",
                    index,
                    "name",
                )
            names.add(dimension.name)
        if all(d.optional for d in self.dimensions):
            raise _mistake(
                "every dimension is optional: without an evaluator nothing is scored", "dimensions"
            )
        for label, value in (("pass_at", self.pass_at), ("focus_below", self.focus_below)):
            # One that nobody wrote fails because of the scale that somebody did.
            written = label in self.model_fields_set
            self._check_score(
                label if written else f"{label}, unless given,",
                value,
                label if written else "scale",
            )
        for index, dimension in enumerate(self.dimensions):
            place = ("dimensions", index)
            if dimension.floor is not None:
                label = f"the floor of dimension '{dimension.name}'"
                self._check_score(label, dimension.floor, *place, "floor")
            for score in dimension.anchors:
                label = f"an anchor of dimension '{dimension.name}'"
                self._check_score(label, score, *place, "anchors", f"{score:g}")
        return self

    def _check_score(self, label: str, score: float, *place: str | int) -> None:
        if not self.scale.min <= score <= self.scale.max:
            raise _mistake(
                f"{label} is {score:g}, outside the scale {self.scale.min:g} to {self.scale.max:g}",
                *place,
            )

    @property
    def requirements(self) -> tuple[str, ...]:
        """What it asks of a draft, as an author is told."""
        return tuple(text for d in self.dimensions for text in d.requirements)

    @property
    def judged(self) -> tuple[Dimension, ...]:
        """The dimensions that need an evaluator model."""
        return tuple(d for d in self.dimensions if d.judge is not None)


def _mistake(message: str, *place: str | int) -> PydanticCustomError:
    """A rule broken between fields; the place says which of them, for the line in the file."""
    return PydanticCustomError("mistake", "{message}", {"message": message, "place": place})
