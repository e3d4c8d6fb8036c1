"""`harness rubric`: looking rubrics over, listing them, beginning one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml
from command import Done, harness
from golden import assert_shown

from harness.rubric import rubric_schema

GOOD = """\
title: Essay
pass_at: 7
dimensions:
- name: length
  floor: 5
  checks:
  - { check: words, min: 50 }
- name: clear
  weight: 3
  judge: How clear is it?
  anchors: { 9: Throughout, 6: Mostly, 3: Hardly }
  optional: true
"""
BROKEN = GOOD.replace("weight: 3", "wieght: 3").replace("floor: 5", "floor: low")
DOUBTFUL = GOOD.replace("{ 9: Throughout, 6: Mostly, 3: Hardly }", "{ 5: Throughout, 1: Hardly }")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory with rubrics of one's own."""
    (tmp_path / "rubrics").mkdir()
    for name, text in {"essay": GOOD, "broken": BROKEN, "doubtful": DOUBTFUL}.items():
        (tmp_path / f"rubrics/{name}.yaml").write_text(text)
    return tmp_path


def rubric(*arguments: str, cwd: Path) -> Done:
    return harness("rubric", *arguments, cwd=cwd)


# --- check ---------------------------------------------------------------------------------------


def test_every_rubric_is_summed_up_and_one_that_is_broken_hides_none(here: Path) -> None:
    result = rubric("check", "broken", "rubrics/essay.yaml", "brief", "nothing", cwd=here)

    assert_shown("rubric check", "four rubrics", result, masks={r"\S+/(?=brief.yaml)": ""})


def test_warnings_count_where_that_is_asked_for(here: Path) -> None:
    result = rubric("check", "doubtful", cwd=here)

    assert_shown("rubric check", "a warning", result)
    assert rubric("check", "--strict", "doubtful", cwd=here).exit_code == 2


def test_scripts_are_told_the_same_as_json(here: Path) -> None:
    result = rubric("check", "--json", "broken", "doubtful", cwd=here)
    broken, doubtful = result.json

    assert result.exit_code == 2
    assert broken["rubric"] is None
    assert [(m["code"], m["path"], m["line"]) for m in broken["mistakes"]] == [
        ("rubric.not-a-number", "rubrics/broken.yaml", 5),
        ("rubric.unknown-field", "rubrics/broken.yaml", 9),
    ]
    assert doubtful["mistakes"] == []
    assert [(w["code"], w["path"], w["line"]) for w in doubtful["warnings"]] == [
        ("rubric.anchors-of-another-scale", "rubrics/doubtful.yaml", 11)
    ]
    assert doubtful["rubric"]["pass_at"] == 7
    assert len(doubtful["rubric"]["sha256"]) == 64


@pytest.mark.parametrize("name", ["mine", "essay.yaml"])
def test_a_file_that_is_named_in_part_is_pointed_out(here: Path, name: str) -> None:
    (here / "mine.yaml").write_text(GOOD)
    assert_shown("rubric check", f"named in part: {name}", rubric("check", name, cwd=here))


# --- list and schema -----------------------------------------------------------------------------


def test_the_list_has_ones_own_and_those_that_ship(here: Path) -> None:
    (here / "rubrics/brief.yaml").write_text(GOOD)
    lines = rubric("list", cwd=here).stdout.splitlines()

    assert lines == sorted(lines)
    assert_shown("rubric check", "the list", "\n".join(lines))
    rows = {row["name"]: row for row in rubric("list", "--json", cwd=here).json}
    assert (rows["broken"]["path"], rows["broken"]["mistakes"]) == ("rubrics/broken.yaml", 2)
    assert rows["synthesis"]["ships"]


def test_the_directory_that_the_settings_name_is_looked_into(here: Path) -> None:
    (here / "rubrics").rename(here / "mine")
    (here / "harness.toml").write_text('rubrics = "mine"\n')

    assert rubric("check", "essay", cwd=here).exit_code == 0
    assert "mine/essay.yaml" in rubric("list", cwd=here).stdout


def test_the_schema_is_written(tmp_path: Path) -> None:
    result = rubric("schema", "--output", "mine.json", cwd=tmp_path)

    assert (result.exit_code, result.stdout) == (0, "")
    assert json.loads((tmp_path / "mine.json").read_text()) == rubric_schema()


# --- new -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "base", "written"),
    [("mine", "brief", "rubrics/mine.yaml"), ("drafts/mine.yaml", "answer", "drafts/mine.yaml")],
)
def test_a_new_rubric_is_a_copy_that_an_editor_can_check(
    tmp_path: Path, name: str, base: str, written: str
) -> None:
    said = harness("new", "rubric", name, "--from", base, cwd=tmp_path).stdout

    assert_shown("rubric check", f"new: {name}", said)
    assert rubric("check", "--strict", written, cwd=tmp_path).exit_code == 0
    path = tmp_path / written
    text = path.read_text()
    schema = json.loads(path.with_name(text.splitlines()[0].rpartition("/")[2]).read_text())
    jsonschema.validate(json.loads(json.dumps(yaml.safe_load(text))), schema)


def test_a_new_rubric_with_the_name_of_one_that_ships_is_said_to_go_before_it(
    tmp_path: Path,
) -> None:
    for words in (("brief", "--from", "qa"), ("drafts/brief.yaml",)):
        shown = harness("new", "rubric", *words, cwd=tmp_path)
        assert_shown("rubric check", f"new: {' '.join(words)}", shown)


