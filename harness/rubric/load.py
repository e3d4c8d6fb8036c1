"""Reads rubric files: finds them by name, merges them with the rubric they extend, and checks them.

Every mistake is reported with its file and line. A file's own field overrides the rubric that it
extends. Mappings (`scale`, `shorten`, `anchors`, a dimension) are merged field by field, dimensions
by name and in the base's order; any other list (`checks`, `caps`) comes whole from one of the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from harness.errors import Problem, RubricInvalid, did_you_mean
from harness.files import shipped_directory
from harness.rubric.checks.function import Refuse
from harness.rubric.explain import explain, worth_saying
from harness.rubric.rubric import (
    FILLED_IN,
    Prompts,
    Rubric,
    Scale,
    scoring_values,
    sha256_of_values,
)
from harness.rubric.verdict import half_up
from harness.rubric.written import Written, read_written, refusal

_OWN = Path("rubrics")
_COPY_PROMPTS = "harness rubric prompts brief --write"


@dataclass(frozen=True, slots=True)
class RubricFile:
    """A rubric, and where each of its values stands."""

    rubric: Rubric
    written: Written
    """Its values as they are written, with those of the rubric that it extends."""
    folders: tuple[Path, ...] = ()
    """Where the files that its checks name may lie: beside it, and beside what it extends."""


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
    folders = directories(directory)
    is_path = isinstance(name, Path) or name.endswith(_ENDINGS)
    path = Path(name) if is_path else _find(str(name), folders)
    if path is None:
        raise RubricInvalid(_no_such_rubric(str(name), folders), code="rubric.not-found")
    if not path.exists():
        namesake = _find(path.stem, folders)
        nearest = f"; did you mean {namesake}?" if namesake else ""
        raise RubricInvalid(f"there is no such file{nearest}", code="rubric.not-found", path=path)
    return _read((path,), folders, refuse)


def _read(chain: tuple[Path, ...], folders: tuple[Path, ...], refuse: Refuse | None) -> RubricFile:
    """The rubric in the last file of `chain`, each file of which extends the next one.

    Names of rubrics are looked up in `folders`.
    """
    # 1. The values of the file, merged with those of the rubric that it extends.
    path = chain[-1]
    file = _with_prompts(read_written(path))
    problems = [
        file.fields[name].problem(
            f"'{name}' is filled in on loading; leave it out", code="rubric.field-filled-in"
        )
        for name in file.fields.keys() & FILLED_IN
    ]
    written, base = file, None
    if (base_path := _base_of(file, chain, folders)) is not None:
        base = _read((*chain, base_path), folders, refuse)
        written, misfits = _extended(file, base.written)
        problems += misfits
    elif "without" in file.fields:
        problems.append(
            file.fields["without"].problem(
                "'without' leaves out dimensions of the rubric that this extends; it extends none",
                code="rubric.without-extends",
            )
        )
    # 2. The rubric of these values, or all mistakes at once.
    values = {name: v for name, v in written.plain().items() if name not in FILLED_IN}
    beside = (path.parent, *(base.folders if base else ()))
    try:
        context = {"directories": beside, "refuse": refuse}
        rubric = Rubric.model_validate(values, context=context)
    except ValidationError as error:
        mistakes = [_problem(e, written, path) for e in worth_saying(error.errors())]
        raise refusal([*problems, *mistakes]) from None
    if base is not None:
        problems += _scores_of_another_scale(rubric, base.rubric, written)
    if problems:
        raise refusal(problems)
    return RubricFile(rubric.model_copy(update={"id": path.stem}), written, beside)


def _base_of(file: Written, chain: tuple[Path, ...], folders: tuple[Path, ...]) -> Path | None:
    """The file of the rubric that a file extends; None if it extends none."""
    extends = file.fields.get("extends")
    if extends is None or not isinstance(extends.value, str) or not extends.value.strip():
        # Validation says what is wrong with it, if anything is.
        return None
    name = extends.value.strip()
    searched = (file.path.parent, *folders)
    if name.endswith(_ENDINGS):
        path: Path | None = file.path.parent / name
    else:
        # Not itself: one's own `brief` may extend the `brief` that ships.
        path = _find(name, searched, besides=file.path)
    if path is None or not path.is_file():
        if path is not None:
            missing = f"there is no file {path}; a path starts at the folder of this file"
        elif name == file.path.stem:
            missing = f"there is no rubric '{name}' besides this one"
        else:
            missing = _no_such_rubric(name, searched)
        raise refusal([extends.problem(f"extends: {missing}", code="rubric.base-not-found")])
    if any(path.samefile(earlier) for earlier in chain):
        links = " → ".join(map(str, (*chain, path)))
        problem = extends.problem(
            f"the rubrics extend each other in a circle: {links}", code="rubric.extends-circle"
        )
        raise refusal([problem])
    return path


def _problem(details: ErrorDetails, written: Written, path: Path) -> Problem:
    """What is wrong, with the line in the file at `path`."""
    value = written.at(details["loc"])
    notice = explain(details)
    line_of_text = details.get("ctx", {}).get("line")
    if line_of_text is not None and value.text_line is not None:
        value = replace(value, line=value.text_line + line_of_text)
    # Prompts may stand in a file of their own.
    if value.path == path or details["loc"][:1] == ("prompts",):
        return value.problem(notice.message, code=notice.code)
    # The base is sound by itself: this file does not go with it.
    message = f"{notice.message} (taken over from {value.path}:{value.line})"
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
    return rubric.model_copy(update={"prompts": chosen})


def _with_prompts(file: Written) -> Written:
    """The values, with the templates of a file of prompts in place of its name."""
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


def at_any_threshold(rubric: Rubric) -> dict[str, float]:
    """Digest → `pass_at`, for every possible `pass_at`: finds rubrics that differ only there."""
    scale = rubric.scale
    values = scoring_values(rubric)
    thresholds = {}
    for step in range(round((scale.max - scale.min) / scale.composite_step) + 1):
        candidate = scale.min + step * scale.composite_step
        # Removes the float noise of the product, so that the digests match.
        pass_at = half_up(candidate, scale.composite_step, start=scale.min)
        thresholds[sha256_of_values(values | {"pass_at": pass_at})] = pass_at
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
        # The least of these digests is the same whatever the rubric's own threshold is.
        digests = at_any_threshold(self.rubric) if self.at_any_threshold else {self.rubric.sha256}
        return (min(digests),)


# Endings of a rubric's file; a name with one of them is a path.
_ENDINGS = (".yaml", ".yml")


def directories(directory: Path) -> tuple[Path, ...]:
    """Where to look; the folder of the user's own rubrics need not exist."""
    # The user's own first: one may have the name of a rubric that ships.
    return directory, shipped_directory("rubrics")


