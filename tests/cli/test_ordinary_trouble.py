"""What a person meets on an ordinary day: Ctrl-C, prints, deleted folders, files of others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from command import harness

NODES = """\
import os
import shutil
import signal
from pathlib import Path
from harness import Pipeline

print("printed while it is imported")
Path("ran").touch()
day = Pipeline("day")

@day.node
def first(text: str = "tea") -> str:
    print("printed by a node")
    if os.environ.get("DELETES"):
        shutil.rmtree("traces")
    if os.environ.get("INTERRUPTS"):
        signal.raise_signal(signal.SIGINT)
    return text

@day.node
def second(first: str) -> str:
    Path("second").touch()
    return first
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for folder in ("pipelines", "rubrics"):
        (tmp_path / folder).mkdir()
    (tmp_path / "day.py").write_text(NODES)
    (tmp_path / "pipelines" / "day.py").write_text(NODES)
    (tmp_path / "rows.jsonl").write_text('{"text": "tea"}')
    return tmp_path


@pytest.mark.parametrize(
    "words", [("run", "day.py"), ("batch", "day.py", "rows.jsonl", "--output", "out.jsonl")]
)
def test_what_code_prints_does_not_stand_in_the_result(project: Path, words: tuple[str]) -> None:
    done = harness(*words, "--json", cwd=project)
    assert done.json["status"] == "finished"
    assert done.stderr.count("printed") == 2


@pytest.mark.parametrize("words", ["run", "graph", "batch day.py", "rubric check"])
def test_a_text_in_place_of_a_file_is_a_mistake_of_the_user(project: Path, words: str) -> None:
    end = ["--output", "out.jsonl"] if words.startswith("batch") else []
    done = harness(*words.split(), "Tell me of tea. " * 30, *end, "--json", cwd=project)
    assert (done.exit_code, done.code) == (2, "file.unusable")
    assert "File name too long" in done.stderr


def test_a_run_that_a_person_ended_is_listed_as_interrupted(project: Path) -> None:
    assert harness("run", "day.py", cwd=project, INTERRUPTS="1").exit_code == 130
    listed = harness("runs", cwd=project).text
    assert "INTERRUPTED" in listed
    assert "ERROR" not in listed


def test_a_run_whose_journal_is_deleted_is_stopped_and_does_no_more(project: Path) -> None:
    done = harness("run", "day.py", "--json", cwd=project, DELETES="1")
    assert (done.exit_code, done.json["status"]) == (3, "stopped")
    assert not (project / "second").exists()


@pytest.mark.parametrize("words", [("graph",), ("models", "plan")])
def test_a_name_starts_no_code_of_a_folder_that_is_not_trusted(
    project: Path, words: tuple[str]
) -> None:
    done = harness(*words, "pipelines/day.py:day", "--json", cwd=project)  # a file that is named
    assert (project / "ran").exists()
    (project / "ran").unlink()
    (project / "day.py").unlink()
    done = harness(*words, "day", "--json", cwd=project)
    assert (done.exit_code, done.code) == (2, "trust.code-not-allowed")
    assert not (project / "ran").exists()
    harness(*words, "day", cwd=project, HARNESS_TRUST=str(project))
    assert (project / "ran").exists()


def test_a_pipe_and_a_file_without_end_are_no_rubrics_and_are_not_waited_for(project: Path) -> None:
    os.mkfifo(project / "pipe.yaml")
    with (project / "long.yaml").open("wb") as file:
        file.truncate(1 << 40)  # more than any machine could read
    done = harness("rubric", "check", "pipe.yaml", "long.yaml", cwd=project)
    assert done.exit_code == 2
    assert "pipe.yaml:1: it holds nothing" in done.text
    assert "long.yaml: it is longer than 1 MiB" in done.text


def test_a_key_that_is_not_sent_is_refused_by_the_folder_of_the_file_that_asks(
    project: Path,
) -> None:
    (project / "other.toml").write_text(
        '[roles]\nproducer = "a"\n[endpoints.a]\nurl = "http://127.0.0.1:9/v1"\n'
        'model_id = "m"\napi_key_env = "MY_KEY"\n'
    )
    words = ("run", "day.py", "--config", "other.toml", "--json")
    done = harness(*words, cwd=project, MY_KEY="plumeria-41-secret")
    assert done.code == "trust.key-not-allowed"
    message = done.json["error"]["message"]
    assert f"the settings in {project} " in message
    assert "harness.toml" not in message


def test_a_failure_before_anything_is_added_is_all_that_is_said(project: Path) -> None:
    (project / "notes.md").write_bytes(b"\xff\xfe\x00\x01")
    done = harness("memory", "add", "notes.md", "--store", "store", cwd=project)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("harness: notes.md: ")
    assert done.stderr.count("\n") == 1
