"""Rubrics as people write them: named dimensions, each with a weight and a way to score it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Annotated, Any, Literal, LiteralString, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from harness.errors import Mistake
from harness.inference import Message
from harness.rubric.checks import CHECKS, AnyCheck
from harness.rubric.templates import OF_JUDGING, faults_in, filled, shared_chars, shipped_prompts
from harness.rubric.word_forms import forms_installed, has_forms
from harness.text.languages import Language

_MODEL = ConfigDict(
    frozen=True,
    extra="forbid",
    use_attribute_docstrings=True,
    str_strip_whitespace=True,
    allow_inf_nan=False,
)

FILLED_IN = frozenset({"id", "sha256"})
"""Fields of a rubric that no file has."""

PASS_FAIL = "pass_fail"  # noqa: S105 - no password
"""Names the scale of 0 and 1."""

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]

JudgeMode = Literal["joint", "split"]
"""How the evaluator model is asked: for all dimensions in one call (`joint`), or for each in a call
of its own (`split`)."""


class Scale(BaseModel):
    """The numbers a dimension may take: `min`, `min + step`, … `max`.

    `pass_fail` stands for 0 and 1. Every scale of two scores is one of pass and fail: a check
    passes if it is met in full, and a judge may answer in words.
    """

    model_config = _MODEL

    min: float = 0
    """The worst score."""
    max: float = 10
    """The best score."""
    step: float = Field(default_factory=lambda data: _usual_step(data["max"] - data["min"]), gt=0)
    """Distance between two scores; anything finer is rounded half up. By default 0.5, or a
    twentieth of a scale of no more than two points."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: object) -> object:
        return {"min": 0, "max": 1, "step": 1} if value == PASS_FAIL else value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.min >= self.max:
            raise Mistake(
                f"min {self.min:g} must be below max {self.max:g}", code="rubric.scale-upside-down"
            )
        # As fractions of what was written: in floats, 0.3 is not three steps of 0.1.
        low, high, step = (Fraction(str(n)) for n in (self.min, self.max, self.step))
        if (high - low) % step:
            raise Mistake(
                f"no whole number of steps of {self.step:g} leads from {self.min:g} to "
                f"{self.max:g}",
                code="rubric.scale-steps",
            )
        return self

    @property
    def is_pass_fail(self) -> bool:
        """Whether it has two scores."""
        # In floats, 0.3 - 0.1 is not 0.2.
        return round((self.max - self.min) / self.step) == 1

    def at(self, share: float) -> float:
        """The point at this share of the way from the lowest to the highest score."""
        # In floats, 0.7 of 3 is 2.0999999999999996.
        return round(self.min + share * (self.max - self.min), 9)

    def share(self, score: float) -> float:
        """How far a score is on the way from the lowest to the highest."""
        return (score - self.min) / (self.max - self.min)

    @property
    def composite_step(self) -> float:
        """The step to which composites are rounded: 0.1, or smaller on a small scale."""
        # Small enough that rounding lifts no draft over a threshold that its scores miss.
        finest = min(self.step / 5, (self.max - self.min) / 50)
        # The logarithm of a power of ten may come out a little below its exponent, hence the sum.
        return float(f"1e{min(-1, math.floor(math.log10(finest) + 1e-9))}")


def _usual_step(length: float) -> float:
    """The step of a scale of this length, if its author sets none."""
    # To nine digits, which sheds the noise of floats: 0.3 / 20 is 0.015.
    return 0.5 if length > 2 else float(f"{length / 20:.9g}")