def _find(name: str, folders: Sequence[Path], *, besides: Path | None = None) -> Path | None:
    """The first file with this name and one of the endings, other than the file `besides`."""
    for folder in folders:
        for ending in _ENDINGS:
            path = folder / f"{name}{ending}"
            if path.is_file() and not (besides and path.samefile(besides)):
                return path
    return None


def known_rubrics(folders: Sequence[Path]) -> dict[str, Path]:
    """Every rubric by its name; of two, the one that is loaded by it."""
    files = (path for folder in folders for end in _ENDINGS for path in folder.glob(f"*{end}"))
    # Files of prompts stand beside rubrics.
    names = sorted({file.stem for file in files if not file.stem.endswith(".prompts")})
    paths = {name: _find(name, folders) for name in names}
    return {name: path for name, path in paths.items() if path is not None}


def _no_such_rubric(name: str, folders: Sequence[Path]) -> str:
    own = " or ".join(f"{folder}/" for folder in dict.fromkeys(folders[:-1]))
    where = f"in {own} nor among the rubrics that ship"
    endings = f"a file is named with its ending, {_ENDINGS[0]}"
    nearest = did_you_mean(name, known_rubrics(folders))
    if files := [name + ending for ending in _ENDINGS if Path(name + ending).is_file()]:
        nearest = f"for the file of that name, write '{files[0]}'"
    return f"there is no rubric '{name}' {where} ({endings}); {nearest}"


# --- merging with the rubric that a file extends -------------------------------------------------

# Fields that say how a file is read, not what its rubric is.
_NOT_INHERITED = ("extends", "without")
_OF_JUDGING = frozenset({"judge", "anchors", "feedback", "caps", "needs_sources", "optional"})
_OF_CHECKING = frozenset({"checks", "caps", "gate"})


