"""Reads rubric files: finds them by name, merges them with the rubric they extend, and checks them.

Every mistake is reported with its file and line. A file's own field overrides the rubric that it
extends. Mappings (`scale`, `shorten`, `anchors`, a dimension) are merged field by field, dimensions
by name and in the base's order; any other list (`checks`, `caps`) comes whole from one of the two.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from harness.errors import Problem, RubricInvalid, did_you_mean
from harness.files import shipped_directory
from harness.rubric.checks import AnyCheck, Check
from harness.rubric.checks.function import Refuse
from harness.rubric.explain import explain, worth_saying
from harness.rubric.rubric import FILLED_IN, Prompts, Rubric, Scale
from harness.rubric.verdict import half_up
from harness.rubric.written import Written, read_written, refusal

_OWN = Path("rubrics")
_COPY_PROMPTS = "harness rubric prompts brief --write"
_CHECK: TypeAdapter[Check] = TypeAdapter(AnyCheck)


@dataclass(frozen=True, slots=True)
class RubricFile:
    """A rubric, and where each of its values stands."""

    rubric: Rubric
    written: Written
    """Its values as they are written, with those of the rubric that it extends."""


def load_rubric(
    name: str | Path, *, directory: Path = _OWN, refuse: Refuse | None = None
) -> Rubric:
    """Loads a rubric by its name (`brief`) or its path (`drafts/mine.yaml`).

    A name is looked up in `directory`, then among the shipped rubrics; that of a rubric that it
    extends, in its own folder first. The code of its `function` checks is run, unless `refuse`
    returns a reason against it.

    Raises:
        RubricInvalid: There is no such rubric, or it or one that it extends has mistakes.
    """
    return read_rubric(name, directory=directory, refuse=refuse).rubric


def read_rubric(
    name: str | Path, *, directory: Path = _OWN, refuse: Refuse | None = None
) -> RubricFile:
    """As `load_rubric`; the values also have their files and lines."""
    places = directories(directory)
    is_path = isinstance(name, Path) or name.endswith(_ENDINGS)
    path = Path(name) if is_path else _find(str(name), places)
    if path is None:
        raise RubricInvalid(_no_such_rubric(str(name), places), code="rubric.not-found")
    if not path.exists():
        namesake = _find(path.stem, places)
        nearest = f"; did you mean {namesake}?" if namesake else ""
        raise RubricInvalid(f"there is no such file{nearest}", code="rubric.not-found", path=path)
    return _read(path, (), places, refuse)


def _read(
    path: Path, chain: tuple[Path, ...], places: tuple[Path, ...], refuse: Refuse | None
) -> RubricFile:
    # 1. What stands in the file, merged with the rubric that it extends.
    file = _with_prompts(read_written(path))
    problems = [
        file.fields[name].problem(
            f"'{name}' is filled in on loading; leave it out", code="rubric.field-filled-in"
        )
        for name in file.fields.keys() & FILLED_IN
    ]
    base = _base_of(file, (*chain, path), places)
    written = file
    if base is not None:
        inherited = _read(base, (*chain, path), places, refuse).written
        written, misfits = _extended(file, _with_checks(inherited, refuse))
        problems += misfits
    elif "without" in file.fields:
        problems.append(
            file.fields["without"].problem(
                "'without' leaves out dimensions of the rubric that this extends; it extends none",
                code="rubric.without-extends",
            )
        )
    # 2. The rubric that it amounts to, with all mistakes at once.
    values = {k: v for k, v in written.plain().items() if k not in FILLED_IN}
    try:
        context = {"directories": [path.parent], "refuse": refuse}
        rubric = Rubric.model_validate(values, context=context)
    except ValidationError as error:
        wrong = (_problem(problem, written, path) for problem in worth_saying(error.errors()))
        raise refusal([*problems, *wrong]) from None
    if problems:
        raise refusal(problems)
    named = rubric.model_copy(update={"id": path.stem, "sha256": _sha256(_scoring_values(rubric))})
    return RubricFile(named, written)


def _problem(details: ErrorDetails, written: Written, path: Path) -> Problem:
    """What is wrong, with the line in the file at `path`."""
    place = written.at(details["loc"])
    notice = explain(details)
    within = details.get("ctx", {}).get("line")
    if within is not None and place.text_line is not None:
        place = replace(place, line=place.text_line + within)
    # Prompts may stand in a file of their own.
    if place.path == path or details["loc"][:1] == ("prompts",):
        return place.problem(notice.message, code=notice.code)
    # The base is sound by itself: this file does not go with it.
    message = f"{notice.message} (taken over from {place.path}:{place.line})"
    return written.fields["extends"].problem(message, code=notice.code)


def with_prompts(rubric: Rubric, prompts: Mapping[str, str]) -> Rubric:
    """The rubric with other prompts, by name; prompts that are not given stay the same.

    Raises:
        RubricInvalid: A template has mistakes.
    """
    try:
        chosen = Prompts.model_validate({**rubric.prompts.own, **prompts})
    except ValidationError as error:
        faults = worth_saying(error.errors())
        notices = [explain({**fault, "loc": ("prompts", *fault["loc"])}) for fault in faults]
        raise refusal(
            Problem(path=None, line=None, message=notice.message, code=notice.code)
            for notice in notices
        ) from None
    changed = rubric.model_copy(update={"prompts": chosen})
    return changed.model_copy(update={"sha256": _sha256(_scoring_values(changed))})


def _with_prompts(file: Written) -> Written:
    """With the templates of the file that it names."""
    named = file.fields.get("prompts")
    if named is None or not isinstance(named.value, str):
        return file
    path = file.path.parent / named.value
    if not path.is_file():
        missing = named.problem(
            f"prompts: there is no file {path}; a path starts at the folder of this file; for a "
            f"copy to edit: {_COPY_PROMPTS} {path}",
            code="rubric.prompts-not-found",
        )
        raise refusal([missing])
    begin = f"for a copy to edit: {_COPY_PROMPTS} FILE"
    return replace(file, value={**file.fields, "prompts": read_written(path, begin=begin)})


def _with_checks(written: Written, refuse: Refuse | None) -> Written:
    """The same with its checks made."""
    value = written.value
    if "check" in written.fields:
        # Now: files that it names lie beside this rubric; one that extends it may lie elsewhere.
        value = _CHECK.validate_python(
            written.plain(), context={"directories": [written.path.parent], "refuse": refuse}
        )
    elif written.fields:
        value = {name: _with_checks(field, refuse) for name, field in written.fields.items()}
    elif written.items:
        value = [_with_checks(item, refuse) for item in written.items]
    return replace(written, value=value, cut="")


_NO_PART_OF_SCORING = {"extends", "without", "candidates", "finalists", "prompts"}


def _scoring_values(rubric: Rubric) -> dict[str, Any]:
    """The values that scores depend on, whatever files the rubric is put together from."""
    # A rubric without a language has the digest that it had before there was this field.
    left_out = {"language"} if rubric.language is None else set()
    values = rubric.model_dump(mode="json", exclude={*FILLED_IN, *_NO_PART_OF_SCORING, *left_out})
    for dimension in values["dimensions"]:
        if dimension["scale"] is None:
            del dimension["scale"]
    if prompts := rubric.prompts.of_judging:
        values["prompts"] = prompts
    return values


def _sha256(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def at_any_threshold(rubric: Rubric) -> dict[str, float]:
    """Digest → `pass_at`, for every possible `pass_at`: finds rubrics that differ only there."""
    scale = rubric.scale
    values = _scoring_values(rubric)
    thresholds = {}
    for step in range(round((scale.max - scale.min) / scale.composite_step) + 1):
        candidate = scale.min + step * scale.composite_step
        # Removes the float noise of the product, so that the digests match.
        pass_at = half_up(candidate, scale.composite_step, start=scale.min)
        thresholds[_sha256(values | {"pass_at": pass_at})] = pass_at
    return thresholds


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenRubric:
    """A rubric, and where its calibration and its noise file are looked for."""

    rubric: Rubric
    directory: Path
    """The folder of its file, if it was given by path; else the folder of the user's own rubrics,
    where a rubric that ships can have a noise file too."""
    at_any_threshold: bool = False
    """Whether scores hold whatever its threshold is."""

    def code_parts(self) -> tuple[object, ...]:
        """See `fingerprint`: what scores depend on."""
        return (
            # One of these digests for all: the least, which no threshold changes.
            min(at_any_threshold(self.rubric)) if self.at_any_threshold else self.rubric.sha256,
        )


# How a rubric's file ends; a name that ends so is a path.
_ENDINGS = (".yaml", ".yml")


def directories(directory: Path) -> tuple[Path, ...]:
    """Where to look; the folder of the user's own rubrics need not exist."""
    # The user's own first: one may have the name of a rubric that ships.
    return directory, shipped_directory("rubrics")