class Cap(BaseModel):
    """A rule that holds a dimension's score down. Code applies it."""

    model_config = _MODEL

    at_most: float
    """The highest score of the dimension while the rule applies."""
    when: str | None = Field(default=None, min_length=1)
    """A statement about the draft; the rule applies if the evaluator model calls it true."""
    unless: AnyCheck | None = None
    """A check that the draft must meet in full; otherwise the rule applies."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.when is None) == (self.unless is None):
            which = "has both" if self.when is not None else "has neither"
            raise Mistake(
                f"a cap needs either 'when' or 'unless', and {which}", code="rubric.when-or-unless"
            )
        return self


# Some 6,500 tokens, which leave room for a reply in a context of 8,192. With 6,000 characters, up
# to a fifth of a brief's true sentences lose their support (tests/benchmarks/bench_compress.py).
_PAYLOAD_CHARS = 24_000


class Shortening(BaseModel):
    """The lengths in characters over which models see a shortened draft or shortened sources."""

    model_config = _MODEL

    evaluate_over: int = Field(default=6_000, ge=1_000)
    """The evaluator sees a longer draft condensed to this: all headings, picked sentences."""
    payload_over: int | None = Field(default=None, ge=2_000)
    """The evaluator sees sources condensed toward what the draft says if its prompt, with
    instructions, sources and draft, would be longer than this. 24,000 if left out, or four times
    `evaluate_over` if that is more."""
    revise_over: int = Field(default=5_000, ge=1_000)
    """The reviser sees a longer draft as an outline, with the criticized sections in full."""
    cap: int | None = Field(default=20_000, ge=2_000)
    """No model sees more than this, even if the headings alone are longer: the first 85 % and the
    last 15 % of it are shown. No limit if null."""

    @property
    def payload_chars(self) -> int:
        """The most characters of a whole evaluation prompt."""
        return self.payload_over or max(_PAYLOAD_CHARS, 4 * self.evaluate_over)


Template = Annotated[str, Field(min_length=1)] | None
"""A prompt with fields in braces; None for the one that ships."""


class Prompts(BaseModel):
    """Templates of the prompts. `harness/rubric/prompts.yaml` explains the fields of each."""

    model_config = _MODEL

    draft: Template = None
    """Asks the producer for a first draft."""
    section: Template = None
    """Asks it to write one section again, and says what was wrong there."""
    afresh: Template = None
    """Asks it for one section by the sources alone; used for every second candidate."""
    edits: Template = None
    """Asks it for the sections of a draft that must change."""
    whole: Template = None
    """Asks it for the whole draft again."""
    opening: Template = None
    """The name of the text before the first heading in these prompts."""
    judge_system: Template = None
    """The evaluator's instructions."""
    judge: Template = None
    """Asks the evaluator for a judgement."""
    judge_dimension: Template = None
    """Describes a dimension to it."""
    judge_source: Template = None
    """Shows it a source."""
    judge_repair: Template = None
    """Asks it again after a reply that could not be read."""

    @field_validator("*")
    @classmethod
    def _check(cls, template: str | None, field: ValidationInfo) -> str | None:
        name = str(field.field_name)
        _refuse_any(
            _mistake(f"{name}: {fault.message}", code=fault.code, line=fault.line)
            for fault in (faults_in(name, template) if template else ())
        )
        return template

    @property
    def own(self) -> dict[str, str]:
        """Name → template, for those that replace a shipped one."""
        return {name: text for name, text in self if text is not None}

    @property
    def in_force(self) -> dict[str, str]:
        """Name → template, the shipped ones included."""
        return {**shipped_prompts(), **self.own}

    @property
    def of_judging(self) -> dict[str, str]:
        """Name → template, for those of the evaluator that differ from the shipped ones."""
        shipped = shipped_prompts()
        return {n: text for n, text in self.own.items() if n in OF_JUDGING and text != shipped[n]}

    @property
    def sha256(self) -> str:
        """Digest of all templates in force."""
        return hashlib.sha256(json.dumps(self.in_force).encode()).hexdigest()

    def filled(self, name: str, /, **values: str | bool) -> str:
        """A prompt with a value for each of its fields."""
        return filled(self.in_force[name], values)

    def message(self, name: str, /, **values: str | bool) -> Message:
        """The filled prompt as a user's message, with the lengths that further calls share."""
        # A prefix cache may keep the shared beginnings.
        template = self.in_force[name]
        shared = shared_chars(template, values)
        return Message("user", filled(template, values), shared_chars=shared)


OptionalText = Annotated[str | None, Field(min_length=1)]


