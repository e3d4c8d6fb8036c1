from pathlib import Path

import pytest

from harness.trace.run_files import (
    joined_path,
    journal_of,
    next_part,
    part_of,
    part_path,
    paths_beside,
)


@pytest.mark.parametrize(
    ("name", "journal", "part"),
    [
        pytest.param("run.jsonl", "run.jsonl", None, id="the journal"),
        pytest.param("run.1.jsonl", "run.jsonl", 1, id="a part"),
        pytest.param("run.12.jsonl", "run.jsonl", 12, id="a later part"),
        pytest.param("run.77-00c0ffee.jsonl", "run.jsonl", None, id="a process"),
        pytest.param("my.run.3.jsonl", "my.run.jsonl", 3, id="a name with a dot"),
        pytest.param("run.0.jsonl", "run.0.jsonl", None, id="not from 0"),
        pytest.param("run.old.jsonl", "run.old.jsonl", None, id="a copy"),
        pytest.param("run.2026-01.jsonl", "run.jsonl", None, id="as if of a process"),
    ],
)
def test_a_file_says_by_its_name_what_it_is_of_a_run(name, journal, part):
    path = Path("traces", name)

    assert journal_of(path) == Path("traces", journal)
    assert part_of(path, Path("traces", journal)) == part
    assert part_of(path, Path("traces", "another.jsonl")) is None


def test_names_are_read_as_they_are_given():
    journal = Path("traces", "my.run.jsonl")

    assert journal_of(part_path(journal, 7)) == journal
    assert part_of(part_path(journal, 7), journal) == 7
    assert journal_of(joined_path(journal, 77, "0f")) == journal


def test_parts_come_first_and_in_order_and_the_next_is_after_the_last(tmp_path):
    journal = tmp_path / "run[1].jsonl"
    names = ["run[1].7-a.jsonl", "run[1].2.jsonl", "run[1].10.jsonl", "run1.3.jsonl", "run[1].json"]
    assert next_part(journal) == 1
    for name in names:
        (tmp_path / name).touch()

    assert [path.name for path in paths_beside(journal)] == [
        "run[1].2.jsonl", "run[1].10.jsonl", "run[1].7-a.jsonl"
    ]  # fmt: skip
    assert next_part(journal) == 11
