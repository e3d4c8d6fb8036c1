import functools
import gc
import importlib.util
import itertools
import re
import subprocess
import sys
import textwrap
import weakref
import zipfile

import pytest

from harness.graph.fingerprint import code_of

_numbers = itertools.count(1)


def code_digest(function):
    return code_of(function).digest


def load(path):
    """A file as a module of a new name, as if in a new process."""
    name = f"written_{next(_numbers)}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    exec(compile(path.read_text(), str(path), "exec"), vars(module))
    return module


@pytest.fixture
def digest_of(tmp_path, monkeypatch):
    """The digest of `node` in a file of this text, beside other files."""
    monkeypatch.syspath_prepend(tmp_path)

    def digest_of(text, *, file="nodes.py", **beside):
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        for name, content in beside.items():
            (tmp_path / f"{name}.py").write_text(textwrap.dedent(content))
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        (tmp_path / file).write_text(textwrap.dedent(text))
        return code_digest(load(tmp_path / file).node)

    before = set(sys.modules)
    yield digest_of
    for name in set(sys.modules) - before:
        del sys.modules[name]


# --- what counts: each of the alternatives that stand in «old|new» --------------------------------


def plain(text):
    return re.sub(r"«(.*?)\|.*?»", r"\1", text)


def changes(text):
    """The text with one of its alternatives, for each of them."""
    return [
        pytest.param(
            plain(f"{text[: one.start()]}{one[2]}{text[one.end() :]}"), id=f"{one[1]} → {one[2]}"
        )
        for one in re.finditer(r"«(.*?)\|(.*?)»", text)
    ]


NODE_OR = """
import asyncio
from dataclasses import dataclass, field
from typing import Literal
from pydantic import BaseModel, Field

PROMPT = "Say it in {words} words«| or less»."
LIMITS = {"words": «10|11», "tries": «[1, 2]|[2, 1]»}
KNOWN = {"b", "«a|c»"}

class Answer(BaseModel):
    "What to «answer|say»."
    text: str = Field(description="«the|any» text", max_length=«90|91», pattern="^[«a-z|A-Z»]")
    «|more: int»
    grade: Literal[«|"fair", »"good", "bad"] = "«good|bad»"

@dataclass(frozen=True)
class Settings:
    depth: int = «3|4»
    names: list[str] = field(default_factory=«list|set»)

    def deeper(self):
        return self.depth + «1|2»

SETTINGS = Settings(depth=«4|5»)

def innermost(text):
    return text.«strip|rstrip»("« |-»")

def helper(text):
    return innermost(text) + "«!|?»"

def decorate(policy):
    return lambda function: function

@decorate(policy=3)
async def node(run, task: str, words: int = «5|6», «*, |»tone="«plain|odd»") -> str:
    if words «>|>=» LIMITS["words"] and task in KNOWN:
        words = SETTINGS.deeper()
    prompt = PROMPT.format(words=words)
    titles = [word.«title|upper»() for word in prompt.split() if word in {"Say", "«it|that»"}]
    await asyncio.sleep(«0|1»)
    await asyncio.sleep(«0|False»)
    try:
        answer = await run.chat("producer", prompt, returns=Answer, key=lambda a: a + «1|2»)
    except «ValueError|TypeError»:
        raise
    return helper(answer.text) + tone + "".join(titles)
"""
NODE = plain(NODE_OR)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("-> str:\n", '-> str:\n    """A docstring."""\n'),
        ("policy=3", "policy=4"),
        ("task: str", "task: object"),
        ("\nimport asyncio", "\nfrom __future__ import annotations\nimport asyncio"),
        ("innermost(text):\n", 'innermost(text):\n    "Of a helper."\n'),
        ("def decorate", "def text(): 'as an attribute is called'\ndef decorate"),
    ],
)
def test_what_does_not_change_what_it_does_leaves_the_digest(digest_of, old, new):
    assert old in NODE

    assert digest_of(NODE.replace(old, new)) == digest_of(NODE)


