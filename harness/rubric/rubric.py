"""Rubrics as people write them: named dimensions, each with a weight and a way to score it."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from harness.rubric.checks import AnyCheck

_MODEL = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

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
    judge: str | None = None
    """The question put to the evaluator model."""
    anchors: dict[float, str] = {}
    """What a given score looks like, for the evaluator model."""
    optional: bool = False
    """A judged dimension that is left out, and said to be, when there is no evaluator."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.checks) == (self.judge is not None):
            raise ValueError(
                f"dimension '{self.name}' needs either 'checks' or 'judge', and not both"
            )
        if self.optional and self.judge is None:
            raise ValueError(
                f"dimension '{self.name}' is checked by code, which is always there: "
                "'optional' is for judged dimensions"
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
        names = [d.name for d in self.dimensions]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"dimension '{name}' stands more than once")
        if all(d.optional for d in self.dimensions):
            raise ValueError("every dimension is optional: without an evaluator nothing is scored")
        for label, value in (("pass_at", self.pass_at), ("focus_below", self.focus_below)):
            if not self.scale.min <= value <= self.scale.max:
                raise ValueError(
                    f"{label} {value:g} is outside the scale "
                    f"{self.scale.min:g} to {self.scale.max:g}"
                )
        for dimension in self.dimensions:
            for score in (dimension.floor, *dimension.anchors):
                if score is not None and not self.scale.min <= score <= self.scale.max:
                    raise ValueError(
                        f"dimension '{dimension.name}' names the score {score:g}, outside the "
                        f"scale {self.scale.min:g} to {self.scale.max:g}"
                    )
        return self

    @property
    def requirements(self) -> tuple[str, ...]:
        """What it asks of a draft, as an author is told."""
        return tuple(text for d in self.dimensions for text in d.requirements)

    @property
    def judged(self) -> tuple[Dimension, ...]:
        """The dimensions that need an evaluator model."""
        return tuple(d for d in self.dimensions if d.judge is not None)
