"""Checks of Python and JSON in drafts, and those that users write in Python."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from graded import draft, found, messages, refused

from harness.errors import EvaluationFailed
from harness.rubric import Finding, read_rubric
from harness.rubric.checks import Function, Json, NoStubs, ParsesAsPython
from harness.rubric.scoring import checked_score

# --- Python --------------------------------------------------------------------------------------


def fenced(*codes: str) -> str:
    return "".join(f"# Part {n}\n\n```python\n{code}\n```\n\n" for n, code in enumerate(codes))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(fenced("x = 1"), id="a statement"),
        pytest.param("```Python title=a.py\nx = 1\n```\n", id="a label with more"),
        pytest.param("- So:\n\n  ```python\n  if x:\n      y()\n  ```\n", id="in a list"),
        pytest.param("```python\n    x = 1\n    y = 2\n```\n", id="indented as a whole"),
        pytest.param("```python\n>>> if x:\n...     y\n\n2\n```\n", id="a session of two lines"),
        pytest.param(fenced("return await x"), id="part of a function"),
    ],
)
def test_python_that_parses(text):
    assert ParsesAsPython().grade(draft(text)).share == 1


@pytest.mark.parametrize(
    ("code", "says"),
    [
        pytest.param("def f(:\n  pass", 'line 1 of the block, "def f(:"', id="no"),
        pytest.param("x = [1,\n", "line 1", id="cut"),
        pytest.param("x = '\ud800'", "surrogates", id="half a surrogate pair"),
        pytest.param("-" * 50_000 + "1", "nested", id="too deep to build"),
    ],
)
def test_python_that_does_not_parse_is_found_in_its_section(code, says):
    grade = ParsesAsPython().grade(draft(fenced("x = 1", code)))

    assert (grade.share, found(grade)) == (0.5, ["python-invalid@1"])
    assert says in messages(grade)


@pytest.mark.parametrize("check", [ParsesAsPython(), NoStubs()])
@pytest.mark.parametrize("text", ["", "It is.", "```sh\nls (\n```\n", "```\ndef f(:\n```\n"])
def test_a_draft_without_python_is_not_judged(check, text):
    grade = check.grade(draft(text))

    assert (bool(grade.unjudged), grade.findings) == (True, ())


STUBS = {
    "pass": ("def f(): pass", ["f"]),
    "only a docstring": ("async def f():\n    'What it does.'", ["f"]),
    "raises": ("def f():\n    'Doc.'\n    raise NotImplementedError", ["f"]),
    "methods": ("class A:\n  def f(self): pass\n  def g(self): ...", ["f", "g"]),
    "a function in another": ("def f():\n  def g(): ...\n  return g", ["g"]),
    "more than that": ("def f():\n  pass\n  return 1", []),
    "abstract": ("@abstractmethod\ndef f(): ...", []),
    "an overload": ("@typing.overload\ndef f(x: int) -> int: ...", []),
    "a protocol": ("class P(Protocol):\n  def f(self): ...", []),
    "a group of commands": ("@click.group()\ndef cli(): 'Tools.'", []),
    "a pass elsewhere": ("try:\n  x = 1\nexcept OSError:\n  pass", []),
}
COMMENTS = {
    "the others": ("# FIXME\n# XXX(me) y\nx = 1", ["# FIXME", "# XXX(me) y"]),
    "not in a text": ("x = '# TODO'", []),
    "nor the word": ("# todo lists are sorted\nx = todo", []),
}
PLACEHOLDERS = {
    f"{code}: {name}": (code, *row)
    for code, rows in {"stub": STUBS, "placeholder": COMMENTS}.items()
    for name, row in rows.items()
}


@pytest.mark.parametrize(("code", "python", "names"), PLACEHOLDERS.values(), ids=PLACEHOLDERS)
def test_what_is_left_to_be_written_is_found(code, python, names):
    grade = NoStubs().grade(draft(fenced(python)))

    assert (grade.unjudged, grade.share) == ("", not names)
    assert found(grade) == [f"{code}@0"] * len(names)
    assert all(name in messages(grade) for name in names)


def test_the_share_is_that_of_the_blocks_without_placeholders_and_what_does_not_parse_is_none():
    graded = draft(fenced("x = 1", "def f(): ...\ndef g(): ...", "x = 2", "x ="))

    assert NoStubs().grade(graded).share == pytest.approx(2 / 3)
    assert NoStubs().grade(draft(fenced("def f(:\n  pass"))).unjudged


# --- JSON ----------------------------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "required": ["name"],
    "properties": {"name": {"type": "string"}, "sizes": {"items": {"$ref": "#/$defs/size"}}},
    "$defs": {"size": {"type": "integer", "minimum": 1}},
}
NAMED = '```json\n{"name": "a"}\n```\n'


@pytest.mark.parametrize(
    ("text", "places"),
    [
        pytest.param('{"name": "a", "sizes": [1, 2]}', [], id="the whole draft"),
        pytest.param(f"# A\n\nSo:\n\n{NAMED}", [], id="a fence"),
        pytest.param(f"{NAMED}\n```json\n7\n```\n", [], id="the first of two"),
        pytest.param('{"name": 7, "sizes": [1, 0]}', ["$.name: 7", "$.sizes[1]: 0"], id="two"),
    ],
)
def test_a_draft_follows_a_schema(text, places):
    grade = Json(against=SCHEMA).grade(draft(text))
    code = "schema-violated@0" if "```" in text else "schema-violated"
    assert (grade.share, found(grade)) == (1 / (1 + len(places)), [code] * len(places))
    assert all(place in messages(grade) for place in places)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        pytest.param("Here you are.", "json-invalid", id="prose"),
        pytest.param("{'name': 'a'}", "json-invalid", id="Python"),
        pytest.param('# A\n\nSo.\n\n# B\n\n```json\n{"a":\n```\n', "json-invalid@1", id="cut"),
        pytest.param("[" * 100_000, "json-too-deep", id="too deep"),
    ],
)
def test_what_is_not_json_has_no_share(text, code):
    grade = Json(against=SCHEMA).grade(draft(text))

    assert (grade.share, found(grade)) == (0, [code])


@pytest.fixture
def usual_recursion():
    """Python's own limit, which mypy raises for the process."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(limit)