@pytest.mark.parametrize("changed", changes(NODE_OR))
def test_what_changes_what_it_does_changes_the_digest(digest_of, changed):
    assert digest_of(changed) != digest_of(NODE)


def test_the_name_of_a_parameter_and_whether_it_is_async_count(digest_of):
    plain = NODE.replace("async def node", "def node").replace("await ", "")

    assert len({digest_of(NODE), digest_of(NODE.replace("task", "job")), digest_of(plain)}) == 3


def test_constants_beyond_the_reach_of_one_byte_leave_no_trace_of_where_they_stand(digest_of):
    """With a docstring every constant stands one place further; from 256 on they look other."""
    lines = "\n".join(f"    if n == {n + 0.5}: return {n}" for n in range(300))
    text = f"def node(n):\n    try:\n        n += 1\n    except ValueError:\n        n = 2\n{lines}"

    assert digest_of(text.replace("(n):", '(n):\n    "Why."', 1)) == digest_of(text)


def test_neither_the_name_of_a_file_nor_the_order_of_a_set_nor_of_functions_counts(digest_of):
    before, after = NODE.split("def decorate")
    twice = "def decorate(policy):\n    return lambda f: f\n\ndef innermost"
    moved = f"{before.replace('def innermost', twice)}def decorate{after}"
    one, other = (NODE.replace('{"b", "a"}', f"set({order})") for order in ([0, 8], [8, 0]))

    assert re.fullmatch("[0-9a-f]{32}", digest_of(NODE))
    assert digest_of(NODE, file="other_name.py") == digest_of(moved) == digest_of(NODE)
    assert digest_of(one) == digest_of(other)


# --- what lies elsewhere -------------------------------------------------------------------------

USES = {
    "by attribute": "import beside\ndef node(): return beside.shout(beside.TEXT)",
    "by name": "from beside import TEXT, shout\ndef node(): return shout(TEXT)",
}
USES_WHOLE = {
    "handed on whole": "import beside\ndef node(): return getattr(beside, 'TEXT')",
    "imported whole inside": "def node():\n    import beside\n    return beside.TEXT",
}
BESIDE = """
import below
TEXT = "text"
OTHER = 1
def shout(text):
    return below.upper(text)
"""
BELOW = "def upper(text): return text.upper()"


@pytest.mark.parametrize("text", USES.values(), ids=USES)
def test_what_is_used_of_a_module_beside_it_counts_and_nothing_else(digest_of, text):
    first = digest_of(text, beside=BESIDE, below=BELOW)

    assert digest_of(text, beside=BESIDE.replace("OTHER = 1", "OTHER = 2"), below=BELOW) == first
    assert digest_of(text, beside=BESIDE.replace('"text"', '"words"'), below=BELOW) != first
    assert digest_of(text, beside=BESIDE.replace("upper(", "upper(2*"), below=BELOW) != first
    assert digest_of(text, beside=BESIDE, below=BELOW.replace(".upper", ".title")) != first


@pytest.mark.parametrize("text", USES_WHOLE.values(), ids=USES_WHOLE)
def test_a_module_of_which_it_is_not_known_what_is_used_counts_whole(digest_of, text):
    first = digest_of(text, beside=BESIDE, below=BELOW)

    assert digest_of(text, beside=BESIDE, below=BELOW) == first
    assert digest_of(text, beside=BESIDE.replace("OTHER = 1", "OTHER = 2"), below=BELOW) != first


def test_imports_inside_a_function_are_followed_without_being_imported(digest_of, tmp_path):
    package = tmp_path / "parcel"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "texts.py").write_text("TEXT = 1")
    text = "def node():\n    from parcel import texts\n    return texts.TEXT"
    first = digest_of(text)

    (package / "texts.py").write_text("TEXT = 2")

    assert digest_of(text) != first


def test_relative_imports_inside_a_function_are_followed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "bundle"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "nodes.py").write_text("def node():\n    from .texts import TEXT\n    return TEXT")
    (package / "texts.py").write_text("TEXT = 1")
    node = importlib.import_module("bundle.nodes").node
    first = code_digest(functools.partial(node))

    (package / "texts.py").write_text("TEXT = 2")

    assert code_digest(functools.partial(node)) != first
    del sys.modules["bundle"], sys.modules["bundle.nodes"]