def _extended(file: Written, base: Written) -> tuple[Written, list[Problem]]:
    """A file merged with its base, and what in the file does not fit the base."""
    base_dimensions = {_name(dimension): dimension for dimension in _items_of(base, "dimensions")}
    problems = []
    # 1. The base's dimensions, without those that the file leaves out.
    dimensions = dict(base_dimensions)
    for item in _items_of(file, "without"):
        if not isinstance(item.value, str):
            continue
        dimensions.pop(item.value, None)
        if item.value not in base_dimensions:
            problems.append(
                item.problem(
                    f"without: the rubric that this extends has no dimension '{item.value}'; "
                    f"{did_you_mean(item.value, base_dimensions)}",
                    code="rubric.unknown-left-out",
                )
            )
    # 2. The file's own: changes of these, and new ones behind them.
    new = []
    for dimension in _items_of(file, "dimensions"):
        name = _name(dimension)
        if name in dimensions and dimensions[name] is base_dimensions[name]:
            dimensions[name] = _changed_dimension(base_dimensions[name], dimension)
        elif not name or name in base_dimensions or {"checks", "judge"} & dimension.fields.keys():
            # Validation refuses one without a name, or with the name of another.
            new.append(dimension)
        else:
            problems.append(
                dimension.problem(
                    f"the rubric that this extends has no dimension '{name}', and a new one needs "
                    f"'checks' or 'judge'; {did_you_mean(name, base_dimensions)}",
                    code="rubric.unknown-dimension",
                )
            )
    # 3. All fields.
    inherited = {name: field for name, field in base.fields.items() if name not in _NOT_INHERITED}
    fields = _merged(file.fields, inherited, mappings=("scale", "shorten", "prompts"))
    if fields["dimensions"].value is None or isinstance(fields["dimensions"].value, list):
        merged = [*dimensions.values(), *new]
        fields["dimensions"] = replace(fields["dimensions"], value=merged)
    return replace(file, value=fields), problems


def _changed_dimension(base: Written, change: Written) -> Written:
    dropped: frozenset[str] = frozenset()
    # Scored in another way, it keeps only name, weight and floor.
    if "checks" in change.fields and "judge" in base.fields:
        dropped = _OF_JUDGING
    elif "judge" in change.fields and "checks" in base.fields:
        dropped = _OF_CHECKING
    inherited = {name: field for name, field in base.fields.items() if name not in dropped}
    return replace(change, value=_merged(change.fields, inherited, mappings=("anchors", "scale")))


def _merged(
    own: Mapping[str, Written], base: Mapping[str, Written], *, mappings: Sequence[str]
) -> dict[str, Written]:
    """The fields of the base, changed and extended by a rubric's own.

    Of a field named in `mappings`, which has fields itself, these are merged in the same way.
    """
    fields = {**base, **own}
    for name in mappings:
        if name in own and name in base and own[name].fields:
            fields[name] = replace(own[name], value={**base[name].fields, **own[name].fields})
    return fields


def _scores_of_another_scale(rubric: Rubric, base: Rubric, written: Written) -> Iterator[Problem]:
    """The problem with scores inherited from a base whose scale has other ends: 8 of 10 or 100."""
    scores: list[Written | None] = []
    if _ends_of(rubric.scale) != _ends_of(base.scale):
        scores += [written.fields.get(name) for name in ("pass_at", "focus_below")]
    base_names = {dimension.name for dimension in base.dimensions}
    for dimension, item in zip(rubric.dimensions, _items_of(written, "dimensions"), strict=True):
        name = dimension.name
        if name in base_names and _ends_of(rubric.scale_of(name)) != _ends_of(base.scale_of(name)):
            anchors = item.fields.get("anchors")
            scores += [item.fields.get("floor"), *_items_of(item, "caps")]
            scores += anchors.fields.values() if anchors else ()
    inherited = [score for score in scores if score and score.path != written.path]
    if inherited:
        lines = ", ".join(dict.fromkeys(f"{score.path}:{score.line}" for score in inherited))
        yield written.fields["extends"].problem(
            f"scores that are inherited are on another scale: {lines}; set them on this scale, or "
            "keep the scale",
            code="rubric.taken-from-another-scale",
        )


def _ends_of(scale: Scale) -> tuple[float, float]:
    return scale.min, scale.max


def _items_of(file: Written, name: str) -> Sequence[Written]:
    """The items of a field that holds a list; empty if there is no such field."""
    field = file.fields.get(name)
    return field.items if field else []


def _name(dimension: Written) -> str:
    """The name of a dimension; empty if it has none that is a text."""
    name = dimension.fields.get("name")
    return str(name.value).strip() if name is not None and isinstance(name.value, str) else ""
