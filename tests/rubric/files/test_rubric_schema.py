import json
from pathlib import Path

import pytest
import yaml

from harness.rubric import load_rubric_file, rubric_schema
from harness.rubric.checks import CHECKS
from harness.shipped import shipped_directory

RUBRICS = shipped_directory("rubrics")
SHIPPED = sorted(RUBRICS.glob("*.yaml"))


@pytest.fixture(scope="module")
def validator():
    jsonschema = pytest.importorskip("jsonschema")
    return jsonschema.Draft202012Validator(rubric_schema())


def read(content: str) -> object:
    """A rubric as editors see it: the keys of JSON are texts."""
    return json.loads(json.dumps(yaml.safe_load(content)))


def test_the_file_for_editors_is_the_schema_of_the_code():
    on_disk = json.loads((RUBRICS / "rubric.schema.json").read_text(encoding="utf-8"))

    # To write it anew: harness rubric schema --output rubrics/rubric.schema.json
    assert on_disk == rubric_schema()


def test_the_schema_is_one_and_describes_every_field(validator):
    schema = rubric_schema()
    validator.check_schema(schema)
    parts = [schema, *schema["$defs"].values()]
    undescribed = [
        f"{part['title']}.{name}"
        for part in parts
        for name, field in part["properties"].items()
        if "description" not in field and name != "check"
    ]

    assert undescribed == []
    assert {"title", "dimensions"} <= schema["properties"].keys()
    assert not {"id", "sha256"} & schema["properties"].keys()
    assert {check.__name__ for check in CHECKS.values()} <= schema["$defs"].keys()


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_rubric_that_ships_follows_the_schema_and_names_it(validator, path: Path):
    content = path.read_text(encoding="utf-8")

    assert content.splitlines()[0] == "# yaml-language-server: $schema=./rubric.schema.json"
    assert [error.message for error in validator.iter_errors(read(content))] == []


@pytest.mark.parametrize(
    "dimension",
    [
        pytest.param("{name: a, juge: Good}", id="misspelt field"),
        pytest.param("{judge: Good}", id="no name"),
        pytest.param("{name: a, judge: Good, weight: 0}", id="weight of 0"),
        pytest.param("{name: a, checks: [{check: magic}]}", id="unknown check"),
        pytest.param("{name: a, checks: [{min: 3}]}", id="check without a name"),
        pytest.param("{name: a, checks: [{check: words, mn: 3}]}", id="misspelt parameter"),
    ],
)
def test_an_editor_sees_the_mistakes_that_loading_would(validator, dimension):
    assert not validator.is_valid(read(f"title: T\ndimensions: [{dimension}]\n"))


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(
            "title: T\ndimensions: [{name: a, checks: [{check: words, min: 3}]}, "
            "{name: b, judge: Good}]\n",
            id="a rubric by itself",
        ),
        pytest.param("extends: brief\n", id="nothing but what it extends"),
        pytest.param(
            "extends: brief\nwithout: [plain]\ndimensions: [{name: useful, weight: 3}]\n",
            id="a change",
        ),
        pytest.param(
            "title: T\npreset: code\ndimensions: [{name: a, judge: B, anchors: {9: C, 2.5: D}, "
            "caps: [{at_most: 5, when: E}, {at_most: 3, unless: {check: finished}}]}]\n",
            id="anchors and caps",
        ),
    ],
)
def test_an_editor_sees_none_where_loading_would_not(validator, content, tmp_path):
    assert validator.is_valid(read(content))
    (tmp_path / "mine.yaml").write_text(content)
    assert load_rubric_file(tmp_path / "mine.yaml").dimensions


@pytest.mark.parametrize("missing", ["title: T\n", "dimensions: [{name: a, judge: B}]\n"])
def test_an_editor_misses_what_a_rubric_by_itself_must_have(validator, missing):
    assert not validator.is_valid(read(missing))