def test_an_imported_module_whose_file_cannot_be_read_counts_by_its_import_alone(
    tmp_path, monkeypatch
):
    archive = tmp_path / "packed.zip"
    with zipfile.ZipFile(archive, "w") as files:
        files.writestr("packed_texts.py", "TEXT = 1")
    gone = tmp_path / "texts_gone.py"
    gone.write_text("TEXT = 1")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(archive)
    importlib.import_module("texts_gone")
    gone.unlink()

    def packed():
        from packed_texts import TEXT

        return TEXT

    def removed():
        from texts_gone import TEXT

        return TEXT

    assert code_digest(packed) != code_digest(removed)
    del sys.modules["texts_gone"]


LIBRARY = """
import json
import logging
from harness.errors import did_you_mean
from pathlib import Path
FILE = Path("notes.md")
log = logging.getLogger("x")
def node():
    log.info("reading")
    return json.loads(FILE.read_text()), did_you_mean("a", ["b"])
"""


def test_of_libraries_and_of_this_package_the_names_count(digest_of):
    digests = {
        digest_of(LIBRARY.replace(old, new))
        for old, new in (
            ("", ""),
            ("import json", "import tomllib as json"),
            ("import did_you_mean", "import place_of as did_you_mean"),
            ("notes.md", "other.md"),
        )
    }

    assert len(digests) == 4
    assert digest_of(LIBRARY.replace('getLogger("x")', 'getLogger("y")')) in digests


USED = """
import abc, copy, enum, pickle, typing
from dataclasses import dataclass
from pydantic import BaseModel, TypeAdapter
class Access(enum.Flag):
    READ = 1
    WRITE = 2
@typing.runtime_checkable
class Speaker(typing.Protocol):
    def speak(self): ...
class Base(abc.ABC):
    @abc.abstractmethod
    def speak(self): ...
@dataclass
class Note:
    text: "str" = ""
class Answer(BaseModel):
    note: Note = Note()
def node():
    return Access, Speaker, Base, Note, Answer
def use():
    copy.copy(Note()), repr(Note()), Note() == Note(), ~Access.READ, Access(3)
    isinstance(Note(), Speaker), isinstance(Note(), Base), issubclass(Note, Base)
    TypeAdapter(Note).json_schema(), Answer().model_dump_json(), Answer.model_json_schema()
    copy.deepcopy(Answer()), typing.get_type_hints(Note)
"""


def test_classes_that_were_used_count_as_before(tmp_path):
    (tmp_path / "used.py").write_text(USED)
    module = load(tmp_path / "used.py")
    anew = functools.partial(module.node)  # of which nothing is kept
    before = code_digest(anew)

    module.use()

    assert code_digest(anew) == before


# --- what refers to itself, and odd callables ----------------------------------------------------

CIRCLES_OR = """
import enum
class Tree«|(dict)»:
    "Grows."
    kinds = {}
    depth = «1|2»
    def grow(self):
        return «Tree, node|node, Tree», self.kinds
    @property
    def height(self):
        return «3|4»
    @classmethod
    def plant(cls):
        return cls«()|»
    @staticmethod
    def fell():
        return «4|5»
class Colour(enum.Enum):
    RED = «1|2»
    @property
    def tree(self):
        return «Tree|odd»
Tree.kinds["itself"] = Tree.kinds
LISTED = [«Tree, Colour.RED|Colour.RED, Tree»]
LISTED.append(LISTED)
def even(n):
    return n == 0 or odd(n - 1)
def odd(n):
    return n «!=|>» 0 and even(n - 1)
def node(n=Colour.RED):
    return node if even(n) else Tree().grow(), LISTED
"""
CIRCLES = plain(CIRCLES_OR)


@pytest.mark.parametrize("changed", changes(CIRCLES_OR))
def test_circles_end_and_all_that_lies_on_them_counts(digest_of, changed):
    assert digest_of(CIRCLES) == digest_of(CIRCLES)
    assert digest_of(changed) != digest_of(CIRCLES)


