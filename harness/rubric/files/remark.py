"""What the rules of advice say of a rubric, before it is known on which line that is."""

from __future__ import annotations

from dataclasses import dataclass

from harness.rubric.files.written import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """Something that its author may not have meant."""

    place: Place
    """Which value it is about."""
    code: str
    """The same for programs, and as stable as an error's."""
    what: str
    """What is so, whether meant or not."""
    remedy: str
    """What would change that."""
    beside: Place | None = None
    """Another value that it is as much about: its line is named where this one alone stands in
    the rubric's own file, and not in one that it extends."""
