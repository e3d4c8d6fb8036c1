"""The JSON Schema by which editors check rubrics."""

import json

import pytest
import yaml

from harness.files import shipped_directory
from harness.rubric import load_rubric, rubric_schema

RUBRICS = shipped_directory("rubrics")


@pytest.fixture(scope="module")
def validator():
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(rubric_schema())
    return jsonschema.Draft202012Validator(rubric_schema())


def read(content: str) -> object:
    """A rubric as editors see it: the keys of JSON are texts."""
    return json.loads(json.dumps(yaml.safe_load(content)))


def test_the_file_for_editors_is_the_schema_of_the_code():
    on_disk = json.loads((RUBRICS / "rubric.schema.json").read_text(encoding="utf-8"))

    # To write it anew: harness rubric schema --output rubrics/rubric.schema.json
    assert on_disk == rubric_schema()


def test_every_rubric_that_ships_follows_it_and_names_it(validator):
    for path in RUBRICS.glob("*.yaml"):
        content = path.read_text(encoding="utf-8")
        assert content.splitlines()[0] == "# yaml-language-server: $schema=./rubric.schema.json"
        assert [(path.name, error.message) for error in validator.iter_errors(read(content))] == []


def test_an_editor_takes_the_name_of_a_file_for_the_prompts(validator):
    assert validator.is_valid(read("extends: brief\nprompts: short.prompts.yaml\n"))


@pytest.mark.parametrize(
    "content",
    [
        "title: T\n",
        "title: T\ndimensions: [{name: a, juge: Good}]\n",
        "title: T\ndimensions: [{name: a, judge: Good, weight: 0}]\n",
        "extends: brief\nprompts: {sektion: '{findings}'}\n",
        "extends: brief\nprompts: [short.prompts.yaml]\n",
        "title: T\ndimensions: [{name: a, checks: [{check: magic}]}]\n",
        "title: T\ndimensions: [{name: a, checks: [{check: words, mn: 3}]}]\n",
    ],
)
def test_an_editor_sees_the_mistakes_that_loading_would(validator, content):
    assert not validator.is_valid(read(content))


@pytest.mark.parametrize(
    "content",
    [
        "extends: brief\nprompts: {opening: the beginning}\n",
        "extends: brief\nwithout: [plain]\ndimensions: [{name: useful, weight: 3}]\n",
        "title: T\ndimensions: [{name: a, judge: B, anchors: {9: C, 2.5: D}}]\n",
        "extends: qa\ndimensions: [{name: candour, caps: [{at_most: 5, when: E}]}]\n",
    ],
)
def test_an_editor_sees_none_where_loading_would_not(validator, content, tmp_path):
    assert validator.is_valid(read(content))
    (tmp_path / "mine.yaml").write_text(content)
    assert load_rubric(tmp_path / "mine.yaml").dimensions