def test_a_chain_of_helpers_may_be_long(digest_of):
    def chain(last):
        helpers = [f"def f{n}(): return f{n + 1}()" for n in range(1200)]
        return "\n".join([*helpers, f"f1200 = {last}", "def node():\n    return f0()"])

    assert digest_of(chain(1)) != digest_of(chain(2))


WRAPPED = """
import contextlib
import dataclasses
import functools
def traced(function):
    @functools.wraps(function)
    def inner(*args):
        print("called")
        return function(*args)
    return inner
@functools.lru_cache
def cached(n):
    return n + 1
@contextlib.contextmanager
def opened():
    yield "within"
@traced
def helper(n):
    return cached(n) + 2
@dataclasses.dataclass
class Counter:
    step: int
    def count(self, n):
        return n + self.step
def base(n, more):
    with opened():
        return helper(n) + more
node = NODE
"""


@pytest.mark.parametrize(
    "node",
    [
        "functools.partial(traced(functools.partial(base, more=1)))",
        "lambda n: base(n, 1)",
        "functools.cache(base)",
    ],
)
def test_wrappers_are_looked_through(digest_of, node):
    text = WRAPPED.replace("NODE", node)
    changed = [
        text.replace(old, new)
        for old, new in (
            ("n + 1", "n + 5"),  # cached
            ("within", "outside"),  # a context manager
            ("called", "named"),  # a decorator
            ("(n) + 2", "(n) + 6"),  # decorated
        )
    ]

    assert len({*map(digest_of, [text, text, *changed])}) == 5


@pytest.mark.parametrize(
    ("node", "changed"),
    [
        ("functools.partial(base, 1)", "functools.partial(base, 2)"),
        ("functools.partial(base, more=1)", "functools.partial(base, more=2)"),
        ("Counter(1).count", "Counter(2).count"),
    ],
)
def test_what_is_bound_to_a_function_counts(digest_of, node, changed):
    one, other = (WRAPPED.replace("NODE", text) for text in (node, changed))

    assert digest_of(one) != digest_of(other)


def made_with(prompt, number=1):
    def node():
        return prompt, number

    return node


DISPATCHED_OR = """
import functools
@functools.singledispatch
def shown(value):
    return «0|1»
@shown.register
def _(value: «int|bool»):
    return value + «1|8»
@shown.register(list)
@functools.lru_cache
def _(value):
    return shown(value[0]) + other(«1|2»)
@functools.singledispatch
def other(value):
    return shown(value)
@other.register(str)
def _(value):
    return «shown|len»(value)
class Printer:
    @functools.singledispatchmethod
    def show(self, value):
        return «2|3»
    @show.register
    def _(self, value: int):
        return «4|5»
    @show.register
    def _(self, value: str):
        return «6|7»
def node(x):
    return shown(x), Printer().show(x)
"""
DISPATCHED = plain(DISPATCHED_OR)


@pytest.mark.parametrize("changed", changes(DISPATCHED_OR))
def test_implementations_for_a_type_count(digest_of, changed):
    assert digest_of(DISPATCHED) == digest_of(DISPATCHED)
    assert digest_of(changed) != digest_of(DISPATCHED)


def test_a_further_implementation_gives_another_digest(tmp_path):
    (tmp_path / "cells.py").write_text(DISPATCHED)
    module = load(tmp_path / "cells.py")
    digests = [code_digest(module.node)]
    for number in (1, 2):
        exec(f"@shown.register(set)\ndef _(value):\n    return {number}", vars(module))
        digests.append(code_digest(module.node))
    assert len(set(digests)) == 3


def test_closures_over_one_code_differ_by_what_they_hold():
    assert code_digest(made_with("a")) == code_digest(made_with("a"))
    assert code_digest(made_with("a")) != code_digest(made_with("b"))
    assert code_digest(made_with("a", 1)) != code_digest(made_with("a", 1.0))


