"""Finding a rubric by name or by file: the user's own first, then those that ship."""

from __future__ import annotations

from pathlib import Path

from harness.errors import RubricInvalid, did_you_mean
from harness.rubric.load import load_rubric_file
from harness.rubric.rubric import Rubric
from harness.shipped import shipped_directory

_ENDINGS = (".yaml", ".yml")


def load_rubric(name: str, *, directory: Path = Path("rubrics")) -> Rubric:
    """A rubric by its name (`brief`) or by its path (`drafts/mine.yaml`).

    A name is looked for in `directory`, then among the rubrics that ship with the package.

    Raises:
        RubricInvalid: There is none, or it has a mistake.
    """
    if name.endswith(_ENDINGS):
        return load_rubric_file(Path(name))
    directories = (directory, shipped_directory("rubrics"))
    for candidate in directories:
        for ending in _ENDINGS:
            path = candidate / f"{name}{ending}"
            if path.is_file():
                return load_rubric_file(path)
    known = {path.stem for d in directories for ending in _ENDINGS for path in d.glob(f"*{ending}")}
    raise RubricInvalid(
        f"there is no rubric '{name}' in {directory}/ nor among those that ship; "
        + did_you_mean(name, known)
    )
