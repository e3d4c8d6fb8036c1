"""`harness rubric`: looking rubrics over, listing them, beginning one."""

import json

import jsonschema
import pytest
import yaml
from click.testing import CliRunner, Result

from harness.cli.main import command
from harness.rubric import load_rubric, rubric_schema
from harness.shipped import shipped_directory

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
BROKEN = GOOD.replace("weight: 3", "wieght: 3").replace("floor: 5", "floor: 50")
DOUBTFUL = GOOD.replace("pass_at: 7", "pass_at: 7.25")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A directory of one's own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rubrics").mkdir()
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, ["rubric", *arguments])


def write(here, name: str, content: str) -> str:
    path = here / "rubrics" / f"{name}.yaml"
    path.write_text(content)
    return f"rubrics/{name}.yaml"


def test_a_rubric_that_can_be_used_is_summed_up_in_a_line(here):
    write(here, "essay", GOOD)
    result = run("check", "essay")

    assert result.exit_code == 0
    assert result.stdout == (
        "rubrics/essay.yaml: Essay: length 25% (floor 5), clear 75% (judged, optional); "
        "passes from 7 on, with every floor reached\n"
    )


def test_every_mistake_has_its_line_as_compilers_print_it(here):
    path = write(here, "essay", BROKEN)
    result = run("check", path)

    assert result.exit_code == 2
    assert result.stdout.splitlines() == [
        f"{path}:5: the floor of dimension 'length' is 50, outside the scale 0 to 10",
        f"{path}:9: 'wieght' is not allowed here; did you mean 'weight'?",
        f"{path}: 2 mistakes",
    ]


@pytest.mark.parametrize(("options", "exit_code"), [((), 0), (("--strict",), 2)])
def test_warnings_count_where_that_is_asked_for(here, options, exit_code):
    path = write(here, "essay", DOUBTFUL)
    result = run("check", *options, path)

    assert result.exit_code == exit_code
    assert result.stdout.splitlines()[0] == (
        f"{path}:2: warning: no composite lies between 7.25 and 7.3, so a draft passes from 7.3 "
        "on; write 7.3, or a smaller step"
    )
    counted = "1 warning, which --strict counts as mistakes" in result.stdout.splitlines()
    assert counted == bool(exit_code)


def test_several_are_looked_over_and_one_that_is_broken_hides_none(here):
    names = [write(here, "broken", BROKEN), write(here, "essay", GOOD), "brief", "nothing"]
    result = run("check", *names)

    ends = [line for line in result.stdout.splitlines() if "mistake" in line or "passes" in line]
    assert result.exit_code == 2
    assert [line.split(":")[0].rsplit("/")[-1] for line in ends] == [
        "broken.yaml",
        "essay.yaml",
        "brief.yaml",
        "nothing",
    ]
    assert "there is no rubric 'nothing' in rubrics/ nor among those that ship" in result.stdout


def test_without_anything_to_look_at_it_says_what_it_wants():
    result = run("check")

    assert result.exit_code == 2
    assert "Missing argument 'FILE|NAME...'" in result.stderr


def test_scripts_are_told_the_same_as_json(here):
    paths = [write(here, "broken", BROKEN), write(here, "essay", DOUBTFUL)]
    result = run("check", "--json", *paths)
    broken, doubtful = json.loads(result.stdout)

    assert result.exit_code == 2
    assert broken["rubric"] is None
    assert [(m["path"], m["line"]) for m in broken["mistakes"]] == [(paths[0], 5), (paths[0], 9)]
    assert broken["mistakes"][1]["message"].endswith("did you mean 'weight'?")
    assert doubtful["mistakes"] == []
    assert [(w["path"], w["line"]) for w in doubtful["warnings"]] == [(paths[1], 2)]
    assert doubtful["rubric"]["pass_at"] == 7.25
    assert doubtful["rubric"]["sha256"] == load_rubric("essay").sha256


def test_the_directory_that_the_settings_name_is_looked_into(here):
    (here / "mine").mkdir()
    (here / "mine" / "essay.yaml").write_text(GOOD)
    (here / "harness.toml").write_text('rubrics = "mine"\n')

    assert run("check", "essay").exit_code == 0
    assert "essay      Essay (mine/essay.yaml)" in run("list").stdout


def test_settings_that_do_not_parse_are_said_to_be_wrong(here):
    (here / "harness.toml").write_text("rubrics = 5\n")
    result = run("check", "brief")

    assert result.exit_code == 2
    assert "harness.toml" in result.stderr


