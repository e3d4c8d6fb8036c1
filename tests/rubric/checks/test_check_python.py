"""Python in drafts: that it parses, and that it is written out."""

import pytest
from check_drafts import draft, found

from harness.rubric.checks import NoStubs, ParsesAsPython


def fenced(*codes: str) -> str:
    return "".join(f"# Part {n}\n\n```python\n{code}\n```\n\n" for n, code in enumerate(codes))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(fenced("x = 1"), id="a statement"),
        pytest.param("```py\nx = 1\n```\n", id="the short label"),
        pytest.param("```Python title=a.py\nx = 1\n```\n", id="a label with more"),
        pytest.param("- So:\n\n  ```python\n  if x:\n      y()\n  ```\n", id="in a list"),
        pytest.param("> ```python\n> x = 1\n> ```\n", id="in a quotation"),
        pytest.param("```python\n    x = 1\n    y = 2\n```\n", id="indented as a whole"),
        pytest.param("```python\n>>> x = 1\n>>> x\n1\n```\n", id="a session"),
        pytest.param("```python\n>>> if x:\n...     y\n\n2\n```\n", id="a session of two lines"),
        pytest.param(fenced(r"re.compile('\d')"), id="a needless backslash"),
        pytest.param(fenced("return await x"), id="part of a function"),
        pytest.param(fenced(""), id="nothing"),
    ],
)
def test_python_that_parses(text):
    assert ParsesAsPython().grade(draft(text)).share == 1
    assert ParsesAsPython(min=1).grade(draft(text)).share == 1


@pytest.mark.parametrize(
    ("code", "message"),
    [
        pytest.param(
            "def f(:\n  pass", 'invalid syntax, at line 1 of the block, "def f(:"', id="no"
        ),
        pytest.param("x = [1,\n", "'[' was never closed, at line 1", id="cut"),
        pytest.param("x = 1\n  y = 2", "unexpected indent, at line 2", id="indentation"),
        pytest.param("if x:", "expected an indented block", id="no body"),
        pytest.param("!pip install x", "invalid syntax, at line 1", id="a notebook's"),
        pytest.param(
            "x = '\ud800'", "it holds what Python cannot read", id="half a surrogate pair"
        ),
        pytest.param("(" * 5_000, "nested", id="too deep"),
        pytest.param("-" * 50_000 + "1", "nested too deeply", id="too deep to build"),
    ],
)
def test_python_that_does_not_parse_is_found_in_its_section(code, message):
    grade = ParsesAsPython().grade(draft(fenced("x = 1", code)))

    assert grade.share == 0.5
    ((said, index),) = found(grade)
    assert said.startswith("this Python does not parse: ")
    assert message in said
    assert index == 1


@pytest.mark.parametrize("check", [ParsesAsPython(), NoStubs()])
@pytest.mark.parametrize(
    "text", ["", "It is.", "```sh\nls (\n```\n", "```\ndef f(:\n```\n"], ids=range(4)
)
def test_a_draft_without_python_is_not_judged(check, text):
    grade = check.grade(draft(text))

    assert grade.unjudged == "there is no Python in it"
    assert grade.findings == ()


def test_python_can_be_asked_for():
    grade = ParsesAsPython(min=3).grade(draft(fenced("x = 1", "x = ")))

    assert grade.share == pytest.approx(1 / 3)
    assert found(grade)[1] == ("2 fences labelled python; at least 3 are needed", None)
    assert ParsesAsPython(min=1).grade(draft("")).share == 0


