"""Reading rubric files, with every mistake answered by its file and line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from harness.errors import Problem, RubricInvalid
from harness.rubric.checks import AnyCheck, Check
from harness.rubric.checks.function import Refuse
from harness.rubric.files.explain import NOTHING
from harness.rubric.files.extends import base_of, extended, over
from harness.rubric.files.library import (
    ENDINGS,
    directories,
    find_rubric,
    no_such_file,
    no_such_rubric,
)
from harness.rubric.files.presets import PRESETS
from harness.rubric.files.validate import validated
from harness.rubric.files.written import Written, read_written
from harness.rubric.rubric import FILLED_IN, Rubric

_OWN = Path("rubrics")
_CHECK: TypeAdapter[Check] = TypeAdapter(AnyCheck)


@dataclass(frozen=True, slots=True)
class RubricFile:
    """A rubric, and where each of its values stands."""

    rubric: Rubric
    """What it says."""
    written: Written
    """The same as it is written, with what it takes from the rubric it extends."""


def load_rubric(name: str, *, directory: Path = _OWN, refuse: Refuse | None = None) -> Rubric:
    """A rubric by its name (`brief`) or by its path (`drafts/mine.yaml`).

    A name is looked for in `directory`, then among the rubrics that ship with the package. What its
    `function` checks name is run, but for what `refuse` has a reason against.

    Raises:
        RubricInvalid: There is none, or it has mistakes.
    """
    return read_rubric(name, directory=directory, refuse=refuse).rubric


def load_rubric_file(path: Path, *, directory: Path = _OWN, refuse: Refuse | None = None) -> Rubric:
    """Reads one rubric.

    Args:
        path: The file.
        directory: Where a rubric that it extends by name is looked for, after the file's folder and
            before those that ship.
        refuse: As in `load_rubric`.

    Raises:
        RubricInvalid: The file, or one that it extends, is missing, not YAML, or breaks a rule.
    """
    return _read(path, (), directories(directory), refuse).rubric


def read_rubric(name: str, *, directory: Path = _OWN, refuse: Refuse | None = None) -> RubricFile:
    """As `load_rubric`, with the lines.

    Raises:
        RubricInvalid: There is none, or it has mistakes.
    """
    places = directories(directory)
    path = Path(name) if name.endswith(ENDINGS) else find_rubric(name, places)
    if path is None:
        raise RubricInvalid(no_such_rubric(name, places), code="rubric.not-found")
    if not path.exists():
        raise RubricInvalid(no_such_file(path, places), code="rubric.not-found", path=path)
    return _read(path, (), places, refuse)


def _read(
    path: Path, chain: tuple[Path, ...], places: tuple[Path, ...], refuse: Refuse | None
) -> RubricFile:
    # 1. What stands in the file, and before that in those that it extends.
    own, repeated = read_written(path)
    if repeated:
        raise _refusal(repeated)  # of what stands twice nobody knows which is meant
    problems = [*_filled_in(own), *_empty_texts(own)]
    base = base_of(own, (*chain, path), places)
    written = own
    if base is not None:
        inherited = _read(base, (*chain, path), places, refuse).written
        written, misfits = extended(own, _with_checks(inherited, refuse))
        problems += misfits
    elif "without" in own.fields:
        problems.append(
            Problem(
                path=path,
                line=own.fields["without"].line,
                message="'without' leaves out dimensions of a rubric that this 'extends', which is "
                "none",
                code="rubric.without-extends",
            )
        )
    # 2. What all of it amounts to.
    rubric, wrong = validated(_with_preset(written), path, refuse=refuse)
    if rubric is None or problems or wrong:
        raise _refusal([*problems, *wrong])
    named = rubric.model_copy(update={"id": path.stem, "sha256": _digest(rubric)})
    return RubricFile(named, written)


def _filled_in(own: Written) -> list[Problem]:
    return [
        Problem(
            path=field.path,
            line=field.line,
            message=f"'{name}' is filled in on loading; leave it out",
            code="rubric.field-filled-in",
        )
        for name, field in own.fields.items()
        if name in FILLED_IN
    ]


def _empty_texts(own: Written) -> list[Problem]:
    """`judge:` with nothing after it, which is as good as no field to everyone but its author."""
    dimensions = own.fields.get("dimensions")
    return [
        Problem(
            path=text.path, line=text.line, message=f"{name}: {NOTHING.message}", code=NOTHING.code
        )
        for dimension in (dimensions.items if dimensions else ())
        for name in ("judge", "feedback")
        if (text := dimension.fields.get(name)) is not None and text.value is None
    ]


def _with_preset(written: Written) -> Written:
    chosen = written.fields.get("preset")
    if chosen is None or not isinstance(chosen.value, str) or chosen.value not in PRESETS:
        return written  # validation says what is wrong with it, if anything is
    return over(written, _as_written(PRESETS[chosen.value], chosen))


def _with_checks(written: Written, refuse: Refuse | None) -> Written:
    """Its checks made: the files that they name are taken from the folder of the rubric that does.

    Those of a rubric that extends it may lie elsewhere.
    """
    value = written.value
    if "check" in written.fields:
        value = _CHECK.validate_python(
            written.plain(), context={"directories": [written.path.parent], "refuse": refuse}
        )
    elif written.fields:
        value = {name: _with_checks(field, refuse) for name, field in written.fields.items()}
    elif written.items:
        value = [_with_checks(item, refuse) for item in written.items]
    return Written(value, written.path, written.line)


def _as_written(value: Any, where: Written) -> Written:  # noqa: ANN401 - a preset's values
    """As if it stood where the preset is named."""
    if isinstance(value, Mapping):
        value = {name: _as_written(field, where) for name, field in value.items()}
    return Written(value, where.path, where.line)


def _refusal(problems: Iterable[Problem]) -> RubricInvalid:
    first, *others = sorted(dict.fromkeys(problems), key=lambda problem: problem.line or 0)
    return RubricInvalid(
        first.message, code=first.code, path=first.path, line=first.line, others=others
    )


def _digest(rubric: Rubric) -> str:
    """Of what the rubric says, not of how it is put together."""
    said = rubric.model_dump(mode="json", exclude={*FILLED_IN, "extends", "without", "preset"})
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