@pytest.mark.parametrize("arguments", ["essay", "mine --from bref", "file/mine.yaml"])
def test_what_cannot_be_written_is_said(here: Path, arguments: str) -> None:
    (here / "file").write_text("not a directory")
    result = harness("new", "rubric", *arguments.split(), cwd=here)

    assert_shown("rubric check", f"not written: {arguments}", result)
    assert (here / "rubrics/essay.yaml").read_text() == GOOD


# --- prompts -------------------------------------------------------------------------------------

DRAFT = "# Uhr\n\nSie hat eine Feder. Sie hat 7 Räder.\n"
GERMAN = """\
title: Notiz
extends: essay
prompts:
  section: |
    {sources}

    Schreib „{section}“ neu.
    {findings}
  judge_source: "Quelle {number}: {source}"
dimensions: [{ name: grounded, checks: [{ check: grounded_numbers }] }]
"""


def told(*arguments: str, cwd: Path) -> dict[str, tuple[str, str, str]]:
    """Length, origin and text of what models are told, by the name of the prompt."""
    printed = rubric("prompts", *arguments, cwd=cwd).stdout
    heads = r"^=== (\w+): ([\d,]+) characters \((.*)\)\n"
    _, *parts = re.split(heads, printed, flags=re.MULTILINE)
    rows = zip(*(parts[n::4] for n in range(4)), strict=True)
    return {name: (length, origin, text.rstrip()) for name, length, origin, text in rows}


def test_what_models_would_be_told_is_printed_with_where_it_stands(here: Path) -> None:
    (here / "rubrics/notiz.yaml").write_text(GERMAN)
    (here / "draft.md").write_text(DRAFT)
    (here / "clock.md").write_text("A clock has a spring.")

    found = told(
        *("notiz", "--draft", "draft.md", "--task", "Was ist eine Uhr?", "--sources", "clock.md"),
        cwd=here,
    )

    assert list(found) == ["draft", "section", "afresh", "edits", "whole", "judge", "judge_repair"]
    length, origin, text = found["section"]
    assert text.startswith("A clock has a spring.\n\nSchreib „Uhr“ neu.\n- ")
    assert "7 is not in the sources" in text
    assert origin.endswith("notiz.yaml:4")
    assert length == str(len(text))
    _, origin, text = found["judge"]
    assert "Quelle 1: <source-" in text
    assert origin.endswith("notiz.yaml:9")
    _, origin, text = found["draft"]
    assert "Was ist eine Uhr?" in text
    assert origin == "as it ships"


def test_without_a_draft_what_is_not_given_stands_in_parentheses(here: Path) -> None:
    result = rubric("prompts", "essay", cwd=here)

    assert (result.exit_code, result.stdout.count("=== ")) == (0, 7)
    assert "An earlier version of a text about (A heading):" in result.stdout


def test_a_file_of_prompts_is_not_listed_among_the_rubrics(here: Path) -> None:
    (here / "rubrics/notiz.yaml").write_text(GERMAN)
    rubric("prompts", "notiz", "--write", "rubrics/notiz.prompts.yaml", cwd=here)

    listed = json.loads(rubric("list", "--json", cwd=here).stdout)
    assert [one["name"] for one in listed if "notiz" in one["name"]] == ["notiz"]


def test_a_copy_of_the_prompts_can_be_named_by_a_rubric(here: Path) -> None:
    written = rubric("prompts", "essay", "--write", "rubrics/p.yaml", cwd=here)
    (here / "rubrics/other.yaml").write_text("title: Other\nextends: essay\nprompts: p.yaml\n")

    assert written.exit_code == 0
    text = (here / "rubrics/p.yaml").read_text()
    assert text.count("# Fields: ") == len(yaml.safe_load(text)) == 11
    theirs, ours = told("essay", cwd=here), told("other", cwd=here)
    assert (ours["draft"][2], "p.yaml:" in ours["draft"][1]) == (theirs["draft"][2], True)
    assert rubric("prompts", "essay", "--write", "rubrics/p.yaml", cwd=here).exit_code == 2


def test_a_mistake_in_a_file_of_prompts_is_named_with_its_line(here: Path) -> None:
    (here / "rubrics/p.yaml").write_text("# Nur einer.\njudge_repair: |\n  {asked}\n  {shap}\n")
    (here / "rubrics/other.yaml").write_text("title: O\nextends: essay\nprompts: p.yaml\n")

    result = rubric("check", "other", cwd=here)

    assert result.exit_code == 2
    lines = [line.split(": ")[0] for line in result.stdout.splitlines()]
    assert lines[:2] == ["rubrics/p.yaml:3", "rubrics/p.yaml:4"]


@pytest.mark.parametrize("command", ["check", "prompts", "tune"])
def test_a_settings_file_that_is_not_read_is_pointed_out(here: Path, command: str) -> None:
    (here / "harness.toml").write_text("")
    (here / "below").mkdir()
    (here / "below/labels.csv").write_text("id,accept,score.length\na,yes,8\n")
    rest = ["labels.csv"] if command == "tune" else []

    result = rubric(command, "essay", *rest, cwd=here / "below")

    assert f"give --config {here / 'harness.toml'}" in result.stderr
    assert result.exit_code == 2