def test_a_name_that_is_bound_anew_gives_another_digest(tmp_path):
    prompt = "a"

    def closure():
        return prompt

    first = code_digest(closure)
    prompt = "b"
    assert code_digest(closure) != first

    (tmp_path / "cells.py").write_text("PROMPT = 'a'\ndef node():\n    return PROMPT, helper()")
    module = load(tmp_path / "cells.py")
    digests = [code_digest(module.node)]
    for cell in ("PROMPT = 'b'", "def helper(): return 1", "def helper(): return 2"):
        exec(cell, vars(module))
        digests.append(code_digest(module.node))
    assert len(set(digests)) == 4
    assert code_digest(module.node) == digests[-1]


class Bundle:
    """Of which more counts than its class."""

    def __init__(self, *functions):
        self.functions = functions

    def code_parts(self):
        return self.functions


def test_an_object_may_say_what_it_is_made_of():
    def digest(prompt):
        bundle = Bundle(made_with(prompt))
        return code_digest(lambda: bundle)

    assert digest("a") == digest("a")
    assert digest("a") != digest("b")


PROMPTS_OR = """
import string, jinja2, uuid
class Prompt:
    limit = 3
    def __init__(self, text):
        self.text, self.used, self._session, self.itself = text, 0, uuid.uuid4().hex, [self]
    def fill(self, **values):
        self.used += 1
        return self.text.format(**values)
class Words(str):
    pass
FIRST = Prompt("«Say|Tell» {x}")
SECOND = string.Template("«Say|Tell» $x")
THIRD = jinja2.Template("«Say|Tell» {{ «x|y» }}{% block end %}«.|!»{% endblock %}")
def made(prompt):
    return lambda x: prompt.fill(x=x)
held = made(Prompt("«Now|Then»"))
FOURTH = Words("«Briefly|At length»")
def node(x):
    return FOURTH + FIRST.fill(x=x) + SECOND.substitute(x=x) + THIRD.render(x=x) + held(x)
"""
PROMPTS = plain(PROMPTS_OR)


@pytest.mark.parametrize("changed", changes(PROMPTS_OR))
def test_the_texts_that_objects_hold_count(digest_of, changed):
    pytest.importorskip("jinja2")
    assert digest_of(PROMPTS) == digest_of(PROMPTS)
    assert digest_of(changed) != digest_of(PROMPTS)


def test_what_a_run_sets_in_an_object_does_not_count(tmp_path):
    text = PROMPTS.replace("jinja2, ", "").replace("jinja2.", "string.")
    (tmp_path / "prompts.py").write_text(text)
    module = load(tmp_path / "prompts.py")
    before = code_digest(module.made(module.FIRST))
    module.FIRST.fill(x=1)
    module.FIRST.later = module.FIRST.text = "other"
    module.FIRST.itself.append("more")
    assert code_digest(module.made(module.FIRST)) == before


def test_an_object_that_raises_for_unknown_attributes_counts_by_those_it_has():
    class Strict:
        def __init__(self, text):
            self.text = text

        def __getattr__(self, name):
            raise RuntimeError(name)

    class Slotted:
        __slots__ = ("__weakref__",)
        __getattr__ = Strict.__getattr__

    def digest(text):
        strict, slotted = Strict(text), Slotted()
        return code_digest(lambda: (strict, slotted))

    assert digest("a") == digest("a") != digest("b")


def test_objects_that_were_looked_at_are_not_kept():
    class Held:
        text = "its class's own"

    held = Held()
    held.text, held.itself = "own", held
    reference = weakref.ref(held)
    code_of(lambda: held)
    held = None
    gc.collect()
    assert reference() is None


# --- what changed --------------------------------------------------------------------------------