class Dimension(BaseModel):
    """One thing that is scored, either by checks or by the evaluator model."""

    model_config = _MODEL

    name: Name
    """Lower-case letters, digits and underscores."""
    weight: float = Field(default=1, gt=0)
    """Its share of the composite, relative to the other weights."""
    scale: Scale | None = None
    """The scale of its scores, floor, anchors and caps; the rubric's by default. In the composite,
    a score counts by how far it is on the way from the lowest to the highest."""
    floor: float | None = None
    """Below this score the draft fails, whatever its composite. It holds for each of the checks: if
    one scores less, the dimension scores no more."""
    checks: tuple[AnyCheck, ...] = ()
    """Checks by code; the mean of their results is the score."""
    gate: bool = False
    """If a draft is under the floor, it fails and no model is asked. For checked dimensions."""
    judge: OptionalText = None
    """The question put to the evaluator model."""
    anchors: dict[float, str] = {}
    """Score → what a draft with this score looks like, for the evaluator model."""
    feedback: OptionalText = None
    """What the evaluator model should say about it, so that an author can act on it."""
    caps: tuple[Cap, ...] = ()
    """Rules that hold the score down."""
    needs_sources: bool = False
    """Whether a draft without sources is not judged on it; the verdict then says so."""
    optional: bool = False
    """Whether a draft may pass without a score on it. A judged dimension has none if there is no
    evaluator, a checked one if there is nothing to check it by, such as sources. The verdict then
    says so."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        _refuse_any(self._mistakes())
        return self

    def _mistakes(self) -> Iterator[InitErrorDetails]:
        if bool(self.checks) == (self.judge is not None):
            which = "has both" if self.checks else "has neither"
            yield _mistake(
                f"dimension '{self.name}' needs either 'checks' or 'judge', and {which}",
                code="rubric.checks-or-judge",
            )
            # The other rules depend on which of the two is meant.
            return
        if self.needs_sources and self.judge is None:
            yield _mistake(
                f"dimension '{self.name}' is checked by code; 'needs_sources' is for judged "
                "dimensions only",
                "needs_sources",
                code="rubric.check-needs-sources",
            )
        if self.gate and (self.judge is not None or self.floor is None):
            yield _mistake(
                f"dimension '{self.name}' is a gate: it needs 'checks', and a 'floor' under which "
                "it shuts",
                "gate",
                code="rubric.gate-without-floor",
            )
        for index, cap in enumerate(self.caps):
            if cap.when is not None and self.judge is None:
                yield _mistake(
                    f"dimension '{self.name}' is checked by code, which cannot judge "
                    f"'{cap.when}'; give the cap a check, as 'unless'",
                    "caps",
                    index,
                    "when",
                    code="rubric.cap-without-judge",
                )

    @property
    def requirements(self) -> tuple[str, ...]:
        """The requirements on a draft, as told to its author."""
        return tuple(check.requirement for check in self.checks) or (str(self.judge).strip(),)


class Rubric(BaseModel):
    """The dimensions by which drafts are scored, and the threshold to pass."""

    model_config = _MODEL

    id: str = ""
    """The file's name without its ending; filled in on loading."""
    sha256: str = ""
    """Digest of the values that scores depend on, with those of the rubrics it extends. It is
    always filled in; one that is given does not count."""
    extends: OptionalText = None
    """Another rubric, by name or path, from which missing fields are inherited."""
    without: tuple[Name, ...] = ()
    """Dimensions of the extended rubric to leave out."""
    title: str = Field(min_length=1)
    """For people."""
    purpose: str = ""
    """What kind of text it is for."""
    language: Language | None = None
    """The language of drafts, by ISO 639-1, such as `de`: checks then read its sentences, figures
    and names, and phrases with `forms: true` other forms of their words."""
    scale: Scale = Scale()
    """The scale of the composite, and of dimensions without a scale of their own."""
    pass_at: float = Field(default_factory=lambda data: data["scale"].at(0.8))
    """The composite from which a draft passes; by default 8 of 10, or as far up another scale."""
    focus_below: float = Field(default_factory=lambda data: data["scale"].at(0.7))
    """A revision works on dimensions below this score; by default 7 of 10, or as far up another
    scale."""
    judge: JudgeMode = "joint"
    """How the evaluator model is asked."""
    repeats: int = Field(default=3, ge=1, le=15)
    """How often a draft is judged at most if its composite is too near `pass_at` to tell. With 1,
    the evaluator's likeliest judgement counts; else all are sampled. If left out, it is 1 until the
    evaluator's noise was measured."""
    repeat_within: float = Field(
        default_factory=lambda data: round((data["scale"].max - data["scale"].min) / 20, 9), ge=0
    )
    """The distance from `pass_at`, in points, that is too near; by default a twentieth of the
    scale. The evaluator's measured noise replaces it."""
    candidates: int = Field(default=1, ge=1, le=16)
    """How many texts a revise loop samples for a first draft and for each section it revises. The
    checks choose among them."""
    finalists: int = Field(default=1, ge=1, le=8)
    """How many drafts made of these candidates the evaluator scores in a round."""
    shorten: Shortening = Shortening()
    """When models see a shortened draft."""
    prompts: Prompts = Field(default_factory=Prompts)
    """Templates of the prompts, or the name of a file of templates beside this one."""
    dimensions: tuple[Dimension, ...] = Field(min_length=1)
    """In the order they are reported."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        _refuse_any(self._mistakes())
        return self._with_digest()

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy, whose digest is that of its own values."""
        return super().model_copy(update=update, deep=deep)._with_digest()  # noqa: SLF001

    def _with_digest(self) -> Self:
        self.__dict__["sha256"] = sha256_of_values(scoring_values(self))  # frozen for all others
        return self

    def _mistakes(self) -> Iterator[InitErrorDetails]:
        """What is wrong between fields, each of which is right by itself."""
        names: set[str] = set()
        for index, dimension in enumerate(self.dimensions):
            if dimension.name in names:
                yield _mistake(
                    f"dimension '{dimension.name}' is defined twice; rename one, or delete it",
                    "dimensions",
                    index,
                    "name",
                    code="rubric.duplicate-dimension",
                )
            names.add(dimension.name)
        if all(d.optional for d in self.dimensions):
            yield _mistake(
                "every dimension is optional: a draft could pass with nothing scored",
                "dimensions",
                code="rubric.all-optional",
            )
        yield from _off_scale("pass_at", self.pass_at, self.scale, "pass_at")
        yield from _off_scale("focus_below", self.focus_below, self.scale, "focus_below")
        for index, dimension in enumerate(self.dimensions):
            yield from self._mistakes_in(dimension, "dimensions", index)

    def _mistakes_in(self, dimension: Dimension, *place: str | int) -> Iterator[InitErrorDetails]:
        """What in a dimension does not go with the rubric's scale or language."""
        scale = dimension.scale or self.scale
        of_dimension = f"of dimension '{dimension.name}'"
        if dimension.floor is not None:
            label = f"the floor {of_dimension}"
            yield from _off_scale(label, dimension.floor, scale, *place, "floor")
        for score in dimension.anchors:
            label = f"an anchor {of_dimension}"
            yield from _off_scale(label, score, scale, *place, "anchors", f"{score:g}")
        for index, cap in enumerate(dimension.caps):
            label = f"a cap {of_dimension}"
            yield from _off_scale(label, cap.at_most, scale, *place, "caps", index, "at_most")
        for index, check in enumerate(dimension.checks):
            if getattr(check, "forms", False) and (reason := self._no_forms()):
                yield _mistake(reason, *place, "checks", index, "forms", code="rubric.no-forms")

    def _no_forms(self) -> str | None:
        """Why checks cannot look for forms of words; None if they can."""
        if self.language is None:
            return "forms: true needs the rubric's `language`, whose dictionary it looks into"
        if not forms_installed():
            return "forms: true needs dictionaries: pip install 'wiggum-harness[forms]'"
        if not has_forms(self.language):
            return f"there is no dictionary of forms for '{self.language}'; list the forms instead"
        return None

    def scale_of(self, name: str) -> Scale:
        """The scale of the dimension of this name; the rubric's for any other name."""
        return next((d.scale for d in self.dimensions if d.name == name and d.scale), self.scale)

    def shared(self, name: str, score: float) -> float:
        """A dimension's score, moved to the rubric's scale."""
        scale = self.scale_of(name)
        return score if scale is self.scale else self.scale.at(scale.share(score))

    @property
    def requirements(self) -> tuple[str, ...]:
        """The requirements on a draft, as told to its author."""
        return tuple(text for d in self.dimensions for text in d.requirements)

    @property
    def judged(self) -> tuple[Dimension, ...]:
        """The dimensions that need an evaluator model."""
        return tuple(d for d in self.dimensions if d.judge is not None)

    def without_judges(self) -> Rubric:
        """The rubric with all judged dimensions optional."""
        dimensions = tuple(
            d.model_copy(update={"optional": d.optional or d.judge is not None})
            for d in self.dimensions
        )
        return self.model_copy(update={"dimensions": dimensions})

    @property
    def checked(self) -> tuple[Dimension, ...]:
        """The dimensions that code scores."""
        return tuple(d for d in self.dimensions if d.checks)


