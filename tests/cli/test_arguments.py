"""Which run is meant: part of an id, a file of the run, or the latest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sample_runs import sealed

from harness.cli.arguments import find_journal
from harness.errors import ConfigurationInvalid, InvalidInput
from harness.trace import RunStarted

FIRST, SECOND = "20260101T000000Z-aaaaaaaaaaaa", "20260202T000000Z-bbbbbbbbbbbb"
BEGUN = sealed(RunStarted(1, FIRST, "essay", 0, 0, 1))


def write(directory: Path, contents: dict[str, bytes]) -> None:
    """Journals, by their names without an ending, the first one the oldest."""
    for age_s, (stem, content) in enumerate(contents.items()):
        path = directory / f"{stem}.jsonl"
        path.write_bytes(content)
        os.utime(path, (1e9 + age_s, 1e9 + age_s))


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        pytest.param(FIRST, FIRST, id="an id"),
        pytest.param("0202T", SECOND, id="a part in the middle"),
        pytest.param("essay", "essay", id="a name that is part of another"),
        pytest.param("latest", SECOND, id="the latest"),
    ],
)
def test_a_run_is_found_by_part_of_its_name(tmp_path: Path, name: str, meant: str) -> None:
    no_runs = {"killed at once": b"", "notes": b'{"a":1}\n', "runs": BEGUN}
    joined = {f"{FIRST}.77-00": BEGUN}
    named = {"second essay": b"", "essay": b""}
    write(tmp_path, {FIRST: BEGUN, SECOND: BEGUN} | joined | named | no_runs)

    assert find_journal(name, tmp_path) == tmp_path / f"{meant}.jsonl"


def test_the_latest_run_is_the_one_that_went_on_last(tmp_path: Path) -> None:
    write(tmp_path, {FIRST: BEGUN, SECOND: BEGUN, f"{FIRST}.1": BEGUN})

    assert find_journal("latest", tmp_path) == tmp_path / f"{FIRST}.jsonl"


def test_a_file_of_a_run_stands_for_it(tmp_path: Path) -> None:
    journal = tmp_path / f"{FIRST}.jsonl"
    part = journal.with_suffix(".2.jsonl")
    part.touch()

    with pytest.raises(InvalidInput) as caught:
        find_journal(str(part), None)
    assert (caught.value.code, caught.value.path) == ("run.file-missing", part)
    for file in (journal, part, journal.with_suffix(".pftrace")):
        file.touch()
        assert find_journal(str(file), None) == journal


def test_a_file_is_found_whatever_stands_in_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "harness.toml").write_text("[broken")
    (tmp_path / "run.jsonl").write_text("")
    monkeypatch.chdir(tmp_path)

    assert find_journal("run.jsonl", None) == Path("run.jsonl")
    with pytest.raises(ConfigurationInvalid):
        find_journal("latest", None)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        pytest.param("there/", "run.not-its-file", id="slash"),
        pytest.param("notes.txt", "run.not-its-file", id="text"),
        pytest.param("away.jsonl", "run.file-missing", id="no such file"),
        pytest.param("2026", "run.ambiguous", id="two runs"),
        pytest.param("latest", "run.none-yet", id="no run among the journals"),
    ],
)
def test_what_cannot_be_a_run_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: str
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "notes.txt").write_text("")
    write(tmp_path, {FIRST: b"", SECOND: b""})
    monkeypatch.chdir(tmp_path)

    with pytest.raises(InvalidInput) as caught:
        find_journal(name, tmp_path)
    assert caught.value.code == code