@pytest.mark.usefixtures("usual_recursion")
@pytest.mark.parametrize("more", [{}, {"pattern": "x"}])
def test_a_schema_that_follows_json_down_too_deep_is_a_fault_of_the_draft(more):
    grade = Json(against={"items": {"$ref": "#"}, **more}).grade(draft("[" * 900 + "]" * 900))

    assert found(grade) == ["json-too-deep"]


def test_a_schema_may_stand_in_a_file_beside_the_rubric_or_its_base(tmp_path):
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
    assert '"required": ["name"]' in inherited.requirement


@pytest.mark.parametrize(
    ("content", "code"),
    [(None, "named-file-unreadable"), ("{", "named-file-not-json"), ("[1]", "dict_type")],
)
def test_a_file_that_holds_no_schema_is_refused(content, code, tmp_path):
    if content is not None:
        (tmp_path / "s.json").write_text(content, encoding="utf-8")
    context = {"directories": (tmp_path,)}
    assert refused(Json.model_validate, {"against": "s.json"}, context=context) == code


ELSEWHERE = "http://127.0.0.1:9/s.json"


@pytest.mark.parametrize(
    ("schema", "code"),
    [
        pytest.param({"pattern": "("}, "schema-invalid", id="a broken pattern"),
        pytest.param({"$schema": ["urn:x"]}, "schema-invalid", id="a draft that is no text"),
        pytest.param({"$ref": "#/$defs/a"}, "schema-reference", id="a dead end"),
        pytest.param({"allOf": [{"$ref": ELSEWHERE}]}, "schema-reference", id="somewhere else"),
    ],
)
def test_what_is_no_schema_is_refused_before_any_draft(schema, code):
    assert refused(Json, against=schema) == code


def test_a_reference_that_only_a_draft_brings_up_is_not_fetched():
    with pytest.raises(EvaluationFailed, match=ELSEWHERE):
        Json(against={"items": {"$id": "urn:part", "$ref": ELSEWHERE}}).grade(draft("[7]"))


# --- functions of the user's own -----------------------------------------------------------------

MODULE = """
from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from harness.rubric import Draft, Finding
from harness.rubric.checks import Grade


@dataclass
class Own:
    word: str


def share(draft: Draft) -> float:
    return min(1, len(draft.text) / 10)

def messages(draft): return 0.5, ["say more", "say less"]
def grade(draft): return Grade(0.25, (Finding("here", section_index=1), Finding("everywhere")))
def all_right(draft): return True
def whole(draft): return 1
def decimal(draft): return Decimal("0.5")
def decimal_grade(draft): return Grade(Decimal("0.25"))
def unjudged(draft): return Grade(0.0, unjudged="there is no table")

def raises(draft): raise KeyError("x")
def own_mistake(draft): return None.split()
def nothing(draft): pass
def text(draft): return "good"
def too_much(draft): return 1.01
def not_a_number(draft): return float("nan")
def no_messages(draft): return 0.5, [""]
def numbers(draft): return 0.5, [3]
def no_section(draft): return Grade(0.5, (Finding("here", section_index=9),))
def no_share(draft): return Grade("high")
def no_findings(draft): return Grade(0.5, ("here",))
def no_reason(draft): return Grade(1.0, unjudged=True)

async def later(draft): return 1
def two(draft, other): return 1
"""


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "own.py").write_text(MODULE, encoding="utf-8")
    return tmp_path


