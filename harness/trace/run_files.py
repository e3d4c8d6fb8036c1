"""How the files of a run are called: one noun for what the journal's name has before `.jsonl`.

RUN.jsonl                   the journal: the first part of the run, by its main process
RUN.1.jsonl, RUN.2.jsonl    the parts that resumed it
RUN.77-00c0ffee0bad.jsonl   a process that joined a part: its id, and chance
"""

from __future__ import annotations

import re
from glob import escape
from pathlib import Path

JOURNAL_SUFFIX = ".jsonl"

_BESIDE = re.compile(r"(?P<run>.+)\.(?:(?P<part>[1-9]\d{0,8})|\d+-[0-9a-f]+)")
"""The stem of a file beside a journal."""


def part_path(journal: Path, part: int) -> Path:
    """The file of a part that resumes a run.

    Args:
        journal: The run's journal.
        part: Which, from 1.
    """
    return journal.with_suffix(f".{part}{JOURNAL_SUFFIX}")


def next_part(journal: Path) -> int:
    """The first number that no part of a run has: there may be gaps before it.

    Args:
        journal: The run's journal.
    """
    return 1 + max((part_of(path, journal) or 0 for path in paths_beside(journal)), default=0)


def joined_path(journal: Path, process_id: int, chance: str) -> Path:
    """The file of a process that joins a run.

    Args:
        journal: The run's journal.
        process_id: The process.
        chance: Hexadecimal digits, since machines may share a directory and not their processes.
    """
    return journal.with_suffix(f".{process_id}-{chance}{JOURNAL_SUFFIX}")


def paths_beside(journal: Path) -> list[Path]:
    """The files beside a journal that may be of its run: further parts first, in their order."""
    found = journal.parent.glob(f"{escape(journal.stem)}.*{JOURNAL_SUFFIX}")
    return sorted(found, key=lambda path: (part_of(path, journal) or 10**9, path))


def part_of(path: Path, journal: Path) -> int | None:
    """Which part of a run a file is by its name, from 1; None if that is no part's."""
    named = _BESIDE.fullmatch(path.stem)
    if named is None or named["part"] is None or named["run"] != journal.stem:
        return None
    return int(named["part"])


def journal_of(path: Path) -> Path:
    """The journal that a file of a run belongs to, by its name; the file itself if it is that."""
    beside = _BESIDE.fullmatch(path.stem)
    return path.with_name(beside["run"] + JOURNAL_SUFFIX) if beside else path
