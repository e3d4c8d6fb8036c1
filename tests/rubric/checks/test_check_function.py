"""A user's own function as a check."""

import sys

import pytest
from check_drafts import draft, found
from pydantic import ValidationError

from harness.errors import EvaluationFailed
from harness.rubric import Finding
from harness.rubric.checks import Function

MODULE = '''
from __future__ import annotations

from dataclasses import dataclass

from harness.rubric import Draft, Finding
from harness.rubric.checks import Grade


@dataclass
class Own:
    word: str


def share(draft: Draft) -> float:
    """The text is long.

    More about it.
    """
    return min(1, len(draft.text) / 10)

def messages(draft): return 0.5, ["say more", "say less"]
def grade(draft): return Grade(0.25, (Finding("here", section_index=1), Finding("everywhere")))
def all_right(draft): return True
def whole(draft): return 1

def raises(draft): raise KeyError("x")
def nothing(draft): pass
def text(draft): return "good"
def too_much(draft): return 1.01
def not_a_number(draft): return float("nan")
def no_messages(draft): return 0.5, [""]
def numbers(draft): return 0.5, [3]
def no_section(draft): return Grade(0.5, (Finding("here", section_index=9),))
def no_share(draft): return Grade("high")
def no_findings(draft): return Grade(0.5, ("here",))

async def later(draft): return 1
def two(draft, other): return 1
constant = 3
'''


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "own.py").write_text(MODULE, encoding="utf-8")
    return tmp_path


def function(call: str, directory) -> Function:
    return Function.model_validate({"call": call}, context={"directories": (directory,)})


@pytest.mark.parametrize(
    ("name", "share", "findings"),
    [
        pytest.param("share", 0.6, [], id="a share"),
        pytest.param("messages", 0.5, [("say more", None), ("say less", None)], id="messages"),
        pytest.param("grade", 0.25, [("here", 1), ("everywhere", None)], id="a grade"),
        pytest.param("all_right", 1, [], id="yes"),
        pytest.param("whole", 1, [], id="a whole number"),
    ],
)
def test_a_function_beside_the_rubric_scores_the_draft(name, share, findings, directory):
    grade = function(f"./own.py:{name}", directory).grade(draft("# A\n# B"[:6]))

    assert grade.share == share
    assert found(grade) == findings


def test_a_finding_gets_the_title_of_its_section(directory):
    grade = function("own.py:grade", directory).grade(draft("# A\n\n# B\n"))

    assert grade.findings == (Finding("here", "B", 1), Finding("everywhere"))


@pytest.mark.parametrize(
    "name",
    [
        *("nothing", "text", "too_much", "not_a_number", "no_messages", "numbers"),
        *("no_section", "no_share", "no_findings"),
    ],
)
def test_a_function_that_returns_rubbish_gives_no_score(name, directory):
    with pytest.raises(EvaluationFailed, match=rf"check own.py:{name} returned .*; it must return"):
        function(f"own.py:{name}", directory).grade(draft("a"))


def test_a_function_that_raises_gives_no_score(directory):
    with pytest.raises(EvaluationFailed, match=r"own.py:raises raised KeyError: 'x'") as failed:
        function("own.py:raises", directory).grade(draft("a"))

    assert isinstance(failed.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        pytest.param("none.py:share", "none.py cannot be read (No such file", id="no file"),
        pytest.param("own.py:shar", "own.py has no 'shar'; did you mean 'share'", id="no function"),
        pytest.param("own.py:later", "must be a plain function, without async", id="async"),
        pytest.param("own.py:constant", "must be a plain function", id="not a function"),
        pytest.param("own.py:two", "must take one argument, the draft", id="two arguments"),
        pytest.param("own.py", "String should match pattern", id="only a file"),
        pytest.param("broken.py:f", "broken.py fails: SyntaxError: ", id="broken"),
        pytest.param("leaves.py:f", "leaves.py fails: SystemExit: 3", id="leaves"),
        pytest.param(
            "no_such_module:f", "there is no module 'no_such_module' installed", id="none"
        ),
        pytest.param("own:share", "written './own.py:function'", id="a file without its ending"),
        pytest.param("needs.py:f", "needs.py fails: ModuleNotFoundError: ", id="needs another"),
        pytest.param("json.nothing:f", "there is no module 'json.nothing'", id="no submodule"),
        pytest.param("json:nothing", "json has no 'nothing'", id="nothing in the module"),
    ],
)
def test_what_cannot_be_called_is_refused_on_loading(call, message, directory):
    (directory / "broken.py").write_text("def f(:", encoding="utf-8")
    (directory / "needs.py").write_text("import own", encoding="utf-8")
    (directory / "leaves.py").write_text("raise SystemExit(3)", encoding="utf-8")

    with pytest.raises(ValidationError) as refused:
        function(call, directory)

    assert message in str(refused.value)


def test_an_installed_function_is_imported():
    check = Function(call="harness.rubric.ending:_ends_sentence", requires="It ends.")

    with pytest.raises(EvaluationFailed, match="AttributeError"):  # it wants a text, not a draft
        check.grade(draft("a"))


def test_nothing_is_put_where_imports_look(directory):
    (directory / "json.py").write_text("def f(draft): return 1", encoding="utf-8")
    before = list(sys.path)

    check = function("./json.py:f", directory)

    assert check.grade(draft("a")).share == 1
    assert sys.path == before
    assert sys.modules["json"].__name__ == "json"
    assert hasattr(sys.modules["json"], "dumps")


def test_a_file_that_was_changed_is_read_again_and_makes_another_rubric(directory):
    first = function("own.py:whole", directory)
    again = function("own.py:whole", directory)
    # As long as before, and in the same second.
    (directory / "own.py").write_text(
        MODULE.replace("def whole(draft): return 1", "def whole(draft): return 0"), encoding="utf-8"
    )
    changed = function("own.py:whole", directory)

    assert not (directory / "__pycache__").exists()
    assert first == again
    assert first.model_dump() == again.model_dump()
    assert changed.grade(draft("a")).share == 0
    assert changed.model_dump() != first.model_dump()


@pytest.mark.parametrize(
    ("name", "requires", "said"),
    [
        pytest.param("share", "", "The text is long.", id="its docstring"),
        pytest.param("share", "It is very long", "It is very long.", id="the rubric's words"),
        pytest.param("whole", "", "The text satisfies own.py:whole.", id="only its name"),
    ],
)
def test_an_author_is_told_what_a_function_requires(name, requires, said, directory):
    check = Function.model_validate(
        {"call": f"own.py:{name}", "requires": requires}, context={"directories": (directory,)}
    )

    assert check.requirement == said