def test_the_list_has_ones_own_and_those_that_ship(here):
    write(here, "essay", GOOD)
    write(here, "torn", BROKEN)
    write(here, "brief", GOOD)
    lines = run("list").stdout.splitlines()

    assert "essay      Essay (rubrics/essay.yaml)" in lines
    assert "torn       2 mistakes, named by: harness rubric check torn (rubrics/torn.yaml)" in lines
    assert "brief      Essay (rubrics/brief.yaml)" in lines
    assert "synthesis  Synthesis (ships)" in lines
    assert lines == sorted(lines)


def test_the_list_can_be_read_by_scripts(here):
    write(here, "essay", GOOD)
    rows = {row["name"]: row for row in json.loads(run("list", "--json").stdout)}

    assert rows["essay"] == {
        "name": "essay",
        "title": "Essay",
        "path": "rubrics/essay.yaml",
        "ships": False,
        "mistakes": 0,
    }
    assert rows["brief"]["ships"]


def test_the_schema_is_printed_or_written(here):
    assert json.loads(run("schema").stdout) == rubric_schema()
    result = run("schema", "--output", "mine.json")

    assert (result.exit_code, result.stdout) == (0, "")
    assert json.loads((here / "mine.json").read_text()) == rubric_schema()


def test_a_schema_that_cannot_be_written_is_said_not_to_be():
    result = run("schema", "--output", "none/mine.json")

    assert result.exit_code == 2
    assert "none/mine.json: cannot be written (No such file or directory)" in result.stderr


@pytest.mark.parametrize(
    ("name", "path"),
    [
        pytest.param("mine", "rubrics/mine.yaml", id="name"),
        pytest.param("drafts/mine.yaml", "drafts/mine.yaml", id="path"),
    ],
)
@pytest.mark.parametrize(
    "base", sorted(path.stem for path in shipped_directory("rubrics").glob("*.yaml"))
)
def test_a_new_rubric_is_a_copy_that_an_editor_can_check(here, name, path, base):
    result = run("new", name, "--from", base)

    said, *more = result.stdout.splitlines()
    assert said == f"{path}: a copy of '{base}'; next: harness rubric check {path}"
    extends = load_rubric(path).extends
    assert more == (
        [f"What it does not say is taken from '{extends}', which it extends."] if extends else []
    )
    assert run("check", "--strict", path).exit_code == 0
    first, *_ = (here / path).read_text().splitlines()
    schema = json.loads((here / path).with_name(first.rpartition("/")[2]).read_text())
    values = json.loads(json.dumps(yaml.safe_load((here / path).read_text())))
    jsonschema.validate(values, schema)


def test_a_new_rubric_with_the_name_of_one_that_ships_is_said_to_go_before_it(here):
    assert run("new", "brief", "--from", "qa").stdout.splitlines() == [
        "rubrics/brief.yaml: a copy of 'qa'; next: harness rubric check rubrics/brief.yaml",
        "From now on, 'brief' means this one and not the one that ships.",
    ]
    assert "From now on" not in run("new", "drafts/brief.yaml").stdout


def test_the_next_command_can_be_pasted_whatever_the_name(here):
    said = run("new", "my notes").stdout

    assert said.splitlines()[0].endswith("next: harness rubric check 'rubrics/my notes.yaml'")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("mine", "for the file of that name, write 'mine.yaml'", id="without ending"),
        pytest.param("good.md", "a rubric's file ends in .yaml", id="another ending"),
        pytest.param(
            "essay.yaml",
            "essay.yaml: there is no such file; did you mean rubrics/essay.yaml?",
            id="without directory",
        ),
    ],
)
def test_a_file_that_is_named_in_part_is_pointed_out(here, name, message):
    write(here, "essay", GOOD)
    (here / "mine.yaml").write_text(GOOD)
    (here / "good.md").write_text("Good.")
    result = run("check", name)

    assert result.exit_code == 2
    assert message in result.stdout


def test_a_new_rubric_takes_nobodys_place(here):
    write(here, "mine", GOOD)
    result = run("new", "mine")

    assert result.exit_code == 2
    assert result.stderr == (
        "harness: rubrics/mine.yaml: it is there already; choose another name\n"
    )
    assert (here / "rubrics" / "mine.yaml").read_text() == GOOD


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(
            ("mine", "--from", "bref"), "there is no rubric 'bref' in rubrics/", id="unknown base"
        ),
        pytest.param(
            ("file/mine.yaml",), "file/mine.yaml: cannot be written", id="no place for it"
        ),
    ],
)
def test_a_new_rubric_that_cannot_be_made_is_said_not_to_be(here, arguments, message):
    (here / "file").write_text("not a directory")
    result = run("new", *arguments)

    assert result.exit_code == 2
    assert message in result.stderr


def test_the_help_names_every_command():
    result = run("--help")

    assert result.exit_code == 0
    for name in ("check", "list", "new", "noise", "schema", "score"):
        assert f"\n  {name} " in result.stdout