def function(call: str, directory, **fields) -> Function:
    given = {"call": call, **fields}
    return Function.model_validate(given, context={"directories": (directory,)})


@pytest.mark.parametrize(
    ("name", "share", "findings"),
    [
        ("share", 0.9, ()),
        ("messages", 0.5, (Finding("say more"), Finding("say less"))),
        ("grade", 0.25, (Finding("here", "B", 1), Finding("everywhere"))),
        *((name, 1, ()) for name in ("all_right", "whole")),
        ("decimal", 0.5, ()),
        ("decimal_grade", 0.25, ()),
    ],
)
def test_a_function_beside_the_rubric_scores_the_draft(name, share, findings, directory):
    grade = function(f"./own.py:{name}", directory).grade(draft("# A\n\n# B\n"))

    assert (grade.share, grade.findings, type(grade.share)) == (share, findings, float)


def test_a_function_may_say_why_it_cannot_judge(directory):
    assert function("own.py:unjudged", directory).grade(draft("a")).unjudged == "there is no table"
    # Its share does not count, also under a floor.
    checks = "[{ check: function, call: ./own.py:unjudged }, { check: finished }]"
    own = directory / "own.yaml"
    own.write_text(f"title: O\ndimensions:\n- {{ name: own, floor: 5, checks: {checks} }}\n")
    rubric = read_rubric(own).rubric
    assert checked_score(rubric.dimensions[0], draft("All is here."), rubric).score == 10


@pytest.mark.parametrize(
    "name",
    [
        *("raises", "nothing", "text", "too_much", "not_a_number", "no_messages", "numbers"),
        *("no_section", "no_share", "no_findings", "no_reason", "own_mistake"),
    ],
)
def test_a_function_that_raises_or_returns_rubbish_gives_no_score(name, directory):
    with pytest.raises(EvaluationFailed, match=f"own.py:{name}") as failed:
        function(f"own.py:{name}", directory).grade(draft("a"))

    assert isinstance(failed.value.__cause__, KeyError) is (name == "raises")
    # Nothing is said of the text where the mistake is elsewhere.
    assert "draft.text" not in str(failed.value)


@pytest.mark.parametrize("taken", ["draft.split()", "len(draft)", "'a' in draft", "draft[0]"])
def test_a_function_of_a_text_is_told_where_the_text_is(taken, directory):
    (directory / "text.py").write_text(f"def f(draft): return bool({taken})")
    with pytest.raises(EvaluationFailed, match=r"whose text is `draft\.text`"):
        function("text.py:f", directory).grade(draft("a"))


@pytest.mark.parametrize(
    ("call", "code"),
    [
        pytest.param("none.py:share", "named-file-unreadable", id="no file"),
        pytest.param("own.py:shar", "function-missing", id="no function"),
        pytest.param("own.py:later", "function-not-plain", id="async"),
        pytest.param("own.py:two", "function-arguments", id="two arguments"),
        pytest.param("broken.py:f", "module-fails", id="broken"),
        pytest.param("no_such_module:f", "module-missing", id="none"),
        pytest.param("own:share", "module-missing", id="a file without its ending"),
    ],
)
def test_what_cannot_be_called_is_refused_on_loading(call, code, directory):
    (directory / "broken.py").write_text("def f(:", encoding="utf-8")

    assert refused(function, call, directory) == code


@pytest.mark.parametrize(
    ("content", "code"), [("import no_such_module", "module-missing"), ("1 / 0", "module-fails")]
)
def test_an_installed_module_that_fails_is_refused(content, code, tmp_path, monkeypatch):
    name = f"harness_test_{code.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(content, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)

    assert refused(Function, call=f"{name}:f") == code


def test_nothing_is_put_where_imports_look(directory):
    (directory / "json.py").write_text("def f(draft): return 1", encoding="utf-8")
    before = list(sys.path)

    check = function("./json.py:f", directory)

    assert check.grade(draft("a")).share == 1
    assert sys.path == before
    assert sys.modules["json"] is json