TOLD = """
PROMPT = "a"
LIMITS = {"words": 1}
def innermost(text): return text.strip()
def helper(text): return innermost(text) + PROMPT
def node(text): return helper(text) * LIMITS["words"]
"""


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("strip", "rstrip", "'innermost' (nodes.py:4)"),
        ('"a"', '"b"', "'PROMPT'"),
        ("1}", "2}", "'LIMITS'"),
        ("helper(text) *", "helper(text) +", "'node' (nodes.py:6)"),
        (" + PROMPT", "", "'helper' (nodes.py:5), 'PROMPT', which is gone"),
    ],
)
def test_what_changed_is_named_with_its_place_and_nothing_else(tmp_path, old, new, told):
    (tmp_path / "nodes.py").write_text(TOLD)
    before = code_of(load(tmp_path / "nodes.py").node)
    (tmp_path / "nodes.py").write_text(TOLD.replace(old, new))

    changed = code_of(load(tmp_path / "nodes.py").node)

    assert changed.digest != before.digest
    assert changed.changes_since(before.parts) == told
    assert before.changes_since({}) == ""


# --- other versions of Python --------------------------------------------------------------------

VERSIONS = '''
import asyncio, collections, contextlib, enum, json, os, re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Optional, Protocol, TypedDict
Pair = collections.namedtuple("Pair", "a b")
class Named(NamedTuple):
    x: Optional[int] = 1
class Typed(TypedDict, total=False):
    a: str
@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Data:
    """Of two lines,
        one of them indented.
    """
    a: int = 1
    b: list[str] = field(default_factory=list)
class Colour(enum.StrEnum):
    RED = "red"
class Bits(enum.IntFlag):
    ONE = 1
class Speaks(Protocol):
    def speak(self) -> str: ...
class Odd(Exception):
    def __init__(self, x): super().__init__(x)
def generated(xs):
    yield from (f"{x!r:>{10}} {x=} {{}} {1:.2f}" "b" for x in xs)
def helper(x: Any, *rest, k=1, **more):
    try:
        with open(x) as file, contextlib.suppress(ValueError):
            return [y for z in rest for y in z if (w := y)], {**more, "file": file}
    except* (OSError, Odd) as error:
        raise error from None
    finally:
        del x
async def node(run, path: Path = Path("a/b")):
    match path:
        case {"a": [1, *rest], **more} if rest: return more
        case Pair(a=1) | Named(x=2) as found: return found
        case Colour.RED | None: pass
    async with asyncio.timeout(1):
        async for item in run: print(item, end="")
    parts = [os.path.join("a", "b"), re.compile("x"), json.dumps({}), 1_000 * 2, -1, 2j, b"x", ...]
    double = lambda value, *, more=3: value + more
    class Inner:
        y: int = 3
        def inside(self): return __class__, parts
    assert double(1), "no"
    return Data(), Bits.ONE, Speaks, Typed, generated, helper, Inner, Literal["a"], asyncio.sleep
'''


def test_a_digest_is_the_same_under_every_version_of_python(digest_of):
    """It was taken under 3.11.7, 3.13 and 3.14; a version that gives another one fails here."""
    assert digest_of(VERSIONS) == "ec2afd0d673b42a7731bb66e49b3eb44"


# --- other processes -----------------------------------------------------------------------------

KEPT = """
import fractions, pathlib, types
def one(): ...
def two(): ...
KEPT = frozenset({
    "x", "y", fractions.Fraction(1), pathlib.Path("/a/c"), pathlib.Path("/b/c"), one, two,
    (1, frozenset({"ant", "bee", "cat"})), frozenset({"dog", "eel", "fox"}), Answer, Settings,
})
SPACE = types.SimpleNamespace(a=1)
"""
PRINTS = """
import sys
from harness.graph.fingerprint import code_of
sys.path.insert(0, sys.argv[1])
{before}
import nodes
print(code_of(nodes.node).digest, code_of(nodes.circles).digest)
"""


@pytest.mark.slow
def test_a_digest_is_the_same_in_every_process(tmp_path):
    """Whatever the order of sets is, and whether the code was compiled or read from a cache."""
    (tmp_path / "nodes.py").write_text(
        f"{NODE}\n{KEPT}"
        + CIRCLES.replace("def node(", "def circles(").replace(
            "return node", "return circles, KEPT, SPACE"
        )
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", PRINTS.format(before=before), str(tmp_path)],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed, before in [("1", ""), ("2", ""), ("3", "filler = [[] for _ in range(9999)]")]
    }

    assert len(printed) == 1
    assert (tmp_path / "__pycache__").is_dir()
