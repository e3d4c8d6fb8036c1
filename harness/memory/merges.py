"""Passages that are one with a stored one: found, and kept apart so that each can be had back."""

from __future__ import annotations

import sqlite3

from harness.memory.found import Merge
from harness.memory.passage import Passage
from harness.memory.reading import Rule, reading
from harness.memory.rows import COLUMNS, passage_of, row_of

# More that read alike, and are not the same, may be missed: to add many is not to become quadratic.
_COMPARED = 64

_ALIKE = f"SELECT {COLUMNS} FROM passage WHERE reading = ? ORDER BY sequence LIMIT {_COMPARED}"  # noqa: S608  # constants
_KEEP = f"INSERT OR REPLACE INTO merged ({COLUMNS}, kept, rule) VALUES (?{', ?' * 9})"  # noqa: S608  # constants
_LIST = f"SELECT {COLUMNS}, kept, rule FROM merged"  # noqa: S608  # constants


def merge_of(db: sqlite3.Connection, passage: Passage, number: int, rule: Rule) -> Merge | None:
    """With the oldest passage that is one with this one by a rule; None when there is none."""
    wanted = reading(passage, rule)
    for row in db.execute(_ALIKE, (number,)):
        there = passage_of(row)
        if reading(there, rule) == wanted:
            same = reading(there, "same") == reading(passage, "same")
            return Merge(passage=passage, into=there.id, rule="same" if same else "near")
    return None


def keep(db: sqlite3.Connection, merge: Merge) -> None:
    """Keeps what came, whole; the passage that is there stays as it is."""
    db.execute(_KEEP, (*row_of(None, merge.passage), merge.into, merge.rule))


def merges(db: sqlite3.Connection, id_: str | None = None) -> list[Merge]:
    """All there are, in the order in which they came; or that of one passage."""
    one = "" if id_ is None else " WHERE id = CAST(? AS TEXT)"
    values = () if id_ is None else (id_.encode(errors="surrogatepass"),)
    return [
        Merge(passage=passage_of(row), into=kept, rule=rule)
        for *row, kept, rule in db.execute(f"{_LIST}{one} ORDER BY sequence", values)
    ]


def forget(db: sqlite3.Connection, id_: str) -> int:
    """Drops what was kept of a passage, and of all that became one with it; returns how many."""
    value = id_.encode(errors="surrogatepass")
    dropped = db.execute(
        "DELETE FROM merged WHERE id = CAST(? AS TEXT) OR kept = CAST(? AS TEXT)", (value, value)
    )
    return dropped.rowcount