def test_a_file_that_another_thread_runs_is_waited_for(directory):
    (directory / "slow.py").write_text("import time\ntime.sleep(0.2)\ndef f(draft): return 1")
    with ThreadPoolExecutor() as threads:
        assert len([*threads.map(function, ["./slow.py:f"] * 3, [directory] * 3)]) == 3


def test_a_file_that_was_changed_is_read_again_and_makes_another_rubric(directory):
    first = function("own.py:whole", directory)
    again = function("own.py:whole", directory)
    # As long as before, and in the same second.
    changed_module = MODULE.replace("def whole(draft): return 1", "def whole(draft): return 0")
    (directory / "own.py").write_text(changed_module, encoding="utf-8")
    changed = function("own.py:whole", directory)

    assert not (directory / "__pycache__").exists()
    assert first == again
    assert first.model_dump() == again.model_dump() != changed.model_dump()
    assert changed.grade(draft("a")).share == 0


LATEST = "https://json-schema.org/draft/2020-12/schema"
D2019, D7 = LATEST.replace("2020-12", "2019-09"), "http://json-schema.org/draft-07/schema#"
LONG, DEFS = "a" * 40 + "!", {"$defs": {"n": {"patternProperties": {"(a|a)+b": {}}}}}


@pytest.mark.parametrize(
    "schema",
    [
        {"items": {"pattern": "^(a|a)+$"}},
        {"items": {"type": "string", "anyOf": [{"pattern": "(a|a)+b"}]}},
        {"$schema": LATEST, "items": {"$ref": "#"}, "pattern": "(a|a)+b"},
        {"items": {"patternProperties": {"(a|a)+b": {}}}},
        {"items": {"additionalProperties": False, "patternProperties": {"(a|a)+b": {}}}},
        {"items": {"unevaluatedProperties": False, "patternProperties": {"(a|a)+b": {}}}},
        {"$schema": D2019, "items": {"unevaluatedProperties": False, "$ref": "#/$defs/n"}, **DEFS},
    ],
    ids=["nested", "either", "by its draft", "names", "other names", "unevaluated", "by reference"],
)
def test_a_pattern_in_a_schema_has_its_time(schema):
    with pytest.raises(EvaluationFailed):
        Json(against=schema, timeout_s=0.5).grade(draft(json.dumps([LONG, {LONG: 1}])))


P, CLOSED = "patternProperties", {"additionalProperties": False}
NAMES, SLOW = {P: {"^a": {"type": "string"}}, **CLOSED}, {"enum": {P: {"^(a+)+$": {}}}}


def referring(reference: str, keyword: str, value: object) -> dict[str, object]:
    a = {"properties": {"c": {}}}
    return {P: {"^a": {keyword: value}}, "properties": {"a": a, "b": {"$ref": reference}}}


KEPT = {
    "texts": ({"items": {"pattern": "^[0-9]+$"}}, ["17", "x"], 1),
    "names": (NAMES, {"ab": "c", "ac": 1, "b": 1}, 2),
    "groups": ({P: {r"^(b)\1": {}, r"^(a)\1": {}}, **CLOSED}, {"aa": 1}, 0),
    "a part": (referring("#/properties/a", "required", ["x"]), {"a": {"x": 1}, "b": {}}, 0),
    "deeper": (referring("#/properties/a/properties/c", "type", "object"), {"a": {}, "b": 1}, 0),
    "an anchor": (referring("#n", "$anchor", "n"), {"b": 1}, 0),
    "an id": (referring("urn:n", "$id", "urn:n"), {"b": 1}, 0),
    "no keyword": ({"x-doc": {P: "text"}}, {"a": 1}, 0),
    "a member": ({"dependentRequired": {P: ["a"]}}, {P: 1, "a": 1}, 0),
    "an earlier member": ({"$schema": D7, "dependencies": {P: ["a"]}}, {P: 1, "a": 1}, 0),
    "names elsewhere": ({"properties": {"b": {P: {"(a|a)+b": {}}}}}, {LONG: 1, "b": {}}, 0),
    "slow": ({"$schema": D7, "dependencies": SLOW}, {LONG: 1, "enum": 1}, 0),
}


@pytest.mark.parametrize(("schema", "content", "faults"), KEPT.values(), ids=KEPT)
def test_a_schema_with_patterns_is_kept_to_like_any_other(schema, content, faults):
    grade = Json(against=schema, timeout_s=1).grade(draft(json.dumps(content)))
    assert (grade.share, found(grade)) == (1 / (1 + faults), ["schema-violated"] * faults)