def _find(name: str, places: Sequence[Path], *, besides: Path | None = None) -> Path | None:
    """The first file of this name, which has no ending; `besides` is left out."""
    for place in places:
        for ending in _ENDINGS:
            path = place / f"{name}{ending}"
            if path.is_file() and not (besides and path.samefile(besides)):
                return path
    return None


def known_rubrics(places: Sequence[Path]) -> dict[str, Path]:
    """Every rubric by its name; of two, the one that is loaded by it."""
    names = {path.stem for place in places for end in _ENDINGS for path in place.glob(f"*{end}")}
    # Files of prompts stand beside rubrics.
    names = {name for name in names if not name.endswith(".prompts")}
    paths = {name: _find(name, places) for name in sorted(names)}
    return {name: path for name, path in paths.items() if path is not None}


def _no_such_rubric(name: str, places: Sequence[Path]) -> str:
    where = f"in {places[0]}/ nor among the rubrics that ship"
    endings = f"a file is named with its ending, {_ENDINGS[0]}"
    nearest = did_you_mean(name, known_rubrics(places))
    if files := [name + ending for ending in _ENDINGS if Path(name + ending).is_file()]:
        nearest = f"for the file of that name, write '{files[0]}'"
    return f"there is no rubric '{name}' {where} ({endings}); {nearest}"


