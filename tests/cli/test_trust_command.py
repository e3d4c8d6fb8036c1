"""What a cloned folder is asked about, at a terminal and without one."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
from command import harness
from pipelines import ASKS

from harness.session.trust import KEYS_VARIABLE

RUBRIC = """\
title: Owned
dimensions:
  - name: tone
    checks: [{ check: function, call: "./checks.py:polite" }]
"""
CHECKS = """\
from pathlib import Path
Path(__file__).with_name("ran").touch()
def polite(draft):
    return 1
"""


@pytest.fixture
def cloned(tmp_path: Path) -> Path:
    (tmp_path / "rubrics").mkdir()
    (tmp_path / "rubrics/owned.yaml").write_text(RUBRIC)
    (tmp_path / "rubrics/checks.py").write_text(CHECKS)
    (tmp_path / "draft.md").write_text("A draft.")
    (tmp_path / "harness.toml").write_text(
        '[endpoints.e]\nurl = "http://127.0.0.1:9/v1"\nbackend = "vllm"\napi_key_env = "MY_KEY"\n'
    )
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [["list"], ["check", "owned"], ["score", "owned", "draft.md", "--checks-only"]],
    ids=lambda command: command[0],
)
def test_a_rubrics_code_runs_once_the_user_has_allowed_it(cloned: Path, command: list[str]) -> None:
    own = {"XDG_CONFIG_HOME": str(cloned / "own")}
    ran, numbers = cloned / "rubrics/ran", count()

    def rubric(**how: str) -> bool:
        ran.unlink(missing_ok=True)
        # A process runs the same code once.
        (cloned / "rubrics/checks.py").write_text(f"{CHECKS}# {next(numbers)}\n")
        harness("rubric", *command, cwd=cloned, **own, **how)
        return ran.exists()

    assert not rubric(), "nobody is there to be asked"
    assert rubric(HARNESS_TRUST=str(cloned))
    assert not (cloned / "own").exists()
    assert rubric(typed="y\n")
    assert rubric(), "it is remembered"


def test_a_yes_that_cannot_be_remembered_is_none(cloned: Path) -> None:
    (cloned / "own").write_text("a file, so that no folder can be made of it")
    done = harness("rubric", "list", cwd=cloned, typed="y\n", XDG_CONFIG_HOME=str(cloned / "own"))

    assert "cannot be remembered" in done.stderr
    assert not (cloned / "rubrics/ran").exists()


def test_a_key_is_asked_for_once_per_folder_and_host(cloned: Path) -> None:
    own = {"XDG_CONFIG_HOME": str(cloned / "own"), "MY_KEY": "sk-mine-0123"}

    def problem(**how: str) -> str:
        return str(harness("models", "list", "--json", cwd=cloned, **own, **how).json[0]["problem"])

    assert KEYS_VARIABLE in problem()
    assert KEYS_VARIABLE in problem(typed="n\n")
    assert KEYS_VARIABLE not in problem(typed="y\n")
    assert KEYS_VARIABLE not in problem()
    file = cloned / "harness.toml"
    file.write_text(file.read_text().replace(":9/", ":7/"))
    assert KEYS_VARIABLE in problem(), "another host"


def test_a_journal_that_came_with_a_folder_runs_nothing(tmp_path: Path) -> None:
    (tmp_path / "asks.py").write_text(ASKS)
    theirs, mine = ({"XDG_CONFIG_HOME": str(tmp_path / who)} for who in ("theirs", "mine"))
    assert harness("run", "asks.py", "--task", "t", cwd=tmp_path, **theirs).exit_code == 4
    ran = 'from pathlib import Path\nPath("ran").touch()\n'
    (tmp_path / "asks.py").write_text(ran + ASKS)

    resume = ("resume", "latest", "--answer", "yes", "--json")
    done = harness(*resume, cwd=tmp_path, **mine)

    assert (done.exit_code, done.code) == (2, "trust.code-not-allowed")
    assert not (tmp_path / "ran").exists()
    assert harness(*resume, cwd=tmp_path, **theirs).exit_code == 0, "who ran it goes on"
    assert (tmp_path / "ran").exists()


def test_what_the_user_names_himself_is_resumed(tmp_path: Path) -> None:
    (tmp_path / "asks.py").write_text(ASKS)
    theirs, mine = ({"XDG_CONFIG_HOME": str(tmp_path / who)} for who in ("theirs", "mine"))
    assert harness("run", "asks.py", "--task", "t", cwd=tmp_path, **theirs).exit_code == 4
    resume = ("resume", "latest", "--answer", "yes", "--file", "asks.py")
    assert harness(*resume, cwd=tmp_path, **mine).exit_code == 0


LEAKS = """\
from harness import Pipeline

leaks = Pipeline("leaks")

@leaks.node
def said(text: str) -> str:
    print(text)
    return text
"""
CLIPBOARD = "\x1b]52;c;ZXZpbA==\x07 \x9b2J \x1b[2J"


def test_what_is_printed_is_without_secrets_as_files_are(tmp_path: Path) -> None:
    (tmp_path / "leaks.py").write_text(LEAKS)
    secret = "zx-0123456789-mine"
    for options in ((), ("--json",)):
        said = ("run", "leaks.py", "--set", f"text=It is {secret}.", *options)
        done = harness(*said, cwd=tmp_path, MY_KEYS=secret)
        assert done.exit_code == 0
        assert secret not in done.stdout
        assert done.stderr.count(secret) == 1, "what the node prints itself is its own"
    no_file = harness("run", f"{secret}.py", "--json", cwd=tmp_path, MY_KEYS=secret)
    assert no_file.exit_code == 2
    assert secret not in no_file.stdout + no_file.stderr


def test_no_escape_sequence_of_a_text_reaches_a_terminal(tmp_path: Path) -> None:
    for command in (
        ("run", f"{CLIPBOARD}.py"),
        ("memory", "search", CLIPBOARD, "--store", f"{CLIPBOARD}.d"),
    ):
        done = harness(*command, cwd=tmp_path, typed="")
        assert done.exit_code == 2
        assert "\x1b]52" not in done.stderr
        assert "\x9b" not in done.stderr
        assert "?2J" in done.stderr
