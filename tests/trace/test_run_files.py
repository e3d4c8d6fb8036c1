from pathlib import Path

import pytest

from harness.trace.journal_reader import (
    joined_path,
    journal_of,
    next_part,
    part_of,
    part_path,
    paths_beside,
)

JOURNAL = Path("traces", "my.run.jsonl")


@pytest.mark.parametrize(
    ("name", "journal", "part"),
    [
        ("run.jsonl", "run.jsonl", None),
        ("run.12.jsonl", "run.jsonl", 12),
        (part_path(JOURNAL, 7).name, JOURNAL.name, 7),
        (joined_path(JOURNAL, 77, "0f").name, JOURNAL.name, None),
        ("run.old.jsonl", "run.old.jsonl", None),
        ("run.2026-01.jsonl", "run.jsonl", None),  # as if of a process
    ],
)
def test_a_file_says_by_its_name_what_it_is_of_a_run(name, journal, part):
    path = Path("traces", name)

    assert journal_of(path) == Path("traces", journal)
    assert part_of(path, Path("traces", journal)) == part
    assert part_of(path, Path("traces", "another.jsonl")) is None


def test_parts_come_first_and_in_order_and_the_next_is_after_the_last(tmp_path):
    journal = tmp_path / "run[1].jsonl"
    assert next_part(journal) == 1
    for name in ("run[1].7-a", "run[1].2", "run[1].10", "run1.3", "run[1]"):
        (tmp_path / f"{name}.jsonl").touch()

    assert [path.name for path in paths_beside(journal)] == [
        "run[1].2.jsonl", "run[1].10.jsonl", "run[1].7-a.jsonl"
    ]  # fmt: skip
    assert next_part(journal) == 11