# Fields that say how a file is read, not what its rubric is.
_ITS_OWN = ("extends", "without")
_OF_JUDGING = frozenset({"judge", "anchors", "feedback", "caps", "needs_sources", "optional"})
_OF_CHECKING = frozenset({"checks", "caps", "gate"})


def _base_of(file: Written, chain: Sequence[Path], places: Sequence[Path]) -> Path | None:
    """The file that one extends, or None; `chain` has the files that led to it, itself the last."""
    extends = file.fields.get("extends")
    if extends is None or not isinstance(extends.value, str) or not extends.value.strip():
        # Validation says what is wrong with it, if anything is.
        return None
    name, file_path = extends.value.strip(), chain[-1]
    if name.endswith(_ENDINGS):
        path: Path | None = file_path.parent / name
        missing = f"there is no file {path}; a path starts at the folder of this file"
    else:
        # Not itself: one's own `brief` may extend the `brief` that ships.
        path = _find(name, (file_path.parent, *places), besides=file_path)
        missing = _no_such_rubric(name, places)
        if name == file_path.stem:
            missing = f"there is no rubric '{name}' besides this one"
    links = " → ".join(map(str, (*chain, path)))
    if path is None or not path.is_file():
        problem = extends.problem(f"extends: {missing}", code="rubric.base-not-found")
    elif any(path.samefile(earlier) for earlier in chain):
        problem = extends.problem(
            f"the rubrics extend each other in a circle: {links}", code="rubric.extends-circle"
        )
    else:
        return path
    raise refusal([problem])


def _extended(file: Written, base: Written) -> tuple[Written, tuple[Problem, ...]]:
    """A file merged with its base, and what in the file does not fit the base."""
    inherited = {name: field for name, field in base.fields.items() if name not in _ITS_OWN}
    names = _by_name(inherited["dimensions"].items)
    # 1. The base's dimensions without those that are left out.
    left_out = {
        item.value: item for item in _listed(file, "without") if isinstance(item.value, str)
    }
    remaining = {name: dimension for name, dimension in names.items() if name not in left_out}
    inherited["dimensions"] = replace(inherited["dimensions"], value=[*remaining.values()])
    problems = [
        item.problem(
            f"without: the rubric that this extends has no dimension '{name}'; "
            + did_you_mean(name, names),
            code="rubric.unknown-left-out",
        )
        for name, item in left_out.items()
        if name not in names
    ]
    # 2. The file's own, without those that only change one that the base does not have.
    sound = []
    for dimension in _listed(file, "dimensions"):
        name = _name(dimension)
        if not name or name in names or {"checks", "judge"} & dimension.fields.keys():
            sound.append(dimension)
            continue
        problems.append(
            dimension.problem(
                f"the rubric that this extends has no dimension '{name}', and a new one needs "
                f"'checks' or 'judge'; {did_you_mean(name, names)}",
                code="rubric.unknown-dimension",
            )
        )
    # 3. Its fields over the base's.
    fields = _fields_over(file.fields, inherited, merged=("scale", "shorten", "prompts"))
    if _listed(file, "dimensions"):
        changes = _by_name(sound)
        over = [
            _dimension_over(changes[name], dimension) if name in changes else dimension
            for name, dimension in remaining.items()
        ]
        # One that stands twice comes here the second time, and is refused for that.
        new = [d for d in sound if _name(d) not in remaining or d is not changes[_name(d)]]
        fields["dimensions"] = replace(file.fields["dimensions"], value=[*over, *new])
    elif "dimensions" in file.fields and file.fields["dimensions"].value in (None, []):
        fields["dimensions"] = inherited["dimensions"]
    merged = replace(file, value=fields)
    return merged, (*problems, *_of_another_scale(file, base, merged))