@pytest.mark.parametrize(
    ("code", "stubs"),
    [
        pytest.param("def f(): pass", ["f"], id="pass"),
        pytest.param("def f(): ...", ["f"], id="dots"),
        pytest.param("async def f():\n    'What it does.'", ["f"], id="only a docstring"),
        pytest.param("def f():\n    'Doc.'\n    raise NotImplementedError", ["f"], id="raises"),
        pytest.param("def f(): raise NotImplementedError('later')", ["f"], id="raises with a word"),
        pytest.param("class A:\n  def f(self): pass\n  def g(self): ...", ["f", "g"], id="methods"),
        pytest.param("def f():\n  def g(): ...\n  return g", ["g"], id="a function in another"),
        pytest.param("def f(): return None", [], id="a return"),
        pytest.param("def f(): raise ValueError", [], id="another error"),
        pytest.param("def f():\n  pass\n  return 1", [], id="more than that"),
        pytest.param("class E(Exception): pass", [], id="a class without more to it"),
        pytest.param("@abstractmethod\ndef f(): ...", [], id="abstract"),
        pytest.param("@property\n@abc.abstractmethod\ndef f(): 'x'", [], id="an abstract property"),
        pytest.param("@typing.overload\ndef f(x: int) -> int: ...", [], id="an overload"),
        pytest.param("class P(Protocol):\n  def f(self): ...", [], id="a protocol"),
        pytest.param("class P(t.Protocol[T]):\n  async def f(self): ...", [], id="a generic one"),
        pytest.param("@click.group()\ndef cli(): 'Tools.'", [], id="a group of commands"),
        pytest.param("try:\n  x = 1\nexcept OSError:\n  pass", [], id="a pass elsewhere"),
        pytest.param("def f(:\n  pass", None, id="what does not parse is not judged"),
    ],
)
def test_functions_that_are_left_to_be_written(code, stubs):
    grade = NoStubs().grade(draft(fenced(code)))

    if stubs is None:
        assert grade.unjudged
        return
    assert not grade.unjudged
    assert grade.share == (not stubs)
    assert found(grade) == [(f"write out the function `{s}`, which is a stub", 0) for s in stubs]


@pytest.mark.parametrize(
    ("code", "comments"),
    [
        pytest.param("x = 1  # TODO: more", ["# TODO: more"], id="TODO"),
        pytest.param("# FIXME\n# XXX(me) y\nx = 1", ["# FIXME", "# XXX(me) y"], id="the others"),
        pytest.param("# ... the rest of it\nx = 1", ["# ... the rest of it"], id="dots"),
        pytest.param("x = '# TODO'", [], id="not in a text"),
        pytest.param("# todo lists are sorted\nx = todo", [], id="nor the word"),
        pytest.param("# first ... then\nx = 1", [], id="nor dots between words"),
    ],
)
def test_comments_that_leave_something_to_be_done(code, comments):
    grade = NoStubs().grade(draft(fenced(code)))

    assert found(grade) == [
        (f'do what the comment "{comment}" leaves to be done, and remove it', 0)
        for comment in comments
    ]


@pytest.mark.parametrize(
    ("codes", "undefined"),
    [
        pytest.param(["do_a()\ndo_b(1)"], ["do_a", "do_b"], id="two"),
        pytest.param(["do_a()\ndo_a()"], ["do_a"], id="one, twice"),
        pytest.param(["def f():\n  do_a()\n  do_b()"], ["do_a", "do_b"], id="inside a function"),
        pytest.param(["do_a()"], [], id="one alone"),
        pytest.param(["do_a()", "do_b()"], [], id="one in each block"),
        pytest.param(["print(1)\nlen(x)"], [], id="what Python has"),
        pytest.param(["x.do_a()\nx.do_b()"], [], id="methods"),
        pytest.param(["a = do_a()\nb = do_b()"], [], id="calls whose result is used"),
        pytest.param(["import a, b.c as d\na()\nd()"], [], id="imported"),
        pytest.param(["from a import *\nb()\nc()"], [], id="imported, perhaps"),
        pytest.param(["def a(): return 1", "a()\na()"], [], id="defined in another block"),
        pytest.param(["def f(a, *b, **c):\n  a()\n  b()\n  c()"], [], id="parameters"),
        pytest.param(["a = b = c\na()\nb()"], [], id="assigned"),
        pytest.param(["match x:\n  case [a, *b]:\n    a()\n    b()"], [], id="matched"),
    ],
)
def test_calls_of_functions_that_nobody_defines(codes, undefined):
    grade = NoStubs().grade(draft(fenced(*codes)))

    assert [message for message, _ in found(grade)] == [
        f"define `{name}`, which is only called" for name in undefined
    ]


def test_one_undefined_call_is_too_many_where_a_rubric_says_so():
    assert len(NoStubs(undefined_calls=1).grade(draft(fenced("do_a()"))).findings) == 1


def test_the_share_is_that_of_the_blocks_without_placeholders():
    graded = draft(fenced("x = 1", "def f(): ...\ndef g(): ...", "x = 2", "x ="))

    assert NoStubs().grade(graded).share == pytest.approx(2 / 3)
