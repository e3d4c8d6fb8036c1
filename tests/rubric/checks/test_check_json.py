"""JSON that follows a schema, in files and in rubrics."""

import json

import pytest
from check_drafts import draft, found
from pydantic import ValidationError

from harness.errors import EvaluationFailed
from harness.rubric.checks import Json

SCHEMA = {
    "type": "object",
    "required": ["name"],
    "properties": {"name": {"type": "string"}, "sizes": {"items": {"$ref": "#/$defs/size"}}},
    "$defs": {"size": {"type": "integer", "minimum": 1}},
}


@pytest.mark.parametrize(
    ("text", "share", "messages"),
    [
        pytest.param('{"name": "a", "sizes": [1, 2]}', 1, [], id="the whole draft"),
        pytest.param('# A\n\nSo:\n\n```json\n{"name": "a"}\n```\n', 1, [], id="a fence"),
        pytest.param('- So:\n\n  ```json\n  {"name": "a"}\n  ```\n', 1, [], id="in a list"),
        pytest.param(
            '```json\n{"name": "a"}\n```\n\n```json\n7\n```\n', 1, [], id="the first of two"
        ),
        pytest.param(
            '```json\n{"sizes": []}\n```\n', 1 / 2, ["$: 'name' is a required property"], id="one"
        ),
        pytest.param(
            '{"name": 7, "sizes": [1, 0]}',
            1 / 3,
            ["$.name: 7 is not of type 'string'", "$.sizes[1]: 0 is less than the minimum of 1"],
            id="two faults",
        ),
    ],
)
def test_a_draft_follows_a_schema(text, share, messages):
    grade = Json(against=SCHEMA).grade(draft(text))

    assert grade.share == pytest.approx(share)
    assert [finding.message for finding in grade.findings] == messages


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("Here you are.", id="prose"),
        pytest.param("{'name': 'a'}", id="Python"),
        pytest.param('{"name": NaN}', id="not a number"),
        pytest.param('```json\n{"name": "a"\n```\n', id="cut"),
        pytest.param('{"name": ' + "9" * 5000 + "}", id="a number too long for Python"),
    ],
)
def test_what_is_not_json_has_no_share(text):
    grade = Json(against=SCHEMA).grade(draft(text))

    assert grade.share == 0
    assert grade.findings[0].message.startswith("this is not JSON: ")


def test_a_fault_is_found_in_the_section_of_the_fence():
    grade = Json(against=SCHEMA).grade(draft("# A\n\nText.\n\n# B\n\n```json\n[]\n```\n"))

    assert found(grade) == [("$: [] is not of type 'object'", 1)]
    assert grade.findings[0].section == "B"


def test_of_many_and_long_faults_some_are_said_in_short():
    wrong = {"name": "a", "sizes": ["x" * 5_000] * 500}

    grade = Json(against=SCHEMA).grade(draft(json.dumps(wrong)))

    assert len(grade.findings) == 10
    assert grade.share == 1 / 11
    assert all(len(finding.message) < 250 for finding in grade.findings)
    assert grade.findings[0].message.endswith("is not of type 'integer'")


def test_json_nested_beyond_reason_is_a_fault_of_the_draft():
    deep = {"items": {"$ref": "#"}}

    for text in ("[" * 100_000, "[" * 900 + "]" * 900):
        assert (
            found(Json(against=deep).grade(draft(text)))[0][0] == "this JSON is nested too deeply"
        )


def test_a_schema_may_stand_in_a_file_beside_the_rubric(tmp_path):
    here, base = tmp_path / "here", tmp_path / "base"
    here.mkdir()
    base.mkdir()
    (base / "report.json").write_text(json.dumps(SCHEMA), encoding="utf-8")
    (base / "other.json").write_text("{}", encoding="utf-8")
    (here / "other.json").write_text('{"type": "array"}', encoding="utf-8")
    context = {"directories": (here, base)}

    inherited = Json.model_validate({"against": "report.json"}, context=context)
    own = Json.model_validate({"against": "other.json"}, context=context)

    assert inherited == Json(against=SCHEMA)
    assert own.against == {"type": "array"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(None, "cannot be read (No such file or directory)", id="missing"),
        pytest.param("{", "is not JSON", id="broken"),
        pytest.param("[" * 100_000, "is not JSON", id="too deep"),
        pytest.param("[1]", "should be a valid dictionary", id="a list"),
    ],
)
def test_a_file_that_holds_no_schema_is_refused(content, message, tmp_path):
    if content is not None:
        (tmp_path / "s.json").write_text(content, encoding="utf-8")

    with pytest.raises(ValidationError) as refused:
        Json.model_validate({"against": "s.json"}, context={"directories": (tmp_path,)})

    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        pytest.param({"type": "text"}, "not a JSON Schema: $.type: 'text' is not", id="no type"),
        pytest.param({"pattern": "("}, "not a JSON Schema: $.pattern", id="a broken pattern"),
        pytest.param({"$schema": "urn:x"}, "'$schema: urn:x' is no draft", id="unknown draft"),
        pytest.param({"$ref": "#/$defs/a"}, "'$ref: /$defs/a' leads to nothing", id="a dead end"),
        pytest.param(
            {"items": [], "allOf": [{"$ref": "http://127.0.0.1:9/s.json"}]},
            "not a JSON Schema",
            id="items of an older draft",
        ),
        pytest.param(
            {"allOf": [{"$ref": "http://127.0.0.1:9/s.json"}]},
            "'$ref: http://127.0.0.1:9/s.json' leads to nothing inside the schema",
            id="somewhere else",
        ),
    ],
)
def test_what_is_no_schema_is_refused_before_any_draft(schema, message):
    with pytest.raises(ValidationError) as refused:
        Json(against=schema)

    assert message in str(refused.value)


def test_an_older_draft_is_followed_where_the_schema_names_it():
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "string"}]}

    assert Json(against=schema).grade(draft('["a"]')).share == 1
    assert Json(against=schema).grade(draft("[7]")).share == 0.5


def test_a_reference_that_only_a_draft_brings_up_is_not_fetched():
    schema = {"items": {"$id": "urn:part", "$ref": "http://127.0.0.1:9/s.json"}}

    with pytest.raises(EvaluationFailed, match=r"127\.0\.0\.1:9/s\.json', which is not in it"):
        Json(against=schema).grade(draft("[7]"))


def test_an_author_is_told_the_schema():
    assert '"required": ["name"]' in Json(against=SCHEMA).requirement