def _off_scale(
    label: str, score: float, scale: Scale, *place: str | int
) -> Iterator[InitErrorDetails]:
    if not scale.min <= score <= scale.max:
        yield _mistake(
            f"{label} is {score:g}, outside the scale {scale.min:g} to {scale.max:g}",
            *place,
            code="rubric.off-scale",
        )


def _mistake(
    message: str, *place: str | int, code: LiteralString, line: int | None = None
) -> InitErrorDetails:
    """A mistake at a place in the rubric; `line` is its line in a text of several, from 0."""
    # The message is a value of the template, since pydantic would fill in braces of its own.
    error = PydanticCustomError(code, "{message}", {"message": message, "line": line})
    return InitErrorDetails(type=error, loc=place, input=None)


def _refuse_any(mistakes: Iterable[InitErrorDetails]) -> None:
    # All at once, so that a file can be mended in one go.
    if details := list(mistakes):
        raise ValidationError.from_exception_data("rubric", details)


_NO_PART_OF_SCORING = {*FILLED_IN, "extends", "without", "candidates", "finalists", "prompts"}


def scoring_values(rubric: Rubric) -> dict[str, Any]:
    """The values that scores depend on, whatever files the rubric is put together from."""
    # A rubric without a language has the digest that it had before there was this field.
    left_out = {"language"} if rubric.language is None else set()
    values = rubric.model_dump(mode="json", exclude=_NO_PART_OF_SCORING | left_out)
    for dimension in values["dimensions"]:
        if dimension["scale"] is None:
            del dimension["scale"]
    if prompts := rubric.prompts.of_judging:
        values["prompts"] = prompts
    return values


def sha256_of_values(values: Mapping[str, Any]) -> str:
    """The digest of a rubric with these values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def rubric_schema() -> dict[str, Any]:
    """The JSON Schema of a rubric file, in draft 2020-12: the fields that a person writes."""
    schema = Rubric.model_json_schema()
    for name in FILLED_IN:
        del schema["properties"][name]
    for check in CHECKS.values():
        # In a file, `check` is required: it decides the class. In Python it has a default, so
        # pydantic calls it optional.
        part = schema["$defs"][check.__name__]
        part["required"] = ["check", *part.get("required", ())]
    # Loading reads the file that is named in place of templates.
    prompts = schema["properties"]["prompts"]
    prompts["anyOf"] = [{"$ref": prompts.pop("$ref")}, {"type": "string", "minLength": 1}]
    # A scale may also be written as one word.
    schema["$defs"]["Scale"] = {"anyOf": [schema["$defs"]["Scale"], {"const": PASS_FAIL}]}
    # A rubric that extends another takes the fields that it lacks from there.
    needed = schema.pop("required")
    schema["anyOf"] = [{"required": ["extends"]}, {"required": needed}]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