def _of_another_scale(file: Written, base: Written, merged: Written) -> Iterator[Problem]:
    """What is taken over from a base whose scale has other ends."""
    # There it means something else: 8 of 10 is not 8 of 100.
    scores = []
    if _ends_of_scale(base) != _ends_of_scale(merged):
        scores = [(name, merged.fields.get(name)) for name in ("pass_at", "focus_below")]
    bases, places = _by_name(base.fields["dimensions"].items), [file]
    for name, dimension in _by_name(merged.fields["dimensions"].items).items():
        before = bases.get(name)
        if not before or _ends_of_scale(before, base) == _ends_of_scale(dimension, merged):
            continue
        places = [d for d in _listed(file, "dimensions") if _name(d) == name] + places
        scores.append((f"the floor of '{name}'", dimension.fields.get("floor")))
        anchors = dimension.fields.get("anchors")
        of_anchors = anchors.fields.items() if anchors else ()
        scores += [(f"anchor {score} of '{name}'", anchor) for score, anchor in of_anchors]
        caps = [cap.fields.get("at_most") for cap in _listed(dimension, "caps")]
        scores += [(f"a cap of '{name}'", at_most) for at_most in caps]
    if names := [name for name, score in scores if score and score.path != file.path]:
        # The file's own scale, else that of the first dimension that got another.
        where = next(place.fields["scale"] for place in reversed(places) if "scale" in place.fields)
        yield where.problem(
            f"{', '.join(names)}: inherited from {base.path}, which has another scale; set them "
            "on this scale, or keep the scale",
            code="rubric.taken-from-another-scale",
        )


def _ends_of_scale(*levels: Written) -> tuple[object, object]:
    """The ends of the first scale that `levels` have: a dimension's own, or its rubric's."""
    scales = (level.fields["scale"].plain() for level in levels if "scale" in level.fields)
    scale: Any = next(scales, {})
    usual = Scale()
    if not isinstance(scale, dict):
        return scale, scale
    return scale.get("min", usual.min), scale.get("max", usual.max)


def _dimension_over(change: Written, base: Written) -> Written:
    """A dimension over the base's; scored in another way, it keeps only name, weight and floor."""
    dropped: frozenset[str] = frozenset()
    if "checks" in change.fields and "judge" in base.fields:
        dropped = _OF_JUDGING
    elif "judge" in change.fields and "checks" in base.fields:
        dropped = _OF_CHECKING
    inherited = {name: field for name, field in base.fields.items() if name not in dropped}
    fields = _fields_over(change.fields, inherited, merged=("anchors", "scale"))
    return replace(change, value=fields)


def _fields_over(
    changes: Mapping[str, Written], base: Mapping[str, Written], *, merged: Sequence[str]
) -> dict[str, Written]:
    """The fields of both; of one that both have, the own, or the two merged."""
    fields = {**base, **changes}
    for name in merged:
        if name in changes and name in base and changes[name].fields:
            both = {**base[name].fields, **changes[name].fields}
            fields[name] = replace(changes[name], value=both)
    return fields


def _listed(file: Written, name: str) -> Sequence[Written]:
    listed = file.fields.get(name)
    return listed.items if listed else []


def _by_name(dimensions: Sequence[Written]) -> dict[str, Written]:
    """The first of each name, in order; those without a name are left to validation."""
    by_name: dict[str, Written] = {}
    for dimension in dimensions:
        if name := _name(dimension):
            by_name.setdefault(name, dimension)
    return by_name


def _name(dimension: Written) -> str:
    name = dimension.fields.get("name")
    return str(name.value).strip() if name is not None and isinstance(name.value, str) else ""
